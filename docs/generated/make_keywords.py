"""Writes iosim/api/typed.pyi: the keywords of Python's functions, a stub for type checkers and editors."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from iosim.api.keywords import (
    CLAIMED,
    COMPARED,
    CONDITIONED,
    DECODE,
    FORMULA,
    LATENCY,
    LAYERED,
    ONE_TILE,
    ORDERED,
    PROBLEM,
    RING,
    SETTINGS,
    SHORT,
    TILED,
    TRAIN,
    annotation,
    said,
)
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


def typed_dict(name: str, what: str, keywords: Mapping[str, About], base: str = "TypedDict") -> str:
    """One TypedDict, each key with its docstring."""
    lines = ["", f"class {name}({base}, total=False):", f'    """{what}"""', ""]
    for keyword, about in keywords.items():
        words = said(keyword, about).removeprefix(f"{keyword}: ")
        lines += [f"    {keyword}: {annotation(about)}", *_docstring(words[0].upper() + words[1:])]
    return "\n".join(lines) + "\n"


def _docstring(words: str) -> list[str]:
    """A docstring, on as many lines as it takes."""
    if len(words) <= 120 - 4 - 6:
        return [f'    """{words}"""']
    return [*textwrap.wrap(f'"""{words}', 120, initial_indent="    ", subsequent_indent="    "), '    """']


def text() -> str:
    """The whole file."""
    both = '''
class Keywords(ProblemKeywords, SettingKeywords, total=False):
    """What a problem is, and settings over a kernel's own choice."""
'''
    return (
        HEAD
        + typed_dict("ProblemKeywords", "What a problem is.", PROBLEM | SHORT)
        + typed_dict("SettingKeywords", "Settings over a kernel's own choice; None leaves the choice.", SETTINGS)
        + both
        + typed_dict("PredictKeywords", "What is asked of a prediction.", LAYERED | CONDITIONED, "Keywords")
        + typed_dict("CompareKeywords", "What is asked of a comparison.", COMPARED, "ProblemKeywords")
        + typed_dict("TileKeywords", "What is asked of a ranking of tiles.", TILED, "ProblemKeywords")
        + typed_dict("OneTileKeywords", "What is asked of one tile.", ONE_TILE, "ProblemKeywords")
        + typed_dict("OrderKeywords", "What is asked of a ranking of orders.", ORDERED, "ProblemKeywords")
        + typed_dict("ClaimKeywords", "What is claimed.", CLAIMED, "Keywords")
        + typed_dict("FormulaKeywords", "What is known of a formula's problem; sizes left out stay symbols.", FORMULA)
        + typed_dict("DecodeKeywords", "What is asked of decoding.", DECODE)
        + typed_dict("LatencyKeywords", "What is asked of calls in serving stacks.", LATENCY, "ProblemKeywords")
        + typed_dict("RingKeywords", "What is asked of several GPUs.", RING, "ProblemKeywords")
        + typed_dict("TrainKeywords", "What is asked of a training step.", TRAIN)
    )


if __name__ == "__main__":
    write_whole(PLACE, text())
    print(f"{PLACE}: {len(text()):,} characters")
