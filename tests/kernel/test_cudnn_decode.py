"""cuDNN's decode kernels: tiles, splits and bytes against every recorded call whose kernel the profiler named."""

from __future__ import annotations

import csv
import re
from functools import cache

import pytest
from scripts import ROOT

from iosim.catalog.libraries import resolve
from iosim.catalog.libraries.cudnn import cudnn_splits, neighbours_of_q
from iosim.hardware.profile import load_profile
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem

TABLES = (
    *((ROOT / "kernels/measurements" / f"{gpu}_random.csv") for gpu in ("h100", "h200")),
    *(
        (ROOT / "experiments/measurements" / f"{gpu}_random_{n}.csv")
        for gpu in ("h100", "h200")
        for n in (2, 3)
    ),
)
NAMED = re.compile(r"sm80_flash_fprop_wmma_f16_knob_\d+_(\d+)x(\d+)x")
UNLIKE = (66, 104, 173)
"""Batch, heads and keys of the one call that ran another kernel than its number of keys says."""


@cache
def calls() -> list[tuple[dict[str, str], Call]]:
    """The recorded calls, and each as it is predicted."""
    calls_found = []
    for table in TABLES:
        gpu = load_profile(table.name[:4])
        with table.open(encoding="utf-8") as lines:
            rows = [
                row
                for row in csv.DictReader(lines)
                if NAMED.search(row["kernel"]) and not row["seq_lens"]
            ]
        for row in rows:
            sizes = {
                n: int(row[n]) for n in ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim")
            }
            causal = "causal" if row["causal"] == "1" else "none"
            problem = AttentionProblem(
                **sizes, mask=causal, dtype="bf16" if row["dtype"] == "bfloat16" else "fp16"
            )
            if (problem.batch, problem.heads, problem.seq_k) != UNLIKE:
                calls_found.append((row, Call.of(problem, resolve("cudnn", problem, gpu), gpu)))
    return calls_found


def test_there_are_calls() -> None:
    assert len(calls()) >= 60


def test_tiles_are_those_of_the_kernels_names() -> None:
    for row, call in calls():
        named = NAMED.search(row["kernel"])
        assert named is not None
        assert (call.kernel.tile.block_q, call.kernel.tile.block_k) == (
            int(named[1]),
            int(named[2]),
        ), row


def test_splits_are_those_of_the_grids() -> None:
    for row, call in calls():
        assert int(re.findall(r"\d+", row["grid"])[0]) == call.kernel.splits, row


def test_registers_and_shared_memory_are_the_recorded_ones() -> None:
    for row, call in calls():
        stated = call.kernel.shared_memory_bytes
        assert stated is not None
        assert stated + 1024 == int(row["smem_bytes"])  # with the driver's kilobyte
        assert (
            abs((call.kernel.registers or 0) - int(row["registers"])) <= 40
        )  # of a mask, or of whole tiles: fewer


def test_sm_reads_are_the_counted_ones() -> None:
    errors = [
        call.counted.total("l2", "read", launch="main") / float(row["l2_read"]) - 1
        for row, call in calls()
    ]
    assert max(map(abs, errors)) < 0.03
    assert sum(abs(error) <= 0.001 for error in errors) >= 0.9 * len(errors)


@pytest.mark.parametrize(
    ("tiles", "key_blocks", "splits"),
    [
        (2, 1000, 64),
        (8, 64, 32),
        (32, 64, 8),
        (64, 64, 4),
        (78, 61, 1),
        (17, 3, 1),
        (1, 5, 4),
    ],
)
def test_splits_of_132_sms(tiles: int, key_blocks: int, splits: int) -> None:
    assert cudnn_splits(tiles, key_blocks, 264) == splits


def test_rows_of_q_beyond_the_group() -> None:
    """64 rows from each group's first head on, as far as there are heads: of 128 heads in groups of 8, groups 0 to 7
    fetch 64 rows, 8 to 15 fetch 64, 56, ... 8: 50 a group in the mean, 42 of them others'."""
    problem = AttentionProblem(heads=128, kv_heads=16, seq_q=1, seq_k=1, head_dim=128, dtype="bf16")
    assert neighbours_of_q(problem, 64)[0].per_tile == 42 * 256
