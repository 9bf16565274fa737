"""The walk of a launch over its domain: every access at its place, every byte of the tiles really touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from executor.arrays import at_sectors
from executor.body import Array, Body, BodyFactory, ExecutionError, Indices
from executor.memory import Memory, Spot, moved_bytes
from executor.place import Grid, WalkPlace
from iosim.base.words import Way
from iosim.catalog.algorithms.cache import TABLE
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import SECTOR_BYTES, Access, Edge, Launch, Mode, Outer, Per, Rows
from iosim.kernel.schedule import Direction
from iosim.kernel.traffic import Traffic, TrafficRow
from iosim.problem.attention import AttentionProblem

_PLACES = {
    Outer.QUERY: {Per.QUERY, Per.PAIR, Per.SPLIT},
    Outer.SPLIT: {Per.SPLIT, Per.PAIR},
    Outer.KEY: {Per.KEY, Per.PAIR, Per.QUERY, Per.SPLIT},
    Outer.HEAD: {Per.KEY, Per.PAIR, Per.QUERY, Per.SPLIT},
    Outer.PAIR: {Per.PAIR},
    Outer.FLAT: {Per.QUERY, Per.PAIR},
}
"""The places there are in a launch, by what one work tile is; `Per.LAUNCH` has one in every launch."""

_COVERS = {
    Rows.QUERY: set(Per) - {Per.KEY, Per.LAUNCH},
    Rows.KEY: {Per.KEY, Per.PAIR},
    Rows.PAIR: {Per.PAIR},
    Rows.OWN: set(Per),
}
"""The places that know which tile an access means, by the axes of its rows."""


def _way(mode: Mode) -> Way:
    """Said here once more: the count, which says it too, is not followed into a mistake."""
    return "read" if mode is Mode.LOAD else "write"


class Walk:
    """One launch on one memory."""

    def __init__(
        self,
        launch: Launch,
        memory: Memory,
        problem: AttentionProblem,
        kernel: Kernel,
        seed: int,
        make: BodyFactory,
    ) -> None:
        self.launch = launch
        self.memory = memory
        self.make = make
        self.grid = Grid(launch)
        self.at = WalkPlace(launch, problem, kernel, seed, self.grid)
        self.moved: dict[tuple[str, Way], int] = {}
        self.work_tiles = self.empty_tiles = 0
        self.pairs = 0
        self.iq = self.ik = 0
        self.sectors: set[int] = set()
        """Sectors of the block table that the work tile has read."""
        self._check()

    def _check(self) -> None:
        seen: set[tuple[str, bool, Per]] = set()
        for a in self.launch.accesses:
            where = f"launch {self.launch.name}: access of {a.tensor}"
            if a.per not in {*_PLACES[self.launch.outer], Per.LAUNCH}:
                raise ExecutionError(
                    f"{where} per {a.per} has no place in work tiles of {self.launch.outer}"
                )
            if a.per not in _COVERS[a.rows]:
                raise ExecutionError(f"{where} has a tile along {a.rows} and is made per {a.per}")
            if (a.tensor, a.mode is Mode.LOAD, a.per) in seen:
                raise ExecutionError(f"{where} is there twice")
            if a.skip and a.per is not Per.PAIR:
                raise ExecutionError(f"{where} skips visits but is per {a.per}")
            seen.add((a.tensor, a.mode is Mode.LOAD, a.per))
            self.moved[a.tensor, _way(a.mode)] = 0

    def run(self) -> Traffic:
        """Walk the launch. Raises ExecutionError: description and mathematics do not fit."""
        d = self.launch.domain
        walk = {
            Outer.QUERY: self._query_outer,
            Outer.SPLIT: self._query_outer,
            Outer.KEY: self._keys_outside,
            Outer.HEAD: self._keys_outside,
            Outer.PAIR: self._flat,
            Outer.FLAT: self._flat,
        }[self.launch.outer]
        for batch in range(d.batch):
            for head in range(d.heads):
                self.at.spot = Spot(batch, head)
                try:
                    walk()
                except (
                    LookupError,
                    StopIteration,
                    ValueError,
                ) as error:  # of a body that lacks what it computes on
                    raise ExecutionError(
                        f"launch {self.launch.name} cannot be computed: {error!r}"
                    ) from error
        for a in self.launch.accesses:
            loaded = a.mode is Mode.LOAD and self.moved[a.tensor, "read"] > 0
            idle = (
                a.rows is Rows.OWN and self.pairs == 0
            )  # read as a CTA starts, whether or not it visits anything
            if loaded and not idle and a.tensor not in self.at.used:
                raise ExecutionError(
                    f"launch {self.launch.name} loads {a.tensor} and never uses it"
                )
        self._overheads()
        return Traffic(
            tuple(
                TrafficRow(self.launch.name, "l2", t, way, n) for (t, way), n in self.moved.items()
            )
        )

    def _overheads(self) -> None:
        ctas = self.work_tiles
        if self.launch.persistent_ctas is not None:
            ctas = min(ctas, self.launch.persistent_ctas)
        for o in self.launch.overheads:
            key = (o.name, _way(o.mode))
            tile_bytes = (
                o.per_tile * (self.work_tiles - self.empty_tiles)
                + o.per_tile_fetch * self.work_tiles
            )
            cta_bytes = (o.per_cta + o.per_tile_fetch) * ctas
            self.moved[key] = (
                self.moved.get(key, 0) + tile_bytes + cta_bytes + o.per_pair * self.pairs
            )

    # The walks, by what one work tile is.

    def _query_outer(self) -> None:
        d = self.launch.domain
        split_tiles = self.launch.outer is Outer.SPLIT
        once = Per.SPLIT if split_tiles else Per.QUERY
        per = -(-(int(self.grid.split_of.max()) + 1) // d.splits)
        for iq in self._there(self.grid.q_starts, self.grid.q_ends, d.splits if split_tiles else 1):
            for split in range(d.splits if split_tiles else 1):
                blocks = np.flatnonzero(self.grid.visited[iq])
                if split_tiles:
                    blocks = blocks[self.grid.split_of[blocks] // per == split]
                body = self._start(iq, 0, split)
                self._at(body.begin, self._loads(once, blocks.size > 0), (), once)
                if not split_tiles and any(a.per is Per.SPLIT for a in self.launch.accesses):
                    for part in range(d.splits):
                        self._move(iq, 0, part)
                        loads = self._loads(Per.SPLIT, True)
                        writes = self._writes(Per.SPLIT, True)
                        self._at(body.split, loads, writes, Per.SPLIT)
                    self._drop(Per.SPLIT)
                for n, ik in enumerate(self._directed(blocks)):
                    self._move(iq, ik, split)
                    self._pair(body, (n, blocks.size))
                self._move(iq, 0, split)
                self._drop(Per.PAIR)
                self._at(body.end, (), self._writes(once, blocks.size > 0), once)

    def _there(self, starts: Indices, ends: Indices, splits: int = 1) -> Iterator[int]:
        """Tiles that hold rows; the CTAs of others exit before they move anything."""
        for n in range(starts.size):
            if starts[n] < ends[n]:
                yield n
            else:
                self.work_tiles += splits
                self.empty_tiles += splits

    def _keys_outside(self) -> None:
        """Key blocks outside, query blocks inside; a query block's own tiles stay from its first visit to its last."""
        visits = self.grid.visited.sum(axis=1)
        done = np.zeros_like(visits)
        resident: list[dict[str, Array]] = [{} for _ in visits]
        body = Body()
        for ik, begins in self._key_blocks():
            blocks = np.flatnonzero(self.grid.visited[:, ik])
            if begins:
                body = self._start(0, ik)
                self._each_query(body)
            self._move(0, ik)
            self._at(body.begin, self._loads(Per.KEY, blocks.size > 0), (), Per.KEY)
            for n, iq in enumerate(blocks):
                self._move(int(iq), ik)
                if done[iq] == 0:
                    self._drop(Per.QUERY)
                    self._at(None, self._loads(Per.QUERY, True), (), Per.QUERY)
                    resident[iq] = self.at.tiles[Per.QUERY]
                self.at.tiles[Per.QUERY] = resident[iq]
                self._pair(body, (int(done[iq]), int(visits[iq])), (n, blocks.size))
                done[iq] += 1
                if done[iq] == visits[iq]:
                    self._at(body.finish_query, (), self._writes(Per.QUERY, True), Per.QUERY)
            self._drop(Per.PAIR)
            self._drop(Per.QUERY)
            self._at(body.end, (), self._writes(Per.KEY, blocks.size > 0), Per.KEY)
        for iq in np.flatnonzero(visits == 0):
            self._move(int(iq), 0)
            self._at(
                body.finish_query,
                self._loads(Per.QUERY, False),
                self._writes(Per.QUERY, False),
                Per.QUERY,
            )

    def _key_blocks(self) -> Iterator[tuple[int, bool]]:
        """Key blocks of a head as its work tiles walk them, and whether a work tile begins there."""
        if self.launch.outer is Outer.KEY:
            yield from ((ik, True) for ik in self._there(self.grid.k_starts, self.grid.k_ends))
            return
        splits = self.launch.domain.splits
        for split in range(splits):
            mine = self._directed(range(split, len(self.grid.k_starts), splits))
            yield from ((ik, n == 0) for n, ik in enumerate(mine))

    def _each_query(self, body: Body) -> None:
        """What a CTA that walks key blocks does with all query blocks as it starts."""
        loads = self._loads(Per.SPLIT, True)
        writes = self._writes(Per.SPLIT, True)
        for iq in range(len(self.grid.q_starts)) if loads or writes else ():
            self._move(iq, self.ik)
            self._at(body.split, loads, writes, Per.SPLIT)
        self._drop(Per.SPLIT)

    def _flat(self) -> None:
        if self.launch.outer is Outer.FLAT and len(self.grid.k_starts) > 1:
            raise ExecutionError(f"launch {self.launch.name} is flat and has several key blocks")
        for iq, ik in np.ndindex(*self.grid.visited.shape):
            body = self._start(iq, ik)
            if not self.grid.visited[iq, ik]:
                continue
            self._at(None, self._loads(Per.QUERY, True), (), Per.QUERY)
            self._pair(body, (0, 1), also=self._writes(Per.QUERY, True))
            self._drop(Per.PAIR)

    # Moving, loading, storing.

    def _directed(self, blocks: Iterable[int]) -> Iterator[int]:
        """Key blocks in the schedule's direction; alternating by work tile."""
        direction = self.launch.schedule.direction
        turned = direction is Direction.DESCENDING or (
            direction is Direction.ALTERNATING and self.work_tiles % 2 == 0
        )
        ordered = [int(b) for b in blocks]
        return iter(reversed(ordered) if turned else ordered)

    def _start(self, iq: int, ik: int, split: int = 0) -> Body:
        """A new work tile: nothing is loaded."""
        self.work_tiles += 1
        self.sectors.clear()
        for per in set(Per) - {Per.LAUNCH}:
            self._drop(per)
        self._move(iq, ik, split)
        body = self.make()
        if self.work_tiles == 1:
            self._at(
                body.launch,
                self._loads(Per.LAUNCH, True),
                self._writes(Per.LAUNCH, True),
                Per.LAUNCH,
            )
        return body

    def _move(self, iq: int, ik: int, split: int = 0) -> None:
        at = self.at
        self.iq, self.ik = iq, ik
        at.spot = Spot(at.spot.batch, at.spot.head, split)
        at.q = self.grid.q_rows(iq)
        at.keys = self.grid.k_rows(ik)

    def _drop(self, per: Per) -> None:
        self.at.tiles[per] = {}

    def _loads(self, per: Per, visited: bool) -> Sequence[Access]:
        return [a for a in self._due(per, visited) if a.mode is Mode.LOAD]

    def _writes(self, per: Per, visited: bool) -> Sequence[Access]:
        return [a for a in self._due(per, visited) if a.mode is not Mode.LOAD]

    def _due(self, per: Per, visited: bool) -> Iterator[Access]:
        return (a for a in self.launch.accesses if a.per is per and (visited or not a.visited_only))

    def _pair(
        self,
        body: Body,
        of_query: tuple[int, int],
        of_key: tuple[int, int] = (0, 1),
        also: Sequence[Access] = (),
    ) -> None:
        """A visit: its number among all of the query block, and of the key block. Skipped: loads of the first, stores
        of the last."""
        self.pairs += 1

        def visit(a: Access) -> tuple[int, int]:
            return of_key if a.rows is Rows.KEY else of_query

        due_loads = self._loads(Per.PAIR, True)
        due_writes = self._writes(Per.PAIR, True)
        loads = [a for a in due_loads if visit(a)[0] >= a.skip]
        writes = [a for a in due_writes if visit(a)[1] - visit(a)[0] > a.skip]
        self.at.skipped_loads = {a.tensor for a in due_loads} - {a.tensor for a in loads}
        self.at.skipped_stores = {a.tensor for a in due_writes} - {a.tensor for a in writes}
        self._at(body.pair, loads, [*writes, *also], Per.PAIR)

    def _at(
        self,
        hook: Callable[[WalkPlace], None] | None,
        loads: Sequence[Access],
        writes: Sequence[Access],
        per: Per,
    ) -> None:
        """Loads, the body's hook, and the stores due."""
        at = self.at
        if loads or per is Per.PAIR:
            self._drop(per)
        for a in loads:
            at.tiles[per][a.tensor] = self._load(a)
        at.due, at.values = {a.tensor: a for a in writes}, {}
        if hook is not None:
            hook(at)
        for a in writes:
            if a.tensor not in at.values:
                raise ExecutionError(
                    f"launch {self.launch.name} stores {a.tensor} here and has no value for it"
                )
            self._store(a, at.values[a.tensor])
        at.due = {}

    def _touched(self, access: Access) -> tuple[int, int]:
        """Query rows and key rows that the access moves at this place: of the whole tile, of the tensor, or as needed.

        NB: what is needed is a query block's matter, so an access per key block moves the rows of the tensor; so does
        one of a row vector, which moves in whole sectors.
        """
        at, d = self.at, self.launch.domain
        if access.edge is Edge.WHOLE:
            return d.block_q, d.block_k
        keys = at.keys.size
        needed = access.edge is Edge.NEEDED and access.per is Per.PAIR
        if needed and not self.memory.tensors[access.tensor].is_vector:
            keys = int(np.count_nonzero(at.keys < self.grid.needed_end[self.iq]))
        return at.q.size, keys

    def _count(self, access: Access) -> None:
        q, k = self._touched(access)
        tensor = self.memory.tensors[access.tensor]
        if tensor.keys_per_row and access.rows is Rows.KEY:
            new_sectors = set(at_sectors(tensor, self.at.keys)) - self.sectors
            self.sectors |= new_sectors
            self.moved[access.tensor, "read"] += SECTOR_BYTES * len(new_sectors)
            return
        if access.rows is Rows.OWN:
            q = tensor.rows
        if self.launch.domain.of(tensor) is not self.launch.domain:
            q //= self.launch.domain.pack
        rows = k if access.rows is Rows.KEY else q
        cols = k if access.rows is Rows.PAIR else tensor.cols
        self.moved[access.tensor, _way(access.mode)] += moved_bytes(
            tensor,
            access,
            rows,
            cols,
            self.at.keys.size if access.rows is Rows.KEY else self.at.q.size,
        )

    def _load(self, access: Access) -> Array:
        """The tile; the tiles of a group's heads stacked, where each repetition is another head's."""
        at, d = self.at, self.launch.domain
        tensor = self.memory.tensors[access.tensor]
        parts = []
        picks = self.launch.gathers(tensor)
        entries = at[tensor.picked_by] if picks else at[TABLE] if tensor.page_rows else None
        for repetition in range(access.times):
            spot = Spot(at.spot.batch, at.spot.head, at.spot.split, repetition)
            parts.append(self.memory.read(access, d, spot, at.q, at.keys, entries))
            self._count(access)
        if access.rows is Rows.KEY and access.edge is Edge.NEEDED:
            parts[0][self._touched(access)[1] :] = 0.0
        several = tensor.batch * tensor.heads > d.grid_heads and access.times > 1
        return np.stack(parts) if several else parts[0]

    def _store(self, access: Access, values: Array) -> None:
        at, d = self.at, self.launch.domain
        for _ in range(access.times):
            self._count(access)
        self.memory.write(access, d, at.spot, at.q, at.keys, values)
