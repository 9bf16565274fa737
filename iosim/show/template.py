"""Texts and pages of Jinja templates, each beside the module that fills it in."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

STATIC = Path(__file__).resolve().parent / "static"
"""Templates, styles and scripts of pages."""


@cache
def environment(folder: Path, *, escaped: bool = False) -> Environment:
    """The templates of a folder; with `escaped`, what they are handed is escaped for HTML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow to load

    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def filled(template: Path, **values: Any) -> str:
    """The text of a template, with the values that it names."""
    return environment(template.parent).get_template(template.name).render(values)
