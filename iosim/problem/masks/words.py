"""The words of a problem that make its mask: what goes with which, and the mask they stand for.

A problem's `mask` is "none", "causal" or "window" (intervals, `iosim.problem.masks.mask`) or one of `LIST_MASKS` (kept
blocks, `iosim.problem.masks.blocks`); `seq_lens` makes it the mask of several sequences (`iosim.problem.masks.packed`).
Patterns of kept blocks that papers use are all square; a block is kept whole when the pattern keeps any pair in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from iosim.base.errors import InputError
from iosim.problem.fields import (
    FIELDS,
    FIRST_TOKENS_MASKS,
    INTERVAL_MASKS,
    LIST_MASKS,
    MAX_TOKENS,
    NO_BOUND,
    ProblemFields,
)
from iosim.problem.masks.blocks import BlockMask, _refuse_too_many, ranges
from iosim.problem.masks.mask import IntArray, IntervalMask, Mask
from iosim.problem.masks.packed import PackedMask
from iosim.problem.masks.picked import WindowedMask

DEFAULT_BLOCK = 128
"""FlexAttention's block size (torch.nn.attention.flex_attention, _DEFAULT_SPARSE_BLOCK_SIZE)."""
TAKES = {
    "mask_block": LIST_MASKS,
    "mask_stride": ("butterfly", "strided"),
    "global_tokens": FIRST_TOKENS_MASKS,
    "mask_file": ("blocks",),
    "mask_blocks": ("blocks",),
}
"""Field -> the masks it goes with."""
ONE_LENGTH_ONLY: dict[str, tuple[object, ...]] = {
    "mask": INTERVAL_MASKS,
    "bias": ("none",),
    "key_padding": (False,),
    "mask_storage": ("implicit",),
}
"""Field -> its values beside packed sequences."""


def check_window(p: ProblemFields) -> dict[str, Any]:
    """The mask and its window as they are held. A causal mask with a window is a window that ends at the diagonal, and
    a window without a left side that ends there is causal. `window_right` is held where it is not 0. Raises InputError:
    a window that the mask has no use for or lacks, or one that leaves no bound."""
    keys_before, right = p.window, p.window_right
    if p.mask == "causal":  # as in FlashAttention, where causal puts the right side to 0
        return {"mask": "causal" if keys_before is None else "window", "window_right": None}
    if p.mask == "window":
        if keys_before is None and right is None:
            accepted = f"{FIELDS['window'].accepted}"
            raise InputError(
                f"`window` is missing; `mask` window needs one, or `window_right`; accepted: {accepted}"
            )
        if keys_before is None and right == NO_BOUND:
            hint = "accepted: 0 or more, or with it `window`"
            raise InputError(f"`window_right` {NO_BOUND} bounds nothing without `window`; {hint}")
        if keys_before is None and right == 0:
            return {"mask": "causal", "window_right": None}
        return {"window_right": right or None}
    if right is not None:
        raise InputError(
            f"`window_right` {right} contradicts `mask` '{p.mask}'; it goes with mask 'window'"
        )
    if p.mask in FIRST_TOKENS_MASKS and keys_before is None:
        raise InputError(
            f"`window` is missing; `mask` {p.mask} needs one; accepted: {FIELDS['window'].accepted}"
        )
    if p.mask not in FIRST_TOKENS_MASKS and keys_before is not None:
        hint = "a window goes with mask 'window', 'causal', 'window+global' or 'window+first'"
        raise InputError(f"`window` {keys_before} contradicts `mask` '{p.mask}'; {hint}")
    return {}


def check_words(p: ProblemFields) -> dict[str, Any]:
    """The values of the mask's own fields that follow from others, once all are known to go with the mask."""
    for name, masks in TAKES.items():
        value = getattr(p, name)
        if value is not None and p.mask not in masks:
            hint = f"it goes with mask {' or '.join(repr(m) for m in masks)}"
            raise InputError(
                f"`{name}` {_short(FIELDS[name].text(value))} contradicts `mask` '{p.mask}'; {hint}"
            )
    if p.mask not in LIST_MASKS:
        return {}
    if p.mask == "blocks":
        return _check_blocks(p)
    sides = _sides(p) or (DEFAULT_BLOCK, DEFAULT_BLOCK)
    if sides[0] != sides[1]:
        block = FIELDS["mask_block"].text(sides)
        raise InputError(
            f"`mask_block` {block} with `mask` '{p.mask}' is not square; accepted: one number"
        )
    if p.mask in FIRST_TOKENS_MASKS and p.global_tokens is None:
        return {"mask_block": sides, "global_tokens": sides[0]}
    return {"mask_block": sides}


def _sides(p: ProblemFields) -> tuple[int, int] | None:
    assert not isinstance(p.mask_block, int), "the field makes two sides of one"
    return p.mask_block


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}..."


def _check_blocks(p: ProblemFields) -> dict[str, Any]:
    if (p.mask_file is None) == (p.mask_blocks is None):
        raise InputError(
            "`mask` 'blocks' needs its blocks; accepted: one of `mask_file` and `mask_blocks`"
        )
    if p.mask_file is not None:
        return {"mask_file": str(p.mask_file)}
    # What was given may be this package's mask, its JSON or PyTorch's; after this it is the first, for these lengths.
    blocks = p.mask_blocks
    if isinstance(blocks, Mapping):
        blocks = blocks_from_dict(blocks, p.seq_q, p.seq_k)
    if not isinstance(blocks, BlockMask):
        from iosim.problem.masks.files import is_flex_mask, of_flex_mask  # few masks are PyTorch's

        blocks = of_flex_mask(blocks, p.seq_q, p.seq_k) if is_flex_mask(blocks) else blocks
    if not isinstance(blocks, BlockMask):
        accepted = "a BlockMask of PyTorch's create_block_mask or of iosim.problem.masks"
        raise InputError(f"`mask_blocks` of type {type(blocks).__name__}; accepted: {accepted}")
    if (blocks.seq_q, blocks.seq_k) != (p.seq_q, p.seq_k):
        accepted = f"for {p.seq_q} and {p.seq_k}"
        raise InputError(
            f"`mask_blocks` is for {blocks.seq_q} queries and {blocks.seq_k} keys; accepted: {accepted}"
        )
    sides = blocks.block_q, blocks.block_k
    if _sides(p) not in (None, sides):
        requested = FIELDS["mask_block"].text(p.mask_block)
        raise InputError(
            f"`mask_block` {requested} contradicts `mask_blocks` of {sides[0]}x{sides[1]}; accepted: None"
        )
    return {"mask_blocks": blocks, "mask_block": sides}


def blocks_from_dict(values: Mapping[str, Any], seq_q: int, seq_k: int) -> Any:
    try:
        sides: tuple[int, int] = FIELDS["mask_block"].check(values["block"])
        rows, cols = (np.asarray(values[n], dtype=np.int64) for n in ("rows", "cols"))
        full = None if values.get("full") is None else np.asarray(values["full"], dtype=np.bool_)
        height, width = -(-seq_q // sides[0]), -(-seq_k // sides[1])
        # Shapes first, then places: indices of a wrong shape would broadcast.
        fits = (
            rows.shape == cols.shape == (rows.shape if full is None else full.shape)
            and rows.ndim == 1
        )
        inside = fits and ((rows >= 0) & (rows < height) & (cols >= 0) & (cols < width)).all()
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"`mask_blocks` cannot be read ({error}); accepted: block, rows, cols and full"
        ) from None
    if not inside:
        raise InputError(
            f"`mask_blocks` names blocks outside {height}x{width}; accepted: rows and cols of the mask"
        )
    return BlockMask.of_pairs(seq_q, seq_k, *sides, rows, cols, full)


def blocks_to_dict(mask: Any) -> dict[str, Any]:
    values = {
        "block": [mask.block_q, mask.block_k],
        "rows": mask.rows.tolist(),
        "cols": mask.indices.tolist(),
    }
    return values if mask.full is None else {**values, "full": mask.full.tolist()}


def check_lengths(p: ProblemFields) -> dict[str, Any]:
    if p.seq_lens is None:
        if p.seq_lens_k is not None:
            raise InputError("`seq_lens_k` goes with `seq_lens`; accepted with it: `seq_lens`")
        return {}
    # Packed sequences say batch and lengths themselves: what else is stated must agree with them.
    lens, lens_k = p.seq_lens, p.seq_lens if p.seq_lens_k is None else p.seq_lens_k
    for name, lengths in (("seq_lens", lens), ("seq_lens_k", lens_k)):
        if sum(lengths) > MAX_TOKENS:
            raise InputError(
                f"`{name}` add up to {sum(lengths)} tokens; accepted: up to {MAX_TOKENS}"
            )
    if len(lens) != len(lens_k):
        both = f"{len(lens)} sequences and `seq_lens_k` {len(lens_k)}"
        raise InputError(f"`seq_lens` has {both}; accepted: as many of both")
    for name, size in (("batch", 1), ("seq_q", sum(lens)), ("seq_k", sum(lens_k))):
        if getattr(p, name) not in (None, 1, size):
            raise InputError(
                f"`{name}` {getattr(p, name)} contradicts `seq_lens`; accepted with it: {size}"
            )
    for name, accepted in ONE_LENGTH_ONLY.items():
        value = getattr(p, name)
        if value not in accepted:
            hint = f"accepted with it: {', '.join(map(str, accepted))}"
            raise InputError(f"`{name}` {value!r} contradicts `seq_lens`; {hint}")
    return {"seq_lens": lens, "seq_lens_k": lens_k, "seq_q": sum(lens), "seq_k": sum(lens_k)}


def make_mask(p: ProblemFields) -> Mask:
    if p.mask in LIST_MASKS:
        return _list_mask(p)
    if p.seq_lens is None or p.seq_lens_k is None:
        return _interval(p, p.seq_q, p.seq_k)
    masks = tuple(_interval(p, q, k) for q, k in zip(p.seq_lens, p.seq_lens_k, strict=True))
    return PackedMask(p.seq_lens, p.seq_lens_k, masks)


def _interval(p: ProblemFields, seq_q: int, seq_k: int) -> IntervalMask:
    if p.mask == "none":
        return IntervalMask()
    # By default the last query faces the last key, as in decoding; an offset moves the diagonal.
    offset = seq_k - seq_q if p.offset is None else p.offset
    if p.mask == "window" and p.compress_ratio is not None and p.window is not None:
        return WindowedMask.of(p.window + 1, p.compress_ratio, seq_q, seq_k)
    if p.mask == "causal":
        return IntervalMask(None, 0, offset)
    return IntervalMask(
        p.window, None if p.window_right == NO_BOUND else p.window_right or 0, offset
    )


def _list_mask(p: ProblemFields) -> Mask:
    from iosim.problem.masks import files

    sides = _sides(p)
    if p.mask == "blocks":
        if p.mask_blocks is not None:
            return p.mask_blocks
        assert p.mask_file is not None
        return files.load_block_mask(p.mask_file, p.seq_q, p.seq_k, sides)
    if p.seq_q != p.seq_k:
        why = (
            "the pattern is square; accepted: as many queries as keys, or mask 'blocks' from a file"
        )
        raise InputError(f"`mask` '{p.mask}' with `seq_q` {p.seq_q} and `seq_k` {p.seq_k}: {why}")
    assert sides is not None
    if p.mask in ("butterfly", "strided"):
        return (butterfly if p.mask == "butterfly" else strided)(p.seq_q, sides[0], p.mask_stride)
    assert p.window is not None
    assert p.global_tokens is not None
    pattern = window_global if p.mask == "window+global" else window_first
    return pattern(p.seq_q, sides[0], p.window, p.global_tokens)


def said_offset(p: ProblemFields) -> int | None:
    """Key that faces query 0, for a problem's dictionary; None where there is no one diagonal."""
    if p.mask not in ("causal", "window"):
        return None
    if p.offset is not None or p.seq_lens is not None:
        return p.offset
    return p.seq_k - p.seq_q


def mask_text(p: ProblemFields, mask: Mask) -> str:
    if isinstance(mask, BlockMask):
        blocks = f"{mask.shape[0] * mask.shape[1]:,} blocks of {mask.block_q}x{mask.block_k}"
        return f"{p.mask} ({mask.nnz:,} of {blocks} kept, {mask.kept_fraction:.3g} of all)"
    word = p.mask
    if p.mask == "window" and p.window_right is not None:
        back = "all keys" if p.window is None else f"{p.window:,}"
        ahead = "all keys" if p.window_right == NO_BOUND else f"{p.window_right:,}"
        word = f"window ({back} back, {ahead} ahead)"
    if p.compress_ratio:
        word = f"window and a key for every {p.compress_ratio:,} tokens"
    if p.seq_lens is None or p.seq_lens_k is None:
        return word
    ends = [
        f"{min(x):,}" if min(x) == max(x) else f"{min(x):,} to {max(x):,}"
        for x in (p.seq_lens, p.seq_lens_k)
    ]
    keys = "" if p.seq_lens == p.seq_lens_k else f" and {ends[1]} keys"
    return f"{word}, packed: {len(p.seq_lens):,} sequences of {ends[0]} tokens{keys}"


def _band(first: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """(rows, columns) of the blocks [first, end) of each row."""
    _refuse_too_many(int((end - first).sum()), "kept blocks")
    cols, rows = ranges(first, end - first)
    return rows, cols


def _joined(seq: int, block: int, *parts: tuple[IntArray, IntArray]) -> BlockMask:
    rows, cols = (np.concatenate(x) for x in zip(*parts, strict=True))
    return BlockMask.of_pairs(seq, seq, block, block, rows, cols)


def butterfly(seq: int, block: int, largest: int | None = None) -> BlockMask:
    """The fixed ("flat block") butterfly: block i keeps itself and the blocks i XOR 2^t. The blocks of the butterfly
    factors of all strides up to `largest` together (Pixelated Butterfly, arXiv 2112.00029; the pattern of block-sparse
    FlashAttention, arXiv 2205.14135, section 3.3): log2(n) + 1 blocks a row of n. Where n is no power of two, the
    pattern of the next one, cut. `largest`: the largest stride, in blocks; by default all."""
    n = -(-seq // block)
    i = np.arange(n, dtype=np.int64)
    # XOR with a power of two swaps a block with its partner at that stride (a butterfly's stage).
    parts = [(i, i)]
    stride = 1
    while stride < n and (largest is None or stride <= largest):
        j = i ^ stride
        parts.append((i[j < n], j[j < n]))
        stride *= 2
    return _joined(seq, block, *parts)


def strided(seq: int, block: int, stride: int | None = None) -> BlockMask:
    """Sparse Transformer's strided attention (arXiv 1904.10509), its two heads merged into one: of the blocks up to its
    own, a block keeps the last `stride` and every `stride`-th. `stride`: in blocks; by default the square root of their
    number, rounded up."""
    n = -(-seq // block)
    step = math.isqrt(n - 1) + 1 if stride is None else stride
    i = np.arange(n, dtype=np.int64)
    # The last `stride` blocks are a band; every `stride`-th before are hops back from the own block.
    hops = i // step + 1
    _refuse_too_many(int(hops.sum()), "kept blocks")
    hop, rows = ranges(np.zeros(n, dtype=np.int64), hops)
    return _joined(seq, block, _band(np.maximum(i - step + 1, 0), i + 1), (rows, rows - hop * step))


def window_global(seq: int, block: int, window: int, global_tokens: int) -> BlockMask:
    """A window of `window` keys to either side, and `global_tokens` first tokens that see and are seen by all
    (Longformer, arXiv 2004.05150, section 3.1; BigBird without its random blocks, arXiv 2007.14062, section 2)."""
    n = -(-seq // block)
    i = np.arange(n, dtype=np.int64)
    # A band around the diagonal, the global tokens' columns, and their rows.
    reach = -(-window // block)  # blocks to either side that hold a key within the window
    parts = [_band(np.maximum(i - reach, 0), np.minimum(i + reach + 1, n))]
    g, every = min(-(-global_tokens // block), n), np.zeros(n, dtype=np.int64)
    parts += [_band(every, every + g), _band(every[:g], every[:g] + n)]
    return _joined(seq, block, *parts)


def window_first(seq: int, block: int, window: int, first_tokens: int) -> BlockMask:
    """A causal window of `window` keys back, and the first tokens kept for all after them (StreamingLLM's attention
    sinks, arXiv 2309.17453, section 3.2)."""
    i = np.arange(-(-seq // block), dtype=np.int64)
    reach, first = -(-window // block), -(-first_tokens // block)
    return _joined(
        seq,
        block,
        _band(np.maximum(i - reach, 0), i + 1),
        _band(np.zeros_like(i), np.minimum(i + 1, first)),
    )
