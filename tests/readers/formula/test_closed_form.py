"""Bytes of one access in closed form, beside a walk over every pair of blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from iosim.kernel.launch import Access, Domain, Edge, Mode, Per, Role, Rows, Tensor
from iosim.problem.masks.mask import IntervalMask
from iosim.readers.formula.closed_form import access_bytes
from iosim.readers.formula.sums import BlockSums

COLUMNS, ELEMENT_BYTES = 8, 2
OFTEN = {Rows.QUERY: (Per.QUERY, Per.PAIR), Rows.KEY: (Per.KEY, Per.PAIR), Rows.PAIR: (Per.PAIR,)}


def walked(d: Domain, causal: bool, access: Access) -> int:
    """Bytes of a matrix's rows, tile by tile of one head, as the words of `Edge`, `Per` and `Access` have it."""
    whole = access.edge is Edge.WHOLE

    def size(start: int, block: int, end: int) -> int:
        return block if whole else min(start + block, end) - start

    bytes_walked = 0
    query_visits = Counter[int]()
    key_visits = Counter[int]()
    for q, k in product(range(0, d.rows, d.block_q), range(0, d.seq_k, d.block_k)):
        last = min(q + d.block_q, d.rows) - 1 + d.seq_k - d.rows if causal else d.seq_k - 1
        if last < k:
            continue  # no key of the block is kept by any query of the other
        query_visits[q] += 1
        key_visits[k] += 1
        rows = size(q, d.block_q, d.rows)
        keys = size(k, d.block_k, d.seq_k)
        if access.edge is Edge.NEEDED and not access.skip:
            keys = min(keys, last + 1 - k)
        if access.rows is Rows.PAIR:
            bytes_walked += rows * keys * ELEMENT_BYTES
        elif access.per is Per.PAIR:
            bytes_walked += (rows if access.rows is Rows.QUERY else keys) * COLUMNS * ELEMENT_BYTES
    if access.rows is not Rows.PAIR:
        of_query = access.rows is Rows.QUERY
        visits, block, end = (
            (query_visits, d.block_q, d.rows) if of_query else (key_visits, d.block_k, d.seq_k)
        )
        for start in range(0, end, block):
            tile = size(start, block, end) * COLUMNS * ELEMENT_BYTES
            if access.per is Per.PAIR:
                bytes_walked -= tile if access.skip and visits[start] else 0
            elif visits[start] or not access.visited_only:
                bytes_walked += tile
    return bytes_walked * access.times


@pytest.mark.parametrize("causal", [False, True])
@settings(max_examples=examples(200), deadline=None)
@given(
    rows=st.integers(1, 70),
    keys=st.integers(1, 70),
    block_q=st.integers(1, 20),
    block_k=st.integers(1, 20),
    edge=st.sampled_from(Edge),
    skip=st.integers(0, 1),
    visited=st.booleans(),
    times=st.integers(1, 2),
)
def test_an_access_moves_what_a_walk_over_its_blocks_moves(
    causal: bool,
    rows: int,
    keys: int,
    block_q: int,
    block_k: int,
    edge: Edge,
    skip: int,
    visited: bool,
    times: int,
) -> None:
    right = keys - rows if causal else None
    domain = Domain(1, 1, rows, keys, block_q, block_k, IntervalMask(None, right))
    sums = BlockSums(domain)
    for of, often in OFTEN.items():
        length = rows if of is Rows.QUERY else keys
        columns = keys if of is Rows.PAIR else COLUMNS
        tensor = Tensor("X", 1, 1, length, columns, ELEMENT_BYTES, Role.INPUT)
        for per in often:
            skipped = skip if per is Per.PAIR and of is not Rows.PAIR else 0
            only = visited and per is not Per.PAIR
            edge_here = Edge.EXACT if edge is Edge.NEEDED and of is Rows.QUERY else edge
            access = Access("X", Mode.LOAD, of, per, edge_here, only, times, skipped)
            assert access_bytes(sums, tensor, access) == walked(domain, causal, access), access


def test_a_skipped_visit_takes_all_rows_of_its_key_block() -> None:
    """32 queries in blocks of 8, 32 keys in blocks of 16, causal. Key block 0 is visited by query blocks 0 to 3 and block
    1 by 2 and 3; of these six visits of 16 rows one of each key block is not made: 4 x 16 rows x 8 columns x 2 bytes."""
    sums = BlockSums(Domain(1, 1, 32, 32, 8, 16, IntervalMask(None, 0)))
    tensor = Tensor("X", 1, 1, 32, COLUMNS, ELEMENT_BYTES, Role.INPUT)
    access = Access("X", Mode.LOAD, Rows.KEY, Per.PAIR, Edge.NEEDED, skip=1)
    assert access_bytes(sums, tensor, access) == 4 * 16 * 8 * 2


def test_an_undivided_domain_has_one_split_with_keys() -> None:
    """Four query blocks and eight key blocks: divided by four, each query block meets four splits of two key blocks."""
    domain = Domain(1, 1, 32, 64, 8, 8, splits=4)
    assert BlockSums(domain).visited_splits.total == 4 * 4
    assert BlockSums(replace(domain, undivided=True)).visited_splits.total == 4
