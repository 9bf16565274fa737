"""The registry of algorithms: name -> function from (problem, kernel) to the chain of launches."""

from __future__ import annotations

from collections.abc import Callable

from iosim.errors import unknown_name
from iosim.kernel import Kernel
from iosim.launch import Chain
from iosim.problem import AttentionProblem

Planner = Callable[[AttentionProblem, Kernel], Chain]

_PLANNERS: dict[str, Planner] = {}


def algorithm(name: str, *, override: bool = False) -> Callable[[Planner], Planner]:
    """Register a planner under `name`.

    Raises:
        ValueError: the name is taken and `override` is False.
    """

    def register(planner: Planner) -> Planner:
        if name in _PLANNERS and not override:
            raise ValueError(f"algorithm '{name}' is registered already; pass override=True to replace it")
        _PLANNERS[name] = planner
        return planner

    return register


def algorithms() -> tuple[str, ...]:
    """Names of all registered algorithms."""
    return tuple(sorted(_PLANNERS))


def planner(name: str) -> Planner:
    """The planner registered under `name`."""
    if name not in _PLANNERS:
        raise unknown_name("algorithm", name, _PLANNERS)
    return _PLANNERS[name]
