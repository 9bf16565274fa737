"""The command line: parses, calls, prints. Bad input ends with one line on standard error and exit code 2."""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from iosim.base.errors import EngineWarning, InputError, Terminated, unknown_name
from iosim.base.progress import hush
from iosim.base.version import __version__, commit
from iosim.commands import common
from iosim.commands.common import check_files, emit
from iosim.commands.options import (
    CommandParser,
    ListFormatter,
    SeveralValuesError,
    UnknownWordError,
    with_options,
)
from iosim.commands.table import COMMAND_GROUPS, COMMANDS
from iosim.show.terminal import coloured, folded, output

DESCRIPTION = "Bytes that attention moves between HBM, L2 and the SMs of a GPU, without the GPU."

MAX_MESSAGE = 1000
BLAMED = re.compile(r"(--[a-z][a-z0-9-]*)( '?[^ :']+'?)?(:? .*\bkernel .*)")
"""A refusal of what a kernel does not do, by the option that asks for it."""
HELP = "help"
"""`iosim help COMMAND` is `iosim COMMAND --help`."""


def build_parser(*only: str) -> argparse.ArgumentParser:
    """The parser of all commands, or of `only` some: the others' options take time to build and are not asked for."""
    parser = CommandParser(
        prog="iosim",
        description=f"{DESCRIPTION}\n{_listing()}",
        epilog="iosim COMMAND --help lists a command's options.",
        formatter_class=ListFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=CommandParser, help=argparse.SUPPRESS
    )
    # A command line needs one command: building the options of all would delay every start.
    for name in only or COMMANDS:
        command_parser: CommandParser = subparsers.add_parser(name, help=COMMANDS[name].help)
        COMMANDS[name].add_options(command_parser)
        command_parser.set_defaults(run=COMMANDS[name].run, parsed=parsed)
    return parser


def _listing() -> str:
    wide = max(map(len, COMMANDS))
    lines = {
        name: folded(f"  {name:<{wide}}  {command.help}\n", wide + 4)
        for name, command in COMMANDS.items()
    }
    return "".join(
        f"\n{title}:\n{''.join(lines[name] for name in names)}"
        for title, names in COMMAND_GROUPS.items()
    )


def parsed(words: Sequence[str]) -> argparse.Namespace:
    if words[0] == HELP:
        words = [*words[1:], "--help"]
    # argparse would list all commands; the nearest one is worth more.
    if words[0] not in COMMANDS and not words[0].startswith("-"):
        raise unknown_name("COMMAND", words[0], COMMANDS)
    parser = build_parser(*([words[0]] if words[0] in COMMANDS else []))
    try:
        # Defaults of the user stand in front, and only for options that are not typed.
        common.DEFAULTS[:] = own_defaults(words, parser) if words[0] in COMMANDS else []
        return parser.parse_args([*words[:1], *common.DEFAULTS, *words[1:]])
    except (SeveralValuesError, UnknownWordError) as error:
        from iosim.commands.hints import hinted, one_of_several

        # Only a refusal pays for the options of all commands: it names those that take the word.
        every = build_parser()
        message = (
            hinted(error, every)
            if isinstance(error, UnknownWordError)
            else one_of_several(error, every)
        )
        raise InputError(message) from None


def own_defaults(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """What a user's own defaults add to a command line; nothing where there are none, as for most."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    place = os.environ.get("IOSIM_CONFIG") or os.path.join(folder, "iosim", "config.toml")
    if not os.environ.get("IOSIM_GPU") and not os.path.isfile(place):
        return []
    from iosim.commands import defaults
    from iosim.commands.completion import subparsers

    return defaults.added(words, subparsers(parser)[words[0]], place)


def main(argv: Sequence[str] | None = None) -> int:
    if sys.stderr is None:  # closed, and print(file=None) would write into standard output
        sys.stderr = io.StringIO()
    try:
        words = sys.argv[1:] if argv is None else argv
        if not words:
            _greet()
            return 0
        # Asked by the shell at every Tab: neither options are checked nor errors printed.
        if words[0] == "__complete":
            from iosim.commands.completion import candidates

            completions = candidates(words[1:], COMMANDS, build_parser)
            emit("".join(f"{candidate}\n" for candidate in completions), None, code=True)
            return 0
        args = parsed(words)
        if args.version:
            of_checkout = commit()
            emit(f"iosim {__version__}{f' (commit {of_checkout})' if of_checkout else ''}\n", None)
            return 0
        if args.command is None:
            raise InputError(f"COMMAND is missing; accepted: {', '.join(COMMANDS)}")
        return _run_quietly(args)
    except InputError as error:
        _complain(of_what_was_typed(with_options(error), words))
        return 2
    except MemoryError:
        _complain(
            "the sizes asked for need more memory than there is; smaller sizes or larger tiles are needed"
        )
        return 2
    # The reader (`head`) has gone. Python would fail again while it flushes at its end, so what
    # is left goes to the null device.
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as error:
        _drop_output()
        problem = (
            f"'{error.filename}' cannot be opened"
            if error.filename
            else "standard output cannot be written"
        )
        _complain(f"{problem}: {error.strerror}")
        return 2
    except KeyboardInterrupt:
        print("iosim: interrupted", file=sys.stderr)
        return 130
    except Terminated:
        print("iosim: terminated", file=sys.stderr)
        return 143


def of_what_was_typed(message: str, words: Sequence[str]) -> str:
    """A refusal that names no option which nobody gave: what a model has is the model's, and what a command asks for
    by itself is no option of it."""
    blamed = BLAMED.match(message)
    if blamed is None or words[0] not in COMMANDS:
        return message
    option, value, rest = blamed.groups()
    given = [word.partition("=")[0] for word in (*words, *common.DEFAULTS)]
    if option in given:
        return message
    model = next((after for word, after in pairwise(words) if word == "--model"), None)
    if words[0] == "model" and not words[1].startswith("-"):
        model = words[1]
    if model is not None:
        return f"{option[2:]}{value or ''} of {model}{rest}"
    from iosim.commands.completion import subparsers

    taken = subparsers(build_parser(words[0]))[words[0]]
    return message if option in taken._option_string_actions else message.removeprefix("--")


@contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM raises `Terminated` in the main thread, so that workers and temporary files go with the process."""

    def end(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends it at once
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _greet() -> None:
    """What `iosim` alone prints: the commands, and where to start."""
    start = "Start with: iosim predict --kernel fa2\n'iosim COMMAND --help' lists options.\n"
    emit(f"{DESCRIPTION}\n{_listing()}\n{start}", None)


def _run_quietly(args: argparse.Namespace) -> int:
    """Run a command. Warnings of the engine become lines of iosim's own, each once; those of others keep their form."""
    with warnings.catch_warnings():
        warnings.simplefilter("once", EngineWarning)
        # Warnings of the engine become lines of iosim's own, each once; those of others keep their form.
        show_warning = warnings.showwarning
        warnings.showwarning = lambda warning, kind, *where: (
            _complain(str(warning))
            if issubclass(kind, EngineWarning)
            else show_warning(warning, kind, *where)
        )
        hush(getattr(args, "quiet", False))
        # Neither width nor colour where a program may read the text: in a file, or in JSON and CSV.
        for_a_person = (
            getattr(args, "format", "table") == "table" and getattr(args, "out", None) is None
        )
        with output(for_a_person=for_a_person):
            check_files(args)
            code: int = args.run(args)
    return code


def _complain(message: str) -> None:
    line = " ".join(message.split())
    if len(line) > MAX_MESSAGE:
        # Both ends are kept: the beginning says what is wrong, the end what is accepted.
        line = f"{line[: MAX_MESSAGE // 2]} ... {line[-MAX_MESSAGE // 2 :]}"
    print(
        coloured("iosim:", "red", sys.stderr)
        + " "
        + line.encode("ascii", "backslashreplace").decode(),
        file=sys.stderr,
    )


def _drop_output() -> None:
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
