"""The registry of fitted numbers, `fitted.toml`: which constants were chosen so that predictions agree with measured
rows, and with which. `iosim.evidence.fitted` reads their present values."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.schema import read_toml


@cache
def registry() -> dict[str, list[dict[str, Any]]]:
    """The entries of `fitted.toml` by kind: constants of modules, values of profiles, of the catalog, of links."""
    return read_toml(Path(__file__).with_suffix(".toml"))


def rows_of(module: str, name: str) -> str | None:
    """On which rows a module's constant was fitted; None of one that was not."""
    for entry in registry()["constant"]:
        if entry["module"] == module and name in entry["names"]:
            return str(entry["rows"])
    return None
