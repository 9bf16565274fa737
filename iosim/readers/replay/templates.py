"""One access of a launch as a template: which objects a work tile touches at each index of its loop.

A template's objects are base[tile] + coef x index + row x row_stride + col, for row < rows and col < span. Where the
numbers of a block's place stand depends on what a work tile is (the launch's outer loop) and on whose rows the access
moves. `start` is the first object of the head's tensor, q and k the work tile's query and key block, span_q and span_k
the objects in such a block:

    rows      outer loop    base                       coef            span     rows, stride
    query     query, split  start + span_q q           0               span_q   1
    query     key, head     start                      span_q          span_q   1                index: query block
    query     pair          start + span_q q           0               span_q   1
    key       query, split  start                      span_k          span_k   1                index: key block
    key       key, head     start + span_k k           0               span_k   1
    key       pair          start + span_k k           0               span_k   1
    pair      query, split  start + span_q q columns   span_k          span_k   span_q, columns  index: key block
    pair      key, head     start + span_k k           span_q columns  span_k   span_q, columns  index: query block
    pair      pair          both                       0               span_k   span_q, columns
    own       any           start                      0               all      1                a vector as a whole

Packed sequences add to base what lies before the block's own sequence (`Grid.row_of`, `Grid.row_shift`). Where rows of
a head lie apart in memory (`Grid.step` > 1), the next rows are so many objects on, and span and rows change places.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iosim.base.records import cached_property, dataclass
from iosim.kernel.launch import Access, Domain, Launch, Mode, Outer, Per, Rows, Tensor
from iosim.problem.masks.mask import Steps
from iosim.readers.replay.objects import Grid

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
NONE = -1
"""In place of an object: the work tile makes no access."""
MODES = {Mode.LOAD: 0, Mode.STORE: 1, Mode.REDUCE: 2}
LAST_LOAD = 3
"""A load after which its line goes first, as `LAST_LOAD` of shared.h."""
"""Modes as the engine numbers them (shared.h)."""


@dataclass(frozen=True)
class Template:
    """Objects base[tile] + coef x index + row x row_stride + col, for row < rows and col < span. Where heads come in
    turn, `turn` indices of each, a head begins `turn_coef` objects after the one before it. Where `skips` is there, a
    work tile whose `block` is skips[index] makes no access at that index."""

    tensor: str
    mode: int
    base: Int32
    coef: int = 0
    span: int = 1
    rows: int = 1
    row_stride: int = 0
    turn: int = 0
    turn_coef: int = 0
    skips: Int32 | None = None
    block: Int32 | None = None

    @property
    def stays(self) -> bool:
        """True where every step stores to the same place."""
        return self.coef == 0 and self.mode != MODES[Mode.LOAD]


@dataclass(frozen=True)
class WorkTiles:
    """The work tiles of a launch in start order, with the steps of their loops. `i`: the query block of each; where
    keys are split, split x query blocks + query block. `j`: the key block. None where the loop goes over them."""

    head: Int64
    steps: Steps
    i: Int64 | None = None
    j: Int64 | None = None


def owner_of(tensor: Tensor, d: Domain, head: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The tensor's own (batch, head), counted as grid heads are, of each grid head: heads of a group share a key/value
    head, and all heads or sequences what has one."""
    # Grid head = batch x heads + head. Grouped queries: consecutive heads share a key/value head.
    inside = head % d.heads // max(1, d.heads // tensor.heads)
    return (head // d.heads if tensor.batch > 1 else 0) * tensor.heads + inside


@dataclass(frozen=True)
class _Place:
    """The numbers of a template before packed heads and rows that lie apart are seen to."""

    base: Int64
    coef: int = 0
    span: int = 1
    rows: int = 1
    row_stride: int = 0
    turn: int = 0
    turn_coef: int = 0
    of_whole_head: bool = False
    """A head's rows are moved together, by some of its work tiles alone: `base` says already by which."""


@dataclass(frozen=True)
class _View:
    """An access with all that decides its objects."""

    tensor: Tensor
    access: Access
    launch: Launch
    grid: Grid
    tiles: WorkTiles

    @property
    def domain(self) -> Domain:
        return self.launch.domain

    @cached_property
    def has_every_query_head(self) -> bool:
        return self.access.rows is Rows.QUERY and self.tensor.heads >= self.domain.heads

    @cached_property
    def packs_apart(self) -> bool:
        """Heads packed into a tile have rows in objects of their own."""
        d = self.domain
        packs = d.pack > 1 and not d.in_turn
        return (
            self.has_every_query_head
            and packs
            and self.grid.heads > d.grid_heads * self.tensor.copies
        )

    @cached_property
    def start(self) -> Int64:
        """First object of each work tile's head."""
        d, head = self.domain, self.tiles.head
        if not self.has_every_query_head:
            return self.grid.start_of(owner_of(self.tensor, d, head))
        return self.grid.start_of(head * d.pack if d.in_turn or self.packs_apart else head)

    @property
    def is_looped(self) -> bool:
        return self.access.per is Per.PAIR

    @property
    def is_table(self) -> bool:
        """A block table, whose entries of a sequence are read as a whole before the loop."""
        return self.tensor.keys_per_row > 0 and self.access.rows is Rows.KEY

    @cached_property
    def query_span(self) -> int:
        """Objects of a query block, along its rows."""
        d = self.domain
        rows = d.block_q // d.pack if self.packs_apart else d.of(self.tensor).block_q
        return max(1, rows // self.grid.chunk_rows)

    @cached_property
    def key_span(self) -> int:
        """Objects of a key block: along columns where the access moves pairs."""
        chunk = self.grid.chunk_cols if self.access.rows is Rows.PAIR else self.grid.chunk_rows
        return max(1, self.domain.block_k // chunk)

    @cached_property
    def query_block(self) -> Int64 | None:
        """The query block of each work tile, without its split."""
        i = self.tiles.i
        if i is None or self.launch.outer is not Outer.SPLIT:
            return i
        return i % self.domain.query_blocks


def template(
    tensor: Tensor,
    access: Access,
    launch: Launch,
    grid: Grid,
    tiles: WorkTiles,
    run: tuple[int, int],
) -> tuple[Template, str]:
    """One access as a template, and where it stands: before the loop, in it, or after it. `run` is of query blocks that
    are moved together, where a whole head's are."""
    view = _View(tensor, access, launch, grid, tiles)
    place = _place(view, run)
    # From here on what lies across all rows of the table at the head: tiles that leave early,
    # heads packed into a tile, and heads whose rows lie side by side in memory.
    base = np.asarray(place.base, dtype=np.int64)
    if access.visited_only and not view.is_looped and not place.of_whole_head:
        # A CTA that visits no block leaves before it asks for anything.
        base = np.where(tiles.steps.count > 0, base, NONE)
    span, rows, row_stride = place.span, place.rows, place.row_stride
    # `rows` and `span` are a rectangle of objects: with packed heads a row for each head, with
    # interleaved heads (grid.step objects from a head's row to its next) a row for each block row.
    if view.packs_apart:  # the same rows of each head packed
        rows, row_stride = launch.domain.pack, grid.rows * grid.cols
    if grid.step > 1:  # rows of a head lie apart
        span, rows, row_stride = rows if view.packs_apart else 1, span, grid.step
    places = base.astype(np.int32), place.coef, span, rows, row_stride, place.turn, place.turn_coef
    inside = view.is_looped and launch.outer is not Outer.PAIR and not view.is_table
    stands = _stands(access, launch, inside, of_block=tiles.j is not None)
    return Template(access.tensor, MODES[access.mode], *places), stands


def _place(view: _View, run: tuple[int, int]) -> _Place:
    if view.is_table and view.tensor.along is Rows.QUERY:
        return _picked_list(view)
    if view.is_table or view.access.rows is Rows.OWN:
        return _whole_vector(view)
    if view.access.rows is Rows.QUERY:
        return _query_rows(view, run)
    if view.access.rows is Rows.KEY:
        return _key_rows(view)
    return _pairs(view)


def _picked_list(view: _View) -> _Place:
    """The list of picked keys of a work tile's own queries."""
    d, grid, i = view.domain, view.grid, view.tiles.i
    assert i is not None
    first_token = i % d.query_blocks * d.block_q // d.pack
    return _Place(view.start + first_token // grid.chunk_rows * grid.step)


def _whole_vector(view: _View) -> _Place:
    """All rows of the head's vector, whatever the tile; of several copies the block's own."""
    grid, tiles, copies = view.grid, view.tiles, view.tensor.copies
    span = grid.rows * grid.cols
    base = view.start
    # Once a launch: the work tile that starts first makes the access for all.
    if view.access.per is Per.LAUNCH:
        return _Place(np.where(np.arange(tiles.head.size) == 0, base, NONE), span=span)
    if copies == 1 or tiles.i is None:
        return _Place(base, span=span)
    # Copies of a vector lie one behind the other, one for each query block.
    objects_per_copy = grid.heads // copies * span
    if view.is_looped:
        return _Place(base, coef=objects_per_copy, span=span)
    return _Place(base + tiles.i * objects_per_copy, span=span)


def _query_rows(view: _View, run: tuple[int, int]) -> _Place:
    d, grid, span = view.domain, view.grid, view.query_span
    i, j, base = view.tiles.i, view.tiles.j, view.start
    if view.access.per is Per.SPLIT and view.tensor.copies > 1:
        # Partial results: a copy of the tensor per split, one behind the other.
        assert i is not None
        base = (
            base + i // d.query_blocks * (grid.heads // view.tensor.copies) * grid.rows * grid.cols
        )
    # The work tile is of a query block: its rows stay where they are during the loop.
    if view.query_block is not None:
        return _Place(
            base + grid.row_of(view.query_block, d.query_blocks, span) * grid.step, span=span
        )
    if view.is_looped:
        base = base + grid.row_shift(j, d.key_blocks_total, d.query_blocks, span) * grid.step
        # Loop over query blocks. Where packed heads come in turn, an index counts blocks of all of
        # them: after query_blocks / pack indices the next head begins.
        turn = turn_coef = 0
        if d.in_turn and view.has_every_query_head:
            turn, turn_coef = (
                d.query_blocks // d.pack,
                1 if grid.step > 1 else grid.rows * grid.cols,
            )
        return _Place(base, coef=span * grid.step, span=span, turn=turn, turn_coef=turn_coef)
    # A whole head's rows: by each CTA as it starts, or once, after the last key block.
    assert j is not None
    low, high = run
    moves = j < d.splits if view.access.per is Per.SPLIT else j == d.key_blocks_total - 1
    base = np.where(moves, base + low * span * grid.step, NONE)
    return _Place(base, span=min(high * span, grid.rows) - low * span, of_whole_head=True)


def _key_rows(view: _View) -> _Place:
    d, grid, span = view.domain, view.grid, view.key_span
    i, j = view.tiles.i, view.tiles.j
    if j is not None:
        # A workspace in whole tiles is used again by a CTA's next key blocks.
        block = j % (grid.rows // span) if view.tensor.wraps else j
        return _Place(
            view.start + grid.row_of(block, d.key_blocks_total, span) * grid.step, span=span
        )
    shift = grid.row_shift(i, d.query_blocks, d.key_blocks_total, span)
    return _Place(view.start + shift * grid.step, coef=span * grid.step, span=span)


def _pairs(view: _View) -> _Place:
    """A query block's rows and a key block's columns of an N x N tensor."""
    columns, span_q, span_k = view.grid.cols, view.query_span, view.key_span
    i, j = view.query_block, view.tiles.j
    base = view.start
    if i is not None:
        # Object (r, c) of a head's matrix is r x columns + c; a tile is a rectangle of span_q rows.
        base = base + i * span_q * columns
    if j is not None:
        base = base + j * span_k
    coef = 0
    if i is None:
        coef = span_q * columns
    elif j is None:
        coef = span_k
    return _Place(base, coef=coef, span=span_k, rows=span_q, row_stride=columns)


def _stands(access: Access, launch: Launch, inside: bool, of_block: bool) -> str:
    """Before a work tile's loop ("pro"), in it, or after it ("epi"); `of_block`: work tiles are of key blocks."""
    if access.mode is Mode.LOAD:
        return "loop" if inside or launch.outer is Outer.PAIR else "pro"
    # With keys outside, what is stored for a split (zeros for its accumulator) comes first.
    if access.per is Per.SPLIT and of_block:
        return "pro"
    return "loop" if inside else "epi"
