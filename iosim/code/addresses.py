"""What the loads and stores of a kernel touch: evaluated from its PTX, counted, and told instruction by instruction.

    evaluated = evaluate(entry, grid=(64, 32, 1), arguments={"Q": TensorArgument("Q", (32, 4096, 64), "fp16"), ...})
    for site in evaluated.sites:
        site.tensor, site.sectors, site.sectors_per_request, site.line

A request is one instruction of a warp; a sector 32 bytes of memory; a wavefront a cycle of shared memory's 32 banks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from iosim.base.arrays import tallied
from iosim.base.errors import InputError
from iosim.base.records import cached_property, dataclass, field
from iosim.code.arguments import Bound, TensorArgument, bind, place
from iosim.code.ptx import Entry, Instruction
from iosim.code.ptx_lanes import LOCAL_AT, SHARED_AT, Settings
from iosim.code.ptx_run import Run
from iosim.code.ptx_trace import Access, Fold, Pattern, Trace
from iosim.code.ptx_values import Array
from iosim.code.ptx_words import WARP
from iosim.kernel.launch import SECTOR_BYTES, Mode

LANES_AT_ONCE = 1 << 20
"""Lanes that are evaluated together: of all registers that differ in each, some hundred megabytes."""
BANKS, BANK_BYTES, WAVEFRONT_BYTES, LINE_BYTES = 32, 4, 128, 128
MATRIX_LANES = {"x1": 8, "x2": 16, "x4": 32}
"""Lanes whose addresses `ldmatrix` reads (PTX ISA, ldmatrix)."""
SECONDS = 5.0
GLOBAL, SHARED, LOCAL = "global", "shared", "local"
PAST_L1 = ("cg", "cv", "volatile", "relaxed", "acquire", "L1_no_allocate")
"""Words of loads that are served by the L2 alone (PTX ISA, cache operators)."""


@dataclass(frozen=True)
class Site:
    """What one instruction does over the whole launch. `requests` are warps' executions of it, `sectors` of 32 bytes
    and `lines` of 128 what they touch (of shared memory 0), `wavefronts` cycles of shared memory's banks, `bytes` what
    lanes ask for, `distinct_bytes` that without repeats inside a warp. `strides` are bytes from trip to trip of the
    loop around it, as far as CTAs agree; `past_end` bytes asked for beyond the tensor's end."""

    number: int
    text: str
    line: str
    space: str
    mode: Mode
    tensor: str
    loop: str
    requests: int
    sectors: int
    lines: int
    wavefronts: int
    bytes: int
    distinct_bytes: int
    width: int
    strides: tuple[int, ...]
    past_end: int
    asynchronous: bool
    through_l1: bool

    @property
    def sectors_per_request(self) -> float:
        return self.sectors / max(1, self.requests)

    @property
    def used_share(self) -> float:
        """The part of its sectors' bytes that it asked for."""
        return self.distinct_bytes / max(1, self.sectors * SECTOR_BYTES)

    @property
    def least_wavefronts(self) -> int:
        """Wavefronts without bank conflicts."""
        return self.requests * max(1, self.width * WARP // WAVEFRONT_BYTES)

    @property
    def moves_with_loop(self) -> bool:
        return any(self.strides)


@dataclass(frozen=True)
class Evaluated:
    """A launch whose addresses have been evaluated, in batches of CTAs in the order in which they start."""

    entry: Entry
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    bound: Bound
    traces: tuple[Trace, ...]

    @property
    def ctas(self) -> int:
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        return math.prod(self.block)

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        return tuple(_sites(self))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was assumed or could not be read, each once."""
        return tuple(dict.fromkeys(note for trace in self.traces for note in trace.notes))

    @cached_property
    def _visits(self) -> dict[int, Array]:
        """Warps of each CTA that run each block, by the block's first instruction."""
        of_traces = [trace.visits() for trace in self.traces]
        starts = dict.fromkeys(start for visits in of_traces for start in visits)
        return {
            start: np.concatenate(
                [
                    visits.get(start, np.zeros(trace.ctas, dtype=np.int64))
                    for visits, trace in zip(of_traces, self.traces, strict=True)
                ]
            )
            for start in starts
        }

    def _block(self, start: int) -> tuple[Instruction, ...]:
        """The instructions of the block that begins with one."""
        starts = self.entry.flow.starts
        end = starts.index(start) + 1
        return tuple(self.entry.instructions[start : starts[end] if end < len(starts) else None])

    @cached_property
    def runs(self) -> dict[int, float]:
        """How often a warp runs each line of the PTX, in the mean over the launch's warps."""
        # A block's visits are counted in the trace; each of its lines runs as often, whichever way led there.
        warps = self.ctas * -(-self.threads // WARP)
        by_row = dict.fromkeys((instruction.row for instruction in self.entry.instructions), 0.0)
        for start, visits in self._visits.items():
            for instruction in self._block(start):
                by_row[instruction.row] += float(visits.sum()) / warps
        return by_row

    @cached_property
    def shares(self) -> Array:
        """The work of each CTA over that of the mean one, by the instructions that its warps run."""
        instructions: Array = np.zeros(self.ctas)
        for start, visits in self._visits.items():
            instructions = instructions + visits * len(self._block(start))
        mean = max(1.0, float(instructions.mean()))
        of_mean: Array = instructions / mean
        return of_mean

    def sectors(self, mode: Mode) -> int:
        """Sectors of global memory that requests of a kind touch."""
        return sum(
            site.sectors for site in self.sites if site.space == GLOBAL and site.mode is mode
        )

    def wavefronts(self, mode: Mode) -> int:
        """Wavefronts of shared memory for requests of a kind, those of asynchronous copies apart."""
        shared = (site for site in self.sites if site.space == SHARED and not site.asynchronous)
        return sum(site.wavefronts for site in shared if site.mode is mode)


def evaluate(
    entry: Entry,
    grid: tuple[int, ...],
    arguments: Mapping[str, Any],
    block: tuple[int, ...] | None = None,
    seconds: float = SECONDS,
) -> Evaluated:
    """The addresses of a launch.

    Args:
        entry: the kernel (`iosim.code.ptx.entries`).
        grid: CTAs along x, y and z.
        arguments: values of its parameters by name: numbers, or a `TensorArgument`.
        block: threads along x, y and z; by default what the PTX requires.
        seconds: the time that it may take.

    Raises:
        InputError: arguments that do not fit, no block where the PTX states none, or what cannot be followed.
    """
    bound = bind(entry, arguments)
    if block is None:
        if not entry.threads:
            raise InputError(
                f"`block` is missing: the PTX of {entry.name} states no threads; accepted: such as 128,1,1"
            )
        block = entry.threads
    sides, threads = _three("grid", grid), _three("block", block)
    ctas, lanes = math.prod(sides), math.prod(threads)
    if lanes > 1024:
        raise InputError(f"`block` {block} has {lanes} threads; accepted: up to 1024")
    settings = Settings(sides, threads, bound.values, bound.memory, seconds)
    at_once = max(1, LANES_AT_ONCE // lanes)
    traces = [
        Run(entry, settings, _coordinates(sides, n, min(n + at_once, ctas))).go()
        for n in range(0, ctas, at_once)
    ]
    return Evaluated(entry, sides, threads, bound, tuple(traces))


def _three(name: str, sides: tuple[int, ...]) -> tuple[int, int, int]:
    if not 1 <= len(sides) <= 3 or min(sides) < 1:
        raise InputError(
            f"`{name}` {','.join(map(str, sides))}; accepted: one to three whole numbers from 1"
        )
    x, y, z = (*sides, 1, 1)[:3]
    return int(x), int(y), int(z)


def _coordinates(grid: tuple[int, int, int], first: int, end: int) -> Array:
    """Places in the grid of CTAs in the order in which they start: x runs fastest."""
    n = np.arange(first, end, dtype=np.int64)
    return np.stack([n % grid[0], n // grid[0] % grid[1], n // (grid[0] * grid[1])], axis=1)


# ---- what an access is ----


def instruction_of(entry: Entry, site: int) -> Instruction:
    return entry.instructions[site // 2]


def space_of(entry: Entry, access: Access) -> str:
    """Which memory an access goes to: by its instruction's words, else by its address."""
    instruction, half = instruction_of(entry, access.site), access.site % 2
    if half or instruction.name in ("ldmatrix", "stmatrix"):
        return SHARED
    if instruction.name == "cp" or "global" in instruction.opcode:
        return GLOBAL
    for part in instruction.opcode:
        if part.startswith("shared"):
            return SHARED
        if part == "local":
            return LOCAL
        if part == "const":
            return "const"
    if access.pattern is None or not access.base.size:
        return GLOBAL
    address = int(access.base[0])
    return LOCAL if address >= LOCAL_AT else SHARED if address >= SHARED_AT else GLOBAL


def mode_of(instruction: Instruction, half: int = 0) -> Mode:
    if instruction.name == "cp" and not half:
        places = [
            part
            for part in instruction.opcode
            if part in ("global", "shared", "shared_cluster", "shared_cta")
        ]
        if "reduce" in instruction.opcode:
            return Mode.REDUCE
        return Mode.STORE if places and places[0] == "global" else Mode.LOAD
    if instruction.name in ("atom", "red"):
        return Mode.REDUCE
    return Mode.STORE if instruction.name in ("st", "stmatrix", "cp") else Mode.LOAD


def through_l1(instruction: Instruction) -> bool:
    """True where L1 may serve a load: plain ones, and copies that say so."""
    if instruction.name == "cp":
        return "ca" in instruction.opcode
    return instruction.name in ("ld", "ldu") and not any(
        word in instruction.opcode for word in PAST_L1
    )


# ---- counting ----


@dataclass(frozen=True)
class Spread:
    """How often an access is made at each of its phases: addresses modulo a line."""

    phase: Array
    times: Array


def phases(access: Access, folds: tuple[Fold, ...], grain: int = LINE_BYTES) -> Spread:
    """The phases of all times that an access is made."""
    # Only an address modulo a line decides its sectors. Trips add a stride each, so that phases come
    # back after grain / gcd(grain, strides) of them: a fold is that many phases, each so often.
    phase, times = access.base % grain, np.ones(access.ctas.size, dtype=np.int64)
    which = np.arange(access.ctas.size)
    for stride, fold in zip(access.strides, folds, strict=True):
        count = fold.count[access.ctas][which]
        step = stride[which] % grain
        if not step.any():
            times = times * count
            continue
        turns = grain // math.gcd(grain, *(int(s) for s in np.unique(step)))
        parts = [(count - r + turns - 1) // turns for r in range(turns)]
        phase = np.concatenate([(phase + r * step) % grain for r in range(turns)])
        times = np.concatenate([times * np.maximum(part, 0) for part in parts])
        which = np.tile(which, turns)
    present = tallied(phase, weights=None, minlength=grain)
    counted = np.zeros(grain, dtype=np.int64)
    np.add.at(counted, phase, times)
    places = np.flatnonzero((present > 0) & (counted > 0))
    return Spread(places, counted[places])


class Counter:
    """Sectors and wavefronts of the patterns of one trace, each worked out once."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._sectors: dict[tuple[int, int], tuple[int, int]] = {}
        self._others: dict[tuple[int, int], tuple[int, int, int]] = {}

    def sectors(self, pattern: int, phase: int) -> tuple[int, int]:
        """(sectors, lines) that the warps of a CTA touch, each warp's by itself."""
        key = (pattern, phase)
        if key not in self._sectors:
            by_warp = [
                touched_sectors(p.offset + phase, p.width)
                for p in warps(self._trace.patterns[pattern])
            ]
            lines = sum(int(np.unique(sectors >> 2).size) for sectors in by_warp)
            self._sectors[key] = sum(int(sectors.size) for sectors in by_warp), lines
        return self._sectors[key]

    def others(self, pattern: int, lanes: int) -> tuple[int, int, int]:
        """(requests, wavefronts of shared memory, distinct bytes) of a CTA."""
        key = (pattern, lanes)
        if key not in self._others:
            parts = list(warps(self._trace.patterns[pattern], lanes))
            waves = sum(wavefronts(p) for p in parts)
            self._others[key] = len(parts), waves, sum(_distinct_bytes(p) for p in parts)
        return self._others[key]


@dataclass(frozen=True)
class WarpPattern:
    """The active lanes of one warp: their numbers in it, and bytes from the CTA's first lane."""

    lane: Array
    offset: Array
    width: int


def warps(pattern: Pattern, lanes: int = WARP) -> Iterator[WarpPattern]:
    """The warps of a pattern in which some lane is active; `lanes`: of how many the address counts."""
    for first in range(0, pattern.offset.size, WARP):
        part = slice(first, first + WARP)
        lane = np.flatnonzero(pattern.active[part])
        if lane.size:
            lane = lane[lane < lanes]
            yield WarpPattern(lane, pattern.offset[part][lane], pattern.width)


def touched_sectors(start: Array, width: int) -> Array:
    """Numbers of the sectors that pieces of `width` bytes touch, each once, in order."""
    inner = [start + at for at in range(0, width, SECTOR_BYTES)]
    return np.unique(np.concatenate([*inner, start + width - 1]) >> 5)


def wavefronts(p: WarpPattern) -> int:
    """Cycles of shared memory for a request: pieces of 8 and 16 bytes go half and quarter warps at a time; lanes that
    ask for one word are served together, for two words of one bank one after the other."""
    # Of 16-byte pieces a quarter warp goes at once, of 8-byte ones half; then the bank that is asked
    # for most words decides (CUDA C++ Programming Guide, shared memory of compute capability 5.x on).
    together = max(1, min(WARP, WAVEFRONT_BYTES // p.width))
    total = 0
    for group in np.unique(p.lane // together):
        start = p.offset[p.lane // together == group]
        words = np.unique(
            np.concatenate([start + at for at in range(0, max(p.width, 1), BANK_BYTES)])
            // BANK_BYTES
        )
        total += int(tallied(words % BANKS).max())
    return total


def _distinct_bytes(p: WarpPattern) -> int:
    starts = np.unique(p.offset)
    if starts.size < 2:
        return starts.size * p.width
    return int(np.minimum(np.diff(starts), p.width).sum()) + p.width


@dataclass
class _Sum:
    """What is added up of an instruction's accesses in one loop."""

    space: str
    tensor: str
    loop: str
    requests: int = 0
    sectors: int = 0
    lines: int = 0
    wavefronts: int = 0
    bytes: int = 0
    distinct: int = 0
    width: int = 0
    past_end: int = 0
    strides: set[int] = field(default_factory=set)


def _sites(evaluated: Evaluated) -> Iterator[Site]:
    entry = evaluated.entry
    sums: dict[tuple[int, str], _Sum] = {}
    for trace in evaluated.traces:
        counter = Counter(trace)
        for access, folds in trace.walk():
            _add(evaluated, trace, counter, sums, access, folds)
    for (number, _), s in sorted(sums.items(), key=lambda item: item[0]):
        instruction = instruction_of(entry, number)
        yield Site(
            number,
            instruction.text,
            instruction.line,
            s.space,
            mode_of(instruction, number % 2),
            s.tensor,
            s.loop,
            s.requests,
            s.sectors,
            s.lines,
            s.wavefronts,
            s.bytes,
            s.distinct,
            s.width,
            tuple(sorted(s.strides)),
            s.past_end,
            instruction.name == "cp",
            through_l1(instruction),
        )


def _add(
    evaluated: Evaluated,
    trace: Trace,
    counter: Counter,
    sums: dict[tuple[int, str], _Sum],
    access: Access,
    folds: tuple[Fold, ...],
) -> None:
    entry = evaluated.entry
    instruction, space = instruction_of(entry, access.site), space_of(entry, access)
    owner = tensor_of(evaluated.bound, access) if space == GLOBAL else None
    name = owner.name if owner is not None else "" if space != GLOBAL else "?"
    head = folds[-1].head if folds else -1
    s = sums.setdefault((access.site, name), _Sum(space, name, loop_name(entry, access.site // 2)))
    if access.pattern is None or not access.ctas.size:
        return
    pattern, trips = trace.patterns[access.pattern], int(trace.trips(access, folds).sum())
    lanes = (
        next((MATRIX_LANES[p] for p in instruction.opcode if p in MATRIX_LANES), WARP)
        if "matrix" in instruction.name
        else WARP
    )
    requests, waves, distinct = counter.others(access.pattern, lanes)
    s.requests += requests * trips
    s.bytes += pattern.lanes * pattern.width * trips
    s.distinct += distinct * trips
    s.width = max(s.width, pattern.width)
    if head >= 0:
        s.strides.update(int(x) for x in np.unique(access.strides[-1])[:4])
    if space == GLOBAL:
        # Sectors hang on the phase, requests and bytes do not: these are times the trips, those phase by phase.
        spread = phases(access, folds)
        for phase, times in zip(spread.phase, spread.times, strict=True):
            sectors, lines = counter.sectors(access.pattern, int(phase))
            s.sectors += sectors * int(times)
            s.lines += lines * int(times)
        if owner is not None:
            s.past_end = max(s.past_end, _last_byte(access, folds, pattern) - owner.bytes)
    elif space == SHARED:
        s.wavefronts += waves * trips


def loop_name(entry: Entry, at: int) -> str:
    """The innermost loop around an instruction, by the line of its first one; empty where there is none."""
    around = [head for head, end in entry.flow.loops.items() if head <= at <= end]
    if not around:
        return ""
    head = max(around)
    lines = (inside.line for inside in entry.instructions[head : entry.flow.loops[head] + 1])
    return next((line for line in lines if line), f"instruction {head}")


def tensor_of(bound: Bound, access: Access) -> TensorArgument | None:
    """The tensor that an access lies in."""
    if access.pattern is None or not access.base.size:
        return None
    number = int(access.base[0]) // place(0) - 1
    return bound.tensors[number] if 0 <= number < len(bound.tensors) else None


def _last_byte(access: Access, folds: tuple[Fold, ...], pattern: Pattern) -> int:
    """The end of the last byte that an access touches, from its tensor's beginning."""
    # Each fold's last trip lies furthest where its stride is positive, else its first; CTAs that make none of a
    # fold's trips are not among those of its accesses.
    end = access.base.copy()
    for stride, fold in zip(access.strides, folds, strict=True):
        end += np.maximum(stride, 0) * (fold.count[access.ctas] - 1)
    furthest = int((end % place(0)).max())
    return furthest + int(pattern.offset[pattern.active].max()) + pattern.width
