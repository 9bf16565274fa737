"""The registry of algorithms: name -> planner, options, and what else is to be known of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from iosim.base.errors import InputError
from iosim.base.records import dataclass, field
from iosim.base.registry import Registry
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain
from iosim.kernel.options import AlgorithmOptions
from iosim.problem.attention import AttentionProblem

Planner = Callable[[AttentionProblem, Kernel], Chain]
Reading = Callable[[AttentionProblem, Kernel], AttentionProblem]
Kind = TypeVar("Kind", bound=AlgorithmOptions)


class Packs(StrEnum):
    """When the query heads of a group may share the rows of a tile."""

    NEVER = "never"
    WHERE_ASKED = "where asked"
    ALWAYS = "always"


@dataclass(frozen=True)
class Algorithm:
    name: str
    planner: Planner
    takes: Collection[str] = ()
    """The names of `AttentionProblem.terms` that it plans for."""
    options: type[AlgorithmOptions] = AlgorithmOptions
    """What its kernels' `options` are."""
    reads: Reading | None = None
    """Gives the problem as its launches see it, where that is another one."""
    splits: bool = False
    """A catalog kernel of it may divide its keys among CTAs."""
    appends: bool = False
    """A catalog kernel of it may write new tokens into the cache first."""
    packs: Packs = Packs.NEVER
    keys_outside: bool = False
    """A tile of keys stays while queries are walked."""
    standard: bool = False
    """Standard attention, through an N x N matrix a head: what others are compared with."""
    softmax: bool = True
    """It computes softmax attention, whose operations are the problem's; those of another are what its launches'
    products say."""
    symbolic: bool = True
    """Its launches can be planned with symbols for sizes."""
    dtypes: tuple[str, ...] = ()
    """The input types that it takes; none named: all."""
    example_tile: Tile = field(default_factory=lambda: Tile(128, 64))
    """A tile that it runs with, where formulas need one."""


_ALGORITHMS: Registry[str, Algorithm] = Registry(
    "algorithm",
    {
        "iosim.catalog.algorithms.cascade": ("cascade",),
        "iosim.catalog.algorithms.cuda_sources": ("flash-cu", "minimal", "minimal-cu", "naive-cu"),
        "iosim.catalog.algorithms.delta_rule": ("delta_rule",),
        "iosim.catalog.algorithms.efficient": ("efficient",),
        "iosim.catalog.algorithms.flash": ("flash",),
        "iosim.catalog.algorithms.flash1": ("flash1",),
        "iosim.catalog.algorithms.fp8": ("flash_fp8",),
        "iosim.catalog.algorithms.math_path": ("math",),
        "iosim.catalog.algorithms.mla": ("mla",),
        "iosim.catalog.algorithms.mixture": ("moba",),
        "iosim.catalog.algorithms.naive": ("naive",),
        "iosim.catalog.algorithms.picked_blocks": ("nsa",),
        "iosim.catalog.algorithms.ssd": ("ssd",),
        "iosim.catalog.algorithms.uniform": ("uniform", "uniform_naive"),
    },
)
"""The package's own load when they are asked for."""


def algorithm(name: str, *, override: bool = False, **fields: Any) -> Callable[[Planner], Planner]:
    """Register a planner under `name`, with `fields` of `Algorithm`; `override` replaces an algorithm of that name.
    Raises ValueError: the name is taken and `override` is False."""

    def register(planner: Planner) -> Planner:
        _ALGORITHMS.put(name, Algorithm(name, planner, **fields), override)
        return planner

    return register


def algorithms() -> tuple[str, ...]:
    return _ALGORITHMS.names()


def algorithm_of(name: str) -> Algorithm:
    return _ALGORITHMS.named(name)


def options_for(algorithm: str, values: Mapping[str, Any]) -> AlgorithmOptions:
    """Options of an algorithm by name, as a catalog file or a user gives them. Raises InputError: an option that the
    algorithm does not have, or a value that the option does not take."""
    try:
        return algorithm_of(algorithm).options.of(values)
    except InputError as error:
        raise InputError(f"algorithm {algorithm}: {error}") from None


def check_options(kernel: Kernel) -> None:
    wanted = algorithm_of(kernel.algorithm).options
    if kernel.options is not None and not isinstance(kernel.options, wanted):
        hint = f"accepted by algorithm {kernel.algorithm}: {wanted.__name__}"
        raise InputError(f"kernel '{kernel.name}' has {type(kernel.options).__name__}; {hint}")


_defaults: Callable[[Any], Any] = cache(lambda kind: kind())


def options_of(kernel: Kernel, kind: type[Kind]) -> Kind:
    options: Kind = kernel.options if isinstance(kernel.options, kind) else _defaults(kind)
    return options


def reading(problem: AttentionProblem, kernel: Kernel) -> AttentionProblem:
    """The problem as the kernel's launches see it: whose products they compute, whose rows they move."""
    reads = algorithm_of(kernel.algorithm).reads
    return problem if reads is None else reads(problem, kernel)


def operations(problem: AttentionProblem, kernel: Kernel, chain: Chain) -> tuple[int, int]:
    """(operations of the matrix products, exponentials) of a call: softmax attention's over kept pairs, or those of the
    launches."""
    if not algorithm_of(kernel.algorithm).softmax:
        return chain.product_flops, chain.exponentials
    passes = [(problem, kernel)]
    if problem.passes == "fwd+bwd":
        passes = [
            (problem.with_(passes="fwd"), kernel),
            (problem.with_(passes="bwd"), kernel.of_backward),
        ]
    read = [reading(*problem_of_pass) for problem_of_pass in passes]
    return sum(problem_of_pass.matmul_flops() for problem_of_pass in read), sum(
        problem_of_pass.exp_count() for problem_of_pass in read
    )


def refuse_terms(problem: AttentionProblem, algorithm: str, kernel: str) -> None:
    """Refuse a bias or a mask that the algorithm has no place for. Raises InputError: names the algorithms that have
    one."""
    for term, field_text in problem.terms.items():
        if term not in algorithm_of(algorithm).takes:
            others = ", ".join(name for name in algorithms() if term in algorithm_of(name).takes)
            hint = f"accepted by algorithms: {others}"
            raise InputError(
                f"`{field_text}`: kernel '{kernel}' (algorithm {algorithm}) has no place for it; {hint}"
            )
