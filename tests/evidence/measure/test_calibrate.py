"""`iosim calibrate`: from recorded microbenchmarks of an H200 to a profile, and what is refused or left out."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import ROOT, measurements

from iosim.base.errors import InputError
from iosim.base.schema import one_line
from iosim.commands.cli import main
from iosim.evidence.cuda.microbench import FOOTPRINTS, SCHEMA, cliff_bytes
from iosim.evidence.cuda.ncu import Profiled
from iosim.evidence.measure import calibrate, counters, fit, profile_text
from iosim.evidence.measure.calibrate import Entry, derive
from iosim.evidence.measure.fit import USUAL_WAYS, L2Fit, Point
from iosim.hardware.profile import HardwareProfile, check_profile_file, list_profiles, load_profile
from iosim.readers.replay.l2 import model
from iosim.readers.replay.scan import PATTERNS, scan, with_capacity

pytestmark = [pytest.mark.slow, pytest.mark.recorded]

RECORDED = ROOT / "tests" / "data" / "calibrate_h200.json"
RAW: dict[str, Any] = json.loads(RECORDED.read_text())
MIB = 1 << 20
L2_KEYS = {"l2_partitions", "l2_ways", "l2_effective_capacity_fraction"}
"""What is fitted to scans."""


def without_counters(**changes: Any) -> dict[str, Any]:
    return {**RAW, "counters": None, "no_counters": "no profiler: none here", **changes}


@pytest.fixture(scope="module")
def measured() -> dict[str, Entry]:
    return derive(RAW)


# The derivation


def test_the_recorded_run_is_whole() -> None:
    assert RAW["schema"] == SCHEMA
    assert {row["pattern"] for row in RAW["counters"]["rows"]} == {*PATTERNS, "sum", "fill"}
    assert len(RAW["l2_curves"]["private"]) == len(FOOTPRINTS)


def test_rates_and_latencies_of_the_recorded_run(measured: dict[str, Entry]) -> None:
    """The arithmetic on the raw numbers."""
    value = {name: entry.value for name, entry in measured.items()}
    assert value["dram_bandwidth_measured_bytes_per_s"] == pytest.approx(4.582e12)
    # the best footprint of the private curve
    best = max(rate for _, rate in RAW["l2_curves"]["private"])
    assert value["l2_read_bandwidth_measured_bytes_per_s"] == pytest.approx(best, rel=1e-3)
    # 145.1 ns of 1.978 GHz; 344.9 ns
    assert value["l2_latency_near_cycles"] == pytest.approx(145.1e-9 * 1.978e9, rel=5e-3)
    assert value["dram_latency_cycles"] == pytest.approx(344.9e-9 * 1.978e9, rel=5e-3)
    # 4.162e12 a second, 132 SMs, 1.977 GHz: 15.95, where the programming guide has 16
    assert value["exp_per_clock_per_sm"] == pytest.approx(4.162e12 / 132 / 1.977e9, rel=5e-3)
    assert value["sm_count"] == 132
    assert value["l2_bytes"] == 60 * MIB


def test_the_l2_of_the_recorded_run(measured: dict[str, Entry]) -> None:
    """Two partitions and 16 ways, as line by line (experiments/sets.py). Scans at one place in memory tell the capacity
    to a few percent: where the buffer lies moves their cliff by 1 to 2 MiB of 30."""
    shipped = load_profile("h200")
    assert measured["l2_partitions"].value == shipped.l2_partitions == 2
    assert measured["l2_ways"].value == shipped.l2_ways == USUAL_WAYS
    assert shipped.l2_effective_capacity_fraction is not None
    assert measured["l2_effective_capacity_fraction"].value == pytest.approx(
        shipped.l2_effective_capacity_fraction, abs=0.06
    )
    off = re.search(r"(\d+\.\d) % of re-reads off", measured["l2_ways"].source)
    assert off is not None
    assert float(off[1]) < 8
    assert measured["launch_fetch_bytes"].value == 29_000


def test_a_run_on_an_h100_gives_what_its_profile_holds() -> None:
    """Slices of its microbenchmarks begin at lines, so that a fill reads its code alone."""
    formula = derive(json.loads(measurements("h100_calibrate.json").read_text(encoding="utf-8")))
    profile = load_profile("h100")
    for name in (
        "l2_latency_near_cycles",
        "dram_latency_cycles",
        "launch_fetch_bytes",
        "l2_partitions",
    ):
        assert formula[name].value == profile.need(name), name
    for name in ("dram_bandwidth_measured_bytes_per_s", "l2_dirty_fraction"):
        assert formula[name].value == pytest.approx(profile.need(name), rel=0.025), name
    assert formula["l2_ways"].value == 16
    name = "l2_effective_capacity_fraction"
    assert formula[name].value == pytest.approx(
        profile.need(name), rel=0.035
    )  # by scans at one place in memory
    assert formula["l2_effective_capacity_fraction"].kind == formula["l2_ways"].kind == "fitted"


def test_what_stays_of_a_fill_is_the_share_of_dirty_lines(measured: dict[str, Entry]) -> None:
    """The sum before it stores nothing: what it writes are lines of others, and so much of the fill's writes, too."""
    # 960 MiB - (977,335,808 - 110,848) = 29,407,920 bytes = 28.05 MiB, of 60 MiB 0.467: 23 of 24 of what may be dirty
    assert measured["l2_dirty_fraction"].value == pytest.approx(
        29_407_920 / 62_914_560 * 24 / 23, abs=5e-4
    )
    assert "28.05 MiB of a fill of 960 MiB stay behind" in measured["l2_dirty_fraction"].source
    # the shipped figure is from stores to single sets
    assert measured["l2_dirty_fraction"].value == pytest.approx(
        load_profile("h200").l2_dirty_fraction, rel=0.03
    )


@pytest.mark.parametrize(
    ("written", "others", "share"),
    [
        (1.0, None, 0.0),
        (0.5, 0, 0.5),
        (0.5, None, 0.5),
        (0.5, 0.25, 0.75),
        (1.5, 0, 0.0),
        (-0.5, 0, 1.0),
    ],
)
def test_the_dirty_share_by_arithmetic(written: float, others: float | None, share: float) -> None:
    """Of a fill of the L2's size; shares of it. Counters that make no sense give no share below 0 or above 1."""
    size = RAW["l2_bytes"]
    row = {"footprint_bytes": size, "passes": 1, "ctas": 132, "hbm_read": None}
    rows = [
        {**row, "pattern": "fill", "hbm_write": round(written * size)},
        {**row, "pattern": "sum", "hbm_write": None if others is None else round(others * size)},
    ]
    formula = derive({**RAW, "counters": {"rows": rows}})
    assert formula["l2_dirty_fraction"].value == pytest.approx(share)
    assert not L2_KEYS & set(formula)  # there is no scan to fit


def test_where_shared_data_stop_fitting_tells_the_partitions() -> None:
    points = fit.points_of(RAW["counters"]["rows"])
    half = fit.half_missing_bytes(points, "shared_scan")
    assert half == pytest.approx(31 * MIB, abs=MIB)  # 56 % of re-reads at 31 MiB, 26 % at 30
    assert fit.partitions_of(points, RAW["l2_bytes"]) == 2
    curve_points = [
        Point(p.pattern, 2 * p.footprint_bytes, p.passes, p.ctas, 2 * p.hbm_read) for p in points
    ]
    assert fit.partitions_of(curve_points, RAW["l2_bytes"]) == 1
    flat = [
        Point(p.pattern, p.footprint_bytes, p.passes, p.ctas, p.footprint_bytes) for p in points
    ]
    assert fit.partitions_of(flat, RAW["l2_bytes"]) is None
    assert fit.fit(load_profile("h200"), flat) is None


def test_the_cliff_is_where_some_hit_and_some_miss() -> None:
    points = [
        Point("shared_scan", n * MIB, 3, 4, round(n * MIB * (1 + 2 * m)))
        for n, m in ((1, 0), (2, 0), (3, 0.001), (4, 0.5), (5, 0.9), (6, 1), (7, 1))
    ]
    assert [p.footprint_bytes // MIB for p in fit.cliff(points)] == [3, 4, 5, 6]


@pytest.mark.parametrize(("capacity", "partitions"), [(0.9, 1), (0.97, 2)])
def test_constants_that_made_the_scans_are_found_again(capacity: float, partitions: int) -> None:
    """Scans played through a model of a 15 MiB L2 stand in for counters; the fit finds the model's constants."""
    gpu = dataclasses.replace(load_profile("h200"), l2_bytes=15 * MIB)
    size = 15 * MIB
    true = with_capacity(dataclasses.replace(model(gpu), partitions=partitions), size, capacity)
    parts = {"shared_scan": (14, 15, 16, 17), "private_scan": (22, 26, 30)}
    points = []
    for pattern, part in ((name, part) for name, some in parts.items() for part in some):
        footprint = size * part // 32 * (2 if partitions == 1 and pattern == "shared_scan" else 1)
        points.append(Point(pattern, footprint, 3, 132, scan(true, footprint, pattern, 3)[0]))
    tried: list[int] = []
    best = fit.fit(gpu, points, lambda: tried.append(1))
    assert best is not None
    assert (best.partitions, best.ways) == (partitions, USUAL_WAYS)
    assert best.capacity_fraction == pytest.approx(capacity, abs=0.011)
    assert best.error < 0.01
    assert len(tried) == fit.TRIALS


def test_without_a_profiler_nothing_is_said_of_the_l2() -> None:
    formula = derive(without_counters())
    assert not L2_KEYS & set(formula)
    assert "dram_bandwidth_measured_bytes_per_s" in formula
    text = profile_text.profile_text(without_counters(), "mine")
    assert "# Not measured (no profiler: none here): partitions, ways" in text


def test_mma_sync_is_the_rate_of_older_gpus_only() -> None:
    """On cc 9.0 and later other instructions are faster: 627 of 770 TFLOP/s on the H200."""
    assert not any(name.startswith("tensor") for name in derive(without_counters()))
    older = derive(without_counters(compute_capability="8.6"))
    assert older["tensor_flops_achieved_per_s.fp16"].value == pytest.approx(6.274e14)
    assert older["tensor_flops_achieved_per_s.bf16"].kind == "inferred"
    assert "tensor_flops_achieved_per_s.bf16" not in derive(
        without_counters(compute_capability="7.5")
    )


# The file


@pytest.fixture(scope="module")
def written(measured: dict[str, Entry], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibrate") / "my-gpu.toml"
    path.write_text(profile_text.profile_text(RAW, "my-gpu", measured), encoding="utf-8")
    return path


def test_the_profile_is_valid_and_every_number_has_a_source(
    written: Path, measured: dict[str, Entry]
) -> None:
    assert check_profile_file(written) == []
    profile, shipped = load_profile(written), load_profile("h200")
    assert profile.name == "my-gpu"
    for name, entry in measured.items():
        if name == "boost_clock_hz":
            assert (
                profile.boost_clock_hz == shipped.boost_clock_hz
            )  # the vendor's, not the driver's
            continue
        value = getattr(profile, name)
        assert (
            value == pytest.approx(entry.value)
            if name != "l2_read_bandwidth_by_footprint_bytes_per_s"
            else value
        )
        assert profile.source_of(name) == entry.source
        assert "iosim calibrate" in entry.source or entry.kind == "inferred"
        assert profile.kind_of(name) in ("measured", "fitted", "inferred")
    # what was not measured is the shipped profile's, its source with it
    assert profile.power_w == shipped.power_w
    assert profile.source_of("power_w") == shipped.source_of("power_w")
    assert profile.tensor_flops_achieved_per_s == shipped.tensor_flops_achieved_per_s


def test_what_has_no_key_stands_in_comments(written: Path) -> None:
    comments = [line for line in written.read_text().splitlines() if line.startswith("#")]
    assert any(
        "1.3e-06 s from one launch of an empty kernel to the next" in line for line in comments
    )
    assert any("Over the shipped profile h200-sxm" in line for line in comments)


def test_the_profile_predicts(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "predict",
        "--gpu",
        str(written),
        "--kernel",
        "fa2",
        "--heads",
        "8",
        "--seq-len",
        "2048",
    ]
    assert main(argv) == 0
    assert "fa2 on my-gpu" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", [name for name in list_profiles() if not load_profile(name).is_amd]
)
def test_every_shipped_gpu_can_be_calibrated(name: str, tmp_path: Path) -> None:
    """Over its profile, by the name that the driver gives it; no measured figure contradicts a specified one."""
    shipped = load_profile(name)
    raw = without_counters(
        gpu=shipped.title,
        compute_capability=".".join(map(str, shipped.compute_capability)),
        sms=shipped.sm_count,
        l2_bytes=shipped.l2_bytes,
        hbm_read_bandwidth_bytes_per_s=0.9 * shipped.need("dram_bandwidth_bytes_per_s"),
        tensor_fp16_mma_flop_per_s=0.9 * shipped.tensor_flops_per_s["fp16"],
        l2_curves={
            "private": [[MIB, 2 * shipped.need("dram_bandwidth_bytes_per_s")]],
            "shared": [[MIB, 1e13]],
        },
        clock_hz=shipped.boost_clock_hz,
        sustained_clock_hz=0.9 * shipped.need("boost_clock_hz"),
        exp_per_s=16 * shipped.sm_count * 1.9e9,
        exp_clock_hz=1.9e9,
    )
    path = tmp_path / "mine.toml"
    path.write_text(profile_text.profile_text(raw, "mine"), encoding="utf-8")
    profile = load_profile(path)
    assert profile.compute_capability == shipped.compute_capability
    assert profile.dram_bandwidth_bytes_per_s == shipped.dram_bandwidth_bytes_per_s
    assert profile.l2_partitions == shipped.l2_partitions


@pytest.mark.parametrize(
    ("gpu", "cc"), [("NVIDIA RTX A4000", "8.6"), ("NVIDIA H900", "9.0"), ("X", "11.0")]
)
def test_a_gpu_that_no_profile_describes(gpu: str, cc: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        profile_text.profile_text(without_counters(gpu=gpu, compute_capability=cc), "mine")
    )
    profile = load_profile(path)
    # 3,201 MHz x 2 x 6,016 bits / 8 = 4.814e12, where the H200's sheet says 4.8e12
    assert profile.dram_bandwidth_bytes_per_s == pytest.approx(4.814e12)
    assert profile.memory_bytes == RAW["memory_bytes"]
    if cc == "9.0":
        first = load_profile("gh200")  # of that capability: scaled by SMs and clock
        share = 132 * 1.98e9 / (first.sm_count * first.need("boost_clock_hz"))
        assert profile.tensor_flops_per_s["bf16"] == pytest.approx(
            first.tensor_flops_per_s["bf16"] * share, rel=1e-3
        )
    if cc == "8.6":
        assert profile.tensor_flops_per_s == {
            **profile.tensor_flops_per_s,
            "fp16": 6.274e14,
        }  # what mma.sync reached
    if cc == "11.0":
        assert "fp16" not in profile.tensor_flops_per_s  # nothing is guessed


def test_a_latency_that_was_known_and_is_overtaken_is_dropped() -> None:
    raw = without_counters(
        gpu="NVIDIA A100-SXM4-80GB", compute_capability="8.0", l2_latency_s=250e-9, clock_hz=1.41e9
    )
    combined = profile_text.combined(
        raw, {"l2_latency_near_cycles": Entry(450.0, "measured here")}, "mine"
    )
    assert "l2_latency_far_cycles" not in combined  # the shipped 400
    assert combined["dram_latency_cycles"]["value"] == 552


# What is left out


def test_a_number_out_of_range_is_left_out_and_the_rest_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An H100's fill of 800 MiB read 2.7 MB, which is no launch's code."""
    monkeypatch.setattr(calibrate, "fit", quick_fit)
    raw = json.loads(json.dumps(RAW))
    next(row for row in raw["counters"]["rows"] if row["pattern"] == "fill")["hbm_read"] = 2_654_720
    raw_file, out = tmp_path / "raw.json", tmp_path / "mine.toml"
    raw_file.write_text(json.dumps(raw))
    assert main(["calibrate", "--from", str(raw_file), "-o", str(out)]) == 0
    wrote, left_out = sorted(capsys.readouterr().err.splitlines(keepends=True), reverse=True)
    assert wrote.startswith("iosim: wrote ")
    assert left_out.startswith(
        "iosim: left out: launch_fetch_bytes: 2700000 is out of range; accepted: 0 to "
    )
    assert left_out.count("\n") == 1
    assert (
        f"# Left out: {left_out.removeprefix('iosim: left out: ').rstrip()}."
        in out.read_text().splitlines()
    )
    profile, shipped = load_profile(out), load_profile("h200")
    assert profile.launch_fetch_bytes == shipped.launch_fetch_bytes
    assert profile.dram_bandwidth_measured_bytes_per_s == pytest.approx(4.582e12)
    assert "iosim calibrate" in profile.source_of("l2_dirty_fraction")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda r: r.update(hbm_write_bandwidth_bytes_per_s=0),
            "hbm_write_bandwidth_bytes_per_s: 0 is no number above 0",
        ),
        (lambda r: r.pop("l2_curves"), "l2_curves: no curve of private scans"),
        (lambda r: r["l2_curves"]["private"].reverse(), None),
        (
            lambda r: r["l2_curves"]["private"].insert(0, [0, 0]),
            "l2_curves: 1 points are no two numbers above 0",
        ),
        (
            lambda r: [row.pop("hbm_read") for row in r["counters"]["rows"]],
            "counters, row 1: hbm_read: missing",
        ),
        (lambda r: r.update(clock_hz="fast"), "clock_hz: 'fast' is no number above 0"),
        (lambda r: r.update(l2_bytes=1), "l2_bytes: 1 is out of range"),
        (
            lambda r: r.update(hbm_latency_s=1e-7),
            "contradicts what is known: l2_latency_near_cycles",
        ),
        (
            lambda r: r.update(hbm_read_bandwidth_bytes_per_s=9e12),
            "dram_bandwidth_measured_bytes_per_s: contradicts",
        ),
        (lambda r: r.pop("sms"), "sms: missing"),
        (lambda r: r.update(counters=3), "counters: they hold no rows"),
        (
            lambda r: r["counters"]["rows"][3].update(passes=10**9),
            "counters, row 4: passes 1000000000 is no whole number",
        ),
        (lambda r: r.update(compute_capability=9), "compute_capability: 9, which says nothing"),
    ],
)
def test_what_is_left_out_is_told(
    change: Any, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "fit", quick_fit)
    raw = json.loads(json.dumps(RAW))
    lines = []
    change(raw)
    text = profile_text.profile_text(raw, "mine", left_out=lines)
    assert HardwareProfile.from_dict(tomllib.loads(text)).sm_count == 132
    assert (not lines) if message is None else any(message in line for line in lines), lines
    assert all(f"# Left out: {one_line(line)}." in text for line in lines)
    if message is None:
        assert text == profile_text.profile_text(RAW, "mine")


def quick_fit(profile: HardwareProfile, points: Sequence[Point], tried: Any = None) -> L2Fit | None:
    """In place of the search, which takes a quarter of a minute: whether there is something to fit."""
    fits = fit.partitions_of(points, profile.need_int("l2_bytes")) and fit.cliff(points)
    return L2Fit(2, USUAL_WAYS, 1.0, 0.05, len(points)) if fits else None


def entries_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every number, word, list and table."""
    for key in (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    ):
        yield (*path, key)
        yield from entries_of(value[key], (*path, key))


PATHS = [path for path in entries_of(RAW) if path != ("schema",)]
INSTEAD = (
    "drop",
    None,
    0,
    -1,
    1e-9,
    0.5,
    10**9,
    1e30,
    "text",
    True,
    [],
    {},
    "x = 1\n[y]",
    "z" * 5000,
)


def changed(path: tuple[Any, ...], instead: Any, **changes: Any) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(json.dumps({**RAW, **changes}))
    owner: Any = raw
    for key in path[:-1]:
        owner = owner[key]
    if instead == "drop":
        del owner[path[-1]]
    elif isinstance(instead, float) and isinstance(owner[path[-1]], int | float):
        owner[path[-1]] *= instead
    else:
        owner[path[-1]] = instead
    return raw


@settings(deadline=None, max_examples=examples(300))
@given(path=st.sampled_from(PATHS), instead=st.sampled_from(INSTEAD), known=st.booleans())
def test_one_changed_number_leaves_a_profile(
    path: tuple[Any, ...], instead: Any, known: bool
) -> None:
    """Of a GPU that is shipped always; of another, unless its SMs or its capability are what is missing."""
    raw = changed(path, instead, **({} if known else {"gpu": "NVIDIA Strange 1"}))
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(calibrate, "fit", quick_fit)
        try:
            text = profile_text.profile_text(raw, "mine", left_out=lines)
        except InputError as error:
            needed = re.search("lack (compute_capability|sms)", str(error))
            text = (
                ""
                if needed and path[0] in ("sms", "compute_capability") and not known
                else str(error)
            )
    if not text:
        return
    profile = HardwareProfile.from_dict(tomllib.loads(text))
    assert profile.name == "mine"
    assert all(f"# Left out: {one_line(line)}." in text for line in lines)


@settings(deadline=None, max_examples=examples(12))
@given(
    row=st.integers(0, len(RAW["counters"]["rows"]) - 1),
    instead=st.sampled_from(INSTEAD),
    name=st.sampled_from(["footprint_bytes", "passes", "ctas", "hbm_read", "hbm_write", "pattern"]),
)
def test_one_changed_scan_is_fitted_or_left_out(row: int, name: str, instead: Any) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fit, "CAPACITY", (0.9, 1.0))
        patched.setattr(fit, "FINER", (0.0,))
        patched.setattr(fit, "WAYS", (USUAL_WAYS,))
        text = profile_text.profile_text(changed(("counters", "rows", row, name), instead), "mine")
    assert HardwareProfile.from_dict(tomllib.loads(text)).sm_count == 132


# The counters' plan


def test_scans_lie_on_both_cliffs_of_one_partition_and_of_two() -> None:
    plan = counters.scan_plan(RAW["l2_bytes"])
    sizes = {p["bytes"] / RAW["l2_bytes"] for p in plan if p["pattern"] == "shared_scan"}
    for centre in (0.5, 1.0):
        assert sum(abs(size - centre) < 0.07 for size in sizes) >= 4
    assert [p["kernel"] for p in plan[-2:]] == ["micro_scan", "micro_fill"]
    assert all(p["bytes"] % MIB == 0 for p in plan)
    assert {p["pattern"] for p in counters.scan_plan(4 * MIB)} == {
        *PATTERNS,
        "sum",
        "fill",
    }  # a T4's L2


def test_counters_meet_the_launches_that_were_made() -> None:
    plan = counters.scan_plan(4 * MIB)
    profiled = [
        Profiled(p["kernel"], (40, 1, 1), (1024, 1, 1), {"dram__bytes_read.sum": 8.0}) for p in plan
    ]
    rows = counters.rows_of(plan, profiled)
    assert {(row["ctas"], row["hbm_read"], row["l2_fabric"]) for row in rows} == {(40, 8, None)}
    with pytest.raises(InputError, match=f"{len(plan) - 1} launches of the {len(plan)}"):
        counters.rows_of(plan, profiled[:-1])


def test_the_rate_of_a_curve_tells_its_cliff() -> None:
    curve = [(size, rate) for size, rate in RAW["l2_curves"]["private"]]
    assert (
        cliff_bytes(curve, RAW["hbm_read_bandwidth_bytes_per_s"]) == RAW["l2_private_cliff_bytes"]
    )


# The command


def test_raw_numbers_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw_file = tmp_path / "raw.json"
    out = tmp_path / "my gpu.toml"
    raw = tmp_path / "again.json"
    raw_file.write_text(json.dumps(without_counters()))
    assert (
        main(
            [
                "calibrate",
                "--from",
                str(raw_file),
                "-o",
                str(out),
                "--raw",
                str(raw),
                "--name",
                "lab-1",
            ]
        )
        == 0
    )
    captured = capsys.readouterr()
    assert re.search(r"l2_latency_near_cycles +287 cycles +287 cycles", captured.out)
    assert (
        "iosim: no miss counters (no profiler: none here); the L2's constants are not measured\n"
        in captured.err
    )
    assert load_profile(out).name == "lab-1"
    assert json.loads(raw.read_text()) == json.loads(raw_file.read_text())
    assert main(["calibrate", "--from", str(raw_file)]) == 0
    assert tomllib.loads(capsys.readouterr().out)["name"] == "my-gpu"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "has schema None"),
        ('{"schema": 1}', "has schema 1"),
        (f'{{"schema": {SCHEMA}}}', "lack compute_capability and sms"),
        ("\0", "is no JSON"),
    ],
)
def test_files_that_are_no_raw_numbers(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "raw.json"
    path.write_text(text)
    assert main(["calibrate", "--from", str(path), "-o", str(tmp_path / "out.toml")]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out.toml").exists()


def test_other_errors_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--from", str(tmp_path / "absent.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["calibrate", "--from", str(RECORDED), "--name", "my gpu"]) == 2
    assert "--name 'my gpu' is no name" in capsys.readouterr().err
    assert (
        main(["calibrate", "--from", str(RECORDED), "-o", str(tmp_path / "no" / "gpu.toml")]) == 2
    )
    assert "its directory does not exist" in capsys.readouterr().err


def test_a_machine_without_a_gpu_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from iosim.evidence.cuda import driver
    from iosim.evidence.measure import machine

    def absent() -> None:
        raise InputError("no GPU: the NVIDIA driver sees no device")

    monkeypatch.setattr(machine, "find_nvcc", lambda: Path("nvcc"))
    monkeypatch.setattr(driver, "use_device", absent)
    assert main(["calibrate"]) == 2
    assert capsys.readouterr().err == "iosim: no GPU: the NVIDIA driver sees no device\n"


@pytest.mark.gpu
def test_calibrates_this_gpu(tmp_path: Path) -> None:
    from iosim.evidence.measure.machine import require

    try:
        require(profiler=False, torch=False)
    except InputError as reason:
        pytest.skip(str(reason))
    out = tmp_path / "here.toml"
    assert main(["calibrate", "--no-profiler", "-o", str(out)]) == 0
    assert check_profile_file(out) == []


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("NVIDIA H200", "NVIDIA H200"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 77 + "..."),  # one line of at most 80 characters
        ("two\nlines", "two lines"),
        (["H200"], "a GPU without a name"),
    ],
)
def test_a_name_is_a_line(name: object, written: str) -> None:
    left_out: list[str] = []
    assert calibrate.sound({"gpu": name}, left_out)["gpu"] == written
    assert any(line.startswith("gpu: ") for line in left_out) is isinstance(name, list)
