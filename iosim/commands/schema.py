"""`iosim schema COMMAND`: the JSON schema of what a command prints with --format json."""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.errors import unknown_name
from iosim.commands import common
from iosim.commands.parser import CommandParser

PLACE = Path(__file__).parent / "schemas.json"
"""The schema of each command; what several hold alike stands once, under `shared`."""
SHARED = "$shared"
"""What names a shared part."""


def add_options(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="COMMAND", nargs="*", help="a command, such as predict or profiles show; none "
                        "lists those that print JSON")  # fmt: skip
    parser.add_argument("--out", "-o", metavar="FILE", help="write there instead of standard output")


def documented() -> list[str]:
    return sorted(_file()["commands"])


def schema(command: str) -> dict[str, Any]:
    return dict(_whole(_file()["commands"][command]))


@cache
def _file() -> dict[str, Any]:
    return dict(json.loads(PLACE.read_text(encoding="utf-8")))


def _whole(part: Any) -> Any:
    """A part with what it names of the shared ones in its place."""
    if isinstance(part, list):
        return [_whole(one) for one in part]
    if not isinstance(part, dict):
        return part
    if SHARED in part:
        return _whole(_file()["shared"][part[SHARED]])
    return {key: _whole(one) for key, one in part.items()}


def run(args: argparse.Namespace) -> int:
    commands = documented()
    if not args.name:
        common.emit("".join(f"{command}\n" for command in commands), args.out, code=True)
        return 0
    command = " ".join(args.name)
    if command not in commands:
        raise unknown_name("COMMAND", command, commands)
    common.emit(json.dumps(schema(command), indent=1) + "\n", args.out, code=True)
    return 0
