"""The engine is there: compiled with any compiler, again when its sources change, and never taken for another."""

from __future__ import annotations

import ctypes as ct
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from iosim.readers.replay import build
from iosim.readers.replay.library import HEADER, LAYOUT, Layout, library

pytestmark = pytest.mark.slow

PREDICT = ["predict", "--gpu", "h200", "--kernel", "fa2", "--heads", "2", "--seq-len", "256"]
needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="no C compiler")


def iosim(
    *arguments: str, engine: str | Path | None = None, cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    named = {} if engine is None else {"IOSIM_ENGINE": str(engine)}
    return subprocess.run(
        [sys.executable, "-m", "iosim", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
        env={**os.environ, **named, **more},
    )


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the engine's sources."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for file in (*build.FOLDER.glob("*.c"), *build.FOLDER.glob("*.h")):
        shutil.copy(file, folder)
    return folder


@pytest.fixture
def bare_path(tmp_path: Path) -> str:
    """A PATH of its own, without a C compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("env", "sh", "uname", "ldd"):
        path = shutil.which(name)
        if path:
            (folder / name).symlink_to(path)
    return str(folder)


def not_an_engine(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / "engine.so"
    if kind == "text":
        path.write_text("text")
    if kind == "the mark alone":
        path.write_bytes(build.mark())
    return path


# --- where there is none ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "start"),
    [("nowhere", "cold"), ("text", "cold"), ("the mark alone", "cold"), ("nowhere", "warm")],
)
def test_without_an_engine_a_prediction_is_the_capacity_rules(
    kind: str, start: str, tmp_path: Path
) -> None:
    call = [*PREDICT, "--l2", start, "--format", "json"]
    completed = iosim(*call, engine=not_an_engine(tmp_path, kind))
    by_capacity = iosim(*call, "--method", "capacity")
    assert completed.returncode == 0
    assert completed.stderr.count("\n") == 1
    assert "capacity rule" in completed.stderr
    assert json.loads(completed.stdout)["predictions"][0]["method"] == "capacity"
    assert completed.stdout == by_capacity.stdout


def test_several_predictions_without_an_engine_say_so_once(tmp_path: Path) -> None:
    completed = iosim(
        "compare",
        "--kernel",
        "naive,fa2",
        "--gpu",
        "a100,l4",
        "--seq-len",
        "256",
        engine=tmp_path / "none",
    )
    assert completed.returncode == 0
    assert completed.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [*PREDICT, "--method", "replay"],
        ["trace", *PREDICT[1:]],
        ["explain", *PREDICT[1:]],
    ],
)
def test_what_needs_a_replay_is_refused_in_one_line(arguments: list[str], tmp_path: Path) -> None:
    completed = iosim(*arguments, engine=tmp_path / "none")
    assert completed.returncode == 2
    assert completed.stdout == ""
    assert completed.stderr.count("\n") <= 2
    assert "no engine of this version" in completed.stderr


def test_without_an_engine_nothing_is_validated(tmp_path: Path) -> None:
    completed = iosim("validate", "--fail-above", "hbm_read=500%", engine=tmp_path / "none")
    assert completed.returncode == 2
    assert completed.stderr.count("\n") == 1
    assert "nothing was checked" in completed.stderr


# --- compiling ----------------------------------------------------------------------------------------------------


@needs_compiler
def test_an_engine_of_other_sources_is_not_taken_for_one(sources: Path, tmp_path: Path) -> None:
    """Two latencies change places in the structure: an engine of that header is refused, not read wrongly."""
    header = sources / "shared.h"
    text = header.read_text()
    swapped = re.sub(r"l2_latency_ps, far_latency_ps", "far_latency_ps, l2_latency_ps", text)
    assert swapped != text
    header.write_text(swapped)
    engine = tmp_path / "engine.so"
    build.compile_engine(engine, sources, ("-O0",))
    assert build.is_current(engine, sources)
    assert not build.is_current(engine)
    completed = iosim(*PREDICT, "--method", "replay", engine=engine)
    assert completed.returncode == 2
    assert "no engine of this version" in completed.stderr


@needs_compiler
def test_a_changed_source_makes_an_engine_old(sources: Path, tmp_path: Path) -> None:
    engine = tmp_path / "engine.so"
    build.compile_engine(engine, sources, ("-O0",))
    assert build.is_current(engine, sources)
    for name in ("cache.h", "engine.c"):
        (sources / name).write_text((sources / name).read_text() + "\n")
        assert not build.is_current(engine, sources)
        build.compile_engine(engine, sources, ("-O0",))
        assert build.is_current(engine, sources)


@needs_compiler
@pytest.mark.parametrize("before", ["missing", "old"])
def test_a_checkout_compiles_its_engine_when_it_needs_it(before: str, tmp_path: Path) -> None:
    """A package with no engine, or one of other sources, replays what the compiled one does."""
    package = tmp_path / "iosim"
    shutil.copytree(
        build.FOLDER.parents[1], package, ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    for name in ("hardware_profiles", "kernels"):
        if (build.FOLDER.parents[2] / name).is_dir():
            (tmp_path / name).symlink_to(build.FOLDER.parents[2] / name)
    engine = package / "readers" / "replay" / "_engine.so"
    if before == "old":
        engine.write_bytes(b"iosim-engine-sources:;")
    completed = iosim(*PREDICT, "--format", "json", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert completed.stderr == ""
    assert build.is_current(engine, package / "readers" / "replay")
    assert completed.stdout == iosim(*PREDICT, "--format", "json", engine=library()._name).stdout
    assert not list(engine.parent.glob(".*")), "nothing half-written"


def test_a_source_that_does_not_compile_leaves_no_file(sources: Path, tmp_path: Path) -> None:
    (sources / "engine.c").write_text("this is not C")
    with pytest.raises(build.BuildError):
        build.compile_engine(tmp_path / "engine.so", sources)
    assert [p.name for p in tmp_path.iterdir()] == ["sources"]


def test_without_a_compiler_there_is_an_error(
    bare_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", bare_path)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build, "find_spec", lambda _: None)
    assert build.compiler() is None
    with pytest.raises(build.BuildError, match="no C compiler"):
        build.compile_engine(tmp_path / "engine.so")


@needs_compiler
def test_a_compiler_that_does_not_work_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without the C library's headers, say."""
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    assert build.system_compiler() != [str(broken)]


@pytest.mark.skipif(find_spec(build.COMPILER_PACKAGE) is None, reason="ziglang is not installed")
def test_the_compiler_package_makes_the_same_engine(
    bare_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "engine.so"
    with monkeypatch.context() as changed:
        changed.setenv("PATH", bare_path)
        changed.delenv("CC", raising=False)
        assert build.system_compiler() is None
        build.compile_engine(engine)
    rebuilt = iosim(*PREDICT, engine=engine)
    original = iosim(*PREDICT)
    assert rebuilt.stderr == ""
    assert rebuilt.stdout == original.stdout


# --- one layout ---------------------------------------------------------------------------------------------------


def test_the_header_is_read_as_the_compiler_reads_it() -> None:
    sizes = (ct.c_int32 * len(LAYOUT.structures))()
    library().iosim_sizes(sizes)
    assert list(sizes) == [ct.sizeof(structure) for structure in LAYOUT.structures.values()]


@needs_compiler
def test_every_field_lies_where_the_compiler_puts_it(tmp_path: Path) -> None:
    lines = [
        f"(int)offsetof({name}, {field}), (int)sizeof((({name} *)0)->{field}),"
        for name, structure in LAYOUT.structures.items()
        for field, _ in structure._fields_
    ]
    (tmp_path / "engine.c").write_text(
        f'#include <stddef.h>\n#include "{HEADER}"\nconst int offsets[] = {{{" ".join(lines)}}};\n'
    )
    build.compile_engine(tmp_path / "offsets.so", tmp_path)
    offsets = (ct.c_int * (2 * len(lines))).in_dll(ct.CDLL(str(tmp_path / "offsets.so")), "offsets")
    wanted = [
        n
        for structure in LAYOUT.structures.values()
        for field, _ in structure._fields_
        for n in (getattr(structure, field).offset, getattr(structure, field).size)
    ]
    assert list(offsets) == wanted


def test_a_header_of_another_grammar_is_refused() -> None:
    known = "#define N 3\nenum { A = 1, B = -2 };\ntypedef struct { int32_t a, b[N + 1]; const int64_t *c; } One;\n"
    layout = Layout(known)
    assert layout.constants == {"N": 3, "A": 1, "B": -2}
    assert [name for name, _ in layout.structures["One"]._fields_] == ["a", "b", "c"]
    assert layout.structures["One"].b.size == 16
    for wrong in (
        "typedef struct { float a; } Two;",
        "typedef struct { int32_t a : 3; } Two;",
        "typedef int Two;",
        "typedef struct { Three a; } Two;",
        "int x;",
    ):
        with pytest.raises(ValueError, match="not understood"):
            Layout(known + wrong)
