"""`benchmarks/stack_times.py`: published times of serving stacks' attention calls, beside predictions."""

from __future__ import annotations

import csv
import re
import tomllib
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from scripts import ROOT, load_script

FORMS = tomllib.loads((ROOT / "iosim/evidence/published/forms.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def times() -> ModuleType:
    return load_script(Path("benchmarks/stack_times.py"))


def test_half_of_each_cell_is_held_out(times: ModuleType) -> None:
    halves = {held: times.rows(held) for held in (False, True)}
    counts = {
        held: Counter(tuple(row[name] for name in times.CELL) for row in rows)
        for held, rows in halves.items()
    }
    assert set(counts[False]) >= set(counts[True])
    assert all(
        0 <= n - counts[True][cell] <= 1 and n <= times.DRAWN / 2
        for cell, n in counts[False].items()
    )
    every = [
        tuple(row[name] for name in times.COLUMNS[:-1]) for rows in halves.values() for row in rows
    ]
    assert len(every) == len(set(every)) > 4000
    assert {row["gpu"] for row in halves[True]} == set(times.GPUS)
    assert not any(row.missing for row in halves[True])


def test_a_draw_is_by_shape_and_counts_what_it_leaves_out(
    times: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 70 rows of a cell 60, whatever their order and times; of a kernel that the catalog lacks none."""
    names = [name for name in times.COLUMNS if name != "table"]
    rows = [
        (
            "l40s",
            "vllm",
            "1",
            "vllm_flash_attn_fa2",
            "bfloat16",
            "bfloat16",
            str(n),
            "16",
            "0",
            "8",
            "8",
            "64",
            "0",
            str(n),
        )
        for n in range(1, 71)
    ]
    lacking = ("l40s", "sglang", "1", "triton", *rows[0][4:])
    (tmp_path / "drawn.csv").touch()
    (tmp_path / "left.csv").write_text("file,gpu,reason,rows\n")
    paths = {times.TABLE: tmp_path / "drawn.csv", times.LEFT_OUT: tmp_path / "left.csv"}
    monkeypatch.setattr(times, "measurements", paths.get)

    def drawn(which: list[tuple[str, ...]]) -> list[str]:
        for table, file_name in times.TABLES.items():
            with open(tmp_path / file_name, "w", newline="") as file:
                csv.writer(file).writerows([names, *(which if table == "context" else [])])
        times.draw(tmp_path)
        with open(tmp_path / "drawn.csv", newline="") as file:
            return [row["batch"] for row in csv.DictReader(file)]

    first = drawn([*rows, lacking])
    assert len(first) == 60
    assert drawn([(*row[:-1], "9.9") for row in reversed(rows)] + [lacking]) == first
    splitline = (tmp_path / "left.csv").read_text().splitlines()[1:]
    assert splitline == ['aic_attention_context.csv,l40s,"sglang, triton: not in the catalog",1']


def test_no_time_reaches_its_prediction(times: ModuleType) -> None:
    for row in times.rows()[::500]:
        other = times.Row(row.values | {"latency_ms": "1.0"}, row.held_out)
        assert other.predicted_s() == row.predicted_s()


def test_replays_begin_at_turns_on_blackwell(times: ModuleType) -> None:
    """What lies between two turns is measured as the later one; calls elsewhere are as long as they are."""
    for row in times.rows()[::40]:
        if (
            (seconds := times._error(row))
            and not isinstance(seconds, str)
            and row["gpu"] in (*times.GRACE, "b200_sxm")
        ):
            turns = (
                row.predicted_s() - times.ALONE_S / times.REPLAYS[row["framework"]]
            ) / times.TURN_S
            assert turns == pytest.approx(round(turns), abs=1e-6)


def test_long_loads_run_at_the_sustained_clock(times: ModuleType) -> None:
    """Of an L40S: slower in the mean of its replays than one call is."""
    longest = max(
        (row for row in times.rows() if row["gpu"] == "l40s"), key=lambda row: row.measured_s
    )
    assert longest.predicted_s() > 1.1 * longest._seconds("boost")
    shortest = min(
        (row for row in times.rows() if row["gpu"] == "l40s"), key=lambda row: row.measured_s
    )
    assert shortest.predicted_s() == shortest._seconds("boost")


def test_some_of_the_rows_that_nothing_was_fitted_on(times: ModuleType) -> None:
    """Every thirtieth held-out row: half of them within 9.5 %; of every kernel that is refused none."""
    errors = [times._error(row) for row in times.rows()[::30]]
    sizes = sorted(abs(error) for error in errors if not isinstance(error, str))
    assert len(sizes) > 60
    assert sizes[len(sizes) // 2] < 0.095


def test_the_command_that_takes_these_tables_names_the_same_kernels(times: ModuleType) -> None:
    """`iosim validate --measurements` reads AIConfigurator's tables by forms.toml."""
    patterns = [
        pair
        for form in FORMS["form"]
        if form.get("kernel") == "framework kernel"
        for pair in form["kernels"].items()
    ]
    for (framework, kernel), (_, name, _) in times.KERNELS.items():
        matching = [of for pattern, of in patterns if re.search(pattern, f"{framework} {kernel}")]
        assert matching[:1] == [name], (framework, kernel)
