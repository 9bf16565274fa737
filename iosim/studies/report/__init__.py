"""Reports: one HTML file and one Markdown file for several GPUs, kernels and sequence lengths.

    >>> from iosim.studies.report import ReportRequest, build, write
    >>> request = ReportRequest.of(("a100", "h100"), ("naive", "fa2"), problems)
    >>> write(build(request), "report.html")

Predictions come from `iosim.prediction.predictor`, tiles from `iosim.studies.tiles.pick`; this package arranges and
draws, it computes nothing but ratios.
"""

from __future__ import annotations

import os
from pathlib import Path

from iosim.base.errors import InputError
from iosim.base.files import write_together
from iosim.show.html import html
from iosim.show.page import markdown
from iosim.studies.report.assemble import build
from iosim.studies.report.collect import Report
from iosim.studies.report.face import as_page
from iosim.studies.report.request import ReportRequest

__all__ = ["FORMATS", "Report", "ReportRequest", "as_page", "beside", "build", "render", "targets", "write"]
FORMATS = ("both", "html", "md")
NAME = "report"
_SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md"}


def targets(out: str | Path, form: str = "both") -> dict[str, Path]:
    """Paths by "html" and "md" for `--out`: a directory that exists, or the name of one of the two files."""
    if form not in FORMATS:
        raise InputError(f"`format` '{form}' is not known; accepted: {', '.join(FORMATS)}")
    kinds = ("html", "md") if form == "both" else (form,)
    path = Path(out)
    own = _SUFFIXES.get(path.suffix.lower())
    if path.is_dir():
        places = {kind: path / f"{NAME}.{kind}" for kind in kinds}
    elif own is None:
        raise InputError(f"`out` '{out}' is no place for a report; accepted: an existing directory, or a file name "
                         "that ends in .html or .md")  # fmt: skip
    elif own not in kinds:
        raise InputError(f"`out` '{out}' contradicts `format` {form}; accepted: a name that ends in .{form}")
    else:
        places = {kind: path if kind == own else path.with_suffix(f".{kind}") for kind in kinds}
    for target in places.values():
        if target.is_dir():
            raise InputError(f"`out` '{out}': '{target}' is a directory; a file name is needed")
        if not target.parent.is_dir():
            raise InputError(f"`out` '{out}' cannot be written: there is no directory '{target.parent}'")
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise InputError(f"`out` '{out}' cannot be written: Permission denied")
    return places


def beside(out: str | Path, name: str, form: str = "both") -> str:
    """A place like `out` for one of several reports, whose files' names end in `name`."""
    path = Path(out)
    if path.is_dir():
        return str(path / f"{NAME}-{name}.{'md' if form == 'md' else 'html'}")
    return str(path.with_name(f"{path.stem}-{name}{path.suffix}"))


def render(report: Report, kind: str) -> str:
    return html(as_page(report)) if kind == "html" else markdown(as_page(report))


def write(report: Report, out: str | Path, form: str = "both") -> list[Path]:
    """Write the files of `form` ("both", "html" or "md") to a directory or beside a file name; returns their paths."""
    places = targets(out, form)
    write_together({path: render(report, kind) for kind, path in places.items()})
    return list(places.values())
