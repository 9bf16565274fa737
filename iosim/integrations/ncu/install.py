"""Writes the rule and its section into a directory for `ncu --section-folder`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from iosim.base.errors import InputError
from iosim.base.files import write_together

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1]
FILES = {"rule.py": "iosim_attention.py", "attention.section": "iosim_attention.section"}
FILLED = "INSTALLED: Any = {}\n"
IMPORTED = "NvRules: Any = None\n"
"""Lines of the rule that are filled in: who answers, and the profiler's own module, which only it has."""


def contents(words: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """File name -> text. The rule asks this interpreter for its answers, with `words` behind `iosim ncu-rule`, of
    kernels whose names fit one of the patterns `names`."""
    answers = {
        "python": sys.executable,
        "path": str(PACKAGE.parent),
        "words": list(words),
        "names": list(names),
    }
    texts = {target: (HERE / here).read_text(encoding="utf-8") for here, target in FILES.items()}
    rule = FILES["rule.py"]
    filled = texts[rule].replace(FILLED, f"INSTALLED = {json.dumps(answers)}\n")
    return {**texts, rule: filled.replace(IMPORTED, "import NvRules\n")}


def install(folder: str | Path, words: Sequence[str], names: Sequence[str]) -> list[Path]:
    """Writes the files, both or none; a directory that is not there is made, one level deep."""
    place = Path(folder)
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(
            f"`install` '{folder}' cannot be made: {error.strerror}; accepted: a directory"
        ) from None
    files = {place / name: text for name, text in contents(words, names).items()}
    write_together(files)
    return list(files)
