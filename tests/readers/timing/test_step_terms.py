"""Terms of a step: spills, masks, lists of blocks, streamed queries, gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
from steps import step_cost
from timed_launches import call, main_launch

from iosim.hardware.profile import load_profile
from iosim.kernel.launch import Launch
from iosim.kernel.unit import UNITS, MatrixUnit, Overlap
from iosim.kernel.work import MaskOperations, Pipelines
from iosim.readers.timing.rates import SmRates, Waits
from iosim.readers.timing.step_terms import UNHIDDEN_FRAGMENTS, edge_share, key_turns
from iosim.readers.timing.step_time import StepCost, step_cycles
from iosim.readers.timing.terms import recorded, without


class TestSpillsAndMasks:
    def test_spills_around_the_loop_cost_time_once_a_tile(self) -> None:
        backward_call = call("h200", mask="causal", seq_q=4000, seq_k=4000)
        spill = backward_call.chain.launches[0].work.spill
        assert spill.tile == 0  # those that its instructions have outside the loop show in no time
        slower, faster = (
            main_launch(backward_call, spill=replace(spill, tile=n)) for n in (100.0, 0.0)
        )
        per_tile = (slower.pace.tile_s - faster.pace.tile_s) * (slower.clock_hz or 0.0)
        assert per_tile == pytest.approx(
            100 * backward_call.profile.need("spill_access_cycles"), rel=0.01
        )

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


class TestListsOfBlocks:
    """FlexAttention's forward: 128 x 64, eight warps, head_dim 128."""

    rates = SmRates(Waits(*[0.0] * 6), 1e9, 1024.0, 128.0, 16.0, 128.0, 64.0)

    def cost(self, **problem: object) -> StepCost:
        launches = call("h100", "flex", **{"seq_q": 4096, **problem}).chain.launches
        main = next(launch for launch in launches if launch.name == "main")
        assert (main.domain.block_q, main.domain.block_k, main.resources.threads) == (128, 64, 256)
        return step_cost(main, UNITS[MatrixUnit.WGMMA], self.rates, 0.0, 2, 90)

    def test_a_list_is_waited_for_and_asked_of_the_blocks_at_its_ends(self) -> None:
        plain = self.cost()
        causal = self.cost(mask="causal")
        assert causal.exposed - plain.exposed == 100
        # 0.688 instructions a score more in every step, and 4.25 in the last block of 128 keys of each tile: 64 of its
        # 2 x (1 + ... + 32) steps. Eight warps, two a scheduler, issue every second cycle.
        more = 0.688 + 4.25 * 64 / 1056
        assert causal.softmax - plain.softmax == pytest.approx(2 * more * 128 * 64 / 128)

    def test_ragged_lengths_are_asked_for_at_every_score(self) -> None:
        """2.5 instructions on each of 128 x 64 scores, 128 lanes a cycle, every second cycle."""
        more = self.cost(seq_q=4095).softmax - self.cost().softmax
        assert more == pytest.approx(2.5 * 128 * 64 / 128 * 2)

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
        ragged = replace(launch, domain=domain, work=replace(launch.work, mask=mask))
        assert edge_share(ragged) * domain.visited.count.sum() == pytest.approx(steps)

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


class TestStreamedQueries:
    """PyTorch's memory-efficient kernel, whose products fetch Q with K."""

    def test_a_last_block_takes_the_turns_that_its_keys_need(self) -> None:
        (whole,), (ragged,) = (call("h100", "cutlass", seq_k=n).chain.launches for n in (128, 35))
        assert whole.domain.block_k == ragged.domain.block_k == 128
        assert (key_turns(whole), key_turns(ragged)) == (4, 2)  # of 32 keys

    def test_the_second_product_ends_with_the_keys(self) -> None:
        rates = SmRates(Waits(*[0.0] * 6), 1e9, 1024.0, 128.0, 16.0, 128.0, 64.0)
        costs = [
            step_cost(
                call("h100", "cutlass", seq_k=n).chain.launches[0],
                UNITS[MatrixUnit.MMA_SYNC],
                rates,
                0.0,
                2,
                90,
            )
            for n in (128, 35)
        ]
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
        waits, at_one_ghz = (Waits.of(load_profile("h100"), clock) for clock in (1.1, 1.0))
        assert (waits.load, waits.product_step) == (
            1.1 * at_one_ghz.load,
            1.1 * at_one_ghz.product_step,
        )
        assert (waits.sync, waits.spill_access) == (at_one_ghz.sync, at_one_ghz.spill_access)

    def test_nothing_is_computed_beside_the_bytes_of_first_steps(self) -> None:
        """A round of CTAs with a step each takes the time of its bytes and of its work; a longer loop hides them."""
        single, many = (
            main_launch(call("h100", "cutlass", batch=16, seq_q=128, seq_k=n)) for n in (128, 8192)
        )
        steps = [n * time.pace.step_s[-1] for n, time in ((1, single), (64, many))]
        assert single.total_s > single.parts["start"] + single.seconds["hbm"] + steps[0]
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
    whole_call = call("h100", kernel, head_dim=head_dim)
    step = main_launch(whole_call).pace.step_s[0]
    rate = whole_call.profile.need("l2_read_bandwidth_measured_bytes_per_s") / 132
    with without(["sectors fetched twice"]):
        others = main_launch(whole_call).pace.step_s[0]
    assert step - others == pytest.approx(cycles / rate, rel=1e-3)


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
