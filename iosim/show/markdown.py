"""A page as Markdown: its answer, its prose and its tables; plots are left to their tables."""

from __future__ import annotations

import re

from iosim.show.page import Page, Section
from iosim.show.tables import COMMANDS

_TAG = re.compile(r"<(?=[A-Za-z/!?])")
"""Where HTML begins; the arrow in SM<->L2 does not."""


def markdown(page: Page) -> str:
    """The whole file. Names of profiles and kernels come from users' files: no tag of theirs stays one."""
    parts = [f"# {page.title}", *page.answer, page.subject, *page.text]
    named: dict[str, None] = {}
    for section in sorted(page.sections, key=lambda s: s.folded):
        body = _body(section)
        parts += [f"## {section.heading}", *body] if body else []
        named.update(dict.fromkeys(_commands_of(section)))
    parts = [_TAG.sub("&lt;", part) for part in parts]
    if page.command:
        parts += ["## Command line" + "s" * bool(named), f"```sh\n{page.command}\n```"]
    if named:
        parts.append("\n".join(["```text", *(f"{name}  {page.commands[name]}" for name in named), "```"]))
    return "\n\n".join(parts) + "\n"


def _commands_of(section: Section) -> list[str]:
    table = section.brief or section.table
    if table is None:
        return []
    at = next((n for n, c in enumerate(table.columns) if c.kind == COMMANDS), None)
    return [] if at is None else [name for row in table.rows for name in str(row[at]).split()]


def _body(section: Section) -> list[str]:
    table = section.brief or section.table
    parts = list(section.text) if table or section.items or not section.panels else []
    parts += [table.markdown().rstrip()] if table else []
    parts += ["\n".join(f"- {item.replace(chr(10), ' ')}" for item in section.items)] if section.items else []
    return parts
