"""Generates `kernels/resources.csv`: registers, spills and shared memory of every tile that a tile picker may offer.

    python experiments/resources.py            # resumes; rows already there and still valid are kept
    python experiments/resources.py --check 5  # recompiles a sample of rows and compares

No GPU is needed. `min_ctas` is part of a row: the most CTAs an SM that the assembler reached without spilling (the
cap on registers follows from it), or 1. Rows for cc 7.5 are fp16, all others bf16: both types compile to the same
registers where tried. Causal stands for windows too. `resources.toml` beside the table says which sources and compiler
it describes; with other sources it is generated anew.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from iosim import InputError
from iosim.base.data import data_dir
from iosim.evidence.cuda.compiler import compile_to, compiler_version, find_nvcc
from iosim.evidence.cuda.spec import BUILT, FwdSpec
from iosim.evidence.cuda.tile_builds import (
    COLUMNS,
    KEY,
    LIVE_LIMIT,
    live_registers,
    most_ctas,
    read_table,
    row_key,
    source_digest,
)

BLOCK_Q = (64, 128, 192, 256)
BLOCK_K = (16, 32, 48, 64, 96, 128, 192, 256)

Row = dict[str, str]


def candidates() -> Iterator[tuple[str, FwdSpec]]:
    """Every (cc, tile) of the table: its live values leave room in 255 registers and it fits a CTA's shared memory."""
    tiles = itertools.product(
        (64, 128, 96, 256), BLOCK_Q, BLOCK_K, (4, 8), (2, 1, 3), (False, True)
    )
    grid = [(cc, *tile) for cc, tile in itertools.product(BUILT, tiles)]
    for cc, head_dim, block_q, block_k, warps, stages, causal in sorted(
        grid, key=lambda item: -float(item[0])
    ):
        dtype = "fp16" if cc == "7.5" else "bf16"
        mask = "causal" if causal else "none"
        spec = FwdSpec(head_dim, block_q, block_k, warps, stages, mask, dtype)
        if cc == "7.5" and stages > 1:
            continue  # without cp.async a second stage hides nothing
        if block_q % (16 * warps) == 0 and live_registers(spec) <= LIVE_LIMIT:
            try:
                spec.check(cc)
            except InputError:
                continue
            yield cc, spec


def measure(cc: str, spec: FwdSpec, nvcc: Path) -> Row:
    """Compiles a tile for the most CTAs an SM that spill nothing, and gives its row."""
    for ctas in range(most_ctas(spec, cc), 0, -1):
        with tempfile.TemporaryDirectory() as scratch:
            reports, _ = compile_to(
                replace(spec, min_ctas=ctas), cc, nvcc, Path(scratch) / "kernel.cubin"
            )
            report = reports["flash_fwd"]
        if report.spill_store_bytes == 0 or ctas == 1:
            break
    numbers = (
        report.registers,
        report.spill_store_bytes,
        report.spill_load_bytes,
        report.static_smem_bytes,
    )
    values = (*row_key(cc, spec), *numbers, spec.dynamic_shared_bytes, compiler_version(nvcc), ctas)
    return dict(zip(COLUMNS, map(str, values), strict=True))


def write_table(path: Path, rows: dict[tuple[str, ...], Row]) -> None:
    """Writes atomically, in the order of the key."""

    def order(key: tuple[str, ...]) -> tuple[str, float, list[int], str, str]:
        return key[0], float(key[1]), [int(x) for x in key[2:7]], key[7], key[8]

    scratch = path.with_suffix(".tmp")
    with scratch.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows, key=order))
    scratch.replace(path)
    command = "python experiments/resources.py"
    compiler = compiler_version(find_nvcc())
    stamp = {
        "sources": source_digest(),
        "of": "flash_fwd.cu and its headers",
        "compiler": compiler,
        "command": command,
    }
    lines = [f'{name} = "{value}"' for name, value in stamp.items()]
    path.with_suffix(".toml").write_text("\n".join(["schema = 1", *lines]) + "\n")


def generate(path: Path, jobs: int) -> None:
    """Fills the table, saving every 20 rows."""
    nvcc = find_nvcc()
    wanted = {row_key(cc, spec): (cc, spec) for cc, spec in candidates()}
    compiler = compiler_version(nvcc)
    complete = {
        key: row
        for key, row in read_table(path).items()
        if key in wanted and row["compiler"] == compiler
    }
    missing = [item for key, item in wanted.items() if key not in complete]
    print(f"{len(complete)} rows kept, {len(missing)} to compile", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        for done, row in enumerate(
            pool.map(lambda item: measure(item[0], item[1], nvcc), missing), start=1
        ):
            complete[tuple(row[name] for name in KEY)] = row
            if done % 20 == 0 or done == len(missing):
                write_table(path, complete)
                print(f"{done}/{len(missing)}", flush=True)


def differing(path: Path, count: int) -> list[str]:
    """Recompiles about `count` rows spread over the table; gives one line for each that no longer agrees."""
    nvcc, rows = find_nvcc(), read_table(path)
    picked = [item for item in candidates() if row_key(*item) in rows]
    lines = []
    for cc, spec in picked[:: max(1, len(picked) // count)]:
        row = rows[row_key(cc, spec)]
        fresh = measure(cc, spec, nvcc)
        if row != fresh:
            lines.append(f"{row} is now {fresh}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Generate or check the resource table of flash_fwd."
    )
    parser.add_argument(
        "--out", type=Path, default=None, help="CSV to fill (default: kernels/resources.csv)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--check", type=int, metavar="N", help="recompile about N rows and compare")
    arguments = parser.parse_args()
    try:
        path = arguments.out or data_dir("kernels") / "resources.csv"
        if arguments.check:
            lines = differing(path, arguments.check)
            print("\n".join(lines) or "the sample agrees")
            return 1 if lines else 0
        generate(path, arguments.jobs)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
