"""Cases of a sweep: grids, files and frames as they are typed, and what is refused."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas
import pytest
from swept import single

import iosim
from iosim import sweep
from iosim.commands.cli import main

pytestmark = pytest.mark.usefixtures("replays_once")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seq_len,lenght\n5,5\n", "'lenght' is not known"),
        ("seq_len\n5\nmany\n", "'rows.csv', row 2: --seq-len 'many'"),
        ("seq_len,seq_q\n5,5\n", "two columns say what --seq-len is"),
        ("gpu,seq_len\na100,5\n,5\n", "row 2: --gpu is empty"),
        ("seq_len\n", "are none"),
        ("", "cannot be read"),
        ("refused\nno\n", "no column of a problem"),
        ("tile\n64by3\n", "row 1: --tile '64by3' is not of the form QxK"),
        ("dropout\nhalf\n", "row 1: --dropout 'half'"),
    ],
)
def test_a_bad_file_of_rows_is_one_line(
    text: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text(text)
    assert main(["sweep", "--problems", "rows.csv"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_an_option_beside_a_column_of_the_file_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("seq_len,heads\n512,4\n")
    arguments = ["sweep", "--problems", str(tmp_path / "rows.csv"), "--method", "bounds"]
    assert main([*arguments, "--heads", "8"]) == 2
    assert "--heads is given twice" in capsys.readouterr().err
    assert main([*arguments, "--head-dim", "64,128", "--format", "csv"]) == 0
    csv_rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert {(row["heads"], row["head_dim"]) for row in csv_rows} == {("4", "64"), ("4", "128")}


def test_cells_of_a_file_may_be_empty_or_written_for_people(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(
        "seq-len,kv_heads,causal,window,tile,key_padding\n1k,,true,,128x64,\n2k,8,,256,,false\n"
    )
    frame = sweep(tmp_path / "rows.csv", kernel="flash", method="bounds")
    assert list(frame.seq_q) == [1024, 2048]
    assert list(frame.kv_heads) == [32, 8]
    assert list(frame["mask"]) == ["causal", "window"]
    assert list(frame.block_q) == [128, frame.block_q[1]]
    assert list(frame.key_padding) == [False, False]


def test_an_empty_cell_is_what_predict_takes_where_nothing_is_said(tmp_path: Path) -> None:
    """Not one head of one token, which nobody asks for."""
    short = tmp_path / "short.csv"
    short.write_text("gpu,kernel,heads,seq_len,head_dim\nh100,fa2\nh100,fa2,8,1024,64\n")
    frame = sweep(short, method="bounds")
    assert list(frame.heads) == [32, 8]
    assert list(frame.seq_q) == [4096, 1024]
    assert list(frame.head_dim) == [128, 64]


def test_a_prefix_lengthens_the_keys() -> None:
    frame = sweep(kernel="flash", seq_len=[16, 32], prefix=[100, 200], method="bounds")
    assert sorted(zip(frame.seq_q, frame.seq_k, strict=True)) == [
        (16, 116),
        (16, 216),
        (32, 132),
        (32, 232),
    ]


def test_texts_are_lists_in_python_as_on_the_command_line(tmp_path: Path) -> None:
    words = {
        "gpu": "a100,l4",
        "kernel": "naive, flash",
        "seq_len": "1k:4k:x2",
        "heads": "8,16",
        "dtype": "fp16,bf16",
        "method": "bounds",
    }
    out = tmp_path / "out.csv"
    options = [
        word
        for name, text in words.items()
        for word in (f"--{name.replace('_', '-')}", text.replace(" ", ""))
    ]
    assert main(["sweep", *options, "--out", str(out)]) == 0
    frame = iosim.sweep(**words)
    assert len(frame) == 2 * 2 * 3 * 2 * 2
    assert frame.to_csv(index=False) == iosim.sweep(out=tmp_path / "python.csv", **words).to_csv(
        index=False
    )
    assert out.read_text() == (tmp_path / "python.csv").read_text()
    tiles = iosim.sweep(
        kernel="flash", tile="64x32,128x64", seq_len=["1k:2k:x2", 4096], method="bounds"
    )
    assert sorted(set(tiles["seq_q"])) == [1024, 2048, 4096]
    assert set(tiles["tile"]) == {"64x32", "128x64"}
    assert set(
        iosim.sweep(kernel="flash", prefix="1k,2k", seq_len=64, method="bounds")["seq_k"]
    ) == {1088, 2112}
    with pytest.raises(
        iosim.InputError, match="causal 'yes' is no truth value; accepted: True, False"
    ):
        iosim.sweep(causal="yes", method="bounds")


def test_windows_go_with_the_masks_that_take_one() -> None:
    frame = sweep(kernel="flash", mask=["causal", "window"], window=[64, 128], method="bounds")
    assert [
        (m, None if pandas.isna(w) else int(w))
        for m, w in zip(frame["mask"], frame.window, strict=True)
    ] == [("causal", None), ("window", 64), ("window", 128)]


def test_windows_to_the_right_are_swept() -> None:
    frame = sweep(kernel="flash", window_right=[0, 64, 128], seq_len=[512, 1024], method="capacity")
    assert set(frame["mask"]) == {"window"}
    for _, row in frame.iterrows():
        numbers, _ = single(
            {
                "kernel": "flash",
                "gpu": "a100",
                "heads": 32,
                "head_dim": 128,
                "seq_q": int(row.seq_q),
                "mask": "window",
                "window_right": int(row.window_right),
            },
            "capacity",
        )
        assert {name: row[name] for name in numbers} == numbers
    causal = sweep(kernel="flash", causal=True, window=64, method="bounds")
    assert list(causal.l2_read_bytes) == list(
        sweep(kernel="flash", window=64, method="bounds").l2_read_bytes
    )
