"""The L2's constants beside the measured capacity curves: `python benchmarks/fit_l2.py`.

Ways and capacity are not fitted: experiments/sets.py finds them line by line. Tries others over a small grid, prints
the error of each on the cliffs, and the residuals of those that hardware_profiles/h200-sxm.toml holds.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace

from recorders import measurements

from iosim import HardwareProfile, load_profile
from iosim.readers.replay.l2 import L2Model, model
from iosim.readers.replay.scan import scan, with_capacity

WAYS = (12, 16, 20, 24)
CAPACITY = (0.94, 0.96, 0.98, 1.0, 1.02, 1.04)
CLIFF_MIB = {"shared_scan": (26, 36), "private_scan": (34, 60)}
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
    with open(measurements("l2_capacity_curve.csv"), encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    return [
        Scan(r["pattern"], int(r["footprint_MiB"]), int(r["passes"]), int(r["dram_read"]))
        for r in table
    ]


def error(model: L2Model, row: Scan) -> float:
    """Replayed less measured reads, as a share of the scan's re-reads."""
    return (scan(model, row.mib * MIB, row.pattern, row.passes)[0] - row.hbm_read) / (
        (row.passes - 1) * row.mib * MIB
    )


def cliff_error(model: L2Model, rows: Sequence[Scan]) -> float:
    """Mean |replayed - measured| reads on the cliffs, in shares of the re-reads."""
    cliff = [abs(error(model, row)) for row in rows if row.on_cliff]
    return sum(cliff) / len(cliff)


def print_grid(profile: HardwareProfile, rows: Sequence[Scan]) -> None:
    held, size = model(profile), profile.need_int("l2_bytes")
    print("Mean |replayed - measured| HBM reads on the cliffs, % of the re-reads.\n")
    print("| capacity fraction | " + " | ".join(f"{w} ways" for w in WAYS) + " |")
    print("| ---: |" + " ---: |" * len(WAYS))
    for capacity in CAPACITY:
        tried = [with_capacity(replace(held, ways=w), size, capacity) for w in WAYS]
        print(
            f"| {capacity} | "
            + " | ".join(f"{100 * cliff_error(model, rows):.2f}" for model in tried)
            + " |"
        )
    print(f"\nWith the constants of the profile: {100 * cliff_error(held, rows):.2f} %.")


def print_residuals(profile: HardwareProfile, rows: Sequence[Scan]) -> None:
    held = model(profile)
    print("\nResiduals with the constants of the profile.\n")
    print("| scan | MiB | measured MB | replayed MB | difference, % of measured |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for row in rows:
        predicted = scan(held, row.mib * MIB, row.pattern, row.passes)[0]
        off = 100 * (predicted / row.hbm_read - 1)
        print(
            f"| {row.pattern} | {row.mib} | {row.hbm_read / 1e6:.1f} | {predicted / 1e6:.1f} | {off:+.1f} |"
        )


def main() -> None:
    profile, rows = load_profile("h200-sxm"), scans()
    print_grid(profile, rows)
    print_residuals(profile, rows)


if __name__ == "__main__":
    main()
