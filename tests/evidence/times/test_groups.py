"""`iosim validate --times`: times by group against their targets; gates; what mechanisms are worth; baselines."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripts import load_script

from iosim.commands.cli import main
from iosim.evidence import recorded
from iosim.evidence.times import groups, tables
from iosim.evidence.times.groups import (
    GROUPS,
    KEYS,
    Errors,
    Group,
    Row,
    TimeGate,
    TimesReport,
    by_group,
    collect,
    rows_of,
    times_report,
)
from iosim.readers.timing import overlap

LIMITS = {
    "profiler": 0.05, "spills": 0.065, "backward": 0.15, "around": 0.08, "tiles": 0.07, "naive": 0.08,
    "minimal": 0.09, "own-backward": 0.10, "calls": 0.04, "graph": 0.065, "graph-short": 0.12,
    "clocks": 0.05, "h100-profiler": 0.06, "h100-graph": 0.075, "h100-graph-short": 0.11,
    "h100-clocks": 0.03, "nvidia-h200": 0.11, "nvidia-blackwell": 0.08, "a30-cold": 0.11,
    "a30-warm": 0.08, "varlen-h100": 0.10, "varlen-a6000": 0.12,
    "public-t4": 0.09, "public-l4": 0.13, "public-b200": 0.11,
}  # fmt: skip
"""Mean errors on held-out rows that no change may exceed; serving stacks have a gate of their own (latency/test_latency.py)."""
ABLATION, BASELINES = (
    load_script(f"benchmarks/timing_{name}.py") for name in ("ablation", "baselines")
)
SAMPLE = ("calls", "clocks", "nvidia-blackwell", "graph", "h100-graph")


@pytest.fixture(scope="module")
def sample() -> list[tuple[Group, tables.Case]]:
    return collect(8, SAMPLE)[0]


def test_a_sample_of_the_groups_holds_its_limits(sample: list[tuple[Group, tables.Case]]) -> None:
    by_key = by_group(rows_of(sample))
    assert set(by_key) == set(SAMPLE)
    for key, errors in by_key.items():
        assert errors.mean < 1.5 * LIMITS[key], key


def test_calls_that_others_timed_on_a_t4_an_l4_and_a_b200() -> None:
    """No row of these groups was fitted on; their limits are those of every row."""
    report = times_report(1, ("public-t4", "public-l4", "public-b200"))
    assert {key: errors.n for key, errors in report.held_out.items()} == {
        "public-t4": 8,
        "public-l4": 16,
        "public-b200": 16,
    }
    assert all(errors.mean < LIMITS[key] for key, errors in report.held_out.items())


@pytest.mark.slow
@pytest.mark.parametrize("keys", [tuple(LIMITS)[:5], tuple(LIMITS)[5:13], tuple(LIMITS)[13:]])
def test_every_row_of_the_groups_holds_their_limits(keys: tuple[str, ...]) -> None:
    report = times_report(1, keys)
    assert set(report.held_out) == set(keys)
    assert not report.missing
    over = {key: e.mean for key, e in report.held_out.items() if e.mean > LIMITS[key]}
    assert over == {}


def test_no_measured_time_reaches_its_prediction(sample: list[tuple[Group, tables.Case]]) -> None:
    for _, case in sample[::5]:
        (timed,) = case.times()
        other = tables.replace(case, seconds=(1.0,))
        assert next(other.times()).predicted_s == timed.predicted_s


@pytest.mark.slow
def test_each_mechanism_is_put_back_and_changes_what_it_should(
    sample: list[tuple[Group, tables.Case]],
) -> None:
    worth = {w.mechanism: w for w in ABLATION.ablation(sample)}
    assert overlap.beside(1.0, 1.0) == pytest.approx(2 ** (1 / overlap.OVERLAP_NORM))
    assert set(worth) == {m.name for m in ABLATION.MECHANISMS}
    assert worth["exponentials"].without > worth["exponentials"].whole
    assert worth["barriers"].without > worth["barriers"].whole
    assert worth["instructions of a pass"].groups == ()  # none of these calls has such a pass


@pytest.mark.parametrize("kernel", ["naive-cu", "minimal-cu", "flash-cu"])
def test_each_launch_of_a_chain_has_its_time(kernel: str) -> None:
    """The host's zeroes come first and are not timed: the last launches are those measured."""
    files = {"naive-cu": "h200_iosim_kernels.csv"}
    file = files.get(kernel, "h200_iosim_kernels.csv")
    cases = list(tables.plain_cases(40, file, kernel))
    assert cases
    for case in cases:
        assert len(case.call.chain.launches) == len(case.seconds)
        assert all("zero" not in launch.name for launch in case.call.chain.launches)


def test_baselines_stand_beside_on_the_same_rows() -> None:
    by_key = {b.group: b for b in BASELINES.compared(rows_of(collect(1, ["nvidia-blackwell"])[0]))}
    nvidia_blackwell = by_key["nvidia-blackwell"]
    assert nvidia_blackwell.n == sum(
        row.case.number % 2 == 0 for row in rows_of(collect(1, ["nvidia-blackwell"])[0])
    )
    assert nvidia_blackwell.calibrated is not None
    assert nvidia_blackwell.ours < nvidia_blackwell.calibrated < nvidia_blackwell.roofline


def test_errors_are_summed_up() -> None:
    e = Errors.of([-0.1, 0.0, 0.4])
    assert e is not None
    assert (e.n, e.median, e.p90, e.max, e.signed) == (3, 0.1, 0.4, 0.4, 0.0)
    assert e.mean == pytest.approx(0.5 / 3)
    assert Errors.of([]) is None


def test_groups_have_names_of_their_own_and_tables() -> None:
    assert len(set(KEYS)) == len(GROUPS)
    assert all(group.reads and group.title for group in GROUPS)


def test_even_rows_are_held_out_where_something_was_fitted(
    sample: list[tuple[Group, tables.Case]],
) -> None:
    for row in rows_of(sample):
        assert row.held_out == (not row.group.fitted or row.case.number % 2 == 0)


def test_gates(sample: list[tuple[Group, tables.Case]]) -> None:
    report = TimesReport(tuple(rows_of(sample)), {})
    assert TimeGate.parse("calls=10%").exceeded(report) is None
    assert "calls: mean" in (TimeGate.parse("calls=0.1%").exceeded(report) or "")
    assert "p90" in (TimeGate.parse("all:p90=0.1%").exceeded(report) or "")
    assert "no row" in (TimeGate.parse("a30-cold=8%").exceeded(report) or "")


def test_a_table_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recorded, "data_dir", lambda name: tmp_path / name)
    recorded.rows.cache_clear()
    groups_read, missing = groups.collect(8, ["calls"])
    recorded.rows.cache_clear()
    assert groups_read == []
    assert "no wheel" in missing["calls"]


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen_groups = tuple(group for group in GROUPS if group.key == "nvidia-blackwell")
    monkeypatch.setattr("iosim.evidence.times.groups.GROUPS", chosen_groups)
    assert (
        main(["validate", "--times", "--every", "6", "--fail-above", "nvidia-blackwell=50%"]) == 0
    )
    assert "held-out times" in capsys.readouterr().out
    assert (
        main(
            [
                "validate",
                "--times",
                "--every",
                "6",
                "--format",
                "json",
                "--fail-above",
                "all:max=0.01%",
            ]
        )
        == 1
    )
    printed = capsys.readouterr()
    assert json.loads(printed.out)["groups"][0]["group"] == "nvidia-blackwell"
    assert "is above" in printed.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--times", "--ncu", "x"], "--ncu contradicts --times"),
        (["--every", "3"], "--every needs --times"),
        (["--times", "--every", "0"], "--every"),
        (["--times", "--format", "html"], "--format html contradicts --times"),
        (["--times", "--fail-above", "grph=5%"], "group 'grph' is not known"),
        (["--times", "--fail-above", "graph"], "GROUP[:STATISTIC]=LIMIT"),
    ],
)
def test_what_makes_no_sense_is_refused(
    line: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", *line]) == 2
    assert message in capsys.readouterr().err


def test_a_row_has_what_it_takes(sample: list[tuple[Group, tables.Case]]) -> None:
    record = Row(*sample[0], next(sample[0][1].times())).record()
    assert record["error"] == pytest.approx(record["predicted_s"] / record["measured_s"] - 1)


def row_of(
    key: str, error: float, number: int = 2, gpu: str = "a100", launch: str = ""
) -> groups.Row:
    """A row of a group, by its number of those that something was fitted on or of the others."""
    group = next(g for g in groups.GROUPS if g.key == key)
    profile = SimpleNamespace(name=gpu)
    case: Any = SimpleNamespace(
        number=number, name="fa2", regime="long", call=SimpleNamespace(profile=profile)
    )
    timed: Any = SimpleNamespace(
        launch=launch, error=error, measured_s=1.0, predicted_s=1.0 + error
    )
    return groups.Row(group, case, timed)


def test_errors_of_eleven_rows() -> None:
    """Sizes 0.00 to 0.10: nine tenths of eleven are ten rows, the last of which is 0.09."""
    made = groups.Errors.of([(-1) ** n * n / 100 for n in range(11)])
    assert made is not None
    assert (made.n, made.max, made.p90) == (11, 0.10, 0.09)
    assert (made.mean, made.median) == pytest.approx((0.05, 0.05))
    assert made.signed == 0.0
    assert groups.Errors.of([]) is None
    one = groups.Errors.of([-0.3])
    assert one is not None
    assert (one.p90, one.mean, one.signed) == (0.3, 0.3, -0.3)


def test_an_answer_names_the_groups_that_miss() -> None:
    aimed = [g for g in groups.GROUPS if g.target is not None]
    assert groups.TimesReport((), {}).answer == "No timed row was compared."
    met, missed = aimed[0], aimed[1]
    assert met.target is not None
    assert missed.target is not None
    rows = (row_of(met.key, met.target), row_of(missed.key, missed.target + 0.5))
    told = groups.TimesReport(rows, {}).answer
    assert "Of 2 held-out times" in told
    assert f"1 of 2 groups meet their target, not: {missed.key}." in told
    assert "1 of 1 groups meet their target." in groups.TimesReport(rows[:1], {}).answer


def test_rows_that_something_was_fitted_on_stand_apart() -> None:
    fitted = next((g for g in groups.GROUPS if g.fitted), None)
    plain = next(g for g in groups.GROUPS if not g.fitted)
    assert [row_of(plain.key, 0.1, n).held_out for n in (1, 2)] == [True, True]
    if fitted is not None:
        assert [row_of(fitted.key, 0.1, n).held_out for n in (1, 2)] == [False, True]
        rows = [row_of(fitted.key, 0.1, 1), row_of(fitted.key, 0.2, 2)]
        assert by_group(rows)[fitted.key].mean == 0.2
        assert by_group(rows, held_out=False)[fitted.key].mean == 0.1


def test_a_gpus_rows_count_once() -> None:
    one = row_of(groups.GROUPS[0].key, 0.1)
    twice = groups.Row(groups.GROUPS[1], one.case, one.timed)
    rows = (one, twice, row_of(groups.GROUPS[0].key, 0.3, gpu="t4"))
    table = groups.TimesReport(tuple(r for r in rows if r.held_out), {}).by_gpu()
    assert [row[:2] for row in table.rows] == [("a100", 1), ("t4", 1)]
    assert table.rows[1][2:] == ("30.0%", "30.0%", "30.0%", "+30.0%")
