"""Records what iosim gives for many small cases: `python tests/golden/make_studies.py` writes studies/*.json.

Names of studies or kernels after it make these alone.

A case is a line, a name and its numbers. tests/commands/test_recorded_studies.py holds the code to them, so that a
change of any number is seen and has to be meant: run this script then, and say why in the commit. Cases are small, for
every one of them is made again by each test run; rules that turn at a border have cases on both sides of it. The study
of programs needs PyTorch.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from iosim.catalog.libraries import entry_name, entry_names

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "support")]

STUDIES = {
    "catalog": ("catalog_cases", "cases"),
    "counts": ("count_cases", "cases"),
    "timing": ("timing_cases", "cases"),
    "engine": ("engine_cases", "engine"),
    "replay": ("replay_cases", "replays"),
    "training": ("training_cases", "cases"),
    "distributed": ("distributed_cases", "cases"),
    "tiles": ("tile_cases", "cases"),
    "launches": ("launch_cases", "cases"),
    "plans": ("plan_cases", "cases"),
    "commands": ("command_cases", "cases"),
    "drawn": ("drawn_cases", "cases"),
    "pages": ("page_cases", "cases"),
    "forms": ("form_cases", "cases"),
    "code": ("code_cases", "cases"),
    "listings": ("listing_cases", "cases"),
    "tables": ("table_cases", "cases"),
    "models": ("model_cases", "cases"),
    "programs": ("torch_cases", "cases"),
    "validated": ("validate_cases", "cases"),
    "measured": ("measure_cases", "cases"),
}
"""The module beside this one that makes a study's cases, and its function."""
OF_KERNELS = ("catalog", "counts", "timing", "replay", "launches", "tables")
"""Studies with cases of each kernel of the catalog, which `of_kernel` of their module makes. They are recorded in a
file per kernel, studies/kernels/NAME.json."""


def plain(value: Any) -> Any:
    """As JSON has it: tuples are lists, NumPy's numbers are Python's, floats have twelve digits."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, bool | int | str) or value is None:
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def made_in_common(name: str) -> Iterator[tuple[str, Any]]:
    """The cases of a study that are no kernel's own."""
    module, function = STUDIES[name]
    seen: set[str] = set()
    for case, value in getattr(importlib.import_module(module), function)():
        assert case not in seen, f"{name} has '{case}' twice"
        seen.add(case)
        yield case, plain(value)


def made_of_kernel(name: str, kernel: str) -> Iterator[tuple[str, Any]]:
    """The cases of a study that are one kernel's, one by one: they depend on no other kernel."""
    module, _ = STUDIES[name]
    for case, value in importlib.import_module(module).of_kernel(kernel):
        yield case, plain(value)


def path(name: str) -> Path:
    return HERE / "studies" / f"{name}.json"


def kernel_path(kernel: str) -> Path:
    return HERE / "studies" / "kernels" / f"{kernel}.json"


def recorded_in_common(name: str) -> dict[str, Any]:
    """The recorded cases of a study that are no kernel's own."""
    cases: dict[str, Any] = json.loads(path(name).read_text(encoding="utf-8"))
    return cases


@cache
def recorded_of_kernel(kernel: str) -> dict[str, dict[str, Any]]:
    """The recorded cases of a kernel, by study."""
    cases: dict[str, dict[str, Any]] = json.loads(kernel_path(kernel).read_text(encoding="utf-8"))
    return cases


def text_of(cases: Iterable[tuple[str, Any]]) -> str:
    """A JSON object with a line a case."""
    return (
        "{\n"
        + ",\n".join(f"{json.dumps(case)}: {json.dumps(value)}" for case, value in cases)
        + "\n}"
    )


def record_kernel(kernel: str) -> None:
    """Writes the file of one kernel: adding a kernel adds this file, and changes no other."""
    studies = [
        f"{json.dumps(name)}: {text_of(made_of_kernel(name, kernel))}" for name in OF_KERNELS
    ]
    kernel_path(kernel).parent.mkdir(exist_ok=True)
    kernel_path(kernel).write_text("{\n" + ",\n".join(studies) + "\n}\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Records the studies and kernels of these names; without any, everything."""
    kernels = [name for name in names if name not in STUDIES]
    for kernel in kernels if names else entry_names():
        record_kernel(entry_name(kernel))
        print(f"kernels/{kernel}")
    for name in [name for name in names if name in STUDIES] if names else STUDIES:
        cases = [*made_in_common(name)]
        path(name).write_text(text_of(cases) + "\n", encoding="utf-8")
        print(f"{name}: {len(cases)} cases")


if __name__ == "__main__":
    main(sys.argv[1:])
