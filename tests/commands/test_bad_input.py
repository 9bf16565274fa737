"""Bad input: exit code 2, one line on standard error that names the option, the value and what would be accepted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from effort import quick_first
from refusals import assert_names, refused

from iosim import AttentionProblem, InputError, Overrides, Tile, load_profile, predict, resolve
from iosim.base.files import write_whole
from iosim.base.units import size, sizes
from iosim.commands.cli import main
from iosim.problem.dtypes import dtype

# (command line, words that the one line must hold: the option or field, the value, what would be accepted)
CASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("predcit", ("COMMAND", "'predcit'", "predict")),
    ("nosuch", ("COMMAND", "'nosuch'", "predict")),
    ("--bogus predict", ("--bogus", "--help")),
    # GPUs
    ("predict --gpu h1oo", ("GPU", "'h1oo'", "h100")),
    ("predict --gpu warp-drive", ("GPU", "'warp-drive'", "a100-sxm-80gb")),
    ("predict --gpu=", ("GPU", "''")),
    ("predict --gpu none.toml", ("none.toml",)),
    ("profiles show nosuch", ("GPU", "'nosuch'")),
    # Kernels and what they run on
    ("predict --kernel foo", ("--kernel", "'foo'", "fa2")),
    ("predict --kernel=", ("--kernel", "''")),
    ("predict --kernel ../fa2", ("--kernel", "'../fa2'", "fa2")),
    ("predict --kernel fa2 --gpu t4", ("--kernel fa2", "cc 8.0", "t4", "7.5")),
    ("predict --kernel fa3 --gpu a100", ("--kernel fa3", "cc 9.0", "8.0")),
    ("predict --kernel fa2 --dtype fp32", ("--dtype fp32", "fa2", "fp16, bf16")),
    ("predict --kernel fa2 --head-dim 264", ("--head-dim 264", "fa2", "256")),
    ("predict --kernel flash --head-dim 65537", ("--head-dim 65537", "flash", "65536")),
    (
        "predict --kernel minimal --dtype fp32 --head-dim 64 --seq-len 100",
        ("100", "minimal", "multiple of 32"),
    ),
    ("predict --kernel minimal --dtype fp32 --head-dim 64 --causal", ("mask", "causal", "minimal")),
    ("predict --kernel minimal --dtype fp32 --head-dim 64 --pass bwd", ("pass", "bwd")),
    ("predict --kernel math --pass bwd", ("pass", "bwd", "fwd")),
    ("predict --kernel cutlass --gpu t4 --dtype bf16", ("--dtype bf16", "cc 8.0", "7.5")),
    ("kernels show nosuch", ("--kernel", "'nosuch'")),
    ("kernels show sdpa", ("NAME", "'sdpa'", "accepted: cudnn")),
    # Sizes
    ("predict --batch 0", ("batch 0", "1 to 2147483648")),
    ("predict --batch -1", ("--batch", "'-1'")),
    ("predict --batch 1.5", ("--batch", "'1.5'")),
    ("predict --batch many", ("--batch", "'many'")),
    ("predict --batch 99999999999999999999", ("--batch", "'99999999999999999999'")),
    ("predict --heads 0", ("heads 0",)),
    ("predict --heads 30 --kv-heads 8", ("--heads 30", "--kv-heads 8", "multiples of 8")),
    ("predict --heads 4 --kv-heads 8", ("--heads 4", "--kv-heads 8", "multiples")),
    ("predict --kv-heads 0", ("--kv-heads 0",)),
    ("predict --seq-len 0", ("--seq-len 0",)),
    ("predict --seq-len -5", ("--seq-len", "'-5'")),
    ("predict --seq-len=", ("--seq-len", "''")),
    ("predict --seq-len 512,,1024", ("--seq-len", "''")),
    ("predict --seq-len 1:2", ("--seq-len", "'1:2'", "first:last:step")),
    ("predict --seq-len 8:4:1", ("--seq-len", "'8:4:1'")),
    ("predict --seq-len 1:8:x1", ("--seq-len", "'1:8:x1'", "factor from x2")),
    ("predict --seq-len 1:1m:1", ("--seq-len", "'1:1m:1'", "10,000")),
    ("predict --seq-len 2048m", ("--seq-len 2147483648", "16777216")),
    ("predict --seq-len 2048m --tile 1x1 --kernel flash", ("--seq-len 2147483648", "16777216")),
    (
        "predict --seq-len 16m --tile 1x1 --kernel flash",
        ("--tile 1x1", "16777216", "block_q from 4"),
    ),
    (
        "predict --seq-len 16m --head-dim 8192 --kernel naive",
        ("--seq-len x --seq-len-k x",),
    ),
    ("predict --seq-len-k 0", ("--seq-len-k 0",)),
    ("predict --head-dim 0", ("--head-dim 0",)),
    ("predict --head-dim-v 0", ("--head-dim-v 0",)),
    ("predict --batch 2048m --heads 2048m", ("--batch x --heads",)),
    (
        "predict --batch 2048m --heads 1 --seq-len 1 --seq-len-k 1k --splits 2 --kernel fa2",
        ("--splits 2",),
    ),
    # Types, masks, passes
    ("predict --dtype int4", ("dtype", "'int4'", "fp16")),
    ("predict --dtype fp64", ("dtype", "'fp64'", "fp32, tf32")),
    ("predict --accumulate fp8", ("accumulate", "'fp8'", "fp32")),
    ("predict --output-dtype zzz", ("--output-dtype", "'zzz'", "fp16")),
    ("predict --window -1", ("--window", "'-1'")),
    ("predict --mask butterfly --causal", ("--causal", "--mask butterfly")),
    ("predict --offset 3", ("--offset 3", "--mask 'none'", "causal")),
    ("predict --offset x --causal", ("--offset", "'x'")),
    ("predict --offset 99999999999999 --causal", ("offset 99999999999999",)),
    ("predict --dropout nan", ("--dropout", "'nan'", "0 <= P < 1")),
    ("predict --dropout inf", ("--dropout", "'inf'", "0 <= P < 1")),
    ("predict --dropout 1", ("--dropout", "'1'", "0 <= P < 1")),
    ("predict --dropout -0.1", ("--dropout", "'-0.1'", "0 <= P < 1")),
    ("predict --dropout half", ("--dropout", "'half'", "0 <= P < 1")),
    ("predict --pass sideways", ("pass", "'sideways'", "fwd, bwd")),
    ("predict --layout dbhs", ("layout", "'dbhs'", "bhsd, bshd")),
    # Kernel settings
    ("predict --tile 128", ("--tile", "'128'", "128x64")),
    ("predict --tile 0x64", ("--tile 0x64", "1 to 4096")),
    ("predict --tile 64x8192", ("--tile 64x8192", "1 to 4096")),
    ("predict --tile 128x64x2", ("--tile", "'128x64x2'", "128x64")),
    ("predict --tile \N{SUPERSCRIPT TWO}x64", ("--tile", "x64'", "128x64")),
    ("predict --tile 99999999999999999999x64", ("--tile", "99999999999999999999x64", "128x64")),
    (
        "predict --tile 256x256 --kernel fa2",
        ("--tile 256x256", "needs 196,608 bytes", "allows 166,912"),
    ),
    ("predict --smem 1m --kernel fa2", ("needs 1,048,576 bytes", "allows 166,912")),
    ("predict --warps 0", ("warps 0", "1 to 32")),
    ("predict --warps 33", ("warps 33", "1 to 32")),
    ("predict --stages 0", ("stages 0", "1 to 16")),
    ("predict --registers 0", ("--registers 0", "1 to 255")),
    ("predict --registers 256", ("--registers 256", "1 to 255")),
    ("predict --order sideways", ("--order", "'sideways'", "query, head, batch")),
    ("predict --direction down", ("--direction", "'down'", "ascending, descending, alternating")),
    ("predict --scheduler magic", ("--scheduler", "'magic'", "static, persistent, dynamic")),
    ("predict --section-heads 99999999999999", ("--section-heads", "99999999999999")),
    ("predict --splits 0", ("--splits 0", "1 to 2147483648")),
    ("predict --splits 3 --kernel naive", ("--splits 3", "naive", "accepted: 1")),
    ("predict --splits 100000 --kernel fa2", ("splits 100000", "1 to 32")),
    ("predict --splits 3 --kernel fa2 --pass bwd", ("--splits 3", "--pass bwd", "accepted: 1")),
    ("predict --l2 hot", ("--l2", "'hot'", "cold, warm")),
    ("predict --method guess", ("--method", "'guess'", "bounds, capacity")),
    # Output and syntax
    ("predict --format xml", ("--format", "'xml'", "table")),
    ("predict --format", ("--format", "--help")),
    ("predict --head 3", ("--head", "--heads", "--head-dim")),
    ("predict stray", ("stray", "--help")),
    ("profiles", ("list|show|check", "--help")),
    ("profiles frob", ("list|show|check", "'frob'")),
    ("profiles check", ("FILE", "--help")),
    ("profiles check none.toml", ("none.toml",)),
    ("kernels", ("list|show", "--help")),
    ("reproduce --section Q", ("--section", "'Q'", "A, B")),
    ("reproduce --section=", ("--section", "''", "A, B")),
)


@pytest.mark.parametrize(("line", "words"), CASES, ids=[c[0] or "no arguments" for c in CASES])
def test_bad_command_lines(
    line: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, line.split(), *words)


def test_at_least_sixty_command_lines() -> None:
    assert len({line for line, _ in CASES}) == len(CASES) >= 60


# --- Profile files ----------------------------------------------------------------------------------------------------

HEAD = 'schema = 1\nname = "mine"\ncompute_capability = "8.0"\n'
GOOD = HEAD + 'sm_count = { value = 100, source = "s" }\n'
FILES: tuple[tuple[str, bytes, tuple[str, ...]], ...] = (
    ("empty", b"", ()),
    ("broken", b"schema = [", ()),
    ("binary", bytes(range(256)), ()),
    ("zeros", b"\0" * 64, ()),
    ("no schema", GOOD.replace("schema = 1\n", "").encode(), ("schema",)),
    ("future schema", GOOD.replace("schema = 1", "schema = 99").encode(), ("schema", "99")),
    ("schema as text", GOOD.replace("schema = 1", 'schema = "1"').encode(), ("schema", "'1'")),
    ("missing key", HEAD.encode(), ("sm_count",)),
    ("extra key", (GOOD + "sm_cuont = 3\n").encode(), ("sm_cuont", "sm_count")),
    ("bare value", (HEAD + "sm_count = 100\n").encode(), ("sm_count", "value = ...")),
    ("text for a number", GOOD.replace("100", '"many"').encode(), ("sm_count", "'many'")),
    ("not a number", GOOD.replace("100", "nan").encode(), ("sm_count", "nan")),
    ("infinite", GOOD.replace("100", "inf").encode(), ("sm_count", "inf")),
    ("negative", GOOD.replace("100", "-4").encode(), ("sm_count", "-4", "1 to 4096")),
    (
        "wrong unit",
        (GOOD + 'l2_bytes = { value = 40, source = "s" }\n').encode(),
        ("l2_bytes", "40"),
    ),
    (
        "capability as a number",
        GOOD.replace('"8.0"', "8.0").encode(),
        ("compute_capability", '"8.0"'),
    ),
    ("no source", (HEAD + "sm_count = { value = 100 }\n").encode(), ("sm_count", "source")),
)


@pytest.mark.parametrize(("content", "words"), [f[1:] for f in FILES], ids=[f[0] for f in FILES])
def test_hostile_profile_files(
    content: bytes, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(content)
    refused(capsys, ["predict", "--gpu", str(file)], "mine.toml", *words)
    assert main(["profiles", "check", str(file)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_profile_that_is_a_directory_or_unreadable_as_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, ["predict", "--gpu", str(tmp_path)], "is a directory")
    refused(capsys, ["predict", "--gpu", "/x\0y.toml"], "cannot be read")
    refused(capsys, ["predict", "--gpu", "a\0b"], "not known")
    refused(capsys, ["predict", "--gpu", "x" * 100_000])


def test_a_number_that_the_profile_lacks_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GOOD)
    refused(capsys, ["predict", "--gpu", str(file), "--kernel", "fa2"], "does not know l2_bytes")


# --- Output -----------------------------------------------------------------------------------------------------------

QUICK = ["predict", "--kernel", "flash", "--seq-len", "64"]


def test_places_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, [*QUICK, "--out", str(tmp_path)], "is a directory")
    message = refused(capsys, [*QUICK, "--out", str(tmp_path / "none" / "x.json")])
    assert "--out" in message
    assert "directory does not exist" in message
    refused(capsys, [*QUICK, "--out", ""], "--out ''")
    refused(capsys, [*QUICK, "--out", "a\0b"], "--out 'a\\x00b' cannot be written")
    file = tmp_path / "file"
    file.write_text("kept")
    refused(capsys, [*QUICK, "--out", str(file / "x")], "directory does not exist")
    refused(capsys, [*QUICK, "--out", str(tmp_path / ("x" * 300))], "too long")
    assert [p.name for p in tmp_path.iterdir()] == ["file"], "nothing half-written"
    assert file.read_text() == "kept"


def test_a_failed_command_leaves_the_old_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    file.write_text("old")
    refused(capsys, [*QUICK, "--out", str(file), "--heads", "0"])
    assert file.read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_device_is_reported_and_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, [*QUICK, "--out", "/dev/full"], "No space left")
    assert not Path("/dev/full").is_file()


def test_an_interrupted_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "x", "text")
    assert list(tmp_path.iterdir()) == []


def test_writing_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


# --- The API ----------------------------------------------------------------------------------------------------------

P = AttentionProblem(heads=4, seq_q=128)
API: tuple[tuple[str, Callable[[], Any], str], ...] = (
    ("size is a bool", lambda: AttentionProblem(batch=True), "batch True"),
    ("size is a float", lambda: AttentionProblem(heads=2.0), "heads 2.0"),  # type: ignore[arg-type]
    ("size is a text", lambda: AttentionProblem(seq_q="4k"), "seq_q '4k'"),  # type: ignore[arg-type]
    ("size is None", lambda: AttentionProblem(head_dim=None), "head_dim None"),  # type: ignore[arg-type]
    ("negative", lambda: AttentionProblem(seq_k=-1), "seq_k -1"),
    ("huge", lambda: AttentionProblem(seq_q=1 << 40), "seq_q 1099511627776"),
    ("ungrouped heads", lambda: AttentionProblem(heads=6, kv_heads=4), "multiples of 4"),
    ("mask", lambda: AttentionProblem(mask="diagonal"), "mask 'diagonal'"),
    ("mask is a list", lambda: AttentionProblem(mask=["causal"]), "mask"),  # type: ignore[arg-type]
    ("window without its mask", lambda: AttentionProblem(window=3), "contradicts mask 'none'"),
    ("window mask without a window", lambda: AttentionProblem(mask="window"), "window is missing"),
    ("window is a float", lambda: AttentionProblem(mask="window", window=1.5), "window 1.5"),  # type: ignore[arg-type]
    ("offset without a mask", lambda: AttentionProblem(offset=1), "contradicts mask 'none'"),
    ("dropout", lambda: AttentionProblem(dropout=float("nan")), "dropout nan"),
    ("dropout is a text", lambda: AttentionProblem(dropout="0.1"), "dropout '0.1'"),  # type: ignore[arg-type]
    ("dropout is a bool", lambda: AttentionProblem(dropout=True), "dropout True"),
    ("pass", lambda: AttentionProblem(passes="forward"), "accepted: fwd"),
    ("layout", lambda: AttentionProblem(layout="sbhd"), "accepted: bhsd"),
    ("dtype", lambda: dtype("int4"), "dtype 'int4'"),
    ("unknown key", lambda: AttentionProblem.from_dict({"head": 1}), "unknown keys: head"),
    ("tile side", lambda: Tile(0, 64), "block_q 0"),
    ("tile side is a float", lambda: Tile(64.0, 64), "block_q 64.0"),  # type: ignore[arg-type]
    ("tile text", lambda: Tile.parse("64*64"), "tile '64*64'"),
    ("GPU", lambda: load_profile("a1000000"), "a1000000"),
    ("kernel", lambda: predict(P, "fa9"), "fa9"),
    ("method", lambda: predict(P, method="exact"), "method 'exact'"),
    ("l2", lambda: predict(P, l2="tepid"), "l2 'tepid'"),
    (
        "override",
        lambda: resolve("fa2", P, load_profile("a100"), Overrides(splits=-1)),
        "splits -1",
    ),
    ("size text", lambda: size("4 k", "--x"), "--x '4 k'"),
    ("sizes text", lambda: sizes("1:2:3:4", "--x"), "--x '1:2:3:4'"),
)


@pytest.mark.parametrize(("call", "words"), [c[1:] for c in API], ids=[c[0] for c in API])
def test_bad_calls(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError) as refusal:
        call()
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_input_error_is_a_value_error() -> None:
    assert issubclass(InputError, ValueError)


# --- Whole processes --------------------------------------------------------------------------------------------------


PROCESSES = {
    "GPU not UTF-8": ([b"predict", b"--gpu", b"\xff\xfe"], "GPU"),
    "file not UTF-8": ([b"profiles", b"check", b"\xff.toml"], ".toml"),
    "kernel not UTF-8": ([b"predict", b"--kernel", b"caf\xe9"], "--kernel"),
    "zero heads": ([b"predict", b"--heads", b"0"], "heads 0"),
    "command not UTF-8": ([b"pr\xe9dict"], "COMMAND"),
}


@pytest.mark.parametrize("name", quick_first(PROCESSES, 2))
def test_processes(name: str, tmp_path: Path) -> None:
    arguments, words = PROCESSES[name]
    command = [os.fsencode(sys.executable), b"-m", b"iosim.commands.cli", *arguments]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=60, check=False)
    error = done.stderr.decode()
    assert done.returncode == 2
    assert done.stdout == b""
    assert error.startswith("iosim: ")
    assert error.count("\n") == 1
    assert_names(error, [words])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_standard_output_ends_in_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "iosim", *QUICK],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert (
        done.stderr.decode()
        == "iosim: standard output cannot be written: No space left on device\n"
    )
