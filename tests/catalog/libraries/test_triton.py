"""The tutorial's two forwards (triton-lang/triton @003da478, python/tutorials/06-fused-attention.py): the one by
pointers walks all keys whatever the mask, the one by tensor descriptors ends at the diagonal."""

from __future__ import annotations

import pytest
from counter import count

from iosim import AttentionProblem, predict
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.catalog.libraries.triton import shared_bytes
from iosim.hardware.profile import load_profile
from iosim.integrations.triton.kernel import Config, configured
from iosim.kernel.kernel import Tile
from iosim.kernel.launch import Chain
from iosim.kernel.unit import MatrixUnit

CAUSAL = AttentionProblem(heads=4, seq_q=2048, head_dim=64, dtype="fp16", mask="causal")


def bytes_of_keys(chain: Chain) -> int:
    """Bytes of K that SMs read."""
    return count(chain).total("l2", "read", tensor="K")


def key_rows(gpu: str, problem: AttentionProblem) -> int:
    """Rows of K that SMs read, over all query blocks."""
    chain = plan(problem, resolve("triton", problem, load_profile(gpu)))
    return bytes_of_keys(chain) // (problem.head_dim * problem.input_type.bytes)


@pytest.mark.parametrize(
    ("gpu", "dtype", "walks_all"),
    [
        ("a100", "fp16", True),
        ("l4", "fp16", True),
        ("t4", "fp16", True),
        ("mi300x", "fp16", True),
        ("h100", "fp8", True),
        ("l4", "fp8", True),
        ("h100", "fp16", False),
        ("b200", "fp8", False),
        ("rtx-5090", "fp16", False),
    ],
)
def test_which_forward_ends_at_the_diagonal(gpu: str, dtype: str, walks_all: bool) -> None:
    problem = CAUSAL.with_(dtype=dtype)
    tile = resolve("triton", problem, load_profile(gpu)).tile
    blocks = 2048 // tile.block_q
    all_keys = 4 * blocks * 2048
    below = 4 * sum(
        -(-(b + 1) * tile.block_q // tile.block_k) * tile.block_k for b in range(blocks)
    )
    assert key_rows(gpu, problem) == (all_keys if walks_all else below)
    assert key_rows(gpu, problem.with_(mask="none")) == all_keys


def test_masked_keys_cost_time() -> None:
    all_keys = predict(CAUSAL, "triton", "a100")
    below = predict(CAUSAL, "triton", "h100")
    assert all_keys.total("l2", "read") > 1.8 * below.total("l2", "read")
    dense = predict(CAUSAL.with_(mask="none"), "triton", "a100")
    assert all_keys.time.total_s == pytest.approx(dense.time.total_s, rel=0.05)


def test_configurations_are_ranked_with_a_loop_that_ends_at_the_diagonal() -> None:
    """As the forward that is compiled for their reports: STAGE 3 has two loops."""
    a100 = load_profile("a100")
    mine, catalog = (
        bytes_of_keys(plan(CAUSAL, kernel))
        for kernel in (configured(Config(128, 64), CAUSAL, a100), resolve("triton", CAUSAL, a100))
    )
    assert mine < 0.6 * catalog


ALLOCATED = [
    (128, 64, 64, 3, 49160), (128, 64, 128, 3, 98312), (64, 64, 64, 3, 40968), (64, 32, 128, 2, 36868),
    (32, 64, 64, 3, 40968), (16, 64, 64, 3, 36872), (32, 64, 128, 3, 77832), (128, 128, 64, 2, 49156),
    (64, 64, 256, 2, 106500),
]  # fmt: skip
"""block_q, block_k, head_dim, stages of a flash loop in bf16, and the shared memory that Triton 3.6 allocates for it on
cc 8.0, 8.6, 8.9 or 12.0, with 2, 4 or 8 warps."""


@pytest.mark.parametrize(("block_q", "block_k", "head_dim", "stages", "allocated"), ALLOCATED)
def test_shared_memory_is_what_the_compiler_allocates(
    block_q: int, block_k: int, head_dim: int, stages: int, allocated: int
) -> None:
    problem = AttentionProblem(heads=1, seq_q=1024, head_dim=head_dim, dtype="bf16")
    computed_bytes = shared_bytes(Tile(block_q, block_k, 4, stages), problem, MatrixUnit.MMA_SYNC)
    assert 0 <= allocated - computed_bytes <= 12


def test_two_ctas_of_flex_share_an_sm_of_99_kb() -> None:
    for gpu in ("rtx-a6000", "l4"):
        call = predict(CAUSAL, "flex", gpu).call
        of_launch = dict(zip(call.chain.launches, call.residencies, strict=True))
        (main,) = (count_here for launch, count_here in of_launch.items() if launch.name == "main")
        assert main.ctas_per_sm == 2
