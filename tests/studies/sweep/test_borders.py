"""Both sides of what a sweep takes: values of its columns, numbers of rows, files and their places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest

from iosim.base.errors import InputError
from iosim.studies.sweep import cases as rows
from iosim.studies.sweep import files
from iosim.studies.sweep.cases import cases, checked
from iosim.studies.sweep.files import check_target, problems_of


@pytest.mark.parametrize("value", ["", 3, None, ["a100"]])
def test_a_name_is_a_text_with_letters(value: Any) -> None:
    with pytest.raises(InputError, match="is no name; accepted: a name"):
        checked("gpu", value)
    assert checked("gpu", "a100") == "a100"


def test_a_column_has_a_value() -> None:
    with pytest.raises(InputError, match="heads has no values; accepted: one or more"):
        cases({"heads": []})


def test_rows_up_to_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ROWS", 6)
    of_fa2 = {"kernel": ["fa2"], "heads": [1, 2]}
    assert len(cases({**of_fa2, "batch": [1, 2, 3]})) == 6
    with pytest.raises(InputError, match="the sweep has 8 rows; accepted: up to 6"):
        cases({**of_fa2, "batch": [1, 2, 3, 4]})


@pytest.mark.parametrize(
    ("grid", "masks"),
    [
        ({"window_right": [0]}, ["window"]),  # says of itself that a window is meant
        ({"window_right": [0], "mask": ["none"]}, ["none"]),
        ({"window": [64], "window_right": [0]}, ["window"]),
        ({"window": [64, None]}, ["window", "none"]),
        ({"window": [64], "mask": ["causal", "window"]}, ["causal", "window"]),
        ({"mask": ["causal"]}, ["causal"]),
    ],
)
def test_which_mask_a_window_means(grid: dict[str, Any], masks: list[str]) -> None:
    part = cases({"kernel": ["fa2"], **grid}).part(0, len(masks))
    assert [part.case(n).get("mask") for n in range(len(masks))] == masks


def test_columns_of_a_file() -> None:
    """What a sweep found is passed over; whole numbers may have been read as floats; `causal` is a mask."""
    frame = pandas.DataFrame(
        {"heads": [4.0, 8.0], "hbm_read_bytes": [1, 2], "causal": [True, False]}
    )
    columns = problems_of(frame)
    assert {name: words.tolist() for name, words in columns.items()} == {
        "heads": [4, 8],
        "mask": ["causal", None],
    }
    assert all(isinstance(heads, int) for heads in columns["heads"].tolist())
    with pytest.raises(InputError, match="the rows, row 2: "):
        problems_of(pandas.DataFrame({"heads": [4.0, 8.5]}))


def test_where_a_sweep_may_be_written(tmp_path: Path) -> None:
    assert check_target(tmp_path / "rows.csv") == files.CSV
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="is a directory; a file in a directory that exists"):
        check_target(tmp_path / "folder.csv")
    with pytest.raises(InputError, match="cannot be written: its directory does not exist"):
        check_target(tmp_path / "nowhere" / "rows.csv")


def test_lines_are_gathered_into_groups_of_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of four bytes and more: one ends with the piece that fills it, and the last is what is over."""
    monkeypatch.setattr(files, "AT_ONCE", 4)
    assert list(files._gathered([b"abc", b"d", b"ef", b"ghi", b"j"])) == [b"abcd", b"efghi", b"j"]
    assert list(files._gathered([b"abcd"])) == [b"abcd"]
    assert list(files._gathered([])) == []


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        problems_of(tmp_path / "nowhere.csv")
    (tmp_path / "rows.csv").write_bytes(b'heads\n"4\n')
    with pytest.raises(InputError, match=r"cannot be read: .*; accepted: a CSV file with a head"):
        problems_of(tmp_path / "rows.csv")
