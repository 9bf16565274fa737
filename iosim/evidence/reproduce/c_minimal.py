"""Section C, items 1 and 3: a minimal CUDA kernel on a T4, and what is said of its design.

The source gives 0.17 ms for the kernel and 0.78 ms for attention written out by hand, at 512 tokens, and no shape.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import lru_cache, partial

from iosim.base.data import data_dir
from iosim.evidence.reproduce.c_study import LAYERS_ALONE
from iosim.evidence.reproduce.row import Row
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.libraries import Overrides
from iosim.prediction.predictor import predict
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.studies.training.frontier import changed, peak_bytes
from iosim.studies.training.model import Setup

GPU, MEASURED_GPU = "t4", "h200-sxm"
TOKENS = 512
MINIMAL_MS, MANUAL_MS = 0.17, 0.78
HEAD_DIMS = (8, 16, 32, 64)
HEADS = (1, 4, 8, 12, 16, 24, 32, 40, 48, 96, 192)
WARP_SCHEDULERS = 4
"""Of an SM since Volta, each with a quarter of its fp32 lanes: what one warp can use."""
SHAPES = ((1, 8, 64), (1, 12, 64), (16, 12, 64))
"""Batch, heads, head_dim; the last is that of the benchmark which the kernel builds on."""
BENCHMARK = SHAPES[-1]

row = partial(Row, "C")


def _problem(batch: int, heads: int, head_dim: int, tokens: int = TOKENS, dtype: str = "fp32") -> AttentionProblem:
    return AttentionProblem(batch=batch, heads=heads, seq_q=tokens, head_dim=head_dim, dtype=dtype)


@lru_cache(maxsize=1024)
def _predicted(kernel: str, batch: int, heads: int, head_dim: int, tokens: int, gpu: str) -> Prediction:
    return predict(_problem(batch, heads, head_dim, tokens), kernel, gpu, method="capacity")


def milliseconds(kernel: str, batch: int, heads: int, head_dim: int, tokens: int = TOKENS, gpu: str = GPU) -> float:
    """Predicted milliseconds of a kernel's forward in fp32."""
    return 1e3 * _predicted(kernel, batch, heads, head_dim, tokens, gpu).time.total_s


def rows() -> Iterator[Row]:
    """What the shape can have been, and what the models say of it."""
    yield from _possible_rows(load_profile(GPU))
    for batch, heads, d in SHAPES:
        shape = f"{batch} x {heads} heads, d {d}"
        minimal, eager = (milliseconds(k, batch, heads, d) for k in ("minimal", "eager"))
        not_stated = "the shape is not stated; this one is assumed"
        yield row(f"minimal kernel on a T4, N = {TOKENS}, {shape}", MINIMAL_MS, minimal, "ms", "predicted for minimal",
                  f"{not_stated}. One warp walks a head's 256 pairs of tiles")  # fmt: skip
        yield row(f"manual attention on a T4, N = {TOKENS}, {shape}", MANUAL_MS, eager, "ms", "predicted for eager",
                  f"{not_stated}; the host's time between launches is not modelled")  # fmt: skip
        yield row(f"manual over minimal on a T4, N = {TOKENS}, {shape}", MANUAL_MS / MINIMAL_MS, eager / minimal,
                  "times", "eager over minimal, predicted", "not reproduced: minimal is the slower one")  # fmt: skip
    yield from _scan_rows()
    yield from _measured_rows()


def _possible_rows(gpu: HardwareProfile) -> Iterator[Row]:
    """Arithmetic alone: operations in the published time against the GPU's fp32 rate."""
    rate, seconds = gpu.need("fp32_flops_per_s"), MINIMAL_MS / 1e3
    batch, heads, d = BENCHMARK
    flops = _problem(batch, heads, d).matmul_flops()
    yield row(f"minimal kernel on a T4: rate that {batch} x {heads} heads of d {d} would need in {MINIMAL_MS} ms", 75.8,
              flops / seconds / 1e12, "TFLOP/s", f"4 N^2 d x {batch * heads} = {flops / 1e9:.2f} GFLOP",
              mistake=f"not possible: a T4 has {rate / 1e12:g} TFLOP/s of fp32, in which the kernel "
              "computes")  # fmt: skip
    columns = int(rate * seconds / (4 * TOKENS**2))
    yield row(f"minimal kernel on a T4: most heads x head_dim in {MINIMAL_MS} ms at the whole GPU's fp32 rate", None,
              columns, "columns", f"{rate / 1e12:g} TFLOP/s x {MINIMAL_MS} ms / (4 N^2)",
              f"{columns // 64} heads of d 64, batch included, if every SM were busy all the time")  # fmt: skip
    warp = rate / gpu.sm_count / WARP_SCHEDULERS
    yield row(f"minimal kernel on a T4: largest head_dim in {MINIMAL_MS} ms with one warp a head", None,
              int(warp * seconds / (4 * TOKENS**2)), "columns",
              f"a warp has a quarter of an SM's fp32 lanes: {warp / 1e9:.1f} GFLOP/s",
              "the published kernel runs a head on one CTA of 32 threads: no head_dim in use is possible in the "
              "published time, whatever the number of heads")  # fmt: skip


def _scan_rows() -> Iterator[Row]:
    """The best shape for the claim among many."""
    for d in HEAD_DIMS:
        ratio = {h: milliseconds("eager", 1, h, d) / milliseconds("minimal", 1, h, d) for h in HEADS}
        best = max(ratio, key=lambda h: ratio[h])
        yield row(f"manual over minimal on a T4, N = {TOKENS}, d {d}: most over {HEADS[0]} to {HEADS[-1]} heads",
                  MANUAL_MS / MINIMAL_MS, ratio[best], "times", f"at {best} heads: "
                  f"{milliseconds('eager', 1, best, d):.2f} over {milliseconds('minimal', 1, best, d):.2f} ms",
                  f"four times faster needs head dimensions under 32 and many heads, and then minimal takes more than "
                  f"{MINIMAL_MS} ms")  # fmt: skip


def _measured_rows() -> Iterator[Row]:
    """Times of both on an H200, recorded and predicted."""
    times: dict[tuple[int, int], dict[str, float]] = {}
    path = data_dir("kernels") / "measurements" / "h200_iosim_times.csv"
    with open(path, encoding="utf-8", newline="") as file:
        for r in csv.DictReader(file):
            if r["dtype"] == "float32" and r["l2_start"] == "warm" and int(r["seq_q"]) == TOKENS:
                shape = int(r["batch"]), int(r["heads"])
                times.setdefault(shape, {}).setdefault(r["implementation"], float(r["ms"]))
    for (batch, heads), ms_of in times.items():
        slow, fast = (milliseconds(k, batch, heads, 64, gpu=MEASURED_GPU) for k in ("minimal", "eager"))
        yield row(f"measured on an H200, N = {TOKENS}, {batch} x {heads} heads, d 64: minimal over manual",
                  ms_of["minimal"] / ms_of["pytorch_eager"], slow / fast, "times",
                  f"measured {ms_of['minimal']:.2f} over {ms_of['pytorch_eager']:.3f} ms, predicted {slow:.2f} over "
                  f"{fast:.3f}", "minimal is 5 to 124 times slower than PyTorch's eager chain: no shape is four times "
                  "faster. The prediction is too kind to it: a thread's loads of its own row, 32 rows a warp, are not "
                  "in the model of steps")  # fmt: skip


def remark_rows() -> Iterator[Row]:
    """The qualitative remarks, with a number where a model gives one."""
    gpu = load_profile(GPU)
    for heads in (8, 192):
        busy_sms = min(heads, gpu.sm_count)
        warps = -(-heads // gpu.sm_count)
        yield row(f"remark: a thread a row is imbalanced; warps at work on a T4 with {heads} heads", None,
                  100 * heads / (gpu.sm_count * gpu.need("max_warps_per_sm")), "%",
                  f"one warp a head: {busy_sms} of {gpu.sm_count} SMs, up to {warps} of "
                  f"{gpu.max_warps_per_sm} warps each",
                  "the source says so in words")  # fmt: skip
    for tokens in (512, 2048, 8192):
        slow, fast = (milliseconds(k, 1, 12, 64, tokens) for k in ("minimal", "flash"))
        yield row(f"remark: it slows down on long sequences; minimal over a tiled flash kernel, T4, 12 heads, "
                  f"N = {tokens:,}", None, slow / fast, "times", f"predicted {slow:.1f} over {fast:.2f} ms, fp32",
                  "one CTA a head, whatever the length")  # fmt: skip
    tokens = 4096
    fixed = predict(_problem(1, 12, 64, tokens), "minimal", gpu, method="bounds").total("l2")
    wider = predict(_problem(1, 12, 64, tokens), "minimal", gpu, method="bounds",
                    overrides=Overrides(tile=(64, 64))).total("l2")  # fmt: skip
    yield row(f"remark: a fixed block of 32 limits scaling; SM<->L2 bytes of blocks of 32 over those of 64, N = "
              f"{tokens:,}", None, fixed / wider, "times",
              f"{fixed / 1e6:,.0f} over {wider / 1e6:,.0f} MB, 12 heads, d 64",
              "Q, O and the row statistics move once a key block")  # fmt: skip
    model, setup = changed(LAYERS_ALONE, _layers_setup("fp32"), "layers", 12)
    wide, half = peak_bytes(model, setup), peak_bytes(model, _layers_setup("fp16"))
    yield row("remark: fp32 doubles memory; peak of training 12 layers of width 1,024 at 2,048 tokens, fp32 over fp16",
              2.0, wide / half, "times", f"{wide / 1e9:.3f} over {half / 1e9:.3f} GB, fused attention on both sides",
              "row statistics are fp32 on both sides")  # fmt: skip


def _layers_setup(precision: str) -> Setup:
    return Setup(seq_len=2048, precision=precision, optimizer="none")
