"""The command line: parses, calls, prints. Bad input ends with one line on standard error and exit code 2."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

from iosim.base.errors import EngineWarning, InputError
from iosim.commands.options import with_options

COMMANDS = (
    "predict", "compare", "explain", "trace", "tiles", "report", "formula", "validate", "measure", "calibrate",
    "reproduce", "profiles", "kernels", "ring", "decode", "train-memory", "cache",
)  # fmt: skip

MAX_MESSAGE = 1000


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors."""

    def error(self, message: str) -> NoReturn:
        told = "accepted" in message or "choose from" in message
        raise InputError(message if told else f"{message}; '{self.prog} --help' shows what is accepted")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        values = super()._get_values(action, arg_strings)
        if values == [] and action.option_strings and action.nargs is None:  # Python 3.11 drops the -- of --gpu=--
            self.error(f"{action.option_strings[0]} '--' is no value")
        return values


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands, or of `only` one: the others' options take time to build and are not asked for."""
    parser = _Parser(
        prog="iosim",
        description="Bytes that attention moves between HBM, L2 and the SMs of a GPU, without the GPU.",
        epilog="iosim COMMAND --help lists a command's options.",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name in COMMANDS if only is None else (only,):
        importlib.import_module(f"iosim.commands.{name.replace('-', '_')}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    try:
        words = sys.argv[1:] if argv is None else argv
        parser = build_parser(words[0] if words and words[0] in COMMANDS else None)
        args = parser.parse_args(words)
        if args.version:
            from iosim.base.version import __version__
            from iosim.commands.common import emit

            emit(f"iosim {__version__}\n", None)
            return 0
        if args.command is None:
            raise InputError(f"COMMAND is missing; accepted: {', '.join(COMMANDS)}")
        with warnings.catch_warnings():
            warnings.simplefilter("once", EngineWarning)
            warnings.showwarning = _warn
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
        _complain(f"standard output cannot be written: {error.strerror}")
        return 2
    except KeyboardInterrupt:
        print("iosim: interrupted", file=sys.stderr)
        return 130


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
    print("iosim: " + line.encode("ascii", "backslashreplace").decode(), file=sys.stderr)


def _drop_output() -> None:
    """Send what is still buffered nowhere: the reader of standard output has gone, or its disk is full."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
