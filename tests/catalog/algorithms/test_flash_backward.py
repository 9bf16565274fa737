"""FlexAttention's backward: its tiles, and CTAs of dK and dV with those of dQ in one grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counter import count
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import measurements
from strategies import disagreements

from iosim.catalog.algorithms import plan
from iosim.catalog.algorithms.flash_options import Adds, FlashOptions
from iosim.catalog.libraries import resolve
from iosim.evidence.validate import compare, read
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, PassSettings, RowPass, Tile
from iosim.kernel.schedule import Order, Schedule
from iosim.prediction.call import Call
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks import BlockMask
from iosim.readers.replay import replay
from iosim.readers.replay.lowering import LoweredLaunch, lower
from iosim.readers.replay.play import Play
from iosim.readers.replay.templates import NONE

DOT = RowPass("dot", ("O", "dO"), ("D",), rows=8)


def problem(**values: Any) -> AttentionProblem:
    shape: dict[str, Any] = {
        "heads": 4,
        "seq_q": 1024,
        "head_dim": 128,
        "dtype": "bf16",
        "passes": "bwd",
    }
    return AttentionProblem(**(shape | values))


def kernel(block_q: int, block_k: int, mask_block: int) -> Kernel:
    options = FlashOptions(mask_block=mask_block, heads_in_turn=True, adds=Adds.SAME_GRID)
    schedule = Schedule(order=Order.BATCH)
    backward = PassSettings(Tile(block_q, block_k), schedule, passes=(DOT,))
    return Kernel(
        "flex", "flash", Tile(block_q, block_k), schedule, backward=backward, options=options
    )


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_readers_agree_and_the_output_is_the_gradient(data: st.DataObject) -> None:
    heads = data.draw(st.sampled_from([(1, 1), (4, 2), (3, 1)]))
    block_q, block_k = data.draw(st.sampled_from([(4, 8), (4, 4), (2, 8)]))
    seq_q = 8 * data.draw(st.integers(1, 3))
    seq_k = data.draw(st.integers(1, 20))
    words: dict[str, Any] = {"mask": data.draw(st.sampled_from(["none", "causal", "blocks"]))}
    if words["mask"] == "blocks":
        kept_pairs = np.array(
            [
                [data.draw(st.booleans()) for _ in range(-(-seq_k // 8))]
                for _ in range(-(-seq_q // 8))
            ]
        )
        kept_pairs[:, 0] = True
        words["mask_blocks"] = BlockMask.of_pairs(seq_q, seq_k, 8, 8, *np.nonzero(kept_pairs))
    attention = AttentionProblem(
        batch=data.draw(st.integers(1, 2)),
        heads=heads[0],
        kv_heads=heads[1],
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=4,
        passes="bwd",
        **words,
    )
    assert disagreements(attention, kernel(block_q, block_k, 8)) == []


@pytest.mark.parametrize(
    ("gpu", "head_dim", "tile", "stages", "warps"),
    [
        ("h100", 32, "64x64", 3, 4),
        ("h100", 64, "64x128", 3, 8),
        ("h200", 128, "64x128", 3, 8),
        ("h100", 256, "64x64", 2, 4),
        ("b200", 128, "64x128", 3, 4),
        ("b200", 192, "64x64", 1, 8),
        ("a100", 32, "32x128", 3, 4),
        ("a100", 128, "64x64", 2, 4),
        ("rtx-3090", 128, "64x64", 3, 4),
        ("rtx-3090", 64, "64x64", 2, 4),
        ("rtx-5090", 128, "64x64", 1, 4),
        ("rtx-5090", 64, "64x64", 2, 4),
    ],
)
def test_tiles_are_pytorchs(gpu: str, head_dim: int, tile: str, stages: int, warps: int) -> None:
    backward_tile = resolve("flex", problem(head_dim=head_dim), load_profile(gpu)).tile_backward
    assert (str(backward_tile), backward_tile.stages, backward_tile.warps) == (tile, stages, warps)


def test_fp32_takes_blocks_of_16() -> None:
    tile = resolve("flex", problem(dtype="fp32"), load_profile("h100")).tile_backward
    assert (str(tile), tile.stages) == ("16x16", 1)


def test_bytes_of_both_kinds_of_ctas() -> None:
    case = problem(kv_heads=2)
    counts = count(plan(case, resolve("flex", case, load_profile("h100"))))
    head = 1024 * 128 * 2  # bytes of a head's Q, K, V, O or a gradient
    for name, heads in (
        ("K", 2),
        ("V", 2),
    ):  # once for each block of 128 keys, and for each of 8 blocks of 128 queries
        assert counts.total("l2", "read", launch="bwd.main", tensor=name) == heads * head
        assert counts.total("l2", "read", launch="bwd.dq", tensor=name) == 4 * 8 * head
    for name in ("Q", "dO"):
        assert counts.total("l2", "read", launch="bwd.main", tensor=name) == 4 * 8 * head
        assert counts.total("l2", "read", launch="bwd.dq", tensor=name) == 4 * head
    assert counts.total("l2", "write", tensor="dQ") == 4 * head
    assert (
        counts.total("l2", "write", tensor="dK") == 2 * head
    )  # summed over a group's heads on chip
    assert counts.total("l2", "write", tensor="D") == 4 * 1024 * 4


def test_one_grid_has_a_heads_keys_and_then_its_queries() -> None:
    case = problem(batch=2, kv_heads=2)
    chain = plan(case, resolve("flex", case, load_profile("h100")))
    low = lower(chain, spill_slots=1)
    dot, grid, none = low.launches
    assert none.tiles == 0
    assert grid.tiles == 2 * 2 * (8 + 2 * 8)
    owns_keys = next(t for t in grid.epilogue if t.tensor == "dK").base != NONE
    owners = [True] * 8 + [False] * 16
    assert owns_keys.tolist() == owners * 4
    queries = grid.head[~owns_keys]
    assert (
        queries[:16].tolist() == [0] * 8 + [1] * 8
    )  # of the first sequence's first key/value head
    assert queries[16:32].tolist() == [4] * 8 + [5] * 8  # the same of the second sequence
    assert dot.tiles


def test_queries_ctas_find_in_the_l2_what_those_of_keys_loaded() -> None:
    """Apart, launches would read Q, K, V and dO twice; bytes of dQ stand under the CTAs that store it."""
    case = problem(heads=16, seq_q=8192)
    prediction = predict(case, "flex", "h100")
    inputs = 16 * 8192 * 128 * 2
    for name in ("Q", "K", "V", "dO"):
        read = prediction.traffic.total("hbm", "read", tensor=name) - inputs * (
            name == "dO"
        )  # the row sums read it, too
        assert inputs <= read < 1.4 * inputs
    assert prediction.traffic.total("hbm", "write", launch="bwd.dq", tensor="dQ") > 0
    assert prediction.traffic.total("hbm", "read", launch="bwd.dq") == 0
    times = {t.name: t for t in prediction.time.launches}
    assert times["bwd.dq"].parts["start"] == 0 < times["bwd.main"].parts["start"]


def test_the_grid_is_played_whole_where_others_are_played_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two launches share a grid, whose CTAs part over all of it: it is played whole but where they part least, and a
    range's smaller budget reaches the launches that have a grid to themselves alone."""
    budgets: dict[str, int | None] = {}

    def sampling_plan(low: LoweredLaunch, slots: int, budget: int | None = None) -> None:
        budgets[low.name] = budget

    monkeypatch.setattr(replay, "sampling_plan", sampling_plan)
    case, gpu = problem(), load_profile("h100")
    call = Call.of(case, resolve("flex", case, gpu), gpu)
    part = call.replay(Play(part=True, accesses=1))
    assert budgets == {"bwd.dot": 1, "bwd.dq": 1}
    assert [launch.coarse for launch in part.launches] == [None] * 3
    call.replay(Play(part=True, accesses=1, drift="least"))
    assert budgets == {"bwd.dot": 1, "bwd.main": None, "bwd.dq": 1}


def test_a_causal_mask_is_blocks_of_128_which_smaller_tiles_walk_whole() -> None:
    case = problem(mask="causal", kv_heads=2)
    counts = count(plan(case, resolve("flex", case, load_profile("a100"))))  # tiles of 64x64
    rows = (
        4 * (8 * 9 // 2) * 2 * 128
    )  # of Q, for each block of 64 keys; of K, for each of 64 queries
    for launch, tensor in (("bwd.main", "Q"), ("bwd.dq", "K")):
        assert counts.total("l2", "read", launch=launch, tensor=tensor) == rows * 128 * 2


def test_counted_bytes_are_predicted() -> None:
    """h100_flex_backward.csv, six lists at head_dim 128 and one at 64. What registers spill was taken from the writes
    of these rows; HBM bytes are the replay's. One list of 65,536 tokens, a butterfly, reads less than the replay."""
    comparison = compare(read(measurements("h100_flex_backward.csv")), load_profile("h100"))
    assert not comparison.skipped
    near = {"l2_write": 1e-6, "l2_read": 4e-3, "hbm_write": 0.08, "hbm_read": 0.09}
    errors = {
        q: sorted(r.error or 0 for r in comparison.residuals if r.quantity == q) for q in near
    }
    assert {len(group) for group in errors.values()} == {7}
    for quantity, within in near.items():
        assert errors[quantity][-2] < within, quantity
    assert errors["hbm_read"][-1] < 0.12
    assert errors["l2_write"][-1] < 1e-6
    assert {r.regime for r in comparison.residuals if r.problem.head_dim == 128} == {"spill"}


def test_spills_are_of_the_wide_build_alone() -> None:
    for head_dim, blocks, spilled in ((128, 8, 26 + 16 * 4), (64, 8, 0)):
        case = problem(head_dim=head_dim)
        counts = count(plan(case, resolve("flex", case, load_profile("h100"))))
        # a CTA's 256 threads store once a tile and at each of 16 steps, 8 tiles of keys and 8 of queries in 4 heads
        for launch in ("bwd.main", "bwd.dq"):
            assert (
                counts.total("l2", "write", launch=launch, tensor="spill")
                == 4 * blocks * 256 * spilled
            )
