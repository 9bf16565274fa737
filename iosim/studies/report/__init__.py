"""Reports: one HTML file and one Markdown file for several GPUs, kernels and sequence lengths.

    >>> from iosim.studies.report import ReportRequest, build, write
    >>> request = ReportRequest.of(("a100", "h100"), ("naive", "fa2"), problems)
    >>> write(build(request), "report.html")

Predictions come from `iosim.prediction.predictor`, tiles from `iosim.studies.tiles.pick`; this package arranges and
draws, it computes nothing but ratios.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iosim.show.places import FORMATS, targets, write_together
from iosim.studies.report.assemble import build
from iosim.studies.report.request import ReportRequest

if TYPE_CHECKING:
    from iosim.show.model import Report

__all__ = ["FORMATS", "ReportRequest", "build", "render", "targets", "write"]


def render(report: Report, kind: str) -> str:
    """The report's text as "html" or "md"; the same report gives the same bytes."""
    if kind == "html":
        from iosim.show import html

        return html.render(report)
    from iosim.show import markdown

    return markdown.render(report)


def write(report: Report, out: str | Path, form: str = "both") -> list[Path]:
    """Write the files of `form` ("both", "html" or "md") to a directory or beside a file name; returns their paths.

    Raises:
        InputError: a place cannot be written; no file has changed then.
    """
    places = targets(out, form)
    write_together({path: render(report, kind) for kind, path in places.items()})
    return list(places.values())
