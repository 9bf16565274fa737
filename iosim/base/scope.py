"""What iosim does not model, by the names under which it is asked for: a refusal names the page that says more.

Titles and patterns stand in scope.toml; the page is docs/scope.md, and a test holds its headings to these titles.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PAGE = "docs/scope.md"
PATTERNS = Path(__file__).with_name("scope.toml")


@cache
def topics() -> list[dict[str, str]]:
    """What is out of scope: a `title` each, and patterns of the names that ask for it, by kind."""
    import tomllib  # a name that is known needs no reason

    found: list[dict[str, str]] = tomllib.loads(PATTERNS.read_text(encoding="utf-8"))["topic"]
    return found


def out_of_scope(kind: str, name: str) -> str:
    """A clause on why iosim has no `name` of a "GPU", "kernel", "dtype" or "option"; empty where that is not known."""
    plain = re.sub(r"[\W_]", "", name.lower())
    for topic in topics():
        if kind in topic and re.fullmatch(topic[kind], plain):
            title = topic["title"]
            title = title if title[1].isupper() else title[0].lower() + title[1:]
            return f"out of scope: {title} ({PAGE})"
    return ""
