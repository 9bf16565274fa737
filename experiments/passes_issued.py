"""Passes of PyTorch over 2^26 values by themselves: seconds, instructions and bytes.

ncu OPTIONS -o passes python experiments/passes_issued.py        on the GPU
ncu --import passes.ncu-rep --csv --page raw > raw.csv
python experiments/passes_issued.py raw.csv OUT.csv
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable

METRICS = {
    "seconds": ("gpu__time_duration.sum", 1e-6),
    "warp_instructions": ("smsp__inst_executed.sum", 1),
    "issue_active_percent": ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1),
    "sm_clock_hz": ("smsp__cycles_elapsed.avg.per_second", 1e9),
    "hbm_read": ("dram__bytes_read.sum", 1e6),
    "hbm_write": ("dram__bytes_write.sum", 1e6),
}
OPTIONS = (
    "--clock-control none --cache-control all --nvtx --profile-from-start off --metrics "
    + ",".join(metric for metric, _ in METRICS.values())
)
VALUES = 1 << 26
ROWS = (256, 512, 1024, 2048, 4096, 8192, 16384)


def run() -> None:
    import torch

    def mark(name: str, call: Callable[[], object]) -> None:
        call()
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_push(name)
        torch.cuda.cudart().cudaProfilerStart()
        call()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
        torch.cuda.nvtx.range_pop()

    half = torch.randn(VALUES, device="cuda", dtype=torch.float16)
    bf16, full = half.bfloat16(), half.float()
    mark("cast half to float 2^26", half.float)
    mark("cast bf16 to float 2^26", bf16.float)
    mark("cast float to half 2^26", full.half)
    mark("cast float to bf16 2^26", full.bfloat16)
    mark("scale half 2^26", lambda: half * 0.125)
    mark("scale float 2^26", lambda: full * 0.125)
    scores = half.view(16, 2048, 2048)
    mask = torch.ones(2048, 2048, device="cuda", dtype=torch.bool).triu(1)
    mark("masked_fill half 16x2048x2048", lambda: scores.masked_fill(mask, -1e4))
    mark("add mask half 16x2048x2048", lambda: scores + scores[:1])
    for dtype in (torch.float16, torch.float32):
        for keys in ROWS:
            rows = full.view(-1, keys).to(dtype)
            mark(f"softmax {dtype} rows of {keys}", lambda rows=rows: torch.softmax(rows, -1))


def table(raw: str, out: str) -> None:
    with open(raw, encoding="utf-8", newline="") as file:
        lines = file.read().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith('"ID"'))
    rows = list(csv.DictReader(lines[start:]))[1:]
    with open(out, "w", encoding="utf-8", newline="") as file:
        written = csv.writer(file)
        written.writerow(("what", "kernel", "values", *METRICS))
        for row in rows:
            (domain,) = {cell for cell in row.values() if "<default domain>" in (cell or "")}
            cells = [f"{float(row[m].replace(',', '')) * unit:.9g}" for m, unit in METRICS.values()]
            written.writerow((domain.split(":")[1], row["Kernel Name"][:80], VALUES, *cells))


if __name__ == "__main__":
    table(*sys.argv[1:]) if len(sys.argv) > 1 else run()
