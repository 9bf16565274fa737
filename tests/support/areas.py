"""Areas of the package, as many of whose lines are changed as of the others, and what is of none.

tests/mutate.py draws from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

AREAS = {
    "engine": "readers/replay/*.[ch]",
    "replay": "readers/replay/*.py",
    "timing": "readers/timing/*.py",
    "count": "readers/*.py",
    "formula": "readers/formula/*.py",
    "algorithms": "catalog/algorithms/*.py",
    "libraries": "catalog/libraries/*.py catalog/serving/*.py catalog/*.py",
    "data": "catalog/*.toml kernel/*.toml",
    "kernel": "kernel/*.py",
    "code": "code/*.py",
    "problem": "problem/*.py",
    "hardware": "hardware/*.py",
    "prediction": "prediction/*.py",
    "tiles": "studies/tiles/*.py",
    "training": "studies/training/*.py",
    "distributed": "studies/distributed/*.py",
    "comparing": "studies/compare/*.py studies/*.py",
    "models": "studies/models/*.py studies/decode/*.py studies/latency/*.py",
    "sweep": "studies/sweep/*.py studies/orders/*.py",
    "report": "studies/report/*.py studies/formulas/*.py",
    "trace": "studies/trace/*.py studies/program/*.py",
    "validate": "evidence/validate/*.py",
    "measure": "evidence/measure/*.py",
    "times": "evidence/times/*.py evidence/*.py",
    "reproduce": "evidence/reproduce/*.py evidence/claims/*.py",
    "integrations": "integrations/*.py",
    "base": "base/*.py",
    "show": "show/*.py",
    "commands": "commands/*.py api/*.py",
}
"""Patterns of files below iosim/, whose * crosses folders; a file that several match is of the longest. As many changes
are drawn of each area as of the others, so that small rooms are tried as hard as large ones."""

RECORDED = "tests/commands/test_recorded_studies.py"
STUDY = f"{RECORDED}::test_studies_are_as_recorded[{{}}]"
FORMS = STUDY.format("forms")
"""Holds ranges and forms of data files, which are tables of their modules."""
KERNEL = f"{RECORDED}::test_kernels_are_as_recorded[{{}}-{{}}]"
LAUNCHES = "tests/catalog/test_recorded_launches.py"
CODE = "tests/code/test_recorded_code.py"
PAGES = "tests/show/test_recorded_pages.py"
STUDIES_OF_KERNELS = ("catalog", "tables", "counts", "timing", "replay")
PREDICTIONS = "tests/prediction/test_golden_predictions.py"
PROGRAMS = "tests/integrations/torch/test_recorded_programs.py"
GOLDEN = (CODE, LAUNCHES, PAGES, RECORDED, PREDICTIONS, PROGRAMS)
"""Files of tests that hold every number of what they try to a recorded one, a kernel at a time."""
NAMED = {
    "engine": (
        (STUDY.format("engine"), STUDY.format("replay"), "tests/readers/replay/test_engine.py"),
        tuple(KERNEL.format("replay", name) for name in ("fa2", "fa3", "cudnn", "naive", "fa1")),
        tuple(
            f"tests/{file}.py"
            for file in (
                "laws/test_once_missed",
                "laws/test_planted_changes",
                "laws/test_replay_laws",
                "readers/test_l2_orders",
                "readers/replay/test_sharing",
                "readers/test_l2_sets",
                "readers/test_followers",
                "kernel/test_touched",
                "studies/trace/test_trace",
            )
        ),
    ),
    "data": (
        (
            STUDY.format("catalog"),
            "tests/catalog",
            "tests/kernel",
            "tests/hardware",
        ),
        (
            PREDICTIONS,
            f"{RECORDED}::test_kernels_are_as_recorded",
            STUDY.format("timing"),
            "tests/readers/timing",
            "tests/code/test_catalog_held_to_code.py",
        ),
    ),
}
"""Tests of what the map cannot see, by area: those that are asked first, and more."""


def named(area: str, file: str) -> Iterator[Sequence[str]]:
    """Lists of tests of a file that the map cannot see: of a kernel's data, first what is recorded of that kernel."""
    kernel = Path(file).stem
    if (ROOT / "tests" / "golden" / "studies" / "kernels" / f"{kernel}.json").exists():
        yield [f"{LAUNCHES}::test_launches_are_as_recorded[{kernel}]"]
        yield [KERNEL.format(study, kernel) for study in STUDIES_OF_KERNELS]
    yield from NAMED[area]


APART = {
    "iosim/*/page.py": "lays out what a study found",
    "iosim/*/face.py": "puts into words what a study found",
    "iosim/evidence/cuda/*": "compiles and launches on a GPU",
    "iosim/evidence/measure/torch_run.py": "runs PyTorch on a GPU",
    "iosim/readers/replay/build.py": "compiles the engine",
    "iosim/readers/replay/packed.py": "hands to a browser what the engine is given",
    "iosim/studies/explore/*": "makes a page, whose tests run browsers, which want more memory than a child may take",
    "iosim/commands/explore.py": "starts a server",
    "iosim/*__init__.py": "names what a room offers",
    "iosim/torch.py": "names what a room offers",
    "iosim/triton.py": "names what a room offers",
    "iosim/__main__.py": "starts the command line",
    "iosim/base/version.py": "a number",
}
"""Files in no area, which only show what others found, or start or compile something."""


def apart(file: str) -> bool:
    return any(fnmatchcase(file, pattern) for pattern in APART)


def area_of(file: str) -> str | None:
    """The area that a file of the tree is of; None where it is of none."""
    if apart(file):
        return None
    matching = [
        (len(pattern), name)
        for name, patterns in AREAS.items()
        for pattern in patterns.split()
        if fnmatchcase(file, f"iosim/{pattern}")
    ]
    return max(matching)[1] if matching else None


def sources() -> list[str]:
    """The package's Python, the engine's C and the kernels' data, by their paths in the tree."""
    paths = (p.relative_to(ROOT).as_posix() for p in ROOT.glob("iosim/**/*"))
    return sorted(
        f for f in paths if f.endswith((".py", ".c", ".h")) or (f.endswith(".toml") and area_of(f))
    )
