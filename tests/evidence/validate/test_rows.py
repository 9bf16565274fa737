"""Tables of measured rows: files that are none, missing columns, wrong values."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused
from validated import LIBRARY, table, write

from iosim.evidence.validate.rows import LAUNCH_COLUMNS, NEEDED


def refused_table(capsys: pytest.CaptureFixture[str], path: str) -> str:
    return refused(capsys, ["validate", "--measurements", path])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "lacks the columns"),
        (b"call,launch\n1,1\n", "lacks the columns implementation"),
        (b"\x7fELF\x00\x01\xff\xfe", "is not UTF-8 text"),
        (b"a\0b\n", "null bytes"),
        (b'"a\n', "no CSV table"),
    ],
)
def test_files_that_are_no_table(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    assert message in refused_table(capsys, str(path))


def test_places_that_are_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be read" in refused_table(capsys, str(tmp_path))
    assert "cannot be read" in refused_table(capsys, str(tmp_path / "absent.csv"))


@pytest.mark.parametrize("column", [*LAUNCH_COLUMNS, *NEEDED])
def test_a_missing_column_is_named(
    column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{k: v for k, v in r.items() if k != column} for r in table(LIBRARY)[:1]]
    assert column in refused_table(capsys, write(tmp_path / "cut.csv", rows))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("call", ""),
        ("heads", "many"),
        ("heads", "-1"),
        ("heads", "8.0"),
        ("heads", "9" * 5000),
        ("seq_q", "0"),
        ("seq_q", "9" * 18),
        ("causal", "yes"),
        ("hbm_read", "1e6"),
        ("hbm_read", "9" * 19),
        ("l2_read", "-1"),
        ("seconds", "nan"),
        ("seconds", "soon"),
        ("dtype", "int4"),
        ("kv_heads", "3"),
        ("registers", "x"),
    ],
)
def test_a_wrong_value_is_named(
    column: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {**table(LIBRARY)[0], column: value}
    assert column in refused_table(capsys, write(tmp_path / "bad.csv", [row])).replace("INPUT", "")


def test_rows_that_do_not_fit_their_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = table(LIBRARY)[:1]
    assert "stands twice" in refused_table(capsys, write(tmp_path / "twice.csv", rows * 2))
    path = tmp_path / "short.csv"
    path.write_text(",".join(rows[0]) + "\n1,1,cudnn\n", encoding="utf-8")
    assert "3 fields" in refused_table(capsys, str(path))
    path.write_text(",".join(rows[0]) + "\n", encoding="utf-8")
    assert "no rows" in refused_table(capsys, str(path))
    path.write_text(",".join(rows[0]) + ",call\n", encoding="utf-8")
    assert "twice" in refused_table(capsys, str(path))


def test_an_unknown_gpu_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["validate", "--gpu", "h2000"], "h2000")
