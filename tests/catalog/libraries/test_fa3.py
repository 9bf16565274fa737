"""FlashAttention-3: tiles, clusters, ping-pong in the timing model, published speeds, fp8 and its quantisation."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any
from xml.etree import ElementTree

import pytest
import reproduced
from counter import count
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scripts import ROOT, load_script
from steps import step_cost
from strategies import disagreements

from iosim.base.errors import InputError
from iosim.catalog.algorithms import options_for, plan
from iosim.catalog.algorithms.fp8 import Fp8Options, Transpose
from iosim.catalog.libraries import resolve
from iosim.catalog.libraries.fa3 import cluster
from iosim.commands.cli import main
from iosim.evidence.reproduce import Row
from iosim.evidence.reproduce.published import Point, points
from iosim.hardware.profile import load_profile
from iosim.kernel.conditions import Conditions
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.residency import residency
from iosim.kernel.schedule import Order
from iosim.kernel.unit import UNITS, MatrixUnit
from iosim.prediction.call import Call
from iosim.prediction.predictor import predict
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing import overlap as timing
from iosim.readers.timing import step_terms, step_time
from iosim.readers.timing.overlap import beside
from iosim.readers.timing.rates import SmRates, Waits
from iosim.readers.timing.running import reuses_keys, unit_model
from iosim.readers.timing.step_time import StepCost, computing_groups, step_cycles

H100 = load_profile("h100")
REPORTS = ROOT / "reports"


def problem(**values: Any) -> AttentionProblem:
    return AttentionProblem(
        **({"heads": 16, "seq_q": 4096, "head_dim": 128, "dtype": "fp16"} | values)
    )


def fa3(**values: Any) -> Kernel:
    return resolve("fa3", problem(**values), H100)


def test_a_section_of_a_packed_grid_has_key_heads() -> None:
    """A grid whose tiles pack a group has key/value heads: 32 MiB hold eight of 8,192 keys (4 MiB each), which are 32
    query heads of groups of four where nothing is packed (hopper/tile_scheduler.hpp, swizzle and qhead_per_khead)."""
    h100 = load_profile("h100")
    for tokens, packed, heads in ((33, True, 8), (8192, False, 32)):
        sizes = {
            "batch": 16,
            "heads": 64,
            "kv_heads": 16,
            "seq_q": tokens,
            "seq_k": 8192,
            "head_dim": 128,
        }
        kernel = resolve("fa3", AttentionProblem(**sizes, dtype="bf16", mask="causal"), h100)
        assert (kernel.packs_group, kernel.schedule.section_heads) == (packed, heads)
    for page_size, heads in ((None, 8), (1, 2)):  # the queue of packed sequences: 8 MiB hold two
        paged = AttentionProblem(
            **sizes | {"seq_q": 8192, "page_size": page_size}, dtype="bf16", mask="causal"
        )
        kernel = resolve("vllm-fa3", paged, h100)
        assert (kernel.packs_group, kernel.schedule.section_heads) == (page_size is not None, heads)


class TestTiles:
    @pytest.mark.parametrize(("head_dim", "mask", "dtype", "tile", "threads", "registers"), [
        (64, "none", "fp16", "192x192", 512, 128),
        (64, "causal", "bf16", "192x128", 512, 128),
        (96, "none", "fp16", "192x144", 512, 128),
        (128, "none", "fp16", "128x176", 384, 168),
        (128, "causal", "fp16", "128x128", 384, 168),
        (192, "causal", "fp16", "128x112", 384, 168),
        (256, "none", "fp16", "128x80", 384, 168),
        (64, "none", "fp8", "192x160", 512, 128),
        (128, "causal", "fp8", "128x224", 384, 168),
        (256, "none", "fp8", "128x128", 384, 168),
    ])  # fmt: skip
    def test_forward(
        self, head_dim: int, mask: str, dtype: str, tile: str, threads: int, registers: int
    ) -> None:
        kernel = fa3(head_dim=head_dim, mask=mask, dtype=dtype)
        assert (str(kernel.tile), kernel.cta_threads, kernel.registers) == (
            tile,
            threads,
            registers,
        )
        launch = plan(problem(head_dim=head_dim, mask=mask, dtype=dtype), kernel).launches[0]
        held = residency(launch, H100)
        assert held.ctas_per_sm == 1
        assert held.occupancy.ctas_per_sm == 1  # it fits
        # one warpgroup loads; each 64 rows have one that computes
        assert threads == 128 * (kernel.tile.block_q // 64 + 1)

    def test_fp8_holds_v_twice(self) -> None:
        # Q 128 x 128, and two stages of K, V and V transposed, 224 x 128 each: 16,384 + 2 x 3 x 28,672
        assert fa3(dtype="fp8").shared_memory_bytes == 188_416

    @pytest.mark.parametrize(
        ("head_dim", "mask", "tile", "warps", "registers"),
        [
            (64, "none", "128x128", 12, 168),
            (96, "none", "64x128", 12, 168),
            (128, "none", "80x128", 12, 168),
            (128, "causal", "64x128", 12, 168),
            (192, "none", "64x96", 16, 128),
            (256, "causal", "64x80", 12, 168),
        ],
    )
    def test_backward(
        self, head_dim: int, mask: str, tile: str, warps: int, registers: int
    ) -> None:
        case = problem(head_dim=head_dim, mask=mask, passes="bwd")
        kernel = resolve("fa3", case, H100)
        assert kernel.backward.tile is not None
        assert (str(kernel.backward.tile), kernel.backward.tile.warps) == (tile, warps)
        main_launch = next(n for n in plan(case, kernel).launches if n.name == "bwd.main")
        assert main_launch.resources.registers == registers
        assert residency(main_launch, H100).occupancy.ctas_per_sm == 1

    def test_schedules(self) -> None:
        assert fa3().schedule.order is Order.QUERY
        causal = resolve("fa3", problem(mask="causal", passes="fwd+bwd"), H100)
        # K and V of a head: 4,096 x 256 x 2 bytes = 2 MiB: 16 heads fit in 32 MiB, and 16 (of 20) in 40 MiB
        assert (causal.schedule.order, causal.schedule.section_heads) == (Order.HEAD, 16)
        assert (causal.backward.schedule.order, causal.backward.schedule.section_heads) == (
            Order.HEAD,
            16,
        )

    @pytest.mark.parametrize(
        ("changes", "cluster"),
        [
            ({}, 2),  # 32 query blocks of 128
            ({"seq_q": 4000}, 2),  # 32, the last ragged
            ({"seq_q": 4224}, 1),  # 33
            ({"mask": "causal"}, 1),
            ({"head_dim": 64}, 1),
            ({"head_dim": 256}, 2),
            ({"dtype": "fp8"}, 1),
            ({"dtype": "fp8", "head_dim": 192}, 2),
        ],
    )
    def test_clusters(self, changes: dict[str, Any], cluster: int) -> None:
        assert fa3(**changes).schedule.cluster == cluster

    def test_splits_go_without_a_cluster(self) -> None:
        assert cluster(problem(), 128, 128, splits=2) == 1


class TestPingPong:
    rates = SmRates(
        Waits(460.0, 350.0, 150.0, 2.7, 400.0, 18.0),
        1e9,
        tensor_flops=4096.0,
        fp32_lanes=128.0,
        exps=16.0,
        shared_bytes=128.0,
        l2_bytes=64.0,
    )

    def test_the_backward_takes_no_turns(self) -> None:
        case = problem(passes="fwd+bwd")
        kernel = resolve("fa3", case, H100)
        chain = plan(case, kernel)
        units = {
            n.name: unit_model(n, H100, "fp16", kernel)
            for n in chain.launches
            if n.work.flops_per_pair
        }
        assert units == {
            "main": UNITS[MatrixUnit.PINGPONG],
            "bwd.main": UNITS[MatrixUnit.SPECIALISED],
        }

    @pytest.mark.parametrize(
        ("warps", "unit", "groups"),
        [
            (12, MatrixUnit.PINGPONG, 2.0),
            (16, MatrixUnit.PINGPONG, 3.0),
            (4, MatrixUnit.PINGPONG, 1.0),
            (12, MatrixUnit.WGMMA, 3.0),
            (2, MatrixUnit.MMA_SYNC, 0.5),
        ],
    )
    def test_computing_groups(self, warps: int, unit: MatrixUnit, groups: float) -> None:
        assert computing_groups(warps, UNITS[unit]) == groups

    @pytest.mark.parametrize(("groups", "cycles"), [(1, 150), (2, 125), (3, 100 + 50 / 3)])
    def test_of_n_groups_one_nth_of_the_shorter_work_shows(
        self, groups: int, cycles: float
    ) -> None:
        cost = StepCost(
            100, 50, 0, 0, exposed=0, streams=groups, overlap=UNITS[MatrixUnit.PINGPONG].overlap
        )
        assert step_cycles(cost, 1) == pytest.approx(cycles)
        other = replace(cost, tensor=50, softmax=100)
        assert step_cycles(other, 1) == pytest.approx(cycles)

    def test_a_step_at_head_dim_128(self) -> None:
        launch = plan(problem(), fa3()).launches[0]
        cost = step_cost(launch, UNITS[MatrixUnit.PINGPONG], self.rates, 0.0, 2, 90)
        # 128 x 176 scores, two products of 2 x 128 operations each, at 4,096 a cycle
        assert cost.tensor == 128 * 176 * 512 / 4096
        softmax = 1 / 16 + (step_terms.FP32_OPERATIONS_PER_SCORE + 128 / 176) / 128
        assert cost.softmax == pytest.approx(128 * 176 * softmax)
        assert (cost.exposed, cost.streams) == (0.0, 2.0)

    def test_fp8_transposes_v_in_shared_memory(self) -> None:
        case = problem(dtype="fp8")
        launch = plan(case, fa3(dtype="fp8")).launches[0]
        plain = step_cost(launch, UNITS[MatrixUnit.SPECIALISED], self.rates, 0.0, 1, 90).smem
        turned = step_cost(launch, UNITS[MatrixUnit.PINGPONG], self.rates, 0.0, 1, 90).smem
        # V's 224 x 128 bytes read once more and written once more, 128 bytes a cycle
        assert turned - plain == 2 * 224 * 128 / 128
        half = step_cost(launch, UNITS[MatrixUnit.PINGPONG], self.rates, 0.0, 2, 90).smem
        assert half == 2 * plain  # not so in fp16

    def test_power_holds_the_mean_below_the_specified_rate(self) -> None:
        """With energies that were taken as with its own."""
        case = problem(head_dim=256, seq_q=16384, heads=8)
        kernel = resolve("fa3", case, H100)
        for profile in (H100, replace(H100, tensor_pj_per_flop=None)):
            prediction = predict(case, kernel, profile, method="capacity", clocks="sustained")
            assert prediction.time.power_w == pytest.approx(700, rel=1e-3)
            assert (
                prediction.time.total_s
                > 1.1 * prediction.call.time(prediction.traffic, measured=False).total_s
            )

    def test_multicast_halves_what_a_cluster_fetches(self) -> None:
        case = problem(head_dim=256)
        kernel = resolve("fa3", case, H100)
        alone = kernel.with_(schedule=replace(kernel.schedule, cluster=1))
        single, two = (
            call.time(call.counted).total_s
            for call in (Call.of(case, k, H100) for k in (alone, kernel))
        )
        assert 1.04 < single / two < 1.3


class TestOverlap:
    @given(st.floats(0, 1e3), st.floats(0, 1e3))
    def test_between_the_longest_and_the_sum(self, first: float, second: float) -> None:
        together = beside(first, second)
        assert max(first, second) * (1 - 1e-12) <= together <= (first + second) * (1 + 1e-12)
        assert beside(second, first) == together
        assert beside(2 * first, 2 * second) == pytest.approx(2 * together)

    def test_equal_work_of_two_kinds(self) -> None:
        assert beside(1.0, 1.0) == pytest.approx(2 ** (1 / timing.OVERLAP_NORM))
        assert beside(0.0, 0.0) == 0.0

    def test_far_shorter_work_is_hidden(self) -> None:
        assert beside(1.0, 0.01) < 1.0001

    def test_only_tiles_that_share_what_they_stream_wait_together(self) -> None:
        def main_launch(**values: Any) -> Any:
            return plan(problem(**values), Kernel("flash", "flash", Tile(128, 64))).launches[0]

        assert reuses_keys(main_launch())
        assert not reuses_keys(main_launch(seq_q=1, seq_k=4096))  # decoding streams its keys once
        assert not reuses_keys(main_launch(seq_q=128, seq_k=4096))


@cache
def predictions() -> tuple[tuple[Point, Prediction], ...]:
    return tuple((p, p.predicted()) for p in points())


def errors(
    wanted: Callable[[Point], bool], clocks: str | None = None, **planted: float
) -> list[float]:
    """Predicted over published speed, less one, at the constants of the moment and with what is planted in the
    profile; at the paper's clock, or at others."""
    ratios = []
    for point, prediction in predictions():
        if wanted(point):
            call = replace(prediction.call, profile=replace(prediction.profile, **planted))  # type: ignore[arg-type]
            time = call.time(prediction.traffic, Conditions(clocks=clocks or point.clocks))
            ratios.append(point.counted_flops / time.total_s / 1e12 / point.tflops - 1)
    return ratios


def mean(values: list[float]) -> float:
    return statistics.fmean(map(abs, values))


def is_fa3(
    dtype: str = "fp16", passes: str = "fwd", fitted: bool | None = None
) -> Callable[[Point], bool]:
    return lambda p: (
        (p.kernel, p.dtype, p.passes) == ("fa3", dtype, passes) and fitted in (None, p.fitted)
    )


@pytest.mark.slow
class TestPublishedSpeeds:
    def test_there_is_every_point(self) -> None:
        assert len(predictions()) == 105
        assert (
            sum(p.fitted for p, _ in predictions()) == 18
        )  # three of six lengths, three head_dims, two masks

    def test_problem_and_operations(self) -> None:
        point = next(
            p
            for p, _ in predictions()
            if (p.kernel, p.head_dim, p.seq, p.mask) == ("fa3", 64, 512, "causal")
        )
        assert (point.problem.batch, point.problem.heads) == (32, 32)
        assert point.counted_flops == 4 * 512**2 * 64 * 32 * 32 / 2
        back = next(
            p for p, _ in predictions() if p.passes == "bwd" and p.seq == 512 and p.head_dim == 64
        )
        assert back.counted_flops == 5 * point.counted_flops  # not halved, times 2.5

    def test_forward_of_the_fit_half_and_of_the_other(self) -> None:
        assert mean(errors(is_fa3(fitted=True))) < 0.05
        held_out = errors(is_fa3(fitted=False))
        assert len(held_out) == 18
        assert mean(held_out) < 0.044
        assert max(map(abs, held_out)) < 0.09

    def test_backward_that_nothing_was_fitted_on(self) -> None:
        """Too fast at the paper's clock, which power lowers in loops of calls of 10 ms each."""
        assert mean(errors(is_fa3(passes="bwd"))) < 0.08
        assert mean(errors(is_fa3(passes="bwd"), clocks="sustained")) < 0.06

    def test_fp8_that_nothing_was_fitted_on(self) -> None:
        assert max(map(abs, errors(is_fa3("fp8")))) < 0.15

    @pytest.mark.parametrize(("gpu", "limit"), [("h100-sxm", 0.06), ("a100-sxm-80gb", 0.075)])
    def test_flash_attention_2(self, gpu: str, limit: float) -> None:
        assert mean(errors(lambda p: p.kernel == "fa2" and p.gpu == gpu)) < limit

    def test_a_constant_far_off_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert mean(errors(is_fa3(fitted=False), pingpong_tile_cycles=9000.0)) > 0.05
        monkeypatch.setattr(timing, "OVERLAP_NORM", 50.0)
        assert mean(errors(is_fa3(fitted=False))) > 0.05

    def test_a_forgotten_loading_warpgroup_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        as_it_is = statistics.fmean(errors(is_fa3()))
        monkeypatch.setattr(step_time, "computing_groups", lambda warps, unit, producers: warps / 4)
        assert statistics.fmean(errors(is_fa3())) > as_it_is + 0.03

    def test_a_forgotten_multicast_is_seen(self) -> None:
        wide = [
            (p, m)
            for p, m in predictions()
            if is_fa3()(p) and p.head_dim == 256 and p.mask == "none"
        ]
        ratios = []
        for point, prediction in wide:
            kernel = prediction.kernel.with_(
                schedule=replace(prediction.kernel.schedule, cluster=1)
            )
            time = Call.of(prediction.problem, kernel, prediction.profile).time(
                prediction.traffic, Conditions(clocks=point.clocks)
            )
            ratios.append(point.counted_flops / time.total_s / 1e12 / point.tflops - 1)
        as_it_is = errors(lambda p: is_fa3()(p) and p.head_dim == 256 and p.mask == "none")
        assert statistics.fmean(ratios) < statistics.fmean(as_it_is) - 0.03


@pytest.mark.slow
class TestSection:
    @property
    def rows(self) -> list[Row]:
        return reproduced.rows("D")

    def test_every_point_is_a_row(self) -> None:
        claims = [r.claim for r in self.rows]
        assert len(set(claims)) == len(claims)
        assert (
            sum(r.unit == "TFLOP/s" and " N = " in r.claim for r in self.rows) == 105 + 12
        )  # and SageAttention's

    def test_statements(self) -> None:
        row = next(r for r in self.rows if "up to 740" in r.claim)
        assert row.ratio == pytest.approx(1.0, abs=0.04)
        linear = next(r for r in self.rows if "linear" in r.claim)
        assert linear.computed == pytest.approx(2.0, abs=1e-3)

    def test_large_gaps_have_a_reason(self) -> None:
        for row in self.rows:
            if " N = " in row.claim and row.ratio is not None and abs(row.ratio - 1) > 0.12:
                assert row.note, row.claim


class TestQuantisation:
    @settings(max_examples=examples(60), deadline=None)
    @given(st.data())
    def test_readers_agree_and_the_output_is_attention(self, data: st.DataObject) -> None:
        heads = data.draw(st.sampled_from([(1, 1), (4, 2), (3, 3)]))
        attention = AttentionProblem(
            batch=data.draw(st.integers(1, 2)),
            heads=heads[0],
            kv_heads=heads[1],
            seq_q=data.draw(st.integers(1, 30)),
            seq_k=data.draw(st.integers(1, 30)),
            head_dim=data.draw(st.sampled_from([1, 4, 8])),
            head_dim_v=data.draw(st.sampled_from([None, 5])),
            dtype="fp8",
            layout=data.draw(st.sampled_from(["bhsd", "bshd"])),
            mask=data.draw(st.sampled_from(["none", "causal"])),
            output=data.draw(st.sampled_from(["bf16", "fp32"])),
        )
        tile = Tile(data.draw(st.sampled_from([4, 8])), data.draw(st.sampled_from([4, 6])))
        how = data.draw(st.sampled_from(["in-kernel", "separate"]))
        kernel = Kernel("fp8", "flash_fp8", tile, options=Fp8Options(transpose_v=Transpose(how)))
        assert disagreements(attention, kernel) == []

    def test_bytes(self) -> None:
        case = problem(dtype="fp8", seq_q=1024)
        counts = count(plan(case, resolve("fa3-fp8", case, H100)))
        tensor = 1024 * 128 * 16  # elements of Q, K or V
        for name in "QKV":
            launch = f"quantise_{name}"
            assert counts.total("l2", "read", launch=launch) == 2 * tensor  # bf16
            blocks = 8 if name == "Q" else 5  # of 128 rows, of 224
            assert counts.total("l2", "write", launch=launch) == tensor + 32 * blocks * 16
        # K once for each of 8 query blocks, and a scale with each of its 5 blocks
        assert counts.total("l2", "read", launch="main", tensor="K_fp8") == 8 * tensor
        assert counts.total("l2", "read", launch="main", tensor="K_scale") == 8 * 5 * 16 * 32

    def test_a_transpose_apart_moves_v_twice_more(self) -> None:
        case = problem(dtype="fp8", seq_q=1024)
        counts = count(plan(case, resolve("fa3-fp8-transposed", case, H100)))
        assert counts.total("l2", launch="transpose_V") == 2 * 1024 * 128 * 16
        assert str(resolve("fa3-fp8-transposed", case, H100).tile) == "128x192"

    def test_quantising_costs_time(self) -> None:
        case = problem(dtype="fp8", seq_q=1024, batch=16)
        times = [
            predict(case, k, H100).time.total_s for k in ("fa3", "fa3-fp8", "fa3-fp8-transposed")
        ]
        assert times == sorted(times)
        # 3 x 16 x 4.2 MB read as bf16 and half of it written, at 3.35 TB/s
        assert times[1] - times[0] > 3 * 16 * 1024 * 128 * 16 * 3 / 3.352e12

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"dtype": "fp16"}, "dtype fp16"),
            ({"passes": "bwd"}, "passes bwd"),
            ({"dropout": 0.1}, "dropout 0.1"),
        ],
    )
    def test_bad_problems(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words):
            predict(problem(**({"dtype": "fp8"} | changes)), "fa3-fp8", H100)

    def test_fa3_has_no_backward_in_fp8(self) -> None:
        with pytest.raises(InputError, match=r"passes fwd.bwd: kernel fa3 has no backward in fp8"):
            resolve("fa3", problem(dtype="fp8", passes="fwd+bwd"), H100)

    def test_bad_transpose(self) -> None:
        with pytest.raises(InputError, match="in-kernel, separate"):
            options_for("flash_fp8", {"transpose_v": "twice"})

    def test_command_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        options = [
            "predict",
            "--gpu",
            "h100",
            "--kernel",
            "fa3-fp8",
            "--heads",
            "4",
            "--seq-len",
            "512",
            "--head-dim",
            "64",
        ]
        assert main([*options, "--dtype", "fp8"]) == 0
        assert "quantise_V" in capsys.readouterr().out
        refused(capsys, [*options, "--dtype", "bf16"])


@pytest.mark.slow
def test_the_figure_shows_every_fp16_point() -> None:
    script = load_script("benchmarks/make_utilisation.py")
    drawn = script.svg(script.panels())
    root = ElementTree.fromstring(drawn)
    dots = [c for c in root.iter("{http://www.w3.org/2000/svg}circle") if len(c)]
    wanted = [p for p in points() if p.dtype == "fp16" and p.kernel in script.KERNELS]
    assert len(dots) == len(wanted) == 96
    assert drawn.count("<polyline") == 16
    recorded = ElementTree.fromstring((REPORTS / "utilisation.svg").read_text(encoding="utf-8"))
    assert recorded.attrib == root.attrib
