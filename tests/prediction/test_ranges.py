"""The range of a prediction's HBM bytes: where constants of the L2 are borrowed, and whether it is wide enough."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from effort import some
from scripts import measurements

from iosim.catalog.libraries import resolve
from iosim.commands.cli import main
from iosim.evidence.validate.match import NoModel, match
from iosim.evidence.validate.residuals import calls
from iosim.evidence.validate.rows import default_files, read
from iosim.hardware.profile import HardwareProfile, list_profiles, load_profile
from iosim.hardware.trust import BORROWED, L2_KNOWN, borrowed_l2, by_group
from iosim.kernel.launch import SPILL, Mode
from iosim.prediction import ranges
from iosim.prediction.call import Call
from iosim.prediction.confidence import basis, confidence
from iosim.prediction.face import range_lines
from iosim.prediction.predictor import Request, planned, predict
from iosim.prediction.ranges import FEW_QUERIES_PRODUCTS, UNTIMED, HbmRange, hbm_range
from iosim.prediction.replays import Replays, tile_accesses
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.play import Play

BRACKETED = 0.9
ACCESSES = 500_000
"""Of the recorded launches that are played three times here, at most."""
SECTOR = 32
OTHERS = {
    "h200-sxm": ("h100-sxm", "a100-sxm-80gb", "a40", "rtx-4090"),
    "a30": ("h200-sxm", "a40", "l40", "rtx-4090"),
}


def own(quantity: str) -> set[float]:
    """What shipped profiles know of their own GPU, where it has one L2."""
    profiles = [p for p in map(load_profile, list_profiles()) if not p.l2_apart]
    return {
        getattr(p, quantity) for p in profiles if p.kinds.get(quantity) not in (None, *BORROWED)
    }


@pytest.mark.parametrize("quantity", L2_KNOWN)
def test_the_extremes_are_those_of_the_shipped_profiles(quantity: str) -> None:
    assert (min(own(quantity)), max(own(quantity))) == L2_KNOWN[quantity]


def with_constants_of(gpu: str, other: str) -> HardwareProfile:
    """A GPU whose L2's constants are all another's."""
    profile, lender = load_profile(gpu), load_profile(other)
    return replace(
        profile,
        **{name: getattr(lender, name) for name in L2_KNOWN},
        kinds={**profile.kinds, **dict.fromkeys(L2_KNOWN, "taken")},
        taken={**profile.taken, **dict.fromkeys(L2_KNOWN, other)},
    )  # type: ignore[arg-type]


def ranged(call: Call, start: str) -> tuple[tuple[int, int], HbmRange]:
    traffic = call.replay(Play(l2_start=start)).traffic
    hbm_bytes = int(traffic.total("hbm", "read")), int(traffic.total("hbm", "write"))
    span = hbm_range(call, "replay", start, hbm_bytes)
    assert span is not None
    return hbm_bytes, span


@cache
def short_launches() -> list[tuple[Any, dict[str, float]]]:
    """(call, counted bytes) of recorded calls of one launch on the H200, and a few."""
    rows_found = []
    for rows in calls(row for file in default_files() for row in read(file)):
        try:
            case = match(rows, load_profile("h200-sxm"))
        except NoModel:
            continue
        if len(rows) == 1 and len(case.chains) == 1 and tile_accesses(case.chains[0]) < ACCESSES:
            rows_found.append((case, dict(rows[0].measured)))
    return rows_found


@pytest.mark.slow
@pytest.mark.parametrize("other", some(OTHERS["h200-sxm"]))
def test_counters_of_an_h200_lie_in_the_range_with_constants_of_any_other(other: str) -> None:
    profile = with_constants_of("h200-sxm", other)
    inside = []
    for case, measured in short_launches():
        _, span = ranged(Call.of(case.problem, case.kernel, profile, case.chains[0]), "cold")
        for counter, (least, highest) in (("hbm_read", span.read), ("hbm_write", span.write)):
            if measured.get(counter) is not None:
                inside.append(least <= measured[counter] <= highest)
    assert len(inside) > 60
    assert sum(inside) >= BRACKETED * len(inside)


@pytest.mark.parametrize("other", OTHERS["a30"])
@pytest.mark.slow
def test_counters_of_an_a30_lie_in_the_range_with_constants_of_any_other(other: str) -> None:
    profile = with_constants_of("a30", other)
    with open(measurements("published_a30_fa2.csv"), encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    inside, spans = [], {}
    for r in rows:
        ahead = 0 if r["causal"] == "1" else int(r["window"])
        key = (int(r["seq"]), int(r["window"]), ahead, r["l2_start"])
        if key not in spans:
            problem = AttentionProblem(
                heads=32,
                kv_heads=8,
                seq_q=key[0],
                head_dim=128,
                dtype="fp16",
                mask="window",
                window=key[1],
                window_right=key[2],
            )
            spans[key] = ranged(
                Call.of(problem, resolve("flash-attn", problem, profile), profile), key[3]
            )[1]
        least, highest = spans[key].total
        inside.append(least <= SECTOR * int(r["dram_sectors"]) <= highest)
    assert len(inside) == len(rows) > 60
    assert sum(inside) >= BRACKETED * len(inside)


PROBLEM = AttentionProblem(heads=8, seq_q=4096, head_dim=128, mask="causal")


def test_a_range_stands_where_constants_are_borrowed_and_there_alone() -> None:
    for gpu in ("t4", "l4", "b200", "a30"):
        p = predict(PROBLEM, "flash", gpu)
        span = p.hbm_range
        assert span is not None
        assert set(span.constants) == set(borrowed_l2(p.profile)) != set()
        assert span.read[0] <= p.hbm.read <= span.read[1]
        assert span.write[0] <= p.hbm.write <= span.write[1]
    assert predict(PROBLEM, "flash", "h200").hbm_range is None
    assert predict(PROBLEM, "flash", "a100").hbm_range is None
    assert predict(PROBLEM, "flash", "t4", method="capacity").hbm_range is None


def test_a_range_says_how_far_ctas_may_part() -> None:
    """h100_drift.csv, call 11, whose keys outgrow the L2; on a T4 nobody has counted it."""
    problem = AttentionProblem(heads=4, seq_q=65536, head_dim=128, dtype="fp16", mask="causal")
    p = predict(problem, "cutlass", "h100")
    span = p.hbm_range
    assert span is not None
    assert span.drifts
    assert not span.constants
    assert span.read[0] < 0.88 * p.hbm.read < 877_909_000 < span.read[1]
    assert "for how far CTAs drift apart" in range_lines(p)[0]
    least, highest = (
        Request(problem, "cutlass", "t4", accesses=2_000_000).predict(Replays()).hbm_range or span
    ).read
    assert highest > 3 * least


def test_a_call_that_fits_many_times_needs_no_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB of Q, K, V and O in 48 MiB."""
    p = predict(AttentionProblem(heads=1, seq_q=128, head_dim=64), "flash", "l4", ecc="off")
    monkeypatch.setattr("iosim.prediction.ranges._again", lambda *_: pytest.fail("played"))
    span = p.hbm_range
    assert span is not None
    assert span.read[1] == p.hbm.read + 200_000


def test_text_and_json_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "--gpu", "t4", "--kernel", "flash", "--seq-len", "1k", "--heads", "2"]
    assert main(words) == 0
    assert "range: HBM read" in capsys.readouterr().out
    assert main([*words, "--format", "json"]) == 0
    span = json.loads(capsys.readouterr().out)["predictions"][0]["range"]
    assert set(span["constants"]) <= set(L2_KNOWN)
    assert len(span["hbm"]["read"]) == 2
    assert (
        main(["predict", "--gpu", "h200", "--seq-len", "1k", "--heads", "2", "--format", "json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["predictions"][0]["range"] is None


def test_profiles_show_evidence_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "show", "l4"]) == 0
    assert "L2 replacement  taken from l40" in capsys.readouterr().out
    groups = {(g.group, g.how): g.numbers for g in by_group(load_profile("l4"))}
    assert groups["L2 replacement", "taken from h100-sxm"] == ("l2_dirty_fraction",)
    assert "l2_bytes" in groups["L2 structure", "published"]
    assert main(["profiles", "show", "l4", "--format", "json"]) == 0
    assert {
        "group": "L2 structure",
        "how": "published",
        "numbers": ["l2_bytes", "line_bytes"],
    } in json.loads(capsys.readouterr().out)["evidence_by_group"]


def test_a_table_of_totals_plays_nothing_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CSV has no range."""
    monkeypatch.setattr("iosim.prediction.ranges._again", lambda *_: pytest.fail("played"))
    assert (
        main(
            [
                "predict",
                "--gpu",
                "t4",
                "--kernel",
                "flash",
                "--seq-len",
                "4k",
                "--heads",
                "8",
                "--format",
                "csv",
            ]
        )
        == 0
    )
    assert "hbm_read_bytes" in capsys.readouterr().out


@pytest.mark.parametrize(("tokens", "says"), [(65536, False), (262144, True)])
def test_calls_beyond_what_agrees_with_counters_say_so(
    tokens: int, says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four such calls were counted, one of each kernel (h100_long.csv): too few to call the others checked."""
    problem = AttentionProblem(heads=8, seq_q=tokens, head_dim=128, dtype="bf16")
    prediction = predict(problem, "fa2", "h100", method="sampled")
    assert ("beyond 131,072 keys" in confidence([prediction])) is says
    drifts: list[str] = []

    def again(call: Call, profile: HardwareProfile, play: Play) -> tuple[int, int]:
        drifts.append(play.drift)
        return prediction.hbm.read, prediction.hbm.write

    monkeypatch.setattr("iosim.prediction.ranges._again", again)
    assert prediction.hbm_range is not None
    assert prediction.hbm_range.outgrown is says
    # What is known to fail there is not played: the range is that of what was counted.
    assert drifts == ([] if says else ["least", "most"] * (len(drifts) // 2))
    if says:
        assert prediction.hbm_range.read[0] < 19.39e9 < prediction.hbm_range.read[1]
        assert not any(
            "checked against that GPU's counters" in line
            for line in basis([prediction])
            if "not" not in line
        )


@pytest.mark.slow
def test_a_further_replay_plays_a_quarter_of_the_windows() -> None:
    """6 of 24 million object accesses, where both passes are long, so that neither is played in coarse steps."""
    problem = AttentionProblem(
        heads=32, seq_q=102_400, head_dim=128, dtype="bf16", mask="causal", passes="fwd+bwd"
    )
    call = Call.of(problem, resolve("fa2", problem, load_profile("l4")), load_profile("l4"))
    played = []
    for accesses in (24_000_000, 6_000_000):
        windows = call.replay(Play(part=True, accesses=accesses)).launches[0].windows
        assert windows is not None
        played.append(float(windows.played.sum()))
    assert played[1] == pytest.approx(played[0] / 4, rel=0.15)


def test_chains_of_few_queries_are_as_far_off_as_their_range_says() -> None:
    """PyTorch's math path with 1 to 7 queries on an H200, whose products are kernels that the catalog lacks."""
    measured: dict[tuple[int, ...], float] = {}
    with open(measurements("h200_math_few_queries.csv"), encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            names = ("batch", "heads", "seq_q", "seq_k", "head_dim")
            sizes = tuple(int(row[name]) for name in names)
            measured[sizes] = measured.get(sizes, 0.0) + float(row["seconds"])
    off = []
    for (batch, heads, seq_q, seq_k, head_dim), seconds in measured.items():
        problem = AttentionProblem(
            batch=batch, heads=heads, seq_q=seq_q, seq_k=seq_k, head_dim=head_dim, dtype="bf16"
        )
        p = predict(problem, "math", "h200", l2_start="warm", method="capacity")
        off.append(seconds / p.time_s - 1)
    assert len(off) == 6
    assert max(map(abs, off)) == pytest.approx(FEW_QUERIES_PRODUCTS, abs=0.03)


def test_a_range_of_few_queries_is_wider_where_tiles_are_not_published() -> None:
    def width(seq_q: int) -> float:
        problem = AttentionProblem(batch=4, heads=16, seq_q=seq_q, seq_k=16384, head_dim=64)
        span = predict(problem, "math", "rtx-a6000", method="capacity").time_range
        assert span is not None
        return span.seconds[1] / span.seconds[0]

    assert width(1) > 1.5 * width(16)


@pytest.mark.parametrize(
    ("overheads", "inferred"),
    [
        ([], False),
        ([("packets", Mode.STORE, "a source")], True),
        ([("packets", Mode.STORE, "")], False),  # counted, not inferred
        ([("neighbours", Mode.LOAD, "a source")], False),
        ([(SPILL, Mode.STORE, "a source")], False),  # told by itself
        (
            [
                (SPILL, Mode.STORE, "a source"),
                ("locks", Mode.LOAD, ""),
                ("packets", Mode.STORE, "a source"),
            ],
            True,
        ),
    ],
)
def test_stores_that_are_inferred(overheads: list[tuple[str, Mode, str]], inferred: bool) -> None:
    launches = [SimpleNamespace(overheads=())]
    launches += [
        SimpleNamespace(overheads=[SimpleNamespace(name=n, mode=mode, inferred_from=source)])
        for n, mode, source in overheads
    ]
    chain: Any = SimpleNamespace(launches=launches)
    assert bool(ranges._inferred_stores(chain)) is inferred


@pytest.mark.parametrize(
    ("kernel", "gpu", "passes", "untimed"),
    [
        ("fa2", "l4", "fwd", False),
        ("cudnn", "a100", "fwd", False),
        ("cudnn", "a100", "bwd", True),
        ("cudnn", "a100", "fwd+bwd", True),
        ("cudnn", "h100", "bwd", False),
        ("fa-turing", "t4", "fwd", False),
        ("fa4-sm80", "a100", "fwd", True),
    ],
)
def test_a_kernel_that_nobody_timed_has_a_wider_range(
    kernel: str, gpu: str, passes: str, untimed: bool
) -> None:
    problem = AttentionProblem(heads=16, seq_q=1024, head_dim=128, dtype="fp16", passes=passes)
    p = predict(problem, kernel, gpu, method="capacity")
    times = p.time_range
    assert times is not None
    assert times.untimed is untimed
    assert (times.seconds[1] >= (1 + UNTIMED[1]) * p.time_s) is untimed
    assert ("nobody timed" in "".join(range_lines(p))) is untimed


@pytest.mark.parametrize(("tokens", "plays_windows"), [(16384, False), (32768, True)])
def test_what_a_range_plays_again(
    tokens: int, plays_windows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 heads of n / 128 query tiles that each visit n / 64 key tiles of K and of V, 2.1 and 8.4 million accesses:
    up to 6 million a range plays all of them."""
    plays = []

    def again(_call: Call, _profile: HardwareProfile, play: Play) -> tuple[int, int]:
        plays.append(play)
        return 1 << 31, 1 << 28

    monkeypatch.setattr(ranges, "_again", again)
    problem = AttentionProblem(heads=32, seq_q=tokens, head_dim=128)
    call = planned(problem, "fa2", load_profile("a100-40gb"))
    assert tile_accesses(call.chain) // 1_000_000 == (8 if plays_windows else 2)
    hbm_range(call, "replay", "cold", (1 << 31, 1 << 28))
    assert plays
    assert {play.part for play in plays} == {plays_windows}
