"""Keywords of Python's functions, for type checkers and editors.

Made by `python docs/generated/make_keywords.py` from what the fields say of themselves; a test compares.
"""

from collections.abc import Sequence
from typing import TypedDict

from iosim.problem.masks.blocks import BlockMask

class ChosenKeywords(TypedDict, total=False):
    """What several functions take."""

    window: int | str | None
    """Keys kept before the diagonal: 0 <= i - j <= W. i is counted from the diagonal's offset; under window+global it
    goes to either side, |i - j| <= W. With causal the window is the same: no key past the diagonal.
    """
    window_right: int | str | None
    """Keys kept after the diagonal: j - i <= R; -1: all. FlashAttention's right window. Without window, all keys before
    the diagonal are kept; under causal none after it; by default 0 beside a window.
    """
    offset: int | str | None
    """Key that faces query 0 on the diagonal. By default the last query faces the last key (FlashAttention's convention
    since 2.1); by default seq_k - seq_q.
    """
    dropout: float
    """Dropout probability (0 <= P < 1); by default 0.0."""
    passes: str
    """Forward, backward or both (fwd, bwd, fwd+bwd); by default fwd."""
    layout: str
    """Heads before or after the sequence. bhsd is PyTorch's, bshd FlashAttention's (bhsd, bshd); by default bhsd."""
    bias: str
    """What is added to the scores: a tensor (full) or slopes (alibi). full is a tensor [batch, heads, seq_q, seq_k]
    that is read; alibi is minus a slope a head times abs(i + offset - j) (arXiv 2108.12409), of which only the fp32
    slopes are stored (none, full, alibi); by default none.
    """
    bias_shared: str | None
    """Axes of the bias that have size 1 (none, heads, batch, both); by default none; for alibi batch."""
    bias_dtype: str | None
    """Type of a full bias and of an additive mask (fp32, fp16, bf16); by default that of the inputs; fp32 for tf32, the
    output's for fp8.
    """
    bias_grad: bool
    """The backward makes the bias's gradient. It has the bias's shape and type."""
    key_padding: bool
    """A mask of one byte per key and sequence. [batch, seq_k], beside the mask."""
    sinks: bool
    """Attention sinks: one learned logit per head in every softmax. As in gpt-oss; forward alone."""
    mask_storage: str
    """How the mask reaches the kernel: by its indices, or as a tensor. implicit: tiles that the mask drops are not
    visited. bool and additive: a tensor [1, 1, seq_q, seq_k] of bytes or of bias_dtype; all tiles are visited
    (implicit, bool, additive); by default implicit.
    """
    mask_block: int | tuple[int, int] | str | None
    """Queries x keys of a mask's block (two whole numbers of 1 to 16777216); by default 128."""
    mask_stride: int | str | None
    """In blocks: of strided; the largest of butterfly (1 to 16777216); by default for strided the square root of the
    blocks, for butterfly none.
    """
    global_tokens: int | str | None
    """First tokens that all see: under window+first those after them, under window+global all, and they see all (0 to
    16777216); by default one block.
    """
    mask_file: str | None
    """The blocks of mask blocks: NumPy .npy or .npz, or a BlockMask's arrays."""
    causal: bool
    """Keep keys up to the query's own position. Short for mask 'causal'."""

class ProblemKeywords(TypedDict, total=False):
    """What several functions take."""

    batch: int | str
    """Sequences; by default 1."""
    heads: int | str
    """Query heads. A multiple of kv_heads (grouped-query attention; 1 is multi-query); by default 32."""
    kv_heads: int | str | None
    """Key/value heads; by default as many as query heads; 1 for a latent cache."""
    seq_len: int | str | Sequence[int | str]
    """Query tokens (1 to 16777216); by default 4096."""
    seq_len_k: int | str | None
    """Key tokens (1 to 16777216); by default as many as query tokens."""
    head_dim: int | str
    """Columns of Q and K; by default 128."""
    head_dim_v: int | str | None
    """Columns of V and O; by default as many as of Q and K."""
    dtype: str
    """Type of the inputs (fp32, tf32, fp16, bf16, fp8); by default fp16."""
    accumulate: str
    """Type of the running sums (fp32, fp16, tf32, fp64); by default fp32."""
    output_dtype: str | None
    """Type of O and of the gradients (fp32, tf32, fp16, bf16, fp8, fp64); by default that of the inputs; bf16 for fp8.
    """
    mask: str
    """Which keys a query sees. causal and window keep one interval of keys per query; butterfly, strided, window+global
    and window+first keep blocks by a pattern, blocks those of a file or of a BlockMask (none, causal, window,
    butterfly, strided, window+global, window+first, blocks); by default none.
    """
    latent_kv: bool
    """V is the first head_dim_v columns of K. One latent cache: multi-head latent attention in its absorbed form (arXiv
    2405.04434, section 2.1).
    """
    page_size: int | str | None
    """Tokens of a page of the key/value cache. Pages are found through a block table; by default the keys of a sequence
    lie in one piece (1 to 16777216).
    """
    shared_prefix: int | str | None
    """First keys that all sequences have in common, in memory once. A prompt that sequences share; the keys of each are
    these and its own (1 to 16777216); by default none.
    """
    cache_dtype: str | None
    """Type of the key/value cache. Keys and values are widened as they are read; their scales, one a tensor, are left
    out. Of a latent cache of which queries pick keys: the columns of V in fp8 with an fp32 scale for every 128, the
    others in 16 bits (656 bytes per token of DeepSeek's). mxfp8: of compressed keys, all columns in fp8 with a byte of
    scale for every 32 (528 bytes per key of DeepSeek-V4.1's) (fp8, mxfp8); by default that of the inputs.
    """
    top_k: int | str | None
    """Keys of a latent cache that each query picks. The first of them where it sees no more (DeepSeek sparse attention,
    arXiv 2512.02556); the lists are given unless index_heads makes them (1 to 16777216); by default all.
    """
    index_heads: int | str | None
    """Heads of the indexer that scores all keys and picks top_k of them (1 to 65536)."""
    index_dim: int | str
    """Columns of an indexer's head and key, in fp8 (1 to 65536); by default 128."""
    compress_ratio: int | str | None
    """Tokens that a compressed key stands for, of a latent cache whose queries see a window besides; 0: none.
    DeepSeek-V4's attention: top_k of the compressed keys, or all. An eighth of the columns carries positions; in fp8
    the others have a byte of scale for every 64 (584 bytes per key) (0 to 16777216).
    """
    mask_blocks: BlockMask | None
    """The blocks of mask blocks: a BlockMask."""
    seq_lens: Sequence[int] | str | None
    """Query tokens of each of several sequences packed in one batch. They lie one after the other (FlashAttention's
    cu_seqlens): seq_q and seq_k are their sums, batch is 1, and a causal diagonal ends in each one's corner (whole
    numbers of 1 to 16777216).
    """
    seq_lens_k: Sequence[int] | str | None
    """Their key tokens (whole numbers of 1 to 16777216); by default as many as query tokens."""
    prefix: int | str | None
    """Tokens cached before the queries: as many more keys than queries."""

class SettingKeywords(TypedDict, total=False):
    """What several functions take."""

    tile: tuple[int, int] | str | None
    """Query rows x key rows, such as 128x64 (two whole numbers of 1 to 4096)."""
    warps: int | str | None
    """Warps per CTA (1 to 32)."""
    stages: int | str | None
    """Key/value buffers of the software pipeline (1 to 16)."""
    order: str | None
    """Grid order: what runs fastest. query: blocks, then heads, then batch; head: heads; batch: blocks, then batch
    (query, head, batch).
    """
    heavy_first: bool | None
    """Long query blocks first."""
    fold: bool | None
    """The longest query block, the shortest, the second longest and so on."""
    section_heads: int | str | None
    """Heads per section of the grid."""
    chiplets: int | str | None
    """L2s among which heads are shared out, so that a head's tiles meet in one (1 to 64)."""
    direction: str | None
    """Of the key loop (ascending, descending, alternating)."""
    scheduler: str | None
    """How CTAs take tiles (static, persistent, dynamic)."""
    cluster: int | str | None
    """Neighbouring CTAs that fetch keys and values once for all of them (1 to 16)."""
    splits: int | str | None
    """Parts that the keys of a head are split into."""
    registers: int | str | None
    """Registers per thread, from the compiler's report (1 to 255)."""
    smem: int | str | None
    """Bytes of shared memory a CTA."""
    pack_group: bool | None
    """Query heads of a group in the rows of one tile."""
    append_kv: bool
    """A launch before writes the queries' K and V to the cache."""

class LayersKeywords(TypedDict, total=False):
    """What several functions take."""

    layers: int | str | None
    """The first N layers of `model`; by default all."""
    tensor_parallel: int | str | None
    """GPUs that share the heads of `model`'s layers: numbers are of each; by default 1."""

class ConditionKeywords(TypedDict, total=False):
    """What several functions take."""

    l2: str
    """The L2 at the start: cold (empty), warm, as the same call left it, or flushed, full of lines that a memset left
    to be written back (nvbench, do_bench) (cold, warm, flushed); by default cold.
    """
    method: str | None
    """How HBM bytes are found: bounds (none, limits alone), capacity (a rule, an estimate), sampled (a replay in which
    long launches are played in part) or replay (bounds, capacity, sampled, replay); by default replay where that takes
    seconds.
    """

class PredictKeywords(
    ChosenKeywords, ProblemKeywords, SettingKeywords, LayersKeywords, ConditionKeywords, total=False
):
    """Keywords of iosim.predict."""

    clocks: str | float
    """Boost (a call after a pause, as nvbench or ncu --clock-control none times it, held by the board's peak power),
    sustained (calls for seconds: do_bench, a training step; held by its power limit) or the SMs' clock in MHz: a
    profiler as it comes locks the base clock, 1095 on an H100; power counts where the GPU's energies are known; by
    default boost.
    """
    launched: str
    """Alone (each launch as a profiler times it), graph (replayed in a CUDA graph) or python (the whole call as a
    program times it, whose small launches come later than the GPU could take them) (alone, graph, python); by default
    alone.
    """
    ecc: str
    """Check bits of ECC in the same memory, which a counter of HBM bytes counts: as the board is delivered, on or off;
    nothing changes where a GPU has none (delivered, on, off); by default delivered.
    """
    fail_above: str | Sequence[str] | None
    """How much more of a level (hbm, l2, time) than `against` has is a failure, exit code 1: hbm=5%,time=10%; less
    never fails.
    """

class PredictCodeKeywords(ConditionKeywords, total=False):
    """Keywords of iosim.predict_code."""

    clocks: str | float
    """Boost (a call after a pause, as nvbench or ncu --clock-control none times it, held by the board's peak power),
    sustained (calls for seconds: do_bench, a training step; held by its power limit) or the SMs' clock in MHz: a
    profiler as it comes locks the base clock, 1095 on an H100; power counts where the GPU's energies are known; by
    default boost.
    """
    launched: str
    """Alone (each launch as a profiler times it), graph (replayed in a CUDA graph) or python (the whole call as a
    program times it, whose small launches come later than the GPU could take them) (alone, graph, python); by default
    alone.
    """
    ecc: str
    """Check bits of ECC in the same memory, which a counter of HBM bytes counts: as the board is delivered, on or off;
    nothing changes where a GPU has none (delivered, on, off); by default delivered.
    """
    entry: str | None
    """The kernel of `code`, where it holds several."""
    shared_bytes: int | str | None
    """Shared memory that the launch gives a CTA beside what the code declares; by default none."""

class ExplainCodeKeywords(ConditionKeywords, total=False):
    """Keywords of iosim.explain_code."""

    clocks: str | float
    """Boost (a call after a pause, as nvbench or ncu --clock-control none times it, held by the board's peak power),
    sustained (calls for seconds: do_bench, a training step; held by its power limit) or the SMs' clock in MHz: a
    profiler as it comes locks the base clock, 1095 on an H100; power counts where the GPU's energies are known; by
    default boost.
    """
    launched: str
    """Alone (each launch as a profiler times it), graph (replayed in a CUDA graph) or python (the whole call as a
    program times it, whose small launches come later than the GPU could take them) (alone, graph, python); by default
    alone.
    """
    ecc: str
    """Check bits of ECC in the same memory, which a counter of HBM bytes counts: as the board is delivered, on or off;
    nothing changes where a GPU has none (delivered, on, off); by default delivered.
    """
    entry: str | None
    """The kernel of `code`, where it holds several."""
    shared_bytes: int | str | None
    """Shared memory that the launch gives a CTA beside what the code declares; by default none."""

class KernelOfCodeKeywords(ConditionKeywords, total=False):
    """Keywords of iosim.kernel_of_code."""

    clocks: str | float
    """Boost (a call after a pause, as nvbench or ncu --clock-control none times it, held by the board's peak power),
    sustained (calls for seconds: do_bench, a training step; held by its power limit) or the SMs' clock in MHz: a
    profiler as it comes locks the base clock, 1095 on an H100; power counts where the GPU's energies are known; by
    default boost.
    """
    launched: str
    """Alone (each launch as a profiler times it), graph (replayed in a CUDA graph) or python (the whole call as a
    program times it, whose small launches come later than the GPU could take them) (alone, graph, python); by default
    alone.
    """
    ecc: str
    """Check bits of ECC in the same memory, which a counter of HBM bytes counts: as the board is delivered, on or off;
    nothing changes where a GPU has none (delivered, on, off); by default delivered.
    """
    entry: str | None
    """The kernel of `code`, where it holds several."""
    shared_bytes: int | str | None
    """Shared memory that the launch gives a CTA beside what the code declares; by default none."""

class CompareKeywords(ChosenKeywords, LayersKeywords, ConditionKeywords, total=False):
    """Keywords of iosim.compare."""

    baseline: str | None
    """What ratios are to; by default the first kernel over N x N tensors, on each row's GPU."""
    price: str | Sequence[str] | None
    """Dollars per hour of a GPU, with `per`: a100=1.5,h100=2.5."""
    heads: int | str
    """Query heads. A multiple of kv_heads (grouped-query attention; 1 is multi-query); by default 32."""
    kv_heads: int | str | None
    """Key/value heads; by default as many as query heads; 1 for a latent cache."""
    seq_len: int | str | Sequence[int | str]
    """Query tokens (1 to 16777216); by default 4096."""
    head_dim: int | str
    """Columns of Q and K; by default 128."""
    head_dim_v: int | str | None
    """Columns of V and O; by default as many as of Q and K."""
    dtype: str
    """Type of the inputs (fp32, tf32, fp16, bf16, fp8); by default fp16."""
    accumulate: str
    """Type of the running sums (fp32, fp16, tf32, fp64); by default fp32."""
    output_dtype: str | None
    """Type of O and of the gradients (fp32, tf32, fp16, bf16, fp8, fp64); by default that of the inputs; bf16 for fp8.
    """
    mask: str
    """Which keys a query sees. causal and window keep one interval of keys per query; butterfly, strided, window+global
    and window+first keep blocks by a pattern, blocks those of a file or of a BlockMask (none, causal, window,
    butterfly, strided, window+global, window+first, blocks); by default none.
    """
    latent_kv: bool
    """V is the first head_dim_v columns of K. One latent cache: multi-head latent attention in its absorbed form (arXiv
    2405.04434, section 2.1).
    """
    page_size: int | str | None
    """Tokens of a page of the key/value cache. Pages are found through a block table; by default the keys of a sequence
    lie in one piece (1 to 16777216).
    """
    shared_prefix: int | str | None
    """First keys that all sequences have in common, in memory once. A prompt that sequences share; the keys of each are
    these and its own (1 to 16777216); by default none.
    """
    cache_dtype: str | None
    """Type of the key/value cache. Keys and values are widened as they are read; their scales, one a tensor, are left
    out. Of a latent cache of which queries pick keys: the columns of V in fp8 with an fp32 scale for every 128, the
    others in 16 bits (656 bytes per token of DeepSeek's). mxfp8: of compressed keys, all columns in fp8 with a byte of
    scale for every 32 (528 bytes per key of DeepSeek-V4.1's) (fp8, mxfp8); by default that of the inputs.
    """
    top_k: int | str | None
    """Keys of a latent cache that each query picks. The first of them where it sees no more (DeepSeek sparse attention,
    arXiv 2512.02556); the lists are given unless index_heads makes them (1 to 16777216); by default all.
    """
    index_heads: int | str | None
    """Heads of the indexer that scores all keys and picks top_k of them (1 to 65536)."""
    index_dim: int | str
    """Columns of an indexer's head and key, in fp8 (1 to 65536); by default 128."""
    compress_ratio: int | str | None
    """Tokens that a compressed key stands for, of a latent cache whose queries see a window besides; 0: none.
    DeepSeek-V4's attention: top_k of the compressed keys, or all. An eighth of the columns carries positions; in fp8
    the others have a byte of scale for every 64 (584 bytes per key) (0 to 16777216).
    """
    mask_blocks: BlockMask | None
    """The blocks of mask blocks: a BlockMask."""
    seq_lens: Sequence[int] | str | None
    """Query tokens of each of several sequences packed in one batch. They lie one after the other (FlashAttention's
    cu_seqlens): seq_q and seq_k are their sums, batch is 1, and a causal diagonal ends in each one's corner (whole
    numbers of 1 to 16777216).
    """
    seq_lens_k: Sequence[int] | str | None
    """Their key tokens (whole numbers of 1 to 16777216); by default as many as query tokens."""
    prefix: int | str | None
    """Tokens cached before the queries: as many more keys than queries."""

class PickTilesKeywords(ChosenKeywords, ProblemKeywords, LayersKeywords, total=False):
    """Keywords of iosim.pick_tiles."""

    kernel: str | None
    """Tiles of this library kernel, which keeps its other settings, such as fa2; by default iosim's flash."""
    matrix_unit: str
    """What computes the products: mma.sync, or wgmma on cc 9.0 (mma.sync, wgmma); by default mma.sync."""
    library: bool
    """Whether the library kernels with their own tiles are predicted, too; by default True."""
    compile: int | str | None
    """Compile the first N tiles of which no build is recorded, and rank them with what the compiler says: nvcc, or
    Triton with --triton; without a number 16.
    """

class StudyTileKeywords(ChosenKeywords, ProblemKeywords, total=False):
    """Keywords of iosim.study_tile."""

    warps: int | str | None
    """Warps per CTA (1 to 32)."""
    stages: int | str | None
    """Key/value buffers of the software pipeline (1 to 16)."""
    matrix_unit: str
    """What computes the products: mma.sync, or wgmma on cc 9.0 (mma.sync, wgmma); by default mma.sync."""

class OrdersKeywords(ChosenKeywords, ProblemKeywords, LayersKeywords, total=False):
    """Keywords of iosim.orders."""

    weights: Sequence[float] | None
    """How often each of several problems is called: one order for all of them; by default once; with a model as often
    as it has such layers.
    """
    order: str | None
    """Keep this one: grid order: what runs fastest. query: blocks, then heads, then batch; head: heads; batch: blocks,
    then batch (query, head, batch).
    """
    heavy_first: bool | None
    """Keep this one: long query blocks first."""
    fold: bool | None
    """Keep this one: the longest query block, the shortest, the second longest and so on."""
    section_heads: int | str | None
    """Keep this one: heads per section of the grid."""
    chiplets: int | str | None
    """Keep this one: L2s among which heads are shared out, so that a head's tiles meet in one (1 to 64)."""
    direction: str | None
    """Keep this one: of the key loop (ascending, descending, alternating)."""
    scheduler: str | None
    """Keep this one: how CTAs take tiles (static, persistent, dynamic)."""
    cluster: int | str | None
    """Keep this one: neighbouring CTAs that fetch keys and values once for all of them (1 to 16)."""
    l2: str
    """The L2 at the start: cold (empty), warm, as the same call left it, or flushed, full of lines that a memset left
    to be written back (nvbench, do_bench) (cold, warm, flushed); by default cold.
    """

class ExplainKeywords(ChosenKeywords, ProblemKeywords, SettingKeywords, total=False):
    """Keywords of iosim.explain."""

    l2: str
    """The L2 at the start: cold (empty), warm, as the same call left it, or flushed, full of lines that a memset left
    to be written back (nvbench, do_bench) (cold, warm, flushed); by default cold.
    """

class CheckClaimKeywords(ChosenKeywords, ProblemKeywords, SettingKeywords, total=False):
    """Keywords of iosim.check_claim."""

    hbm: str | None
    """Bytes that are said to move between HBM and the L2, such as 4.3GB."""
    l2: str | None
    """Bytes that are said to move between the L2 and the SMs, such as 2.2GB."""
    time: str | None
    """Time that a call is said to take, such as 1.4ms."""
    flops: str | None
    """Operations that a call is said to take, such as 137GFLOP."""
    ratio: str | None
    """How many times less than naive attention, such as 9x."""
    tflops: str | None
    """Speed that a call is said to reach, such as 230TFLOP/s."""
    mfu: str | None
    """Share of the GPU's tensor rate that it is said to reach, such as 35%."""
    bandwidth: str | None
    """Bandwidth that it is said to draw from HBM, such as 1.5TB/s."""
    tolerance: str | float | None
    """How far a count may be from it, such as 2%; by default 1 %, or half a unit of its last digit up to 5 %."""
    layers: int | str | None
    """Layers of the model, where the number may be of all of them."""
    ecc: str
    """Check bits of ECC in the same memory, which a counter of HBM bytes counts: as the board is delivered, on or off;
    nothing changes where a GPU has none (delivered, on, off); by default delivered.
    """

class FormulaKeywords(ChosenKeywords, total=False):
    """Keywords of iosim.formula."""

    batch: int | str | None
    """Sequences."""
    heads: int | str | None
    """Query heads. A multiple of kv_heads (grouped-query attention; 1 is multi-query)."""
    kv_heads: int | str | None
    """Key/value heads."""
    seq_len: int | str | Sequence[int | str]
    """Query tokens (1 to 16777216)."""
    seq_len_k: int | str | None
    """Key tokens (1 to 16777216)."""
    head_dim: int | str | None
    """Columns of Q and K."""
    head_dim_v: int | str | None
    """Columns of V and O."""
    dtype: str | None
    """Type of the inputs (fp32, tf32, fp16, bf16, fp8)."""
    mask: str | None
    """Which keys a query sees. causal and window keep one interval of keys per query; butterfly, strided, window+global
    and window+first keep blocks by a pattern, blocks those of a file or of a BlockMask (none, causal, window,
    butterfly, strided, window+global, window+first, blocks).
    """
    splits: int | str | None
    """Parts that the keys of a head are split into."""
    tile: tuple[int, int] | str | None
    """Query rows x key rows, such as 128x64 (two whole numbers of 1 to 4096)."""

class DecodeKeywords(TypedDict, total=False):
    """Keywords of iosim.decode."""

    layers: int | str | None
    """Attention layers; with `model` the first N of its layers; by default 32."""
    tensor_parallel: int | str | None
    """GPUs that share the heads of `model`'s layers: numbers are of each; by default 1."""
    batch: int | str | Sequence[int | str]
    """Sequences: 8 or 1,2,4; by default 1."""
    context: int | str | Sequence[int | str]
    """Tokens in the cache: 4096, 1k,8k or 1k:128k:x2; by default 1k:128k:x2."""
    batch_contexts: int | str | Sequence[int | str] | None
    """In place of `batch` and `context`: sequences of these contexts in one launch, or a file."""
    heads: int | str | None
    """Query heads. A multiple of kv_heads (grouped-query attention; 1 is multi-query); by default 32."""
    kv_heads: int | str | None
    """Key/value heads; by default 8; 1 for a latent cache."""
    head_dim: int | str | None
    """Columns of Q and K; by default 128."""
    dtype: str | None
    """Type of the inputs (fp32, tf32, fp16, bf16, fp8); by default bf16."""
    weights: str | None
    """The layers' matrices in few bits, with `model` (int4, int8, fp8, mxfp4); by default as the config says."""
    head_dim_v: int | str | None
    """Columns of V and O; by default as many as of Q and K."""
    window: int | str | None
    """Keys kept before the diagonal: 0 <= i - j <= W. i is counted from the diagonal's offset; under window+global it
    goes to either side, |i - j| <= W. With causal the window is the same: no key past the diagonal.
    """
    latent_kv: bool
    """V is the first head_dim_v columns of K. One latent cache: multi-head latent attention in its absorbed form (arXiv
    2405.04434, section 2.1).
    """
    page_size: int | str | None
    """Tokens of a page of the key/value cache. Pages are found through a block table; by default the keys of a sequence
    lie in one piece (1 to 16777216).
    """
    cache_dtype: str | None
    """Type of the key/value cache. Keys and values are widened as they are read; their scales, one a tensor, are left
    out. Of a latent cache of which queries pick keys: the columns of V in fp8 with an fp32 scale for every 128, the
    others in 16 bits (656 bytes per token of DeepSeek's). mxfp8: of compressed keys, all columns in fp8 with a byte of
    scale for every 32 (528 bytes per key of DeepSeek-V4.1's) (fp8, mxfp8); by default that of the inputs.
    """
    shared_prefix: int | str | None
    """First keys that all sequences have in common, in memory once. A prompt that sequences share; the keys of each are
    these and its own (1 to 16777216); by default none.
    """
    new_tokens: int | str
    """Query tokens of a sequence in a step; by default 1."""
    append_kv: bool
    """A launch before writes the queries' K and V to the cache."""
    splits: int | str | None
    """Parts that the keys of a head are split into."""
    split_rule: str | Sequence[str] | None
    """In place of `kernel`, whose rule splits the keys: fa2, fa3, vllm, sglang, flashinfer."""
    launched: str
    """Alone (launches as a profiler times them) or graph (replayed in a CUDA graph) (alone, graph); by default alone.
    """

class LatencyKeywords(ChosenKeywords, ProblemKeywords, LayersKeywords, total=False):
    """Keywords of iosim.latency."""

    batch_contexts: int | str | Sequence[int | str] | None
    """Decode one token per sequence over these many keys, all in one launch: 1k,4k,32k, or a file."""
    cache_write: bool
    """The write of new K and V to the cache; by default True."""
    calibration: str | None
    """Constants that 'iosim calibrate --times' fitted."""
    method: str | None
    """How HBM bytes are found, as in `predict` (bounds, capacity, sampled, replay)."""
    l2: str
    """The L2 at the start: cold, or warm as the call before left it (cold, warm, flushed); by default warm."""
    clocks: str | float
    """Boost, sustained or the SMs' clock in MHz; by default boost."""
    launched: str
    """Graph (call after call from a CUDA graph) or alone (launches as a profiler times them) (alone, graph); by default
    graph.
    """
    ecc: str
    """Check bits of ECC in the same memory, which a counter of HBM bytes counts: as the board is delivered, on or off;
    nothing changes where a GPU has none (delivered, on, off); by default delivered.
    """

class RingKeywords(ChosenKeywords, ProblemKeywords, total=False):
    """Keywords of iosim.ring."""

    layers: int | str | None
    """Layers that keep Q, K, V, O for the backward, in memory; the first N of `model`'s; by default 1, or all of the
    model's.
    """
    tensor_parallel: int | str | None
    """GPUs that share the heads of `model`'s layers: numbers are of each; by default 1."""
    link: str | float
    """Nvlink, pcie, ib (400 Gb/s), ib-100g, ib-200g, or GB/s in one direction; by default nvlink."""
    gpus_per_node: int | str | None
    """GPUs joined by `link`; needs `network`."""
    network: str | float | None
    """Link between nodes, as `link`."""
    shared_network: bool
    """One network port a node, not one a GPU."""
    overlap: bool
    """Messages beside the computations of their step; by default True."""
    schedule: str | Sequence[str] | None
    """Ring, vanilla, balanced, zigzag, striped, usp, ulysses, all-gather, megatron, rsa; by default all that can run.
    """
    clocks: str | float
    """Sustained (calls for seconds), boost or the SMs' clock in MHz; by default sustained."""
    launched: str
    """Alone (from Python, where launching messages takes the processor time) or graph (from a CUDA graph) (alone,
    graph); by default alone.
    """

class ModelKeywords(TypedDict, total=False):
    """Keywords of iosim.model."""

    batch: int | str
    """Sequences; by default 1."""
    seq_len: int | str | Sequence[int | str] | None
    """Tokens of a prompt, or of a sequence to train on: 4096 or 1k:16k:x2; by default 4k; none with `context`."""
    context: int | str | Sequence[int | str] | None
    """Tokens so far, the new one among them, in a step of decoding; 0 for no such step; by default those of the prompt.
    """
    dtype: str | None
    """Type of the inputs (fp32, tf32, fp16, bf16, fp8); by default the config's."""
    weights: str | None
    """The layers' matrices in few bits (int4, int8, fp8, mxfp4); by default as the config says."""
    cache_dtype: str | None
    """Type of the key/value cache. Keys and values are widened as they are read; their scales, one a tensor, are left
    out. Of a latent cache of which queries pick keys: the columns of V in fp8 with an fp32 scale for every 128, the
    others in 16 bits (656 bytes per token of DeepSeek's). mxfp8: of compressed keys, all columns in fp8 with a byte of
    scale for every 32 (528 bytes per key of DeepSeek-V4.1's) (fp8, mxfp8); by default that of the inputs.
    """
    training: bool
    """A step of training, in place of a prefill and a step of decoding."""
    price: str | Sequence[str] | None
    """Dollars per hour of a GPU, for the cost of a million tokens: a100=1.5,h100=2.5."""
    fused: bool
    """One launch each for positions, the MLP's activation and the sum before a norm, as serving stacks run them."""
    layers: int | str | None
    """The first N layers of each model; by default all."""
    tensor_parallel: int | str | None
    """GPUs that share heads, MLPs and vocabulary: numbers are of each; by default 1."""

class TrainMemoryKeywords(TypedDict, total=False):
    """Keywords of iosim.train_memory."""

    seq_len: int | str | Sequence[int | str] | None
    """Tokens; by default 1024; with `frontier` 2k:16k:2k."""
    batch: int | str | Sequence[int | str] | None
    """Sequences; by default 1."""
    layers: int | str | Sequence[int | str] | None
    """Layers; by default 12."""
    width: int | str | Sequence[int | str] | None
    """Columns of the residual stream; by default 768."""
    heads: int | str | None
    """Query heads. A multiple of kv_heads (grouped-query attention; 1 is multi-query); by default width / 64."""
    kv_heads: int | str | None
    """Key/value heads; by default as many as query heads; 1 for a latent cache."""
    causal: bool
    """Keep keys up to the query's own position; by default True."""
    mlp_ratio: float | None
    """Columns inside the MLP over width (0 to 64); by default 4."""
    mlp_width: int | str | None
    """Columns inside the MLP; 0 for none."""
    gated: bool
    """Gated MLP: three matrices."""
    activation: str | float | None
    """Gelu, silu or relu; by default gelu."""
    vocabulary: int | str | None
    """Tokens; 0 for no embedding and head; by default 50257."""
    untied: bool
    """The head has a matrix of its own."""
    norm: str | float | None
    """Layer, rms or none; by default layer."""
    positions: str | float | None
    """Learned or none; by default learned."""
    linear_bias: bool
    """A bias in linear layers; by default True."""
    attention: str | float
    """Naive (eager) or flash; by default flash."""
    precision: str | float | None
    """Fp32, fp16, bf16, amp-fp16 or amp-bf16; by default amp-bf16; amp-fp16 where the GPU's tensor cores do not take
    bf16.
    """
    optimizer: str | float
    """None, sgd, momentum, adam, adamw or adam8bit; by default adamw."""
    step: str | float
    """How the optimizer runs: foreach, loop or fused; by default foreach."""
    recompute: str | float
    """None, full (each layer) or attention; by default none."""
    backend: str | float
    """Whose kernels' saved tensors: cuda or cpu (no times); by default cuda."""
    accumulate_gradients: bool
    """Gradients of an earlier backward are there."""
    master_weights: bool
    """Fp32 copies of bf16 or fp16 parameters, and states in fp32, as mixed-precision trainers keep."""
    lora_rank: int | str
    """Train LoRA's adapters of so many columns alone; all else is frozen; by default 0, which trains everything."""
    lora_on: str | float
    """Matrices with an adapter, of q, k, v, out, gate, up and down; by default q,v."""
    data_parallel: int | str
    """GPUs that train copies of the model; batch and memory are those of each; by default 1."""
    zero: int | str
    """ZeRO's stage, what these GPUs share out: 1 optimizer states, 2 gradients, too, 3 parameters, too (0 to 3); by
    default 0.
    """
    reserve: int | str
    """Bytes of memory that tensors cannot use, such as 512m (0 to 1125899906842624); by default 0."""
