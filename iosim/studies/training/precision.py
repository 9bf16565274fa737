"""Precisions of training: what parameters, gradients and activations are stored in, and what autocast changes."""

from __future__ import annotations

from dataclasses import dataclass

from iosim.base.errors import unknown_name
from iosim.problem.dtypes import dtype, is_dtype


@dataclass(frozen=True)
class Precision:
    """`parameter_bytes` an element of parameters, gradients and optimizer states; `compute_bytes` an element of what
    matrix products read and write; `dtype` names their type. With `autocast` the two differ: products get half copies
    of fp32 operands, and the residual stream stays in fp32."""

    name: str
    dtype: str
    parameter_bytes: int
    compute_bytes: int

    @property
    def autocast(self) -> bool:
        return self.parameter_bytes != self.compute_bytes


_PRECISIONS = {
    p.name: p
    for p in (
        Precision("fp32", "fp32", 4, 4),
        Precision("fp16", "fp16", 2, 2),
        Precision("bf16", "bf16", 2, 2),
        Precision("amp-fp16", "fp16", 4, 2),
        Precision("amp-bf16", "bf16", 4, 2),
    )
}
_AUTOCAST = {"amp": "amp-bf16", "autocast": "amp-bf16"}
PRECISIONS = tuple(_PRECISIONS)


def precision(name: str) -> Precision:
    """The precision called `name`: fp32, fp16, bf16 (pure), amp-fp16 or amp-bf16 (autocast over fp32 parameters).

    Raises:
        InputError: no such precision.
    """
    key = str(name).strip().lower()
    key = _AUTOCAST.get(key, key)
    if key not in _PRECISIONS and is_dtype(key):
        key = dtype(key).name
    if key not in _PRECISIONS:
        raise unknown_name("`precision`", str(name), PRECISIONS)
    return _PRECISIONS[key]
