"""`iosim decode`: bytes and time of attention per generated token over the context's length."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from iosim.base.progress import progress
from iosim.commands import common
from iosim.show.tables import Table

if TYPE_CHECKING:
    from iosim.studies.decode import DecodePoint


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "decode", help="attention per generated token: bytes, time, tokens a second over the context's length"
    )
    parser.add_argument("--gpu", action="append", metavar="NAME", help="GPU or profile file (repeats; default a100)")
    parser.add_argument("--kernel", action="append", metavar="NAME",
                        help="kernel (repeats; default: the one that the GPU's libraries decode with)")  # fmt: skip
    g = parser.add_argument_group("model")
    g.add_argument("--layers", type=common.whole, default=32, metavar="N", help="attention layers (default 32)")
    g.add_argument("--heads", type=common.whole, default=32, metavar="N", help="query heads (default 32)")
    g.add_argument("--kv-heads", type=common.whole, metavar="N", help="key/value heads (default 8; 1 with --latent-kv)")
    g.add_argument("--head-dim", type=common.whole, default=128, metavar="D", help="columns of Q and K (default 128)")
    g.add_argument("--head-dim-v", type=common.whole, metavar="D", help="columns of V and O (default: --head-dim)")
    g.add_argument("--dtype", default="bf16", help="fp32, tf32, fp16, bf16 or fp8 (default bf16)")
    g.add_argument("--window", type=common.whole, metavar="W", help="keep keys 0 <= i - j <= W")
    g.add_argument("--latent-kv", action="store_true", help="V is the first --head-dim-v columns of K (MLA)")
    s = parser.add_argument_group("step")
    s.add_argument("--context", default="1k:128k:x2", metavar="N",
                   help="tokens in the cache: 4096, 1k,8k or 1k:128k:x2 (default)")  # fmt: skip
    s.add_argument("--batch", type=common.whole, default=1, metavar="N", help="sequences (default 1)")
    s.add_argument("--new-tokens", type=common.whole, default=1, metavar="N",
                   help="query tokens of a sequence in a step (default 1)")  # fmt: skip
    s.add_argument("--page-size", type=common.whole, metavar="N", help="tokens of a page of the cache")
    s.add_argument("--append-kv", action="store_true", help="a launch before writes the new K and V to the cache")
    s.add_argument("--splits", type=common.whole, metavar="N", help="parts that the keys of a head are split into")
    common.add_output_options(parser, ("table", "json", "csv", "md", "html"))
    parser.set_defaults(run=run)


def points(args: argparse.Namespace) -> Iterable[DecodePoint]:
    """A point for every GPU, kernel and context asked for."""
    from iosim.base.units import sizes
    from iosim.kernel.libraries import Overrides
    from iosim.studies.decode import ModelShape, sweep

    kv_heads = args.kv_heads
    if kv_heads is None:
        kv_heads = 1 if args.latent_kv else min(8, args.heads)
    shape = ModelShape(args.heads, kv_heads, args.head_dim, args.head_dim_v, args.layers, args.dtype, args.latent_kv,
                       args.page_size, args.window)  # fmt: skip
    contexts = sizes(args.context, "--context")
    settings = Overrides(splits=args.splits, append_kv=args.append_kv)
    for gpu in args.gpu or ["a100"]:
        for kernel in args.kernel or [None]:
            yield from sweep(shape, contexts, gpu, kernel, batch=args.batch, new_tokens=args.new_tokens,
                             overrides=settings)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from iosim.show.html import html
    from iosim.show.markdown import markdown
    from iosim.studies.decode.page import as_page, notes, table

    made = list(progress("predicting")(points(args)))
    if args.format == "json":
        text = common.json_text({"schema": 1, "points": [p.to_dict() for p in made]})
    elif args.format == "csv":
        text = Table.of({k: v for k, v in p.to_dict().items() if k not in ("problem", "notes")} for p in made).csv()
    elif args.format == "table":
        text = table(made).text() + "".join(f"note: {n}\n" for n in notes(made))
    else:
        page = as_page(made, common.typed("decode"))
        text = html(page) if args.format == "html" else markdown(page)
    common.emit(text, args.out)
    return 0
