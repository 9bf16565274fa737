"""Numbers in the matrices of layers that mix tokens without softmax attention, by hand, and the states they keep."""

from __future__ import annotations

from typing import Any

import pytest

from iosim.integrations.models.mixers import OTHERS, pure_state, state_numbers, state_of
from iosim.integrations.models.reading import Reading
from iosim.studies.models.layers import LayerKind

WIDTH = 64


def read(**config: Any) -> Reading:
    return Reading(config, "mine")


def state(kernel: str, head_dim: int = 4) -> LayerKind:
    """Six heads of values of 8 columns, two of keys: 48 columns of values, 8 of keys."""
    return LayerKind("linear", 1, 6, 2, head_dim, 8, state_kernel=kernel)


@pytest.mark.parametrize(
    ("kernel", "config", "numbers"),
    [
        # into x, z (48 each), B, C (8 each) and 6 steps of time; out of 48; a convolution of 4 over x, B and C
        ("ssd", {}, 64 * (2 * 48 + 2 * 8 + 6) + 64 * 48 + 4 * (48 + 2 * 8)),
        ("ssd", {"conv_kernel": 3}, 64 * (2 * 48 + 2 * 8 + 6) + 64 * 48 + 3 * (48 + 2 * 8)),
        # q, k, v, the gate, out, and two numbers a head
        ("gdn", {}, 64 * (2 * 8 + 3 * 48 + 2 * 6) + 4 * (2 * 8 + 48)),
        ("gdn", {"linear_conv_kernel_dim": 2}, 64 * (2 * 8 + 3 * 48 + 2 * 6) + 2 * (2 * 8 + 48)),
        # q, k, v, out, a number a head; two gates, each through as few columns as a head has
        ("kda", {}, 64 * (2 * 8 + 2 * 48 + 6) + 2 * 4 * (64 + 48) + 4 * (2 * 8 + 48)),
        ("kda", {"model_type": "bailing_hybrid"}, 64 * (2 * 8 + 2 * 48 + 6) + 2 * 64 * 48 + 4 * (2 * 8 + 48)),
    ],
)  # fmt: skip
def test_numbers_of_layers_that_keep_a_state(
    kernel: str, config: dict[str, Any], numbers: int
) -> None:
    assert state_numbers(read(**config), state(kernel), WIDTH) == numbers


@pytest.mark.parametrize(
    ("mixer", "config", "numbers"),
    [
        # inner 128, state 16, rank 64 / 16 = 4: in twice, out; x to (rank, B, C), rank to x, A and the convolution
        ("mamba", {"expand": 2}, 3 * 64 * 128 + 128 * (4 + 32) + 4 * 128 + 128 * (16 + 4)),
        ("mamba", {"mamba_expand": 1.26, "mamba_d_state": 8, "mamba_dt_rank": 5, "n_mamba_heads": 3},
         3 * 64 * 81 + 81 * (5 + 16) + 5 * 81 // 3 + 81 * (8 + 4)),  # 1.26 x 64 = 80.64
        ("mamba", {}, None),
        ("conv", {}, 4 * 64 * 64 + 3 * 64),
        ("conv", {"conv_L_cache": 5}, 4 * 64 * 64 + 5 * 64),
        ("recurrent", {"num_attention_heads": 4, "lru_width": 80}, 3 * 64 * 80 + 2 * 80 * 80 // 4),
        ("recurrent", {}, 3 * 64 * 64 + 2 * 64 * 64),
        ("lightning", {"num_attention_heads": 3, "head_dim": 16}, 5 * 64 * 48),
        ("lightning", {"num_attention_heads": 3}, 5 * 64 * 3 * 21),  # 64 // 3 columns a head
    ],
)  # fmt: skip
def test_numbers_of_layers_that_are_not_modelled(
    mixer: str, config: dict[str, Any], numbers: int | None
) -> None:
    assert OTHERS[mixer](read(**config), WIDTH) == numbers


def test_states_of_whole_models() -> None:
    gdn = {"model_type": "gated_deltanet", "num_heads": 6, "head_dim": 16}
    kinds = [
        pure_state(read(**config))
        for config in (
            gdn,
            gdn | {"expand_v": 1.5, "num_v_heads": 12},
            gdn | {"model_type": "kda"},
            gdn | {"num_v_heads": 7},  # no whole number of values a key
            {"model_type": "llama", "num_heads": 6, "head_dim": 16},
        )
    ]
    states = [k and (k.heads, k.kv_heads, k.head_dim, k.head_dim_v, k.state_kernel) for k in kinds]
    assert states == [
        (6, 6, 16, 32, "gdn"),
        (12, 6, 16, 24, "gdn"),
        (6, 6, 16, 16, "kda"),
        None,
        None,
    ]


def test_a_mamba_layer_with_a_rank_keeps_no_state_that_is_modelled() -> None:
    sizes = {
        "mamba_n_heads": 8,
        "mamba_n_groups": 2,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "hidden_size": 64,
    }
    state_kept = state_of(read(**sizes, mamba_d_head="auto"), "mamba")
    assert state_kept is not None
    assert (state_kept.heads, state_kept.kv_heads, state_kept.head_dim, state_kept.head_dim_v) == (
        8,
        2,
        16,
        2 * 64 // 8,
    )
    assert state_of(read(**sizes, mamba_d_head="auto", mamba_dt_rank=4), "mamba") is None
    assert state_of(read(**sizes | {"mamba_n_groups": 3}, mamba_d_head=16), "mamba") is None
    assert state_of(read(**sizes), "no such mixer") is None
