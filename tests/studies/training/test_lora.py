"""What LoRA trains and keeps."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from small_steps import saved_bytes

from iosim.base.errors import InputError
from iosim.studies.training import (
    Decoder,
    Setup,
    plan,
)


@pytest.mark.parametrize(
    ("layers", "width", "rank", "on", "printed"),
    [
        (96, 12288, 8, "q,v", "37.7"),
        (96, 12288, 1, "q,v", "4.7"),
        (96, 12288, 8, "q", "18.9"),
        (96, 12288, 2, "q,k,v,out", "18.9"),
        (12, 768, 8, "q,v", "0.3"),
        (24, 1024, 8, "q,v", "0.8"),
    ],
)
def test_trained_numbers_of_the_paper_on_lora(
    layers: int, width: int, rank: int, on: str, printed: str
) -> None:
    """arXiv 2106.09685, tables 2, 4 and 5: GPT-3 175B (18 M there, cut off), RoBERTa base and large; M parameters."""
    model = Decoder(layers=1, width=width, heads=width // 64, vocabulary=0)
    graph = plan(model, Setup(seq_len=8, precision="bf16", lora_rank=rank, lora_on=on))
    assert f"{layers * graph.trained_elements / 1e6:.1f}" == printed


def test_what_lora_keeps_by_hand() -> None:
    """bf16, 256 tokens of width 128, one layer fed with hidden states, rank 8 on v alone; u is one N x d tensor."""
    model = Decoder(layers=1, width=128, heads=4, vocabulary=0)
    setup = Setup(seq_len=256, precision="bf16", lora_rank=8, lora_on="v")
    u, row = 256 * 128 * 2, 256 * 4
    by_hand = (
        u
        + 256 * 8 * 2  # the norm's output for A, A's for B
        + 4 * u
        + 4 * row
        + 16  # q, k, v and the output, log-sum-exp, seed and offset
        + u
        + 2 * row  # second norm's input and statistics
        + 4 * u  # before gelu
    )
    assert saved_bytes(plan(model, setup)) == by_hand


@pytest.mark.parametrize(
    ("gated", "mlp_width", "on", "accepted"),
    [
        (True, 512, "gate,up,down", None),
        (False, 512, "up,down", None),
        (False, 512, "gate", "q, k, v, out, up, down"),
        (False, 0, "up", "q, k, v, out"),  # attention alone
        (False, 0, "down", "q, k, v, out"),
        (True, 0, "gate", "q, k, v, out"),
        (False, 0, "q,out", None),
    ],
)
def test_matrices_that_a_model_lacks_take_no_adapter(
    gated: bool, mlp_width: int, on: str, accepted: str | None
) -> None:
    model = Decoder(layers=1, width=128, heads=4, vocabulary=0, gated=gated, mlp_width=mlp_width)
    setup = Setup(seq_len=256, precision="bf16", lora_rank=8, lora_on=on)
    with (
        nullcontext()
        if accepted is None
        else pytest.raises(InputError, match=f"no such matrix; accepted: {accepted}$")
    ):
        setup.check(model)
