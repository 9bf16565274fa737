"""PyTorch's own: how its memory-efficient kernel (`cutlass`) shares the keys of a head in the backward, and products of
a matrix library (`naive`, `eager`, `math`, `uniform-naive`), whose tiles `algorithms.matrix_tiles` chooses.

pytorch/pytorch, aten/src/ATen/native/transformers/cuda/attention_backward.cu, "Heuristic for finding optimal number of
splits".
"""

from __future__ import annotations

from typing import Any

from iosim.base.records import replace
from iosim.catalog.algorithms.efficient import EfficientOptions, keeps_sums
from iosim.catalog.algorithms.matrix_tiles import FP32_SIDE_CC8
from iosim.catalog.algorithms.registry import options_of
from iosim.catalog.libraries.rules import Rules, rule_book
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.kernel.work import Fragments, Layout
from iosim.problem.attention import AttentionProblem

ENOUGH_HEADS, FEW_BLOCKS = 256, 2
"""Heads of all sequences from which so few key blocks are left to one CTA."""
MOST_BUFFERED = 200
"""CTAs, about, up to which heads are split where each has buffers for dK and dV."""
SPLITS_CC, KEEPS_KEYS_CC = 70, 80
TWO_WAYS_CC = 80
"""From which tensor cores multiply every type out of buffers that asynchronous copies fill."""


@rule_book("cutlass")
class CutlassRules(Rules):
    """CTAs per head of the backward, and what a CTA keeps in shared memory."""

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        if not problem.backward:
            described = profile.cc >= TWO_WAYS_CC and not problem.dropout and kernel.splits == 1
            return replace(kernel, fragments=Fragments(Layout.TWO_WAYS)) if described else kernel
        blocks, heads = (
            -(-problem.longest_k // kernel.tile_backward.block_k),
            problem.batch * problem.heads,
        )
        # CTAs of a head: one where heads fill the GPU and blocks are few; few where each has buffers of its
        # own; else one a key block.
        buffered = problem.input_type.bytes < 4 and not keeps_sums(problem, kernel)
        splits = None
        if profile.cc < SPLITS_CC or (heads >= ENOUGH_HEADS and blocks <= FEW_BLOCKS):
            splits = 1
        elif buffered:
            splits = max(1, MOST_BUFFERED // heads)
        options = options_of(kernel, EfficientOptions)
        keeps_keys = profile.cc >= KEEPS_KEYS_CC
        return replace(kernel, options=replace(options, key_splits=splits, keeps_keys=keeps_keys))


@rule_book("eager")
class EagerRules(Rules):
    """The products' tiles go by the number of SMs, in fp32 also by the library's kernels for a GPU."""

    def options(self, profile: HardwareProfile, split: bool) -> dict[str, Any]:
        side = FP32_SIDE_CC8 if profile.cc // 10 == 8 else None
        return {"sm_count": int(profile.need("sm_count")), "fp32_side": side}
