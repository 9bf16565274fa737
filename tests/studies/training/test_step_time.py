"""Products of a step of training."""

from __future__ import annotations

import pytest
from small_steps import SMALL

from iosim.studies.training import (
    Setup,
    plan,
)
from iosim.studies.training.step_time import Rates, _seconds


def test_products_of_the_backward() -> None:
    """One for each operand that gets a gradient: two of a trained matrix, one of a frozen one."""
    rates = Rates(1e12, 1e18, 0.0)
    for rank, products in ((0, 2), (8, 1)):
        graph = plan(SMALL, Setup(seq_len=256, precision="bf16", lora_rank=rank))
        (node,) = (n for n in graph.nodes if n.name == "layer1.out")
        forward = _seconds(graph, node, rates, "forward")
        assert _seconds(graph, node, rates, "backward") == pytest.approx(products * forward)
