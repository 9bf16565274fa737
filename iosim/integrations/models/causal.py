"""Reads whether a config's tokens see later ones: by its own keys, by what it is built for, and by its class."""

from __future__ import annotations

import re
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
GUESSING = ("MaskedLM", "ForPreTraining")
"""Ends of classes of encoders that score words."""
SCORING = ("Classification", "QuestionAnswering", "RewardModel", "ForReward", "ForScore")
"""Ends of classes that give a number or a class in place of words."""
IMAGES = ("vision",)
"""Values of `use_bidirectional_attention` that hold for an image's tokens alone."""
SEEING = ("image_size", "patch_size", "num_mel_bins", "feat_extract_norm", "in_channels")
"""Keys of what sees or hears; without a vocabulary, it writes nothing."""


def is_causal(read: Reading) -> bool:
    """True where no token sees a later one."""
    config = read.config
    both_ways = read.get("use_bidirectional_attention")
    if both_ways not in IMAGES and (both_ways == "all" or read.flag("use_bidirectional_attention")):
        return False
    if any(config.get(key) is not None and not read.flag(key) for key in ("is_causal", "causal")):
        return False
    if read.flag("is_decoder"):
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


def headless(read: Reading) -> str | None:
    """The class of a decoder that writes no tokens, such as a reward model's or one of embeddings; None where its
    class has a head, or none is said."""
    built = _built(read.config.get("architectures"))
    # A class of scores, or the bare one of its type: MistralModel.
    known = read.said_type in class_defaults()["types"]
    bare = f"{letters(read.said_type)}model" if known else ""
    without = [name for name in built if name.endswith(SCORING) or letters(name) == bare]
    return built[0] if built and len(without) == len(built) else None


def is_crossed(read: Reading) -> bool:
    """True where a decoder's layers attend to the output of an encoder, too, by four matrices more."""
    return "crossed" in read.facts or read.flag("add_cross_attention")


def has_head(read: Reading) -> bool:
    """True where a model has a matrix or a table that scores its words."""
    if "tower" in read.facts:
        return False
    if is_causal(read):
        return headless(read) is None
    built = _built(read.config.get("architectures"))
    guesses = not built or any(name.endswith((*GUESSING, *DECODING)) for name in built)
    # Encoders score words by their table, but for those that say otherwise.
    return guesses and ("untied" in read.facts or read.get("tie_word_embeddings") is not None)


def is_encoder_type(read: Reading) -> bool:
    """True where a type's tokens see all others."""
    known = (*class_defaults()["encoders"], *FAMILIES["remote"]["encoders"])
    return read.type in known or read.said_type in known


def letters(name: str) -> str:
    """Small letters and digits of a name."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _built(names: Any) -> list[str]:
    return [str(name) for name in names] if isinstance(names, list) else []
