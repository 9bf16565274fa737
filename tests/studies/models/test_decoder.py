"""Operators of a decoder: experts that are touched, fused launches, layers that stand for all."""

from __future__ import annotations

from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_models import CONFIGS, one

from iosim.studies.models.decoder import touched
from iosim.studies.models.layers import Mlp

pytestmark = pytest.mark.usefixtures("replays_once")


def test_experts_that_are_touched() -> None:
    assert touched(Mlp(0, 3, 8, 64, 2), 1).mean == pytest.approx(2)
    two = touched(Mlp(0, 3, 8, 64, 2), 2)
    assert (two.least, two.mean, two.most) == (2, pytest.approx(8 * (1 - (6 / 8) ** 2)), 4)


@given(st.integers(1, 64), st.data(), st.integers(1, 5000))
def test_experts_lie_between_the_least_and_the_most(
    experts: int, data: st.DataObject, tokens: int
) -> None:
    one_step = touched(Mlp(0, 3, experts, 64, data.draw(st.integers(1, experts))), tokens)
    assert one_step.least - 1e-9 <= one_step.mean <= one_step.most + 1e-9
    assert one_step.least <= one_step.counted <= one_step.most


@settings(max_examples=examples(8), deadline=None)
@given(CONFIGS, st.integers(1, 4), st.sampled_from([{"seq_len": 64}, {"context": 65}]))
def test_fused_launches_are_fewer_and_move_no_more(
    config: dict[str, Any], batch: int, how: dict[str, int]
) -> None:
    eager = one(config, batch=batch, **how)
    fused = one(config, batch=batch, fused=True, **how)
    assert len(fused.traffic.rows) < len(eager.traffic.rows)
    assert sum(r.compulsory for r in fused.traffic.rows) < sum(
        r.compulsory for r in eager.traffic.rows
    )
    assert fused.traffic.time_s < eager.traffic.time_s
    assert fused.traffic.flops == eager.traffic.flops
    assert fused.traffic.attention.flops == eager.traffic.attention.flops


@pytest.mark.slow
def test_layers_that_are_written_stand_for_all() -> None:
    """Two of the 126 layers of Llama 3.1 405B are played, their embedding and head beside them."""
    run = one("llama-3.1-405b", context=64)
    assert len(run.parts["attention"]) == 126
    assert len({row.hbm_read for row in run.parts["projections"]}) <= 2 * 4
    table = 2 * 128256 * 16384
    assert run.traffic.hbm.read == pytest.approx(run.weight_bytes - table, rel=0.03)
