"""The capacity rule by hand: what a mask reaches is read once where it fits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import iosim
from iosim.base.records import replace
from iosim.kernel.schedule import Order
from iosim.readers.capacity import CapacityRule

ROW = 128 * 2
"""Bytes of a row of head_dim 128 in bf16."""


@pytest.mark.parametrize(
    ("mask", "keys"),
    [
        # Two blocks of 64 queries at the end of 4,096 keys, in key blocks of 64, of which each query block reads its own
        ({}, 4096),
        ({"mask": "causal"}, 4096),
        # The first query, 3,968, keeps keys from 3,968 - 127 = 3,841 on: in blocks 60 to 63.
        ({"mask": "window", "window": 127}, 4 * 64),
        ({"mask": "window", "window": 128}, 4 * 64),  # 3,840, the first of block 60
        ({"mask": "window", "window": 129}, 5 * 64),
        ({"mask": "window", "window": 0}, 2 * 64),
        ({"mask": "window", "window": 4096}, 4096),
    ],
)
def test_keys_that_a_mask_reaches_are_read_once(mask: dict[str, Any], keys: int) -> None:
    problem = iosim.AttentionProblem(
        heads=2, seq_q=128, seq_k=4096, head_dim=128, dtype="bf16", **mask
    )
    traffic = iosim.predict(problem, "flash", "a100", method="capacity", tile=(64, 64)).traffic
    read = {x.tensor: x.bytes for x in traffic.rows if (x.level, x.direction) == ("hbm", "read")}
    assert read == {"Q": 2 * 128 * ROW, "K": 2 * keys * ROW, "V": 2 * keys * ROW}


def read_times(
    problem: iosim.AttentionProblem, kernel: str, gpu: str, **settings: Any
) -> dict[str, float]:
    """How often each launch reads each tensor's bytes from HBM."""
    made = iosim.predict(problem, kernel, gpu, method="capacity", **settings)
    rows = [x for x in made.traffic.rows if (x.level, x.direction) == ("hbm", "read")]
    tensors = made.chain.tensors
    own = (x for x in rows if x.tensor in tensors)  # but spilled registers
    return {f"{x.launch} {x.tensor}": x.bytes / tensors[x.tensor].bytes for x in own}


def test_what_does_not_fit_is_read_again_by_every_wave() -> None:
    """V of 32,768 tokens has 8 MiB, twice a T4's L2. 256 tiles of 128 queries run on 40 SMs, two on each: 3.2 waves.
    Scores are tiles of their own, without a walk over keys: their Q and K count once."""
    problem = iosim.AttentionProblem(heads=1, seq_q=32768, head_dim=128, dtype="fp16")
    assert read_times(problem, "naive", "t4") == pytest.approx(
        {"scores Q": 1, "scores K": 1, "softmax S": 1, "values P": 1, "values V": 3.2}
    )


@pytest.mark.parametrize(
    ("mask", "visits"),
    [
        # 256 blocks of 128 queries, each over all 512 blocks of 64 keys
        ({}, 256 * 512),
        # block i over its 2 i + 2 first
        ({"mask": "causal"}, 256 * 257),
        # block i from key 128 i - 8191 on: as many for the first 64, then 130
        ({"mask": "window", "window": 8191}, 64 * 65 + 192 * 130),
    ],
)
def test_a_mask_shortens_what_a_wave_reads_again(mask: dict[str, Any], visits: int) -> None:
    """256 tiles on 40 SMs, one on each, are 6.4 waves; K of 8 MiB is twice a T4's L2."""
    problem = iosim.AttentionProblem(heads=1, seq_q=32768, head_dim=128, dtype="fp16", **mask)
    times = read_times(problem, "flash", "t4", tile=(128, 64))
    assert times["main K"] == pytest.approx(6.4 * visits / (256 * 512))
    assert times["main V"] == times["main K"]


@pytest.mark.parametrize(("short", "stays"), [(1, False), (0, True)])
def test_a_temporary_stays_that_just_fits(short: int, stays: bool) -> None:
    """Between its launch and the next, Q, K, S and P are touched: 2 x 512 x 64 and 2 x 512 x 512 numbers of two bytes.
    Between the next two, S, P, V and O, which are as many."""
    touched_bytes = 2 * (2 * 512 * 64 + 2 * 512 * 512)
    gpu = replace(iosim.load_profile("t4"), l2_bytes=touched_bytes - short)
    problem = iosim.AttentionProblem(heads=1, seq_q=512, head_dim=64, dtype="fp16")
    traffic = iosim.predict(problem, "naive", gpu, method="capacity").traffic
    for tensor in ("S", "P"):
        for direction in ("read", "write"):
            moved = traffic.total("hbm", direction, tensor=tensor)
            assert moved == (0 if stays else 512 * 512 * 2)


def test_a_walk_over_whole_heads_reads_its_keys_once() -> None:
    """FlashAttention's first loop: a CTA has a head, and no other shares its keys."""
    problem = iosim.AttentionProblem(heads=1, seq_q=32768, head_dim=64, dtype="fp16")
    times = read_times(problem, "flash1", "t4")
    assert (times["main K"], times["main V"]) == (1, 1)


@pytest.mark.parametrize(
    ("order", "held", "times"),
    [
        # beside the 10 bytes that a head moves meanwhile: heads of a sequence use one copy of 100 bytes
        (Order.QUERY, 110, 1),
        (Order.QUERY, 109, 2),
        # and those of all sequences, where these run faster than heads, all four
        (Order.BATCH, 410, 1),
        (Order.BATCH, 409, 2),
        # eight heads use a copy at once
        (Order.HEAD, 0, 1),
    ],
)
def test_rounds_of_heads_that_share_a_bias(order: Order, held: int, times: float) -> None:
    """4 copies for 32 heads, of which 8 slots hold 4 at a time with 2 tiles each: a copy's 8 heads take two rounds."""
    bias: Any = SimpleNamespace(name="bias", batch=4, heads=1, bytes=400)
    launch: Any = SimpleNamespace(
        schedule=SimpleNamespace(order=order, section_heads=0),
        domain=SimpleNamespace(grid_heads=32),
        accesses=[SimpleNamespace(tensor=name) for name in ("Q", "bias")],
        work_tiles=64,
    )
    rule: Any = SimpleNamespace(
        value=int,
        chain=SimpleNamespace(tensors={"bias": bias, "Q": SimpleNamespace(bytes=320)}),
        shared=held,
        _bytes=lambda tensor: tensor.bytes,
        _in_section=lambda _launch, heads: heads,
    )
    assert CapacityRule._shared_passes(rule, launch, bias, 8) == times
