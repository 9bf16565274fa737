"""Optimizers: the states they keep, what a step allocates for its own use, and the bytes it reads and writes.

Sources: PyTorch, torch/optim/adam.py (`_multi_tensor_adam`, `_single_tensor_adam`) and sgd.py; bitsandbytes,
bitsandbytes/optim/optimizer.py (`Optimizer2State.init_state`) for Adam with 8-bit states (arXiv 2110.02861).
The counters of Adam's steps are tensors on the host unless the step is fused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iosim.base.errors import InputError, unknown_name
from iosim.studies.training.graph import Parameter

STEPS = ("foreach", "loop", "fused")
BLOCK_ELEMENTS = 2048
"""Elements of a block with an fp32 scale of its own (arXiv 2110.02861, section 2.1)."""
MIN_8BIT_ELEMENTS = 4096
"""Tensors with fewer elements keep fp32 states there (`min_8bit_size`)."""
QUANTILES_BYTES = 2 * 256 * 4
"""Two tables of 256 fp32 values, signed and unsigned, shared by all parameters."""
COUNTER_BYTES = 4
"""A fused step's counter, fp32, one a parameter."""


@dataclass(frozen=True)
class Optimizer:
    """`moments` states of the parameters' type; `temporaries` copies of a tensor that a step makes for itself;
    `passes` over such tensors that it reads or writes, fused or not."""

    name: str
    step: str
    moments: int
    temporaries: int
    loop_temporaries: int
    passes: int
    fused_passes: int
    eight_bit: bool = False

    def state_bytes(self, parameters: Sequence[Parameter], element_bytes: int) -> int:
        """Device bytes of all states."""
        if self.eight_bit:
            return QUANTILES_BYTES + sum(_eight_bit_state(p.elements) for p in parameters)
        counters = COUNTER_BYTES * len(parameters) if self.step == "fused" and self.name != "momentum" else 0
        total = sum(p.elements for p in parameters)
        return self.moments * total * element_bytes + (counters if self.moments else 0)

    def step_bytes(self, parameters: Sequence[Parameter], element_bytes: int) -> int:
        """Bytes that live within a step alone."""
        if self.step == "fused" or self.eight_bit:
            return 0
        if self.step == "loop":
            return self.loop_temporaries * max((p.elements for p in parameters), default=0) * element_bytes
        return self.temporaries * sum(p.elements for p in parameters) * element_bytes

    def moved_bytes(self, parameters: Sequence[Parameter], element_bytes: int) -> int:
        """Bytes that a step reads and writes."""
        total = sum(p.elements for p in parameters)
        if self.eight_bit:  # parameter in and out, gradient in, both states in and out
            return 3 * total * element_bytes + 2 * self.state_bytes(parameters, element_bytes)
        return (self.fused_passes if self.step == "fused" else self.passes) * total * element_bytes


def _eight_bit_state(elements: int) -> int:
    if elements < MIN_8BIT_ELEMENTS:
        return 2 * elements * 4
    return 2 * (elements + -(-elements // BLOCK_ELEMENTS) * 4)


_ADAM_PASSES = 18
"""lerp 3, multiply 2, addcmul 3, sqrt 2, divide 2, add 2, addcdiv 4; decoupled weight decay 2 more."""
_RULES = {
    "none": (0, 0, 0, 0, 0),
    "sgd": (0, 0, 0, 3, 3),
    "momentum": (1, 0, 0, 8, 5),
    "adam": (2, 1, 2, _ADAM_PASSES, 7),
    "adamw": (2, 1, 2, _ADAM_PASSES + 2, 7),
    "adam8bit": (0, 0, 0, 0, 0),
}
_ALIASES = {"sgd+momentum": "momentum", "sgd-momentum": "momentum", "adam-8bit": "adam8bit", "8bit-adam": "adam8bit"}
OPTIMIZERS = tuple(_RULES)


def optimizer(name: str, step: str = "foreach") -> Optimizer:
    """The optimizer called `name`, whose step runs over lists of tensors, tensor by tensor, or as one fused kernel.

    Raises:
        InputError: no such optimizer or step, or a step that it does not have.
    """
    key = str(name).strip().lower()
    key = _ALIASES.get(key, key)
    if key not in _RULES:
        raise unknown_name("`optimizer`", str(name), OPTIMIZERS)
    if step not in STEPS:
        raise unknown_name("`step`", str(step), STEPS)
    if key == "adam8bit" and step == "loop":
        raise InputError("`step` loop: adam8bit has one kernel a tensor; accepted: foreach, fused")
    return Optimizer(key, step, *_RULES[key], eight_bit=key == "adam8bit")
