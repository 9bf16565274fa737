"""The wheel: what it holds, that it adds one name, and that it works where there is no checkout."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from scripts import ROOT

import iosim
from iosim.evidence.published.tables import shipped

IN_CHECKOUT = (ROOT / "pyproject.toml").is_file()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not IN_CHECKOUT, reason="iosim runs from an install without its sources"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the checkout, without the network."""
    if find_spec("hatchling") is None or find_spec("pip") is None:
        pytest.skip("building a wheel needs pip and hatchling")
    out = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        str(ROOT),
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--quiet",
        "--wheel-dir",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (wheel_built,) = out.glob("*.whl")
    return wheel_built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_iosim_is_the_only_name_it_adds(names: set[str]) -> None:
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == {"iosim"}


def test_it_carries_the_data(names: set[str]) -> None:
    def shipped(folder: str, pattern: str, at: str) -> set[str]:
        names = {f"{at}/{p.name}" for p in (ROOT / folder).glob(pattern)}
        assert names
        return names

    assert names >= shipped("hardware_profiles", "*.toml", "iosim/_data/hardware_profiles")
    assert names >= shipped("iosim/catalog/libraries", "*.toml", "iosim/catalog/libraries")
    assert names >= shipped("kernels/measurements", "*.csv", "iosim/_data/kernels/measurements")
    assert names >= shipped("kernels", "*.cu", "iosim/_data/kernels")
    assert names >= shipped("kernels", "*.csv", "iosim/_data/kernels")
    assert "iosim/py.typed" in names


def test_of_what_was_recorded_it_carries_what_commands_read(names: set[str]) -> None:
    """A table that the package names in its code lies in kernels/, every other one in experiments/; so do those of
    `validate --times`, which needs a checkout and says so, and of fitted numbers."""
    recorded = {
        p.name for folder in ("kernels", "experiments") for p in (ROOT / folder).rglob("*.csv")
    }
    recorded |= {p.name for p in (ROOT / "experiments").rglob("*.npz")}
    read = set()
    for module in (ROOT / "iosim").rglob("*.py"):
        if module.parent == ROOT / "iosim" / "evidence" / "times" or module.stem == "fitted":
            continue
        texts = [
            n.value for n in ast.walk(ast.parse(module.read_text())) if isinstance(n, ast.Constant)
        ]
        read |= {t.removeprefix("measurements/") for t in texts if isinstance(t, str)} & recorded
    read |= {path.name for path in shipped()}
    carried = {
        n.split("/")[-1]
        for n in names
        if n.startswith("iosim/_data") and n.endswith((".csv", ".npz"))
    }
    assert carried == read
    assert len(recorded) > 2 * len(carried)


def test_it_carries_no_scripts_beside_its_modules(names: set[str]) -> None:
    kinds = {Path(n).suffix for n in names if n.startswith("iosim/_data/kernels/")}
    assert kinds == {".cu", ".cuh", ".csv", ".toml", ".md"}
    sources = {Path(n).name for n in names if n.endswith(".cu")}
    assert sources == {p.name for p in (ROOT / "kernels").glob("*.cu")}


def test_it_carries_every_module_and_no_build_product(names: set[str]) -> None:
    modules = {p.relative_to(ROOT).as_posix() for p in (ROOT / "iosim").rglob("*.py")}
    assert names >= modules
    assert not [n for n in names if n.endswith((".pyc", ".cubin")) or "__pycache__" in n]
    assert {n for n in names if n.endswith(".so")} <= {"iosim/readers/replay/_engine.so"}


@pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler"
)
def test_it_carries_the_compiled_replay_engine(wheel: Path, names: set[str]) -> None:
    assert "iosim/readers/replay/_engine.so" in names
    assert not wheel.name.endswith("-none-any.whl"), (
        "a compiled engine makes the wheel a platform's"
    )


def test_metadata(wheel: Path, names: set[str]) -> None:
    info = next(n for n in names if n.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(info).decode()
        entry = archive.read(info.replace("METADATA", "entry_points.txt")).decode()
    assert f"Version: {iosim.__version__}" in text
    assert "License-Expression: Apache-2.0" in text
    assert not re.search(r"^Requires-Dist: torch(?!.*extra)", text, re.M), (
        "torch comes in extras only"
    )
    assert "iosim = iosim.__main__:script" in entry
    assert any(n.endswith("/LICENSE") for n in names)


def test_it_works_without_a_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    for arguments, expected in (
        (["-c", "import iosim; print(iosim.__file__)"], str(tmp_path / "site")),
        (["-m", "iosim", "predict", "--kernel", "fa2"], "SM <-> L2"),
        (["-m", "iosim", "profiles", "list"], "h200-sxm"),
        (["-m", "iosim", "reproduce", "--section", "B"], "measured on an H200, flash"),
    ):
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
            env=env,
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout


def test_constraints_pin_every_dependency() -> None:
    pinned = dict(
        re.findall(r"^([a-z0-9-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(r for rows in project["optional-dependencies"].values() for r in rows),
    ]
    for requirement in wanted:
        assert re.split(r"[<>=!~ \[]", requirement)[0].lower() in pinned, requirement
    assert project["version"] == iosim.__version__


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert text.count("\n") > 190


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (command,) = {line for b in blocks for line in b.splitlines() if "pytest" in line}
    assert command.replace("pip install -c", "pip install --quiet -c") in script
