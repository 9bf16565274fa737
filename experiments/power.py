"""Power, clock and speed of kernels that load one unit of the GPU each, and of attention, while they run for seconds.

    python experiments/power.py --out h200_power.csv    measures
    python experiments/power.py --fit h200_power.csv    rates, and energies of a unit of work, from a recorded table

A row is a window of about 0.3 s of one load that runs without a pause: what it did, how long a launch took, and what
NVML read meanwhile. Needs PyTorch, nvcc and nvidia-ml-py. Nothing of the GPU's settings is touched.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ctypes

import numpy as np
import pandas as pd
from experiment import compiled, run_script, write_provenance

from iosim.base.files import write_whole
from iosim.evidence.cuda import driver

HERE = Path(__file__).resolve().parent
MIB, GIB = 1 << 20, 1 << 30
WINDOW_S, WINDOWS, REST_S, SAMPLE_S = 0.3, 8, 0.4, 0.02
COLUMNS = (
    "load",
    "ctas",
    "batch",
    "heads",
    "kv_heads",
    "seq",
    "head_dim",
    "causal",
    "passes",
    "window",
    "seconds_in",
    "ms",
    "sm_mhz",
    "true_sm_mhz",
    "power_w",
    "power_average_w",
    "energy_j",
    "temperature_c",
    "hbm_read_bytes",
    "hbm_write_bytes",
    "l2_read_bytes",
    "l2_write_bytes",
    "shared_bytes",
    "flops",
    "fp32_operations",
    "exps",
    "instructions",
)


class Work(ctypes.Structure):
    """`Work` of power.cu."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("passes", ctypes.c_int64),
        ("clock", ctypes.c_void_p),
    )


@dataclass
class Load:
    """A launch that is repeated, and what one launch does."""

    name: str
    launch: Callable[[], None]
    ctas: int
    does: dict[str, float] = field(default_factory=dict)
    problem: dict[str, int | str] = field(default_factory=dict)
    clock_mhz: Callable[[], float] | None = None
    """Clock of the SMs in the last launch, by their own counter: NVML's is the one that is set."""


class Meter:
    """What NVML reads of the first GPU."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self.nvml, self.gpu = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)

    def instant_w(self) -> float:
        value = self.nvml.nvmlDeviceGetFieldValues(self.gpu, [self.nvml.NVML_FI_DEV_POWER_INSTANT])[
            0
        ]
        return value.value.uiVal / 1e3

    def average_w(self) -> float:
        return self.nvml.nvmlDeviceGetPowerUsage(self.gpu) / 1e3

    def energy_j(self) -> float:
        return self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.gpu) / 1e3

    def sm_mhz(self) -> float:
        return float(self.nvml.nvmlDeviceGetClockInfo(self.gpu, self.nvml.NVML_CLOCK_SM))

    def temperature_c(self) -> float:
        return float(self.nvml.nvmlDeviceGetTemperature(self.gpu, self.nvml.NVML_TEMPERATURE_GPU))


def windows(load: Load, meter: Meter) -> list[dict[str, object]]:
    """Rows of a load that runs WINDOWS windows without a pause."""
    import torch

    for _ in range(3):
        load.launch()
    torch.cuda.synchronize()
    once = statistics.median(driver.elapsed_s(load.launch) for _ in range(3))
    repeats = max(1, round(WINDOW_S / once))
    time.sleep(REST_S)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(WINDOWS + 1)]
    samples: list[tuple[float, float, float, float, float]] = []

    def sample() -> None:
        samples.append(
            (
                time.perf_counter(),
                meter.sm_mhz(),
                meter.instant_w(),
                meter.average_w(),
                meter.energy_j(),
            )
        )

    start = time.perf_counter()
    events[0].record()
    ends: list[float] = []
    queued = 0
    while len(ends) < WINDOWS:
        while queued < min(WINDOWS, len(ends) + 2):
            for _ in range(repeats):
                load.launch()
            queued += 1
            events[queued].record()
        sample()
        time.sleep(SAMPLE_S)
        if events[len(ends) + 1].query():
            ends.append(time.perf_counter())
    rows: list[dict[str, object]] = []
    begun = start
    for window, end in enumerate(ends):
        seconds = events[window].elapsed_time(events[window + 1]) / 1e3
        inside = [s for s in samples if begun <= s[0] <= end] or samples[-1:]
        energy = inside[-1][4] - inside[0][4]
        spent = inside[-1][0] - inside[0][0]
        rows.append(
            {
                "load": load.name,
                "ctas": load.ctas,
                "window": window,
                "seconds_in": round(end - start, 3),
                "ms": f"{seconds * 1e3 / repeats:.6g}",
                "sm_mhz": round(statistics.fmean(s[1] for s in inside), 1),
                "power_w": round(statistics.fmean(s[2] for s in inside), 1),
                "power_average_w": round(statistics.fmean(s[3] for s in inside), 1),
                "energy_j": f"{energy / spent * seconds:.5g}" if spent > 0.1 else "",
                "temperature_c": meter.temperature_c(),
            }
            | load.problem
            | {name: f"{amount:.8g}" for name, amount in load.does.items()}
        )
        begun = end
    if load.clock_mhz is not None:
        rows[-1]["true_sm_mhz"] = round(load.clock_mhz(), 1)
    return rows


class Units:
    """The kernels of power.cu."""

    def __init__(self, folder: Path) -> None:
        source = HERE / "power.cu"
        self.cubin = compiled(source, folder / "power.cubin", accelerated=True)
        self.sms = driver.multiprocessors()
        self.data, self.out, self.clock = (
            driver.Buffer(4 * GIB),
            driver.Buffer(256),
            driver.Buffer(256),
        )
        self.run("power_fill", 8 * self.sms, 256, 0, 4 * GIB, 1)()

    def run(
        self, name: str, ctas: int, threads: int, shared: int, size: int, passes: int
    ) -> Callable[[], None]:
        function = driver.Function(self.cubin, name, shared)
        work = Work(self.data.address, self.out.address, size, passes, self.clock.address)
        return lambda: function.launch((ctas, 1, 1), threads, work, 0, shared)

    def clock_mhz(self) -> float:
        cycles, ns = struct.unpack("<qq", self.clock.read(16))
        return 1e3 * cycles / ns

    def load(
        self,
        name: str,
        counter: str,
        amounts: dict[str, float],
        *,
        sms: int | None = None,
        per_sm: int = 1,
        threads: int = 1024,
        shared: int = 0,
        size: int = 0,
        passes: int = 1000,
    ) -> Load:
        """`each` is what a CTA does in a pass; passes are chosen so that a launch takes about 30 ms."""
        ctas = (sms or self.sms) * per_sm
        trial = self.run(name, ctas, threads, shared, size, passes)
        trial()
        seconds = min(driver.elapsed_s(trial) for _ in range(2))
        passes = max(1, round(passes * 0.03 / seconds))
        does = {quantity: amount * passes * ctas for quantity, amount in amounts.items()}
        return Load(
            counter,
            self.run(name, ctas, threads, shared, size, passes),
            ctas,
            does,
            clock_mhz=self.clock_mhz,
        )

    def all(self) -> list[Load]:
        loads = [self.load("power_sleep", "sleep", {}, threads=32, passes=10_000)]
        for sms, per_sm in ((self.sms, 2), (self.sms // 2, 1)):
            some = {"sms": sms, "per_sm": per_sm}
            loads += [
                self.load("power_integer", "integer", {"instructions": 1024 / 32 * 1024.0}, **some),
                self.load(
                    "power_ffma",
                    "ffma",
                    {"fp32_operations": 1024 * 1024.0, "instructions": 32 * 1024.0},
                    **some,
                ),
                self.load(
                    "power_exp",
                    "exp",
                    {
                        "exps": 1024 * 256.0,
                        "fp32_operations": 1024 * 256.0,
                        "instructions": 32 * 512.0,
                    },
                    **some,
                ),
                self.load(
                    "power_shared",
                    "shared",
                    {"shared_bytes": 48 * 1024.0, "instructions": 3 * 5 * 32.0},
                    shared=48 * 1024,
                    **some,
                ),
                self.load(
                    "power_mma",
                    "mma",
                    {"flops": 8 * 32 * 4096.0, "instructions": 8 * 32.0},
                    threads=256,
                    **some,
                ),
            ]
        wgmma = {
            "flops": 4 * 2 * 2 * 64 * 128 * 16.0,
            "shared_bytes": 4 * 2 * (64 + 128) * 32.0,
            "instructions": 4 * 8.0,
        }
        registers = wgmma | {"shared_bytes": 4 * 2 * 128 * 32.0}
        alone = {"threads": 256, "shared": 200 * 1024}  # one CTA an SM
        for sms in (self.sms, 110, 88, 66, 44, 22):
            loads.append(self.load("power_wgmma", "wgmma", wgmma, sms=sms, **alone))
        for sms in (self.sms, 66):
            loads.append(
                self.load("power_wgmma_registers", "wgmma_registers", registers, sms=sms, **alone)
            )
            loads.append(self.load("power_wgmma_zeros", "wgmma_zeros", wgmma, sms=sms, **alone))
        loads.append(
            self.load(
                "power_mma_zeros",
                "mma_zeros",
                {"flops": 8 * 32 * 4096.0, "instructions": 256.0},
                per_sm=2,
                threads=256,
            )
        )
        for size, counter in ((16 * MIB, "l2_load"), (4 * GIB, "hbm_load")):
            slice_bytes = size / self.sms / 2
            amounts = {"l2_read_bytes": slice_bytes, "instructions": slice_bytes / 512 * 3}
            amounts |= {"hbm_read_bytes": slice_bytes} if size > GIB else {}
            loads.append(self.load("power_load", counter, amounts, per_sm=2, size=size, passes=20))
        half = self.sms // 2
        loads.append(
            self.load(
                "power_load",
                "l2_load",
                {"l2_read_bytes": 16 * MIB / half / 2},
                sms=half,
                per_sm=2,
                size=16 * MIB,
                passes=20,
            )
        )
        loads.append(
            self.load(
                "power_load",
                "hbm_load",
                {"l2_read_bytes": 4 * GIB / 40 / 2, "hbm_read_bytes": 4 * GIB / 40 / 2},
                sms=40,
                per_sm=2,
                size=4 * GIB,
                passes=2,
            )
        )
        for size, counter in ((16 * MIB, "l2_store"), (4 * GIB, "hbm_store")):
            slice_bytes = size / self.sms / 2
            amounts = {"l2_write_bytes": slice_bytes, "instructions": slice_bytes / 512 * 3}
            amounts |= {"hbm_write_bytes": slice_bytes} if size > GIB else {}
            loads.append(self.load("power_store", counter, amounts, per_sm=2, size=size, passes=20))
        return loads


ATTENTION = (
    # backend, batch, heads, kv_heads, tokens, head_dim, causal, passes
    ("cudnn", 1, 32, 32, 16384, 128, 0, "fwd"), ("cudnn", 1, 32, 32, 16384, 64, 0, "fwd"),
    ("cudnn", 4, 32, 32, 4096, 128, 1, "fwd"), ("cudnn", 4, 32, 32, 1024, 128, 1, "fwd"),
    ("cudnn", 4, 32, 32, 2048, 64, 1, "fwd"), ("cudnn", 1, 16, 16, 8192, 256, 1, "fwd"),
    ("cudnn", 2, 32, 8, 8192, 128, 1, "fwd"), ("cudnn", 32, 32, 8, 1, 128, 0, "decode"),
    ("flash", 1, 32, 32, 16384, 128, 0, "fwd"), ("flash", 1, 32, 32, 16384, 64, 1, "fwd"),
    ("flash", 4, 32, 32, 4096, 128, 1, "fwd"), ("flash", 2, 16, 16, 8192, 256, 1, "fwd"),
    ("efficient", 1, 32, 32, 16384, 128, 0, "fwd"), ("efficient", 4, 32, 32, 4096, 64, 1, "fwd"),
    ("cudnn", 2, 16, 16, 8192, 128, 1, "bwd"), ("flash", 2, 16, 16, 8192, 128, 1, "bwd"),
    ("cudnn", 2, 16, 16, 8192, 64, 0, "bwd"),
    ("math", 1, 16, 16, 4096, 128, 0, "fwd"),
)  # fmt: skip


def attention_loads() -> list[Load]:
    """PyTorch's backends, and a matrix product and a copy beside them."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    kinds = {
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    loads = []
    for backend, batch, heads, kv_heads, tokens, head_dim, causal, passes in ATTENTION:
        rows = 1 if passes == "decode" else tokens
        keys = 16384 if passes == "decode" else tokens
        backward = passes == "bwd"
        q = torch.randn(
            batch,
            heads,
            rows,
            head_dim,
            device="cuda",
            dtype=torch.bfloat16,
            requires_grad=backward,
        )
        k, v = (
            torch.randn(
                batch,
                kv_heads,
                keys,
                head_dim,
                device="cuda",
                dtype=torch.bfloat16,
                requires_grad=backward,
            )
            for _ in "kv"
        )

        def launch(
            q=q, k=k, v=v, kind=kinds[backend], causal=bool(causal), gqa=heads != kv_heads
        ) -> None:
            with sdpa_kernel(kind):
                sdpa(q, k, v, is_causal=causal, enable_gqa=gqa)

        if backward:
            with sdpa_kernel(kinds[backend]):
                o = sdpa(q, k, v, is_causal=bool(causal))
            d_o = torch.randn_like(o)

            def launch(o=o, q=q, k=k, v=v, d_o=d_o) -> None:
                torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)

        problem = {
            "batch": batch,
            "heads": heads,
            "kv_heads": kv_heads,
            "seq": keys,
            "head_dim": head_dim,
            "causal": causal,
            "passes": passes,
        }
        loads.append(Load(backend, launch, 0, {}, problem))
    for n in (8192, 2048):
        a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in "ab")
        loads.append(
            Load(f"matmul_{n}", lambda a=a, b=b: torch.matmul(a, b), 0, {"flops": 2.0 * n**3})
        )
    x, y = (torch.randn(GIB // 2, device="cuda", dtype=torch.float32) for _ in "xy")
    amounts = {
        f"{level}_{way}_bytes": 2.0 * GIB for level in ("hbm", "l2") for way in ("read", "write")
    }
    loads.append(Load("copy", lambda: y.copy_(x), 0, amounts))
    return loads


ENERGIES = {
    # quantity of the profile: what a load does
    "warp_instruction_pj": "instructions",
    "shared_pj_per_byte": "shared_bytes",
    "l2_read_pj_per_byte": "l2_read_bytes",
    "l2_write_pj_per_byte": "l2_write_bytes",
    "hbm_read_pj_per_byte": "hbm_read_bytes",
    "hbm_write_pj_per_byte": "hbm_write_bytes",
    "tensor_pj_per_flop": "flops",
}
SETTLED = 4
"""The first window that counts: the board's controller has found its clock by then."""
IN_FIT = ("sleep", "ffma", "exp", "shared", "wgmma", "l2_load", "hbm_load", "l2_store", "hbm_store")
"""Loads that are fitted on; products of zeros, integer logic, mma.sync, PyTorch's own kernels are looked at only."""
UNLIMITED = 0.995
"""Of the highest clock of all loads: those that run at less are slowed by a limit."""
DENSE_FLOPS = 4096
"""Of fp16, an SM and cycle of its tensor cores (cc 9.0)."""


def settled(table: pd.DataFrame) -> pd.DataFrame:
    """A row a load: the mean of its windows from SETTLED on."""
    return (
        table[table.window >= SETTLED]
        .groupby(["load", "ctas"], sort=False)
        .mean(numeric_only=True)
        .reset_index()
    )


def rates(rows: pd.DataFrame) -> list[str]:
    """What the loads reach: HBM's rates, the L2's, the clock of the tensor cores and what mma.sync makes of it."""

    def a_second(load: str, quantity: str) -> float:
        return max(float(r[quantity] / r.ms * 1e3) for _, r in rows[rows.load == load].iterrows())

    lines = [
        f"dram_{way}_bandwidth_bytes_per_s = {a_second(load, f'hbm_{way}_bytes'):.4g}"
        for way, load in (("read", "hbm_load"), ("write", "hbm_store"))
    ]
    lines.append(f"dram_copy_bandwidth_bytes_per_s = {2 * a_second('copy', 'hbm_read_bytes'):.4g}")
    lines.append(
        f"l2_read_bandwidth_measured_bytes_per_s = {a_second('l2_load', 'l2_read_bytes'):.4g}"
    )
    free = highest(rows, "wgmma")
    mma = highest(rows, "mma")
    fraction = mma.flops / mma.ms * 1e3 / (mma.ctas * mma.true_sm_mhz * 1e6 * DENSE_FLOPS)
    return [
        *lines,
        f"tensor_clock_fraction = {free.true_sm_mhz / free.sm_mhz:.4g}",
        f"mma_sync_tensor_fraction = {fraction:.3g}",
    ]


def highest(rows: pd.DataFrame, load: str) -> pd.Series:
    """The load on the most SMs on which no limit slows it."""
    return rows[(rows.load == load) & (rows.sm_mhz >= UNLIMITED * rows.sm_mhz.max())].iloc[0]


def fitted(table: pd.DataFrame) -> str:
    """Least squares of the power of loads that no limit slows, in watts, on what they do a second."""
    rows = settled(table)
    rows = rows[
        rows.load.isin(
            [*IN_FIT, "mma", "copy", "integer", "wgmma_registers", "wgmma_zeros", "mma_zeros"]
        )
    ]
    counted = pd.DataFrame(
        {
            name: rows[column].fillna(0) / (rows.ms * 1e-3) * 1e-12
            for name, column in ENERGIES.items()
        }
    )
    chosen = (rows.sm_mhz >= UNLIMITED * rows.sm_mhz.max()) & rows.load.isin(IN_FIT)
    matrix = np.column_stack([np.ones(len(rows)), counted])
    weights = 1 / rows.power_w[chosen].to_numpy()
    solved, *_ = np.linalg.lstsq(
        matrix[chosen] * weights[:, None], rows.power_w[chosen] * weights, rcond=None
    )
    energies = dict(zip(("awake_power_w", *ENERGIES), solved, strict=True))
    mma = highest(rows, "mma")
    instructions = 1e-12 * energies["warp_instruction_pj"] * mma.instructions
    energies["mma_sync_pj_per_flop"] = (
        1e12 * ((mma.power_w - solved[0]) * mma.ms * 1e-3 - instructions) / mma.flops
    )
    # Products go with the clock: their mean over the windows is its mean, where the SMs' own counter has one launch.
    limited = rows[rows.load == "wgmma"].sort_values("ctas").iloc[-1]
    free = highest(rows, "wgmma")
    energy, clock = (
        [f(r) for r in (limited, free)]
        for f in (
            lambda r: (r.power_w - solved[0]) / (r.flops / r.ms),
            lambda r: r.flops / r.ms / r.ctas,
        )
    )
    energies["energy_clock_exponent"] = np.log(energy[0] / energy[1]) / np.log(clock[0] / clock[1])
    lines = [*rates(rows), *(f"{name} = {value:.3g}" for name, value in energies.items())]
    lines += [
        "",
        "load, CTAs: measured W, by the energies at the highest clock (limits slow those of a lower clock)",
    ]
    for (_, r), power in zip(rows.iterrows(), matrix @ solved, strict=True):
        lines.append(f"  {r.load} {r.ctas:.0f}: {r.power_w:.0f}, {power:.0f} ({r.sm_mhz:.0f} MHz)")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--fit", metavar="TABLE", help="fit a recorded table of measurements/; needs no GPU"
    )
    arguments = parser.parse_args()
    if arguments.fit:
        print(fitted(pd.read_csv(HERE / "measurements" / arguments.fit)))
        return
    out = arguments.out
    if out is None:
        parser.error("--out FILE or --fit TABLE")
    import torch

    torch.cuda.init()
    meter = Meter()
    rows = []
    rows.append(
        {
            "load": "idle",
            "ctas": 0,
            "window": 0,
            "sm_mhz": meter.sm_mhz(),
            "power_w": meter.instant_w(),
            "power_average_w": meter.average_w(),
            "temperature_c": meter.temperature_c(),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        units = Units(Path(folder))
        for load in [*units.all(), *attention_loads()]:
            try:
                rows += windows(load, meter)
            except RuntimeError as refusal:
                print(f"{load.name} {load.problem}: {str(refusal).splitlines()[0]}")
                continue
            last = rows[-1]
            print(
                load.name,
                load.ctas,
                load.problem,
                last["ms"],
                last["sm_mhz"],
                last.get("true_sm_mhz"),
                last["power_w"],
                flush=True,
            )
    write_whole(out, pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(index=False))
    write_provenance(
        out,
        f"python experiments/power.py --out {out.name}",
        pytorch=torch.__version__,
        windows=f"{WINDOWS} of {WINDOW_S} s after {REST_S} s of rest",
        power="power_w: the board's power of the moment (NVML), mean over the window; power_average_w: NVML's mean "
        "over a second; energy_j: its counter",
    )


if __name__ == "__main__":
    run_script(main)
