"""The terms of a time, one by one, and what each is worth on measured rows.

    python benchmarks/terms.py            prints the page
    python benchmarks/terms.py --write    writes docs/generated/timing-terms.md
    python benchmarks/terms.py --worth    measures anew what each is worth, on every eighth row, and writes
                                          terms_worth.csv beside this script

The page is made of the terms themselves (`iosim.readers.timing.terms`). A term's worth is how far the mean of the
groups' mean errors of `iosim validate --times` moves, on rows that nothing was fitted on, when it is switched off.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from pathlib import Path

from timing_ablation import ablation

from iosim.base.files import write_whole
from iosim.base.fitted import rows_of
from iosim.base.progress import progress
from iosim.evidence.times.groups import collect
from iosim.readers.timing.breakdown import ordered_terms
from iosim.readers.timing.terms import TERMS, Term
from iosim.show.tables import Column, Table

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "generated" / "timing-terms.md"
WORTH = Path(__file__).with_name("terms_worth.csv")
FIELDS = ("term", "with", "without", "most_changed")
MOST_CHANGED = 3
EVERY = 8
"""Every so many rows of a table are taken, for minutes in place of an hour."""
TITLES = (
    "term",
    "unit",
    "formula",
    "zero for",
    "constants (fitted ones in italics)",
    "worth",
    "most changed",
    "function",
)


def measure() -> None:
    """Writes what each term is worth."""
    cases, _ = collect(EVERY, show=progress("reading tables"))
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(FIELDS)
    for mechanism in ablation(cases):
        if mechanism.mechanism in TERMS:
            changed = "; ".join(
                f"{key} {a:.1%} to {b:.1%}" for key, a, b in mechanism.groups[:MOST_CHANGED]
            )
            writer.writerow(
                (mechanism.mechanism, f"{mechanism.whole:.5f}", f"{mechanism.without:.5f}", changed)
            )
    write_whole(WORTH, lines.getvalue())


def worth() -> dict[str, dict[str, str]]:
    """What was measured of each term, by its name."""
    with WORTH.open(newline="", encoding="utf-8") as stream:
        return {row["term"]: row for row in csv.DictReader(stream)}


def constants(term: Term) -> str:
    """A term's constants with their values; those of a profile by name alone."""
    texts = []
    for name in term.constants:
        value = term.constant(name)
        if value is None:
            texts.append(f"`{name}`")
        elif rows_of(term.module_of(name), name):
            texts.append(f"*{name}* {value:.4g}")
        else:
            texts.append(f"{name} {value:.4g}")
    return ", ".join(texts)


def page() -> str:
    """The page of the terms."""
    measured, rows = worth(), []
    for term in ordered_terms():
        row = measured.get(term.name)
        points = f"{100 * (float(row['without']) - float(row['with'])):+.2f}" if row else ""
        function = f"`{term.place.replace('iosim/readers/timing/', '')}`"
        changed = row["most_changed"] if row else ""
        rows.append(
            (
                term.name,
                term.scope.value,
                term.formula,
                term.zero,
                constants(term),
                points,
                changed,
                function,
            )
        )
    columns = tuple(Column(title.replace(" ", "_"), title) for title in TITLES)
    return f"""# Terms of a time

Made by `python benchmarks/terms.py --write` from the functions that compute the terms. *Worth* is how many percentage
points the mean of the groups' mean errors (`iosim validate --times`, rows that nothing was fitted on, every eighth row
of a table) gets worse when the term is switched off, and *most changed* the groups that move most. The command
`iosim explain --time --terms` prints the terms of one call. Constants in `code` are values of the GPU's profile.

{Table(columns, tuple(rows)).markdown()}"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--worth", action="store_true", help="measure what each term is worth")
    args = parser.parse_args()
    if args.worth:
        measure()
    if args.write:
        write_whole(PAGE, page())
    elif not args.worth:
        sys.stdout.write(page())


if __name__ == "__main__":
    main()
