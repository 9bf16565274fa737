"""Times: the step of a key loop, the makespan of a grid, and both against measured launches."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import step_cost
from timed import flash, launch, problem

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.unit import UNITS, MatrixUnit, Overlap, UnitModel
from iosim.readers.timing.rates import SmRates, Waits
from iosim.readers.timing.running import unit_model
from iosim.readers.timing.step_terms import row_padding
from iosim.readers.timing.step_time import StepCost, step_cycles
from iosim.readers.timing.tile_terms import turn_start_cycles

WAITS = Waits(
    load=460.0,
    sync=350.0,
    single_buffer=150.0,
    add_packet=2.7,
    product_step=400.0,
    spill_access=18.0,
)


class TestStep:
    rates = SmRates(
        WAITS,
        1e9,
        tensor_flops=1024.0,
        fp32_lanes=128.0,
        exps=16.0,
        shared_bytes=128.0,
        l2_bytes=64.0,
    )

    def cost(self, tile: Tile, unit: MatrixUnit = MatrixUnit.MMA_SYNC, cc: int = 90) -> StepCost:
        return step_cost(launch(tile), UNITS[unit], self.rates, 32768.0, 2, cc)

    def test_tensor_cycles_are_flops_over_rate(self) -> None:
        assert (
            self.cost(Tile(128, 64, 4)).tensor == 128 * 64 * 4 * 128 / 1024
        )  # two products of 2 x 128 a score

    def test_l2_cycles_are_bytes_over_rate(self) -> None:
        assert self.cost(Tile(128, 64, 4)).l2 == 32768 / 64

    def test_every_warp_fetches_k_and_v_from_shared_memory(self) -> None:
        # K and V 64 x 128 x 2 bytes x 2 for each warp, Q 128 x 128 x 2 once, 26 wavefronts of 128 bytes a warp
        four = self.cost(Tile(128, 64, 4)).smem
        eight = self.cost(Tile(128, 64, 8)).smem
        assert four * 128 == 4 * (32768 + 26 * 128) + 32768
        assert eight * 128 == 8 * (32768 + 26 * 128) + 32768

    def test_unknown_rates_cost_nothing(self) -> None:
        none = SmRates(WAITS, 1e9, *[math.inf] * 5)
        cost = step_cost(launch(Tile(128, 64, 4)), UNITS[MatrixUnit.MMA_SYNC], none, 1.0, 2, 90)
        assert (cost.tensor, cost.softmax, cost.smem, cost.l2) == (0, 0, 0, 0)

    def test_loads_are_waited_for_where_nothing_copies_ahead(self) -> None:
        assert self.cost(Tile(64, 64, 4, 2)).exposed == WAITS.sync
        assert self.cost(Tile(64, 64, 4, 2), cc=75).exposed == 2 * WAITS.load  # K, then V
        assert self.cost(Tile(64, 64, 4, 1), MatrixUnit.WGMMA).exposed == 2 * WAITS.load

    def test_one_stream_adds_its_phases(self) -> None:
        # one CTA of four warps: nothing hides the softmax, nor 32 % of the fragments
        alone = StepCost(100, 50, 10, 0, exposed=7, streams=1, overlap=Overlap.QUEUE)
        assert step_cycles(alone, 1) == 157
        assert step_cycles(replace(alone, shown_fragments=3.2), 1) == pytest.approx(157 + 3.2)

    def test_further_streams_add_the_busiest_unit(self) -> None:
        cost = StepCost(100, 50, 10, 0, exposed=7, streams=1, overlap=Overlap.QUEUE)
        assert step_cycles(cost, 3) == 157 + 2 * 100

    def test_long_products_of_one_cta_hide_a_part_of_the_softmax_of_another(self) -> None:
        """Of the 100 - 57 - 3 cycles by which mma.sync lasts longer half hide: 20. A softmax as long hides nothing."""
        cost = StepCost(
            100,
            50,
            10,
            0,
            exposed=7,
            streams=1,
            overlap=Overlap.QUEUE,
            fragments=10,
            shown_fragments=3,
        )
        assert step_cycles(cost, 1) == 160
        assert step_cycles(cost, 2) == 160 + 100 - 20
        assert step_cycles(replace(cost, softmax=90), 2) == 200 + 100
        assert step_cycles(replace(cost, softmax=4, exposed=1), 2) == 2 * 100
        fetched = replace(cost, fragments=0.0)  # wgmma
        assert step_cycles(fetched, 2) == 160 + 100

    @pytest.mark.parametrize(
        ("unit", "share"), [(MatrixUnit.SPECIALISED, 0.5), (MatrixUnit.WGMMA, 0)]
    )
    def test_warpgroups_that_take_turns_begin_a_tile_together(
        self, unit: MatrixUnit, share: float
    ) -> None:
        """Half of a step's products show once more per tile."""
        tile = SimpleNamespace(running=SimpleNamespace(unit=UNITS[unit]), shown_share=1.0)
        assert turn_start_cycles(tile, 100.0) == share * 100.0

    def test_past_two_ctas_the_units_of_an_sm_work_side_by_side(self) -> None:
        cost = StepCost(30, 100, 10, 0, exposed=0, streams=1, overlap=Overlap.QUEUE, further=60)
        assert [step_cycles(cost, n) for n in (1, 2, 3, 5)] == [130, 230, 290, 410]

    def test_warpgroups_in_turn_overlap_in_part(self) -> None:
        """Of two equal parts the step takes 2^(1/1.67) times one, of both in turn the sum."""
        cost = StepCost(
            100, 100, 10, 0, exposed=0, streams=3, overlap=Overlap.INSIDE, specialised=True
        )
        assert step_cycles(cost, 1) == pytest.approx(2 ** (1 / 1.67) * 100)
        assert step_cycles(replace(cost, specialised=False), 2) == 400

    def test_what_the_l2_moves_is_hidden_in_part(self) -> None:
        """Of two equal parts the step takes 2^(1/2.8) times one; where the L2 is far slower, what it takes."""
        even, slow = (
            StepCost(50, 50, 1, l2, exposed=0, streams=1, overlap=Overlap.QUEUE)
            for l2 in (100, 8000)
        )
        assert step_cycles(even, 1) == pytest.approx(100 * 2 ** (1 / 2.8))
        assert step_cycles(replace(even, hides_l2=True), 1) == 100
        assert step_cycles(slow, 2) == pytest.approx(16000)
        assert step_cycles(replace(slow, hides_l2=True), 2) == 16000

    @pytest.mark.parametrize(
        ("tile", "unit", "hidden"),
        [
            (Tile(64, 64, 4, 2), MatrixUnit.MMA_SYNC, False),
            (
                Tile(64, 64, 4, 3),
                MatrixUnit.MMA_SYNC,
                True,
            ),  # the keys of a step are asked for two steps before
            (Tile(128, 128, 12), MatrixUnit.SPECIALISED, True),
            (Tile(128, 128, 12), MatrixUnit.PINGPONG, False),
        ],
    )
    def test_who_hides_it(self, tile: Tile, unit: MatrixUnit, hidden: bool) -> None:
        assert self.cost(tile, unit).hides_l2 == hidden

    @given(
        st.lists(st.floats(0, 1e4), min_size=5, max_size=5),
        st.sampled_from([0.25, 1, 2, 3]),
        st.integers(1, 8),
        st.floats(0.5, 1),
    )
    def test_more_ctas_take_longer_but_not_longer_each(
        self, parts: list[float], streams: float, n: int, share: float
    ) -> None:
        cost = StepCost(
            *parts[:4], exposed=parts[4], streams=streams, overlap=Overlap.QUEUE, fragments=parts[2]
        )
        cost = replace(cost, further=parts[1] * share)
        fewer = step_cycles(cost, n)
        more = step_cycles(cost, n + 1)
        assert fewer <= more * (1 + 1e-9)
        assert more / (n + 1) <= fewer / n * (1 + 1e-9)
        assert fewer >= max(cost.least(n), n * parts[3]) * (1 - 1e-9)
        assert (
            share * n * cost.busiest * (1 - 1e-9) <= cost.least(n) <= n * cost.busiest * (1 + 1e-9)
        )

    @pytest.mark.parametrize(
        ("block_q", "warps", "unit", "padding"),
        [
            (128, 4, MatrixUnit.MMA_SYNC, 1.0),
            (32, 4, MatrixUnit.MMA_SYNC, 2.0),  # four warps of 16 rows for 32: each row twice
            (64, 8, MatrixUnit.WGMMA, 2.0),  # two warpgroups of 64 rows for 64
            (192, 8, MatrixUnit.WGMMA, 4 / 3),  # 2 x 64 rows twice
            (1, 4, MatrixUnit.FP32, 1.0),
        ],
    )
    def test_idle_rows(self, block_q: int, warps: int, unit: MatrixUnit, padding: float) -> None:
        assert row_padding(block_q, warps, UNITS[unit]) == padding


class TestMatrixUnit:
    @staticmethod
    def of(kernel: Kernel, gpu: str = "h100", **values: object) -> list[UnitModel]:
        """Of the chain's attention loops."""
        attention, profile = problem(**values), load_profile(gpu)
        return [
            unit_model(planned_launch, profile, attention.dtype, kernel)
            for planned_launch in plan(attention, kernel).launches
            if planned_launch.work.exps_per_pair
        ]

    def test_every_unit_has_a_row_with_its_source(self) -> None:
        assert set(UNITS) == set(MatrixUnit)
        assert all(model.source for model in UNITS.values())

    def test_libraries_on_hopper(self) -> None:
        h100, attention, both = (
            load_profile("h100"),
            problem(),
            problem(passes="fwd+bwd", seq_q=1, heads=2),
        )
        units = {name: self.of(resolve(name, attention, h100)) for name in ("fa2", "fa3", "cudnn")}
        assert units == {
            "fa2": [UNITS[MatrixUnit.MMA_SYNC]],
            "fa3": [UNITS[MatrixUnit.PINGPONG]],
            "cudnn": [UNITS[MatrixUnit.SPECIALISED]],
        }
        # cuDNN decodes with another kernel, of one warpgroup; its backward is the specialised one there, too
        decoded = self.of(resolve("cudnn", both, h100), passes="fwd+bwd", seq_q=1, heads=2)
        assert decoded == [UNITS[MatrixUnit.MMA_SYNC], UNITS[MatrixUnit.SPECIALISED]]

    def test_the_kernel_may_say(self) -> None:
        kernel = flash(Tile(64, 64, 4), MatrixUnit.WGMMA)
        assert self.of(kernel) == [UNITS[MatrixUnit.WGMMA]]
        assert self.of(kernel, "a100") == [UNITS[MatrixUnit.MMA_SYNC]]  # no wgmma there
        assert self.of(kernel, dtype="fp32") == [UNITS[MatrixUnit.FP32]]

    def test_nonsense_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"abacus.*accepted: fp32, mma\.sync"):
            flash(Tile(64, 64, 4), "abacus")  # type: ignore[arg-type]
