"""The stacks that are known, as rows."""

from __future__ import annotations

from typing import Any

from iosim.kernel.serving import read_stack, stack_names


def stack_rows() -> list[dict[str, Any]]:
    """A row a stack: its kernels by compute capability, pages, and what else a call launches."""
    return [
        {
            "name": stack.name, "title": stack.title, "version": stack.version, "page_size": stack.page_size,
            "kernels": [f"{name} ({', '.join(f'{cc / 10:.1f}' for cc in ccs)})" for name, ccs in stack.kernels],
            "extras": [extra.name for extra in stack.extras], "call_gap_s": stack.call_gap_s, "source": stack.source,
        }
        for stack in map(read_stack, stack_names())
    ]  # fmt: skip
