"""The counting reader: exact bytes between SMs and L2, by launch and tensor.

Vectorised over blocks: O(query blocks + key blocks) for interval masks, O(visited pairs of blocks) for lists, never
O(seq^2).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

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
from iosim.kernel.shared_memory import WAVEFRONT_BYTES, Staged, Through, staged
from iosim.kernel.traffic import Traffic, TrafficRow
from iosim.problem.masks.mask import IntArray


def _key_rows(domain: Domain, edge: Edge) -> IntArray:
    v, bk = domain.visited, domain.block_k
    if edge is Edge.EXACT:
        return v.total(domain.key_rows)
    unneeded = v.end * bk - v.end_row if edge is Edge.NEEDED else 0
    return np.where(v.count > 0, v.count * bk - unneeded, 0)


def _query_rows(domain: Domain, edge: Edge) -> IntArray:
    rows = domain.query_rows
    return np.where(rows > 0, domain.block_q, 0) if edge is Edge.WHOLE else rows


def _tiles(tensor: Tensor, access: Access, rows: IntArray) -> IntArray:
    tiles = tensor.tile_bytes(rows, access.packet_rows)  # type: ignore[arg-type]
    return np.asarray(tiles, dtype=np.int64)


def visited_splits(domain: Domain) -> IntArray:
    """Splits that hold at least one visited key block, per query block."""
    return domain.visited.splits(domain.key_blocks_per_split)


def access_bytes(domain: Domain, tensor: Tensor, access: Access) -> int:
    """Bytes one (batch, head) of the grid moves for one access."""
    split = tensor.split_bytes(access.fetch)
    if split:  # of rows that are there
        plain = replace(access, fetch=Fetch.BYTES)
        inside = replace(plain, edge=Edge.EXACT) if access.edge is Edge.WHOLE else plain
        rows = replace(tensor, cols=split, element_bytes=1, strided=False)
        return access_bytes(domain, tensor, plain) + access_bytes(domain, rows, inside)
    v = domain.visited
    if tensor.keys_per_row and access.rows is Rows.KEY:
        return _table_bytes(domain, tensor)
    if access.rows is Rows.OWN:
        total = _times_owned(domain, access) * tensor.tile_bytes(tensor.rows)
    elif access.rows is Rows.PAIR:
        per_tile = _query_rows(domain, access.edge) * _key_rows(domain, access.edge)
        total = int(per_tile.sum()) * tensor.element_bytes
    elif access.rows is Rows.QUERY:
        tiles = _tiles(tensor, access, _query_rows(domain.of(tensor), access.edge))
        if access.per is Per.PAIR:
            tiles = tiles * np.maximum(v.count - access.skip, 0)
        elif access.per is Per.SPLIT:
            tiles = tiles * (visited_splits(domain) if access.visited_only else domain.splits)
        elif access.visited_only:
            tiles = tiles * (v.count > 0)
        total = int(tiles.sum())
    elif access.per is Per.PAIR and not tensor.is_vector and not access.skip:
        total = int(_key_rows(domain, access.edge).sum()) * tensor.row_bytes
    else:
        total = _key_tile_bytes(domain, tensor, access)
    return total * access.times


def _table_bytes(domain: Domain, tensor: Tensor) -> int:
    v, bk, keys = domain.visited, domain.block_k, tensor.keys_per_sector
    lo, hi = v.first * bk, np.minimum(v.end * bk, domain.seq_k)
    per, sectors = domain.key_blocks_per_split * bk, 0
    for split in range(domain.splits):
        start, end = np.maximum(lo, split * per), np.minimum(hi, (split + 1) * per)
        sectors += int(np.where(end > start, -(-end // keys) - start // keys, 0).sum())
    return sectors * SECTOR_BYTES


def _times_owned(domain: Domain, access: Access) -> int:
    blocks = int((domain.query_rows > 0).sum())
    return {
        Per.QUERY: blocks, Per.KEY: int((domain.key_rows > 0).sum()), Per.PAIR: int(domain.visited.count.sum()),
        Per.SPLIT: blocks * domain.splits, Per.LAUNCH: 1,
    }[access.per]  # fmt: skip


def _key_tile_bytes(domain: Domain, tensor: Tensor, access: Access) -> int:
    """Key tiles moved whole or to the tensor's end: once a key block, or once a visit."""
    rows = domain.key_rows
    if access.edge is Edge.WHOLE:
        rows = np.where(rows > 0, domain.block_k, 0)
    tiles = _tiles(tensor, access, rows)
    if access.per is Per.PAIR:
        tiles = tiles * np.maximum(domain.visitors.count - access.skip, 0)
    elif access.visited_only:
        tiles = tiles * (domain.visitors.count > 0)
    return int(tiles.sum())


def visited_pairs(launch: Launch) -> int:
    return int(launch.domain.visited.count.sum()) * launch.domain.grid_heads


def overhead_bytes(launch: Launch, overhead: Overhead) -> int:
    tiles, ctas = launch.work_tiles, launch.ctas
    total = overhead.per_cta * ctas + overhead.per_tile * launch.tiles_with_rows
    if overhead.per_tile_fetch:
        total += overhead.per_tile_fetch * (tiles + ctas)
    if overhead.per_pair:
        total += overhead.per_pair * visited_pairs(launch)
    return total


def count_launch(launch: Launch, chain_tensors: Chain) -> Traffic:
    heads = launch.domain.grid_heads
    sums: dict[tuple[str, Way], int] = {}
    for access in launch.accesses:
        tensor = chain_tensors.tensors[access.tensor]
        key = (access.tensor, access.mode.direction)
        times = 1 if access.per is Per.LAUNCH else heads
        sums[key] = sums.get(key, 0) + access_bytes(launch.domain, tensor, access) * times
    for overhead in launch.overheads:
        key = (overhead.name, overhead.mode.direction)
        sums[key] = sums.get(key, 0) + overhead_bytes(launch, overhead)
    return Traffic(tuple(TrafficRow(launch.name, "l2", t, d, n) for (t, d), n in sums.items()))


def added_bytes(launch: Launch, chain_tensors: Chain) -> dict[str, int]:
    """Bytes of a launch's atomic adds by tensor. Each reads at the L2 what it adds to, and so HBM where it misses."""
    sums: dict[str, int] = {}
    for access in launch.accesses:
        if access.mode is Mode.REDUCE:
            moved = access_bytes(launch.domain, chain_tensors.tensors[access.tensor], access)
            times = 1 if access.per is Per.LAUNCH else launch.domain.grid_heads
            sums[access.tensor] = sums.get(access.tensor, 0) + moved * times
    for overhead in launch.overheads:
        if overhead.mode is Mode.REDUCE:
            sums[overhead.name] = sums.get(overhead.name, 0) + overhead_bytes(launch, overhead)
    return sums


def _own_steps(launch: Launch, rows: int) -> float:
    """Visited pairs of blocks of a launch whose warps have `rows` rows each and leave out what the mask takes from all
    of these: the mean over the warps of a CTA. Warps past the end of the queries go with their tile."""
    d = launch.domain
    own = int(replace(d, block_q=rows).visited.count.sum())
    idle = int((d.visited.count * ((d.block_q - d.query_rows) // rows)).sum())
    return (own + idle) * d.grid_heads / (d.block_q // rows)


def staged_bytes(launch: Launch, items: Iterable[Staged]) -> dict[tuple[str, Way, Through], int]:
    sums: dict[tuple[str, Way, Through], float] = {}
    for item in items:
        times: float = launch.tiles_with_rows
        if item.step:
            times = _own_steps(launch, item.own_rows) if item.own_rows else visited_pairs(launch)
        key = (item.tensor, item.way, item.through)
        sums[key] = sums.get(key, 0) + item.bytes * times
    return {key: round(moved) for key, moved in sums.items()}


def wavefront_bytes(chain: Chain) -> int | None:
    """Bytes of whole wavefronts that loads, stores and products of all launches move at shared memory, as its counter
    has them; None where those of a launch are not known."""
    total = 0
    for launch in chain.launches:
        items = staged(launch, chain)
        if items is None:
            return None
        counted = (item for item in items if item.through is not Through.COPIES)
        total += sum(staged_bytes(launch, counted).values()) // WAVEFRONT_BYTES * WAVEFRONT_BYTES
    return total


def count_shared(launch: Launch, chain: Chain) -> Traffic | None:
    """Bytes between shared memory and what computes, a row per tensor and direction; None where they are not known."""
    items = staged(launch, chain)
    if items is None:
        return None
    sums: dict[tuple[str, Way], int] = {}
    for (tensor, way, _), moved in staged_bytes(launch, items).items():
        sums[tensor, way] = sums.get((tensor, way), 0) + moved
    return Traffic(tuple(TrafficRow(launch.name, "smem", t, way, n) for (t, way), n in sums.items()))


def count(chain: Chain) -> Traffic:
    """SM<->L2 bytes of every launch of a chain. NB: an atomic add (`Mode.REDUCE`) counts as a write, once, as the L2
    sees it."""
    out = Traffic()
    for launch in chain.launches:
        out += count_launch(launch, chain)
    return out
