"""All causal, masked and speech types of the installed transformers, built on the meta device: layers with attention,
key/value heads and parameters are what iosim reads of the same keys. Without transformers nothing is compared here."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.integrations.models import load_model
from iosim.studies.models.layers import Model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 1024,
    "num_hidden_layers": 7,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 4000,
    "intermediate_size": 1536,
}
WITHOUT = {
    "falcon_mamba",
    "mamba",
    "rwkv",
    "xlstm",
    "reformer",
    "fnet",
    "funnel",
    "mra",
    "nystromformer",
    "perceiver",
    "yoso",
}
"""Refused: no softmax attention, or an approximation of it."""
PARTS = {
    "blt",
    "dots3_note",
    "emu3",
    "fuyu",
    "gemma3",
    "gemma4",
    "gemma4_unified",
    "git",
    "got_ocr2",
    "llama4",
    "mllama",
    "modernvbert",
    "moshi",
    "moss_transcribe_diarize",
    "phi4_multimodal",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen4_exp",
    "ultravbert",
    "esm",
    "neomme",
}
"""Made of several parts, of which iosim reads the text; or with no default of their sizes."""
OFF = {
    "longcat_flash": "transformers gives 256 experts that compute nothing the first of two matrices; iosim counts the "
    "model's own 560 billion parameters",
    "roc_bert": "tables of shapes and of pronunciation beside that of words",
    "xmod": "adapters of languages",
}
"""Types whose parameters are more than 3 % off, and why."""
MODULES = {
    "hrm_text": "its 32 layers run four times",
    "trocr": "its layers attend twice, to an encoder's output too",
    "roberta-prelayernorm": "its modules are named as none",
}
"""Types whose number of attention modules is another than that of calls of attention, and why."""
ENOUGH = 125


@dataclass(frozen=True)
class Built:
    """What transformers makes of a type."""

    config: dict[str, Any]
    parameters: int
    modules: int
    kv_heads: frozenset[int]


def _attends(module: Any) -> bool:
    name = type(module).__name__
    return "Attention" in name and not any(
        word in name for word in ("Delta", "Lightning", "Residual", "Layer", "Pool")
    )


@cache
def built(auto: str, kind: str, small: bool = False) -> Built | None:
    """A type with its class's defaults, or small; None where transformers cannot build it so."""
    logging.disable()
    warnings.simplefilter("ignore")
    try:
        make = transformers.CONFIG_MAPPING[kind]
        known = {*make().to_dict(), *make.attribute_map}
        sizes = {key: value for key, value in SMALL.items() if key in known} if small else {}
        config = make(pad_token_id=0, **sizes) if small else make()
        with torch.device("meta"):
            model = getattr(transformers, auto).from_config(config)
    except Exception:  # a default of transformers that its own class refuses
        return None
    modules = [(name, module) for name, module in model.named_modules() if _attends(module)]
    outer = [
        m for name, m in modules if not any(name.startswith(f"{other}.") for other, _ in modules)
    ]
    heads = set()
    for module in outer:
        keys = getattr(module, "k_proj", None)
        columns = getattr(module, "head_dim", None)
        if hasattr(keys, "weight") and isinstance(columns, int) and columns:
            heads.add(keys.weight.shape[0] // columns)
    config_keys = {"model_type": kind, **sizes} if small else config.to_dict()
    numbers = sum(parameter.numel() for parameter in model.parameters())
    return Built(config_keys, numbers, len(outer), frozenset(heads))


def types(group: str) -> list[str]:
    """The model types of one of transformers' lists, those with an encoder and a decoder apart."""
    from transformers.models.auto import modeling_auto

    names = list(getattr(modeling_auto, f"MODEL_FOR_{group}_MAPPING_NAMES"))
    return [name for name in names if not _is_both(name)]


def _is_both(kind: str) -> bool:
    try:
        return bool(getattr(transformers.CONFIG_MAPPING[kind](), "is_encoder_decoder", False))
    except Exception:  # a class that has no defaults
        return False


def read(kind: str, group: str, auto: str, small: bool = False) -> tuple[Built, Model] | None:
    module = built(auto, kind, small)
    return None if module is None else (module, load_model({**module.config, "dtype": "bfloat16"}))


def off(module: Built, model: Model) -> float:
    """How far the parameters are off; 1 where they are not known."""
    return 1.0 if model.weight_bytes is None else model.weight_bytes / 2 / module.parameters - 1


def compared(small: bool = False) -> Iterator[tuple[str, Built, Model]]:
    for kind in types("CAUSAL_LM"):
        if kind in WITHOUT | PARTS:
            continue
        both = read(kind, "CAUSAL_LM", "AutoModelForCausalLM", small)
        if both is not None:
            yield kind, *both


@pytest.mark.slow
def test_parameters_of_all_causal_types_are_within_three_percent() -> None:
    shares = {kind: off(module, model) for kind, module, model in compared()}
    wrong = {kind: share for kind, share in shares.items() if abs(share) > 0.03}
    assert wrong.keys() <= OFF.keys(), wrong
    assert len(shares) - len(wrong) >= ENOUGH


def test_layers_and_heads_of_all_causal_types_are_those_of_their_modules() -> None:
    for kind, module, model in compared():
        attends = sum(kind.count for kind in model.kinds)
        if module.modules and kind not in MODULES and not kind.startswith("longcat"):
            assert attends == module.modules, kind
        heads = {kind.kv_heads for kind in model.kinds if kind.latent is None}
        if module.kv_heads and heads:
            assert heads == module.kv_heads, kind


# Types whose class refuses, or reads in another way, sizes that do not go together.
SMALL_OFF = {
    "deepseek_v4",
    "gemma4_unified_text",
    "helium",
    "hrm_text",
    "inkling2_text",
    "jetmoe",
    "big_bird",
    "gemma4_text",
    "falcon_h1",
    "olmo_hybrid",
    "bailing_hybrid",
    "bamba",
    "granitemoehybrid",
    "nemotron_h",
}


@pytest.mark.slow
def test_what_a_short_file_leaves_out_is_as_its_class_has_it() -> None:
    """Six keys of a config.json; all others are the class's defaults."""
    wrong = {}
    for kind in types("CAUSAL_LM"):
        if kind in WITHOUT | PARTS | SMALL_OFF | OFF.keys():
            continue
        try:
            both = read(kind, "CAUSAL_LM", "AutoModelForCausalLM", small=True)
        except InputError as error:
            wrong[kind] = str(error)
            continue
        if both is not None and abs(off(*both)) > 0.03:
            wrong[kind] = f"{off(*both):+.1%}"
    assert not wrong


@pytest.mark.parametrize(
    ("group", "auto"),
    [
        ("MASKED_LM", "AutoModelForMaskedLM"),
        ("CTC", "AutoModelForCTC"),
        ("AUDIO_CLASSIFICATION", "AutoModelForAudioClassification"),
        ("IMAGE_CLASSIFICATION", "AutoModelForImageClassification"),
    ],
)
def test_encoders_are_no_decoders(group: str, auto: str) -> None:
    """No mask and no cache; or refused, where their stages differ in width or they do not attend by softmax."""
    seen = 0
    for kind in types(group):
        module = None if kind in WITHOUT | PARTS else built(auto, kind)
        if module is None or "text_config" in module.config:
            continue
        try:
            model = load_model(
                {**module.config, "architectures": [f"X{auto.removeprefix('AutoModel')}"]}
            )
        except InputError:
            continue
        seen += 1
        assert not model.causal, kind
        assert model.cache_bytes(1, 1000, "bf16") == 0, kind
    assert seen >= 5


WITH_MORE = {"blip", "blip-2", "instructblip", "instructblipvideo", "git"}
"""Models with an image whose text is no module of its own, or has cross attention to the image."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "group", ["MASKED_LM", "CTC", "AUDIO_CLASSIFICATION", "IMAGE_CLASSIFICATION", ""]
)
def test_weights_of_what_is_no_decoder_are_right_or_not_told(group: str) -> None:
    """Within 5 % of the class's parameters; not known; or with what was not read in the first sentence."""
    from transformers.models.auto import modeling_auto as lists

    classes = getattr(lists, f"MODEL_FOR_{group}_MAPPING_NAMES" if group else "MODEL_MAPPING_NAMES")
    ends = {"MASKED_LM": "MaskedLM", "CTC": "CTC"}.get(group, group.title().replace("_", ""))
    auto = f"AutoModelFor{ends}" if group else "AutoModel"
    seen, wrong = 0, {}
    for kind in [kind for kind in classes if kind not in types("CAUSAL_LM") or group]:
        module = None if kind in WITHOUT or _is_both(kind) else built(auto, kind)
        if module is None or any(isinstance(value, dict) for value in _parts(module.config)):
            continue
        names = classes[kind] if isinstance(classes[kind], tuple) else (classes[kind],)
        try:
            model = load_model({**module.config, "dtype": "bfloat16", "architectures": [names[0]]})
        except InputError:
            continue
        seen += 1
        headed = model.causal and group == ""  # a base class has no head, which its decoder has
        if model.weight_bytes is None or "(" in model.title or headed:
            continue
        if abs(off(module, model)) > POOLED.get(kind, 0.05):
            wrong[kind] = f"{off(module, model):+.1%}"
    assert not wrong
    assert seen >= 5


POOLED = {"albert": 0.08}
"""Types whose base class has a pooler that is more than 5 % of all -> what that may be."""


def _parts(config: dict[str, Any]) -> list[Any]:
    return [value for key, value in config.items() if key.endswith("_config")]


@pytest.mark.slow
def test_texts_of_models_that_see_are_within_three_percent() -> None:
    """The text of every model with an image or a sound: its own module and the head."""
    from transformers.models.auto import modeling_auto as lists

    logging.disable()
    warnings.simplefilter("ignore")
    seen, wrong = 0, {}
    for kind in lists.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        try:
            config = transformers.CONFIG_MAPPING[kind]()
            with torch.device("meta"):
                module = transformers.AutoModelForImageTextToText.from_config(config)
            keys = json.loads(config.to_json_string(use_diff=False))
            model = load_model({**keys, "dtype": "bfloat16"})
        except Exception:  # what transformers or iosim refuses, or what needs another package
            continue
        parts = dict(module.named_modules())
        text = next((parts[name] for name in TEXTS if name in parts), None)
        if text is None or kind in WITH_MORE or "(" in model.title or model.weight_bytes is None:
            continue
        # Whether the head is the table is the text's to say: a whole model's class ties both by default, and does
        # not where the file of weights has both.
        head = parts.get("lm_head") if "lm_head" not in dict(text.named_children()) else None
        tied = head is None or model.weights is None or model.weights.tied
        head_numbers = 0 if tied else sum(p.numel() for p in head.parameters())
        numbers = sum(p.numel() for p in text.parameters()) + head_numbers
        seen += 1
        share = model.weight_bytes / 2 / numbers - 1
        if abs(share) > 0.03:
            wrong[kind] = f"{share:+.1%}"
    assert not wrong
    assert seen >= 45


TEXTS = ("model.language_model", "model.text_model", "language_model", "text_model")
"""Where a model that sees keeps its text."""
