"""Kernels that nobody here wrote, described by files alone, beside hardware counters.

    python benchmarks/foreign_kernels.py            the table of docs/generated/foreign-kernels.md
    python benchmarks/foreign_kernels.py --write    writes it

The rows are h200_foreign_kernels.csv: JAX's attention through Mosaic GPU and through Triton, cold launches on an H200.
The files, examples/kernels/*.toml, say what their public source says; no row reaches them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from recorders import measurements

from iosim import AttentionProblem, Prediction, load_profile, resolve
from iosim.prediction.predictor import predict

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "docs" / "generated" / "foreign-kernels.md"
FILES = {
    name: ROOT / "examples" / "kernels" / f"{name.replace('_', '-')}.toml"
    for name in ("jax_mosaic_gpu", "jax_pallas_triton")
}
GPU = "h200-sxm"
FIGURES = ("l2_read", "l2_write", "hbm_read", "hbm_write", "seconds")


@dataclass(frozen=True)
class Compared:
    """A recorded launch beside its prediction; `error` is predicted / measured - 1 of each figure."""

    implementation: str
    problem: AttentionProblem
    measured: dict[str, float]
    prediction: Prediction

    @property
    def error(self) -> dict[str, float]:
        p = self.prediction
        predicted = {
            f"{level}_{way}": p.total(level, way)
            for level in ("l2", "hbm")
            for way in ("read", "write")
        }
        predicted["seconds"] = p.time_s
        return {name: predicted[name] / self.measured[name] - 1 for name in FIGURES}


def compared() -> Iterator[Compared]:
    """Every recorded launch, in the file's order."""
    gpu = load_profile(GPU)
    with measurements("h200_foreign_kernels.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            problem = AttentionProblem(
                batch=int(row["batch"]),
                heads=int(row["heads"]),
                kv_heads=int(row["kv_heads"]),
                seq_q=int(row["seq_q"]),
                seq_k=int(row["seq_k"]),
                head_dim=int(row["head_dim"]),
                mask="causal" if row["causal"] == "1" else "none",
                dtype=row["dtype"],
                layout=row["layout"],
            )
            kernel = resolve(str(FILES[row["implementation"]]), problem, gpu)
            measured = {name: float(row[name]) for name in FIGURES}
            yield Compared(row["implementation"], problem, measured, predict(problem, kernel, gpu))


def page(launches: Iterable[Compared]) -> str:
    """The page of errors, row by row."""
    head = (
        "# Kernels that nobody here wrote",
        "",
        "Made by `python benchmarks/foreign_kernels.py --write`: predicted / measured - 1 for every row of "
        "h200_foreign_kernels.csv (JAX 0.11.2 on an H200, fp16, cold), with the kernels described by "
        "[files](../../examples/kernels) alone. The files' words are from public source, the driver's report of "
        "resources and how Triton compiles loops.",
        "",
        "| kernel | heads | tokens | head_dim | causal | SM<->L2 read | SM<->L2 write | HBM read | HBM write | time |",
        "|---|---:|---:|---:|---|---:|---:|---:|---:|---:|",
    )
    rows = [
        f"| {c.implementation} | {heads(c.problem)} | {c.problem.seq_q} | {c.problem.head_dim} "
        f"| {'yes' if c.problem.mask == 'causal' else 'no'} | "
        + " | ".join(f"{c.error[name]:+.{2 if name.startswith('l2') else 1}%}" for name in FIGURES)
        + " |"
        for c in launches
    ]
    return "\n".join((*head, *rows)) + "\n"


def heads(problem: AttentionProblem) -> str:
    """Query heads, with key/value heads where they are fewer."""
    return f"{problem.heads}" if problem.group == 1 else f"{problem.heads}/{problem.kv_heads}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"write {PLACE.relative_to(ROOT)}")
    text = page(compared())
    if parser.parse_args().write:
        PLACE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
