"""Memory of temporary tensors as PyTorch's caching allocator hands it out: who gets a dead tensor's place."""

from __future__ import annotations

from iosim.base.records import dataclass, replace
from iosim.kernel.launch import Chain, Role, Tensor
from iosim.readers.replay.caching_allocator import Block, CachingAllocator
from iosim.readers.replay.objects import Grid, Int32, streams


def addresses(chain: Chain) -> dict[str, int]:
    """Where the tensors of a chain lie that has run before: inputs first, then each tensor as the launch that first
    writes it comes; temporaries are given back after the last launch of their life, outputs after the chain."""
    allocator = CachingAllocator()
    address_of: dict[str, int] = {}
    for tensor in chain.role(Role.INPUT):
        allocator.allocate(tensor.allocated_bytes)
    for _ in range(2):
        live: dict[str, Block] = {}
        for n in range(len(chain.launches)):
            for name, (first, _) in _lives(chain, Role.TEMP, Role.OUTPUT).items():
                if first == n:
                    live[name] = allocator.allocate(chain.tensors[name].allocated_bytes)
                    address_of[name] = live[name].address
            for name, (_, last) in _lives(chain, Role.TEMP).items():
                if last == n:
                    allocator.release(live.pop(name))
        for block in live.values():
            allocator.release(block)
    return address_of


def _lives(chain: Chain, *roles: Role) -> dict[str, tuple[int, int]]:
    lives = {t.name: chain.life(t.name) for role in roles for t in chain.role(role)}
    return {name: life for name, life in lives.items() if life is not None}


@dataclass(frozen=True)
class _Placed:
    """A tensor's objects: as cut, and their sizes."""

    last: int
    grid: Grid
    size: Int32


class Blocks:
    """Which objects a temporary tensor takes over: those of a dead one that begins at the same address. They must be
    cut alike; a tensor that launches only stream through is cut as what lies there. NB: a block that begins inside a
    dead tensor is taken for memory of its own."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._life = _lives(chain, Role.TEMP)
        self._address = addresses(chain)
        self.temps = sorted(self._life, key=lambda n: self._life[n][0])
        self._placed: dict[int, list[_Placed]] = {}

    def take(self, name: str, grid: Grid, size: Int32) -> Grid | None:
        """`grid`, cut for the temporary tensor `name`, on the objects of a dead one; None where there is none."""
        if name not in self._life:
            return None
        first, last = self._life[name]
        there = self._placed.setdefault(self._address[name], [])
        dead = [p for p in there if p.last < first]
        taken = next((g for p in dead if (g := _fitted(self._chain, name, grid, size, p))), None)
        there.append(_Placed(last, *(taken or (grid, size))))
        return None if taken is None else taken[0]

    def owned(self, launch: int, grids: dict[str, Grid], tensors: list[str]) -> tuple[tuple[range, int], ...]:
        """Blocks that start to belong to a temporary tensor at this launch."""
        return tuple(
            (range(grids[n].first, grids[n].first + grids[n].count), tensors.index(n))
            for n in self.temps
            if self._life[n][0] == launch
        )


def _only_streamed(chain: Chain, tensor: Tensor) -> bool:
    """Whether all launches that touch a tensor go through it once, each grid head through its own."""
    own = tensor.batch * tensor.heads
    users = [chain.launches[n] for n in chain.users(tensor.name)]
    return tensor.copies == 1 and all(streams(x) and x.domain.grid_heads == own for x in users)


def _fitted(chain: Chain, name: str, grid: Grid, size: Int32, placed: _Placed) -> tuple[Grid, Int32] | None:
    """A tensor's grid and sizes on the objects that lie there: as cut, or, where it is only streamed, in objects of
    their one size, from the first on."""
    mine, theirs = ((g.heads, g.rows, g.cols, g.step) for g in (grid, placed.grid))
    if mine == theirs and size.tobytes() == placed.size.tobytes():
        return replace(grid, first=placed.grid.first), size
    tensor, each = chain.tensors[name], int(placed.size[0])
    fits = each > 0 and tensor.bytes % each == 0 and tensor.bytes // each <= placed.size.size
    if not fits or not (placed.size == each).all() or not _only_streamed(chain, tensor):
        return None
    count = tensor.bytes // each
    return Grid(name, placed.grid.first, 1, count, 1, 1, each // tensor.element_bytes), placed.size[:count]
