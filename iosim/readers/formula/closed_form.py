"""The formula reader: bytes between SMs and L2 in closed form, for numbers, symbols and arrays of problems alike.

`closed_form` is written once, over whole numbers: on a chain of ints it gives ints, to the byte what
`iosim.readers.count` gives, in O(log) instead of O(query blocks); on a chain of duals (`iosim.readers.formula.dual`) it
gives SymPy expressions or arrays besides. `iosim.readers.formula.symbolic` does the first for a problem and a kernel;
`iosim.readers.formula.sweeps` the second.

What a mask does to a tiling is linear in the query block i. With p query heads packed in the rows of a tile (row r is
query r // p), block i's first row is i block_q and its last (i + 1) block_q - 1, so it keeps the keys from
floor(i block_q / p) + offset - left up to but not including floor(((i + 1) block_q - 1) / p) + offset + right + 1,
both cut to [0, N_k]. Nested floors merge, floor((floor(x / p) + w) / block_k) = floor((x + w p) / (p block_k)), so
every sum over blocks is a `clipped_floor_sum`. The last query block stands apart: its last row is the last true row.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from iosim.kernel.launch import SECTOR_BYTES, Access, Chain, Domain, Edge, Launch, Overhead, Per, Tensor
from iosim.kernel.traffic import Traffic, TrafficRow
from iosim.problem.masks.mask import IntervalMask
from iosim.problem.masks.packed import PackedMask
from iosim.readers.formula.dual import ceil_div, clip, clipped_floor_sum, maximum, minimum


@dataclass(frozen=True)
class Sums:
    """A quantity of query blocks: summed over all but the last block, and the last block's own.

    `each` is the value of every block where all blocks, the last included, have the same.
    """

    full: int
    last: int
    each: int | None = None

    @property
    def total(self) -> int:
        return self.full + self.last


class BlockSums:
    """What the readers need of a domain's query blocks and the key blocks they visit, each in closed form.

    NB: `left` + `right` of the mask is at least 0: a query row keeps a key, unless the sequence's ends cut it off.
    """

    def __init__(self, domain: Domain, key_blocks_per_split: int | None = None) -> None:
        self.domain = domain
        mask, pack = domain.mask, domain.pack
        if not isinstance(mask, IntervalMask):
            raise TypeError(f"no closed form of a {type(mask).__name__}'s own")
        self._per_split = key_blocks_per_split
        self.left = None if mask.left is None else mask.offset - mask.left
        """First key kept by query i is i + left (None: the first key)."""
        self.right = None if mask.right is None else mask.offset + mask.right
        """Last key kept by query i is i + right (None: the last key)."""
        self.query_blocks = ceil_div(domain.rows, domain.block_q)
        self.key_blocks = ceil_div(domain.seq_k, domain.block_k)
        self.full_blocks = self.query_blocks - 1
        self.last_rows = domain.rows - self.full_blocks * domain.block_q
        self.columns = domain.block_k * pack
        """Key rows of a key block in units of 1 / pack, the unit in which a query row advances by one."""

    def _same(self, each: int) -> Sums:
        return Sums(each * self.full_blocks, each, each)

    def _reaches(self, key: int, limit: int) -> int:
        """The first full query block that keeps a key beyond or at `key`, cut to [0, limit]."""
        assert self.right is not None
        return clip((key - self.right) * self.domain.pack // self.domain.block_q, 0, limit)

    def _starts_at(self, key: int, limit: int) -> int:
        """The first query block whose first key is at or beyond `key`, cut to [0, limit]."""
        assert self.left is not None
        return clip(ceil_div((key - self.left) * self.domain.pack, self.domain.block_q), 0, limit)

    @cached_property
    def _used(self) -> int:
        """Full query blocks that start before the keys end; those after it visit nothing."""
        return self.full_blocks if self.left is None else self._starts_at(self.domain.seq_k, self.full_blocks)

    @cached_property
    def _last_first_key(self) -> int:
        d = self.domain
        return 0 if self.left is None else maximum(self.full_blocks * d.block_q // d.pack + self.left, 0)

    @cached_property
    def _last_end_key(self) -> int:
        d = self.domain
        return d.seq_k if self.right is None else clip((d.rows - 1) // d.pack + self.right + 1, 0, d.seq_k)

    @cached_property
    def _last_visits(self) -> int:
        """1 where the last query block visits a key block, else 0."""
        if self.left is None and self.right is None:
            return 1
        return clip(self._last_end_key - self._last_first_key, 0, 1)

    def _line_to_end(self, step: int, shift: int, most: int) -> int:
        """Sum over used full blocks of floor((last row's query + 1 + right + shift) / step), cut to [0, most]."""
        assert self.right is not None
        d = self.domain
        at_zero = d.block_q - 1 + (self.right + 1 + shift) * d.pack
        return clipped_floor_sum(self._used, step * d.pack, d.block_q, at_zero, most)

    def _line_to_first(self, step: int) -> int:
        """Sum over used full blocks of floor(first key / step)."""
        if self.left is None:
            return 0
        d = self.domain
        return clipped_floor_sum(self._used, step * d.pack, d.block_q, self.left * d.pack, ceil_div(d.seq_k, step))

    @cached_property
    def visiting(self) -> Sums:
        """1 for every query block that visits a key block."""
        if self.left is None and self.right is None:
            return self._same(1)
        before = 0 if self.right is None else self._reaches(0, self._used)
        return Sums(self._used - before, self._last_visits)

    @cached_property
    def _first(self) -> Sums:
        last = self._last_first_key // self.domain.block_k
        return Sums(self._line_to_first(self.domain.block_k), self._last_visits * last)

    @cached_property
    def _end(self) -> Sums:
        bk = self.domain.block_k
        if self.right is None:
            return Sums(self._used * self.key_blocks, self._last_visits * self.key_blocks)
        full = self._line_to_end(bk, bk - 1, self.key_blocks)
        return Sums(full, self._last_visits * ceil_div(self._last_end_key, bk))

    @cached_property
    def visits(self) -> Sums:
        """Key blocks visited."""
        if self.left is None and self.right is None:
            return self._same(self.key_blocks)
        return Sums(self._end.full - self._first.full, self._end.last - self._first.last)

    @cached_property
    def reaching_last(self) -> Sums:
        """1 for every query block that visits the last key block."""
        if self.left is None and self.right is None:
            return self._same(1)
        if self.right is None:
            return Sums(self._used, self._last_visits)
        d = self.domain
        before = self._reaches((self.key_blocks - 1) * d.block_k, self._used)
        missing = minimum(1, self.key_blocks - ceil_div(self._last_end_key, d.block_k))
        return Sums(self._used - before, self._last_visits * (1 - missing))

    def key_rows(self, edge: Edge) -> Sums:
        """Key rows moved by the loop over key blocks."""
        d = self.domain
        if edge is Edge.WHOLE:
            each = None if self.visits.each is None else self.visits.each * d.block_k
            return Sums(self.visits.full * d.block_k, self.visits.last * d.block_k, each)
        if self.left is None and self.right is None:
            return self._same(d.seq_k)
        if edge is Edge.NEEDED and self.right is not None:
            full, last = self._line_to_end(1, 0, d.seq_k), self._last_visits * self._last_end_key
        else:
            past = self.key_blocks * d.block_k - d.seq_k
            full = self._end.full * d.block_k - self.reaching_last.full * past
            last = self._end.last * d.block_k - self.reaching_last.last * past
        return Sums(full - self._first.full * d.block_k, last - self._first.last * d.block_k)

    @cached_property
    def visited_splits(self) -> Sums:
        """Splits of the keys that hold a visited key block."""
        d = self.domain
        per = ceil_div(self.key_blocks, d.splits) if self._per_split is None else self._per_split
        most = (self.key_blocks - 1) // per
        if self.left is None and self.right is None:
            return self._same(most + 1)
        step = per * d.block_k
        if self.right is None:
            to_end = self.visiting.full * most
            end = most
        else:
            to_end = self._line_to_end(step, -1, most)
            end = maximum(self._last_end_key - 1, 0) // step
        first = self._last_first_key // step
        return Sums(to_end - self._line_to_first(step) + self.visiting.full, self._last_visits * (end - first + 1))

    def key_range(self) -> tuple[int, int]:
        """(key blocks that any query block visits: one contiguous range; 1 where it ends with the last key block).

        Both are 0 where nothing is visited.
        """
        d = self.domain
        if self.left is None and self.right is None:
            return self.key_blocks, 1
        some = minimum(1, self.visiting.total)
        first, end = 0, self.key_blocks
        if self.left is not None:
            lowest = 0 if self.right is None else self._reaches(0, self.full_blocks)
            first = maximum(lowest * d.block_q // d.pack + self.left, 0) // d.block_k
        if self.right is not None:
            stop = self.query_blocks if self.left is None else self._starts_at(d.seq_k, self.query_blocks)
            last_query = (minimum(stop * d.block_q, d.rows) - 1) // d.pack
            end = ceil_div(clip(last_query + self.right + 1, 0, d.seq_k), d.block_k)
        return some * (end - first), some * (1 - minimum(1, self.key_blocks - end))


def _tile_bytes(tensor: Tensor, rows: int, packet_rows: int = 0) -> int:
    """As `Tensor.tile_bytes`: vectors in whole sectors, matrices by the row."""
    if not tensor.is_vector:
        return rows * tensor.row_bytes
    if packet_rows:
        packet = ceil_div(packet_rows * tensor.element_bytes, SECTOR_BYTES) * SECTOR_BYTES
        return ceil_div(rows, packet_rows) * packet
    return ceil_div(rows * tensor.element_bytes, SECTOR_BYTES) * SECTOR_BYTES


def _times_moved(sums: BlockSums, access: Access) -> Sums:
    """How often each query block's tile is moved."""
    if access.per is Per.PAIR:
        visits, some = sums.visits, sums.visiting
        if not access.skip:
            return visits
        if access.skip != 1:
            raise ValueError(f"skip {access.skip} of access {access.tensor} is neither 0 nor 1")
        each = None if visits.each is None else visits.each - 1
        return Sums(visits.full - some.full, visits.last - some.last, each)
    if access.per is Per.SPLIT and not access.visited_only:
        splits = sums.domain.splits
        return Sums(splits * sums.full_blocks, splits, splits)
    if access.per is Per.SPLIT:
        return sums.visited_splits
    return sums.visiting if access.visited_only else Sums(sums.full_blocks, 1, 1)


def _query_bytes(sums: BlockSums, tensor: Tensor, access: Access) -> int:
    d, moved = sums.domain, _times_moved(sums, access)
    tile = _tile_bytes(tensor, d.block_q, access.packet_rows)
    if access.edge is Edge.WHOLE:
        return tile * (moved.total if moved.each is None else moved.each * sums.query_blocks)
    if moved.each is not None and not tensor.is_vector:
        return moved.each * d.rows * tensor.row_bytes
    return tile * moved.full + _tile_bytes(tensor, sums.last_rows, access.packet_rows) * moved.last


def _pair_bytes(sums: BlockSums, tensor: Tensor, edge: Edge) -> int:
    """A query x key tile at every visited pair."""
    d, keys = sums.domain, sums.key_rows(edge)
    if keys.each is not None:
        rows = sums.query_blocks * d.block_q if edge is Edge.WHOLE else d.rows
        return rows * keys.each * tensor.element_bytes
    last_rows = d.block_q if edge is Edge.WHOLE else sums.last_rows
    return (d.block_q * keys.full + last_rows * keys.last) * tensor.element_bytes


def _key_bytes_per_pair(sums: BlockSums, tensor: Tensor, edge: Edge) -> int:
    d = sums.domain
    if not tensor.is_vector:
        keys = sums.key_rows(edge)
        return (keys.total if keys.each is None else keys.each * sums.query_blocks) * tensor.row_bytes
    whole = sums.visits.total * _tile_bytes(tensor, d.block_k)
    if edge is Edge.WHOLE:
        return whole
    return whole + sums.reaching_last.total * _ragged_key_tile(sums, tensor)


def _ragged_key_tile(sums: BlockSums, tensor: Tensor) -> int:
    """Bytes by which the last key block's tile differs from a full one."""
    d = sums.domain
    last = d.seq_k - (sums.key_blocks - 1) * d.block_k
    return _tile_bytes(tensor, last) - _tile_bytes(tensor, d.block_k)


def _key_outer_bytes(sums: BlockSums, tensor: Tensor, access: Access) -> int:
    d = sums.domain
    blocks, at_end = sums.key_range() if access.visited_only else (sums.key_blocks, 1)
    unmasked = not access.visited_only or (sums.left is None and sums.right is None)
    if unmasked and access.edge is not Edge.WHOLE and not tensor.is_vector:
        return d.seq_k * tensor.row_bytes
    whole = blocks * _tile_bytes(tensor, d.block_k)
    return whole if access.edge is Edge.WHOLE else whole + at_end * _ragged_key_tile(sums, tensor)


def _times_owned(sums: BlockSums, access: Access) -> int:
    """How often a (batch, head) moves rows that no tile cuts."""
    if access.per is Per.LAUNCH:
        return 1
    if access.per is Per.KEY:
        return sums.key_blocks
    if access.per is Per.PAIR:
        return sums.visits.total if sums.visits.each is None else sums.visits.each * sums.query_blocks
    return sums.query_blocks * (sums.domain.splits if access.per is Per.SPLIT else 1)


def access_bytes(sums: BlockSums, tensor: Tensor, access: Access) -> int:
    """Bytes one (batch, head) of the grid moves for one access."""
    if tensor.keys_per_row:
        from iosim.readers.formula.table_sums import TableSums  # builds on this module

        return TableSums(sums.domain).sectors(tensor.keys_per_sector) * SECTOR_BYTES
    if access.rows == "own":
        moved = _times_owned(sums, access) * _tile_bytes(tensor, tensor.rows)
    elif access.rows == "qk":
        moved = _pair_bytes(sums, tensor, access.edge)
    elif access.rows == "q":
        moved = _query_bytes(sums, tensor, access)
    elif access.per is Per.PAIR:
        moved = _key_bytes_per_pair(sums, tensor, access.edge)
    else:
        moved = _key_outer_bytes(sums, tensor, access)
    return moved * access.times


def _sums(domain: Domain) -> list[tuple[int, BlockSums]]:
    """(how often, sums) of the parts of a domain: one, or each pair of lengths of packed sequences."""
    mask = domain.mask
    if isinstance(mask, IntervalMask):
        return [(1, BlockSums(domain))]
    if isinstance(mask, PackedMask):
        per, pack = domain.key_blocks_per_split, domain.pack
        parts = Counter(zip(mask.masks, mask.seq_q, mask.seq_k, strict=True))
        return [(n, BlockSums(replace(domain, rows=q * pack, seq_k=k, mask=m), per)) for (m, q, k), n in parts.items()]
    from iosim.readers.formula.block_sums import ListSums

    return [(1, ListSums(domain))]


def overhead_bytes(launch: Launch, overhead: Overhead, parts: list[tuple[int, BlockSums]] | None = None) -> int:
    """Bytes of an overhead over the whole launch. `parts` are the sums of its domain, where they are at hand."""
    d = launch.domain
    heads = d.batch * d.heads
    per_head = {
        "q": d.query_blocks, "k": d.key_blocks_total, "qk": d.query_blocks * d.key_blocks_total,
        "q,split": d.query_blocks * d.splits, "head": 1, "flat": d.query_blocks,
    }[launch.outer]  # fmt: skip
    tiles = per_head * heads
    ctas = tiles if launch.persistent_ctas is None else minimum(launch.persistent_ctas, tiles)
    total = overhead.per_cta * ctas + overhead.per_tile * tiles + overhead.per_tile_fetch * (tiles + ctas)
    if overhead.per_pair:
        for n, sums in parts or _sums(d):
            visits = sums.visits
            pairs = visits.total if visits.each is None else visits.each * sums.query_blocks
            total += overhead.per_pair * pairs * heads * n
    return total


def _launch_form(launch: Launch, chain: Chain) -> Traffic:
    parts = _sums(launch.domain)
    heads = launch.domain.batch * launch.domain.heads
    made: dict[tuple[str, str], int] = {}
    for access in launch.accesses:
        key = (access.tensor, access.mode.direction)
        tensor = chain.tensors[access.tensor]
        if access.per is Per.LAUNCH:
            moved = access_bytes(parts[0][1], tensor, access)
        else:
            moved = heads * sum(n * access_bytes(sums, tensor, access) for n, sums in parts)
        made[key] = made.get(key, 0) + moved
    for overhead in launch.overheads:
        key = (overhead.name, overhead.mode.direction)
        made[key] = made.get(key, 0) + overhead_bytes(launch, overhead, parts)
    return Traffic(tuple(TrafficRow(launch.name, "l2", t, d, n) for (t, d), n in made.items()))


def closed_form(chain: Chain) -> Traffic:
    """SM<->L2 bytes of every launch of a chain, a row per launch, tensor and direction; equal to
    `iosim.readers.count.count`.

    Rows hold ints, or duals where the chain was planned on duals.
    """
    out = Traffic()
    for launch in chain.launches:
        out += _launch_form(launch, chain)
    return out
