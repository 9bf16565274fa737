"""Prints the fields of a problem and of the settings over a kernel: `python docs/generated/make_fields.py`."""

from __future__ import annotations

from typing import Any

from iosim.base.fields import default_text, described, fields_of
from iosim.kernel.overrides import Overrides
from iosim.problem.fields import ProblemFields
from iosim.show.tables import Table

HEAD = """# Fields and options

A field is a parameter in Python and, with its option, a word of the command line. `iosim predict --help` has the
command line's own defaults where they differ (32 heads, 4096 tokens, head_dim 128). Its numbers may end in k for 1024
and m for 1024^2.

"""


def table(owner: type[Any]) -> str:
    """The fields of a dataclass as a Markdown table."""
    return Table.of(
        {
            "field": f"`{field.name}`",
            "option": f"`{field.option}`" if field.option else "",
            "default": default_text(field),
            "accepted": field.accepted,
            "what it says": described(field),
        }
        for field in fields_of(owner).values()
    ).markdown()


def text() -> str:
    """Both tables."""
    problem, settings = table(ProblemFields), table(Overrides)
    return f"{HEAD}## `AttentionProblem`\n\n{problem}\n## `Overrides`: settings over a kernel's own choice\n\n{settings}"


if __name__ == "__main__":
    print(text())
