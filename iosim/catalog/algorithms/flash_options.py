"""Options of the `flash` algorithm: what a library states of its kernels beyond their tiles, and what its choices mean."""

from __future__ import annotations

from enum import StrEnum

from iosim.base.records import dataclass
from iosim.catalog.algorithms import cache
from iosim.catalog.algorithms.terms import TermOptions
from iosim.kernel.options import number


@dataclass(frozen=True)
class SplitOptions(cache.CacheOptions):
    """How splits of the keys are combined. `statistics_per_row`: fp32 values a row that a split leaves, 1 for a
    log-sum-exp, 2 for a max and a sum. `combine_rows`: rows a CTA of the combine takes; None for FlashAttention's,
    which go by the width and its `combine_threads`. Of the loads that wait for one another there, `combine_waits` are
    made beside those of the splits, and `combine_loads_at_once` splits are loaded together."""

    statistics_per_row: int = number(1, 1, 2)
    combine_threads: int = number(128, 1, 1024)
    combine_rows: int | None = number(None, 1)
    combine_waits: int = number(3, 0, 100)
    combine_loads_at_once: int = number(4, 1, 1024)
    partial_bytes: int = number(4, 2, 4)
    """Bytes of a value of a split's partial O: fp32, or 16 bits."""
    combines_one: bool = False
    """With one split, too, the partial result goes through memory."""
    empty_splits: bool = False
    """There may be more splits than key blocks: the others read their queries, too, and write zeros."""
    undivided: bool = False
    """Without a mask the first split walks all keys, and the others none: keys are divided by the mask's blocks, and
    one block stands for all of them."""
    combine_launches: int = number(1, 1, 3)
    """Launches that combine splits which leave a max and a sum: one; or the statistics of rows before it; or the
    weights of splits, their sum over each row, and then the output."""


class Workspace(StrEnum):
    """How many rows a backward's launches hand each other of D, of dQ's sums and of copied statistics."""

    ROWS = "rows"
    """The problem's."""
    BLOCKS = "blocks"
    """Whole blocks of queries are moved."""
    PADDED = "padded"
    """And held, with as many columns of dQ as the kernel is compiled for (FlashAttention-2's dq_accum)."""


class Adds(StrEnum):
    """How a backward's main launch adds to dQ."""

    LINES = "lines"
    """A request a line of the L2, which the warps that compute wait for."""
    APART = "apart"
    """By a warp that computes nothing, so that no other waits."""
    PACKETS = "packets"
    """Four lanes of a warp add 32 bytes to a row, a packet."""
    OWNERS = "owners"
    """Not at all: a launch whose CTAs own queries computes dQ from scores of its own."""
    SAME_GRID = "same-grid"
    """So do CTAs of the main launch's own grid, behind those that own keys of the same key/value head."""


def mask_limits(mask: str) -> int:
    """Limits of a tile's keys that a mask asks of single scores: the diagonal, or both ends of a window and of any other
    mask."""
    return {"none": 0, "causal": 1}.get(mask, 2)


@dataclass(frozen=True)
class FlashOptions(SplitOptions, TermOptions):
    mask_block: int | None = number(None, 1)
    """Rows of the blocks in which the kernel knows a mask; None where it goes by indices."""
    mask_operations: int = number(0, 0, 100)
    """On each score of a step that is masked, for each limit that is asked: two of a window, in every step; one of the
    causal mask."""
    step_operations: float = 0.0
    """Of a kernel that goes by lists of blocks: instructions of its compiled loop on each score of every step, beyond
    those of the loop without mask and bounds."""
    end_operations: float = 0.0
    """Further ones, of the loop that asks the mask of each score, in the blocks at its ends."""
    bound_operations: int = number(0, 0, 100)
    """Lane cycles on each score of every step where keys end elsewhere than at the diagonal: past the last one, or at a
    window. A comparison of integers takes two."""
    diagonal_operations: int = number(0, 0, 100)
    """Lane cycles on each score of the steps at the causal diagonal."""
    walks_all_keys: bool = False
    """A forward's loop walks all keys whatever the mask, and masks scores: no key block is left out."""
    asks_at_once: bool = False
    """A tile asks for its queries and its first keys at once."""
    columns_by_keys: bool = False
    """Products take columns of Q and K `DEPTH` at a time and columns of V and O as many as the tile has keys; an output
    of more columns than that stays in memory between key blocks, in fp32 (CUTLASS's kernel in PyTorch,
    kernel_forward.h: kKeepOutputInRF)."""
    output_strided: bool = False
    """O is laid out with heads after the sequence, whatever Q's layout (PyTorch's memory-efficient kernel)."""
    split_stores: float = 1.0
    """Fraction of the further packets, of rows of O that begin inside a sector and leave piece by piece, which do not
    merge on their way. Of dK and dV, whose rows are stored late, none merge."""
    clusters_in_step: bool = False
    """The CTAs of a cluster walk the same keys, each with rows of its own."""
    shares_fetches: bool = False
    """Each of them fetches its part of the keys for all, where products of the cluster read every part (tcgen05 with
    cta_group 2); else each has all keys."""
    tile_waits: int = number(0, 0, 100)
    """Loads that a tile of the forward waits for, one behind the other, before its steps: where sequences differ, its
    number, its sequence's place and lengths, and its pages."""
    first_waits: int = number(0, 0, 100)
    """Further ones, which a CTA's later tiles do not wait for: they are made while it ends the tile before."""
    merged_bytes: int = number(0, 0)
    """Bytes between shared memory and registers for which warps that divide a tile's keys merge their parts of it."""
    fills_lists: bool = False
    """A forward without a mask fills a list of one block of all keys first, and its length, a launch each."""
    heads_in_turn: bool = False
    """The backward's CTAs take the query heads that share their keys one after the other, so that nothing is summed
    after them."""
    workspace: Workspace = Workspace.ROWS
    adds: Adds = Adds.LINES
