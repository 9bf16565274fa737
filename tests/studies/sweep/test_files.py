"""Files of a sweep: CSV and Parquet hold the same, and can be asked for again."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas
import pytest
from swept import GRID

from iosim import sweep
from iosim.commands.cli import main

pytestmark = pytest.mark.usefixtures("replays_once")


def test_a_grid_a_file_and_a_frame_give_the_same_rows(tmp_path: Path) -> None:
    grid = sweep(**GRID, method="capacity")
    assert len(grid) == 2 * 3 * 3 * 2
    frame = grid[["gpu", "kernel", "heads", "kv_heads", "seq_q"]].rename(
        columns={"seq_q": "--seq-len"}
    )
    frame.to_csv(tmp_path / "asked.csv", index=False)
    from_file = sweep(tmp_path / "asked.csv", method="capacity")
    pandas.testing.assert_frame_equal(from_file, grid)
    pandas.testing.assert_frame_equal(sweep(frame, method="capacity"), grid)
    half = frame.drop(columns=["kernel"]).drop_duplicates()
    crossed = sweep(half, kernel=["fa2", "flash", "naive"], method="capacity")
    order = ["gpu", "kernel", "heads", "seq_q"]
    pandas.testing.assert_frame_equal(
        crossed.sort_values(order, ignore_index=True), grid.sort_values(order, ignore_index=True)
    )


def test_what_a_sweep_wrote_can_be_asked_for_again(tmp_path: Path) -> None:
    first = sweep(**GRID, method="capacity", out=tmp_path / "first.csv")
    again = sweep(tmp_path / "first.csv", method="capacity")
    pandas.testing.assert_frame_equal(first, again)


@pytest.mark.slow
def test_csv_and_parquet_hold_the_same(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    settings = {**GRID, "key_padding": [True, False], "dropout": [0.0, 0.125], "window": [None, 64]}
    frames = [
        sweep(**settings, method="bounds", out=tmp_path / f"out.{end}")
        for end in ("csv", "parquet")
    ]
    pandas.testing.assert_frame_equal(*frames)
    pandas.testing.assert_frame_equal(frames[0], sweep(**settings, method="bounds"))
    pandas.testing.assert_frame_equal(sweep(tmp_path / "out.parquet", method="bounds"), frames[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.parquet"]


def test_without_pyarrow_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["sweep", "--method", "bounds", "--out", str(tmp_path / "out.parquet")]) == 2
    assert "iosim[parquet]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
