"""Attention over two H200s, measured and predicted; what their links reach.

    python benchmarks/links.py          predicted against measured
    python benchmarks/links.py --fit    latency and achieved shares of NVLink, fitted on messages and collectives alone
    python benchmarks/links.py --table FILE.csv    of another table that experiments/links.py recorded on two H200s

The rows are h200x2_links.csv. Nothing was fitted on its attention, nor on anything of h200x2_links_2.csv, which was
recorded on two other H200s after the model was as it is: those rows are the check.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from recorders import measurements

import iosim
from iosim.hardware.profile import load_profile
from iosim.studies.distributed.links import COLLECTIVES, load_link

MIB = 1 << 20
GPU = "h200-sxm"
METHODS = {"ring": "ring", "zigzag": "zigzag", "ulysses": "ulysses", "all_gather_kv": "all-gather"}
RECEIVED = {"exchange": 1.0, "all_gather": 1.0, "reduce_scatter": 0.5, "all_to_all": 0.5}
"""Of a row's MiB, what a GPU receives."""
TABLE = measurements("h200x2_links.csv")
LEAST = {"exchange": 64.0}
"""MiB from which the link, not the processor, decides."""


class Row(NamedTuple):
    what: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def table() -> list[dict[str, str]]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def messages() -> Iterator[tuple[str, float, float]]:
    """(what, bytes received, seconds) of rows that the link decides."""
    for row in table():
        if row["what"] in RECEIVED and float(row["MiB"]) >= LEAST.get(row["what"], 16.0):
            yield (
                row["what"].replace("_", "-"),
                float(row["MiB"]) * MIB * RECEIVED[row["what"]],
                float(row["ms"]) / 1e3,
            )


def attention() -> Iterator[Row]:
    """The rows of attention, predicted with FlashAttention-2 under a load of seconds."""
    for row in table():
        if row["what"] in METHODS:
            sizes = {
                "heads": int(row["heads"]),
                "seq_len": int(row["tokens"]),
                "causal": row["causal"] == "1",
            }
            (made,) = iosim.ring(gpu=GPU, num_gpus=2, kernel="fa2", head_dim=128, dtype="bf16",
                                 schedule=[METHODS[row["what"]]], **sizes)  # fmt: skip
            name = f"{row['what']}, {sizes['heads']} heads, {sizes['seq_len']:,} tokens{', causal' * sizes['causal']}"
            yield Row(name, float(row["ms"]) / 1e3, made.seconds)


def fit() -> tuple[float, dict[str, float]]:
    """The latency of all, to a microsecond, and by kind the share of NVLink's bandwidth, with the least squares of
    predicted / measured - 1."""
    points, width = defaultdict(list), load_link("nvlink", load_profile(GPU)).bandwidth_bytes_per_s
    for what, received, seconds in messages():
        points[what].append((received / seconds, 1 / seconds))
    best = (np.inf, 0.0, {})
    for latency in np.arange(0, 100e-6, 1e-6):
        squares, shares = 0.0, {}
        for what, found in points.items():
            a, left = np.array([x for x, _ in found]), 1 - latency * np.array([y for _, y in found])
            slope = a @ left / (a @ a)
            squares += float(((a * slope - left) ** 2).sum())
            shares[what] = float(1 / slope / width)
        best = min(best, (squares, float(latency), shares), key=lambda one: one[0])
    return best[1:]


def main() -> None:
    global TABLE
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="fit latency and shares")
    parser.add_argument(
        "--table",
        type=Path,
        default=TABLE,
        help="rows to compare with (default: the recorded ones)",
    )
    asked = parser.parse_args()
    TABLE = asked.table
    if asked.fit:
        latency, shares = fit()
        print(
            f"latency_s = {latency:.2g}\n"
            + "\n".join(f"{what}: {shares[what]:.2f}" for what in COLLECTIVES)
        )
        return
    link = load_link("nvlink", load_profile(GPU))
    made = [Row(f"{what}, {received / MIB:g} MiB", seconds, link.seconds(received, what))
            for what, received, seconds in messages()]  # fmt: skip
    for row in (*made, *attention()):
        print(
            f"{row.what:48s} {1e3 * row.measured_s:9.3f} ms  {1e3 * row.predicted_s:9.3f} ms  {row.error:+6.1%}"
        )


if __name__ == "__main__":
    main()
