"""Counts of a call that no reader of iosim makes: what tools count wrongly, what a tile takes, what fits."""

from __future__ import annotations

from typing import Any

from iosim.evidence.reproduce.paper import arithmetic
from iosim.evidence.reproduce.side import DIVIDED, Amount, Side

FP32_BYTES = 4
WARP_SCHEDULERS = 4
"""Of an SM since Volta, each with a quarter of its fp32 lanes: what one warp can use."""


@arithmetic
def tiles_and_statistics(of: Side) -> dict[str, Any]:
    """KiB of a CTA's tiles of Q, K, V and scores, and of two fp32 values a query row."""
    rows = of.kernel.tile.block_q
    operands = sum(of.chain.tensors[name].tile_bytes(rows) for name in "QKV")
    scores = rows * of.kernel.tile.block_k * of.problem.input_type.bytes
    return {"computed": (operands + scores + 2 * rows * FP32_BYTES) / DIVIDED["KiB"]}


@arithmetic
def llm_viewer(of: Side, over: Side) -> dict[str, Any]:
    """MB as LLM-Viewer counts them: O as N x N in place of N x d, and stored twice; the percent that it saves of
    `over`, standard attention, and the `right` percent."""
    output, scores = (Amount(over.chain.tensors[name].bytes) for name in "OS")
    wrong = Amount(of.moved - output + 2 * scores)
    saved, right = (100 * (1 - count / over.moved) for count in (wrong, of.moved))
    return {"computed": wrong.MB, "output": output, "scores": scores, "saved": saved, "right": right}


@arithmetic
def first_that_does_not_fit(of: Side, lengths: list[int]) -> dict[str, Any]:
    """The first of some lengths at which the tensors held are more than the GPU's memory."""
    capacity = Amount(of.gpu.need_int("memory_bytes"))
    sides = (Side({**of.keys, "seq_q": tokens}) for tokens in lengths)
    first = next(side for side in sides if side.held > capacity)
    return {"computed": first.problem.seq_q, "needed": int(first.held.MiB), "capacity": int(capacity.MiB)}


@arithmetic
def columns_in_time(of: Side, seconds: float, one_warp: bool = False) -> dict[str, Any]:
    """Heads x head_dim of a forward that the GPU, or one warp of it, can compute in a time by its fp32 rate alone."""
    rate = of.gpu.need("fp32_flops_per_s")
    if one_warp:
        rate = rate / of.gpu.sm_count / WARP_SCHEDULERS
    columns = int(rate * seconds / (4 * of.problem.seq_q**2))
    return {"computed": columns, "heads_of_64": columns // 64, "gflops": rate / 1e9, "tflops": rate / 1e12}


@arithmetic
def rate_in_time(of: Side, seconds: float) -> dict[str, Any]:
    """TFLOP/s that the problem's products would need."""
    return {"computed": of.matmul_flops / seconds / 1e12, "most": of.gpu.need("fp32_flops_per_s") / 1e12}


@arithmetic
def warps_at_work(of: Side) -> dict[str, Any]:
    """Percent of the GPU's warps that one a head are."""
    sms, most, n = of.gpu.sm_count, of.gpu.need_int("max_warps_per_sm"), of.problem.heads
    return {"computed": 100 * n / (sms * most), "busy": min(n, sms), "sms": sms, "warps": -(-n // sms), "most": most}
