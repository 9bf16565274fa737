"""Fits the L2's three constants to the measured capacity curves: `python benchmarks/fit_l2.py`.

Tries l2_ways, l2_effective_capacity_fraction and l2_displaced_fraction over a small grid, prints the error of each on
the cliff, and the residuals of those that hardware_profiles/h200-sxm.toml holds.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import product

from iosim._data import data_dir
from iosim.hardware import load_profile
from iosim.simulator.l2 import L2Model, model
from iosim.simulator.scan import scan, with_constants

WAYS = (16, 20, 24)
CAPACITY = (1.0, 1.01, 1.02, 1.03)
DISPLACED = (0.008, 0.015, 0.03)
CLIFF_MIB = {"shared_scan": (26, 36), "private_scan": (34, 60)}
MIB = 1 << 20


def rows() -> list[tuple[str, int, int, int]]:
    """(pattern, footprint in MiB, passes, bytes read from HBM) of every measured scan."""
    with open(data_dir("kernels") / "measurements" / "l2_capacity_curve.csv", encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    return [(r["pattern"], int(r["footprint_MiB"]), int(r["passes"]), int(r["dram_read"])) for r in table]


def error(l2: L2Model, row: tuple[str, int, int, int]) -> float:
    """Replayed less measured reads, as a share of the scan's re-reads."""
    pattern, mib, passes, read = row
    return (scan(l2, mib * MIB, pattern, passes)[0] - read) / ((passes - 1) * mib * MIB)


def main() -> None:
    profile = load_profile("h200-sxm")
    held = model(profile)
    every = rows()
    cliff = [r for r in every if CLIFF_MIB[r[0]][0] <= r[1] <= CLIFF_MIB[r[0]][1]]
    print("Mean |replayed - measured| HBM reads on the cliffs, % of the re-reads.\n")
    print("| ways | capacity fraction | " + " | ".join(f"displaced {d}" for d in DISPLACED) + " |")
    print("| ---: | ---: |" + " ---: |" * len(DISPLACED))
    for ways, capacity in product(WAYS, CAPACITY):
        other = replace(held, ways=ways)
        tried = [with_constants(other, int(profile.need("l2_bytes")), capacity, d) for d in DISPLACED]
        means = [sum(abs(error(one, r)) for r in cliff) / len(cliff) for one in tried]
        print(f"| {ways} | {capacity} | " + " | ".join(f"{100 * m:.2f}" for m in means) + " |")
    print("\nResiduals with the constants of the profile.\n")
    print("| scan | MiB | measured MB | replayed MB | difference, % of measured |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for row in every:
        pattern, mib, passes, read = row
        found = scan(held, mib * MIB, pattern, passes)[0]
        print(f"| {pattern} | {mib} | {read / 1e6:.1f} | {found / 1e6:.1f} | {100 * (found / read - 1):+.1f} |")


if __name__ == "__main__":
    main()
