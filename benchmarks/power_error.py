"""What boards draw by the energies that are taken from an H200, beside published power of streams with arithmetic.

    python benchmarks/power_error.py

`energy_factor` of an A100's, an A40's and an L40's architecture is the median over the odd rows of
experiments/measurements/published_power.csv; the even rows and all of the H200's were fitted to nothing. Each row reads
and writes a vector and multiplies: half of the bytes are taken to be read, and a warp's multiply-add is 64 operations.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from iosim import load_profile
from iosim.readers.timing.energy import TEMPLATE, Activity, energies, energy_j

TABLE = Path(__file__).resolve().parents[1] / "experiments" / "measurements" / "published_power.csv"
WARP_OPERATIONS = 64


def board(row: dict[str, str]) -> tuple[float, float]:
    """Watts that were measured and predicted, without those of being awake and with no limit."""
    of = energies(load_profile(row["gpu"]))
    assert of is not None
    half, operations = 1e9 * float(row["gb_per_s"]) / 2, 1e9 * float(row["gflop_per_s"])
    done = Activity(half, half, half, half, warp_instructions=operations / WARP_OPERATIONS)
    found = energy_j(done, of, 1e6 * float(row["sm_mhz"]), 1.0)
    return float(row["power_w"]) - found["awake"], sum(found.values()) - found["awake"]


def main() -> None:
    with open(TABLE, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    print(
        "| GPU | rows | factor | odd rows ask for | predicted over measured, even rows: least | median | most |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        factor = load_profile(gpu).need("energy_factor") if gpu != TEMPLATE else 1.0
        measured, predicted = np.array([board(row) for row in rows if row["gpu"] == gpu]).T
        asked = factor * np.median(measured[::2] / predicted[::2])
        ratio = (predicted / measured)[1::2]
        print(f"| {gpu} | {len(measured)} | {factor:g} | {asked:.2f} "
              f"| {ratio.min():.2f} | {np.median(ratio):.2f} | {ratio.max():.2f} |")  # fmt: skip


if __name__ == "__main__":
    main()
