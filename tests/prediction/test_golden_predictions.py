"""Several hundred recorded predictions: bytes the same to the byte, times to 1e-9 of their size."""

from __future__ import annotations

from typing import Any

import pytest
from effort import quick_first
from scripts import load_script

maker: Any = load_script("tests/golden/make_predictions.py")
ROWS: list[dict[str, str]] = maker.recorded()
PARTS = 8


def test_the_recording_covers_all_kernels_gpus_and_passes() -> None:
    text = "\n".join(row["call"] + " " for row in ROWS)
    assert len(ROWS) >= 300
    for kernel in maker.KERNELS:
        assert f"--kernel {kernel} " in text, kernel
    for gpu in maker.GPUS:
        assert f"--gpu {gpu} " in text, gpu
    for passes in ("fwd", "bwd", "fwd+bwd"):
        assert f"--pass {passes} " in text, passes


@pytest.mark.parametrize("part", quick_first(range(PARTS), 1))
def test_recorded_predictions_have_not_moved(part: int) -> None:
    moved = {
        row["call"]: texts for row in ROWS[part::PARTS] if (texts := list(maker.differences(row)))
    }
    assert not moved
