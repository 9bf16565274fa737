"""Registers and shared memory of iosim's own kernels, as the compiler reported them (`kernels/resources.csv`).

A row is one build; what no row covers is not known here, and callers estimate it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.base.pointwise import pointwise
from iosim.base.records import dataclass
from iosim.base.schema import Column, Table, Text, Whole, checked, read_csv, read_toml, whole, word
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Spill, Tile
from iosim.problem.attention import AttentionProblem

FILE, KERNEL = "resources.csv", "flash_fwd"
WORD_BYTES = 4
SPILL_SOURCE = (
    "the compiler's report: each word of a thread's stack frame is stored and loaded once a step"
)
SMALL_SPILL_BYTES = 16
FRAME_OF_STORES = 0.5
"""Frame over the bytes that ptxas says are spilled by stores, of which those before the loop are part: 0.40 to 0.67 in
the builds of flash_fwd for cc 9.0 that spill more than `SMALL_SPILL_BYTES`; a smaller spill is stored once."""
SAME_BUILD = {"fp16": "bf16"}
"""Types that compile to instructions of the same shape: the other's row stands in where their own is missing."""

Key = tuple[str, int, int, int, int, int, int, str, bool]


@dataclass(frozen=True)
class BuildReport:
    """What one build takes: registers per thread, bytes of shared memory a CTA, and bytes of a thread's stack frame,
    which it spills to."""

    registers: int
    shared_memory_bytes: int
    frame_bytes: int = 0

    @property
    def spill(self) -> Spill | None:
        return spill_of_frame(self.frame_bytes)


def _capability(text: str) -> int:
    major, _, minor = text.partition(".")
    try:
        return 10 * whole(major) + whole(minor or "0")
    except ValueError:
        raise ValueError(f"must be a compute capability such as 8.0, not '{text}'") from None


COLUMNS: Mapping[str, Column] = {
    "kernel": str,
    "cc": _capability,
    **dict.fromkeys(("head_dim", "block_q", "block_k", "warps", "stages"), whole),
    "dtype": word("fp16", "bf16", "fp32", "tf32", "fp8"),
    "causal": word("0", "1"),
    **dict.fromkeys(
        (
            "registers",
            "spill_store_bytes",
            "spill_load_bytes",
            "static_smem_bytes",
            "dynamic_smem_bytes",
        ),
        whole,
    ),
    "compiler": str,
    "min_ctas": whole,
}
STAMP = Table(
    {
        "schema": Whole(1, 1),
        "sources": Text(pattern="[0-9a-f]{16}"),
        "of": Text(),
        "compiler": Text(pattern=r"\d+(\.\d+)*"),
        "command": Text(),
    },
    required=("schema", "sources", "of", "compiler", "command"),
)


def read_table(path: Path) -> dict[Key, BuildReport]:
    """All builds of a resource table, by (kernel, cc, head_dim, block_q, block_k, warps, stages, dtype, causal). Raises
    InputError: the file cannot be read, its columns are not those of a resource table, or a cell is not what its column
    holds."""
    return {
        _key(row): BuildReport(
            row["registers"],
            row["static_smem_bytes"] + row["dynamic_smem_bytes"],
            frame_of_stores(max(row["spill_store_bytes"], row["spill_load_bytes"])),
        )
        for row in read_csv(path, COLUMNS, "resource table")
    }


def read_stamp(path: Path) -> Mapping[str, Any]:
    """What the file beside a resource table says of it. Raises InputError: it cannot be read, or is not such a file."""
    return checked(read_toml(path), STAMP, path.name)


def _key(row: Mapping[str, Any]) -> Key:
    sizes = tuple(row[n] for n in ("cc", "head_dim", "block_q", "block_k", "warps", "stages"))
    return (row["kernel"], *sizes, row["dtype"], row["causal"] == "1")


@lru_cache(maxsize=1)
def _shipped() -> dict[Key, BuildReport]:
    try:
        path = data_dir("kernels") / FILE
    except InputError:
        return {}
    return read_table(path) if path.is_file() else {}


def build_report(
    problem: AttentionProblem, tile: Tile, profile: HardwareProfile
) -> BuildReport | None:
    """The recorded build of flash_fwd with a tile for the problem on a GPU; None where there is none. Window masks,
    value widths that differ from the keys' and fp32 have no builds of their own."""
    if problem.mask not in ("none", "causal") or problem.head_dim_v != problem.head_dim:
        return None
    # The type's own build, else that of a type that compiles alike.
    for dtype in (problem.dtype, SAME_BUILD.get(problem.dtype)):
        if dtype is None:
            continue
        built = (dtype, problem.mask == "causal")
        sizes = (problem.head_dim, tile.block_q, tile.block_k, tile.warps, tile.stages)
        if pointwise(
            lambda *recorded, built=built: (KERNEL, profile.cc, *recorded, *built) in _shipped()
        )(*sizes):
            return _shipped()[(KERNEL, profile.cc, *sizes, *built)]
    return None


def spill_of_frame(frame_bytes: float) -> Spill | None:
    """What a thread with such a stack frame spills at each step of its key loop: each word is stored and loaded once.
    Counted so for 28 tiles of iosim's own kernel on an H200 that spill 8 to 316 bytes (`local_read`, `local_write` in
    kernels/measurements/h200_iosim_kernels.csv): the median of loads is 0.98 of that and of stores 0.97, and every
    stored byte reaches the L2. Nothing is fitted."""
    if not frame_bytes:
        return None
    accesses = 2 * frame_bytes / WORD_BYTES
    return Spill(
        write_per_pair=frame_bytes,
        accesses_per_pair=accesses,
        source=SPILL_SOURCE,
        frame=frame_bytes,
    )


def frame_of_stores(spill_store_bytes: int) -> int:
    """Bytes of a thread's stack frame, where only the bytes of its spilling stores are known."""
    if spill_store_bytes <= SMALL_SPILL_BYTES:
        return spill_store_bytes
    return round(spill_store_bytes * FRAME_OF_STORES / WORD_BYTES) * WORD_BYTES
