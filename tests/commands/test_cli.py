"""The command line's contract: JSON keys and types, CSV, repetition, aliases, what is loaded, how it ends."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from effort import quick_first

import iosim
from iosim.base.data import data_dir
from iosim.base.units import bytes_text, seconds_text, size, sizes
from iosim.commands.cli import COMMANDS, main

pytestmark = pytest.mark.usefixtures("replays_once")

HEAVY = ("torch", "pandas", "sympy", "plotly", "numpy")


def out(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def predictions(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, Any]]:
    data = json.loads(out(capsys, "predict", "--format", "json", *argv))
    assert list(data) == ["schema", "answer", "predictions"]
    assert data["schema"] == 1
    listed: list[dict[str, Any]] = data["predictions"]
    return listed


def process(*argv: str, **kw: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, timeout=60, check=False, **kw
    )


# --- predict ----------------------------------------------------------------------------------------------------------

KEYS = {
    "problem": {
        "batch",
        "heads",
        "kv_heads",
        "seq_q",
        "seq_k",
        "head_dim",
        "head_dim_v",
        "dtype",
        "accumulate",
        "output",
        "mask",
        "window",
        "dropout",
        "pass",
    },
    "kernel": {
        "name",
        "block_q",
        "block_k",
        "warps",
        "stages",
        "order",
        "direction",
        "splits",
        "writes_lse",
    },
    "totals": {"hbm", "l2", "smem"},
    "hbm_bounds": {"compulsory", "no_l2"},
    "memory_bytes": {"workspace", "peak"},
}
TOP = {
    "problem",
    "kernel",
    "profile",
    "l2_start",
    "method",
    "totals",
    "launches",
    "traffic",
    "hbm_bounds",
    "flops",
    "time_s",
    "bound_by",
    "memory_bytes",
    "notes",
}
GQA = (
    "--heads",
    "32",
    "--kv-heads",
    "8",
    "--causal",
    "--dtype",
    "bf16",
    "--kernel",
    "fa2",
    "--gpu",
    "h200",
)


def test_json_contract(capsys: pytest.CaptureFixture[str]) -> None:
    (p,) = predictions(capsys, *GQA)
    assert set(p) >= TOP
    for key, inner in KEYS.items():
        assert set(p[key]) >= inner, key
    assert p["problem"]["kv_heads"] == 8
    assert p["problem"]["mask"] == "causal"
    assert p["problem"]["pass"] == "fwd"
    assert p["profile"] == "h200-sxm"
    assert p["bound_by"] in ("tensor", "hbm", "l2", "smem", "exp", "latency")
    (other,) = predictions(capsys, "--kernel", "flex", "--gpu", "h200")
    assert other["totals"]["smem"] is None is other["launches"][0]["totals"]["smem"]
    assert isinstance(p["time_s"], float)
    assert p["time_s"] > 0


@pytest.mark.parametrize("passes", ["fwd", "fwd+bwd"])
def test_bytes_are_integers_and_add_up(capsys: pytest.CaptureFixture[str], passes: str) -> None:
    (p,) = predictions(capsys, *GQA, "--pass", passes)
    for row in p["traffic"]:
        assert set(row) == {"launch", "level", "tensor", "direction", "bytes"}
        assert type(row["bytes"]) is int
    assert (p["totals"]["smem"] is None) == (
        passes != "fwd"
    )  # fragments of its backward are not known
    for level in ("hbm", "l2", "smem") if passes == "fwd" else ("hbm", "l2"):
        for direction in ("read", "write"):
            total = p["totals"][level][direction]
            assert type(total) is int
            rows = [
                r["bytes"]
                for r in p["traffic"]
                if (r["level"], r["direction"]) == (level, direction)
            ]
            assert total == sum(rows)
            assert total == sum(n["totals"][level][direction] for n in p["launches"])
    assert type(p["flops"]) is int
    assert all(type(v) is int for v in p["memory_bytes"].values())
    assert all(type(v) is int for b in p["hbm_bounds"].values() for v in b.values())


def test_the_estimate_lies_between_the_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "--kernel",
        "flash",
        "--kernel",
        "fa2",
        "--seq-len",
        "1k:64k:x4",
        "--method",
        "capacity",
    )
    for p in predictions(capsys, *options):
        low = p["hbm_bounds"]["compulsory"]
        high = p["hbm_bounds"]["no_l2"]
        for direction in ("read", "write"):
            assert low[direction] <= p["totals"]["hbm"][direction] <= high[direction]


def test_method_bounds_gives_no_hbm_figure(capsys: pytest.CaptureFixture[str]) -> None:
    (p,) = predictions(capsys, "--kernel", "fa2", "--method", "bounds")
    assert p["method"] == "bounds"
    assert p["totals"]["hbm"] is None
    assert p["totals"]["l2"]["read"] > 0
    assert {r["level"] for r in p["traffic"]} == {"l2", "smem"}


def test_the_first_number_of_the_article(capsys: pytest.CaptureFixture[str]) -> None:
    (p,) = predictions(capsys, "--kernel", "fa2", "--gpu", "a100")
    # 1,024 CTAs: a Q tile of 128 rows, and all 4,096 rows of K and V, 256 bytes each
    assert p["totals"]["l2"]["read"] == 1024 * (128 + 2 * 4096) * 256
    # O, and an fp32 log-sum-exp a row; spilled registers come on top
    written = {
        r["tensor"]: r["bytes"]
        for r in p["traffic"]
        if (r["level"], r["direction"]) == ("l2", "write")
    }
    assert written["O"] + written["LSE"] == 32 * 4096 * (256 + 4)
    assert p["hbm_bounds"]["compulsory"]["read"] == 3 * 32 * 4096 * 256


def test_lists_and_repetition_multiply(capsys: pytest.CaptureFixture[str]) -> None:
    listed = predictions(
        capsys,
        "--gpu",
        "l4",
        "--gpu",
        "h100",
        "--kernel",
        "naive",
        "--kernel",
        "fa2",
        "--seq-len",
        "512,1k:4k:x2",
    )
    keys = [(p["profile"], p["problem"]["seq_q"], p["kernel"]["name"]) for p in listed]
    assert keys == [
        (gpu, n, k)
        for gpu in ("l4", "h100-sxm")
        for n in (512, 1024, 2048, 4096)
        for k in ("naive", "fa2")
    ]


def test_the_gpu_decides_the_tile(capsys: pytest.CaptureFixture[str]) -> None:
    l4, a100 = predictions(capsys, "--gpu", "l4", "--gpu", "a100", "--kernel", "fa2")
    assert (l4["kernel"]["block_q"], l4["kernel"]["block_k"]) == (128, 32)
    assert (a100["kernel"]["block_q"], a100["kernel"]["block_k"]) == (128, 64)


def test_defaults_and_every_option_of_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    listed = predictions(capsys)
    assert [p["kernel"]["name"] for p in listed] == ["naive", "fa2"]
    assert {p["profile"] for p in listed} == {"a100-sxm-80gb"}
    (p,) = predictions(
        capsys,
        "--gpu",
        "h100",
        "--kernel",
        "flash",
        "--batch",
        "2",
        "--heads",
        "8",
        "--kv-heads",
        "2",
        "--seq-len",
        "100",
        "--seq-len-k",
        "300",
        "--head-dim",
        "80",
        "--head-dim-v",
        "48",
        "--dtype",
        "fp8",
        "--accumulate",
        "fp32",
        "--output-dtype",
        "fp16",
        "--window",
        "64",
        "--offset",
        "-5",
        "--dropout",
        "0.25",
        "--layout",
        "bshd",
        "--tile",
        "64x32",
        "--warps",
        "2",
        "--stages",
        "2",
        "--order",
        "head",
        "--direction",
        "descending",
        "--scheduler",
        "static",
        "--l2",
        "cold",
    )
    assert p["problem"] == {
        "batch": 2,
        "heads": 8,
        "kv_heads": 2,
        "seq_q": 100,
        "seq_k": 300,
        "head_dim": 80,
        "head_dim_v": 48,
        "dtype": "fp8",
        "accumulate": "fp32",
        "output": "fp16",
        "mask": "window",
        "window": 64,
        "offset": -5,
        "dropout": 0.25,
        "pass": "fwd",
        "layout": "bshd",
    }
    k = p["kernel"]
    assert (k["block_q"], k["block_k"], k["warps"], k["stages"]) == (64, 32, 2, 2)
    assert (k["order"], k["direction"]) == ("head", "descending")


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (("--dtype", "bfloat16"), ("--dtype", "bf16")),
        (("--dtype", "torch.float16"), ("--dtype", "fp16")),
        (("--kernel", "pytorch_flash"), ("--kernel", "fa2")),
        (("--gpu", "A100_SXM 80GB"), ("--gpu", "a100")),
        (("--gpu", "NVIDIA H100 80GB HBM3"), ("--gpu", "h100")),
        (("--seq-len", "4k"), ("--seq-len", "4096")),
        (("--tile", "128X64"), ("--tile", "128x64")),
    ],
)
def test_two_words_for_one_thing(
    first: tuple[str, ...], other: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    base = () if "--kernel" in first else ("--kernel", "fa2")
    assert predictions(capsys, *base, *first) == predictions(capsys, *base, *other)


def test_a_profile_file_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    shipped = data_dir("hardware_profiles") / "l4.toml"
    file.write_text(shipped.read_text().replace('name = "l4"', 'name = "mine"'))
    (p,) = predictions(capsys, "--gpu", str(file), "--kernel", "fa2")
    assert p["profile"] == "mine"
    assert out(capsys, "profiles", "check", str(file)) == f"{file}: no problems\n"


def test_csv_has_a_row_a_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--gpu", "l4", "--gpu", "a100", "--kernel", "fa2", "--seq-len", "512,1024")
    rows = list(csv.DictReader(io.StringIO(out(capsys, "predict", "--format", "csv", *argv))))
    listed = predictions(capsys, *argv)
    assert len(rows) == len(listed) == 4
    for row, p in zip(rows, listed, strict=True):
        assert row["gpu"] == p["profile"]
        assert row["kernel"] == "fa2"
        assert int(row["seq_q"]) == p["problem"]["seq_q"]
        assert int(row["l2_read_bytes"]) == p["totals"]["l2"]["read"]
        assert int(row["hbm_write_bytes"]) == p["totals"]["hbm"]["write"]
        assert int(row["compulsory_read_bytes"]) == p["hbm_bounds"]["compulsory"]["read"]
        assert float(row["time_s"]) == p["time_s"]


def test_table_keeps_the_levels_apart(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "predict", "--kernel", "fa2", "--method", "capacity")
    for line in (
        "SM <-> L2 (counted)",
        "L2 <-> HBM (capacity)",
        "compulsory",
        "with no L2",
        "an estimate",
    ):
        assert line in text


def test_replay_is_the_default_and_says_what_stays_dirty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (p,) = predictions(capsys, "--kernel", "fa2", "--gpu", "h200", "--dtype", "bf16")
    assert p["method"] == "replay"
    # O and LSE leave the SMs; what was not written back is dirty in L2 (spills and others' lines come on top)
    assert p["l2_end_dirty_bytes"] > 0
    assert p["totals"]["hbm"]["read"] >= p["hbm_bounds"]["compulsory"]["read"]


def test_out_writes_what_would_be_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.json"
    assert main(["predict", "--kernel", "fa2", "--format", "json", "-o", str(file)]) == 0
    assert capsys.readouterr().out == ""
    assert file.read_text() == out(capsys, "predict", "--kernel", "fa2", "--format", "json")


# --- lists ------------------------------------------------------------------------------------------------------------


def test_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(out(capsys, "profiles", "list", "--format", "json"))
    assert {p["name"] for p in data["profiles"]} >= {
        "t4",
        "l4",
        "a100-sxm-40gb",
        "h100-sxm",
        "h200-sxm",
        "b200",
    }
    assert (
        out(capsys, "profiles", "list", "--format", "csv").count("\n") == len(data["profiles"]) + 1
    )
    profile = json.loads(out(capsys, "profiles", "show", "H200", "--format", "json"))["profile"]
    assert profile["l2_bytes"]["value"] == 62_914_560
    assert profile["l2_bytes"]["source"]
    assert "l2_bytes" in out(capsys, "profiles", "show", "h200")


def test_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(out(capsys, "kernels", "list", "--format", "json"))
    by_name = {k["name"]: k for k in data["kernels"]}
    assert by_name["fa2"]["algorithm"] == "flash"
    assert set(by_name) >= {
        "naive",
        "flash1",
        "flash",
        "minimal",
        "fa1",
        "fa2",
        "fa3",
        "cudnn",
        "cutlass",
        "triton",
    }
    assert (
        json.loads(out(capsys, "kernels", "show", "pytorch_flash", "--format", "json"))["kernel"][
            "name"
        ]
        == "fa2"
    )
    assert "fa2" in out(capsys, "kernels", "list")


# --- the program itself -----------------------------------------------------------------------------------------------


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    printed = out(capsys, "--version")
    assert re.fullmatch(
        rf"iosim {re.escape(iosim.__version__)}( \(commit [0-9a-f]+\+?\))?\n", printed
    )


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_of_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    assert "usage: iosim" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv", ["['--help']", "['predict', '--help']", "['--version']", "['nosuch']"]
)
def test_help_loads_nothing_heavy(argv: str) -> None:
    code = (
        "import sys\n"
        "from iosim.commands.cli import main\n"
        f"try:\n    main({argv})\n"
        "except SystemExit:\n    pass\n"
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    done = process("-c", code)
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", quick_first(("predict", "reproduce", "profiles", "kernels"), 1))
def test_commands_without_figures_load_none_of_them(name: str) -> None:
    argv = {
        "predict": [],
        "profiles": ["list"],
        "kernels": ["list"],
        "reproduce": ["--section", "A"],
    }[name]
    code = (
        f"import sys\nfrom iosim.commands.cli import main\nmain({[name, *argv]})\n"
        f"print([m for m in {HEAVY[:4]} if m in sys.modules], file=sys.stderr)"
    )
    assert process("-c", code).stderr.splitlines()[-1] == "[]"


def test_a_prediction_loads_what_it_needs() -> None:
    """A cold start takes less than twice the import of NumPy (benchmarks/README.md). Each module of iosim is a part of
    a millisecond of it, and each of these, with what it loads, several."""
    slow = (
        "numpy.ma",
        "concurrent.futures",
        "logging",
        "statistics",
        "zipfile",
        "tempfile",
        "shutil",
        "html",
        "subprocess",
        "unittest",
        "email",
        "http",
        "importlib.metadata",
    )
    code = (
        "import sys, numpy\nown = set(sys.modules)\nfrom iosim.commands.cli import main\n"
        "main('predict --gpu h100 --kernel fa2 --seq-len 4096'.split())\n"
        f"print([m for m in {(*HEAVY[:4], *slow)} if m in set(sys.modules) - own], file=sys.stderr)\n"
        "print(sum(m.split('.')[0] == 'iosim' for m in sys.modules), file=sys.stderr)"
    )
    heavy, modules = process("-c", code).stderr.splitlines()[-2:]
    assert heavy == "[]"
    assert int(modules) <= 144


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m iosim predict --seq-len 1k:64k:x2 --method capacity --format json | head -c 10"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == '{\n  "schem'
    assert done.stderr == ""


def test_output_needs_no_utf8_terminal() -> None:
    done = process(
        "-X",
        "utf8=0",
        "-m",
        "iosim",
        "profiles",
        "show",
        "h200",
        env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


# --- units ------------------------------------------------------------------------------------------------------------


def test_sizes_are_binary_and_bytes_are_decimal() -> None:
    assert size("64k", "--x") == 65536
    assert size("1M", "--x") == 1 << 20
    assert bytes_text(10**6) == "1 MB"
    assert bytes_text(1 << 20) == "1.049 MB"
    assert bytes_text(10**9) == "1 GB"
    assert bytes_text(10**12) == "1 TB"
    assert bytes_text(10**3) == "1 kB"
    assert bytes_text(999) == "999 B"


@pytest.mark.parametrize(
    ("unit", "factor"), [("B", 1), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)]
)
@pytest.mark.parametrize("value", [1, 2, 12.5, 250])
def test_byte_units_both_ways(unit: str, factor: float, value: float) -> None:
    number, unit_printed = bytes_text(value * factor).split()
    assert unit_printed == unit
    assert float(number) * factor == pytest.approx(value * factor, rel=5e-4, abs=0.5)


@pytest.mark.parametrize(("unit", "factor"), [("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)])
@pytest.mark.parametrize("value", [1.5, 2.0, 250.0])
def test_time_units_both_ways(unit: str, factor: float, value: float) -> None:
    number, unit_printed = seconds_text(value * factor).split()
    assert unit_printed == unit
    assert float(number) * factor == pytest.approx(value * factor, rel=5e-3)


def test_lists_and_ranges() -> None:
    assert sizes("512,4096", "--x") == [512, 4096]
    assert sizes("1k:64k:x2", "--x") == [1024 << n for n in range(7)]
    assert sizes("1k:4k:1k", "--x") == [1024, 2048, 3072, 4096]
    assert sizes("1:10:4", "--x") == [1, 5, 9]
    assert sizes(" 8 , 2:8:x4", "--x") == [8, 2, 8]


def test_a_short_prediction_loads_little_and_starts_no_threads_of_numpys() -> None:
    code = (
        "import os, sys; sys.argv[1:] = 'predict --gpu h100 --kernel fa2 --seq-len 4096'.split()\n"
        "from iosim.__main__ import script\nscript()\n"
        "heavy = 'torch pandas scipy sympy plotly jinja2 tqdm sqlite3 asyncio multiprocessing'.split()\n"
        "print([m for m in heavy if m in sys.modules], len([m for m in sys.modules if m.startswith('iosim.')]) < 145,\n"
        "      os.environ['OPENBLAS_NUM_THREADS'], file=sys.stderr)"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert completed.stderr == "[] True 1\n"
