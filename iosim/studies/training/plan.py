"""From a model and how it is trained to the graph of one step."""

from __future__ import annotations

from functools import lru_cache

from iosim.base.errors import InputError
from iosim.studies.training.attention import attention
from iosim.studies.training.builder import Builder
from iosim.studies.training.graph import Gradient, Graph, Kind
from iosim.studies.training.model import Decoder
from iosim.studies.training.setup import Setup

INDEX_BYTES = 8
"""Tokens, targets and positions are 64-bit integers."""
MAX_BYTES = 1 << 60


@lru_cache(maxsize=64)
def plan(model: Decoder, setup: Setup) -> Graph:
    """The nodes of one step of `model` under `setup`.

    Raises:
        InputError: a head dimension that the attention asked for cannot have, or sizes beyond 2^60 bytes.
    """
    setup.check(model)
    largest = setup.batch * setup.seq_len * max(setup.seq_len * model.heads, model.mlp_width, model.vocabulary)
    if largest * 8 > MAX_BYTES:
        raise InputError(f"`batch` {setup.batch} with `seq_len` {setup.seq_len}: a tensor of {largest} elements is out "
                         f"of range; accepted: up to {MAX_BYTES // 8}")  # fmt: skip
    b = Builder(model, setup)
    x = _embed(b) if model.vocabulary else b.given("hidden", Kind.INPUT, b.rows * model.width, b.number.parameter_bytes)
    if setup.attention == "naive" and setup.causal:
        b.given("mask", Kind.INPUT, setup.seq_len * setup.seq_len, 1)
    for n in range(model.layers):
        x = _layer(b, f"layer{n}.", x)
    if model.vocabulary:
        return _head(b, x)
    seed = b.storage("gradient", Kind.INPUT, b.bytes_of(x))
    return b.graph(seed, True)


def _embed(b: Builder) -> str:
    m, s, size = b.model, b.setup, b.number.parameter_bytes
    b.given("tokens", Kind.INPUT, b.rows, INDEX_BYTES)
    b.given("targets", Kind.INPUT, b.rows, INDEX_BYTES)
    learned = m.positions == "learned"
    x = b.pointwise("embedded", ["tokens"], Kind.RESIDUAL, b.rows * m.width, size, saved=["tokens"], gradients=(),
                    parameters=("embedding",))  # fmt: skip
    if not learned:
        return x
    numbers = b.storage("position numbers", Kind.INPUT, s.seq_len * INDEX_BYTES)
    rows = s.seq_len * m.width
    p = b.pointwise("positioned", [], Kind.RESIDUAL, rows, size, gradients=(), extra=(numbers,),
                    parameters=("positions",))  # fmt: skip
    return b.pointwise("summed", [x, p], Kind.RESIDUAL, b.rows * m.width, size,
                       gradients=[Gradient(x), Gradient(p, rows * size, fitted=True)])  # fmt: skip


def _layer(b: Builder, at: str, x: str) -> str:
    m, whole, start = b.model, b.setup.recompute == "full", x
    if whole:
        b.begin_segment(at.rstrip("."), x)
    h = b.norm(f"{at}norm1", x)
    qkv = b.linear(f"{at}qkv", h, m.qkv_width, Kind.QKV, bias=m.bias)
    o = attention(b, at, qkv)
    h = b.linear(f"{at}out", o, m.width, Kind.RESIDUAL, bias=m.bias)
    x = b.residual(f"{at}x1", x, h)
    if m.mlp_width:
        h = b.norm(f"{at}norm2", x)
        x = b.residual(f"{at}x2", x, _mlp(b, at, h))
        if m.gated:
            b.hold(h)
    b.hold(start)
    if whole:
        b.end_segment()
    return x


def _mlp(b: Builder, at: str, h: str) -> str:
    m = b.model
    if m.gated:
        gate = b.linear(f"{at}gate", h, m.mlp_width, Kind.MLP, bias=m.bias)
        active = b.activation(f"{at}activation", gate, Kind.MLP)
        up = b.linear(f"{at}up", h, m.mlp_width, Kind.MLP, bias=m.bias)
        active = b.pointwise(f"{at}product", [active, up], Kind.MLP, b.elements[up], b.sizes[up], saved=[active, up])
    else:
        up = b.linear(f"{at}up", h, m.mlp_width, Kind.MLP, bias=m.bias)
        active = b.activation(f"{at}activation", up, Kind.MLP)
    return b.linear(f"{at}down", active, m.width, Kind.RESIDUAL, bias=m.bias)


def _head(b: Builder, x: str) -> Graph:
    """Norm, logits and cross entropy: log-softmax keeps its result, which the loss picks from.

    Under autocast the loss is an fp32 operation: on CUDA it gets an fp32 copy of the half log-softmax, and both are
    kept; on CPU the logits are copied first.
    """
    m, n = b.model, b.number
    h = b.norm("norm", x)
    logits = b.linear("logits", h, m.vocabulary, Kind.LOGITS, weight="embedding" if m.tied else "head.weight",
                      bias=False)  # fmt: skip
    wide, cuda = n.parameter_bytes, b.setup.backend == "cuda"
    last = logits if cuda or not n.autocast else b.cast("logits.fp32", logits, wide, Kind.LOGITS)
    elements = b.elements[last]
    p = b.pointwise("log_softmax", [last], Kind.LOGITS, elements, b.sizes[last], saves_output=True)
    if b.sizes[p] != wide:
        p = b.cast("log_softmax.fp32", p, wide, Kind.LOGITS)
        b.hold(logits)
    total = b.storage("total weight", Kind.LOGITS, wide)
    b.pointwise("loss", [p], Kind.LOGITS, 1, wide, saved=[p, "targets"], extra=(total,))
    b.hold(logits, last)
    seed = b.storage("gradient", Kind.LOGITS, wide)
    return b.graph(seed, False)
