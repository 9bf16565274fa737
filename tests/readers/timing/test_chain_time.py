"""Times of whole chains: launches one after the other, and both held against measured launches."""

from __future__ import annotations

import csv
import statistics
from dataclasses import replace

import numpy as np
import pytest
from scripts import measurements
from steps import step_cost
from timed import flash, problem

from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.conditions import Conditions
from iosim.kernel.kernel import Kernel, Schedule, Scheduler, Tile
from iosim.kernel.schedule import Order, Start
from iosim.kernel.unit import UNITS, MatrixUnit
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.chain_time import ChainTime, ceiling_s
from iosim.readers.timing.rates import Rates
from iosim.readers.timing.step_time import step_cycles

RESOURCES = {"tensor", "hbm", "l2", "smem", "exp", "latency"}


def timed(
    case: AttentionProblem, kernel: Kernel | str, gpu: str, measured: bool = True
) -> ChainTime:
    profile = load_profile(gpu)
    chosen = resolve(kernel, case, profile) if isinstance(kernel, str) else kernel
    call = Call.of(case, chosen, profile)
    return call.time(call.counted + call.capacity(), measured=measured)


class TestRaggedBlocks:
    @pytest.mark.parametrize(
        ("gpu", "kernel", "heads", "tokens", "head_dim"),
        [
            (
                "h200",
                "flex",
                4,
                64,
                256,
            ),  # 66 splits a head of one key block: most have no step, but store
            (
                "h200",
                "fa2",
                16,
                384,
                128,
            ),  # a fourth block of one row: the first tiles are whole ones
            ("a30", "fa2", 16, 384, 96),
        ],
    )
    def test_one_more_token_takes_no_less(
        self, gpu: str, kernel: str, heads: int, tokens: int, head_dim: int
    ) -> None:
        times = []
        for n in (tokens, tokens + 1):
            case = AttentionProblem(heads=heads, seq_q=n, head_dim=head_dim, dtype="bf16")
            profile = load_profile(gpu)
            whole_call = Call.of(case, resolve(kernel, case, profile), profile)
            times.append(
                max(launch.total_s for launch in whole_call.time(whole_call.counted).launches)
            )
        assert times[1] / times[0] >= 1


class TestChainTime:
    def test_resources_have_their_names_and_latency_is_the_rest(self) -> None:
        launch = timed(problem(), "fa2", "h200").launches[0]
        assert set(launch.seconds) == RESOURCES
        longest = max(v for k, v in launch.seconds.items() if k != "latency")
        assert launch.total_s == pytest.approx(longest + launch.seconds["latency"])
        assert launch.bound_by == "tensor"

    def test_decoding_is_bound_by_hbm(self) -> None:
        assert (
            timed(problem(batch=64, kv_heads=8, seq_q=1, seq_k=4096), "cudnn", "h200").bound_by
            == "hbm"
        )

    def test_a_tiny_launch_is_latency(self) -> None:
        chain_time = timed(problem(heads=1, seq_q=16), "fa2", "h200")
        assert chain_time.bound_by == "latency"
        latency = load_profile("h200").need("launch_latency_s")
        assert latency < chain_time.total_s < 4 * latency

    def test_specification_is_at_least_as_fast_for_long_sequences(self) -> None:
        case = problem(seq_q=16384)
        assert (
            timed(case, "fa2", "a100", measured=False).total_s < timed(case, "fa2", "a100").total_s
        )

    def test_mma_sync_stays_below_its_share_on_hopper(self) -> None:
        flops = problem(seq_q=16384).matmul_flops()
        rate = (
            flops
            / timed(problem(seq_q=16384), flash(Tile(128, 64, 4, 2), registers=255), "h200").total_s
        )
        assert 0.35 * 989e12 < rate < 0.66 * 989e12

    def test_what_is_unknown_is_said_and_left_out(self) -> None:
        bare = replace(
            load_profile("a100"),
            exp_per_clock_per_sm=None,
            dram_bandwidth_bytes_per_s=None,
            dram_bandwidth_measured_bytes_per_s=None,
            dram_read_bandwidth_bytes_per_s=None,
            shared_memory_bytes_per_clock_per_sm=None,
        )
        case = problem()
        kernel = flash(Tile(128, 64, 4))
        call = Call.of(case, kernel, bare)
        chain_time = call.time(call.counted)
        seconds = chain_time.launches[0].seconds
        assert {unit for unit, needed in seconds.items() if needed} == {
            "tensor",
            "exp",
            "l2",
            "latency",
        }
        assert seconds["hbm"] == 0  # and of exp, the fp32 work is left
        assert any("dram_bandwidth_bytes_per_s" in m for m in chain_time.missing)
        assert any("exp_per_clock_per_sm" in m for m in chain_time.missing)

    def test_a_persistent_grid_of_one_cta_an_sm_has_no_neighbour(self) -> None:
        settings = {"schedule": Schedule(scheduler=Scheduler.PERSISTENT), "registers": 128}
        lone, two = (
            timed(problem(), flash(Tile(128, 64, 4), persistent_ctas=n, **settings), "h200")
            for n in (132, 264)
        )
        assert lone.total_s > 1.15 * two.total_s

    def test_a_window_that_is_asked_in_every_step_costs_time(self) -> None:
        """Windows as wide as the keys leave all pairs, and every score is still masked: 4 operations of 4.5 to 8.5."""
        free = problem(seq_q=4096, heads=16)
        case = problem(seq_q=4096, heads=16, mask="window", window=4095, window_right=4094)
        assert 1.1 < timed(case, "fa2", "a100").total_s / timed(free, "fa2", "a100").total_s < 1.4

    def test_tcgen05_takes_what_its_busiest_unit_needs(self) -> None:
        """256 x 128 scores at head_dim 128, by Zadouri et al.: 2 x 1,024 cycles of products, 2 x 768 of shared memory,
        2,048 of exponentials at 16 a cycle."""
        case, b200 = (
            problem(seq_q=8192, head_dim=128, mask="causal"),
            load_profile("b200"),
        )  # without pairs of CTAs
        call = Call.of(case, resolve("fa4", case, b200), b200)
        rates = Rates(b200, measured=False).of_sm("bf16", UNITS[MatrixUnit.TCGEN05])
        assert rates is not None
        cost = step_cost(call.chain.launches[0], UNITS[MatrixUnit.TCGEN05], rates, 0.0, 2, 100)
        assert cost.tensor == pytest.approx(
            2048, rel=0.06
        )  # the sheet's 2,250 TFLOP/s are 7,737 a cycle and SM at boost
        assert cost.smem == pytest.approx(2 * 768)
        assert cost.softmax == pytest.approx(
            2048 * 7 / 8
        )  # an eighth of the exponentials in polynomials
        assert cost.chain > cost.softmax
        assert step_cycles(cost, 1) == max(cost.busiest, (cost.tensor + cost.chain) / 2)

    def test_large_products_tell_what_a_flop_costs_and_no_more_than_is_taken(self) -> None:
        """The faster they are within a board's power, the less a FLOP costs, and the faster is a launch that power
        limits. Where they are too slow to draw it, it is not power that holds them."""
        case = problem(seq_q=8192, heads=64)
        a100 = load_profile("a100")
        call = Call.of(case, resolve("fa2", case, a100), a100)

        def held(rate: float, clocks: str = "sustained") -> float:
            slow = replace(call.profile, tensor_flops_achieved_per_s={call.problem.dtype: rate})
            return replace(call, profile=slow).time(call.counted, Conditions(clocks=clocks)).total_s

        assert held(311e12) < held(271e12) < held(240e12) == held(150e12)
        assert held(311e12, "boost") == held(271e12, "boost") < held(271e12)

    def test_to_dict_is_plain(self) -> None:
        d = timed(problem(), "cudnn", "h200").to_dict()
        assert d["bound_by"] in RESOURCES
        assert d["time_s"] == d["launches"][0]["time_s"] > 0
        assert d["ceilings"] == "measured"


def recorded(implementation: str) -> list[dict[str, str]]:
    path = measurements("h200_library_kernels.csv")
    with path.open(newline="", encoding="utf-8") as file:
        rows = [
            r
            for r in csv.DictReader(file)
            if r["implementation"] == implementation and r["dtype"] == "bfloat16"
        ]
    return [r for r in rows if float(r["seconds"]) > 30e-6 and r["seq_q"] != "1"]


@pytest.mark.parametrize(
    ("implementation", "mean", "worst"),
    [
        ("cudnn", 0.06, 0.16),
        ("pytorch_mem_efficient", 0.06, 0.25),
        ("pytorch_flash", 0.13, 0.40),
    ],
)
def test_measured_launches_of_the_held_out_half(
    implementation: str, mean: float, worst: float
) -> None:
    """Even-numbered calls longer than 30 us; constants were fitted on odd-numbered ones."""
    errors = []
    for r in recorded(implementation):
        if int(r["call"]) % 2:
            continue
        attention = AttentionProblem(
            batch=int(r["batch"]),
            heads=int(r["heads"]),
            kv_heads=int(r["kv_heads"]),
            seq_q=int(r["seq_q"]),
            seq_k=int(r["seq_k"]),
            head_dim=int(r["head_dim"]),
            dtype="bf16",
            mask="causal" if r["causal"] == "1" else "none",
        )
        errors.append(
            abs(timed(attention, implementation, "h200").total_s / float(r["seconds"]) - 1)
        )
    assert len(errors) >= 15
    assert statistics.fmean(errors) < mean
    assert max(errors) < worst


def test_triton_tiles_are_ranked_as_measured() -> None:
    """Rank correlation above 0.9, and the predicted best tile within 15 % of the best measured one."""
    with measurements("triton_tiles_d64_time.csv").open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["BM"] and float(r["spills"]) == 0]
    predicted = []
    for r in rows:
        tile = Tile(*(int(float(r[n])) for n in ("BM", "BN", "warps", "stages")))
        unit = MatrixUnit.WGMMA if tile.block_q >= 64 else MatrixUnit.MMA_SYNC
        kernel = flash(
            tile, unit, registers=int(float(r["regs"])), shared_memory_bytes=int(float(r["smem"]))
        )
        predicted.append(timed(problem(head_dim=64), kernel, "h200").total_s)
    measured = np.array([float(r["ms"]) for r in rows])
    ranks = [np.argsort(np.argsort(values)) for values in (np.array(predicted), measured)]
    assert len(rows) == 35
    assert np.corrcoef(*ranks)[0, 1] > 0.9
    assert measured[int(np.argmin(predicted))] < 1.15 * measured.min()


def test_own_kernel_outside_the_profiler() -> None:
    """Calls of h200_iosim_times.csv, of which nothing was fitted: 32, warm and cold, two head dimensions and types."""
    with measurements("h200_iosim_times.csv").open(newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["implementation"] == "flash_fwd"]
    errors = []
    for r in rows:
        causal = r["causal"] == "1"
        attention = problem(
            heads=int(r["heads"]),
            seq_q=int(r["seq_q"]),
            head_dim=int(r["head_dim"]),
            mask="causal" if causal else "none",
            dtype={"bfloat16": "bf16", "float16": "fp16"}[r["dtype"]],
        )
        schedule = Schedule(order=Order.HEAD, start=Start.HEAVY_FIRST) if causal else Schedule()
        tile = Tile(int(r["block_q"]), int(r["block_k"]), int(r["warps"]), 2)
        total_s = timed(attention, flash(tile, registers=255, schedule=schedule), "h200").total_s
        errors.append(abs(total_s / (float(r["ms"]) / 1e3) - 1))
    assert len(errors) == 32
    assert statistics.fmean(errors) < 0.04
    assert max(errors) < 0.10


def test_nothing_is_faster_than_its_bytes_at_the_highest_rate_and_its_products() -> None:
    """Two launches of an H200: the first bound by 4.8 TB/s, the second by what its tensor cores do at most."""
    problem = AttentionProblem(heads=8, seq_q=4096, head_dim=128)
    gpu = load_profile("h200")
    call = Call.of(problem, resolve("naive", problem, gpu), gpu)
    traffic = call.capacity()
    apart = [replace(call.chain, launches=(launch,)) for launch in call.chain.launches]
    seconds = [ceiling_s(problem, chain, traffic, gpu, 0.0) for chain in apart]
    assert len(seconds) > 1
    assert min(seconds) > 0
    assert gpu.dram_bandwidth_bytes_per_s is not None
    assert sum(seconds) >= traffic.total("hbm") / gpu.dram_bandwidth_bytes_per_s
    assert ceiling_s(problem, call.chain, traffic, gpu, 0.0) == pytest.approx(sum(seconds))
