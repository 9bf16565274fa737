"""What the compiler says of tiles of iosim's own forward: compiled now, or kept from before.

Each is compiled as for the table of `kernels/resources.csv`: for the most CTAs per SM that spill nothing, else for one.
Cubins lie in the user's cache, by source, compiler and options. For how many CTAs per SM to build a tile of which the
table has nothing is guessed from shared memory, warps and live values.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import replace
from iosim.catalog import resource_table
from iosim.catalog.resource_table import BuildReport, build_report, read_stamp
from iosim.evidence.cuda.compiler import build, find_nvcc, source_files
from iosim.evidence.cuda.spec import BUILT, DTYPES, STATIC_BYTES_MARGIN, FwdSpec
from iosim.hardware.profile import HardwareProfile
from iosim.hardware.profile_file import capability_fact
from iosim.kernel.kernel import Tile
from iosim.problem.attention import AttentionProblem
from iosim.studies.tiles.pick import (
    TileRanking,
    by_time,
    has_builds,
    pick_tiles,
    tile_space,
    try_tile,
    unit_of,
)

FUNCTION = "flash_fwd"
OWN_UNIT = "mma.sync"
"""What iosim's own forward computes with."""


def reports(
    problem: AttentionProblem,
    profile: str | HardwareProfile,
    max_tiles: int | None,
    matrix_unit: str = OWN_UNIT,
    progress: Progress = silent,
) -> dict[Tile, BuildReport]:
    """What the compiler says of the first `max_tiles` tiles that no recorded build covers; nothing where it is None.
    Raises InputError where `max_tiles` is below 1, there is no compiler, or no such problem can be compiled."""
    if max_tiles is None:
        return {}
    if max_tiles < 1:
        raise InputError(f"`compile` {max_tiles} is out of range; accepted: 1 or more")
    if matrix_unit != OWN_UNIT:
        raise InputError(
            f"`compile` is for iosim's own forward; accepted: with `matrix_unit` {OWN_UNIT} alone"
        )
    check(problem)
    ranking = pick_tiles(problem, profile, library=False, replayed=0)
    return compiled_tiles(without_report(ranking), problem, ranking.profile, max_tiles, progress)


def without_report(ranking: TileRanking) -> list[Tile]:
    """Tiles that no report covers, as fast as they could be first: those that fit by estimate, and those that are
    thought to spill, as if they did not."""
    problem, gpu, unit = ranking.problem, ranking.profile, unit_of(ranking.problem, OWN_UNIT)
    if not has_builds(problem, unit):
        return []
    missing = []
    estimated = {c.tile for c in ranking.candidates if c.registers_source == "estimated"}
    max_registers = gpu.need_int("max_registers_per_thread")
    for tile in tile_space():
        if tile in ranking.reports or build_report(problem, tile, gpu) is not None:
            continue
        tried = try_tile(tile, problem, gpu, unit)
        if tile not in estimated:
            shared = (
                (tile.block_q + 2 * tile.stages * tile.block_k)
                * problem.head_dim
                * problem.input_type.bytes
            )
            # a tile that is thought to spill is ranked as if it did not: only the compiler knows
            tried = try_tile(tile, problem, gpu, unit, BuildReport(max_registers, shared))
        if not isinstance(tried, str):
            missing.append(tried.candidate)
    return [c.tile for c in sorted(missing, key=by_time)]


def compiled_tiles(
    tiles: Iterable[Tile],
    problem: AttentionProblem,
    profile: HardwareProfile,
    max_tiles: int,
    progress: Progress = silent,
) -> dict[Tile, BuildReport]:
    """Reports of the first `max_tiles` tiles that iosim's forward can be built with. Raises InputError where there is
    no compiler, it refuses, or the forward is not built for such a problem."""
    check(problem)
    find_nvcc()
    cc = f"{profile.cc // 10}.{profile.cc % 10}"
    specs = [(tile, spec) for tile in tiles if (spec := _spec(tile, problem, cc)) is not None]
    return {tile: _report(spec, cc) for tile, spec in progress(specs[:max_tiles])}


def check(problem: AttentionProblem) -> None:
    if problem.passes != "fwd":
        raise InputError(
            f"`passes` {problem.passes}: tiles are compiled for the forward; accepted: fwd"
        )
    if problem.mask not in ("none", "causal"):
        raise InputError(f"`mask` {problem.mask}: tiles are compiled for full and causal attention")
    if problem.dtype not in DTYPES or problem.head_dim_v != problem.head_dim:
        subject = f"{problem.dtype}, head_dim {problem.head_dim} and {problem.head_dim_v}"
        raise InputError(
            f"`dtype` {subject}: tiles are compiled for {' and '.join(DTYPES)} and one head_dim"
        )


def _spec(tile: Tile, problem: AttentionProblem, cc: str) -> FwdSpec | None:
    spec = FwdSpec(
        problem.head_dim,
        tile.block_q,
        tile.block_k,
        tile.warps,
        tile.stages,
        problem.mask,
        problem.dtype,
    )
    try:
        spec.check(cc)
    except InputError:
        return None
    return spec


def _report(spec: FwdSpec, cc: str) -> BuildReport:
    """The first build that spills nothing, for fewer and fewer CTAs per SM, or the last."""
    for ctas in range(most_ctas(spec, cc), 0, -1):
        used = build(replace(spec, min_ctas=ctas), cc).resources[FUNCTION]
        # fewer CTAs per SM leave a thread more registers
        if used.spill_store_bytes == 0:
            break
    shared_bytes = used.static_smem_bytes + spec.dynamic_shared_bytes
    return BuildReport(used.registers, shared_bytes, used.frame_bytes)


COLUMNS = tuple(resource_table.COLUMNS)
"""Columns of the table of builds."""
KEY = COLUMNS[:9]
REGISTERS_PER_SM, DRIVER_SHARED_BYTES = 65_536, 1_024
LIVE_LIMIT, LIVE_MARGIN = 224, 30

Row = dict[str, str]


def live_registers(spec: FwdSpec) -> int:
    """fp32 registers of a thread that hold output and scores (`FwdTraits::LiveRegisters`)."""
    row_tiles = spec.block_q // (16 * spec.warps)
    return row_tiles * (spec.head_dim // 2 + spec.block_k // 2)


def most_ctas(spec: FwdSpec, cc: str) -> int:
    shared = (
        spec.dynamic_shared_bytes
        + STATIC_BYTES_MARGIN
        + (0 if cc == "7.5" else DRIVER_SHARED_BYTES)
    )
    # addresses, masks and statistics besides output and scores: LIVE_MARGIN registers per thread
    by_registers = REGISTERS_PER_SM // (spec.threads * (live_registers(spec) + LIVE_MARGIN))
    by_shared = (capability_fact(cc, "shared_memory_per_sm_bytes") or 0) // shared
    by_warps = (capability_fact(cc, "max_warps_per_sm") or 0) // spec.warps
    return max(1, min(by_registers, by_shared, by_warps))


def row_key(cc: str, spec: FwdSpec) -> tuple[str, ...]:
    causal = str(int(spec.mask == "causal"))
    sizes = (spec.head_dim, spec.block_q, spec.block_k, spec.warps, spec.stages)
    return ("flash_fwd", cc, *map(str, sizes), spec.dtype, causal)


def source_digest() -> str:
    """Changes with every edit of the sources that the table describes, comments and blanks apart."""
    digest = hashlib.sha256()
    for path in source_files("flash_fwd.cu"):
        lines = (line.split("//")[0].split() for line in path.read_text().splitlines())
        digest.update("\n".join(" ".join(words) for words in lines if words).encode())
    return digest.hexdigest()[:16]


def read_table(path: Path) -> dict[tuple[str, ...], Row]:
    """Rows by key; none where the table is missing or describes other sources than those here."""
    stamp = path.with_suffix(".toml")
    if not path.is_file() or not stamp.is_file() or read_stamp(stamp)["sources"] != source_digest():
        return {}
    with path.open(newline="") as text:
        return {tuple(row[name] for name in KEY): row for row in csv.DictReader(text)}


_shipped = cache(lambda: read_table(data_dir("kernels") / "resources.csv"))


def tuned(spec: FwdSpec, cc: str) -> FwdSpec:
    """The spec built for the most CTAs per SM that spill nothing: the resource table's, or a guess where it has none;
    InputError where it cannot be built."""
    spec.check(cc)
    plain = replace(
        spec,
        # the table has one type per capability and no windows: its nearest row stands for the others
        dtype="fp16" if cc == "7.5" else "bf16",
        mask="none" if spec.mask == "none" else "causal",
    )
    row = _shipped().get(row_key(cc, plain))
    return replace(
        spec,
        min_ctas=int(row["min_ctas"]) if row else most_ctas(spec, cc if cc in BUILT else "8.6"),
    )
