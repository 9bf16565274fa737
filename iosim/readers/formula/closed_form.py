"""The formula reader: bytes between SMs and L2 in closed form, for numbers, symbols and arrays of problems alike.

`closed_form` is written once, over whole numbers: on a chain of ints it gives ints, which predictions take, in O(log)
of the query blocks for interval masks; on a chain of duals (`iosim.readers.formula.dual`) it gives SymPy expressions
(`iosim.readers.formula.symbolic`) or arrays (a sweep's) besides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from iosim.base.records import replace
from iosim.base.words import Way
from iosim.kernel.launch import (
    SECTOR_BYTES,
    Access,
    Chain,
    Domain,
    Edge,
    Fetch,
    Launch,
    Mode,
    Overhead,
    Per,
    Rows,
    Tensor,
)
from iosim.kernel.touched import Touched
from iosim.kernel.traffic import Traffic, TrafficRow
from iosim.problem.masks.mask import IntervalMask
from iosim.problem.masks.packed import PackedMask
from iosim.problem.masks.picked import PickedMask
from iosim.readers.formula.dual import ceil_div, minimum
from iosim.readers.formula.sums import BlockSums, ListSums, PickedSums, Sums


def tile_bytes(tensor: Tensor, access: Access, rows: int) -> int:
    """Bytes between SM and L2 for a tile of full rows: a row vector's (LSE) in whole sectors, or in packets of so many
    rows; a matrix's row by row."""
    if not tensor.is_vector:
        return rows * tensor.row_bytes
    if access.packet_rows:
        packet = ceil_div(access.packet_rows * tensor.element_bytes, SECTOR_BYTES) * SECTOR_BYTES
        return ceil_div(rows, access.packet_rows) * packet
    return ceil_div(rows * tensor.element_bytes, SECTOR_BYTES) * SECTOR_BYTES


def _times_moved(sums: BlockSums, access: Access) -> Sums:
    if access.per is Per.PAIR:
        # A kernel that skips one visit (an accumulator that starts from nothing) makes the access once
        # less for every query block that visits any.
        visits, some = sums.visits, sums.visiting
        if access.skip not in (0, 1):
            raise ValueError(f"skip {access.skip} of access {access.tensor} is neither 0 nor 1")
        return visits - some if access.skip else visits
    if access.per is Per.SPLIT and not access.visited_only:
        return sums.same(sums.domain.splits)
    if access.per is Per.SPLIT:
        return sums.visited_splits
    return sums.visiting if access.visited_only else sums.same(1)


def _query_bytes(sums: BlockSums, tensor: Tensor, access: Access) -> int:
    d, times = sums.domain.of(tensor), _times_moved(sums, access)
    tile = tile_bytes(tensor, access, d.block_q)
    if access.edge is Edge.WHOLE:
        return tile * times.total
    # All blocks as often: rows of all of them times that, without the last block's being shorter.
    if times.per_block is not None and not tensor.is_vector:
        return times.per_block * d.rows * tensor.row_bytes
    last = tile_bytes(tensor, access, d.rows - (sums.query_blocks - 1) * d.block_q)
    return tile * times.full + last * times.last


def _pair_bytes(sums: BlockSums, tensor: Tensor, edge: Edge) -> int:
    # Rows of a query block times the keys that it meets: a tile of an N x N tensor.
    d, keys = sums.domain, sums.key_rows(edge)
    if keys.per_block is not None:
        rows = sums.query_blocks * d.block_q if edge is Edge.WHOLE else d.rows
        return rows * keys.per_block * tensor.element_bytes
    last_rows = d.block_q if edge is Edge.WHOLE else sums.last_rows
    return (d.block_q * keys.full + last_rows * keys.last) * tensor.element_bytes


def _key_tiles(sums: BlockSums, tensor: Tensor, access: Access, blocks: int, at_end: int) -> int:
    """Tiles of `blocks` key blocks, `at_end` of which are the last one, that may be ragged."""
    d = sums.domain
    tile = tile_bytes(tensor, access, d.block_k)
    if access.edge is Edge.WHOLE:
        return blocks * tile
    last = tile_bytes(tensor, access, d.seq_k - (sums.key_blocks - 1) * d.block_k)
    return blocks * tile + at_end * (last - tile)


def _key_bytes_per_pair(sums: BlockSums, tensor: Tensor, access: Access) -> int:
    if not tensor.is_vector:
        return sums.key_rows(access.edge).total * tensor.row_bytes
    return _key_tiles(sums, tensor, access, sums.visits.total, sums.reaching_last.total)


def _key_outer_bytes(sums: BlockSums, tensor: Tensor, access: Access) -> int:
    # With keys outside every key block is moved once: the tensor's own size.
    unmasked = not access.visited_only or (sums.left is None and sums.right is None)
    if unmasked and access.edge is not Edge.WHOLE and not tensor.is_vector:
        return sums.domain.seq_k * tensor.row_bytes
    return _key_tiles(
        sums, tensor, access, *(sums.key_range() if access.visited_only else (sums.key_blocks, 1))
    )


def _times_owned(sums: BlockSums, access: Access) -> int:
    if access.per is Per.LAUNCH:
        return 1
    if access.per is Per.KEY:
        return sums.key_blocks
    if access.per is Per.PAIR:
        return sums.visits.total
    return sums.query_blocks * (sums.domain.splits if access.per is Per.SPLIT else 1)


def access_bytes(sums: BlockSums, tensor: Tensor, access: Access) -> int:
    split = tensor.split_bytes(access.fetch)
    # Fetched sector by sector: the bytes of the rows, and of sectors that rows share with others.
    if split:  # of rows that are there
        plain = replace(access, fetch=Fetch.BYTES)
        inside = replace(plain, edge=Edge.EXACT) if access.edge is Edge.WHOLE else plain
        rows = replace(tensor, cols=split, element_bytes=1, strided=False)
        return access_bytes(sums, tensor, plain) + access_bytes(sums, rows, inside)
    if tensor.keys_per_row and access.rows is Rows.KEY:
        return sums.sectors(tensor.keys_per_sector) * SECTOR_BYTES
    if access.rows is Rows.OWN:
        total = _times_owned(sums, access) * tile_bytes(tensor, access, tensor.rows)
    elif access.rows is Rows.PAIR:
        total = _pair_bytes(sums, tensor, access.edge)
    elif access.rows is Rows.QUERY:
        total = _query_bytes(sums, tensor, access)
    elif access.per is Per.PAIR:
        if access.skip and access.edge is Edge.NEEDED:  # of no one query block
            access = replace(access, edge=Edge.EXACT)
        total = _key_bytes_per_pair(sums, tensor, access)
        if access.skip:  # at one visit of each key block that is visited
            total -= _key_outer_bytes(sums, tensor, replace(access, visited_only=True))
    else:
        total = _key_outer_bytes(sums, tensor, access)
    return total * access.times


def _sums(domain: Domain) -> list[tuple[int, BlockSums]]:
    mask = domain.mask
    if isinstance(mask, PickedMask):
        return [(1, PickedSums(domain))]
    if isinstance(mask, IntervalMask):
        return [(1, BlockSums(domain))]
    if isinstance(mask, PackedMask):
        per, pack = domain.key_blocks_per_split, domain.pack
        # Packed sequences of one shape are summed up once and counted.
        parts = Counter(zip(mask.masks, mask.seq_q, mask.seq_k, strict=True))
        return [
            (n, BlockSums(replace(domain, rows=q * pack, seq_k=k, mask=m), per))
            for (m, q, k), n in parts.items()
        ]
    return [(1, ListSums(domain))]


def reach(domain: Domain) -> tuple[int, int]:
    """What the mask leaves of a domain: (key rows of a head in key blocks that some query block visits, visited pairs
    of blocks of a head)."""
    rows = visits = 0
    for n, sums in _sums(domain):
        blocks, at_end = sums.key_range()
        rows += n * (
            blocks * domain.block_k
            - at_end * (sums.key_blocks * domain.block_k - sums.domain.seq_k)
        )
        visits += n * sums.visits.total
    return rows, visits


def overhead_bytes(
    launch: Launch, overhead: Overhead, parts: list[tuple[int, BlockSums]] | None = None
) -> int:
    """Bytes of an overhead over the whole launch. `parts` are the sums of its domain, where they are at hand."""
    d = launch.domain
    heads = d.batch * d.heads
    tiles = launch.work_tiles
    ctas = tiles if launch.persistent_ctas is None else minimum(launch.persistent_ctas, tiles)
    total = overhead.per_cta * ctas + overhead.per_tile * launch.tiles_with_rows
    total += overhead.per_tile_fetch * (tiles + ctas)
    if overhead.per_pair:
        for n, sums in parts or _sums(d):
            total += overhead.per_pair * sums.visits.total * heads * n
    return total


def _moved(launch: Launch, chain: Chain, modes: Sequence[Mode]) -> dict[tuple[str, Way], int]:
    """Bytes by tensor and direction of a launch's accesses and overheads of these modes."""
    parts = _sums(launch.domain)
    # All heads move alike: one head's sums, times their number.
    heads = launch.domain.batch * launch.domain.heads
    bytes_of: dict[tuple[str, Way], int] = (
        _touched(launch.touched, modes) if launch.touched is not None else {}
    )
    for access in launch.accesses if launch.touched is None else ():
        if access.mode not in modes:
            continue
        key = (access.tensor, access.mode.direction)
        tensor = chain.tensors[access.tensor]
        if access.per is Per.LAUNCH:
            total = access_bytes(parts[0][1], tensor, access)
        else:
            total = heads * sum(n * access_bytes(sums, tensor, access) for n, sums in parts)
        bytes_of[key] = bytes_of.get(key, 0) + total
    for overhead in launch.overheads:
        if overhead.mode in modes:
            key = (overhead.name, overhead.mode.direction)
            bytes_of[key] = bytes_of.get(key, 0) + overhead_bytes(launch, overhead, parts)
    return bytes_of


def _touched(touched: Touched, modes: Sequence[Mode]) -> dict[tuple[str, Way], int]:
    """Bytes by tensor and direction of the requests that were read from a launch's code."""
    bytes_of: dict[tuple[str, Way], int] = {}
    for tensor, mode, bytes_moved in touched.request_bytes:
        if Mode(mode) in modes:
            key = (tensor, Mode(mode).direction)
            bytes_of[key] = bytes_of.get(key, 0) + bytes_moved
    return bytes_of


def closed_form(chain: Chain) -> Traffic:
    """SM<->L2 bytes of every launch of a chain, a row per launch, tensor and direction: ints, or duals where the chain
    was planned on duals. NB: an atomic add (`Mode.REDUCE`) counts as a write, once, as the L2 sees it."""
    return Traffic(
        tuple(
            TrafficRow(launch.name, "l2", tensor, direction, n)
            for launch in chain.launches
            for (tensor, direction), n in _moved(launch, chain, tuple(Mode)).items()
        )
    )


def added_bytes(launch: Launch, chain: Chain) -> dict[str, int]:
    """Bytes of a launch's atomic adds by tensor. Each reads at the L2 what it adds to, and so HBM where it misses."""
    return {tensor: n for (tensor, _), n in _moved(launch, chain, (Mode.REDUCE,)).items()}
