"""Rows of a sweep in closed form: thousands at once, to the byte what `predict` gives one by one.

The rows of one kernel on one GPU go together, whatever their sizes and tiles. The kernel is resolved and planned once,
for one of them, on duals that carry the sizes of all (`iosim.readers.formula.dual`). Rows for which the library or the
algorithm would have branched otherwise are done again, from one of their own. What only works number by number is left
to who asked: masks that are lists of blocks, packed sequences, and sizes beyond 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms import plan
from iosim.catalog.algorithms.registry import operations
from iosim.catalog.libraries import resolve
from iosim.hardware.occupancy import Occupancy, occupancy
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain, Launch
from iosim.kernel.residency import estimated_registers, spilled_registers
from iosim.kernel.traffic import Traffic
from iosim.prediction.predictor import does_not_fit, planned
from iosim.problem.attention import MAX_PAIR_ELEMENTS, MAX_TENSOR_ELEMENTS, AttentionProblem
from iosim.problem.fields import INTERVAL_MASKS
from iosim.problem.masks.mask import BoolArray, IntArray
from iosim.readers.bounds import HbmBounds, bounds, memory
from iosim.readers.capacity import CapacityRule
from iosim.readers.check_bits import check_bits
from iosim.readers.formula.closed_form import added_bytes, closed_form, reach
from iosim.readers.formula.dual import ArrayKind, Dual, lifted
from iosim.readers.formula.lifting import lifted_problem
from iosim.studies.sweep.cases import FOLLOWS, Numbers, Part, Words, ma, problem_of, settings_of

METHODS = ("bounds", "capacity")
SIZES = (
    "batch",
    "heads",
    "kv_heads",
    "seq_q",
    "seq_k",
    "head_dim",
    "head_dim_v",
    "window",
    "offset",
)
SIDES = ("block_q", "block_k")
AT_ONCE = 1 << 16
"""Rows that are worked out together: their arrays stay in a core's caches."""
FEW, FEW_TIMES = 6, 24
"""So many times in a row that a plan held for so few rows, the others are left to be predicted one by one."""
MOST_BYTES = float(1 << 58)
"""Bytes, by a generous estimate, up to which 64-bit arithmetic is trusted."""
MOSTLY, WORTH_IT = 0.75, 1 << 12
"""Where a plan holds for a smaller share of so many rows, it is made again for these alone."""

KERNEL = ("block_q", "block_k", "used_warps", "used_stages", "used_splits")
"""What the kernel runs with: as asked, or its own choice."""
FOUND = (
    *KERNEL,
    "l2_read_bytes",
    "l2_write_bytes",
    "hbm_read_bytes",
    "hbm_write_bytes",
    "compulsory_read_bytes",
    "compulsory_write_bytes",
    "no_l2_read_bytes",
    "no_l2_write_bytes",
    "flops",
    "memory_peak_bytes",
    "spilled_registers",
)
"""Columns of whole numbers that are found for a row."""


def numbers(
    kernel: Kernel, l2: Traffic, hbm: Traffic | None, limits: HbmBounds, *beside: Any
) -> dict[str, Any]:
    tile = kernel.tile
    read, written = (
        (None, None) if hbm is None else (hbm.total("hbm", "read"), hbm.total("hbm", "write"))
    )
    values = (
        tile.block_q,
        tile.block_k,
        tile.warps,
        tile.stages,
        kernel.splits,
        l2.total("l2", "read"),
        l2.total("l2", "write"),
        read,
        written,
        limits.compulsory_read,
        limits.compulsory_write,
        limits.no_l2_read,
        limits.no_l2_write,
        *beside,
    )
    return {name: value for name, value in zip(FOUND, values, strict=True) if value is not None}


@dataclass
class Found:
    """What is known of a part's rows: numbers by column, names of the kernels that run, and why rows are refused.
    `remaining` are the rows still to be predicted, `without_form` how many of them have no closed form: the others
    have too few like them."""

    columns: dict[str, Numbers]
    runs_as: list[str | None]
    refused: list[str | None]
    remaining: IntArray
    without_form: int = 0


@dataclass(frozen=True)
class _Group:
    """Rows that differ in sizes and sides alone, with the values that they share."""

    shared: Mapping[str, Any]
    profile: HardwareProfile
    rows: IntArray
    sizes: Mapping[str, IntArray]

    def cut(self, at: Any) -> _Group:
        return replace(
            self, rows=self.rows[at], sizes={name: array[at] for name, array in self.sizes.items()}
        )

    def case(self) -> dict[str, Any]:
        sizes = {name: int(array[0]) for name, array in self.sizes.items()}
        tile = (sizes.pop("block_q"), sizes.pop("block_k")) if "block_q" in sizes else None
        return {**self.shared, **sizes, "tile": tile}


def evaluate(part: Part, method: str, l2_start: str = "cold") -> Found:
    """All rows of a part that have a closed form, by "bounds" or "capacity"."""
    empty = {name: ma.masked_all(part.rows, dtype=np.int64) for name in FOUND}
    result = Found(
        empty, [None] * part.rows, [None] * part.rows, np.arange(part.rows, dtype=np.int64)
    )
    if method not in METHODS:
        return result
    is_left = np.ones(part.rows, dtype=np.bool_)
    result.without_form = part.rows
    for group in _groups(part):
        for start in range(0, group.rows.size, AT_ONCE):
            block = group.cut(slice(start, start + AT_ONCE))
            rest, has_form = _fill(block, method, l2_start, result)
            is_left[block.rows] = False
            is_left[rest] = True
            result.without_form -= block.rows.size if has_form else block.rows.size - rest.size
    result.remaining = np.flatnonzero(is_left)
    return result


def _groups(part: Part) -> list[_Group]:
    # A mixed-radix number per row over all columns but sizes: equal numbers, one group. Of sizes and
    # tiles it counts only whether they are given, since that changes the branches. Renumbered after
    # each column, it never grows beyond the number of rows.
    code = np.zeros(part.rows, dtype=np.int64)
    for name, column in part.columns.items():
        codes = column.codes
        if name in FOLLOWS or name in ("batch", *FOLLOWS.values()):
            continue
        if name in SIZES or name == "tile":
            codes = np.array([value is None for value in column.values], dtype=np.int64)[codes]
        _, code = np.unique(code * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)
    order = np.argsort(code, kind="stable")
    # Rows sorted by group, cut where the number changes.
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    groups: list[_Group] = []
    profiles: dict[str, HardwareProfile] = {}
    for rows in np.split(order, starts[1:]) if part.rows else []:
        case = part.case(int(rows[0]))
        whole = case.get("seq_lens") is None and case.get("shared_prefix") is None
        # Lists of blocks, packed sequences and shared prefixes have no closed form in the sizes.
        if case.get("mask") not in (None, *INTERVAL_MASKS) or not whole:
            continue
        try:
            profile = profiles.get(case["gpu"]) or load_profile(case["gpu"])
            profiles[case["gpu"]] = profile
        except InputError:
            continue
        group = _group(part, rows, case, profile)
        groups.append(group.cut(_within_reach(group)))
    return [group for group in groups if group.rows.size]


def _group(part: Part, rows: IntArray, case: Mapping[str, Any], profile: HardwareProfile) -> _Group:
    sizes: dict[str, IntArray] = {"batch": np.ones(rows.size, dtype=np.int64)}

    def values(column: Words, pick: Any = lambda value: value) -> IntArray:
        codes = column.codes[rows]
        # Only values that rows of this group have are read: others may be of another type.
        used = np.unique(codes)
        by_code = np.zeros(len(column.values), dtype=np.int64)
        by_code[used] = [pick(column.values[code]) for code in used]
        return by_code[codes]

    for name in SIZES:
        if leader := FOLLOWS.get(name):
            column = part.followed(name)
            sizes[name] = (
                sizes[leader] if column.codes is part.columns[leader].codes else values(column)
            )
        elif case.get(name) is not None:
            sizes[name] = values(part.columns[name])
    if case.get("tile") is not None:
        for n, side in enumerate(SIDES):
            sizes[side] = values(part.columns["tile"], lambda value, n=n: value[n])
    shared = {name: value for name, value in case.items() if name not in SIZES and name != "tile"}
    return _Group(shared, profile, rows, sizes)


def _within_reach(group: _Group) -> BoolArray:
    """Rows that make a problem, of bytes that 64 bits hold with room."""
    s = group.sizes
    columns = np.maximum(s["head_dim"], s["head_dim_v"])
    batch_heads = s["batch"] * s["heads"]
    elements = batch_heads * np.maximum(s["seq_q"] * s["head_dim"], s["seq_k"] * columns)
    sides = [np.minimum(s["block_q"], s["block_k"])] if "block_q" in s else [np.array(16)]
    # Floats, so that the estimate itself cannot overflow; 4096 covers the padding of edge tiles.
    pairs = 1.0 * batch_heads * (s["seq_q"] + 4096) * (s["seq_k"] + 4096)
    estimate = pairs * (columns + 64) * 64 / np.minimum(sides[0], 64)
    return np.asarray(
        (s["heads"] % s["kv_heads"] == 0)
        & (1.0 * batch_heads * s["seq_q"] * columns < MAX_TENSOR_ELEMENTS)
        & (elements <= MAX_TENSOR_ELEMENTS)
        & (1.0 * s["seq_q"] * s["seq_k"] * columns <= MAX_PAIR_ELEMENTS)
        & (estimate < MOST_BYTES)
    )


def _fill(group: _Group, method: str, l2_start: str, result: Found) -> tuple[IntArray, bool]:
    """Plan after plan until every row has the one for the branches that it takes; what is left over, and whether that
    has a closed form."""
    # Each round plans for the first row that is left and fills in all rows that take its branches.
    poor = 0
    while group.rows.size >= FEW and poor < FEW_TIMES:
        done = _planned_as_the_first(group, method, l2_start, result)
        if done is None:
            return group.rows, False
        poor = poor + 1 if done.sum() < FEW else 0
        group = group.cut(~done)
    return group.rows, True


def _planned_as_the_first(
    group: _Group, method: str, l2_start: str, result: Found
) -> BoolArray | None:
    """Fill in the rows that take the branches of the first; None where it has no closed form."""
    try:
        representative = problem_of(group.case())
    except InputError:
        return None
    done = np.zeros(group.rows.size, dtype=np.bool_)
    kind = ArrayKind()
    try:
        # Duals carry the first row's number for every branch and all rows' numbers for the arithmetic;
        # `kind.holds` marks the rows for which every branch went the same way.
        with np.errstate(all="ignore"):  # of rows that take another branch, which are thrown away
            call = _Call.planned(group, representative, kind)
            same = np.broadcast_to(kind.holds, done.shape)
            # Many rows on another branch: planned again for the matching ones alone, the arrays are shorter.
            if same.size > WORTH_IT and same.sum() < MOSTLY * same.size:
                kind = ArrayKind()
                call = _Call.planned(group.cut(same), representative, kind)
                done[same] = call.fill(method, l2_start, result)
            else:
                done[:] = call.fill(method, l2_start, result)
    except InputError as error:
        # A refusal counts only if the row by itself is refused in the same words: else it came of the
        # duals.
        if str(error) != _refusal(group.case(), group.profile):
            return None
        done[:] = kind.says_the_same
        for row in group.rows[done].tolist():
            result.refused[row] = str(error)
    except TypeError:
        return None
    return done


def _refusal(case: Mapping[str, Any], profile: HardwareProfile) -> str | None:
    """Why one row by itself is refused; None where it is not."""
    try:
        planned(problem_of(case), case["kernel"], profile, settings_of(case))
    except InputError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class _Call:
    """What `iosim.prediction.call.Call` is to one problem, to a group of them."""

    group: _Group
    problem: AttentionProblem
    kernel: Kernel
    chain: Chain
    kind: ArrayKind

    @classmethod
    def planned(cls, group: _Group, representative: AttentionProblem, kind: ArrayKind) -> _Call:
        """Resolved and planned for the first row, on duals that carry the sizes of all."""
        case = group.case()
        profile = group.profile
        companions = {name: array for name, array in group.sizes.items() if name in SIZES}
        problem = lifted_problem(representative, companions, kind)
        overrides = settings_of(case)
        if case["tile"] is not None:
            sides = tuple(
                Dual(case["tile"][n], group.sizes[side], kind) for n, side in enumerate(SIDES)
            )
            object.__setattr__(overrides, "tile", sides)
        kernel = resolve(case["kernel"], problem, profile, overrides)
        return cls(group, problem, kernel, plan(problem, kernel), kind)

    def fill(self, method: str, l2_start: str, result: Found) -> BoolArray:
        rows, kernel = self.group.rows, self.kernel
        fits, slots = self._resident()
        counted, gpu = closed_form(self.chain), self.group.profile
        added = sum(
            n for launch in self.chain.launches for n in added_bytes(launch, self.chain).values()
        )
        limits = bounds(self.problem, self.chain, counted, added)
        hbm = None
        if method == "capacity":
            data = CapacityRule(
                self.chain, gpu, counted, slots, reach, lifted, l2_start == "warm"
            ).traffic()
            hbm = data + check_bits(data, gpu)
        spilled = max(spilled_registers(n, gpu) for n in self.chain.launches)
        # `told`: rows that took these branches and whose launches fit; refused ones are done, too, with
        # their reason.
        flops, peak = operations(self.problem, kernel, self.chain)[0], memory(self.chain)["peak"]
        done = np.broadcast_to(self.kind.holds, rows.shape)
        filled = done & self._refused(fits, done, result)
        at = rows[filled]
        for name, value in numbers(kernel, counted, hbm, limits, flops, peak, spilled).items():
            result.columns[name][at] = np.broadcast_to(lifted(value), rows.shape)[filled]
        for row in at.tolist():
            result.runs_as[row] = kernel.name
        return done

    def _resident(self) -> tuple[list[_Fit], list[Any]]:
        fits = [
            _Fit.of(launch, self.group.profile, self.group.rows.size)
            for launch in self.chain.launches
        ]
        slots = []
        for launch, fit in zip(self.chain.launches, fits, strict=True):
            at_once = np.maximum(1, fit.ctas_per_sm) * self.group.profile.sm_count
            if launch.persistent_ctas is not None:
                grid = np.minimum(lifted(launch.persistent_ctas), lifted(launch.work_tiles))
                at_once = np.minimum(at_once, grid)
            slots.append(at_once)
        return fits, slots

    def _refused(self, fits: list[_Fit], rows: BoolArray, result: Found) -> BoolArray:
        """Where every launch fits; the reason where one does not is noted for `rows`."""
        fitting = np.ones(rows.shape, dtype=np.bool_)
        for launch, fit in zip(self.chain.launches, fits, strict=True):
            refused = fitting & (np.broadcast_to(fit.ctas_per_sm, rows.shape) == 0)
            fitting &= ~refused
            block_q, block_k = (
                np.broadcast_to(lifted(side), rows.shape)
                for side in (launch.domain.block_q, launch.domain.block_k)
            )
            head_dim = np.broadcast_to(lifted(self.problem.head_dim), rows.shape)
            settings = settings_of(self.group.case())
            for n in np.flatnonzero(refused & rows).tolist():
                tile, shape = f"{block_q[n]}x{block_k[n]}", fit.distinct[int(fit.code[n])]
                subject = settings.blamed(tile, f"{self.kernel.name} at head_dim {head_dim[n]}")
                result.refused[self.group.rows[n]] = str(
                    does_not_fit(subject, *shape, self.group.profile)
                )
        return fitting


@dataclass(frozen=True)
class _Fit:
    """Threads and occupancy of a launch's CTAs: the distinct ones, and which of them each row has."""

    distinct: tuple[tuple[int, Occupancy], ...]
    code: IntArray

    @classmethod
    def of(cls, launch: Launch, profile: HardwareProfile, rows: int) -> _Fit:
        stated = launch.resources
        registers = (
            estimated_registers(launch, profile) if stated.registers is None else stated.registers
        )
        needs = [lifted(x) for x in (stated.threads, registers, stated.shared_memory_bytes or 0)]
        # Occupancy is worked out once per distinct (threads, registers, shared memory).
        code = np.zeros(1, dtype=np.int64)
        for values in needs:
            if np.ndim(values):
                known, codes = np.unique(values, return_inverse=True)
                code = code * known.size + codes
        _, first, code = np.unique(code, return_index=True, return_inverse=True)
        distinct = []
        for n in first.tolist():
            threads, per_thread, shared = (
                int(values[n] if np.ndim(values) else values) for values in needs
            )
            distinct.append((threads, occupancy(profile, threads, per_thread, shared)))
        return cls(tuple(distinct), np.broadcast_to(code, (rows,)))

    @property
    def ctas_per_sm(self) -> Any:
        """A number for each row, or the one number of all."""
        numbers = np.array([fit.ctas_per_sm for _, fit in self.distinct], dtype=np.int64)
        return int(numbers[0]) if numbers.size == 1 else numbers[self.code]
