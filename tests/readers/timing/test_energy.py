"""Energy, power and clocks: the sums, the limits, and calls that ran for seconds on two GPUs; where the time goes."""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections import defaultdict
from dataclasses import replace

import pytest
from refusals import refused
from scripts import load_script, measurements

import iosim
from iosim.base.errors import InputError
from iosim.catalog.libraries import entry, resolve
from iosim.catalog.libraries.builds import spills
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.kernel.conditions import Conditions
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.energy import (
    CONSTANTS,
    ON_CHIP,
    Activity,
    _of_large_products,
    energies,
    energy_j,
    is_known,
)

H200 = load_profile("h200")
OF = energies(H200)
assert OF is not None
BACKENDS = {"cudnn": "cudnn", "flash": "pytorch_flash", "efficient": "pytorch_mem_efficient"}
SETTLED = 4
"""Windows of a recorded load after which the board's controller has found its clock."""


def call(kernel: str = "cudnn", **values: object) -> Call:
    shape = {"heads": 32, "seq_q": 4096, "head_dim": 128, "dtype": "bf16"} | values
    problem = AttentionProblem(**shape)  # type: ignore[arg-type]
    return Call.of(problem, resolve(kernel, problem, H200), H200)


class TestEnergy:
    top = H200.need("boost_clock_hz") * (H200.tensor_clock_fraction or 1)

    def test_each_kind_of_work_by_hand(self) -> None:
        done = Activity(
            hbm_read=1e9,
            hbm_written=2e9,
            l2_read=3e9,
            l2_written=4e9,
            shared=5e9,
            product_flops=6e12,
            warp_instructions=8e9,
        )
        energy = energy_j(done, OF, self.top, 1e-3)
        # pJ: 1e9 x 70 + 2e9 x 43; 3e9 x 42 + 4e9 x 61; 5e9 x 8.4; 6e12 x 0.67; 8e9 x 290; 143 W x 1 ms
        assert energy == pytest.approx(
            {
                "hbm": 0.156,
                "l2": 0.37,
                "smem": 0.042,
                "tensor": 4.02,
                "instructions": 2.32,
                "awake": 0.143,
            }
        )
        by_mma = replace(done, product_energy="mma_sync_pj_per_flop", product_share=0.5)
        assert energy_j(by_mma, OF, self.top, 1e-3)["tensor"] == pytest.approx(6 * 0.87 / 2)

    def test_only_sms_and_l2_follow_the_clock(self) -> None:
        done = Activity(hbm_read=1e9, l2_read=1e9, product_flops=1e12)
        fast, slow = (energy_j(done, OF, clock, 0.0) for clock in (self.top, self.top / 2))
        assert slow["hbm"] == fast["hbm"]
        for level in ("l2", "tensor"):
            assert slow[level] == pytest.approx(
                fast[level] * 0.5 ** H200.need("energy_clock_exponent")
            )

    @pytest.mark.parametrize("name", [*CONSTANTS, "power_w"])
    def test_all_constants_or_none(self, name: str) -> None:
        assert is_known(H200)
        assert not is_known(replace(H200, **{name: None}))

    def test_where_they_are_taken_it_says_how_far(self) -> None:
        p = iosim.predict(heads=1, seq_len=256, gpu="a100")
        assert p.energy_j is not None
        assert p.energy_range_j is not None
        joules = sum(p.energy_j.values())
        awake = p.energy_j["awake"]
        assert awake == pytest.approx(0.2 * 400 * p.time_s)
        # of what is not awake 25 % either way; cc 8.0 moves at an H200's cost
        assert p.energy_range_j == pytest.approx(
            [awake + share * (joules - awake) for share in (0.75, 1.25)]
        )
        assert p.energy_j["hbm"] == pytest.approx(
            1e-12 * (70 * p.total("hbm", "read") + 43 * p.total("hbm", "write")), rel=1e-3
        )
        assert p.to_dict()["energy_range_j"] == list(p.energy_range_j)
        assert "not measured on this GPU" in p.to_text().split("energy ")[1].split("\n")[0]

    def test_a_board_draws_no_more_than_its_power(self) -> None:
        p = iosim.predict(heads=32, seq_len=8192, gpu="t4")
        assert p.profile.peak_power_w == 75  # what its slot gives
        for others in map(load_profile, ("a40", "l4")):
            assert others.peak_power_w == pytest.approx(
                others.need("power_w") * 1000 / 700, rel=1e-3
            )  # as an H200's
        assert p.time.power_w == pytest.approx(p.profile.peak_power_w, rel=1e-3)
        assert p.energy_range_j is not None
        assert p.energy_range_j[1] == pytest.approx(p.profile.need("peak_power_w") * p.time_s)
        sustained = iosim.predict(heads=32, seq_len=8192, gpu="l4", clocks="sustained")
        assert sustained.time.power_w == pytest.approx(72, rel=1e-3)

    def test_measured_ones_have_no_range(self) -> None:
        assert iosim.predict(heads=1, seq_len=256, gpu="h100").energy_range_j is None

    def test_where_no_clock_is_known_it_says_so(self) -> None:
        assert energies(replace(H200, boost_clock_hz=None)) is None

    @pytest.mark.parametrize(
        "name", ["h200-sxm", "h100-sxm", "h800-sxm", "a100-sxm-80gb", "l40s", "t4", "b200"]
    )
    def test_large_products_draw_the_boards_power(self, name: str) -> None:
        """By constants that were measured within 6 %, an H800's by an architecture's, as are the others' by choice."""
        profile = load_profile(name)
        of = energies(profile)
        assert of is not None
        drawn = sum(_of_large_products(profile, of).values()) + of.pj["awake_power_w"]
        assert drawn == pytest.approx(profile.power_w, rel=0.06 if is_known(profile) else 1e-2)

    def test_what_large_products_leave_less_for_all_that_they_move(self) -> None:
        """An L40S's products draw more by an L40's factor than its board has: their FLOPs and the bytes that they move
        on the chip cost less by one share; what they do not move does not."""
        profile = load_profile("l40s")
        taken = load_profile("l40s").need("energy_factor")
        of = energies(profile)
        assert of is not None
        shares = {
            name: of.pj[name] / (taken * load_profile("h200-sxm").need(name)) for name in of.pj
        }
        assert shares["mma_sync_pj_per_flop"] == pytest.approx(0.64, abs=0.01)
        assert shares["l2_read_pj_per_byte"] == pytest.approx(shares["mma_sync_pj_per_flop"])
        assert shares["hbm_read_pj_per_byte"] == shares["warp_instruction_pj"] == 1.0

    def test_products_at_the_boost_clock_draw_what_those_of_the_same_chip_do(self) -> None:
        """An RTX 4090's large products reach 99 % of its boost clock's rate, so that its power does not hold them. An
        L40S, of the same chip, is held: its energies are the RTX 4090's, whose products draw less than its board has."""
        script, profile, held = (
            load_script("benchmarks/power_error.py"),
            load_profile("rtx-4090"),
            load_profile("l40s"),
        )
        of, of_held = energies(profile), energies(held)
        assert of is not None
        assert of_held is not None
        for name in ON_CHIP:
            assert of.pj[name] == pytest.approx(of_held.pj[name], rel=0.01)
        assert profile.on_chip_energy_share == pytest.approx(script.left_on_chip(held), rel=0.01)
        assert script.left_on_chip(profile) > 1.1 * profile.need("on_chip_energy_share")
        drawn = sum(_of_large_products(profile, of).values()) + of.pj["awake_power_w"]
        assert drawn < 0.95 * profile.need("power_w")

    def test_products_below_what_power_allows_are_not_powers(self) -> None:
        """An H20's large products draw less than its board has: a FLOP costs what is taken, no more."""
        profile = load_profile("h20")
        of = energies(profile)
        assert of is not None
        assert of.pj["tensor_pj_per_flop"] == pytest.approx(profile.need("energy_factor") * 0.67)

    def test_a_board_of_unknown_power_has_what_its_large_products_draw(self) -> None:
        profile = replace(load_profile("l40s"), power_w=None, peak_power_w=None)
        of = energies(profile)
        assert of is not None
        assert sum(_of_large_products(profile, of).values()) == pytest.approx(0.8 * of.power_w)
        assert energies(replace(profile, tensor_flops_achieved_per_s={})) is None

    def test_slower_products_leave_less_for_others(self) -> None:
        """Of a GPU that was calibrated: a rate of products below the published one means a FLOP that costs more."""
        l40s = load_profile("l40s")
        slower = replace(l40s, tensor_flops_achieved_per_s={"fp16": 240e12})
        shape = {"heads": 32, "seq_len": 8192, "clocks": "sustained"}
        clocks = [
            iosim.predict(gpu=gpu, **shape).time.launches[0].clock_hz for gpu in (l40s, slower)
        ]
        assert (clocks[1] or 0) < 0.95 * (clocks[0] or 0)

    def test_published_power_is_met(self) -> None:
        script = load_script("benchmarks/power_error.py")
        with open(script.TABLE, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))[1::2]
        for gpu, off in (("a100-sxm-40gb", 0.07), ("h200-sxm", 0.11), ("a40", 0.2), ("l40", 0.25)):
            powers = [script.board(row) for row in rows if row["gpu"] == gpu]
            assert max(abs(predicted / measured - 1) for measured, predicted in powers) < off

    def test_a_prediction_adds_its_launches(self) -> None:
        p = iosim.predict(gpu="h200", kernel="naive", heads=4, seq_len=2048, dtype="bf16")
        assert p.energy_j is not None
        for level, joules in p.energy_j.items():
            assert joules == pytest.approx(
                sum(t.energy_j[level] for t in p.time.launches if t.energy_j is not None)
            )
        assert p.time.power_w == pytest.approx(sum(p.energy_j.values()) / p.time_s)


class TestClocks:
    def test_limits_hold(self) -> None:
        heavy = call(seq_q=16384)
        traffic = heavy.counted + heavy.capacity()
        boost, sustained = (
            heavy.time(traffic, Conditions(clocks=clocks)) for clocks in ("boost", "sustained")
        )
        assert boost.total_s < sustained.total_s
        # a clock is found to within a four-thousandth of the interval: some tenths of a watt
        assert boost.power_w == pytest.approx(H200.peak_power_w, abs=3)
        assert sustained.power_w == pytest.approx(H200.power_w, abs=3)

    def test_light_launches_keep_their_clock(self) -> None:
        light = call("naive", heads=2, seq_q=512)
        for time in light.time(light.counted, Conditions(clocks="sustained")).launches:
            work = next(n.work for n in light.chain.launches if n.name == time.name)
            assert time.clock_hz == pytest.approx(
                1.98e9 * (0.917 if work.tensor_cores and work.flops_per_pair else 1)
            )

    @pytest.mark.parametrize(("heads", "share"), [(16, 1.0), (17, 0.917)])
    def test_a_pair_of_sms_of_each_gpc_leaves_the_clock_as_it_is(
        self, heads: int, share: float
    ) -> None:
        small_call = call("pytorch_mem_efficient", heads=heads, seq_q=64, seq_k=4096)
        assert small_call.time(small_call.counted).launches[0].clock_hz == pytest.approx(
            1.98e9 * share
        )

    def test_a_clock_by_hand(self) -> None:
        heavy = call()
        slow, fast = (
            heavy.time(heavy.counted, Conditions(clocks=hertz)) for hertz in (1.0e9, 1.5e9)
        )
        assert [t.clock_hz for t in slow.launches] == [1.0e9]
        assert 1.3 < slow.total_s / fast.total_s < 1.5

    @pytest.mark.parametrize("wrong", [{"clocks": "turbo"}, {"clocks": 5.0}, {"launched": "twice"}])
    def test_nonsense_is_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(InputError, match="accepted"):
            iosim.predict(heads=1, seq_len=64, **wrong)  # type: ignore[arg-type]

    def test_the_command_line_takes_mhz(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = [
            "predict",
            "--gpu",
            "h200",
            "--kernel",
            "cudnn",
            "--seq-len",
            "2k",
            "--dtype",
            "bf16",
        ]
        assert main([*words, "--clocks", "1500MHz"]) == 0
        assert "at 1,500 MHz" in capsys.readouterr().out
        refused(capsys, [*words, "--clocks", "fast"], "--clocks")
        refused(capsys, [*words, "--launched", "twice"], "--launched")


def sustained(gpu: str) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Settled windows of attention's forward calls in h200_power.csv or h100_power.csv, by call."""
    by_run: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    with measurements(f"{gpu}_power.csv").open(newline="", encoding="utf-8") as file:
        for r in csv.DictReader(file):
            if r["load"] in BACKENDS and r["passes"] == "fwd" and int(r["window"]) >= SETTLED:
                by_run[
                    tuple(
                        r[n]
                        for n in ("load", "batch", "heads", "kv_heads", "seq", "head_dim", "causal")
                    )
                ].append(r)
    return by_run


@pytest.mark.parametrize("gpu", ["h200", "h100"])
def test_profiles_hold_what_was_fitted_to_loads_of_one_kind(gpu: str) -> None:
    """Rates and energies of `experiments/power.py --fit`; the H200's L2 rate has another source, and an H100 takes
    from an H200 what changes no time."""
    import pandas as pd

    profile, script = load_profile(gpu), load_script("experiments/power.py")
    constants = dict(
        re.findall(
            r"^(\w+) = ([\d.e+]+)$",
            script.fitted(pd.read_csv(measurements(f"{gpu}_power.csv"))),
            re.M,
        )
    )
    assert {*CONSTANTS} <= set(constants)
    for name, value in constants.items():
        elsewhere = (gpu, name) == ("h200", "l2_read_bandwidth_measured_bytes_per_s")
        if not elsewhere and profile.kinds[name] in ("measured", "fitted"):
            assert profile.need(name) == pytest.approx(float(value), rel=0.02), name


@pytest.mark.parametrize("gpu", ["h200", "h100"])
@pytest.mark.slow
def test_calls_that_ran_for_seconds(gpu: str) -> None:
    """No attention was fitted: 13 calls, their time and, on the H200, the clock at 11/12 of what NVML gave."""
    times, clocks = [], []
    for (load, batch, heads, kv_heads, seq, head_dim, causal), windows in sustained(gpu).items():
        p = iosim.predict(
            kernel=BACKENDS[load],
            gpu=gpu,
            batch=int(float(batch)),
            heads=int(float(heads)),
            kv_heads=int(float(kv_heads)),
            seq_len=int(float(seq)),
            head_dim=int(float(head_dim)),
            causal=float(causal) > 0,
            dtype="bf16",
            l2="warm",
            clocks="sustained",
        )
        times.append(p.time_s * 1e3 / statistics.fmean(float(w["ms"]) for w in windows) - 1)
        clock = min(t.clock_hz or 0 for t in p.time.launches)
        clocks.append(
            clock / 1e6 / (11 / 12 * statistics.fmean(float(w["sm_mhz"]) for w in windows)) - 1
        )
    assert len(times) == 13
    assert statistics.fmean(map(abs, times)) < 0.045
    assert max(map(abs, times)) < 0.12
    if gpu == "h100":
        return
    assert statistics.fmean(map(abs, clocks)) < 0.035
    assert max(map(abs, clocks)) < 0.08


class TestLaunched:
    def test_a_graph_starts_launches_sooner(self) -> None:
        decode = call("fa2", seq_q=1, seq_k=8192)
        assert [n.name for n in decode.chain.launches] == ["main", "combine"]
        alone, graph = (
            decode.time(decode.counted, Conditions(launched=how, l2_start="warm"))
            for how in ("alone", "graph")
        )
        saved = [a.total_s - g.total_s for a, g in zip(alone.launches, graph.launches, strict=True)]
        assert saved[1] == pytest.approx(2.1e-6 - 1.01e-6)
        assert (
            -1e-6 < saved[0] < 2.1e-6 - 2.2e-6
        )  # the first one's CTAs issue one behind the other, too

    def test_a_combine_waits_a_load_a_split(self) -> None:
        def combine(splits: int) -> float:
            problem = AttentionProblem(heads=8, seq_q=1, seq_k=8192, dtype="bf16")
            kernel = resolve("fa2", problem, H200).with_(splits=splits)
            decode = Call.of(problem, kernel, H200)
            return decode.time(decode.counted).launches[-1].total_s

        # the launch before left the parts in the L2: 287 + 200 cycles a load at 1.98 GHz
        assert (combine(24) - combine(8)) / 16 == pytest.approx(487 / 1.98e9, rel=0.05)


def test_parts_are_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "explain",
        "--time",
        "--gpu",
        "h200",
        "--kernel",
        "fa2,naive",
        "--heads",
        "4",
        "--seq-len",
        "2k",
    ]
    assert main([*words, "--format", "json"]) == 0
    for p in json.loads(capsys.readouterr().out)["predictions"]:
        for launch in p["time"][0]["launches"]:
            assert sum(launch["parts"].values()) == pytest.approx(launch["time_s"])
    assert main(words) == 0
    out = capsys.readouterr().out
    assert re.search(r"launch +time +start +longest", out)
    assert "energy" in out


def test_flash_attentions_spills_are_those_of_its_instructions() -> None:
    """Words that a step stores, and how many loads and stores of spilled registers it makes, in the build for whole
    tiles and in the other, at head_dim 64 and 128; flags: dropout, causal, local, alibi, even lengths, even columns."""
    tiles = {64: "<64, 128, 128, 4,", 128: "<128, 128, 64, 4,"}
    counted: dict[tuple[int, bool, bool], tuple[int, int]] = {}
    with measurements("h200_library_instructions.csv").open(newline="", encoding="utf-8") as file:
        for r in csv.DictReader(file):
            flags = re.findall("true|false", r["template"].rsplit("> >", 1)[-1])
            if r["kernel"] != "flash_fwd_kernel" or len(flags) != 8:
                continue
            for head_dim, tile in tiles.items():
                plain = [flags[n] for n in (0, 2, 3, 5, 6, 7)] == [
                    "false",
                    "false",
                    "false",
                    "true",
                    "false",
                    "false",
                ]
                if f"traits{tile}" in r["template"] and plain:
                    counted[head_dim, flags[1] == "true", flags[4] == "true"] = (
                        int(r["STL"]),
                        int(r["LDL"]),
                    )
    assert len(counted) == 8
    rows = {
        (r["head_dim"], r["causal"], r["whole_tiles"]): r
        for r in spills(entry("fa2"))
        if "whole_tiles" in r
        and r["cc"] == [90]
        and not (r["narrow"] or r["window"] or r.get("dropout"))
    }
    for key, (stores, loads) in counted.items():
        assert rows[key]["write_per_pair"] == pytest.approx(
            4 * stores, abs=3
        )  # of counters, beside the work tile's
        assert rows[key]["accesses_per_pair"] == stores + loads


@pytest.mark.parametrize(
    ("gpu", "least", "highest"), [("t4", 4.4e12, 6.5e12), ("l4", 12e12, 16e12)]
)
def test_products_in_fp32_are_held_by_a_small_boards_power(
    gpu: str, least: float, highest: float
) -> None:
    """Large ones reach 4.2 to 4.4 of 8.1 TFLOP/s on a T4 and 12 to 15.4 of 30.3 on an L4, as others timed them."""
    shape = {"heads": 16, "seq_len": 8192, "head_dim": 256, "dtype": "fp32", "method": "capacity"}
    p = iosim.predict(kernel="naive", gpu=gpu, l2="warm", clocks="sustained", **shape)
    values = p.time.launches[-1]
    assert least < 2 * 16 * 8192**2 * 256 / values.total_s < highest
    assert values.power_w == pytest.approx(p.profile.power_w, rel=0.02)


def test_products_in_fp32_go_with_the_clock() -> None:
    shape = {"heads": 4, "seq_len": 4096, "head_dim": 64, "dtype": "fp32", "method": "capacity"}
    fast, slow = (
        iosim.predict(kernel="naive", gpu="t4", clocks=clock, **shape).time.launches[-1]
        for clock in ("1590", "795")
    )
    assert slow.seconds["tensor"] == pytest.approx(2 * fast.seconds["tensor"])
