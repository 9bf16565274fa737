"""`iosim validate --ncu` of CSVs of a row a metric, as `ncu --csv` writes them without `--page raw`: columns and names
of several versions, with and without a grid, several launches of one kernel."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from scripts import ROOT

from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.evidence.cuda.ncu import Profiled, parse_raw
from iosim.evidence.cuda.ncu_rows import parse
from iosim.evidence.validate.profile_rows import read_profile
from iosim.evidence.validate.recognise import Given

DATA = ROOT / "tests" / "data"
RAW = (DATA / "ncu_user.csv").read_text()
COLUMNS = (
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
    "Section Name",
    "Metric Name",
    "Metric Unit",
    "Metric Value",
)
OLD = (
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Kernel Time",
    "Context",
    "Stream",
    "Section Name",
    "Metric Name",
    "Metric Unit",
    "Metric Value",
)
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, 0, 0, cutlass::bfloat16_t, "
    "Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t>>, 0, 0, 0, 0, 1, 1, 0, 0>"
    "(pytorch_flash::Flash_fwd_params)"
)
READ, WRITE, TIME = "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"


def table(
    rows: Sequence[dict[str, str]], columns: Sequence[str] = COLUMNS, header: bool = True
) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, quoting=csv.QUOTE_ALL, extrasaction="ignore", restval="")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def metric(
    name: str, value: str, unit: str = "byte", launch: int = 0, **cells: str
) -> dict[str, str]:
    shared = {
        "ID": str(launch),
        "Process ID": "7",
        "Kernel Name": FLASH,
        "Block Size": "(128, 1, 1)",
        "Grid Size": "(32, 2, 16)",
        "Section Name": "Command line profiler metrics",
    }
    named = {"Metric Name": name, "Metric Unit": unit, "Metric Value": value}
    return {**shared, **named, **{key.replace("_", " "): cell for key, cell in cells.items()}}


def melted(text: str) -> str:
    """A raw page as rows of one metric each."""
    names, units, *rows = csv.reader(io.StringIO(text))
    cells = []
    for row in rows:
        launch = dict(zip(names, row, strict=True))
        for name, unit in zip(names, units, strict=True):
            if unit or "__" in name:
                cells.append(
                    {
                        **launch,
                        "Metric Name": name,
                        "Metric Unit": unit,
                        "Metric Value": launch[name],
                    }
                )
    return table(cells)


def test_as_many_launches_as_the_raw_page_has() -> None:
    assert parse(melted(RAW)) == parse_raw(RAW)
    assert parse(RAW) == parse_raw(RAW)


def test_validate_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        metric(READ, "103,344,640"),
        metric(WRITE, "30,978,304"),
        metric(TIME, "1,022,976", "ns"),
    ]
    path = tmp_path / "long.csv"
    path.write_text(table(rows))
    assert main(["validate", "--ncu", str(path), "--gpu", "h200", "--seq-len", "4096"]) == 0
    (error,) = re.findall(r"off by ([\d.]+) %", capsys.readouterr().out.split(" at ")[0])
    assert 0.5 < float(error) < 3


def test_without_a_grid_what_is_said_tells(tmp_path: Path) -> None:
    """Columns of 2020 to 2022 have the time of a launch in place of its sizes."""
    path = tmp_path / "old.csv"
    path.write_text(
        table([metric(READ, "103344640"), metric("dram__write_bytes.sum", "30.98", "Mbyte")], OLD)
    )
    bare = read_profile(path, Given(seqs=(4096,)))
    assert [u.reason for u in bare.unmatched] == ["needs --batch: the profile holds no grid"]
    (row,) = read_profile(path, Given(batch=2, heads=16, seqs=(4096,))).rows
    assert row.measured == {"hbm_read": 103344640, "hbm_write": 30980000}
    assert {name: row.facts[name] for name in ("batch", "heads", "seq_q", "grid", "block")} == {
        "batch": "2",
        "heads": "16",
        "seq_q": "4096",
        "grid": "",
        "block": "",
    }
    two = read_profile(path, Given(batch=2, heads=16, seqs=(4096, 2048)))
    assert "more than one of --seq-len 4096, 2048 fits the build" in two.unmatched[0].reason


def test_sizes_by_metrics() -> None:
    rows = [
        metric(f"launch__grid_dim_{axis}", n, "")
        for axis, n in zip("xyz", ("32", "2", "16"), strict=True)
    ]
    (launch,), notes = parse(
        table([*rows, metric("Block Size", "128", ""), metric(READ, "1")], OLD)
    )
    assert (launch.grid, launch.block, notes) == ((32, 2, 16), (128, 1, 1), [])


def launches(
    rows: Sequence[dict[str, str]], columns: Sequence[str] = COLUMNS
) -> list[dict[str, float]]:
    return [launch.metrics for launch in parse(table(rows, columns))[0]]


def test_two_iterations_of_one_kernel() -> None:
    first, second = (
        [metric(READ, n, launch=i), metric(WRITE, "5", launch=i)]
        for i, n in enumerate(("10", "20"))
    )
    wanted = [{READ: 10.0, WRITE: 5.0}, {READ: 20.0, WRITE: 5.0}]
    assert launches([*first, *second]) == wanted
    assert launches([first[0], second[0], first[1], second[1]]) == wanted  # rows of a launch apart
    for dropped in ("ID", "Process ID"):
        columns = [name for name in COLUMNS if name != dropped]
        assert launches([*first, *second], columns) == wanted


def test_two_passes_in_one_file() -> None:
    """Another process numbers its launches from 0 on; so does another run of the same one, behind a second header."""
    first, other = ([metric(READ, n), metric(WRITE, "5")] for n in ("10", "20"))
    apart = [{**row, "Process ID": "8"} for row in other]
    assert [m[READ] for m in launches([*first, *apart])] == [10, 20]
    assert [m[READ] for m in launches([*first, *other])] == [10, 20]
    text = table(first) + table([metric(TIME, "9", "us")])
    assert [launch.metrics for launch in parse(text)[0]] == [
        {READ: 10, WRITE: 5},
        {TIME: pytest.approx(9e-6)},
    ]


@pytest.mark.parametrize(
    ("name", "value", "unit", "wanted"),
    [
        ("dram__read_bytes.sum", "1,000", "Kbyte", {READ: 1e6}),
        ("dram__sectors_read.sum", "1,000", "sector", {READ: 32000}),
        ("dram_read_bytes", "1000", "byte", {READ: 1000}),
        ("dram_write_transactions", "10", "", {WRITE: 320}),
        (
            "l1tex__m_xbar2l1tex_read_sectors.sum",
            "3",
            "sector",
            {"l1tex__m_xbar2l1tex_read_bytes.sum": 96},
        ),
        ("Duration", "1.02", "msecond", {TIME: pytest.approx(1.02e-3)}),
        ("gpu__time_duration.avg", "5", "usecond", {TIME: pytest.approx(5e-6)}),
        ("Registers Per Thread", "255", "register/thread", {"launch__registers_per_thread": 255}),
        (READ, "n/a", "", {}),
        ("lts__t_sector_hit_rate.pct", "9,00", "%", {}),
    ],
)
def test_names_and_units_of_versions(
    name: str, value: str, unit: str, wanted: dict[str, float]
) -> None:
    assert launches([metric(name, value, unit)]) == [wanted]


def test_a_metrics_own_name_goes_before_another() -> None:
    rows = [
        metric("dram__sectors_read.sum", "9", "sector"),
        metric(READ, "300"),
        metric("dram_read_bytes", "7"),
    ]
    assert launches(rows) == [{READ: 300}]
    shared = [
        metric(f"{who} Shared Memory Per Block", n, "Kbyte/block")
        for who, n in (("Driver", "1.02"), ("Dynamic", "65"), ("Static", "0"))
    ]
    assert launches([metric(READ, "1"), *shared]) == [
        {READ: 1, "launch__shared_mem_per_block": pytest.approx(66020)}
    ]


def test_what_stands_around_and_between_the_rows() -> None:
    """Lines of the profiler, of its rules and of the program; blanks behind commas; a last row that breaks off."""
    text = "==PROF== Connected to process 7\nloss, 0.5\n" + table(
        [metric(READ, "1"), metric("", "")]
    )
    spaced = text.replace('","', '", "') + "==PROF== Disconnected from process 7\n"
    assert [launch.metrics for launch in parse(spaced)[0]] == [{READ: 1}]
    launches_parsed, notes = parse(text + '"1","7","python"\n')
    assert ([launch.metrics for launch in launches_parsed], notes) == (
        [{READ: 1}],
        ["row 4 breaks off and is left out"],
    )
    details = parse((DATA / "ncu_details.csv").read_text())[0]
    assert details[0].metrics[READ] == pytest.approx(103.34e6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (table([metric(READ, "9,00")]), "'9,00' is no count"),
        (table([metric(READ, "1", "Mbit")]), "unit 'Mbit'"),
        (
            table([metric(READ, "1")], [c for c in COLUMNS if c != "Kernel Name"]),
            "no column 'Kernel Name'",
        ),
        (table([metric(READ, "1", Grid_Size="(1, 2)")]), "is not three numbers"),
        ('"ID","Kernel Name","Metric Name","Average"\n', "no row of units|no column|no table"),
    ],
)
def test_bad_input(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse(text)


def test_a_launch_knows_no_sizes() -> None:
    assert parse(table([metric(READ, "1")], OLD))[0] == [Profiled(FLASH, None, None, {READ: 1.0})]
