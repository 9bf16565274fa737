"""`benchmarks/linear_times.py`: published times of gated delta rule and Kimi delta attention, beside predictions."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from scripts import load_script

from iosim.evidence.fitted import fitted


@pytest.fixture(scope="module")
def times() -> ModuleType:
    return load_script(Path("benchmarks/linear_times.py"))


def test_half_of_each_cell_is_judged_in_the_order_of_a_hash(times: ModuleType) -> None:
    rows = times.rows()
    assert len(rows) > 1400
    cells = Counter((row.cell, row.values["kernel"], row.judged) for row in rows)
    for (cell, kernel, judged), number in cells.items():
        assert number <= times.DRAWN / 2
        assert 0 <= cells[cell, kernel, False] - cells[cell, kernel, True] <= 2 or not judged, (
            cell,
            kernel,
        )
    shapes = [tuple(row.values[name] for name in times.COLUMNS[:-1]) for row in rows]
    assert len(set(shapes)) == len(shapes)
    assert {(row.values["framework"], row.values["kernel"]) for row in rows} == set(times.KERNELS)
    assert all(row.seconds > 0 for row in rows)


def test_the_draw_keeps_the_first_by_hash(times: ModuleType, tmp_path: Path) -> None:
    """Of 60 rows of a cell 40, whatever their order and times; other kernels and unknown GPUs none."""
    names = [name for name in times.COLUMNS if name != "table"]
    shape = ("b200_sxm", "sglang", "1", "chunk_gated_delta_rule", "context", "1")
    lines = [(*shape, str(n), "16", "32", str(n / 1000)) for n in range(1, 61)]
    lines += [
        ("rtx_pro_6000_server", *shape[1:], "5", "16", "32", "1.0"),
        (*shape[:3], "flashkda_fwd", *shape[4:], "5", "16", "32", "1.0"),
    ]

    def draw(rows: list[tuple[str, ...]]) -> list[str]:
        for table in ("gdn", "kda"):
            with open(tmp_path / f"aic_{table}.csv", "w", newline="") as file:
                csv.writer(file).writerows([names, *(rows if table == "gdn" else [])])
        return [row["seq_len"] for row in times.drawn(tmp_path)]

    first = draw(lines)
    assert len(first) == 40 == len(set(first))
    assert draw([(*line[:-1], "9.9") for line in reversed(lines)]) == first


def test_no_time_reaches_its_prediction(times: ModuleType) -> None:
    for row in times.rows()[::300]:
        other = times.Row(row.values | {"latency_ms": "1.0"}, row.judged)
        assert other.prediction().time_s == row.prediction().time_s


@pytest.mark.slow
def test_some_of_the_rows_that_nothing_was_fitted_on(times: ModuleType) -> None:
    """A tenth of the judged rows: half of them within 15 %."""
    errors = [
        abs(p.time_s / row.seconds - 1)
        for row, p in times.predicted([r for r in times.rows() if r.judged][::10])
    ]
    assert sorted(errors)[len(errors) // 2] < 0.15


def test_the_fitted_constants_are_listed() -> None:
    listed = {
        constant.name: constant.rows
        for constant in fitted()
        if "published_linear_attention" in constant.rows
    }
    assert set(listed) == {"PRODUCT_CYCLES"}


def test_medians_by_gpu(times: ModuleType) -> None:
    rows = [row for row in times.rows() if row.judged and row.values["gpu"] == "b200_sxm"]

    class Fake:
        time_s = 1.1

    text = times.section(
        [(times.Row(row.values | {"latency_ms": "1000"}, judged=True), Fake()) for row in rows]
    )
    (line,) = [line for line in text if line.startswith("| b200_sxm")]
    assert line.count("+10 %, 10 %, ") == 4
