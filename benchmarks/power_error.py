"""What boards draw by the energies that are taken from an H200, beside published power of streams with arithmetic.

    python benchmarks/power_error.py

`energy_factor` of an A100's, an A40's and an L40's architecture is the median over the odd rows of
experiments/measurements/published_power.csv; the even rows and all of the H200's were fitted to nothing. Each row reads
and writes a vector and multiplies: half of the bytes are taken to be read, and a warp's multiply-add is 64 operations.

An L40's clock falls from 2.5 to 1.8 GHz over its rows: the second table has the exponent of the clock that the odd ones
ask for. The third: of what is taken for all that large products move on the chip, the share that a board's power leaves
them (`on_chip_energy_share`). Products that reach the boost clock are not held by it.
"""

from __future__ import annotations

import csv
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from iosim import HardwareProfile, load_profile
from iosim.readers.timing.energy import (
    AWAKE_SHARE,
    CONSTANTS,
    TEMPLATE,
    Activity,
    _of_large_products,
    energies,
    energy_j,
)

TABLE = Path(__file__).resolve().parents[1] / "experiments" / "measurements" / "published_power.csv"
WARP_OPERATIONS = 64
EXPONENTS = [n / 10 for n in range(5, 26)]
CLOCKS_APART = 1.2
"""Highest over lowest clock of rows that tell how energy goes with the clock."""
SAME_CHIP = ("l40s", "rtx-4090")
"""Boards of one chip: the first holds its large products by power, the second does not."""


def board(row: dict[str, str], exponent: float | None = None) -> tuple[float, float]:
    """Watts that were measured and predicted, without those of being awake and with no limit."""
    of = energies(load_profile(row["gpu"]))
    assert of is not None
    if exponent is not None:
        of = replace(of, exponent=exponent)
    half, operations = 1e9 * float(row["gb_per_s"]) / 2, 1e9 * float(row["gflop_per_s"])
    done = Activity(half, half, half, half, warp_instructions=operations / WARP_OPERATIONS)
    energy = energy_j(done, of, 1e6 * float(row["sm_mhz"]), 1.0)
    return float(row["power_w"]) - energy["awake"], sum(energy.values()) - energy["awake"]


def exponent_asked(rows: list[dict[str, str]]) -> tuple[float, float]:
    """The exponent with the least mean error over these rows, behind the factor that they ask for with it; the error."""
    exponents = {}
    for exponent in EXPONENTS:
        measured, predicted = np.array([board(row, exponent) for row in rows]).T
        scale = float(np.median(measured / predicted))
        exponents[float(np.mean(np.abs(scale * predicted / measured - 1)))] = exponent
    return exponents[min(exponents)], min(exponents)


def left_on_chip(profile: HardwareProfile) -> float:
    """Of what is taken for all that large products move on the chip, the share that the board's power leaves them."""
    template, of = load_profile(TEMPLATE), energies(profile)
    assert of is not None
    whole = {name: profile.need("energy_factor") * template.need(name) for name in CONSTANTS}
    drawn = _of_large_products(profile, replace(of, pj=whole))
    left = (1 - AWAKE_SHARE) * profile.need("power_w") - drawn["instructions"]
    return left / math.fsum(drawn[level] for level in ("l2", "smem", "tensor"))


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
        needed = factor * np.median(measured[::2] / predicted[::2])
        ratio = (predicted / measured)[1::2]
        print(
            f"| {gpu} | {len(measured)} | {factor:g} | {needed:.2f} "
            f"| {ratio.min():.2f} | {np.median(ratio):.2f} | {ratio.max():.2f} |"
        )
    print("\n| GPU | exponent of the clock | odd rows ask for |\n| --- | ---: | ---: |")
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        of_gpu = [row for row in rows if row["gpu"] == gpu]
        clocks = [float(row["sm_mhz"]) for row in of_gpu]
        if max(clocks) > CLOCKS_APART * min(clocks):
            taken, (needed, _) = (
                load_profile(gpu).need("energy_clock_exponent"),
                exponent_asked(of_gpu[::2]),
            )
            print(f"| {gpu} | {taken:g} | {needed:g} |")
    print("\n| GPU | on_chip_energy_share | its power leaves |\n| --- | ---: | ---: |")
    for profile in map(load_profile, SAME_CHIP):
        share = profile.on_chip_energy_share or 1.0
        print(f"| {profile.name} | {share:g} | {left_on_chip(profile):.2f} |")


if __name__ == "__main__":
    main()
