"""Lowers a chain to integer arrays: objects of memory, and for every launch its work tiles with what they access.

An object is a tile of a tensor, small enough that every launch moves whole objects. Work tiles stand in the order in
which the launch's schedule starts them. Launches that only stream tensors ("flat") go through the objects of all their
tensors side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iosim.base.progress import progress
from iosim.base.records import dataclass, replace
from iosim.kernel.launch import SPILL, Access, Chain, Domain, Launch, Mode, Outer, Overhead, Per, Role, Rows, Tensor
from iosim.kernel.remap import place
from iosim.kernel.schedule import Direction, Order
from iosim.kernel.touched import TOUCHED_MODES, Touched
from iosim.problem.masks.mask import Steps
from iosim.problem.masks.picked import BlockPicks, PickedMask, WindowedMask
from iosim.readers.replay.blocks import Blocks
from iosim.readers.replay.objects import Grid, cut, gathers, refuse_too_large, streams

Int32 = npt.NDArray[np.int32]
NONE = -1
MODES = {Mode.LOAD: 0, Mode.STORE: 1, Mode.REDUCE: 2}
TILES_AT_ONCE = 1 << 18
"""Work tiles of an elementwise pass that are lowered together: 64-bit numbers of all would fill gigabytes."""


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
        """Whether every step stores to the same place."""
        return self.coef == 0 and self.mode != MODES[Mode.LOAD]


@dataclass(frozen=True)
class LoweredLaunch:
    """Work tiles in start order: loop index runs over [first, first + count)."""

    name: str
    first: Int32
    count: Int32
    prologue: tuple[Template, ...]
    loop: tuple[Template, ...]
    epilogue: tuple[Template, ...]
    down: npt.NDArray[np.uint8]
    """1 where a work tile walks its indices from the last to the first."""
    head: Int32
    block: Int32
    owned: tuple[tuple[range, int], ...] = ()
    """Objects that change hands before this launch: (objects, tensor number)."""
    group: int = 1
    """Work tiles that one CTA takes together: all key blocks of a head where a CTA walks whole heads."""
    indices: Int32 | None = None
    """Where loop indices do not run on: step s of a work tile has index indices[first + s]."""
    joined: bool = False
    """Whether work tiles of two launches are there."""

    @property
    def tiles(self) -> int:
        return int(self.first.size)

    @property
    def accesses(self) -> int:
        """Object accesses of the whole launch, those among them that are skipped."""
        per_step = sum(t.span * t.rows for t in self.loop)
        once = sum(int((t.base != NONE).sum()) * t.span * t.rows for t in (*self.prologue, *self.epilogue))
        return int(self.count.sum(dtype=np.int64)) * per_step + once


class LoweredLaunches(Sequence[LoweredLaunch]):
    def __init__(self, lower_one: Callable[[int], LoweredLaunch], number: int) -> None:
        self._lower_one, self._number = lower_one, number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, at: Any) -> Any:
        return self._lower_one(range(self._number)[at])


@dataclass(frozen=True)
class Lowered:
    tensors: tuple[str, ...]
    size: Int32
    owner: npt.NDArray[np.uint8]
    launches: Sequence[LoweredLaunch]
    own: tuple[float, ...]
    """Of each tensor the part of its objects' bytes that is its own: they are as large as the lines that they touch."""


def lower(chain: Chain, spill_slots: int) -> Lowered:
    """The chain as integer arrays. `spill_slots` is how many CTAs are resident, each with local memory of its own.
    Raises InputError: more objects or work tiles than fit in memory."""
    refuse_too_large(chain)
    grids: dict[str, Grid] = {}
    sizes: list[Int32] = []
    owners: list[npt.NDArray[np.uint8]] = []
    tensors = list(chain.tensors)
    first = 0
    blocks = Blocks(chain)
    lasting = (n for n, t in chain.tensors.items() if t.role is not Role.TEMP)
    for name in progress("cutting tensors into objects")((*lasting, *blocks.temps)):
        grid, size = cut(chain, chain.tensors[name], first)
        freed = blocks.take(name, grid, size)
        if freed is not None:
            grids[name] = freed
            continue
        grids[name] = grid
        sizes.append(size)
        owners.append(np.full(grid.count, tensors.index(name), dtype=np.uint8))
        first += grid.count
    frame_first: dict[str, tuple[int, ...]] = {}
    for launch in chain.launches:
        parts = frame_parts(launch)
        frame_first[launch.name] = tuple(first + n * spill_slots if part else NONE for n, part in enumerate(parts))
        for part in parts:
            sizes.append(np.full(spill_slots, part, dtype=np.int32))
            owners.append(np.full(spill_slots, len(tensors), dtype=np.uint8))
            first += spill_slots
    tensors.append(SPILL)

    def alone(n: int) -> LoweredLaunch:
        launch = chain.launches[n]
        return _lower_launch(chain, launch, grids, frame_first[launch.name], spill_slots)

    def lower_one(n: int) -> LoweredLaunch:
        lowered = alone(n)
        if chain.launches[n].joins:
            lowered = _none_of(lowered)
        elif n + 1 < len(chain.launches) and chain.launches[n + 1].joins:
            lowered = _one_grid(lowered, alone(n + 1), *(chain.launches[m].domain for m in (n, n + 1)))
        return replace(lowered, owned=blocks.owned(n, grids, tensors))

    launches = LoweredLaunches(lower_one, len(chain.launches))
    own = tuple(grids[n].own if n in grids else 1.0 for n in tensors)
    return Lowered(tuple(tensors), np.concatenate(sizes), np.concatenate(owners), launches, own)


def _spills(launch: Launch, mode: Mode) -> Overhead | None:
    each = [o for o in launch.overheads if o.name == SPILL and o.mode is mode]
    if not each:
        return None
    sums = {name: sum(getattr(o, name) for o in each) for name in ("per_tile", "per_pair")}
    return replace(each[0], **sums, frame=max(o.frame for o in each))


def frame_parts(launch: Launch) -> tuple[int, ...]:
    """Bytes of the local memory of a CTA's threads that a step of its loop stores into, and of the rest of their stack
    frames, which a work tile stores into once; none where no register is spilled. Local memory belongs to the threads
    that are resident: the next CTA in their place stores to the same addresses. Where the frame is not known, each part
    is as large as what is stored there once."""
    stored = _spills(launch, Mode.STORE)
    if stored is None:
        return ()
    step = min(stored.per_pair, stored.frame or stored.per_pair)
    return max(0, step), max(0, stored.frame - step if stored.frame else stored.per_tile)


def start_order(launch: Launch) -> tuple[Int32, Int32]:
    """(grid head, block) of every work tile, in the order in which they start. A block is a query block, a key block
    for `outer` "k", a (key block, query block) pair for "qk", a (query block, split) for "q,split". Grid heads count
    batch x heads with heads inside. Where a head's key blocks are split ("head"), those of a CTA follow one another,
    and CTAs with fewer than others end with blocks that do not exist."""
    d, s = launch.domain, launch.schedule
    blocks = launch.work_tiles // d.grid_heads
    if launch.outer is Outer.HEAD:
        blocks = d.splits * _rounds(launch)
    sequences = d.sequences  # packed ones: each has as many of the grid's blocks, as sequences of a batch have
    b, h, i = d.batch * sequences, d.heads, blocks // sequences
    schedule = s if launch.outer is Outer.QUERY else replace(s, cluster=1)
    if launch.outer is Outer.HEAD:
        schedule = replace(schedule, order=Order.QUERY, section_heads=0)
    whole = -(-i // schedule.cluster) * schedule.cluster
    order = np.arange(b * h * whole, dtype=np.int64)
    head, block = place(schedule, order, blocks=i, heads=b * h, batch=b)
    if whole > i:
        there = block < i
        head, block = head[there], block[there]
    if sequences > 1:
        head, block = head % h, head // h * i + block
    if launch.outer is Outer.HEAD:
        block = block // _rounds(launch) + block % _rounds(launch) * d.splits
    return head.astype(np.int32), block.astype(np.int32)


def _lower_launch(
    chain: Chain, launch: Launch, grids: dict[str, Grid], frame_first: tuple[int, ...], spill_slots: int
) -> LoweredLaunch:
    if launch.touched is not None:
        return _lower_touched(launch, launch.touched, grids)
    if streams(launch):
        return _lower_flat(chain, launch, grids)
    d = launch.domain
    head, block = start_order(launch)
    there = block < d.key_blocks_total if launch.outer is Outer.HEAD else None
    if there is not None:
        block = np.where(there, block, 0).astype(np.int32)
    tiles = _tiles(launch, head.astype(np.int64), block.astype(np.int64))
    if gathers(chain, launch):
        each = next(t.keys_per_row for a in launch.accesses if (t := chain.tensors[a.tensor]).is_list)
        tiles = _gathering(launch, tiles, each)
        launch = replace(launch, domain=replace(d, block_k=each))
    elif launch.walks_again:
        tiles = replace(tiles, steps=_again(tiles.steps, max(a.times for a in launch.accesses)))
    steps = tiles.steps
    first, count = steps.first.astype(np.int32), steps.count.astype(np.int32)
    if there is not None:
        count = np.where(there, count, 0).astype(np.int32)
    templates: dict[str, list[Template]] = {"pro": [], "loop": [], "epi": []}
    for access in progress(f"work tiles of {launch.name}")(launch.accesses):
        grid = grids[access.tensor]
        for run in _runs(launch, access):
            template, where = _template(chain.tensors[access.tensor], access, launch, grid, tiles, run)
            if there is not None:
                template = replace(template, base=np.where(there, template.base, NONE).astype(np.int32))
            if access.skip:
                skips, of_tile = _skips(launch, access, block, steps)
                template = replace(template, skips=skips, block=of_tile)
            templates[where].append(template)
    takes = count > 0 if there is None else np.ones_like(there)  # without rows a work tile ends at once
    slot = (np.cumsum(takes) - 1) % spill_slots
    frames = [np.where(count > 0, at + slot, NONE).astype(np.int32) for at in frame_first]
    for at, frame, where in zip(frame_first, frames, ("loop", "pro"), strict=False):
        if at != NONE:
            templates[where].append(Template(SPILL, MODES[Mode.STORE], frame))
    reloaded = _spills(launch, Mode.LOAD)
    if reloaded is not None and reloaded.per_pair and frame_first and frame_first[0] != NONE:
        templates["loop"].append(Template(SPILL, MODES[Mode.LOAD], frames[0]))
    if launch.schedule.direction is Direction.ALTERNATING:
        down = (block // launch.schedule.cluster & 1).astype(np.uint8)
    else:
        down = np.full(block.size, launch.schedule.direction is Direction.DESCENDING, dtype=np.uint8)
    prologue, loop, epilogue = map(tuple, templates.values())
    return LoweredLaunch(
        launch.name, first, count, prologue, loop, epilogue, down, head, block,
        group=_rounds(launch) if launch.outer is Outer.HEAD else 1,
        indices=None if steps.indices is None else steps.indices.astype(np.int32),
    )  # fmt: skip


def _lower_touched(launch: Launch, touched: Touched, grids: dict[str, Grid]) -> LoweredLaunch:
    """A launch whose code was read: a step is an access of one object. A template a mode goes over all objects, and
    leaves out the indices of other modes."""
    total, tiles = touched.total, touched.first.size
    place = np.concatenate(
        [np.arange(grids[name].first, grids[name].first + sizes.size) for name, sizes in touched.objects.items()]
    )
    low, high = int(place.min()), int(place.max()) + 1
    indices = np.empty_like(touched.entries)
    for part in range(0, touched.entries.size, TILES_AT_ONCE):
        mode, number = np.divmod(touched.entries[part : part + TILES_AT_ONCE], total)
        indices[part : part + TILES_AT_ONCE] = mode * (high - low) + place[number] - low
    zeros, there = np.zeros(tiles, dtype=np.int32), np.unique(indices // (high - low))
    templates = []
    for mode in there:
        skips = np.zeros(len(TOUCHED_MODES) * (high - low), dtype=np.int32)
        skips[mode * (high - low) : (mode + 1) * (high - low)] = NONE
        base = np.full(tiles, low, dtype=np.int32)
        name = next(iter(touched.objects))
        templates.append(Template(name, int(mode), base, 1, turn=high - low, skips=skips, block=zeros))
    return LoweredLaunch(
        launch.name, touched.first, touched.count, (), tuple(templates), (), zeros.astype(np.uint8), zeros,
        np.arange(tiles, dtype=np.int32), indices=indices,
    )  # fmt: skip


def _none_of(low: LoweredLaunch) -> LoweredLaunch:
    none = np.zeros(0, dtype=np.int32)
    return LoweredLaunch(low.name, none, none, (), (), (), none.astype(np.uint8), none, none)


def _one_grid(a: LoweredLaunch, b: LoweredLaunch, of_a: Domain, of_b: Domain) -> LoweredLaunch:
    """Two launches as one grid: of each key/value head the work tiles of `a`, and then those of `b`, whose heads are
    query heads; sequences inside."""
    group = of_b.heads // of_a.heads
    sequence, head = np.divmod(np.concatenate([a.head * group, b.head]), of_b.heads)
    order = np.argsort(head // group * of_a.batch + sequence, kind="stable")
    missing = [np.full(low.tiles, NONE, dtype=np.int32) for low in (a, b)]

    def both(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(a, name), getattr(b, name)])[order]

    def placed(of: str) -> tuple[Template, ...]:
        first = [replace(t, base=np.concatenate([t.base, missing[1]])[order]) for t in getattr(a, of)]
        return (*first, *(replace(t, base=np.concatenate([missing[0], t.base])[order]) for t in getattr(b, of)))

    listed = [np.arange((x.first + x.count).max(initial=0)) if x.indices is None else x.indices for x in (a, b)]
    first = np.concatenate([a.first, b.first + listed[0].size])[order].astype(np.int32)
    return LoweredLaunch(
        a.name, first, both("count"), placed("prologue"), placed("loop"), placed("epilogue"), both("down"),
        both("head"), both("block"), indices=np.concatenate(listed).astype(np.int32), joined=True,
    )  # fmt: skip


@dataclass(frozen=True)
class _Tiles:
    head: npt.NDArray[np.int64]
    steps: Steps
    i: npt.NDArray[np.int64] | None = None
    j: npt.NDArray[np.int64] | None = None


def _rounds(launch: Launch) -> int:
    """Key blocks that a CTA walks, one after the other, where a work tile is a head or a split of one."""
    return -(-launch.domain.key_blocks_total // launch.domain.splits)


def _tiles(launch: Launch, head: npt.NDArray[np.int64], block: npt.NDArray[np.int64]) -> _Tiles:
    d = launch.domain
    if launch.outer is Outer.QUERY:
        s = d.visited.by_query()
        return _Tiles(head, Steps(s.first[block], s.count[block], s.indices), i=block)
    if launch.outer is Outer.SPLIT:
        s = d.visited.by_split(d.key_blocks_per_split, d.splits)
        tile = block % d.query_blocks * d.splits + block // d.query_blocks
        return _Tiles(head, Steps(s.first[tile], s.count[tile], s.indices), i=block)
    if launch.walks_round:
        twice = np.tile(np.arange(d.query_blocks), 2)
        steps = Steps(block % d.splits % d.query_blocks, np.full(block.size, d.query_blocks), twice)
        return _Tiles(head, steps, j=block)
    if launch.outer in (Outer.KEY, Outer.HEAD):
        s = d.visitors
        return _Tiles(head, Steps(s.first[block], s.count[block], s.indices), j=block)
    zero = np.zeros(block.size, dtype=np.int64)
    return _Tiles(head, Steps(zero, zero + 1), block % d.query_blocks, block // d.query_blocks)


def _gathering(launch: Launch, tiles: _Tiles, each: int) -> _Tiles:
    """Work tiles that step over the entries of their queries' lists, those that have a key; an entry stands for `each`.
    NB: a CTA so waits for its rows one after the other, though a kernel asks for those of a block at once: the replay's
    own clock, which a trace shows, is late; the order of its accesses is not."""
    d, mask = launch.domain, launch.domain.mask
    assert tiles.i is not None
    assert isinstance(mask, PickedMask | WindowedMask | BlockPicks)
    split, block = np.divmod(tiles.i, d.query_blocks)
    token = block * d.block_q // d.pack
    per = d.key_blocks_per_split * d.block_k if launch.outer is Outer.SPLIT else d.seq_k
    first = split * per
    count = np.clip(np.minimum(mask.end_key(token, d.seq_k), first + per) - first, 0, None)
    first, count = first // each, -(-count // each)
    start = np.cumsum(count) - count
    entries = np.arange(int(count.sum())) + np.repeat(first - start, count)
    picked = mask.picks(np.repeat(token, count), entries, d.seq_k)
    return replace(tiles, steps=Steps(start, count, picked))


def _again(steps: Steps, walks: int) -> Steps:
    """Steps of work tiles that go over their keys several times."""
    count = steps.count * walks
    start = np.cumsum(count) - count
    inside = (np.arange(int(count.sum())) - np.repeat(start, count)) % np.repeat(np.maximum(steps.count, 1), count)
    at = np.repeat(steps.first, count) + inside
    return Steps(start, count, at if steps.indices is None else steps.indices[at])


def _runs(launch: Launch, access: Access) -> list[tuple[int, int]]:
    """Neighbouring query blocks that are moved together, where an access is made once for a whole head: all, or those
    that visit a key block. One run of no meaning for all other accesses."""
    d = launch.domain
    if launch.outer is not Outer.HEAD or not access.visited_only or access.per is not Per.QUERY:
        return [(0, d.query_blocks)]
    edge = np.diff((d.visited.count > 0).astype(np.int8), prepend=0, append=0)
    runs = list(zip(np.flatnonzero(edge == 1).tolist(), np.flatnonzero(edge == -1).tolist(), strict=True))
    return runs or [(0, 0)]


def _skips(launch: Launch, access: Access, block: Int32, steps: Steps) -> tuple[Int32, Int32]:
    """Where an access that skips a visit is not made, the first one for a load, the last for a store, whichever CTA
    comes first or last: a number for each loop index, and one for each work tile; where they are equal it is left out.
    Where a CTA walks the keys of a query block they are loop indices; with keys outside, key blocks for a query block's
    rows, and query blocks for a key block's. Raises ValueError: another launch, or more visits left out than one."""
    if access.skip != 1 or access.per is not Per.PAIR or launch.outer not in (Outer.HEAD, Outer.KEY, Outer.QUERY):
        hint = "a replay skips one visit of a launch that walks keys outside, or the keys of a query block"
        raise ValueError(f"launch {launch.name} skips {access.skip} of the accesses of {access.tensor}; {hint}")
    first, d = access.mode is Mode.LOAD, launch.domain
    if launch.outer is Outer.QUERY or access.rows is Rows.KEY:
        if launch.outer is Outer.QUERY:
            first = first != (launch.schedule.direction is Direction.DESCENDING)
        at = steps.first if first else steps.first + steps.count - 1
        index = at if steps.indices is None else steps.indices[np.clip(at, 0, steps.indices.size - 1)]
        blocks = d.key_blocks_total if launch.outer is Outer.QUERY else d.visited.count.size
        return np.arange(blocks, dtype=np.int32), index.astype(np.int32)
    visited = d.visited
    where = visited.first if first else visited.end - 1
    return np.where(visited.count > 0, where, NONE).astype(np.int32), block


def owner_of(tensor: Tensor, d: Domain, head: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The tensor's own (batch, head), counted as grid heads are, of each grid head: heads of a group share a key/value
    head, and all heads or sequences what has one."""
    inside = head % d.heads // max(1, d.heads // tensor.heads)
    return (head // d.heads if tensor.batch > 1 else 0) * tensor.heads + inside


def _template(
    tensor: Tensor, access: Access, launch: Launch, grid: Grid, tiles: _Tiles, run: tuple[int, int]
) -> tuple[Template, str]:
    """One access as a template, and where it stands: before the loop, in it, or after it. `run` is of query blocks that
    are moved together, where a whole head's are."""
    d = launch.domain
    head, i, j = tiles.head, tiles.i, tiles.j
    own = access.rows is Rows.QUERY and tensor.heads >= d.heads
    apart = own and d.pack > 1 and not d.in_turn and grid.heads > d.grid_heads * tensor.copies
    owner = (head * d.pack if d.in_turn or apart else head) if own else owner_of(tensor, d, head)
    start, step = grid.start_of(owner), grid.step
    looped = access.per is Per.PAIR
    span_q = max(1, (d.block_q // d.pack if apart else d.of(tensor).block_q) // grid.chunk_rows)
    span_k = max(1, d.block_k // (grid.chunk_cols if access.rows is Rows.PAIR else grid.chunk_rows))
    coef, span, rows, stride, turn, turn_coef = 0, 1, 1, 0, 0, 0
    base, of_head = start, False
    table = tensor.keys_per_row > 0 and access.rows is Rows.KEY  # a sequence's entries as a whole, before the loop
    if table and tensor.along is Rows.QUERY:  # a list of picked keys, its query's own
        assert i is not None
        base = base + i % d.query_blocks * d.block_q // d.pack // grid.chunk_rows * step
    elif access.rows is Rows.OWN or table:
        span = grid.rows * grid.cols
        if access.per is Per.LAUNCH:
            base = np.where(np.arange(head.size) == 0, base, NONE)
        elif tensor.copies > 1 and i is not None:  # one a block
            each = grid.heads // tensor.copies * span
            coef, base = (each, base) if looped else (0, base + i * each)
    elif access.rows is Rows.QUERY:
        span = span_q
        if access.per is Per.SPLIT and tensor.copies > 1:
            assert i is not None
            base = base + i // d.query_blocks * (grid.heads // tensor.copies) * grid.rows * grid.cols
        if launch.outer is Outer.SPLIT and i is not None:
            i = i % d.query_blocks
        if i is not None:
            base = base + grid.row_of(i, d.query_blocks, span_q) * step
        elif looped:
            coef = span_q * step
            base = base + grid.row_shift(j, d.key_blocks_total, d.query_blocks, span_q) * step
            if d.in_turn and own:
                turn, turn_coef = d.query_blocks // d.pack, 1 if step > 1 else grid.rows * grid.cols
        else:  # a whole head's rows: by each CTA as it starts, or once, after the last key block
            assert j is not None
            lo, hi = run
            span = min(hi * span_q, grid.rows) - lo * span_q
            here = j < d.splits if access.per is Per.SPLIT else j == d.key_blocks_total - 1
            base, of_head = np.where(here, base + lo * span_q * step, NONE), True
    elif access.rows is Rows.KEY:
        span = span_k
        if j is not None:
            at = j % (grid.rows // span_k) if tensor.wraps else j
            base = base + grid.row_of(at, d.key_blocks_total, span_k) * step
        else:
            coef = span_k * step
            base = base + grid.row_shift(i, d.query_blocks, d.key_blocks_total, span_k) * step
    else:
        span, rows, stride = span_k, span_q, grid.cols
        i = i % d.query_blocks if launch.outer is Outer.SPLIT and i is not None else i
        base = base + (i * span_q * grid.cols if i is not None else 0) + (j * span_k if j is not None else 0)
        if i is None:
            coef = span_q * grid.cols
        elif j is None:
            coef = span_k
    base32 = np.asarray(base, dtype=np.int64)
    if access.visited_only and not looped and not of_head:
        base32 = np.where(tiles.steps.count > 0, base32, NONE)
    if apart:  # each of the heads packed
        rows, stride = d.pack, grid.rows * grid.cols
    if step > 1:  # rows of a head lie apart
        span, rows, stride = rows if apart else 1, span, step
    places = base32.astype(np.int32), coef, span, rows, stride, turn, turn_coef
    inside = looped and launch.outer is not Outer.PAIR and not table
    return Template(access.tensor, MODES[access.mode], *places), _stands(access, launch, inside, of_block=j is not None)


def _stands(access: Access, launch: Launch, inside: bool, of_block: bool) -> str:
    """Before a work tile's loop, in it, or after it; `of_block`: work tiles are of key blocks."""
    if access.mode is Mode.LOAD:
        return "loop" if inside or launch.outer is Outer.PAIR else "pro"
    if access.per is Per.SPLIT and of_block:
        return "pro"
    return "loop" if inside else "epi"


def _lower_flat(chain: Chain, launch: Launch, grids: dict[str, Grid]) -> LoweredLaunch:
    """Objects of all tensors side by side: work tile w of n takes its share of each tensor's objects. What all heads
    share (an additive mask) is gone through once a head."""
    names = list(dict.fromkeys(a.tensor for a in launch.accesses))
    heads = {n: chain.tensors[n].batch * chain.tensors[n].heads for n in names}
    passes = {n: max(1, launch.domain.grid_heads // heads[n]) for n in names}
    tiles = max(grids[n].count * passes[n] for n in names)
    loop: list[Template] = []
    epilogue: list[Template] = []
    for access in progress(f"work tiles of {launch.name}")(launch.accesses):
        grid = grids[access.tensor]
        shared, each = passes[access.tensor] > 1, grid.rows * grid.cols
        base = np.empty(tiles, dtype=np.int32)
        for first in range(0, tiles, TILES_AT_ONCE):
            w = np.arange(first - 1, min(first + TILES_AT_ONCE, tiles), dtype=np.int64)
            item = w * grid.count * passes[access.tensor] // tiles
            new, item = item[1:] != item[:-1], item[1:]
            if shared:
                item = owner_of(chain.tensors[access.tensor], launch.domain, item // each) * each + item % each
            base[first : first + item.size] = np.where(new, grid.first + item, NONE)
        template = Template(access.tensor, MODES[access.mode], base)
        (loop if access.mode is Mode.LOAD else epilogue).append(template)
    one = np.ones(tiles, dtype=np.int32)
    zero = np.zeros(tiles, dtype=np.int32)
    down, block = np.zeros(tiles, dtype=np.uint8), np.arange(tiles, dtype=np.int32)
    return LoweredLaunch(launch.name, zero, one, (), tuple(loop), tuple(epilogue), down, zero, block)
