"""Registers and shared memory of iosim's own kernels, as the compiler reported them (`kernels/resources.csv`).

A row is one build; what no row covers is not known here, and callers estimate it.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Tile
from iosim.problem.attention import AttentionProblem

FILE = "resources.csv"
SAME_BUILD = {"fp16": "bf16"}
"""Types that compile to instructions of the same shape: the other's row stands in where their own is missing."""

Key = tuple[str, int, int, int, int, int, int, str, bool]


@dataclass(frozen=True)
class BuildReport:
    """What one build takes: registers a thread, bytes a thread spills, bytes of shared memory a CTA."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_memory_bytes: int

    @property
    def spills(self) -> bool:
        return self.spill_store_bytes > 0 or self.spill_load_bytes > 0


def read_table(path: Path) -> dict[Key, BuildReport]:
    """All builds of a resource table, by (kernel, cc, head_dim, block_q, block_k, warps, stages, dtype, causal).

    Raises:
        InputError: the file cannot be read, lacks a column, or holds a value that is not a number.
    """
    table: dict[Key, BuildReport] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(line for line in file if not line.startswith("#")):
                table[_key(row)] = BuildReport(
                    int(row["registers"]), int(row["spill_store_bytes"]), int(row["spill_load_bytes"]),
                    int(row["static_smem_bytes"]) + int(row["dynamic_smem_bytes"]),
                )  # fmt: skip
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"resource table '{path}' cannot be read: {type(error).__name__} {error}") from None
    return table


def _key(row: Mapping[str, str]) -> Key:
    major, _, minor = row["cc"].partition(".")
    sizes = (int(row[n]) for n in ("head_dim", "block_q", "block_k", "warps", "stages"))
    head_dim, block_q, block_k, warps, stages = sizes
    causal = int(row["causal"]) != 0
    return (
        row["kernel"],
        10 * int(major) + int(minor or 0),
        head_dim,
        block_q,
        block_k,
        warps,
        stages,
        row["dtype"],
        causal,
    )


@lru_cache(maxsize=1)
def _shipped() -> dict[Key, BuildReport]:
    try:
        path = data_dir("kernels") / FILE
    except InputError:
        return {}
    return read_table(path) if path.is_file() else {}


def build_report(
    problem: AttentionProblem, tile: Tile, profile: HardwareProfile, kernel: str = "flash_fwd"
) -> BuildReport | None:
    """The recorded build of a tile for the problem on a GPU; None where there is none.

    Window masks, value widths that differ from the keys' and fp32 have no builds of their own.
    """
    if problem.mask not in ("none", "causal") or problem.head_dim_v != problem.head_dim:
        return None
    for dtype in (problem.dtype, SAME_BUILD.get(problem.dtype)):
        if dtype is None:
            continue
        key = (kernel, profile.cc, problem.head_dim, tile.block_q, tile.block_k, tile.warps, tile.stages, dtype,
               problem.mask == "causal")  # fmt: skip
        if key in _shipped():
            return _shipped()[key]
    return None
