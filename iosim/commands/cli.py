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
from iosim.base.version import __version__
from iosim.commands.options import CommandParser, ListFormatter, UnknownWordError, with_options
from iosim.show.terminal import coloured, folded, output

COMMAND_GROUPS: Mapping[str, Mapping[str, str]] = {
    "what moves, and why": {
        "predict": "bytes by level and tensor, bounds, time and memory of attention on a GPU",
        "compare": "kernels and GPUs side by side: bytes by level and tensor, time, memory, ratios to a baseline",
        "explain": "why a kernel's HBM bytes are what they are, and what would lower them",
        "trace": "hits over time, reuse distances and CTAs of a replay, as table, figure or Chrome trace",
        "explore": "a page in the browser: sliders for problem, kernel, tile and GPU, replayed as they change",
        "formula": "SM<->L2 bytes in closed form: text, LaTeX, numbers put in, the limit against the papers",
        "sweep": "predictions of a whole grid, or of the rows of a file, as CSV or Parquet",
    },
    "what to choose": {
        "tiles": "tiles that fit a problem on a GPU, ranked by predicted time",
        "orders": "in which order tiles should start: orders ranked by time and HBM bytes, and their code",
        "report": "one HTML and one Markdown report over GPUs, kernels and sequence lengths",
    },
    "in serving and training": {
        "decode": "attention per generated token: bytes, time, tokens a second over the context's length",
        "latency": "what an attention call takes in a serving stack: kernel, combine, cache write, gaps",
        "ring": "attention over several GPUs: chunk schedules, idle time, link bytes, time and memory",
        "model": "whole models by part: HBM bytes and time of prefill, decoding or training, attention's share",
        "train-memory": "memory over time, step time and what fits, of a transformer trained on one GPU",
    },
    "how far to trust it": {
        "validate": "predictions beside recorded measurements, and gates on their errors",
        "reproduce": "published numbers computed again: claim, computed, ratio, arithmetic",
        "check-claim": "what a number from elsewhere counts (LLM-Viewer, a paper, a profiler), and why it is off",
    },
    "on a GPU of your own": {
        "calibrate": "measure this machine's GPU and write its hardware profile",
        "measure": "run the project's kernels on this machine's GPU, check them, and count their bytes",
        "ncu-rule": "a rule that shows predicted beside counted bytes on Nsight Compute's page",
    },
    "what iosim knows": {
        "profiles": "list, show and check hardware profiles",
        "kernels": "list, show, check and write kernels",
        "models": "list and show models, and what a config.json says of attention",
        "schema": "what a command's JSON holds: every key with its type and meaning, as a JSON schema",
        "cache": "show or clear the results of replays that are kept between runs",
        "completion": "completion of commands, options and names by the Tab key, for bash, zsh and fish",
    },
}
"""Commands and what they say of themselves, under the question that they answer, in the order of the help."""
COMMANDS = {command: told for commands in COMMAND_GROUPS.values() for command, told in commands.items()}
PLACES = {
    **dict.fromkeys(("compare", "report", "sweep"), "several"),
    **dict.fromkeys(("explain", "trace", "formula"), "why"),
    **dict.fromkeys(("decode", "latency", "ring", "model", "train-memory"), "serving"),
    **dict.fromkeys(("validate", "reproduce", "check-claim"), "trust"),
    **dict.fromkeys(("profiles", "models", "schema", "cache"), "known"),
}
"""Modules that hold several commands: of each `add_` and `run_` with its name."""
DESCRIPTION = "Bytes that attention moves between HBM, L2 and the SMs of a GPU, without the GPU."

MAX_MESSAGE = 1000


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
        word = name.replace("-", "_")
        module = importlib.import_module(f"iosim.commands.{PLACES.get(name, word)}")
        add_options, run = (
            (module.add_options, module.run)
            if name not in PLACES
            else (getattr(module, f"add_{word}"), getattr(module, f"run_{word}"))
        )
        own: CommandParser = subparsers.add_parser(name, help=COMMANDS[name])
        add_options(own)
        own.set_defaults(run=run)
    return parser


def _listing() -> str:
    wide = max(map(len, COMMANDS))
    return "".join(
        f"\n{title}:\n" + "".join(folded(f"  {name:<{wide}}  {told}\n", wide + 4) for name, told in commands.items())
        for title, commands in COMMAND_GROUPS.items()
    )


def parsed(words: Sequence[str]) -> argparse.Namespace:
    if words[0] not in COMMANDS and not words[0].startswith("-"):
        raise unknown_name("COMMAND", words[0], COMMANDS)
    parser = build_parser(*[words[0]] * (words[0] in COMMANDS))
    try:
        return parser.parse_args(words)
    except UnknownWordError as error:
        from iosim.commands.completion import hinted

        raise InputError(hinted(error, build_parser())) from None


def main(argv: Sequence[str] | None = None) -> int:
    try:
        words = sys.argv[1:] if argv is None else argv
        if not words:
            start = "Start with: iosim predict --kernel fa2\n'iosim COMMAND --help' lists options.\n"
            return _print(f"{DESCRIPTION}\n{_listing()}\n{start}")
        if words[0] == "__complete":
            from iosim.commands.completion import candidates

            found = candidates(words[1:], COMMANDS, build_parser)
            return _print("".join(f"{candidate}\n" for candidate in found), code=True)
        args = parsed(words)
        if args.version:
            return _print(f"iosim {__version__}\n")
        if args.command is None:
            raise InputError(f"COMMAND is missing; accepted: {', '.join(COMMANDS)}")
        with warnings.catch_warnings():
            warnings.simplefilter("once", EngineWarning)
            warnings.showwarning = _warn
            for_a_person = getattr(args, "format", "table") == "table" and getattr(args, "out", None) is None
            with output(for_a_person=for_a_person):
                if hasattr(args, "html"):
                    from iosim.commands.common import check_pages

                    check_pages(args)
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


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning of iosim's as a line of its own; all others as Python writes them."""
    if issubclass(category, EngineWarning):
        _complain(str(message))
    else:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))


def _complain(message: str) -> None:
    line = " ".join(message.split())
    if len(line) > MAX_MESSAGE:
        line = f"{line[: MAX_MESSAGE // 2]} ... {line[-MAX_MESSAGE // 2 :]}"
    print(
        coloured("iosim:", "red", sys.stderr) + " " + line.encode("ascii", "backslashreplace").decode(), file=sys.stderr
    )


def _drop_output() -> None:
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
