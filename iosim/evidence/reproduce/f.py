"""Section F: UniForm (arXiv 2412.02344): one attention matrix, computed once and shared by all heads.

The paper publishes no traffic. The savings here are iosim's own, against multi-head attention with as many heads of the
same width, and say what they assume; the paper's figures for whole networks stand below them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from iosim.evidence.reproduce.registry import section
from iosim.evidence.reproduce.row import Row
from iosim.hardware.profile import load_profile
from iosim.kernel.algorithms import options_of
from iosim.kernel.algorithms.uniform import SharedValueOptions
from iosim.prediction.predictor import predict
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem

TITLE = "UniForm (arXiv 2412.02344): one attention matrix shared by all heads"
GPUS = ("t4", "l4", "a100-sxm-80gb")
SHAPES = {
    "4 heads of 96, 1,024 tokens": (16, 4, 96, 1024),
    "12 heads of 64, 1,024 tokens": (8, 12, 64, 1024),
}
"""Name -> batch, heads, head_dim, tokens. 384 columns in 4 heads is the last stage of the largest model in UniForm's
code (seulkiyeom/mixtransform), 12 heads of 64 a ViT-B; UniForm itself attends in windows of 49 tokens."""
PAIRS = (("fused", "flash", "uniform"), ("through memory", "naive", "uniform-naive"))
"""Name, kernel of multi-head attention, kernel with the shared matrix."""

row = partial(Row, "F")


def _problem(shape: tuple[int, int, int, int]) -> AttentionProblem:
    batch, heads, width, tokens = shape
    return AttentionProblem(batch=batch, heads=heads, seq_q=tokens, head_dim=width)


@section("F", TITLE)
def rows() -> Iterator[Row]:
    """Products and memory first, which no GPU changes; then traffic and time by GPU; then what is published."""
    for name, shape in SHAPES.items():
        yield from _exact(name, _problem(shape))
    for name, shape in SHAPES.items():
        for gpu in GPUS:
            yield from _predicted(name, _problem(shape), gpu)
    yield from _published()


def _exact(name: str, p: AttentionProblem) -> Iterator[Row]:
    h, d, n = p.heads, p.head_dim, p.seq_q
    fused, shared = (predict(p, k, GPUS[0], method="bounds") for k in ("flash", "uniform-naive"))
    naive = predict(p, "naive", GPUS[0], method="bounds")
    yield row(f"operations saved, {name}", None, fused.flops / shared.flops, "times",
              f"H (d + d) / (d + H d) = 2H / (H + 1) = {2 * h / (h + 1):.3f}",
              "scores once in place of once a head; P V as often as before")  # fmt: skip
    yield row(f"attention matrices in memory, {name}", None,
              naive.memory_bytes["workspace"] / shared.memory_bytes["workspace"], "times", f"H = {h}",
              f"S and P: {naive.memory_bytes['workspace'] / 1e6:,.1f} MB against "
              f"{shared.memory_bytes['workspace'] / 1e6:,.1f} MB")  # fmt: skip
    both = [m.hbm_bounds.compulsory_read + m.hbm_bounds.compulsory_write for m in (naive, shared)]
    yield row(f"Q, K, V and O in memory, {name}", None, both[0] / both[1], "times",
              f"4 H / (2 + 2 H) = {4 * h / (2 + 2 * h):.3f}", "Q and K of one head, V and O of all")  # fmt: skip
    peak = [m.memory_bytes["peak"] for m in (naive, shared)]
    yield row(f"peak memory through memory, {name}", None, peak[0] / peak[1], "times",
              f"(4 d H + 2 N H) / (2 d + 2 d H + 2 N) = {(4 * d * h + 2 * n * h) / (2 * d + 2 * d * h + 2 * n):.3f}",
              f"{peak[0] / 1e6:,.1f} MB against {peak[1] / 1e6:,.1f} MB")  # fmt: skip


def _total(prediction: Prediction, level: str) -> str:
    return f"{prediction.total(level) / 1e6:,.1f} MB"


def _predicted(name: str, p: AttentionProblem, gpu: str) -> Iterator[Row]:
    profile = load_profile(gpu)
    for way, plain, shared in PAIRS:
        before, after = (predict(p, k, profile, method="capacity") for k in (plain, shared))
        tiles = f"{plain} {before.kernel.tile}, {shared} {after.kernel.tile}"
        per_tile = options_of(after.kernel, SharedValueOptions).value_heads_per_tile or p.heads
        for level, word in (("l2", "SM<->L2 bytes"), ("hbm", "HBM bytes")):
            note = "a count; tiles are the kernels' own on this GPU" if level == "l2" else "capacity rule, an estimate"
            yield row(
                f"{word} saved, {way}, {gpu}, {name}", None, before.total(level) / after.total(level), "times",
                f"{_total(before, level)} / {_total(after, level)}",
                f"{tiles}; {per_tile} of {p.heads} value heads in a tile; {note}" if way == "fused" else note,
            )  # fmt: skip
        yield row(
            f"time saved, {way}, {gpu}, {name}", None, before.time.total_s / after.time.total_s, "times",
            f"{1e6 * before.time.total_s:,.0f} us / {1e6 * after.time.total_s:,.0f} us",
            f"bound by {before.time.bound_by} and {after.time.bound_by}; projections and convolutions not counted",
        )  # fmt: skip


def _published() -> Iterator[Row]:
    yield row(
        "UniForm-l on a Jetson AGX Orin, one image", 21.8, None, "ms", "none",
        "cannot be reproduced: the time of a whole network with convolutions, of which attention's share is not "
        "published; iosim has no profile of that GPU",
    )  # fmt: skip
    yield row(
        "speed-up of UniForm over competing networks, up to", 5.0, None, "times", "none",
        "cannot be reproduced: other networks of similar accuracy, not the same network with multi-head attention; "
        "attention alone is in the rows above",
    )  # fmt: skip
