"""Instantiations: their limits, their shared memory, the compiler's report, and the committed resource table."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.evidence.cuda import BwdSpec, FwdSpec, MinimalSpec, NaiveSpec, build, compiler, driver, find_nvcc
from iosim.evidence.cuda.compiler import cache_key, parse_report
from iosim.evidence.cuda.microbench import cliff_bytes
from iosim.evidence.cuda.resources import COLUMNS, candidates, measure, read_table, row_key, source_digest

TABLE = data_dir("kernels") / "resources.csv"
TILE = FwdSpec(128, 128, 64, 4, 2, "causal", min_ctas=2)


def nvcc_or_skip() -> Path:
    try:
        return find_nvcc()
    except InputError as error:
        pytest.skip(str(error))


def table_row(cc: str, spec: FwdSpec) -> dict[str, str]:
    with TABLE.open(newline="") as file:
        wanted = dict(zip(COLUMNS[:9], row_key(cc, spec), strict=True))
        return next(row for row in csv.DictReader(file) if wanted.items() <= row.items())


@pytest.mark.parametrize(
    ("cc", "spec"),
    [
        ("7.5", FwdSpec(64, 64, 64, 4, 1, "causal", "fp16")),
        ("8.0", FwdSpec(128, 64, 64, 4, 2)),
        ("8.6", FwdSpec(96, 128, 32, 4, 2)),
        ("8.9", FwdSpec(64, 128, 64, 4, 2, "causal")),
        ("9.0", FwdSpec(128, 128, 64, 4, 2, "causal")),
        ("9.0", FwdSpec(256, 64, 32, 4, 1)),
    ],
)
def test_sample_compiles_to_its_row(cc: str, spec: FwdSpec) -> None:
    nvcc, row = nvcc_or_skip(), table_row(cc, spec)
    if compiler.compiler_version(nvcc) != row["compiler"]:
        pytest.skip(f"the table is of nvcc {row['compiler']}; here is {compiler.compiler_version(nvcc)}")
    assert measure(cc, spec, nvcc) == row


def test_table_is_whole_and_of_these_sources() -> None:
    rows = read_table(TABLE)
    assert rows, f"resources.toml is not of the sources here, whose digest is {source_digest()}"
    assert set(rows) == {row_key(cc, spec) for cc, spec in candidates()}
    for cc in ("8.0", "9.0"):  # the tiles that the plan uses by default
        assert int(rows[row_key(cc, replace(TILE, min_ctas=1))]["spill_store_bytes"]) == 0


def test_table_columns_are_consistent() -> None:
    for row in read_table(TABLE).values():
        q, k, stages, d = (int(row[name]) for name in ("block_q", "block_k", "stages", "head_dim"))
        assert int(row["dynamic_smem_bytes"]) == 2 * d * (q + 2 * stages * k)  # Q once, K and V per stage
        assert int(row["static_smem_bytes"]) == 128
        cap = 65_536 // (32 * int(row["warps"]) * int(row["min_ctas"]))
        assert 0 < int(row["registers"]) <= min(255, cap)


@pytest.mark.parametrize(
    ("spec", "cc", "message"),
    [
        (FwdSpec(80, 128, 64, 4), "9.0", "head_dim 80 is not built; accepted: 64, 96, 128, 256"),
        (FwdSpec(64, 96, 64, 4), "9.0", "tile 96x64 with 4 warps is not built; block_q must be a multiple of 16"),
        (FwdSpec(64, 128, 40, 4), "9.0", "block_k must be a multiple of 16"),
        (FwdSpec(64, 128, 64, 4, dtype="fp8"), "9.0", "dtype fp8 is not built; accepted: fp16, bf16"),
        (FwdSpec(64, 128, 64, 4, dtype="bf16"), "7.5", "dtype bf16 has no tensor-core product"),
        (FwdSpec(128, 128, 128, 4, 2), "8.6", "needs 163968 bytes of shared memory; .* 8.6 has 101376"),
        (FwdSpec(64, 128, 64, 4), "6.1", "compute capability '6.1' is not supported"),
        (FwdSpec(64, 128, 64, 4), "nine", "compute capability 'nine' is not supported"),
        (BwdSpec(64, 64, 64, 8), "9.0", "block_k must be 16"),
        (BwdSpec(64, 64, 128, 8), "7.5", "8.0 and later"),
        (BwdSpec(128, 64, 128, 8), "8.6", "needs 148608 bytes of shared memory"),
        (NaiveSpec(64, "int8"), "9.0", "dtype int8 is not built"),
        (MinimalSpec(80), "9.0", "head_dim 80 is not built"),
    ],
)
def test_what_cannot_exist_is_refused(spec: FwdSpec | BwdSpec | NaiveSpec | MinimalSpec, cc: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        spec.check(cc)


def test_no_compiler_and_no_driver_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiler.os, "access", lambda *_: False)
    with pytest.raises(InputError, match="no CUDA compiler"):
        build(TILE, "9.0")

    def no_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(driver.ctypes, "CDLL", no_library)
    driver._library.cache_clear()
    with pytest.raises(InputError, match="no NVIDIA driver"):
        driver.multiprocessors()
    driver._library.cache_clear()


def test_cache_is_used_and_its_key_knows_the_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc_or_skip()
    monkeypatch.setenv("IOSIM_CACHE", str(tmp_path))
    first = build(MinimalSpec(32), "8.0")
    assert first.cubin.parent == tmp_path
    assert first.resources["minimal_fwd"].spill_store_bytes == 0
    monkeypatch.setattr(compiler, "compile_to", lambda *_: pytest.fail("compiled again"))
    assert build(MinimalSpec(32), "8.0") == first
    keys = {cache_key(MinimalSpec(d), cc, version) for d in (32, 64) for cc in ("8.0", "9.0") for version in ("a", "b")}
    assert len(keys) == 8
    copy = tmp_path / "kernels"
    copy.mkdir()
    (copy / "minimal.cu").write_text((data_dir("kernels") / "minimal.cu").read_text() + "\n")
    monkeypatch.setattr(compiler, "data_dir", lambda _: copy)
    assert cache_key(MinimalSpec(32), "8.0", "a") not in keys


def test_compiler_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc_or_skip()
    monkeypatch.setenv("IOSIM_CACHE", str(tmp_path))
    (tmp_path / "minimal.cu").write_text('static_assert(HEAD_DIM == 7, "seven");\n')
    monkeypatch.setattr(compiler, "data_dir", lambda _: tmp_path)
    with pytest.raises(InputError, match="static assertion failed") as caught:
        build(MinimalSpec(32), "8.0")
    assert "\n" not in str(caught.value)


def test_cliff_is_where_the_rate_leaves_the_l2() -> None:
    curve = [(4, 10.0), (8, 9.0), (16, 7.0), (32, 5.0), (64, 2.6)]
    assert cliff_bytes(curve, far_rate=2.5) == 32  # 5 is half-way between 2.5 and 10
    assert cliff_bytes(curve, far_rate=2.6) == 16


def test_report_of_several_kernels() -> None:
    report = """ptxas info    : Compiling entry function 'a' for 'sm_90'
ptxas info    : Function properties for a
    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size, 128 bytes smem
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers, used 0 barriers, 472 bytes cmem[0]
"""
    found = parse_report(report)
    assert found["a"] == compiler.Resources(255, 16, 24, 128)
    assert found["b"] == compiler.Resources(14, 0, 0, 0)
