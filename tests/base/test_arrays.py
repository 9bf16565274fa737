"""Numbers of times and of bins are as wide as a pointer, wherever that has 32 bits."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from iosim.base.arrays import repeated, tallied

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_repeated_is_counted_in_pointers() -> None:
    times = np.array([2, 0, 1], dtype=np.int64)
    assert repeated(np.array([7, 8, 9]), times).tolist() == [7, 7, 9]
    assert repeated(np.eye(2), 2, axis=1).shape == (2, 4)
    assert tallied(times, minlength=4).tolist() == [1, 1, 1, 0]
    assert tallied(times, np.array([0.5, 1.0, 2.0])).tolist() == [1.0, 2.0, 0.5]
    rooms = ("readers", "problem", "kernel", "prediction", "studies", "catalog", "code")
    for room in rooms:
        for path in (ROOT / "iosim" / room).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert not {"np.repeat(", "np.bincount("} & {*re.findall(r"np\.\w+\(", text)}, path
