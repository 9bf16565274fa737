"""A comparison as a page: tables, figures and command lines."""

from __future__ import annotations

from iosim.show.page import Page, Section, listed, numbered
from iosim.studies.compare.answer import answer
from iosim.studies.compare.figures import figures
from iosim.studies.compare.study import Comparison
from iosim.studies.compare.tables import summary
from iosim.studies.report import words

TITLE = "Attention side by side"


def as_page(comparison: Comparison, command: str = "iosim compare") -> Page:
    """The whole page. `command` is the command line that makes it again."""
    missing = dict.fromkeys(f"{e.kernel} on {e.gpu} (N = {e.seq_len:,}): {e.reason}" for e in comparison.missing)
    ratios = f"Ratios: {comparison.baseline} over the row; above 1 the row needs less."
    sections = (
        Section("summary", "Side by side", (ratios,), table=summary(comparison.entries)),
        *listed("missing", "Cannot run", tuple(missing)),
        *numbered(figures(comparison)),
        *listed("notes", "Notes", comparison.notes),
    )
    return Page(
        TITLE,
        words.subject(comparison.request),
        sections,
        text=(words.LEVELS,),
        answer=(answer(comparison),),
        command=command,
        commands=comparison.commands,
    )
