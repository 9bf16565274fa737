"""A replay's result as plain data and back, and the mark of all source code that it follows from.

For whoever keeps results between runs. Nothing here keeps any.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from iosim.base.records import fields, is_dataclass
from iosim.kernel.traffic import Traffic, TrafficRow
from iosim.readers.replay import build
from iosim.readers.replay.coarse import CoarseSteps
from iosim.readers.replay.play import PlayedHeads
from iosim.readers.replay.replay import Replay, ReplayedLaunch
from iosim.readers.replay.sampling import Windows

PACKAGE = Path(__file__).resolve().parents[2]
SOURCES = ("kernel", "problem/masks", "readers/replay")
"""Directories whose Python files decide what a replay finds from its inputs; what is imported beside them only makes
the inputs. The engine's own sources are in its mark."""


@cache
def version() -> str:
    """Changes with any source file that a replay's result may depend on, and with NumPy."""
    text = hashlib.sha256(build.mark() + np.__version__.encode())
    for folder in SOURCES:
        for source in sorted((PACKAGE / folder).glob("*.py")):
            text.update(f"\0{folder}/{source.name}\0".encode() + source.read_bytes())
    return text.hexdigest()[:32]


def to_plain(value: Any) -> Any:
    """A replay as dicts and lists."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return list(map(to_plain, value))
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def from_plain(plain: dict[str, Any]) -> Replay:
    """The replay that `to_plain` was given. Raises KeyError, TypeError, ValueError: it is not what `to_plain` makes."""
    traffic = Traffic(tuple(TrafficRow(**row) for row in plain["traffic"]["rows"]))
    share = plain["share"] and PlayedHeads(**plain["share"])
    return Replay(**plain | {"traffic": traffic, "launches": tuple(map(_launch, plain["launches"])), "share": share})


def _launch(plain: dict[str, Any]) -> ReplayedLaunch:
    windows, coarse = plain["windows"], plain["coarse"]
    if windows is not None:
        arrays = {name: np.array(each, dtype=np.int64) for name, each in windows.items() if isinstance(each, list)}
        windows = Windows(**windows | arrays)
    return ReplayedLaunch(**plain | {"coarse": coarse and CoarseSteps(**coarse), "windows": windows})
