"""The columns of tidy tables of measurements (columns.toml): measuring writes them, validating reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from iosim.base.schema import read_toml

_FILE = read_toml(Path(__file__).with_suffix(".toml"))
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    name: tuple(words.split()) for name, words in _FILE["columns"].items()
}

PROBLEM, CHAIN, TILE, LAUNCH = (_COLUMNS[name] for name in ("problem", "chain", "tile", "launch"))
KNOBS, SM90, COUNTED, WHOLE, FLAGS = (
    _COLUMNS[name] for name in ("knobs", "sm90", "counted", "whole", "flags")
)
METRICS: Mapping[str, tuple[str, int]] = {
    name: (metric, unit) for name, (metric, unit) in _FILE["metrics"].items()
}
"""Column: the metric that it comes from and what one unit of the metric is worth."""
OTHER_NAMES: Mapping[str, tuple[str, int]] = {
    name: (metric, unit) for name, (metric, unit) in _FILE["names"].items()
}
"""Another name of a metric, in another version or on another page: the metric, and what one unit is worth in its."""
