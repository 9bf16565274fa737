"""Bytes at shared memory of a launch, added up by hand from what a step and a work tile move."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iosim.kernel.launch import Domain, Launch, Outer
from iosim.kernel.shared_memory import WAVEFRONT_BYTES, Staged, Through
from iosim.problem.masks.mask import IntervalMask
from iosim.readers import staged as module
from iosim.readers.staged import count_shared, staged_bytes, wavefront_bytes

CAUSAL = Launch("fwd", Domain(2, 3, 128, 128, 64, 32, IntervalMask(None, 0, 0)), Outer.QUERY, ())
"""Two tiles of 64 queries a head, which visit two and four blocks of 32 keys: 6 pairs, of 6 heads."""
READ, WRITE = "read", "write"


@pytest.mark.parametrize(
    ("item", "total"),
    [
        (Staged("K", READ, 10.0), 10 * 6 * 6),  # in each step
        (Staged("Q", READ, 10.0, step=False), 10 * 2 * 6),  # once a work tile
        # warps of 16 rows skip what the mask takes from all of these: 1, 1, 2, 2, 3, 3, 4, 4 steps of the
        # eight warps are 20, over the four of a CTA
        (Staged("K", READ, 10.0, own_rows=16), 10 * 20 / 4 * 6),
    ],
)
def test_steps_and_tiles(item: Staged, total: float) -> None:
    assert staged_bytes(CAUSAL, [item]) == {(item.tensor, READ, Through.LSU): total}


def test_items_of_one_way_are_added() -> None:
    items = [Staged("K", READ, 0.5), Staged("K", READ, 0.25), Staged("K", WRITE, 2.0)]
    assert staged_bytes(CAUSAL, items) == {
        ("K", READ, Through.LSU): 0.75 * 36,
        ("K", WRITE, Through.LSU): 2 * 36,
    }


def test_warps_past_the_end_of_the_queries_go_with_their_tile() -> None:
    """80 queries: the second tile has 16 rows, so that three of its four warps have none and go its two steps each."""
    ragged = Launch("fwd", Domain(1, 1, 80, 64, 64, 32), Outer.QUERY, ())
    staged_rows = staged_bytes(ragged, [Staged("K", READ, 4.0, own_rows=16)])
    # 5 warps with rows and 3 without, two steps each, over four warps
    assert staged_rows == {("K", READ, Through.LSU): 4 * (5 * 2 + 3 * 2) / 4}


def counted(monkeypatch: pytest.MonkeyPatch, *of_launches: Any) -> Any:
    items = iter(of_launches)
    monkeypatch.setattr(module, "staged", lambda launch, chain: next(items))
    return SimpleNamespace(launches=[CAUSAL] * len(of_launches))


def test_the_counter_counts_whole_wavefronts_of_each_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """5 bytes in 36 steps are 180, one wavefront of 128; 8 are 288, two; copies are not counted."""
    assert WAVEFRONT_BYTES == 128
    copies = Staged("K", WRITE, 1000.0, Through.COPIES)
    chain = counted(monkeypatch, [Staged("K", READ, 5.0), copies], [Staged("K", READ, 8.0)])
    assert wavefront_bytes(chain) == 128 + 256
    assert wavefront_bytes(counted(monkeypatch, [Staged("K", READ, 5.0)], None)) is None


def test_rows_of_tensors_and_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [
        Staged("K", READ, 1.0),
        Staged("K", READ, 2.0, Through.COPIES),
        Staged("V", WRITE, 3.0),
    ]
    chain = counted(monkeypatch, items)
    traffic = count_shared(CAUSAL, chain)
    assert traffic is not None
    rows = {(r.launch, r.level, r.tensor, r.direction): r.bytes for r in traffic.rows}
    assert rows == {("fwd", "smem", "K", READ): 3 * 36, ("fwd", "smem", "V", WRITE): 3 * 36}
    assert count_shared(CAUSAL, counted(monkeypatch, None)) is None


def test_visited_blocks_of_the_example() -> None:
    assert np.array_equal(CAUSAL.domain.visited.count, [2, 4])
