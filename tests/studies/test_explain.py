"""explain(): its numbers are predict's and the trace's, and its words follow from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from effort import quick_first
from refusals import refused

from iosim import AttentionProblem
from iosim.catalog.libraries import resolve
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Spill
from iosim.kernel.launch import Rows
from iosim.kernel.schedule import Direction, Order
from iosim.prediction.predictor import predict
from iosim.studies import explain as explaining
from iosim.studies.explain import Explanation, _headline, explain
from iosim.studies.trials import MAX_ACCESSES, try_changes

pytestmark = pytest.mark.usefixtures("replays_once")

LONG = AttentionProblem(batch=1, heads=8, seq_q=65536, head_dim=128, dtype="bf16", mask="causal")
SMALL = "--gpu h200 --heads 4 --seq-len 4096 --head-dim 64 --causal --dtype bf16"


@pytest.fixture(scope="module")
def fa2() -> Explanation:
    return explain(predict(LONG, "fa2", "h200"), budget=14_000_000)


@pytest.fixture(scope="module")
def cudnn() -> Explanation:
    return explain(predict(LONG, "cudnn", "h200"), budget=5_000_000)


def explained(kernel: str, budget: int = 0, **values: Any) -> Explanation:
    sizes = {"batch": 1, "heads": 4, "seq_q": 2048, "head_dim": 64, "dtype": "bf16"} | values
    return explain(predict(AttentionProblem(**sizes), kernel, "h200"), budget=budget)


@pytest.mark.slow
def test_the_long_causal_case_names_both_causes(fa2: Explanation, cudnn: Explanation) -> None:
    first = fa2.launches[0]
    other = cudnn.launches[0]
    assert 6.3e9 < fa2.prediction.total("hbm", "read") < 8.6e9
    assert 0.38e9 < cudnn.prediction.total("hbm", "read") < 0.49e9
    assert first.regime == "drift, spills"
    assert (
        first.one_head_bytes == other.one_head_bytes == 65536 * 128 * 2 * 2
    )  # keys x head_dim x bf16 x (K and V)
    assert (first.median_in_use_bytes or 0) > first.capacity_bytes
    text = " ".join(first.reasons)
    for words in (
        "33.55 MB",
        "one partition",
        "light blocks first",
        "from the diagonal down",
        "everywhere",
        "spilled registers",
        "drifted apart",
    ):
        assert words in text
    assert other.regime == "fits"
    assert (other.peak_in_use_bytes or 0) < other.capacity_bytes
    text = " ".join(other.reasons)
    assert "it fits" in text
    assert "keys upwards, all CTAs from the same first one" in text
    assert "spilled" not in text


@pytest.mark.slow
def test_walking_upwards_is_found_to_help(fa2: Explanation) -> None:
    best = fa2.tried.trials[0]
    assert best.words == "keys ascending"
    assert best.hbm_bytes < fa2.prediction.total("hbm") / 5
    assert best.words in fa2.advice
    assert "helps most" in fa2.advice


@pytest.mark.parametrize("name", quick_first(["cudnn", "fa2"], 1))
def test_numbers_are_those_of_predict(name: str, request: pytest.FixtureRequest) -> None:
    e: Explanation = request.getfixturevalue(name)
    p = predict(LONG, name, "h200")
    rows = {(r.launch, r.tensor, r.direction): int(r.bytes) for r in p.traffic if r.level == "hbm"}
    assert {(s.launch, s.tensor, s.direction): s.hbm_bytes for s in e.sources} == rows
    assert sum(s.hbm_bytes for s in e.sources) == p.total("hbm")
    bound = p.hbm_bounds
    assert sum(s.once_bytes for s in e.sources) == bound.compulsory_read + bound.compulsory_write
    launch = e.launches[0]
    assert launch.hbm_read_bytes == rows["main", "K", "read"] + rows["main", "V", "read"]
    assert e.to_dict()["time_s"] == p.time.total_s
    assert [t.rank(p) for t in e.tried.trials] == sorted(t.rank(p) for t in e.tried.trials)


@pytest.mark.slow
def test_a_trial_is_the_prediction_of_the_changed_kernel(fa2: Explanation) -> None:
    kernel = resolve("fa2", LONG, load_profile("h200"))
    upwards = replace(kernel.schedule, direction=Direction.ASCENDING)
    changed = predict(LONG, kernel.with_(schedule=upwards), "h200")
    trial = next(t for t in fa2.tried.trials if t.words == "keys ascending")
    assert (trial.hbm_bytes, trial.time_s) == (changed.total("hbm"), changed.time.total_s)


@pytest.mark.slow
def test_trials_beyond_the_budget_are_named(fa2: Explanation) -> None:
    accesses = (
        sum(n.accesses for n in fa2.prediction.replay.launches) if fa2.prediction.replay else 0
    )
    assert len(fa2.tried.trials) == 14_000_000 // accesses
    skipped = dict(fa2.tried.skipped)
    assert f"{accesses:,} accesses" in skipped["order head"]
    assert explained("fa2").advice.startswith("nothing was tried: ")
    assert 10 * accesses <= MAX_ACCESSES


@pytest.mark.parametrize(
    ("kernel", "values", "regime", "words"),
    [
        # 8 waves, each of which reads K and V of 67.1 MB again
        ("cudnn", {"heads": 1, "seq_q": 131072, "head_dim": 128}, "wave-bound", "7.76 waves"),
        ("fa2", {}, "fits", "fit in one partition"),
        ("fa2", {"seq_q": 1, "seq_k": 8192}, "read once", "nothing to reuse"),
        ("naive", {"heads": 8, "seq_q": 4096}, "streamed", "live between launches and outgrow"),
    ],
)
def test_regimes(kernel: str, values: dict[str, Any], regime: str, words: str) -> None:
    e = explained(kernel, **values)
    assert e.launches[0].regime.split(",")[0] == regime
    assert any(words in reason for launch in e.launches for reason in launch.reasons)


def test_waves_are_counted_as_bytes() -> None:
    launch = explained("cudnn", heads=1, seq_q=131072, head_dim=128).launches[0]
    assert (
        launch.in_step_bytes == 8 * 131072 * 128 * 2 * 2
    )  # waves x keys x head_dim x bf16 x (K and V)
    assert launch.hbm_read_bytes == pytest.approx(launch.in_step_bytes, rel=0.1)


def test_thrashing_is_told_from_drift() -> None:
    kernel = resolve("cudnn", LONG, load_profile("h200"))
    heads = kernel.with_(schedule=replace(kernel.schedule, order=Order.HEAD))
    e = explain(predict(LONG, heads, "h200"), budget=0)
    assert e.launches[0].regime == "thrashing"
    assert (e.launches[0].median_in_use_bytes or 0) > 2 * e.launches[0].capacity_bytes


def test_spills_are_named_only_where_there_are_some() -> None:
    problem = AttentionProblem(batch=1, heads=4, seq_q=2048, head_dim=64, dtype="bf16")
    kernel = resolve("flash", problem, load_profile("h200"))
    assert "spills" not in explain(predict(problem, kernel, "h200"), budget=0).launches[0].regime
    spilling = kernel.with_(spill=Spill(write_per_pair=8.0))
    assert "spills" in explain(predict(problem, spilling, "h200"), budget=0).launches[0].regime


def test_it_says_when_nothing_helps() -> None:
    e = explained("cudnn", budget=MAX_ACCESSES, heads=8, head_dim=128)
    assert e.advice.startswith("none of the ") or "helps most" in e.advice
    now = e.prediction
    saves = [
        t
        for t in e.tried.trials
        if t.hbm_bytes < 0.98 * now.total("hbm") and t.time_s <= 1.02 * now.time.total_s
    ]
    fast = e.tried.trials[0].time_s < 0.98 * now.time.total_s
    assert ("helps most" in e.advice) == bool(saves or fast)


def test_a_chain_without_loops_has_nothing_to_try() -> None:
    tried = try_changes(
        predict(
            AttentionProblem(batch=1, heads=2, seq_q=512, head_dim=64, dtype="bf16"),
            "naive",
            "h200",
        )
    )
    assert tried.trials == ()
    assert "no launch loops over keys" in tried.skipped[0][1]


def test_command_formats(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *SMALL.split(), "--kernel", "fa2"]) == 0
    text = capsys.readouterr().out
    assert all(
        w in text for w in ("Regime of launch main: fits", "Where the HBM bytes come from", "(now)")
    )
    assert main(["explain", *SMALL.split(), "--kernel", "fa2", "--format", "json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == 1
    assert value["explanations"][0]["launches"][0]["regime"].startswith("fits")
    assert value["explanations"][0]["trials"][0]["hbm_bytes"] > 0
    assert main(["explain", *SMALL.split(), "--kernel", "fa2", "--format", "md"]) == 0
    text = capsys.readouterr().out
    assert "### Regime of launch main" in text
    assert "| change" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--kernel foo", ("--kernel", "'foo'", "fa2")),
        ("--gpu h1oo", ("GPU", "'h1oo'", "h100")),
        ("--l2 hot", ("--l2 'hot'", "cold")),
        ("--format html", ("--format", "html", "md")),
        ("--seq-len 0", ("--seq-len 0", "1 to")),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(
    options: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(
        capsys,
        ["explain", *SMALL.split(), *options.split(), "--out", str(tmp_path / "out")],
        *words,
    )
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_read_by_two_launches_is_compulsory_once() -> None:
    e = explained("flash", passes="bwd", mask="causal", heads=8, seq_q=8192, head_dim=128)
    rows = [s for s in e.sources if s.tensor == "dO" and s.direction == "read"]
    assert len(rows) == 2  # dO is read for the row sums and again for the gradients
    assert (
        sum(s.once_bytes for s in e.sources if s.direction == "read")
        == e.prediction.hbm_bounds.compulsory_read
    )


UP = (0, 0, 0, 0)
DOWN = (1, 1, 1, 1)
BOTH = (0, 1, 0, 1)


@pytest.mark.parametrize(("steps", "down", "first", "words"), [
    # Four CTAs of one head: steps of each, whether it walks its keys down, and where it begins
    ((4, 4, 4, 4), UP, (0, 0, 0, 0), "equal blocks, keys upwards, all CTAs from the same first one: they are as far apart"),
    ((4, 4, 4, 4), UP, (0, 1, 2, 3), "equal blocks, keys upwards;"),
    ((4, 4, 4, 4), DOWN, (0, 0, 0, 0), "equal blocks, keys from the last of each CTA down"),
    ((4, 3, 2, 1), UP, (0, 0, 0, 0), "heavy blocks first, keys upwards, all CTAs from the same first one"),
    ((1, 2, 3, 4), BOTH, (0, 0, 0, 0), "light blocks first, keys in alternating directions"),
    # A causal mask: each CTA begins at its own place of the diagonal.
    ((1, 2, 3, 4), DOWN, (0, 0, 0, 0), "light blocks first, keys from the diagonal down, so every CTA begins at a place "
     "of its own and later ones further on"),
    ((4, 3, 2, 1), DOWN, (0, 0, 0, 0), "heavy blocks first, keys from the diagonal down, so every CTA begins at a place "
     "of its own, and the next CTA beside it"),
    # A CTA without steps begins nowhere.
    ((4, 4, 4, 0), UP, (0, 0, 0, 9), "equal blocks, keys upwards, all CTAs from the same first one"),
])  # fmt: skip
def test_words_of_an_order(
    steps: tuple[int, ...], down: tuple[int, ...], first: tuple[int, ...], words: str
) -> None:
    ctas = SimpleNamespace(
        owner=np.zeros(4, np.int64),
        count=np.array(steps),
        down=np.array(down),
        first=np.array(first),
        start_ps=np.array([0, 20, 0, 0]),
        end_ps=np.array([20, 30, 30, 30]),
        position=lambda which, at: which * 2,
    )
    traced: Any = SimpleNamespace(
        ctas=ctas, shared_tensors=("K",), shared_axis=Rows.KEY, begin_ps=0, end_ps=40
    )
    launch: Any = SimpleNamespace(
        schedule=SimpleNamespace(order="query"), domain=SimpleNamespace(block_q=64, block_k=128)
    )
    order, middle = explaining._order(launch, traced)
    assert f"{order};".startswith(f"order query, {words}"), order
    # At the middle, 20 ps, the first has ended and the second begins. They stand at blocks 2, 4 and 6 of 128 keys.
    last = 4 if steps[3] == 0 else 6
    running = 3 - (steps[3] == 0)
    assert f"{running} CTAs run on 1 head; the {running} of the busiest one" in middle
    assert middle.endswith(f"stand at keys 256 to {(last + 1) * 128 - 1} of it"), middle


@pytest.mark.parametrize(
    ("regime", "more", "words"),
    [
        ("streamed", {}, ["what is read and written once"]),
        ("read once", {}, ["K and V: 400 kB into the SMs"]),
        (
            "fits",
            {},
            [
                "K and V: 400 kB into the SMs, 120 kB from HBM (1.5 x their bytes)",
                "30 kB at the median",
                "50 kB at the peak",
                "against 70 kB that the L2 keeps",
                "a whole head has 20 kB",
            ],
        ),
        (
            "fits",
            {"all_bytes": 70_000},
            ["(1.71 x their bytes)", "all of them, 70 kB, fit in the L2 (70 kB)"],
        ),
        ("fits", {"all_bytes": 70_001}, ["it fits, and little is read from HBM twice"]),
        (
            "wave-bound",
            {},
            [
                "a whole head has 20 kB, those in progress together go past the 70 kB",
                "each of the 2.5 waves would be 150 kB",
            ],
        ),
        ("wave-bound", {"one_head_bytes": 80_000}, ["a whole head has 80 kB, past the 70 kB"]),
        ("thrashing", {}, ["past it for 25 % of the time"]),
        ("drift", {}, ["it would fit, so other data displaces part of it"]),
        ("drift", {"peak_in_use_bytes": 70_000}, ["it would fit"]),
        (
            "drift",
            {"peak_in_use_bytes": 70_001},
            ["past it for 25 % of the time", "CTAs have drifted apart", " IN STEP"],
        ),
        ("drift", {"peak_in_use_bytes": None}, ["it would fit", "0 B at the peak"]),
        ("fits", {"all_bytes": 0}, ["(1.2e+05 x their bytes)"]),
    ],
)
def test_the_numbers_of_a_regimes_sentence(
    regime: str, more: dict[str, Any], words: list[str]
) -> None:
    values = {
        "shared_tensors": ("K", "V"),
        "loaded_bytes": 400_000,
        "hbm_read_bytes": 120_000,
        "all_bytes": 80_000,
        "median_in_use_bytes": 30_000,
        "peak_in_use_bytes": 50_000,
        "capacity_bytes": 70_000,
        "one_head_bytes": 20_000,
        "share_above_capacity": 0.25,
        "waves": 2.5,
        "in_step_bytes": 150_000,
        "where": "the L2",
        "step": " IN STEP",
    }
    told = _headline(regime, values | more)
    assert [part for part in words if part not in told] == []
