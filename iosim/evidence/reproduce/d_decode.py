"""The decode table of section D: "Flash-Decoding for long-context inference" (PyTorch blog, October 2023), on an A100.

One query token, 16 query heads, 2 key/value heads, head_dim 128, fp16; microseconds of one attention call by eager
PyTorch, FlashAttention v2.0.9 and Flash-Decoding. Which A100 is not stated: computed for the one with 80 GB. Nothing is
fitted to the table.
"""

from __future__ import annotations

from functools import partial

from iosim.evidence.reproduce.row import Row
from iosim.kernel.libraries import Overrides
from iosim.prediction.predictor import predict
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem

GPU = "a100-sxm-80gb"
HEADS, KV_HEADS, HEAD_DIM = 16, 2, 128
TABLE_US = ((256, 256, 3058.6, 390.5, 63.4), (16, 4096, 3157.0, 401.7, 57.0), (1, 131072, 2664.0, 4592.0, 106.6))
"""Batch, context, and the microseconds of eager, FlashAttention-2 and split-KV."""

row = partial(Row, "D")


def decode_problem(batch: int, context: int) -> AttentionProblem:
    """The problem of one row of the table."""
    return AttentionProblem(batch=batch, heads=HEADS, kv_heads=KV_HEADS, seq_q=1, seq_k=context, head_dim=HEAD_DIM)


def eager(problem: AttentionProblem) -> Prediction:
    """Standard attention over K and V that have been repeated for every query head."""
    return predict(problem.with_(kv_heads=problem.heads), "eager", GPU)


def unsplit(problem: AttentionProblem) -> Prediction:
    """FlashAttention-2 before split-KV: a CTA a query head, whose tile holds one true row."""
    return predict(problem, "fa2", GPU, overrides=Overrides(splits=1, pack_group=False))


def split(problem: AttentionProblem) -> Prediction:
    """FlashAttention-2 since Flash-Decoding: a group's heads in one tile, and its rule for the number of splits."""
    return predict(problem, "fa2", GPU)


def _eager_row(problem: AttentionProblem, claimed: float, where: str) -> Row:
    prediction = eager(problem)
    repeated = 2 * problem.heads * problem.batch * problem.seq_k * problem.head_dim * problem.input_type.bytes
    return row(
        f"decode {where}, eager, us", claimed, prediction.time.total_s * 1e6, "us",
        f"predicted for eager with {problem.heads} key/value heads, bound by {prediction.time.bound_by}",
        f"not reproduced: the benchmark repeats K and V for the query heads in every call ({repeated / 1e6:,.0f} MB "
        "written and read again, not counted here) and runs them through batched products whose kernels are not known",
    )  # fmt: skip


def _unsplit_row(problem: AttentionProblem, claimed: float, where: str) -> Row:
    prediction = unsplit(problem)
    ctas = prediction.chain.launches[0].ctas
    return row(
        f"decode {where}, FlashAttention-2 without splits, us", claimed, prediction.time.total_s * 1e6, "us",
        f"predicted for fa2 with 1 split and unpacked heads: {ctas:,} CTAs, bound by {prediction.time.bound_by}",
        "a tile of one true query row costs the products of a whole block; with few CTAs an SM its steps are predicted "
        "longer than they were",
    )  # fmt: skip


def _split_row(problem: AttentionProblem, claimed: float, where: str) -> Row:
    prediction = split(problem)
    n = prediction.kernel.splits
    return row(
        f"decode {where}, split-KV, us", claimed, prediction.time.total_s * 1e6, "us",
        f"predicted for fa2, {n} split{'s' * (n > 1)}, bound by {prediction.time.bound_by}: "
        f"{prediction.total('hbm', 'read') / 1e6:,.0f} MB read from HBM",
        "the combine is counted by its bytes; one over many splits waits for them one after the other" if n > 1 else "",
    )  # fmt: skip


def decode_rows() -> list[Row]:
    """The table's nine times, and the speed-up that splitting brings over the kernel without it."""
    all_rows: list[Row] = []
    for batch, context, *claimed in TABLE_US:
        problem = decode_problem(batch, context)
        where = f"{batch} x {context:,} tokens"
        rows = [f(problem, us, where) for f, us in zip((_eager_row, _unsplit_row, _split_row), claimed, strict=True)]
        all_rows += rows
        times = [r.computed or 0.0 for r in rows]
        all_rows.append(row(f"decode {where}: split-KV faster than without splits, times", claimed[1] / claimed[2],
                        times[1] / times[2], "x", f"{times[1]:,.1f} us / {times[2]:,.1f} us"))  # fmt: skip
    return all_rows
