"""Mechanisms of the time model beside the steps of a loop: shares of HBM, spills around a loop, masks, adds, clocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iosim.hardware.profile import load_profile
from iosim.kernel.algorithms import plan
from iosim.kernel.kernel import MatrixUnit
from iosim.kernel.launch import is_attention_loop
from iosim.kernel.libraries import resolve
from iosim.kernel.work import Loop, MaskOperations
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.computing import busiest_share
from iosim.readers.timing.launch_time import LaunchTime
from iosim.readers.timing.rates import Rates
from iosim.readers.timing.step_time import edge_share


def call(gpu: str, kernel: str = "fa2", **problem: object) -> Call:
    asked = AttentionProblem(**{"heads": 8, "seq_q": 4096, "head_dim": 128, "dtype": "bf16", **problem})
    profile = load_profile(gpu)
    return Call.of(asked, resolve(kernel, asked, profile), profile)


def main_launch(made: Call, **changed: object) -> LaunchTime:
    """The main launch with values of its work changed, HBM bytes by the capacity rule."""
    launches = tuple(replace(one, work=replace(one.work, **changed)) for one in made.chain.launches)
    made = replace(made, chain=replace(made.chain, launches=launches))
    found = made.time(made.counted + made.capacity()).launches
    return next(one for one in found if one.name in ("main", "bwd.main"))


def decoding(batch: int) -> Call:
    return call("a100", "vllm-fa2", batch=batch, heads=2, kv_heads=2, seq_q=1, seq_k=16384, page_size=64)


class TestSharesOfHbm:
    def test_the_busiest_sm_decides(self) -> None:
        tiles, sms = 128 * 2, 108
        time = main_launch(decoding(128))
        assert time.total_s == pytest.approx(time.seconds["hbm"] * 3 * sms / tiles, rel=0.02)  # 3 tiles of 2.37

    def test_full_rounds_are_as_fast_as_hbm(self) -> None:
        time = main_launch(decoding(54 * 3))
        assert time.total_s == pytest.approx(time.seconds["hbm"], rel=0.02)

    def test_sequences_of_different_lengths_are_left_alone(self) -> None:
        lengths = (512,) * 19 + (32768,)
        made = call(
            "a100", "vllm-fa2", seq_q=20, seq_k=sum(lengths), seq_lens=(1,) * 20, seq_lens_k=lengths, page_size=64
        )
        launch = made.chain.launches[0]
        assert launch.work_tiles >= 108
        assert busiest_share(launch, 512.0, 4608, 108) == 1

    def test_tiles_that_share_their_keys_are_left_alone(self) -> None:
        long = call("a100", heads=2, seq_q=16384)
        time = main_launch(long)
        assert time.total_s < 2 * max(time.seconds.values())


class TestSpillsAndMasks:
    def test_spills_around_the_loop_cost_time_once_a_tile(self) -> None:
        made = call("h200", mask="causal", seq_q=4000, seq_k=4000)
        spill = made.chain.launches[0].work.spill
        assert spill.tile == 289
        slower, faster = (main_launch(made, spill=replace(spill, tile=n)) for n in (spill.tile, 0.0))
        each = (slower.pace.tile_s - faster.pace.tile_s) * (slower.clock_hz or 0.0)
        assert each == pytest.approx(spill.tile * made.profile.need("spill_access_cycles"), rel=0.01)

    def test_a_causal_mask_is_asked_at_the_diagonal_alone(self) -> None:
        short, long = (call("h200", mask="causal", seq_q=n, seq_k=n).chain.launches[0] for n in (512, 4096))
        window, free = (call("h200", **mask).chain.launches[0] for mask in ({"mask": "window", "window": 1000}, {}))
        alone = call("h200", mask="causal", seq_q=1).chain.launches[0]
        assert short.work.mask == MaskOperations(edge_steps=2)
        assert window.work.mask == MaskOperations(every_step=4)
        assert free.work.mask == alone.work.mask == MaskOperations()
        # tiles of 128 queries and 64 keys: two masked steps of 2, 4, 6 and 8
        assert edge_share(short) == pytest.approx(8 / 20)
        assert edge_share(long) == pytest.approx(64 / (2 * 32 * 33 / 2))


class TestAdds:
    def test_warps_wait_for_a_request_of_every_line(self) -> None:
        made = call("h200", passes="bwd")
        launch = next(one for one in made.chain.launches if one.name == "bwd.main")
        assert launch.work.add_requests_per_row == 4  # 128 sums of 4 bytes
        with_adds, without = main_launch(made), main_launch(made, add_requests_per_row=0)
        cycles = (with_adds.pace.step_s[0] - without.pace.step_s[0]) * (with_adds.clock_hz or 0.0)
        assert cycles == pytest.approx(launch.domain.block_q * 4 * made.profile.need("add_packet_cycles"), rel=0.02)

    def test_a_warp_of_its_own_holds_nobody_up(self) -> None:
        launches = call("h100", "fa3", passes="bwd").chain.launches
        assert all(one.work.add_requests_per_row == 0 for one in launches)


class TestWhatAKernelStates:
    @pytest.mark.parametrize("passes", ["fwd", "bwd"])
    def test_multiply_adds_are_no_tensor_cores_in_either_pass(self, passes: str) -> None:
        asked = AttentionProblem(heads=8, seq_q=4096, head_dim=128, dtype="bf16", passes=passes)
        kernel = resolve("flash", asked, load_profile("h200")).with_(matrix_unit=MatrixUnit.FP32)
        (loop,) = (one for one in plan(asked, kernel).launches if is_attention_loop(one))
        assert not loop.work.tensor_cores

    def test_every_forward_walks_as_its_kernel_says(self) -> None:
        asked = AttentionProblem(heads=16, kv_heads=1, seq_q=1, seq_k=4096, head_dim=576, head_dim_v=512, dtype="bf16",
                                 latent_kv=True)  # fmt: skip
        kernel = resolve("mla", asked, load_profile("h200")).with_(loop=Loop(score_operations=2.0))
        assert plan(asked, kernel).launches[0].work.loop == kernel.loop


class TestClockOfLightLoads:
    def test_large_products_keep_the_sustained_clock(self) -> None:
        rates = Rates(load_profile("l40s"), measured=True, power_is_modelled=False)
        assert rates.clock_follows_products
        rates.clock_hz = rates.profile.sustained_clock_hz
        assert rates.product_limit("bf16") == pytest.approx(rates.profile.tensor_flops("bf16", measured=True))

    def test_decoding_runs_at_the_boost_clock_and_prefill_between(self) -> None:
        profile = load_profile("l40s")
        decode = main_launch(call("l40s", seq_q=1, seq_k=65536, batch=16))
        prefill = main_launch(call("l40s", heads=32, seq_q=8192))
        assert decode.clock_hz == profile.boost_clock_hz
        assert profile.need("sustained_clock_hz") < (prefill.clock_hz or 0.0) < profile.need("boost_clock_hz")

    def test_a_clock_that_is_no_power_limit_stays(self) -> None:
        for name in ("h100-sxm", "b300", "a100"):
            assert not Rates(load_profile(name), measured=True, power_is_modelled=False).clock_follows_products
