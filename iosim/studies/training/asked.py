"""From a request to what is trained, and how: what it leaves open is the model's, or the usual."""

from __future__ import annotations

from typing import Any

from iosim.base.errors import InputError
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.problem.asked import lengths
from iosim.studies.requests import TrainRequest
from iosim.studies.training.frontier import AXES, SEQ_LENS
from iosim.studies.training.model import Decoder, Setup

HEAD_DIM = 64


def asked_for(request: TrainRequest, axis: str | None = None) -> tuple[Decoder, Setup]:
    """What is trained, and how: what the request leaves open is the model's, or the usual."""
    r, its = request, dict(request.of_model or {})
    on_axes = {} if axis is None else {axis: AXES[axis], "seq_len": SEQ_LENS}
    # In this order: the model's own words, then what was asked for, which takes their place.
    words = ("heads", "kv_heads", "activation", "vocabulary", "norm", "positions")
    chosen = {name: its[name] for name in words if its.get(name) is not None}
    chosen |= {name: value for name in words if (value := getattr(r, name)) is not None}
    for name in ("layers", "width", "batch", "seq_len"):
        values = several(r, name, on_axes.get(name, its.get(name)))
        if len(values) > 1 and name not in on_axes:
            accepted = "one, or a list on an axis of `frontier`"
            raise InputError(
                f"`{name}` {getattr(r, name)} are {len(values)} values; accepted: {accepted}"
            )
        chosen |= {name: values[0]} if values else {}
    width, mlp = chosen.setdefault("width", Decoder.width), r.mlp_width
    # The MLP's width: by ratio, by number, or the model's own as long as the width is its own.
    if r.mlp_ratio is not None:
        if mlp is not None:
            raise InputError(
                f"`mlp_ratio` {r.mlp_ratio:g} contradicts `mlp_width` {mlp}; give one of them"
            )
        mlp = round(r.mlp_ratio * width)
    elif mlp is None and r.width is None:
        mlp = its.get("mlp_width")
    chosen.setdefault("heads", max(1, width // HEAD_DIM))
    of_setup = {name: chosen.pop(name) for name in ("batch", "seq_len") if name in chosen}
    gated, untied = (getattr(r, name) or its.get(name, False) for name in ("gated", "untied"))
    bias = r.linear_bias and its.get("linear_bias", True)
    model = Decoder(**chosen, mlp_width=mlp, gated=gated, tied=not untied, bias=bias)
    setup = Setup(
        **of_setup,
        attention=r.attention,
        causal=r.causal and its.get("causal", True),
        precision=usual_precision(load_profile(r.gpu)) if r.precision is None else r.precision,
        optimizer=r.optimizer,
        step=r.step,
        recompute=r.recompute,
        backend=r.backend,
        accumulate=r.accumulate_gradients,
        master_weights=r.master_weights,
        lora_rank=r.lora_rank,
        lora_on=r.lora_on,
        data_parallel=r.data_parallel,
        zero=r.zero,
    )
    return model, setup


def usual_precision(profile: HardwareProfile) -> str:
    """Autocast's type where none is asked for: bf16, or fp16 on a GPU whose tensor cores do not take bf16."""
    return "amp-fp16" if profile.computes_in_fp32("bf16") else Setup.precision


def several(request: TrainRequest, name: str, default: Any) -> list[int]:
    requested = getattr(request, name)
    value = default if requested is None else requested
    return [] if value is None else lengths(value, name)
