"""The JSON of every command is what its schema says, and every key has a meaning. To renew the schemas:
python tests/golden/make_schemas.py"""

from __future__ import annotations

import argparse
import json
import re
import sys

import jsonschema
import pytest
from effort import quick_every, slow
from scripts import ROOT

from iosim.commands.cli import COMMANDS, build_parser, main
from iosim.commands.known import PLACE, documented, schema

sys.path.insert(0, str(ROOT / "tests" / "golden"))
import make_schemas

pytestmark = pytest.mark.usefixtures("replays_once")

OTHERS: dict[str, tuple[str, ...]] = {
    "predict": (
        "--gpu l4,t4 --kernel naive --pass fwd+bwd --seq-len 1k --causal",
        "--kernel fa2 --dropout 0.1 --pass bwd --seq-len 1k --method capacity",
        "--kernel fa2 --heads 8 --kv-heads 2 --splits 4 --seq-len 1 --seq-len-k 1k",
    ),
    "compare": ("--gpu h100 --kernel naive,fa2,fa3,cudnn --seq-len 1k --baseline naive",),
    "explain": ("--gpu h100 --kernel naive,fa3 --seq-len 1k --heads 2",),
    "trace": ("--kernel naive --seq-len 512 --heads 2",),
    "formula": ("naive --pass fwd+bwd", "cutlass --gpu t4"),
    "tiles": ("--gpu h100 --head-dim 256 --seq-len 1k", "--tile 64x32 --gpu t4 --head-dim 64"),
    "orders": ("--gpu l4 --heads 2 --kv-heads 1 --seq-len 512 --pass bwd --fold",),
    "decode": ("--gpu t4 --context 512 --kernel cutlass --dtype fp16",),
    "ring": ("--num-gpus 3 --seq-len 999 --schedule ring",),
    "train-memory": (
        "--layers 1 --recompute full --optimizer sgd --attention naive --kernel naive --gpu t4 "
        "--precision amp-fp16",
    ),
    "profiles show": ("l40s", "h800"),
    "kernels show": ("mla", "eager"),
}
"""Command lines beside those of which the schemas are made."""


def formats(parser: argparse.ArgumentParser) -> list[str]:
    return next((list(a.choices or ()) for a in parser._actions if a.dest == "format"), [])


def with_json() -> list[str]:
    """Every command and action that has --format json."""
    commands = []
    for name in COMMANDS:
        (subparsers,) = (
            a for a in build_parser(name)._actions if isinstance(a, argparse._SubParsersAction)
        )
        parser = subparsers.choices[name]
        inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        parsers = (
            {f"{name} {word}": p for a in inner for word, p in a.choices.items()}
            if inner
            else {name: parser}
        )
        commands += [command for command, p in parsers.items() if "json" in formats(p)]
    return commands


def test_every_command_with_json_has_a_schema() -> None:
    assert documented() == sorted(with_json()) == sorted(make_schemas.LINES)


@pytest.mark.parametrize("command", documented())
def test_a_schema_is_one_and_every_key_has_a_meaning(command: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(command))
    assert make_schemas.without_meaning(schema(command)) == []


@pytest.mark.parametrize(
    ("command", "line"),
    [
        *quick_every(((command, make_schemas.LINES[command][0]) for command in documented()), 3),
        *(slow((command, line)) for command, lines in OTHERS.items() for line in lines),
    ],
)
def test_what_a_command_prints_is_what_its_schema_says(command: str, line: str) -> None:
    validator = jsonschema.Draft202012Validator(schema(command))
    errors = [
        f"{error.json_path}: {error.message[:200]}"
        for error in validator.iter_errors(make_schemas.output(command, line))
    ]
    assert errors == []


def test_what_schemas_hold_alike_stands_once() -> None:
    whole = {command: schema(command) for command in documented()}
    file = json.loads(PLACE.read_text(encoding="utf-8"))
    assert make_schemas.shared(whole) == file
    assert len(PLACE.read_text(encoding="utf-8")) < 0.75 * sum(
        len(json.dumps(schema, indent=1)) for schema in whole.values()
    )
    used = set(re.findall(r'"\$shared": "([^"]+)"', PLACE.read_text(encoding="utf-8")))
    assert used == set(file["shared"])
    assert make_schemas.SHARED not in json.dumps(whole)


def test_a_key_that_is_not_documented_is_noticed() -> None:
    printed = make_schemas.output("profiles list", "")
    validator = jsonschema.Draft202012Validator(schema("profiles list"))
    validator.validate(printed)
    for wrong in (
        printed | {"more": 1},
        {"schema": 1},
        printed | {"profiles": [printed["profiles"][0] | {"name": 3}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(wrong)


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == documented()
    for words in (["predict"], ["profiles", "show"]):
        assert main(["schema", *words]) == 0
        assert (
            json.loads(capsys.readouterr().out)["title"] == f"iosim {' '.join(words)} --format json"
        )
    assert main(["schema", "predcit"]) == 2
    assert "predict" in capsys.readouterr().err
