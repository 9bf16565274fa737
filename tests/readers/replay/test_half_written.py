"""Sectors that are stored in parts: which of them the L2 reads to make them whole."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from scripts import measurements

from iosim.code.addresses import evaluate
from iosim.code.addresses_moves import all_moves
from iosim.code.arguments import TensorArgument
from iosim.code.half_stored import stored_in_parts
from iosim.code.ptx import entries
from iosim.hardware.profile import load_profile
from iosim.kernel.launch import Domain, Launch, Outer
from iosim.kernel.touched import InParts, Touched
from iosim.readers.replay.half_written import filled_share, half_written
from iosim.readers.replay.l2 import model

ACCESSES = Path(__file__).parents[2] / "code" / "ptx" / "accesses.ptx"
SMS, WARPS = 132, 16


def launch(open_lines: float, stored: int, requested: int) -> Launch:
    """A CTA an SM, which together store so many bytes of sectors, and ask for so many bytes to be stored."""
    none = np.zeros(SMS, dtype=np.int32)
    in_parts = {"out": InParts(open_lines, requested)}
    touched = Touched({"out": np.array([stored])}, none, none, none, (), in_parts=in_parts)
    return Launch("columns", Domain(1, 1, SMS, 1, 1, 1), Outer.QUERY, (), touched=touched)


def moved(of: Launch, gpu: str) -> dict[str, int]:
    return {r.direction: r.bytes for r in half_written(of, 4 * SMS, model(load_profile(gpu)))}


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize(
    ("case", "blocks"), [("columns-side-1", 1), ("columns-side-2", 2), ("columns-own-2", 2)]
)
def test_sectors_that_wait_for_their_rest_are_read(gpu: str, case: str, blocks: int) -> None:
    """16 warps of each SM hold 32 or 64 lines open while they store the eight words of each sector (..._cache_edges.csv;
    the number of lines a set holds was chosen on another table)."""
    with measurements(f"{gpu}_cache_edges.csv").open(encoding="utf-8", newline="") as file:
        counted = {row["case"]: row for row in csv.DictReader(file)}
    stored = SMS * WARPS * 8 * 32 * 128
    hbm_bytes = moved(launch(WARPS * 32 * blocks, stored, stored), gpu)
    assert hbm_bytes["read"] == pytest.approx(float(counted[case]["hbm_read"]), rel=0.06)
    assert (
        hbm_bytes["write"] == hbm_bytes["read"]
    )  # it is written back, and once more when it is whole
    # An eighth of each sector alone: all are read, and written as often as before.
    eighth = moved(launch(WARPS * 32 * 7, stored, stored // 8), gpu)
    assert eighth["read"] == pytest.approx(float(counted["columns-eighth"]["hbm_read"]), rel=0.04)
    assert eighth["write"] == pytest.approx(eighth["read"] / 8, rel=0.01)


def test_few_open_lines_meet_in_no_set() -> None:
    l2 = model(load_profile("h200"))
    assert filled_share(8_000, l2) < 0.01
    shares = [filled_share(2.0**n, l2) for n in range(10, 20)]
    assert shares == sorted(shares)
    assert shares[-1] > 0.99


def test_a_line_is_open_from_its_first_store_to_its_last() -> None:
    """128 threads fill a row of two lines each, four words a trip: each line is open for 15 of 32 moves."""
    rows, cols = 1024, 64
    arguments = {
        "in": TensorArgument("in", (cols, rows), "fp32"),
        "out": TensorArgument("out", (rows, cols), "fp32"),
        "rows": rows,
        "cols": cols,
    }
    kernel = entries(ACCESSES.read_text(encoding="utf-8"))["column_store"]
    counts = evaluate(kernel, (8,), arguments, (128,))
    ((_, parts),) = stored_in_parts(counts, *all_moves(counts)).items()
    assert parts.open_lines == 256 * 15 / 32
    assert parts.bytes == rows * cols * 4
    whole = entries(ACCESSES.read_text(encoding="utf-8"))["transpose"]
    square = {n: TensorArgument(n, (256, 256), "fp32") for n in ("in", "out")}
    counts = evaluate(whole, (8, 8), square | {"n": 256}, (32, 8))
    assert stored_in_parts(counts, *all_moves(counts)) == {}
