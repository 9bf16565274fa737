"""A setting that changes no number is said, and one that changes some is not."""

from __future__ import annotations

from typing import Any

import pytest

import iosim
from iosim.prediction.result import Prediction

CALL: dict[str, Any] = {"gpu": "a100", "heads": 8, "seq_len": 512, "head_dim": 64}


def idle(p: Prediction) -> list[str]:
    return [note for note in p.notes if "changes no number of" in note]


@pytest.mark.parametrize(
    ("kernel", "settings", "note"),
    [
        ("eager", {"tile": "64x64"}, "tile 64x64 changes no number of eager here"),
        ("naive", {"warps": 2}, "warps 2 changes no number of naive here"),
        ("eager", {"smem": 60000}, "smem 60000 changes no number of eager here"),
        ("eager", {"heavy_first": True}, "heavy_first true changes no number of eager here"),
        # No kernel's numbers follow the type of its running sums.
        ("fa2", {"accumulate": "fp16"}, "accumulate fp16 changes no number of fa2 here"),
        ("flash", {"index_dim": 64}, "index_dim 64 changes no number of flash here"),
    ],
)
def test_a_setting_that_changes_nothing_is_said(
    kernel: str, settings: dict[str, Any], note: str
) -> None:
    plain = iosim.predict(kernel=kernel, **CALL)
    p = iosim.predict(kernel=kernel, **CALL, **settings)
    assert (p.l2, p.hbm, p.time_s) == (plain.l2, plain.hbm, plain.time_s)
    assert idle(p) == [note]


@pytest.mark.parametrize(
    ("kernel", "settings"),
    [
        ("flash", {"tile": "64x64"}),
        ("flash", {"accumulate": "fp32"}),
        ("fa2", {"output_dtype": "fp16"}),
        ("eager", {"output_dtype": "fp32"}),
        ("fa2", {"splits": 2, "page_size": 256}),
        ("eager", {"tile": "128x128"}),  # its own
    ],
)
def test_a_setting_that_changes_a_number_is_not(kernel: str, settings: dict[str, Any]) -> None:
    assert not idle(iosim.predict(kernel=kernel, **CALL, **settings))
