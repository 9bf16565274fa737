"""Replays a chain through one L2: HBM bytes by launch and tensor, and the time it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iosim.base.errors import InputError
from iosim.base.records import dataclass, field, replace
from iosim.base.units import bytes_text
from iosim.base.words import WAYS, Level
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import SPILL, Chain, Launch, Mode, Outer, Tensor
from iosim.kernel.pace import Pace
from iosim.kernel.schedule import Scheduler
from iosim.kernel.traffic import CODE, FOREIGN, Traffic, TrafficRow
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.engine import L2, PS, Ctas, in_ps
from iosim.readers.replay.half_written import half_written
from iosim.readers.replay.l2 import L2Model, model
from iosim.readers.replay.lowering import Lowered, LoweredLaunch, lower
from iosim.readers.replay.objects import gathers, streams, tile_bytes
from iosim.readers.replay.parting import Parting, parting_of
from iosim.readers.replay.play import ERROR as HEADS_ERROR
from iosim.readers.replay.play import Play, PlayedHeads
from iosim.readers.replay.sampling import (
    ERROR,
    HELD_STEPS,
    Coarse,
    CoarseSteps,
    Windows,
    coarse_plan,
    sampling_plan,
)

FOREIGN_OBJECT_BYTES = 65536
COARSE_SAMPLES = 1e-9
"""Followed lines of an object in coarse steps: as few as the sets to follow allow."""
CTA_START_S = 1.0e-6
"""From the end of a CTA, or of a work tile, to the first step of the next on that slot: an estimate."""
PASS_REGISTERS, LEAST_REGISTERS = 16, 32
"""Registers of a pass' thread beside the values it holds, and at least: those of PyTorch's softmax_warp_forward, which
holds 16, 32 and 64 values in 32, 48 and 80 registers (experiments/measurements/h200_chain_launches.csv)."""
STEP_SPREAD = 0.115
"""Share by which a step, or a turn of a loop that was read from code, varies by chance, at most: a standard deviation of
6.6 %, as recorded of flash_fwd (h200_iosim_steps.npz, benchmarks/drift.py); Triton's kernels vary by 3 to 13 %
(h200_walks.csv)."""
WAITING = 0.01
"""Lengthening of steps by loads above which a launch that is not played whole is said to wait for memory."""
PLACEMENT_TOLD = 0.015
"""A prediction says how far placement moves its reads where that is more than this share of them."""
Counts = tuple[list[int], list[int]]
Trace = Callable[[Launch, LoweredLaunch, Lowered, L2, int], Any]


@dataclass(frozen=True)
class ReplayedLaunch:
    """`begin_s` and `end_s` on the chain's clock; `slots` CTAs ran at once."""

    name: str
    begin_s: float
    end_s: float
    slots: int
    accesses: int
    windows: Windows | None = None
    """Where windows of the launch were played: they."""
    coarse: CoarseSteps | None = None
    """Where the launch was played in coarse steps: which."""
    waited: float = 0.0
    """How much longer coarse steps took than had no load been waited for."""


@dataclass(frozen=True)
class Replay:
    """What a replay found. `traffic` holds rows at level "hbm", and at "side" where there is a cache at the memory's
    side. `foreign_write_bytes` are dirty lines of others that were driven out; `dirty_bytes` what the chain leaves
    dirty in the L2; `fabric_bytes` what crossed between partitions."""

    traffic: Traffic
    launches: tuple[ReplayedLaunch, ...]
    foreign_write_bytes: int
    dirty_bytes: int
    fabric_bytes: int
    placement_bytes: float = 0.0
    """Standard deviation of what is read from HBM over places in memory where the tensors may lie."""
    share: PlayedHeads | None = None
    """Where some heads alone were played: which."""

    @property
    def is_whole(self) -> bool:
        return self.share is None and not any(
            launch.windows or launch.coarse for launch in self.launches
        )

    def notes(self) -> tuple[str, ...]:
        sentences = [f"HBM: replay; {bytes_text(self.dirty_bytes)} stay dirty in L2 at the end"]
        if self.share is not None:
            heads = f"{self.share.heads} of {self.share.of} heads"
            sentences.append(
                f"HBM: sampled: {heads} were played and stand for all; error up to about {HEADS_ERROR:.0%}"
            )
        read = self.traffic.total("hbm", "read")
        if self.placement_bytes > PLACEMENT_TOLD * read:
            sentences.append(
                f"HBM: where the tensors lie in memory moves the reads by {self.placement_bytes / read:.0%} (standard "
                "deviation over placements)"
            )
        if self.foreign_write_bytes:
            sentences.append(
                f"HBM: {bytes_text(self.foreign_write_bytes)} of the writes are others' dirty lines driven out"
            )
        for launch in self.launches:
            if launch.windows is not None:
                sentences += _sampled(launch.name, launch.windows)
            if launch.coarse is not None:
                sentences += _coarse(launch.name, launch.coarse, launch.waited)
        return tuple(sentences)

    @property
    def seconds(self) -> float:
        return self.launches[-1].end_s if self.launches else 0.0


def _sampled(launch: str, windows: Windows) -> list[str]:
    share = windows.played.sum() / windows.stands_for.sum()
    notes = [
        f"HBM: {launch} was played in part, {share:.1%} of its steps in {windows.played.size} windows; standard "
        f"error {windows.standard_error():.1%}; method replay plays all"
    ]
    if windows.waited > WAITING:
        notes.append(
            f"HBM: CTAs of {launch} wait for memory (steps take {windows.waited:.0%} longer) and gather behind the one "
            "that misses; jumps scatter them, so reads are found too high"
        )
    return notes


def _coarse(launch: str, coarse: CoarseSteps, waited: float) -> list[str]:
    heads = f" and {coarse.heads} of {coarse.of} heads" if coarse.heads < coarse.of else ""
    parted = waited > WAITING and coarse.held < HELD_STEPS
    error = "reads may be far off" if parted else f"error about {ERROR:.0%}"
    notes = [
        f"HBM: {launch} was played in part, in coarse steps of {coarse.steps}{heads}; {error}; method replay plays all"
    ]
    if parted:
        notes.append(
            f"HBM: CTAs of {launch} wait for memory (steps take {waited:.0%} longer) and the L2 holds only "
            f"{coarse.held:.1f} coarse steps of one, so that they may part too early"
        )
    return notes


@dataclass(frozen=True)
class LaunchInputs:
    """What a replay needs to know of a launch beside the chain: `slots` CTAs run at once, at a `pace`; those of an SM
    part so; `streaming_threads` of it go through an elementwise pass."""

    slots: int
    pace: Pace
    parting: Parting
    added: Mapping[str, int]
    streaming_threads: int


@dataclass(frozen=True)
class Inputs:
    """All that a replay depends on: two replays with equal inputs find the same. `counted` is what the chain moves
    between SMs and L2; `gpu` is the name that errors call it by."""

    tensors: Mapping[str, Tensor]
    launches: tuple[Launch, ...]
    of_launch: tuple[LaunchInputs, ...]
    l2: L2Model
    sms: int
    counted: Traffic
    play: Play
    gpu: str = field(compare=False)

    @property
    def chain(self) -> Chain:
        return Chain(self.tensors, self.launches)


def launch_inputs(
    problem: AttentionProblem,
    kernel: Kernel,
    profile: HardwareProfile,
    launch: Launch,
    slots: int,
    pace: Pace,
    added: Mapping[str, int],
) -> LaunchInputs:
    """Inputs of a launch of which `slots` CTAs run at once, at a pace; `added` is bytes of atomic adds by tensor, each
    of which reads what it adds to.
    Raises InputError: the profile lacks a number."""
    parting = parting_of(problem, kernel, profile, launch, slots)
    return LaunchInputs(slots, pace, parting, added, _streaming_threads(launch, profile))


def replay_inputs(
    kernel: Kernel,
    chain: Chain,
    profile: HardwareProfile,
    of_launch: tuple[LaunchInputs, ...],
    counted: Traffic,
    play: Play,
) -> Inputs:
    """What a replay of a chain depends on; `counted` is what it moves between SMs and L2: HBM moves no more. Raises
    InputError: the profile lacks a number."""
    l2 = play.l2_model or model(profile)
    l2 = replace(l2, dram_bytes_per_s=l2.dram_bytes_per_s * kernel.hbm_share)
    return Inputs(
        chain.tensors,
        chain.launches,
        of_launch,
        l2,
        profile.sm_count,
        counted,
        play,
        profile.name,
    )


def _streaming_threads(launch: Launch, profile: HardwareProfile) -> int:
    if launch.outer is not Outer.FLAT:
        return 0
    registers = max(LEAST_REGISTERS, launch.values_per_thread + PASS_REGISTERS)
    return min(
        profile.need_int("max_threads_per_sm"), profile.need_int("registers_per_sm") // registers
    )


def replay(inputs: Inputs, trace: Trace | None = None) -> Replay:
    """Play the launches of a chain, one after the other, through one L2. `trace`: called with (launch, lowered launch,
    lowered chain, L2, begin in picoseconds) before each launch; gives the record for the engine to fill, or None.
    Raises InputError: the trace does not fit in memory, the L2 does not hold one tile, or the engine is missing."""
    # The order of a replay: lower the chain, fill an L2 with its objects, play its launches one
    # after the other, collect bytes by launch and tensor.
    player = _Player(inputs, trace)
    launches = range(len(player.played.launches))
    if inputs.play.l2_start == "warm":
        # An untimed call before the timed one leaves in the L2 what it leaves; its bytes do not count.
        for number in launches:
            player.play(number, traced=False)
        player.begin_to_count()
    for number in launches:
        player.play(number, traced=True)
    return player.result()


class _Player:
    """An L2 with the objects of a chain, and what has been found of the launches played so far."""

    def __init__(self, inputs: Inputs, trace: Trace | None) -> None:
        self.inputs, self.trace, self.chain = inputs, trace, inputs.chain
        play = inputs.play
        self.share = play.share
        self.played = self.chain if play.share is None else play.share.chain
        # Three ways to play less than everything: some heads for all (share), coarse steps, windows.
        spill_slots = max(of_launch.slots for of_launch in inputs.of_launch)
        lowered = lower(self.played, spill_slots)
        self.coarse = None
        self.budget = {} if play.accesses is None else {"budget": play.accesses}
        if play.part:
            self.coarse = coarse_plan(
                self.played, lowered, inputs.l2, spill_slots=spill_slots, **self.budget
            )
        # How many accesses the launch has is told of the whole launch, not of what was played.
        self.whole_accesses = [low.accesses for low in lowered.launches] if self.coarse else None
        self.lowered = self.coarse.lowered if self.coarse else lowered
        refuse_small_l2(inputs.l2, self.lowered, inputs.gpu)
        self.l2 = self._filled_l2()
        self.rows: list[TrafficRow] = []
        self.done: list[ReplayedLaunch] = []
        self.begin_ps = self.crossed_before = self.dirty_before = 0

    def _filled_l2(self) -> L2:
        """The L2 with all objects, and dirty lines of others unless the call before was the same."""
        inputs, lowered, coarse = self.inputs, self.lowered, self.coarse
        foreign = inputs.l2.others_bytes(inputs.play.l2_start) // FOREIGN_OBJECT_BYTES
        objects = lowered.size.size
        size = np.concatenate(
            [lowered.size, np.full(foreign, FOREIGN_OBJECT_BYTES, dtype=np.int32)]
        )
        owner = np.concatenate(
            [lowered.owner, np.full(foreign, len(lowered.tensors), dtype=np.uint8)]
        )
        read = any(launch.touched is not None for launch in self.played.launches)
        scattered = lowered.tensors.index(SPILL) if read else None
        if coarse:
            l2 = L2(
                inputs.l2,
                size,
                owner,
                scattered=scattered,
                samples_per_object=COARSE_SAMPLES,
                least_sets=coarse.least_sets,
            )
        else:
            l2 = L2(inputs.l2, size, owner, beside=tile_bytes(self.played), scattered=scattered)
        del size, owner  # the L2 has its own; of large chains they fill hundreds of megabytes
        l2.place(range(objects, objects + foreign), dirty=True)
        return l2

    def begin_to_count(self) -> None:
        """Forgets the bytes and the clock so far, and keeps what the L2 holds."""
        self.rows, self.done, self.begin_ps = [], [], 0
        self.crossed_before, self.dirty_before = int(self.l2.state.fabric), self.l2.dirty_bytes()
        self.l2.begin_anew()

    def _coarse_of(self, launch: Launch) -> Coarse | None:
        """How the launch is played in coarse steps; None where it is not."""
        return self.coarse if self.coarse and self.coarse.how.name == launch.name else None

    def play(self, number: int, traced: bool) -> None:
        """Plays one launch and notes its bytes and times."""
        launch, of_launch = self.played.launches[number], self.inputs.of_launch[number]
        l2, low, coarse = self.l2, self.lowered.launches[number], self._coarse_of(launch)
        for objects_of, tensor in low.owned:
            l2.own(objects_of, tensor)
        before, behind = l2.counts(), l2.behind()
        stands_for = self._stands_for(number, coarse)
        # What is dirty before and after: the part of a write that waits in the L2 is not multiplied.
        dirty = l2.dirty_by_tensor() if coarse or self.share else None
        ctas = ctas_of(self.inputs, self.played, launch, of_launch, low, self.lowered.size)
        ready_ps = self.begin_ps + in_ps(of_launch.pace.launch_s)
        # In a grid that two launches share CTAs part further over all of it than windows show; those that
        # part least move as much in each, where there are enough of them.
        stays = not low.joined or self.inputs.play.drift == "least"
        in_windows = self.inputs.play.part and coarse is None and stays
        budget = {} if low.joined else self.budget
        # A trace fills its record while the engine plays; without one the engine keeps nothing.
        record = (
            self.trace(launch, low, self.lowered, l2, self.begin_ps)
            if self.trace and traced
            else None
        )
        end_ps, windows = l2.replay(
            low,
            ctas,
            begin_ps=ready_ps,
            trace=record,
            sampling=sampling_plan(low, ctas.slots, **budget) if in_windows else None,
            coarse=coarse,
        )
        # What was played stands for `stands_for` times as much: time and bytes alike.
        if dirty is not None:
            end_ps = ready_ps + round((end_ps - ready_ps) * stands_for)
            _stand_for(l2, before, behind, dirty, stands_for, len(self.lowered.tensors))
        code_bytes = self.inputs.l2.launch_fetch_bytes
        self.rows += _rows(
            self.chain.launches[number:], self.lowered, before, l2.counts(), code_bytes
        )
        self.rows += _moved(launch.name, "side", self.lowered, behind, l2.behind())
        self._note(number, low, ctas.slots, end_ps, windows, coarse)
        self.begin_ps = end_ps

    def _stands_for(self, number: int, coarse: Coarse | None) -> float:
        """How many times as much as is played the launch moves."""
        if coarse is not None:
            return coarse.whole_over_played
        return 1.0 if self.share is None else self.share.factors[number]

    def _note(
        self,
        number: int,
        low: LoweredLaunch,
        slots: int,
        end_ps: int,
        windows: Windows | None,
        coarse: Coarse | None,
    ) -> None:
        waited = 0.0
        if coarse is not None:
            waited = int(self.l2.state.took_ps) / max(1, int(self.l2.state.alone_ps)) - 1.0
        if self.whole_accesses is not None:
            accesses = self.whole_accesses[number]
        else:
            accesses = round(
                low.accesses * (1.0 if self.share is None else self.share.factors[number])
            )
        self.done.append(
            ReplayedLaunch(
                name=self.played.launches[number].name,
                begin_s=self.begin_ps / PS,
                end_s=end_ps / PS,
                slots=slots,
                accesses=accesses,
                windows=windows,
                coarse=coarse.how if coarse else None,
                waited=waited,
            )
        )

    def result(self) -> Replay:
        share, l2 = self.share, self.l2
        written = l2.counts()[1]
        added = [of_launch.added for of_launch in self.inputs.of_launch]
        possible = _possible(self.chain, self.rows, self.inputs.counted, added, self.dirty_before)
        filled = [
            row
            for launch, of_launch in zip(self.chain.launches, self.inputs.of_launch, strict=True)
            for row in half_written(launch, of_launch.slots, self.inputs.l2)
        ]
        return Replay(
            traffic=Traffic((*possible, *filled)),
            launches=tuple(self.done),
            foreign_write_bytes=written[len(self.lowered.tensors)],
            dirty_bytes=l2.dirty_bytes(),
            fabric_bytes=int(l2.state.fabric) - self.crossed_before,
            placement_bytes=l2.placement_bytes() * (share.of / share.heads if share else 1.0),
            share=None if share is None else PlayedHeads(share.heads, share.of),
        )


def refuse_small_l2(l2: L2Model, lowered: Lowered, gpu: str) -> None:
    holds = l2.partitions * l2.sets * l2.ways * l2.line_bytes
    largest = int(lowered.size.max(initial=0))
    if holds < largest:
        raise InputError(
            f"`method` replay: the L2 of {gpu} holds {bytes_text(holds)}, less than one tile of "
            f"{bytes_text(largest)}; accepted: an L2 of at least a tile, smaller tiles, or `method` bounds"
        )


def ctas_of(
    inputs: Inputs,
    played: Chain,
    launch: Launch,
    of_launch: LaunchInputs,
    low: LoweredLaunch,
    size: npt.NDArray[np.int32],
) -> Ctas:
    """The CTAs of a launch, at the pace that the timing model gives them; streaming launches have no time of their own
    and go as fast as memory does."""
    slots, pace, drift = of_launch.slots, of_launch.pace, inputs.play.drift
    sms = inputs.sms // launch.tile_ctas  # the SMs of a cluster go in step, as one
    # A tile's time outside its steps (fill, drain, epilogue): a part before its first loads, the rest between these and
    # the first step.
    start_s = min(CTA_START_S, pace.tile_s / low.group)
    if streams(launch):
        # A pass over elements has no steps: its CTAs load as fast as memory gives. An object stands for the small CTAs
        # that an SM holds together.
        together = _streamed_at_once(inputs, played, launch, of_launch, low, size)
        slots = max(min(slots, sms), together)
        pace = Pace()
        start_s = CTA_START_S
    step_s = _played_step_s(inputs, played, launch, pace, low)
    return Ctas(
        slots=slots,
        sms=sms,
        step_s=step_s,
        start_s=start_s,
        open_s=max(0.0, pace.tile_s / low.group - start_s),
        slow=tuple(seconds / pace.step_s[0] for seconds in pace.step_s) if step_s else (),
        static_stride=slots if launch.schedule.scheduler is Scheduler.PERSISTENT else 0,
        sm_spread_ppm=round(1e6 * _sm_spread(inputs, of_launch.parting)),
        step_spread_ppm=0 if drift == "least" else round(1e6 * STEP_SPREAD),
        parts=_parts_of_turn(launch, pace, low),
        rates=of_launch.parting.rates,
        sms_alike=1 if drift == "most" else max(1, of_launch.parting.sms_alike // launch.tile_ctas),
        relaunched=launch.schedule.scheduler is Scheduler.STATIC,
        ahead=launch.schedule.claims_ahead,
        waits=0 if drift == "most" else pace.waits,
    )


def _played_step_s(
    inputs: Inputs, played: Chain, launch: Launch, pace: Pace, low: LoweredLaunch
) -> float:
    """Seconds of a step of the replay, for a CTA that has its SM alone: the timing model's step, parted into what the
    replay plays one after the other (an entry of a list, a walk over the keys, a move read from code)."""
    if not pace.step_s:
        return 0.0
    step_s = pace.step_s[0] / launch.tile_ctas
    if gathers(played, launch):
        return step_s / launch.domain.block_k
    if launch.walks_again:
        return step_s / max(access.times for access in launch.accesses)
    if inputs.play.share and launch.outer in (Outer.QUERY, Outer.KEY):
        return step_s * inputs.play.share.depth
    if launch.touched is not None:
        # The moves of its code, and those of its frames beside them.
        return step_s * (launch.touched.entries.size / max(1, int(low.count.sum(dtype=np.int64))))
    return step_s


def _parts_of_turn(launch: Launch, pace: Pace, low: LoweredLaunch) -> int:
    """Steps of the replay that are one turn of a loop whose moves were read from code, about."""
    if launch.touched is None or not pace.turns:
        return 1
    turns = pace.turns * launch.work_tiles
    return max(1, round(int(low.count.sum(dtype=np.int64)) / turns))


def _sm_spread(inputs: Inputs, parting: Parting) -> float:
    """By how much SMs differ in speed: not at all where CTAs part least, as far as it is known of any where they part
    most."""
    # A speed that a cluster kept from tile to tile would part CTAs more and more. Counted reads show
    # none but of kernels that state one, or whose frames fill the L2.
    if inputs.play.drift == "least":
        return 0.0
    if inputs.play.drift == "most":
        return max(parting.sm_spread, inputs.l2.sm_spread)
    return parting.sm_spread


def _streamed_at_once(
    inputs: Inputs,
    played: Chain,
    launch: Launch,
    of_launch: LaunchInputs,
    low: LoweredLaunch,
    size: npt.NDArray[np.int32],
) -> int:
    """Work tiles of an elementwise pass whose loads are under way together: its threads load all they take at once."""
    loads = [a for a in launch.accesses if a.mode is Mode.LOAD]
    loaded = sum(int(size[t.base[t.base >= 0]].sum(dtype=np.int64)) for t in low.loop)
    if launch.outer is not Outer.FLAT or not loaded:
        return 0
    element_bytes = played.tensors[loads[0].tensor].element_bytes
    loading_bytes = of_launch.streaming_threads * launch.values_per_thread * element_bytes
    return min(low.tiles, loading_bytes * inputs.sms * low.tiles // loaded)


def _stand_for(
    l2: L2, before: Counts, behind: Counts, dirty: npt.NDArray[np.int64], share: float, tensors: int
) -> None:
    """Let what was read and written of the first `tensors` tensors since `before`, and since `behind` at the memory's
    side, stand for `share` times as much. `dirty`: bytes of each that were dirty then; those that are dirty now are not
    written."""
    counts, after, dirty_now = (
        (l2.state.hbm_read, l2.state.hbm_write),
        l2.counts(),
        l2.dirty_by_tensor(),
    )
    for t in range(tensors):
        stays = int(dirty_now[t]) - int(dirty[t])
        # written + stays is what the played part wrote, whether or not it has left the L2: that grows
        # by `share`; what stays dirty in the L2 does not.
        read, written = after[0][t] - before[0][t], after[1][t] - before[1][t]
        counts[0][t] = before[0][t] + round(read * share)
        counts[1][t] = before[1][t] + max(0, round((written + stays) * share) - stays)
    for side, then in zip((l2.state.filled, l2.state.drained), behind, strict=True):
        for t, count in enumerate(then):
            side[t] = count + round((side[t] - count) * share)


def _joined(launches: Sequence[Launch]) -> bool:
    """True where the second of these launches joins the first one's grid."""
    return len(launches) > 1 and launches[1].joins


def _rows(
    launches: Sequence[Launch], lowered: Lowered, before: Counts, after: Counts, code: int
) -> list[TrafficRow]:
    """Bytes at HBM of the first of these launches; of tensors that only one which joins its grid moves, under that
    name; none of one that joins another's."""
    launch = launches[0].name
    if launches[0].joins:
        return []
    rows = _moved(launch, "hbm", lowered, before, after)
    if _joined(launches):
        first_tensors, other = (
            {a.tensor for a in launch_pair.accesses} for launch_pair in launches[:2]
        )
        rows = [
            replace(r, launch=launches[1].name) if r.tensor in other - first_tensors else r
            for r in rows
        ]
    foreign = after[1][len(lowered.tensors)] - before[1][len(lowered.tensors)]
    if foreign:
        rows.append(TrafficRow(launch, "hbm", FOREIGN, "write", foreign))
    if code:
        rows.append(TrafficRow(launch, "hbm", CODE, "read", code))
    return rows


def _moved(
    launch: str, level: Level, lowered: Lowered, before: Counts, after: Counts
) -> list[TrafficRow]:
    """Bytes by tensor and direction between two counts."""
    return [
        TrafficRow(
            launch,
            level,
            name,
            direction,
            round((after[k][number] - before[k][number]) * lowered.own_share[number]),
        )
        for k, direction in enumerate(WAYS)
        for number, name in enumerate(lowered.tensors)
        if after[k][number] != before[k][number]
    ]


def asked_of(launch: Launch, counted: Traffic, added: Mapping[str, int]) -> dict[str, int]:
    """Bytes that a launch may read of each tensor at most: what it loads, and adds to."""
    limits = dict(added)
    for r in counted:
        if r.launch == launch.name and r.direction == "read":
            limits[r.tensor] = limits.get(r.tensor, 0) + int(r.bytes)
    return limits


def _possible(
    chain: Chain,
    rows: list[TrafficRow],
    counted: Traffic,
    added: Sequence[Mapping[str, int]],
    dirty_before: int,
) -> tuple[TrafficRow, ...]:
    """HBM rows, no more than with no L2. The lines followed stand for all, which can come to more than was asked for
    where nearly every access misses: a launch reads of a tensor what it loads or adds to at most, and no more is
    written by the end of a launch than was stored or lay dirty in the L2 by then."""
    possible: list[TrafficRow] = []
    # Bytes that may be written back by the end of the launch: dirty before the chain, plus stored so far, less written
    # so far.
    writable = dirty_before
    for n, (launch, adds) in enumerate(zip(chain.launches, added, strict=True)):
        limits = asked_of(launch, counted, adds)
        if _joined(chain.launches[n:]):
            for name, more in asked_of(chain.launches[n + 1], counted, {}).items():
                limits[name] = limits.get(name, 0) + more

        def read_at_most(row: TrafficRow, limits: Mapping[str, int] = limits) -> TrafficRow:
            return replace(row, bytes=min(int(row.bytes), limits.get(row.tensor, 0)))

        of_launch = [row for row in rows if row.launch == launch.name]
        possible += [
            read_at_most(row) if row.direction == "read" else row
            for row in of_launch
            if row.level == "side"
        ]
        at_hbm = [row for row in of_launch if row.level == "hbm"]
        writable += int(counted.total("l2", "write", launch=launch.name))
        written = sum(
            int(row.bytes) for row in at_hbm if row.direction == "write" and row.tensor != FOREIGN
        )
        # Writes above what is possible are cut evenly over the launch's tensors.
        kept = min(written, writable)
        for row in at_hbm:
            if row.tensor in (CODE, FOREIGN):
                possible.append(row)
            elif row.direction == "read":
                possible.append(read_at_most(row))
            else:
                possible.append(replace(row, bytes=int(row.bytes) * kept // written))
        writable -= kept
    return tuple(possible)
