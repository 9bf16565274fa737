"""Section D: speeds of FlashAttention-3, FlashAttention-2 and cuDNN, and what short articles say of them.

Every published point of the papers' figures stands beside iosim's prediction, HBM bytes by replay. Two constants of the
timing model were fitted on FlashAttention-3's fp16 forward at 512, 2,048 and 8,192 tokens, and on nothing else here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from iosim.evidence.reproduce.d_decode import decode_rows
from iosim.evidence.reproduce.published import CLOCKS, TERA, Point, points
from iosim.evidence.reproduce.registry import section
from iosim.evidence.reproduce.row import Row
from iosim.hardware.profile import load_profile
from iosim.kernel.algorithms import plan
from iosim.kernel.libraries import resolve
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import memory

TITLE = "Speeds of FlashAttention-3 and its kin: H100 and A100, 16k tokens in all, 2,048 columns over all heads"
FP16_PEAK_TFLOPS = 989.0
LONGEST = 262_144
WHY = {
    "cudnn": "iosim's cuDNN is described by a later build's traffic and times; the paper's 9.1.1 slows down beyond "
    "2,048 tokens",
    "fa2": "HBM bytes take about as long as the products here; their overlap was fitted on FlashAttention-3",
    "fa1": "iosim plays one CTA a head, as the first release ran; later ones split long sequences over more CTAs",
    "fa3 fp8": "the softmax takes longer than the products here, and is counted as in fp16; the paper's fp8 kernel is "
    "not persistent",
    "fa3 bwd": "predicted at the clock that the paper fixes, which power may not let a board keep through its loops",
}

row = partial(Row, "D")


@section("D", TITLE)
def rows() -> Iterator[Row]:
    """Published points first, then the statements, then decoding."""
    speed_of = {point: point.speed(point.predicted()) for point in points()}
    for point, speed in speed_of.items():
        yield _point_row(point, speed)
    yield from _statement_rows(speed_of)
    yield from _ablation_rows()
    yield from _pytorch_rows()
    yield from _memory_rows()
    yield from decode_rows()


def _point_row(point: Point, speed: float) -> Row:
    p = point.problem
    note = "constants were fitted on this point among others" if point.fitted else ""
    if abs(speed / point.tflops - 1) > 0.1:
        keys = (f"{point.kernel} {point.dtype}", f"{point.kernel} {point.passes}", point.kernel)
        note = next((WHY[key] for key in keys if key in WHY), note)
    return row(
        f"{point.series}, N = {point.seq:,}, TFLOP/s", point.tflops, speed, "TFLOP/s",
        f"{point.counted_flops / 1e9:,.1f} GFLOP as counted there / {point.counted_flops / speed / 1e6:,.1f} us; "
        f"{p.batch} x {p.heads} heads; {point.source}",
        note,
    )  # fmt: skip


def _statement_rows(speed_of: dict[Point, float]) -> Iterator[Row]:
    for dtype, claimed, word in (("fp16", 740.0, "up to 740"), ("fp8", 1200.0, "close to 1,200")):
        speeds = {p: s for p, s in speed_of.items() if p.kernel == "fa3" and p.dtype == dtype and p.passes == "fwd"}
        best = max(speeds, key=lambda p: speeds[p])
        yield row(
            f"FlashAttention-3 reaches {word} TFLOP/s in {dtype}", claimed, speeds[best], "TFLOP/s",
            f"the fastest of its predicted forward points: d {best.head_dim}, {best.seq:,} tokens",
        )  # fmt: skip
        if dtype == "fp16":
            yield row("FlashAttention-3 reaches 75 % of an H100", 75.0, 100 * speeds[best] / FP16_PEAK_TFLOPS,
                      "percent", f"{speeds[best]:.0f} / {FP16_PEAK_TFLOPS:.0f} TFLOP/s")  # fmt: skip


def _ablation_rows() -> Iterator[Row]:
    """Table 2 of FlashAttention-3's paper: one problem with and without its two kinds of overlap."""
    problem = AttentionProblem(batch=4, heads=16, seq_q=8448, head_dim=128, dtype="fp16")
    seconds = predict(problem, "fa3", "h100-sxm", clocks=CLOCKS["h100-sxm"]).time.total_s
    name = "FlashAttention-3, table 2 (4 x 16 heads, 8,448 tokens, d 128)"
    yield row(f"{name}, TFLOP/s", 661.0, problem.matmul_flops() / seconds / TERA, "TFLOP/s",
              f"{problem.matmul_flops() / 1e9:,.0f} GFLOP / {seconds * 1e6:,.0f} us")  # fmt: skip
    for claimed, without in ((582.0, "overlap inside a warpgroup"), (570.0, "warp specialisation")):
        yield row(f"{name} without {without}, TFLOP/s", claimed, None, "TFLOP/s", "-",
                  "cannot be reproduced: the model describes the kernel with both, as it was released")  # fmt: skip


def _pytorch_rows() -> Iterator[Row]:
    """PyTorch's standard attention on an A100, d 64, causal, both passes; and FlashAttention-2's speed-up over it."""
    gpu = load_profile("a100-sxm-80gb")
    speeds, gains = [], []
    for seq in (512, 1024, 2048, 4096, 8192):
        point = Point("", gpu.name, "eager", "fp16", 64, "causal", "fwd+bwd", seq, 1.0)
        eager = predict(point.problem, "eager", gpu, method="capacity").time.total_s
        flash = predict(point.problem, "fa2", gpu, method="capacity").time.total_s
        speeds.append(point.counted_flops / eager / TERA)
        gains.append(eager / flash)
    arithmetic = "eager kernels with a mask and no dropout at 512 to 8,192 tokens"
    for claimed, value, word in ((15.0, min(speeds), "slowest"), (18.0, max(speeds), "fastest")):
        yield row(f"PyTorch on a100-sxm-80gb, fp16, d 64, causal, fwd+bwd, {word} length, TFLOP/s", claimed, value,
                  "TFLOP/s", arithmetic, "the paper does not name the passes that PyTorch makes")  # fmt: skip
    yield row("FlashAttention is up to 9 times as fast on attention operations", 9.0, max(gains), "times",
              "eager / fa2, the same problems; the largest of the five lengths")  # fmt: skip
    yield row("FlashAttention speeds training and inference up 2 to 4 times", None, None, "times", "-",
              "cannot be computed from attention alone: it depends on the rest of the model; the paper's range covers "
              "several models")  # fmt: skip


def _memory_rows() -> Iterator[Row]:
    """Memory linear in N, and the longest sequence named."""
    gpu = load_profile("h100-sxm")

    def peak(seq: int) -> int:
        problem = AttentionProblem(heads=16, seq_q=seq, head_dim=128, dtype="fp16", mask="causal", passes="fwd+bwd")
        return memory(plan(problem, resolve("fa3", problem, gpu)))["peak"]

    yield row("FlashAttention's memory is linear in N: twice the tokens", 2.0, peak(65_536) / peak(32_768), "times",
              "peak bytes at 65,536 tokens over 32,768; 16 heads, d 128, both passes")  # fmt: skip
    scores = 16 * LONGEST**2 * 2
    yield row("256K tokens on one GPU", None, peak(LONGEST) / 1e9, "GB",
              f"peak of one attention call at {LONGEST:,} tokens, 16 heads, d 128, fp16, both passes",
              f"fits in the {int(gpu.need('memory_bytes')) / 1e9:.0f} GB of an H100; one matrix of scores alone would "
              f"take {scores / 1e9:,.0f} GB")  # fmt: skip
