"""Tools that read machine code: where they are looked for, what they say, and where none is, one line says which."""

from __future__ import annotations

import importlib.machinery
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.code import tools


def test_where_no_tool_is_one_line_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "candidates", lambda _: iter(()))
    with pytest.raises(
        InputError, match=r"nvdisasm is not found.*Triton wheel.*NVDISASM"
    ) as refused:
        tools.disassembled(b"")
    assert "\n" not in str(refused.value)


DEFAULT = Path("/usr/local/cuda/bin/nvdisasm")


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, []),
        ({"NVDISASM": "/own/tool"}, [Path("/own/tool")]),
        ({"CUDA_HOME": "/home"}, [Path("/home/bin/nvdisasm")]),
        ({"CUDA_PATH": "/path"}, [Path("/path/bin/nvdisasm")]),
        ({"CUDA_HOME": "/home", "CUDA_PATH": "/path"}, [Path("/home/bin/nvdisasm")]),
        (
            {"NVDISASM": "/own/tool", "CUDA_PATH": "/path"},
            [Path("/own/tool"), Path("/path/bin/nvdisasm")],
        ),
    ],
)
def test_where_a_tool_is_looked_for(
    environment: dict[str, str], first: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stated goes before CUDA's folder, the PATH and the Triton wheel."""
    for name in ("NVDISASM", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tools.shutil, "which", lambda name: f"/on/path/{name}")
    wheel = importlib.machinery.ModuleSpec("triton", None, is_package=True)
    wheel.submodule_search_locations = ["/wheel"]
    for spec, last in (
        (None, []),
        (SimpleNamespace(submodule_search_locations=None), []),
        (wheel, [Path("/wheel/backends/nvidia/bin/nvdisasm")]),
    ):
        monkeypatch.setattr(tools, "find_spec", lambda _, spec=spec: spec)
        places = list(tools.candidates("nvdisasm"))
        assert places == [*first, Path("/on/path/nvdisasm"), DEFAULT, *last]
    monkeypatch.setattr(tools.shutil, "which", lambda _: None)
    assert list(tools.candidates("nvdisasm"))[: len(first) + 1] == [*first, DEFAULT]


@pytest.mark.parametrize(
    ("code", "out", "error", "message"),
    [
        (0, "listing", "a warning", None),
        (1, "out", "first\nlast", "last"),
        (1, "only out\nof it", "", "of it"),
        (255, "", " \n", "nothing"),
    ],
)
def test_what_a_tool_prints_or_why_it_refuses(
    code: int, out: str, error: str, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = SimpleNamespace(returncode=code, stdout=out, stderr=error)
    monkeypatch.setattr(tools, "find_tool", lambda name: Path("/bin") / name)
    monkeypatch.setattr(tools.subprocess, "run", lambda *_, **__: done)
    if message is None:
        assert tools.run_tool("nvdisasm") == out
        return
    with pytest.raises(InputError, match=f"nvdisasm cannot read the machine code: {message}$"):
        tools.run_tool("nvdisasm")


@pytest.mark.parametrize(
    ("target", "arch"),
    [
        (".target sm_90a", "sm_90a"),  # for one architecture alone
        (".target sm_100f, debug", "sm_100f"),
        (".target sm_80", "sm_90"),
        ("", "sm_90"),
    ],
)
def test_for_which_gpu_ptx_is_assembled(
    target: str, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words_passed: list[Any] = []

    def run(*words: Any) -> str:
        words_passed.extend(words)
        Path(words[words.index("-o") + 1]).write_bytes(b"cubin")
        return ""

    monkeypatch.setattr(tools, "run_tool", run)
    assert tools.assembled(f".version 8.0\n{target}\n", 90) == b"cubin"
    assert f"-arch={arch}" in words_passed
