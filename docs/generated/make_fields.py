"""Writes fields.md, the fields of a problem and of the settings over a kernel."""

from __future__ import annotations

from pathlib import Path

from iosim.base.fields import table_text
from iosim.base.files import write_whole
from iosim.kernel.overrides import Overrides
from iosim.problem.fields import ProblemFields

PLACE = Path(__file__).resolve().parent / "fields.md"
HEAD = """# Fields and options

Made by `python docs/generated/make_fields.py` from what the fields say of themselves; a test compares. A field is a
parameter in Python and, with its option, a word of the command line; `iosim predict --help` has the command line's own
defaults where they differ (32 heads, 4096 tokens, head_dim 128). Its numbers may end in k for 1024 and m for 1024^2.

"""


def text() -> str:
    """The whole file."""
    problem, settings = table_text(ProblemFields), table_text(Overrides)
    return (
        f"{HEAD}## `AttentionProblem`\n\n{problem}\n## `Overrides`: settings over a kernel's own choice\n\n{settings}"
    )


if __name__ == "__main__":
    write_whole(PLACE, text())
    print(f"{PLACE}: {len(text()):,} characters")
