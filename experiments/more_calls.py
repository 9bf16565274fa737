"""Calls of PyTorch that a mechanism asked for, counted as drawn ones are: `python experiments/more_calls.py KIND --out
FILE.csv`, on a GPU with PyTorch and ncu.

`code`: FlashAttention-2 under a mask, ten rounds of tiles of lengths that are whole and others, whose builds have 60 to
133 kB of code. `flex`: FlexAttention's short queries and calls of one round, each of a build of its own. `requests`: of
some of the first, what their SMs ask the cache of instructions and constants of their GPC for (gcc__cache_requests).
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiment import FROM_EMPTY, run_script, write_provenance
from stalls import INSTRUCTIONS, LONGEST, SECONDS, STALL, TIME

from iosim import InputError
from iosim.base.files import write_whole
from iosim.evidence.cuda import driver
from iosim.evidence.measure.collect import collect_library
from iosim.evidence.measure.library_case import LibraryCase
from iosim.evidence.measure.machine import profiler_version

REQUESTS = {
    name: f"gcc__cache_requests_type_instruction{end}.sum"
    for name, end in (("requests", ""), ("hits", "_lookup_hit"), ("misses", "_lookup_miss"))
}
ASKED = ((64, 457), (64, 512), (64, 1024), (128, 457), (128, 512), (128, 1024), (128, 2047))
"""head_dim and tokens of the calls whose requests are counted, under a mask and without."""


def rounds(head_dim: int, tokens: int, mask: str = "causal") -> LibraryCase:
    heads = LONGEST // -(-tokens // 128)
    return LibraryCase("flash", 1, heads, heads, tokens, tokens, head_dim, mask=mask)


def of_code() -> Iterator[LibraryCase]:
    for head_dim in (24, 32, 64, 96, 128):
        yield from (rounds(head_dim, n) for n in (250, 450, 700, 999, 1500, 2400))
    for head_dim in (64, 128):
        yield from (rounds(head_dim, n) for n in (384, 768, 1536))
    for head_dim in (192, 256):
        yield LibraryCase("flash", 1, 660, 660, 450, 450, head_dim, mask="causal")


FLEX = (
    (1, 4, 16, 128, None, 8192), (1, 4, 16, 64, None, 8192), (1, 8, 64, 128, None, 2048), (4, 5, 72, 128),
    (4, 8, 80, 128, "causal"), (10, 4, 96, 128, 64), (8, 16, 112, 128), (16, 8, 120, 128, "causal"), (10, 8, 66, 64),
    (6, 20, 77, 64, "causal"), (2, 26, 111, 64, 30), (20, 10, 100, 64), (4, 10, 90, 64, 40), (6, 5, 40, 256),
    (6, 8, 50, 256, "causal"), (10, 10, 60, 256, 40), (4, 4, 100, 256), (1, 18, 1900, 64, "causal"),
    (2, 9, 1536, 64, 64), (1, 6, 5001, 64, 100), (4, 4, 2047, 64), (10, 20, 150, 64, "causal"),
    (20, 20, 241, 64, "causal"), (1, 18, 1900, 128, 64), (10, 20, 150, 128, "causal"), (4, 32, 700, 128, "causal"),
    (2, 9, 1000, 256, 64), (10, 10, 300, 256, "causal"),
)  # fmt: skip
"""Batch, heads, queries, head_dim, then causal or a window, then keys where they are others."""


def flex(
    batch: int, heads: int, tokens: int, head_dim: int, mask: object = None, keys: int | None = None
) -> LibraryCase:
    window = mask if isinstance(mask, int) else None
    kind = "window" if window else str(mask or "none")
    return LibraryCase(
        "flex", batch, heads, heads, tokens, keys or tokens, head_dim, mask=kind, window=window
    )


def launch_all() -> None:
    """The calls whose requests are counted, their kernels between start and stop of the profiler."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    runtime = torch.cuda.cudart()
    for head_dim, tokens in ASKED:
        heads = rounds(head_dim, tokens).heads
        q, k, v = (
            torch.randn(1, heads, tokens, head_dim, device="cuda", dtype=torch.bfloat16)
            for _ in range(3)
        )
        for causal in (True, False):
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                scaled_dot_product_attention(q, k, v, is_causal=causal)
                torch.cuda.synchronize()
                runtime.cudaProfilerStart()
                scaled_dot_product_attention(q, k, v, is_causal=causal)
                torch.cuda.synchronize()
                runtime.cudaProfilerStop()


def tidy(page: str) -> str:
    """The table of a report's raw page."""
    units, *launches = csv.DictReader(page[page.index('"ID"') :].splitlines())
    names = ("head_dim", "tokens", "causal", "seconds", "instructions", "no_instruction", *REQUESTS)
    lines = [",".join(names)]
    cases = [(d, n, causal) for d, n in ASKED for causal in (1, 0)]
    for case, launch in zip(cases, launches, strict=True):
        metrics = (TIME, INSTRUCTIONS, STALL.format("no_instruction"), *REQUESTS.values())
        values = [float(launch[name].replace(",", "")) for name in metrics]
        values[0] *= SECONDS[units[TIME]]
        lines.append(",".join(map(str, (*case, *(f"{value:.6g}" for value in values)))))
    return "\n".join(lines) + "\n"


def requests(out: Path) -> None:
    metrics = ",".join((TIME, INSTRUCTIONS, STALL.format("no_instruction"), *REQUESTS.values()))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "requests.ncu-rep"
        profiler = ["ncu", *FROM_EMPTY, "--profile-from-start", "off", "--metrics", metrics]
        command = [sys.executable, __file__, "--launch"]
        subprocess.run([*profiler, "-o", str(report), *command], check=True)
        page = ["ncu", "--import", str(report), "--csv", "--page", "raw"]
        text = subprocess.run(page, check=True, capture_output=True, text=True).stdout
    write_whole(out, tidy(text))
    driver.use_device()
    write_provenance(
        out,
        f"python {os.path.relpath(__file__)} requests --out {out.name}",
        profiler=profiler_version(),
        profiler_options=" ".join((*FROM_EMPTY, "--metrics", metrics)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", nargs="?", choices=("code", "flex", "requests"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--launch", action="store_true", help="only run the kernels")
    options = parser.parse_args()
    if options.launch:
        launch_all()
        return
    if options.kind is None or options.out is None:
        raise InputError(
            "KIND and `--out` are needed; accepted: code, flex or requests, and a file"
        )
    if options.kind == "requests":
        requests(options.out)
        return
    cases = list(of_code()) if options.kind == "code" else [flex(*call) for call in FLEX]
    kernels = "" if options.kind == "code" else "tem_fused"
    command = f"python {os.path.relpath(__file__)} {options.kind} --out {options.out.name}"
    collect_library(options.out, cases, kernels=kernels, spills=True, command=command)


if __name__ == "__main__":
    run_script(main)
