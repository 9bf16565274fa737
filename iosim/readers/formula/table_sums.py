"""The block table's reads in closed form: sectors that every work tile touches, summed over query blocks and splits.

A sector of the table holds the entries of `keys` keys (8 pages). A work tile looks up the rows of the key blocks it
visits, [F block_k, min(E block_k, seq_k)), so it touches ceil(end / keys) - floor(start / keys) sectors, and one more
for every split boundary inside that is no multiple of `keys`. Where block_k does not divide `keys`, with
L = keys / gcd(block_k, keys): ceil(E block_k / keys) = sum over 1 <= r <= L of (ceil(r block_k / keys) -
ceil((r - 1) block_k / keys)) floor((E + L - r) / L), each term a clipped floor sum; the same for floors.
"""

from __future__ import annotations

import math

from iosim.readers.formula.dual import ceil_div, clipped_floor_sum, maximum, minimum
from iosim.readers.formula.sums import BlockSums


class TableSums(BlockSums):
    """Sums over a domain's query blocks for a table whose sectors hold `keys` keys each.

    NB: `block_k`, and with splits their length, enter by their values: a formula in symbols holds for these alone.
    """

    def sectors(self, keys: int) -> int:
        """Sectors touched by all work tiles of one (batch, head)."""
        touched = self._ends(keys) - self._starts(keys)
        d = self.domain
        if d.splits == 1:
            return touched
        split = int(ceil_div(self.key_blocks, d.splits)) * int(d.block_k)
        return touched + self._spans(split) - self._spans(math.lcm(split, keys))

    def _spans(self, step: int) -> int:
        """Parts of `step` keys that query blocks reach into, `step` a multiple of block_k."""
        most = (self.domain.seq_k - 1) // step
        if self.left is None and self.right is None:
            return (most + 1) * self.query_blocks
        full, end = self.visiting.full * most, most
        if self.right is not None:
            full, end = self._line_to_end(step, -1, most), maximum(self._last_end_key - 1, 0) // step
        first = self._last_first_key // step
        return full - self._line_to_first(step) + self.visiting.full + self._last_visits * (end - first + 1)

    def _ends(self, keys: int) -> int:
        """Sum of ceil(end / keys)."""
        d, most = self.domain, ceil_div(self.domain.seq_k, keys)
        if self.right is None:
            blocks = self.query_blocks if self.left is None else self._used + self._last_visits
            return blocks * most
        bk = int(d.block_k)
        end = minimum(ceil_div(self._last_end_key, bk) * bk, d.seq_k)
        last = self._last_visits * ceil_div(end, keys)
        if keys % bk == 0:
            return self._line_to_end(keys, keys - 1, most) + last
        past = ceil_div(self.key_blocks * bk, keys) - most
        full = -past * self.reaching_last.full
        length, parts = _period(bk, keys)
        for r in range(1, min(length, int(self.key_blocks)) + 1):
            weight = ceil_div(r * bk, keys) - ceil_div((r - 1) * bk, keys)
            if weight:
                top = (self.key_blocks + length - r) // length
                full += weight * self._line_to_end(parts, bk - 1 + (length - r) * bk, top)
        return full + last

    def _starts(self, keys: int) -> int:
        """Sum of floor(start / keys)."""
        if self.left is None:
            return 0
        bk = int(self.domain.block_k)
        last = self._last_visits * (self._last_first_key // bk * bk // keys)
        if keys % bk == 0:
            return self._line_to_first(keys) + last
        length, parts = _period(bk, keys)
        full = 0
        for r in range(1, min(length, int(self.key_blocks)) + 1):
            weight = r * bk // keys - (r - 1) * bk // keys
            if weight:
                full += weight * self._shifted_first(parts, (length - r) * bk)
        return full + last

    def _shifted_first(self, step: int, shift: int) -> int:
        """Sum over used full blocks of floor((first key + shift) / step), for 0 <= shift < step."""
        assert self.left is not None
        d = self.domain
        most = ceil_div(d.seq_k, step) + 1
        return clipped_floor_sum(self._used, step * d.pack, d.block_q, (self.left + shift) * d.pack, most)


def _period(block_k: int, keys: int) -> tuple[int, int]:
    """Key blocks after which block and sector boundaries meet again, and the keys in them."""
    length = keys // math.gcd(block_k, keys)
    return length, length * block_k
