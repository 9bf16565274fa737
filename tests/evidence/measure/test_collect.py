"""`iosim measure`: the profiler's launches beside those made, runs that go on, the command and its errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from refusals import refused
from scripts import read_provenance

from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.evidence.cuda import compiler, driver, ncu
from iosim.evidence.cuda.launch import Order, Shape
from iosim.evidence.cuda.ncu import Profiled, parse_query, parse_raw, refusal
from iosim.evidence.cuda.spec import FwdSpec
from iosim.evidence.measure import collect, library_case, run, table
from iosim.evidence.measure.case import Case
from iosim.evidence.measure.table import COLUMNS, read_table

SMALL = Case(FwdSpec(64, 64, 64, 4, 2), Shape(1, 8, 8, 512, 512, 64))


SPLIT = Case(FwdSpec(64, 64, 64, 4, 2, split=True), Shape(1, 8, 8, 1, 4096, 64), Order(splits=4))


def made_of(*cases: Case) -> dict[int, list[dict[str, str]]]:
    """By call, the launches that a runner makes."""
    names = {"flash_fwd": ["flash_fwd", "flash_combine"], "minimal": ["minimal_fwd"]}
    return {
        call: [
            {"kernel": names[case.implementation][n - 1], "grid": f"({call}, 1, {n})"}
            for n in range(1, case.launches + 1)
        ]
        for call, case in enumerate(cases, start=1)
    }


def profiled(launches_by_call: Mapping[int, list[dict[str, str]]]) -> dict[int, list[Profiled]]:
    metrics = {"dram__bytes_read.sum": 4096.0, "gpu__time_duration.sum": 1.5e-5}
    return {
        call: [
            Profiled(row["kernel"], (call, 1, n), (128, 1, 1), metrics)
            for n, row in enumerate(launches, start=1)
        ]
        for call, launches in launches_by_call.items()
    }


def joined(*cases: Case, **counted: Any) -> tuple[list[dict[str, str]], list[str]]:
    launches_by_call = made_of(*cases)
    return collect.join(
        dict(enumerate(cases, start=1)),
        launches_by_call,
        counted.get("counted", profiled(launches_by_call)),
    )


def test_launches_meet_their_counters() -> None:
    rows, lost = joined(SMALL, SPLIT)
    assert lost == []
    assert [(r["call"], r["launch"], r["block"]) for r in rows] == [
        ("1", "1", "(128, 1, 1)"),
        ("2", "1", "(128, 1, 1)"),
        ("2", "2", "(128, 1, 1)"),
    ]
    assert {r["hbm_read"] for r in rows} == {"4096"}
    assert {r["seconds"] for r in rows} == {"1.5e-05"}
    assert {r["l2_fabric"] for r in rows} == {""}  # a counter that the report lacks stays empty


def test_a_report_that_breaks_off_loses_whole_calls() -> None:
    profiled_calls = profiled(made_of(SMALL, SPLIT, SMALL))
    profiled_calls = {
        1: profiled_calls[1],
        2: profiled_calls[2][:1],
    }  # ends between the two launches of call 2
    rows, lost = joined(SMALL, SPLIT, SMALL, counted=profiled_calls)
    assert [r["call"] for r in rows] == ["1"]
    assert lost == ["the report has 2 of 4 launches; calls 2, 3 are left out"]


def test_another_launch_than_was_made_stops_the_run() -> None:
    profiled_calls = profiled(made_of(SMALL, SPLIT))
    with pytest.raises(InputError, match=r"launch flash_fwd \(1, 1, 1\) meets other"):
        joined(
            SMALL,
            SPLIT,
            counted=profiled_calls | {1: [replace(profiled_calls[1][0], kernel="other")]},
        )
    with pytest.raises(InputError, match=r"meets flash_fwd \(7, 1, 1\)"):
        joined(
            SMALL,
            SPLIT,
            counted=profiled_calls | {1: [replace(profiled_calls[1][0], grid=(7, 1, 1))]},
        )


def test_a_launch_in_no_call_s_range_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    stray = Profiled("k", (1, 1, 1), (32, 1, 1), {}, ("another range",))
    monkeypatch.setattr(collect, "parse_raw", lambda page: ([stray], []))
    with pytest.raises(InputError, match="launch k lies in no range"):
        collect.Run([], "", "a page").launches()


class FakeProfiler:
    """Stands in for ncu: makes the launches that it is asked for, wrong calls left out, and a report of them."""

    def __init__(self, wrong: str = "", stop_after: int = 99) -> None:
        self.wrong, self.stop_after, self.runs, self.text = wrong, stop_after, 0, ""

    def run(self, options: list[str], command: list[str]) -> str:
        if self.runs == self.stop_after:
            raise KeyboardInterrupt
        self.runs += 1
        plan_file = Path(command[-2])
        launched = Path(command[-1])
        header = '"ID","Kernel Name","Grid Size","Block Size","thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type"'
        lines, page = [], [header + ',"dram__bytes_read.sum"', '"","","","","","Mbyte"']
        for call in json.loads(plan_file.read_text())["calls"]:
            case = Case.from_dict(call["case"])
            if case.note == self.wrong != "":
                lines.append(
                    {"call": call["call"], "left_out": "wrong against float64: {'o': 1.0}"}
                )
                continue
            launches = [
                {"kernel": f"k{n}", "grid": "(8, 1, 1)"} for n in range(1, case.launches + 1)
            ]
            lines.append({"call": call["call"], "launches": launches})
            around = f"iosim call {call['call']}"
            page += [
                f'"0","{launch["kernel"]}","(8, 1, 1)","(128, 1, 1)","{around}","{call["call"]}.5"'
                for launch in launches
            ]
        launched.write_text("".join(json.dumps(line) + "\n" for line in lines))
        Path(options[-1]).with_suffix(".ncu-rep").write_text("a report")
        self.text = "\n".join(page) + "\n"
        return ""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeProfiler:
    profiler = FakeProfiler()
    monkeypatch.setattr(
        collect, "run_profiler", lambda options, command: profiler.run(options, command)
    )
    monkeypatch.setattr(collect, "import_report", lambda path: profiler.text)
    monkeypatch.setattr(collect, "profiler_options", lambda warm: [])
    monkeypatch.setattr(collect, "prebuild", lambda specs, cc: None)
    monkeypatch.setattr(table, "facts", lambda: {"gpu": "a GPU"})
    monkeypatch.setattr(collect, "profiler_version", lambda: "1")
    monkeypatch.setattr(collect, "PORTION", 2)
    return profiler


def test_an_interrupted_run_keeps_what_it_has_and_goes_on(
    fake: FakeProfiler, tmp_path: Path
) -> None:
    out = tmp_path / "rows.csv"
    cases = [SMALL, SPLIT, replace(SMALL, note="a"), replace(SMALL, note="b"), SPLIT]
    fake.stop_after = 1
    with pytest.raises(KeyboardInterrupt):
        collect.collect(out, cases, "9.0")
    assert [r["call"] for r in read_table(out, COLUMNS)] == ["1", "2", "2"]
    fake.stop_after = 99
    done = collect.collect(out, cases, "9.0")
    assert (done.measured, done.left_out) == (3, [])
    rows = read_table(out, COLUMNS)
    assert [r["call"] for r in rows] == ["1", "2", "2", "3", "4", "5", "5"]
    assert [r["hbm_read"] for r in rows] == [f"{n}500000" for n in (1, 2, 2, 3, 4, 5, 5)]
    runs = fake.runs
    assert collect.collect(out, cases, "9.0").measured == 0
    assert fake.runs == runs  # nothing was left to do


def test_a_wrong_call_is_named_and_tried_again(fake: FakeProfiler, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    cases = [SMALL, replace(SMALL, note="bad")]
    fake.wrong = "bad"
    done = collect.collect(out, cases, "9.0")
    assert done.measured == 1
    assert done.left_out == ["flash_fwd call 2: wrong against float64: {'o': 1.0}"]
    fake.wrong = ""
    assert collect.collect(out, cases, "9.0").measured == 1
    assert len(read_table(out, COLUMNS)) == 2


def test_a_warm_start_is_noted(fake: FakeProfiler, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    collect.collect(out, [SMALL], "9.0", warm=True)
    collect.collect(out, [SMALL], "9.0")
    assert [r["note"] for r in read_table(out, COLUMNS)] == ["warm L2", ""]
    provenance = read_provenance(out)
    assert provenance["l2_start"].startswith("cold")
    assert provenance["largest_relative_error"] == collect.TOLERANCE


def test_calls_of_a_library_go_on_where_they_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What PyTorch refuses is a row with its reason; a launch belongs to the call whose range it lies in."""
    cases = [library_case.LibraryCase("flash", 1, 8, 8, seq, seq, 64) for seq in (128, 256, 512)]
    plans: list[list[int]] = []

    def run(kind: str, plan: Any, options: list[str]) -> collect.Run:
        assert (kind, plan["profile"], plan["end"]) == ("library", True, None)
        plans.append([call["call"] for call in plan["calls"]])
        return collect.Run(
            [{"call": n} | ({"left_out": "no"} if n == 2 else {}) for n in plans[-1]], "", "a page"
        )

    def launches(page: str) -> tuple[list[Profiled], list[str]]:
        metrics = {"dram__bytes_read.sum": 4096.0}
        return [
            Profiled("void at::k<1>(int)", (n, 1, 1), (32, 1, 1), metrics, (f"iosim call {n}",))
            for n in plans[-1]
            if n != 2
        ], []

    for module, name, value in (
        (collect, "run_profiled", run),
        (collect, "parse_raw", launches),
        (table, "facts", lambda: {"gpu": "a GPU"}),
        (collect, "profiler_version", lambda: "1"),
        (collect, "profiler_options", lambda warm, columns: []),
    ):
        monkeypatch.setattr(module, name, value)
    out = tmp_path / "rows.csv"
    for count, measured in ((2, 1), (3, 1), (3, 0)):
        assert collect.collect_library(out, cases[:count]).measured == measured
    assert plans == [[1, 2], [3]]
    rows = read_table(out, collect.LIBRARY_COLUMNS)
    assert [(r["call"], r["kernel"], r["hbm_read"], r["left_out"]) for r in rows] == [
        ("1", "k<1>", "4096", ""),
        ("2", "", "", "no"),
        ("3", "k<1>", "4096", ""),
    ]
    assert read_provenance(out)["l2_start"] == collect.COLD


def test_a_time_that_ends_while_kernels_are_compiled_ends_no_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The profiled process begins no call then, and the profiler finds nothing to report."""
    now = [0.0]

    def run(kind: str, plan: Any, options: list[str] | None) -> collect.Run:
        now[0] += 0 if options else 120
        return collect.Run([], "No kernels were profiled", "")

    for module, name, value in (
        (collect, "run_profiled", run),
        (table, "facts", lambda: {"gpu": "a GPU"}),
        (collect, "profiler_version", lambda: "1"),
        (collect, "profiler_options", lambda warm, columns: []),
        (collect.time, "time", lambda: now[0]),
    ):
        monkeypatch.setattr(module, name, value)
    cases = [library_case.LibraryCase("flex", 1, 8, 8, 128, 128, 64)]
    assert collect.collect_library(tmp_path / "rows.csv", cases, minutes=1).measured == 0
    with pytest.raises(InputError, match="left no report"):
        collect.collect_library(tmp_path / "rows.csv", cases)


def test_a_runner_says_a_line_a_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also in the process of its own, where a driver is missing: what it printed is the reason."""
    plan, done = tmp_path / "plan.json", tmp_path / "done.jsonl"
    plan.write_text("[1, 2]")
    monkeypatch.setattr(
        "iosim.evidence.cuda.microbench.play", lambda plan: ({"made": n} for n in plan)
    )
    monkeypatch.setattr("sys.argv", ["run", "scans", str(plan), str(done)])
    assert run.main() == 0
    assert [json.loads(line) for line in done.read_text().splitlines()] == [
        {"made": 1},
        {"made": 2},
    ]


def test_what_fails_of_a_call_is_its_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind's own failures leave a call out, others end the run; after the plan's end no call is begun."""
    pytest.importorskip("torch")
    from iosim.evidence.measure import torch_run

    def make(case: dict[str, int], call: int, *, rows: int) -> dict[str, int]:
        if case["fails"]:
            raise RuntimeError("out of memory\nat some line")
        return {"made": call * rows}

    calls = [{"call": n, "case": {"fails": int(n == 2)}} for n in (1, 2, 3)]
    monkeypatch.setitem(torch_run.KINDS, "own", (make, torch_run.REFUSED))
    lines = list(torch_run.run_in_torch("own", calls, rows=10))
    assert lines == [
        {"call": 1, "made": 10},
        {"call": 2, "left_out": "out of memory"},
        {"call": 3, "made": 30},
    ]
    assert list(torch_run.run_in_torch("own", calls, end=0.0, rows=10)) == []
    monkeypatch.setitem(torch_run.KINDS, "own", (make, ()))
    with pytest.raises(RuntimeError):
        list(torch_run.run_in_torch("own", calls, rows=10))


def test_a_process_without_a_driver_says_so() -> None:
    try:
        driver.use_device()
    except InputError:
        result = collect.run_profiled(
            "scans", [{"kernel": "micro_fill", "bytes": 1, "passes": 1, "shared": False}], None
        )
        assert (result.lines, result.page) == ([], "")
        with pytest.raises(InputError, match=r"left no report of it: .*no (NVIDIA driver|GPU)"):
            result.report(" of it")


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission",
            "NVreg_RestrictProfilingToAdminUsers",
        ),
        ('==PROF== Profiling "flash_fwd": 0%....100% - 3 passes', None),
        ("", None),
    ],
)
def test_what_the_profiler_refuses_is_told_in_one_line(printed: str, message: str | None) -> None:
    reason = refusal(printed)
    assert (reason is None) == (message is None)
    assert message is None or (reason is not None and message in reason and "\n" not in reason)


def test_counters_that_a_gpu_lacks_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    query = (
        "Device NVIDIA T4 (TU104)\n-----\nMetric Name                Metric Type  Metric Unit\n"
        + "".join(
            f"{name}      Counter      byte     # of bytes\n"
            for name in ("dram__bytes_read", "gpu__time_duration", "l1tex__m_xbar2l1tex_read_bytes")
        )
    )
    have = parse_query(query)
    assert have is not None
    assert "dram__bytes_read" in have
    monkeypatch.setattr(collect, "available_metrics", lambda: have)
    options = collect.profiler_options(warm=False)
    metrics = options[options.index("--metrics") + 1].split(",")
    assert "dram__bytes_read.sum" in metrics
    assert "launch__registers_per_thread" in metrics  # of the launch: never listed, always there
    assert not any("ltcfabric" in name for name in metrics)
    assert options[options.index("--cache-control") + 1] == "all"
    assert parse_query("==ERROR== no device\n") is None


def test_cells_that_are_no_count_are_refused() -> None:
    page = '"ID","Kernel Name","Grid Size","Block Size","dram__bytes_read.sum"\n"","","","","byte"\n"0","k","(1, 1, 1)"'
    for cell in ("soon", "-1", "nan", "inf"):
        with pytest.raises(InputError, match=r"dram__bytes_read\.sum"):
            parse_raw(f'{page},"(1, 1, 1)","{cell}"\n')
    with pytest.raises(InputError, match="not three numbers"):
        parse_raw(f'{page},"128","1"\n')


def complains(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    return refused(capsys, ["measure", *argv])


def test_dry_run_lists_the_calls(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "--kernel",
        "flash_fwd",
        "--seq-len",
        "4096",
        "--heads",
        "8",
        "--tile",
        "128x64",
        "--order",
        "head",
    ]
    assert main(["measure", *argv, "--cc", "9.0", "--dry-run"]) == 0
    out = capsys.readouterr().out
    row = "flash_fwd 1 8 8 4096 4096 128 0 float16 128 64 4 2 head 0 0 ascending 0 1"
    assert " ".join(out.splitlines()[1].split()) == row
    assert out.splitlines()[-1] == "1 call, 1 row, 1 build for cc 9.0"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--plan", "slow"], "--plan 'slow' is not known; accepted: quick, full"),
        (["--plan", "quick", "--seq-len", "512"], "--seq-len contradicts --plan"),
        (["--kernel", "cudnn"], "--kernel 'cudnn' is not measured here"),
        (["--head-dim", "80"], "--head-dim 80"),
        (["--tile", "100x64"], "tile 100x64"),
        (["--tile", "256x256"], "shared memory"),
        (["--order", "batch"], "order batch"),
        (["--direction", "up"], "direction up"),
        (["--kernel", "minimal", "--seq-len", "100"], "multiple of 32"),
        (["--kernel", "minimal", "--causal"], "without a mask"),
        (["--kernel", "minimal", "--dtype", "fp16"], "minimal is fp32"),
        (["--kernel", "naive", "--window", "8"], "--window 8"),
        (["--causal", "--window", "8"], "--causal contradicts"),
        (["--kv-heads", "3"], "kv_heads 3"),
        (["--seq-len", "x"], "--seq-len"),
        (["--dtype", "fp8"], "dtype fp8"),
        (["--cc", "six"], "compute capability 'six'"),
        (["--splits", "0"], "splits 0"),
    ],
)
def test_bad_options(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in complains(capsys, "--dry-run", *argv)


def test_what_is_missing_on_the_machine_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    argv = ["--seq-len", "512", "-o", str(tmp_path / "rows.csv")]

    def absent(message: str) -> Any:
        def call(*args: object) -> Any:
            raise InputError(message)

        return call

    import iosim.evidence.measure.machine as machine

    monkeypatch.setattr(machine, "find_nvcc", absent("no CUDA compiler: nvcc is nowhere"))
    assert "no CUDA compiler" in complains(capsys, *argv)
    monkeypatch.setattr(machine, "find_nvcc", lambda: Path("nvcc"))
    monkeypatch.setattr(driver, "use_device", absent("no NVIDIA driver: libcuda.so.1 is not found"))
    assert "no NVIDIA driver" in complains(capsys, *argv)
    monkeypatch.setattr(driver, "use_device", lambda: None)
    monkeypatch.setattr(machine, "find_ncu", absent("no profiler: ncu is nowhere"))
    assert "no profiler" in complains(capsys, *argv)
    monkeypatch.setattr(machine, "find_ncu", lambda: Path("ncu"))
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert "no PyTorch" in complains(capsys, *argv)
    assert not (tmp_path / "rows.csv").exists()
    assert "--cc 9.0 is for --dry-run" in complains(capsys, "--cc", "9.0", *argv)


def test_the_real_errors_of_a_machine_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("NVCC", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if not Path("/usr/local/cuda/bin/nvcc").exists():
        with pytest.raises(InputError, match="no CUDA compiler"):
            compiler.find_nvcc()
    if not Path("/usr/local/cuda/bin/ncu").exists():
        with pytest.raises(InputError, match="no profiler"):
            ncu.find_ncu()


@pytest.mark.parametrize("rows", [[], [{"call": "1"}]])
def test_a_listing_without_rows_leaves_no_file(rows: list[dict[str, str]]) -> None:
    saved = []
    listing: Any = SimpleNamespace(rows=rows, add=rows.extend, save=lambda: saved.append(len(rows)))
    collect._list_launches({}, {}, listing, [])
    assert saved == ([1] if rows else [])
