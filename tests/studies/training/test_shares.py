"""Parameters that are gathered a layer at a time."""

from __future__ import annotations

from dataclasses import replace

from iosim.studies.training import (
    Decoder,
    Kind,
    Setup,
    plan,
)
from iosim.studies.training.shares import messages
from iosim.studies.training.timeline import play


def test_parameters_are_gathered_a_layer_and_the_next() -> None:
    model = Decoder(layers=5, width=64, heads=1, vocabulary=0, mlp_width=0, norm="none", bias=False)
    setup = Setup(seq_len=8, precision="bf16", data_parallel=8, zero=3)
    layer = 2 * (64 * 192 + 64 * 64)
    gathered = [e.by_kind.get(Kind.GATHERED, 0) for e in play(plan(model, setup)).events]
    assert max(gathered) == 2 * layer
    assert gathered[-1] == 0
    sent = messages(plan(model, setup))
    # Each layer for the forward and for the backward, all but this GPU's eighth.
    assert sent.gathered_bytes == 2 * 5 * layer * 7 // 8
    assert sent.reduced_bytes == 5 * layer * 7 // 8
    plain = messages(plan(model, replace(setup, zero=0)))
    assert plain.bytes == 2 * 5 * layer * 7 // 8  # an all-reduce
