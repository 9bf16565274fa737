"""Wavefronts at shared memory beside their counter, of all recorded launches that have it.

python benchmarks/shared_memory.py           the table, and the launches that are not described
python benchmarks/shared_memory.py --write   writes the table of docs/validation.md; half a minute
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from iosim import load_profile
from iosim.evidence.validate import match as matching
from iosim.evidence.validate import read
from iosim.readers.staged import wavefront_bytes

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "validation.md"
BEGIN, END = "<!-- shared memory: python benchmarks/shared_memory.py --write -->", "<!-- end -->"
TABLES = {
    "kernels/measurements/h200_iosim_kernels.csv": "h200",
    "kernels/measurements/h100_random.csv": "h100",
    "experiments/measurements/h100_library_builds.csv": "h100",
    "experiments/measurements/h200_chain_launches.csv": "h200",
}
NEAR = (0.02, 0.05)


def launches(table: str) -> Iterator[tuple[str, float | None]]:
    """(implementation and launch, predicted over counted less 1) of every row of a table that has the counter and holds
    operands; None where the launch is not described. A row of no known call has the reason in place of the launch."""
    profile = load_profile(TABLES[table])
    for _, call in groupby(read(ROOT / table), key=lambda row: row.call):
        rows = list(call)
        try:
            case = matching.match(rows, profile)
        except matching.NoModel as reason:
            yield from (
                (f"{row.implementation}: {reason}", None)
                for row in rows
                if row.measured.get("smem")
            )
            continue
        for row, chain in zip(case.rows, case.chains, strict=True):
            counted = row.measured.get("smem")
            if not counted:
                continue
            (launch,) = chain.launches
            if (known := launch.work.fragments) is not None and not known.holds_operands:
                continue
            predicted = wavefront_bytes(chain)
            yield (
                f"{row.implementation} {launch.name}",
                None if predicted is None else predicted / counted - 1,
            )


def errors() -> tuple[dict[str, list[float]], Counter[str]]:
    """Errors by launch, and how many rows there are of each launch that is not described."""
    errors_by_kernel: dict[str, list[float]] = defaultdict(list)
    missing: Counter[str] = Counter()
    for table in TABLES:
        for name, error in launches(table):
            if error is None:
                missing[name] += 1
            else:
                errors_by_kernel[name].append(abs(error))
    return errors_by_kernel, missing


def table(errors_by_kernel: dict[str, list[float]]) -> str:
    lines = [
        "| errors in % | rows | median | p95 | max | within 2 | 5 |",
        f"| --- |{' ---: |' * 6}",
    ]
    for name, values in sorted(errors_by_kernel.items(), key=lambda item: item[0]):
        amounts = np.median(values), np.quantile(values, 0.95, method="inverted_cdf"), max(values)
        shares = (float(np.mean(np.array(values) <= near)) for near in NEAR)
        cells = [
            str(len(values)),
            *(f"{100 * x:.2g}" for x in amounts),
            *(f"{100 * x:.0f}" for x in shares),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"write the table of {PAGE.name}")
    errors_found, missing = errors()
    if not parser.parse_args().write:
        missing_text = "".join(
            f"{rows:5d} rows not described: {name}\n" for name, rows in missing.most_common()
        )
        sys.stdout.write(f"{table(errors_found)}\n\n{missing_text}")
        return 0
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(
        f"{before}{begin}\n{table(errors_found)}\n{END}{rest.partition(END)[2]}", encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
