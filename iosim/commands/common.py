"""Options and output that several commands share."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from iosim.base.errors import InputError
from iosim.base.fields import Kind, fields_of
from iosim.base.progress import announce
from iosim.base.units import some
from iosim.commands import options
from iosim.commands.parser import COMMON
from iosim.kernel.conditions import CONDITIONS
from iosim.kernel.overrides import OVERRIDES
from iosim.problem.fields import BESIDES, FIELDS
from iosim.show.tables import Table
from iosim.show.terminal import folded

if TYPE_CHECKING:
    from iosim.kernel.overrides import Overrides
    from iosim.problem.attention import AttentionProblem

T = TypeVar("T")
USUAL_GPU = "a100"
GPU_OF_OLD = ("--gpus", "--profile", "--profiles")
KERNEL_OF_OLD = ("--kernels",)
"""Spellings that are still understood; help does not show them."""
MODEL = "how the L2 and HBM are modelled"
LENGTH_ALONE = ("seq_q",)
ALL_SIZES = ("seq_q", "batch", "heads", "kv_heads", "head_dim", "dtype", "passes", "seq_k", "head_dim_v")
"""Fields whose options can take lists."""
MOST_USED = ("batch", "heads", "kv_heads", "head_dim", "dtype")
OF_MASK = (
    "window",
    "window_right",
    "mask_block",
    "mask_stride",
    "global_tokens",
    "mask_file",
    "key_padding",
    "mask_storage",
)
ACCESSES_PER_S = 10_000_000
"""That a replay plays, about."""
TOLD_S = 10
"""Replays of so many seconds are announced."""


def group(parser: argparse.ArgumentParser, title: str) -> Any:
    """The parser's group of options with this title, a new one where there is none yet."""
    groups = (group for group in parser._action_groups if group.title == title)
    return next(groups, None) or parser.add_argument_group(title)


def add_gpus(parser: argparse.ArgumentParser, usual: str = USUAL_GPU) -> None:
    """--gpu, a list: `args.gpu` is a list of names of GPUs and profile files."""
    options.add_list(group(parser, COMMON), "--gpu", *GPU_OF_OLD, usual=usual.split(","), metavar="NAME,...",
                     help=f"GPUs or profile files, such as a100,h100 (default: {usual})")  # fmt: skip


def add_gpu(
    parser: argparse.ArgumentParser, usual: str | None = USUAL_GPU, help: str = "GPU or profile file",
    of_old: Sequence[str] = GPU_OF_OLD,
) -> None:  # fmt: skip
    """--gpu of a command that takes one: `args.gpu` is its name."""
    told = f"{help} (default: {usual})" if usual else help
    options.add_one(group(parser, COMMON), "--gpu", *of_old, usual=usual, metavar="NAME", help=told)


def add_kernels(parser: argparse.ArgumentParser, usual: str | None, told: str = "") -> None:
    """--kernel, a list: `args.kernel` is a list of names; `told` says what the default is where it is no list."""
    options.add_list(group(parser, COMMON), "--kernel", *KERNEL_OF_OLD, usual=usual.split(",") if usual else None,
                     metavar="NAME,...", help=f"kernels, such as naive,fa2{_usual_kernel(told or usual)}")  # fmt: skip


def add_kernel(parser: argparse.ArgumentParser, usual: str | None, help: str = "kernel") -> None:
    """--kernel of a command that takes one: `args.kernel` is its name."""
    told = f"{help}{_usual_kernel(usual)}"
    options.add_one(group(parser, COMMON), "--kernel", *KERNEL_OF_OLD, usual=usual, metavar="NAME", help=told)


def _usual_kernel(usual: str | None) -> str:
    """What help says of a default."""
    own = "; default is the GPU's own: fa3, fa4, fa2 or cutlass" * ("default" in (usual or ""))
    return f" (default: {usual}{own})" if usual else ""


def add_conditions(parser: argparse.ArgumentParser, *names: str, **told: str) -> None:
    """Options of the conditions, all or those among `names`; `told` are defaults in words, in place of their own."""
    table = {name: replace(CONDITIONS[name], default_text=words) for name, words in told.items()}
    options.add(group(parser, MODEL), {**CONDITIONS, **table}, names or CONDITIONS)


def conditions(args: argparse.Namespace) -> dict[str, Any]:
    """The conditions asked for, by their names."""
    return {name: getattr(args, name) for name in CONDITIONS if hasattr(args, name)}


def add_problem_options(
    parser: argparse.ArgumentParser, *, several: Collection[str] = LENGTH_ALONE,
    lengths: str = str(FIELDS["seq_q"].usual),
) -> None:  # fmt: skip
    """--batch, --heads, ... as the problem's fields spell them; --seq-len is `lengths` by default.

    `several` are the fields whose options take lists: LENGTH_ALONE, ALL_SIZES or none; `problems` has them all.
    """
    g = group(parser, COMMON)
    listed = "seq_q" in several
    told = "query tokens: 4096, 512,4096 or 1k:64k:x2 (k is 1024)" if listed else "query tokens"
    length = replace(FIELDS["seq_q"], kind=Kind.SIZES, help=told, metavar="N,..." if listed else "N",
                     default=None, usual=None, default_text=lengths)  # fmt: skip
    options.add(g, {"seq_q": length})
    parser.set_defaults(usual_lengths=lengths)
    options.add(g, FIELDS, MOST_USED, several=several)
    options.add(g, BESIDES, ("causal",))
    options.add(g, FIELDS, ("passes",), several=several)
    more = group(parser, "more of the problem")
    first = {"seq_q", "mask", "passes", *MOST_USED, *OF_MASK}
    options.add(more, FIELDS, (name for name in FIELDS if name not in first), several=several)
    options.add(more, BESIDES, ("prefix",))
    _add_masks(group(parser, "mask"), several)


def add_mask_options(group: Any) -> None:
    """--mask, and --causal for the most common one."""
    options.add(group, BESIDES, ("causal",))
    options.add(group, options.without_defaults(FIELDS, "mask"))


def _add_masks(group: Any, several: Collection[str]) -> None:
    options.add(group, options.without_defaults(FIELDS, "mask"), several=several)
    options.add(group, FIELDS, OF_MASK, several=several)


def add_kernel_options(parser: argparse.ArgumentParser, *, several: Collection[str] = ()) -> None:
    """--tile, --warps, ...: settings over the kernel's own choice; those in `several` take lists."""
    options.add(group(parser, "kernel settings, over the kernel's own choice"), OVERRIDES, several=several)


def add_output_options(parser: argparse.ArgumentParser, formats: Sequence[str] = ("table", "json", "csv")) -> None:
    """--format and --out."""
    g = group(parser, "output")
    told = f"{', '.join(formats[:-1])} or {formats[-1]} (default: {formats[0]})"
    g.add_argument("--format", choices=formats, default=formats[0], metavar="FORMAT", help=told)
    g.add_argument("--out", "-o", metavar="FILE", help="write there instead of standard output")


def problems(args: argparse.Namespace) -> list[AttentionProblem]:
    """One problem for every combination of the values asked for, the query tokens fastest. Raises InputError: values
    that make no sense, or --causal beside --window."""
    from iosim.problem.asked import check_queries, problems

    values = {name: getattr(args, name) for name, field in FIELDS.items() if field.option}
    values |= {name: getattr(args, name) for name in BESIDES}
    check_queries(values)
    if args.seq_q is None and args.seq_lens is None and args.seq_lens_k is None:
        values["seq_q"] = args.usual_lengths
    axes = {name: value for name, value in values.items() if isinstance(value, list)}
    return [
        one
        for combination in product(*axes.values())
        for one in problems(values | dict(zip(axes, combination, strict=True)))
    ]


def problem(args: argparse.Namespace) -> AttentionProblem:
    """The one problem of a command that takes one. Raises InputError: several lengths, or as `problems`."""
    asked = problems(args)
    if len(asked) > 1:
        raise InputError(f"--seq-len {args.seq_q} are {len(asked)} lengths; '{args.command}' takes one, so accepted: "
                         "one of them")  # fmt: skip
    return asked[0]


def overrides(args: argparse.Namespace) -> Overrides:
    """The kernel settings given by hand."""
    from iosim.kernel.overrides import Overrides

    return Overrides(**{name: getattr(args, name) for name in OVERRIDES})


def tell_problems(args: argparse.Namespace, what: str, problems: Sequence[object], hint: str) -> int:
    """What is wrong with a file of the user's own, a line a problem. Raises InputError: there are problems; `hint` says
    where to look."""
    lines = [str(problem) for problem in problems]
    if args.format == "json":
        emit(json_text({"schema": 1, "file": args.file, "problems": lines}), args.out)
    else:
        emit("".join(f"{line}\n" for line in lines) or f"{args.file}: no problems\n", args.out)
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
    """JSON with a final newline; NaN and infinities are refused."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def request(args: argparse.Namespace, asked: type[T], **more: Any) -> T:
    """What a command is asked for, of the options that the fields of `asked` became; `more` are its other fields."""
    return asked(**{name: getattr(args, name) for name in fields_of(asked) if name not in more}, **more)


class Printed(Protocol):
    """A result that a command prints."""

    @property
    def answer(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...
    def records(self) -> Iterable[Mapping[str, Any]]: ...
    def to_text(self) -> str: ...


def printed(found: Printed, form: str, whole: dict[str, Any] | None = None) -> str:
    """A result as JSON, CSV or text; `whole` is the JSON where that is more than the result's own."""
    if form == "json":
        whole = found.to_dict() if whole is None else whole
        return json_text({"schema": whole.pop("schema"), "answer": found.answer, **whole})
    return Table.of(found.records()).csv() if form == "csv" else found.to_text()


Rows = Iterable[Mapping[str, Any]]


def tell(
    args: argparse.Namespace,
    answer: str,
    *,
    json: Callable[[], Mapping[str, Any]],
    rows: Callable[[], Rows | Table] = tuple,
    text: Callable[[bool], str] = str,
    code: bool = False,
    **written: Callable[[], str],
) -> int:
    """Writes what was found in the format asked for; returns the exit code.

    Args:
        answer: the sentence that comes first in JSON and in text.
        json: the keys below it.
        rows: of the CSV.
        text: what stands below the answer; it is called with whether that is Markdown.
        code: as in `emit`.
        written: the whole file of other formats.
    """
    if args.format == "json":
        whole = json_text({"schema": 1, "answer": answer, **json()})
    elif args.format in written:
        whole = written[args.format]()
    elif args.format == "csv":
        found = rows()
        whole = (found if isinstance(found, Table) else Table.of(found)).csv()
    else:
        whole = f"{answer}\n\n{text(args.format == 'md')}"
    emit(whole, args.out, code=code)
    return 0


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


def emit(text: str, out: str | None, *, code: bool = False) -> None:
    """Print `text`, or write it to `out` whole.

    Args:
        code: a program reads it, though it is no `--format` for programs: no line is broken at the terminal's width.

    Raises:
        InputError: the file cannot be written.
    """
    if out is None:
        if sys.stdout is None:
            raise InputError("standard output is closed; accepted: --out FILE, or an open standard output")
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write((text if code else folded(text)).encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
        return
    from iosim.base.files import write_whole

    write_whole(out, text)


def check_place(out: str | None, option: str = "--out") -> None:
    """Refuses a file whose directory is not there, or a directory, before work of minutes is done for it. Raises
    InputError: no file can be written there."""
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
