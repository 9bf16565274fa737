"""Which rows of tables become timed calls, what sets them apart, and on both sides of what gates and groups allow. No
call is predicted: rows and calls are of paper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iosim.catalog.libraries import resolve
from iosim.evidence.times import groups, tables
from iosim.evidence.times.groups import Errors, Group, Row, TimeGate, TimesReport, rows_of
from iosim.evidence.times.tables import SUSTAINED, WARM, Timed
from iosim.hardware.profile import load_profile
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem

ROW = {
    "call": "1",
    "implementation": "cudnn",
    "batch": "1",
    "heads": "8",
    "kv_heads": "8",
    "seq_q": "512",
    "seq_k": "512",
    "head_dim": "64",
    "causal": "0",
    "dtype": "bf16",
    "block_q": "128",
    "block_k": "64",
    "warps": "4",
    "stages": "2",
    "registers": "200",
    "smem_bytes": "50000",
    "seconds": "1.0",
    "ms": "3.0",
    "note": "",
}


def of_paper(monkeypatch: pytest.MonkeyPatch, *rows: dict[str, str]) -> list[tuple[Any, ...]]:
    """Tables hold these rows; gives what calls are made of."""
    made_of: list[tuple[Any, ...]] = []

    def called(problem: Any, kernel: str, gpu: Any, over: Any = None) -> Any:
        made_of.append((problem, kernel, over))
        return SimpleNamespace(counted="counted", problem=problem)

    monkeypatch.setattr(tables, "rows", lambda file: list(rows))
    monkeypatch.setattr(tables, "called", called)
    monkeypatch.setattr(tables, "flushed", lambda call: "flushed")
    monkeypatch.setattr(tables, "moved", lambda call: "moved")
    return made_of


@pytest.mark.parametrize(
    ("changes", "regime", "fits"),
    [
        ({}, "long", True),
        ({"seconds": "1e-9"}, "short", True),
        ({"seq_q": "1"}, "decode", False),
        ({"implementation": "cudnn_backward"}, "backward", False),
        ({"implementation": "pytorch_flash"}, "long, spills", False),
        ({"implementation": "pytorch_flash_backward"}, "backward, spills", False),
        ({"implementation": "triton_plain"}, "long", True),
        ({"implementation": "triton_plain", "block_q": "256"}, "long, spills", False),
        ({"implementation": "triton_plain", "block_q": "256", "warps": "8"}, "long", True),
        ({"implementation": "pytorch_mem_efficient"}, "long", True),
        ({"implementation": "pytorch_mem_efficient", "head_dim": "256"}, "long, spills", False),
        ({"implementation": "pytorch_mem_efficient", "dtype": "float32"}, "long, spills", False),
        ({"head_dim": "256", "dtype": "float32", "block_q": "256"}, "long", True),
    ],
)
def test_launches_of_libraries(
    changes: dict[str, str], regime: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flex = ROW | {"call": "2", "implementation": "pytorch_flex"}
    made_of = of_paper(monkeypatch, ROW | changes, flex)
    (case,) = tables.library_cases()
    assert (case.regime, case.fits, case.traffic) == (regime, fits, "flushed")
    ((problem, name, over),) = made_of
    assert name == (ROW | changes)["implementation"]
    assert problem.passes == ("bwd" if "backward" in name else "fwd")
    assert (over is not None) is (name == "triton_plain")


def test_launches_of_a_call_stand_together(monkeypatch: pytest.MonkeyPatch) -> None:
    of_paper(monkeypatch, ROW, ROW | {"seconds": "2.5"}, ROW | {"call": "2"})
    assert [(c.number, c.seconds) for c in tables.library_cases()] == [(1, (1.0, 2.5)), (2, (1.0,))]


OWN = ROW | {
    "implementation": "flash_fwd",
    "kernel": "flash_fwd",
    "splits": "1",
    "window": "",
    "persistent": "0",
    "order": "query",
    "heavy_first": "0",
    "section": "0",
    "direction": "ascending",
    "grid": "(32, 1, 1)",
    "spill_store_bytes": "0",
}


@pytest.mark.parametrize(
    ("changes", "regime", "fits"),
    [
        ({}, "long", True),
        ({"spill_store_bytes": ""}, "long", True),
        ({"spill_store_bytes": "8"}, "long, spills", False),
        ({"note": "sweep"}, "tile sweep", True),
        ({"note": "sweep", "seconds": "1e-9"}, "short", True),
        ({"seq_q": "15"}, "decode", True),
        ({"seq_q": "16"}, "long", True),
        ({"persistent": "1"}, "long", True),
    ],
)
def test_launches_of_iosims_own_kernel(
    changes: dict[str, str], regime: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = ({"kernel": "flash_combine"}, {"splits": "2"}, {"window": "7"})
    of_paper(monkeypatch, OWN | changes, *(OWN | other for other in others))
    (case,) = tables.own_cases()
    assert (case.regime, case.fits) == (regime, fits)
    persistent = 32 if changes.get("persistent") else None
    assert case.call.kernel.persistent_ctas == persistent


@pytest.mark.parametrize(("causal", "order"), [("0", "query"), ("1", "head")])
def test_calls_that_were_not_profiled(
    causal: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("flash_fwd", "cudnn", "pytorch_flash", "pytorch_mem_efficient", "naive")
    made_of = of_paper(
        monkeypatch, *(ROW | {"implementation": name, "causal": causal} for name in names)
    )
    cases = [(c.name, c.regime, c.number, c.seconds) for c in tables.call_cases()]
    assert cases == [
        ("iosim flash_fwd", "call, not profiled", 1, (0.003,)),
        ("cudnn", "call, not profiled", 2, (0.003,)),
        ("pytorch_flash", "call, not profiled, spills", 3, (0.003,)),
        ("pytorch_mem_efficient", "call, not profiled", 4, (0.003,)),
    ]
    first_over, *others = (over for _, _, over in made_of)
    assert others == [None] * 3
    assert (first_over.tile, first_over.warps, first_over.stages, first_over.registers) == (
        (128, 64),
        4,
        2,
        255,
    )
    assert (first_over.order, first_over.heavy_first) == (order, causal == "1")


def test_tiles_that_were_not_built_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tile = {"BM": "128.0", "BN": "64.0", "warps": "4.0", "stages": "2.0", "regs": "99.0"}
    tile |= {"smem": "1000.0", "spills": "0.0", "ms": "2.0"}
    made_of = of_paper(monkeypatch, tile, tile | {"BM": ""}, tile | {"spills": "3.0"})
    cases = [(c.regime, c.number, c.seconds) for c in tables.triton_cases()]
    assert cases == [("warm", 1, (0.002,)), ("warm, spills", 3, (0.002,))]
    over = made_of[0][2]
    assert (over.tile, over.registers, over.shared_memory_bytes) == ((128, 64), 99, 1000)


@pytest.mark.parametrize(("spare", "method"), [(0, "of the chain"), (1, "capacity")])
def test_a_repeated_call_is_played_where_the_l2_may_hold_it(
    spare: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PLAYED", 2)
    monkeypatch.setattr(tables, "default_method", lambda chain: ("of the chain", "why"))
    tensors = {"Q": SimpleNamespace(bytes=60), "O": SimpleNamespace(bytes=140 + spare)}
    call: Any = SimpleNamespace(
        chain=SimpleNamespace(tensors=tensors), profile=SimpleNamespace(need=lambda name: 100)
    )
    assert tables.warm_method(call) == method


@pytest.mark.parametrize(("longer", "how"), [(0.0, WARM), (1e-9, SUSTAINED)])
def test_a_loop_of_long_calls_leaves_the_boost_clock(longer: float, how: Any) -> None:
    took = SimpleNamespace(total_s=tables.LONG_CALL_S + longer)
    call: Any = SimpleNamespace(time=lambda traffic, conditions: took)
    traffic: Any = None
    looped = tables.in_a_loop(call, traffic, "python")
    assert looped == tables.replace(how, launched="python")


def test_equal_shapes_are_played_once(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"file": "a file", "gpu": "h100", "kernel": "fa2", "l2_start": "warm", "phase": "prefill"}
    row |= {"seconds": "1.0", "source": "here"}
    shapes = [row, row | {"seconds": "2.0", "source": "there"}, row | {"l2_start": "cold"}]
    of_paper(monkeypatch, *shapes, row | {"file": "another"})
    played: list[str] = []

    def replayed(call: Any, start: str) -> Any:
        played.append(start)
        return start

    monkeypatch.setattr(tables, "problem_of", lambda r: None)
    monkeypatch.setattr(tables, "kernel_of", lambda r, problem: None)
    monkeypatch.setattr(tables, "load_profile", lambda name: name)
    monkeypatch.setattr(tables, "replayed", replayed)
    monkeypatch.setattr(tables.Call, "of", lambda *args: "call")
    cases = list(tables.published_cases(file="a file"))
    assert played == ["warm", "cold"]
    assert [(c.number, c.seconds, c.regime) for c in cases] == [
        (1, (1.0,), "prefill, warm"),
        (2, (2.0,), "prefill, warm"),
        (3, (1.0,), "prefill, cold"),
    ]
    assert list(tables.published_cases(file="a file", gpu_name="t4")) == []


# --- groups ---


def timed(error: float, *, target: float | None = 0.25, number: int = 2) -> Row:
    """A row whose prediction is so far off, of a group with a target."""
    group = Group(groups.KEYS[0], "a title", (), target=target)
    case: Any = SimpleNamespace(
        name="kernel",
        regime="long",
        number=number,
        call=SimpleNamespace(profile=SimpleNamespace(name="gpu")),
    )
    return Row(group, case, Timed("", 1 + error, 1.0))


@pytest.mark.parametrize(("error", "meets"), [(0.25, True), (0.375, False), (-0.25, True)])
def test_a_group_meets_its_target_up_to_it(
    error: float, meets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter is a whole number of binary digits: no rounding decides."""
    for target, wanted in ((0.25, meets), (None, None)):
        row = timed(error, target=target)
        monkeypatch.setattr(groups, "GROUPS", (row.group,))
        report = TimesReport((row,), {})
        (record,) = report.to_dict()["groups"]
        assert record["meets"] is wanted
        gate = TimeGate("all", "mean", 0.25)
        said_by_gate = None if meets else f"{row.group.key}: mean 37.5% is above 25.0%"
        assert gate.exceeded(report) == said_by_gate
    assert TimeGate("other", "mean", 0.25).exceeded(report) == "other: no row to hold against 0.25"


def test_groups_without_rows_have_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    row = timed(0.25)
    monkeypatch.setattr(groups, "GROUPS", (row.group, Group("empty", "no rows", ())))
    report = TimesReport((row,), {})
    assert [record["group"] for record in report.to_dict()["groups"]] == [row.group.key]
    assert len(report.table().rows) == 1
    fitted = report.to_dict()["fitted"]
    assert any(number["gpu"] is None for number in fitted)
    assert any(isinstance(number["gpu"], str) for number in fitted)
    assert all(number["gpu"] != "" for number in fitted)


def test_a_case_of_several_groups_is_predicted_once() -> None:
    """With another call in its place where one is given for it."""
    asked_for: list[Any] = []

    def times(call: Any = None) -> list[Timed]:
        asked_for.append(call)
        return [Timed("", 2.0, 1.0)]

    case: Any = SimpleNamespace(
        times=times,
        regime="long",
        number=1,
        call=SimpleNamespace(profile=SimpleNamespace(name="gpu")),
        conditions=SimpleNamespace(warm=False),
    )
    both = [(Group(key, "a title", ()), case) for key in ("one", "other")]
    assert len(rows_of(both)) == 2
    assert asked_for == [None]
    rows_of(both, {id(case): "changed"})
    rows_of(both, {0: "of another"})
    assert asked_for == [None, "changed", None]
    assert Errors.of([row.timed.error for row in rows_of(both)]) == Errors(
        2, 1.0, 1.0, 1.0, 1.0, 1.0
    )


def test_a_call_of_one_launch_of_a_chain() -> None:
    problem = AttentionProblem(heads=2, seq_q=128, head_dim=64)
    gpu = load_profile("h200")
    call = Call.of(problem, resolve("naive-cu", problem, gpu), gpu)
    names = [launch.name for launch in call.chain.launches]
    assert len(names) > 1
    for name in names:
        assert [launch.name for launch in tables.only(call, name).chain.launches] == [name]


def test_bytes_of_a_call_that_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the method that its chain takes, from the start that is asked for, beside what is counted."""
    asked_for: list[Any] = []

    def hbm_traffic(call: Any, method: str, l2_start: str, replays: Any) -> tuple[int, str]:
        asked_for.append((method, l2_start))
        return 100, "a note"

    monkeypatch.setattr(tables, "hbm_traffic", hbm_traffic)
    monkeypatch.setattr(tables, "default_method", lambda chain: (f"method of {chain}", "why"))
    call: Any = SimpleNamespace(counted=7, chain="a chain", capacity=lambda: 30)
    assert tables.replayed(call) == 107
    assert tables.replayed(call, "cold") == 107
    assert asked_for == [("method of a chain", "warm"), ("method of a chain", "cold")]
    assert tables.moved(call) == 37


def test_each_launch_of_a_flushed_call_reads_anew() -> None:
    problem = AttentionProblem(heads=2, seq_q=128, head_dim=64)
    gpu = load_profile("h200")
    call = Call.of(problem, resolve("naive-cu", problem, gpu), gpu)
    alone = [tables.only(call, launch.name) for launch in call.chain.launches]
    for way in ("read", "write"):
        flushed = tables.flushed(call).total("hbm", way)
        assert flushed == sum(launch.capacity().total("hbm", way) for launch in alone)
    # Scores that a launch wrote are read again by the next.
    assert tables.flushed(call).total("hbm", "read") > tables.moved(call).total("hbm", "read")


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"causal": "1", "heads": "4", "seq_q": "64"}, {"mask": "causal", "dtype": "bf16"}),
        ({"causal": "0", "heads": "4", "dtype": "fp16"}, {"mask": "none", "dtype": "fp16"}),
        ({"heads": "4", "kv_heads": "", "head_dim": "96"}, {"kv_heads": 4, "head_dim": 96}),
    ],
)
def test_problems_of_rows(row: dict[str, str], wanted: dict[str, Any]) -> None:
    problem = tables.asked(row, batch=3)
    assert {name: getattr(problem, name) for name in wanted} == wanted
    assert (problem.batch, problem.heads) == (3, 4)


def test_builds_of_rows() -> None:
    """The driver keeps 1 KiB of a CTA's shared memory."""
    over = tables.built(ROW, order="head")
    assert (over.tile, over.warps, over.stages, over.registers) == ((128, 64), 4, 2, 200)
    assert (over.shared_memory_bytes, over.order) == (50_000 - 1024, "head")


@pytest.mark.parametrize(
    ("every", "numbers"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4]), (3, [2, 5]), (9, [2])]
)
def test_every_n_th_row_from_the_second_on(
    every: int, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "rows", lambda file: [{"n": str(n)} for n in range(5)])
    assert [number for number, _ in tables.numbered("a table", every)] == numbers


@pytest.mark.parametrize(
    ("seconds", "length", "words"), [(29.9e-6, "short", ", under 30 us"), (30e-6, "long", "")]
)
def test_short_and_long_calls(seconds: float, length: str, words: str) -> None:
    assert tables.short_or_long(seconds) == length
    assert tables.under(seconds) == words
