"""Writes the gallery beside this file: `python reports/make_gallery.py`. The same code gives the same bytes."""

from __future__ import annotations

import sys
from pathlib import Path

from iosim.commands.cli import main

GPUS = ("t4", "l4", "a100", "h100", "h200")
KERNELS = ("naive", "cutlass", "fa2")
LENGTHS = "512:256k:x2"


def arguments(out: Path) -> list[str]:
    """The command line of the gallery's report."""
    gpus = [word for name in GPUS for word in ("--gpu", name)]
    kernels = [word for name in KERNELS for word in ("--kernel", name)]
    return ["report", *gpus, *kernels, "--seq-len", LENGTHS, "--heads", "32", "--head-dim", "128", "--dtype", "fp16",
            "--out", str(out)]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(arguments(Path(__file__).resolve().parent)))
