"""Published speeds of attention kernels (measurements/published_utilisation.csv), and iosim's prediction of each.

The papers fix 16k tokens in all and 2,048 columns over all heads, and count 4 N^2 d operations per head: half of them
under a causal mask, 2.5 times as many in a backward pass. Beside them, counts of a call that no reader of iosim makes:
what tools count wrongly, what a tile takes, what fits.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from iosim.base.data import data_dir
from iosim.base.records import dataclass
from iosim.base.words import Method
from iosim.catalog.libraries import resolve
from iosim.evidence.reproduce.paper import arithmetic, each_of
from iosim.evidence.reproduce.side import DIVIDED, Amount, Side
from iosim.hardware.profile import load_profile
from iosim.prediction.predictor import predict
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem

FILE = "published_utilisation.csv"
TOKENS = 16384
WIDTH = 2048
PASS_FACTOR = {"fwd": 1.0, "bwd": 2.5, "fwd+bwd": 3.5}
FIT_LENGTHS = (512, 2048, 8192)
"""Lengths on which constants were fitted, of the six of FlashAttention-3's fp16 forward."""
CLOCKS = {"h100-sxm": 1.83e9}
"""The clock in hertz at which FlashAttention-3's authors fix their H100 (arXiv 2407.08608, appendix on benchmarks);
other papers say nothing."""
TERA = 1e12


@dataclass(frozen=True)
class Point:
    source: str
    gpu: str
    kernel: str
    dtype: str
    head_dim: int
    mask: str
    passes: str
    seq: int
    tflops: float

    @property
    def problem(self) -> AttentionProblem:
        return AttentionProblem(
            batch=max(1, TOKENS // self.seq),
            heads=WIDTH // self.head_dim,
            seq_q=self.seq,
            head_dim=self.head_dim,
            dtype=self.dtype,
            mask=self.mask,
            passes=self.passes,
        )

    @property
    def counted_flops(self) -> float:
        return counted_flops(self.problem)

    @property
    def fitted(self) -> bool:
        return (
            self.kernel == "fa3"
            and self.dtype == "fp16"
            and self.passes == "fwd"
            and self.seq in FIT_LENGTHS
        )

    @property
    def series(self) -> str:
        mask = "causal" if self.mask == "causal" else "not causal"
        return (
            f"{self.kernel} on {self.gpu}, {self.dtype}, d {self.head_dim}, {mask}, {self.passes}"
        )

    @property
    def clocks(self) -> str | float:
        return CLOCKS.get(self.gpu, "boost")

    def predicted(self) -> Prediction:
        """iosim's prediction, HBM bytes by replay. The papers' backward is handed gradients that lie as it wants them:
        the copies that PyTorch makes of them are no part of it."""
        method: Method = "capacity" if self.kernel == "fa1" else "replay"
        gpu = load_profile(self.gpu)
        kernel = resolve(self.kernel, self.problem, gpu).copying()
        return predict(self.problem, kernel, gpu, method=method, clocks=self.clocks)

    def speed(self, prediction: Prediction) -> float:
        return self.counted_flops / prediction.time.total_s / TERA


def counted_flops(problem: AttentionProblem) -> float:
    """Operations of a problem as the papers count them."""
    p = problem
    whole = 4.0 * p.seq_q * p.seq_q * p.head_dim * p.heads * p.batch * PASS_FACTOR[p.passes]
    return whole / 2 if p.mask == "causal" else whole


def points() -> list[Point]:
    with (data_dir("kernels") / "measurements" / FILE).open(newline="", encoding="utf-8") as file:
        return [
            Point(
                r["source"],
                r["gpu"],
                r["kernel"],
                r["dtype"],
                int(r["head_dim"]),
                r["mask"],
                r["pass"],
                int(r["seq"]),
                float(r["tflops"]),
            )
            for r in csv.DictReader(file)
        ]


@each_of
def published_points() -> Iterator[Mapping[str, Any]]:
    return ({"point": point, "published": point.tflops} for point in points())


@cache
def predicted_speed(point: Point) -> float:
    return point.speed(point.predicted())


@arithmetic
def published_speed(point: Point, why: Mapping[str, str]) -> dict[str, Any]:
    """Predicted TFLOP/s of a published point, with a reason where it is a tenth off."""
    speed = predicted_speed(point)
    note = "constants were fitted on this point among others" if point.fitted else ""
    if abs(speed / point.tflops - 1) > 0.1:
        keys = (f"{point.kernel} {point.dtype}", f"{point.kernel} {point.passes}", point.kernel)
        note = next((why[key] for key in keys if key in why), note)
    flops = point.counted_flops
    return {"computed": speed, "note": note, "gflops": flops / 1e9, "took": flops / speed / 1e6}


@arithmetic
def fastest_point(kind: str, peak_tflops: float | None = None) -> dict[str, Any]:
    """The fastest predicted forward of FlashAttention-3 in a type: TFLOP/s, or percent of a peak."""
    mine = [p for p in points() if p.kernel == "fa3" and p.dtype == kind and p.passes == "fwd"]
    point = max(mine, key=predicted_speed)
    speed = predicted_speed(point)
    return {
        "computed": 100 * speed / peak_tflops if peak_tflops else speed,
        "speed": speed,
        "point": point,
    }


@arithmetic
def speed_as_papers_count(of: Side) -> dict[str, Any]:
    """TFLOP/s of a prediction, operations counted as the papers do."""
    return {"computed": counted_flops(of.problem) / of.time / TERA}


@arithmetic
def split_decode(of: Side) -> dict[str, Any]:
    """Microseconds of a step of decoding whose keys are split, and in how many parts."""
    n = of.kernel.splits
    waits = "the combine is counted by its bytes; one over many splits waits for them one after the other"
    return {
        "computed": of.time.us,
        "splits": f"{n} split{'s' if n > 1 else ''}",
        "note": waits if n > 1 else "",
    }


FP32_BYTES = 4
WARP_SCHEDULERS = 4
"""Schedulers of an SM since Volta, each with a quarter of its fp32 lanes: what one warp can use."""


@arithmetic
def tiles_and_statistics(of: Side) -> dict[str, Any]:
    """KiB of a CTA's tiles of Q, K, V and scores, and of two fp32 values a query row."""
    rows = of.kernel.tile.block_q
    operands = sum(rows * of.chain.tensors[name].row_bytes for name in "QKV")
    scores = rows * of.kernel.tile.block_k * of.problem.input_type.bytes
    return {"computed": (operands + scores + 2 * rows * FP32_BYTES) / DIVIDED["KiB"]}


@arithmetic
def llm_viewer(of: Side, over: Side) -> dict[str, Any]:
    """MB as LLM-Viewer counts them: O as N x N in place of N x d, and stored twice; the percent that it saves of
    `over`, standard attention, and the `right` percent."""
    output, scores = (Amount(over.chain.tensors[name].bytes) for name in "OS")
    wrong = Amount(of.moved - output + 2 * scores)
    saved, right = (100 * (1 - count / over.moved) for count in (wrong, of.moved))
    return {
        "computed": wrong.MB,
        "output": output,
        "scores": scores,
        "saved": saved,
        "right": right,
    }


@arithmetic
def first_that_does_not_fit(of: Side, lengths: list[int]) -> dict[str, Any]:
    """The first of some lengths at which the tensors held are more than the GPU's memory."""
    capacity = Amount(of.gpu.need_memory_bytes())
    sides = (Side({**of.keys, "seq_q": tokens}) for tokens in lengths)
    first = next(side for side in sides if side.held > capacity)
    return {
        "computed": first.problem.seq_q,
        "needed": int(first.held.MiB),
        "capacity": int(capacity.MiB),
    }


@arithmetic
def columns_in_time(of: Side, seconds: float, one_warp: bool = False) -> dict[str, Any]:
    """Heads x head_dim of a forward that the GPU, or one warp of it, can compute in a time by its fp32 rate alone."""
    rate = of.gpu.need("fp32_flops_per_s")
    if one_warp:
        rate = rate / of.gpu.sm_count / WARP_SCHEDULERS
    columns = int(rate * seconds / (4 * of.problem.seq_q**2))
    return {
        "computed": columns,
        "heads_of_64": columns // 64,
        "gflops": rate / 1e9,
        "tflops": rate / 1e12,
    }


@arithmetic
def rate_in_time(of: Side, seconds: float) -> dict[str, Any]:
    """TFLOP/s that the problem's products would need."""
    return {
        "computed": of.matmul_flops / seconds / 1e12,
        "most": of.gpu.need("fp32_flops_per_s") / 1e12,
    }


@arithmetic
def warps_at_work(of: Side) -> dict[str, Any]:
    """Percent of the GPU's warps that one a head are."""
    sms, warps_per_sm, n = of.gpu.sm_count, of.gpu.need_int("max_warps_per_sm"), of.problem.heads
    return {
        "computed": 100 * n / (sms * warps_per_sm),
        "busy": min(n, sms),
        "sms": sms,
        "warps": -(-n // sms),
        "most": warps_per_sm,
    }
