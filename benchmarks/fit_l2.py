"""Fits the L2's constants to the measured capacity curves: `python benchmarks/fit_l2.py [--kernels]`.

Tries l2_ways, l2_effective_capacity_fraction and l2_displaced_fraction over a small grid, prints the error of each on
the cliff, and the residuals of those that hardware_profiles/h200-sxm.toml holds. With `--kernels` (some minutes): which
share of that room the odd-numbered calls of the recorded attention kernels find, KERNELS_SHARE and KERNELS_DISPLACED.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from iosim._data import data_dir
from iosim.hardware import HardwareProfile, load_profile
from iosim.simulator import l2
from iosim.simulator.l2 import L2Model, model
from iosim.simulator.scan import scan, with_constants
from iosim.validation.residuals import Residual, compare
from iosim.validation.rows import Row, read

WAYS = (16, 20, 24)
CAPACITY = (0.96, 0.98, 1.0, 1.02, 1.03, 1.04)
DISPLACED = (0.0, 0.015, 0.03)
KERNELS_SHARES = (0.92, 0.94, 0.96, 1.0)
KERNELS_DISPLACED = (0.0, 0.03)
CLIFF_MIB = {"shared_scan": (26, 36), "private_scan": (34, 60)}
KERNELS = ("h200_library_kernels.csv", "h200_iosim_kernels.csv")
DECIDES = ("wave-bound", "thrashing")
"""Where the L2's capacity decides what is read; elsewhere every capacity gives the same."""
MIB = 1 << 20


@dataclass(frozen=True)
class Scan:
    """A measured scan: what it read from HBM."""

    pattern: str
    mib: int
    passes: int
    hbm_read: int

    @property
    def on_cliff(self) -> bool:
        low, high = CLIFF_MIB[self.pattern]
        return low <= self.mib <= high


def scans() -> list[Scan]:
    """Every row of the capacity curves."""
    with open(data_dir("kernels") / "measurements" / "l2_capacity_curve.csv", encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    return [Scan(r["pattern"], int(r["footprint_MiB"]), int(r["passes"]), int(r["dram_read"])) for r in table]


def error(made: L2Model, row: Scan) -> float:
    """Replayed less measured reads, as a share of the scan's re-reads."""
    return (scan(made, row.mib * MIB, row.pattern, row.passes)[0] - row.hbm_read) / ((row.passes - 1) * row.mib * MIB)


def cliff_error(made: L2Model, rows: Sequence[Scan]) -> float:
    """Mean |replayed - measured| reads on the cliffs, in shares of the re-reads."""
    cliff = [abs(error(made, row)) for row in rows if row.on_cliff]
    return sum(cliff) / len(cliff)


def odd_calls() -> list[Row]:
    """The odd-numbered calls of the recorded attention kernels."""
    folder = data_dir("kernels") / "measurements"
    return [row for name in KERNELS for row in read(folder / name) if row.call % 2 and not row.chain]


def hbm_reads(profile: HardwareProfile, rows: Sequence[Row]) -> dict[tuple[str, int, int], Residual]:
    """Launches without spills by table, call and launch: their predicted HBM reads beside the measured ones."""
    found = compare(rows, profile).residuals
    good = [r for r in found if r.quantity == "hbm_read" and r.error is not None and not r.spills]
    return {(r.row.source, r.row.call, r.row.launch): r for r in good}


def print_grid(profile: HardwareProfile, rows: Sequence[Scan]) -> None:
    held, size = model(profile), profile.need_int("l2_bytes")
    print("Mean |replayed - measured| HBM reads on the cliffs, % of the re-reads.\n")
    print("| ways | capacity fraction | " + " | ".join(f"displaced {d}" for d in DISPLACED) + " |")
    print("| ---: | ---: |" + " ---: |" * len(DISPLACED))
    for ways, capacity in product(WAYS, CAPACITY):
        tried = [with_constants(replace(held, ways=ways), size, capacity, d) for d in DISPLACED]
        print(f"| {ways} | {capacity} | " + " | ".join(f"{100 * cliff_error(one, rows):.2f}" for one in tried) + " |")
    print(f"\nWith the constants of the profile: {100 * cliff_error(held, rows):.2f} %.")


def print_residuals(profile: HardwareProfile, rows: Sequence[Scan]) -> None:
    held = model(profile)
    print("\nResiduals with the constants of the profile.\n")
    print("| scan | MiB | measured MB | replayed MB | difference, % of measured |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for row in rows:
        found = scan(held, row.mib * MIB, row.pattern, row.passes)[0]
        off = 100 * (found / row.hbm_read - 1)
        print(f"| {row.pattern} | {row.mib} | {row.hbm_read / 1e6:.1f} | {found / 1e6:.1f} | {off:+.1f} |")


def print_kernels(profile: HardwareProfile) -> None:
    rows = odd_calls()
    decided = {key for key, r in hbm_reads(profile, rows).items() if r.regime in DECIDES}
    print(f"\nHBM reads of {len(decided)} launches of odd-numbered calls, without spills and wave-bound or thrashing")
    print("with the profile's constants: mean error (share more than 5 % off), %.\n")
    print("| share | " + " | ".join(f"displaced {d}" for d in KERNELS_DISPLACED) + " |")
    print("| ---: |" + " ---: |" * len(KERNELS_DISPLACED))
    kept = l2.KERNELS_SHARE, l2.KERNELS_DISPLACED
    for share in KERNELS_SHARES:
        cells = []
        for displaced in KERNELS_DISPLACED:
            l2.KERNELS_SHARE, l2.KERNELS_DISPLACED = share, displaced
            found = [r.error or 0.0 for key, r in hbm_reads(profile, rows).items() if key in decided]
            far = sum(e > 0.05 for e in found) / len(found)
            cells.append(f"{100 * sum(found) / len(found):.2f} ({100 * far:.0f})")
        print(f"| {share} | " + " | ".join(cells) + " |", flush=True)
    l2.KERNELS_SHARE, l2.KERNELS_DISPLACED = kept


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", action="store_true", help="also what the recorded kernels want; minutes")
    args = parser.parse_args(argv)
    profile, rows = load_profile("h200-sxm"), scans()
    print_grid(profile, rows)
    print_residuals(profile, rows)
    if args.kernels:
        print_kernels(profile)


if __name__ == "__main__":
    main()
