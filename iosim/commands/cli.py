"""The command line: parses, calls, prints. Bad input ends with one line on standard error and exit code 2."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TextIO

from iosim.base.errors import EngineWarning, InputError, unknown_name
from iosim.commands.options import with_options
from iosim.commands.parser import CommandParser, UnknownWordError
from iosim.show.terminal import coloured, output

COMMAND_GROUPS = (
    ("what moves, and why", ("predict", "compare", "explain", "trace", "formula", "sweep")),
    ("what to choose", ("tiles", "orders", "report")),
    ("in serving and training", ("decode", "latency", "ring", "train-memory")),
    ("how far to trust it", ("validate", "reproduce", "check-claim")),
    ("on a GPU of your own", ("calibrate", "measure", "ncu-rule")),
    ("what iosim knows", ("profiles", "kernels", "models", "schema", "cache", "completion")),
)
"""Commands under the question that they answer, in the order of the help."""
COMMANDS = tuple(command for _, commands in COMMAND_GROUPS for command in commands)
DESCRIPTION = "Bytes that attention moves between HBM, L2 and the SMs of a GPU, without the GPU."

MAX_MESSAGE = 1000


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands, or of `only` one: the others' options take time to build and are not asked for."""
    parser = CommandParser(
        prog="iosim",
        description=DESCRIPTION,
        epilog="iosim COMMAND --help lists a command's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=CommandParser, help=argparse.SUPPRESS
    )
    for name in COMMANDS if only is None else (only,):
        importlib.import_module(f"iosim.commands.{name.replace('-', '_')}").add_parser(subparsers)
    if only is None:
        parser.description = f"{DESCRIPTION}\n{_listing({a.dest: a.help or '' for a in subparsers._choices_actions})}"
    return parser


def _listing(told: Mapping[str, str]) -> str:
    """The commands by group, each with what it says of itself, for the help."""
    from iosim.show.terminal import folded

    wide = max(map(len, told))
    return "".join(
        f"\n{title}:\n" + "".join(folded(f"  {command:<{wide}}  {told[command]}\n", wide + 4) for command in commands)
        for title, commands in COMMAND_GROUPS
    )


def _short_help() -> str:
    return (
        f"{build_parser().description}\nStart with: iosim predict --kernel fa2\n'iosim COMMAND --help' lists options.\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    try:
        words = sys.argv[1:] if argv is None else argv
        if not words:
            return _print(_short_help())
        if words[0] == "__complete":
            from iosim.commands.completion import candidates

            found = candidates(words[1:], COMMANDS, build_parser)
            return _print("".join(f"{candidate}\n" for candidate in found), code=True)
        if words[0] not in COMMANDS and not words[0].startswith("-"):
            raise unknown_name("COMMAND", words[0], COMMANDS)
        parser = build_parser(words[0] if words[0] in COMMANDS else None)
        try:
            args = parser.parse_args(words)
        except UnknownWordError as error:
            from iosim.commands.hints import hinted

            raise InputError(hinted(error, build_parser())) from None
        if args.version:
            from iosim.base.version import __version__

            return _print(f"iosim {__version__}\n")
        if args.command is None:
            raise InputError(f"COMMAND is missing; accepted: {', '.join(COMMANDS)}")
        with warnings.catch_warnings():
            warnings.simplefilter("once", EngineWarning)
            warnings.showwarning = _warn
            with output(for_a_person=_for_a_person(args)):
                code: int = args.run(args)
        return code
    except InputError as error:
        _complain(with_options(error))
        return 2
    except MemoryError:
        _complain("the sizes asked for need more memory than there is; smaller sizes or larger tiles are needed")
        return 2
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as error:
        _drop_output()
        what = f"'{error.filename}' cannot be opened" if error.filename else "standard output cannot be written"
        _complain(f"{what}: {error.strerror}")
        return 2
    except KeyboardInterrupt:
        print("iosim: interrupted", file=sys.stderr)
        return 130


def _print(text: str, *, code: bool = False) -> int:
    from iosim.commands.common import emit

    emit(text, None, code=code)
    return 0


def _for_a_person(args: argparse.Namespace) -> bool:
    """Whether a command writes text for the terminal, and not a file or a format that programs read."""
    return getattr(args, "format", "table") == "table" and getattr(args, "out", None) is None


def _warn(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
    line: str | None = None,
) -> None:  # fmt: skip
    """A warning of iosim's as a line of its own; all others as Python writes them."""
    if issubclass(category, EngineWarning):
        _complain(str(message))
    else:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))


def _complain(message: str) -> None:
    """One line on standard error, whatever the message holds."""
    line = " ".join(message.split())
    if len(line) > MAX_MESSAGE:
        line = f"{line[: MAX_MESSAGE // 2]} ... {line[-MAX_MESSAGE // 2 :]}"
    print(
        coloured("iosim:", "red", sys.stderr) + " " + line.encode("ascii", "backslashreplace").decode(), file=sys.stderr
    )


def _drop_output() -> None:
    """Send what is still buffered nowhere: the reader of standard output has gone, or its disk is full."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
