"""Section A: "How Tiled Attention Fits in SRAM" (Towards AI). 32 heads, head_dim 128, fp16, batch 1, forward."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from iosim.evidence.reproduce.models import GIB, KIB, least_bytes, moved, queries_outside, standard, standard_kernel
from iosim.evidence.reproduce.registry import section
from iosim.evidence.reproduce.row import Row
from iosim.hardware.profile import load_profile
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem

TITLE = "How Tiled Attention Fits in SRAM (article): 32 heads, head_dim 128, fp16, batch 1, forward"
GPU = "a100-sxm-80gb"
FLASH_KERNEL = "fa2"

row = partial(Row, "A")


def _problem(tokens: int) -> AttentionProblem:
    return AttentionProblem(heads=32, seq_q=tokens, head_dim=128)


@section("A", TITLE)
def rows() -> Iterator[Row]:
    """The claims in the article's order; after each traffic ratio, the same ratio at the two levels of an A100."""
    gpu = load_profile(GPU)
    p = _problem(4096)
    chain = standard(p, standard_kernel(gpu, p))
    scores = chain.tensors["S"].bytes
    yield row("score matrix at 4,096 tokens", 1.0, scores / GIB, "GiB", "32 heads x N^2 x 2 bytes")
    yield row(
        "traffic of standard attention at 4,096 tokens: over 4 GB", 4.0, moved(chain) / GIB, "GiB",
        "4 passes over N x N, Q, K, V read once, O written once: (4 N^2 + 4 N d) x 32 x 2 bytes",
        "every product reads its operands once and no pass meets its data in L2",
    )  # fmt: skip
    for tokens, claimed in ((4096, 33.0), (16384, 129.0)):
        yield from _reduction(tokens, claimed)
    once = sum(chain.tensors[n].bytes for n in "QKVO")
    yield row(
        "memory at 4,096 tokens, standard over flash", 9.0, (once + scores) / once, "times",
        "(N^2 + 4 N d) / (4 N d) = 1 + N / 4d", "S overwritten in place by its softmax",
    )  # fmt: skip
    yield row(
        "shared memory of a CTA on an A100", 129.0, _tile_bytes(p) / KIB, "KiB",
        "Q, K and V tiles of 128 x 128 in fp16, one 128 x 128 fp16 tile of scores, two fp32 values a query row",
        "other splits give 129 KiB too; a kernel that keeps scores in registers needs 96 KiB or less",
    )  # fmt: skip


def _reduction(tokens: int, claimed: float) -> Iterator[Row]:
    gpu = load_profile(GPU)
    p = _problem(tokens)
    chain = standard(p, standard_kernel(gpu, p))
    least = least_bytes(p)
    flash_bytes = least.compulsory_read + least.compulsory_write
    yield row(
        f"traffic at {tokens:,} tokens, standard over flash", claimed, moved(chain) / flash_bytes, "times",
        "(4 N^2 + 4 N d) / (4 N d) = 1 + N/d",
        "counts no re-read of K and V: holds at HBM only while L2 keeps them, and at no other level; see the two "
        "rows that follow",
    )  # fmt: skip
    predictions = {k: predict(p, k, gpu, method="capacity") for k in ("naive", FLASH_KERNEL)}
    tile = predictions[FLASH_KERNEL].kernel.tile
    for level, name in (("l2", "SM<->L2"), ("hbm", "HBM, capacity rule")):
        over, under = (predictions[k].total(level) for k in ("naive", FLASH_KERNEL))
        reads = (
            f"each of the {-(-tokens // tile.block_q)} query blocks of a head reads all of K and V; spilled "
            "registers count"
            if level == "l2"
            else "an estimate: K and V of the heads in use fit in half of L2 and are read once"
        )
        yield row(
            f"traffic at {tokens:,} tokens, naive over {FLASH_KERNEL} ({tile}), predicted at {name} on {gpu.name}",
            claimed, over / under, "times", f"{over / 1e6:,.1f} MB / {under / 1e6:,.1f} MB", reads,
        )  # fmt: skip


def _tile_bytes(problem: AttentionProblem) -> int:
    block, fp32_bytes = 128, 4
    tensors = queries_outside(problem, block).tensors
    operands = sum(tensors[n].tile_bytes(block) for n in "QKV")
    return operands + block * block * problem.input_type.bytes + 2 * block * fp32_bytes
