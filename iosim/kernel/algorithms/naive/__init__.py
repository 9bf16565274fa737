"""`naive`: attention through N x N tensors. `plan` has its launches, `bodies` what they compute."""

from iosim.kernel.algorithms.naive import bodies as _registers_bodies  # noqa: F401
from iosim.kernel.algorithms.naive.plan import (
    ChainBuilder,
    NaiveOptions,
    Pass,
    ProductOptions,
    add_bias,
    backward,
    forward,
    mask_keys,
    passes,
    plan_naive,
)

__all__ = [
    "ChainBuilder",
    "NaiveOptions",
    "Pass",
    "ProductOptions",
    "add_bias",
    "backward",
    "forward",
    "mask_keys",
    "passes",
    "plan_naive",
]
