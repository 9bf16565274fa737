"""What warps of PyTorch's attention kernels wait for: `python experiments/stalls.py --out FILE.csv`, on a GPU with ncu.

Each call once, from a flushed L2: its main launch's time, the instructions that its warps issue, and for how many warps
a scheduler finds each reason not to issue, a column a reason (the profiler's WarpStateStats). FlashAttention-2 with and
without a mask, at lengths that are whole tiles and others, and in builds that are wider than the heads; its backward;
and the memory-efficient backward, whose CTAs share sums of dQ under locks.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from experiment import FROM_EMPTY, run_script, write_provenance

from iosim import InputError
from iosim.base.files import write_whole
from iosim.evidence.cuda import driver
from iosim.evidence.measure.machine import profiler_version

SECTION = "WarpStateStats"
TIME, INSTRUCTIONS = "gpu__time_duration.sum", "smsp__inst_executed.sum"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
REASONS = (
    "barrier",
    "long_scoreboard",
    "short_scoreboard",
    "math_pipe_throttle",
    "mio_throttle",
    "lg_throttle",
    "membar",
    "sleeping",
    "no_instruction",
    "wait",
    "not_selected",
    "selected",
)
MAIN = ("flash_fwd", "flash_bwd_dq_dk_dv", "fmha_cutlassB")
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
LONGEST = 2640
"""Query blocks of a forward's call: ten rounds of 264."""


class Call(NamedTuple):
    implementation: str
    batch: int
    heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    causal: int


def calls() -> Iterator[Call]:
    """The calls, in order."""
    for head_dim in (64, 128):
        for tokens in (128, 256, 457, 512, 1024, 2048):
            heads = LONGEST // -(-tokens // 128)
            yield from (
                Call("pytorch_flash", 1, heads, tokens, tokens, head_dim, causal)
                for causal in (0, 1)
            )
    for head_dim in (24, 56, 88, 96, 120, 192, 200, 256):
        yield Call("pytorch_flash", 1, 330, 1024, 1024, head_dim, 0)
    for head_dim in (56, 64, 96, 120, 128, 192):
        for tokens in (512, 2048):
            yield from (
                Call("pytorch_flash_backward", 1, 48, tokens, tokens, head_dim, causal)
                for causal in (0, 1)
            )
    for sizes in (
        (23, 27, 317, 5120, 64),
        (1, 23, 768, 15669, 48),
        (1, 31, 1, 9075, 128),
        (1, 31, 128, 9075, 128),
        (1, 31, 1024, 9075, 128),
        (1, 32, 64, 8192, 64),
        (1, 32, 64, 1024, 64),
        (1, 32, 8192, 64, 64),
    ):
        yield Call("pytorch_mem_efficient_backward", *sizes, 0)
    for head_dim in (64, 128, 160, 192, 256):
        for tokens in (128, 1024):
            yield Call("pytorch_mem_efficient_backward", 4, 24, tokens, tokens, head_dim, 0)


def launch_all() -> None:
    """Every call, its kernels between start and stop of the profiler."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    backends = {"flash": SDPBackend.FLASH_ATTENTION, "mem": SDPBackend.EFFICIENT_ATTENTION}
    runtime = torch.cuda.cudart()
    for call in calls():
        backward = call.implementation.endswith("backward")
        q, k, v = (
            torch.randn(
                call.batch,
                call.heads,
                rows,
                call.head_dim,
                device="cuda",
                dtype=torch.bfloat16,
                requires_grad=backward,
            )
            for rows in (call.seq_q, call.seq_k, call.seq_k)
        )
        with sdpa_kernel(backends[call.implementation.split("_")[1]]):
            out = scaled_dot_product_attention(q, k, v, is_causal=bool(call.causal))
            gradient = torch.randn_like(out)
            torch.cuda.synchronize()
            runtime.cudaProfilerStart()
            if backward:
                torch.autograd.grad(out, (q, k, v), gradient)
            else:
                scaled_dot_product_attention(q, k, v, is_causal=bool(call.causal))
            torch.cuda.synchronize()
            runtime.cudaProfilerStop()


def profile(folder: Path) -> list[dict[str, float]]:
    """The main launch of every call, in order. Raises InputError: the profiler refuses, or launches are missing."""
    report = folder / "stalls.ncu-rep"
    command = [
        "ncu",
        *FROM_EMPTY,
        "--profile-from-start",
        "off",
        "--section",
        SECTION,
        "--metrics",
        f"{TIME},{INSTRUCTIONS}",
        "-o",
        str(report),
        sys.executable,
        __file__,
        "--launch",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not report.is_file():
        raise InputError(
            f"the profiler left no report: {(done.stdout + done.stderr).strip()[-300:]}"
        )
    page = ["ncu", "--import", str(report), "--csv", "--page", "raw"]
    text = subprocess.run(page, check=True, capture_output=True, text=True).stdout
    units, *rows = csv.DictReader(text[text.index('"ID"') :].splitlines())
    main = [row for row in rows if any(name in row["Kernel Name"] for name in MAIN)]
    if len(main) != len(list(calls())):
        raise InputError(f"the profiler saw {len(main)} main launches, not {len(list(calls()))}")

    def number(row: dict[str, str], name: str) -> float:
        return float(row[name].replace(",", ""))

    return [
        {
            "seconds": number(row, TIME) * SECONDS[units[TIME]],
            "instructions": number(row, INSTRUCTIONS),
            **{reason: number(row, STALL.format(reason)) for reason in REASONS},
        }
        for row in main
    ]


def main() -> None:
    """Profile the calls and write the table with its provenance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the table")
    parser.add_argument("--launch", action="store_true", help="only run the kernels")
    arguments = parser.parse_args()
    if arguments.launch:
        launch_all()
        return
    if arguments.out is None:
        raise InputError("`--out` is missing; accepted: the file of the table")
    with tempfile.TemporaryDirectory() as folder:
        profiled = profile(Path(folder))
    lines = [",".join((*Call._fields, *profiled[0]))]
    lines += [
        ",".join(map(str, (*call, *(f"{n:.6g}" for n in row.values()))))
        for call, row in zip(calls(), profiled, strict=True)
    ]
    write_whole(arguments.out, "\n".join(lines) + "\n")
    driver.use_device()
    write_provenance(
        arguments.out,
        f"python {os.path.relpath(__file__)} --out {arguments.out.name}",
        profiler=profiler_version(),
        profiler_options=" ".join((*FROM_EMPTY, "--section", SECTION)),
    )


if __name__ == "__main__":
    run_script(main)
