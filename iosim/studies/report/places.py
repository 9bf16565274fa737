"""Where a report's files go."""

from __future__ import annotations

import os
from pathlib import Path

from iosim.base.errors import InputError

FORMATS = ("both", "html", "md")
NAME = "report"
_SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md"}


def targets(out: str | Path, form: str = "both") -> dict[str, Path]:
    """Paths by "html" and "md" for `--out`: a directory that exists, or the name of one of the two files.

    Raises:
        InputError: neither of them, the wrong name for `form`, or a place that cannot be written.
    """
    if form not in FORMATS:
        raise InputError(f"`format` '{form}' is not known; accepted: {', '.join(FORMATS)}")
    kinds = ("html", "md") if form == "both" else (form,)
    path = Path(out)
    if path.is_dir():
        places = {kind: path / f"{NAME}.{kind}" for kind in kinds}
    else:
        kind_of_name = _SUFFIXES.get(path.suffix.lower())
        if kind_of_name is None:
            raise InputError(
                f"`out` '{out}' is no place for a report; accepted: an existing directory, or a file name that ends "
                "in .html or .md"
            )
        if kind_of_name not in kinds:
            raise InputError(f"`out` '{out}' contradicts `format` {form}; accepted: a name that ends in .{form}")
        places = {kind: path if kind == kind_of_name else path.with_suffix(f".{kind}") for kind in kinds}
    for target in places.values():
        _check(target, out)
    return places


def beside(out: str | Path, name: str, form: str = "both") -> str:
    """A place like `out` for one of several reports, whose files' names end in `name`."""
    path = Path(out)
    if path.is_dir():
        return str(path / f"{NAME}-{name}.{'md' if form == 'md' else 'html'}")
    return str(path.with_name(f"{path.stem}-{name}{path.suffix}"))


def _check(target: Path, out: str | Path) -> None:
    if target.is_dir():
        raise InputError(f"`out` '{out}': '{target}' is a directory; a file name is needed")
    if not target.parent.is_dir():
        raise InputError(f"`out` '{out}' cannot be written: there is no directory '{target.parent}'")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise InputError(f"`out` '{out}' cannot be written: Permission denied")
