"""Writes claims.md, how near published numbers and computed ones lie: `python docs/generated/make_claims.py`.

`--check` writes nothing and ends with 1 where the file is not what would be written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from iosim.base.files import write_whole
from iosim.evidence.reproduce import Row, reproduce, sections

PLACE = Path(__file__).resolve().parent / "claims.md"
BANDS = (
    ("within 1 %", 0.01),
    ("within 5 %", 0.05),
    ("within 20 %", 0.2),
    ("further off", float("inf")),
)
HEAD = """# Published numbers, computed again

Made by `python docs/generated/make_claims.py`; a test compares. Each counted row is one number of a paper, article or
a talk. No row's own number goes into the model that computes it, unless its note says so. `iosim reproduce` prints all
rows with their arithmetic, `--section A --format json` those of one source as data. Where a number is not reproduced,
the note of its row says why. A mistake is computed as its source makes it, and counted apart. A number of your own:
[check a claim](../how-to/check-a-claim.md).
"""


def summary(titles: dict[str, str], rows: list[Row]) -> str:
    """Rows of each section by how far computed and published lie apart."""
    lines = [
        "| section | rows | "
        + " | ".join(name for name, _ in BANDS)
        + " | nothing to divide | mistakes |",
        "| --- | ---: |" + " ---: |" * (len(BANDS) + 2),
    ]
    for letter in dict.fromkeys(r.section for r in rows):
        mine = [r for r in rows if r.section == letter]
        counts = [
            *counted(r.ratio for r in mine if not r.mistake),
            sum(bool(r.mistake) for r in mine),
        ]
        title = titles[letter].replace("|", "\\|")
        lines.append(f"| {letter}. {title} | {len(mine)} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines) + "\n"


def counted(ratios: Iterable[float | None]) -> list[int]:
    """How many ratios lie in each band, and how many there are not."""
    counts = [0] * (len(BANDS) + 1)
    for ratio in ratios:
        off = None if ratio is None else round(abs(ratio - 1), 9)
        counts[
            -1 if off is None else next(n for n, (_, limit) in enumerate(BANDS) if off <= limit)
        ] += 1
    return counts


def text(rows: list[Row]) -> str:
    """The whole file, of the rows of all sections."""
    titles = {s.letter: s.title for s in sections()}
    return f"{HEAD}\n{summary(titles, rows)}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, say whether the file is up to date"
    )
    page = text(reproduce())
    if parser.parse_args().check:
        same = PLACE.is_file() and PLACE.read_text(encoding="utf-8") == page
        print(f"{PLACE.name} is {'up to date' if same else 'not what would be written'}")
        return 0 if same else 1
    write_whole(PLACE, page)
    print(f"{PLACE}: {len(page):,} characters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
