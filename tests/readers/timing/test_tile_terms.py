"""Mechanisms of the time model beside the steps of a loop: shares of HBM, spills around a loop, masks, adds, clocks."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from steps import step_cost

from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.conditions import Conditions
from iosim.kernel.launch import Launch, is_attention_loop
from iosim.kernel.schedule import Scheduler
from iosim.kernel.shared_memory import staged
from iosim.kernel.unit import UNITS, MatrixUnit, Overlap
from iosim.kernel.work import Loop, MaskOperations, Pipelines
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing import launch_terms, loop_time
from iosim.readers.timing.launch_terms import STREAM_START_S
from iosim.readers.timing.launch_time import LaunchTime
from iosim.readers.timing.loop_time import _alone_share, busiest_share
from iosim.readers.timing.makespan import Makespan, in_turn
from iosim.readers.timing.rates import Rates, SmRates, Waits
from iosim.readers.timing.running import Running
from iosim.readers.timing.step_terms import UNHIDDEN_FRAGMENTS, edge_share, key_turns
from iosim.readers.timing.step_time import StepCost, step_cycles
from iosim.readers.timing.terms import recorded, without
from iosim.readers.timing.tile_terms import (
    FIRST_LOADS,
    LOCKED_LOADS,
    Tile,
    code_cycles,
    cta_start_cycles,
    lock_cycles,
    tile_operand_cycles,
    tile_store_cycles,
)


def call(gpu: str, kernel: str = "fa2", **problem: object) -> Call:
    asked = AttentionProblem(
        **{"heads": 8, "seq_q": 4096, "head_dim": 128, "dtype": "bf16", **problem}
    )
    profile = load_profile(gpu)
    return Call.of(asked, resolve(kernel, asked, profile), profile)


def main_launch(made: Call, hbm: bool = True, **changed: object) -> LaunchTime:
    """The main launch with values of its work changed, HBM bytes by the capacity rule or none."""
    launches = tuple(replace(one, work=replace(one.work, **changed)) for one in made.chain.launches)
    made = replace(made, chain=replace(made.chain, launches=launches))
    found = made.time(made.counted + made.capacity() if hbm else made.counted).launches
    return next(one for one in found if one.name in ("main", "bwd.main"))


def decoding(batch: int) -> Call:
    return call(
        "a100", "vllm-fa2", batch=batch, heads=2, kv_heads=2, seq_q=1, seq_k=16384, page_size=64
    )


class TestSharesOfHbm:
    def test_the_busiest_sm_decides_by_what_a_cta_alone_draws(self) -> None:
        """3 tiles of 2.37, the last at the pace of one CTA: between HBM's rate and that of an even share."""
        tiles, sms, made = 128 * 2, 108, decoding(128)
        time, steps = main_launch(made), 128 * 2 * 128
        waits = Rates(made.profile, measured=True).load_latency_s(from_dram=True)
        times = time.seconds["hbm"] * sms / steps / (waits + time.pace.step_s[0])
        assert 1.1 < times < 1.8
        share = 3 * sms / tiles - (1 - 1 / times) * sms / tiles
        assert 1.05 < time.total_s / time.seconds["hbm"] == pytest.approx(share, rel=0.02)
        other = replace(made, profile=load_profile("l40s"))
        hurried = main_launch(other)
        assert hurried.total_s < 1.05 * hurried.seconds["hbm"]

    def test_full_rounds_are_as_fast_as_hbm(self) -> None:
        time = main_launch(decoding(54 * 3))
        assert time.total_s == pytest.approx(time.seconds["hbm"], rel=0.04)

    def test_an_sm_of_hopper_draws_more_than_its_share(self) -> None:
        """29 bytes a cycle at 1.98 GHz, where 132 SMs have 3.1 TB/s: 2.44 shares. The busiest SM has 2 tiles of 1.2."""
        made = call("h100", "cudnn", batch=10, heads=16, seq_q=1, seq_k=8192)
        rates = Rates(made.profile, measured=True)
        assert rates.most_shares() == pytest.approx(29 * 1.98e9 * 132 / 3.1e12)
        assert Rates(load_profile("a100"), measured=True).most_shares() == 1
        even = replace(made, profile=replace(made.profile, sm_dram_bytes_per_clock=None))
        shared, free = main_launch(even), main_launch(made)
        assert (
            shared.total_s > 1.2 * shared.seconds["hbm"]
        )  # at the pace of a CTA alone in the last round
        assert free.total_s < 1.1 * free.seconds["hbm"]

    def test_sequences_of_different_lengths_are_left_alone(self) -> None:
        lengths = (512,) * 19 + (32768,)
        made = call(
            "a100",
            "vllm-fa2",
            seq_q=20,
            seq_k=sum(lengths),
            seq_lens=(1,) * 20,
            seq_lens_k=lengths,
            page_size=64,
        )
        launch = made.chain.launches[0]
        assert launch.work_tiles >= 108
        assert busiest_share(launch, 512.0, 4608, 108) == 1

    def test_tiles_that_share_their_keys_are_left_alone(self) -> None:
        long = call("a100", heads=2, seq_q=16384)
        time = main_launch(long)
        assert time.total_s < 2 * max(time.seconds.values())


class TestTilesOfServingKernels:
    def test_a_tile_waits_for_its_place_in_every_round(self) -> None:
        """1,056 tiles on 132 SMs: in each of 8 rounds 10 loads from the L2, one behind the other, and one more, since
        five groups of 31 sequences are searched in these rounds."""
        made = call(
            "h200", "sglang-fa3", seq_q=100, seq_k=100, batch=132, mask="causal", page_size=64
        )
        launch = made.chain.launches[0]
        assert (launch.work.serial_loads, launch.work_tiles, made.residencies[0].slots) == (
            11,
            8 * 132,
            132,
        )
        waiting, free = main_launch(made, hbm=False), main_launch(made, hbm=False, serial_loads=0)
        rates = Rates(made.profile, measured=True)
        rates.clock_hz = waiting.clock_hz
        assert waiting.total_s - free.total_s == pytest.approx(
            88 * rates.load_latency_s(from_dram=False), rel=0.1
        )

    def test_warps_that_merge_hold_up_their_sm(self) -> None:
        """4 warps write 16 x 128 fp32 values each, and each reads those of all, at half a bank's rate: 2,560 cycles for
        each of an SM's 8 tiles, whether they run side by side or not."""
        made = call(
            "l40s", "flashinfer", heads=32, kv_heads=8, seq_q=1, seq_k=64, batch=142, page_size=16
        )
        bytes_of_tile = made.chain.launches[0].work.tile_shared_bytes
        assert bytes_of_tile == 2 * 4 * 5 * 16 * 128 * 4 == 2560 * 128
        merging, free = (
            main_launch(made, hbm=False),
            main_launch(made, hbm=False, tile_shared_bytes=0),
        )
        assert merging.clock_hz is not None
        assert merging.total_s - free.total_s == pytest.approx(8 * 2560 / merging.clock_hz, rel=0.1)

    def test_a_stream_from_hbm_starts_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where its keys lie in the L2 it does not, nor where several tiles share them."""
        made = call("h200", "fa2", heads=32, seq_q=1, seq_k=65536)
        shared = call("h200", "fa2", heads=32)
        paged = main_launch(call("h200", "fa2", heads=32, seq_q=1, seq_k=65536, page_size=256))
        from_hbm, from_l2, twice = (
            main_launch(made),
            main_launch(made, hbm=False),
            main_launch(shared),
        )
        tables_s = FIRST_LOADS * Rates(made.profile, True).load_latency_s(from_dram=True)
        assert paged.total_s - from_hbm.total_s == pytest.approx(tables_s, rel=0.3)
        few = call("h200", "cudnn", heads=33, seq_q=16, seq_k=65536)
        of_few = main_launch(few)
        monkeypatch.setattr(launch_terms, "STREAM_START_S", 0.0)
        assert of_few.total_s - main_launch(few).total_s == pytest.approx(STREAM_START_S / 4)
        assert from_hbm.total_s - main_launch(made).total_s == pytest.approx(STREAM_START_S)
        assert (from_l2.total_s, twice.total_s) == (
            main_launch(made, hbm=False).total_s,
            main_launch(shared).total_s,
        )

    def test_values_of_a_narrow_cache_are_widened_slowly_on_blackwell(self) -> None:
        made = call("b200", "vllm-triton", page_size=64, cache_dtype="fp8", mask="causal")
        other = replace(made, profile=replace(made.profile, compute_capability=(9, 0)))
        assert main_launch(made).seconds["exp"] > 1.5 * main_launch(other).seconds["exp"]

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
            loops = [made.kernel.loop.score_operations for made in (plain, narrow)]
            assert loops[1] - loops[0] == more


class TestSpillsAndMasks:
    def test_spills_around_the_loop_cost_time_once_a_tile(self) -> None:
        made = call("h200", mask="causal", seq_q=4000, seq_k=4000)
        spill = made.chain.launches[0].work.spill
        assert spill.tile == 0  # those that its instructions have outside the loop show in no time
        slower, faster = (main_launch(made, spill=replace(spill, tile=n)) for n in (100.0, 0.0))
        each = (slower.pace.tile_s - faster.pace.tile_s) * (slower.clock_hz or 0.0)
        assert each == pytest.approx(100 * made.profile.need("spill_access_cycles"), rel=0.01)

    def test_a_causal_mask_is_asked_at_the_diagonal_alone(self) -> None:
        short, long = (
            call("h200", mask="causal", seq_q=n, seq_k=n).chain.launches[0] for n in (512, 4096)
        )
        window, free = (
            call("h200", **mask).chain.launches[0]
            for mask in ({"mask": "window", "window": 1000}, {})
        )
        alone = call("h200", mask="causal", seq_q=1).chain.launches[0]
        assert short.work.mask == MaskOperations(
            edge_steps=2
        )  # 64 rows see the end of one block of 128
        assert window.work.mask == MaskOperations(every_step=4)
        assert free.work.mask == alone.work.mask == MaskOperations()
        # tiles of 128 queries and 64 keys: two masked steps of 2, 4, 6 and 8
        assert edge_share(short) == pytest.approx(8 / 20)
        assert edge_share(long) == pytest.approx(64 / (2 * 32 * 33 / 2))


class TestCode:
    """Code of FlashAttention-2's forward (experiments/measurements/library_code.csv)."""

    def test_the_first_round_waits_for_all_that_a_tile_runs(self) -> None:
        one, more = (
            call("h100", seq_q=128, seq_k=n, heads=256).chain.launches[0] for n in (64, 512)
        )
        assert one.work.code == more.work.code == (295, 1564, 2674, 3368)
        assert code_cycles(one, 1, 264) == pytest.approx(
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
        asked = {"mask": "window", "window": 200, "heads": 64}
        codes = {
            call("h200", seq_q=n, seq_k=n, **asked).chain.launches[0].work.code for n in (500, 512)
        }
        assert codes == {(903, 2453, 4124, 5814, 7237, 8048)}

    def test_the_time_is_that_of_each_tile(self) -> None:
        made = call("h100", mask="causal", seq_q=512, seq_k=512, heads=256)
        with_code, without = main_launch(made), main_launch(made, code=(0, 0, 0))
        cycles = (with_code.pace.tile_s - without.pace.tile_s) * (with_code.clock_hz or 0.0)
        behind = code_cycles(made.chain.launches[0], 2, 264, 2048 / 687)
        assert cycles == pytest.approx(behind, rel=0.02)


class TestFirstLoads:
    """Heads with one block of queries each: every byte is used once."""

    def test_ctas_wait_for_their_queries_before_they_compute(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """cuDNN's loading warps run ahead."""
        waits = {}
        monkeypatch.setattr(
            Tile, "operand_bytes", (0.0, 0.0)
        )  # those of every tile, at the L2's rate
        for kernel in ("fa2", "cudnn"):
            made = call("h200", kernel, heads=1056, seq_q=128, seq_k=1024)
            as_it_is = main_launch(made).total_s
            with monkeypatch.context() as without:
                without.setattr(Running, "loaded", lambda self, in_steps: set())
                waits[kernel] = as_it_is - main_launch(made).total_s
        seconds = (
            1056 * 128 * 128 * 2 / load_profile("h200").need("dram_read_bandwidth_bytes_per_s")
        )
        assert (
            0.4 * seconds < waits["fa2"] < seconds
        )  # less than all: what is left of HBM's time overlaps better
        assert waits["cudnn"] == 0

    def test_hbm_holds_up_what_computes(self) -> None:
        """Measured: 5 % more on an H100 than where the L2 holds the keys, 2.5 % on an H200, which has more of HBM."""
        ratios = {}
        for gpu in ("h100", "h200"):
            made = call(gpu, heads=264, seq_q=1, seq_k=4096)
            hits = made.time(made.counted).total_s
            ratios[gpu] = made.time(made.counted + made.capacity()).total_s / hits
        assert 1.02 < ratios["h200"] < ratios["h100"] < 1.17

    def test_only_loops_with_more_to_fetch_than_a_tile_wait_before_their_first(self) -> None:
        """Warps that divide the keys, and warps that load where none take turns; not cuDNN's kernels for few keys."""
        starts = {}
        for kernel, keys in (
            ("fa2", 128),
            ("cutlass", 128),
            ("triton", 128),
            ("cudnn", 4096),
            ("cudnn", 128),
        ):
            made = call("h100", kernel, heads=1, seq_q=1, seq_k=keys)
            starts[kernel, keys] = main_launch(made).parts["start"] - made.profile.need(
                "launch_latency_s"
            )
        for kernel in ("cudnn", "fa3"):
            made = call("h100", kernel, heads=1, seq_q=128)
            starts[kernel, "prefill"] = main_launch(made).parts["start"] - made.profile.need(
                "launch_latency_s"
            )
        two = pytest.approx(2 * (687 + 80) / 1.98e9)
        assert starts == {("fa2", 128): 0, ("cutlass", 128): 0, ("triton", 128): 0, ("cudnn", 4096): two,
                          ("cudnn", 128): 0, ("cudnn", "prefill"): 0, ("fa3", "prefill"): two}  # fmt: skip


class TestNodesOfAGraph:
    def test_a_memset_before_a_queue_takes_a_node(self) -> None:
        """As nodes of captured calls were counted: cuDNN's prefill has one, its decoding none."""
        started = {}
        for kernel, seq_q in (("cudnn", 128), ("fa2", 128), ("cudnn", 1)):
            made = call("h100", kernel, heads=264, seq_q=seq_q, seq_k=2048)
            for launched in ("graph", "alone"):
                found = made.time(made.counted, Conditions(launched=launched)).launches[0]
                started[kernel, seq_q, launched] = found.parts["start"]
        without = started["fa2", 128, "graph"]
        two = 2 * (687 + 80) / 1.98e9  # warps that divide the keys wait for them
        assert started["cudnn", 128, "graph"] == pytest.approx(without + 0.94e-6)
        assert started["cudnn", 1, "graph"] == pytest.approx(without + two)
        assert started["cudnn", 128, "alone"] == pytest.approx(started["fa2", 128, "alone"])


class TestKeysAmongWarps:
    def test_warps_that_divide_the_keys_repeat_no_rows(self) -> None:
        """cuDNN decodes with 16 rows on four warps, each with a quarter of the keys; else each row would be done in
        four warps, and each warp would fetch all keys."""
        made = call("h200", "cudnn", heads=264, seq_q=1, seq_k=4096).chain.launches[0]
        assert (made.domain.block_q, made.work.loop.key_warps) == (16, 4)
        rates = SmRates(Waits(*[0.0] * 6), 1e9, 1024.0, 128.0, 16.0, 128.0, 64.0)
        whole = replace(made, work=replace(made.work, loop=replace(made.work.loop, key_warps=1)))
        divided, repeated = (
            step_cost(one, UNITS[MatrixUnit.MMA_SYNC], rates, 0.0, 2, 90) for one in (made, whole)
        )
        assert repeated.tensor == 4 * divided.tensor == 4 * 16 * 128 * 512 / 1024
        assert divided.smem * 128 == 128 * 512 + 4 * (
            26 * 128 + 16 * 256
        )  # K and V once; idle wavefronts, Q by each


class TestNarrowBuilds:
    def test_each_copy_has_instructions_of_its_own(self) -> None:
        """A build of 64 columns, 128 keys, 4 warps: 8 copies a thread of K and of V, each with 3 idle loads and 4
        stores of zeros; twice that is issued, 4 instructions a cycle."""
        narrow, whole = (call("h100", head_dim=n).chain.launches[0] for n in (56, 64))
        assert narrow.work.fragments is not None
        assert whole.work.fragments is not None
        assert (narrow.work.fragments.step, whole.work.fragments.step) == (2 * 8 * 7, 6)
        rates = SmRates(Waits(*[0.0] * 6), 1e9, 1024.0, 128.0, 16.0, 128.0, 64.0)
        costs = [
            step_cost(one, UNITS[MatrixUnit.MMA_SYNC], rates, 0.0, 2, 90) for one in (narrow, whole)
        ]
        assert costs[0].softmax - costs[1].softmax == 2 * (112 - 6) * 4 / 4
        assert costs[0].smem - costs[1].smem == 4 * (112 - 6)  # a wavefront of each warp


class TestKeysThatEnd:
    def test_cudnn_asks_of_every_score_whether_its_key_is_there(self) -> None:
        """Three lane cycles, of a window and past the last key; the causal diagonal is asked in a tile's last step
        alone, one query never."""
        diagonal = call("h100", "cudnn", mask="causal").chain.launches[0].work.mask
        assert (diagonal.every_step, diagonal.edge_steps) == (0, 4)
        asked = {
            (problem.get("mask", "none"), seq_k, seq_q): call("h100", "cudnn", seq_q=seq_q, seq_k=seq_k, **problem)
            .chain.launches[0]
            .work.mask.every_step
            for problem, seq_k, seq_q in (
                ({}, 4096, 128), ({}, 4095, 128), ({"mask": "causal"}, 4095, 4095), ({}, 4095, 1),
                ({"mask": "window", "window": 512}, 4096, 4096),
            )
        }  # fmt: skip
        assert asked == {("none", 4096, 128): 0, ("none", 4095, 128): 3, ("causal", 4095, 4095): 0,
                         ("none", 4095, 1): 0, ("window", 4096, 4096): 3}  # fmt: skip


class TestListsOfBlocks:
    """FlexAttention's forward: 128 x 64, eight warps, head_dim 128."""

    rates = SmRates(Waits(*[0.0] * 6), 1e9, 1024.0, 128.0, 16.0, 128.0, 64.0)

    def cost(self, **problem: object) -> StepCost:
        launches = call("h100", "flex", **{"seq_q": 4096, **problem}).chain.launches
        made = next(launch for launch in launches if launch.name == "main")
        assert (made.domain.block_q, made.domain.block_k, made.resources.threads) == (128, 64, 256)
        return step_cost(made, UNITS[MatrixUnit.WGMMA], self.rates, 0.0, 2, 90)

    def test_a_list_is_waited_for_and_asked_of_the_blocks_at_its_ends(self) -> None:
        plain, causal = self.cost(), self.cost(mask="causal")
        assert causal.exposed - plain.exposed == 280
        # six operations a score in the last block of 128 keys of each tile: 64 of its 2 x (1 + ... + 32) steps
        assert causal.softmax - plain.softmax == pytest.approx(6 * 128 * 64 / 128 * 64 / 1056)

    def test_rows_of_ragged_lengths_are_worked_out_anew(self) -> None:
        """K and V of 64 keys: 64 copies of 32 lanes x 16 bytes, 20 instructions each, four a cycle."""
        assert self.cost(seq_q=4095).exposed - self.cost().exposed == 64 * 20 / 4

    @pytest.mark.parametrize(
        ("block_q", "edge_rows", "steps"),
        [(128, 0, 64), (128, 127, 31 * 2 + 64), (64, 65, 62 * 2 + 2 * 64)],
    )
    def test_rows_of_a_last_block_that_is_not_whole_are_at_an_end_everywhere(
        self, block_q: int, edge_rows: int, steps: int
    ) -> None:
        launch = call("h100", "flex", seq_q=4096, mask="causal").chain.launches[0]
        assert launch.work.mask.edge_rows == 0
        mask = replace(launch.work.mask, edge_rows=edge_rows)
        domain = replace(launch.domain, block_q=block_q)
        # two steps of each tile, and all 64 of the last ones
        made = replace(launch, domain=domain, work=replace(launch.work, mask=mask))
        assert edge_share(made) * domain.visited.count.sum() == pytest.approx(steps)

    def test_which_rows_those_are(self) -> None:
        """Of 4,095 the last 127; a call without a mask has no ends."""
        rows = [
            call("h100", "flex", seq_q=4095, mask=mask).chain.launches[-1]
            for mask in ("causal", "none")
        ]
        assert [launch.work.mask.edge_rows for launch in rows] == [127, 0]

    def test_a_second_loop_begins_with_loads_of_its_own(self) -> None:
        waits = [
            call("h100", "flex", seq_q=n, mask=mask).chain.launches[-1].work.serial_loads
            for n, mask in ((4096, "none"), (4096, "causal"), (4095, "causal"), (128, "causal"))
        ]
        assert waits == [0, 3, 3, 0]

    def test_few_queries_have_a_loop_that_loads_nothing_ahead(self) -> None:
        loops = [
            call("h100", "flex", seq_q=n, seq_k=4096).kernel.loop.loads_ahead for n in (64, 256)
        ]
        assert loops == [False, None]


class TestBackwardTiles:
    """FlashAttention-2's main launch: 64 queries x 128 keys, eight warps, head_dim 128."""

    def test_shared_memory_is_what_is_counted(self) -> None:
        made = call("h100", passes="bwd")
        running = self.running(made)
        found = staged(running.launch, made.chain)
        assert found is not None
        assert running.shared_in_step() == sum(one.bytes for one in found if one.step)
        assert main_launch(made).seconds["smem"] > 0

    def test_a_tile_waits_for_its_own_operands_and_results(self) -> None:
        """K and V of 128 rows and Q of 64 come at 44 bytes a cycle, dK and dV leave at 32."""
        own = own_cycles(self.running(call("h100", passes="bwd")))
        assert own == pytest.approx((65536 + 16384) / 44 + 65536 / 32)

    def test_a_forward_waits_for_queries_and_keys(self) -> None:
        """128 rows of Q and 64 of K; V comes behind the product, and nobody waits for O to leave."""
        assert own_cycles(self.running(call("h100"), "main")) == pytest.approx((32768 + 16384) / 44)

    def test_ctas_that_begin_together_share_what_one_sm_takes_from_the_l2(self) -> None:
        """256 tiles: two CTAs an SM; of 1,024 tiles 264 begin together."""
        each = (self.running(call("h100", heads=heads), "main") for heads in (8, 32, 4))
        few, many, alone = (replace(one, conditions=Conditions(l2_start="warm")) for one in each)
        mine = (32768 + 16384) / 44
        assert own_cycles(few) == pytest.approx(2 * mine)
        assert own_cycles(many) == pytest.approx(mine * (1 + 264 / 1024))
        assert own_cycles(alone) == pytest.approx(mine)

    def test_products_with_pipelines_of_their_own_wait_for_their_operands_in_these(self) -> None:
        assert own_cycles(self.running(call("h100", "cutlass"), "main")) == 0

    def test_warps_that_load_fetch_all_tiles_but_the_first_ahead(self) -> None:
        """Nobody waits for O to leave: its buffer is its own. All SMs begin together, and share the L2's bandwidth."""
        one = self.running(call("h100", "cudnn", heads=1, seq_q=128), "main")
        many = self.running(call("h100", "cudnn", heads=1320, seq_q=128), "main")
        assert first_cycles(one) == pytest.approx(2 * 32768 / 44)  # Q and the first keys
        share = many.rates.l2() / (132 * (many.rates.clock_hz or 0.0))
        assert share < 44
        assert first_cycles(many) == pytest.approx(2 * 32768 / share)
        assert own_cycles(one) == own_cycles(many) == 0

    def test_columns_beside_the_heads_are_waited_for(self) -> None:
        """Boxes are as wide as the build: 80 columns take as long as 128."""
        whole, narrow = (
            self.running(call("h100", "cudnn", heads=1, seq_q=128, head_dim=d), "main")
            for d in (128, 80)
        )
        assert first_cycles(narrow) == pytest.approx(first_cycles(whole))

    def test_a_first_tile_takes_its_loads_and_its_start(self) -> None:
        """Of ten rounds one has two loads' latency from HBM, the CTA's start and Q and K; from the L2 less."""
        made = call("h100", "cudnn", heads=1320, seq_q=128)
        time = main_launch(made, hbm=False)
        clock, (step,) = time.clock_hz or 0.0, time.pace.step_s
        first = (time.total_s - time.parts["start"] - 10 * (time.pace.tile_s + step)) * clock
        rates = self.running(made, "main").rates
        rates.clock_hz = clock
        own = 2 * 32768 * 132 * clock / rates.l2()
        begin = tile_of(self.running(made, "main")).begin_cycles
        assert first == pytest.approx(own + 2 * (687 + 80) + begin, rel=0.01)

    def test_a_cta_that_ends_with_its_tile_fetches_none_ahead(self) -> None:
        queued = self.running(call("h100", "cudnn", heads=1320, seq_q=128), "main")
        static = replace(queued.launch.schedule, scheduler=Scheduler.STATIC)
        assert queued.later_share == pytest.approx(0.9)
        assert replace(queued, launch=replace(queued.launch, schedule=static)).later_share == 0

    def running(self, made: Call, name: str = "bwd.main") -> Running:
        n, launch = next((n, one) for n, one in enumerate(made.chain.launches) if one.name == name)
        rates = Rates(made.profile, measured=True)
        resident = made.residencies[n]
        return Running(
            made.problem,
            made.kernel,
            made.chain,
            launch,
            resident,
            made.counted,
            rates,
            Conditions(),
            first=False,
        )


def tile_of(running: Running) -> Tile:
    rates = running.rates.of_sm(running.dtype, running.unit)
    assert rates is not None
    return Tile(running, rates)


def own_cycles(running: Running) -> float:
    """Cycles in which every tile waits for its own operands and stores."""
    return tile_operand_cycles(tile_of(running)) + tile_store_cycles(tile_of(running))


def first_cycles(running: Running) -> float:
    """Cycles in which a CTA that stays waits for its first operands, beside two loads and its start."""
    fixed = FIRST_LOADS * running.rates.load_cycles(from_dram=True) + tile_of(running).begin_cycles
    return cta_start_cycles(tile_of(running)) - fixed


class TestStreamedQueries:
    """PyTorch's memory-efficient kernel, whose products fetch Q with K."""

    def test_a_last_block_takes_the_turns_that_its_keys_need(self) -> None:
        (whole,), (ragged,) = (call("h100", "cutlass", seq_k=n).chain.launches for n in (128, 35))
        assert whole.domain.block_k == ragged.domain.block_k == 128
        assert (key_turns(whole), key_turns(ragged)) == (4, 2)  # of 32 keys

    def test_the_second_product_ends_with_the_keys(self) -> None:
        rates = SmRates(Waits(*[0.0] * 6), 1e9, 1024.0, 128.0, 16.0, 128.0, 64.0)
        costs = [step_cost(call("h100", "cutlass", seq_k=n).chain.launches[0], UNITS[MatrixUnit.MMA_SYNC], rates, 0.0,
                           2, 90) for n in (128, 35)]  # fmt: skip
        assert (
            costs[1].tensor / costs[0].tensor == costs[1].smem / costs[0].smem == (1 + 2 / 4) / 2
        )  # turns of four

    def test_values_take_a_product_for_each_tile_of_columns(self) -> None:
        """136 columns of Q and K are 5 turns of 32; those of V are two tiles of 128, whose products walk all keys."""
        (launch,) = call("h100", "cutlass", head_dim=136, seq_k=128).chain.launches
        assert launch.work.pipelines == Pipelines(3, 160, over_keys=2)
        assert not launch.is_backward

    def test_nobody_waits_for_queries_first(self) -> None:
        streams = main_launch(call("h200", "cutlass", heads=1, seq_q=64, seq_k=128))
        fetches = main_launch(call("h200", "cudnn", heads=1, seq_q=1, seq_k=4096))
        cycles = 2 * (682 + 80) / 1.98e9  # two loads from HBM
        assert fetches.parts["start"] - streams.parts["start"] == pytest.approx(cycles)

    def test_loads_take_their_time_at_any_clock(self) -> None:
        waits, usual = (Waits.of(load_profile("h100"), clock) for clock in (1.1, 1.0))
        assert (waits.load, waits.product_step) == (1.1 * usual.load, 1.1 * usual.product_step)
        assert (waits.sync, waits.spill_access) == (usual.sync, usual.spill_access)

    def test_nothing_is_computed_beside_the_bytes_of_first_steps(self) -> None:
        """A round of CTAs with a step each takes the time of its bytes and of its work; a longer loop hides them."""
        one, many = (
            main_launch(call("h100", "cutlass", batch=16, seq_q=128, seq_k=n)) for n in (128, 8192)
        )
        steps = [n * time.pace.step_s[-1] for n, time in ((1, one), (64, many))]
        assert one.total_s > one.parts["start"] + one.seconds["hbm"] + steps[0]
        assert many.total_s < many.parts["start"] + many.seconds["hbm"] + steps[1]


class TestGradients:
    """PyTorch's memory-efficient backward."""

    def main(self, **problem: object) -> Launch:
        launches = call("h100", "cutlass", passes="bwd", **problem).chain.launches
        return next(n for n in launches if n.name == "bwd.main")

    def test_fragments_of_d_come_in_pairs(self) -> None:
        """Four fragments of 16 columns for each of 8 blocks of 64 queries: every second one is waited for."""
        assert self.main(head_dim=64, seq_q=512).work.serial_loads == 2 * 8

    def test_sums_in_fp32_wait_for_what_they_add_to(self) -> None:
        """dK and dV of 128 columns are two tiles each of 128 rows: four loads, eight rows of a warp's 32 at a time."""
        assert self.main(dtype="fp32").work.loop.serial_loads == 4 * 2
        assert self.main(dtype="bf16").work.loop.serial_loads == 0

    def test_warps_that_meet_at_every_turn_hide_half_of_the_shorter(self) -> None:
        cost = StepCost(
            1000, 0, 800, 0, 0, 4, Overlap.QUEUE, warps_meet=True, fragments=800, meeting=400
        )
        assert step_cycles(cost, 1) == 1400


class TestPasses:
    """What surrounds FlashAttention-2's backward: threads wait for loads, one behind the other, in every round."""

    def seconds(self, name: str, **problem: object) -> float:
        made = call("h200", passes="bwd", **problem)
        times = made.time(made.counted + made.capacity()).launches
        return next(time.total_s for time in times if time.name == name)

    def test_a_short_one_takes_its_threads_chain(self) -> None:
        start, load = 2.1e-6 + 2 * 762 / 1.98e9, 762 / 1.98e9
        problem = {"heads": 1, "seq_q": 64, "seq_k": 64}
        convert = self.seconds(
            "bwd.convert", **problem
        )  # 32 values a thread, four at a time, found in the L2
        assert start < convert < start + 8 * load
        assert self.seconds("bwd.copy0", **problem | {"heads": 2}) == pytest.approx(
            start + 4 * load, rel=0.02
        )

    def test_a_fill_waits_for_no_load(self) -> None:
        made = call("h100", "flex", heads=1, seq_q=128)  # zeros two lists of its blocks first
        fill = made.time(made.counted).launches[0]
        assert (fill.name, fill.parts["start"]) == ("fill0", 2.6e-6)

    def test_each_round_waits_anew(self) -> None:
        """512 sums a CTA and nine CTAs an SM: 1,188 are a round."""
        one, two = (
            self.seconds("bwd.sum_dK", heads=4, kv_heads=2, seq_q=1, seq_k=n)
            for n in (1188 * 2, 1189 * 2)
        )
        assert two - one == pytest.approx(
            8 * 762 / 1.98e9, rel=0.5
        )  # less what the bytes of a round take meanwhile


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
        launch, alone = self.main(heads=2, seq_q=1024, seq_k=8192), Makespan(160.0, [1.0], 2.0)
        in_line = in_turn(replace(launch, walks_round=False), alone, 64, 4.0).cycles
        assert in_line == 2 * 8 * 10 + 63 * 4 < 0.9 * in_turn(launch, alone, 64, 4.0).cycles

    @pytest.mark.parametrize(("queries", "cycles"), [(128, 63 * 4), (1024, 7 * 4), (8192, 0)])
    def test_they_queue_once_where_the_work_takes_longer(self, queries: int, cycles: float) -> None:
        """64 CTAs at 1, 8 or 64 locks."""
        launch, alone = self.main(seq_q=queries, seq_k=8192), Makespan(1e6, [1.0], 1.0)
        assert in_turn(launch, alone, 132, 4.0).cycles == 1e6 + cycles


@pytest.mark.parametrize(
    ("kernel", "head_dim", "cycles"),
    [
        ("cutlass", 128, 0),
        # of 240 bytes a row 128 more are fetched twice, in the mean: half of 240 + 16; so of 64 + 2 x 128 rows a step
        ("cutlass", 120, UNHIDDEN_FRAGMENTS * (64 + 2 * 128) * 128),
        ("fa2", 120, 0),  # a loop that loads ahead
    ],
)
def test_sectors_that_copies_fetch_twice(kernel: str, head_dim: int, cycles: float) -> None:
    made = call("h100", kernel, head_dim=head_dim)
    step = main_launch(made).pace.step_s[0]
    rate = made.profile.need("l2_read_bandwidth_measured_bytes_per_s") / 132
    with without(["sectors fetched twice"]):
        others = main_launch(made).pace.step_s[0]
    assert step - others == pytest.approx(cycles / rate, rel=1e-3)


class TestStores:
    def test_what_a_step_stores_takes_the_l2_longer_than_what_it_loads(self) -> None:
        """Sums of dQ, dK and dV that pass through memory, and spilled registers; not what a tile stores at its end."""
        made = call("h100", "cutlass", passes="bwd", head_dim=192, seq_q=1024, seq_k=1024)
        time = main_launch(made)
        slow = replace(made.profile, l2_write_fraction=made.profile.need("l2_write_fraction") / 2)
        assert main_launch(replace(made, profile=slow)).seconds["l2"] > 1.5 * time.seconds["l2"]
        forward = call("h100", "cudnn")
        slow_forward = replace(forward, profile=replace(forward.profile, l2_write_fraction=0.05))
        assert main_launch(slow_forward).seconds["l2"] == main_launch(forward).seconds["l2"]


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
        ("heads", "mask", "least", "most"),
        [
            (132, "none", 1, 1),
            (132, "causal", 0.94, 0.99),
            (7, "none", 0.91, 0.93),
            (7, "causal", 0.84, 0.87),
        ],
    )
    def test_sms_that_end_apart_leave_the_others_more(
        self, heads: int, mask: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An L2 so slow that all wait for it: 132 equal tiles of 132 SMs end together, 224 do not."""
        made = call("h100", "triton", heads=heads, mask=mask, head_dim=64)
        slow = replace(made.profile, l2_read_bandwidth_measured_bytes_per_s=1e12)
        monkeypatch.setattr(loop_time, "L2_BYTES_PER_CYCLE", 5)
        shared = main_launch(replace(made, profile=slow), hbm=False)
        monkeypatch.setattr(Makespan, "share", lambda *_: 1.0)
        alike = main_launch(replace(made, profile=slow), hbm=False)
        assert alike.bound_by == "l2"
        assert least <= shared.total_s / alike.total_s <= most

    def running(self, stored: int = 0) -> Any:
        return SimpleNamespace(
            stored=lambda: stored,
            fetched=lambda: 100 - stored,
            l2_loads=lambda: 100 + stored * 1.38,
        )


class TestAdds:
    def test_warps_wait_for_a_request_of_every_line(self) -> None:
        made = call("h200", passes="bwd")
        launch = next(one for one in made.chain.launches if one.name == "bwd.main")
        assert launch.work.add_requests_per_row == 4  # 128 sums of 4 bytes
        with_adds, without = main_launch(made), main_launch(made, add_requests_per_row=0)
        cycles = (with_adds.pace.step_s[0] - without.pace.step_s[0]) * (with_adds.clock_hz or 0.0)
        assert cycles == pytest.approx(
            launch.domain.block_q * 4 * made.profile.need("add_packet_cycles"), rel=0.02
        )

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
    def test_decoding_runs_at_the_boost_clock_and_prefill_slower(self) -> None:
        profile = load_profile("l40s")
        decode = main_launch(call("l40s", seq_q=1, seq_k=65536, batch=16))
        made = call("l40s", heads=32, seq_q=8192)
        boost, sustained = (
            made.time(made.counted, Conditions(clocks=clocks)) for clocks in ("boost", "sustained")
        )
        assert decode.clock_hz == profile.boost_clock_hz
        clocks = [one.launches[0].clock_hz or 0.0 for one in (sustained, boost)]
        assert clocks[0] < 0.95 * clocks[1] < 0.95 * profile.need("boost_clock_hz")


class TestTurns:
    """Kernels whose loads nothing hides: naive.cu, flash_bwd_rows, minimal.cu, with their bytes in the L2."""

    LOAD = 287 * (1 + 476 / 265) / 2 + 80  # an H200's L2, near and far, its address and a barrier

    def launches(self, kernel: str, **problem: object) -> dict[str, LaunchTime]:
        made = call("h200-sxm", kernel, **{"seq_q": 512, "head_dim": 64, **problem})
        return {one.name: one for one in made.time(made.counted).launches}

    @pytest.mark.parametrize(
        ("launch", "heads", "loads", "lanes", "wavefronts", "instructions", "ctas", "rounds"),
        [
            # a tile of 64 x 64 x 64: 16 loads, 64^3 / 128 multiply-adds, 2 x 2,176 wavefronts; 128 CTAs, one an SM
            ("scores", 2, 16, 2048, 4352, 8 * (385 + 2 * 1170), 1, 1),
            # 8 x 64 tiles: 396 CTAs run, three an SM, then 116, one an SM
            ("scores", 8, 16, 2048, 4352, 8 * (385 + 2 * 1170), 3, 1 + 1j),
            # 16 steps of 32 keys, 8 loads each; 64 CTAs
            ("values", 8, 128, 16 * 1024, 16 * 2176, 8 * (266 + 16 * 1290), 1, 1),
            # two scores a thread, loaded at once; 1,024 rows, 8 CTAs an SM
            ("softmax", 2, 1, 0, 0, 8 * (220 + 2 * 18), 8, 1),
        ],
    )
    def test_waits_of_a_cta_overlap_what_others_issue(
        self, launch: str, heads: int, loads: int, lanes: int, wavefronts: int, instructions: int, ctas: int,
        rounds: complex,
    ) -> None:  # fmt: skip
        one = self.launches("naive-cu", heads=heads)[launch]
        alone = loads * self.LOAD + lanes + wavefronts
        full = math.hypot(alone, ctas * instructions / 4)
        last = math.hypot(alone, instructions / 4) * rounds.imag
        assert (one.total_s - one.parts["start"]) * 1.98e9 == pytest.approx(full + last, rel=2e-3)

    def test_row_sums_wait_twice_in_every_round(self) -> None:
        """8 x 4,096 rows, 8 a CTA and 6 CTAs an SM: 5 rounds of 792 CTAs, then 136, two an SM; two loads, 64
        instructions a warp."""
        one = self.launches("flash-cu", seq_q=4096, passes="bwd")["bwd.dot"]
        six, two = (math.hypot(2 * self.LOAD, n * 8 * 64 / 4) for n in (6, 2))
        assert (one.total_s - one.parts["start"]) * 1.98e9 == pytest.approx(5 * six + two, rel=2e-3)

    def test_a_lone_warp_waits_for_each_column_of_o(self) -> None:
        """16 x 16 pairs of blocks, each with a load a column, and 32 scores of 64 multiply-adds, 4 cycles from one to
        the next, less the issue of as many that pass during the loads."""
        made = call("h200-sxm", "minimal-cu", seq_q=512, head_dim=64, dtype="fp32")
        loop = Loop(loads_ahead=False)
        waits = (
            main_launch(made, hbm=False).total_s - main_launch(made, hbm=False, loop=loop).total_s
        )
        assert waits * 1.98e9 == pytest.approx(256 * (64 * self.LOAD + 32 * 64 * 3 - 32 * 64))


@pytest.mark.parametrize(
    ("gpu", "share"),
    [("h100", UNHIDDEN_FRAGMENTS), ("a100", 0.297), ("rtx-4090", 0.08)],
)
def test_products_at_half_the_rate_hide_more_of_their_fragments(gpu: str, share: float) -> None:
    """Of 128 x 64 scores at head_dim 128 an A100's products take 2,048 cycles and its fragments 1,336; an RTX 4090's
    products four times as long."""
    with recorded() as values:
        main_launch(call(gpu, "fa2", head_dim=128))
    assert values["fragments that show"] / values["shared memory"] == pytest.approx(share, abs=0.02)
