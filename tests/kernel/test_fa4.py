"""FlashAttention-4's order: a persistent stride without a mask, sections of the longest tiles under one."""

from __future__ import annotations

import pytest

from iosim.hardware.profile import load_profile
from iosim.kernel.algorithms import plan
from iosim.kernel.kernel import Kernel
from iosim.kernel.libraries import resolve
from iosim.kernel.schedule import Order, Scheduler, Start
from iosim.problem.attention import AttentionProblem


def fa4(**problem: object) -> tuple[AttentionProblem, Kernel]:
    asked = AttentionProblem(head_dim=128, dtype="bf16", **problem)  # type: ignore[arg-type]
    return asked, resolve("fa4", asked, load_profile("b200"))


def test_a_dense_grid_strides() -> None:
    _, kernel = fa4(heads=16, seq_q=8192)
    assert (kernel.schedule.scheduler, kernel.schedule.order) == (Scheduler.PERSISTENT, Order.QUERY)
    assert kernel.schedule.section_heads == 0


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tokens", "section"),
    [
        # 50 MiB over K and V of a head, 512 bytes a token, then the power of two below
        (16, 16, 8192, 8),  # 50 / 4 MiB = 12.5
        (16, 16, 65536, 1),  # 50 / 32 MiB = 1.6
        (32, 8, 8192, 8),  # rows of a group are shared: sections count key/value heads
    ],
)
def test_sections_under_a_mask(heads: int, kv_heads: int, tokens: int, section: int) -> None:
    problem, kernel = fa4(heads=heads, kv_heads=kv_heads, seq_q=tokens, mask="causal")
    schedule = kernel.schedule
    assert (schedule.scheduler, schedule.order, schedule.start) == (Scheduler.STATIC, Order.HEAD, Start.HEAVY_FIRST)
    assert schedule.section_heads == section
    assert kernel.packs_group == (heads > kv_heads)
    grid = plan(problem, kernel).launches[0].domain
    assert grid.grid_heads == kv_heads
