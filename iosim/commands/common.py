"""Options and output that several commands share."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from iosim.base.errors import InputError
from iosim.base.fields import Kind
from iosim.base.files import is_made_by, write_whole
from iosim.base.progress import announce
from iosim.base.records import fields, replace
from iosim.base.units import some
from iosim.commands import options
from iosim.commands.options import COMMON, CommandParser
from iosim.kernel.conditions import CONDITIONS
from iosim.kernel.overrides import OVERRIDES, Overrides
from iosim.problem.fields import BESIDES, FIELDS
from iosim.show.page import Page, markdown
from iosim.show.tables import Table
from iosim.show.terminal import folded
from iosim.studies.requests import OF_MODEL, OfProblem

if TYPE_CHECKING:
    from pathlib import Path

    from iosim.problem.attention import AttentionProblem
    from iosim.studies.models.layers import Layers, Model

T = TypeVar("T")
USUAL_GPU = "a100"
MODEL = "how the L2 and HBM are modelled"
FORMATS = ("table", "json", "csv")
LENGTH_ALONE = ("seq_q",)
ALL_SIZES = ("seq_q", "batch", "heads", "kv_heads", "head_dim", "dtype", "passes", "seq_k", "head_dim_v")
MOST_USED = ("batch", "heads", "kv_heads", "head_dim", "dtype")
OF_MASK = ("window", "window_right", "mask_block", "mask_stride", "global_tokens", "mask_file", "key_padding",
           "mask_storage")  # fmt: skip
ASKED = {**FIELDS, **OVERRIDES, **BESIDES}
ACCESSES_PER_S = 10_000_000
"""That a replay plays, about."""
TOLD_S = 10
"""Replays of so many seconds are announced."""


def add_gpu(parser: CommandParser, usual: str | None = USUAL_GPU, told: str = "", several: bool = False) -> None:
    """--gpu: `args.gpu` is the name of a GPU or profile file, or with `several` a list of them."""
    told = told or ("GPUs or profile files, such as a100,h100" if several else "GPU or profile file")
    default = f" (default: {usual})" if usual else ""
    options.add_names(parser.group(COMMON), "--gpu", usual=usual, several=several, help=told + default)


def add_kernel(
    parser: CommandParser, usual: str | None, told: str = "", several: bool = False, default: str = ""
) -> None:
    """--kernel: `args.kernel` is a name, or with `several` a list; `default` says what it is where `usual` does not."""
    told, default = told or ("kernels, such as naive,fa2" if several else "kernel"), default or usual or ""
    if default:
        own = "; default is the GPU's own: fa3, fa4, fa2 or cutlass" * ("default" in default)
        told = f"{told} (default: {default}{own})"
    options.add_names(parser.group(COMMON), "--kernel", usual=usual, several=several, help=told)


def add_conditions(parser: CommandParser, *names: str, **told: str) -> None:
    """Options of the conditions, all or those among `names`; `told` are defaults in words, in place of their own."""
    table = {name: replace(CONDITIONS[name], default_text=words) for name, words in told.items()}
    options.add(parser.group(MODEL), {**CONDITIONS, **table}, names or CONDITIONS)


def add_model(parser: CommandParser, *, layers: bool = True, share: bool = True) -> None:
    """--model, --tensor-parallel and, unless the command has its own, --layers."""
    told = "take the layers of a model: a name (iosim models list), a Hugging Face config.json or its directory"
    parser.group(COMMON).add_argument("--model", metavar="NAME|FILE", action=options.One, help=told)
    if layers or share:
        options.add(parser.group("of a model"), OF_MODEL, ["layers"] * layers + ["tensor_parallel"] * share)


def add_problem_options(
    parser: CommandParser, *, several: Collection[str] = LENGTH_ALONE, lengths: str | None = None
) -> None:
    """--batch, --heads, ... as the problem's fields spell them; --seq-len is `lengths` by default."""
    g = parser.group(COMMON)
    listed = "seq_q" in several
    told = "query tokens: 4096, 512,4096 or 1k:64k:x2 (k is 1024)" if listed else "query tokens"
    length = replace(FIELDS["seq_q"], kind=Kind.SIZES, help=told, metavar="N,..." if listed else "N",
                     default=None, usual=None, default_text=lengths or str(FIELDS["seq_q"].usual))  # fmt: skip
    options.add(g, {"seq_q": length})
    parser.set_defaults(usual_lengths=lengths)
    options.add(g, FIELDS, MOST_USED, several=several)
    options.add(g, BESIDES, ("causal",))
    options.add(g, FIELDS, ("passes",), several=several)
    more = parser.group("more of the problem")
    first = {"seq_q", "mask", "passes", *MOST_USED, *OF_MASK}
    options.add(more, FIELDS, (name for name in FIELDS if name not in first), several=several)
    options.add(more, BESIDES, ("prefix",))
    masks = parser.group("mask")
    options.add(masks, options.without_defaults(FIELDS, "mask"), several=several)
    options.add(masks, FIELDS, OF_MASK, several=several)


def add_kernel_options(parser: CommandParser, *, several: Collection[str] = ()) -> None:
    """--tile, --warps, ...: settings over the kernel's own choice; those in `several` take lists."""
    options.add(parser.group("kernel settings, over the kernel's own choice"), OVERRIDES, several=several)


def add_output_options(parser: CommandParser, formats: Sequence[str] = FORMATS, *, page: bool = False) -> None:
    """--format, --out and, of a command that draws, --html: `page`, or a format of it is "html"."""
    g = parser.group("output")
    *most, last = (name for name in formats if name != "html")  # --html says it
    told = f"{', '.join(most)} or {last} (default: {formats[0]})"
    g.add_argument("--format", choices=formats, default=formats[0], metavar="FORMAT", help=told)
    g.add_argument("--out", "-o", metavar="FILE", help="write there instead of standard output")
    if page or "html" in formats:
        add_page_options(parser)


def add_page_options(parser: CommandParser, told: str = "also write a page with figures there") -> None:
    g = parser.group("output")
    g.add_argument("--html", metavar="FILE", help=told)
    g.add_argument(FORCE, action="store_true", help="write pages over files that this command did not write")


def add_actions(parser: CommandParser, *actions: tuple[str, str, str, str, Sequence[str]]) -> list[CommandParser]:
    """What a command does by its second word: of each action its name, what it does, its own word (empty for none),
    what that is, and the formats of what it prints. Returns their parsers."""
    names = "|".join(name for name, *_ in actions)
    subparsers = parser.add_subparsers(dest="action", required=True, metavar=names)
    parsers: list[CommandParser] = []
    for name, does, word, told, formats in actions:
        parsers.append(subparsers.add_parser(name, help=does))
        if word:
            parsers[-1].add_argument(word, metavar=word.upper(), help=told or None)
        if formats:
            add_output_options(parsers[-1], formats)
    return parsers


def is_given(args: argparse.Namespace, name: str) -> bool:
    """Whether an option was typed, rather than left at its default."""
    value = getattr(args, name, None)
    if isinstance(value, bool):
        return value is not ASKED[name].default
    return name in vars(args).get(options.GIVEN, {})


def values(args: argparse.Namespace) -> dict[str, Any]:
    from iosim.problem.asked import check_queries

    typed = {name: getattr(args, name) for name in (*FIELDS, *BESIDES) if is_given(args, name)}
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


def request(args: argparse.Namespace, asked: type[T], **more: Any) -> T:
    """What a command is asked for, of the options that the fields of `asked` became; `more` are its other fields."""
    names = [field.name for field in fields(asked) if field.name not in more]  # type: ignore[arg-type]
    read = {name: READ[name](args) for name in names if name in READ}
    return asked(
        **read, **{name: getattr(args, name) for name in names if name not in READ and hasattr(args, name)}, **more
    )


def layer_problems(args: argparse.Namespace) -> list[tuple[Layers | None, AttentionProblem]]:
    """One problem for every combination of the values asked for, the query tokens fastest, and with --model for every
    kind of its layers. Raises InputError: values that make no sense or contradict each other."""
    from iosim.studies.models.asked import asked_problems

    of_model = {} if hasattr(args, "model") else {"layers": None}  # a command without models has layers of its own
    return asked_problems(request(args, OfProblem, problems=None, **of_model))


def problems(args: argparse.Namespace) -> list[AttentionProblem]:
    return [problem for _, problem in layer_problems(args)]


def problem(args: argparse.Namespace) -> AttentionProblem:
    asked = problems(args)
    if len(asked) > 1:
        hint = f"'{args.command}' takes one, so accepted: one of them"
        raise InputError(f"--seq-len {args.seq_q} are {len(asked)} lengths; {hint}")
    return asked[0]


def tell_problems(args: argparse.Namespace, what: str, problems: Sequence[object], hint: str) -> int:
    lines = [str(problem) for problem in problems]
    tell(
        args,
        None,
        json=lambda: {"file": args.file, "problems": lines},
        table=lambda: "".join(f"{line}\n" for line in lines) or f"{args.file}: no problems\n",
    )
    if lines:
        raise InputError(f"{what} '{args.file}' has {some(len(lines), 'problem')}, as listed; {hint}")
    return 0


def announce_replays(what: str, accesses: int, more: str = "") -> None:
    """Say on standard error, also where that is no terminal, how long a command's replays may take where that is more
    than a few seconds."""
    seconds = round(accesses / ACCESSES_PER_S)
    if seconds >= TOLD_S:
        announce(f"iosim: {what}: up to {accesses:,} accesses to replay, some {seconds} s{more}", in_pipes=True)


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
    if "html" in written and getattr(args, "html", None) is not None:
        emit(written["html"](), args.html)
    if args.format == "json":
        whole = json_text({"schema": 1, **({} if answer is None else {"answer": answer}), **json()})
    elif args.format in written:
        whole = written[args.format]()
    elif args.format == "csv":
        found = rows()
        whole = (found if isinstance(found, Table) else Table.of(found)).csv()
    else:
        below = text(args.format == "md")
        whole = below if answer is None else f"{answer}\n\n{below}"
    emit(whole, args.out, code=code)
    return 0


def show(args: argparse.Namespace, found: Any, whole: Mapping[str, Any] | None = None, page: Any = None) -> int:
    """`tell` of a result that says itself what it is; `whole` is the JSON where that is more than the result's own,
    `page` a function of the command line that makes the page."""
    return tell(args, found.answer, json=lambda: found.to_dict() if whole is None else whole, rows=found.records,
                table=found.to_text, **paged(lambda: (page or found.as_page)(typed(args.command))))  # fmt: skip


def paged(page: Callable[[], Page]) -> dict[str, Any]:
    def as_html() -> str:
        from iosim.show.html import html  # its libraries are slow to load

        return html(page())

    return {"html": as_html, "md": lambda: markdown(page())}


def held(exceeded: Sequence[str | None]) -> int:
    """1, and why, where a limit of --fail-above does not hold."""
    if any(exceeded):
        print(f"iosim: --fail-above: {'; '.join(filter(None, exceeded))}", file=sys.stderr)
    return int(any(exceeded))


PLACES = ("--out", "-o", "--html", "--csv")
FORCE = "--force"


def typed(command: str) -> str:
    """The command line as it was typed, but for where its files go; the bare `command` where Python calls iosim."""
    typed_words = sys.argv[1:] if sys.argv[1:2] == [command] else [command]
    words = ["iosim"]
    place = False
    for word in typed_words:
        if not place and word not in (*PLACES, FORCE) and not word.startswith(tuple(f"{option}=" for option in PLACES)):
            words.append(word)
        place = word in PLACES
    return shlex.join(words)


def emit(text: str, out: str | None, *, code: bool = False) -> None:
    """Print `text`, or write it to `out` whole. No line of `code`, which a program reads, is broken at the terminal's
    width."""
    if out is None:
        if sys.stdout is None:
            raise InputError("standard output is closed; accepted: --out FILE, or an open standard output")
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write((text if code else folded(text)).encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
        return
    write_whole(out, text)


def check_place(out: str | None, option: str = "--out") -> None:
    """Refuses a file whose directory is not there, or a directory, before work of minutes is done for it."""
    from pathlib import Path

    if out is None:
        return
    try:
        is_file, has_place = bool(out) and not Path(out).is_dir(), Path(out).absolute().parent.is_dir()
    except (OSError, ValueError) as error:
        raise InputError(
            f"{option} {out!r} cannot be written: {getattr(error, 'strerror', None) or error}; a file name is needed"
        ) from None
    if not is_file:
        raise InputError(f"{option} '{out}' is a directory or nothing; a file name is needed")
    if not has_place:
        raise InputError(f"{option} '{out}' cannot be written: its directory does not exist; accepted: one that does")


def check_pages(args: argparse.Namespace) -> None:
    """Before work is done: that the command's page can be written where it shall go, and is no other file."""
    check_place(args.html, "--html")
    for option, place in {"--html": args.html, "--out": args.out if args.format == "html" else None}.items():
        if place is not None:
            check_own(place, args, option)


def check_own(place: str | Path, args: argparse.Namespace, option: str = "--out") -> None:
    """Refuses to write a page over a file that the command did not write, unless --force is given."""
    if not args.force and not is_made_by(place, f"iosim {args.command}"):
        hint = "accepted: another name, or --force to replace it"
        raise InputError(f"{option} '{place}' is there and was not written by 'iosim {args.command}'; {hint}")
