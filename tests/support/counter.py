"""The counter: exact bytes between SMs and L2, block by block, by launch and tensor. What the formula reader, whose
closed forms know no blocks, must agree with to the byte.
"""

from __future__ import annotations

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
    Overhead,
    Per,
    Rows,
    Tensor,
)
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


def tile_bytes(tensor: Tensor, access: Access, rows: IntArray | int) -> IntArray:
    """Bytes of tiles of so many full rows: a row vector's in whole sectors, or packet by packet; a matrix's by row."""
    if not tensor.is_vector:
        tiles = rows * tensor.row_bytes
    elif access.packet_rows:
        packet = -(-access.packet_rows * tensor.element_bytes // SECTOR_BYTES) * SECTOR_BYTES
        tiles = -(-rows // access.packet_rows) * packet
    else:
        tiles = -(-rows * tensor.element_bytes // SECTOR_BYTES) * SECTOR_BYTES
    return np.asarray(tiles, dtype=np.int64)


def visited_splits(domain: Domain) -> IntArray:
    """Splits that hold at least one visited key block, per query block."""
    return domain.visited.splits(domain.key_blocks_per_split, domain.splits)


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
        total = _times_owned(domain, access) * int(tile_bytes(tensor, access, tensor.rows))
    elif access.rows is Rows.PAIR:
        per_tile = _query_rows(domain, access.edge) * _key_rows(domain, access.edge)
        total = int(per_tile.sum()) * tensor.element_bytes
    elif access.rows is Rows.QUERY:
        tiles = tile_bytes(tensor, access, _query_rows(domain.of(tensor), access.edge))
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
    v = domain.visited
    bk = domain.block_k
    keys = tensor.keys_per_sector
    lo = v.first * bk
    hi = np.minimum(v.end * bk, domain.seq_k)
    per, sectors = domain.key_blocks_per_split * bk, 0
    for split in range(domain.splits):
        start = np.maximum(lo, split * per)
        end = np.minimum(hi, (split + 1) * per)
        sectors += int(np.where(end > start, -(-end // keys) - start // keys, 0).sum())
    return sectors * SECTOR_BYTES


def _times_owned(domain: Domain, access: Access) -> int:
    blocks = int((domain.query_rows > 0).sum())
    return {
        Per.QUERY: blocks,
        Per.KEY: int((domain.key_rows > 0).sum()),
        Per.PAIR: int(domain.visited.count.sum()),
        Per.SPLIT: blocks * domain.splits,
        Per.LAUNCH: 1,
    }[access.per]


def _key_tile_bytes(domain: Domain, tensor: Tensor, access: Access) -> int:
    """Key tiles moved whole or to the tensor's end: once a key block, or once a visit."""
    rows = domain.key_rows
    if access.edge is Edge.WHOLE:
        rows = np.where(rows > 0, domain.block_k, 0)
    tiles = tile_bytes(tensor, access, rows)
    if access.per is Per.PAIR:
        tiles = tiles * np.maximum(domain.visitors.count - access.skip, 0)
    elif access.visited_only:
        tiles = tiles * (domain.visitors.count > 0)
    return int(tiles.sum())


def overhead_bytes(launch: Launch, overhead: Overhead) -> int:
    tiles, ctas = launch.work_tiles, launch.ctas
    total = overhead.per_cta * ctas + overhead.per_tile * launch.tiles_with_rows
    if overhead.per_tile_fetch:
        total += overhead.per_tile_fetch * (tiles + ctas)
    if overhead.per_pair:
        total += overhead.per_pair * launch.visited_pairs
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


def count(chain: Chain) -> Traffic:
    """SM<->L2 bytes of every launch of a chain. NB: an atomic add (`Mode.REDUCE`) counts as a write, once, as the L2
    sees it."""
    out = Traffic()
    for launch in chain.launches:
        out += count_launch(launch, chain)
    return out
