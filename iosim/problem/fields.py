"""The fields of a problem, each with all that is said of it: see `iosim.base.fields`.

`AttentionProblem` adds what several of them say together, and the mask. This module loads nothing heavy, so that a
command line can be parsed, and refused, at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iosim.base import fields as ask
from iosim.base.errors import InputError
from iosim.base.fields import MAX_SIZE, UNSET, Kind, Resolved, about, fields_of
from iosim.base.records import dataclass
from iosim.problem.dtypes import INPUT_DTYPES, dtype

if TYPE_CHECKING:
    from iosim.problem.masks.blocks import BlockMask

NO_BOUND = -1
"""No bound on the side of `window_right`, as FlashAttention writes it."""
INTERVAL_MASKS = ("none", "causal", "window")
FIRST_TOKENS_MASKS = ("window+global", "window+first")
LIST_MASKS = ("butterfly", "strided", *FIRST_TOKENS_MASKS, "blocks")
PASSES = ("fwd", "bwd", "fwd+bwd")
LAYOUTS = ("bhsd", "bshd")
BIASES = ("none", "full", "alibi")
BIAS_SHARED = ("none", "heads", "batch", "both")
CACHE_DTYPES = ("fp8", "mxfp8")
BIAS_DTYPES = ("fp32", "fp16", "bf16")
MASK_STORAGES = ("implicit", "bool", "additive")

MAX_TOKENS = 1 << 24
"""Sequences up to here are counted block by block in fractions of a second."""


def dtype_name(word: object) -> object:
    """A type's own name, for any of its names and for PyTorch's types; anything else stays."""
    try:
        return dtype(str(word)).name
    except InputError:
        return word


@dataclass(frozen=True)
class ProblemFields:
    """What one attention call is, field by field; unchecked."""

    batch: int = ask.count("sequences", 1, always=True)
    heads: int = ask.count(
        "query heads. A multiple of kv_heads (grouped-query attention; 1 is multi-query)",
        1,
        usual=32,
        always=True,
    )
    kv_heads: Resolved[int] = ask.count(
        "key/value heads",
        UNSET,
        always=True,
        default_of=lambda p: 1 if p.latent_kv else p.heads,
        default_text="as many as query heads; 1 for a latent cache",
    )
    seq_q: int = ask.count(
        "query tokens", 1, high=MAX_TOKENS, usual=4096, always=True, option="--seq-len"
    )
    seq_k: Resolved[int] = ask.count(
        "key tokens",
        UNSET,
        high=MAX_TOKENS,
        always=True,
        option="--seq-len-k",
        default_of=lambda p: p.seq_q,
        default_text="as many as query tokens",
    )
    head_dim: int = ask.count("columns of Q and K", 64, metavar="D", usual=128, always=True)
    head_dim_v: Resolved[int] = ask.count(
        "columns of V and O",
        UNSET,
        metavar="D",
        always=True,
        default_of=lambda p: p.head_dim,
        default_text="as many as of Q and K",
    )
    dtype: str = ask.word(
        "type of the inputs", INPUT_DTYPES, "fp16", normal=dtype_name, metavar="DTYPE", always=True
    )
    accumulate: str = ask.word(
        "type of the running sums",
        ("fp32", "fp16", "tf32", "fp64"),
        "fp32",
        normal=dtype_name,
        metavar="DTYPE",
        always=True,
    )
    output: Resolved[str] = ask.word(
        "type of O and of the gradients",
        (*INPUT_DTYPES, "fp64"),
        UNSET,
        normal=dtype_name,
        metavar="DTYPE",
        always=True,
        option="--output-dtype",
        default_of=lambda p: "bf16" if p.dtype == "fp8" else p.dtype,
        default_text="that of the inputs; bf16 for fp8",
    )
    mask: str = ask.word(
        "which keys a query sees. causal and window keep one interval of keys per query; butterfly, strided, "
        "window+global and window+first keep blocks by a pattern, blocks those of a file or of a BlockMask",
        (*INTERVAL_MASKS, *LIST_MASKS),
        "none",
        metavar="WORD",
        always=True,
    )
    window: int | None = ask.count(
        "keys kept before the diagonal: 0 <= i - j <= W. i is counted from the diagonal's offset; under window+global "
        "it goes to either side, |i - j| <= W. With causal the window is the same: no key past the diagonal",
        low=0,
        metavar="W",
        always=True,
    )
    window_right: int | None = ask.count(
        "keys kept after the diagonal: j - i <= R; -1: all. FlashAttention's right window. Without window, all keys "
        "before the diagonal are kept; under causal none after it",
        low=NO_BOUND,
        metavar="R",
        default_text="0 beside a window",
    )
    offset: int | None = ask.count(
        "key that faces query 0 on the diagonal. By default the last query faces the last key (FlashAttention's "
        "convention since 2.1)",
        low=-MAX_SIZE,
        always=True,
        default_text="seq_k - seq_q",
    )
    dropout: float = about(0.0, Kind.PROBABILITY, "dropout probability", metavar="P", always=True)
    passes: str = ask.word(
        "forward, backward or both",
        PASSES,
        "fwd",
        metavar="PASS",
        always=True,
        option="--pass",
        key="pass",
    )
    layout: str = ask.word(
        "heads before or after the sequence. bhsd is PyTorch's, bshd FlashAttention's",
        LAYOUTS,
        "bhsd",
        metavar="WORD",
        always=True,
    )
    bias: str = ask.word(
        "what is added to the scores: a tensor (full) or slopes (alibi). full is a tensor [batch, heads, seq_q, "
        "seq_k] that is read; alibi is minus a slope a head times abs(i + offset - j) (arXiv 2108.12409), of which "
        "only the fp32 slopes are stored",
        BIASES,
        "none",
        metavar="WORD",
    )
    bias_shared: str | None = ask.word(
        "axes of the bias that have size 1",
        BIAS_SHARED,
        metavar="AXES",
        default_text="none; for alibi batch",
    )
    bias_dtype: str | None = ask.word(
        "type of a full bias and of an additive mask",
        BIAS_DTYPES,
        normal=dtype_name,
        metavar="DTYPE",
        default_text="that of the inputs; fp32 for tf32, the output's for fp8",
    )
    bias_grad: bool = ask.flag(
        "the backward makes the bias's gradient. It has the bias's shape and type"
    )
    key_padding: bool = ask.flag(
        "a mask of one byte per key and sequence. [batch, seq_k], beside the mask"
    )
    sinks: bool = ask.flag(
        "attention sinks: one learned logit per head in every softmax. As in gpt-oss; forward alone"
    )
    mask_storage: str = ask.word(
        "how the mask reaches the kernel: by its indices, or as a tensor. implicit: tiles that the mask drops are not "
        "visited. bool and additive: a tensor [1, 1, seq_q, seq_k] of bytes or of bias_dtype; all tiles are visited",
        MASK_STORAGES,
        "implicit",
        metavar="HOW",
    )
    latent_kv: bool = ask.flag(
        "V is the first head_dim_v columns of K. One latent cache: multi-head latent attention in its absorbed form "
        "(arXiv 2405.04434, section 2.1)"
    )
    page_size: int | None = ask.count(
        "tokens of a page of the key/value cache. Pages are found through a block table; by default the keys of a "
        "sequence lie in one piece",
        high=MAX_TOKENS,
    )
    shared_prefix: int | None = ask.count(
        "first keys that all sequences have in common, in memory once. A prompt that sequences share; the keys of "
        "each are these and its own",
        high=MAX_TOKENS,
        default_text="none",
    )
    cache_dtype: str | None = ask.word(
        "type of the key/value cache. Keys and values are widened as they are read; their scales, one a tensor, are "
        "left out. Of a latent cache of which queries pick keys: the columns of V in fp8 with an fp32 scale for every "
        "128, the others in 16 bits (656 bytes per token of DeepSeek's). mxfp8: of compressed keys, all columns in fp8 "
        "with a byte of scale for every 32 (528 bytes per key of DeepSeek-V4.1's)",
        CACHE_DTYPES,
        normal=dtype_name,
        metavar="DTYPE",
        default_text="that of the inputs",
    )
    top_k: int | None = ask.count(
        "keys of a latent cache that each query picks. The first of them where it sees no more (DeepSeek sparse "
        "attention, arXiv 2512.02556); the lists are given unless index_heads makes them",
        high=MAX_TOKENS,
        default_text="all",
    )
    index_heads: int | None = ask.count(
        "heads of the indexer that scores all keys and picks top_k of them", high=1 << 16
    )
    index_dim: int = ask.count(
        "columns of an indexer's head and key, in fp8", 128, high=1 << 16, metavar="D"
    )
    compress_ratio: int | None = ask.count(
        "tokens that a compressed key stands for, of a latent cache whose queries see a window besides; 0: none. "
        "DeepSeek-V4's attention: top_k of the compressed keys, or all. An eighth of the columns carries positions; "
        "in fp8 the others have a byte of scale for every 64 (584 bytes per key)",
        low=0,
        high=MAX_TOKENS,
    )
    mask_block: int | tuple[int, int] | None = about(
        None,
        Kind.SIDES,
        "queries x keys of a mask's block",
        high=MAX_TOKENS,
        metavar="N[xM]",
        one_for_both=True,
        default_text="128",
    )
    mask_stride: int | None = ask.count(
        "in blocks: of strided; the largest of butterfly",
        high=MAX_TOKENS,
        metavar="BLOCKS",
        default_text="for strided the square root of the blocks, for butterfly none",
    )
    global_tokens: int | None = ask.count(
        "first tokens that all see: under window+first those after them, under window+global all, and they see all",
        low=0,
        high=MAX_TOKENS,
        default_text="one block",
    )
    mask_file: str | None = ask.file(
        "the blocks of mask blocks: NumPy .npy or .npz, or a BlockMask's arrays"
    )
    mask_blocks: BlockMask | None = about(
        None, Kind.OBJECT, "the blocks of mask blocks: a BlockMask", option=None
    )
    seq_lens: tuple[int, ...] | None = about(
        None,
        Kind.LENGTHS,
        "query tokens of each of several sequences packed in one batch. They lie one after the other (FlashAttention's "
        "cu_seqlens): seq_q and seq_k are their sums, batch is 1, and a causal diagonal ends in each one's corner",
        high=MAX_TOKENS,
        metavar="LIST",
    )
    seq_lens_k: tuple[int, ...] | None = about(
        None,
        Kind.LENGTHS,
        "their key tokens",
        high=MAX_TOKENS,
        metavar="LIST",
        default_text="as many as query tokens",
    )


@dataclass(frozen=True)
class Besides:
    """What a problem is asked for with that is no field of it."""

    causal: bool = ask.flag("keep keys up to the query's own position. Short for mask 'causal'")
    prefix: int | None = ask.count(
        "tokens cached before the queries: as many more keys than queries"
    )


FIELDS = fields_of(ProblemFields)
BESIDES = fields_of(Besides)
MAIN = ("batch", "heads", "head_dim", "dtype")
"""What a printed command line always says."""
LENGTHS = ("seq_q", "seq_k", "seq_lens", "seq_lens_k")
OF_THE_MASK = (
    "mask_block",
    "mask_stride",
    "global_tokens",
    "mask_file",
    "mask_blocks",
    "seq_lens",
    "seq_lens_k",
)
"""What says more of a mask than its word and its window."""


def length_options(problem: ProblemFields, lengths: object = None) -> list[str]:
    """The words of a command line that give a problem its tokens; `lengths` stand in for its query tokens."""
    if problem.seq_lens is not None:
        words = FIELDS["seq_lens"].argument(problem.seq_lens)
        same = problem.seq_lens_k in (None, problem.seq_lens)
        return words if same else words + FIELDS["seq_lens_k"].argument(problem.seq_lens_k)
    words = FIELDS["seq_q"].argument(problem.seq_q if lengths is None else lengths)
    return (
        words if problem.seq_k == problem.seq_q else words + FIELDS["seq_k"].argument(problem.seq_k)
    )


def problem_options(problem: ProblemFields) -> list[str]:
    """The words of a command line that give a problem back but for its tokens. What is at its default is left out,
    except batch, heads, head_dim and dtype."""
    words: list[str] = []
    for name, field in FIELDS.items():
        value = getattr(problem, name)
        if name in LENGTHS or (name == "mask" and value in ("none", "window", "blocks")):
            continue  # a window and a file of blocks say their mask
        if name == "mask" and value == "causal":
            words.append("--causal")
        elif name in MAIN or value != field.resolve(problem):
            words += field.argument(value)
    return words
