"""`uniform` and `uniform_naive`: one attention matrix for all heads (UniForm's Reuse Attention, arXiv 2412.02344).

Q and K have one head of width head_dim; V and O have `heads` heads of width head_dim_v, and head h's output is
softmax(Q K^T / sqrt(head_dim)) V_h. So the problem's `heads` are read as value heads, and what is computed is one head
whose values stand side by side in a row: V and O [batch, 1, rows, heads x head_dim_v]. `one_head` is that reading; the
launches are those of `flash` and `naive` for it.

Fused (`uniform`): option value_heads_per_tile, G, is how many heads' values a CTA takes; default all.

- G = heads: scores and weights are computed once a (query block, key block) pair and kept on chip for all heads. Q is
  read once, K and V once a query block; the accumulators are block_q x heads x head_dim_v.
- G < heads: heads / G CTAs share a query block and each computes the weights again, so Q and K are read heads / G times
  and the products of scores done as often. The rest is the same. G = 1 is a multi-head kernel on one Q and K.
  Forward only, without LSE, which every one of them would write.

Through memory (`uniform_naive`): S and P are one N x N tensor each, and P V is one product with heads x head_dim_v
columns.

Assumed: bias, depthwise convolutions on V and the projections are no part of it; no dropout, which UniForm has not;
V and O lie as [batch, tokens, heads x head_dim_v], which is what the projections write and read.
"""

from __future__ import annotations

import copy

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms import flash, flash_options, naive
from iosim.catalog.algorithms.registry import algorithm, options_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain
from iosim.kernel.options import AlgorithmOptions, number
from iosim.problem.attention import AttentionProblem


@dataclass(frozen=True)
class SharedValueOptions(AlgorithmOptions):
    """value_heads_per_tile: heads' values that a CTA takes; None for all."""

    value_heads_per_tile: int | None = number(None, 1)


@dataclass(frozen=True)
class UniformOptions(SharedValueOptions, flash_options.FlashOptions):
    """Options of `flash`, and how many heads' values a CTA takes."""


@dataclass(frozen=True)
class UniformNaiveOptions(SharedValueOptions, naive.NaiveOptions):
    """Options of `naive`, and how many heads' values a product takes: all, or it is refused."""


def _stated_heads(kernel: Kernel) -> int | None:
    return options_of(kernel, SharedValueOptions).value_heads_per_tile


def one_head(problem: AttentionProblem, kernel: Kernel) -> AttentionProblem:
    """The problem as the launches see it: a head for every group of value heads that a tile takes, as wide as they are.
    Raises InputError: a number of value heads a tile that does not divide the heads."""
    per_tile = _stated_heads(kernel) or problem.heads
    if problem.heads % per_tile:
        hint = f"accepted: divisors of {problem.heads}"
        raise InputError(
            f"value_heads_per_tile {per_tile} is not possible with {problem.heads} heads; {hint}"
        )
    reduced = copy.copy(problem)
    groups = problem.heads // per_tile
    for name, value in (
        ("heads", groups),
        ("kv_heads", groups),
        ("head_dim_v", per_tile * problem.head_dim_v),
    ):
        object.__setattr__(reduced, name, value)
    return reduced


def _check(problem: AttentionProblem, kernel: Kernel) -> None:
    refused = f"is not possible with kernel '{kernel.name}':"
    if problem.group != 1:
        why = f"all {problem.heads} value heads share one Q and K; accepted: {problem.heads}"
        raise InputError(f"`kv_heads` {problem.kv_heads} {refused} {why}")
    if problem.dropout:
        raise InputError(f"`dropout` {problem.dropout} {refused} it has none")


@algorithm("uniform", options=UniformOptions, reads=one_head)
def plan_uniform(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """Launches of `flash` over one head with the values of all. Raises InputError: grouped heads, dropout, or a
    backward or LSE where a tile takes only some of the value heads."""
    _check(problem, kernel)
    read = one_head(problem, kernel)
    if read.heads == 1:
        return flash.plan_flash(read, kernel)
    refused = f"is not possible with value_heads_per_tile {_stated_heads(kernel)}:"
    if problem.backward:
        why = f"the backward takes all {problem.heads} heads in a tile; accepted: fwd"
        raise InputError(f"`passes` '{problem.passes}' {refused} {why}")
    if kernel.writes_lse:
        why = "every tile of a query block would write it; accepted: False"
        raise InputError(f"writes_lse {kernel.writes_lse} {refused} {why}")
    # Flash over value heads that share one Q and K: tensors of one head, in launches of several.
    chain = flash.plan_flash(read, kernel)
    shared = {
        n: replace(t, heads=1, strided=False) if n in ("Q", "K") else t
        for n, t in chain.tensors.items()
    }
    return replace(chain, tensors=shared)


@algorithm("uniform_naive", options=UniformNaiveOptions, reads=one_head)
def plan_uniform_naive(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """Launches of `naive` over one head with the values of all. Raises InputError: grouped heads, dropout, or value
    heads in several tiles."""
    _check(problem, kernel)
    read = one_head(problem, kernel)
    if read.heads != 1:
        refused = f"is not possible with kernel '{kernel.name}': one product takes all; accepted: {problem.heads}"
        raise InputError(f"value_heads_per_tile {_stated_heads(kernel)} {refused}")
    return naive.plan_naive(read, kernel)
