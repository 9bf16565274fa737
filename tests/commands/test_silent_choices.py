"""What was typed is what is computed: no option is guessed from its beginning, and a word that says nothing is told what
would say it."""

from __future__ import annotations

import json

import pytest
from refusals import refused

from iosim.commands.cli import COMMANDS, build_parser, main
from iosim.commands.completion import subparsers
from iosim.commands.hints import ELSEWHERE
from iosim.commands.options import CommandParser

REFUSED = (
    ("predict --seq-len 4,096", "--seq-len '4,096': write 4096"),
    ("decode --context 8,192", "--context '8,192': write 8192"),
    ("check-claim --hbm 4,3GB", "--hbm '4,3GB': write 4.3GB"),
    ("decode --batch 1,024", "--batch '1,024' is not a size; write 1024"),
    ("train-memory --vocabulary 128,256", "write 128256"),
    ("predict --seq-lens 4,096", "write 4096"),
    ("predict --top 3", "did you mean --top-k? accepted by: iosim tiles, orders"),
    ("predict --causal true", "--causal takes no value"),
    ("predict --causal=true", "--causal takes no value, and has 'true'; accepted: --causal alone"),
    ("train-memory --causal false", "--no-causal"),
    ("predict --backward", "did you mean --pass bwd?"),
    ("predict --bs 4", "did you mean --batch 4?"),
    ("predict --tp 8", "did you mean --tensor-parallel 8?"),
    ("latency --context 4k", "did you mean --seq-len 1 --seq-len-k 4k?"),
    ("decode --seq-len 4k", "did you mean --context 4k?"),
    ("compare --kv-heads 1,8", "'iosim compare' takes one, so accepted: one of them; iosim predict,"),
    ("predict --gpu mi350x", "did you mean mi300x, mi355x?"),
    ("predict --output", "--out lacks its value"),
    ("ncu-rule --install x --launch y", "--launch contradicts --install; accepted: one of them"),
    ("kernels new", "--from is missing"),
)


@pytest.mark.parametrize(("line", "told"), REFUSED)
def test_what_would_be_another_question_is_refused_with_what_says_it(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in refused(capsys, line.split())


NEEDED = {"formula": ("fa2",), "model": ("gpt2",), "completion": ("bash",), "ncu-rule": ("--install", "x")}
"""Words without which a command is refused before its options are looked at."""


def test_no_command_takes_the_beginning_of_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    for command, parser in subparsers(build_parser()).items():
        spellings = parser.spellings() if isinstance(parser, CommandParser) and not subparsers(parser) else []
        for option in (one for one in spellings if len(one) > 5 and one[:-1] not in spellings):
            if option[:-1] not in ELSEWHERE:
                refused(capsys, [command, *NEEDED.get(command, ()), option[:-1]], option[:-1])


def test_other_spellings_are_taken_as_the_option(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--format", "json", "--method", "bounds", "--kernel", "fa2"]
    assert main(["predict", "--gpus", "a100,h100", "--output", f"{tmp_path}/x.json", *asked]) == 0
    with open(f"{tmp_path}/x.json") as file:
        assert [p["profile"] for p in json.load(file)["predictions"]] == ["a100-sxm-80gb", "h100-sxm"]
    capsys.readouterr()
    assert main(["ring", "--gpus", "2", "--seq-len", "1k", "--format", "json", "--schedule", "ring"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"] == 2


@pytest.mark.parametrize("command", ["", "predict", "profiles"])
def test_help_is_a_command_too(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for words in ([*command.split(), "--help"], ["help", *command.split()]):
        with pytest.raises(SystemExit):
            main(words)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[0]


def test_what_is_meant_is_an_option_of_some_command() -> None:
    spelt = {s for p in subparsers(build_parser()).values() if isinstance(p, CommandParser) for s in p.spellings()}
    for meant in ELSEWHERE.values():
        assert {one.split()[0] for one in meant} <= spelt
    assert len(COMMANDS) > 20
