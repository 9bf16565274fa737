"""`iosim completion bash|zsh|fish`: what the Tab key needs to complete commands, options and their values.

The shell's script asks `iosim __complete WORDS...` for what may stand in place of the last word, so it never goes out
of date. Lists complete after a comma, too. What may stand somewhere also tells what a word that a command does not
know may mean: a name without its option, an option misspelt, another command's, or one of what iosim does not model.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from iosim.base.files import write_whole
from iosim.base.schema import read_toml
from iosim.commands import common
from iosim.hardware.profile import added_profiles, list_profiles, load_profile
from iosim.problem.fields import FIELDS
from iosim.studies.requests import OVERRIDES

KERNEL_WORDS = (("kernels", "name"), ("kernels", "base"), ("formula", "name"))
"""(command, word) that takes a kernel, beside --kernel."""
FILE = Path(__file__).with_name("completion.toml")
WORDS = {about.name: about.words for table in (FIELDS, OVERRIDES) for about in table.values()}


def completion(args: argparse.Namespace) -> int:
    shell = read_toml(FILE)[args.shell]
    if not args.install:
        common.emit(shell["script"], None, code=True)
        return 0
    place = Path(os.environ.get(shell["variable"]) or Path.home() / shell["folder"], shell["file"])
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, shell["script"])
    common.emit(f"wrote {place}{shell['after']}\n", None)
    return 0


def candidates(
    words: Sequence[str],
    commands: Iterable[str],
    parser_of: Callable[[str], argparse.ArgumentParser],
) -> list[str]:
    """What may stand in place of the last of the words that follow `iosim`; nothing where a file may."""
    # From the outside in: command, action, then the option before the cursor; an option without a
    # value leaves the word to the positional argument.
    *before, current = words or [""]
    if not before:
        return _starting(current, (*commands, "--help", "--version"))
    if before[0] not in commands:
        return []
    parser = subparsers(parser_of(before[0]))[before[0]]
    inner = subparsers(parser)
    if inner and len(before) == 1:
        return _starting(current, inner)
    parser = inner.get(before[1], parser) if inner else parser
    if before[-1] == "=":  # bash takes --gpu=a for three words
        before = before[:-1]
    option = parser._option_string_actions.get(before[-1])
    if option is not None and option.nargs != 0:
        first, comma, rest = current.rpartition(",")  # what follows the last comma is completed
        return [f"{first}{comma}{name}" for name in _starting(rest, values(option, parser))]
    if current.startswith("-"):
        actions = (a for a in parser._actions if a.help != argparse.SUPPRESS)
        return _starting(
            current,
            (spelling for a in actions for spelling in a.option_strings if len(spelling) > 2),
        )
    positional = next(
        (a for a in parser._actions if not a.option_strings and a.dest != "action"), None
    )
    return [] if positional is None else _starting(current, values(positional, parser))


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next(
        (dict(a.choices) for a in parser._actions if isinstance(a, argparse._SubParsersAction)), {}
    )


def _starting(current: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(current)]


def values(action: argparse.Action, parser: argparse.ArgumentParser) -> Sequence[str]:
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    command = parser.prog.split()[1]
    # The same destination means different lists in different commands.
    if action.dest == "gpu" or (command, action.dest) == ("profiles", "name"):
        shipped = {
            name for p in map(load_profile, list_profiles()) for name in (p.name, *p.aliases)
        }
        return sorted({*shipped, *added_profiles()})
    if action.dest == "model" or (command, action.dest) == ("models", "name"):
        from iosim.integrations.models import preset_names

        return preset_names()
    if action.dest == "name" and command == "schema":
        from iosim.commands.known import documented

        return documented()
    if action.dest == "kernel" and command == "measure":
        return ("flash_fwd", "flash_bwd", "naive", "minimal")
    if action.dest == "kernel" or (command, action.dest) in KERNEL_WORDS:
        from iosim.catalog.libraries import choice_names, entry_names

        return [*entry_names(), *(choice_names() if command != "kernels" else ())]
    return WORDS.get(action.dest, ())
