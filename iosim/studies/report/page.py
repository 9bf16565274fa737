"""A report as a page."""

from __future__ import annotations

from iosim.show.page import Page, Section, listed, numbered
from iosim.studies.report import words
from iosim.studies.report.answer import verdicts
from iosim.studies.report.report import Report


def as_page(report: Report) -> Page:
    """Summary, what is left out, figures, notes and command lines."""
    sections = (
        Section("summary", "Summary, at the longest sequence", table=report.summary),
        *listed("left-out", "Left out", [words.omission(o) for o in report.omissions]),
        *numbered(report.figures),
        *listed("notes", "Notes", report.notes),
    )
    return Page(
        report.title, words.subject(report.request), sections, text=(words.LEVELS, words.EXACT),
        command=report.request.report_line(), commands=report.commands, contents=True,
        answer=tuple(v.sentence for v in verdicts(report)),
    )  # fmt: skip
