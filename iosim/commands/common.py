"""Options and output that several commands share."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.progress import announce
from iosim.commands import options
from iosim.commands.options import whole
from iosim.kernel.overrides import OVERRIDES
from iosim.problem.fields import FIELDS

if TYPE_CHECKING:
    from iosim.kernel.overrides import Overrides
    from iosim.problem.attention import AttentionProblem

CAUSAL = "keep keys up to the query's own position"
ACCESSES_PER_S = 10_000_000
"""That a replay plays, about."""
TOLD_S = 10
"""Replays of so many seconds are announced."""


def add_problem_options(
    parser: argparse.ArgumentParser, *, lists: bool = True, lengths: str = str(FIELDS["seq_q"].usual)
) -> None:
    """--batch, --heads, ... as the problem's fields spell them; --seq-len takes lists, and is `lengths` by default."""
    g = parser.add_argument_group("problem")
    length = "tokens: 4096, 512,4096 or 1k:64k:x2 (k is 1024)" if lists else "tokens"
    field = FIELDS["seq_q"]
    g.add_argument(str(field.option), *field.spellings, dest="seq_q", metavar="N",
                   help=f"query {length} (default: {lengths})")  # fmt: skip
    parser.set_defaults(usual_lengths=lengths)
    options.add(g, FIELDS, (name for name in FIELDS if name not in ("seq_q", "mask")))
    add_mask_options(g)
    g.add_argument("--prefix", type=whole, metavar="N",
                   help="tokens cached before the queries: as many more keys than queries")  # fmt: skip


def add_mask_options(group: Any) -> None:
    """--mask, and --causal for the most common one."""
    options.add(group, options.without_defaults(FIELDS, "mask"))
    group.add_argument("--causal", action="store_true", help=CAUSAL)


def add_kernel_options(parser: argparse.ArgumentParser) -> None:
    """--tile, --warps, ...: settings over the kernel's own choice."""
    options.add(parser.add_argument_group("kernel settings (over the kernel's own choice)"), OVERRIDES)


def add_output_options(parser: argparse.ArgumentParser, formats: Sequence[str] = ("table", "json", "csv")) -> None:
    """--format and --out."""
    parser.add_argument("--format", choices=formats, default=formats[0], help=f"(default {formats[0]})")
    parser.add_argument("--out", "-o", metavar="FILE", help="write there instead of standard output")


def problems(args: argparse.Namespace) -> list[AttentionProblem]:
    """One problem for every sequence length asked for.

    Raises:
        InputError: values that make no sense, or --causal beside --window.
    """
    from iosim.problem.asked import BESIDES, problems

    values = {name: getattr(args, name) for name, field in FIELDS.items() if field.option}
    values |= {name: getattr(args, name) for name in BESIDES}
    if args.seq_q is None and args.seq_lens is None and args.seq_lens_k is None:
        values["seq_q"] = args.usual_lengths
    return problems(values)


def overrides(args: argparse.Namespace) -> Overrides:
    """The kernel settings given by hand."""
    from iosim.kernel.overrides import Overrides

    return Overrides(**{name: getattr(args, name) for name in OVERRIDES})


def announce_replays(what: str, accesses: int, more: str = "") -> None:
    """Say on standard error, also where that is no terminal, how long a command's replays may take where that is more
    than a few seconds."""
    seconds = round(accesses / ACCESSES_PER_S)
    if seconds >= TOLD_S:
        announce(f"iosim: {what}: up to {accesses:,} accesses to replay, some {seconds} s{more}", in_pipes=True)


def json_text(value: Any) -> str:
    """JSON with a final newline; NaN and infinities are refused."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


PLACES = ("--out", "-o", "--html", "--csv")
"""Options that say where files go."""


def typed(command: str) -> str:
    """The command line as it was typed, but for where its files go; the bare `command` where Python calls iosim."""
    typed_words = sys.argv[1:] if sys.argv[1:2] == [command] else [command]
    words = ["iosim"]
    place = False
    for word in typed_words:
        if not place and word not in PLACES and not word.startswith(tuple(f"{option}=" for option in PLACES)):
            words.append(word)
        place = word in PLACES
    return shlex.join(words)


def emit(text: str, out: str | None) -> None:
    """Print `text`, or write it to `out` whole.

    Raises:
        InputError: the file cannot be written.
    """
    if out is None:
        if sys.stdout is None:
            raise InputError("standard output is closed; accepted: --out FILE, or an open standard output")
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
        return
    from iosim.base.files import write_whole

    write_whole(out, text)


def check_place(out: str | None, option: str = "--out") -> None:
    """Refuses a file whose directory is not there, or a directory, before work of minutes is done for it.

    Raises:
        InputError: no file can be written there.
    """
    from pathlib import Path

    if out is None:
        return
    try:
        is_file, has_place = bool(out) and not Path(out).is_dir(), Path(out).absolute().parent.is_dir()
    except (OSError, ValueError) as error:
        raise InputError(f"{option} {out!r} cannot be written: {getattr(error, 'strerror', None) or error}; a file "
                         "name is needed") from None  # fmt: skip
    if not is_file:
        raise InputError(f"{option} '{out}' is a directory or nothing; a file name is needed")
    if not has_place:
        raise InputError(f"{option} '{out}' cannot be written: its directory does not exist; accepted: one that does")
