"""Writes decode.html and decode.md beside this file: `python reports/make_decode.py`. Some seconds.

Attention per generated token of a model with 32 query heads and 8 key/value heads of 128 columns in 32 layers, from 1k
to 1m tokens of context, on an L4, an A100, an H100 and an H200. The same code gives the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from iosim.commands.cli import main

GPUS = ("l4", "a100", "h100", "h200")
CONTEXTS = "1k:1m:x2"


def arguments(form: str, out: Path) -> list[str]:
    """The command line of one of the two files."""
    gpus = [word for name in GPUS for word in ("--gpu", name)]
    return ["decode", *gpus, "--context", CONTEXTS, "--format", form, "--out", str(out / f"decode.{form}")]


if __name__ == "__main__":
    place = Path(__file__).resolve().parent
    sys.exit(max(main(arguments(form, place)) for form in ("html", "md")))
