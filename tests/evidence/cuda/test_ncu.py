"""The reader of profiler output: names and unit rows decide, positions do not; broken files are refused or noted."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path

import pytest

from iosim.base.errors import InputError
from iosim.evidence.columns import METRICS
from iosim.evidence.cuda.ncu import parse_raw, unit_scale

RAW = (Path(__file__).parent / "raw_page.csv").read_text()


def table() -> list[list[str]]:
    return list(csv.reader(io.StringIO(RAW[RAW.index('"ID"') :])))


def text(rows: list[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows(rows)
    return out.getvalue()


def test_recorded_page() -> None:
    launches, notes = parse_raw(RAW)
    assert notes == []
    assert [launch.grid[0] for launch in launches] == [32, 1024, 4096, 4096]
    second = launches[1]
    assert second.kernel == "flash_fwd"
    assert second.block == (128, 1, 1)
    assert second.column("hbm_read") == pytest.approx(0.102861e9)  # Gbyte
    assert second.column("hbm_write") == pytest.approx(23.515136e6)  # Mbyte, in the same row
    # 1024 CTAs of one 128-row Q tile and 4096 rows each of K and V, 256 bytes a row; the report rounds to 1 kB
    assert second.column("l2_read") == pytest.approx(1024 * (128 + 2 * 4096) * 256, abs=1000)
    assert second.column("l2_write") == 32 * 4096 * (
        128 * 2 + 4
    )  # the output and 4 bytes of LSE a row
    assert second.column("l2_slice_write") == 1_064_960 * 32
    assert second.column("seconds") == pytest.approx(0.6928e-3)
    assert second.column("sm_clock_hz") == pytest.approx(1.779110e9)
    assert second.column("smem_bytes") == pytest.approx(
        1024 + 128 + (128 + 4 * 64) * 128 * 2
    )  # driver, static, tiles
    assert launches[2].column("smem_wavefronts") == 2_930_704_185  # thousands separators


def test_order_of_columns_means_nothing() -> None:
    rows = table()
    order = list(range(1, len(table()[0])))
    random.Random(3).shuffle(order)
    shuffled = [[row[0], *(row[i] for i in order)] for row in rows]
    assert parse_raw(text(shuffled))[0] == parse_raw(RAW)[0]


def test_units_that_change_scale() -> None:
    rows = table()
    at = rows[0].index("dram__bytes_read.sum")
    rows[1][at] = "Mbyte"
    for row in rows[2:]:
        row[at] = f"{float(row[at]) * 1000:,.6f}"
    changed = parse_raw(text(rows))[0]
    for first, other in zip(changed, parse_raw(RAW)[0], strict=True):
        assert first.column("hbm_read") == pytest.approx(other.column("hbm_read"))
    rows[1][at] = "byte"
    assert parse_raw(text(rows))[0][0].column("hbm_read") == pytest.approx(3.19)


def test_missing_metric_and_value_are_absent() -> None:
    rows = table()
    at = rows[0].index("dram__bytes_write.sum")
    without = [row[:at] + row[at + 1 :] for row in rows]
    assert {launch.column("hbm_write") for launch in parse_raw(text(without))[0]} == {None}
    rows[2][at] = "n/a"
    rows[3][at] = ""
    assert [launch.column("hbm_write") for launch in parse_raw(text(rows))[0]][:2] == [None, None]
    assert parse_raw(text(rows))[0][0].column("hbm_read") is not None


def test_truncated_file_keeps_whole_rows() -> None:
    launches, notes = parse_raw(RAW[: RAW.rindex(',"2.000000"')])
    assert len(launches) == 3
    assert notes == ["row 4 has 22 of 24 columns and is left out"]
    launches, notes = parse_raw(
        RAW[: RAW.rindex("031259")]
    )  # all columns, but the last number is cut: 61.
    assert len(launches) == 3
    assert notes == ["row 4 breaks off in its last column and is left out"]
    assert len(parse_raw(RAW.rstrip())[0]) == 4


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("", "no table of launches"),
        ("==ERROR== no kernels were profiled\n", "no table of launches"),
        (RAW[: RAW.index('"","","') - 1], "no row of units"),
        (RAW[: RAW.index('"Gbyte"')], "no row of units"),
        (RAW[: RAW.index('"Grid Size"')], "no column 'Grid Size'"),
        (RAW.replace('"Gbyte"', '"Gbit"'), "unit 'Gbit' is not known"),
    ],
)
def test_unreadable_files_are_refused(broken: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_raw(broken)


@pytest.mark.parametrize(
    ("unit", "scale"),
    [
        ("byte", 1),
        ("Kbyte", 1e3),
        ("Mbyte", 1e6),
        ("Gbyte", 1e9),
        ("Tbyte", 1e12),
        ("Kbyte/block", 1e3),
        ("ns", 1e-9),
        ("us", 1e-6),
        ("ms", 1e-3),
        ("s", 1),
        ("nsecond", 1e-9),
        ("Ghz", 1e9),
        ("hz", 1),
        ("Mhz", 1e6),
        ("", 1),
        ("sector", 1),
        ("%", 1),
        ("register/thread", 1),
    ],
)
def test_unit_scales(unit: str, scale: float) -> None:
    assert unit_scale(unit) == pytest.approx(scale)


def test_every_column_has_its_own_metric() -> None:
    assert len({metric for metric, _ in METRICS.values()}) == len(METRICS)
