"""CoveredMask: the blocks of which an interval mask keeps a pair, without lists of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

import iosim
from iosim import AttentionProblem
from iosim.catalog.algorithms import common
from iosim.problem.masks.blocks import BlockMask, CoveredMask
from iosim.problem.masks.mask import IntervalMask


def masks(draw: random.Random) -> tuple[CoveredMask, BlockMask]:
    seq_q = draw.randint(1, 400)
    seq_k = draw.randint(1, 400)
    block = draw.choice((16, 64, 128))
    interval = IntervalMask(
        left=draw.choice((None, 0, 7, 100)),
        right=draw.choice((0, 5, 300)),
        offset=draw.choice((0, -30, 50, seq_k - seq_q)),
    )
    return (
        CoveredMask(interval, seq_q, seq_k, block),
        BlockMask.covering(interval, seq_q, seq_k, block, block),
    )


@pytest.mark.parametrize("seed", range(200))
def test_it_keeps_what_the_lists_keep(seed: int) -> None:
    draw = random.Random(seed)
    covered, listed = masks(draw)
    seq_q, seq_k = covered.seq_q, covered.seq_k
    assert covered.nnz == listed.nnz
    for name in ("kept_pairs", "kept_keys", "kept_queries"):
        assert getattr(covered, name)(seq_q, seq_k) == getattr(listed, name)(seq_q, seq_k)
    queries, keys = np.meshgrid(np.arange(seq_q), np.arange(seq_k), indexing="ij")
    assert (covered.keeps(queries, keys) == listed.keeps(queries, keys)).all()


@pytest.mark.parametrize("seed", range(100))
def test_its_tiles_are_those_of_the_lists_in_order(seed: int) -> None:
    draw = random.Random(seed)
    covered, listed = masks(draw)
    tile = draw.choice((8, 16)), draw.choice((4, 16))
    pack = draw.choice((1, 2, 4))
    shape = covered.seq_q * pack, covered.seq_k, *tile, pack
    ours = covered.key_blocks(*shape)
    theirs = listed.key_blocks(*shape)
    assert (ours.count == theirs.count).all()
    assert (ours.end_row == theirs.end_row).all()
    some = ours.count > 0
    assert (ours.first[some] == theirs.first[some]).all()
    assert (ours.end[some] == theirs.end[some]).all()
    key_blocks = -(-covered.seq_k // tile[1])
    assert (ours.by_key(key_blocks).count == theirs.by_key(key_blocks).count).all()


def test_long_causal_calls_of_flexattention_have_no_lists() -> None:
    """7,785 block rows where lists would hold 30 million blocks and 60 million tiles."""
    call = {"kernel": "flex", "gpu": "h100", "heads": 8, "head_dim": 128, "causal": True}
    p = iosim.predict(seq_len=996_480, method="capacity", **call)
    tiles = 8 * 7785 * (7785 + 1) // 2 * 2  # two tiles of 64 keys a block of 128
    assert p.l2.read == pytest.approx(tiles * 64 * 128 * 2 * 2, rel=1e-3)


@pytest.mark.parametrize("passes", ["fwd", "bwd"])
def test_lists_or_none_count_the_same(passes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = AttentionProblem(heads=4, seq_q=3000, head_dim=64, mask="causal", passes=passes)
    listed = iosim.predict(problem, kernel="flex", gpu="h100", method="bounds")
    monkeypatch.setattr(common, "LISTED_BLOCKS", 0)
    covered = iosim.predict(problem, kernel="flex", gpu="h100", method="bounds")
    assert covered.l2 == listed.l2
    assert covered.hbm_bounds == listed.hbm_bounds
    assert covered.time_s == pytest.approx(listed.time_s, rel=1e-6)
