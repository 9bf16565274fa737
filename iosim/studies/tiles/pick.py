"""Tile picking: every tile for a problem on a GPU, rejected with a reason or ranked by predicted time.

Tiles are those of the `flash` algorithm, forward or backward. Candidates are counted, placed and timed by the code that
`predict` uses. A quick rule for HBM bytes ranks all of them; the first, and the library's kernels, are then replayed as
`predict` does, and ranked again. Registers come from the compiler's report where one covers the tile, else from an
estimate, and the candidate says which. A build that spills is ranked with its spills' traffic and time. Splitting keys
among CTAs is not searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product, starmap
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass, field, plain, replace
from iosim.base.units import picoseconds, some
from iosim.base.words import WAYS, Method
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import entry, entry_names, resolve, runs_on_gpu
from iosim.catalog.resource_table import BuildReport, build_report
from iosim.hardware.profile import HardwareProfile, cc_text, load_profile
from iosim.kernel.kernel import Kernel, PassSettings, Tile
from iosim.kernel.launch import Chain, Launch, LaunchRole
from iosim.kernel.overrides import Overrides
from iosim.kernel.residency import residency
from iosim.kernel.tile_rules import backward_shared_bytes, rows_misfit, stages_misfit
from iosim.kernel.unit import MatrixUnit
from iosim.prediction.call import Call
from iosim.prediction.many import Request, try_all
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.problem.dtypes import INPUT_DTYPES
from iosim.readers.replay.sharing import OWN
from iosim.show.tables import Column, Table
from iosim.studies.models.layers import Layers
from iosim.studies.requests import MATRIX_UNITS, TilesRequest

if TYPE_CHECKING:
    import pandas

ALGORITHM = "flash"
LIBRARY = (ALGORITHM, "efficient")
"""Algorithms whose forward is that one's."""
QUICK: Method = "capacity"
"""The method that ranks all tiles before any is replayed."""
REPLAYED = 10
"""Number of the ranking's first tiles that are replayed."""
MOST_REPLAYED = 40
"""And at most, where replayed ones fall behind others."""
MAIN_LAUNCH = {"fwd": LaunchRole.MAIN, "bwd": LaunchRole.MAIN_BACKWARD}
TENSOR_DTYPE_CC = {"fp8": 89}
"""Compute capability from which tensor cores multiply a type (PTX ISA, mma)."""
UNITS = {"mma.sync": MatrixUnit.MMA_SYNC, "wgmma": MatrixUnit.WGMMA}


MOST_SHOWN = 10
"""Tiles of a ranking that a notebook shows."""
TIED_PERCENT = 5
"""Percent of the fastest tile's time within which others tie: about the mean error of the time model over tiles of one
problem (`iosim validate --times`, group tiles)."""
SHOWN = (
    Column("tile"),
    Column("time_s", "time"),
    Column("bound_by", "bound by"),
    Column("l2_read_bytes", "L2 read"),
    Column("hbm_read_bytes", "HBM read"),
    Column("ctas_per_sm", "CTAs/SM", kind="count"),
    Column("waves", kind="number"),
    Column("registers", kind="count"),
)


@dataclass(frozen=True)
class TileCandidate:
    """A tile that fits, and what is predicted of it. Bytes and seconds are of the whole call, all its launches.
    `registers_source` is "compiled" or "estimated", or "stated" where a library's are known. `shared_memory_bytes` is
    None where a library's is not."""

    kernel: str
    tile: Tile
    time_s: float
    bound_by: str
    l2_read_bytes: int
    l2_write_bytes: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    ctas_per_sm: int
    limited_by: tuple[str, ...]
    occupancy: float
    waves: float
    shared_memory_bytes: int | None
    registers: int
    registers_source: str
    spilled_bytes: int = 0
    """Bytes of a thread's registers that lie in local memory."""
    method: Method = QUICK
    """How the HBM bytes were found, as in `Prediction`."""

    def to_dict(self) -> dict[str, Any]:
        fields = {**vars(self), "limited_by": list(self.limited_by)}
        return {"kernel": fields.pop("kernel"), **vars(fields.pop("tile")), **fields}


@dataclass(frozen=True)
class RejectedTile:
    tile: Tile
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self.tile), "reason": self.reason}


@dataclass(frozen=True)
class TileRanking:
    """Candidates and library kernels, each fastest first, and the rejected tiles in the order they were tried."""

    problem: AttentionProblem
    profile: HardwareProfile
    candidates: tuple[TileCandidate, ...]
    rejected: tuple[RejectedTile, ...]
    library: tuple[TileCandidate, ...]
    layers: Layers | None = None
    """The layers of a model whose problem it is, where there is a model."""
    reports: Mapping[Tile, BuildReport] = field(default_factory=dict)
    """What the compiler said of tiles beside the recorded builds."""
    of_kernel: KernelTiles | None = None
    """The library kernel whose tiles these are; None of the flash algorithm's."""

    def to_pandas(self) -> pandas.DataFrame:
        """The candidates as a DataFrame, fastest first, with the keys of `TileCandidate.to_dict`."""
        return Table.of(c.to_dict() for c in self.candidates).to_pandas()

    def __repr__(self) -> str:
        best = f"best {self.candidates[0].tile}" if self.candidates else "none fits"
        return f"<TileRanking: {self.profile.name}, {len(self.candidates)} fit, {len(self.rejected)} do not; {best}>"

    def _repr_html_(self) -> str:
        from iosim.show.shown import html

        rows = Table.of(
            (vars(c) | {"tile": str(c.tile)} for c in self.candidates[:MOST_SHOWN]), SHOWN
        )
        return html([repr(self).strip("<>"), rows])

    @property
    def best(self) -> TileCandidate:
        """The fastest candidate; of those that tie with it the first that does not spill. Raises InputError: every tile
        was rejected."""
        if not self.candidates:
            raise InputError(
                f"no tile fits: for the first, {self.rejected[0].reason} ({self.profile.name})"
            )
        return next((c for c in self.ties if not c.spilled_bytes), self.candidates[0])

    @property
    def ties(self) -> tuple[TileCandidate, ...]:
        """The candidates whose times differ from the fastest by less than the model's error, that one among them."""
        if not self.candidates:
            return ()
        limit = picoseconds(self.candidates[0].time_s) * (100 + TIED_PERCENT)
        return tuple(c for c in self.candidates if picoseconds(c.time_s) * 100 <= limit)


def pick_tiles(
    problem: AttentionProblem,
    profile: str | HardwareProfile = "a100",
    *,
    replayed: int = REPLAYED,
    reports: Mapping[Tile, BuildReport] | None = None,
    progress: Progress = silent,
    **options: Any,
) -> TileRanking:
    return rank_tiles(
        TilesRequest(problem=problem, gpu=profile, **options), reports, progress, replayed
    )


def rank_tiles(
    request: TilesRequest,
    reports: Mapping[Tile, BuildReport] | None = None,
    progress: Progress = silent,
    replayed: int = REPLAYED,
) -> TileRanking:
    """All tiles of the `flash` algorithm for a problem on a GPU, ranked by predicted time."""
    problem, gpu = request.problem, load_profile(request.gpu)
    check_tiles(request, gpu)
    of_kernel = None if request.kernel is None else KernelTiles.of(request, gpu)
    unit = unit_of(problem, request.matrix_unit)
    candidates: list[PlannedTile] = []
    rejected = []
    for tile in tile_space() if of_kernel is None else of_kernel.space():
        report = (reports or {}).get(tile)
        tried = (
            try_tile(tile, problem, gpu, unit, report)
            if of_kernel is None
            else of_kernel.try_tile(tile)
        )
        if isinstance(tried, str):
            rejected.append(RejectedTile(tile, tried))
        else:
            candidates.append(tried)
    # A kernel's tiles stand beside its own tile alone, the flash algorithm's beside all libraries'.
    if of_kernel is not None:
        of_library = [planned for planned in candidates if planned.candidate.tile == of_kernel.tile]
    else:
        of_library = library_tiles(problem, gpu) if request.library else []
    if replayed > 0:
        candidates, of_library = _replayed(candidates, of_library, replayed, progress)
    first, others = (
        sorted((planned.candidate for planned in group), key=by_time)
        for group in (candidates, of_library)
    )
    return TileRanking(
        problem,
        gpu,
        tuple(first),
        tuple(rejected),
        tuple(others),
        request.kind,
        dict(reports or {}),
        of_kernel,
    )


def check_tiles(request: TilesRequest, gpu: HardwareProfile) -> None:
    """Raises InputError: both passes at once, a matrix unit or a type that the GPU does not have, or a setting of the
    flash algorithm beside a library kernel. What compiles tiles asks before it does."""
    problem, matrix_unit = request.problem, request.matrix_unit
    if request.kernel and (matrix_unit != MATRIX_UNITS[0] or request.compile is not None):
        option = "matrix_unit" if request.compile is None else "compile"
        raise InputError(
            f"`{option}` {getattr(request, option)} contradicts `kernel` {request.kernel}; accepted: one of them"
        )
    if problem.passes not in MAIN_LAUNCH:
        raise InputError(
            f"`passes` {problem.passes}: tiles are picked for one pass at a time; accepted: fwd, bwd"
        )
    if matrix_unit not in UNITS:
        raise InputError(
            f"`matrix_unit` '{matrix_unit}' is not known; accepted: {', '.join(UNITS)}"
        )
    if matrix_unit == "wgmma" and gpu.cc != 90:
        raise InputError(f"`matrix_unit` wgmma: needs cc 9.0; {gpu.name} has cc {cc_text(gpu.cc)}")
    least = TENSOR_DTYPE_CC.get(problem.dtype, 0)
    if gpu.cc < least:
        known_dtypes = ", ".join(d for d in INPUT_DTYPES if gpu.cc >= TENSOR_DTYPE_CC.get(d, 0))
        hint = f"{gpu.name} has cc {cc_text(gpu.cc)}; accepted there: {known_dtypes}"
        raise InputError(
            f"`dtype` {problem.dtype}: tensor cores take it from cc {least / 10:.1f}; {hint}"
        )


@dataclass(frozen=True)
class KernelTiles:
    """The tiles of a library kernel, whose other settings stay as the library has them.

    Where the catalog knows no rule of which tiles the kernel's source can have, its warps and stages stay, and each warp
    has at least the rows that it has in the library's tile.
    """

    name: str
    problem: AttentionProblem
    profile: HardwareProfile
    kernel: Kernel
    """As the library launches it."""
    has_rule: bool

    @classmethod
    def of(cls, request: TilesRequest, profile: HardwareProfile) -> KernelTiles:
        """Raises InputError: a kernel without tiles to choose."""
        name, problem = str(request.kernel), request.problem
        kernel = resolve(name, problem, profile)
        if kernel.algorithm not in LIBRARY:
            known = ", ".join(n for n in entry_names() if entry(n)["algorithm"] in LIBRARY)
            raise InputError(
                f"`kernel` {name}: it has no tiles to choose; accepted: kernels of algorithm {', '.join(LIBRARY)} ({known})"
            )
        has_rule = "tile_rule" in entry(kernel.name)["kernel"]
        return cls(name, problem, profile, kernel, has_rule)

    @property
    def tile(self) -> Tile:
        return self._tile_of(self.kernel)

    def _tile_of(self, kernel: Kernel) -> Tile:
        return kernel.tile if self.problem.passes == "fwd" else kernel.tile_backward

    def space(self) -> list[Tile]:
        """All tiles that are tried, the library's among them."""
        tiles = tile_space()
        if not self.has_rule:
            tiles = (
                Tile(*sides, self.tile.warps, self.tile.stages)
                for sides in product(BLOCK_Q, BLOCK_K)
            )
        return list(dict.fromkeys([*tiles, self.tile]))

    def try_tile(self, tile: Tile) -> PlannedTile | str:
        """What is predicted of the kernel with a tile, or why it does not fit."""
        # The library's tile keeps the registers and spills that are recorded of it.
        if tile == self.tile:
            return self._planned(self.kernel, "stated")
        if reason := self._too_few_rows(tile) or _larger(tile, self.problem):
            return reason
        over = Overrides(tile=(tile.block_q, tile.block_k), warps=tile.warps, stages=tile.stages)
        try:
            kernel = resolve(self.name, self.problem, self.profile, over)
        except InputError as error:
            return str(error).partition(": ")[2].partition("; accepted")[0] or str(error)
        return self._planned(kernel, "estimated")

    def _planned(self, kernel: Kernel, source: str) -> PlannedTile | str:
        chain = plan(self.problem, kernel)
        reason = residency(main_launch(chain, self.problem), self.profile).misfit
        return reason or _candidate(self.problem, self.profile, kernel, chain, source)

    def _too_few_rows(self, tile: Tile) -> str:
        """Why warps would have fewer rows than the library gives them; of kernels without a rule alone."""
        own_rows, rows = (
            t.block_q if self.problem.passes == "fwd" else t.block_k for t in (self.tile, tile)
        )
        if self.has_rule or rows % own_rows == 0:
            return ""
        side = "block_q" if self.problem.passes == "fwd" else "block_k"
        return f"{side} {rows} is no multiple of the kernel's {own_rows}, which its warps share"


@dataclass(frozen=True, eq=False)
class PlannedTile:
    candidate: TileCandidate
    request: Request

    def by(self, prediction: Prediction) -> PlannedTile:
        replayed: dict[str, Any] = plain(
            time_s=prediction.time_s,
            bound_by=prediction.bound_by,
            method=prediction.method,
            hbm_read_bytes=prediction.hbm.read,
            hbm_write_bytes=prediction.hbm.write,
        )
        return PlannedTile(replace(self.candidate, **replayed), self.request)


def replayed_tiles(
    planned: Sequence[PlannedTile], progress: Progress = silent
) -> list[PlannedTile]:
    """These tiles with what a replay of each says, on all cores."""
    outcomes = try_all([tile.request for tile in planned], progress=progress)
    return [
        tile if isinstance(outcome, InputError) else tile.by(outcome)
        for tile, outcome in zip(planned, outcomes, strict=True)
    ]


def _replayed(
    candidates: list[PlannedTile], library: list[PlannedTile], first: int, progress: Progress
) -> tuple[list[PlannedTile], list[PlannedTile]]:
    """(candidates, library's kernels), the latter and the `first` of the former by replay. Replayed tiles may fall
    behind others, which are then replayed in their turn."""
    ranked = sorted(candidates, key=lambda tile: by_time(tile.candidate))
    known: list[PlannedTile] = []
    todo, also = ranked[:first], library
    while todo or also:
        played = replayed_tiles([*todo, *also], progress)
        # Replays replace the quick rule's numbers, which may push a tile behind others: these are then
        # replayed in turn, until the first `first` are all replayed or the limit is reached.
        again = dict(zip(map(id, todo), played, strict=False))
        library = played[len(todo) :] or library
        ranked = sorted(
            (again.get(id(tile), tile) for tile in ranked), key=lambda tile: by_time(tile.candidate)
        )
        known += again.values()
        todo, also = (
            [tile for tile in ranked[:first] if tile not in known][
                : max(0, MOST_REPLAYED - len(known))
            ],
            [],
        )
    return ranked, library


def try_tile(
    tile: Tile,
    problem: AttentionProblem,
    gpu: HardwareProfile,
    unit: MatrixUnit,
    report: BuildReport | None = None,
) -> PlannedTile | str:
    """What is predicted of a tile, or why it does not fit or makes no sense."""
    return rejection(tile, problem, gpu, unit) or _try(tile, problem, gpu, unit, report)


def has_builds(problem: AttentionProblem, unit: MatrixUnit) -> bool:
    """True where iosim's own kernel, whose builds are recorded, computes the problem so."""
    return problem.passes == "fwd" and unit is MatrixUnit.MMA_SYNC


def unit_of(problem: AttentionProblem, matrix_unit: str) -> MatrixUnit:
    """What computes a problem's products, where `matrix_unit` was asked for: fp32 has no tensor cores."""
    return MatrixUnit.FP32 if problem.dtype == "fp32" else UNITS[matrix_unit]


def by_time(candidate: TileCandidate) -> tuple[int, int, int]:
    """Fastest first; of equals the one with the fewest L2 bytes, then the least shared memory."""
    bytes_ = candidate.l2_read_bytes + candidate.l2_write_bytes
    return picoseconds(candidate.time_s), bytes_, candidate.shared_memory_bytes or 0


def library_tiles(problem: AttentionProblem, profile: HardwareProfile) -> list[PlannedTile]:
    """The catalog's kernels of the flash algorithm that run the problem on that GPU, with their own tiles; one that
    two names stand for there (cuDNN's before Hopper) is there once."""
    candidates: dict[str, PlannedTile] = {}
    for name in entry_names():
        data = entry(name)
        if data["algorithm"] not in LIBRARY or data.get("any_tile"):
            continue
        if not runs_on_gpu(data, problem.dtype, profile):
            continue
        try:
            kernel = resolve(name, problem, profile)
        except InputError:
            continue
        # Two names of one kernel on this GPU.
        if kernel.name in candidates:
            continue
        chain = plan(problem, kernel)
        if residency(main_launch(chain, problem), profile).occupancy.ctas_per_sm > 0:
            candidates[kernel.name] = _candidate(problem, profile, kernel, chain, "stated")
    return list(candidates.values())


def main_launch(chain: Chain, problem: AttentionProblem) -> Launch:
    return next(n for n in chain.launches if n.role is MAIN_LAUNCH[problem.passes])


def _try(
    tile: Tile,
    problem: AttentionProblem,
    gpu: HardwareProfile,
    unit: MatrixUnit,
    report: BuildReport | None,
) -> PlannedTile | str:
    """The candidate, or why no CTA of the tile fits on an SM, or is thought to spill where no report says how much."""
    # What the compiler said, of this run or of the recorded builds, goes before estimates.
    if report is None and has_builds(problem, unit):
        report = build_report(problem, tile, gpu)
    of_pass = PassSettings(tile, shared_memory_bytes=backward_shared_bytes(problem, tile))
    kernel = Kernel(ALGORITHM, ALGORITHM, tile, backward=of_pass, matrix_unit=unit, cta_shares=OWN)
    if report is not None:
        kernel = kernel.with_(
            registers=report.registers,
            shared_memory_bytes=report.shared_memory_bytes,
            spill=report.spill,
        )
    chain = plan(problem, kernel)
    reason = residency(main_launch(chain, problem), gpu).misfit
    return reason or _candidate(problem, gpu, kernel, chain, "compiled")


def _candidate(
    problem: AttentionProblem, gpu: HardwareProfile, kernel: Kernel, chain: Chain, source: str
) -> PlannedTile:
    """What is predicted of a chain by the capacity rule; `source` is where its registers come from, unless they are
    estimated."""
    launch = main_launch(chain, problem)
    call = Call.of(problem, kernel, gpu, chain)
    resident = residency(launch, gpu)
    # Counted bytes of the levels above HBM, and the capacity rule's guess for HBM.
    traffic = call.counted + call.capacity()
    time = call.time(traffic)
    tile = kernel.tile if problem.passes == "fwd" else kernel.tile_backward
    total: dict[str, Any] = {
        f"{level}_{way}_bytes": int(traffic.total(level, way))
        for level in ("l2", "hbm")
        for way in WAYS
    }
    candidate = TileCandidate(
        kernel.name,
        tile,
        time.total_s,
        time.bound_by,
        **total,
        ctas_per_sm=resident.ctas_per_sm,
        limited_by=resident.occupancy.limited_by,
        occupancy=resident.occupancy.occupancy,
        waves=resident.waves,
        shared_memory_bytes=launch.resources.shared_memory_bytes,
        registers=resident.registers,
        registers_source="estimated" if resident.registers_estimated else source,
        spilled_bytes=round(kernel.spill.frame) if kernel.spill and problem.passes == "fwd" else 0,
    )
    return PlannedTile(candidate, Request(problem, kernel, gpu, chain=chain))


BLOCK_Q = (16, 32, 64, 128, 192, 256)
BLOCK_K = (16, 32, 48, 64, 96, 128, 192, 256)
WARPS = (1, 2, 4, 8)
STAGES = (1, 2, 3)


def tile_space() -> Iterator[Tile]:
    return starmap(Tile, product(BLOCK_Q, BLOCK_K, WARPS, STAGES))


def rejection(
    tile: Tile, problem: AttentionProblem, profile: HardwareProfile, unit: MatrixUnit
) -> str:
    """Why a tile makes no sense for the problem on that GPU, before resources are counted; empty when it does."""
    return (
        _larger(tile, problem)
        or rows_misfit(tile, unit, problem.backward)
        or stages_misfit(tile, profile)
    )


def _larger(tile: Tile, problem: AttentionProblem) -> str:
    return _too_large("block_q", tile.block_q, BLOCK_Q, problem.seq_q, "query row") or _too_large(
        "block_k", tile.block_k, BLOCK_K, problem.seq_k, "key row"
    )


def _too_large(name: str, block: int, choices: tuple[int, ...], rows: int, row_word: str) -> str:
    # The smallest choice that covers the problem is allowed, larger ones only add empty rows.
    enough = next((c for c in choices if c >= rows), choices[-1])
    if block <= enough:
        return ""
    return f"{name} {block} is larger than the problem: {enough} covers its {some(rows, row_word)}"
