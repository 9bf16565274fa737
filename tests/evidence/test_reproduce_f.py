"""Section F of the published numbers: the arithmetic written out, and the settings of the sources."""

from __future__ import annotations

import pytest
import reproduced

from iosim.evidence.reproduce import Row
from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem

A100 = load_profile("a100-sxm-80gb")


def find(*words: str) -> Row:
    return reproduced.find("F", *words)


def test_every_row_says_how_or_why() -> None:
    assert reproduced.say_how_or_why("F")


@pytest.mark.parametrize(
    ("shape", "h", "d"), [("4 heads of 96", 4, 96), ("12 heads of 64", 12, 64)]
)
def test_savings_that_no_gpu_changes(shape: str, h: int, d: int) -> None:
    n = 1024
    assert find("operations saved", shape).computed == pytest.approx(2 * h / (h + 1))
    assert find("attention matrices in memory", shape).computed == h
    assert find("Q, K, V and O in memory", shape).computed == pytest.approx(4 * h / (2 + 2 * h))
    peak = (4 * d * h + 2 * n * h) / (2 * d + 2 * d * h + 2 * n)
    assert find("peak memory", shape).computed == pytest.approx(peak)


@pytest.mark.parametrize("gpu", ["t4", "l4", "a100-sxm-80gb"])
@pytest.mark.parametrize("way", ["fused", "through memory"])
@pytest.mark.parametrize("shape", ["4 heads of 96", "12 heads of 64"])
def test_traffic_and_time_are_saved_on_small_gpus_too(gpu: str, way: str, shape: str) -> None:
    for word in ("SM<->L2 bytes saved", "HBM bytes saved", "time saved"):
        row = find(word, way, f", {gpu},", shape)
        assert row.claimed is None
        assert row.computed is not None
        assert row.computed > 1


def test_l2_bytes_of_the_fused_kernel() -> None:
    """12 heads of 64, tiles of 128 rows: Q and O once, K and V eight times; then 4 heads a tile, Q and K for three."""
    tensor_bytes = 8 * 1024 * 64 * 2
    plain = 12 * (2 + 2 * 8) * tensor_bytes + 8 * 12 * 1024 * 4  # flash writes an fp32 a row
    shared = 3 * tensor_bytes + 3 * 8 * tensor_bytes + 12 * 8 * tensor_bytes + 12 * tensor_bytes
    assert find("SM<->L2 bytes saved, fused, t4", "12 heads").computed == pytest.approx(
        plain / shared
    )


def test_published_figures_of_networks_are_named_and_not_claimed() -> None:
    assert find("Jetson AGX Orin").claimed == 21.8
    assert find("competing networks").claimed == 5.0
    assert AttentionProblem(heads=4, head_dim=96).head_dim_v * 4 == 384
