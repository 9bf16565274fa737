"""Options and output that several commands share."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError

if TYPE_CHECKING:
    from iosim.kernel.libraries import Overrides
    from iosim.problem.attention import AttentionProblem


DEFAULT_SEQ_LEN = "4096"


def whole(text: str) -> int:
    """argparse type for a whole number, k and m allowed."""
    from iosim.base.units import size

    try:
        return size(text, "value")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def signed(text: str) -> int:
    """argparse type for a whole number of either sign, k and m allowed."""
    from iosim.base.units import size

    try:
        return -size(text[1:], "value") if text.startswith("-") else size(text, "value")
    except InputError:
        raise argparse.ArgumentTypeError(f"value '{text}' is no whole number such as 128 or -4k") from None


def sides(text: str) -> tuple[int, int]:
    """argparse type for one side, or two: 128 or 128x64."""
    q, _, k = text.lower().partition("x")
    return whole(q), whole(k or q)


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
    g.add_argument(
        "--seq-len", "--seq-len-q", dest="seq_len", default=DEFAULT_SEQ_LEN, metavar="N", help=f"query {length}"
    )
    g.add_argument("--seq-len-k", type=whole, metavar="N", help="key tokens (default: as many as query tokens)")
    g.add_argument("--head-dim", type=whole, default=128, metavar="D", help="columns of Q and K (default 128)")
    g.add_argument("--head-dim-v", type=whole, metavar="D", help="columns of V and O (default: --head-dim)")
    g.add_argument("--dtype", default="fp16", help="fp32, tf32, fp16, bf16 or fp8 (default fp16)")
    g.add_argument("--accumulate", default="fp32", metavar="DTYPE", help="type of the running sums (default fp32)")
    g.add_argument("--output-dtype", metavar="DTYPE", help="type of O (default: --dtype; bf16 for fp8)")
    g.add_argument("--causal", action="store_true", help="keep keys up to the query's own position")
    g.add_argument("--window", type=whole, metavar="W", help="keep keys 0 <= i - j <= W")
    add_mask_options(g)
    g.add_argument("--offset", type=signed, metavar="N", help="key that faces query 0 (default: seq_k - seq_q)")
    g.add_argument("--dropout", type=fraction, default=0.0, metavar="P", help="dropout probability (default 0)")
    add_term_options(g)
    g.add_argument("--pass", dest="passes", default="fwd", metavar="PASS", help="fwd, bwd or fwd+bwd (default fwd)")
    g.add_argument("--layout", default="bhsd", help="bhsd or bshd: heads before or after the sequence")
    g.add_argument("--prefix", type=whole, metavar="N",
                   help="tokens cached before the queries: as many more keys than queries")  # fmt: skip
    g.add_argument("--seq-lens", metavar="LIST",
                   help="query tokens of each of several sequences packed in one batch: 512,1024,77")  # fmt: skip
    g.add_argument("--seq-lens-k", metavar="LIST", help="their key tokens (default: as many as query tokens)")
    g.add_argument("--page-size", type=whole, metavar="N", help="tokens of a page of the key/value cache")
    g.add_argument("--latent-kv", action="store_true", help="V is the first --head-dim-v columns of K (MLA)")


def add_mask_options(group: Any) -> None:
    """--mask and what goes with it."""
    group.add_argument(
        "--mask",
        metavar="WORD",
        help="none, causal, window, butterfly, strided, window+global or blocks (from --mask-file)",
    )
    group.add_argument(
        "--mask-block", type=sides, metavar="N[xM]", help="queries x keys of a mask's block (default 128)"
    )
    group.add_argument("--mask-stride", type=whole, metavar="BLOCKS", help="of strided; the largest of butterfly")
    group.add_argument("--global-tokens", type=whole, metavar="N", help="first tokens that all see (window+global)")
    group.add_argument("--mask-file", metavar="FILE", help="block mask: NumPy .npy or .npz, or a BlockMask's arrays")


def add_term_options(group: Any) -> None:
    """--bias, --key-padding, --mask-storage: what stands beside Q, K and V."""
    group.add_argument("--bias", default="none", help="added to the scores: none, full (a tensor) or alibi (slopes)")
    group.add_argument("--bias-shared", metavar="AXES", help="axes of the bias of size 1: none, heads, batch or both")
    group.add_argument("--bias-dtype", metavar="DTYPE", help="of a full bias and an additive mask (default: --dtype)")
    group.add_argument("--bias-grad", action="store_true", help="the backward makes the bias's gradient")
    group.add_argument("--key-padding", action="store_true", help="a mask of one byte a key and sequence")
    group.add_argument("--mask-storage", default="implicit", metavar="HOW",
                       help="the mask comes implicit (by indices), or as a tensor: bool or additive")  # fmt: skip


def terms(args: argparse.Namespace) -> dict[str, Any]:
    """What `add_term_options` was given, as a problem takes it."""
    names = ("bias", "bias_shared", "bias_dtype", "bias_grad", "key_padding", "mask_storage")
    return {name: getattr(args, name) for name in names}


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
    g.add_argument("--pack-group", action=argparse.BooleanOptionalAction, default=None,
                   help="query heads of a group in the rows of one tile")  # fmt: skip
    g.add_argument("--append-kv", action="store_true", help="a launch before writes the queries' K and V to the cache")
    g.add_argument("--registers", type=whole, metavar="N", help="registers a thread, from the compiler's report")
    g.add_argument("--smem", dest="shared_memory_bytes", type=whole, metavar="BYTES", help="shared memory a CTA")


def add_output_options(parser: argparse.ArgumentParser, formats: Sequence[str] = ("table", "json", "csv")) -> None:
    """--format and --out."""
    parser.add_argument("--format", choices=formats, default=formats[0], help=f"(default {formats[0]})")
    parser.add_argument("--out", "-o", metavar="FILE", help="write there instead of standard output")


def _keys(args: argparse.Namespace, queries: int) -> int | None:
    """Key tokens: as given, or the cached prefix and the queries."""
    if args.prefix is None:
        keys: int | None = args.seq_len_k
        return keys
    if args.seq_len_k is not None:
        raise InputError(f"--prefix {args.prefix} contradicts --seq-len-k {args.seq_len_k}: both say how many keys "
                         "there are; give one of them")  # fmt: skip
    return int(args.prefix) + queries


def problems(args: argparse.Namespace) -> list[AttentionProblem]:
    """One problem for every sequence length asked for.

    Raises:
        InputError: values that make no sense, or --causal beside --window.
    """
    from iosim.base.units import sizes
    from iosim.problem.attention import AttentionProblem

    words, lengths = mask_words(args), sequence_words(args)
    return [
        AttentionProblem(
            batch=args.batch, heads=args.heads, kv_heads=args.kv_heads, seq_q=n, seq_k=_keys(args, n),
            head_dim=args.head_dim, head_dim_v=args.head_dim_v, dtype=args.dtype, accumulate=args.accumulate,
            output=args.output_dtype, **words, offset=args.offset, dropout=args.dropout,
            passes=args.passes, layout=args.layout, latent_kv=args.latent_kv, page_size=args.page_size,
            **terms(args), **lengths,
        )
        for n in ([1] if lengths else sizes(args.seq_len, "--seq-len"))
    ]  # fmt: skip


def mask_words(args: argparse.Namespace) -> dict[str, Any]:
    """The problem's mask and its own fields.

    Raises:
        InputError: two options that each say another mask.
    """
    if args.causal and args.window is not None:
        raise InputError(f"--causal contradicts --window {args.window}: a window is causal already; give one of them")
    if args.causal and args.mask not in (None, "causal"):
        raise InputError(f"--causal contradicts --mask {args.mask}; give one of them")
    said = "blocks" if args.mask_file is not None else "window" if args.window is not None else "none"
    return {
        "mask": args.mask or ("causal" if args.causal else said), "window": args.window, "mask_block": args.mask_block,
        "mask_stride": args.mask_stride, "global_tokens": args.global_tokens, "mask_file": args.mask_file,
    }  # fmt: skip


def sequence_words(args: argparse.Namespace) -> dict[str, Any]:
    """Lengths of packed sequences, where they are given.

    Raises:
        InputError: no lengths, or options that say another length.
    """
    from iosim.base.units import sizes

    given = {n: getattr(args, n) for n in ("seq_lens", "seq_lens_k") if getattr(args, n) is not None}
    if not given:
        return {}
    for option, value in (("--seq-len-k", args.seq_len_k), ("--prefix", args.prefix)):
        if value is not None:
            raise InputError(f"{option} {value} contradicts --seq-lens; accepted with it: --seq-lens-k")
    if args.seq_len != DEFAULT_SEQ_LEN:
        raise InputError(f"--seq-len {args.seq_len} contradicts --seq-lens; give one of them")
    return {name: tuple(sizes(text, f"--{name.replace('_', '-')}")) for name, text in given.items()}


def overrides(args: argparse.Namespace) -> Overrides:
    """The kernel settings given by hand."""
    from iosim.kernel.kernel import Tile
    from iosim.kernel.libraries import Overrides

    tile = None
    if args.tile is not None:
        parsed = Tile.parse(args.tile)
        tile = (parsed.block_q, parsed.block_k)
    return Overrides(
        tile=tile, warps=args.warps, stages=args.stages, order=args.order, heavy_first=args.heavy_first,
        section_heads=args.section_heads, direction=args.direction, scheduler=args.scheduler, splits=args.splits,
        registers=args.registers, shared_memory_bytes=args.shared_memory_bytes, pack_group=args.pack_group,
        append_kv=args.append_kv,
    )  # fmt: skip


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
