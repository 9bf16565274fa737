"""Lists of picked keys: what a query's list keeps, as a mask over its entries.

Every list has room for as many entries as keys are picked at most. A query that sees fewer keys has all of them in its
list, and -1 behind them: kernels walk the whole list, and load the rows of the entries that are there. Where keys are
compressed, a list has the tokens of the query's window first and compressed keys behind them, and is walked to its end.
"""

from __future__ import annotations

import numpy as np

from iosim.base.records import dataclass
from iosim.problem.masks.blocks import BlockMask
from iosim.problem.masks.mask import BoolArray, IntArray, IntervalMask, KeyBlocks


@dataclass(frozen=True)
class PickedMask(IntervalMask):
    """Lists of picked keys. `right` and `offset` say how many keys a query sees of the `seen` keys that there are: it
    has as many entries. All key blocks are visited, and end_row is the last entry that is there."""

    seen: int = 0

    @classmethod
    def of(cls, mask: IntervalMask, keys: int) -> PickedMask:
        """The lists of queries that see `keys` keys under a mask without a left bound."""
        return cls(None, mask.right, mask.offset, seen=keys)

    @property
    def plain(self) -> IntervalMask:
        """The mask without idle entries, for lists no longer than the keys."""
        return IntervalMask(None, self.right, self.offset)

    def end_key(self, row: IntArray, seq_k: int) -> IntArray:
        return np.minimum(super().end_key(row, seq_k), self.seen)

    def keeps(self, queries: IntArray, keys: IntArray) -> BoolArray:
        return super().keeps(queries, keys) & (keys < self.seen)

    def key_blocks(
        self, rows: int, seq_k: int, block_q: int, block_k: int, pack: int = 1
    ) -> KeyBlocks:
        last = np.minimum(np.arange(0, rows, block_q, dtype=np.int64) + block_q, rows) - 1
        blocks = np.full(last.size, -(-seq_k // block_k), dtype=np.int64)
        return KeyBlocks(
            first=np.zeros_like(blocks), end=blocks, end_row=self.end_key(last // pack, seq_k)
        )

    def picks(self, tokens: IntArray, entries: IntArray, top_k: int) -> IntArray:
        """The keys that the entries of queries stand for where nothing is known of the scores: spread evenly over what
        a query sees, each query's own, with nothing drawn twice. Of a query that sees no more than `top_k` keys, all of
        them, in order. The arrays broadcast against each other."""
        return _spread(tokens, entries, self.end_key(tokens, self.seen), top_k)


@dataclass(frozen=True)
class WindowedMask(IntervalMask):
    """Lists of `window` tokens up to the query's own and of the compressed keys before it, of which there are `keys`.
    NB: the lists of the first queries, which see fewer tokens, have as many entries as the others'."""

    window: int = 0
    keys: int = 0

    @classmethod
    def of(cls, window: int, ratio: int, seq_q: int, seq_k: int) -> WindowedMask:
        """The mask of queries that are the last `seq_q` of `seq_k` tokens, `ratio` of them a compressed key; 0: none
        is."""
        step, seen = max(1, ratio), min(window, seq_k)
        return cls(None, seen * step, seq_k - seq_q, step, seen, seq_k // ratio if ratio else 0)

    @property
    def first(self) -> int:
        """The first token that some query's window has."""
        return max(0, self.offset + 1 - self.window)

    def picks(self, tokens: IntArray, entries: IntArray, top_k: int) -> IntArray:
        """Rows of a cache that holds the compressed keys, then the tokens that some window has; as
        `PickedMask.picks`."""
        # Entries of the window first, as places behind the compressed keys; the rest are spread over the
        # compressed keys that end before the query.
        near = np.maximum(tokens + self.offset + 1 - self.window + entries, 0) - self.first
        room, place = max(1, top_k - self.window), np.maximum(entries - self.window, 0)
        far = _spread(tokens, place, (tokens + self.offset + 1) // self.ratio, room)
        return np.where(entries < self.window, self.keys + near, far)


@dataclass(frozen=True)
class BlockPicks(IntervalMask):
    """Lists of blocks of `block` keys for causal queries, over the keys of the blocks: those that a query sees in part
    are there whole."""

    block: int = 1

    def picks(self, tokens: IntArray, entries: IntArray, top_k: int) -> IntArray:
        """The blocks that entries stand for, as `PickedMask.picks`; `top_k` counts keys."""
        return _spread(
            tokens, entries, (tokens + self.offset) // self.block + 1, top_k // self.block
        )

    def pairs(self, tokens: int, blocks: int) -> BlockMask:
        """The blocks that tokens of one sequence pick, up to so many each."""
        token, entry = (a.reshape(-1) for a in np.indices((tokens, blocks)))
        exists = entry <= token // self.block
        cols = self.picks(token[exists], entry[exists], blocks * self.block)
        return BlockMask.of_pairs(tokens, tokens, 1, self.block, token[exists], cols)


def _spread(tokens: IntArray, entries: IntArray, sees: IntArray, top_k: int) -> IntArray:
    # Knuth's multiplicative hash of token and entry: the same pick in every run, and no two rows alike. Entry n draws
    # from the n-th of `top_k` equal parts of what the query sees, so that no key is drawn twice.
    mixed = (tokens * 2654435761 + entries * 40503) * 2246822519 % (1 << 32)
    first = entries * sees // top_k
    return np.where(
        sees > top_k, first + mixed * ((entries + 1) * sees // top_k - first) // (1 << 32), entries
    )
