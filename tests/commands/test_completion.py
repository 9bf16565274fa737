"""Completion by the Tab key: what is offered, and the scripts in the shells that are there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from iosim.base.schema import read_toml
from iosim.commands import completion
from iosim.commands.cli import COMMANDS, build_parser, main
from iosim.commands.completion import FILE


def candidates(words: list[str]) -> list[str]:
    return completion.candidates(words, COMMANDS, build_parser)


@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("", COMMANDS, ("a100",)),
        ("pre", ("predict",), ("compare",)),
        ("predict --g", ("--gpu",), ("--gpus",)),
        ("predict --gpu a1", ("a100", "a10"), ("h100",)),
        ("predict --gpu = a1", ("a100",), ()),
        ("predict --gpu a100,h1", ("a100,h100",), ("h100",)),
        ("tiles --kernel ", (), ()),
        ("predict --kernel fa", ("fa2", "fa3"), ("cudnn",)),
        ("predict --dtype b", ("bf16",), ("fp16",)),
        ("predict --pass ", ("fwd", "bwd", "fwd+bwd"), ()),
        ("predict --method sa", ("sampled",), ("replay",)),
        ("measure --kernel ", ("flash_fwd",), ("fa2",)),
        ("profiles ", ("list", "show", "check"), ("a100",)),
        ("profiles show h2", ("h200",), ("a100",)),
        ("profiles show --f", ("--format",), ()),
        ("formula fl", ("flash",), ("fa2",)),
        ("schema tra", ("trace", "train-memory"), ("predict",)),
    ],
)
def test_what_is_offered(line: str, offered: tuple[str, ...], not_offered: tuple[str, ...]) -> None:
    offers = candidates(line.split(" "))
    assert set(offered) <= set(offers)
    assert not set(not_offered) & set(offers)
    assert all(name.startswith(line.split(" ")[-1]) for name in offers)


@pytest.mark.parametrize(
    "line", ["predict --mask-file ", "predict --heads ", "predict --out x", "nosuch x", "predict x"]
)
def test_where_a_file_or_a_number_may_stand_nothing_is_offered(line: str) -> None:
    assert candidates(line.split(" ")) == []


def with_iosim(folder: Path) -> dict[str, str]:
    """An environment in which `iosim` is this package's."""
    command = folder / "iosim"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m iosim "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def shell(name: str, script: str, folder: Path) -> list[str]:
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name}")
    file = folder / "script"
    file.write_text(read_toml(FILE)[name]["script"])
    done = subprocess.run(
        [name, "-c", script.replace("SCRIPT", str(file))],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=with_iosim(folder),
    )
    return [line.split("\t")[0] for line in done.stdout.split("\n") if line]


def test_in_bash(tmp_path: Path) -> None:
    ask = 'source SCRIPT; COMP_WORDS=(iosim predict --gpu l4,h2); COMP_CWORD=3; _iosim; printf "%s\\n" "${COMPREPLY[@]}"'
    assert "l4,h200" in shell("bash", ask, tmp_path)


def test_in_zsh(tmp_path: Path) -> None:
    ask = (
        'compdef() { :; }; compadd() { shift 2; print -l -- "$@"; }; source SCRIPT; '
        "words=(iosim predict --gpu l4,h2); CURRENT=4; _iosim"
    )
    assert "l4,h200" in shell("zsh", ask, tmp_path)


def test_in_fish(tmp_path: Path) -> None:
    assert "l4,h200" in shell(
        "fish", 'source SCRIPT; complete -C "iosim predict --gpu l4,h2"', tmp_path
    )


def test_install_writes_where_the_shell_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, place in (
        ("bash", ".local/share/bash-completion/completions/iosim"),
        ("zsh", ".zfunc/_iosim"),
        ("fish", ".config/fish/completions/iosim.fish"),
    ):
        assert main(["completion", name, "--install"]) == 0
        assert (tmp_path / place).read_text() == read_toml(FILE)[name]["script"]
        assert str(tmp_path / place) in capsys.readouterr().out
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == read_toml(FILE)["bash"]["script"]
    assert main(["completion", "tcsh"]) == 2
