"""`iosim schema COMMAND`: the JSON schema of what a command prints with --format json."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from iosim.base.errors import unknown_name
from iosim.commands import common

PLACE = Path(__file__).parent / "schemas"


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "schema", help="what a command's JSON holds: every key with its type and meaning, as a JSON schema"
    )
    parser.add_argument("name", metavar="COMMAND", nargs="*", help="a command, such as predict or profiles show; none "
                        "lists those that print JSON")  # fmt: skip
    parser.add_argument("--out", "-o", metavar="FILE", help="write there instead of standard output")
    parser.set_defaults(run=run)


def documented() -> list[str]:
    """The commands whose JSON has a schema."""
    return sorted(path.stem.replace("+", " ") for path in PLACE.glob("*.json"))


def run(args: argparse.Namespace) -> int:
    commands = documented()
    if not args.name:
        common.emit("".join(f"{command}\n" for command in commands), args.out, code=True)
        return 0
    command = " ".join(args.name)
    if command not in commands:
        raise unknown_name("COMMAND", command, commands)
    common.emit(_path(command).read_text(encoding="utf-8"), args.out, code=True)
    return 0


def _path(command: str) -> Path:
    return PLACE / f"{command.replace(' ', '+')}.json"
