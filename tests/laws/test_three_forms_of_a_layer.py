"""A transformer's layer is written in three forms, which must be one layer: the graph of `train-memory`, the tape of
`iosim model --training`, and what `TrafficMode` records of plain PyTorch.

Compared is what a second layer adds to a training step: trained parameters, operations of its matrix products in both
passes, and bytes of storages that the forward leaves for the backward.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import ROOT

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from iosim.hardware.profile import load_profile  # noqa: E402
from iosim.integrations.models.load import load_model  # noqa: E402
from iosim.studies.models.decoder import Work, Writer, weights_of  # noqa: E402
from iosim.studies.program.operators import Program  # noqa: E402
from iosim.studies.training import Decoder, Setup  # noqa: E402
from iosim.studies.training.graph import saved_storages  # noqa: E402
from iosim.studies.training.plan import RANDOM_STATE_BYTES, plan  # noqa: E402
from iosim.torch import TrafficMode  # noqa: E402

sys.path.insert(0, str(ROOT / "experiments"))
from torch_models import Llama  # noqa: E402

GPU = "h100"
VOCABULARY = 512


@dataclass(frozen=True)
class Sizes:
    """A decoder with rotary positions, RMSNorm, a gated MLP and no biases, and the tokens it learns from."""

    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    batch: int
    tokens: int

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


@dataclass(frozen=True)
class Step:
    """Counts of one training step."""

    parameters: int
    product_flops: int
    saved_bytes: int

    def __sub__(self, other: Step) -> Step:
        return Step(
            self.parameters - other.parameters,
            self.product_flops - other.product_flops,
            self.saved_bytes - other.saved_bytes,
        )


def of_program(parameters: int, program: Program) -> Step:
    """A program's counts: saved is what the forward makes and an operator of the backward still reads."""
    phases = [operator.phase for operator in program.operators]
    backward = next(n for n, phase in enumerate(phases) if phase != "forward")
    saved = (
        storage.bytes
        for storage in program.storages
        if storage.made is not None and storage.made < backward
        if storage.freed is None or storage.freed > backward
    )
    products = (operator.flops for operator in program.operators if not operator.is_attention)
    return Step(parameters, sum(products), sum(saved))


def of_graph(sizes: Sizes, layers: int) -> Step:
    """The graph of `train-memory`, which has FlashAttention's random state (a seed and an offset a layer) besides."""
    model = Decoder(
        layers=layers,
        width=sizes.width,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        mlp_width=sizes.inner,
        gated=True,
        activation="silu",
        vocabulary=VOCABULARY,
        tied=False,
        norm="rms",
        positions="none",
        bias=False,
    )
    graph = plan(model, Setup(batch=sizes.batch, seq_len=sizes.tokens, precision="bf16"))
    # A product's backward makes a gradient of each operand, each as much work as the product itself.
    products = sum(
        node.flops * (1 + sum(not gradient.fitted for gradient in node.gradients))
        for node in graph.nodes
    )
    saved = sum(storage.bytes for storage in saved_storages(graph))
    return Step(graph.parameter_elements, products, saved - 2 * RANDOM_STATE_BYTES * layers)


def of_tape(sizes: Sizes, layers: int) -> Step:
    """The tape of `iosim model --training`."""
    model = load_model(
        {
            "model_type": "llama",
            "hidden_size": sizes.width,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "intermediate_size": sizes.inner,
            "num_hidden_layers": layers,
            "vocab_size": VOCABULARY,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
    )
    work = Work(sizes.batch, sizes.tokens, sizes.tokens, "fa2", True, False, None)
    weights = weights_of(model, None)
    tape = Writer(model, weights, work, load_profile(GPU), "bf16").written()
    parameters = sum(times * math.prod(weight.sizes) for times, weight, _ in tape.parameters)
    return of_program(parameters, tape.program)


@contextmanager
def on_meta() -> Iterator[None]:
    """Tensors without values."""
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


def of_pytorch(sizes: Sizes, layers: int) -> Step:
    """What `TrafficMode` records of a Llama in plain PyTorch."""
    with on_meta():
        model = Llama(
            VOCABULARY,
            sizes.width,
            sizes.heads,
            sizes.kv_heads,
            sizes.inner,
            layers,
            sizes.tokens,
            "meta",
        ).to(torch.bfloat16)
        tokens = torch.zeros(sizes.batch, sizes.tokens, dtype=torch.long)
        with TrafficMode(GPU) as mode:
            scores = model(tokens).view(-1, VOCABULARY)
            functional.cross_entropy(scores, tokens.view(-1)).backward()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return of_program(parameters, mode._recorder.program)


FORMS = {"graph": of_graph, "tape": of_tape, "PyTorch": of_pytorch}


@st.composite
def drawn_sizes(draw: st.DrawFn) -> Sizes:
    kv_heads = draw(st.integers(2, 4))
    return Sizes(
        heads=kv_heads * draw(st.sampled_from([1, 2, 4])),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([32, 64, 128])),
        inner=32 * draw(st.integers(2, 20)),
        batch=draw(st.integers(2, 3)),
        tokens=8 * draw(st.integers(2, 24)),
    )


@settings(max_examples=examples(12), deadline=None, derandomize=True)
@given(drawn_sizes())
def test_the_three_forms_are_one_layer(sizes: Sizes) -> None:
    added = {name: form(sizes, 2) - form(sizes, 1) for name, form in FORMS.items()}
    assert added["graph"] == added["tape"] == added["PyTorch"]


def test_a_layer_by_hand() -> None:
    """2 query heads on 2 of keys, 32 columns each, an MLP of 64: width 64, 32 tokens."""
    sizes = Sizes(heads=2, kv_heads=2, head_dim=32, inner=64, batch=2, tokens=16)
    matrices = 4 * 64 * 64 + 3 * 64 * 64  # q, k, v, o; gate, up, down
    row = 2 * 64  # bytes of a row of 64 numbers in bf16
    of_attention = 3 * row + row + row  # q, k, v; the output; the norm before them
    of_mlp = 4 * row + row  # gate, up, silu(gate), their product; the norm before them
    streams = 2 * row  # the residual stream before each of the norms
    statistics = 4 + 4 + 2 * 4  # of two norms; log-sum-exps of two heads
    assert of_graph(sizes, 2) - of_graph(sizes, 1) == Step(
        parameters=matrices + 2 * 64,
        product_flops=3 * 2 * 32 * matrices,
        saved_bytes=32 * (of_attention + of_mlp + streams + statistics),
    )
