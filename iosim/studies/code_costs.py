"""What a kernel's machine code spends its time on: loop by loop and unit by unit, what costs more than it need, and
what the time would be without it.

Addresses need a launch. Where none is given, one is assumed, and said so: enough CTAs for the GPU, arrays of 4,096 x
4,096 fp32 values, numbers of 4,096.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.code.addresses_launch import CodeLaunch
from iosim.code.arguments import Argument, TensorArgument
from iosim.code.launch_work import LaunchWork, with_work
from iosim.code.listing import Instruction
from iosim.code.loops import Flow
from iosim.code.module import Function
from iosim.code.on_sm import Uses
from iosim.code.opcodes import WARP, lane_bytes, operation
from iosim.code.ptx import Entry
from iosim.code.trace import default_use
from iosim.code.uses import uses_of
from iosim.hardware.profile import load_profile
from iosim.kernel.conditions import ALONE
from iosim.kernel.machine import SECTOR_BYTES, Machine, MemoryUse, Region
from iosim.prediction.code import CodeCall, CodePrediction, entry_of, predict_call
from iosim.readers.timing.machine_time import MachineRates
from iosim.readers.timing.rates import Rates
from iosim.show.shown import Face, Faced
from iosim.studies.code import arguments, module_of, sides
from iosim.studies.requests import CodeRequest

ASSUMED_GRID, ASSUMED_BLOCK, ASSUMED_SIDE = (64, 64, 1), (256, 1, 1), 4096
SHOWS = 0.01
"""Part of the time that a cost must take to be named, spills and wasted sectors apart."""
TWICE = 1.5
"""Times its least wavefronts or sectors from which on an access is named."""
GLOBAL_GROUPS = ("global-load", "global-store", "global-copy", "global-atomic")
SHARED_GROUPS = ("shared-load", "shared-store", "shared-atomic")
LOCAL_GROUPS = ("local-load", "local-store")


@dataclass(frozen=True)
class LoopCost:
    """A loop, or what stands outside of all. Cycles are an SM's, of a turn of each of its CTAs."""

    name: str
    lines: str
    """Lines of the source, where the code names them."""
    turns: float
    """Turns that a CTA makes."""
    instructions: int
    """Instructions that a warp executes per turn."""
    cycles: float
    units: Mapping[str, float]
    """Cycles for which each unit is taken."""
    exposed: float
    """Cycles in which not even the busiest unit has work."""
    share: float
    """Share of the launch's cycles."""


@dataclass(frozen=True)
class Cost:
    """Something that costs more than it need."""

    kind: str
    """spills, bank conflicts, uncoalesced, or waits for loads."""
    place: str
    """The line of the source, or the instruction."""
    detail: str
    time_without_s: float
    saved: float
    """The part of the time that would go."""


class CostsFace(Face, Protocol):
    """What `iosim.studies.code_costs_face` says of costs beside what every face says."""

    def as_dict(self, result: CodeCosts, /) -> dict[str, Any]: ...


@dataclass(frozen=True, repr=False)
class CodeCosts(Faced):
    """What a launch of a kernel that is known by its code spends its time on."""

    _face = "iosim.studies.code_costs_face"

    prediction: CodePrediction
    """The launch, with its bytes and its time."""
    function: Function
    """Its machine code."""
    loops: tuple[LoopCost, ...]
    """Cycles of each loop by unit, and of what stands outside of all."""
    costs: tuple[Cost, ...]
    """What costs more than it need, with the time without it."""
    notes: tuple[str, ...]
    """What was assumed."""

    def to_dict(self) -> dict[str, Any]:
        """The costs as JSON has them."""
        return cast(CostsFace, self._shown_by).as_dict(self)


def costs_of_code(request: CodeRequest) -> CodeCosts:
    """The costs of a kernel on a GPU. Raises InputError: no such kernel, or no machine code of it."""
    profile = load_profile(request.gpu)
    module = module_of(request.code, profile.cc)
    entry, function = entry_of(module, request.entry, profile.cc)
    if function is None:
        raise InputError(
            f"`code` {module.source} holds no machine code; accepted: a cubin compiled with -lineinfo"
        )
    call, notes = _call(request, entry, function)
    # of a launch that is only assumed, bytes at HBM would tell nothing
    conditions = ALONE if request.grid is not None else replace(ALONE, method="bounds")
    prediction = predict_call(call, profile, conditions)
    work = with_work(prediction.launch, function, profile)
    loops = tuple(_loops(prediction, function, work))
    return CodeCosts(
        prediction,
        function,
        loops,
        tuple(_costs(prediction, function)),
        (*notes, *prediction.notes),
    )


def _call(
    request: CodeRequest, entry: Entry, function: Function
) -> tuple[CodeCall, tuple[str, ...]]:
    """The launch that is asked for, with what had to be assumed of it."""
    notes: list[str] = []
    grid = ASSUMED_GRID if request.grid is None else sides("grid", request.grid)
    if request.grid is None:
        notes.append(f"no grid is given: {'x'.join(map(str, grid))} CTAs are taken")
    block = None if request.block is None else sides("block", request.block)
    if block is None and not entry.threads:
        block = ASSUMED_BLOCK
        notes.append(f"no block is given, and the code states none: {block[0]} threads are taken")
    call_arguments = arguments(request.arg)
    if not call_arguments:
        call_arguments = dict(_assumed(entry))
        notes.append(
            "no arguments are given: arrays of 4,096 x 4,096 fp32 values and numbers of 4,096 are taken"
        )
    return CodeCall(entry, grid, call_arguments, block, function, request.shared_bytes or 0), tuple(
        notes
    )


def _assumed(entry: Entry) -> Iterator[tuple[str, Argument]]:
    for number, parameter in enumerate(entry.parameters):
        # 64-bit arguments are pointers: nothing in the code tells them from 64-bit numbers.
        if parameter.size == 8 and not parameter.type.startswith("f"):
            yield (
                parameter.name,
                TensorArgument(f"argument {number}", (ASSUMED_SIDE, ASSUMED_SIDE), "fp32"),
            )
        elif parameter.type.startswith("f"):
            yield parameter.name, 1.0
        else:
            yield parameter.name, ASSUMED_SIDE


# ---- loops ----


def _rates(p: CodePrediction, machine: Machine) -> tuple[MachineRates, int]:
    """How an SM plays code, and with how many CTAs."""
    rates = Rates(p.profile, measured=True)
    # The clock of the predicted launch, so that cycles and seconds agree.
    clock = p.time.launches[0].clock_hz
    rates.clock_hz = clock if clock is not None else rates.clock_hz
    read = p.l2.read
    # The share of L2 reads that wait for HBM lengthens the mean latency of a load.
    share = min(1.0, p.hbm.read / read) if read else 0.0
    launch = p.launch
    # As many CTAs as fit on an SM, or as the grid has for each.
    beside = max(1, min(launch.occupancy.ctas_per_sm, -(-p.evaluated.ctas // p.profile.sm_count)))
    return MachineRates(rates, machine, p.evaluated.threads, share), beside


def _loops(p: CodePrediction, function: Function, work: LaunchWork) -> Iterator[LoopCost]:
    regions = work.on_sm.machine.tile
    flow = Flow(function)
    # Each loop played alone for one turn, then weighed by its turns.
    turns = [_turn(p, replace(region, turns=1.0)) for region in regions]
    whole = (
        sum(region.turns * cycles for region, (cycles, _) in zip(regions, turns, strict=True))
        or 1.0
    )
    for region, (cycles, units) in zip(regions, turns, strict=True):
        if region.slots:
            name = "outside of loops" if region.at is None else f"loop at 0x{region.at:x}"
            yield LoopCost(
                name,
                _lines(flow, region),
                region.turns,
                len(region.slots),
                cycles,
                units,
                max(0.0, cycles - max(units.values(), default=0.0)),
                region.turns * cycles / whole,
            )


def _turn(p: CodePrediction, region: Region) -> tuple[float, dict[str, float]]:
    rates, beside = _rates(p, Machine(tile=(region,)))
    turn = rates.tile(beside)
    return turn.cycles, turn.busy


def _lines(flow: Flow, region: Region) -> str:
    """First and last line of the source of a loop, in the file that most of it is from."""
    if region.at is None:
        return ""
    loop = next(
        candidate
        for candidate in flow.loops
        if flow.instructions[flow.blocks[candidate.header].first].address == region.at
    )
    # Inlined functions carry lines of other files: the file with most instructions is named.
    places = [
        candidate.source
        for n in flow.numbers(loop)
        if (candidate := flow.instructions[n]).source is not None
    ]
    files: defaultdict[str, list[int]] = defaultdict(list)
    for place in places:
        files[place[0]].append(place[1])
    if not files:
        return ""
    file, numbers = max(files.items(), key=lambda item: len(item[1]))
    return f"{file.rpartition('/')[2]}:{min(numbers)}-{max(numbers)}"


# ---- costs ----


def _whole_cycles(p: CodePrediction, machine: Machine) -> float:
    rates, beside = _rates(p, machine)
    return rates.tile(beside).cycles


def _costs(p: CodePrediction, function: Function) -> Iterator[Cost]:
    """What costs more than it need, most first."""
    work = with_work(p.launch, function, p.profile)
    # Costs are differences of two plays of the same machine, not of predicted seconds: what only
    # the launch adds (start, tail) cancels.
    base = _whole_cycles(p, work.on_sm.machine)
    if not base:
        return
    uses = uses_of(p.evaluated, p.launch.missed, function.cc)
    costs = [
        cost
        for kind in (_spills, _conflicts, _uncoalesced, _waits)
        if (cost := kind(p, function, work, uses, base)) is not None
    ]
    yield from sorted(costs, key=lambda cost: -cost.saved)


def _cost(
    kind: str, place: str, detail: str, p: CodePrediction, without: float, base: float
) -> Cost:
    # The saved share of cycles is taken off the predicted seconds.
    saved = max(0.0, 1 - without / base)
    return Cost(kind, place, detail, p.time_s * (1 - saved), saved)


def _place(instruction: Instruction) -> str:
    if instruction.source is not None:
        return f"{instruction.source[0].rpartition('/')[2]}:{instruction.source[1]}"
    return f"0x{instruction.address:x} {instruction.opcode}"


def _spills(
    p: CodePrediction, function: Function, work: LaunchWork, uses: Uses, base: float
) -> Cost | None:
    """Registers that do not fit, and go to local memory."""
    local = work.on_sm.local_tile
    if not (local.loaded or local.stored):
        return None
    # The kernel as if every register fitted: accesses to local memory removed.
    without_spills = Machine(
        tile=tuple(
            replace(r, slots=tuple(s for s in r.slots if s.group not in LOCAL_GROUPS))
            for r in work.on_sm.machine.tile
        )
    )
    place = _most(function, work, LOCAL_GROUPS, lambda instruction: float(lane_bytes(instruction)))
    # Bytes of a thread per sector of its warp: 32 bytes over 32 lanes.
    thread_bytes = SECTOR_BYTES / WARP
    detail = (
        f"{function.frame_bytes} bytes of a thread's frame: {local.stored * thread_bytes:,.0f} bytes stored and "
        f"{local.loaded * thread_bytes:,.0f} loaded a thread, {local.hit_share:.0%} of them from L1"
    )
    return _cost("spills", place, detail, p, _whole_cycles(p, without_spills), base)


def _conflicts(
    p: CodePrediction, function: Function, work: LaunchWork, uses: Uses, base: float
) -> Cost | None:
    """Lanes of a warp that ask one bank for several words."""

    def free(inner: Uses) -> Uses:
        # None stands for the least use that the instruction can have.
        return lambda instruction: (
            None
            if operation(instruction, function.cc).group in SHARED_GROUPS
            else inner(instruction)
        )

    def more(instruction: Instruction) -> float:
        use = uses(instruction)
        return (
            use.wavefronts
            - default_use(instruction, operation(instruction, function.cc).group).wavefronts
            if use
            else 0.0
        )

    worst = _worst(function, work, SHARED_GROUPS, more)
    if worst is None:
        return None
    use, least = uses(worst), default_use(worst, operation(worst, function.cc).group)
    if use is None or use.wavefronts < TWICE * least.wavefronts:
        return None
    without = _whole_cycles(p, with_work(p.launch, function, p.profile, free).on_sm.machine)
    detail = f"{worst.opcode} takes {use.wavefronts:.3g} wavefronts, {least.wavefronts:g} without conflicts"
    return _cost("bank conflicts", _place(worst), detail, p, without, base)


def _uncoalesced(
    p: CodePrediction, function: Function, work: LaunchWork, uses: Uses, base: float
) -> Cost | None:
    """Lanes of a warp whose words lie in sectors of their own."""

    def needed(instruction: Instruction, use: MemoryUse) -> float:
        return max(1.0, min(use.sectors, WARP * lane_bytes(instruction) / SECTOR_BYTES))

    def whole(inner: Uses) -> Uses:
        def use_of(instruction: Instruction) -> MemoryUse | None:
            use = inner(instruction)
            group = operation(instruction, function.cc).group
            if use is None or group not in GLOBAL_GROUPS:
                return use
            # As if neighbouring lanes asked for neighbouring words.
            plain = default_use(instruction, group)
            return replace(
                use, sectors=min(use.sectors, plain.sectors), lines=min(use.lines, plain.lines)
            )

        return use_of

    def more(instruction: Instruction) -> float:
        use = uses(instruction)
        return use.sectors - needed(instruction, use) if use else 0.0

    worst = _worst(function, work, GLOBAL_GROUPS, more)
    use = uses(worst) if worst is not None else None
    if worst is None or use is None or use.sectors < TWICE * needed(worst, use):
        return None
    without = _whole_cycles(p, with_work(p.launch, function, p.profile, whole).on_sm.machine)
    way = "stores" if operation(worst, function.cc).group == "global-store" else "loads"
    detail = (
        f"{worst.opcode} {way} {WARP * lane_bytes(worst)} bytes in {use.sectors:.3g} sectors of 32 a request, "
        f"{needed(worst, use):.3g} would do"
    )
    return _cost("uncoalesced", _place(worst), detail, p, without, base)


def _waits(
    p: CodePrediction, function: Function, work: LaunchWork, uses: Uses, base: float
) -> Cost | None:
    """Loads into registers that a loop waits for in the turn that issues them."""
    late = ("global-load",)
    worst = _worst(
        function,
        work,
        late,
        lambda instruction: float(operation(instruction, function.cc).group in late),
    )
    if worst is None:
        return None
    # Loads that set no register are waited for by nobody: all latency hidden.
    ready = Machine(
        tile=tuple(
            replace(
                r, slots=tuple(replace(s, sets=None) if s.group in late else s for s in r.slots)
            )
            for r in work.on_sm.machine.tile
        )
    )
    without = _whole_cycles(p, ready)
    if 1 - without / base < SHOWS:
        return None
    return _cost(
        "waits for loads",
        _place(worst),
        f"{worst.opcode}: nothing is loaded ahead",
        p,
        without,
        base,
    )


def _worst(
    function: Function, work: LaunchWork, groups: tuple[str, ...], more: Any
) -> Instruction | None:
    """The instruction that costs most of what it need not, by how often it runs."""
    runs = work.runs.times
    # Runs per CTA times what one run wastes.
    weighed = [
        (runs[n] * more(instruction), n)
        for n, instruction in enumerate(function.instructions)
        if operation(instruction, function.cc).group in groups and runs[n]
    ]
    if not weighed or max(weighed)[0] <= 0:
        return None
    return function.instructions[max(weighed)[1]]


def _most(function: Function, work: LaunchWork, groups: tuple[str, ...], size: Any) -> str:
    """The line of the source with most of some accesses."""
    sums: defaultdict[str, float] = defaultdict(float)
    for n, instruction in enumerate(function.instructions):
        if operation(instruction, function.cc).group in groups and work.runs.times[n]:
            sums[_place(instruction)] += work.runs.times[n] * size(instruction)
    return max(sums, key=lambda place: sums[place]) if sums else ""


__all__ = ["CodeCosts", "CodeLaunch", "Cost", "LoopCost", "costs_of_code"]
