"""Operators of whole models beside the kernels that an H100 ran for them, one by one."""

from __future__ import annotations

import csv
import sys
from functools import cache

import pytest
from scripts import ROOT

pytest.importorskip("torch")
pytest.importorskip("transformers")
sys.path.insert(0, str(ROOT / "experiments"))

import transformers_models

from iosim.studies.program.result import OperatorTraffic

COUNTED = ROOT / "experiments" / "measurements" / "h100_transformers_kernels.csv"
KERNELS = {
    "direct_copy_kernel": {
        "clone",
        "repeat",
        "convolution.channels_last",
        "native_layer_norm.copy",
    },
    "layer_norm": {"native_layer_norm"},
    "nchwToNhwc": {"convolution.channels_last"},
    "nhwcToNchw": {"convolution.channels_first"},
    "conv2d_c1": {"convolution.depthwise"},
    "sm90_xmma_fprop": {"convolution"},
    "nvjet": {"mm", "addmm"},
    "align1": {"mm"},
    "sdpa": {"attention"},
    "CatArray": {"cat"},
    "Gelu": {"gelu"},
}
"""Words of a kernel's name, and operators that it may be."""


@cache
def pairs(model: str) -> list[tuple[dict[str, str], OperatorTraffic]]:
    """A step's kernels, each with the operator that the mode recorded in its place."""
    with COUNTED.open(encoding="utf-8") as file:
        kernels = [row for row in csv.DictReader(file) if row["model"] == model]
    rows = transformers_models.traffic(model, "fwd", "h100").result.rows
    assert len(rows) == len(kernels)
    return list(zip(kernels, rows, strict=True))


@pytest.mark.parametrize("model", ["whisper", "segformer"])
def test_each_operator_is_the_kernel_in_its_place(model: str) -> None:
    for kernel, row in pairs(model):
        for word, operators in KERNELS.items():
            if word in kernel["kernel"]:
                assert row.operator in operators, (kernel, row.operator)


@pytest.mark.parametrize(("model", "within"), [("whisper", 0.06), ("segformer", 0.09)])
def test_hbm_bytes_of_all_kernels(model: str, within: float) -> None:
    for way in ("hbm_read", "hbm_write"):
        counted = sum(int(kernel[way]) for kernel, _ in pairs(model))
        predicted = sum(getattr(row, way) for _, row in pairs(model))
        assert predicted == pytest.approx(counted, rel=within), way


def test_l2_bytes_of_products() -> None:
    """Read by every counted product of a Whisper's but convolutions: within a tenth each."""
    counted = [(k, r) for k, r in pairs("whisper") if k["l2_read"] and r.operator != "convolution"]
    assert len(counted) == 77
    for kernel, row in counted:
        assert row.l2_read == pytest.approx(int(kernel["l2_read"]), rel=0.1), kernel


def test_a_head_of_an_odd_vocabulary_reads_its_weights_once() -> None:
    kernel, row = pairs("whisper")[-1]
    assert "align1" in kernel["kernel"]
    assert row.hbm_read == pytest.approx(int(kernel["hbm_read"]), rel=0.05)
