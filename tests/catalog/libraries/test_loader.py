"""The catalog's entries: complete, labelled, and held against what was counted of them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from chosen import chosen
from scripts import load_script

from iosim.base.errors import InputError
from iosim.catalog.libraries import check_file, entry, entry_name, entry_names, loader
from iosim.catalog.libraries.loader import CHECKED, _aliases, checked, counted_on, fold
from iosim.commands.cli import main
from iosim.evidence.validate.match import _catalog_name
from iosim.evidence.validate.rows import read
from iosim.prediction.confidence import basis
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem


@pytest.mark.parametrize("name", entry_names())
def test_every_entry_is_complete(name: str) -> None:
    data = entry(name)
    assert data["schema"] == 1
    assert data["source"].strip()
    assert data["title"].strip()
    assert data["requires"]["dtypes"]
    assert data["tile"]
    for spill in data.get("spill", ()):
        assert spill["source"].strip(), "a fitted number says what it is fitted to"


@pytest.mark.parametrize("name", ["cudnn", "cutlass"])
def test_what_is_inferred_is_labelled(name: str) -> None:
    assert any("inferred" in n for n in chosen(name, "h100").notes)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("pytorch_flash", "fa2"),
        ("FlashAttention2", "fa2"),
        ("flash_attention_2", "fa2"),
        ("flash3", "fa3"),
        ("pytorch_mem_efficient", "cutlass"),
        ("xformers", "cutlass"),
        ("triton_plain", "triton"),
        ("pytorch_flash_backward", "fa2"),
        ("standard", "naive"),
        ("pytorch_eager", "eager"),
        ("FA2", "fa2"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert entry_name(alias) == name


def test_what_kernels_were_checked_against_is_what_recorded_tables_hold() -> None:
    script = load_script("benchmarks/checked.py")
    assert CHECKED.read_text(encoding="utf-8") == script.text(), (
        "python benchmarks/checked.py --write"
    )


def test_counted_bytes_are_rows_of_that_kernel_and_rows_are_counted_bytes() -> None:
    """By validate's own reading of every table that it can read, but for what no catalog entry is."""
    script = load_script("benchmarks/checked.py")
    seen = {"gdn", "kda", "vllm-triton"}  # whose tables have columns of their own
    for path in script.TABLES:
        try:
            rows = [] if any(word in path.name for word in script.PREDICTED) else read(path)
        except InputError:
            continue
        names = {_catalog_name(row) for row in rows if {"hbm_read", "l2_read"} & {*row.measured}}
        known = {entry_name(name) for name in names if fold(name) in (*entry_names(), *_aliases())}
        assert all(
            any(kind.startswith("bytes counted") for kind in checked(name)) for name in known
        ), path
        seen |= known | {script.STAND_FOR.get(name, name) for name in known}
    assert {name for name in entry_names() if "bytes counted" in checked(name)[0]} == seen


@pytest.mark.parametrize(
    ("line", "counted"),
    [
        ("--kernel fa2", True),
        ("--kernel fa2 --tile 64x64", False),
        ("--kernel fa2 --pass bwd", True),
    ],
)
def test_counters_are_of_the_tile_that_a_kernel_takes(
    line: str, counted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tile given by hand was counted nowhere."""
    assert main(f"predict --gpu h200 --seq-len 256 --heads 4 {line}".split()) == 0
    printed = capsys.readouterr().out
    assert ("checked against counters" in printed.split("\n\n")[0]) == counted


@pytest.mark.parametrize(
    ("name", "counted", "basis_text"),
    [
        ("vllm-triton", True, "bytes counted on h100-sxm"),
        ("gdn", True, "bytes counted on h100-sxm"),
        ("fa2", True, "bytes counted on h100-sxm, h200-sxm; backward's on h100-sxm, h200-sxm"),
        ("flex", True, "bytes counted on h100-sxm, h200-sxm; backward's on h100-sxm"),
        ("fa3", False, "published times on h100-sxm, h20, h800-sxm"),
        (
            "trtllm-gdn",
            False,
            "published times on b200, b300, gb200, gb300, h100-sxm, h200-sxm, l40s",
        ),
        ("fa4", False, "published times on b200, b300"),
        ("examples/kernels/jax-pallas-triton.toml", False, None),
    ],
)
def test_a_prediction_and_the_list_say_whether_a_kernel_was_counted(
    name: str, counted: bool, basis_text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bool(counted_on(name)) == counted
    gpu = "b200" if name == "fa4" else "h100"
    problem = AttentionProblem(heads=16, seq_q=256, head_dim=128, dtype="bf16", mask="causal")
    why = ". ".join(basis([predict(problem, name, gpu)]))
    assert ("no counters of this kernel" in why) == (not counted)
    assert ("checked against that GPU's counters" in why) == counted
    if basis_text is None:
        return
    assert main(["kernels", "list", "--format", "csv"]) == 0
    rows = {row["name"]: row for row in csv.DictReader(capsys.readouterr().out.splitlines())}
    assert rows[name]["checked"] == basis_text
    assert main(["kernels", "show", name]) == 0
    assert f"\nchecked against: {basis_text}" in capsys.readouterr().out


def test_a_file_of_the_catalog_is_checked_where_it_lies(tmp_path: Path) -> None:
    file = Path(loader.__file__).with_name("fa2.toml")
    assert check_file(str(file)) == []
    (copy := tmp_path / "fa2.toml").write_bytes(file.read_bytes())
    (problem,) = check_file(str(copy))
    assert "is the catalog's" in str(problem)
