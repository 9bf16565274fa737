"""Names that stand for a choice among the catalog's kernels, by problem and GPU."""

from __future__ import annotations

from collections.abc import Callable

from iosim.base.registry import Registry
from iosim.hardware.profile import HardwareProfile
from iosim.problem.attention import AttentionProblem

Chooser = Callable[[AttentionProblem, HardwareProfile], tuple[str, str]]
"""To the name of a catalog kernel and the reason, one line."""

_CHOOSERS: Registry[str, Chooser] = Registry("choice")
_NAMES: list[str] = []


def fold(name: str) -> str:
    """A kernel's name as it is compared: lower case, words joined by hyphens."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def chooses(name: str, *aliases: str) -> Callable[[Chooser], Chooser]:
    """Register a choice under its name and aliases.

    Raises:
        ValueError: one of them is taken.
    """

    def register(chooser: Chooser) -> Chooser:
        for one in (name, *aliases):
            _CHOOSERS.put(fold(one), chooser)
        _NAMES.append(name)
        return chooser

    return register


def choice_names() -> tuple[str, ...]:
    """Names of all choices, without their aliases."""
    return tuple(_NAMES)


def is_choice(name: str) -> bool:
    """Whether a kernel's name stands for a choice."""
    return fold(name) in _CHOOSERS


def chosen(name: str, problem: AttentionProblem, profile: HardwareProfile) -> tuple[str, str]:
    """(name of the kernel that the choice `name` takes, why)."""
    return _CHOOSERS[fold(name)](problem, profile)
