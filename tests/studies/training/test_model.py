"""States of the optimizer, and what ZeRO shares out, beside the papers' numbers."""

from __future__ import annotations

import pytest
from small_steps import SMALL

from iosim.studies.training import (
    Decoder,
    Setup,
    plan,
    shares,
)
from iosim.studies.training.model import Parameter, optimizer


@pytest.mark.parametrize(
    ("name", "step", "a_parameter", "temporary"),
    [
        ("none", "foreach", 0, 0),
        ("sgd", "foreach", 0, 0),
        ("momentum", "foreach", 4, 0),
        ("adam", "foreach", 8, 4),
        ("adamw", "foreach", 8, 4),
    ],
)
def test_optimizer_bytes_a_parameter(
    name: str, step: str, a_parameter: int, temporary: int
) -> None:
    parameters = plan(SMALL, Setup(seq_len=64)).parameters
    elements = sum(p.elements for p in parameters)
    rule = optimizer(name, step)
    assert rule.state_bytes(parameters, 4) == a_parameter * elements
    assert rule.step_bytes(parameters, 4) == temporary * elements


def test_bytes_of_a_step_by_how_it_runs() -> None:
    """Adam's temporaries: two of the largest tensor where tensors take turns, one of all where they go in lists."""
    bare = Decoder(layers=1, width=64, heads=1, vocabulary=0, mlp_width=0, norm="none", bias=False)
    parameters = plan(bare, Setup(seq_len=8)).parameters  # of 64 x 192 and 64 x 64 numbers
    step_bytes = [
        optimizer("adam", s).step_bytes(parameters, 4) for s in ("loop", "foreach", "fused")
    ]
    assert step_bytes == [2 * 4 * 12_288, 4 * (12_288 + 4096), 0]
    counters = [optimizer("adam", s).state_bytes(parameters, 4) for s in ("loop", "fused")]
    assert counters == [2 * 4 * (12_288 + 4096), 2 * 4 * (12_288 + 4096) + 2 * 4]
    assert optimizer("adam", "loop").step_bytes([], 4) == 0


def test_eight_bit_adam() -> None:
    bare = Decoder(layers=1, width=64, heads=1, vocabulary=0, mlp_width=0, norm="none", bias=False)
    parameters = plan(bare, Setup(seq_len=8)).parameters
    assert [p.elements for p in parameters] == [64 * 192, 64 * 64]
    # one byte a state and element, an fp32 scale a block of 2,048; two tables of 256 fp32 values
    assert (
        optimizer("adam8bit").state_bytes(parameters, 4)
        == 2 * (12288 + 6 * 4) + 2 * (4096 + 2 * 4) + 2048
    )


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_states_of_the_paper_on_zero(stage: int, gigabytes: float) -> None:
    """arXiv 1910.02054, figure 1: 7.5 G parameters, 64 GPUs, Adam with 12 bytes of fp32 states a parameter beside two
    of parameters and two of gradients."""
    weights = (Parameter("w", 7_500_000_000),)
    setup = Setup(
        precision="fp16",
        optimizer="adam",
        step="fused",
        master_weights=True,
        data_parallel=64,
        zero=stage,
    )
    states = setup.rule.state_bytes(shares.shares(setup, weights), setup.state_bytes)
    total = states + shares.master_bytes(setup, weights)
    for needed in (shares.GRADIENTS, shares.PARAMETERS):
        total += 2 * shares.shared(setup, 7_500_000_000, needed)
    assert round(total / 1e9, 1) == gigabytes
