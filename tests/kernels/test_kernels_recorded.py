"""The recorded rows of the project's kernels: whole, and equal to the arithmetic that the sources state."""

from __future__ import annotations

import csv
import math
from itertools import groupby

import pytest
from scripts import measurements, read_provenance

from iosim.evidence.cuda.spec import FwdSpec

PATH = measurements("h200_iosim_kernels.csv")
with PATH.open(newline="") as _file:
    ROWS = list(csv.DictReader(_file))


def size(row: dict[str, str], name: str) -> int:
    return int(row[name])


def forward_reads(row: dict[str, str]) -> int:
    """Bytes into the SMs: each tile's Q rows once and its key blocks' K and V rows once, none past the end."""
    block_q, block_k, seq_q, seq_k = (
        size(row, x) for x in ("block_q", "block_k", "seq_q", "seq_k")
    )
    offset = seq_k - seq_q
    splits = size(row, "splits")
    elements = 0
    for row0 in range(0, seq_q, block_q):
        row1 = min(row0 + block_q, seq_q) - 1
        first, last = 0, math.ceil(seq_k / block_k)
        if row["causal"] == "1":
            last = min(last, max(row1 + offset + block_k, 0) // block_k)
        if row["window"]:
            first = max(row0 + offset - size(row, "window"), 0) // block_k
        per_split = math.ceil(max(last - first, 0) / splits)
        for split in range(splits):
            start = min(first + split * per_split, max(first, last))
            end = min(start + per_split, max(first, last))
            elements += (row1 - row0 + 1) + 2 * (
                min(end * block_k, seq_k) - min(start * block_k, seq_k)
            )
    return size(row, "batch") * size(row, "heads") * elements * size(row, "head_dim") * 2


def rows_of(kernel: str) -> list[dict[str, str]]:
    return [row for row in ROWS if row["kernel"] == kernel]


def test_table_is_whole() -> None:
    assert len(ROWS) >= 300
    calls = [int(row["call"]) for row in ROWS]
    assert sorted(set(calls)) == list(range(1, max(calls) + 1))
    for _, launches in groupby(ROWS, key=lambda row: row["call"]):
        numbers = [int(row["launch"]) for row in launches]
        assert numbers == list(range(1, len(numbers) + 1))
    for row in ROWS:
        assert all(
            row[name]
            for name in (
                "kernel",
                "grid",
                "block",
                "registers",
                "seconds",
                "sm_clock_hz",
                "l2_read",
            )
        )
        assert 0 < float(row["seconds"]) < 10
    assert {"gpu", "profiler", "cuda_compiler", "date", "command"} <= set(read_provenance(PATH))


def test_tile_sweeps_are_wide() -> None:
    sweeps: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for row in rows_of("flash_fwd"):
        if row["note"] == "sweep":
            problem = (row["heads"], row["seq_q"], row["head_dim"], row["causal"])
            tile = (row["block_q"], row["block_k"], row["warps"], row["stages"])
            sweeps.setdefault(problem, set()).add(tile)
    assert len(sweeps) == 4
    assert all(len(tiles) >= 60 for tiles in sweeps.values())


def test_forward_reads_are_the_arithmetic() -> None:
    worst = max(abs(size(row, "l2_read") / forward_reads(row) - 1) for row in rows_of("flash_fwd"))
    assert worst < 1e-3


def test_forward_writes_are_output_and_lse() -> None:
    """Where LSE rows of every head start on a sector and nothing spills, to the byte."""
    for row in rows_of("flash_fwd"):
        exact = (
            row["spill_store_bytes"] == "0" and size(row, "seq_q") % 8 == 0 and row["splits"] == "1"
        )
        if exact and not row["note"].startswith("packed"):
            rows = size(row, "batch") * size(row, "heads") * size(row, "seq_q")
            assert size(row, "l2_write") == pytest.approx(
                rows * (2 * size(row, "head_dim") + 4), rel=1e-6
            )
            assert row["local_write"] == "0"


def test_shared_memory_is_the_traits() -> None:
    for row in rows_of("flash_fwd"):
        spec = FwdSpec(
            *(size(row, x) for x in ("head_dim", "block_q", "block_k", "warps", "stages"))
        )
        assert (
            size(row, "smem_bytes") == spec.dynamic_shared_bytes + 128 + 1024
        )  # static, and what the driver keeps


def test_minimal_reads_and_writes() -> None:
    for row in rows_of("minimal_fwd"):
        n = size(row, "seq_q")
        d = size(row, "head_dim")
        blocks = n // 32
        heads = size(row, "batch") * size(row, "heads")
        reads = heads * 4 * (2 * n * d + blocks * (2 * n * d + 2 * n))
        packets = (
            heads * blocks * (32 * n * d + 4 * 2 * n)
        )  # O: each thread's 4 bytes are a 32-byte packet of its own
        # CTAs that share an SM push rows out of its L1 that their threads, a word at a time, have not finished
        assert size(row, "l2_read") == pytest.approx(reads, rel=1e-3 if heads < 132 else 0.05)
        assert size(row, "l2_write") == pytest.approx(packets, rel=1e-3)
