"""Named terms of a time: each a function with its formula, where it is zero, and the constants that it reads.

A term is one mechanism that takes time. `@term(...)` stands above the function that computes it and enters it in
`TERMS`; `iosim explain --time --terms` prints what each is worth in a call, and docs/generated/timing-terms.md is
written from the same objects. What combines terms (which of them overlap, how CTAs share an SM) is no term: that is
`step_time`, `makespan` and `launch_time`.

A term can be switched off: it is 0 then. That is how its worth is found, in one call or over all measured rows.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from functools import cache, wraps
from pathlib import Path
from typing import ParamSpec

from iosim.base.records import dataclass

P = ParamSpec("P")


class Scope(StrEnum):
    """What a term's value is a part of, and its unit."""

    STEP = "SM cycles per step"
    TILE = "SM cycles per tile"
    CTA = "SM cycles per CTA"
    ROUND = "seconds per round of CTAs"
    LAUNCH = "seconds per launch"


@dataclass(frozen=True)
class Term:
    """One mechanism that takes time.

    Attributes:
        name: what is printed, and what switches it off.
        scope: what its value is a part of.
        formula: as text, in the words of the function.
        zero: where it is zero.
        constants: names of constants of its module, and of values of a profile, that it reads.
        function: what computes it.
        unit: the resource that it keeps busy, as `LaunchTime.seconds` calls it; empty where something waits.
    """

    name: str
    scope: Scope
    formula: str
    zero: str
    constants: tuple[str, ...]
    function: Callable[..., float]
    unit: str = ""

    @property
    def place(self) -> str:
        """File and function, as `iosim/readers/timing/step_terms.py: product_cycles`."""
        parts = Path(self.function.__code__.co_filename).parts
        return f"{'/'.join(parts[parts.index('iosim') :])}: {self.function.__name__}"

    def constant(self, name: str) -> float | None:
        """Value of one of its constants that stands in a module of the time model; None of a profile's."""
        value = getattr(sys.modules[self.function.__module__], name, None)
        return None if value is None else float(value)

    def module_of(self, name: str) -> str:
        """The module in which a constant stands that the term's own may import."""
        for module in sorted(sys.modules):
            if module.startswith(f"{__package__}.") and _defines(module, name):
                return module
        return self.function.__module__


def _defines(module: str, name: str) -> bool:
    """True where a module assigns a name itself: its annotations and its source have it, an import has not."""
    return name in _assigned(module)


@cache
def _assigned(module: str) -> frozenset[str]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    targets = [
        target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
    ]
    return frozenset(
        name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
    )


TERMS: dict[str, Term] = {}
"""All terms by name, in the order in which a time is built up."""
_OFF: ContextVar[frozenset[str]] = ContextVar("terms that are switched off", default=frozenset())
_VALUES: ContextVar[dict[str, float] | None] = ContextVar("values of terms, by name", default=None)


def term(
    name: str,
    scope: Scope,
    formula: str,
    *,
    zero: str,
    constants: Iterable[str] = (),
    unit: str = "",
) -> Callable[[Callable[P, float]], Callable[P, float]]:
    """Enters the function below as a term. Raises ValueError: there is one of that name."""

    def enter(function: Callable[P, float]) -> Callable[P, float]:
        if name in TERMS:
            raise ValueError(f"two terms are called {name!r}")
        TERMS[name] = Term(name, scope, formula, zero, tuple(constants), function, unit)

        @wraps(function)
        def value(*args: P.args, **kwargs: P.kwargs) -> float:
            if name in _OFF.get():
                return 0.0
            result = function(*args, **kwargs)
            values = _VALUES.get()
            if values is not None:
                values[name] = result
            return result

        return value

    return enter


@contextmanager
def without(names: Iterable[str]) -> Iterator[None]:
    """Switches terms off for the while. Raises KeyError: a name that is no term's."""
    token = _OFF.set(_OFF.get() | {TERMS[name].name for name in names})
    try:
        yield
    finally:
        _OFF.reset(token)


@contextmanager
def recorded() -> Iterator[dict[str, float]]:
    """The values that terms have meanwhile, by name, each in the unit of its scope."""
    values: dict[str, float] = {}
    token = _VALUES.set(values)
    try:
        yield values
    finally:
        _VALUES.reset(token)
