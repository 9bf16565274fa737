"""Loads scripts of this repository, which no package holds, as modules; finds what was recorded; starts processes."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import ModuleType

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))  # for what its scripts share

from recorders import load, measurements

__all__ = ["ROOT", "hears_ctrl_c", "load_script", "measurements"]

ROOT = Path(__file__).resolve().parents[2]


def load_script(path: str | Path) -> ModuleType:
    """A script, by its path or by that in the repository, such as `benchmarks/orders.py`."""
    return load(ROOT / path)


def hears_ctrl_c() -> None:
    """For a new process: it is told of Ctrl-C, even where the tests run in the background and are not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
