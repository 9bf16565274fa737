"""A report as a page."""

from __future__ import annotations

from iosim.show.page import Page, Section, listed
from iosim.studies.report import words
from iosim.studies.report.answer import verdicts
from iosim.studies.report.report import Report


def as_page(report: Report) -> Page:
    """The answers, the chart that carries them, one table, and the rest in details."""
    first, *others = report.figures
    length = report.request.lengths[-1]
    at = "At the longest sequence" if len(report.request.lengths) > 1 else "Numbers"
    told = () if report.legend is None else (f"{report.legend}.",)
    sections = (
        first.section(report.legend, folded=False),
        Section("summary", f"{at}, N = {length:,}", ((words.RATIOS,) * report.has_ratios) + told, table=report.summary),
        *listed("left-out", "Left out", [words.omission(o, report.request.lengths) for o in report.omissions]),
        *(f.section(report.legend) for f in others),
        *listed("notes", "Notes of the predictions", report.notes, folded=True),
        Section("reading", "How to read this page", (words.LEVELS, words.EXACT), folded=True),
    )
    return Page(
        report.title, words.subject(report.request), sections, command=report.request.report_line(),
        commands=report.commands, answer=tuple(v.sentence for v in verdicts(report)),
    )  # fmt: skip
