"""Runs the microbenchmarks of `kernels/microbench.cu`: rates, latencies and clocks of this machine's GPU.

Needs a GPU and nvcc, no PyTorch. Rates are the best of several runs: what the hardware can do, not its average.
`iosim calibrate` makes a hardware profile of them.
NB: CTAs that scan one footprint in step share its misses, so that the shared curve shows the rate of the SMs' ports and
no cliff; where shared data stops fitting is seen in miss counters only.
"""

from __future__ import annotations

import ctypes
import datetime
import struct
from collections.abc import Callable, Iterator
from typing import Any

from iosim.evidence.cuda import driver
from iosim.evidence.cuda.compiler import build, compiler_version, find_nvcc
from iosim.evidence.cuda.launch import laid_out
from iosim.evidence.cuda.spec import MicroSpec

SCHEMA = 2
CHAINS = 8
SCAN_THREADS, MATH_THREADS = 1024, 256
MMA_FLOPS = 2 * 16 * 8 * 16
MIB = 1 << 20
SCAN_BYTES = 4 << 30
"""What a private scan reads for one point of its curve; in a shared scan each SM reads a 32nd of it."""
FOOTPRINTS = (2, 4, 8, 12, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 40, 48)
"""Footprints of a rate's curve, in 32nds of the L2."""
SUSTAINED_S = 1.0
"""How long the products run before the clock that they hold is read."""


class MicroParams(ctypes.Structure):
    _fields_ = laid_out(
        c_void_p="data out", c_int64="bytes", c_int32="passes all_by_all"
    ) + laid_out(c_void_p="clock")


class Bench:
    def __init__(self, size_bytes: int) -> None:
        cubin = build(MicroSpec(), driver.compute_capability()).cubin
        self.kernels = {name: driver.Function(cubin, name) for name in MicroSpec.functions}
        # one buffer for all footprints, a sink that keeps the loads alive, and the kernel's own clock readings
        self.buffer, self.out, self.clock = (
            driver.Buffer(size_bytes),
            driver.Buffer(256),
            driver.Buffer(256),
        )
        self.sms = driver.multiprocessors()

    def launch(
        self,
        name: str,
        ctas: int,
        threads: int,
        size: int = 0,
        passes: int = 1,
        shared: bool = False,
    ) -> None:
        p = MicroParams(
            self.buffer.address, self.out.address, size, passes, int(shared), self.clock.address
        )
        self.kernels[name].launch((ctas, 1, 1), threads, p, 0, 0)

    def clock_hz(self) -> float:
        # cycles and nanoseconds of the same interval, read by one thread
        clocks, ns = struct.unpack("<qq", self.clock.read(16))
        return 1e9 * clocks / ns if ns > 0 else 0.0

    def best_s(self, work: Callable[[], None], before: Callable[[], None] | None = None) -> float:
        """The least device time of `work` in three runs after one warm-up."""
        work()
        return min(driver.elapsed_s(work, before) for _ in range(3))

    def scan_rate(self, size: int, shared: bool) -> float:
        """Bytes a second that all SMs together read from a footprint, the first passes over it not counted. The better
        of one and two CTAs per SM: some GPUs need more loads under way than one CTA makes."""
        return max(self._scan_rate(size, shared, ctas * self.sms) for ctas in (1, 2))

    def _scan_rate(self, size: int, shared: bool, ctas: int) -> float:
        # passes enough that the difference of two runs is long beside the clock of the events
        few = 2
        many = few + max(4, SCAN_BYTES // size // (32 if shared else 1))

        def seconds(passes: int) -> float:
            return self.best_s(
                lambda: self.launch("micro_scan", ctas, SCAN_THREADS, size, passes, shared)
            )

        # the difference of two runs leaves out the launch and the first, cold passes
        reads = size * (ctas if shared else 1)
        return reads * (many - few) / (seconds(many) - seconds(few))

    def latency(self, size: int, evict_bytes: int = 0) -> tuple[float, float]:
        """(seconds a dependent load over `size` bytes, a power of two; SM clock meanwhile). The chain is the same at
        each run: to miss the L2, `evict_bytes` are read before each."""
        few, many = 2_000, 10_000
        # a chain of dependent addresses through the footprint, made once
        self.launch("micro_link", self.sms, SCAN_THREADS, size)

        def evict() -> None:
            self.launch("micro_scan", self.sms, SCAN_THREADS, evict_bytes)

        def seconds(steps: int) -> float:
            return self.best_s(
                lambda: self.launch("micro_chase", 1, 1, size, steps),
                evict if evict_bytes else None,
            )

        # the difference again: the launch's latency is in both
        spent = seconds(many) - seconds(few)
        return spent / (many - few), self.clock_hz()

    def math_rate(
        self, name: str, operations: float, iterations: int = 4096
    ) -> tuple[float, float]:
        """(operations per second of an arithmetic kernel, SM clock); a thread does `operations` in an iteration."""
        # enough warps per SM to keep its pipes full
        ctas = 4 * self.sms
        seconds = self.best_s(lambda: self.launch(name, ctas, MATH_THREADS, passes=iterations))
        return ctas * MATH_THREADS * operations * iterations / seconds, self.clock_hz()

    def sustained_clock_hz(self, iterations: int = 4096) -> float:
        """SM clock after SUSTAINED_S of tensor products on all SMs."""

        def work() -> None:
            self.launch("micro_tensor", 4 * self.sms, MATH_THREADS, passes=iterations)

        # as many launches as fill SUSTAINED_S, back to back: power limits set in within a second
        once = self.best_s(work)

        def many() -> None:
            for _ in range(max(1, round(SUSTAINED_S / once))):
                work()

        driver.elapsed_s(many)
        return self.clock_hz()


def cliff_bytes(curve: list[tuple[int, float]], far_rate: float) -> int:
    """The largest footprint whose rate is nearer to the L2's than to memory's (on a logarithmic scale). `curve`:
    (footprint in bytes, bytes per second). `far_rate`: bytes per second from memory."""
    best = max(rate for _, rate in curve)
    return max(size for size, rate in curve if rate * rate >= best * far_rate)


def far_bytes(l2_bytes: int) -> int:
    return max(16 * l2_bytes, 256 * MIB)


def machine() -> dict[str, Any]:
    facts = {"compiler": compiler_version(find_nvcc()), "date": datetime.date.today().isoformat()}
    return {"schema": SCHEMA, **driver.properties(), **facts}


def measure(step: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """All rates of this machine's GPU, each with its unit in its name; `step` hears what comes next."""
    facts = machine()
    l2, far = facts["l2_bytes"], far_bytes(facts["l2_bytes"])
    bench = Bench(far)
    # whole MiB; a small L2's first parts come to none
    footprints = [size for part in FOOTPRINTS if (size := int(l2 * part / 32) // MIB * MIB)]
    curves: dict[str, list[tuple[int, float]]] = {}
    for name in ("shared", "private"):
        step(f"L2, {name} scans")
        curves[name] = [(size, bench.scan_rate(size, name == "shared")) for size in footprints]
    step("device memory")
    hbm_read, hbm_write = _memory_rates(bench, far)
    step("latencies")
    # a footprint well inside the L2, and one far outside
    l2_latency, l2_clock = bench.latency(1 << (l2 // 8).bit_length() - 1)
    hbm_latency, hbm_clock = bench.latency(1 << far.bit_length() - 1, evict_bytes=far)
    step("exponentials, products, launches")
    # independent chains per thread hide the latency of each operation
    exps, exp_clock = bench.math_rate("micro_exp", CHAINS)
    products, product_clock = bench.math_rate("micro_tensor", CHAINS * MMA_FLOPS / 32)
    best = {name: max(rate for _, rate in curve) for name, curve in curves.items()}
    rates = {
        "hbm_read": hbm_read,
        "hbm_write": hbm_write,
        "l2_read": best["private"],
        "l2_shared_read": best["shared"],
    }
    return (
        facts
        | {f"{name}_bandwidth_bytes_per_s": rate for name, rate in rates.items()}
        | {
            "l2_latency_s": l2_latency,
            "l2_latency_clock_hz": l2_clock,
            "hbm_latency_s": hbm_latency,
            "hbm_latency_clock_hz": hbm_clock,
            "exp_per_s": exps,
            "exp_clock_hz": exp_clock,
            "tensor_fp16_mma_flop_per_s": products,
            "tensor_clock_hz": product_clock,
            "sustained_clock_hz": bench.sustained_clock_hz(),
            "launch_interval_s": _launch_interval_s(bench),
            "l2_private_cliff_bytes": cliff_bytes(curves["private"], hbm_read),
            "l2_curves": {name: [list(point) for point in curve] for name, curve in curves.items()},
        }
    )


def _memory_rates(bench: Bench, far: int) -> tuple[float, float]:
    """Bytes per second that memory is read and written at."""
    hbm_read = far / bench.best_s(
        lambda: bench.launch("micro_scan", 2 * bench.sms, SCAN_THREADS, far)
    )
    hbm_write = far / bench.best_s(
        lambda: bench.launch("micro_fill", 2 * bench.sms, SCAN_THREADS, far)
    )
    return hbm_read, hbm_write


def _launch_interval_s(bench: Bench, launches: int = 200) -> float:

    def work() -> None:
        for _ in range(launches):
            bench.launch("micro_empty", 1, 32)

    # a long launch goes before, so that the host has queued all empty ones when the first starts
    return bench.best_s(work, lambda: bench.launch("micro_chase", 1, 1, passes=40_000)) / launches


def play(plan: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Makes the launches of a plan one after the other: `{"kernel", "bytes", "passes", "shared"}` each."""
    bench = Bench(max(int(p["bytes"]) for p in plan))
    driver.call("cuProfilerStart")
    for p in plan:
        # repeated scans have one CTA per SM, so that each rereads what its own SM read
        ctas = bench.sms * (1 if p["passes"] > 1 else 2)
        bench.launch(p["kernel"], ctas, SCAN_THREADS, p["bytes"], p["passes"], p["shared"])
        yield {}
    bench.clock.read(16)
