"""The counting reader: exact bytes between SMs and L2, by launch and tensor.

Vectorised over query blocks: O(seq_q / block_q) for interval masks, never O(seq^2).
"""

from __future__ import annotations

import numpy as np

from iosim.launch import Access, Chain, Domain, Edge, Launch, Overhead, Per, Tensor
from iosim.mask import IntArray
from iosim.traffic import Traffic, TrafficRow


def _key_rows(domain: Domain, edge: Edge) -> IntArray:
    """Key rows moved by each query block's loop."""
    v, bk = domain.visited, domain.block_k
    if edge is Edge.WHOLE:
        return v.count * bk
    end = v.end_row if edge is Edge.NEEDED else np.minimum(v.end * bk, domain.seq_k)
    return np.where(v.count > 0, end - v.first * bk, 0)


def _query_tiles(domain: Domain, tensor: Tensor, access: Access) -> IntArray:
    """Bytes of every query block's tile of `tensor`."""
    n, bq = domain.query_blocks, domain.block_q
    tiles = np.full(n, tensor.tile_bytes(bq, access.packet_rows), dtype=np.int64)
    if access.edge is not Edge.WHOLE:
        tiles[-1] = tensor.tile_bytes(domain.rows - (n - 1) * bq, access.packet_rows)
    return tiles


def _query_rows(domain: Domain, edge: Edge) -> IntArray:
    rows = np.full(domain.query_blocks, domain.block_q, dtype=np.int64)
    if edge is not Edge.WHOLE:
        rows[-1] = domain.rows - (domain.query_blocks - 1) * domain.block_q
    return rows


def visited_splits(domain: Domain) -> IntArray:
    """Splits that hold at least one visited key block, per query block."""
    v, per = domain.visited, domain.key_blocks_per_split
    return np.where(v.count > 0, (v.end - 1) // per - v.first // per + 1, 0)


def _vector_key_bytes(domain: Domain, tensor: Tensor, edge: Edge) -> int:
    """Bytes of a row vector along the keys, each block's tile in whole sectors, over all visited pairs."""
    v, last = domain.visited, domain.key_blocks_total - 1
    whole = int(v.count.sum()) * tensor.tile_bytes(domain.block_k)
    if edge is Edge.WHOLE:
        return whole
    ragged = tensor.tile_bytes(domain.seq_k - last * domain.block_k) - tensor.tile_bytes(domain.block_k)
    return whole + ragged * int(((v.end == last + 1) & (v.count > 0)).sum())


def access_bytes(domain: Domain, tensor: Tensor, access: Access) -> int:
    """Bytes one (batch, head) of the grid moves for one access."""
    v = domain.visited
    if access.rows == "qk":
        per_tile = _query_rows(domain, access.edge) * _key_rows(domain, access.edge)
        total = int(per_tile.sum()) * tensor.element_bytes
    elif access.rows == "q":
        tiles = _query_tiles(domain, tensor, access)
        if access.per is Per.PAIR:
            tiles = tiles * np.maximum(v.count - access.skip, 0)
        elif access.per is Per.SPLIT:
            tiles = tiles * (visited_splits(domain) if access.visited_only else domain.splits)
        elif access.visited_only:
            tiles = tiles * (v.count > 0)
        total = int(tiles.sum())
    elif access.per is Per.PAIR:
        if tensor.is_vector:
            total = _vector_key_bytes(domain, tensor, access.edge)
        else:
            total = int(_key_rows(domain, access.edge).sum()) * tensor.row_bytes
    else:
        total = _key_outer_bytes(domain, tensor, access)
    return total * access.times


def _key_outer_bytes(domain: Domain, tensor: Tensor, access: Access) -> int:
    """Key tiles moved once per key block: all of them, or the contiguous range that any query visits."""
    first, end = 0, domain.key_blocks_total
    if access.visited_only:
        v = domain.visited
        some = v.count > 0
        if not some.any():
            return 0
        first, end = int(v.first[some].min()), int(v.end[some].max())
    full = end - first
    if access.edge is Edge.WHOLE or end < domain.key_blocks_total:
        return full * tensor.tile_bytes(domain.block_k)
    last = domain.seq_k - (end - 1) * domain.block_k
    return (full - 1) * tensor.tile_bytes(domain.block_k) + tensor.tile_bytes(last)


def visited_pairs(launch: Launch) -> int:
    """Visited (query block, key block) pairs of a launch, over all heads and sequences."""
    return int(launch.domain.visited.count.sum()) * launch.domain.grid_heads


def overhead_bytes(launch: Launch, overhead: Overhead) -> int:
    """Bytes of an overhead over the whole launch."""
    tiles, ctas = launch.work_tiles, launch.ctas
    total = overhead.per_cta * ctas + overhead.per_tile * tiles
    if overhead.per_tile_fetch:
        total += overhead.per_tile_fetch * (tiles + ctas)
    if overhead.per_pair:
        total += overhead.per_pair * visited_pairs(launch)
    return total


def count_launch(launch: Launch, chain_tensors: Chain) -> Traffic:
    """SM<->L2 bytes of one launch, a row per tensor and direction."""
    heads = launch.domain.grid_heads
    sums: dict[tuple[str, str], int] = {}
    for access in launch.accesses:
        tensor = chain_tensors.tensors[access.tensor]
        key = (access.tensor, access.mode.direction)
        sums[key] = sums.get(key, 0) + access_bytes(launch.domain, tensor, access) * heads
    for overhead in launch.overheads:
        key = (overhead.name, overhead.mode.direction)
        sums[key] = sums.get(key, 0) + overhead_bytes(launch, overhead)
    return Traffic(tuple(TrafficRow(launch.name, "l2", t, d, n) for (t, d), n in sums.items()))


def count(chain: Chain) -> Traffic:
    """SM<->L2 bytes of every launch of a chain.

    NB: an atomic add (`Mode.REDUCE`) counts as a write, once, as the L2 sees it.
    """
    out = Traffic()
    for launch in chain.launches:
        out += count_launch(launch, chain)
    return out
