"""Plays a program's launches through one L2, which carries over from operator to operator.

A launch goes through its tensors once, side by side, as far as this reader is concerned: what the launches before it
left in the L2 is a hit. What a looping kernel (attention, a matrix product) reads more than once from HBM is found by
its own replay from a cold L2 (`iosim.prediction`); the difference between that and the same launches streamed from a
cold L2 is added here, launch by launch.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import numpy.typing as npt

from iosim.base.arrays import repeated
from iosim.base.progress import progress
from iosim.base.records import dataclass
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.launch import Access, Chain, Launch, Mode, Outer, Role, Rows, Tensor
from iosim.kernel.traffic import CHECK_BITS, CODE, FOREIGN
from iosim.prediction.call import Call
from iosim.prediction.predictor import Request
from iosim.prediction.replays import Replays
from iosim.readers.replay.blocks import Block, CachingAllocator
from iosim.readers.replay.engine import L2
from iosim.readers.replay.l2 import model
from iosim.readers.replay.templates import MODES
from iosim.show.tables import grouped
from iosim.studies.program.operators import ROW_THREADS, Operator, Program, View

SAMPLES_PER_PIECE = 4.0
"""Followed lines of a piece of memory."""
ROWS_RUNNING = 0.9
"""Of the CTAs of a softmax's long rows that fit on an SM, those that run: 57 to 61 of its 64 warps, by a counter of
Nsight Compute's on an H200 (sm__warps_active)."""
WARP = 32
GOLDEN = (math.sqrt(5) - 1) / 2
MOST_WAVES = 8
"""Waves of the CTAs of a matrix product's section that are told apart, at most."""

Bytes = tuple[int, int]


Alone = tuple[Call, dict[str, Bytes]]
"""An operator from a cold L2, for itself: its call, and what its replay finds beyond streaming by launch."""


@dataclass(frozen=True)
class Rounds:
    """How the CTAs of a matrix product go through its operands: all of the longer side's in each of `sections`, a
    section's part of the shorter side's in each of its `waves`; `down`: a section is some columns of the result, and
    all of its rows. `parts`: a reduction's rows, side by side in each of so many; 0: in order."""

    sections: int = 1
    waves: int = 1
    down: bool = False
    parts: int = 0


class Playing:
    """Operators of one GPU: equal ones are predicted once."""

    def __init__(self, profile: HardwareProfile) -> None:
        self.profile = profile
        self._replays = Replays(shares=True)
        self._alone: dict[object, Alone] = {}

    def alone(self, operator: Operator) -> Alone:
        key = (
            operator.problem,
            operator.kernel,
            operator.chain.launches,
            tuple(operator.chain.tensors.values()),
        )
        if key not in self._alone:
            self._alone[key] = self._worked_out(operator)
        return self._alone[key]

    def _worked_out(self, operator: Operator) -> Alone:
        # A pass reads nothing twice: streaming says all.
        if not operator.is_kernel:
            return Call.of(operator.problem, operator.kernel, self.profile, operator.chain), {}
        prediction = Request(
            operator.problem, operator.kernel, self.profile, chain=operator.chain
        ).predict(self._replays)
        replayed = Counter[tuple[str, str]]()
        for row in prediction.traffic:
            if row.level == "hbm" and row.tensor not in (CODE, FOREIGN, CHECK_BITS):
                replayed[row.launch, row.direction] += int(row.bytes)
        # Replay minus streaming, both from a cold L2: what tiling re-reads.
        streamed = self.streamed(Program.of_one(operator), keeps_dirty=False)[0].items()
        beyond = {
            name: (replayed[name, "read"] - read, replayed[name, "write"] - write)
            for name, (read, write) in streamed
        }
        return prediction.call, beyond

    def streamed(self, program: Program, *, keeps_dirty: bool = True) -> list[dict[str, Bytes]]:
        """HBM bytes of each launch of each operator, by name, every tensor streamed once. `keeps_dirty`: the L2 keeps
        what a launch has written for the next to read, as h200_held_passes.csv says; a replay's does not."""
        memory = Memory(program)
        l2_of_gpu = model(self.profile)
        sizes = memory.sizes
        l2 = L2(l2_of_gpu, sizes, np.zeros(sizes.size, dtype=np.uint8), SAMPLES_PER_PIECE)
        l2.config.keeps_dirty = int(keeps_dirty)
        by_operator = []
        for number, operator in enumerate(progress("operators through the L2")(program.operators)):
            by_launch: dict[str, Bytes] = {}
            for launch in operator.chain.launches:
                # The L2 carries over from launch to launch; counts before and after are this launch's.
                before = l2.counts()
                mode, piece, shared = _walk(
                    memory,
                    number,
                    operator,
                    launch,
                    self._rounds(operator, launch),
                    self._lag(operator.chain, launch),
                )
                # With two partitions a line has a home and, for far SMs, a copy: what several CTAs load is
                # loaded from both sides.
                side = _sides(piece, number, l2_of_gpu.partitions)
                if l2_of_gpu.partitions > 1:
                    mode, piece, side = _all_sides(mode, piece, side, shared, l2_of_gpu.partitions)
                l2.access(mode, piece, side)
                after = l2.counts()
                by_launch[launch.name] = after[0][0] - before[0][0], after[1][0] - before[1][0]
            by_operator.append(by_launch)
        return by_operator

    def _lag(self, chain: Chain, launch: Launch) -> float:
        """How far a launch's stores come after the loads of the same place, as a share of the launch: all threads of a
        pass hold what they have loaded; a CTA of a tile loads all its life and stores at its end."""
        # Half of a CTA's life, as a share of a launch of so many waves.
        if launch.outer is not Outer.FLAT:
            return min(1.0, self.profile.sm_count / launch.work_tiles) / 2
        threads = self.profile.sm_count * self.profile.need_int("max_threads_per_sm")
        elements = max((chain.tensors[a.tensor].elements for a in launch.accesses), default=1)
        share = ROWS_RUNNING if launch.resources.threads == ROW_THREADS else 1.0
        return min(1.0, share * threads * launch.values_per_thread / elements)

    def _rounds(self, operator: Operator, launch: Launch) -> Rounds:
        """How a product's CTAs go through its operands, and a reduction's warps through its rows; once where a launch is
        neither, or one of many small ones."""
        if launch.outer is Outer.FLAT:
            # A warp takes a row, in 16 rows of a CTA (PyTorch's Reduce.cuh, set_block_dimension).
            rows_at_once = (
                self.profile.sm_count * self.profile.need_int("max_threads_per_sm") // WARP
            )
            return Rounds(parts=-(-_reduced_rows(operator, launch) // rows_at_once))
        d, together = launch.domain, launch.schedule.section_heads
        # Products alone: attention has exponentials, a batch of products has no sections to share.
        if (
            launch.outer is not Outer.QUERY
            or launch.work.exps_per_pair
            or not together
            or d.batch > 1
        ):
            return Rounds()
        sections = -(-d.heads // together)
        waves = min(MOST_WAVES, max(1, launch.work_tiles // sections // self.profile.sm_count))
        down = any(a.tensor == "A" and a.rows is Rows.PAIR for a in launch.accesses)
        return Rounds(sections, waves, down and sections > 1)


def _walk(
    memory: Memory, number: int, operator: Operator, launch: Launch, rounds: Rounds, lag: float
) -> tuple[npt.NDArray[np.uint8], Int64, npt.NDArray[np.bool_]]:
    """The accesses of a launch in the order of their moments, tensors side by side: three arrays, each access's mode
    (as `MODES` numbers it), its piece, and whether several CTAs load that piece."""
    if not launch.accesses:
        return np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
    modes, pieces, moments, shared = [], [], [], []
    # Loads first: of two accesses at one moment the load comes before the store.
    for access in sorted(launch.accesses, key=lambda a: a.mode is not Mode.LOAD):
        tensor_pieces = _pieces_of(memory, number, operator, access, rounds)
        if rounds.parts and access.mode is Mode.LOAD:
            tensor_pieces = _side_by_side(tensor_pieces, rounds.parts)
        access_moments, times = _moments(access, tensor_pieces.size, rounds, lag)
        size = tensor_pieces.size * times
        pieces.append(np.tile(tensor_pieces, times))
        moments.append(access_moments)
        modes.append(np.full(size, MODES[access.mode], dtype=np.uint8))
        shared.append(np.full(size, _several_load(operator, launch, access), dtype=np.bool_))
    order = np.argsort(np.concatenate(moments), kind="stable")
    return (
        np.concatenate(modes)[order],
        np.concatenate(pieces)[order],
        np.concatenate(shared)[order],
    )


def _pieces_of(
    memory: Memory, number: int, operator: Operator, access: Access, rounds: Rounds
) -> Int64:
    """The pieces of memory that an access's tensor covers, in the order in which the launch comes to them."""
    view = operator.views.get(access.tensor)
    if view is not None:
        return memory.of_view(view, by_rows=not rounds.down)
    # A tensor of the operator's own lies in one run of temporary memory.
    first = memory.temporaries[number][access.tensor]
    return memory.of((first, first + operator.chain.tensors[access.tensor].bytes), 1)


def _reduced_rows(operator: Operator, launch: Launch) -> int:
    """Rows that a launch makes one element each of; 0 where it does anything else."""
    views = {
        mode: [operator.views.get(a.tensor) for a in launch.accesses if a.mode is mode]
        for mode in Mode
    }
    loaded, stored = views[Mode.LOAD], views[Mode.STORE]
    if len(loaded) != 1 or not stored or loaded[0] is None:
        return 0
    *outer, width = loaded[0].sizes or (1,)
    rows, whole = math.prod(outer), loaded[0].band[0] == math.prod(loaded[0].sizes)
    one_per_row = all(view is not None and math.prod(view.sizes) == rows for view in stored)
    return rows if whole and one_per_row and width > 1 and rows > 1 else 0


def _side_by_side(pieces: Int64, parts: int) -> Int64:
    """Pieces of rows that warps go through side by side, part after part: a piece is as likely to come first as last."""
    turn = np.arange(pieces.size)
    # Multiples of the golden ratio, modulo 1, are spread as evenly as numbers can be.
    within = turn * GOLDEN % 1.0
    part = turn * parts // max(1, pieces.size)
    return pieces[np.argsort(part + within, kind="stable")]


def _moments(
    access: Access, count: int, rounds: Rounds, lag: float
) -> tuple[npt.NDArray[np.float64], int]:
    """(the moment of each of an access's `count` pieces, as a share of the launch, pass after pass; the number of
    passes). Sorting all accesses of a launch by their moments interleaves its tensors."""
    moment = (np.arange(count) + 0.5) / max(1, count)
    passes, apart = access.times, lag / access.times
    if access.rows is Rows.PAIR and rounds.sections > 1:
        # Each section goes through all of it.
        passes, apart = rounds.sections, 1 / rounds.sections
        moment = moment / rounds.sections
    elif access.rows is Rows.KEY and rounds.waves > 1:
        # Each wave of a section goes through the section's part.
        within = moment * rounds.sections % 1.0
        passes, apart = rounds.waves, 1 / rounds.sections / rounds.waves
        section = moment * rounds.sections - within
        moment = (section + within / rounds.waves) / rounds.sections
    begin = 0 if access.mode is Mode.LOAD else lag
    return np.concatenate([moment + begin + n * apart for n in range(passes)]), passes


def _several_load(operator: Operator, launch: Launch, access: Access) -> bool:
    """True where CTAs of several SMs load the same pieces: rows that are not a CTA's own, or a tensor with fewer heads
    than the grid."""
    if access.mode is not Mode.LOAD or launch.outer is Outer.FLAT:
        return False
    own_rows = Rows.KEY if launch.outer is Outer.KEY else Rows.QUERY
    if access.rows is not own_rows and launch.work_tiles_per_head > 1:
        return True
    return operator.chain.tensors[access.tensor].heads < launch.domain.heads


def _sides(piece: Int64, turn: int, partitions: int) -> npt.NDArray[np.uint8]:
    """Partition of the SM that accesses each piece, as chance has it."""
    # A hash (splitmix64's constants) in place of random numbers: the same on every run.
    mixed = piece.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
        turn * 0xBF58476D1CE4E5B9 % 2**64
    )
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0x94D049BB133111EB)
    return ((mixed >> np.uint64(32)) * np.uint64(partitions) >> np.uint64(32)).astype(np.uint8)


def _all_sides(
    mode: npt.NDArray[np.uint8],
    piece: Int64,
    side: npt.NDArray[np.uint8],
    shared: npt.NDArray[np.bool_],
    sides: int,
) -> tuple[npt.NDArray[np.uint8], Int64, npt.NDArray[np.uint8]]:
    """What several CTAs load is loaded from all sides, one after the other."""
    # Shared pieces are repeated once per side; `turn` counts 0, 1, ... within each repetition.
    times = np.where(shared, sides, 1)
    turn = np.arange(int(times.sum())) - repeated(np.cumsum(times) - times, times)
    return (
        repeated(mode, times),
        repeated(piece, times),
        ((repeated(side, times) + turn) % sides).astype(np.uint8),
    )


PIECE_BYTES = 32768
"""Bytes of a piece at most: pieces end where storages and bands end, too."""

Int64 = npt.NDArray[np.int64]
Range = tuple[int, int]


def _temporaries(operator: Operator) -> list[Tensor]:
    return [
        t
        for t in operator.chain.tensors.values()
        if t.name not in operator.views and t.role is Role.TEMP
    ]


class Memory:
    """A program's memory in pieces: which ones a view or a temporary is made of."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.temporaries: list[dict[str, int]] = []
        """First byte of each operator's own temporaries, by name."""
        self._storages, self._reserved = dict[int, int](), 0
        self._laid_out()
        self._bands = _bands(program)
        ranges = {
            self._range(view) for operator in program.operators for view in operator.views.values()
        }
        for operator, scratch in zip(program.operators, self.temporaries, strict=True):
            ranges |= {(scratch[t.name], scratch[t.name] + t.bytes) for t in _temporaries(operator)}
        # Cuts at every 32 KiB and at all ends of views, so that a view is a whole number of pieces.
        grid = np.arange(0, self._reserved + PIECE_BYTES, PIECE_BYTES, dtype=np.int64)
        ends = np.array([end for both in ranges for end in both], dtype=np.int64)
        self._cuts = np.unique(np.concatenate([grid, ends]))
        self._pieces: dict[tuple[Range, int], Int64] = {}

    def _laid_out(self) -> None:
        """Where everything lies in a program that has run before: PyTorch keeps the memory of the run before, and cuts
        it up anew."""
        storages, allocator, at = self.program.storages, CachingAllocator(), self._storages
        permanent = {
            n: allocator.allocate(s.bytes) for n, s in enumerate(storages) if s.made is None
        }
        at |= {n: block.address for n, block in permanent.items()}
        begins = {n: s.made for n, s in enumerate(storages) if s.made is not None}
        ends = {
            n: max(end, begin + 1)
            for n, begin in begins.items()
            if (end := storages[n].freed) is not None
        }
        made_at, freed_at = grouped(begins, begins.__getitem__), grouped(ends, ends.__getitem__)
        # Twice: the first run leaves the allocator's segments as the second one finds them.
        for _ in range(2):
            live, self.temporaries = dict[int, Block](), []
            for turn, operator in enumerate((*self.program.operators, None)):
                for n in freed_at.get(turn, ()):
                    allocator.release(live.pop(n))
                if operator is None:
                    break
                for n in made_at.get(turn, ()):
                    live[n] = allocator.allocate(storages[n].bytes)
                    at[n] = live[n].address
                blocks = {t.name: allocator.allocate(t.bytes) for t in _temporaries(operator)}
                self.temporaries.append({name: block.address for name, block in blocks.items()})
                for block in blocks.values():
                    allocator.release(block)
            for block in live.values():
                allocator.release(block)
        self._reserved = allocator.reserved

    @property
    def sizes(self) -> npt.NDArray[np.int32]:
        return np.diff(self._cuts).astype(np.int32)

    def of_view(self, view: View, *, by_rows: bool = True) -> Int64:
        """Pieces of a view, in the order in which an operator walks them: rows of all bands together, or band by
        band."""
        piece, row, _ = view.band
        bands = self._bands.get(view.storage, 1) if by_rows and piece == row else 1
        return self.of(self._range(view), bands)

    def of(self, span: Range, bands: int) -> Int64:
        key = (span, bands)
        if key not in self._pieces:
            first, last = np.searchsorted(self._cuts, span)
            pieces = np.arange(first, last, dtype=np.int64)
            # A column block of a wider matrix touches all rows: its pieces are walked band by band in step.
            if bands > 1:
                pieces = pieces[
                    np.argsort(
                        np.arange(pieces.size) * bands / max(1, pieces.size) % 1.0, kind="stable"
                    )
                ]
            self._pieces[key] = pieces
        return self._pieces[key]

    def _range(self, view: View) -> Range:
        """First and last byte of a view, its band taken to lie in one piece."""
        piece, row, before = view.band
        base, size = self._storages.get(view.storage, 0), self.program.storages[view.storage].bytes
        start = view.offset * view.element_bytes
        if piece < row:
            # A view of some columns is laid out as if the band lay in one piece, at its share of the storage.
            start = (
                size * before // row + (view.offset - before) * view.element_bytes * piece // row
            )
        start = max(0, min(start, size - view.bytes))
        return base + start, base + min(size, start + view.bytes)


def _bands(program: Program) -> dict[int, int]:
    """Storages of which some view takes a piece of every row: into how many pieces a row is cut."""
    bands: dict[int, int] = {}
    for operator in program.operators:
        for view in operator.views.values():
            piece, row, _ = view.band
            if piece < row:
                bands[view.storage] = max(bands.get(view.storage, 1), min(8, round(row / piece)))
    return bands
