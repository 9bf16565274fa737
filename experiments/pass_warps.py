"""How many warps of an SM run in PyTorch's passes, and what long rows of a softmax read again.

    ncu OPTIONS python experiments/pass_warps.py > RAW.csv      on the GPU; OPTIONS below
    python experiments/pass_warps.py RAW.csv OUT.csv            the table

A log softmax of 4,096 rows and its backward, of several widths; then a layer norm, a depthwise convolution, a mean of
rows and elementwise passes that are contiguous, cast or broadcast. Every launch is from a flushed L2.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

METRICS = {
    "launch__grid_size": "ctas",
    "launch__block_size": "threads",
    "launch__registers_per_thread": "registers",
    "sm__warps_active.avg.per_cycle_active": "warps",
    "dram__bytes_read.sum": "hbm_read",
    "dram__bytes_write.sum": "hbm_write",
}
"""What is counted, and its column."""
OPTIONS = (
    "--replay-mode kernel --cache-control all --clock-control none --profile-from-start off --csv --page raw "
    "--print-units base --metrics " + ",".join(METRICS)
)
ROWS = 4096
WIDTHS = {"bf16": (32000, 50257, 50304, 65536, 128256), "fp32": (16384, 32000, 50304, 65536)}
OTHERS = ("layer norm", "depthwise", "mean", "add", "cast", "broadcast", "copy", "softmax")


def cases() -> list[str]:
    """What each counted launch is."""
    rows = [f"{dtype} {width}" for dtype, widths in WIDTHS.items() for width in widths]
    return [f"log softmax {row}{back}" for row in rows for back in ("", " backward")] + [*OTHERS]


def launch_all() -> None:
    import torch

    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    backward = torch.ops.aten._log_softmax_backward_data
    for name, widths in WIDTHS.items():
        dtype = torch.bfloat16 if name == "bf16" else torch.float32
        for width in widths:
            x = torch.randn(ROWS, width, device="cuda", dtype=dtype)
            grad = torch.randn_like(x)
            for counted in (False, True):
                torch.cuda.synchronize()
                if counted:
                    runtime.cudaProfilerStart()
                backward(grad, torch.log_softmax(x, -1), -1, dtype)
                torch.cuda.synchronize()
                runtime.cudaProfilerStop()
    half: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    norm = torch.nn.LayerNorm(2304, **half)
    depthwise = torch.nn.Conv2d(128, 128, 3, padding=1, groups=128, **half)
    depthwise = depthwise.to(memory_format=torch.channels_last)
    images = torch.randn(8, 128, 128, 128, **half).to(memory_format=torch.channels_last)
    x, h = torch.randn(8192, 2304, **half), torch.randn(8192, 2304, device="cuda")
    with torch.no_grad():
        for counted in (False, True):
            if counted:
                runtime.cudaProfilerStart()
            norm(x)
            depthwise(images)
            h.mean(-1)
            x + x
            x.float()
            h * h[:, :1]
            torch.softmax(x[:, :1024].contiguous(), -1)
            torch.cuda.synchronize()
    runtime.cudaProfilerStop()


def table(raw: Path) -> Iterator[list[str]]:
    lines = [line for line in raw.read_text(encoding="utf-8").splitlines() if line[:1] == '"']
    _, *launches = csv.DictReader(lines)  # the first row says units
    # The convolution's bias is a pass of its own.
    names = [*cases()]
    names.insert(names.index("mean"), "bias")
    for name, launch in zip(names, launches, strict=True):
        numbers = [launch[metric].replace(",", "") for metric in METRICS]
        yield [name, launch["Kernel Name"].split("(")[0].removeprefix("void ")[:60], *numbers]


def main() -> None:
    if len(sys.argv) == 1:
        launch_all()
        return
    with open(sys.argv[2], "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("case", "kernel", *METRICS.values()))
        writer.writerows(table(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
