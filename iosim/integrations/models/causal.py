"""Reads whether a config's tokens see later ones: by its own keys, by what it is built for, and by its class."""

from __future__ import annotations

from typing import Any

from iosim.integrations.models.reading import FAMILIES, Reading, class_defaults

ENCODING = (
    "MaskedLM",
    "ImageClassification",
    "ForCTC",
    "AudioClassification",
    "VisionModel",
    "MaskedImageModeling",
    "EncoderModel",
)
"""Ends of the names of classes whose tokens see all others."""
DECODING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
SEEING = ("image_size", "patch_size", "num_mel_bins", "feat_extract_norm", "in_channels")
"""Keys of what sees or hears; without a vocabulary, it writes nothing."""


def is_causal(read: Reading) -> bool:
    """True where no token sees a later one."""
    config = read.config
    both_ways = read.get("use_bidirectional_attention")
    if (
        both_ways is True
        or both_ways == "all"
        or config.get("is_causal") is False
        or config.get("causal") is False
    ):
        return False
    if config.get("is_decoder") is True:
        return True
    built = _built(config.get("architectures"))
    if is_encoder_type(read):
        return False
    # The encoder of a type with both, saved alone (a T5's, Chronos 2's); a decoder alone says that it is one.
    alone = read.type in class_defaults()["both"] and config.get("is_encoder_decoder") is False
    if alone and not any(name.endswith(DECODING) for name in built):
        return False
    # The first BERTs' files have no type; kinds of tokens are encoders' alone.
    if not read.said_type and config.get("type_vocab_size"):
        return False
    if any(
        name.endswith(ENCODING) or "Bidirectional" in name or "BiModel" in name for name in built
    ):
        return False
    if read.type in class_defaults()["types"] or any(name.endswith(DECODING) for name in built):
        return True
    return bool(read.get("vocab_size", "padded_vocab_size")) or not any(
        key in config for key in SEEING
    )


def is_encoder_type(read: Reading) -> bool:
    """True where a type's tokens see all others."""
    known = (*class_defaults()["encoders"], *FAMILIES["remote"]["encoders"])
    return read.type in known or read.said_type in known


def _built(names: Any) -> list[str]:
    return [str(name) for name in names] if isinstance(names, list) else []
