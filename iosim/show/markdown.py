"""A page as Markdown: its prose and its tables; plots are left to their tables."""

from __future__ import annotations

import re

from iosim.show.page import Page, Section

_TAG = re.compile(r"<(?=[A-Za-z/!?])")
"""Where HTML begins; the arrow in SM<->L2 does not."""


def markdown(page: Page) -> str:
    """The whole file. Names of profiles and kernels come from users' files: no tag of theirs stays one."""
    parts = [f"# {page.title}", *page.answer, page.subject, *page.text]
    for section in page.sections:
        body = _body(section)
        parts += [f"## {section.heading}", *body] if body else []
    parts = [_TAG.sub("&lt;", part) for part in parts]
    if page.command:
        parts += ["## Command lines" if page.commands else "## Command line", f"```sh\n{page.command}\n```"]
    if page.commands:
        lines = "\n".join(f"{name}  {line}" for name, line in page.commands.items())
        parts.append(f"```text\n{lines}\n```")
    return "\n\n".join(parts) + "\n"


def _body(section: Section) -> list[str]:
    table = section.brief or section.table
    parts = list(section.text) if table or section.items or not section.panels else []
    parts += [table.markdown().rstrip()] if table else []
    parts += ["\n".join(f"- {item.replace(chr(10), ' ')}" for item in section.items)] if section.items else []
    return parts
