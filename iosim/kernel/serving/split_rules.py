"""Whose rule splits the keys while decoding: libraries and stacks by the names that people know them by."""

from __future__ import annotations

from iosim.base.errors import unknown_name
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.serving.stack import read_stack, stack_names

LIBRARIES = ("fa2", "fa3")


def split_rules() -> tuple[str, ...]:
    """Names of all rules."""
    return (*LIBRARIES, *stack_names())


def kernel_by_rule(rule: str, profile: HardwareProfile, page_size: int | None) -> tuple[str, int | None]:
    """The catalog's kernel that splits by this rule on a GPU, and the tokens of a page: a stack has pages always.

    Raises:
        InputError: no such rule, or a stack that has no kernel there.
    """
    if rule in LIBRARIES:
        return rule, page_size
    if rule not in stack_names():
        raise unknown_name("`split_rule`", rule, split_rules())
    stack = read_stack(rule)
    return stack.kernel(profile), stack.page_size if page_size is None else page_size
