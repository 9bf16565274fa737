"""Wheels for other machines: the table of platforms, what is read of an engine, conda's recipe; slow, all of it."""

from __future__ import annotations

import ast
import os
import re
import struct
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from scripts import ROOT, load_script

if not (ROOT / "release").is_dir():
    pytest.skip("iosim runs from an install without its sources", allow_module_level=True)
pytest.importorskip("hatchling")

wheels = load_script("release/wheels.py")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


# --- the table ----------------------------------------------------------------------------------------------------


def test_a_tag_names_the_machine_that_is_compiled_for() -> None:
    """And the oldest system, where the compiler is told of one."""
    systems = {
        "manylinux": "linux-gnu",
        "musllinux": "linux-musl",
        "macosx": "macos",
        "win": "windows-gnu",
    }
    machines = {"amd64": "x86_64", "arm64": "aarch64"}
    for tag, target in wheels.TARGETS.items():
        system, first, second, machine = re.fullmatch(
            r"([a-z]+)_(?:(\d+)_(\d+)_)?(\w+)", tag
        ).groups()
        oldest = f".{first}.{second}" if system in ("manylinux", "macosx") else ""
        assert target == f"{machines.get(machine, machine)}-{systems[system]}{oldest}"


def test_installers_know_the_tags() -> None:
    packaging = pytest.importorskip("packaging.tags")
    for tag in wheels.TARGETS:
        if tag.startswith("macosx"):
            machine = tag.removeprefix("macosx_11_0_")
            assert tag in packaging.mac_platforms((11, 0), machine)


@pytest.mark.parametrize("named", ["", "linux_x86_64", "win32"])
def test_a_platform_that_is_not_there_is_refused(
    named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        wheels.main([named])
    assert refused.value.code == 2
    assert "accepted: manylinux_2_17_x86_64" in capsys.readouterr().err


def test_the_hook_refuses_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = load_script("release/hatch_build.py")
    monkeypatch.setenv("IOSIM_WHEEL", "win32")
    build_hook = hook.EngineBuildHook(str(ROOT), {}, None, None, "", "wheel")
    with pytest.raises(ValueError, match=r"'win32'.*accepted: .*win_amd64"):
        build_hook.dependencies()
    monkeypatch.setenv("IOSIM_WHEEL", "win_amd64")
    assert build_hook.dependencies() == ["ziglang"]


# --- an engine ----------------------------------------------------------------------------------------------------


class Strings(bytearray):
    """Names that end with a zero, one after another."""

    def put(self, name: str) -> int:
        """Its place."""
        at = len(self)
        self.extend(name.encode() + b"\0")
        return at


EXPORTED = tuple(sorted(wheels.FUNCTIONS))


def elf(
    machine: int = 62,
    needs: Iterable[str] = ("libc.so.6",),
    exports: Iterable[str] = EXPORTED,
    versions: Iterable[str] = ("GLIBC_2.2.5", "GLIBC_2.14"),
) -> bytes:
    strings = Strings(b"\0")
    symbols = b"".join(
        struct.pack("<IBBHQQ", strings.put(name), 0x12, 0, 1, 0, 0) for name in exports
    )
    symbols += struct.pack("<IBBHQQ", strings.put("malloc"), 0x12, 0, 0, 0, 0)
    dynamic = b"".join(struct.pack("<qQ", 1, strings.put(name)) for name in needs)
    for version in versions:
        strings.put(version)
    parts = {3: bytes(strings), 11: symbols, 6: dynamic}
    body = b""
    headers = struct.pack("<IIQQQQIIQQ", *[0] * 10)
    for kind, part in parts.items():
        headers += struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, 64 + len(body), len(part), 1, 0, 0, 0)
        body += part
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01",
        3,
        machine,
        1,
        0,
        0,
        64 + len(body),
        0,
        64,
        0,
        0,
        64,
        len(parts) + 1,
        0,
    )
    return head + body + headers


def mach_o(
    machine: int = 0x100000C,
    oldest: int = 11 << 16,
    signed: bool = True,
    needs: Iterable[str] = ("/usr/lib/libSystem.B.dylib",),
    exports: Iterable[str] = EXPORTED,
) -> bytes:
    strings = Strings()
    symbols = b"".join(
        struct.pack("<IBBHQ", strings.put(f"_{name}"), 0x0F, 1, 0, 0) for name in exports
    )
    symbols += struct.pack("<IBBHQ", strings.put("_malloc"), 0x01, 0, 0, 0)
    commands = [
        struct.pack("<6I", 0x32, 24, 1, oldest, 0, 0),
        *[struct.pack("<4I", 0x1D, 16, 0, 0)] * signed,
    ]
    for name in needs:
        text = name.encode() + b"\0" * (8 - len(name) % 8)
        commands.append(struct.pack("<6I", 0xC, 24 + len(text), 24, 0, 0, 0) + text)
    at = 32 + sum(map(len, commands)) + 24
    commands.append(
        struct.pack("<6I", 2, 24, at, len(symbols) // 16, at + len(symbols), len(strings))
    )
    load = b"".join(commands)
    return (
        struct.pack("<8I", 0xFEEDFACF, machine, 0, 6, len(commands), len(load), 0, 0)
        + load
        + symbols
        + strings
    )


def pe(
    machine: int = 0x8664,
    needs: Iterable[str] = ("KERNEL32.dll", "api-ms-win-crt-heap-l1-1-0.dll"),
    exports: Iterable[str] = EXPORTED,
) -> bytes:
    base, at = 0x1000, 0x200  # of the one section: in memory, in the file
    data = Strings(40)
    places = [base + data.put(name) for name in exports]
    struct.pack_into("<IIII", data, 24, len(places), 0, base + len(data), 0)
    data += struct.pack(f"<{len(places)}I", *places)
    libraries = [base + data.put(name) for name in needs]
    imports = base + len(data)
    data += b"".join(struct.pack("<5I", 0, 0, 0, place, 0) for place in libraries) + bytes(20)
    head = (
        struct.pack("<2s58xI", b"MZ", 64)
        + b"PE\0\0"
        + struct.pack("<HHIIIHH", machine, 1, 0, 0, 0, 240, 0)
    )
    head += struct.pack("<112x4I112x", base, 40, imports, 20)
    head += struct.pack("<8s4I16x", b".rdata", len(data), base, len(data), at)
    return head.ljust(at, b"\0") + data


MUSL: dict[str, Any] = {"needs": ["libc.so"], "versions": []}
FITTING = {
    "manylinux_2_17_x86_64": elf(),
    "manylinux_2_17_aarch64": elf(183, versions=["GLIBC_2.17"]),
    "musllinux_1_2_x86_64": elf(**MUSL),
    "musllinux_1_2_aarch64": elf(183, **MUSL),
    "macosx_11_0_x86_64": mach_o(0x1000007, signed=False),
    "macosx_11_0_arm64": mach_o(),
    "win_amd64": pe(),
}


@pytest.mark.parametrize("platform", wheels.TARGETS)
def test_an_engine_fits_its_own_platform_alone(platform: str) -> None:
    assert {
        other for other, data in FITTING.items() if not wheels.misfits(platform, wheels.read(data))
    } == {platform}


@pytest.mark.parametrize(
    ("platform", "data", "reason"),
    [
        (
            "manylinux_2_17_x86_64",
            elf(versions=["GLIBC_2.9", "GLIBC_2.34"]),
            "it needs version 2.34 of the system",
        ),
        (
            "manylinux_2_17_x86_64",
            elf(needs=["libc.so.6", "libgcc_s.so.1"]),
            "it needs libgcc_s.so.1",
        ),
        ("musllinux_1_2_x86_64", elf(needs=[], versions=[]), "a C library of its own"),
        ("musllinux_1_2_x86_64", elf(needs=["libc.so"]), "it needs version 2.14"),
        ("macosx_11_0_arm64", mach_o(oldest=13 << 16 | 5 << 8), "it needs version 13.5"),
        ("macosx_11_0_arm64", mach_o(signed=False), "no code signature"),
        ("macosx_11_0_arm64", mach_o(exports=["iosim_replay"]), "it does not export iosim_access"),
        ("win_amd64", pe(0xAA64), "KeyError"),
        ("win_amd64", pe(needs=["libgcc_s_seh-1.dll"]), "it needs libgcc_s_seh-1.dll"),
        ("win_amd64", pe(exports=["iosim_sizes"]), "it does not export iosim_replay"),
    ],
    ids=lambda value: "library" if isinstance(value, bytes) else value,
)
def test_what_does_not_fit_is_told(platform: str, data: bytes, reason: str) -> None:
    try:
        message = "; ".join(wheels.misfits(platform, wheels.read(data)))
    except ValueError as error:
        message = str(error)
    assert reason in message


@pytest.mark.parametrize(
    "data",
    [b"", b"text", b"\x7fELF\x01\x01", b"MZ", b"MZ" + bytes(100), elf()[:200], pe()[:90]],
    ids=lambda data: len(data),
)
def test_what_is_no_whole_library_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"no (whole )?library"):
        wheels.read(data)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([], "has no engine"),
        ([elf() + b"another mark"], "of other sources"),
        (
            [mach_o() + wheels.load_build(str(ROOT)).mark()],
            "does not fit: it is Mach-O, not ELF; it is for arm64",
        ),
    ],
)
def test_a_wheel_with_another_engine_is_refused(
    entries: list[bytes], reason: str, tmp_path: Path
) -> None:
    wheel = tmp_path / "iosim-1-py3-none-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for data in entries:
            archive.writestr(wheels.ENGINE, data)
    with pytest.raises(ValueError, match=reason):
        wheels.check(wheel)


# --- what else a release has --------------------------------------------------------------------------------------


def test_condas_recipe_says_what_the_project_says() -> None:
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "release" / "recipe.yaml").read_text())
    project = PROJECT["project"]

    def spaced(requirements: Iterable[str]) -> set[str]:
        return {re.sub(r"(?=[<>=!~])", " ", requirement, count=1) for requirement in requirements}

    python = spaced([f"python{project['requires-python']}"])
    assert recipe["context"]["version"] == project["version"]
    assert recipe["package"] == {"name": project["name"], "version": "${{ version }}"}
    assert set(recipe["requirements"]["run"]) == spaced(project["dependencies"]) | python
    assert set(recipe["requirements"]["host"]) == spaced(
        PROJECT["build-system"]["requires"]
    ) | python | {"pip"}
    commands = [f"{name} = {function}" for name, function in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == commands
    assert recipe["about"]["license"] == project["license"]
    assert [recipe["about"]["license_file"]] == project["license-files"]
    assert recipe["about"]["summary"] == project["description"]


def test_nothing_that_one_system_alone_has_is_loaded_with_a_module() -> None:
    """A wheel for Windows holds the same modules: those of Unix alone are imported where they are used."""
    unix = {"fcntl", "grp", "pwd", "pty", "resource", "termios", "tty", "syslog"}
    for path in (ROOT / "iosim").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            assert not names & unix, path


# --- all of it ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all wheels."""
    if find_spec("ziglang") is None:
        pytest.skip(
            "ziglang, which compiles for other machines, is not installed: pip install 'iosim[release]'"
        )
    out = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, ROOT / "release" / "wheels.py", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_every_wheel_is_made_and_holds_no_path_of_this_machine(built_wheels: Path) -> None:
    version = PROJECT["project"]["version"]
    wheel_names = {path.name for path in built_wheels.iterdir()}
    assert wheel_names == {
        f"iosim-{version}.tar.gz",
        *(f"iosim-{version}-py3-none-{tag}.whl" for tag in wheels.TARGETS),
    }
    for wheel in built_wheels.glob("*.whl"):
        assert wheel.stat().st_size < 4e6
        with zipfile.ZipFile(wheel) as archive:
            engine = archive.read(wheels.ENGINE)
            (tags,) = [name for name in archive.namelist() if name.endswith(".dist-info/WHEEL")]
            assert f"Tag: py3-none-{wheel.stem.split('-')[-1]}\n" in archive.read(tags).decode()
        assert not re.search(rb"/(tmp|home|root|work)/", engine)
        assert str(ROOT).encode() not in engine


@pytest.mark.slow
def test_a_wheel_predicts_what_the_checkout_does_without_a_compiler(
    built_wheels: Path, tmp_path: Path
) -> None:
    tags = pytest.importorskip("packaging.tags")
    mine = [
        wheel
        for wheel in built_wheels.glob("*.whl")
        if wheel.stem.split("-")[-1] in tags.platform_tags()
    ]
    if len(mine) != 1:
        pytest.skip("none of the wheels is for this machine")
    home = tmp_path / "environment"
    venv.create(home, symlinks=os.name != "nt")
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            mine[0],
        ],
        check=True,
        timeout=120,
    )
    (site,) = home.rglob("site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    call = [
        "predict",
        "--gpu",
        "h200",
        "--kernel",
        "fa2,cudnn",
        "--heads",
        "8",
        "--seq-len",
        "16k",
        "--causal",
    ]
    bare = {"PATH": str(tmp_path), "HOME": str(tmp_path), "IOSIM_CACHE": "off"}

    def printed(*command: str | Path, **more: str) -> str:
        done = subprocess.run(
            [*command, *call, "--format", "json"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=tmp_path,
            env={**os.environ, **more},
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    installed = printed(scripts / "iosim", PYTHONPATH="", **bare)
    assert installed == printed(
        sys.executable, "-m", "iosim", PYTHONPATH=str(ROOT), IOSIM_CACHE="off"
    )
    with zipfile.ZipFile(mine[0]) as archive:
        assert (site / wheels.ENGINE).read_bytes() == archive.read(wheels.ENGINE), (
            "it was compiled anew"
        )
