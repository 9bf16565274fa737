"""Whole chains under the profiler: the report of a range, the plan, the tables, what fails, what validate makes of it.

The profiler is faked: its pages stand here as ncu prints them, and a fake check says which calls are right.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from scripts import measurements, read_provenance

from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.evidence.columns import COUNTED, METRICS
from iosim.evidence.cuda.ncu import Profiled, parse_range
from iosim.evidence.measure import chain_case, collect, table
from iosim.evidence.measure.chain_case import COLUMNS, OWN, ChainCase, planned, unlisted
from iosim.evidence.measure.table import COLUMNS as LAUNCH_COLUMNS
from iosim.evidence.measure.table import missing, read_table
from iosim.evidence.validate import compare, read
from iosim.hardware.profile import load_profile

RANGE_HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",'
    '"Block Size","Grid Size","Device","CC"'
)
COUNTERS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "gpu__time_duration.sum",
    "l1tex__m_l1tex2xbar_write_bytes.sum",
    "l1tex__m_xbar2l1tex_read_bytes.sum",
)
WANTED = collect.RANGE_COUNTED
SMALL = ChainCase("naive", 1, 8, 512, 64)
OURS = ChainCase(OWN, 1, 8, 512, 64)


def page(
    *values: Sequence[str],
    units: Sequence[str] = ("byte", "byte", "ns", "byte", "byte"),
    preface: str = "",
) -> str:
    """A raw page: counters are in the order of COUNTERS."""
    names = ",".join(f'"{name}"' for name in COUNTERS)
    unit_row = ",".join(['""'] * 11 + [f'"{unit}"' for unit in units])
    rows = [
        ",".join(
            [
                f'"{n}"',
                '"41"',
                '"python3.12"',
                '"127.0.0.1"',
                '"range"',
                '"1"',
                '"7"',
                '""',
                '""',
                '"0"',
                '"9.0"',
            ]
            + [f'"{value}"' for value in row]
        )
        for n, row in enumerate(values)
    ]
    return "\n".join([preface + RANGE_HEADER + "," + names, unit_row, *rows]) + "\n"


# The report of a range


def test_a_range_is_read_by_name_and_unit() -> None:
    values = parse_range(
        page(("1635008", "0", "61,440", "9437184", "19922944"), preface="==PROF== done\n"), WANTED
    )
    assert values == {
        "hbm_read": 1635008,
        "hbm_write": 0,
        "l2_read": 19922944,
        "l2_write": 9437184,
        "seconds": pytest.approx(61.44e-6),
    }
    other = ("Mbyte", "byte", "us", "Mbyte", "Mbyte")
    scaled = parse_range(page(("1.635", "0", "61.44", "9.437", "19.9"), units=other), WANTED)
    assert scaled["hbm_read"] == pytest.approx(1.635e6)
    assert scaled["seconds"] == pytest.approx(61.44e-6)


def test_a_range_needs_no_kernel_columns() -> None:
    """Other versions of the profiler leave out what a range has not."""
    bare = '"ID","Range",' + ",".join(f'"{name}"' for name in COUNTERS)
    text = f'{bare}\n"","","byte","byte","s","byte","byte"\n"0","Range 1","1","2","3","4","5"\n'
    assert parse_range(text, WANTED) == {
        "hbm_read": 1,
        "hbm_write": 2,
        "seconds": 3,
        "l2_write": 4,
        "l2_read": 5,
    }


def test_rows_without_counters_are_no_ranges() -> None:
    text = page(("n/a", "n/a", "n/a", "n/a", "n/a"), ("1", "2", "3", "4", "5"))
    assert parse_range(text, WANTED)["hbm_read"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "==ERROR== nothing\n",
            "no table of launches; make it with --csv --page raw; it begins: ==ERROR== nothing",
        ),
        ("", "no table of launches"),
        (page(), "0 rows with dram__bytes_read.sum"),
        (
            page(("1", "2", "3", "4", "5"), ("1", "2", "3", "4", "5")),
            "2 rows with dram__bytes_read.sum",
        ),
        (
            page(("1", "2", "3", "4", "n/a")),
            "l1tex__m_xbar2l1tex_read_bytes.sum is 'n/a', no number",
        ),
        (
            page(("1", "2", "3", "4", "5")).replace("dram__bytes_write.sum", "x"),
            "lacks dram__bytes_write.sum; it has ID",
        ),
        (
            page(("1", "2", "3", "4", "5"), units=("byte", "byte", "fortnight", "byte", "byte")),
            "unit 'fortnight'",
        ),
        (page(("1", "2", "3", "4", "5")).replace('""', '"k"'), "no row of units"),
    ],
)
def test_what_is_no_range_is_said(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_range(text, WANTED)
    assert message in str(caught.value)


# Calls


def test_the_plan_has_every_chain_and_both_passes() -> None:
    plan = list(planned())
    assert len(plan) == len(set(plan)) == 24
    for case in plan:
        case.check()
        assert ChainCase(**json.loads(json.dumps(case.to_dict()))) == case
    assert {case.chain for case in plan} == set(chain_case.CHAINS)
    assert {case.seq for case in plan if case.head_dim == 64} == {512, 1024, 2048, 4096}
    assert {case.passes for case in plan} == {"fwd", "fwd+bwd"}


def test_columns_begin_as_the_recorded_table_does() -> None:
    with measurements("h200_chains.csv").open(newline="") as file:
        header = next(csv.reader(file))
    assert list(COLUMNS[: len(header)]) == header


def test_a_chain_is_told_by_what_is_run() -> None:
    other = ChainCase("naive", 1, 8, 512, 64, passes="fwd+bwd")
    rows = [SMALL.columns()]
    assert other.columns()["implementation"] == "naive_fwdbwd"
    assert missing([SMALL, other, SMALL], rows) == [other, SMALL]
    launch = chain_case.describe_launches(SMALL)
    assert launch["implementation"] == "eager"
    assert unlisted([SMALL, other, SMALL, other], [launch]) == [other]


# From calls to tables


class Fake:
    """Stands for the profiler: kernel pages for checks, range pages for ranges. `wrong` calls fail their check, and
    `broken` ranges leave no report."""

    def __init__(self) -> None:
        self.wrong: set[str] = set()
        self.broken: set[int] = set()
        self.refused: set[int] = set()
        self.runs: list[list[str]] = []
        self.checked: list[list[Profiled]] = []

    def run(self, options: Sequence[str], command: Sequence[str]) -> str:
        self.runs.append(list(options))
        plan = json.loads(Path(command[4]).read_text())
        report = Path(options[options.index("-o") + 1]).with_suffix(".ncu-rep")
        if command[3] == "chain":
            self.check(plan, Path(command[5]))
        elif plan["calls"][0]["case"]["seq"] in self.refused:
            raise InputError("the profiler may not read the GPU's counters")
        if command[3] == "chain" or plan["calls"][0]["case"]["seq"] not in self.broken:
            report.write_text(command[3])
        return "==PROF== faked"

    def check(self, plan: dict[str, Any], done: Path) -> None:
        lines, kernels = [], []
        for call in plan["calls"]:
            wrong = call["case"]["chain"] in self.wrong
            lines.append(
                {"call": call["call"]} | ({"left_out": "wrong against float64"} if wrong else {})
            )
            if call["call"] in plan["profile"] and not wrong:
                metrics = {METRICS["registers"][0]: 40.0}
                around = (f"iosim call {call['call']}",)
                kernels += [
                    Profiled(f"k{n}", (n, 8, 1), (128, 1, 1), metrics, around) for n in (1, 2)
                ]
        done.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.checked.append(kernels)

    def page(self, report: Path) -> str:
        return page(("1635000", "0", "61440", "9437000", "19923000"))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fake:
    profiler = Fake()
    monkeypatch.setattr(collect, "run_profiler", profiler.run)
    monkeypatch.setattr(
        collect,
        "run_group",
        lambda command, session: profiler.run(["-o", str(tmp_path / "plain")], command),
    )
    monkeypatch.setattr(collect, "import_report", profiler.page)
    monkeypatch.setattr(collect, "parse_raw", lambda text: (profiler.checked[-1], []))
    monkeypatch.setattr(collect, "prebuild", lambda specs, cc: None)
    monkeypatch.setattr(table, "facts", lambda: {"gpu": "fake"})
    monkeypatch.setattr(collect, "profiler_version", lambda: "0")
    monkeypatch.setattr(collect, "profiler_options", lambda warm: ["--cache-control", "all"])
    return profiler


def test_a_row_a_chain_and_a_row_a_launch(fake: Fake, tmp_path: Path) -> None:
    out, launches = tmp_path / "chains.csv", tmp_path / "launches.csv"
    rows = collect.collect_chains(
        out, [SMALL, OURS], "9.0", launches_out=launches, command="iosim measure x"
    )
    assert (rows.measured, rows.left_out) == (2, [])
    first, second = read_table(out, COLUMNS)
    assert (first["implementation"], second["implementation"]) == ("naive", OWN)
    assert [first[name] for name in (*COUNTED, "range_seconds", "launches")] == [
        "1635000",
        "0",
        "19923000",
        "9437000",
        "6.144e-05",
        "2",
    ]
    listed = read_table(launches, LAUNCH_COLUMNS)
    assert [
        (r["call"], r["launch"], r["implementation"], r["kernel"], r["grid"]) for r in listed
    ] == [
        ("1", "1", "eager", "k1", "(1, 8, 1)"),
        ("1", "2", "eager", "k2", "(2, 8, 1)"),
        ("2", "1", "naive", "k1", "(1, 8, 1)"),
        ("2", "2", "naive", "k2", "(2, 8, 1)"),
    ]
    assert {r["registers"] for r in listed} == {"40"}
    assert "app-range" in read_provenance(out)["profiler_command"]
    assert "app-range" not in read_provenance(launches)["profiler_command"]
    ranges = [options for options in fake.runs if "app-range" in options]
    assert len(ranges) == 2
    assert not any("--profile-from-start" in options for options in ranges)
    assert all(options[options.index("--cache-control") + 1] == "all" for options in ranges)


def test_what_a_table_holds_is_not_run_again(fake: Fake, tmp_path: Path) -> None:
    out, launches = tmp_path / "chains.csv", tmp_path / "launches.csv"
    collect.collect_chains(out, [SMALL], "9.0", launches_out=launches)
    runs = len(fake.runs)
    again = collect.collect_chains(out, [SMALL], "9.0", launches_out=launches)
    assert (again.measured, len(again.rows), len(fake.runs)) == (0, 1, runs)
    more = collect.collect_chains(out, [SMALL, OURS], "9.0", launches_out=launches)
    assert (more.measured, len(more.rows), len(read_table(launches, LAUNCH_COLUMNS))) == (1, 2, 4)
    assert len(fake.runs) == runs + 2  # one check, one range


def test_without_a_list_of_launches_the_check_runs_unprofiled(fake: Fake, tmp_path: Path) -> None:
    out = tmp_path / "chains.csv"
    rows = collect.collect_chains(out, [SMALL], "9.0")
    assert (rows.measured, rows.rows[0]["launches"]) == (1, "")
    assert len(fake.runs) == 2
    assert "--cache-control" not in fake.runs[0]
    assert fake.checked == [[]]


def test_a_wrong_call_is_left_out(fake: Fake, tmp_path: Path) -> None:
    fake.wrong = {"naive"}
    out = tmp_path / "chains.csv"
    launches = tmp_path / "launches.csv"
    rows = collect.collect_chains(out, [SMALL, OURS], "9.0", launches_out=launches)
    assert rows.left_out == ["naive 1 8 512 64 float16: wrong against float64"]
    assert [row["implementation"] for row in read_table(out, COLUMNS)] == [OWN]
    assert {row["implementation"] for row in read_table(launches, LAUNCH_COLUMNS)} == {"naive"}


def test_a_range_that_fails_is_told(fake: Fake, tmp_path: Path) -> None:
    """The first ends the run; a later one is left out. What the profiler said stands beside the table."""
    out = tmp_path / "chains.csv"
    fake.broken = {512}
    with pytest.raises(InputError, match="left no report of the range"):
        collect.collect_chains(out, [SMALL], "9.0", launches_out=tmp_path / "launches.csv")
    assert "==PROF== faked" in out.with_suffix(".failed.txt").read_text()
    larger = ChainCase("naive", 1, 8, 1024, 64)
    rows = collect.collect_chains(
        out, [larger, SMALL], "9.0", launches_out=tmp_path / "launches.csv"
    )
    assert rows.measured == 1
    assert len(rows.left_out) == 1
    assert rows.left_out[0].startswith("naive 1 8 512 64 float16: the profiler left no report")
    fake.broken, fake.refused = set(), {512}
    with pytest.raises(InputError, match="may not read"):
        collect.collect_chains(out, [SMALL], "9.0")
    rows = collect.collect_chains(out, [larger, larger, SMALL], "9.0")
    assert rows.left_out == [
        "naive 1 8 512 64 float16: the profiler may not read the GPU's counters"
    ]


# What runs


@pytest.mark.slow
def test_every_chain_is_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from iosim.evidence.measure import harness, torch_run

    def inputs(case: Any, seed: int) -> dict[str, Any]:
        s = case.shape
        g = torch.Generator().manual_seed(seed)
        size = (s.batch, s.heads, s.seq_q, s.head_dim)
        return {
            n: torch.randn(size, generator=g).to(harness.TORCH_DTYPES[case.dtype]) for n in "qkv"
        }

    monkeypatch.setattr(torch_run, "inputs", inputs)
    monkeypatch.setattr(torch_run, "reference_rows", lambda case: torch.arange(case.shape.seq_q))
    if torch.cuda.is_available():
        pytest.skip("gradients() makes its rows on the GPU")
    for chain, passes in (
        ("naive", "fwd"),
        ("math", "fwd"),
        ("naive", "fwd+bwd"),
        ("math", "fwd+bwd"),
    ):
        case = ChainCase(chain, 2, 2, 65, 64, passes=passes)
        assert set(torch_run.errors(case, 1)) == (
            {"o"} if passes == "fwd" else {"o", "dq", "dk", "dv"}
        )
        torch_run.checked(case)
    monkeypatch.setattr(
        torch_run, "_attend", lambda chain, q, k, v: torch.softmax(q @ k.transpose(-1, -2), -1) @ v
    )
    with pytest.raises(InputError, match="wrong against float64"):
        torch_run.checked(SMALL)


# The command


def complains(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    return refused(capsys, ["measure", *argv])


def test_dry_run_lists_chains(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "measure",
                "--chain",
                "math",
                "--chain",
                OWN,
                "--seq-len",
                "1k",
                "--heads",
                "8",
                "--dry-run",
            ]
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["math", "1", "8", "1024", "128", "float16"]
    assert lines[-1] == "2 chains, a row each"
    assert main(["measure", "--plan", "chains", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "24 chains, a row each"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--chain", "fa4"],
            "--chain 'fa4' is not measured here; accepted: naive, math, flash, cudnn, iosim_naive",
        ),
        (["--chain", "naive", "--tile", "64x64"], "--tile is not for --chain"),
        (["--chain", "naive", "--causal"], "--causal is not for --chain"),
        (["--chain", "naive", "--pass", "bwd"], "--pass 'bwd'"),
        (["--chain", OWN, "--pass", "fwd+bwd"], "--pass fwd+bwd is not built for iosim_naive"),
        (["--chain", "flash", "--dtype", "fp32"], "--dtype fp32 is not built for flash"),
        (["--chain", "naive", "--head-dim", "80"], "--head-dim '80'"),
        (["--plan", "chains", "--plan", "quick"], "--plan chains is a table of its own"),
        (["--plan", "chains", "--seq-len", "512"], "--seq-len is not for --plan chains"),
        (["--launches", "x.csv"], "--launches is for whole chains"),
        (["--pass", "fwd+bwd"], "--pass is for whole chains"),
        (["--bypass-l1"], "--bypass-l1 is not built for flash_fwd"),
        (["--plan", "quick", "--bypass-l1"], "--bypass-l1 contradicts --plan"),
    ],
)
def test_bad_options(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in complains(capsys, "--dry-run", *argv)


def test_a_chain_needs_a_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--out is missing" in complains(capsys, "--chain", "naive")


# What validate makes of it


def test_the_own_chain_is_predicted(tmp_path: Path) -> None:
    """8 heads, 1,024 tokens, head_dim 64, fp16, tiles of 64: 16 x 16 tiles a head."""
    path = tmp_path / "chains.csv"
    values = ChainCase(OWN, 1, 8, 1024, 64).columns() | dict.fromkeys(COUNTED, "4000000")
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerow(values | {"range_seconds": "1e-3", "launches": "3"})
    comparison = compare(read(path), load_profile("h200"))
    assert not comparison.skipped
    predicted = {r.quantity: r.predicted for r in comparison.residuals}
    assert set(predicted) == {
        "hbm_read",
        "hbm_write",
        "l2_read",
        "l2_write",
    }  # the range's seconds are not compared
    tile = 64 * 64 * 2
    square = 8 * 1024 * 1024 * 2
    rows = 8 * 1024 * 64 * 2
    # scores: a tile of Q and of K for each of 8 x 256 CTAs; softmax: S; values: P, and V for each of 16 query blocks
    assert predicted["l2_read"] == 8 * 256 * 2 * tile + square + (square + 16 * rows)
    assert predicted["l2_write"] == 2 * square + rows  # S, P, O
    assert predicted["hbm_read"] < 2 * square  # S and P are read back from the L2
