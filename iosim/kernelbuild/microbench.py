"""Runs the microbenchmarks of `kernels/microbench.cu` and turns their times into the rates of a hardware profile.

    python -m iosim.kernelbuild.microbench --out rates.json

Needs a GPU and nvcc, no PyTorch. Rates are the best of several runs: what the hardware can do, not its average.
NB: CTAs that scan one footprint in step share its misses, so that the shared curve shows the rate of the SMs' ports and
no cliff; where shared data stops fitting is seen in miss counters only (measurements/l2_capacity_curve.csv).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path

from iosim.errors import InputError
from iosim.kernelbuild import driver
from iosim.kernelbuild.compiler import build
from iosim.kernelbuild.spec import MicroSpec

LINE_BYTES, CHAINS = 128, 8
SCAN_THREADS, MATH_THREADS = 1024, 256
MMA_FLOPS = 2 * 16 * 8 * 16
MIB = 1 << 20
SCAN_BYTES = 4 << 30
"""What a private scan reads for one point of its curve; in a shared scan each SM reads a 32nd of it."""


class MicroParams(ctypes.Structure):
    """`MicroParams` of microbench.cu."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("passes", ctypes.c_int32),
        ("all_by_all", ctypes.c_int32),
    )


class Bench:
    """The loaded kernels with one large buffer."""

    def __init__(self, size_bytes: int) -> None:
        cubin = build(MicroSpec(), driver.compute_capability()).cubin
        self.kernels = {name: driver.Function(cubin, name) for name in MicroSpec.functions}
        self.buffer, self.out = driver.Buffer(size_bytes), driver.Buffer(256)
        self.sms = driver.multiprocessors()

    def launch(self, name: str, ctas: int, threads: int, size: int = 0, passes: int = 1, shared: bool = False) -> None:
        p = MicroParams(self.buffer.address, self.out.address, size, passes, int(shared))
        self.kernels[name].launch((ctas, 1, 1), threads, p, 0, 0)

    def best_s(self, work: Callable[[], None], before: Callable[[], None] | None = None) -> float:
        """The least device time of `work` in three runs after one warm-up."""
        work()
        return min(driver.elapsed_s(work, before) for _ in range(3))

    def scan_rate(self, size: int, shared: bool) -> float:
        """Bytes a second that all SMs together read from a footprint, the first passes over it not counted."""
        # passes enough that the difference of two runs is long beside the clock of the events
        few = 2
        many = few + max(4, SCAN_BYTES // size // (32 if shared else 1))

        def seconds(passes: int) -> float:
            return self.best_s(lambda: self.launch("micro_scan", self.sms, SCAN_THREADS, size, passes, shared))

        reads = size * (self.sms if shared else 1)
        return reads * (many - few) / (seconds(many) - seconds(few))

    def latency_s(self, size: int, evict_bytes: int = 0) -> float:
        """Seconds a dependent load, over `size` bytes (a power of two).

        The chain is the same at each run: to miss the L2, `evict_bytes` are read before each.
        """
        few, many = 2_000, 10_000
        self.launch("micro_link", self.sms, SCAN_THREADS, size)

        def evict() -> None:
            self.launch("micro_scan", self.sms, SCAN_THREADS, evict_bytes)

        def seconds(steps: int) -> float:
            return self.best_s(lambda: self.launch("micro_chase", 1, 1, size, steps), evict if evict_bytes else None)

        return (seconds(many) - seconds(few)) / (many - few)

    def math_rate(self, name: str, each: float, iterations: int = 4096) -> float:
        """Operations a second of an arithmetic kernel; `each` is what one thread does in an iteration."""
        ctas = 4 * self.sms
        seconds = self.best_s(lambda: self.launch(name, ctas, MATH_THREADS, passes=iterations))
        return ctas * MATH_THREADS * each * iterations / seconds


def cliff_bytes(curve: list[tuple[int, float]], far_rate: float) -> int:
    """The largest footprint whose rate is nearer to the L2's than to memory's (on a logarithmic scale).

    Args:
        curve: (footprint in bytes, bytes a second).
        far_rate: bytes a second from memory.
    """
    best = max(rate for _, rate in curve)
    return max(size for size, rate in curve if rate * rate >= best * far_rate)


def measure() -> dict[str, object]:
    """All rates of this machine's GPU, each with its unit in its name."""
    l2 = driver.l2_bytes()
    far = max(16 * l2, 256 * MIB)
    bench = Bench(far)
    footprints = [int(l2 * part / 32) // MIB * MIB for part in (2, 4, 8, 12, 14, 15, 16, 18, 20, 24, 28, 32, 40, 48)]
    curves = {
        name: [(size, bench.scan_rate(size, shared)) for size in footprints if size]
        for name, shared in (("shared", True), ("private", False))
    }

    def scan_far() -> None:
        bench.launch("micro_scan", 2 * bench.sms, SCAN_THREADS, far)

    def launches() -> None:
        for _ in range(200):
            bench.launch("micro_empty", 1, 32)

    def long_work() -> None:
        bench.launch("micro_chase", 1, 1, passes=40_000)

    near, chain = 1 << (l2 // 8).bit_length() - 1, 1 << far.bit_length() - 1
    hbm_read = far / bench.best_s(scan_far)
    return {
        "schema": 1,
        "gpu": driver.device_name(),
        "compute_capability": driver.compute_capability(),
        "driver_cuda": driver.driver_version(),
        "sms": bench.sms,
        "l2_bytes": l2,
        "hbm_read_bandwidth_bytes_per_s": hbm_read,
        "hbm_write_bandwidth_bytes_per_s": far
        / bench.best_s(lambda: bench.launch("micro_fill", 2 * bench.sms, SCAN_THREADS, far)),
        "l2_read_bandwidth_bytes_per_s": max(rate for _, rate in curves["private"]),
        "l2_shared_read_bandwidth_bytes_per_s": max(rate for _, rate in curves["shared"]),
        "l2_latency_s": bench.latency_s(near),
        "hbm_latency_s": bench.latency_s(chain, evict_bytes=far),
        "exp_per_s": bench.math_rate("micro_exp", CHAINS),
        "tensor_fp16_mma_flop_per_s": bench.math_rate("micro_tensor", CHAINS * MMA_FLOPS / 32),
        "launch_interval_s": bench.best_s(launches, long_work) / 200,
        "l2_private_cliff_bytes": cliff_bytes(curves["private"], hbm_read),
        "l2_curves": {name: [list(point) for point in curve] for name, curve in curves.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what a hardware profile holds on this machine's GPU.")
    parser.add_argument("--out", type=Path, help="JSON to write (default: standard output)")
    arguments = parser.parse_args()
    try:
        text = json.dumps(measure(), indent=1)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.out:
        arguments.out.write_text(text + "\n")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
