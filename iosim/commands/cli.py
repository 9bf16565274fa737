"""The command line: parses, calls, prints. Bad input ends with one line on standard error and exit code 2."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

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
    for name in only or COMMANDS:
        own: CommandParser = subparsers.add_parser(name, help=COMMANDS[name].told)
        COMMANDS[name].add_options(own)
        own.set_defaults(run=COMMANDS[name].run)
    return parser


def _listing() -> str:
    wide = max(map(len, COMMANDS))
    told = {
        name: folded(f"  {name:<{wide}}  {each.told}\n", wide + 4)
        for name, each in COMMANDS.items()
    }
    return "".join(
        f"\n{title}:\n{''.join(told[name] for name in names)}"
        for title, names in COMMAND_GROUPS.items()
    )


def parsed(words: Sequence[str]) -> argparse.Namespace:
    if words[0] == HELP:
        words = [*words[1:], "--help"]
    if words[0] not in COMMANDS and not words[0].startswith("-"):
        raise unknown_name("COMMAND", words[0], COMMANDS)
    parser = build_parser(*([words[0]] if words[0] in COMMANDS else []))
    try:
        common.DEFAULTS[:] = own_defaults(words, parser) if words[0] in COMMANDS else []
        return parser.parse_args([*words[:1], *common.DEFAULTS, *words[1:]])
    except (SeveralValuesError, UnknownWordError) as error:
        from iosim.commands.hints import hinted, one_of_several

        every = build_parser()
        told = (
            hinted(error, every)
            if isinstance(error, UnknownWordError)
            else one_of_several(error, every)
        )
        raise InputError(told) from None


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
    try:
        words = sys.argv[1:] if argv is None else argv
        if not words:
            start = (
                "Start with: iosim predict --kernel fa2\n'iosim COMMAND --help' lists options.\n"
            )
            emit(f"{DESCRIPTION}\n{_listing()}\n{start}", None)
            return 0
        if words[0] == "__complete":
            from iosim.commands.completion import candidates

            found = candidates(words[1:], COMMANDS, build_parser)
            emit("".join(f"{candidate}\n" for candidate in found), None, code=True)
            return 0
        args = parsed(words)
        if args.version:
            of_checkout = commit()
            emit(f"iosim {__version__}{f' (commit {of_checkout})' if of_checkout else ''}\n", None)
            return 0
        if args.command is None:
            raise InputError(f"COMMAND is missing; accepted: {', '.join(COMMANDS)}")
        with warnings.catch_warnings():
            warnings.simplefilter("once", EngineWarning)
            usual = warnings.showwarning
            warnings.showwarning = lambda warning, kind, *where: (
                _complain(str(warning))
                if issubclass(kind, EngineWarning)
                else usual(warning, kind, *where)
            )
            hush(getattr(args, "quiet", False))
            for_a_person = (
                getattr(args, "format", "table") == "table" and getattr(args, "out", None) is None
            )
            with output(for_a_person=for_a_person):
                check_files(args)
                code: int = args.run(args)
        return code
    except InputError as error:
        _complain(with_options(error))
        return 2
    except MemoryError:
        _complain(
            "the sizes asked for need more memory than there is; smaller sizes or larger tiles are needed"
        )
        return 2
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as error:
        _drop_output()
        what = (
            f"'{error.filename}' cannot be opened"
            if error.filename
            else "standard output cannot be written"
        )
        _complain(f"{what}: {error.strerror}")
        return 2
    except KeyboardInterrupt:
        print("iosim: interrupted", file=sys.stderr)
        return 130
    except Terminated:
        print("iosim: terminated", file=sys.stderr)
        return 143


def _complain(message: str) -> None:
    line = " ".join(message.split())
    if len(line) > MAX_MESSAGE:
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
