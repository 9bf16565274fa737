"""What a word that a command does not know may mean: a name without its option, an option misspelt, another command's,
or one of what iosim does not model."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from iosim.base.names import alike
from iosim.base.scope import out_of_scope
from iosim.commands.completion import subparsers, values
from iosim.commands.parser import CommandParser, UnknownWordError

FIRST = ("gpu", "kernel", "model")
"""Options whose names are looked up first."""
MOST_NAMED = 6


def hinted(error: UnknownWordError, every: argparse.ArgumentParser) -> str:
    """The message about a word; `every` is the parser of all commands."""
    parser, word = error.parser, error.word
    usage = f"'{parser.prog} --help' shows what is accepted"
    if not word.startswith("-"):
        meant = _with_option(parser, word)
        return f"'{word}' is one word too many; {f'did you mean {meant}?' if meant else usage}"
    others = [name for name, one in subparsers(every).items() if word in _spellings(one)]
    beyond = "" if others else out_of_scope("option", word)
    form = next((f"--format {c}" for a in parser._actions for c in a.choices or () if f"--{c}" == word), None)
    near = [] if beyond else [form] if form else alike(word, parser.spellings())
    told = [beyond] if beyond else []
    told += [f"did you mean {' or '.join(near)}?"] if near else []
    if others:
        more = f" and {len(others) - MOST_NAMED} others" if len(others) > MOST_NAMED else ""
        told.append(f"accepted by: iosim {', '.join(others[:MOST_NAMED])}{more}")
    return f"{word} is no option of '{parser.prog}'; {' '.join(told) or usage}"


def _with_option(parser: CommandParser, word: str) -> str:
    """The word with the option that takes it: `--gpu a100`; empty where none does."""
    actions = [a for a in parser._actions if a.option_strings and a.help != argparse.SUPPRESS]
    for action in sorted(actions, key=lambda a: a.dest not in FIRST):
        if f"--{word}" in action.option_strings:
            return f"--{word}"
        if action.nargs != 0 and word.lower() in values(action, parser):
            return f"{action.option_strings[0]} {word}"
    return ""


def _spellings(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The options of a command and of its actions."""
    if isinstance(parser, CommandParser):
        yield from parser.spellings()
    for inner in subparsers(parser).values():
        yield from _spellings(inner)
