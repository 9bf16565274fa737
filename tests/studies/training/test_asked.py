"""What a request for training leaves open is the model's, or the usual."""

from __future__ import annotations

from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.hardware.profile import load_profile
from iosim.studies.requests import TrainRequest
from iosim.studies.training.asked import asked_for, usual_precision
from iosim.studies.training.model import Decoder, Setup

MODEL = {
    "heads": 10,
    "kv_heads": 5,
    "width": 640,
    "layers": 7,
    "mlp_width": 1000,
    "gated": True,
    "vocabulary": 99,
    "linear_bias": False,
    "causal": False,
}


def request(gpu: str = "a100", **options: Any) -> TrainRequest:
    return TrainRequest(gpu=gpu, **options)


def decoder(**options: Any) -> Decoder:
    return asked_for(request(**options))[0]


def setup(**options: Any) -> Setup:
    return asked_for(request(**options))[1]


def test_nothing_said_is_the_usual() -> None:
    model = decoder()
    assert (model.width, model.heads) == (Decoder.width, Decoder.width // 64)
    assert (model.tied, model.gated, model.mlp_width) == (
        Decoder().tied,
        False,
        decoder().mlp_width,
    )
    assert decoder(width=640).heads == 10
    assert decoder(width=63).heads == 1
    assert decoder(width=640, heads=5).heads == 5


def test_a_models_own_words_give_way_to_what_is_asked_for() -> None:
    model = decoder(of_model=MODEL)
    assert (model.heads, model.kv_heads, model.width, model.layers) == (10, 5, 640, 7)
    assert (model.mlp_width, model.gated, model.vocabulary, model.bias) == (1000, True, 99, False)
    other = decoder(of_model=MODEL, layers=3, heads=20, vocabulary=50)
    assert (other.layers, other.heads, other.kv_heads, other.vocabulary) == (3, 20, 5, 50)
    assert setup(of_model=MODEL).causal is False
    assert setup().causal is True


def test_the_width_of_an_mlp() -> None:
    assert decoder(of_model=MODEL, mlp_width=77).mlp_width == 77
    assert decoder(of_model=MODEL, mlp_ratio=2.5).mlp_width == 1600
    assert decoder(mlp_ratio=0.501, width=640).mlp_width == 321  # 320.64
    assert (
        decoder(of_model=MODEL, width=1280, heads=10).mlp_width != 1000
    )  # the model's is of its own width
    with pytest.raises(InputError, match=r"2\.5.* 77"):
        decoder(mlp_ratio=2.5, mlp_width=77)


def test_one_value_each_but_on_an_axis() -> None:
    assert setup(seq_len="2k", batch=3).seq_len == 2048
    assert setup(batch=3).batch == 3
    with pytest.raises(InputError, match="2 values"):
        setup(seq_len="2k,4k")
    assert asked_for(request(), "batch")[1].batch >= 1


def test_the_precision_follows_the_gpu() -> None:
    assert usual_precision(load_profile("t4")) == "amp-fp16"
    assert usual_precision(load_profile("a100")) == Setup.precision
    assert setup(gpu="t4").precision == "amp-fp16"
    assert setup(gpu="t4", precision="fp32").precision == "fp32"
