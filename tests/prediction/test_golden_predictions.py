"""Several hundred recorded predictions: bytes the same to the byte, times to 1e-9 of their size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from scripts import load_script

maker: Any = load_script("tests/golden/make_predictions.py")
ROWS: list[dict[str, str]] = maker.recorded()
STRIDE = 8
"""A quick run makes one in so many of them again."""


def test_the_recording_covers_all_kernels_gpus_and_passes() -> None:
    text = "\n".join(row["call"] + " " for row in ROWS)
    assert len(ROWS) >= 300
    for kernel in maker.KERNELS:
        assert f"--kernel {kernel} " in text, kernel
    for gpu in maker.GPUS:
        assert f"--gpu {gpu} " in text, gpu
    for passes in ("fwd", "bwd", "fwd+bwd"):
        assert f"--pass {passes} " in text, passes


def held(rows: Iterable[dict[str, str]]) -> None:
    differing = {row["call"]: texts for row in rows if (texts := list(maker.differences(row)))}
    assert not differing


def test_every_eighth_recorded_prediction_has_not_moved() -> None:
    held(ROWS[::STRIDE])


@pytest.mark.slow
@pytest.mark.recorded
@pytest.mark.parametrize("kernel", maker.KERNELS)
def test_recorded_predictions_have_not_moved(kernel: str) -> None:
    held(row for row in ROWS if f"--kernel {kernel} " in f"{row['call']} ")
