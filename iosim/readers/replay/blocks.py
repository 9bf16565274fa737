"""Memory of temporary tensors as PyTorch's CUDA caching allocator hands it out: blocks, segments, fragmentation, and
who gets a dead tensor's place.

Rules and constants of c10/cuda/CUDACachingAllocator.cpp at their defaults: sizes are rounded up to 512 bytes; requests
up to 1 MiB come from segments of 2 MiB, those under 10 MiB from segments of 20 MiB, larger ones from a segment of their
own, rounded up to 2 MiB. The smallest free block that fits is taken, at the lowest address; what is left of it stays a
free block when it is at least 512 bytes (small) or more than 1 MiB (large). Freed neighbours of one segment become one.
NB: segments are never given back, which PyTorch does before it reports out of memory.
"""

from __future__ import annotations

from iosim.base.records import dataclass, field, replace
from iosim.kernel.launch import Chain, Role, Tensor
from iosim.readers.replay.objects import Grid, Int32, streams

MIB = 1 << 20
ROUND_BYTES = 512
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
MIDDLE_BYTES = 10 * MIB
MIDDLE_SEGMENT_BYTES = 20 * MIB
SEGMENT_ROUND_BYTES = 2 * MIB


@dataclass(eq=False)
class Block:
    """A piece of a segment, in use or free."""

    address: int
    size: int
    small: bool
    free: bool = True
    before: Block | None = field(default=None, repr=False)
    after: Block | None = field(default=None, repr=False)


class CachingAllocator:
    def __init__(self) -> None:
        self.in_use = 0
        self.most = 0
        self.reserved = 0
        self.free_blocks: list[Block] = []
        self._address = 0

    def allocate(self, size: int) -> Block:
        size = max(ROUND_BYTES, _up(size, ROUND_BYTES))
        small = size <= SMALL_BYTES
        # Best fit, then lowest address: the order of the allocator's set of free blocks.
        fitting = [b for b in self.free_blocks if b.small is small and b.size >= size]
        block = (
            min(fitting, key=lambda b: (b.size, b.address))
            if fitting
            else self._segment(size, small)
        )
        self.free_blocks.remove(block)
        remainder = block.size - size
        # Split: the rest goes back as a free block, linked in the order of addresses.
        if remainder >= ROUND_BYTES if small else remainder > SMALL_BYTES:
            rest = Block(block.address + size, remainder, small, before=block, after=block.after)
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, size
            self.free_blocks.append(rest)
        block.free = False
        self.in_use += block.size
        self.most = max(self.most, self.in_use)
        return block

    def release(self, block: Block) -> None:
        self.in_use -= block.size
        block.free = True
        after, before = block.after, block.before
        # A freed block takes in its free neighbours of the same segment, the later, then the earlier.
        if after is not None and after.free:
            self.free_blocks.remove(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        if before is not None and before.free:
            before.size += block.size
            before.after = block.after
            if block.after is not None:
                block.after.before = before
            return
        self.free_blocks.append(block)

    def _segment(self, size: int, small: bool) -> Block:
        if small:
            whole = SMALL_SEGMENT_BYTES
        else:
            whole = MIDDLE_SEGMENT_BYTES if size < MIDDLE_BYTES else _up(size, SEGMENT_ROUND_BYTES)
        block = Block(self._address, whole, small)
        self._address += whole
        self.reserved += whole
        self.free_blocks.append(block)
        return block


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def addresses(chain: Chain) -> dict[str, int]:
    """Where the tensors of a chain lie that has run before: inputs first, then each tensor as the launch that first
    writes it comes; temporaries are given back after the last launch of their life, outputs after the chain."""
    allocator = CachingAllocator()
    address_of: dict[str, int] = {}
    for tensor in chain.role(Role.INPUT):
        allocator.allocate(tensor.allocated_bytes)
    # Twice: the first round finds fresh segments, the second lives on what the first freed, as a
    # training step does from its second iteration on.
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
        placed = self._placed.setdefault(self._address[name], [])
        # Who lay at this address and was last used before this tensor's first use.
        dead = [p for p in placed if p.last < first]
        taken = next((g for p in dead if (g := _fitted(self._chain, name, grid, size, p))), None)
        placed.append(_Placed(last, *(taken or (grid, size))))
        return None if taken is None else taken[0]

    def owned(
        self, launch: int, grids: dict[str, Grid], tensors: list[str]
    ) -> tuple[tuple[range, int], ...]:
        """Blocks that start to belong to a temporary tensor at this launch."""
        return tuple(
            (range(grids[n].first, grids[n].first + grids[n].count), tensors.index(n))
            for n in self.temps
            if self._life[n][0] == launch
        )


def _only_streamed(chain: Chain, tensor: Tensor) -> bool:
    """True where all launches that touch a tensor go through it once, each grid head through its own."""
    heads = tensor.batch * tensor.heads
    users = [chain.launches[n] for n in chain.users(tensor.name)]
    return tensor.copies == 1 and all(streams(x) and x.domain.grid_heads == heads for x in users)


def _fitted(
    chain: Chain, name: str, grid: Grid, size: Int32, placed: _Placed
) -> tuple[Grid, Int32] | None:
    """A tensor's grid and sizes on the objects that lie there: as cut, or, where it is only streamed, in objects of
    their one size, from the first on."""
    mine, theirs = ((g.heads, g.rows, g.cols, g.step) for g in (grid, placed.grid))
    if mine == theirs and size.tobytes() == placed.size.tobytes():
        return replace(grid, first=placed.grid.first), size
    tensor, object_bytes = chain.tensors[name], int(placed.size[0])
    fits = (
        object_bytes > 0
        and tensor.bytes % object_bytes == 0
        and tensor.bytes // object_bytes <= placed.size.size
    )
    if not fits or not (placed.size == object_bytes).all() or not _only_streamed(chain, tensor):
        return None
    count = tensor.bytes // object_bytes
    return Grid(
        name, placed.grid.first, 1, count, 1, 1, object_bytes // tensor.element_bytes
    ), placed.size[:count]
