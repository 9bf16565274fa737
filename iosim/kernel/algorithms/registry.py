"""The registry of algorithms: name -> function from (problem, kernel) to the chain of launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from iosim.base.errors import InputError, unknown_name
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain
from iosim.kernel.options import AlgorithmOptions
from iosim.problem.attention import AttentionProblem

Planner = Callable[[AttentionProblem, Kernel], Chain]
Reading = Callable[[AttentionProblem, Kernel], AttentionProblem]
Kind = TypeVar("Kind", bound=AlgorithmOptions)

_PLANNERS: dict[str, Planner] = {}
_TAKES: dict[str, frozenset[str]] = {}
_OPTIONS: dict[str, type[AlgorithmOptions]] = {}
_READINGS: dict[str, Reading] = {}


def algorithm(
    name: str,
    *,
    takes: Iterable[str] = (),
    options: type[AlgorithmOptions] = AlgorithmOptions,
    override: bool = False,
    reads: Reading | None = None,
) -> Callable[[Planner], Planner]:
    """Register a planner under `name`.

    Args:
        takes: the names of `AttentionProblem.terms` that it plans for.
        options: what its kernels' `options` are.
        override: replace an algorithm of that name.
        reads: gives the problem as its launches see it, where that is another one.

    Raises:
        ValueError: the name is taken and `override` is False.
    """

    def register(planner: Planner) -> Planner:
        if name in _PLANNERS and not override:
            raise ValueError(f"algorithm '{name}' is registered already; pass override=True to replace it")
        _PLANNERS[name] = planner
        _TAKES[name] = frozenset(takes)
        _OPTIONS[name] = options
        if reads is not None:
            _READINGS[name] = reads
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


def options_for(algorithm: str, values: Mapping[str, Any]) -> AlgorithmOptions:
    """Options of an algorithm by name, as a catalog file or a user gives them.

    Raises:
        InputError: an option that the algorithm does not have, or a value that the option does not take.
    """
    planner(algorithm)
    try:
        return _OPTIONS[algorithm].of(values)
    except InputError as error:
        raise InputError(f"algorithm {algorithm}: {error}") from None


def check_options(kernel: Kernel) -> None:
    """Refuse options that are another algorithm's.

    Raises:
        InputError: names the type that the kernel's algorithm takes.
    """
    wanted = _OPTIONS[kernel.algorithm]
    if kernel.options is not None and not isinstance(kernel.options, wanted):
        raise InputError(f"kernel '{kernel.name}' has {type(kernel.options).__name__}; accepted by algorithm "
                         f"{kernel.algorithm}: {wanted.__name__}")  # fmt: skip


def options_of(kernel: Kernel, kind: type[Kind]) -> Kind:
    """The kernel's options of this kind, or the defaults where it has none of it."""
    return kernel.options if isinstance(kernel.options, kind) else kind()


def reading(problem: AttentionProblem, kernel: Kernel) -> AttentionProblem:
    """The problem as the kernel's launches see it: whose products they compute, whose rows they move."""
    reads = _READINGS.get(kernel.algorithm)
    return problem if reads is None else reads(problem, kernel)


def refuse_terms(problem: AttentionProblem, algorithm: str, kernel: str) -> None:
    """Refuse a bias or a mask that the algorithm has no place for.

    Raises:
        InputError: names the algorithms that have one.
    """
    for term, asked in problem.terms.items():
        if term not in _TAKES.get(algorithm, ()):
            others = ", ".join(sorted(name for name, taken in _TAKES.items() if term in taken))
            raise InputError(f"`{asked}`: kernel '{kernel}' (algorithm {algorithm}) has no place for it; accepted by "
                             f"algorithms: {others}")  # fmt: skip
