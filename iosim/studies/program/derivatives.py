"""What operators do backward, said once: `derivatives.toml` is read by the tape, which writes the launches down, and by
the graph of a training step, which adds up what they keep. PyTorch's own autograd is compared with it."""

from __future__ import annotations

import tomllib
from collections.abc import Container
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.records import dataclass

GRAD, OUT = "grad", "out"
"""What a launch may read beside operands: the gradient of the operator's result, and the result itself."""


@dataclass(frozen=True)
class Step:
    """One launch of an operator's backward, or a gradient that is handed on (`launch` is empty). `reads`, `holds` and
    `gives` are names of operands: `holds` is kept for its sizes alone, `gives` are those whose gradients it makes. What
    is `transposed` gets a view of what the launch makes, as a weight that lies so."""

    launch: str
    reads: tuple[str, ...]
    holds: tuple[str, ...]
    gives: tuple[str, ...]
    transposed: bool = False


@cache
def derivatives() -> dict[str, tuple[Step, ...]]:
    """The backward of every operator of `derivatives.toml`, its launches in the order in which they run."""
    text = Path(__file__).with_name("derivatives.toml").read_text(encoding="utf-8")
    listed: dict[str, list[dict[str, Any]]] = tomllib.loads(text)
    return {operator: tuple(map(_step, rows)) for operator, rows in listed.items()}


def _step(row: dict[str, Any]) -> Step:
    reads, holds, gives = (tuple(row.get(key, "").split()) for key in ("reads", "holds", "gives"))
    return Step(row.get("launch", ""), reads, holds, gives, row.get("transposed", False))


def kept(operator: str, wanting: Container[str]) -> tuple[str, ...]:
    """Operands, and perhaps the result, that autograd keeps where the gradients of `wanting` are asked for: what the
    launches of these read or hold, once each. A product so keeps each operand for the gradient of the other."""
    names = (
        name
        for step in derivatives()[operator]
        if any(operand in wanting for operand in step.gives)
        for name in (*step.reads, *step.holds)
        if name != GRAD
    )
    return tuple(dict.fromkeys(names))
