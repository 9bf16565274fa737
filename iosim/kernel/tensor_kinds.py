"""Kinds of tensors that stand beside a matrix or a vector of the problem: its sums, its copies, its partial results.

A kernel file names a tensor by its source and its kind, `dQ_acc` or `LSE_copy`; what such a name says is read here and
nowhere else.
"""

from __future__ import annotations

from enum import StrEnum


class TensorKind(StrEnum):
    """The ending of a name, after an underscore."""

    SUMS = "acc"
    """fp32 sums that the source is made of: what CTAs add to, or keep between steps."""
    COPY = "copy"
    """The source again, in another layout or padded to whole tiles."""
    PER_HEAD = "heads"
    """The source once per query head, where heads of a group share it."""
    PARTIAL = "partial"
    """What each split of the keys leaves of the source, until a launch combines them."""

    def of(self, source: str) -> str:
        """The name of the tensor of this kind beside `source`."""
        return f"{source}_{self}"

    def is_kind_of(self, name: str) -> bool:
        return name.endswith(f"_{self}")

    def source(self, name: str) -> str:
        """The tensor that `name` is beside; `name` itself where it is not of this kind."""
        return name.removesuffix(f"_{self}")


KEY_SUMS = (TensorKind.SUMS.of("dK"), TensorKind.SUMS.of("dV"))
"""Sums of dK and dV in fp32, to which the query heads of a group add."""
QUERY_SUMS = TensorKind.SUMS.of("dQ")
"""Sums of dQ in fp32, to which the CTAs that own keys add."""
KEYS_PER_HEAD = (TensorKind.PER_HEAD.of("dK"), TensorKind.PER_HEAD.of("dV"))
"""dK and dV of each query head, before they are summed over a group."""
LSE_COPY = TensorKind.COPY.of("LSE")
OUTPUT_PARTIAL, LSE_PARTIAL = TensorKind.PARTIAL.of("O"), TensorKind.PARTIAL.of("LSE")
OUTPUT_SUMS = TensorKind.SUMS.of("O")
"""The running output of a kernel that loops over keys outside, in fp32."""
