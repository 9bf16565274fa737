"""AGENTS.md and the skill: their commands run, the keys that they name are printed, and both stay short."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from scripts import ROOT

from iosim.commands.cli import build_parser, main
from iosim.commands.known import documented, schema

SKILL, AGENTS = ROOT / "skills" / "iosim" / "SKILL.md", ROOT / "AGENTS.md"

if not (SKILL.is_file() and AGENTS.is_file()):
    pytest.skip("iosim runs from an install without its sources", allow_module_level=True)

TEXT = SKILL.read_text(encoding="utf-8")


def commands(page: Path) -> list[str]:
    """The lines of a page's blocks of commands."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M)
    return [line for block in blocks for line in block.splitlines()]


def test_the_skill_has_the_head_that_agents_read() -> None:
    _, head, body = TEXT.split("---\n", 2)
    name, description = (line.split(": ", 1) for line in head.splitlines())
    assert name == ["name", SKILL.parent.name]
    assert description[0] == "description"
    assert ": " not in description[1], "it would be no plain YAML"
    assert len(description[1]) <= 1024
    assert len(body.splitlines()) < 70
    assert len(AGENTS.read_text(encoding="utf-8").splitlines()) < 50


def test_the_skills_commands_are_ones() -> None:
    assert len(commands(SKILL)) >= 10
    for line in commands(SKILL):
        name, *words = shlex.split(line)
        assert name == "iosim", line
        assert build_parser(words[0]).parse_args(words).command == words[0], line
    for command in re.findall(r"`iosim ([a-z][a-z -]*[a-z])`", TEXT):
        assert build_parser().parse_args(command.split()), command


@pytest.mark.slow
def test_the_skills_commands_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in commands(SKILL):
        assert main(shlex.split(line)[1:]) == 0, line
        captured = capsys.readouterr()
        assert all(
            splitline.startswith("iosim: wrote ") for splitline in captured.err.splitlines()
        ), line
        if "--format json" in line and "--out" not in line:
            assert json.loads(captured.out)["answer"], line


def test_the_keys_that_the_skill_names_are_printed() -> None:
    read = TEXT.split("## Read\n")[1].split("\n## ")[0]
    keys = {
        word
        for path in re.findall(r"`\.?([a-z0-9_.\[\]]+)`", read)
        for word in re.split(r"\W+", path)
        if word
    }
    keys -= {"replay", "sampled", "capacity", "bounds"}
    assert keys >= {"answer", "predictions", "totals", "time_s", "evidence", "notes"}
    assert not {key for key in keys if f'"{key}"' not in json.dumps(schema("predict"))}
    assert '"slips"' in json.dumps(schema("check-claim"))
    assert '"differences"' in json.dumps(schema("predict")["properties"]["against"])
    assert {shlex.split(line)[1] for line in commands(SKILL) if "--format json" in line} <= set(
        documented()
    )


def test_what_agents_run_is_what_continuous_integration_runs() -> None:
    runs = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace(" --quiet", "")
    for line in commands(AGENTS):
        words = shlex.split(line)
        scripts = [word for word in words if word.endswith(".py")]
        assert line in runs or scripts, line
        for script in scripts:
            text = (ROOT / script).read_text(encoding="utf-8")
            assert all(word in text for word in words if word.startswith("--")), line
