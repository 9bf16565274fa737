"""Several hundred recorded predictions: bytes the same to the byte, times to 1e-9 of their size."""

from __future__ import annotations

from typing import Any

import pytest
from effort import quick_every
from scripts import load_script

maker: Any = load_script("tests/golden/make_predictions.py")
ROWS: list[dict[str, str]] = maker.recorded()
STRIDE = 8
"""A quick run makes one in so many of them again."""


def kernel_of(row: dict[str, str]) -> str:
    words = row["call"].split()
    return words[words.index("--kernel") + 1]


def test_the_recording_covers_all_kernels_gpus_and_passes() -> None:
    text = "\n".join(row["call"] + " " for row in ROWS)
    assert len(ROWS) >= 300
    for kernel in maker.KERNELS:
        assert f"--kernel {kernel} " in text, kernel
    for gpu in maker.GPUS:
        assert f"--gpu {gpu} " in text, gpu
    for passes in ("fwd", "bwd", "fwd+bwd"):
        assert f"--pass {passes} " in text, passes


@pytest.mark.recorded
@pytest.mark.parametrize(
    "row",
    quick_every(ROWS, STRIDE),
    ids=[f"{n}-{kernel_of(row)}" for n, row in enumerate(ROWS)],
)
def test_recorded_predictions_have_not_moved(row: dict[str, str]) -> None:
    """A test a call, so that a planted change is held against the shortest of those that execute it."""
    assert list(maker.differences(row)) == []
