"""Writes iosim/api/typed.pyi: the keywords of Python's functions, a stub for type checkers and editors."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping
from pathlib import Path

import iosim
from iosim.api.keywords import KEYWORDS, PROBLEM, SETTINGS, SHORT, annotation, said
from iosim.base.fields import About
from iosim.base.files import write_whole

PLACE = Path(__file__).resolve().parent.parent.parent / "iosim" / "api" / "typed.pyi"
HEAD = '''"""Keywords of Python's functions, for type checkers and editors.

Made by `python docs/generated/make_keywords.py` from what the fields say of themselves; a test compares.
"""

from collections.abc import Sequence
from typing import TypedDict

from iosim.problem.masks.blocks import BlockMask
'''


LINE = 100
"""Characters of a line of code, as pyproject.toml has it for the formatter."""


def typed_dict(
    name: str, description: str, keywords: Mapping[str, About], base: str = "TypedDict"
) -> str:
    """One TypedDict, each key with its docstring."""
    bases = f"{base}, total=False"
    head = f"class {name}({bases}):"
    if len(head) > LINE:  # as the formatter breaks it
        head = f"class {name}(\n    {bases}\n):"
    lines = ["", head, f'    """{description}"""', ""]
    for keyword, about in keywords.items():
        words = said(keyword, about).removeprefix(f"{keyword}: ")
        lines += [f"    {keyword}: {annotation(about)}", *_docstring(words[0].upper() + words[1:])]
    return "\n".join(lines) + "\n"


def _docstring(words: str) -> list[str]:
    """A docstring, on as many lines as it takes."""
    if len(words) <= 120 - 4 - 6:
        return [f'    """{words}"""']
    return [
        *textwrap.wrap(f'"""{words}', 120, initial_indent="    ", subsequent_indent="    "),
        '    """',
    ]


Shared = dict[str, Mapping[str, About]]


def shared() -> Shared:
    """Base classes: keywords that several functions have in the same words."""
    problem = PROBLEM | SHORT
    formula = KEYWORDS["formula"]
    chosen = {name: about for name, about in problem.items() if formula.get(name) == about}
    of_model = {name: KEYWORDS["predict"][name] for name in ("layers", "tensor_parallel")}
    how = {
        name: about for name, about in KEYWORDS["predict"].items() if name in KEYWORDS["compare"]
    }
    return {
        "ChosenKeywords": chosen,
        "ProblemKeywords": {n: a for n, a in problem.items() if n not in chosen},
        "SettingKeywords": SETTINGS,
        "LayersKeywords": of_model,
        "ConditionKeywords": {
            n: a for n, a in how.items() if n not in problem and n not in of_model
        },
    }


def text() -> str:
    """The whole file: base classes, and a class a function of what only it has."""
    bases = shared()
    out = [
        HEAD,
        *(
            typed_dict(name, "What several functions take.", keywords)
            for name, keywords in bases.items()
        ),
    ]
    for function, keywords in KEYWORDS.items():
        if function == "sweep":  # which takes any
            continue
        own_parameters = inspect.signature(inspect.unwrap(getattr(iosim, function))).parameters
        keywords = {word: about for word, about in keywords.items() if word not in own_parameters}
        taken = [
            n for n, base in bases.items() if all(keywords.get(word) == base[word] for word in base)
        ]
        own_keywords = {
            word: about
            for word, about in keywords.items()
            if not any(word in bases[name] for name in taken)
        }
        name = f"{function.title().replace('_', '')}Keywords"
        base = ", ".join(taken) or "TypedDict"
        out.append(typed_dict(name, f"Keywords of iosim.{function}.", own_keywords, base))
    return "".join(out)


if __name__ == "__main__":
    write_whole(PLACE, text())
    print(f"{PLACE}: {len(text()):,} characters")
