"""Predictions of the kernels of examples/kernels from their code alone, beside what an H100 and an H200 counted.

    python benchmarks/code_error.py            a row a launch and GPU
    python benchmarks/code_error.py --gpu h200
    python benchmarks/code_error.py --gpu h200 --cases experiments/walks.toml --counted walk_counts

Compiles the CUDA kernels by nvcc and the Triton kernels by Triton 3.6, for cc 9.0, and needs no GPU. Nothing was fitted
on these rows: experiments/user_kernels.py counted them after the reader of code stood.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from iosim import InputError, predict_code
from iosim.integrations.triton.compiled import compile_for
from iosim.prediction.code import CodePrediction
from iosim.show.tables import Column, Table

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "examples" / "kernels" / "cases.toml"
COUNTED = ROOT / "experiments" / "measurements"
POINTERS = {"fp32": "*fp32", "fp16": "*fp16", "bf16": "*bf16"}
GPUS = ("h100", "h200")
COUNTS = (
    "instructions",
    "shared_load_wavefronts",
    "shared_store_wavefronts",
    "global_load_sectors",
    "global_store_sectors",
    "local_load_sectors",
    "local_store_sectors",
)
"""Counters of SMs: named alike in the tables and in a prediction."""
QUANTITIES = ("l2_read", "l2_write", "hbm_read", "hbm_write", *COUNTS, "seconds")
HEADS = {
    "shared_load_wavefronts": "shared loads",
    "shared_store_wavefronts": "shared stores",
    "global_load_sectors": "global loads",
    "global_store_sectors": "global stores",
    "local_load_sectors": "local loads",
    "local_store_sectors": "local stores",
}
LEAST_COUNT = 1000
"""Counted wavefronts or sectors below which likewise."""
LEAST_BYTES = 2_000_000
"""Counted bytes below which an error in per cent says little."""


def cases(table: Path = CASES) -> list[dict[str, Any]]:
    """The launches of a file such as examples/kernels/cases.toml, each with the path of its source."""
    launches: list[dict[str, Any]] = tomllib.loads(table.read_text(encoding="utf-8"))["case"]
    return [{**launch, "source": table.parent / launch["file"]} for launch in launches]


def compiled(case: dict[str, Any], folder: Path) -> Any:
    """A case's code: a cubin with its PTX beside it, or what Triton compiled."""
    source = case["source"]
    if source.suffix == ".cu":
        cubin = folder / f"{source.stem}.cubin"
        if not cubin.exists():
            for flag, out in (("-cubin", cubin), ("-ptx", cubin.with_suffix(".ptx"))):
                command = [
                    "nvcc",
                    "-O3",
                    "-std=c++17",
                    "-arch=sm_90",
                    "-lineinfo",
                    flag,
                    source,
                    "-o",
                    out,
                ]
                subprocess.run(command, check=True)
        return cubin
    spec = importlib.util.spec_from_file_location("plain_kernels", source)
    if spec is None or spec.loader is None:
        raise InputError(f"{source} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments = {
        name: POINTERS[v.split()[0]] if isinstance(v, str) else v
        for name, v in case["arguments"].items()
    }
    constants = case.get("constants", {})
    return compile_for(
        getattr(module, case["entry"]),
        arguments | constants,
        "h100",
        case["warps"],
        case["stages"],
        case.get("registers"),
    )


def predicted(case: dict[str, Any], folder: Path, gpu: str) -> CodePrediction:
    """What the code says of a launch on a GPU."""
    arguments = []
    for name, value in case["arguments"].items():
        text = str(value)
        if isinstance(value, str):
            kind, _, shape = value.partition(" ")
            text = f"TENSOR({shape},{kind})"
        arguments.append(f"{name}={text}")
    grid = ",".join(map(str, case["grid"]))
    block = ",".join(map(str, case["block"])) if "block" in case else None
    more = {"entry": case["entry"]} if case["file"].endswith(".cu") else {}
    return predict_code(compiled(case, folder), grid, arguments, gpu, block=block, **more)


def errors(
    gpu: str, folder: Path, table: Path = CASES, counts: str = "examples"
) -> list[dict[str, Any]]:
    """A row per launch of a table: each quantity counted, in experiments/measurements/GPU_COUNTS.csv, and predicted."""
    with (COUNTED / f"{gpu}_{counts}.csv").open(newline="", encoding="utf-8") as stream:
        counted = {row["case"]: row for row in csv.DictReader(stream)}
    rows = []
    for case in cases(table):
        if case["name"] not in counted:
            continue
        row: dict[str, Any] = {"gpu": gpu, "case": case["name"]}
        prediction = predicted(case, folder, gpu)
        counters = prediction.to_dict()["counters"]
        bytes_by_quantity = {
            "l2_read": prediction.l2.read,
            "l2_write": prediction.l2.write,
            "hbm_read": prediction.hbm.read,
            "hbm_write": prediction.hbm.write,
            **{name: counters[name] for name in COUNTS},
            "seconds": prediction.time_s,
        }
        for quantity in QUANTITIES:
            measured = float(counted[case["name"]][quantity])
            least = LEAST_COUNT if quantity in COUNTS else LEAST_BYTES
            if quantity == "seconds" or measured >= least:
                row[quantity] = bytes_by_quantity[quantity] / measured - 1
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", choices=GPUS, help="one of the two alone")
    parser.add_argument("--cases", type=Path, default=CASES, help="the table of launches")
    parser.add_argument("--counted", default="examples", help="what counters of it are called")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = [
            row
            for gpu in ([args.gpu] if args.gpu else GPUS)
            for row in errors(gpu, Path(name), args.cases, args.counted)
        ]
    columns = ("gpu", "case", *QUANTITIES)
    lines = [
        tuple(
            f"{row[c]:+.1%}" if isinstance(row.get(c), float) else row.get(c, "") for c in columns
        )
        for row in rows
    ]
    for share, of in ((statistics.median, "median size"), (max, "largest")):
        sizes = [share([abs(row[q]) for row in rows if q in row]) for q in QUANTITIES]
        lines.append(("all", of, *(f"{size:.1%}" for size in sizes)))
    sys.stdout.write(Table(tuple(Column(c, HEADS.get(c, c)) for c in columns), tuple(lines)).text())


if __name__ == "__main__":
    main()
