"""Options and output that several commands share."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from iosim.errors import InputError

if TYPE_CHECKING:
    from iosim.catalog import Overrides
    from iosim.problem import AttentionProblem


def whole(text: str) -> int:
    """argparse type for a whole number, k and m allowed."""
    from iosim.units import size

    try:
        return size(text, "value")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def signed(text: str) -> int:
    """argparse type for a whole number of either sign, k and m allowed."""
    from iosim.units import size

    try:
        return -size(text[1:], "value") if text.startswith("-") else size(text, "value")
    except InputError:
        raise argparse.ArgumentTypeError(f"value '{text}' is no whole number such as 128 or -4k") from None


def fraction(text: str) -> float:
    """argparse type for a probability."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"value '{text}' is out of range; accepted: 0 <= P < 1")
    return value


def add_problem_options(parser: argparse.ArgumentParser, *, lists: bool = True) -> None:
    """--batch, --heads, ... as the field spells them; --seq-len takes lists and ranges."""
    g = parser.add_argument_group("problem")
    g.add_argument("--batch", type=whole, default=1, metavar="N", help="sequences (default 1)")
    g.add_argument("--heads", type=whole, default=32, metavar="N", help="query heads (default 32)")
    g.add_argument("--kv-heads", type=whole, metavar="N", help="key/value heads (default: as many as query heads)")
    length = "tokens: 4096, 512,4096 or 1k:64k:x2 (k is 1024)" if lists else "tokens"
    g.add_argument("--seq-len", "--seq-len-q", dest="seq_len", default="4096", metavar="N", help=f"query {length}")
    g.add_argument("--seq-len-k", type=whole, metavar="N", help="key tokens (default: as many as query tokens)")
    g.add_argument("--head-dim", type=whole, default=128, metavar="D", help="columns of Q and K (default 128)")
    g.add_argument("--head-dim-v", type=whole, metavar="D", help="columns of V and O (default: --head-dim)")
    g.add_argument("--dtype", default="fp16", help="fp32, tf32, fp16, bf16 or fp8 (default fp16)")
    g.add_argument("--accumulate", default="fp32", metavar="DTYPE", help="type of the running sums (default fp32)")
    g.add_argument("--output-dtype", metavar="DTYPE", help="type of O (default: --dtype; bf16 for fp8)")
    g.add_argument("--causal", action="store_true", help="keep keys up to the query's own position")
    g.add_argument("--window", type=whole, metavar="W", help="keep keys 0 <= i - j <= W")
    g.add_argument("--offset", type=signed, metavar="N", help="key that faces query 0 (default: seq_k - seq_q)")
    g.add_argument("--dropout", type=fraction, default=0.0, metavar="P", help="dropout probability (default 0)")
    g.add_argument("--pass", dest="passes", default="fwd", metavar="PASS", help="fwd, bwd or fwd+bwd (default fwd)")
    g.add_argument("--layout", default="bhsd", help="bhsd or bshd: heads before or after the sequence")


def add_kernel_options(parser: argparse.ArgumentParser) -> None:
    """--tile, --warps, ...: settings over the kernel's own choice."""
    g = parser.add_argument_group("kernel settings (over the kernel's own choice)")
    g.add_argument("--tile", metavar="QxK", help="query rows x key rows, such as 128x64")
    g.add_argument("--warps", type=whole, metavar="N", help="warps a CTA")
    g.add_argument("--stages", type=whole, metavar="N", help="key/value buffers of the software pipeline")
    g.add_argument("--order", help="grid order: query, head or batch (blocks, heads, or blocks then batch fastest)")
    g.add_argument("--heavy-first", action="store_true", default=None, help="long query blocks first")
    g.add_argument("--section-heads", type=whole, metavar="N", help="heads per section of the grid")
    g.add_argument("--direction", help="of the key loop: ascending, descending or alternating")
    g.add_argument("--scheduler", help="static, persistent or dynamic")
    g.add_argument("--splits", type=whole, metavar="N", help="parts that the keys of a head are split into")
    g.add_argument("--registers", type=whole, metavar="N", help="registers a thread, from the compiler's report")
    g.add_argument("--smem", dest="shared_memory_bytes", type=whole, metavar="BYTES", help="shared memory a CTA")


def add_output_options(parser: argparse.ArgumentParser, formats: Sequence[str] = ("table", "json", "csv")) -> None:
    """--format and --out."""
    parser.add_argument("--format", choices=formats, default=formats[0], help=f"(default {formats[0]})")
    parser.add_argument("--out", "-o", metavar="FILE", help="write there instead of standard output")


def problems(args: argparse.Namespace) -> list[AttentionProblem]:
    """One problem for every sequence length asked for.

    Raises:
        InputError: values that make no sense, or --causal beside --window.
    """
    from iosim.problem import AttentionProblem
    from iosim.units import sizes

    if args.causal and args.window is not None:
        raise InputError(f"--causal contradicts --window {args.window}: a window is causal already; give one of them")
    mask = "window" if args.window is not None else "causal" if args.causal else "none"
    return [
        AttentionProblem(
            batch=args.batch, heads=args.heads, kv_heads=args.kv_heads, seq_q=n, seq_k=args.seq_len_k,
            head_dim=args.head_dim, head_dim_v=args.head_dim_v, dtype=args.dtype, accumulate=args.accumulate,
            output=args.output_dtype, mask=mask, window=args.window, offset=args.offset, dropout=args.dropout,
            passes=args.passes, layout=args.layout,
        )
        for n in sizes(args.seq_len, "--seq-len")
    ]  # fmt: skip


def overrides(args: argparse.Namespace) -> Overrides:
    """The kernel settings given by hand."""
    from iosim.catalog import Overrides
    from iosim.kernel import Tile

    tile = None
    if args.tile is not None:
        parsed = Tile.parse(args.tile)
        tile = (parsed.block_q, parsed.block_k)
    return Overrides(
        tile=tile, warps=args.warps, stages=args.stages, order=args.order, heavy_first=args.heavy_first,
        section_heads=args.section_heads, direction=args.direction, scheduler=args.scheduler, splits=args.splits,
        registers=args.registers, shared_memory_bytes=args.shared_memory_bytes,
    )  # fmt: skip


def json_text(value: Any) -> str:
    """JSON with a final newline; NaN and infinities are refused."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """CSV with a header; the columns are those of the first row."""
    items = list(rows)
    if not items:
        return ""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(items[0]), lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(items)
    return out.getvalue()


def table_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Aligned columns, numbers to the right."""
    items = [{k: ("" if v is None else str(v)) for k, v in row.items()} for row in rows]
    if not items:
        return "nothing to show\n"
    columns = list(items[0])
    width = {c: max(len(c), *(len(r[c]) for r in items)) for c in columns}
    right = {c: all(r[c][:1].isdigit() or r[c][:1] in "-." for r in items if r[c]) for c in columns}

    def line(values: Mapping[str, str]) -> str:
        cells = (values[c].rjust(width[c]) if right[c] else values[c].ljust(width[c]) for c in columns)
        return "  ".join(cells).rstrip()

    return "\n".join([line({c: c for c in columns}), *(line(r) for r in items)]) + "\n"


def emit(text: str, out: str | None) -> None:
    """Print `text`, or write it to `out` whole.

    Raises:
        InputError: the file cannot be written.
    """
    if out is None:
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
        return
    from iosim.files import write_whole

    write_whole(out, text)
