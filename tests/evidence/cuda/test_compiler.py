"""Instantiations: their limits, their shared memory, the compiler's report, and the committed resource table."""

from __future__ import annotations

import csv
import ctypes
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from scripts import ROOT, load_script

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.evidence.cuda import compiler, driver, launch, microbench
from iosim.evidence.cuda.compiler import build, cache_key, find_nvcc, parse_report
from iosim.evidence.cuda.microbench import cliff_bytes
from iosim.evidence.cuda.spec import BwdSpec, FwdSpec, MinimalSpec, NaiveSpec
from iosim.evidence.cuda.tile_builds import read_table, row_key, source_digest
from iosim.evidence.measure import machine

ENDS, FOLLOWERS, SETS, RESOURCES = (
    load_script(f"experiments/{name}.py") for name in ("ends", "followers", "sets", "resources")
)
TABLE = data_dir("kernels") / "resources.csv"
TILE = FwdSpec(128, 128, 64, 4, 2, "causal", min_ctas=2)


def test_cubins_lie_in_iosims_cache_or_go_with_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A word that switches the cache off is no folder's name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("IOSIM_CACHE", "off")
    assert compiler.cubin_dir().is_absolute()
    assert compiler.cubin_dir() == compiler.cubin_dir()
    assert tmp_path not in compiler.cubin_dir().parents
    monkeypatch.setenv("IOSIM_CACHE", str(tmp_path / "named"))
    assert compiler.cubin_dir() == tmp_path / "named"
    monkeypatch.delenv("IOSIM_CACHE")
    assert compiler.cubin_dir() == tmp_path / "iosim" / "kernels"


def nvcc_or_skip() -> Path:
    try:
        return find_nvcc()
    except InputError as error:
        pytest.skip(str(error))


def table_row(cc: str, spec: FwdSpec) -> dict[str, str]:
    with TABLE.open(newline="") as file:
        wanted = dict(zip(tuple(RESOURCES.COLUMNS)[:9], row_key(cc, spec), strict=True))
        return next(row for row in csv.DictReader(file) if wanted.items() <= row.items())


@pytest.mark.slow
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
        pytest.skip(
            f"the table is of nvcc {row['compiler']}; here is {compiler.compiler_version(nvcc)}"
        )
    assert RESOURCES.measure(cc, spec, nvcc) == row


def test_table_is_whole_and_of_these_sources() -> None:
    rows = read_table(TABLE)
    assert rows, f"resources.toml is not of the sources here, whose digest is {source_digest()}"
    assert set(rows) == {row_key(cc, spec) for cc, spec in RESOURCES.candidates()}
    for cc in ("8.0", "9.0"):  # the tiles that the plan uses by default
        assert int(rows[row_key(cc, replace(TILE, min_ctas=1))]["spill_store_bytes"]) == 0


def test_table_columns_are_consistent() -> None:
    for row in read_table(TABLE).values():
        q, k, stages, d = (int(row[name]) for name in ("block_q", "block_k", "stages", "head_dim"))
        assert int(row["dynamic_smem_bytes"]) == 2 * d * (
            q + 2 * stages * k
        )  # Q once, K and V per stage
        assert int(row["static_smem_bytes"]) == 128
        cap = 65_536 // (32 * int(row["warps"]) * int(row["min_ctas"]))
        assert 0 < int(row["registers"]) <= min(255, cap)


@pytest.mark.parametrize(
    ("spec", "cc", "message"),
    [
        (FwdSpec(80, 128, 64, 4), "9.0", "head_dim 80 is not built; accepted: 64, 96, 128, 256"),
        (
            FwdSpec(64, 96, 64, 4),
            "9.0",
            "tile 96x64 with 4 warps is not built; block_q must be a multiple of 16",
        ),
        (FwdSpec(64, 128, 40, 4), "9.0", "block_k must be a multiple of 16"),
        (
            FwdSpec(64, 128, 64, 4, dtype="fp8"),
            "9.0",
            "dtype fp8 is not built; accepted: fp16, bf16",
        ),
        (FwdSpec(64, 128, 64, 4, dtype="bf16"), "7.5", "dtype bf16 has no tensor-core product"),
        (
            FwdSpec(128, 128, 128, 4, 2),
            "8.6",
            "needs 163968 bytes of shared memory; .* 8.6 has 101376",
        ),
        (FwdSpec(64, 128, 64, 4), "6.1", "compute capability '6.1' is not supported"),
        (FwdSpec(64, 128, 64, 4), "nine", "compute capability 'nine' is not supported"),
        (BwdSpec(64, 64, 64, 8), "9.0", "block_k must be 16"),
        (BwdSpec(64, 64, 128, 8), "7.5", "8.0 and later"),
        (BwdSpec(128, 64, 128, 8), "8.6", "needs 148608 bytes of shared memory"),
        (NaiveSpec(64, "int8"), "9.0", "dtype int8 is not built"),
        (MinimalSpec(80), "9.0", "head_dim 80 is not built"),
    ],
)
def test_what_cannot_exist_is_refused(
    spec: FwdSpec | BwdSpec | NaiveSpec | MinimalSpec, cc: str, message: str
) -> None:
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


def test_cache_is_used_and_its_key_knows_the_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvcc_or_skip()
    monkeypatch.setenv("IOSIM_CACHE", str(tmp_path))
    first = build(MinimalSpec(32), "8.0")
    assert first.cubin.parent == tmp_path
    assert first.resources["minimal_fwd"].spill_store_bytes == 0
    monkeypatch.setattr(compiler, "compile_to", lambda *_: pytest.fail("compiled again"))
    assert build(MinimalSpec(32), "8.0") == first
    keys = {
        cache_key(MinimalSpec(d), cc, version)
        for d in (32, 64)
        for cc in ("8.0", "9.0")
        for version in ("a", "b")
    }
    assert len(keys) == 8
    copy = tmp_path / "kernels"
    copy.mkdir()
    (copy / "minimal.cu").write_text((data_dir("kernels") / "minimal.cu").read_text() + "\n")
    monkeypatch.setattr(compiler, "data_dir", lambda _: copy)
    assert cache_key(MinimalSpec(32), "8.0", "a") not in keys


@pytest.mark.slow
def test_spilled_registers_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nvcc_or_skip()
    monkeypatch.setenv("IOSIM_CACHE", str(tmp_path))
    spilling = FwdSpec(128, 128, 64, 4, 1, "causal", q_in_registers=True, min_ctas=2)
    whole = MinimalSpec(32)
    for _ in ("compiled", "from the cache"):
        machine.prebuild([whole, spilling], "9.0")
        (line,) = capsys.readouterr().err.splitlines()
        spilled = build(spilling, "9.0").resources["flash_fwd"].spill_store_bytes
        assert spilled > 0
        assert repr(spilling) in line
        assert f"{spilled} bytes" in line
    assert not build(whole, "9.0").warnings


@pytest.mark.slow
def test_the_headers_go_together(tmp_path: Path) -> None:
    """Each by itself and all of them in one unit, in either order."""
    headers = sorted(p.name for p in data_dir("kernels").glob("*.cuh") if "sm90" not in p.name)
    assert {"flash_fwd.cuh", "flash_bwd.cuh"} <= set(headers)
    unit = tmp_path / "all.cu"
    for order in (headers, headers[::-1]):
        unit.write_text("".join(f'#include "{name}"\n' for name in order))
        assert not compiled(unit, "8.0")


def compiled(unit: Path, cc: str) -> str:
    """What nvcc says of a source, which may include what is in kernels/; nothing where it is right."""
    command = [
        nvcc_or_skip(),
        "-std=c++17",
        "-cubin",
        *compiler.architecture(cc),
        f"-I{data_dir('kernels')}",
    ]
    done = subprocess.run(
        [*command, unit, "-o", unit.with_suffix(".cubin")],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


STRUCTURES = [
    (launch.FwdParams, "flash_fwd.cuh", "flash::FwdParams", ""),
    (launch.BwdParams, "flash_bwd.cuh", "flash::BwdParams", ""),
    (launch.NaiveParams, "naive.cu", "NaiveParams", "HEAD_DIM 64|ELEMENT 0"),
    (launch.MinimalParams, "minimal.cu", "MinimalParams", "HEAD_DIM 64"),
    (microbench.MicroParams, "microbench.cu", "MicroParams", ""),
    (ENDS.EndsParams, "ends.cu", "EndsParams", ""),
    (FOLLOWERS.Params, "followers.cu", "FollowParams", ""),
    (SETS.SetsParams, "sets.cu", "SetsParams", ""),
    (SETS.OrdersParams, "sets.cu", "OrdersParams", ""),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mirror", "source", "name", "macros"), STRUCTURES, ids=[row[2] for row in STRUCTURES]
)
def test_parameters_lie_where_python_puts_them(
    mirror: type[ctypes.Structure], source: str, name: str, macros: str, tmp_path: Path
) -> None:
    """Every field's offset and size, and the structure's size, by the compiler; a wrong offset is refused."""
    folder = next(f for f in (data_dir("kernels"), ROOT / "experiments") if (f / source).is_file())
    include = "".join(f"#define {macro}\n" for macro in macros.split("|") if macro)
    include += f'#include "{folder / source}"\n#include <cstddef>\n'
    fields = {field: getattr(mirror, field) for field, _ in mirror._fields_}

    def probe(move: int) -> str:
        checks = [f"sizeof({name}) == {ctypes.sizeof(mirror)}"]
        for field, place in fields.items():
            checks.append(f"offsetof({name}, {field}) == {place.offset + move}")
            checks.append(f"sizeof({name}::{field}) == {place.size}")
        unit = tmp_path / f"probe{move}.cu"
        unit.write_text(
            include + "".join(f'static_assert({check}, "layout");\n' for check in checks)
        )
        return compiled(unit, "9.0")

    assert not probe(0)
    assert "static assertion failed" in probe(4)


@pytest.mark.parametrize(
    ("mirror", "source", "name", "macros"), STRUCTURES, ids=[row[2] for row in STRUCTURES]
)
def test_parameters_have_the_names_of_the_source(
    mirror: type[ctypes.Structure], source: str, name: str, macros: str
) -> None:
    """Also where there is no compiler: two fields of one size that change places."""
    folder = next(f for f in (data_dir("kernels"), ROOT / "experiments") if (f / source).is_file())
    text = (folder / source).read_text()
    body = re.search(rf"struct {name.split('::')[-1]} {{(.*?)}};", text, re.S)
    assert body is not None
    declarations = re.sub(r"//.*", "", body.group(1)).split(";")
    in_source = [
        re.findall(r"(\w+)\s*$", part)[0]
        for line in declarations
        if line.strip()
        for part in line.split(",")
    ]
    assert in_source == [field for field, _ in mirror._fields_]


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
    resources = parse_report(report)
    assert resources["a"] == compiler.Resources(255, 16, 24, 128, 8)
    assert resources["b"] == compiler.Resources(14, 0, 0, 0, 0)
