"""Mechanisms of the time model beside the steps of a loop: shares of HBM, spills around a loop, masks, adds, clocks."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from timed_launches import call, main_launch

from iosim.hardware.profile import load_profile
from iosim.kernel.launch import Launch
from iosim.readers.timing import launch_terms, tile_terms
from iosim.readers.timing.launch_terms import STREAM_START_S
from iosim.readers.timing.makespan import Makespan, in_turn
from iosim.readers.timing.rates import Rates, SmRates, Waits
from iosim.readers.timing.tile_terms import (
    FIRST_LOADS,
    LOCKED_LOADS,
    code_again_cycles,
    code_behind_per_cycle,
    code_cycles,
    lock_cycles,
)


class TestTilesOfServingKernels:
    def test_a_tile_waits_for_its_place_in_every_round(self) -> None:
        """1,056 tiles on 132 SMs: in each of 8 rounds 10 loads from the L2, one behind the other, and one more, since
        five groups of 31 sequences are searched in these rounds."""
        whole_call = call(
            "h200", "sglang-fa3", seq_q=100, seq_k=100, batch=132, mask="causal", page_size=64
        )
        launch = whole_call.chain.launches[0]
        assert (launch.work.serial_loads, launch.work_tiles, whole_call.residencies[0].slots) == (
            11,
            8 * 132,
            132,
        )
        waiting, free = (
            main_launch(whole_call, hbm=False),
            main_launch(whole_call, hbm=False, serial_loads=0),
        )
        rates = Rates(whole_call.profile, measured=True)
        rates.clock_hz = waiting.clock_hz
        assert waiting.total_s - free.total_s == pytest.approx(
            88 * rates.load_latency_s(from_dram=False), rel=0.1
        )

    def test_warps_that_merge_hold_up_their_sm(self) -> None:
        """4 warps write 16 x 128 fp32 values each, and each reads those of all, at half a bank's rate: 2,560 cycles for
        each of an SM's 8 tiles, whether they run side by side or not."""
        decode_call = call(
            "l40s", "flashinfer", heads=32, kv_heads=8, seq_q=1, seq_k=64, batch=142, page_size=16
        )
        bytes_of_tile = decode_call.chain.launches[0].work.tile_shared_bytes
        assert bytes_of_tile == 2 * 4 * 5 * 16 * 128 * 4 == 2560 * 128
        merging, free = (
            main_launch(decode_call, hbm=False),
            main_launch(decode_call, hbm=False, tile_shared_bytes=0),
        )
        assert merging.clock_hz is not None
        assert merging.total_s - free.total_s == pytest.approx(8 * 2560 / merging.clock_hz, rel=0.1)

    def test_a_stream_from_hbm_starts_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where its keys lie in the L2 it does not, nor where several tiles share them."""
        decode_call = call("h200", "fa2", heads=32, seq_q=1, seq_k=65536)
        shared = call("h200", "fa2", heads=32)
        paged = main_launch(call("h200", "fa2", heads=32, seq_q=1, seq_k=65536, page_size=256))
        from_hbm, from_l2, twice = (
            main_launch(decode_call),
            main_launch(decode_call, hbm=False),
            main_launch(shared),
        )
        tables_s = FIRST_LOADS * Rates(decode_call.profile, True).load_latency_s(from_dram=True)
        assert paged.total_s - from_hbm.total_s == pytest.approx(tables_s, rel=0.3)
        few = call("h200", "cudnn", heads=33, seq_q=16, seq_k=65536)
        of_few = main_launch(few)
        monkeypatch.setattr(launch_terms, "STREAM_START_S", 0.0)
        assert of_few.total_s - main_launch(few).total_s == pytest.approx(STREAM_START_S / 4)
        assert from_hbm.total_s - main_launch(decode_call).total_s == pytest.approx(STREAM_START_S)
        assert (from_l2.total_s, twice.total_s) == (
            main_launch(decode_call, hbm=False).total_s,
            main_launch(shared).total_s,
        )

    def test_values_of_a_narrow_cache_are_widened_slowly_on_blackwell(self) -> None:
        narrow_call = call("b200", "vllm-triton", page_size=64, cache_dtype="fp8", mask="causal")
        other = replace(
            narrow_call, profile=replace(narrow_call.profile, compute_capability=(9, 0))
        )
        assert main_launch(narrow_call).seconds["exp"] > 1.5 * main_launch(other).seconds["exp"]

    def test_flashinfer_shuffles_what_it_widens_but_where_conversions_hide_it(self) -> None:
        """64 rows in four warps, each of which has all 256 values of a key and its V: two operations a value."""
        for gpu, more in (("l40s", 2.0 * 256 * 4 / 64), ("b200", 0.0)):
            plain, narrow = (
                call(
                    gpu,
                    "flashinfer",
                    heads=8,
                    kv_heads=8,
                    seq_q=64,
                    seq_k=64,
                    page_size=16,
                    cache_dtype=kind,
                )
                for kind in (None, "fp8")
            )
            assert plain.kernel.tile.block_q == narrow.kernel.tile.block_q == 64
            loops = [call.kernel.loop.score_operations for call in (plain, narrow)]
            assert loops[1] - loops[0] == more


def test_code_that_no_sm_holds_is_fetched_again() -> None:
    """128 kB for a length that is no whole tile under a mask: each later tile fetches what it runs, 2,048 bytes in
    the time of a load from the L2. Of 1,280 heads of 457 tokens, 5,120 tiles, 264 are a first round; tiles of 2, 4,
    6 and 8 steps run two of three masked steps and no loop, and all. Code of 70,000 bytes stays; so does that of
    tiles that are alike."""

    def again(**problem: object) -> float:
        call_again = call("h100", heads=1280, seq_k=problem["seq_q"], **problem)
        rates = Rates(call_again.profile, measured=True)
        launch, (resident, *_) = call_again.chain.launches[0], call_again.residencies
        running = SimpleNamespace(launch=launch, resident=resident, rates=rates)
        return code_again_cycles(running)  # type: ignore[arg-type]

    run = 16 * (3 * 8024 + 3783 + 8024 - 6909) / 4
    loads = (5120 - 264) / 132 * run * (3 / 4) / 2048
    profile = load_profile("h100")
    assert again(seq_q=457, mask="causal") == pytest.approx(
        loads * Rates(profile, measured=True).load_cycles(from_dram=False)
    )
    assert again(seq_q=457) == 0
    assert again(seq_q=512, mask="causal", head_dim=32) == 0
    # A cache of four lines a set: 86,144 bytes overfill nine sets in ten, whose lines all miss.
    over = 86_144 / 70_000
    whole = again(seq_q=512, mask="causal")
    shorter = 16 * (3 * 5384 + 3375 + 5384 - 4485) / 4 * (over - 1) * 5 / over
    assert whole == pytest.approx(again(seq_q=457, mask="causal") * shorter / run)


class TestCode:
    """Code of FlashAttention-2's forward (experiments/measurements/library_code.csv)."""

    def test_the_first_round_waits_for_all_that_a_tile_runs(self) -> None:
        first, more = (
            call("h100", seq_q=128, seq_k=n, heads=256).chain.launches[0] for n in (64, 512)
        )
        assert first.work.code == more.work.code == (295, 1564, 2674, 3368)
        assert code_cycles(first, 1, 264) == pytest.approx(
            16 * (3368 - (2674 - 1564)) / 44
        )  # no step in its loop
        assert (
            code_cycles(more, 1, 264)
            == code_cycles(more, 1, 264, 3.0)
            == pytest.approx(16 * 3368 / 44)
        )
        assert code_cycles(call("h100", "cudnn", mask="causal").chain.launches[0], 2, 1) == 0

    @pytest.mark.parametrize("rate", [2048 / 687, 44])
    def test_what_lies_behind_comes_slowly(self, rate: float) -> None:
        launch = call("h100", mask="causal", seq_q=60, seq_k=60, heads=64).chain.launches[0]
        assert launch.work.code == (586, 1929, 3783, 5820, 6909, 8024)
        behind = 16 * (8024 - 6909)  # the code after the loop, all of it beyond 70,000 bytes
        assert code_cycles(launch, 1, 264, rate) == pytest.approx(16 * 1929 / 44 + behind / rate)

    def test_later_tiles_fetch_what_is_outside_of_the_loop_and_unequal_ones_their_masked_steps(
        self,
    ) -> None:
        even, causal = (
            call("h100", mask=mask, seq_q=512, seq_k=512, heads=64).chain.launches[0]
            for mask in ("none", "causal")
        )
        outside = 16 * (1564 + 3368 - 2674)
        first, later = 16 * 3368 / 44, outside / 64
        assert code_cycles(even, 2, 64) == pytest.approx(first / 4 + 3 / 4 * later)  # 256 tiles
        assert causal.work.code[1:3] == (1642, 3375)
        twice = [code_cycles(causal, ctas, 64) for ctas in (1, 2)]
        # two masked steps; of tiles of 2, 4, 6 and 8 steps three in four differ from a given one
        assert twice[1] - twice[0] == pytest.approx(3 / 4 * 16 * (3375 - 313) * 3 / 4 / 44)

    def test_what_is_fetched_again_shows_beside_computing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Measured: 313.2 us, an issue slot in three waits for an instruction (h100_stalls.csv); predicted without it,
        242. Of 2,048 tokens hardly any of it shows."""
        times = []
        for n in (457, 2048):
            causal_call = call("h100", heads=2640 // -(-n // 128), seq_q=n, seq_k=n, mask="causal")
            with_code = main_launch(causal_call, hbm=False).total_s
            with monkeypatch.context() as patch:
                patch.setattr(tile_terms, "CODE_AHEAD_BYTES", 1 << 20)
                times.append(with_code / main_launch(causal_call, hbm=False).total_s)
        assert 1.2 < times[0] < 1.35
        assert times[1] < 1.03

    def test_ctas_of_a_first_round_issue_one_behind_the_other(self) -> None:
        """What stands outside of the loop, 4 instructions a cycle: of CUTLASS's 4 and 8 warps."""
        narrow, wide = (
            call("h100", "cutlass", heads=528, seq_q=64, head_dim=d).chain.launches[0]
            for d in (64, 128)
        )
        assert (narrow.work.code, wide.work.code) == ((489, 2386, 2984), (490, 2422, 2952))
        assert code_cycles(narrow, 4, 528) == 3 * (489 + 2984 - 2386)
        assert code_cycles(wide, 2, 528) == 2 * (490 + 2952 - 2422)
        assert code_cycles(wide, 1, 528) == 0

    def test_code_that_comes_meanwhile_hides_it_but_not_behind_itself(self) -> None:
        launch = call("h100", seq_q=128, seq_k=512, heads=256).chain.launches[0]
        alone, two = (code_cycles(launch, ctas, 264) for ctas in (1, 2))
        assert alone == two
        assert code_cycles(launch, 2, 264, behind_itself=True) == pytest.approx(
            alone + 295 + 3368 - 2674
        )

    def test_splits_have_a_kernel_of_their_own(self) -> None:
        launch = call("h100", mask="causal", seq_q=40, seq_k=4000, head_dim=200).chain.launches[0]
        assert (launch.domain.splits > 1, launch.work.code[-1]) == (True, 5568)

    def test_a_window_runs_one_build_for_lengths_of_every_kind(self) -> None:
        sizes = {"mask": "window", "window": 200, "heads": 64}
        codes = {
            call("h200", seq_q=n, seq_k=n, **sizes).chain.launches[0].work.code for n in (500, 512)
        }
        assert codes == {(903, 2453, 4124, 5814, 7237, 8048)}

    def test_the_time_is_that_of_each_tile(self) -> None:
        causal_call = call("h100", mask="causal", seq_q=512, seq_k=512, heads=256)
        with_code = main_launch(causal_call)
        without = main_launch(causal_call, code=(0, 0, 0))
        cycles = (with_code.pace.tile_s - without.pace.tile_s) * (with_code.clock_hz or 0.0)
        behind = code_cycles(causal_call.chain.launches[0], 2, 264, 2048 / 687)
        assert cycles == pytest.approx(behind, rel=0.02)


class TestLocks:
    """CTAs of a head that add to the same sums of dQ (PyTorch's memory-efficient backward)."""

    rates = SmRates(Waits(100.0, 0, 0, 0, 20.0, 0), 1e9, 1024.0, 128.0, 16.0, 128.0, 64.0)

    def main(self, **problem: object) -> Launch:
        launches = call("h100", "cutlass", passes="bwd", **problem).chain.launches
        return next(n for n in launches if n.name == "bwd.main")

    def test_how_long_a_lock_is_held(self) -> None:
        # loads in turn; a product of 128 x 128 x 128 in 3.8 + 128 / 32 k-steps; 128 x 128 sums read and stored
        held = (
            LOCKED_LOADS * 100 + 7.8 * 20 + 1.5 * 2 * 128**3 / 1024 + 4 * 128**2 * (1 / 44 + 1 / 32)
        )
        assert lock_cycles(self.main(seq_q=128, seq_k=8192), self.rates) == pytest.approx(held)
        assert (
            lock_cycles(self.main(seq_q=8192, seq_k=128), self.rates) == 0
        )  # a block of keys, nobody to share with

    @pytest.mark.parametrize(
        ("queries", "heads", "slots", "cycles"),
        [
            (
                128,
                1,
                132,
                6 + 64 * 4,
            ),  # 64 CTAs of a head start together, and each holds its only lock for 4 cycles
            (128, 2, 132, 6 + 64 * 4),  # another head has other locks
            (
                128,
                2,
                64,
                6 + 4 + 6 + 64 * 4,
            ),  # the second head begins where the first one's first CTA ends
            (128, 1, 2, 10 * 32),  # two at once never wait
            (1024, 1, 132, 6 + 64 * 4),  # eight locks, eight times: all end together
            (1024, 2, 64, 2 * 64 * 4),  # so that the second head waits for the first to end
        ],
    )
    def test_ctas_of_a_head_take_locks_in_turn(
        self, queries: int, heads: int, slots: int, cycles: float
    ) -> None:
        launch = self.main(heads=heads, seq_q=queries, seq_k=8192)
        rounds = max(1.0, 64 * heads / slots)
        alone = Makespan(10.0 * rounds * queries / 128, [1.0], rounds)
        assert in_turn(launch, alone, slots, 4.0).cycles == pytest.approx(cycles, rel=0.1)

    def test_ctas_that_begin_at_the_same_lock_end_one_behind_the_other(self) -> None:
        """Under a mask all begin with the first queries: the second head follows before the first has ended."""
        launch = self.main(heads=2, seq_q=1024, seq_k=8192)
        alone = Makespan(160.0, [1.0], 2.0)
        in_line = in_turn(replace(launch, walks_round=False), alone, 64, 4.0).cycles
        assert in_line == 2 * 8 * 10 + 63 * 4 < 0.9 * in_turn(launch, alone, 64, 4.0).cycles

    @pytest.mark.parametrize(("queries", "cycles"), [(128, 63 * 4), (1024, 7 * 4), (8192, 0)])
    def test_they_queue_once_where_the_work_takes_longer(self, queries: int, cycles: float) -> None:
        """64 CTAs at 1, 8 or 64 locks."""
        launch = self.main(seq_q=queries, seq_k=8192)
        alone = Makespan(1e6, [1.0], 1.0)
        assert in_turn(launch, alone, 132, 4.0).cycles == 1e6 + cycles


class TestStores:
    def test_what_a_step_stores_takes_the_l2_longer_than_what_it_loads(self) -> None:
        """Sums of dQ, dK and dV that pass through memory, and spilled registers; not what a tile stores at its end."""
        backward_call = call("h100", "cutlass", passes="bwd", head_dim=192, seq_q=1024, seq_k=1024)
        time = main_launch(backward_call)
        slow = replace(
            backward_call.profile,
            l2_write_fraction=backward_call.profile.need("l2_write_fraction") / 2,
        )
        assert (
            main_launch(replace(backward_call, profile=slow)).seconds["l2"]
            > 1.5 * time.seconds["l2"]
        )
        forward = call("h100", "cudnn")
        slow_forward = replace(forward, profile=replace(forward.profile, l2_write_fraction=0.05))
        assert main_launch(slow_forward).seconds["l2"] == main_launch(forward).seconds["l2"]


class TestAdds:
    def test_warps_wait_for_a_request_of_every_line(self) -> None:
        backward_call = call("h200", passes="bwd")
        launch = next(
            launch for launch in backward_call.chain.launches if launch.name == "bwd.main"
        )
        assert launch.work.add_requests_per_row == 4  # 128 sums of 4 bytes
        with_adds, without = (
            main_launch(backward_call),
            main_launch(backward_call, add_requests_per_row=0),
        )
        cycles = (with_adds.pace.step_s[0] - without.pace.step_s[0]) * (with_adds.clock_hz or 0.0)
        assert cycles == pytest.approx(
            launch.domain.block_q * 4 * backward_call.profile.need("add_packet_cycles"), rel=0.02
        )

    def test_a_warp_of_its_own_holds_nobody_up(self) -> None:
        launches = call("h100", "fa3", passes="bwd").chain.launches
        assert all(launch.work.add_requests_per_row == 0 for launch in launches)


@pytest.mark.parametrize("gpu", ["a100", "h200"])
def test_code_past_what_is_fetched_ahead_comes_at_hbms_latency(gpu: str) -> None:
    """16 lines of 128 bytes a latency of HBM; from the L2, where the call before has left it, faster."""

    def rate(warm: bool) -> float:
        rates = SimpleNamespace(profile=load_profile(gpu))
        running = SimpleNamespace(conditions=SimpleNamespace(warm=warm), rates=rates)
        return code_behind_per_cycle(running)  # type: ignore[arg-type]

    latency = load_profile(gpu).need("dram_latency_cycles")
    assert rate(warm=False) * latency == pytest.approx(16 * 128)
    assert rate(warm=True) > 4 * rate(warm=False)
