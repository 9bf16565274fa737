"""Broken files, full disks and odd requests end in one line that says what is wrong, and nothing that was typed is left
out without a word."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refused
from scripts import ROOT

from iosim.commands.cli import main, parsed
from iosim.commands.explore import answer_line

LAUNCH = {
    "kernel": "flash_fwd",
    "grid": [1, 1, 1],
    "block": [128, 1, 1],
    "ranges": [],
    "metrics": {},
}


@pytest.mark.parametrize(
    "grid", ["[1e999, 1, 1]", "[NaN, 1, 1]", '["1e999", 1, 1]', "[[1], 1, 1]", "null"]
)
def test_a_launch_of_the_profiler_with_an_impossible_grid(
    grid: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "launch.json"
    place.write_text(json.dumps(LAUNCH).replace('"grid": [1, 1, 1]', f'"grid": {grid}'))
    refused(capsys, ["ncu-rule", "--launch", str(place), "--gpu", "a100"], "accepted")


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '|b1', 'fortran_order': False, 'shape': (4, 4), ",
        b"{'descr'",
        b"(",
        b"'''",
        b"\\",
        b"{'a':\n  1",
    ],
)
def test_a_mask_whose_header_breaks_off(
    header: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "mask.npy"
    place.write_bytes(
        b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 16
    )
    line = [
        "predict",
        "--kernel",
        "flash",
        "--seq-len",
        "512",
        "--mask-block",
        "128",
        "--mask-file",
        str(place),
    ]
    refused(capsys, line, str(place), "a NumPy .npy or .npz file with a block mask")


def test_a_table_with_line_ends_of_any_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "batch,heads,kv_heads,seq_q,seq_k,head_dim,ms\n1,8,8,128,128,64,1.0\n"
    for name, ends in (("unix", "\n"), ("windows", "\r\n"), ("mac", "\r")):
        place = tmp_path / f"{name}.csv"
        place.write_bytes(text.replace("\n", ends).encode())
        message = refused(capsys, ["calibrate", "--times", str(place), "--gpu", "h100"])
        assert "holds 1 row" in message
    place.write_bytes(text.encode() + b"1," + b"x" * 200_000)
    refused(capsys, ["calibrate", "--times", str(place), "--gpu", "h100"], "accepted")


def test_a_profile_whose_source_is_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "mine.toml"
    lines = (ROOT / "hardware_profiles/t4.toml").read_text().splitlines()
    place.write_text(
        "\n".join('datasheet = ""' if line.startswith("datasheet =") else line for line in lines)
    )
    assert main(["profiles", "check", str(place)]) == 2
    assert "sources.datasheet: must be a text, not an empty one" in capsys.readouterr().out
    refused(capsys, ["predict", "--gpu", str(place)], "sources.datasheet")


@pytest.mark.parametrize(
    "line", ["--hel", "--help", "-h", "-hx", "--version", "'", "--seq-len 4,096", "stray"]
)
def test_the_explorers_server_answers_every_line(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer_line(line, parsed)["error"]
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "line", ["compare --html", "predict --out", "compare --csv", "kernels new --from fa2 -o"]
)
def test_a_full_disk_names_the_file_and_no_option_that_nobody_gave(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = (
        [] if "kernels" in line else ["--kernel", "fa2", "--seq-len", "512", "--method", "bounds"]
    )
    quick += ["--force"] if "html" in line else []
    message = refused(
        capsys, [*line.split(), "/dev/full", *quick], "/dev/full", "No space left on device"
    )
    assert "--out" not in message


@pytest.mark.parametrize(
    "line",
    [
        "predict --kernel fa2 --seq-len 512 --out",
        "kernels new --from fa2 -o",
        "compare --kernel fa2 --seq-len 512 --method bounds --html",
    ],
)
def test_what_was_written_is_said(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "written"
    assert main([*line.split(), str(place)]) == 0
    assert capsys.readouterr().err == f"iosim: wrote {place}: {place.stat().st_size:,} bytes\n"
    assert (
        main(
            [
                "predict",
                "--kernel",
                "fa2",
                "--seq-len",
                "512",
                "--method",
                "bounds",
                "--out",
                "/dev/null",
            ]
        )
        == 0
    )
    assert capsys.readouterr().err == ""


UNUSED = (
    "--dtype=qqq --stages 8",
    "--seq-len 512",
    "--causal",
    "--with-spills",
    "--heads 8",
    "--across --ncu x.csv",
    "--measurements a --ncu b",
    "--times --tile 64x64",
)


@pytest.mark.parametrize("line", UNUSED)
def test_an_option_that_nothing_would_use_is_refused(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(
        capsys, ["validate", *line.split()], line.split()[-2 if "tile" in line else 0].split("=")[0]
    )


def test_a_type_that_no_kernel_has_is_refused_by_the_rule_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(
        capsys, ["ncu-rule", "--install", str(tmp_path), "--dtype", "qqq"], "--dtype 'qqq'", "fp16"
    )


@pytest.mark.parametrize(("gpu", "code"), [("a100", 0), ("nosuch", 2)])
def test_a_closed_standard_error_changes_no_answer(gpu: str, code: int) -> None:
    line = f"predict --gpu {gpu} --kernel fa2 --seq-len 512 --method capacity"
    done = [
        subprocess.run(
            f"exec {shlex.quote(sys.executable)} -m iosim {line} {end}",
            shell=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        for end in ("2>&-", "2>/dev/null")
    ]
    assert [d.returncode for d in done] == [code, code]
    assert done[0].stdout == done[1].stdout
    assert bool(done[0].stdout) == (code == 0)
