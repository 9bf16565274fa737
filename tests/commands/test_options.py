"""One vocabulary of options: every command spells, lists and defaults alike, and helps whoever misspells."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

import pytest
from refusals import refused
from scripts import ROOT

from iosim.commands import options
from iosim.commands.cli import COMMANDS, build_parser, main
from iosim.commands.options import COMMON, CommandParser
from iosim.kernel.overrides import OVERRIDES
from iosim.problem.fields import FIELDS

OF_FIELDS = {
    about.option: name
    for table in (FIELDS, OVERRIDES)
    for name, about in table.items()
    if about.option
}
NAMED_MODELS = {"decode", "train-memory", "model"}
"""Commands whose defaults are those of a model that their help names, or that is named."""

OF_ITS_OWN = {
    ("measure", "--dtype"),
    ("check-claim", "--l2"),
    ("latency", "--l2"),
    ("explore", "--heads"),
    ("explore", "--head-dim"),
}
"""Options with another default: minimal takes fp32 alone; a claim's bytes at a level stand in for the level's start;
a call in a stack follows others like it; a page offers several."""


def parsers() -> dict[str, CommandParser]:
    """The parser of every command and, where it has them, of its actions."""
    parsers_by_command = {}
    for name in COMMANDS:
        (subparsers,) = (
            a for a in build_parser(name)._actions if isinstance(a, argparse._SubParsersAction)
        )
        parser = subparsers.choices[name]
        inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        parsers_by_command |= (
            {f"{name} {word}": p for a in inner for word, p in a.choices.items()}
            if inner
            else {name: parser}
        )
    return parsers_by_command


PARSERS = parsers()


def shown(parser: CommandParser) -> dict[str, argparse.Action]:
    """The options that help prints."""
    visible = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    return {spelling: action for action in visible for spelling in action.option_strings}


def out(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", PARSERS)
def test_an_option_of_a_field_says_what_the_field_says(command: str) -> None:
    for spelling, action in shown(PARSERS[command]).items():
        field = OF_FIELDS.get(spelling)
        if field is not None and not (command in NAMED_MODELS and field in ("heads", "batch")):
            about = (FIELDS | OVERRIDES)[field]
            assert action.nargs == 0 or str(action.metavar).startswith(about.metavar), spelling


@pytest.mark.parametrize("command", [c for c in PARSERS if c not in NAMED_MODELS])
def test_defaults_are_alike(command: str) -> None:
    defaults: dict[str, Any] = {
        "--gpu": "a100",
        "--heads": 32,
        "--batch": 1,
        "--head-dim": 128,
        "--dtype": "fp16",
        "--pass": "fwd",
        "--l2": "cold",
        "--method": None,
        "--layout": "bhsd",
    }
    measured_on, left_open = {"validate"}, {"validate", "formula", "ncu-rule"}
    for spelling, action in shown(PARSERS[command]).items():
        if spelling not in defaults or (command, spelling) in OF_ITS_OWN:
            continue
        default = action.default[0] if isinstance(action.default, list) else action.default
        if spelling == "--gpu":
            assert default == defaults[spelling] or command in measured_on | {"formula", "ncu-rule"}
        else:
            assert default == defaults[spelling] or (command in left_open and default is None), (
                spelling
            )


@pytest.mark.parametrize("command", PARSERS)
def test_what_is_a_list_takes_one_by_comma_and_by_repetition(command: str) -> None:
    for spelling, action in shown(PARSERS[command]).items():
        if spelling in (
            "--gpu",
            "--kernel",
            "--seq-len",
            "--schedule",
            "--section",
            "--plan",
            "--chain",
        ):
            assert isinstance(action, options.Given), spelling
        assert not isinstance(action, argparse._AppendAction) or spelling == "--fail-above", (
            spelling
        )


def test_a_comma_means_what_repetition_means(capsys: pytest.CaptureFixture[str]) -> None:
    rest = ("predict", "--format", "json", "--method", "capacity")
    together = out(
        capsys,
        *rest,
        "--gpu",
        "l4,h100",
        "--kernel",
        "fa2, flash",
        "--seq-len",
        "512,1k",
        "--heads",
        "4,8",
    )
    apart = out(
        capsys,
        *rest,
        "--gpu",
        "l4",
        "--gpu",
        "h100",
        "--kernel",
        "fa2",
        "--kernel",
        "flash",
        "--seq-len",
        "512",
        "--seq-len",
        "1k",
        "--heads",
        "4",
        "--heads",
        "8",
    )
    assert together == apart
    printed = [
        (p["profile"], p["problem"]["heads"], p["problem"]["seq_q"], p["kernel"]["name"])
        for p in json.loads(apart)["predictions"]
    ]
    assert printed == [
        (gpu, heads, n, kernel)
        for gpu in ("l4", "h100-sxm")
        for heads in (4, 8)
        for n in (512, 1024)
        for kernel in ("fa2", "flash")
    ]


@pytest.mark.parametrize(
    "command",
    [c for c in PARSERS if "--heads" in shown(PARSERS[c]) or "--gpu" in shown(PARSERS[c])],
)
def test_help_has_about_ten_common_options_first(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    usage, first, *_ = [
        line for line in capsys.readouterr().out.splitlines() if line and not line.startswith(" ")
    ]
    named = {"formula": "NAME ", "model": "NAME,... "}.get(command, "")
    assert usage == f"usage: iosim {command} {named}[OPTIONS]"
    group = next((g for g in PARSERS[command]._action_groups if g.title == COMMON), None)
    assert group is not None
    assert first.startswith((COMMON, "positional", "R", "W")), (
        "after a description that is a sentence"
    )
    assert 1 <= len([a for a in group._group_actions if a.help != argparse.SUPPRESS]) <= 12


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("predcit", ("COMMAND", "'predcit'", "predict")),
        ("predict --sqe-len 4k", ("--sqe-len", "'iosim predict'", "--seq-len")),
        ("predict --kernal fa2", ("--kernal", "--kernel")),
        ("ring --gpu a100 --gpu h100", ("--gpu a100,h100", "one")),
        ("ring --heads 8 --heads 16", ("--heads 8,16", "one")),
        ("trace --seq-len 1k --seq-len 2k", ("--seq-len 1k,2k", "one")),
        ("predict --gpu a1000", ("'a1000'", "a100")),
        ("predict --kernel fa22", ("'fa22'", "fa2")),
        ("predict --method reply", ("--method", "'reply'", "replay")),
        ("predict --format jsn", ("--format", "'jsn'", "json")),
        ("predict --dtype bp16", ("--dtype", "'bp16'", "bf16")),
        ("tiles stray", ("stray", "'iosim tiles --help'")),
    ],
)
def test_what_is_misspelt_is_refused_with_what_was_meant(
    line: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, line.split(), *words)


PRINTED = [
    (str(path.relative_to(ROOT)), line)
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*.py"),
        *ROOT.glob("reports/*.md"),
        *ROOT.glob("kernels/**/*.md"),
        *ROOT.glob("experiments/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("iosim/**/*.py"),
        *ROOT.glob("iosim/**/*.toml"),
    ]
    if path.name != "CHANGELOG.md"
    for line in re.findall(
        r"(?:^|[`$\"] ?|&& )iosim ([a-z-]+ [^`\n\"#|]*--[^`\n\"#|]*)", path.read_text(), re.M
    )
]
"""Files, and the command lines with options that stand in them."""


def test_command_lines_are_found() -> None:
    assert len(PRINTED) > 80
    assert {command.split()[0] for _, command in PRINTED} >= {
        "predict",
        "compare",
        "ring",
        "measure",
        "train-memory",
    }


@pytest.mark.parametrize("file", sorted({file for file, _ in PRINTED}))
def test_command_lines_in_documents_spell_options_as_help_does(file: str) -> None:
    for line in (line for name, line in PRINTED if name == file):
        words = line.split()
        command = " ".join(words[:2]) if " ".join(words[:2]) in PARSERS else words[0]
        assert command in PARSERS, line
        spellings = {word.split("=")[0] for word in words if re.match(r"--[a-z]", word)}
        known = shown(PARSERS[command])
        assert not {s.rstrip(".,;:)") for s in spellings} - set(known), line


def test_no_arguments_print_a_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys)
    assert len(text.splitlines()) < 45
    assert all(f"  {command} " in text for command in COMMANDS)
