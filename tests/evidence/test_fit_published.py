"""`benchmarks/fit_published.py`: L2 constants of other GPUs from curves that others published."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import ModuleType

import pytest
from effort import quick_first
from scripts import ROOT, load_script

from iosim.evidence.measure.fit import FOOT, Point, cliff, fit, partitions_of
from iosim.hardware.profile import load_profile
from iosim.readers.replay.l2 import model
from iosim.readers.replay.scan import block_scan, scan

MIB = 1 << 20
PAGE = (ROOT / "docs" / "generated" / "l2_constants.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(Path("benchmarks/fit_published.py"))


def curves(script: ModuleType, gpu: str, kind: str) -> list[Point]:
    rows = [r for r in script.rows() if r.gpu == gpu and r.curve == kind]
    sources = dict.fromkeys(r.source for r in rows)
    return [
        p
        for s in sources
        for p in script.thinned(cliff(script.points([r for r in rows if r.source == s])))
    ]


@pytest.mark.slow
def test_the_page_is_what_the_script_writes(script: ModuleType) -> None:
    """Of one GPU; the others take a minute."""
    rows = script.rows()
    text = script.table([script.fitted("V100-PCIe-16GB", rows)])
    lines = text.splitlines()
    assert lines[:8] == PAGE.splitlines()[:8]
    assert all(line in PAGE for line in lines)
    assert {r.gpu for r in rows} == set(script.PROFILES)
    assert all(f"| {gpu} |" in PAGE for gpu in script.PROFILES)


def test_profiles_hold_what_was_fitted(script: ModuleType) -> None:
    """Where a GPU's own curves were fitted, its profile has the partitions, and with its ways and capacity the curves
    are read as well as with those fitted, to 1.3 points in the mean: a set of 16 or of 20 ways tells no more apart."""
    gpus = {"A100-80GB", "A40", "L40", "RTX-4090", "V100-PCIe-16GB", "H100-PCIe-80GB"}
    errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
    gpu = ""
    row = r"^\| (\S*) ?\| (\d?) ?\|.*?\| ([\d.]+) % \| ([\d.]+) % \|$"
    for name, partitions, fitted, held in re.findall(row, PAGE, re.M):
        gpu = name or gpu  # a further curve of the same GPU has no name
        errors[gpu].append((float(fitted), float(held)))
        if name in gpus:
            assert load_profile(script.PROFILES[name]).l2_partitions == int(partitions)
    for gpu in gpus:
        by_fit, by_profile = map(fmean, zip(*errors[gpu], strict=True))
        assert by_profile < by_fit + 1.3, gpu
    counted = {k.profile: k.ways for k in script.kept()}
    for gpu, low, high in re.findall(r"^\| (\S+) \| \d+ \| (\d+) to (\d+) \|", PAGE, re.M):
        ways = model(load_profile(script.PROFILES[gpu])).dirty_ways
        assert ways == counted.get(script.PROFILES[gpu], ways)
        assert script.PROFILES[gpu] in counted or int(low) <= ways <= int(high) + 0.1


@pytest.mark.slow
def test_half_of_a_set_may_be_dirty_where_counters_tell(script: ModuleType) -> None:
    """Of an A100, whose launches others counted, an H100 and an H200: 8 lines of 16, as the last two say when asked
    line by line; their profiles hold it."""
    by_profile = {k.profile: k for k in script.kept()}
    assert {gpu: k.ways for gpu, k in by_profile.items()} == {
        "a100-sxm-80gb": 8,
        "h100-sxm": 8,
        "h200-sxm": 8,
    }
    for gpu, k in by_profile.items():
        assert 7.5 < k.lines < 7.7
        assert model(load_profile(gpu)).dirty_ways == pytest.approx(8, abs=0.01)


@pytest.mark.parametrize(("ways", "error"), quick_first([(8, 0.02), (7, -0.11), (9, 0.16)], 1))
def test_a_long_pass_leaves_an_a100_as_much_dirty_as_was_counted(
    script: ModuleType, ways: int, error: float
) -> None:
    """Of 100 MB, where they were 19.8: the replay with 8 dirty lines a set is nearest."""
    l2 = replace(model(load_profile("a100")), dirty_ways=float(ways))
    dirty_left = 100_000_000 - script.fill(l2, 100_000_000, 108, passes=1)
    counted = next(k.left_bytes for k in script.kept() if k.profile == "a100-sxm-80gb")
    assert dirty_left / counted - 1 == pytest.approx(error, abs=0.02)


def test_an_a100_keeps_what_all_sms_read_twice(script: ModuleType) -> None:
    """Counted on the GPU: nothing misses at 19 MiB, all at 26; of what CTAs take block by block a tenth at 23.5 MiB."""
    a100 = load_profile("a100-sxm-80gb")
    low, high = (scan(a100, n * MIB, "shared_scan", 4, 108)[0] / (n * MIB) for n in (19, 26))
    assert low == pytest.approx(1.0, abs=0.01)
    assert high == pytest.approx(4.0, abs=0.05)
    read = block_scan(model(a100), 47 * MIB // 2, MIB // 4, 108, 216, 6)
    assert (read / (47 * MIB / 2) - 1) / 5 == pytest.approx(0.09, abs=0.03)


@pytest.mark.parametrize(
    ("gpu", "kind"),
    quick_first(
        [
            ("V100-PCIe-16GB", "shared_scan"),
            ("A100-80GB", "shared_scan"),
            ("A100-80GB", "chase"),
            ("A40", "chase"),
        ],
        1,
    ),
)
def test_partitions_swapped_fit_far_worse(script: ModuleType, gpu: str, kind: str) -> None:
    points = curves(script, gpu, kind)
    held = model(load_profile(script.PROFILES[gpu]))
    other = 3 - held.partitions
    swapped = replace(held, partitions=other, sets=held.sets * held.partitions // other)
    assert script.off(swapped, points) > 4 * script.off(held, points)


def test_a_dirty_share_doubled_or_halved_fits_far_worse(script: ModuleType) -> None:
    """Fills of an A40 keep the L2's rate up to 4.6 of 6 MiB."""
    rows = [r for r in script.rows() if r.gpu == "A40" and r.curve == "fill"]
    held = model(load_profile("a40"))
    dirty = script.dirty_of(held, rows)
    assert dirty.low <= held.dirty_ways <= dirty.high + 0.1
    assert dirty.error < 0.03
    footprint = 9 * MIB // 2
    half, as_fitted, whole = (
        script.fill(replace(held, dirty_ways=w), footprint, 84) / (6 * footprint)
        for w in (held.dirty_ways / 2, held.dirty_ways, held.ways)
    )
    assert whole == 0
    assert as_fitted < 0.3  # the L2 holds it but where pages overfill a set
    assert half > 0.8


def test_partitions_from_one_thread_alone() -> None:
    """Loads that miss from half of the L2 on tell two partitions, from all of it on one; between is nearer to one."""

    def points(foot: int) -> list[Point]:
        return [
            Point("private_scan", n * MIB, 4, 1, n * MIB * (1 + 3 * (n > foot)))
            for n in range(4, 60, 4)
        ]

    assert partitions_of(points(20), 40 * MIB) == 2
    assert partitions_of(points(36), 40 * MIB) == 1
    assert partitions_of([p for p in points(20) if p.misses < FOOT], 40 * MIB) is None


@pytest.mark.slow
def test_the_fit_finds_an_l2_that_it_knows(script: ModuleType) -> None:
    """Scans of one thread, played by the model of one partition and of two."""
    for gpu in ("v100-sxm2", "a100-sxm-80gb"):
        profile = load_profile(gpu)
        size = profile.need_int("l2_bytes")
        points = []
        for tenth in range(3, 16):
            footprint = size * tenth // 10 // 8192 * 8192
            points.append(
                Point(
                    "private_scan",
                    footprint,
                    4,
                    1,
                    scan(profile, footprint, "private_scan", 4, 1)[0],
                )
            )
        fitted = fit(profile, points)
        assert fitted is not None
        assert fitted.partitions == profile.l2_partitions
        assert fitted.capacity_fraction == pytest.approx(
            profile.l2_effective_capacity_fraction, abs=0.05
        )
        assert fitted.error < 0.02
