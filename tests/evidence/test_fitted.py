"""The registry of fitted numbers: it has every one, and each says on which rows it was fitted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
from house import modules

import iosim
from iosim.base.fitted import registry
from iosim.catalog.serving import stack_names
from iosim.evidence.fitted import fitted, gpus_of
from iosim.hardware.profile import list_profiles, load_profile

SAYS = re.compile(r"\bfitted\b", re.IGNORECASE)
NO_NUMBERS = {
    "iosim.evidence.fitted",
    "iosim.evidence.reproduce.published",
    "iosim.hardware.quantities",
}
"""Modules that speak of fitted numbers and hold none."""


def constants(path: Path) -> Iterator[str]:
    """Names of a module's constants whose docstring says that they are fitted."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node, after in pairwise(body):
        docstring = after.value if isinstance(after, ast.Expr) else None
        if (
            isinstance(node, ast.Assign | ast.AnnAssign)
            and isinstance(docstring, ast.Constant)
            and SAYS.search(str(docstring.value))
        ):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in ast.walk(ast.Tuple(targets)):
                if isinstance(name, ast.Name):
                    yield name.id


def test_constants_of_modules_that_say_so_are_registered() -> None:
    declared = {(module, name) for module, path in modules().items() for name in constants(path)}
    registered = {
        (entry["module"], name) for entry in registry()["constant"] for name in entry["names"]
    }
    assert {constant for constant in declared if constant[0] not in NO_NUMBERS} == registered


def test_profiles_call_fitted_what_is_registered_and_nothing_else() -> None:
    called = {
        (gpu, name)
        for gpu in list_profiles()
        for name, kind in load_profile(gpu).kinds.items()
        if kind == "fitted"
    }
    assert called == {
        (gpu, name)
        for entry in (*registry()["profile"], *registry()["capability"])
        for gpu in entry.get("gpus") or gpus_of(entry["compute_capabilities"])
        for name in entry["names"]
    }


def test_a_number_of_a_compute_capability_is_one_number() -> None:
    """All GPUs of the capabilities hold it alike, so that it counts once."""
    for entry in registry()["capability"]:
        for name in entry["names"]:
            gpus = gpus_of(entry["compute_capabilities"])
            assert gpus
            assert len({load_profile(gpu).need(name) for gpu in gpus}) == 1


@pytest.mark.parametrize("gpu", list_profiles())
def test_a_source_that_says_fitted_is_of_that_kind(gpu: str) -> None:
    """What was taken from another GPU, or worked out of its value, is not this GPU's fit."""
    profile = load_profile(gpu)
    assert not {
        name: source
        for name, source in profile.sources.items()
        if SAYS.match(source) and profile.kinds[name] not in ("fitted", "taken")
    }


def test_the_catalog_says_what_is_fitted_and_so_does_the_registry() -> None:
    """A comment that says so stands right above its value, or above the options that hold it."""
    names_said = set()
    for path in (Path(iosim.__file__).parent / "catalog" / "libraries").glob("*.toml"):
        of_pass = ""
        for comment, value in pairwise(path.read_text(encoding="utf-8").splitlines()):
            if comment.startswith("["):
                of_pass = "options." if comment == "[kernel.options]" else ""
            if comment == "[[spill]]":
                of_pass = "spill."
            if comment == "[[backward_pass]]":
                of_pass = f"{value.split(chr(34))[1]}."
            if comment.startswith("#") and SAYS.search(comment) and "=" in value:
                names_said.add((path.stem, of_pass + value.partition("=")[0].strip()))
    keys = {(entry["kernel"], key) for entry in registry()["catalog"] for key in entry["names"]}
    in_one_line = {kernel for kernel, key in names_said if key == "options"}
    assert names_said == {
        (kernel, "options" if key.startswith("options.") and kernel in in_one_line else key)
        for kernel, key in keys
    }


def test_a_fitted_number_of_an_algorithm_is_the_default_of_an_option() -> None:
    """What was fitted on a library's kernel is that library's to state, in its file or its rule book."""
    for section in registry()["constant"]:
        if section["module"].startswith("iosim.catalog.algorithms."):
            module = import_module(section["module"])
            options = [kind for kind in vars(module).values() if is_dataclass(kind)]
            names = {option.name for kind in options for option in fields(kind)}
            assert {name.lower() for name in section["names"]} <= names, section


def test_every_stacks_gap_is_registered() -> None:
    gaps = {
        f.name.removeprefix("call_gap_s of ") for f in fitted() if f.name.startswith("call_gap_s")
    }
    assert gaps <= set(stack_names())
    assert {"vllm", "sglang"} <= gaps


def test_each_says_its_rows() -> None:
    assert all(f.rows and f.value for f in fitted())
    assert len({(f.name, f.gpu) for f in fitted()}) == len(list(fitted()))


def test_numbers_settled_with_even_rows_in_sight_say_so() -> None:
    """For these the even rows are no hold-out; of a GPU's numbers the GPU counts, too."""
    in_sight = {(f.name, f.gpu) for f in fitted() if f.even_rows_in_sight}
    assert in_sight >= {
        ("SPECIALISED_NORM", ""),
        ("OVERLAP_NORM", ""),
        ("HIDDEN_SHARE", ""),
        ("product_step_cycles", "h200-sxm"),
        ("tensor_pj_per_flop", "h100-sxm"),
    }
    assert ("tensor_pj_per_flop", "h200-sxm") not in in_sight
