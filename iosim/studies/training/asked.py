"""A model and a setup as they are asked for, on the command line and by keywords in Python alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iosim.base.errors import InputError
from iosim.base.units import sizes
from iosim.studies.training.model import Decoder
from iosim.studies.training.setup import Setup

AXES = {"width": "1k:4k:1k", "batch": "1:64:x2", "layers": "4:24:4"}
"""Rows of the map of what fits, where no list is given."""
SEQ_LENS = "2k:16k:2k"
"""Its columns, likewise."""
USUAL = {"layers": 12, "width": 768, "batch": 1, "seq_len": 1024}
"""Sizes where none are given: GPT-2 small."""
HEAD_DIM = 64
"""Columns of a head, where the number of heads is not given."""


def model_and_setup(asked: Mapping[str, Any]) -> tuple[Decoder, Setup]:
    """What is trained, and how.

    Args:
        asked: `layers`, `width`, `batch` and `seq_len` as numbers, texts such as "4k", or None for the usual; `heads`,
            `kv_heads`, `mlp_ratio` or `mlp_width`; the other fields of `Decoder` and `Setup`, `untied` for a head of
            its own, `linear_bias` and `accumulate_gradients`.

    Raises:
        InputError: several values where one is wanted, or values that make no sense.
    """
    layers, width, batch, tokens = (single(asked[name], name) for name in USUAL)
    mlp = asked["mlp_width"]
    if asked["mlp_ratio"] is not None:
        if mlp is not None:
            raise InputError(f"`mlp_ratio` {asked['mlp_ratio']} contradicts `mlp_width` {mlp}; give one of them")
        if not 0 <= asked["mlp_ratio"] <= 64:
            raise InputError(f"`mlp_ratio` {asked['mlp_ratio']} is out of range; accepted: 0 to 64")
        mlp = round(asked["mlp_ratio"] * width)
    model = Decoder(
        layers=layers, width=width, heads=asked["heads"] or max(1, width // HEAD_DIM), kv_heads=asked["kv_heads"],
        mlp_width=mlp, gated=asked["gated"], activation=asked["activation"], vocabulary=asked["vocabulary"],
        tied=not asked["untied"], norm=asked["norm"], positions=asked["positions"], bias=asked["linear_bias"],
    )  # fmt: skip
    setup = Setup(
        batch=batch, seq_len=tokens, attention=asked["attention"], causal=asked["causal"],
        precision=asked["precision"], optimizer=asked["optimizer"], step=asked["step"], recompute=asked["recompute"],
        backend=asked["backend"], accumulate=asked["accumulate_gradients"],
    )  # fmt: skip
    return model, setup


def single(value: Any, name: str) -> int:
    """One of the sizes.

    Raises:
        InputError: several, or none.
    """
    if value is None:
        return USUAL[name]
    values = several(value, name)
    if len(values) != 1:
        raise InputError(
            f"`{name}` {value} are {len(values)} values; accepted: one, or a list on an axis of `frontier`"
        )
    return values[0]


def several(value: Any, name: str) -> list[int]:
    """The numbers of a text such as "1k:4k:1k", of a list, or one."""
    if isinstance(value, str):
        return sizes(value, f"`{name}`")
    return list(value) if isinstance(value, list | tuple) else [value]
