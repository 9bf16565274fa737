"""Options and output that several commands share."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from iosim.base.errors import InputError, unknown_name
from iosim.base.files import is_made_by, write_whole
from iosim.base.progress import announce
from iosim.base.records import fields
from iosim.base.units import some
from iosim.commands import options
from iosim.commands.options import FORCE, spelling
from iosim.problem.fields import BESIDES, FIELDS
from iosim.show.page import Page, markdown
from iosim.show.tables import Table
from iosim.show.terminal import folded
from iosim.studies.requests import OVERRIDES, OfProblem, Overrides

if TYPE_CHECKING:
    from pathlib import Path

    from iosim.problem.attention import AttentionProblem
    from iosim.studies.models.layers import Layers, Model

T = TypeVar("T")
ASKED = {**FIELDS, **OVERRIDES, **BESIDES}
ACCESSES_PER_S = 10_000_000
"""That a replay plays, about."""
TOLD_S = 10
"""Replays of so many seconds are announced."""


def is_given(args: argparse.Namespace, name: str) -> bool:
    """True where an option was typed, rather than left at its default."""
    value = getattr(args, name, None)
    # Flags are stored by argparse itself, which notes nothing down: one that differs from its
    # default was typed.
    if isinstance(value, bool):
        return value is not ASKED[name].default
    return name in vars(args).get(options.GIVEN, {})


def values(args: argparse.Namespace) -> dict[str, Any]:
    from iosim.problem.asked import check_queries

    typed = {name: getattr(args, name) for name in (*FIELDS, *BESIDES) if is_given(args, name)}
    # A command may have a default of its own for lengths (a grid); it gives way to every way of
    # saying them.
    if args.usual_lengths is not None and not {"seq_q", "seq_lens", "seq_lens_k"} & {*typed}:
        check_queries(typed)
        typed["seq_q"] = args.usual_lengths
    return typed


def loaded(args: argparse.Namespace) -> Model | None:
    if getattr(args, "model", None) is None:
        return None
    from iosim.integrations.models import load_model

    return load_model(args.model)


def overrides(args: argparse.Namespace) -> Overrides:
    return Overrides(**{name: getattr(args, name) for name in OVERRIDES})


READ = {"values": values, "model": loaded, "overrides": overrides}


def request(args: argparse.Namespace, record_type: type[T], **more: Any) -> T:
    """A record of this type, its fields read from the options of their names; `more` are its other fields."""
    # Three fields are made of many options and have readers (`READ`); any other is the option of
    # its name, if the command has it, else the record's default.
    names = [field.name for field in fields(record_type) if field.name not in more]  # type: ignore[arg-type]
    read = {name: READ[name](args) for name in names if name in READ}
    typed_values = {
        name: getattr(args, name) for name in names if name not in READ and hasattr(args, name)
    }
    return record_type(**read, **typed_values, **more)


def layer_problems(args: argparse.Namespace) -> list[tuple[Layers | None, AttentionProblem]]:
    """One problem for every combination of the values asked for, the query tokens fastest, and with --model for every
    kind of its layers. Raises InputError: values that make no sense or contradict each other."""
    from iosim.studies.models.asked import asked_problems

    of_model = (
        {} if hasattr(args, "model") else {"layers": None}
    )  # a command without models has layers of its own
    return asked_problems(request(args, OfProblem, problems=None, **of_model))


def problems(args: argparse.Namespace) -> list[AttentionProblem]:
    return [problem for _, problem in layer_problems(args)]


def problem(args: argparse.Namespace) -> AttentionProblem:
    listed = problems(args)
    if len(listed) > 1:
        hint = f"'{args.command}' takes one, so accepted: one of them"
        raise InputError(f"--seq-len {args.seq_q} are {len(listed)} lengths; {hint}")
    return listed[0]


def has_problem(args: argparse.Namespace) -> bool:
    """True where any of a problem's options, or a model, was typed."""
    return getattr(args, "model", None) is not None or any(
        is_given(args, name) for name in (*FIELDS, *BESIDES)
    )


def with_code(args: argparse.Namespace, usual: Sequence[str] = ()) -> list[str]:
    """The kernels that were typed, or `usual` ones, and after them the attention kernel that --code holds. Raises
    InputError: code that cannot be read, or that is no attention."""
    from iosim.studies.kernel_from_code import kernel_of_code
    from iosim.studies.requests import CodeRequest

    # A launch is of one problem: of several, the first says how many heads and sequences its tensors have.
    of_model = getattr(args, "model", None) is not None
    asked = None if of_model else problems(args)[0]
    name = kernel_of_code(request(args, CodeRequest, gpu=args.gpu[0]), asked)
    return [*(args.kernel if is_given(args, "kernel") else usual), name]


def tell_problems(
    args: argparse.Namespace, title: str, problems: Sequence[object], hint: str
) -> int:
    lines = [str(problem) for problem in problems]
    text = "".join(f"{line}\n" for line in lines) or f"{args.file}: no problems\n"
    tell(args, None, json=lambda: {"file": args.file, "problems": lines}, text=lambda _: text)
    if lines:
        raise InputError(
            f"{title} '{args.file}' has {some(len(lines), 'problem')}, as listed; {hint}"
        )
    return 0


def announce_replays(title: str, accesses: int, more: str = "") -> None:
    """Say on standard error, also where that is no terminal, how long a command's replays may take where that is more
    than a few seconds."""
    seconds = round(accesses / ACCESSES_PER_S)
    if seconds >= TOLD_S:
        announce(
            f"iosim: {title}: up to {accesses:,} accesses to replay, some {seconds} s{more}",
            in_pipes=True,
        )


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


Rows = Iterable[Mapping[str, Any]]


def tell(
    args: argparse.Namespace,
    answer: str | None,
    *,
    json: Callable[[], Mapping[str, Any]],
    rows: Callable[[], Rows | Table] = tuple,
    text: Callable[[bool], str] = str,
    code: bool = False,
    **written: Callable[[], str],
) -> int:
    """Writes what was found in the format asked for; returns the exit code.

    Args:
        answer: the sentence that comes first in JSON and in text; None of what answers nothing.
        json: the keys below it.
        rows: of the CSV.
        text: what stands below the answer; it is called with whether that is Markdown.
        code: as in `emit`.
        written: the whole file of other formats; that of "html" goes to --html, too.
    """
    # A page beside the text, or in its place: --html FILE and --format html are both accepted.
    if "html" in written and getattr(args, "html", None) is not None:
        emit(written["html"](), args.html)
    if vars(args).get("columns") or vars(args).get("sort"):
        emit(chosen_rows(args, answer, rows()), args.out, code=code)
        return 0
    if args.format == "json":
        whole = json_text({"schema": 1, **({} if answer is None else {"answer": answer}), **json()})
    elif args.format in written:
        whole = written[args.format]()
    elif args.format == "csv":
        table_or_rows = rows()
        whole = (
            table_or_rows if isinstance(table_or_rows, Table) else Table.of(table_or_rows)
        ).csv()
    else:
        below = text(args.format == "md")
        whole = below if answer is None else f"{answer}\n\n{below}"
    emit(whole, args.out, code=code)
    return 0


DESCENDS = ":desc"


def chosen_rows(args: argparse.Namespace, answer: str | None, rows: Rows | Table) -> str:
    """The rows of the CSV, those columns and in that order that were asked for, as a table or as CSV. Raises
    InputError: a column that is not there, or another format."""
    table = rows if isinstance(rows, Table) else Table.of(rows)
    keys = [column.key for column in table.columns]
    sort, descends = (args.sort or "").removesuffix(DESCENDS), (args.sort or "").endswith(DESCENDS)
    for option, chosen in (("--columns", args.columns or ()), ("--sort", (sort,) if sort else ())):
        for name in chosen:
            if name not in keys:
                raise unknown_name(option, name, keys)
    if args.format not in ("table", "csv"):
        option = "--columns" if args.columns else "--sort"
        raise InputError(
            f"{option} contradicts --format {args.format}; accepted with it: table, csv"
        )
    records = [dict(zip(keys, row, strict=True)) for row in table.rows]
    if sort:
        # Rows without a value come last in both directions.
        missing = [row for row in records if row[sort] is None]
        known = [row for row in records if row[sort] is not None]
        records = [
            *sorted(known, key=lambda row: _sorted_by(row[sort]), reverse=descends),
            *missing,
        ]
    output = Table.of({name: row[name] for name in args.columns or keys} for row in records)
    if args.format == "csv":
        return output.csv()
    return output.text() if answer is None else f"{answer}\n\n{output.text()}"


def _sorted_by(cell: Any) -> tuple[float, str]:
    """Numbers by size, before texts by their letters."""
    try:
        return float(cell), ""
    except (TypeError, ValueError):
        return math.inf, str(cell)


def show(
    args: argparse.Namespace, result: Any, whole: Mapping[str, Any] | None = None, page: Any = None
) -> int:
    """`tell` of a result that says itself what it is; `whole` is the JSON where that is more than the result's own,
    `page` a function of the command line that makes the page."""
    return tell(
        args,
        result.answer,
        json=lambda: result.to_dict() if whole is None else whole,
        rows=result.records,
        table=result.to_text,
        **paged(args, lambda: (page or result.as_page)(typed(args.command))),
    )


def paged(args: argparse.Namespace, page: Callable[[], Page]) -> dict[str, Any]:
    """A page's two forms, as `tell` takes them."""
    return {**html_page(args, page), "md": lambda: markdown(page())}


def html_page(args: argparse.Namespace, page: Callable[[], Page]) -> dict[str, Any]:
    """A page as HTML; with --interactive its figures are plotly's."""

    def as_html() -> str:
        from iosim.show.html import html  # its libraries are slow to load

        return html(page(), interactive=vars(args).get("interactive", False))

    return {"html": as_html}


def held(exceeded: Sequence[str | None]) -> int:
    """1, and why, where a limit of --fail-above does not hold."""
    if any(exceeded):
        print(f"iosim: --fail-above: {'; '.join(filter(None, exceeded))}", file=sys.stderr)
    return int(any(exceeded))


DEFAULTS: list[str] = []
"""What a user's own defaults have added to the command line that is being run."""
PLACES = ("--out", "--output", "-o", "--html", "--csv")


def typed(command: str) -> str:
    """The command line as it was typed, but for where its files go; the bare `command` where Python calls iosim."""
    typed_words = sys.argv[1:] if sys.argv[1:2] == [command] else [command]
    words = ["iosim"]
    place = False
    # Two forms name a file, "--out FILE" and "--out=FILE": a page shows the command without either,
    # and without --force, so that whoever copies it overwrites nothing.
    for word in [*typed_words[:1], *DEFAULTS, *typed_words[1:]]:
        if (
            not place
            and word not in (*PLACES, FORCE)
            and not word.startswith(tuple(f"{option}=" for option in PLACES))
        ):
            words.append(word)
        place = word in PLACES
    return shlex.join(words)


def emit(text: str, out: str | None, *, code: bool = False) -> None:
    """Print `text`, or write it to `out` whole. No line of `code`, which a program reads, is broken at the terminal's
    width."""
    if out is None:
        if sys.stdout is None:
            raise InputError(
                "standard output is closed; accepted: --out FILE, or an open standard output"
            )
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(
            # A terminal that knows no arrows or Greek letters shows their escapes: better than a traceback.
            (text if code else folded(text)).encode(encoding, "backslashreplace").decode(encoding)
        )
        sys.stdout.flush()
        return
    write(out, text)


def write(place: str | Path, text: str) -> None:
    """Writes a file whole, and says on standard error that it did."""
    write_whole(place, text)
    say_written(place)


def say_written(*places: str | Path) -> None:
    from pathlib import Path

    for path in map(Path, places):
        if path.is_file():  # nothing stays in a device or a pipe
            announce(f"iosim: wrote {path}: {path.stat().st_size:,} bytes", in_pipes=True)


def check_place(out: str | None, option: str = "--out") -> None:
    """Refuses a file whose directory is not there, or a directory, before work of minutes is done for it."""
    from pathlib import Path

    if out is None:
        return
    try:
        # Paths with a NUL byte or too long a name raise only when they are looked at.
        is_file, has_place = (
            bool(out) and not Path(out).is_dir(),
            Path(out).absolute().parent.is_dir(),
        )
    except (OSError, ValueError) as error:
        raise InputError(
            f"{option} {out!r} cannot be written: {getattr(error, 'strerror', None) or error}; a file name is needed"
        ) from None
    if not is_file:
        raise InputError(f"{option} '{out}' is a directory or nothing; a file name is needed")
    if not has_place:
        raise InputError(
            f"{option} '{out}' cannot be written: its directory does not exist; accepted: one that does"
        )


def check_files(args: argparse.Namespace) -> None:
    """Before work is done: that what the command writes can be written where it shall go, and that its page is put over
    no other file."""
    pages = {
        "html": getattr(args, "html", None),
        "out": args.out if vars(args).get("format") == "html" else None,
    }
    if vars(args).get("interactive") and not any(pages.values()) and args.command != "report":
        raise InputError("--interactive is for pages; accepted: with --html FILE")
    for name in (*vars(args).get("places", ()), "html"):
        check_place(getattr(args, name, None), spelling(name))
    for name, place in pages.items():
        if place is not None:
            check_own(place, args, spelling(name))


def check_own(place: str | Path, args: argparse.Namespace, option: str = "--out") -> None:
    """Refuses to write a page over a file that the command did not write, unless --force is given."""
    if not args.force and not is_made_by(place, f"iosim {args.command}"):
        hint = "accepted: another name, or --force to replace it"
        raise InputError(
            f"{option} '{place}' is there and was not written by 'iosim {args.command}'; {hint}"
        )
