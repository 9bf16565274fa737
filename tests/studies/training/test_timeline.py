"""Live bytes over a step: the peak by hand, and recorded steps to the byte."""

from __future__ import annotations

import pytest
from small_steps import SMALL, recorded, saved_bytes

from iosim.base.errors import InputError
from iosim.studies.training import (
    Decoder,
    Kind,
    Setup,
    plan,
)
from iosim.studies.training.shares import ROOT, units
from iosim.studies.training.timeline import play


def test_the_peak_holds_parameters_gradients_and_states() -> None:
    """With AdamW over lists of tensors, the step holds parameters, gradients, two moments and one temporary."""
    setup = Setup(seq_len=64, precision="fp32")
    graph = plan(SMALL, setup)
    line = play(graph)
    step = line.events[-1]
    inputs = 2 * 64 * 8
    assert step.phase == "step"
    assert step.peak_bytes == 5 * 4 * graph.parameter_elements + inputs + 4  # and the loss


def test_zero_by_hand() -> None:
    """One matrix pair of 64 x 192 and 64 x 64 numbers in bf16 on four GPUs: what stays after the backward, and what
    the step adds: one temporary of Adam's and fp32 gradients, a quarter of each."""
    bare = Decoder(layers=1, width=64, heads=1, vocabulary=0, mlp_width=0, norm="none", bias=False)
    p = 64 * 192 + 64 * 64
    hidden = 8 * 64 * 2
    held = 3 * hidden  # the input, the output and the output's gradient
    sharded = {
        0: 2 * p + 2 * p + 12 * p,
        1: 2 * p + 2 * p + 3 * p,
        2: 2 * p + p // 2 + 3 * p,
        3: 4 * p,
    }
    for stage, size in sharded.items():
        setup = Setup(seq_len=8, precision="bf16", master_weights=True, data_parallel=4, zero=stage)
        step = play(plan(bare, setup)).events[-1]
        assert step.after_bytes == size + held, stage
        scratch = 8 * p
        if stage:
            scratch = 2 * p
        assert step.peak_bytes == size + held + scratch, stage


@pytest.mark.slow
def test_recorded_steps_of_an_h200_to_the_byte() -> None:
    rows = recorded("h200_training_bytes.csv") + recorded("h200_training_times.csv")
    assert len(rows) == 279 + 48
    for model, setup, row in rows:
        graph = plan(model, setup)
        line = play(graph)
        base = sum(
            line.events[0].by_kind.get(k, 0) for k in (Kind.PARAMETER, Kind.INPUT, Kind.OPTIMIZER)
        )
        assert {p: b - base for p, b in line.phase_peaks().items()} == {
            p: int(row[p]) for p in ("forward", "backward", "step")
        }, (model, setup)
        if "saved" in row:
            assert saved_bytes(graph) == int(row["saved"]), (model, setup)


@pytest.mark.parametrize(("stage", "gathers"), [(0, False), (2, False), (3, True)])
def test_what_is_in_no_layer_is_gathered_for_the_whole_of_a_pass(stage: int, gathers: bool) -> None:
    """Embeddings and the last norm, with ZeRO's stage 3: once for the forward and the backward, freed at the end."""
    setup = Setup(seq_len=8, precision="bf16", master_weights=True, data_parallel=4, zero=stage)
    graph = plan(SMALL, setup)
    root = units(graph)[ROOT]
    assert root > 0
    sizes = [size for name, size in play(graph).requests if name == "gathered"]
    assert sizes == ([root, -root] if gathers else [])


def test_no_tensor_has_more_than_an_exbibyte() -> None:
    """Scores of one head and 2^24 tokens are 2^48 numbers, of which 2^9 sequences have 2^57 of 8 bytes."""
    one_head = Decoder(
        layers=1, width=64, heads=1, vocabulary=0, mlp_width=0, norm="none", bias=False
    )
    assert plan(one_head, Setup(seq_len=1 << 24, batch=1 << 9)).nodes
    with pytest.raises(InputError, match=f"out of range; accepted: up to {1 << 57}"):
        plan(one_head, Setup(seq_len=1 << 24, batch=(1 << 9) + 1))
