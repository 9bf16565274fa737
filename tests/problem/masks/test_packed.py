"""Sequences of different lengths packed in one batch: the readers agree, and equal lengths give the plain batch."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from counter import count
from effort import examples
from executor import execute
from executor.reference import dense_mask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered import loop_steps, wrong_bytes
from strategies import BLOCKS, OVERHEADS, disagreements, table

from iosim import InputError, load_profile, predict
from iosim.catalog.algorithms import plan
from iosim.commands.cli import main
from iosim.kernel.kernel import Kernel, PassSettings, Schedule, Scheduler, Start, Tile
from iosim.kernel.launch import Edge, Outer, Role
from iosim.kernel.schedule import Direction, Order
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.mask import Axis
from iosim.readers.formula.closed_form import closed_form
from iosim.readers.formula.symbolic import derive
from iosim.readers.replay.lowering import lower, start_order
from iosim.readers.replay.objects import streams

RARE = [HealthCheck.too_slow, HealthCheck.data_too_large]
SLOW = settings(max_examples=examples(80), deadline=None, suppress_health_check=RARE)


@st.composite
def packed_cases(draw: st.DrawFn, passes: str) -> tuple[AttentionProblem, Kernel]:
    """One to five sequences, ragged, grouped, masked; every edge, splits, packed heads, persistent grids."""
    n = draw(st.integers(1, 5))
    lengths = st.one_of(st.just(1), st.integers(1, 30))
    lens = draw(st.lists(lengths, min_size=n, max_size=n))
    lens_k = draw(st.one_of(st.none(), st.lists(lengths, min_size=n, max_size=n)))
    mask = draw(st.sampled_from(("none", "causal", "window")))
    values: dict[str, Any] = {"window": draw(st.integers(0, 20))} if mask == "window" else {}
    if mask != "none":
        values["offset"] = draw(st.one_of(st.none(), st.none(), st.integers(-12, 12)))
    kv_heads = draw(st.integers(1, 2))
    problem = AttentionProblem(
        heads=kv_heads * draw(st.sampled_from((1, 2, 3))),
        kv_heads=kv_heads,
        seq_lens=tuple(lens),
        seq_lens_k=None if lens_k is None else tuple(lens_k),
        head_dim=draw(st.sampled_from((3, 8))),
        mask=mask,
        dtype=draw(st.sampled_from(("fp16", "bf16"))),
        layout=draw(st.sampled_from(("bhsd", "bshd"))),
        passes=passes,
        dropout=draw(st.sampled_from((0.0, 0.3))),
        **values,
    )
    tile, back = (Tile(*draw(st.tuples(*(st.sampled_from(BLOCKS[3:]),) * 2))) for _ in range(2))
    limit = n * -(-max(lens_k or lens) // tile.block_k)
    forward = passes == "fwd"
    schedule = Schedule(
        order=draw(st.sampled_from(tuple(Order))),
        start=draw(st.sampled_from(tuple(Start))),
        section_heads=draw(st.sampled_from((0, 2))),
        direction=draw(st.sampled_from((Direction.ASCENDING, Direction.DESCENDING))),
        scheduler=draw(st.sampled_from(tuple(Scheduler))),
    )
    return problem, Kernel(
        "flash",
        "flash",
        tile,
        backward=PassSettings(back),
        schedule=schedule,
        splits=draw(st.integers(1, min(limit, 3))) if forward else 1,
        packs_group=draw(st.booleans()),
        rereads_q=draw(st.booleans()),
        writes_lse=draw(st.booleans()) or not forward,
        edge_q=draw(st.sampled_from((Edge.EXACT, Edge.WHOLE))),
        edge_k=draw(st.sampled_from(tuple(Edge))),
        persistent_ctas=draw(st.sampled_from((None, 5))),
        overheads=draw(st.sampled_from(((), OVERHEADS))),
    )


@pytest.mark.parametrize("passes", ["fwd", "bwd", "fwd+bwd"])
@SLOW
@given(data=st.data())
def test_readers_agree_on_packed_sequences(passes: str, data: st.DataObject) -> None:
    problem, kernel = data.draw(packed_cases(passes))
    assert disagreements(problem, kernel, seed=data.draw(st.integers(0, 3))) == []


@SLOW
@given(data=st.data())
def test_lowered_bytes_are_the_counted_bytes(data: st.DataObject) -> None:
    """Objects hold each sequence's own tiles; a loop stays among its sequence's."""
    problem, kernel = data.draw(packed_cases(data.draw(st.sampled_from(("fwd", "fwd+bwd")))))
    chain = plan(problem, kernel)
    lowered = lower(chain, 8)
    assert wrong_bytes(chain, lowered) == []
    for launch, low in zip(chain.launches, lowered.launches, strict=True):
        if streams(launch):
            continue
        d = launch.domain
        tile, index = loop_steps(low)
        each_q = d.query_blocks // d.sequences
        each_k = d.key_blocks_total // d.sequences
        block = low.block[tile].astype(int)
        of_block = (
            block // each_k if launch.outer is Outer.KEY else block % d.query_blocks // each_q
        )
        assert np.array_equal(of_block, index // (each_q if launch.outer is Outer.KEY else each_k))


@SLOW
@given(data=st.data())
def test_equal_lengths_are_the_plain_batch(data: st.DataObject) -> None:
    """As many sequences of one length, packed or padded: the same bytes, start order and loops."""
    n, seq_q, seq_k = (
        data.draw(st.integers(1, 4)),
        data.draw(st.integers(1, 30)),
        data.draw(st.integers(1, 30)),
    )
    mask = data.draw(st.sampled_from(("none", "causal")))
    passes = data.draw(st.sampled_from(("fwd", "bwd")))
    shape: dict[str, Any] = {
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "mask": mask,
        "passes": passes,
    }
    plain = AttentionProblem(batch=n, seq_q=seq_q, seq_k=seq_k, **shape)
    packed = AttentionProblem(seq_lens=(seq_q,) * n, seq_lens_k=(seq_k,) * n, **shape)
    order = data.draw(st.sampled_from(tuple(Order)))
    kernel = Kernel(
        "flash",
        "flash",
        Tile(data.draw(st.sampled_from((4, 7))), 8),
        schedule=Schedule(order, data.draw(st.sampled_from(tuple(Start)))),
        edge_k=data.draw(st.sampled_from(tuple(Edge))),
    )
    a = plan(plain, kernel)
    b = plan(packed, kernel)
    mains = [next(x for x in chain.launches if x.name.endswith("main")) for chain in (a, b)]
    counted = [
        {k: v for k, v in table(count(chain)).items() if k[0] == mains[0].name} for chain in (a, b)
    ]
    assert counted[0] == counted[1]  # other launches move row vectors' sectors in other places
    assert plain.matmul_flops() == packed.matmul_flops()
    (head, block), (head_2, block_2) = (start_order(m) for m in mains)
    per_head = mains[0].work_tiles // mains[0].domain.grid_heads
    assert np.array_equal(head % 4, head_2)
    assert np.array_equal(head // 4 * per_head + block, block_2)


def test_equal_lengths_replay_alike() -> None:
    """HBM bytes of the packed batch against the padded one's: the same tiles in the same order, elsewhere in memory."""
    profile = load_profile("h200-sxm")
    kernel = Kernel("flash", "flash", Tile(128, 64))
    plain = predict(
        AttentionProblem(batch=6, heads=8, seq_q=1000, mask="causal"),
        kernel,
        profile,
        method="replay",
    )
    packed = predict(
        AttentionProblem(seq_lens=(1000,) * 6, heads=8, mask="causal"),
        kernel,
        profile,
        method="replay",
    )
    for way in ("read", "write"):
        a, b = (p.traffic.total("hbm", way) for p in (plain, packed))
        assert abs(a - b) <= 0.01 * a
    assert plain.replay is not None
    assert packed.replay is not None
    assert packed.replay.seconds == pytest.approx(plain.replay.seconds, rel=0.02)
    assert packed.time.total_s == pytest.approx(plain.time.total_s)


def test_conservation_in_the_replay() -> None:
    prediction = predict(
        AttentionProblem(
            seq_lens=(3000, 17, 800), heads=8, kv_heads=2, mask="causal", passes="fwd+bwd"
        ),
        "fa2",
        "h200-sxm",
        method="replay",
    )
    read = prediction.traffic.total("hbm", "read")
    assert (
        sum(t.bytes for t in prediction.chain.role(Role.INPUT))
        <= read
        <= prediction.traffic.total("l2", "read")
    )


def test_the_grid_is_the_longest_sequence_for_all() -> None:
    """Lengths 20, 3 and 9 in tiles of 8: 3 blocks each, of which (3 + 1 + 2) hold rows; 2 heads."""
    problem = AttentionProblem(seq_lens=(20, 3, 9), heads=2, head_dim=8)
    launch = plan(problem, Kernel("flash", "flash", Tile(8, 4), overheads=OVERHEADS)).launches[0]
    assert launch.work_tiles == 3 * 3 * 2
    assert launch.domain.query_rows.tolist() == [8, 8, 4, 3, 0, 0, 8, 1, 0]
    # key tiles of 4: 5, 1 and 3 of 5 a sequence
    assert launch.domain.key_rows.tolist() == [4, 4, 4, 4, 4, 3, 0, 0, 0, 0, 4, 4, 1, 0, 0]
    assert launch.domain.visited.count.tolist() == [5, 5, 5, 1, 0, 0, 3, 3, 0]
    by_tensor = table(
        count(plan(problem, Kernel("flash", "flash", Tile(8, 4), overheads=OVERHEADS)))
    )
    assert (
        by_tensor["main", "descriptor", "read"] == 64 * 18 + 4 * 12
    )  # CTAs that exit early are CTAs, but have no tile
    # K is read by each query tile of its sequence: 3 x 20 + 1 x 3 + 2 x 9 rows of 8 columns in 2 bytes, 2 heads
    assert by_tensor["main", "K", "read"] == (60 + 3 + 18) * 16 * 2


def test_sequences_do_not_see_each_other() -> None:
    """Each sequence's output is that of attention on it alone."""
    problem = AttentionProblem(
        seq_lens=(5, 9), seq_lens_k=(7, 4), heads=1, head_dim=4, dtype="fp32", mask="causal"
    )
    done = execute(problem, Kernel("flash", "flash", Tile(4, 4)))
    q = k = 0
    for rows, keys in ((5, 7), (9, 4)):
        alone = AttentionProblem(seq_q=rows, seq_k=keys, head_dim=4, dtype="fp32", mask="causal")
        part = {
            "Q": done.inputs["Q"][:, :, q : q + rows],
            "K": done.inputs["K"][:, :, k : k + keys],
            "V": done.inputs["V"][:, :, k : k + keys],
        }
        alone_done = execute(alone, Kernel("flash", "flash", Tile(4, 4)), part)
        np.testing.assert_allclose(
            done.outputs["O"][:, :, q : q + rows], alone_done.outputs["O"], rtol=1e-6
        )
        q, k = q + rows, k + keys
    assert dense_mask(problem).sum() == problem.pair_mask.kept_pairs(14, 11)


def test_axis_of_one_length_is_plain_tiling() -> None:
    assert Axis((10,)).block_rows(4).tolist() == [4, 4, 2]
    assert Axis((10,)).blocks(4) == 3


def test_many_sequences_count_quickly() -> None:
    """4,096 sequences of up to 512 tokens: as many domains, one array of tiles."""
    lens = tuple(np.random.default_rng(0).integers(1, 513, 4096).tolist())
    problem = AttentionProblem(seq_lens=lens, heads=8, head_dim=64, mask="causal")
    chain = plan(problem, Kernel("flash", "flash", Tile(64, 64)))
    # every sequence of n tokens reads K for blocks of 64 rows up to their last row's block, cut at n
    rows = sum(min(64 * (i + 1), n) for n in lens for i in range(-(-n // 64)))
    assert count(chain).total("l2", "read", tensor="K") == rows * 128 * 8
    assert table(closed_form(chain)) == table(count(chain))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"seq_lens": ()}, "seq_lens holds 0 lengths"),
    ({"seq_lens": (5, 0)}, "seq_lens 0 is out of range"),
    ({"seq_lens": (5, -3)}, "seq_lens -3 is out of range"),
    ({"seq_lens": (5, 1.5)}, "seq_lens 1.5 is not a whole number"),
    ({"seq_lens": "5,6"}, "seq_lens '5,6' is no list of lengths"),
    ({"seq_lens": 7}, "seq_lens 7 is no list of lengths"),
    ({"seq_lens": (1 << 24, 1)}, "seq_lens add up to 16777217 tokens"),
    ({"seq_lens": (5, 6), "seq_lens_k": (5,)}, "seq_lens has 2 sequences and seq_lens_k 1"),
    ({"seq_lens_k": (5,)}, "seq_lens_k goes with seq_lens"),
    ({"seq_lens": (5, 6), "batch": 2}, "batch 2 contradicts seq_lens; accepted with it: 1"),
    ({"seq_lens": (5, 6), "seq_q": 12}, "seq_q 12 contradicts seq_lens; accepted with it: 11"),
    ({"seq_lens": (5, 6), "seq_k": 12}, "seq_k 12 contradicts seq_lens; accepted with it: 11"),
    ({"seq_lens": (5, 6), "mask": "butterfly"}, "mask 'butterfly' contradicts seq_lens"),
    ({"seq_lens": (5, 6), "bias": "full"}, "bias 'full' contradicts seq_lens"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_lengths_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AttentionProblem(**values)


@pytest.mark.parametrize("kernel", ["fa2", "fa3", "cutlass", "flash"])
def test_library_kernels_take_a_decoding_batch_without_splitting(kernel: str) -> None:
    """Their variable-length forward does not split keys on its own."""
    problem = AttentionProblem(
        seq_lens=(1, 1, 1), seq_lens_k=(9000, 300, 70), heads=8, kv_heads=2, head_dim=128
    )
    prediction = predict(problem, kernel, "h100", method="bounds")
    assert prediction.kernel.splits == 1
    assert prediction.hbm_bounds.compulsory_read == (3 * 8 + 2 * 9370 * 2) * 128 * 2


def test_kernels_for_one_length_refuse_several() -> None:
    problem = AttentionProblem(seq_lens=(500, 600), head_dim=64)
    with pytest.raises(
        InputError, match=r"seq_lens=[0-9,]+: kernel naive does not take it; accepted by: .*fa2"
    ):
        predict(problem, "naive", "h200-sxm")
    with pytest.raises(
        InputError, match="seq_lens: a formula in symbols is of sequences of one length"
    ):
        derive(problem, Kernel("flash", "flash", Tile(64, 64)))


def test_a_problem_survives_its_dictionary() -> None:
    problem = AttentionProblem(seq_lens=(5, 9), seq_lens_k=(7, 4), heads=2, mask="causal")
    data = json.loads(json.dumps(problem.to_dict()))
    assert (data["seq_q"], data["seq_k"], data["offset"]) == (14, 11, None)
    assert AttentionProblem.from_dict(data) == problem
    assert problem.with_(heads=4).seq_lens == (5, 9)


@pytest.mark.parametrize("method", ["bounds", "capacity", "replay"])
def test_the_command_line_takes_lengths(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--kernel", "fa2", "--heads", "4", "--causal", "--method", method, "--format", "json"]
    assert main(["predict", "--seq-lens", "512,1k,77", "--seq-lens-k", "600,1k,80", *words]) == 0
    prediction = json.loads(capsys.readouterr().out)["predictions"][0]
    assert prediction["problem"]["seq_lens"] == [512, 1024, 77]
    assert prediction["problem"]["seq_lens_k"] == [600, 1024, 80]
    assert prediction["hbm_bounds"]["compulsory"]["read"] == (1613 + 2 * 1704) * 4 * 128 * 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--seq-lens", "5,x"], "--seq-lens 'x' is not a size"),
        (["--seq-lens", "5", "--seq-len", "512"], "--seq-len 512 contradicts --seq-lens"),
        (["--seq-lens", "5", "--seq-len-k", "512"], "--seq-len-k 512 contradicts --seq-lens"),
        (["--seq-lens-k", "5"], "--seq-lens-k goes with --seq-lens"),
        (["--seq-lens", "5", "--batch", "2"], "--batch 2 contradicts --seq-lens"),
    ],
)
def test_bad_options_end_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "--kernel", "fa2", *words]) == 2
    assert says in capsys.readouterr().err
