"""Reports: one HTML file and one Markdown file for several GPUs, kernels and sequence lengths.

A report is a comparison over lengths with more figures; this file says where its files go.
"""

from __future__ import annotations

import os
from pathlib import Path

from iosim.base.errors import InputError
from iosim.base.files import write_together
from iosim.show.html import html
from iosim.show.page import markdown
from iosim.studies.compare.points import CaseGrid
from iosim.studies.report.study import Report, as_page, build

__all__ = [
    "FORMATS",
    "CaseGrid",
    "Report",
    "as_page",
    "beside",
    "build",
    "render",
    "targets",
    "write",
]
FORMATS = ("both", "html", "md")
NAME = "report"
_SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md"}


def targets(out: str | Path, form: str = "both") -> dict[str, Path]:
    """Paths by "html" and "md" for `--out`: a directory that exists, or the name of one of the two files."""
    if form not in FORMATS:
        raise InputError(f"`format` '{form}' is not known; accepted: {', '.join(FORMATS)}")
    kinds = ("html", "md") if form == "both" else (form,)
    path = Path(out)
    own_kind = _SUFFIXES.get(path.suffix.lower())
    if path.is_dir():
        places = {kind: path / f"{NAME}.{kind}" for kind in kinds}
    elif own_kind is None:
        accepted = "an existing directory, or a file name that ends in .html or .md"
        raise InputError(f"`out` '{out}' is no place for a report; accepted: {accepted}")
    elif own_kind not in kinds:
        raise InputError(
            f"`out` '{out}' contradicts `format` {form}; accepted: a name that ends in .{form}"
        )
    else:
        places = {
            kind: path if kind == own_kind else path.with_suffix(f".{kind}") for kind in kinds
        }
    for target in places.values():
        if target.is_dir():
            raise InputError(f"`out` '{out}': '{target}' is a directory; a file name is needed")
        if not target.parent.is_dir():
            raise InputError(
                f"`out` '{out}' cannot be written: there is no directory '{target.parent}'"
            )
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise InputError(f"`out` '{out}' cannot be written: Permission denied")
    return places


def beside(out: str | Path, name: str, form: str = "both") -> str:
    """A place like `out` for one of several reports, whose files' names end in `name`."""
    path = Path(out)
    if path.is_dir():
        return str(path / f"{NAME}-{name}.{'md' if form == 'md' else 'html'}")
    return str(path.with_name(f"{path.stem}-{name}{path.suffix}"))


def render(report: Report, kind: str, *, interactive: bool = False) -> str:
    page = as_page(report)
    return html(page, interactive=interactive) if kind == "html" else markdown(page)


def write(
    report: Report, out: str | Path, form: str = "both", *, interactive: bool = False
) -> list[Path]:
    """Write the files of `form` ("both", "html" or "md") to a directory or beside a file name; returns their paths.
    With `interactive` plotly draws the figures."""
    places = targets(out, form)
    write_together(
        {path: render(report, kind, interactive=interactive) for kind, path in places.items()}
    )
    return list(places.values())
