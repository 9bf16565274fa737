"""What a decoder's weights take beside those of its attention: embeddings, and the MLP or the experts of each layer.

Counted are matrices; biases, norms and learned positions, below 1 % of them, are not. Not for models some of whose
layers are no attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iosim.integrations.models.reading import Reading
from iosim.studies.models.layers import Weights

PLAIN = ("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt", "nemotron", "opt",
         "persimmon", "phi", "starcoder2")  # fmt: skip
"""Types whose MLP has two matrices, by default four times as wide as the model; that of all others is gated."""
INNER = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
BYTES = {"float32": 4.0, "fp32": 4.0}
QUANTISED = {"fp8": (1.0, 1.0), "mxfp4": (2.0, 17 / 32)}
"""Method -> bytes of a number in attention and dense MLPs, and in experts (of MXFP4 with a scale for every 32)."""


def weights_of(read: Reading, width: int | None, layers: int) -> Weights | None:
    """The bytes of all layers' weights beside attention; None where the config does not say them."""
    config, inner, rows = read.config, read.get(*INNER), read.get("vocab_size")
    gated = read.type not in PLAIN
    if inner is None and not gated and width is not None:
        inner = 4 * width
    usual = BYTES.get(str(config.get("torch_dtype") or config.get("dtype")), 2.0)
    quantised = config.get("quantization_config")
    method = str(quantised.get("quant_method")) if isinstance(quantised, Mapping) else ""
    known = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in (width, inner, rows))
    if not known or (method and method not in QUANTISED):
        return None
    each, of_experts = QUANTISED.get(method, (usual, usual))
    columns = (3 if gated else 2) * int(width or 0)
    listed = []
    for n in range(layers):
        experts = _experts(read, n)
        if experts is None:
            dense = read.get("intermediate_size_mlp") if read.get(*EXPERTS) else None
            listed.append(columns * (dense or inner) * each)
            continue
        number, wide, shared = experts
        listed.append(columns * wide * number * of_experts + (columns * shared + number * int(width or 0)) * each)
    tables = 1 if read.get("tie_word_embeddings") else 2
    return Weights(round(tables * int(width or 0) * rows * usual), tuple(map(round, listed)), each)


def _experts(read: Reading, layer: int) -> tuple[int, int, int] | None:
    """(experts, their width, width of what all tokens pass) of a layer; None where its MLP is dense."""
    number = read.get(*EXPERTS)
    every = read.get("decoder_sparse_step", "interleave_moe_layer_step") or 1
    dense: Any = read.get("mlp_only_layers") or ()
    if not number or layer < (read.get("first_k_dense_replace") or 0) or (layer + 1) % every or layer in dense:
        return None
    wide = read.get("moe_intermediate_size") or read.get(*INNER)
    shared = (read.get("n_shared_experts") or 0) * wide + (read.get("shared_expert_intermediate_size") or 0)
    return number, wide, read.get(*INNER) if read.type == "llama4_text" else shared
