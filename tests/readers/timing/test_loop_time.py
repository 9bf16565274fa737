"""The time of a loop's steps where CTAs share HBM and the L2."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from timed_launches import call, main_launch

from iosim.hardware.profile import load_profile
from iosim.prediction.call import Call
from iosim.readers.timing import loop_time
from iosim.readers.timing.loop_time import _alone_share, busiest_share
from iosim.readers.timing.makespan import Makespan
from iosim.readers.timing.rates import Rates, SmRates, Waits


def decoding(batch: int) -> Call:
    return call(
        "a100", "vllm-fa2", batch=batch, heads=2, kv_heads=2, seq_q=1, seq_k=16384, page_size=64
    )


class TestSharesOfHbm:
    def test_the_busiest_sm_decides_by_what_a_cta_alone_draws(self) -> None:
        """3 tiles of 2.37, the last at the pace of one CTA: between HBM's rate and that of an even share."""
        tiles = 128 * 2
        sms = 108
        decode_call = decoding(128)
        time, steps = main_launch(decode_call), 128 * 2 * 128
        waits = Rates(decode_call.profile, measured=True).load_latency_s(from_dram=True)
        times = time.seconds["hbm"] * sms / steps / (waits + time.pace.step_s[0])
        assert 1.1 < times < 1.8
        share = 3 * sms / tiles - (1 - 1 / times) * sms / tiles
        assert 1.05 < time.total_s / time.seconds["hbm"] == pytest.approx(share, rel=0.02)
        other = replace(decode_call, profile=load_profile("l40s"))
        hurried = main_launch(other)
        assert hurried.total_s < 1.05 * hurried.seconds["hbm"]

    def test_full_rounds_are_as_fast_as_hbm(self) -> None:
        time = main_launch(decoding(54 * 3))
        assert time.total_s == pytest.approx(time.seconds["hbm"], rel=0.04)

    def test_an_sm_of_hopper_draws_more_than_its_share(self) -> None:
        """29 bytes a cycle at 1.98 GHz, where 132 SMs have 3.1 TB/s: 2.44 shares. The busiest SM has 2 tiles of 1.2."""
        decode_call = call("h100", "cudnn", batch=10, heads=16, seq_q=1, seq_k=8192)
        rates = Rates(decode_call.profile, measured=True)
        assert rates.most_shares() == pytest.approx(29 * 1.98e9 * 132 / 3.1e12)
        assert Rates(load_profile("a100"), measured=True).most_shares() == 1
        even = replace(
            decode_call, profile=replace(decode_call.profile, sm_dram_bytes_per_clock=None)
        )
        shared, free = main_launch(even), main_launch(decode_call)
        assert (
            shared.total_s > 1.2 * shared.seconds["hbm"]
        )  # at the pace of a CTA alone in the last round
        assert free.total_s < 1.1 * free.seconds["hbm"]

    def test_sequences_of_different_lengths_are_left_alone(self) -> None:
        lengths = (512,) * 19 + (32768,)
        ragged = call(
            "a100",
            "vllm-fa2",
            seq_q=20,
            seq_k=sum(lengths),
            seq_lens=(1,) * 20,
            seq_lens_k=lengths,
            page_size=64,
        )
        launch = ragged.chain.launches[0]
        assert launch.work_tiles >= 108
        assert busiest_share(launch, 512.0, 4608, 108) == 1

    def test_tiles_that_share_their_keys_are_left_alone(self) -> None:
        long = call("a100", heads=2, seq_q=16384)
        time = main_launch(long)
        assert time.total_s < 2 * max(time.seconds.values())


class TestSharesOfTheL2:
    rates = SmRates(Waits(*[0.0] * 6), 1e9, 1024.0, 128.0, 16.0, 128.0, l2_bytes=22.0)

    @pytest.mark.parametrize(
        ("steps", "share"),
        [
            ([4.0] * 4, 1.0),
            ([4.0, 4.0, 4.0, 0.0], 0.75),  # three of four SMs share the rate
            ([4.0, 0.0, 0.0, 0.0], 0.5),  # an SM alone takes twice its part, and no more
            ([8.0, 8.0, 8.0, 4.0], (1 + 0.75) / 2), ([8.0, 4.0, 4.0, 4.0], (1 + 0.5) / 2),
            ([8.0, 6.0, 2.0, 4.0], (2 + 2 * 0.75 + 2 * 0.5 + 2 * 0.5) / 8),  # of unequal tiles
        ],
    )  # fmt: skip
    def test_fewer_sms_are_faster_each(self, steps: list[float], share: float) -> None:
        assert Makespan(0.0, steps, 1.0).share(0.5) == pytest.approx(share)

    def test_what_an_sm_alone_loads_and_stores(self) -> None:
        """A store takes 2.38 times as long as a load where all store, 1.375 times where one does."""
        assert _alone_share(self.running(), self.rates) == pytest.approx(0.5)
        assert _alone_share(self.running(stored=100), self.rates) == pytest.approx(
            100 / 32 * 22 / 238
        )

    @pytest.mark.parametrize(
        ("heads", "mask", "least", "highest"),
        [
            (132, "none", 1, 1),
            (132, "causal", 0.94, 0.99),
            (7, "none", 0.91, 0.93),
            (7, "causal", 0.84, 0.87),
        ],
    )
    def test_sms_that_end_apart_leave_the_others_more(
        self, heads: int, mask: str, least: float, highest: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An L2 so slow that all wait for it: 132 equal tiles of 132 SMs end together, 224 do not."""
        causal = call("h100", "triton", heads=heads, mask=mask, head_dim=64)
        slow = replace(causal.profile, l2_read_bandwidth_measured_bytes_per_s=1e12)
        monkeypatch.setattr(loop_time, "L2_BYTES_PER_CYCLE", 5)
        shared = main_launch(replace(causal, profile=slow), hbm=False)
        monkeypatch.setattr(Makespan, "share", lambda *_: 1.0)
        alike = main_launch(replace(causal, profile=slow), hbm=False)
        assert alike.bound_by == "l2"
        assert least <= shared.total_s / alike.total_s <= highest

    def running(self, stored: int = 0) -> Any:
        return SimpleNamespace(
            stored=lambda: stored,
            fetched=lambda: 100 - stored,
            l2_loads=lambda: 100 + stored * 1.38,
        )


@pytest.mark.parametrize(
    ("is_backward", "scores", "padding"),
    [
        (False, 1, 2.0),  # a forward's tile has rows that no query fills
        (True, 1, 1.0),
        (False, 64, 1.0),  # an indexer's scores of many heads
        (True, 5, 1.0),
    ],
)
@pytest.mark.parametrize("by_warps", [False, True])
@pytest.mark.parametrize("counted", [None, 7.5])
def test_pairs_that_move_bits_and_instructions(
    is_backward: bool,
    scores: int,
    padding: float,
    by_warps: bool,
    counted: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks of 64 rows hold 64, 64 and 16 of them: three quarters. 512 operations a pair are an eighth of an
    instruction's, a score takes 13, or what was counted of its build."""
    monkeypatch.setattr(loop_time, "row_padding", lambda *_: 2.0)
    launch: Any = SimpleNamespace(
        domain=SimpleNamespace(query_rows=np.array([64, 64, 16, 0]), block_q=64),
        is_backward=is_backward,
        work=SimpleNamespace(
            scores_per_pair=scores,
            flops_per_pair=512,
            loop=SimpleNamespace(key_warps=1, instructions_per_score=counted),
        ),
        resources=SimpleNamespace(threads=128),
    )
    unit: Any = SimpleNamespace(issued_by_warps=by_warps)
    moved, issued = loop_time.worked(launch, unit, 1000.0)
    assert moved == pytest.approx(1000 * padding * (0.17 + 0.83 * 0.75))
    assert issued == pytest.approx(1000 * padding * (scores * (counted or 13) / 32 + by_warps / 8))
