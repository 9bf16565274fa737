"""How CTAs part: constants beside the recorded kernels, and what each kind of launch gets."""

from __future__ import annotations

import csv
import math
import statistics
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scripts import ROOT, load_script, measurements
from traces import LINE, small

import iosim
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.launch import SPILL, Launch, Mode, Overhead
from iosim.kernel.machine import Machine, MemoryUse, Region, Slot
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay import replay as replays
from iosim.readers.replay.engine import L2, Ctas
from iosim.readers.replay.frames import frames_fill_l2
from iosim.readers.replay.lowering import LoweredLaunch
from iosim.readers.replay.parting import (
    AGE_SHARE,
    FRAMES_AGE_SHARE,
    FRAMES_SM_SPREAD,
    parting_of,
)
from iosim.readers.replay.sharing import rates_of, sloped

H200 = load_profile("h200")
PROBLEM = AttentionProblem(heads=16, seq_q=4096, head_dim=128)
SMS, WARP, WORD = 132, 32, 4


def recorded() -> Iterator[tuple[dict[str, str], float]]:
    """Rows of h200_walks.csv, each with the bytes of its resident CTAs' frames over the written lines of the L2."""
    launches = tomllib.loads((ROOT / "experiments/walks.toml").read_text(encoding="utf-8"))["case"]
    warps = {launch["name"]: launch["warps"] for launch in launches}
    written = H200.need("l2_bytes") * H200.need("l2_dirty_fraction")
    with measurements("h200_walks.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            threads = warps[row["case"]] * WARP * int(row["ctas_per_sm"]) * SMS
            yield row, int(row["spilled_words"]) * WORD * threads / written


def steepness(row: dict[str, str]) -> float:
    """What the youngest CTA's blocks take longer than the oldest one's."""
    by_age = [float(share) for share in row["by_age"].split()]
    return by_age[-1] - by_age[0]


def test_constants_are_the_medians_of_what_was_recorded() -> None:
    rows = list(recorded())
    filled = [row for row, frames in rows if frames > 0.5]
    others = [row for row, frames in rows if frames <= 0.5]
    assert (len(filled), len(others)) == (8, 19)
    # No launch is near the limit: 0.44 and less, 0.64 and more.
    assert not [frames for _, frames in rows if 0.45 < frames < 0.63]
    assert pytest.approx(statistics.median(map(steepness, filled)), abs=0.005) == FRAMES_AGE_SHARE
    of_sms = statistics.median(float(row["sms"]) for row in filled)
    assert pytest.approx(of_sms * math.sqrt(3), abs=0.001) == FRAMES_SM_SPREAD
    for ctas, share in AGE_SHARE.items():
        several = [steepness(row) for row in others if int(row["ctas_per_sm"]) == ctas]
        assert statistics.median(several) == pytest.approx(share, abs=0.006), ctas
    assert max(float(row["sms"]) for row in others) < 0.002


def launch_with(frame: int, **more: Any) -> Launch:
    """FlashAttention-2's launch, with a frame a CTA and what else is given."""
    launch = Call.of(PROBLEM, resolve("fa2", PROBLEM, H200), H200).chain.launches[0]
    stored = Overhead(SPILL, Mode.STORE, per_tile=frame, frame=frame)
    return replace(launch, overheads=(stored,) if frame else (), **more)


def test_described_kernels_part_as_measured_ones_and_those_of_code_hardly() -> None:
    kernel = resolve("fa2", PROBLEM, H200)
    described, slots = launch_with(0), 2 * SMS
    assert parting_of(PROBLEM, kernel, H200, described, slots).rates == rates_of(kernel, PROBLEM, 2)
    code = replace(described, work=replace(described.work, machine=Machine()))
    for ctas, share in ((2, 0.0), (3, 0.014), (5, 0.11), (8, 0.11)):
        parting = parting_of(PROBLEM, kernel, H200, code, ctas * SMS)
        assert (parting.rates, parting.sm_spread) == (sloped(share, ctas), 0.0)
    assert parting_of(PROBLEM, kernel, H200, code, SMS).rates == (1.0,)


@pytest.mark.parametrize(("frame", "fills"), [(54_000, False), (57_000, True)])
def test_frames_that_fill_the_l2_set_sms_apart(frame: int, fills: bool) -> None:
    """Half of 60 MiB x 0.49 are 14.7 MiB: 264 CTAs fill them from 58.4 kB a CTA on, 272 from 56.7."""
    kernel, slots = resolve("fa2", PROBLEM, H200), 272
    launch = launch_with(frame)
    launch = replace(launch, work=replace(launch.work, machine=Machine()))
    assert frames_fill_l2(launch, slots, H200) == fills
    parting = parting_of(PROBLEM, kernel, H200, launch, slots)
    assert (parting.sm_spread, parting.sms_alike) == ((FRAMES_SM_SPREAD, 1) if fills else (0.0, 16))


def test_only_ctas_that_there_are_have_frames() -> None:
    """120 kB a CTA: 264 of them fill half of the written lines, the four of a small grid do not."""
    problem = AttentionProblem(heads=1, seq_q=512, head_dim=128)
    launch = launch_with(120_000)
    small = replace(launch, domain=replace(launch.domain, heads=1, rows=512, seq_k=512))
    small = replace(small, work=replace(small.work, machine=Machine()))
    assert small.work_tiles == 4
    parting = parting_of(problem, resolve("fa2", problem, H200), H200, small, 2 * SMS)
    assert (parting.rates, parting.sm_spread) == ((1.0, 1.0), 0.0)


def load(group: str) -> Slot:
    return Slot(group, "lsu", 0, 1, 0, None, 0, MemoryUse(4, 1, 0))


@pytest.mark.parametrize(
    ("groups", "waits"),
    [(("global-load",), 2), (("global-load", "global-copy"), 0), (("bulk-copy",), 0)],
)
def test_a_described_kernel_of_code_waits_for_k_and_v_where_nothing_is_copied_ahead(
    groups: tuple[str, ...], waits: int
) -> None:
    call = Call.of(PROBLEM, resolve("flash", PROBLEM, H200), H200)
    launch = call.chain.launches[0]
    machine = Machine(step=(Region(tuple(map(load, groups)), repeats=True),))
    chain = replace(
        call.chain, launches=(replace(launch, work=replace(launch.work, machine=machine)),)
    )
    assert Call.of(PROBLEM, call.kernel, H200, chain).paces[0].waits == waits


@pytest.mark.parametrize(
    ("entry", "turns", "waits", "parts"),
    [
        ("column_store", 4, 1, 2),  # a thread copies four elements: a load and a store each
        ("matrix_product", 4, 1, 6),  # 100 columns in tiles of 32; 23 moves of a CTA
        ("flash_forward", 3.5, 0, 4),  # causal, 2 to 5 blocks of keys, copied ahead; 15.2 moves
    ],
)
def test_a_launch_is_played_by_the_turns_of_its_code(
    entry: str, turns: float, waits: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = load_script("tests/golden/code_cases.py")
    file, grid, block, arguments = cases.LAUNCHES[entry]
    launches_played: list[Ctas] = []
    ctas_of = replays.ctas_of
    monkeypatch.setattr(
        replays,
        "ctas_of",
        lambda *args: launches_played.append(ctas_of(*args)) or launches_played[-1],
    )
    code = str(cases.FOLDER / f"{file}.sass")
    p = iosim.predict_code(code, grid, arguments.split(), "h100", entry=entry, block=block)
    p.call.replay()
    pace = p.call.paces[0]
    assert (pace.turns, pace.waits) == (turns, waits)
    assert (launches_played[-1].parts, launches_played[-1].waits) == (parts, waits)


def test_the_parts_of_a_turn_vary_by_chance_together() -> None:
    """A turn of four parts, each a quarter as long, takes what a turn of one part takes."""

    def ended(steps: int, step_s: float, parts: int) -> np.ndarray[Any, Any]:
        tiles = 8
        zero, tile = np.zeros(tiles, dtype=np.int32), np.arange(tiles, dtype=np.int32)
        launch = LoweredLaunch(
            "x", zero, zero + steps, (), (), (), zero.astype(np.uint8), zero, tile
        )
        l2 = L2(small(sets=1, ways=4), np.full(1, LINE, np.int32), np.zeros(1, np.uint8))
        ctas = Ctas(tiles, sms=tiles, step_s=step_s, step_spread_ppm=100_000, parts=parts)
        end, _ = l2.replay(launch, ctas)
        return np.array(end)

    whole = ended(16, 4e-6, 1)
    assert ended(64, 1e-6, 4) == pytest.approx(whole, rel=1e-6)
    assert ended(64, 1e-6, 1) != pytest.approx(whole, rel=1e-4)


def test_what_marks_of_ctas_say() -> None:
    """Four SMs, two 1 % slower and two 1 % faster than the mean, hold two CTAs each, of which the older takes 0.98 of the
    mean for a block: six follow one another in each place, those of the second place half a CTA later."""
    blocks, every = 8, 2
    at, place = [], []
    for sm, slow in enumerate((0.99, 1.01, 0.99, 1.01)):
        for cta in range(6):
            for second in (0, 1):
                begin = (cta + second / 2) * blocks * every * 100.0
                # the one that began before runs as the older for the second half of each other's time
                took = np.where(np.arange(blocks) < blocks // 2, 1.02, 0.98) * slow * 100.0 * every
                marks = begin + np.concatenate(([0.0], np.cumsum(took)))
                at.append([begin, *marks, marks[-1]])
                place.append(sm)
    row = load_script("experiments/walks.py").parted(np.array(at), np.array(place), every)
    assert row["ctas_per_sm"] == 2
    assert [float(x) for x in row["by_age"].split()] == pytest.approx([0.98, 1.02], abs=0.004)
    assert row["sms"] == pytest.approx(0.01, abs=0.002)
    assert row["block_us"] == pytest.approx(0.1, rel=0.01)
