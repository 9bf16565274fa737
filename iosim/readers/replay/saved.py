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
        "launches": [_launch_to_plain(launch) for launch in replay.launches],
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
        launches=tuple(_launch_of_plain(launch) for launch in plain["launches"]),
        foreign_write_bytes=plain["foreign_write_bytes"],
        dirty_bytes=plain["dirty_bytes"],
        fabric_bytes=plain["fabric_bytes"],
        placement_bytes=plain["placement_bytes"],
        share=None if plain["share"] is None else PlayedHeads(**plain["share"]),
    )


def _launch_to_plain(launch: ReplayedLaunch) -> dict[str, Any]:
    windows = launch.windows
    return vars(launch) | {
        "coarse": None if launch.coarse is None else vars(launch.coarse),
        "windows": None if windows is None else {
            "played": windows.played.tolist(), "stands_for": windows.stands_for.tolist(),
            "read": windows.read.tolist(), "write": windows.write.tolist(), "waited": float(windows.waited),
        },
    }  # fmt: skip


def _launch_of_plain(plain: dict[str, Any]) -> ReplayedLaunch:
    windows, coarse = plain["windows"], plain["coarse"]
    arrays = {name: np.array(windows[name], dtype=np.int64) for name in ("played", "stands_for", "read", "write")} if (
        windows is not None) else {}  # fmt: skip
    return ReplayedLaunch(**plain | {
        "coarse": None if coarse is None else CoarseSteps(**coarse),
        "windows": None if windows is None else Windows(**arrays, waited=windows["waited"]),
    })  # fmt: skip
