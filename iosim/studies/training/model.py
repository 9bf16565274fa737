"""Decoder: a GPT-like transformer as sizes and choices, and its parameters."""

from __future__ import annotations

from dataclasses import dataclass

from iosim.base.errors import InputError, unknown_name
from iosim.base.fields import UNSET, Resolved, whole
from iosim.studies.training.graph import Parameter

NORMS = ("layer", "rms", "none")
ACTIVATIONS = ("gelu", "silu", "relu")
POSITIONS = ("learned", "none")
MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_VOCABULARY = 1 << 24


@dataclass(frozen=True)
class Decoder:
    """A stack of pre-norm layers: x + out(attention(qkv(norm(x)))), then x + down(activation(up(norm(x)))).

    Args:
        layers: of them.
        width: columns of the residual stream.
        heads: query heads; width / heads is the head dimension.
        kv_heads: key/value heads, a divisor of `heads`; by default as many.
        mlp_width: columns inside the MLP; 4 x width by default, 0 for layers without an MLP.
        gated: down(activation(gate(x)) * up(x)), three matrices in place of two.
        activation: gelu, silu or relu.
        vocabulary: tokens; 0 for a stack with neither embedding nor head, fed with hidden states.
        tied: the head's matrix is the embedding.
        norm: layer, rms or none.
        positions: learned (an embedding a position) or none.
        bias: whether linear layers have one (the head has none).

    Raises:
        InputError: a value out of range, or two that contradict each other.
    """

    layers: int = 12
    width: int = 768
    heads: int = 12
    kv_heads: Resolved[int] = UNSET
    mlp_width: Resolved[int] = UNSET
    gated: bool = False
    activation: str = "gelu"
    vocabulary: int = 50257
    tied: bool = True
    norm: str = "layer"
    positions: str = "learned"
    bias: bool = True

    def __post_init__(self) -> None:
        put = object.__setattr__
        whole("layers", self.layers, 1, MAX_LAYERS)
        whole("width", self.width, 1, MAX_WIDTH)
        whole("heads", self.heads, 1, self.width)
        if self.width % self.heads:
            raise InputError(f"`heads` {self.heads} does not divide `width` {self.width}; accepted: divisors of it")
        put(self, "kv_heads", self.heads if self.kv_heads is None else self.kv_heads)
        whole("kv_heads", self.kv_heads, 1, self.heads)
        if self.heads % self.kv_heads:
            raise InputError(f"`kv_heads` {self.kv_heads} does not divide `heads` {self.heads}; accepted: divisors "
                             "of it")  # fmt: skip
        put(self, "mlp_width", 4 * self.width if self.mlp_width is None else self.mlp_width)
        whole("mlp_width", self.mlp_width, 0, 64 * MAX_WIDTH)
        whole("vocabulary", self.vocabulary, 0, MAX_VOCABULARY)
        for option, value, known in (("`norm`", self.norm, NORMS), ("`activation`", self.activation, ACTIVATIONS),
                                     ("`positions`", self.positions, POSITIONS)):  # fmt: skip
            if value not in known:
                raise unknown_name(option, str(value), known)

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def qkv_width(self) -> int:
        """Columns of the packed projection: query heads, then key and value heads."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def parameters(self, tokens: int) -> tuple[Parameter, ...]:
        """Every trained tensor, in the order of the model; `tokens` is the number of learned positions."""
        all_parameters: list[Parameter] = []
        if self.vocabulary:
            all_parameters.append(Parameter("embedding", self.vocabulary * self.width, embedding=True))
            if self.positions == "learned":
                all_parameters.append(Parameter("positions", tokens * self.width, embedding=True))
        for n in range(self.layers):
            all_parameters += self._layer(f"layer{n}.")
        if self.vocabulary:
            all_parameters += self._norm("norm")
            if not self.tied:
                all_parameters.append(Parameter("head.weight", self.vocabulary * self.width))
        return tuple(all_parameters)

    def _layer(self, at: str) -> list[Parameter]:
        parameters = self._norm(f"{at}norm1") + self._linear(f"{at}qkv", self.width, self.qkv_width)
        parameters += self._linear(f"{at}out", self.width, self.width)
        if self.mlp_width:
            parameters += self._norm(f"{at}norm2")
            for name in ("gate", "up") if self.gated else ("up",):
                parameters += self._linear(f"{at}{name}", self.width, self.mlp_width)
            parameters += self._linear(f"{at}down", self.mlp_width, self.width)
        return parameters

    def _linear(self, name: str, rows: int, cols: int) -> list[Parameter]:
        bias = [Parameter(f"{name}.bias", cols)] if self.bias else []
        return [Parameter(f"{name}.weight", rows * cols), *bias]

    def _norm(self, name: str) -> list[Parameter]:
        if self.norm == "none":
            return []
        bias = [Parameter(f"{name}.bias", self.width)] if self.norm == "layer" else []
        return [Parameter(f"{name}.weight", self.width), *bias]

    def to_dict(self) -> dict[str, object]:
        return {
            "layers": self.layers, "width": self.width, "heads": self.heads, "kv_heads": self.kv_heads,
            "head_dim": self.head_dim, "mlp_width": self.mlp_width, "gated": self.gated,
            "activation": self.activation, "vocabulary": self.vocabulary, "tied": self.tied, "norm": self.norm,
            "positions": self.positions, "bias": self.bias,
        }  # fmt: skip
