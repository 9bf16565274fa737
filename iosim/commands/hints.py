"""What a word may mean that a command does not take: a name without its option, an option misspelt, one of other tools,
one of other commands, or one of what iosim does not model. Loaded where a command line is refused, alone."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from iosim.base.errors import alike, out_of_scope
from iosim.commands.completion import subparsers, values
from iosim.commands.options import CommandParser, Given, SeveralValuesError, UnknownWordError

FIRST = ("gpu", "kernel", "model")
MOST_NAMED = 6
ELSEWHERE = {
    "--backward": ("--pass bwd",),
    "--bwd": ("--pass bwd",),
    "--forward": ("--pass fwd",),
    "--fwd": ("--pass fwd",),
    "--train": ("--training", "--pass fwd+bwd"),
    "--training": ("--pass fwd+bwd",),
    "--bs": ("--batch",),
    "--batch-size": ("--batch",),
    "--num-seqs": ("--batch",),
    "--tp": ("--tensor-parallel",),
    "--tp-size": ("--tensor-parallel",),
    "--nheads": ("--heads",),
    "--n-heads": ("--heads",),
    "--num-heads": ("--heads",),
    "--num-kv-heads": ("--kv-heads",),
    "--nheads-k": ("--kv-heads",),
    "--hdim": ("--head-dim",),
    "--d": ("--head-dim",),
    "--nkv": ("--kv-heads",),
    "--fp8": ("--dtype fp8",),
    "--sequence-length": ("--seq-len", "--context"),
    "--context-length": ("--context", "--seq-len 1 --seq-len-k"),
    "--prompt-len": ("--seq-len",),
    "--seq-len": ("--context",),
    "--seqlen": ("--seq-len", "--context"),
    "--seq-len-k": ("--context",),
    "--context": ("--seq-len 1 --seq-len-k",),
    "--ctx": ("--context", "--seq-len 1 --seq-len-k"),
    "--max-model-len": ("--context", "--seq-len-k"),
    "--kv-len": ("--context", "--seq-len-k"),
    "--new-tokens": ("--seq-len",),
    "--block-size": ("--page-size",),
    "--sliding-window": ("--window",),
    "--device": ("--gpu",),
    "--bf16": ("--dtype bf16",),
    "--fp16": ("--dtype fp16",),
    "--half": ("--dtype fp16",),
    "--precision": ("--dtype",),
}
"""Options as other tools and other commands spell them, and what says the same: the first that the command takes."""
YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def hinted(error: UnknownWordError, every: argparse.ArgumentParser) -> str:
    parser, word = error.parser, error.word
    usage = f"'{parser.prog} --help' shows what is accepted"
    if not word.startswith("-"):
        if error.before is not None and word.lower() in YES + NO:
            return _of_flag(parser, error.before, word)
        meant = _with_option(parser, word)
        return f"'{word}' is one word too many; {f'did you mean {meant}?' if meant else usage}"
    # In this order: a known spelling of other tools, other commands that take the word, a thing
    # that iosim leaves out on purpose, a format taken for an option, a slip of the fingers.
    spellings = parser.spellings()
    meant = next(
        (
            alternative
            for alternative in ELSEWHERE.get(word, ())
            if alternative.split()[0] in spellings
        ),
        "",
    )
    if meant:
        return f"{word} is no option of '{parser.prog}'; did you mean {_and_value(meant, error.after)}?"
    others = _commands(every, word)
    beyond = "" if others else out_of_scope("option", word)
    form = next(
        (f"--format {c}" for a in parser._actions for c in a.choices or () if f"--{c}" == word),
        None,
    )
    near = [] if beyond else [form] if form else alike(word, spellings)
    hints = [beyond] if beyond else []
    hints += [f"did you mean {' or '.join(near)}?"] if near else []
    hints += [f"accepted by: iosim {_listed(others)}"] if others else []
    return f"{word} is no option of '{parser.prog}'; {' '.join(hints) or usage}"


def _of_flag(parser: CommandParser, option: str, word: str) -> str:
    no = f"--no-{option.removeprefix('--')}"
    without = no if no in parser.spellings() else f"{option} left out"
    return f"{option} takes no value, and has '{word}'; accepted: {option}, or {without} where it is not meant"


def _and_value(meant: str, after: str | None) -> str:
    """What was meant, with the value that was typed where what is meant lacks one."""
    complete = len(meant.split()) == 2 or meant == "--training"
    return (
        meant
        if complete or after is None or after.startswith("-")
        else f"{meant} {shlex.quote(after)}"
    )


def one_of_several(error: SeveralValuesError, every: argparse.ArgumentParser) -> str:
    """A refusal of several values, with the commands that take them."""
    others = [
        name
        for name, parser in subparsers(every).items()
        for action in [parser._option_string_actions.get(error.option)]
        if type(action) is Given and f"iosim {name}" != error.parser.prog
    ]
    if not others:
        return error.marked
    take = "takes" if len(others) == 1 else "take"
    return f"{error.marked}; iosim {_listed(others)} {take} several"


def _listed(commands: list[str]) -> str:
    more = f" and {len(commands) - MOST_NAMED} others" if len(commands) > MOST_NAMED else ""
    return f"{', '.join(commands[:MOST_NAMED])}{more}"


def _commands(every: argparse.ArgumentParser, option: str) -> list[str]:
    return [name for name, parser in subparsers(every).items() if option in _spellings(parser)]


def _with_option(parser: CommandParser, word: str) -> str:
    """The word with the option that takes it: `--gpu a100`; empty where none does."""
    actions = [a for a in parser._actions if a.option_strings and a.help != argparse.SUPPRESS]
    # GPU, kernel and model first: "a100" is more likely one of them than a mask's word.
    for action in sorted(actions, key=lambda a: a.dest not in FIRST):
        if f"--{word}" in action.option_strings:
            return f"--{word}"
        if action.nargs != 0 and word.lower() in values(action, parser):
            return f"{action.option_strings[0]} {word}"
    return ""


def _spellings(parser: argparse.ArgumentParser) -> Iterator[str]:
    if isinstance(parser, CommandParser):
        yield from parser.spellings()
    for inner in subparsers(parser).values():
        yield from _spellings(inner)
