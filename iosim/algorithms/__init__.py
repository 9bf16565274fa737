"""Attention algorithms, each described once as launches, schedule and chain. Knows no caches."""

from iosim.algorithms import flash, flash1, math_path, minimal, naive
from iosim.algorithms.registry import algorithm, algorithms, planner
from iosim.kernel import Kernel
from iosim.launch import Chain
from iosim.problem import AttentionProblem


def plan(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The chain of launches that `kernel` makes for `problem`."""
    return planner(kernel.algorithm)(problem, kernel)


__all__ = ["algorithm", "algorithms", "flash", "flash1", "math_path", "minimal", "naive", "plan", "planner"]
