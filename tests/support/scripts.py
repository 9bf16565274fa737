"""Loads scripts of this repository, which no package holds, as modules; finds what was recorded; starts processes."""

from __future__ import annotations

import signal
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.append(
    str(Path(__file__).resolve().parents[2] / "benchmarks")
)  # for what its scripts share

from recorders import load, measurements

__all__ = ["ROOT", "hears_ctrl_c", "load_script", "measurements", "read_provenance"]

ROOT = Path(__file__).resolve().parents[2]


def load_script(path: str | Path) -> ModuleType:
    """A script, by its path or by that in the repository, such as `benchmarks/orders.py`."""
    return load(ROOT / path)


def read_provenance(table: Path) -> dict[str, Any]:
    """What measured a table; empty where nothing is told."""
    facts: dict[str, Any] = tomllib.loads(
        (table.parent / "provenance.toml").read_text(encoding="utf-8")
    )
    return facts.get(table.name, {})


def hears_ctrl_c() -> None:
    """For a new process: it is told of Ctrl-C, even where the tests run in the background and are not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
