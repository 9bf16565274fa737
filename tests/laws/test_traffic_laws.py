"""Laws of HBM traffic on random problems: what is read from HBM was asked for, predictions lie between their bounds,
longer sequences and smaller L2s move more, and neighbours in length move about the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from counter import count
from effort import examples, quick_every
from executor.reference import dense
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lowered import moved, wrong_bytes
from refusals import refused
from strategies import cases
from watched import LINE, small_l2, watched

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import entry_names, resolve
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain, Edge, Role
from iosim.prediction.call import Call
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import needed_bytes
from iosim.readers.formula.closed_form import added_bytes
from iosim.readers.replay import engine
from iosim.readers.replay import replay as replays
from iosim.readers.replay.l2 import L2Model, Samples, model, sample_lines
from iosim.readers.replay.lowering import lower
from iosim.readers.replay.play import Play
from iosim.readers.replay.replay import CODE, FOREIGN, Replay
from iosim.readers.replay.sampling import coarse_plan, sampling_plan
from iosim.studies.explain import explain

LAW = settings(
    max_examples=examples(40),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
CASES = [
    *(("flash", p) for p in ("fwd", "bwd", "fwd+bwd")),
    *(("flash1", p) for p in ("fwd", "bwd", "fwd+bwd")),
    *(("naive", p) for p in ("fwd", "bwd", "fwd+bwd")),
    ("math", "fwd"),
    ("minimal", "fwd"),
]
KERNELS = ("fa1", "fa2", "fa3", "cudnn", "cutlass", "triton", "flex", "sdpa", "naive", "math")
GPUS = ("v100", "t4", "a100", "a10", "l4", "rtx-4090", "h100", "h200", "b200")


def moved_bytes(played: Replay, direction: str | None = None) -> int:
    """HBM bytes of the chain's own tensors."""
    return sum(
        r.bytes
        for r in played.traffic
        if r.tensor not in (CODE, FOREIGN) and direction in (None, r.direction)
    )


def asked_bytes(chain: Chain) -> dict[str, int]:
    """Bytes that SMs load of each tensor or add to it."""
    by_tensor: dict[str, int] = {}
    for row in count(chain):
        if row.direction == "read":
            by_tensor[row.tensor] = by_tensor.get(row.tensor, 0) + row.bytes
    for launch in chain.launches:
        for name, n in added_bytes(launch, chain).items():
            by_tensor[name] = by_tensor.get(name, 0) + n
    return by_tensor


@pytest.mark.parametrize(("algorithm", "passes"), CASES)
@LAW
@given(data=st.data())
def test_what_comes_from_hbm_was_asked_for(
    algorithm: str, passes: str, data: st.DataObject
) -> None:
    """In the engine itself, HBM reads of a tensor are at most what SMs read of it, each access in whole lines."""
    problem, kernel = data.draw(cases(algorithm, passes))
    if kernel.edge_k is Edge.NEEDED:  # moves part of an object
        kernel = replace(kernel, edge_k=Edge.EXACT)
    chain, _, watch = watched(problem, kernel, small_l2(data.draw(st.sampled_from((32, 64, 128)))))
    assert watch.l2 is not None
    assert watch.lowered is not None
    tiles: dict[str, int] = {}
    for low in watch.lowered.launches:
        for template, objects in moved(low):
            tiles[template.tensor] = tiles.get(template.tensor, 0) + objects.size
    read = watch.l2.counts()[0]
    requested_bytes = asked_bytes(chain)
    for number, name in enumerate(watch.lowered.tensors):
        assert read[number] <= requested_bytes.get(name, 0) + LINE * tiles.get(name, 0), name


def engine_reads(kernel: str, gpu: str, problem: AttentionProblem) -> tuple[dict[str, int], Chain]:
    """HBM bytes that the engine reads of each tensor, before anything is made of them."""
    profile = load_profile(gpu)
    chosen = resolve(kernel, problem, profile)
    chain = plan(problem, chosen)
    seen: list[Any] = []
    Call.of(problem, chosen, profile, chain).replay(
        trace=lambda launch, low, lowered, l2, begin: seen.append((lowered, l2))
    )
    lowered, l2 = seen[-1]
    return dict(zip(lowered.tensors, l2.counts()[0], strict=False)), chain


@pytest.mark.parametrize("passes", ["fwd", "bwd"])
@pytest.mark.parametrize("tokens", [128, 512, 1000])
def test_running_sums_are_not_read_at_the_first_visit(passes: str, tokens: int) -> None:
    """All of it fits in the L2 of an A100: of 128 keys FlashAttention 1 makes one block, and no partial result is ever
    read; of more, none comes from HBM."""
    read, chain = engine_reads(
        "fa1", "a100", AttentionProblem(heads=8, seq_q=tokens, head_dim=128, passes=passes)
    )
    assert read["O_acc" if passes == "fwd" else "dQ_acc"] == 0
    if passes == "fwd":
        assert read["l"] == read["m"] == 0
    assert sum(read.values()) == sum(t.bytes for t in chain.role(Role.INPUT))


@pytest.mark.parametrize(("algorithm", "passes"), CASES)
@LAW
@given(data=st.data())
def test_a_replay_lies_between_its_bounds(algorithm: str, passes: str, data: st.DataObject) -> None:
    """From a cold L2: compulsory reads <= reads <= reads with no L2, of each tensor; and as counters stop with the last
    kernel, compulsory writes <= bytes written and dirty bytes left together, while those written alone are no more than
    with no L2."""
    problem, kernel = data.draw(cases(algorithm, passes))
    chain, played, _ = watched(problem, kernel, small_l2(data.draw(st.sampled_from((32, 64, 128)))))
    limits = Call.of(problem, kernel, load_profile("h200"), chain).bounds
    assert limits.compulsory_read <= moved_bytes(played, "read") <= limits.no_l2_read
    assert moved_bytes(played, "write") <= limits.no_l2_write
    assert limits.compulsory_write <= moved_bytes(played, "write") + played.dirty_bytes
    requested_bytes = asked_bytes(chain)
    for tensor in chain.tensors.values():
        read = played.traffic.total("hbm", "read", tensor=tensor.name)
        assert (
            (needed_bytes(problem, tensor) if tensor.role is Role.INPUT else 0)
            <= read
            <= requested_bytes.get(tensor.name, 0)
        )


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of problems of up to 2,000 tokens, with lengths at and beside powers of two."""
    heads = draw(st.sampled_from((1, 2, 4, 8)))
    values: dict[str, Any] = {
        "batch": draw(st.integers(1, 2)),
        "heads": heads,
        "kv_heads": draw(st.sampled_from((heads, max(1, heads // 4)))),
        "seq_q": draw(st.one_of(st.integers(1, 2000), st.sampled_from((256, 512, 1024, 2048)))),
        "head_dim": draw(st.sampled_from((64, 96, 128))),
        "mask": draw(st.sampled_from(("none", "causal", "window"))),
        "passes": draw(st.sampled_from(("fwd", "bwd", "fwd+bwd"))),
        "dtype": "fp16",
    }
    if draw(st.integers(0, 2)) == 0:
        values["seq_k"] = draw(st.integers(1, 2000))
    if values["mask"] == "window":
        values["window"] = draw(st.integers(0, 1500))
    return values


Drawn = tuple[AttentionProblem, Kernel, Chain, HardwareProfile]


def call(kernel: str, gpu: str, arguments: dict[str, Any]) -> Drawn:
    """A library's kernel for a problem; other examples are drawn where it refuses."""
    profile = load_profile(gpu)
    try:
        problem = AttentionProblem(**arguments)
        chosen = resolve(kernel, problem, profile)
        return problem, chosen, plan(problem, chosen), profile
    except InputError:
        assume(False)
        raise


def part_of(profile: HardwareProfile, share: float) -> L2Model:
    whole = model(profile)
    return replace(whole, sets=max(64, int(whole.sets * share)))


FA4 = ("fa4", "fa4-256", "fa4-deterministic", "fa4-splits", "fa4-stealing")
GROUP_GPUS = {
    "fa3-sm80": "a100",
    "cudnn-sm80": "a100",
    "cudnn-oss-sm80": "a100",
    "fa-turing": "t4",
    "fa-turing-256": "t4",
    "fa4-sm80": "a100",
    "fa4-sm120": "rtx-5090",
    **dict.fromkeys(FA4, "b200"),
    **dict.fromkeys(("aiter", "aiter-triton", "ck", "hipkittens"), "mi355x"),
}
LATENT = {"latent_kv": True, "kv_heads": 1, "head_dim": 576, "head_dim_v": 512}
"""What differs where a kernel does not take fp16 on an H200, or no K and V."""
GROUP_ARGUMENTS = {
    "fa3-fp8": {"dtype": "fp8"},
    "fa3-fp8-transposed": {"dtype": "fp8"},
    "mla": LATENT,
    "xqa-sm90": {"dtype": "fp8"},
    "flashmla": {**LATENT, "page_size": 64},
    "aiter": {"dtype": "bf16", "head_dim": 128},
    "hipkittens": {"dtype": "bf16"},
    "fa4-256": {"head_dim": 256},
}
UNGROUPED = (
    "dsa",
    "dsv4",
    "fa4-varlen",
    "kda",
    "minimal",
    "minimal-cu",
    "moba",
    "nsa",
    "uniform",
    "uniform-naive",
)


@pytest.mark.parametrize(
    "kernel", quick_every((name for name in entry_names() if name not in UNGROUPED), 8)
)
@settings(LAW, max_examples=examples(60))
@given(data=st.data())
def test_heads_of_a_group_read_rows_of_their_own(kernel: str, data: st.DataObject) -> None:
    """Launches of a chain may pack a group's heads in other ways, or not at all: each moves the objects of its own
    tensors, and a cold call reads the compulsory bytes of every tensor at least."""
    group = data.draw(st.sampled_from((2, 3, 4, 8)))
    kv_heads = data.draw(st.integers(1, 3))
    blocks = data.draw(st.integers(1, 6))
    arguments = {
        "batch": data.draw(st.integers(1, 2)),
        "heads": group * kv_heads,
        "kv_heads": kv_heads,
        "seq_q": data.draw(
            st.one_of(st.just(64 * blocks), st.just(80 * blocks), st.integers(1, 400))
        ),
        "head_dim": data.draw(st.sampled_from((64, 128))),
        "mask": data.draw(st.sampled_from(("none", "causal"))),
        "passes": data.draw(st.sampled_from(("fwd", "bwd", "fwd+bwd"))),
        "dtype": "fp16",
        "layout": data.draw(st.sampled_from(("bhsd", "bshd"))),
    }
    if data.draw(st.booleans()):
        arguments["seq_k"] = data.draw(st.integers(1, 700))
    if data.draw(st.integers(0, 3)) == 0:
        lengths = tuple(data.draw(st.lists(st.integers(1, 200), min_size=2, max_size=3)))
        arguments = {n: v for n, v in arguments.items() if n not in ("batch", "seq_q", "seq_k")} | {
            "seq_lens": lengths
        }
    arguments |= GROUP_ARGUMENTS.get(kernel, {})
    problem, chosen, chain, profile = call(kernel, GROUP_GPUS.get(kernel, "h200"), arguments)
    assert wrong_bytes(chain, lower(chain, spill_slots=8)) == []
    worked_out = Call.of(problem, chosen, profile, chain)
    played = worked_out.replay()
    assert worked_out.bounds.compulsory_read <= moved_bytes(played, "read")
    for tensor in chain.role(Role.INPUT):
        assert needed_bytes(problem, tensor) <= played.traffic.total(
            "hbm", "read", tensor=tensor.name
        ), tensor.name


SHARES = st.sampled_from((1 / 64, 1 / 16, 1 / 4, 1.0))


@LAW
@given(problems(), st.sampled_from(KERNELS), st.sampled_from(GPUS), SHARES)
def test_a_library_s_kernel_lies_between_its_bounds(
    arguments: dict[str, Any], kernel: str, gpu: str, share: float
) -> None:
    """As above where a sample of the lines is followed: reads are bounded to the byte."""
    problem, chosen, chain, profile = call(kernel, gpu, arguments)
    worked_out = Call.of(problem, chosen, profile, chain)
    played = worked_out.replay(Play(l2_model=part_of(profile, share)))
    limits = worked_out.bounds
    assert limits.compulsory_read <= moved_bytes(played, "read") <= limits.no_l2_read
    assert moved_bytes(played, "write") <= limits.no_l2_write


@LAW
@given(problems(), st.sampled_from(KERNELS), st.sampled_from(GPUS), SHARES)
def test_an_l2_of_twice_the_sets_moves_no_more(
    arguments: dict[str, Any], kernel: str, gpu: str, share: float
) -> None:
    """Beyond 2 %. NB: of other numbers of sets, a tenth more say, tensors lie otherwise in them, and where the L2 only
    just holds what is in use that moves up to 8 % more: as tensors elsewhere in memory do."""
    problem, chosen, chain, profile = call(kernel, gpu, arguments)
    small = part_of(profile, share)
    before, after = (
        moved_bytes(Call.of(problem, chosen, profile, chain).replay(Play(l2_model=l2)))
        for l2 in (small, replace(small, sets=2 * small.sets))
    )
    assert after <= 1.02 * before + profile.line_bytes


@settings(LAW, max_examples=examples(150))
@given(problems(), st.integers(1, 300), st.sampled_from(KERNELS), st.sampled_from(GPUS))
def test_a_longer_sequence_needs_no_fewer_bytes(
    arguments: dict[str, Any], more: int, kernel: str, gpu: str
) -> None:
    longer = {n: v + more if n in ("seq_q", "seq_k") else v for n, v in arguments.items()}
    short, long = (
        Call.of(p, k, g, c).bounds
        for p, k, c, g in (call(kernel, gpu, arguments), call(kernel, gpu, longer))
    )
    assert short.compulsory_read <= long.compulsory_read
    assert short.compulsory_write <= long.compulsory_write


@LAW
@given(problems())
def test_queries_that_keep_a_key_are_counted(arguments: dict[str, Any]) -> None:
    problem = AttentionProblem(
        **{
            **arguments,
            "seq_q": arguments["seq_q"] % 150 + 1,
            "seq_k": arguments.get("seq_k", 60) % 150 + 1,
        }
    )
    kept_queries = dense(problem.pair_mask, problem.seq_q, problem.seq_k).any(axis=1)
    assert problem.pair_mask.kept_queries(problem.seq_q, problem.seq_k) == int(kept_queries.sum())


def test_rows_without_keys_are_not_compulsory() -> None:
    p = predict(
        AttentionProblem(heads=8, seq_q=8192, seq_k=1024, head_dim=128, mask="causal"),
        "fa2",
        "h200",
    )
    assert (
        p.hbm_bounds.compulsory_read == 3 * 8 * 1024 * 128 * 2
    )  # Q, K and V of the last 1,024 queries
    assert p.hbm_bounds.compulsory_read <= p.total("hbm", "read") <= p.hbm_bounds.no_l2_read


def test_an_atomic_add_that_misses_reads_hbm() -> None:
    """With no L2, every add to dQ reads what it adds to: a backward on a V100 whose L2 is cut to a sixteenth."""
    problem, kernel, chain, profile = call(
        "flash", "v100", {"heads": 8, "seq_q": 2048, "head_dim": 80, "passes": "bwd"}
    )
    counted = count(chain)
    added = counted.total("l2", "write", launch="bwd.main", tensor="dQ_acc")
    assert (
        Call.of(problem, kernel, profile, chain).bounds.no_l2_read
        == counted.total("l2", "read") + added
    )
    played = (
        Call.of(problem, kernel, profile, chain)
        .replay(Play(l2_model=part_of(profile, 1 / 16)))
        .traffic
    )
    assert 0 < played.total("hbm", "read", launch="bwd.main", tensor="dQ_acc") <= added


def test_neighbours_in_length_move_alike_where_the_l2_holds_what_is_in_use() -> None:
    """16 more tokens where the L2 holds all tensors twice: the bytes grow as the length does. NB: where it only just
    holds them, they do not: 16 tokens can add a block to all heads, or move heads to other sets (see the next test)."""
    for kernel, gpu, passes in (
        ("fa2", "l4", "bwd"),
        ("fa1", "a100", "bwd"),
        ("fa2", "a100", "fwd"),
        ("cudnn", "h200", "fwd"),
        ("triton", "b200", "bwd"),
    ):
        reads = [
            predict(
                AttentionProblem(heads=2, seq_q=n, head_dim=128, mask="causal", passes=passes),
                kernel,
                gpu,
            ).total("hbm", "read")
            / n
            for n in range(2000, 2128, 16)
        ]
        assert max(reads) < 1.02 * min(reads), (kernel, reads)


def apart(lines: int, tile_bytes: tuple[int, ...], tiles: int) -> Any:
    """`sample_lines` where every head of the tensors that are cut into `tiles` tiles of one of `tile_bytes` a head
    begins so many lines further on after the one before it."""

    def made(l2: L2Model, size: np.ndarray, *more: float) -> Samples:
        of_kind = np.flatnonzero(np.isin(size, tile_bytes))
        moved_on = size.copy()
        moved_on[of_kind[tiles - 1 :: tiles]] += lines * LINE
        return sample_lines(l2, moved_on, *more)

    return made


def test_heads_that_begin_at_the_same_place_of_a_page_share_sets() -> None:
    """FlashAttention 1's causal backward on an L4 whose L2 replaced lines as an H100's does, and whose SMs had its
    shared memory, without which it does not run there, reads a sixth less at 4,112 tokens than at 4,096. At 4,096 a
    head's rows are half a page of memory, so that the runs of lines in use of all heads and tensors together lie in the
    same sets. With each head a tile further on, as at 4,112, the same 4,096 tokens need no more than their neighbours.
    It was a third when tiles, too, met in the same sets: within a run of 512 lines, 16 tiles, lines are permuted now,
    in each head its own way, as recorded sets of an H100 are (lines.h, test_l2_sets.py)."""
    h100 = load_profile("h100-sxm")
    of_the_l2 = ("l2_ways", "l2_effective_capacity_fraction", "l2_dirty_fraction")
    of_the_sms = ("shared_memory_per_block_optin_bytes", "shared_memory_per_sm_bytes")
    borrowed = {name: getattr(h100, name) for name in (*of_the_l2, *of_the_sms)}
    gpu = replace(load_profile("l4"), **borrowed)

    def read(tokens: int) -> int:
        problem = AttentionProblem(heads=8, seq_q=tokens, head_dim=128, mask="causal", passes="bwd")
        return int(predict(problem, "fa1", gpu).total("hbm", "read"))

    aligned, longer = read(4096), read(4112)
    tile_bytes = 16 * 128 * 2
    with patch.object(engine, "sample_lines", apart(tile_bytes // LINE, (tile_bytes,), 4096 // 16)):
        shifted = read(4096)
    assert longer < 0.87 * aligned
    assert shifted == pytest.approx(longer, rel=0.08)


def test_heads_of_half_a_page_share_sets_on_a_large_l2_too() -> None:
    """The same on an RTX 4090: 16 heads of 8,192 x 64 are half a page each, and read a quarter more than at 8,256
    tokens; as those do with each head as much further on."""

    def read(tokens: int) -> int:
        problem = AttentionProblem(heads=16, seq_q=tokens, head_dim=64, mask="causal", passes="bwd")
        return int(predict(problem, "fa1", "rtx-4090").total("hbm", "read"))

    aligned, longer = read(8192), read(8256)
    assert aligned > 1.25 * longer
    tiles = 16 * 64 * 2, 16 * 64 * 4  # of 16 rows in fp16, and of sums in fp32
    with patch.object(engine, "sample_lines", apart(64 * 128 // LINE, tiles, 8192 // 16)):
        assert read(8192) == pytest.approx(longer, rel=0.12)  # K and V stay where they are


def test_an_explanation_of_no_hbm_bytes() -> None:
    p = predict(
        AttentionProblem(heads=4, seq_q=512, head_dim=128),
        "fa2",
        "a100",
        l2_start="warm",
        method="replay",
    )
    assert p.total("hbm") == 0
    explanation = explain(p)
    assert explanation.tried.trials
    assert explanation.advice.startswith("nothing is read from or written to HBM")
    assert not explanation.sources


def test_coarse_steps_are_no_longer_than_the_l2_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a launch so long that the budget allows only coarse steps of more than the L2 holds, windows are played."""
    problem, kernel, chain, profile = call(
        "fa2", "l4", {"heads": 1, "seq_q": 1 << 18, "head_dim": 128}
    )
    monkeypatch.setattr(replays, "coarse_plan", partial(coarse_plan, budget=10_000))
    monkeypatch.setattr(replays, "sampling_plan", partial(sampling_plan, budget=500_000))
    played = Call.of(problem, kernel, profile, chain).replay(Play(part=True))
    limits = Call.of(problem, kernel, profile, chain).bounds
    assert played.launches[0].coarse is None
    assert played.launches[0].windows is not None
    assert limits.compulsory_read <= moved_bytes(played, "read") <= limits.no_l2_read


@pytest.mark.parametrize("passes", ["bwd", "fwd+bwd"])
def test_a_cache_has_no_backward(passes: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "predict",
        "--gpu",
        "a100",
        "--kernel",
        "fa2",
        "--seq-len",
        "1k",
        "--append-kv",
        "--pass",
        passes,
    ]
    refused(capsys, argv, "--append-kv", f"--pass {passes}")
