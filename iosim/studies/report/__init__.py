"""Reports: one HTML file and one Markdown file for several GPUs, kernels and sequence lengths.

    >>> from iosim.studies.report import ReportRequest, build, write
    >>> request = ReportRequest.of(("a100", "h100"), ("naive", "fa2"), problems)
    >>> write(build(request), "report.html")

Predictions come from `iosim.prediction.predictor`, tiles from `iosim.studies.tiles.pick`; this package arranges and
draws, it computes nothing but ratios.
"""

from __future__ import annotations

from pathlib import Path

from iosim.base.files import write_together
from iosim.show.html import html
from iosim.show.markdown import markdown
from iosim.studies.report.assemble import build
from iosim.studies.report.page import as_page
from iosim.studies.report.places import FORMATS, targets
from iosim.studies.report.report import Report
from iosim.studies.report.request import ReportRequest

__all__ = ["FORMATS", "Report", "ReportRequest", "as_page", "build", "render", "targets", "write"]


def render(report: Report, kind: str) -> str:
    """The report's text as "html" or "md"; the same report gives the same bytes."""
    return html(as_page(report)) if kind == "html" else markdown(as_page(report))


def write(report: Report, out: str | Path, form: str = "both") -> list[Path]:
    """Write the files of `form` ("both", "html" or "md") to a directory or beside a file name; returns their paths.

    Raises:
        InputError: a place cannot be written; no file has changed then.
    """
    places = targets(out, form)
    write_together({path: render(report, kind) for kind, path in places.items()})
    return list(places.values())
