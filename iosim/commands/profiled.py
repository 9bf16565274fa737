"""What is said of profiled calls: the options, and the same options in the text of an NVTX range."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.fields import Kind
from iosim.base.records import replace
from iosim.commands import options
from iosim.commands.parser import CommandParser
from iosim.kernel.overrides import OVERRIDES
from iosim.problem.fields import BESIDES, FIELDS

if TYPE_CHECKING:
    from iosim.evidence.validate.recognise import Given

PROFILED = ("batch", "heads", "kv_heads", "head_dim", "dtype", "seq_k", "window")
KNOBS = ("tile", "stages", "order", "heavy_first", "fold", "section_heads", "direction", "scheduler", "cluster",
         "splits")  # fmt: skip
"""Fields of the problem and settings of a kernel that a profile may leave open."""


def add_calls(parser: CommandParser, title: str) -> None:
    """Options that say what a profile leaves open; None is not said, and nothing is guessed."""
    g = parser.group(title)
    told = "; of a list each launch takes the one that fits its grid"
    lengths = replace(FIELDS["seq_q"], kind=Kind.SIZES, help=f"query tokens{told}", metavar="N,...")
    columns = replace(FIELDS["head_dim"], help="columns of Q and K; of a list the one that fits")
    fields = {**FIELDS, "seq_q": lengths, "head_dim": columns}
    options.add(g, options.without_defaults(fields, "seq_q", *PROFILED), several=("head_dim",))
    causal = replace(BESIDES["causal"], default=None, help="whether keys up to the query are kept")
    options.add(g, {"causal": causal})
    k = parser.group("kernel settings of the project's own kernels")
    options.add(k, OVERRIDES, KNOBS)
    k.add_argument("--persistent", action="store_true", default=None, help=argparse.SUPPRESS)


def given(args: argparse.Namespace) -> Given:
    """What the options of `add_calls` say."""
    from iosim.base.units import sizes
    from iosim.evidence.validate.recognise import Given

    scheduler = "persistent" if args.persistent else args.scheduler
    settings: dict[str, Any] = {
        "stages": args.stages, "order": args.order, "heavy_first": args.heavy_first, "section": args.section_heads,
        "direction": args.direction, "splits": args.splits, "scheduler": scheduler, "fold": args.fold,
        "cluster": args.cluster, "persistent": None if scheduler is None else scheduler == "persistent",
    }  # fmt: skip
    if args.tile is not None:
        settings |= dict(zip(("block_q", "block_k"), args.tile, strict=True))
    return Given(
        batch=args.batch, heads=args.heads, kv_heads=args.kv_heads, seq_k=args.seq_k, dtype=args.dtype,
        causal=args.causal, window=args.window,
        seqs=sizes(args.seq_q, "--seq-len") if args.seq_q else (), head_dims=args.head_dim or (),
        settings={k: str(int(v) if isinstance(v, bool) else v) for k, v in settings.items() if v is not None},
    )  # fmt: skip


def words(args: argparse.Namespace) -> list[str]:
    """The options of `add_calls` that were given, as they can be typed again."""
    given = {name: getattr(args, name) for name in ("seq_q", *PROFILED, "causal", *KNOBS, "persistent")}
    return options.typed({name: value for name, value in given.items() if value is not None})


def told(text: str) -> Given:
    """What the text of an NVTX range says behind the word `iosim`: the options of `add_calls`."""
    parser = CommandParser(prog="iosim", add_help=False)
    add_calls(parser, "calls")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"'{text}' is no list of options: {error}; accepted: --batch 2 --heads 16 ...") from None
    return given(parser.parse_args(words))
