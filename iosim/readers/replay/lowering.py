"""Lowers a chain to integer arrays: objects of memory, and for every launch its work tiles with what they access.

An object is a tile of a tensor, small enough that every launch moves whole objects. Work tiles stand in the order in
which the launch's schedule starts them. Launches that only stream tensors ("flat") go through the objects of all their
tensors side by side.

An access of a looping launch becomes a template, base[tile] + coefficient x index, for a rectangle of objects. The
table of these by outer loop and rows, with the span of the rectangle, is at the head of templates.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iosim.base.arrays import repeated
from iosim.base.progress import progress
from iosim.base.records import dataclass, replace
from iosim.kernel.launch import (
    SPILL,
    Access,
    Chain,
    Domain,
    Launch,
    Mode,
    Outer,
    Per,
    Role,
    Rows,
)
from iosim.kernel.remap import place
from iosim.kernel.schedule import Direction, Order, Schedule
from iosim.kernel.touched import TOUCHED_MODES, Touched
from iosim.problem.masks.mask import Steps
from iosim.problem.masks.picked import BlockPicks, PickedMask, WindowedMask
from iosim.readers.replay.blocks import Blocks
from iosim.readers.replay.frames import (
    frame_objects,
    frame_parts,
    played_uses,
    spills,
    with_frames,
)
from iosim.readers.replay.objects import Grid, cut, gathers, refuse_too_large, streams
from iosim.readers.replay.templates import MODES, NONE, Template, WorkTiles, owner_of, template

Int32 = npt.NDArray[np.int32]
TILES_AT_ONCE = 1 << 18
"""Work tiles of an elementwise pass that are lowered together: 64-bit numbers of all would fill gigabytes."""


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
    """True where work tiles of two launches are there."""

    @property
    def tiles(self) -> int:
        return int(self.first.size)

    @property
    def accesses(self) -> int:
        """Object accesses of the whole launch, those among them that are skipped."""
        per_step = sum(t.span * t.rows for t in self.loop)
        once = sum(
            int((t.base != NONE).sum()) * t.span * t.rows for t in (*self.prologue, *self.epilogue)
        )
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
    own_share: tuple[float, ...]
    """Fraction of each tensor's objects' bytes that is its own: they are as large as the lines that they touch."""


def lower(chain: Chain, spill_slots: int) -> Lowered:
    """The chain as integer arrays. `spill_slots` is how many CTAs are resident, each with local memory of its own.
    Raises InputError: more objects or work tiles than fit in memory."""
    # Objects are numbered through: tensors that outlive the chain first, then temporaries in the
    # order in which they come to life, so that one can take over the objects of a dead one.
    refuse_too_large(chain)
    grids: dict[str, Grid] = {}
    sizes: list[Int32] = []
    owners: list[npt.NDArray[np.uint8]] = []
    tensors = list(chain.tensors)
    first = 0
    blocks = Blocks(chain)
    first = _cut_tensors(blocks, chain, first, grids, owners, sizes, tensors)
    # Behind the tensors lie the frames of local memory, of each launch apart: spilled registers
    # of one launch are dead when the next begins, but their lines stay in the L2 until replaced.
    frame_first: dict[str, tuple[int, ...]] = {}
    for launch in chain.launches:
        firsts = []
        for frames in frame_objects(launch, spill_slots):
            firsts.append(first if frames.size else NONE)
            sizes.append(frames)
            owners.append(np.full(frames.size, len(tensors), dtype=np.uint8))
            first += frames.size
        frame_first[launch.name] = tuple(firsts)
    tensors.append(SPILL)

    # Launches are lowered when they are asked for: the arrays of a long chain's work tiles would
    # not fit in memory together.
    def alone(n: int) -> LoweredLaunch:
        launch = chain.launches[n]
        return _lower_launch(chain, launch, grids, frame_first[launch.name], spill_slots)

    def lower_one(n: int) -> LoweredLaunch:
        lowered = alone(n)
        if chain.launches[n].joins:
            lowered = _none_of(lowered)
        elif n + 1 < len(chain.launches) and chain.launches[n + 1].joins:
            lowered = _one_grid(
                lowered, alone(n + 1), *(chain.launches[m].domain for m in (n, n + 1))
            )
        return replace(lowered, owned=blocks.owned(n, grids, tensors))

    launches = LoweredLaunches(lower_one, len(chain.launches))
    own_share = tuple(grids[n].own_share if n in grids else 1.0 for n in tensors)
    return Lowered(
        tuple(tensors), np.concatenate(sizes), np.concatenate(owners), launches, own_share
    )


def _cut_tensors(
    blocks: Blocks,
    chain: Chain,
    first: int,
    grids: dict[str, Grid],
    owners: list[npt.NDArray[np.uint8]],
    sizes: list[Int32],
    tensors: list[str],
) -> int:
    """Every tensor as numbered objects: those that outlive the chain first, then temporaries in the order in which they come
    to life, so that one can take over the objects of a dead one. Returns the first number that is free."""
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
    return first


def start_order(launch: Launch) -> tuple[Int32, Int32]:
    """(grid head, block) of every work tile, in the order in which they start. A block is a query block, a key block
    for `outer` "k", a (key block, query block) pair for "qk", a (query block, split) for "q,split". Grid heads count
    batch x heads with heads inside. Where a head's key blocks are split ("head"), those of a CTA follow one another,
    and CTAs with fewer than others end with blocks that do not exist."""
    d, s = launch.domain, launch.schedule
    blocks = launch.work_tiles // d.grid_heads
    if launch.outer is Outer.HEAD:
        blocks = d.splits * _rounds(launch)
    sequences = (
        d.sequences
    )  # packed ones: each has as many of the grid's blocks, as sequences of a batch have
    b, h, i = d.batch * sequences, d.heads, blocks // sequences
    schedule = s if launch.outer is Outer.QUERY else replace(s, cluster=1)
    if launch.outer is Outer.HEAD:
        schedule = replace(schedule, order=Order.QUERY, section_heads=0)
    # Place whole clusters, then drop the blocks beyond the last: the grid is rounded up to a
    # cluster, and CTAs without a block end at once.
    whole = -(-i // schedule.cluster) * schedule.cluster
    order = np.arange(b * h * whole, dtype=np.int64)
    head, block = place(schedule, order, blocks=i, heads=b * h, batch=b)
    if whole > i:
        exists = block < i
        head, block = head[exists], block[exists]
    # Packed sequences are placed as a batch would be; their blocks are numbered through.
    if sequences > 1:
        head, block = head % h, head // h * i + block
    if launch.outer is Outer.HEAD:
        # A CTA takes every splits-th key block of its head: its r-th is block r x splits + c.
        block = block // _rounds(launch) + block % _rounds(launch) * d.splits
    return head.astype(np.int32), block.astype(np.int32)


def _lower_launch(
    chain: Chain,
    launch: Launch,
    grids: dict[str, Grid],
    frame_first: tuple[int, ...],
    spill_slots: int,
) -> LoweredLaunch:
    if launch.touched is not None:
        return _lower_touched(launch, launch.touched, grids, frame_first, spill_slots)
    if streams(launch):
        return _lower_flat(chain, launch, grids)
    head, block = start_order(launch)
    exists = np.ones(block.size, dtype=bool)
    if launch.outer is Outer.HEAD:  # the last CTAs of a head may have fewer key blocks than others
        exists = block < launch.domain.key_blocks_total
        block = np.where(exists, block, 0).astype(np.int32)
    schedule, group = launch.schedule, _rounds(launch) if launch.outer is Outer.HEAD else 1
    # From here on three questions, in turn: over which indices a work tile's loop runs, which
    # objects each access touches at an index (templates.py has the table), and where the
    # threads' spilled registers lie.
    tiles = _tiles(launch, head.astype(np.int64), block.astype(np.int64))
    launch, tiles = _walked(chain, launch, tiles)
    count = np.where(exists, tiles.steps.count, 0).astype(np.int32)
    templates = _templates(chain, launch, grids, tiles, block, exists)
    # Without rows a work tile ends at once, and its CTA takes no room for its threads' frames.
    takes_slot = exists if launch.outer is Outer.HEAD else count > 0
    slot = (np.cumsum(takes_slot) - 1) % spill_slots
    frames = [np.where(count > 0, first + slot, NONE).astype(np.int32) for first in frame_first]
    _add_spills(launch, templates, frame_first, frames)
    prologue, loop, epilogue = map(tuple, templates.values())
    indices = tiles.steps.indices
    return LoweredLaunch(
        name=launch.name,
        first=tiles.steps.first.astype(np.int32),
        count=count,
        prologue=prologue,
        loop=loop,
        epilogue=epilogue,
        down=_walks_down(schedule, block),
        head=head,
        block=block,
        group=group,
        indices=None if indices is None else indices.astype(np.int32),
    )


def _walked(chain: Chain, launch: Launch, tiles: WorkTiles) -> tuple[Launch, WorkTiles]:
    """The launch as its work tiles walk it: entry by entry where rows are gathered, or several times over keys."""
    if gathers(chain, launch):
        keys_per_entry = next(
            t.keys_per_row for a in launch.accesses if (t := chain.tensors[a.tensor]).is_list
        )
        by_entry = replace(launch, domain=replace(launch.domain, block_k=keys_per_entry))
        return by_entry, _gathering(launch, tiles, keys_per_entry)
    if launch.walks_again:
        walks = max(access.times for access in launch.accesses)
        return launch, replace(tiles, steps=_again(tiles.steps, walks))
    return launch, tiles


def _templates(
    chain: Chain,
    launch: Launch,
    grids: dict[str, Grid],
    tiles: WorkTiles,
    block: Int32,
    exists: npt.NDArray[np.bool_],
) -> dict[str, list[Template]]:
    """The templates of a launch's accesses, by where they stand: before the loop, in it, after it."""
    templates: dict[str, list[Template]] = {"pro": [], "loop": [], "epi": []}
    for access in progress(f"work tiles of {launch.name}")(launch.accesses):
        for run in _runs(launch, access):
            # base, coefficient and span by outer loop and rows: the table at the head of templates.py.
            access_template, stands = template(
                chain.tensors[access.tensor], access, launch, grids[access.tensor], tiles, run
            )
            if not exists.all():
                access_template = replace(
                    access_template,
                    base=np.where(exists, access_template.base, NONE).astype(np.int32),
                )
            # A first load or a last store that the kernel leaves out, say of an accumulator that
            # begins as zero: the template names the index at which the work tile goes without.
            if access.skip:
                skips, of_tile = _skips(launch, access, block, tiles.steps)
                access_template = replace(access_template, skips=skips, block=of_tile)
            if stands == "loop" and _is_shared(chain, launch, access):
                templates[stands] += _of_shared_keys(
                    chain, launch, access, grids[access.tensor], tiles, access_template
                )
            else:
                templates[stands].append(access_template)
    return templates


def _is_shared(chain: Chain, launch: Launch, access: Access) -> bool:
    """True where an access goes over keys whose first rows all sequences have in common."""
    tensor = chain.tensors[access.tensor]
    loops_over_keys = access.rows is Rows.KEY and access.per is Per.PAIR and not tensor.keys_per_row
    walks_keys = launch.outer in (Outer.QUERY, Outer.SPLIT) and access.skip == 0
    return tensor.shared_rows >= launch.domain.block_k and loops_over_keys and walks_keys


def _of_shared_keys(
    chain: Chain,
    launch: Launch,
    access: Access,
    grid: Grid,
    tiles: WorkTiles,
    access_template: Template,
) -> tuple[Template, Template]:
    """The template of each sequence's own key blocks, and that of the blocks that all share, which are the first
    sequence's. A block of which a part is shared counts as a sequence's own."""
    tensor, d = chain.tensors[access.tensor], launch.domain
    # Two templates of one access, which complement each other: each lists the loop indices that
    # the other has. The shared blocks' objects are those of the first sequence, whichever
    # sequence the work tile is of, so base goes back by the index where its own keys begin.
    blocks_of_sequence = d.key_blocks_total // d.sequences  # indices of packed sequences run on
    sequence = (
        tiles.steps.first // max(1, blocks_of_sequence)
        if d.sequences > 1
        else np.zeros_like(tiles.head)
    )
    head_of_first = owner_of(tensor, d, tiles.head) % tensor.heads
    base = grid.start_of(head_of_first) - access_template.coef * sequence * blocks_of_sequence
    index = np.arange(d.key_blocks_total, dtype=np.int64) % max(1, blocks_of_sequence)
    # `skips` names by index the block that goes without the access. All work tiles are given
    # block 0 here: an index is either skipped by all (0) or taken by all (NONE is no block).
    is_shared = index < tensor.shared_rows // d.block_k
    tile = np.zeros(tiles.head.size, dtype=np.int32)
    skipped, taken = np.int32(0), np.int32(NONE)
    first = replace(
        access_template,
        base=np.where(access_template.base == NONE, NONE, base).astype(np.int32),
        skips=np.where(is_shared, taken, skipped),
        block=tile,
    )
    return replace(access_template, skips=np.where(is_shared, skipped, taken), block=tile), first


def _add_spills(
    launch: Launch,
    templates: dict[str, list[Template]],
    frame_first: tuple[int, ...],
    frames: list[Int32],
) -> None:
    """Stores of spilled registers: each step into its part of the frames, each work tile once into the rest; loads of
    what the steps stored."""
    # The first part of a frame is stored at every step, the second once as the tile begins.
    for first, frame, stands in zip(frame_first, frames, ("loop", "pro"), strict=False):
        if first != NONE:
            templates[stands].append(Template(SPILL, MODES[Mode.STORE], frame))
    reloaded = spills(launch, Mode.LOAD)
    if reloaded is not None and reloaded.per_pair and frame_first and frame_first[0] != NONE:
        templates["loop"].append(Template(SPILL, MODES[Mode.LOAD], frames[0]))
        if (
            reloaded.per_pair > frame_parts(launch)[0]
            and len(frames) > 1
            and frame_first[1] != NONE
        ):
            # what was stored once a work tile is loaded in every step, too
            templates["loop"].append(Template(SPILL, MODES[Mode.LOAD], frames[1]))


def _walks_down(schedule: Schedule, block: Int32) -> npt.NDArray[np.uint8]:
    """1 where a work tile walks its indices from the last to the first."""
    if schedule.direction is Direction.ALTERNATING:
        return (block // schedule.cluster & 1).astype(np.uint8)
    return np.full(block.size, schedule.direction is Direction.DESCENDING, dtype=np.uint8)


def _lower_touched(
    launch: Launch,
    touched: Touched,
    grids: dict[str, Grid],
    frame_first: tuple[int, ...],
    spill_slots: int,
) -> LoweredLaunch:
    """A launch whose code was read: a step is an access of one object. A template a mode goes over all objects, and
    leaves out the indices of other modes."""
    # An entry of what was read from the code is mode x objects + object. The loop index keeps
    # that form over the range [low, high) of object numbers of this launch.
    total, tiles = touched.total, touched.first.size
    frame = max(frame_first, default=NONE)
    place = np.concatenate(
        [
            np.arange(grids[name].first, grids[name].first + sizes.size)
            for name, sizes in touched.objects.items()
        ]
    )
    # Frames lie behind the tensors.
    low, high = int(place.min()), int(place.max()) + 1
    if frame != NONE:
        high = max(high, frame + frame_objects(launch, spill_slots)[0].size)
    indices = np.empty_like(touched.entries)
    for part in range(0, touched.entries.size, TILES_AT_ONCE):
        # By parts, as the 64-bit numbers between would be gigabytes for a long launch.
        mode, number = np.divmod(touched.entries[part : part + TILES_AT_ONCE], total)
        indices[part : part + TILES_AT_ONCE] = mode * (high - low) + place[number] - low
    first, count = touched.first, touched.count
    if frame != NONE:
        slot = np.arange(tiles, dtype=np.int64) % spill_slots  # CTAs go to SMs in turn
        at = frame - low + slot * played_uses(launch)[0]
        indices, first, count = with_frames(launch, indices, first, count, at, high - low)
    zeros, modes_present = np.zeros(tiles, dtype=np.int32), np.unique(indices // (high - low))
    templates = _touched_templates(high, low, modes_present, tiles, touched, zeros)
    return LoweredLaunch(
        launch.name,
        first,
        count,
        (),
        tuple(templates),
        (),
        zeros.astype(np.uint8),
        zeros,
        np.arange(tiles, dtype=np.int32),
        indices=indices,
    )


def _touched_templates(
    high: int,
    low: int,
    modes_present: np.ndarray[Any, Any],
    tiles: int,
    touched: Touched,
    zeros: np.ndarray[Any, Any],
) -> list[Template]:
    """A template for each mode that occurs. It goes over all objects (turn = high - low brings every mode's indices back to
    the same objects) and leaves out the indices that are of another mode."""
    templates = []
    for mode in modes_present:
        # The template goes over all objects (turn = high - low brings every mode's indices back
        # to the same objects) and leaves out the indices that are of another mode.
        skips = np.zeros(len(TOUCHED_MODES) * (high - low), dtype=np.int32)
        skips[mode * (high - low) : (mode + 1) * (high - low)] = NONE
        base = np.full(tiles, low, dtype=np.int32)
        name = next(iter(touched.objects))
        templates.append(
            Template(name, int(mode), base, 1, turn=high - low, skips=skips, block=zeros)
        )
    return templates


def _none_of(low: LoweredLaunch) -> LoweredLaunch:
    none = np.zeros(0, dtype=np.int32)
    return LoweredLaunch(low.name, none, none, (), (), (), none.astype(np.uint8), none, none)


def _one_grid(a: LoweredLaunch, b: LoweredLaunch, of_a: Domain, of_b: Domain) -> LoweredLaunch:
    """Two launches as one grid: of each key/value head the work tiles of `a`, and then those of `b`, whose heads are
    query heads; sequences inside."""
    # Work tiles of both in the order in which the hardware starts them: by key/value head, of each
    # its sequences, in each `a` before `b`. A stable sort keeps the order within a launch.
    group = of_b.heads // of_a.heads
    sequence, head = np.divmod(np.concatenate([a.head * group, b.head]), of_b.heads)
    order = np.argsort(head // group * of_a.batch + sequence, kind="stable")
    missing = [np.full(low.tiles, NONE, dtype=np.int32) for low in (a, b)]

    def both(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(a, name), getattr(b, name)])[order]

    def placed(of: str) -> tuple[Template, ...]:
        first = [
            replace(t, base=np.concatenate([t.base, missing[1]])[order]) for t in getattr(a, of)
        ]
        return (
            *first,
            *(replace(t, base=np.concatenate([missing[0], t.base])[order]) for t in getattr(b, of)),
        )

    # Both loops go through one list of indices: `a`'s stand first, `b`'s start behind them.
    listed = [
        np.arange((x.first + x.count).max(initial=0)) if x.indices is None else x.indices
        for x in (a, b)
    ]
    first = np.concatenate([a.first, b.first + listed[0].size])[order].astype(np.int32)
    return LoweredLaunch(
        a.name,
        first,
        both("count"),
        placed("prologue"),
        placed("loop"),
        placed("epilogue"),
        both("down"),
        both("head"),
        both("block"),
        indices=np.concatenate(listed).astype(np.int32),
        joined=True,
    )


def _rounds(launch: Launch) -> int:
    """Key blocks that a CTA walks, one after the other, where a work tile is a head or a split of one."""
    return -(-launch.domain.key_blocks_total // launch.domain.splits)


def _tiles(launch: Launch, head: npt.NDArray[np.int64], block: npt.NDArray[np.int64]) -> WorkTiles:
    d = launch.domain
    if launch.outer is Outer.QUERY:
        s = d.visited.by_query()
        return WorkTiles(head, Steps(s.first[block], s.count[block], s.indices), i=block)
    # Work tiles are numbered split by split; the mask numbers them query block by query block.
    if launch.outer is Outer.SPLIT:
        s = d.visited.by_split(d.key_blocks_per_split, d.splits)
        tile = block % d.query_blocks * d.splits + block // d.query_blocks
        return WorkTiles(head, Steps(s.first[tile], s.count[tile], s.indices), i=block)
    if launch.walks_round:
        # Each key block begins with another query block and goes once around all of them: the list
        # of indices twice over has every such round as a run.
        twice = np.tile(np.arange(d.query_blocks), 2)
        steps = Steps(block % d.splits % d.query_blocks, np.full(block.size, d.query_blocks), twice)
        return WorkTiles(head, steps, j=block)
    if launch.outer in (Outer.KEY, Outer.HEAD):
        s = d.visitors
        return WorkTiles(head, Steps(s.first[block], s.count[block], s.indices), j=block)
    # A work tile is one pair of blocks: one step, whose index nobody asks for.
    zero = np.zeros(block.size, dtype=np.int64)
    return WorkTiles(head, Steps(zero, zero + 1), block % d.query_blocks, block // d.query_blocks)


def _gathering(launch: Launch, tiles: WorkTiles, keys_per_entry: int) -> WorkTiles:
    """Work tiles that step over the entries of their queries' lists, those that have a key; an entry stands for
    `keys_per_entry` keys.
    NB: a CTA so waits for its rows one after the other, though a kernel asks for those of a block at once: the replay's
    own clock, which a trace shows, is late; the order of its accesses is not."""
    d, mask = launch.domain, launch.domain.mask
    assert tiles.i is not None
    assert isinstance(mask, PickedMask | WindowedMask | BlockPicks)
    # Entries of the list that the tile's split has: from its first key to the last that the mask
    # leaves to the tile's first token, in whole entries.
    split, block = np.divmod(tiles.i, d.query_blocks)
    token = block * d.block_q // d.pack
    per = d.key_blocks_per_split * d.block_k if launch.outer is Outer.SPLIT else d.seq_k
    first = split * per
    count = np.clip(np.minimum(mask.end_key(token, d.seq_k), first + per) - first, 0, None)
    first, count = first // keys_per_entry, -(-count // keys_per_entry)
    start = np.cumsum(count) - count
    entries = np.arange(int(count.sum())) + repeated(first - start, count)
    picked = mask.picks(repeated(token, count), entries, d.seq_k)
    return replace(tiles, steps=Steps(start, count, picked))


def _again(steps: Steps, walks: int) -> Steps:
    """Steps of work tiles that go over their keys several times."""
    count = steps.count * walks
    start = np.cumsum(count) - count
    # Step s of a tile with n keys is its key s mod n: the walk begins anew at the first key.
    inside = (np.arange(int(count.sum())) - repeated(start, count)) % repeated(
        np.maximum(steps.count, 1), count
    )
    at = repeated(steps.first, count) + inside
    return Steps(start, count, at if steps.indices is None else steps.indices[at])


def _runs(launch: Launch, access: Access) -> list[tuple[int, int]]:
    """Neighbouring query blocks that are moved together, where an access is made once for a whole head: all, or those
    that visit a key block. One run of no meaning for all other accesses."""
    d = launch.domain
    if launch.outer is not Outer.HEAD or not access.visited_only or access.per is not Per.QUERY:
        return [(0, d.query_blocks)]
    # +1 where a run of visited query blocks begins, -1 behind its end.
    edge = np.diff((d.visited.count > 0).astype(np.int8), prepend=0, append=0)
    runs = list(
        zip(np.flatnonzero(edge == 1).tolist(), np.flatnonzero(edge == -1).tolist(), strict=True)
    )
    return runs or [(0, 0)]


def _skips(launch: Launch, access: Access, block: Int32, steps: Steps) -> tuple[Int32, Int32]:
    """Visits at which an access that skips one is not made: the first for a load, the last for a store, whichever CTA
    comes first or last. (A number for each loop index, one for each work tile): where they are equal it is left out.
    Where a CTA walks the keys of a query block they are loop indices; with keys outside, key blocks for a query block's
    rows, and query blocks for a key block's. Raises ValueError: another launch, or more visits left out than one."""
    if (
        access.skip != 1
        or access.per is not Per.PAIR
        or launch.outer not in (Outer.HEAD, Outer.KEY, Outer.QUERY)
    ):
        hint = "a replay skips one visit of a launch that walks keys outside, or the keys of a query block"
        raise ValueError(
            f"launch {launch.name} skips {access.skip} of the accesses of {access.tensor}; {hint}"
        )
    first, d = access.mode is Mode.LOAD, launch.domain
    # The access skips by its own work tile's first or last index. A walk from the last key to the
    # first has them the other way round.
    if launch.outer is Outer.QUERY or access.rows is Rows.KEY:
        if launch.outer is Outer.QUERY:
            first = first != (launch.schedule.direction is Direction.DESCENDING)
        at = steps.first if first else steps.first + steps.count - 1
        index = (
            at if steps.indices is None else steps.indices[np.clip(at, 0, steps.indices.size - 1)]
        )
        blocks = d.key_blocks_total if launch.outer is Outer.QUERY else d.visited.count.size
        return np.arange(blocks, dtype=np.int32), index.astype(np.int32)
    # A query block's rows with keys outside: of each query block, the key block that visits it
    # first (a load) or last (a store) goes without.
    visited = d.visited
    where = visited.first if first else visited.end - 1
    return np.where(visited.count > 0, where, NONE).astype(np.int32), block


def _lower_flat(chain: Chain, launch: Launch, grids: dict[str, Grid]) -> LoweredLaunch:
    """Objects of all tensors side by side: work tile w of n takes its share of each tensor's objects. What all heads
    share (an additive mask) is gone through once a head."""
    names = list(dict.fromkeys(a.tensor for a in launch.accesses))
    heads = {n: chain.tensors[n].batch * chain.tensors[n].heads for n in names}
    # As many work tiles as the tensor with most objects has; of a smaller one a tile accesses an
    # object only where its share w x count / tiles moves on to the next.
    passes = {n: max(1, launch.domain.grid_heads // heads[n]) for n in names}
    tiles = max(grids[n].count * passes[n] for n in names)
    loop: list[Template] = []
    epilogue: list[Template] = []
    for access in progress(f"work tiles of {launch.name}")(launch.accesses):
        base = _flat_objects(chain, launch, access, grids[access.tensor], passes, tiles)
        template = Template(access.tensor, MODES[access.mode], base)
        (loop if access.mode is Mode.LOAD else epilogue).append(template)
    # One step of the loop per work tile, which starts at block w of head 0 and walks upwards.
    zero = np.zeros(tiles, dtype=np.int32)
    return LoweredLaunch(
        launch.name,
        zero,
        np.ones(tiles, dtype=np.int32),
        (),
        tuple(loop),
        tuple(epilogue),
        np.zeros(tiles, dtype=np.uint8),
        zero,
        np.arange(tiles, dtype=np.int32),
    )


def _flat_objects(
    chain: Chain,
    launch: Launch,
    access: Access,
    grid: Grid,
    passes: Mapping[str, int],
    tiles: int,
) -> Int32:
    """The object that each work tile accesses of a tensor, or NONE: object w x count / tiles, where the work tile
    before it has another one."""
    of_tensor = passes[access.tensor]
    per_head = grid.rows * grid.cols
    objects = np.empty(tiles, dtype=np.int32)
    for first in range(0, tiles, TILES_AT_ONCE):
        # Begin one tile early, to know whether the first one of this part moves on.
        w = np.arange(first - 1, min(first + TILES_AT_ONCE, tiles), dtype=np.int64)
        item = w * grid.count * of_tensor // tiles
        moves_on = item[1:] != item[:-1]
        item = item[1:]
        if of_tensor > 1:
            # What several heads share: from the head that passes to the one whose rows these are.
            owner = owner_of(chain.tensors[access.tensor], launch.domain, item // per_head)
            item = owner * per_head + item % per_head
        objects[first : first + item.size] = np.where(moves_on, grid.first + item, NONE)
    return objects
