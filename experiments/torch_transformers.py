"""Models of transformers whose traffic is predicted on meta tensors and counted on a GPU: a ViT, a BERT, and eight that
a seed draws from a pool. Untrained, bf16, of transformers' default sizes; the larger language models have six layers.
`experiments/torch_traffic.py` runs them as the set `transformers`, and eight others as `later`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

DTYPE = torch.bfloat16
CUT = {
    "num_hidden_layers": 6,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}


@dataclass(frozen=True)
class Case:
    """The task, how the configuration differs from transformers' defaults, and (sequences, tokens), or images."""

    task: str = "CausalLM"
    keys: dict[str, Any] = field(default_factory=dict)
    text: tuple[int, int] | None = (8, 1024)
    images: int = 0


ALWAYS = {
    "vit": Case("ImageClassification", text=None, images=64),
    "bert": Case("MaskedLM", text=(32, 512)),
}
POOL = {
    "gpt2": Case(),
    "opt": Case(),
    "gpt_neox": Case(
        keys={key: CUT[key] for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")}
        | {"intermediate_size": 4096}
    ),
    "llama": Case(keys=CUT),
    "qwen2": Case(keys=CUT),
    "qwen3": Case(keys=CUT | {"head_dim": 64}),
    "mistral": Case(keys=CUT),
    "gemma2": Case(keys=CUT | {"head_dim": 64}),
    "phi": Case(keys={**CUT, "num_key_value_heads": 16, "intermediate_size": 4096}),
    "olmo2": Case(keys=CUT),
    "mixtral": Case(keys=CUT | {"num_local_experts": 8, "intermediate_size": 1408}),
    "roberta": Case("MaskedLM", text=(32, 512)),
    "distilbert": Case("MaskedLM", text=(32, 512)),
    "electra": Case("MaskedLM", text=(32, 512)),
    "modernbert": Case("MaskedLM", text=(8, 1024)),
    "t5": Case("Seq2SeqLM", {"decoder_start_token_id": 0}, (16, 512)),
    "bart": Case("Seq2SeqLM", {"encoder_layers": 4, "decoder_layers": 4}, (16, 512)),
    "dinov2": Case("ImageClassification", text=None, images=64),
    "beit": Case("ImageClassification", text=None, images=64),
    "swin": Case("ImageClassification", text=None, images=64),
    "resnet": Case("ImageClassification", text=None, images=64),
    "clip": Case("", text=(64, 77), images=64),
    "siglip": Case("", text=(64, 64), images=64),
}
SEED, LATER_SEED, DRAWN = 2026, 1129, 8
CASES = ALWAYS | {name: POOL[name] for name in random.Random(SEED).sample(sorted(POOL), DRAWN)}
LATER = {
    name: POOL[name]
    for name in random.Random(LATER_SEED).sample(sorted(POOL.keys() - CASES.keys()), DRAWN)
}
"""Of those that were not drawn, drawn once more after rules had changed."""
PASSES = ("fwd", "fwd+bwd")


def call(name: str, passes: str, device: str) -> tuple[Callable[[], Any], Any]:
    """(one step, the model): its outputs without gradients as it is evaluated, or the gradients of its loss as it is
    trained, with dropout where the model has some."""
    import transformers

    case = (CASES | LATER)[name]
    torch.manual_seed(7)
    config = transformers.CONFIG_MAPPING[name](**case.keys)
    with torch.device(device):
        auto = getattr(transformers, f"AutoModel{'For' if case.task else ''}{case.task}")
        model = auto.from_config(config, dtype=DTYPE).to(device)
        inputs: dict[str, torch.Tensor] = {}
        if case.text:
            inputs["input_ids"] = torch.randint(10, 1000, case.text)
            if case.task:
                inputs["labels"] = inputs["input_ids"]
        if case.images:
            inputs["pixel_values"] = torch.randn(case.images, 3, 224, 224, dtype=DTYPE)
        classes = torch.randint(2, (case.images,)) if case.task and case.images else None
    model.train(passes != "fwd")

    def forward() -> Any:
        with torch.no_grad():
            return model(**inputs)

    def both() -> torch.Tensor:
        out = model(**inputs)
        if classes is not None:
            loss = torch.nn.functional.cross_entropy(out.logits, classes)
        else:
            loss = out.loss if case.task else out.logits_per_image.float().sum()
        loss.backward()
        return loss.detach()

    return (forward if passes == "fwd" else both), model
