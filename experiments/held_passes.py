"""HBM bytes of passes whose threads hold more or fewer values between their loads and stores, and of reductions of rows:
`python experiments/held_passes.py --out h200_held_passes.csv`.

`load N a to b` is a kernel of our own: a thread loads N values, 128 apart, and then stores them. The others are
PyTorch's: `scale` is contiguous (eight values a thread), `scale rows` has a column that is broadcast (a loop of loads
and stores), `widen` makes fp32 of bf16 (four values), `mean` reduces each row, `join` puts halves of rows together,
`wait` does nothing for a millisecond. Ranges are those of `passes.py`: the first launches of a chain, each range from a
flushed L2.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiment import profiled, record_ranges, run_script
from passes import COUNTED, MIB, OPTIONS, Range

from iosim import InputError
from iosim.evidence.columns import METRICS
from iosim.evidence.cuda.ncu import raw_page, unit_scale

COLUMNS, NARROW, THREADS = 1024, 256, 128
WAIT_CYCLES = 1_800_000
OWN_SIZES = (16, 20, 24, 28, 32, 40)
"""MiB of a tensor, of chains of the own kernel."""
SIZES = (16, 20, 24, 28, 32, 36, 40, 48, 64)
"""MiB of a tensor, of the others."""
HELD = (1, 2, 4, 8, 16)
OWN = (
    *(f"fill a, load {n} a to b" for n in HELD),
    *(f"load {n} a to b, load {n} b to c" for n in (1, 2, 8)),
)
CHAINS = (
    "fill a, scale rows a to b",
    "scale rows a to b, scale rows b to c",
    "scale rows a to b, narrow b to h",
    "widen h to b, scale b to c",
    "fill h, widen h to b",
    "fill a, mean a",
    "scale a to b, mean b",
    "scale a to b, narrow mean b",
    "fill a, join a to b",
    "fill a, wait a",
)
"""The first tensor of a pass is read, but by a fill; the last is written, but by a mean. h is bf16."""
SOURCE = """
template <int N> __device__ void pass(const float *a, float *b) {
    float held[N];
    long at = (long)blockIdx.x * (N * 128) + threadIdx.x;
#pragma unroll
    for (int n = 0; n < N; n++) held[n] = a[at + n * 128];
#pragma unroll
    for (int n = 0; n < N; n++) b[at + n * 128] = held[n] * 1.5f;
}
""" + "".join(
    f'extern "C" __global__ void __launch_bounds__(128) load_{n}(const float *a, float *b) {{ pass<{n}>(a, b); }}\n'
    for n in HELD
)


def plan() -> list[Range]:
    ranges = [(chain, mib, n) for chain in OWN for mib in OWN_SIZES for n in (1, 2)]
    return ranges + [(chain, mib, n) for chain in CHAINS for mib in SIZES for n in (1, 2)]


def kernels() -> Callable[[int, Any, Any], None]:
    """What launches `load N`."""
    import cupy
    import torch

    module = cupy.RawModule(code=SOURCE, options=("-std=c++17",))

    def launch(held: int, source: Any, target: Any) -> None:
        stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        ctas = source.numel() // (held * THREADS)
        kernel = module.get_function(f"load_{held}")
        kernel((ctas,), (THREADS,), (source.data_ptr(), target.data_ptr()), stream=stream)

    return launch


def run(step: str, tensors: dict[str, Any], load: Callable[[int, Any, Any], None]) -> None:
    """One pass, one launch."""
    import torch

    *action, named = step.replace(" to ", ">").rsplit(" ", 1)
    first, last = (tensors[name] for name in (named[0], named[-1]))
    words = " ".join(action)
    if words == "fill":
        last.fill_(1.0)
    elif words.startswith("load"):
        load(int(words.split()[1]), first, last)
    elif words == "scale":
        torch.mul(first, 1.5, out=last)
    elif words == "scale rows":
        torch.mul(first, tensors["column"][: first.shape[0]], out=last)
    elif words in ("narrow", "widen"):
        last.copy_(first)
    elif words == "wait":
        torch.cuda._sleep(WAIT_CYCLES)
    elif words == "mean":
        torch.mean(first, -1, out=tensors["means"][: first.shape[0]])
    elif words == "narrow mean":
        rows = first.view(-1, NARROW)
        torch.mean(rows, -1, out=tensors["means"][: rows.shape[0]])
    else:
        half = COLUMNS // 2
        torch.cat((first[:, half:], first[:, :half]), -1, out=last)


def memory(device: str) -> dict[str, Any]:
    import torch

    values = max(SIZES) * MIB // 4
    whole = {name: torch.zeros(values, device=device) for name in "abc"}
    whole["h"] = torch.zeros(values, device=device, dtype=torch.bfloat16)
    whole["column"] = torch.ones(values // COLUMNS, 1, device=device)
    whole["means"] = torch.zeros(values // NARROW, device=device)
    return whole


def cut(whole: dict[str, Any], mib: int) -> dict[str, Any]:
    """The tensors of a range: `mib` MiB of fp32 each, and as many values of bf16."""
    values = mib * MIB // 4
    return whole | {name: whole[name][:values].view(-1, COLUMNS) for name in "abch"}


def launch_all() -> None:
    """Every range of the plan; each chain ran before as a whole."""
    import torch

    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    whole, load = memory("cuda"), kernels()
    for chain, mib, launches in plan():
        tensors = cut(whole, mib)
        passes = chain.split(", ")
        if launches == 1:
            for launch in passes:
                run(launch, tensors, load)
        torch.cuda.synchronize()
        runtime.cudaProfilerStart()
        for launch in passes[:launches]:
            run(launch, tensors, load)
        torch.cuda.synchronize()
        runtime.cudaProfilerStop()


def measured(folder: Path) -> pd.DataFrame:
    """A row a range, with what was counted."""
    names, units, rows = raw_page(profiled([__file__, "--launch"], OPTIONS, COUNTED, folder))
    if len(rows) != len(plan()):
        raise InputError(f"{len(rows)} ranges were seen, {len(plan())} made")
    table = pd.DataFrame(plan(), columns=["chain", "mib", "launches"])
    for name in COUNTED:
        at = names.index(METRICS[name][0])
        scale = unit_scale(units[at])
        table[name] = [round(float(row[at].replace(",", "")) * scale) for row in rows]
    return table


def predicted() -> Iterator[tuple[Range, int, int]]:
    """(range, bytes read, bytes written) as TrafficMode says, of PyTorch's passes."""
    import torch

    from iosim.torch import TrafficMode

    for chain in dict.fromkeys(chain for chain, _, _ in plan() if chain in CHAINS[:-1]):
        for mib in SIZES:
            with torch.device("meta"):
                tensors = {k: v.clone() for k, v in cut(memory("meta"), mib).items()}
                with TrafficMode("h200") as mode:
                    for step in chain.split(", "):
                        run(step, tensors, lambda *_: None)
            read = written = 0
            for number, row in enumerate(mode.result.rows, start=1):
                read, written = read + row.hbm_read, written + row.hbm_write
                yield (chain, mib, number), read, written


def main() -> None:
    of_ranges = f"{len(plan())} ranges of {len(OWN) + len(CHAINS)} chains"
    notes = {"tensors": f"rows of {COLUMNS:,}; fp32, h bf16"}
    record_ranges(__doc__ or "", of_ranges, launch_all, measured, OPTIONS, notes)


if __name__ == "__main__":
    run_script(main)
