"""The command line: parses, calls, prints. Bad input ends with one line on standard error and exit code 2."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from iosim.errors import InputError

COMMANDS = ("predict", "profiles", "kernels")


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(
        prog="iosim",
        description="Bytes that attention moves between HBM, L2 and the SMs of a GPU, without the GPU.",
        epilog="iosim COMMAND --help lists a command's options.",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name in COMMANDS:
        importlib.import_module(f"iosim.commands.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    try:
        parser = build_parser()
        args = parser.parse_args(argv)
        if args.version:
            from iosim import __version__

            print(f"iosim {__version__}")
            return 0
        if args.command is None:
            parser.print_help()
            return 0
        code: int = args.run(args)
        return code
    except InputError as error:
        print(f"iosim: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("iosim: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
