"""Whether a config's tokens see later ones, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from iosim.integrations.models.causal import is_causal, is_encoder_type
from iosim.integrations.models.reading import Reading


@pytest.mark.parametrize(
    ("config", "causal"),
    [
        ({"model_type": "llama"}, True),
        ({"model_type": "llama", "is_causal": False}, False),
        ({"model_type": "llama", "causal": False}, False),
        ({"model_type": "llama", "is_causal": True}, True),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, False),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": "all"}, False),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": "vision"}, True),
        ({"model_type": "bert"}, False),
        ({"model_type": "bert", "is_decoder": True}, True),
        ({"model_type": "bert", "is_decoder": True, "is_causal": False}, False),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, False),
        # no type: kinds of tokens are encoders' alone
        ({"vocab_size": 30522, "type_vocab_size": 2}, False),
        ({"vocab_size": 30522, "type_vocab_size": 0}, True),
        ({"model_type": "mine", "vocab_size": 30522, "type_vocab_size": 2}, True),
        # by the class that it is built for
        ({"model_type": "mine", "architectures": ["MineForMaskedLM"]}, False),
        ({"model_type": "mine", "architectures": ["MineForImageClassification"], "vocab_size": 9}, False),
        ({"model_type": "mine", "architectures": ["MyBidirectionalThing"], "vocab_size": 9}, False),
        ({"model_type": "mine", "architectures": ["MyBiModel"], "vocab_size": 9}, False),
        ({"model_type": "mine", "architectures": ["MineForCausalLM"], "patch_size": 16}, True),
        ({"model_type": "mine", "architectures": ["Mine"], "patch_size": 16}, False),
        ({"model_type": "mine", "architectures": "MineForMaskedLM"}, True),  # no list
        # what sees or hears, and has no vocabulary
        ({"model_type": "mine", "image_size": 224}, False),
        ({"model_type": "mine", "num_mel_bins": 80}, False),
        ({"model_type": "mine", "num_mel_bins": 80, "vocab_size": 100}, True),
        ({"model_type": "mine", "num_mel_bins": 80, "padded_vocab_size": 100}, True),
        ({"model_type": "mine"}, True),
    ],
)  # fmt: skip
def test_who_sees_later_tokens(config: dict[str, Any], causal: bool) -> None:
    assert is_causal(Reading(config, "mine")) is causal


def test_types_of_encoders() -> None:
    assert is_encoder_type(Reading({"model_type": "bert"}, "x"))
    assert not is_encoder_type(Reading({"model_type": "llama"}, "x"))
    assert not is_encoder_type(Reading({}, "x"))
