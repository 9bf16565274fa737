"""Decode over one latent key/value cache: the latent is read once, splits, the library kernel, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counter import count
from effort import examples
from executor import execute, random_arrays, reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refused
from strategies import altered, disagreements, on_arrays

from iosim.base.errors import InputError
from iosim.catalog.algorithms import options_for, plan
from iosim.catalog.libraries import Overrides, resolve
from iosim.catalog.libraries.flashmla import flashmla_splits
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Edge, Mode, Overhead
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import bounds
from iosim.readers.formula.symbolic import derive

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


def kernel(
    tile: tuple[int, int] = (8, 6), *, options: dict[str, Any] | None = None, **changes: Any
) -> Kernel:
    return Kernel("mla", "mla", Tile(*tile), options=options_for("mla", options or {}), **changes)


@st.composite
def latent_cases(draw: st.DrawFn) -> tuple[AttentionProblem, Kernel]:
    """One or two latent heads, few or many query heads and tokens, masks, splits, pages, appends, ragged everything."""
    kv_heads = draw(st.integers(1, 2))
    group = draw(st.integers(1, 7))
    seq_q = draw(st.integers(1, 9))
    seq_k = draw(st.integers(1, 60))
    head_dim = draw(st.sampled_from((1, 4, 9, 18)))
    mask = draw(st.sampled_from(("none", "causal", "window")))
    problem = AttentionProblem(
        batch=draw(st.integers(1, 3)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=head_dim,
        head_dim_v=draw(st.integers(1, head_dim)),
        mask=mask,
        window=draw(st.integers(0, 70)) if mask == "window" else None,
        latent_kv=True,
        page_size=draw(st.sampled_from((None, 1, 4, 6, 16))),
        layout=draw(st.sampled_from(("bhsd", "bshd"))),
        dtype=draw(st.sampled_from(("fp32", "fp16", "bf16"))),
        dropout=draw(st.sampled_from((0.0, 0.0, 0.3))),
    )
    tile = draw(st.sampled_from((4, 8, 16))), draw(st.sampled_from((3, 6, 16)))
    options = {
        "append_kv": seq_q <= seq_k and draw(st.booleans()),
        "statistics_per_row": draw(st.integers(1, 2)),
        "combine_rows": draw(st.sampled_from((1, 3, 8))),
    }
    return problem, kernel(
        tile,
        options=options,
        splits=draw(st.integers(1, min(-(-seq_k // tile[1]), 4))),
        writes_lse=draw(st.booleans()),
        edge_q=draw(st.sampled_from((Edge.EXACT, Edge.WHOLE))),
        edge_k=draw(st.sampled_from(tuple(Edge))),
        overheads=draw(st.sampled_from(((), (OVERHEAD,)))),
    )


OVERHEAD = Overhead("metadata", Mode.LOAD, per_tile=20, per_cta=4)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=QUIET)
@given(case=latent_cases(), seed=st.integers(0, 3))
def test_readers_agree_and_compute_attention(
    case: tuple[AttentionProblem, Kernel], seed: int
) -> None:
    assert disagreements(*case, seed=seed) == []


CASE = AttentionProblem(
    batch=2,
    heads=6,
    kv_heads=1,
    seq_q=2,
    seq_k=40,
    head_dim=18,
    head_dim_v=16,
    mask="causal",
    latent_kv=True,
)
DEEPSEEK = AttentionProblem(
    batch=128,
    heads=128,
    kv_heads=1,
    seq_q=1,
    seq_k=4096,
    head_dim=576,
    head_dim_v=512,
    dtype="bf16",
    mask="causal",
    latent_kv=True,
)


def test_v_is_the_first_columns_of_k() -> None:
    arrays = random_arrays(CASE)
    assert sorted(arrays) == ["K", "Q"]
    with_v = CASE.with_(latent_kv=False)
    right = reference(with_v, {**arrays, "V": arrays["K"][..., :16]})
    np.testing.assert_array_equal(reference(CASE, arrays)["O"], right["O"])
    np.testing.assert_allclose(execute(CASE, kernel(), arrays).outputs["O"], right["O"], atol=2e-3)


def test_the_latent_is_read_once_not_twice() -> None:
    # 12 rows (6 heads x 2 tokens) in tiles of 8 are 2 query blocks, each over all 40 rows of 18 columns
    counts = count(plan(CASE, kernel((8, 10))))
    assert counts.tensors("l2")["K", "read"] == 2 * 2 * 40 * 18 * 2
    assert ("V", "read") not in counts.tensors("l2")
    plain = CASE.with_(latent_kv=False)
    twice = count(plan(plain, Kernel("flash", "flash", Tile(8, 10), packs_group=True)))
    assert twice.total("l2", "read", tensor="V") == 2 * 2 * 40 * 16 * 2
    apart = Kernel("f", "flash", Tile(8, 8))
    latent, both = (
        bounds(p, plan(p, k), count(plan(p, k)), 0) for p, k in ((CASE, kernel()), (plain, apart))
    )
    assert both.compulsory_read - latent.compulsory_read == 2 * 40 * 16 * 2


def test_a_planted_second_read_of_v_is_found() -> None:
    """A description that loads the latent for the second product again moves bytes that no product uses."""
    chain = plan(CASE, kernel())
    main_launch = chain.launches[0]
    again = tuple(a for a in main_launch.accesses if a.tensor == "K")
    wrong = altered(chain, "main", accesses=main_launch.accesses + again)
    assert any("is there twice" in text for text in disagreements(CASE, kernel(), chain=wrong))


def test_flashmla_as_published() -> None:
    h100 = load_profile("h100-sxm")
    chosen = resolve("flashmla", DEEPSEEK.with_(page_size=64), h100)
    assert (chosen.tile.block_q, chosen.tile.block_k, chosen.cta_threads) == (64, 64, 256)
    # Q 64 x 576, two pages 64 x 576 and P 64 x 64, all in 16 bits: 226 KB; five fp32 vectors of 64 rows, 19 barriers
    assert chosen.shared_memory_bytes == (3 * 64 * 576 + 64 * 64) * 2 + 5 * 64 * 4 + 19 * 8
    # 132 SMs / 2 query blocks = 66 parts; (64 + 5) x 128 / 66 -> 134 + 5 blocks a part: two sequences of 69 and the
    # start of a third, of which 139 - 138 = 1 is too little to take: no sequence is split
    assert chosen.splits == 1
    # one sequence: 69 / 66 -> 2 + 5 blocks, at least 10: 5 blocks a part, 64 / 5 -> 13 pieces
    assert flashmla_splits(DEEPSEEK.with_(batch=1), 132, 64, 64) == 13


@pytest.mark.parametrize("batch", [1, 2, 7, 66, 300])
@pytest.mark.parametrize("keys", [1, 64, 1000, 40000])
def test_parts_hold_all_pieces(batch: int, keys: int) -> None:
    """Pieces of at most a payload cover every sequence, and there are no more of them than parts and sequences."""
    problem = DEEPSEEK.with_(batch=batch, seq_k=keys)
    splits = flashmla_splits(problem, 132, 64, 64)
    assert 1 <= splits <= -(-keys // 64)
    assert batch * (splits - 0.5) <= batch + 66


def test_traffic_of_a_decode_step() -> None:
    """128 sequences of 4,096 tokens: HBM reads each latent once, the two query blocks read it twice from L2."""
    prediction = predict(DEEPSEEK.with_(page_size=64), "flashmla", "h100-sxm", method="replay")
    latent = 128 * 4096 * 576 * 2
    assert (
        prediction.total("l2", "read") == 2 * latent + 128 * 128 * 576 * 2 + 2 * 128 * 8 * 32
    )  # Q; 64 entries a tile
    read = prediction.traffic.total("hbm", "read", tensor="K")
    assert latent <= read <= 1.05 * latent


def test_any_tile_on_a_smaller_gpu() -> None:
    prediction = predict(DEEPSEEK.with_(batch=4), "mla", "a100", method="capacity")
    assert prediction.kernel.tile.stages == 1
    by_hand = predict(
        DEEPSEEK, "mla", "l4", method="bounds", overrides=Overrides(tile=(16, 16), splits=2)
    )
    assert by_hand.kernel.splits == 2
    assert [n.name for n in by_hand.chain.launches] == ["main", "combine"]


def test_prefill_without_absorption_is_plain_attention() -> None:
    """128 heads of 192 columns in Q and K (128 and 64 rotary) and 128 in V: a head each, nothing shared."""
    problem = AttentionProblem(
        heads=128, seq_q=2048, head_dim=192, head_dim_v=128, mask="causal", dtype="bf16"
    )
    prediction = predict(problem, "fa3", "h100-sxm", method="capacity")
    assert prediction.hbm_bounds.compulsory_read == 128 * 2048 * (192 + 192 + 128) * 2
    assert prediction.kernel.packs_group is False


def test_formula() -> None:
    formula = derive(CASE, kernel((8, 8)))
    assert formula.numbers().tensors("l2") == count(plan(CASE, kernel((8, 8)))).tensors("l2")
    assert "e" in {str(s) for s in formula.total("read", tensor="K").free_symbols}


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_sweeps_are_counts(mask: str) -> None:
    rng, n = np.random.default_rng(7), 60
    values = {
        "seq_q": rng.integers(1, 9, n),
        "seq_k": rng.integers(1, 600, n),
        "heads": rng.integers(1, 200, n),
    }
    problem = AttentionProblem(
        heads=128, kv_heads=1, seq_q=2, head_dim=576, head_dim_v=512, mask=mask, latent_kv=True
    )
    read, write, holds = on_arrays(problem, kernel((64, 64)), **values)
    assert holds.any()
    for i in np.flatnonzero(holds):
        attention = problem.with_(**{name: int(v[i]) for name, v in values.items()})
        counted = count(plan(attention, kernel((64, 64))))
        assert (read[i], write[i]) == (counted.total("l2", "read"), counted.total("l2", "write"))


BAD = [
    ("--kernel mla", "accepted with it: --latent-kv"),
    ("--kernel flashmla --gpu h100 --latent-kv", "accepted: 576 and 512"),
    ("--kernel flashmla --gpu a100 --latent-kv", "needs cc 9.0"),
    ("--kernel fa2 --latent-kv", "--latent-kv: kernel fa2 does not take it"),
    ("--kernel mla --latent-kv --head-dim-v 256", "--head-dim-v 256 contradicts --latent-kv"),
    ("--kernel mla --latent-kv --pass bwd", "contradicts --pass 'bwd'"),
    ("--kernel mla --latent-kv --no-pack-group", "--no-pack-group: kernel mla always packs"),
    ("--kernel mla --latent-kv --splits 999", "splits 999 is out of range"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_input_is_told_in_one_line(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, ["predict", *options.split()], message)


def test_a_plan_by_hand_needs_a_latent_cache() -> None:
    with pytest.raises(InputError, match="accepted with it: latent_kv=True"):
        plan(CASE.with_(latent_kv=False), kernel())
    with pytest.raises(InputError, match="latent_kv 1 is no truth value"):
        AttentionProblem(latent_kv=1)  # type: ignore[arg-type]
