"""What modules register under a name: doubles are refused, and names that are not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from iosim.base.errors import InputError
from iosim.base.registry import Registry
from iosim.catalog.algorithms import algorithms
from iosim.catalog.algorithms.registry import _ALGORITHMS
from iosim.catalog.libraries import rule_books
from iosim.catalog.libraries.rules import _BOOKS
from iosim.problem.attention import TERMS


def test_a_name_that_is_taken_is_refused_unless_it_is_to_be_replaced() -> None:
    registry: Registry[str, int] = Registry("thing")
    registry.put("one", 1)
    with pytest.raises(InputError, match="thing 'one' is registered already"):
        registry.put("one", 2)
    assert registry.named("one") == 1
    registry.put("one", 2, override=True)
    assert registry.named("one") == 2


def test_an_unknown_name_is_refused_with_one_like_it() -> None:
    registry: Registry[str, int] = Registry("thing")
    registry.put("flash", 1)
    with pytest.raises(InputError, match="thing 'flsh' is not known; did you mean flash"):
        registry.named("flsh")


def test_the_modules_of_the_package_register_what_their_tables_say() -> None:
    for name, module in _ALGORITHMS._module_of.items():
        assert _ALGORITHMS.named(name).planner.__module__ == module
    for name, module in _BOOKS._module_of.items():
        assert type(_BOOKS.named(name)).__module__ == module
    for registry, package in ((_ALGORITHMS, "algorithms"), (_BOOKS, "libraries")):
        registered = {
            name
            for name, value in registry.items()
            if f"iosim.catalog.{package}." in _module(value)
        }
        assert registered == set(registry._module_of)


def _module(value: object) -> str:
    return str(getattr(getattr(value, "planner", type(value)), "__module__", ""))


def test_terms_are_those_that_algorithms_take() -> None:
    taken = {term for name in algorithms() for term in _ALGORITHMS.named(name).takes}
    assert set(TERMS) == taken
    assert "fa2" in rule_books()


def test_a_name_of_a_module_that_is_not_loaded_yet_is_taken() -> None:
    code = (
        "from iosim.catalog.algorithms import algorithm, algorithm_of\n"
        "for override in (False, True):\n"
        "    try:\n"
        "        algorithm('naive', override=override)(lambda problem, kernel: None)\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
        "import iosim.catalog.algorithms.naive\n"
        "print(algorithm_of('naive').planner.__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    first, second = done.stdout.splitlines()
    assert "algorithm 'naive' is registered already" in first
    assert second == "<lambda>"
