"""HBM bytes of passes over tensors, one after the other: `python experiments/passes.py --out h200_passes.csv`.

PyTorch fills, copies, scales, sums and normalises tensors of 8 to 64 MiB, so that a pass finds some of what the one
before left in the L2. A range holds the first launches of a chain: one, two, and so on, each range from a flushed L2.
`benchmarks/passes.py` sets the rows beside the replay's model of the L2.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiment import profiled, record_ranges, run_script

from iosim import InputError
from iosim.evidence.columns import METRICS
from iosim.evidence.cuda.ncu import raw_page, unit_scale

MIB = 1 << 20
SIZES = (8, 16, 20, 24, 26, 28, 30, 32, 34, 36, 40, 44, 48, 56, 64)
"""MiB of a tensor."""
COLUMNS = 1024
"""Of a tensor's rows, fp32: a warp holds one in softmax."""
CHAINS = (
    "sum a, sum a",
    "fill a, sum a",
    "fill a, fill a",
    "scale a, scale a",
    "fill a, scale a to b",
    "copy a to b, copy a to b",
    "copy a to b, sum a",
    "copy a to b, sum b",
    "fill a, softmax a to b, sum a",
)
"""The first tensor of a pass is read, but by a fill; the last is written, but by a sum."""
COUNTED = ("hbm_read", "hbm_write")
OPTIONS = ("--replay-mode", "app-range", "--cache-control", "all", "--clock-control", "none")

Range = tuple[str, int, int]
"""Chain, MiB of a tensor, launches."""


def plan() -> list[Range]:
    return [
        (chain, mib, n + 1)
        for chain in CHAINS
        for mib in SIZES
        for n in range(chain.count(",") + 1)
    ]


def run(step: str, tensors: Mapping[str, Any]) -> None:
    """One pass, one launch."""
    import torch

    action, *named = step.replace("to ", "").split()
    first = tensors[named[0]]
    last = tensors[named[-1]]
    if action == "fill":
        last.fill_(1.0)
    elif action == "copy":
        last.copy_(first)
    elif action == "scale":
        torch.mul(first, 1.0, out=last)
    elif action == "softmax":
        torch.softmax(first, -1, out=last)
    else:
        torch.sum(first)


def launch_all() -> None:
    """Every range of the plan; each chain ran before as a whole."""
    import torch

    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    whole = {name: torch.zeros(max(SIZES) * MIB // 4, device="cuda") for name in "ab"}
    for chain, mib, launches in plan():
        tensors = {
            name: tensor[: mib * MIB // 4].view(-1, COLUMNS) for name, tensor in whole.items()
        }
        passes = chain.split(", ")
        if launches == 1:
            for launch in passes:
                run(launch, tensors)
        torch.cuda.synchronize()
        runtime.cudaProfilerStart()
        for launch in passes[:launches]:
            run(launch, tensors)
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
        table[name] = [
            round(float(row[at].replace(",", "")) * unit_scale(units[at])) for row in rows
        ]
    return table


def main() -> None:
    of_ranges = f"{len(plan())} ranges of {len(CHAINS)} chains"
    notes = {"tensors": f"fp32, rows of {COLUMNS:,}"}
    record_ranges(__doc__ or "", of_ranges, launch_all, measured, OPTIONS, notes)


if __name__ == "__main__":
    run_script(main)
