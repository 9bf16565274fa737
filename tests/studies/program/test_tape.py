"""`iosim model` beside TrafficMode: the same operators of a model in plain PyTorch, part by part, and the products that
transformers runs."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from effort import quick_first
from scripts import ROOT

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

import iosim  # noqa: E402
from iosim.studies.models.whole import WholeRun  # noqa: E402
from iosim.studies.program.result import OperatorTraffic  # noqa: E402
from iosim.torch import TrafficMode  # noqa: E402

sys.path.insert(0, str(ROOT / "experiments"))
from torch_models import Llama, turned  # noqa: E402

VOCABULARY, WIDTH, HEADS, KV_HEADS, INNER = 8192, 1024, 16, 4, 2816
SIZES: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": INNER,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
BATCH = 2
OF_MODULES = {
    "embed": "embedding",
    "q": "projections",
    "k": "projections",
    "v": "projections",
    "o": "projections",
    "norm": "norms",
    "norm_1": "norms",
    "norm_2": "norms",
    "gate": "MLP",
    "up": "MLP",
    "down": "MLP",
    "head": "head",
}
"""The last word of a module's path -> the part of the model."""


def part(row: OperatorTraffic) -> str:
    """The part of a model that a recorded operator is of."""
    last = row.module[-1] if row.module else ""
    if row.operator == "add" and row.phase == "forward" and last.isdecimal():
        return "residual"
    if last == "attn":
        return "attention" if row.is_attention else "positions"
    return OF_MODULES.get(last, "loss" if not row.module else "MLP")


def recorded(layers: int, tokens: int, trained: bool) -> TrafficMode:
    """A Llama in plain PyTorch on the meta device."""
    torch.set_default_device("meta")
    try:
        model = Llama(VOCABULARY, WIDTH, HEADS, KV_HEADS, INNER, layers, tokens, "meta").to(
            torch.bfloat16
        )
        x = torch.zeros(BATCH, tokens, dtype=torch.long)
        with TrafficMode("h100") as t:
            if trained:
                functional.cross_entropy(model(x).view(-1, VOCABULARY), x.view(-1)).backward()
            else:
                with torch.no_grad():
                    model.head.register_forward_pre_hook(lambda _, inputs: (inputs[0][:, -1:],))
                    model(x)
    finally:
        torch.set_default_device(None)
    return t


def predicted(layers: int, tokens: int, trained: bool, kernel: str) -> WholeRun:
    result = iosim.model(
        SIZES | {"num_hidden_layers": layers},
        gpu="h100",
        kernel=kernel,
        batch=BATCH,
        seq_len=tokens,
        **({"training": True} if trained else {"context": 0}),
    )
    return result.runs[0]


@pytest.mark.parametrize(
    ("layers", "tokens", "trained"),
    quick_first([(2, 512, True), (2, 512, False), (6, 1024, False), (4, 1024, True)], 1),
)
def test_parts_are_what_traffic_mode_counts(layers: int, tokens: int, trained: bool) -> None:
    """Operations, inputs and outputs, and bytes at L2 are equal; at HBM what hangs on where tensors lie differs."""
    theirs = recorded(layers, tokens, trained).result
    (kernel,) = {row.kernel for row in theirs.attention.rows}
    ours = predicted(layers, tokens, trained, kernel)
    mine = {name: rows for name, rows in ours.parts.items() if name != "optimizer"}
    by_part: dict[str, list[OperatorTraffic]] = {name: [] for name in mine}
    for row in theirs.rows:
        if row.operator != "ones_like":  # the loss's own gradient
            by_part[part(row)].append(row)
    whole = theirs.hbm.total
    for name, rows in mine.items():

        def sums(
            field: str, rows: list[OperatorTraffic] = rows, name: str = name
        ) -> tuple[int, int]:
            return sum(getattr(r, field) for r in rows), sum(
                getattr(r, field) for r in by_part[name]
            )

        for field in ("flops", "l2_read", "l2_write", "compulsory", "launches"):
            assert len({*sums(field)}) == 1, (name, field, sums(field))
        for field in ("hbm_read", "hbm_write"):
            got, want = sums(field)
            assert got == pytest.approx(want, rel=0.03, abs=0.03 * whole), (name, field)
        got, want = sums("time_s")
        assert got == pytest.approx(want, rel=0.02, abs=0.003 * theirs.time_s), name
    assert sum(r.hbm for rows in mine.values() for r in rows) == pytest.approx(whole, rel=0.03)


def test_the_optimizers_step_is_fused_adamws() -> None:
    """A launch for each group of parameters that are alike, as many bytes as PyTorch's one."""
    whole = predicted(3, 64, True, "fa2")
    numbers = (
        3 * (WIDTH * (2 * WIDTH + 2 * KV_HEADS * 64 + 3 * INNER) + 2 * WIDTH)
        + (2 * VOCABULARY + 1) * WIDTH
    )
    assert (
        sum(row.compulsory for row in whole.parts["optimizer"]) == 4 * 2 * numbers
    )  # each is an input, three are outputs


def test_turned_halves_are_the_experiments() -> None:
    """Positions are written out as the measured Llama's, whose half of the columns is turned."""
    assert turned(torch.arange(4.0)).tolist() == [-2.0, -3.0, 0.0, 1.0]
    run = predicted(1, 128, False, "fa2")
    assert [row.operator for row in run.parts["positions"]] == 2 * [
        "mul",
        "neg",
        "cat",
        "mul",
        "add",
    ]


SMALL = {"hidden_size": 512, "num_hidden_layers": 3, "vocab_size": 4096, "num_attention_heads": 8}
GROUPED = SMALL | {"intermediate_size": 1024, "num_key_value_heads": 2, "head_dim": 64}
LATENT = {
    "q_lora_rank": 256,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}
ROUTED = {"num_experts_per_tok": 4, "moe_intermediate_size": 256}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen3": GROUPED,
    "gpt2": {
        "n_embd": 512,
        "n_head": 8,
        "n_layer": 3,
        "vocab_size": 4096,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "mixtral": GROUPED | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_moe": GROUPED | ROUTED | {"num_experts": 16},
    "deepseek_v2": SMALL
    | LATENT
    | ROUTED
    | {
        "intermediate_size": 1024,
        "n_routed_experts": 16,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
    "deepseek_v3": SMALL
    | LATENT
    | ROUTED
    | {
        "intermediate_size": 1024,
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_products_are_those_of_transformers(family: str) -> None:
    """Grouped heads, norms of heads, experts, MLA: not an operation more or less, attention among them."""
    transformers = pytest.importorskip("transformers")
    keys = FAMILIES[family]
    config = transformers.CONFIG_MAPPING[family](**keys)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        tokens = torch.zeros(BATCH, 512, dtype=torch.long)
    with torch.no_grad(), TrafficMode("h100") as t:
        model(tokens, logits_to_keep=1, use_cache=False)
    (run,) = iosim.model(
        keys | {"model_type": family, "torch_dtype": "bfloat16"},
        gpu="h100",
        kernel="fa2",
        batch=BATCH,
        seq_len=512,
        context=0,
    )
    assert run.traffic.flops == t.result.flops
    assert run.traffic.attention.flops == t.result.attention.flops
