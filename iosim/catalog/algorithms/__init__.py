"""Attention algorithms, each described once as launches, schedule and chain. Knows no caches."""

from iosim.base.errors import refusing
from iosim.catalog.algorithms.registry import (
    algorithm,
    algorithm_of,
    algorithms,
    check_options,
    options_for,
    options_of,
    refuse_terms,
)
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain
from iosim.problem.attention import AttentionProblem


def plan(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The chain of launches that `kernel` makes for `problem`: for both passes, those of the forward, which then writes
    its log-sum-exp and keeps a head a tile, and those of the backward. Raises InputError: the algorithm cannot do what
    the problem asks for."""
    plan_of = algorithm_of(kernel.algorithm).planner
    check_options(kernel)
    refuse_terms(problem, kernel.algorithm, kernel.name)
    if problem.passes != "fwd+bwd":
        return plan_of(problem, kernel)
    with refusing(passes=problem.passes):
        second = plan_of(problem.with_(passes="bwd"), kernel.of_backward)
        return plan_of(
            problem.with_(passes="fwd"), kernel.with_(writes_lse=True, packs_group=False)
        ).then(second)


__all__ = ["algorithm", "algorithm_of", "algorithms", "options_for", "options_of", "plan"]
