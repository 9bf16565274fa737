"""Local memory in the L2: lines that go first after their last load, and frames that fill the sets by chance."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from scripts import measurements
from traces import LINE, small

from iosim.hardware.profile import load_profile
from iosim.readers.replay.engine import L2
from iosim.readers.replay.l2 import model, sm_partitions

LOAD, STORE, LAST_LOAD = 0, 1, 3
SMS, WARPS, PIECES, TURNS = 132, 8, 8, 32


def after(accesses: list[tuple[int, int]]) -> L2:
    """One set of four lines after (mode, line)."""
    l2 = L2(small(sets=1, ways=4), np.full(6, LINE, np.int32), np.zeros(6, np.uint8), 1e9)
    mode, number = np.array(accesses).T
    l2.access(mode.astype(np.uint8), number.astype(np.int32), np.zeros(mode.size, np.uint8))
    return l2


def test_a_line_that_was_loaded_for_the_last_time_goes_first() -> None:
    full = [(LOAD, line) for line in range(4)]
    assert (
        after([*full, (LAST_LOAD, 2), (LOAD, 4), (LOAD, 0), (LOAD, 1), (LOAD, 3)]).counts()[0][0]
        == 5 * LINE
    )
    assert after([*full, (LAST_LOAD, 2), (LOAD, 4), (LOAD, 2)]).counts()[0][0] == 6 * LINE
    # A dirty line keeps its place: clean ones that were used before it go.
    dirty = after(
        [
            (STORE, 0),
            (LOAD, 1),
            (LOAD, 2),
            (LOAD, 3),
            (LAST_LOAD, 0),
            *((LOAD, n) for n in (4, 5, 0)),
        ]
    )
    assert (dirty.counts()[0][0], dirty.counts()[1][0]) == (5 * LINE, 0)
    # In a set that is not full nothing goes.
    assert after([(LOAD, 0), (LOAD, 1), (LAST_LOAD, 1), (LOAD, 1)]).counts()[0][0] == 2 * LINE


def test_a_dirty_line_is_written_back_after_its_last_load_too() -> None:
    """A GPU wrote back as much with LDL.LU as with LDL (h200_frames.csv: attention-spilling, cycle)."""
    stored = [(STORE, 0), (LAST_LOAD, 0), *((LOAD, line) for line in range(1, 6))]
    assert after(stored).counts()[1][0] == LINE


def frames(gpu: str, words: int, turns: int, *, last: bool = False) -> tuple[float, float]:
    """Bytes read and written by eight warps an SM, each at a time of its own, that store `words` of a frame at once and
    then load them over the rest of a turn."""
    gpu_model = model(load_profile(gpu))
    rng = np.random.default_rng(1)
    warps = SMS * WARPS
    size = np.full(warps * PIECES, words // PIECES * 128, np.int32)
    l2 = L2(gpu_model, size, np.zeros(size.size, np.uint8), scattered=0)
    side = sm_partitions(SMS, gpu_model.partitions, gpu_model.side_ends)[np.arange(warps) // WARPS]
    begin = rng.uniform(0, 1, warps)
    piece = (np.arange(PIECES) + 0.5) / PIECES
    stores = 0.02
    times, modes = [], []
    for _ in range(turns):
        long = rng.uniform(0.9, 1.1, warps)
        for mode, at in (
            (STORE, stores * piece),
            (LAST_LOAD if last else LOAD, stores + (1 - stores) * piece),
        ):
            times.append((begin[:, None] + long[:, None] * at).ravel())
            modes.append(np.full(size.size, mode, np.uint8))
        begin = begin + long
    order = np.argsort(np.concatenate(times), kind="stable")
    number = np.tile(np.arange(size.size, dtype=np.int32), 2 * turns)
    sides = np.tile(np.repeat(side, PIECES), 2 * turns).astype(np.uint8)
    l2.access(np.concatenate(modes)[order], number[order], sides[order])
    read, written = l2.counts()
    return sum(read), sum(written)


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize("words", [192, 256])
def test_frames_about_the_size_of_the_l2(gpu: str, words: int) -> None:
    """Frames of 26 and 35 MB that are stored and loaded 32 times (..._cache_edges.csv, of which nothing was chosen):
    bytes written within 12 %, read within twice."""
    with measurements(f"{gpu}_cache_edges.csv").open(encoding="utf-8", newline="") as file:
        counted = {row["case"]: row for row in csv.DictReader(file)}[f"frame-{words}-shared"]
    read, written = frames(gpu, words, TURNS)
    assert written == pytest.approx(float(counted["hbm_write"]), rel=0.12)
    assert float(counted["hbm_read"]) / 1.2 < read < 2 * float(counted["hbm_read"])


@pytest.mark.parametrize("words", [288, 336, 456])
def test_last_uses_leave_the_l2_to_what_is_needed(words: int) -> None:
    """Frames of 39 to 62 MB on an H200, each word loaded once (h200_frames.csv, cycle): with LDL.LU a third is read."""
    with measurements("h200_frames.csv").open(encoding="utf-8", newline="") as file:
        rows = {(r["launch"], r["kind"], r["words"]): r for r in csv.DictReader(file)}
    counted = {}
    for kind in ("local", "local-last-use"):
        row = rows["cycle", kind, str(words)]
        counted[kind] = float(row["dram__bytes_read.sum"]), float(row["dram__bytes_write.sum"])
    plain = frames("h200", words, 6)
    last = frames("h200", words, 6, last=True)
    assert plain[0] == pytest.approx(counted["local"][0], rel=0.3)
    assert last[0] < 0.6 * plain[0]
    assert counted["local-last-use"][0] / 1.5 < last[0] < 2 * counted["local-last-use"][0]
    for counts, kind in ((plain, "local"), (last, "local-last-use")):
        assert counts[1] == pytest.approx(counted[kind][1], rel=0.15)
