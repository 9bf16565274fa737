"""A replay's result as plain data and back, and the mark of all source code that it follows from.

For whoever keeps results between runs. Nothing here keeps any.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

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


def to_plain(replay: Replay) -> dict[str, Any]:
    return {
        "traffic": [[r.launch, r.level, r.tensor, r.direction, int(r.bytes)] for r in replay.traffic],
        "launches": list(map(_plain, replay.launches)),
        "foreign_write_bytes": int(replay.foreign_write_bytes),
        "dirty_bytes": int(replay.dirty_bytes),
        "fabric_bytes": int(replay.fabric_bytes),
        "placement_bytes": float(replay.placement_bytes),
        "share": None if replay.share is None else vars(replay.share),
    }


def from_plain(plain: dict[str, Any]) -> Replay:
    """The replay that `to_plain` was given. Raises KeyError, TypeError, ValueError: it is not what `to_plain` makes."""
    return Replay(
        traffic=Traffic(tuple(TrafficRow(*row) for row in plain["traffic"])),
        launches=tuple(map(_launch, plain["launches"])),
        foreign_write_bytes=plain["foreign_write_bytes"],
        dirty_bytes=plain["dirty_bytes"],
        fabric_bytes=plain["fabric_bytes"],
        placement_bytes=plain["placement_bytes"],
        share=None if plain["share"] is None else PlayedHeads(**plain["share"]),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, CoarseSteps | ReplayedLaunch | Windows):
        return {name: _plain(one) for name, one in vars(value).items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _launch(plain: dict[str, Any]) -> ReplayedLaunch:
    windows, coarse = plain["windows"], plain["coarse"]
    if windows is not None:
        arrays = {name: np.array(each, dtype=np.int64) for name, each in windows.items() if isinstance(each, list)}
        windows = Windows(**windows | arrays)
    return ReplayedLaunch(**plain | {"coarse": coarse and CoarseSteps(**coarse), "windows": windows})
