"""From a model and how it is trained to the graph of one step.

Attention's nodes: `naive` is what a hand-written module does: ((q * scale) @ k^T).masked_fill(mask, -inf), softmax, @
v. A matmul of 4-D tensors needs contiguous copies of q, k and v where batch and heads do not lie in one stride (more
than one of each). `flash` keeps q, k, v, the output and a log-sum-exp a row. On CUDA FlashAttention adds the random
state, a seed and an offset; the memory-efficient kernel's lie on the host unless there is dropout.
"""

from __future__ import annotations

from functools import lru_cache

from iosim.base.errors import InputError
from iosim.studies.training.graph import Builder, Graph, Kind, Part
from iosim.studies.training.lora import linear
from iosim.studies.training.model import STATISTIC_BYTES, Decoder, Setup

RANDOM_STATE_BYTES = 8
"""Seed and offset are 64-bit integers."""
LSE_ROWS = 32
"""The memory-efficient kernel pads the log-sum-exp to whole blocks of rows (mem_eff_attention/kernel_forward.h)."""


def attention(b: Builder, at: str, *projected: str) -> str:
    """`projected`: q, k and v in one tensor, or each in its own."""
    with b.checkpointed("attention", f"{at}attention", *projected):
        parts = _by_heads(b, at, _split(b, at, *projected))
        if b.setup.attention == "flash":
            return _flash(b, at, *parts)
        return _naive(b, at, projected, *parts)


def _split(b: Builder, at: str, *projected: str) -> dict[str, str]:
    """q, k and v by their columns: views of one tensor, whose gradients are put together in one, or tensors."""
    if len(projected) > 1:
        return dict(zip("qkv", projected, strict=True))
    heads_of = {"q": b.model.heads, "k": b.model.kv_heads, "v": b.model.kv_heads}
    sizes = {f"{at}{n}.columns": b.rows * heads * b.model.head_dim for n, heads in heads_of.items()}
    b.view(f"{at}split", sizes, projected[0], gradient=b.bytes_of(projected[0]))
    return dict(zip("qkv", sizes, strict=True))


def _by_heads(b: Builder, at: str, columns: dict[str, str]) -> tuple[str, str, str]:
    """Views by heads, of which the naive path's gradients lie the other way round and are copied."""
    heads_of = {"q": b.model.heads, "k": b.model.kv_heads, "v": b.model.kv_heads}
    for n, source in columns.items():
        heads = heads_of[n]
        # With one head or one token the transposed view is contiguous, and nothing is copied.
        copied = b.setup.attention == "naive" and heads > 1 and b.setup.seq_len > 1
        b.view(
            f"{at}{n}",
            {f"{at}{n}": b.elements[source]},
            source,
            b.bytes_of(source) if copied else None,
        )
    return f"{at}q", f"{at}k", f"{at}v"


def _flash(b: Builder, at: str, q: str, k: str, v: str) -> str:
    s, name = b.setup, f"{at}attention"
    rows = s.batch * b.model.heads * s.seq_len
    if s.fused_kernel == "memory-efficient":
        # Whole blocks of rows per sequence and head.
        rows = rows // s.seq_len * -(-s.seq_len // LSE_ROWS) * LSE_ROWS
    size_of = {"lse": rows * STATISTIC_BYTES}
    if s.backend == "cuda" and s.fused_kernel == "flash":
        size_of |= dict.fromkeys(("seed", "offset"), RANDOM_STATE_BYTES)
    made = {x: b.made(f"{name}.{x}", Kind.ATTENTION, size) for x, size in size_of.items()}
    output = b.operator("attention", name, {"q": q, "k": k, "v": v}, Kind.ATTENTION, beside=made)
    # The backward makes all three gradients, of which one that nothing wants goes when it has run.
    scratch = sum(b.bytes_of(x) for x in (q, k, v) if x not in b.wanting)
    if s.backend == "cuda":
        scratch += _workspace(b)
    b.amend(part=Part.ATTENTION, backward_scratch=scratch)
    return output


def _workspace(b: Builder) -> int:
    """The backward's own tensors: dQ in fp32, a row sum of dO * O, and dK and dV a query head before groups are
    added up (pytorch, aten/src/ATen/native/transformers/cuda, as in FlashAttention's flash_api.cpp)."""
    m, s = b.model, b.setup
    padded = -(-s.seq_len // 128) * 128
    # dQ rows are padded to 128 and columns to 32; one more column holds the row sum.
    wide = -(-m.head_dim // 32) * 32
    scratch = s.batch * m.heads * padded * (wide + 1) * STATISTIC_BYTES
    if m.heads != m.kv_heads:
        scratch += 2 * b.rows * m.width * b.number.compute_bytes
    return scratch


def _naive(b: Builder, at: str, projected: tuple[str, ...], q: str, k: str, v: str) -> str:
    m, s = b.model, b.setup
    columns = b.rows * m.width
    scores = s.batch * m.heads * s.seq_len * s.seq_len
    copies = s.batch > 1 and m.heads > 1
    # Grouped keys and values are written out once a query head; the gradients of a group are added up.
    if m.heads != m.kv_heads:
        size = columns, b.number.compute_bytes
        k, v = (
            b.operator("expand", f"{at}{n}.repeated", {"x": x}, Kind.QKV, size)
            for n, x in (("k", k), ("v", v))
        )
    q = scaled = b.operator("scale", f"{at}q.scaled", {"x": q}, Kind.QKV)
    b.amend(part=Part.ATTENTION)
    # PyTorch's matmul flattens batch and heads: only with more than one of each does that copy.
    if copies:
        q = b.copy(f"{at}q.contiguous", q, Kind.QKV)
        k = k if m.heads != m.kv_heads else b.copy(f"{at}k.contiguous", k, Kind.QKV)
    flops = 2 * scores * m.head_dim
    x = _product(b, f"{at}scores", (q, k), Kind.SCORES, scores, flops)
    # The function still names the scaled q while the product runs, so its memory is not free.
    b.hold(scaled)
    if s.causal:
        x = b.operator("masked_fill", f"{at}masked", {"x": x}, Kind.SCORES, beside={"mask": "mask"})
        b.amend(part=Part.ATTENTION)
    softmax = _softmax(b, at, x, scores)
    p = b.to_compute(softmax, f"{at}softmax.half", Kind.SCORES)
    if copies and m.heads == m.kv_heads:
        v = b.copy(f"{at}v.contiguous", v, Kind.QKV)
    o = _product(b, f"{at}values", (p, v), Kind.ATTENTION, columns, flops)
    b.hold(softmax)
    if copies:  # its gradient comes with tokens and heads the other way round, and is copied
        b.view(f"{at}heads", {f"{at}heads": columns}, o, b.bytes_of(o))
        o = f"{at}heads"
    # Heads side by side again: a copy, unless there is one head or one token.
    if m.heads > 1 and s.seq_len > 1:
        o = b.copy(f"{at}merged", o, Kind.ATTENTION)
        b.hold(*projected, *(x for x in (k, v) if x.endswith("repeated")))
    return o


def _softmax(b: Builder, at: str, x: str, scores: int) -> str:
    """Softmax keeps its result. On CUDA autocast has it in fp32: of fp16 scores in one kernel, of bf16 scores after a
    copy (pytorch, aten/src/ATen/native/SoftMax.cpp); and its backward first writes the gradient times the result
    (aten/src/ATen/native/cuda/SoftMax.cu)."""
    cuda, size = b.setup.backend == "cuda", b.sizes[x]
    wide = STATISTIC_BYTES if b.number.autocast and cuda else size
    # bf16 scores are converted by a launch of their own; fp16 ones inside the softmax.
    source = x
    if wide != size and b.number.dtype == "bf16":
        source = b.cast(f"{at}scores.fp32", x, wide, Kind.SCORES)
    weights = b.operator("_softmax", f"{at}softmax", {"x": source}, Kind.SCORES, (scores, wide))
    b.amend(part=Part.ATTENTION, backward_scratch=scores * wide * cuda)
    b.hold(x)
    return weights


def _product(
    b: Builder, name: str, operands: tuple[str, str], kind: Kind, elements: int, flops: int
) -> str:
    """A batched product, which keeps each operand for the other's gradient."""
    x, other = operands
    size = (elements, b.number.compute_bytes)
    b.operator("bmm", name, {"x": x, "other": other}, kind, size)
    b.amend(part=Part.ATTENTION, flops=flops)
    return name


INDEX_BYTES = 8
"""Tokens, targets and positions are 64-bit integers."""
MAX_BYTES = 1 << 60


@lru_cache(maxsize=64)
def plan(model: Decoder, setup: Setup) -> Graph:
    setup.check(model)
    # The largest tensor of all, before any is planned: scores, MLP or logits.
    largest = (
        setup.batch
        * setup.seq_len
        * max(setup.seq_len * model.heads, model.mlp_width, model.vocabulary)
    )
    if largest * 8 > MAX_BYTES:
        why = f"a tensor of {largest} elements is out of range; accepted: up to {MAX_BYTES // 8}"
        raise InputError(f"`batch` {setup.batch} with `seq_len` {setup.seq_len}: {why}")
    b = Builder(model, setup)
    x = (
        _embed(b)
        if model.vocabulary
        else b.given("hidden", Kind.INPUT, b.rows * model.width, b.number.parameter_bytes)
    )
    if setup.attention == "naive" and setup.causal:
        b.given("mask", Kind.INPUT, setup.seq_len * setup.seq_len, 1)
    for n in range(model.layers):
        x = _layer(b, f"layer{n}.", x)
    if model.vocabulary:
        return _head(b, x)
    return b.graph(b.storage("gradient", Kind.INPUT, b.bytes_of(x)), True)


def _embed(b: Builder) -> str:
    m, s, size = b.model, b.setup, b.number.parameter_bytes
    b.given("tokens", Kind.INPUT, b.rows, INDEX_BYTES)
    b.given("targets", Kind.INPUT, b.rows, INDEX_BYTES)
    table = b.parameter("embedding", m.vocabulary * m.width, embedding=True)
    x = b.operator(
        "embedding",
        "embedded",
        {"indices": "tokens"},
        Kind.RESIDUAL,
        (b.rows * m.width, size),
        beside={"weight": table},
    )
    if m.positions != "learned":
        return x
    numbers = b.made("position numbers", Kind.INPUT, s.seq_len * INDEX_BYTES)
    rows = s.seq_len * m.width
    table = b.parameter("positions", rows, embedding=True)
    p = b.operator(
        "embedding",
        "positioned",
        {},
        Kind.RESIDUAL,
        (rows, size),
        beside={"indices": numbers, "weight": table},
    )
    # The position table is one row per token for all sequences: its gradient is summed over them.
    return b.operator(
        "add", "summed", {"x": x, "other": p}, Kind.RESIDUAL, fitted={"other": rows * size}
    )


def _layer(b: Builder, at: str, x: str) -> str:
    m, start = b.model, x
    # Pre-norm: each branch reads a norm of the stream and is added to it.
    with b.checkpointed("full", at.rstrip("."), x):
        h = b.norm(f"{at}norm1", x)
        o = attention(b, at, *_projections(b, at, h))
        h = linear(b, at, "out", o, m.width, Kind.RESIDUAL)
        x = b.residual(f"{at}x1", x, h)
        if m.mlp_width:
            h = b.norm(f"{at}norm2", x)
            x = b.residual(f"{at}x2", x, _mlp(b, at, h))
            if m.gated:
                b.hold(h)
        b.hold(start)
    return x


def _projections(b: Builder, at: str, h: str) -> tuple[str, ...]:
    """q, k and v as one product; under LoRA three, each with a matrix that may have an adapter."""
    m = b.model
    if not b.setup.lora_rank:
        return (b.linear(f"{at}qkv", h, m.qkv_width, Kind.QKV, bias=m.bias),)
    heads_of = {"q": m.heads, "k": m.kv_heads, "v": m.kv_heads}
    return tuple(
        linear(b, at, n, h, heads * m.head_dim, Kind.QKV, suffix=".columns")
        for n, heads in heads_of.items()
    )


def _mlp(b: Builder, at: str, h: str) -> str:
    m = b.model
    first = linear(b, at, "gate" if m.gated else "up", h, m.mlp_width, Kind.MLP)
    active = b.activation(f"{at}activation", first, Kind.MLP)
    if m.gated:
        up = linear(b, at, "up", h, m.mlp_width, Kind.MLP)
        active = b.operator("mul", f"{at}product", {"x": active, "other": up}, Kind.MLP)
    return linear(b, at, "down", active, m.width, Kind.RESIDUAL)


def _head(b: Builder, x: str) -> Graph:
    """Norm, logits and cross entropy: log-softmax keeps its result, which the loss picks from. Under autocast the loss
    is an fp32 operation: on CUDA it gets an fp32 copy of the half log-softmax, and both are kept; on CPU the logits are
    copied first."""
    m, n = b.model, b.number
    h = b.norm("norm", x)
    logits = b.linear(
        "logits",
        h,
        m.vocabulary,
        Kind.LOGITS,
        weight="embedding" if m.tied else "head.weight",
        bias=False,
    )
    wide, cuda = n.parameter_bytes, b.setup.backend == "cuda"
    # What the softmax reads: CUDA converts inside the kernel, the CPU before it.
    last = logits if cuda or not n.autocast else b.cast("logits.fp32", logits, wide, Kind.LOGITS)
    p = b.operator("_log_softmax", "log_softmax", {"x": last}, Kind.LOGITS)
    if b.sizes[p] != wide:
        p = b.cast("log_softmax.fp32", p, wide, Kind.LOGITS)
        b.hold(logits)
    beside = {"target": "targets", "total_weight": b.made("total weight", Kind.LOGITS, wide)}
    b.operator("nll_loss", "loss", {"x": p}, Kind.LOGITS, (1, wide), beside=beside)
    b.hold(logits, last)
    return b.graph(b.storage("gradient", Kind.LOGITS, wide), False)
