"""Scripts as modules, and recorded tables: those of experiments/ are what benchmarks read. Tests load with it, too.

No package holds them, and some have one name in benchmarks/ and in experiments/, so that `import` does not tell them
apart.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


def load(script: Path) -> ModuleType:
    """A script as a new module, named by its folder and itself."""
    name = f"{script.parent.name}_{script.stem}"
    spec = importlib.util.spec_from_file_location(name, script)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(
        spec
    )  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def recorder(name: str) -> ModuleType:
    """experiments/NAME.py."""
    return load(ROOT / "experiments" / f"{name}.py")


def measurements(name: str) -> Path:
    """A recorded table: one of experiments/, or one of kernels/ that commands read, too."""
    of_experiment = ROOT / "experiments" / "measurements" / name
    return of_experiment if of_experiment.is_file() else ROOT / "kernels" / "measurements" / name


def asked_gpu(description: str | None) -> str:
    """The GPU on the command line, `h200` or `h100`: which recordings are looked at, and which profile."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument(
        "--gpu", choices=("h200", "h100"), default="h200", help="recorded on (default: h200)"
    )
    return str(parser.parse_args().gpu)
