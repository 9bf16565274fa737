"""Serving stacks: a kernel's rule book and what runs beside it in one attention call, as data."""

from iosim.kernel.serving.stack import Extra, Stack, read_stack, stack_names

__all__ = ["Extra", "Stack", "read_stack", "stack_names"]
