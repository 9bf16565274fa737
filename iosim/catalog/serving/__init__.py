"""Serving stacks: a kernel's rule book and what runs beside it in one attention call, as data."""

from iosim.catalog.serving.stack import (
    Extra,
    Stack,
    kernel_by_rule,
    read_stack,
    split_rules,
    stack_names,
)

__all__ = ["Extra", "Stack", "kernel_by_rule", "read_stack", "split_rules", "stack_names"]
