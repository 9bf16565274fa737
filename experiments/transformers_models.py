"""Seven models of transformers, counted on an H200 and an H100: HBM and SM<->L2 bytes beside what TrafficMode says.

    python experiments/transformers_models.py [MODEL ...]

Random weights, bf16; forward under no_grad, or forward and backward of the mean of the logits as fp32, one range of
Nsight Compute's each from a flushed L2 (measurements/transformers_models.csv). Sizes that nobody wrote down, such as
vocabularies of 32,000, are those with which the bytes between SMs and L2 agree. transformers 5.17.0, PyTorch 2.11
there: later versions run other operators in Mixtral's experts.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from iosim.torch import TrafficMode

DTYPE = torch.bfloat16
CUDNN = "9.19.0"
COUNTED = Path(__file__).resolve().parent / "measurements" / "transformers_models.csv"
QUANTITIES = ("hbm_read", "hbm_write", "l2_read", "l2_write")
TOKENS = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 3,
    "sep_token_id": 4,
}
WHISPER = {
    "encoder_layers": 4,
    "decoder_layers": 4,
    "d_model": 512,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
}
GEMMA = {
    "num_hidden_layers": 6,
    "hidden_size": 1152,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "intermediate_size": 6912,
    "vocab_size": 32000,
}
MIXTRAL = {
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
    "intermediate_size": 1408,
}
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        WHISPER,
        {"input_features": (8, 80, 3000), "decoder_input_ids": (8, 200)},
    ),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 32000, "n_layer": 4, "hidden_size": 1024, "n_head": 16},
        {"input_ids": (4, 1024)},
    ),
    "segformer": (
        "SegformerForImageClassification",
        "SegformerConfig",
        {},
        {"pixel_values": (8, 3, 512, 512)},
    ),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", GEMMA, {"input_ids": (2, 4096)}),
    "swin": ("SwinForImageClassification", "SwinConfig", {}, {"pixel_values": (32, 3, 224, 224)}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", MIXTRAL, {"input_ids": (2, 2048)}),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {"num_hidden_layers": 6, "vocab_size": 32000, **TOKENS},
        {"input_ids": (8, 1024)},
    ),
}
"""Name -> the class, its configuration and what differs from its defaults, and the shapes of what it is given."""


def traffic(name: str, passes: str, gpu: str) -> TrafficMode:
    """A step of a model on the meta device."""
    kind, configuration, keys, shapes = MODELS[name]
    config = getattr(transformers, configuration)(**keys)
    with torch.device("meta"):
        model = getattr(transformers, kind)._from_config(config, dtype=DTYPE)
        inputs = {
            key: torch.zeros(shape, dtype=torch.long if "ids" in key else DTYPE)
            for key, shape in shapes.items()
        }
        model.train(passes != "fwd")
        with TrafficMode(gpu, cudnn=CUDNN) as mode:
            if passes == "fwd":
                with torch.no_grad():
                    model(**inputs)
            else:
                model(**inputs).logits.float().mean().backward()
    return mode


def main() -> None:
    print(f"{'model':<11} {'pass':<8}" + "".join(f"{name:>20}" for name in QUANTITIES))
    for row in csv.DictReader(COUNTED.open(encoding="utf-8")):
        if sys.argv[1:] and row["model"] not in sys.argv[1:]:
            continue
        mode = traffic(row["model"], row["pass"], row["gpu"])
        predicted = (mode.hbm.read, mode.hbm.write, mode.l2.read, mode.l2.write)
        cells = (
            f"{int(row[name]) / 1e6:>10,.0f} MB {value / int(row[name]) - 1:+6.1%}"
            for name, value in zip(QUANTITIES, predicted, strict=True)
        )
        print(f"{row['model']:<11} {row['pass']:<8}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
