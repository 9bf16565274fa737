"""What is said and chosen at the borders: factors that are just reached, nothing that is read, one of a thing or more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from iosim.base.errors import InputError, TooLargeError
from iosim.hardware.profile import load_profile
from iosim.kernel.launch import SPILL, Mode, Outer, Per, Role
from iosim.prediction import answer as answers
from iosim.prediction import confidence, idle, predictor, ranges
from iosim.prediction.answer import against, answer, left_in_l2, read_once, reason, why
from iosim.prediction.cache import ReplayCache, from_plain, to_plain
from iosim.prediction.confidence import basis
from iosim.prediction.predictor import predict, repeats
from iosim.prediction.ranges import HbmRange, exactness
from iosim.prediction.replays import Replays
from iosim.prediction.result import Prediction
from iosim.prediction.reuse import NEARLY, ONCE, Reuse, partition_bytes
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.l2 import model

H100 = load_profile("h100")
SMALL = AttentionProblem(heads=2, seq_q=256, head_dim=64)


def reused(**changes: Any) -> Reuse:
    """Two heads' tensors of 100 bytes each, all of which are read once."""
    plain: dict[str, Any] = {
        "tensors": ("K", "V"),
        "slots": 4,
        "waves": 2.0,
        "capacity_bytes": 400,
        "one_head_bytes": 100,
        "all_bytes": 200,
        "heads_at_once": 2,
        "in_step_bytes": 300,
        "loaded_bytes": 2000,
        "hbm_read_bytes": 200,
    }
    return Reuse(**plain | changes)


@pytest.mark.parametrize(
    ("changes", "regime"),
    [
        ({"tensors": ()}, "streamed"),
        ({"loaded_bytes": int(200 * ONCE)}, "read once"),
        ({"loaded_bytes": int(200 * ONCE) + 1}, "fits"),
        ({"hbm_read_bytes": int(200 * ONCE)}, "fits"),
        ({"hbm_read_bytes": int(200 * ONCE) + 1}, "drift"),
        ({"hbm_read_bytes": 1000}, "drift"),  # half of what is loaded
        ({"hbm_read_bytes": 1001}, "thrashing"),
        # Walking in step 300 bytes would be read, and the two heads at once do not fit.
        ({"hbm_read_bytes": 300, "capacity_bytes": 199}, "wave-bound"),
        ({"hbm_read_bytes": 300, "capacity_bytes": 200}, "drift"),  # they fit
        ({"hbm_read_bytes": 300, "capacity_bytes": 199, "in_step_bytes": None}, "drift"),
        ({"hbm_read_bytes": 900, "capacity_bytes": 199}, "drift"),
    ],
)
def test_regimes_of_reuse(changes: Mapping[str, Any], regime: str) -> None:
    assert reused(**changes).regime == regime


def test_nearly_what_ctas_in_step_would_read() -> None:
    """The last of the bytes that are nearly those of CTAs in step."""
    tight = {"capacity_bytes": 199, "in_step_bytes": 2000, "loaded_bytes": 9000}
    largest = round(NEARLY * 2000)
    assert reused(hbm_read_bytes=largest, **tight).regime == "wave-bound"
    assert reused(hbm_read_bytes=largest + 1, **tight).regime == "drift"


def test_in_progress_and_outgrown() -> None:
    assert reused().in_progress_bytes == 200
    assert not reused(capacity_bytes=200).outgrows
    assert reused(capacity_bytes=199).outgrows


def test_what_the_last_cache_keeps_of_shared_data() -> None:
    """A cache at the memory's side has its own sets and ways; else it is the L2, of which each partition has a copy."""
    plain: Any = SimpleNamespace(profile=H100)
    l2 = model(H100)
    assert partition_bytes(plain) == l2.sets * l2.ways * l2.line_bytes
    mi300x = load_profile("mi300x")
    beside: Any = SimpleNamespace(profile=mi300x)
    side = model(mi300x).side
    assert side is not None
    assert partition_bytes(beside) == side.sets * side.ways * model(mi300x).line_bytes


# ---- sentences ----


@pytest.mark.parametrize(
    ("read", "compulsory", "sentence"),
    [
        (1000, 1000, "the bytes"),
        (1005, 1000, "the bytes"),  # within half a percent
        (1006, 1000, "about the bytes"),
        (105, 100, "about the bytes"),  # within 5 %
        (106, 100, "1.06x the bytes"),
        (0, 100, "the bytes"),
        (0, 0, "the bytes"),
        (5, 0, "where nothing is compulsory: no query sees a key"),
    ],
)
def test_bytes_against_the_compulsory_ones(read: float, compulsory: float, sentence: str) -> None:
    assert against(read, compulsory, "the bytes") == sentence
    if sentence.startswith("about"):
        assert against(read, compulsory, "compulsory") == "near-compulsory"


@pytest.mark.parametrize(
    ("read", "start", "sentence"),
    [
        (0, "warm", "the compulsory 105 B lie in the warm L2"),
        (99, "warm", "the rest of the compulsory 105 B lies in the warm L2"),
        (100, "warm", ""),  # 5 % less than the compulsory ones are about those
        (0, "cold", ""),
    ],
)
def test_what_a_warm_l2_holds(read: float, start: str, sentence: str) -> None:
    assert left_in_l2(read, 105.0, start) == sentence


def told(read: int, **changes: Any) -> Any:
    """As a prediction of 100 compulsory bytes."""
    plain = {
        "hbm_known": True,
        "hbm": SimpleNamespace(read=read),
        "hbm_payload": SimpleNamespace(read=read),
        "hbm_bounds": SimpleNamespace(compulsory_read=1000, no_l2_read=9000),
        "l2_start": "cold",
        "time_s": 1e-3,
        "profile": H100,
        "problem": SMALL,
        "bound_by": "hbm",
        "time": SimpleNamespace(launches=(), total_s=1e-3),
        "conditions": SimpleNamespace(clocks="boost"),
        "kernel": SimpleNamespace(name="one"),
    }
    return SimpleNamespace(**plain | changes)


@pytest.mark.parametrize(
    ("larger", "smaller", "words"),
    [
        (1000, 1000, "reads as many bytes from HBM as two (1 kB, the compulsory bytes)"),
        (1005, 1000, "reads as many bytes from HBM as two (1 kB"),
        (1006, 1000, "reads about as many bytes from HBM as two (1 kB"),
        (1050, 1000, "reads about as many bytes"),
        (1051, 1000, "reads 1.05x fewer bytes from HBM than two (1 kB against 1.051 kB)"),
        (3000, 1000, "reads 3x fewer bytes from HBM than two"),
    ],
)
def test_two_kernels_against_each_other(larger: int, smaller: int, words: str) -> None:
    two = told(larger, kernel=SimpleNamespace(name="two"))
    sentence = answers._against_each_other(two, told(smaller))
    assert words in sentence
    assert sentence.endswith("1 ms (boost), not 1 ms")


@pytest.mark.parametrize(
    ("larger", "smaller", "both"),
    [
        ({"kernel": SimpleNamespace(name="two")}, {}, True),
        ({}, {}, False),  # one kernel
        ({"kernel": SimpleNamespace(name="two"), "l2_start": "warm"}, {}, False),
        ({"kernel": SimpleNamespace(name="two"), "hbm_known": False}, {}, False),
        ({"kernel": SimpleNamespace(name="two")}, {"hbm_known": False}, False),
        ({"kernel": SimpleNamespace(name="two")}, {"hbm": SimpleNamespace(read=0)}, False),
        ({"hbm_known": False}, {"hbm": SimpleNamespace(read=0)}, False),
    ],
)
def test_when_two_kernels_are_told_by_their_reads(
    larger: Mapping[str, Any], smaller: Mapping[str, Any], both: bool
) -> None:
    assert answers._both_read(told(2000, **larger), told(1000, **smaller)) == both


@pytest.mark.parametrize("count", [2, 5, 6])
def test_of_many_predictions_the_least_and_the_most_are_named(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to five beside each other; of six the one that reads least, and the one that reads most."""
    monkeypatch.setattr(answers, "confidence", lambda _: "sure")
    monkeypatch.setattr(answers, "reason", lambda p: f"because of {p.hbm.read}")
    monkeypatch.setattr(answers, "of_several", lambda p: f"reads {p.hbm.read}")
    reads = [2000, 1500, 3000, 4000, 2500, 1000][:count]
    gpus = [SimpleNamespace(name=f"gpu {n}") for n in range(count)]
    sentence = answer([told(read, profile=gpu) for read, gpu in zip(reads, gpus, strict=True)])
    largest = max(reads)
    if count <= 5:
        first = [largest, *(read for read in reads if read != largest)]
        named = [f"reads {read}." for read in first]
    else:
        named = [
            "reads 1000. It is the least of 6 above the compulsory bytes; the most:",
            "reads 4000.",
        ]
    assert sentence.splitlines()[:-1] == named
    assert sentence.splitlines()[-1].lower() == f"because of {largest}. sure."


@pytest.mark.parametrize(("requested", "once"), [(1050, True), (1051, False)])
def test_what_is_hardly_read_twice(requested: int, once: bool) -> None:
    p = told(1000, total=lambda *_: requested)
    assert read_once(p).startswith("The SMs hardly") == once
    assert ("the L2 serves the rest" in read_once(p)) != once


def tensor(name: str, role: Role, size: int = 100) -> Any:
    return SimpleNamespace(name=name, role=role, bytes=size)


def excessive(reads: Mapping[str, int], *tensors: Any, **changes: Any) -> Any:
    """As a prediction that reads so many bytes of each tensor."""
    held = {t.name: t for t in tensors}
    chain = SimpleNamespace(
        tensors=held,
        launches=(),
        role=lambda role: [t for t in held.values() if t.role is role],
        launch_of=lambda _: None,
    )
    rows = {(name, "read"): read for name, read in reads.items()}
    rows |= {("K", "write"): 10**9}
    payload = SimpleNamespace(tensors=lambda _: rows)
    traffic = SimpleNamespace(payload=payload, total=lambda *_, **__: 0)
    return told(5000, chain=chain, traffic=traffic, total=lambda *_: 1000, **changes)


@pytest.mark.parametrize(
    ("reads", "tensors", "short", "long"),
    [
        (
            {"S": 5000},
            [tensor("S", Role.TEMP)],
            "S lives between launches: 5 kB read back",
            "S, 100 B, lives between launches: 5 kB are read back",
        ),
        (
            {"S": 5000, "P": 500},  # a tenth is named as well
            [tensor("S", Role.TEMP), tensor("P", Role.TEMP, 200)],
            "S and P live between launches: 5.5 kB read back",
            "S and P, up to 200 B each, live between launches: 5.5 kB are read back",
        ),
        (
            {"S": 5000, "P": 499},
            [tensor("S", Role.TEMP), tensor("P", Role.TEMP)],
            "S lives between launches: 5 kB read back",
            "S, 100 B, lives between launches: 5 kB are read back",
        ),
        (
            {"S": 5000},
            [tensor("S", Role.TEMP, 60_000_000)],
            "S (60 MB) does not fit the 52.43 MB L2",
            "S, 60 MB, lives between launches and exceeds the 52.43 MB L2: 5 kB are read back",
        ),
        (
            {"S": 5000},
            [tensor("S", Role.TEMP, 50 << 20)],  # just fits
            "S lives between launches: 5 kB read back",
            "S, 52.43 MB, lives between launches: 5 kB are read back",
        ),
        (
            {"dQ": 5000},
            [tensor("dQ", Role.OUTPUT)],
            "dQ is added up in memory",
            "dQ is added up in memory: 5 kB are read back",
        ),
        (
            {"dK": 5000, "dV": 4000},
            [tensor("dK", Role.OUTPUT), tensor("dV", Role.OUTPUT)],
            "dK and dV are added up in memory",
            "dK and dV are added up in memory: 9 kB are read back",
        ),
        (
            {SPILL: 5000},
            [],
            "5 kB of spilled registers are read back",
            "5 kB of spilled registers are read back",
        ),
        (
            {"code": 5000},
            [],
            "5 kB are read beside the tensors",
            "5 kB are read beside the tensors (code)",
        ),
    ],
)
def test_reasons_by_the_kind_of_what_is_read_most(
    reads: Mapping[str, int], tensors: list[Any], short: str, long: str
) -> None:
    p = excessive(reads, *tensors)
    assert reason(p) == short
    assert why(p) == long


@pytest.mark.parametrize(
    "changes",
    [
        {"hbm_known": False},
        {"l2_start": "warm", "hbm_payload": SimpleNamespace(read=500)},
        {"hbm_bounds": SimpleNamespace(compulsory_read=0, no_l2_read=0)},
    ],
)
def test_where_there_is_nothing_to_explain(changes: Mapping[str, Any]) -> None:
    p = excessive({"S": 5000}, tensor("S", Role.TEMP), **changes)
    assert (reason(p), why(p)) == ("", "")


def test_up_to_five_percent_more_nothing_is_explained() -> None:
    for read, explains in ((1050, False), (1051, True)):
        payload = {"hbm_payload": SimpleNamespace(read=read)}
        p = excessive({"S": 5000}, tensor("S", Role.TEMP), **payload)
        assert ("between launches" in reason(p)) == explains
        assert ("between launches" in why(p)) == explains


@pytest.mark.parametrize(("spilled", "much"), [(100, False), (101, True), (0, False)])
def test_spills_that_take_room_in_the_l2(spilled: int, much: bool) -> None:
    """From a tenth of the 1,000 other bytes that are written on."""
    traffic = SimpleNamespace(total=lambda *_, **__: spilled)
    p: Any = SimpleNamespace(traffic=traffic, total=lambda *_: 1000 + spilled)
    assert bool(answers.spills_beside(p)) == much


def test_launches_that_read_a_tensor_again() -> None:
    """Where no loop reads it: so many launches do."""

    def launch(name: str, *read: str) -> Any:
        return SimpleNamespace(
            name=name, accesses=[SimpleNamespace(tensor=t, per=Per.QUERY) for t in read]
        )

    launches = (launch("a", "Q", "K"), launch("b", "Q"), launch("c", "V"))
    totals = SimpleNamespace(total=lambda *_, **__: 1)
    held = {name: tensor(name, Role.INPUT) for name in "QKV"}
    chain = SimpleNamespace(launches=launches, tensors=held)
    p: Any = SimpleNamespace(chain=chain, traffic=totals)
    above: Any = SimpleNamespace(
        read={"Q": 200, "K": 250, "V": 250}, needed={"Q": 100, "K": 100, "V": 100}
    )
    assert answers._rereads(p, above, ["Q"]) == "Q is read 2 times over, by 2 launches"
    assert answers._rereads(p, above, ["K", "V"]) == "K and V are read 2.5 times over"
    assert answers._short_rereads(p, ["V"], above) == "V is read 2.5x"


@pytest.mark.parametrize(("needed", "words"), [(1000, "2x"), (999, "2 times what is needed of it")])
def test_what_a_mask_leaves_of_a_tensor(needed: int, words: str) -> None:
    """Of 1,050 bytes 1,000 are about all of it, fewer a part."""
    chain = SimpleNamespace(tensors={"K": tensor("K", Role.INPUT, 1050)})
    p: Any = SimpleNamespace(chain=chain)
    above: Any = SimpleNamespace(read={"K": 2 * needed}, needed={"K": needed})
    assert answers.read_again(p, above, ["K"], "x") == f"K is read {words}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"one_head_bytes": 401}, "K and V of a head, 401 B,"),
        ({"one_head_bytes": 400}, "K and V of 2 heads in progress, 800 B,"),
        ({"heads_at_once": 1}, "K and V of a head, 100 B,"),
    ],
)
def test_what_is_in_progress(changes: Mapping[str, Any], words: str) -> None:
    assert answers._in_progress(reused(**changes)) == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"capacity_bytes": 199}, "2 heads' 200 B outgrow the L2"),
        ({"capacity_bytes": 100}, "2 heads' 200 B outgrow the L2"),
        ({"capacity_bytes": 99}, "a head's 100 B outgrow the L2"),
        ({"capacity_bytes": 200}, "CTAs drift apart or other data displaces them"),
    ],
)
def test_why_tensors_are_read_again(
    changes: Mapping[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = reused(hbm_read_bytes=900, in_step_bytes=None, **changes)
    monkeypatch.setattr(answers, "_reuse_of", lambda *_: shared)
    above: Any = SimpleNamespace(read={"K": 300, "V": 300}, needed={"K": 100, "V": 100})
    held = {name: tensor(name, Role.INPUT) for name in "KV"}
    p: Any = SimpleNamespace(profile=H100, chain=SimpleNamespace(tensors=held))
    assert answers._short_rereads(p, ["K", "V"], above) == f"K and V are read 3x: {words}"


def test_bytes_of_ctas_in_step_are_said_where_they_are_known() -> None:
    p: Any = SimpleNamespace(profile=H100)
    for in_step, sentence in ((300, " (kept in step, they read at most 300 B)"), (None, "")):
        clauses = answers.reread_clauses(p, reused(capacity_bytes=199, in_step_bytes=in_step))
        assert clauses["drift"].endswith(f"CTAs drift apart{sentence}")


# ---- methods ----


@pytest.mark.parametrize(
    ("entries", "pairs", "outer", "is_long"),
    [
        (None, 15, Outer.QUERY, False),
        (None, 16, Outer.QUERY, True),
        (None, 16, Outer.KEY, True),
        (None, 16, Outer.SPLIT, True),
        (None, 1600, Outer.FLAT, False),  # no loop over keys or queries
        (15, 1600, Outer.QUERY, False),  # moves that are listed one by one
        (16, 0, Outer.FLAT, True),
    ],
)
def test_launches_that_can_be_played_in_part(
    entries: int | None, pairs: int, outer: Outer, is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight steps a work tile, as is said here, of two tiles."""
    monkeypatch.setattr(predictor, "SAMPLED_STEPS", 8)
    touched = None
    if entries is not None:
        touched = SimpleNamespace(entries=SimpleNamespace(size=entries))
    launch: Any = SimpleNamespace(touched=touched, outer=outer, visited_pairs=pairs, work_tiles=2)
    assert repeats(launch) == is_long


def test_a_replay_that_takes_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some heads are played in place of all where they stand for them; else the capacity rule, with the reason."""
    error = TooLargeError("`method` replay: it takes 99 GB; accepted: less")
    outcome: dict[str, Any] = {"sampled": ("s",), "capacity": ("c",)}

    def traffic(call: Any, method: str, *_: Any) -> Any:
        if outcome[method] is None:
            raise error
        return outcome[method]

    monkeypatch.setattr(predictor, "hbm_traffic", traffic)
    reason_given = ("HBM: no replay: it takes 99 GB",)
    none: Any = None
    for share, method, sampled, expected in (
        ("heads", "replay", ("s",), ("sampled", (), ("s",))),
        ("heads", "replay", None, ("capacity", reason_given, ("c",))),
        ("heads", "sampled", ("s",), ("capacity", reason_given, ("c",))),
        (None, "replay", ("s",), ("capacity", reason_given, ("c",))),
    ):
        monkeypatch.setattr(predictor, "head_share_of", lambda _, share=share: share)
        outcome["sampled"] = sampled
        smaller = predictor._smaller(none, method, error, "cold", none)  # type: ignore[arg-type]
        assert smaller == expected


@pytest.mark.parametrize(
    ("method", "size", "share", "missing", "chosen"),
    [
        ("replay", 100, None, None, ("replay", ("why",))),
        ("replay", 100, "heads", None, ("replay", ("why",))),
        ("replay", 101, "heads", None, ("sampled", ())),
        ("replay", 101, None, None, ("replay", ("why",))),
        ("capacity", 1, "heads", None, ("sampled", ())),
        ("capacity", 1, None, None, ("capacity", ("why",))),
        ("capacity", 1, None, "no engine", ("capacity", ("why",))),
        ("sampled", 1, None, "no engine", ("capacity", ("why",))),
    ],
)
def test_the_method_where_none_is_asked_for(
    method: str,
    size: int,
    share: str | None,
    missing: str | None,
    chosen: tuple[str, tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(predictor, "QUICK_BYTES", 100)
    monkeypatch.setattr(predictor, "default_method", lambda _: (method, ("why",)))
    monkeypatch.setattr(predictor, "about_bytes", lambda _: size)
    monkeypatch.setattr(predictor, "head_share_of", lambda _: share)
    monkeypatch.setattr(predictor, "why_missing", lambda: missing)
    call: Any = SimpleNamespace(chain=None)
    if missing is not None and method != "capacity":
        with pytest.warns(predictor.EngineWarning, match="no engine"):
            assert predictor._by_default(call) == chosen
        return
    assert predictor._by_default(call) == chosen


def test_a_method_that_is_asked_for_and_takes_too_much_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where none was asked for, another is taken."""
    outcome = predictor.hbm_traffic

    def traffic(call: Any, method: Any, *more: Any) -> Any:
        if method == "replay":
            raise TooLargeError("`method` replay: it takes 99 GB; accepted: less")
        return outcome(call, method, *more)

    monkeypatch.setattr(predictor, "hbm_traffic", traffic)
    with pytest.raises(TooLargeError, match="99 GB"):
        predict(SMALL, "flash", "h100", method="replay")
    p = predict(SMALL, "flash", "h100")
    assert p.method in ("capacity", "sampled")


def test_bounds_are_no_prediction() -> None:
    p = predict(SMALL, "flash", "h100", method="bounds")
    assert "HBM bytes bounded, not predicted" in basis([p])


@pytest.mark.parametrize(
    ("passes", "tiles"),
    [
        ((True, True), (True, True)),
        ((True, True), (True, False)),
        ((True, True), (False, True)),
        ((True, False), (True, False)),
        ((True, False), (False, True)),
        ((False, True), (False, True)),
        ((False, True), (True, False)),
    ],
)
def test_counters_are_of_a_kernel_with_its_own_tiles(
    passes: tuple[bool, bool], tiles: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each pass that is made: a tile given by hand is another kernel's."""
    alone = SimpleNamespace(tile=1, tile_backward=1)
    monkeypatch.setattr(confidence, "resolve", lambda *_: alone)
    forward, backward = passes
    p: Any = SimpleNamespace(
        problem=SimpleNamespace(forward=forward, backward=backward),
        profile=None,
        kernel=SimpleNamespace(name="k", tile=int(tiles[0]), tile_backward=int(tiles[1])),
    )
    right = all(is_own for runs, is_own in zip(passes, tiles, strict=True) if runs)
    assert confidence._has_its_tiles(p) == right


def test_a_method_that_is_asked_for_is_kept() -> None:
    for method in ("bounds", "capacity", "replay"):
        assert predict(SMALL, "fa2", "h100", method=method).method == method
    # Of a short call nothing is left out: it is a replay.
    assert predict(SMALL, "fa2", "h100", method="sampled").method == "replay"


# ---- ranges ----


def drifting(read: int, **changes: Any) -> Any:
    bounds = SimpleNamespace(compulsory_read=1000)
    problem = SimpleNamespace(seq_q=1, seq_k=1, **changes)
    return SimpleNamespace(
        bounds=bounds, chain=SimpleNamespace(launches=("loop",)), problem=problem
    )


def test_ctas_may_drift_where_much_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "READ_AGAIN", 1.5)
    monkeypatch.setattr(ranges, "is_attention_loop", lambda launch: launch == "loop")
    call = drifting(0)
    assert not ranges.may_drift(call, 1500)
    assert ranges.may_drift(call, 1501)
    for keys, outgrown in ((131_072, False), (131_073, True)):
        for name in ("seq_q", "seq_k"):
            call = drifting(0)
            setattr(call.problem, name, keys)
            assert ranges.has_outgrown(call, 1501) == outgrown
            assert not ranges.has_outgrown(call, 1500)


def test_least_and_most_of_both_ways() -> None:
    assert HbmRange((1, 20), (300, 4000), {}).total == (301, 4020)


def test_where_a_range_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a replay whose GPU's constants are borrowed, whose CTAs may drift, or whose memory has check bits among its
    data."""
    h200 = load_profile("h200")
    call = predict(SMALL, "fa2", "h200").call
    assert ranges.borrowed_l2(h200) == () or not ranges.borrowed_l2(h200)
    for method, drifts, ecc, is_there in (
        ("replay", False, "delivered", False),
        ("replay", True, "delivered", True),
        ("replay", False, "inline", True),
        ("bounds", True, "inline", False),
        ("capacity", True, "inline", False),
    ):
        monkeypatch.setattr(ranges, "may_drift", lambda *_, drifts=drifts: drifts)
        monkeypatch.setattr(ranges, "has_outgrown", lambda *_: False)
        profile = SimpleNamespace(ecc=ecc, levels=h200.levels)
        other_call: Any = SimpleNamespace(
            profile=profile, chain=call.chain, bounds=call.bounds, problem=call.problem
        )
        monkeypatch.setattr(ranges, "borrowed_l2", lambda _: ())
        monkeypatch.setattr(ranges, "with_check_bits", lambda read, write, *_: (read, write))
        outcome = ranges.hbm_range(other_call, method, "cold", (10**6, 10**5))  # type: ignore[arg-type]
        assert (outcome is not None) == is_there


def test_rates_that_are_not_known_stay_so() -> None:
    rate = ranges.HBM_RATES[0]
    unknown = ranges.replace(H100, **dict.fromkeys(ranges.HBM_RATES))
    assert getattr(ranges._scaled(unknown, {rate: 0.5}), rate) is None
    known = getattr(H100, rate)
    if known is not None:
        assert getattr(ranges._scaled(H100, {rate: 0.5}), rate) == known * 0.5


@pytest.mark.parametrize("sizes", [(4, 4), (2, 4), (4, 2), (2, 2)])
def test_one_operand_of_four_bytes_is_enough(sizes: tuple[int, int]) -> None:
    """Products of fp32 are those that load a tensor of 4 bytes an element."""
    accesses = [SimpleNamespace(tensor=n, per=Per.PAIR, mode=Mode.LOAD) for n in ("A", "B")]
    launch = SimpleNamespace(work=SimpleNamespace(flops_per_pair=1), accesses=accesses)
    held = {n: SimpleNamespace(element_bytes=s) for n, s in zip("AB", sizes, strict=True)}
    chain: Any = SimpleNamespace(launches=(launch,), tensors=held)
    assert ranges._fp32_products(chain) == (4 in sizes)


def test_exactness_of_a_plain_call() -> None:
    p = predict(SMALL, "flash", "h100", method="bounds")
    assert exactness(p.problem, p.kernel, p.chain, p.traffic) == ranges.CONFIRMED


# ---- settings that do nothing ----


@pytest.mark.parametrize(
    "changed", [None, "name", "chain", "residencies", "counted", "time", "inputs"]
)
def test_two_calls_are_the_same_in_all_that_a_prediction_takes(changed: str | None) -> None:
    def call(**changes: Any) -> Any:
        plain: dict[str, Any] = {
            "name": 1,
            "chain": 1,
            "residencies": 1,
            "counted": 1,
            "time": 1.0,
            "inputs": 1,
        }
        plain |= changes
        return SimpleNamespace(
            kernel=SimpleNamespace(name=plain["name"]),
            chain=plain["chain"],
            residencies=plain["residencies"],
            counted=plain["counted"],
            time=lambda *_: SimpleNamespace(total_s=plain["time"]),
            replay_inputs=lambda: plain["inputs"],
        )

    other = call() if changed is None else call(**{changed: 2})
    none: Any = None
    assert idle._same(call(), other, none, none) == (changed is None)


# ---- what is kept ----


def test_a_use_is_written_down_once_a_day(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds since its last use: none and less than a day are not worth a write, a clock set back is."""
    import sqlite3

    cache = ReplayCache(tmp_path / "cache", "v")
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    cache.put("key", {"a": 1})

    def used() -> float:
        with sqlite3.connect(cache.place) as file:
            return float(file.execute("SELECT used FROM replays").fetchone()[0])

    from iosim.prediction.cache import USED_AGAIN_S

    for later, written in ((0.0, False), (USED_AGAIN_S - 1, False), (USED_AGAIN_S, True)):
        now[0] = 1000.0 + later
        assert cache.get("key") == {"a": 1}
        assert used() == (now[0] if written else 1000.0)
    now[0] = 10.0  # the clock was set back
    assert cache.get("key") == {"a": 1}
    assert used() == 10.0


def test_entries_and_bytes_of_a_cache(tmp_path: Any) -> None:
    cache = ReplayCache(tmp_path / "cache", "v")
    assert (cache.state().results, cache.state().bytes) == (0, 0)
    for key in "abc":
        cache.put(key, {"a": 1})
    ReplayCache(cache.place, "older").put("a", {"a": 2})
    state = cache.state()
    assert (state.results, state.current) == (4, 3)
    assert state.bytes > 1000


def test_a_replay_comes_back_as_it_was() -> None:
    for problem, kernel, method in (
        (SMALL, "fa2", "replay"),
        (SMALL.with_(heads=64, seq_q=2048), "naive", "sampled"),
        (SMALL.with_(heads=8, seq_q=16_384), "fa2", "sampled"),
    ):
        played = predict(problem, kernel, "h100", method=method).replay  # type: ignore[arg-type]
        assert played is not None
        assert to_plain(from_plain(to_plain(played))) == to_plain(played)


def test_replays_that_are_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest ones: with one more the first is forgotten, and played again."""
    from iosim.prediction import replays as module

    monkeypatch.setattr(module, "MOST_SHARED", 2)
    played: list[str] = []
    monkeypatch.setattr(module, "tile_accesses", lambda _: 1)
    monkeypatch.setattr(module, "about_bytes", lambda _: 1)
    monkeypatch.setattr(module, "digest", lambda inputs: inputs.name)
    monkeypatch.setattr(module, "replay", lambda inputs: played.append(inputs.name) or inputs.name)
    shared = Replays(shares=True, kept_accesses=10)

    def ask(name: str) -> Any:
        play = SimpleNamespace(share=None)
        inputs = SimpleNamespace(name=name, play=play, chain=None)
        call: Any = SimpleNamespace(chain=None, replay_inputs=lambda _: inputs)
        return shared.of(call)

    for name in "ababcba":
        assert ask(name) == name
    assert "".join(played) == "abca"


@pytest.mark.parametrize(("accesses", "keeps"), [(9, False), (10, True)])
def test_replays_that_are_kept_on_disk(
    accesses: int, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iosim.prediction import replays as module

    monkeypatch.setattr(module, "tile_accesses", lambda _: accesses)
    monkeypatch.setattr(module, "digest", lambda _: "key")
    monkeypatch.setattr(module, "replay", lambda _: "played")
    monkeypatch.setattr(module, "_kept", lambda *_: "kept")
    call: Any = SimpleNamespace(chain=None, replay_inputs=lambda _: None)
    assert Replays(kept_accesses=10).of(call) == ("kept" if keeps else "played")


# ---- the result ----


def test_what_is_not_known_of_shared_memory_is_refused() -> None:
    p = predict(SMALL, "naive", "h100", method="bounds")
    if p.smem_known():
        pytest.skip("all launches say how their warps divide operands")
    with pytest.raises(InputError, match="smem"):
        p.total("smem")
    assert p.missing[-1].startswith("shared-memory bytes are not known: how warps of")


def test_a_cache_at_the_memorys_side_is_told_of_where_it_was_played() -> None:
    for gpu, method, is_there in (
        ("mi300x", "replay", True),
        ("mi300x", "capacity", False),
        ("h100", "replay", False),
        ("h100", "capacity", False),
    ):
        p: Prediction = predict(SMALL, "naive", gpu, method=method)  # type: ignore[arg-type]
        assert (p.side is not None) == is_there
