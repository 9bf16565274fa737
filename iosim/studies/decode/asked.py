"""Which kernels a decoding study compares: those asked for, those of split rules, or the GPU's own."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.errors import InputError
from iosim.base.words import DEFAULT
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.serving import kernel_by_rule

Chosen = tuple[str, int | None]
"""A kernel, and the tokens of a page."""


def chosen_kernels(
    gpu: str | HardwareProfile, kernels: Sequence[str] | None, rules: Sequence[str] | None, page_size: int | None,
    batch: bool = False,
) -> list[Chosen]:  # fmt: skip
    """The kernels to predict on a GPU, in the order asked for.

    Args:
        batch: of sequences of different lengths, for which FlashAttention-3 has rules of their own, those that SGLang's
            calls meet.

    Raises:
        InputError: kernels and rules, or a rule that is not known or has no kernel on the GPU.
    """
    if not rules:
        return [(name, page_size) for name in kernels] if kernels else [(DEFAULT, page_size)]
    if kernels:
        raise InputError(f"`split_rule` {', '.join(rules)} contradicts `kernel` {', '.join(kernels)}; give one of them")
    profile = load_profile(gpu) if isinstance(gpu, str) else gpu
    found = [kernel_by_rule(rule, profile, page_size) for rule in rules]
    return [("sglang-fa3" if batch and name == "fa3" else name, page) for name, page in found]
