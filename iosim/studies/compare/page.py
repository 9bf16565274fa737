"""A comparison as a page: tables, figures and command lines."""

from __future__ import annotations

from iosim.show.page import Page, Section, listed
from iosim.studies.compare.answer import answer
from iosim.studies.compare.figures import figures
from iosim.studies.compare.study import Comparison
from iosim.studies.compare.tables import summary
from iosim.studies.report import words

TITLE = "Which kernel moves the fewest bytes?"


def as_page(comparison: Comparison, command: str = "iosim compare") -> Page:
    """The whole page. `command` is the command line that makes it again."""
    missing = dict.fromkeys(f"{e.kernel} on {e.gpu} (N = {e.seq_len:,}): {e.reason}" for e in comparison.missing)
    ratios = f"Ratios: {comparison.baseline} over the row; above 1 the row needs less."
    first, *others = figures(comparison)
    told = [f"{comparison.legend}."] if comparison.legend else []
    there = tuple(e for e in comparison.entries if e.point is not None)
    sections = (
        first.section(comparison.legend, folded=False),
        Section("summary", "Side by side", (ratios, *told), table=summary(there).without("reason")),
        *listed("missing", "Cannot run", tuple(missing)),
        *(f.section(comparison.legend) for f in others),
        *listed("notes", "Notes", comparison.notes, folded=True),
        Section("reading", "How to read this page", (words.LEVELS,), folded=True),
    )
    subject = words.subject(comparison.request)
    return Page(TITLE, subject, sections, command=command, commands=comparison.commands, answer=(answer(comparison),))
