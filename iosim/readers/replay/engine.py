"""The replay engine from Python: an object that holds an L2 between launches.

What the engine is given is looked at here and in check.h before it touches anything.

One launch by hand (tests/readers/replay/test_engine.py plays it). Three CTAs of two steps each on two SMs; CTA i runs on SM
i modulo 2. Each loads its own Q before its loop, K0 and K1 in it, as all others do, and stores its O behind it. A step
takes 1 us where a CTA has its SM for itself and 2 us where two share it; a miss arrives 0.5 us later. The engine takes
the earliest event, plays what the CTA does then, and puts the CTA back at the time of its next event:

    us    CTA  SM  what it does                                               next event
    0.0   0    0   asks for Q0 and K0: both miss                              0.5: they have arrived
    0.0   1    1   asks for Q1, which misses, and K0, which is on its way     0.5
    0.0   2    0   asks for Q2, which misses, and K0, which is on its way     0.5
    0.5   0    0   asks for K1, which misses; computes step 0, SM 0 is shared 2.5: later than K1, at 1.0
    0.5   1    1   asks for K1, which is on its way; computes step 0 alone    1.5
    0.5   2    0   asks for K1, which is on its way; computes step 0          2.5
    1.5   1    1   computes step 1, its last                                  2.5
    2.5   0    0   computes step 1                                            4.5
    2.5   1    1   stores O1 and ends; there is no other work tile            -
    2.5   2    0   computes step 1                                            4.5
    4.5   0    0   stores O0 and ends                                         -
    4.5   2    0   stores O2 and ends: the launch has taken 4.5 us            -

Three lines of Q and two of K are read from HBM, though K was asked for six times: nobody reads again what the L2 holds
or what another CTA has under way. With a next work tile CTA 1 would ask for K0 while the others are at K1: CTAs drift.
"""

from __future__ import annotations

import ctypes as ct
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from iosim.base.arrays import tallied
from iosim.base.errors import InputError
from iosim.base.progress import AFTER_S, counter, go_on, has_threads, is_worker
from iosim.base.records import dataclass, replace
from iosim.readers.replay.l2 import LEAST_SETS, L2Model, Samples, sample_lines, sm_partitions
from iosim.readers.replay.library import LAYOUT, library
from iosim.readers.replay.lowering import LoweredLaunch
from iosim.readers.replay.sampling import Coarse, SamplingPlan, Windows
from iosim.readers.replay.templates import Template

MAX_DEPTH, MAX_PARTITIONS, MAX_TEMPLATES, MAX_TENSORS, MAX_WAYS = (
    LAYOUT.constants[name]
    for name in ("MAX_DEPTH", "MAX_PARTITIONS", "MAX_TEMPLATES", "MAX_TENSORS", "MAX_WAYS")
)
NO_MEMORY, REFUSED = LAYOUT.constants["NO_MEMORY"], LAYOUT.constants["REFUSED"]
_L2Config, _L2State, _LaunchPlan, _Sampling = (
    LAYOUT.structures[name] for name in ("L2Config", "L2State", "LaunchPlan", "Sampling")
)
TraceRecord = LAYOUT.structures["Trace"]
OBJECT = np.dtype(LAYOUT.structures["Object"])
PS = 10**12
PS_BITS = 12
"""Leading bits of a time that the engine keeps. A profile's number that changes by less than one part in ten thousand
changes no event's order: which of two CTAs comes first at the L2 must not hang on the last bit of a clock."""
SLOW_SHARES = 1024
"""Shares of a lone CTA's step in which the step of CTAs that share an SM is counted, for the same reason."""
BAR_EVERY_S = 0.1
SLOWEST_PER_S = 5_000_000
"""Accesses that a second plays at least, but on busy machines: of those tried, 10 to 30 million."""
AT_ONCE_ACCESSES = 100_000
"""Accesses up to which a launch is played without a thread of its own: 20 ms at most, which nobody interrupts."""


def in_ps(seconds: float) -> int:
    """Whole picoseconds of a time, to `PS_BITS` leading bits."""
    # frexp gives the number of leading bits: what is beyond PS_BITS of them becomes zeros.
    shift = max(0, math.frexp(seconds * PS)[1] - PS_BITS)
    return round(seconds * PS / (1 << shift)) << shift


def _pointer(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)


def _address(name: str, array: np.ndarray[Any, Any], kind: type[np.generic], size: int) -> int:
    """Where the engine finds an array of `size` elements. Raises InputError: an array of another type or size, or one
    that is not contiguous."""
    if array.dtype != kind or array.shape != (size,) or not array.flags.c_contiguous:
        raise InputError(
            f"{name}: {array.dtype} {list(array.shape)}; accepted: contiguous {np.dtype(kind)} [{size}]"
        )
    return _pointer(array)


def _accept(result: int, name: str) -> int:
    """What an entry of the engine returned, where it did what it was asked. Raises InputError: it was given what does
    not fit together. MemoryError: it ran out of memory."""
    if result == NO_MEMORY:
        raise MemoryError("the replay ran out of memory")
    if result == REFUSED:
        raise InputError(f"{name}: it does not fit the L2 and its objects; nothing was played")
    return result


def _within(name: str, values: np.ndarray[Any, Any], end: int) -> None:
    if values.size and not 0 <= values.min() <= values.max() < end:
        raise InputError(f"{name} {values.min()} to {values.max()}; accepted: 0 to {end - 1}")


@dataclass(frozen=True)
class Ctas:
    """The CTAs that play a launch.

    Attributes:
        slots: CTAs that run at once.
        step_s: a step of a CTA that has its SM for itself; a small one where the launch is played in coarse steps.
        start_s: from the end of a CTA, or of a work tile, to the first loads of the next on its slot.
        open_s: from these loads to the first step, or as long as they take.
        slow: a step of each of n CTAs that share an SM over a lone one's, for n = 1, 2, ...; beyond these, n times.
        static_stride: how much further on a CTA's next work tile, or group of them, is; 0 for a queue.
        sm_spread_ppm: SMs differ in speed by up to so many millionths either way, `sms_alike` neighbours together.
        step_spread_ppm: and so do the steps of a CTA, or its turns of a loop that are so many `parts` steps.
        rates: of an SM's CTAs, the oldest first, in units of their mean.
        relaunched: a CTA ends with its work tile, or group of them, and the next is a new CTA, the SM's youngest.
        ahead: a CTA claims its next work tile from the queue as it begins one, not as it ends one.
        waits: latencies of HBM that a CTA waits where a step's loads miss; 0: they are asked for a step ahead.
    """

    slots: int
    sms: int
    step_s: float = 0.0
    start_s: float = 0.0
    open_s: float = 0.0
    slow: tuple[float, ...] = ()
    static_stride: int = 0
    sm_spread_ppm: int = 0
    step_spread_ppm: int = 0
    parts: int = 1
    sms_alike: int = 1
    rates: tuple[float, ...] = (1.0,)
    relaunched: bool = True
    ahead: bool = False
    waits: int = 0


class L2:
    """An L2 with its objects; keeps its contents from one launch to the next. `samples_per_object` is how many lines of
    an object of middling size are followed; more where that would leave fewer than `least_sets` of a partition's sets.
    `beside` are bytes of memory that a replay needs for other things, `scattered` the tensor that lies in memory as
    local memory does."""

    def __init__(
        self,
        model: L2Model,
        size: np.ndarray[Any, Any],
        owner: np.ndarray[Any, Any],
        samples_per_object: float = 1.0,
        least_sets: float = LEAST_SETS,
        beside: int = 0,
        scattered: int | None = None,
    ) -> None:
        n = _check_bounds(model, owner, size)
        self.model = model
        # Which lines of which objects are followed, and the set and home of each (l2.py, lines.h).
        sampled = sample_lines(
            model,
            np.ascontiguousarray(size, dtype=np.int32),
            samples_per_object,
            least_sets,
            beside,
        )
        if scattered is not None:
            sampled.scatter(owner[sampled.object] == scattered)
        self._samples = sampled
        self._objects = np.zeros(n, dtype=OBJECT)
        self._objects["size"], self._objects["tensor"] = size, owner
        self._objects["first"], self._objects["samples"] = (
            sampled.first[:-1],
            np.diff(sampled.first),
        )
        # Ways are rounded up to four, as the engine compares four tags with one instruction.
        row = -(-model.ways // 4) * 4
        self._tags = np.full(model.partitions * sampled.sets * row, -1, dtype=np.int32)
        self.config = l2_config(model, sampled.sets, sampled.stride)
        s = self.state = _L2State(objects=n, stands=1, whole=1)
        s.object, s.object_of, s.place = (
            _pointer(self._objects),
            _pointer(sampled.object),
            _pointer(sampled.place),
        )
        s.tags = _pointer(self._tags)
        self._lost = np.zeros(sampled.sets, dtype=np.int64)
        s.lost = _pointer(self._lost)
        if self.config.side_sets:
            self._side_tags = np.full(
                self.config.side_sets * -(-self.config.side_ways // 4) * 4, -1, dtype=np.int32
            )
            self._side_set = sampled.dealt_out(self.config.side_sets // sampled.sets)
            s.side_tags, s.side_set = _pointer(self._side_tags), _pointer(self._side_set)

    def place(self, objects: range, *, dirty: bool) -> None:
        """Put objects into the L2 as though an SM had touched them before the launch. Raises InputError: objects that
        there are not."""
        self._refuse_others(objects)
        result = library().iosim_place(
            ct.addressof(self.state),
            ct.addressof(self.config),
            objects.start,
            len(objects),
            int(dirty),
        )
        _accept(result, "objects to place")

    def _refuse_others(self, objects: range) -> None:
        if objects.step != 1 or (
            len(objects) and not 0 <= objects.start < objects.stop <= self._objects.size
        ):
            raise InputError(
                f"objects {objects}; accepted: a range within 0 to {self._objects.size}"
            )

    def access(
        self, mode: np.ndarray[Any, Any], number: np.ndarray[Any, Any], side: np.ndarray[Any, Any]
    ) -> None:
        """Accesses one after the other, without times of their own: contents and bytes alone. `mode`: [n]: 0 a load, 1
        a store, 2 an atomic add. `number`: [n]: of the object. `side`: [n]: the partition of the SM. Raises InputError:
        arrays of different lengths, or a mode, an object or a partition that there is not."""
        if not mode.shape == number.shape == side.shape == (mode.size,):
            raise InputError(
                f"accesses of {mode.size} modes, {number.size} objects and {side.size} sides"
            )
        known = (4, self._objects.size, self.model.partitions)
        for name, array, end in zip(
            ("mode", "object", "side"), (mode, number, side), known, strict=True
        ):
            _within(name, array, end)
        modes, numbers, sides = (
            np.ascontiguousarray(a, dtype=t)
            for a, t in ((mode, np.uint8), (number, np.int32), (side, np.uint8))
        )
        result = library().iosim_access(
            ct.addressof(self.state),
            ct.addressof(self.config),
            modes.size,
            _pointer(modes),
            _pointer(numbers),
            _pointer(sides),
        )
        _accept(result, "accesses")

    def begin_anew(self) -> None:
        self.state.dram_free = self.state.l2_free = self.state.side_free = self.state.now = (
            self.state.again
        ) = 0
        self._objects["ready"] = 0
        self._lost[:] = 0

    def own(self, objects: range, number: int) -> None:
        """Traffic of these objects counts for tensor `number` from now on. Raises InputError: objects or a tensor that
        there are not."""
        self._refuse_others(objects)
        if not 0 <= number < MAX_TENSORS:
            raise InputError(f"tensor {number}; accepted: 0 to {MAX_TENSORS - 1}")
        self._objects["tensor"][objects.start : objects.stop] = number

    @property
    def samples(self) -> Samples:
        """The lines that are followed."""
        return self._samples

    def counts(self) -> tuple[list[int], list[int]]:
        """(HBM bytes read, HBM bytes written) so far, by tensor number."""
        return list(self.state.hbm_read), list(self.state.hbm_write)

    def behind(self) -> tuple[list[int], list[int]]:
        """Bytes that the L2s (read from, wrote to) the cache at the memory's side so far, by tensor number."""
        return list(self.state.filled), list(self.state.drained)

    def placement_bytes(self) -> float:
        """Standard deviation of the bytes read from HBM again over placements of the tensors in memory. Sets of a
        placement are spread regularly over its pages, so that the mean over few of them stands for all."""
        lost = self._lost.reshape(self._samples.placements, -1).mean(axis=1)
        if lost.size < 2 or not lost.any():
            return 0.0
        return int(self.state.again) * float(lost.std(ddof=1) / lost.mean())

    def dirty_bytes(self) -> int:
        return int(self.dirty_by_tensor().sum())

    def replay(
        self,
        launch: LoweredLaunch,
        ctas: Ctas,
        *,
        begin_ps: int = 0,
        trace: Any = None,
        sampling: SamplingPlan | None = None,
        coarse: Coarse | None = None,
    ) -> tuple[int, Windows | None]:
        """Play one launch; returns its end in picoseconds, and the windows where it was played in part. Ctrl-C ends it;
        a long one shows a bar on a terminal. `sampling`: play windows alone; None for all steps. `coarse`: the launch's
        steps are coarse ones. Raises InputError: a launch that does not fit the L2's objects, or no CTAs to play it.
        Raises KeyboardInterrupt: or what else a signal's handler raised; the engine has been stopped, and the L2 is of
        no further use."""
        # Two ways to play: every step, or windows of steps that stand for the steps between them.
        if sampling is not None:  # what chance adds in a window is no pace to go on at
            ctas = replace(ctas, step_spread_ppm=0)
        plan, arrays = launch_plan(launch, ctas, self.model, coarse)
        part = None if sampling is None else _Part(sampling, self._looped(launch))
        lib, before, behind = library(), self.counts(), self.behind()
        in_use = (self, arrays, trace)

        def play(done: ct.c_int32, stop: ct.c_int32) -> int:
            assert in_use  # what the engine reads lives as long as the thread that plays
            return int(
                lib.iosim_replay(
                    ct.addressof(self.state),
                    ct.addressof(self.config),
                    ct.addressof(plan),
                    begin_ps,
                    None if trace is None else ct.addressof(trace),
                    None if part is None else ct.addressof(part.state),
                    ct.addressof(done),
                    ct.addressof(stop),
                )
            )

        end = _accept(_interruptible(play, launch), f"launch {launch.name}")
        if part is None:
            return end, None
        # Steps between the windows were skipped: for tensors of the loop the engine's counts are
        # replaced by what the windows stand for. Others (Q, O) it counted at skipped tiles, too.
        windows = part.windows()
        self._count_windows(before, part, windows)
        share = windows.stands_for.sum() / max(1, windows.played.sum())
        measured = part.state.filled, part.state.drained
        for counts, then, played in zip(
            (self.state.filled, self.state.drained), behind, measured, strict=True
        ):
            for t in np.flatnonzero(part.looped):
                counts[t] = then[t] + round(share * played[t])
        return end, windows

    def _count_windows(
        self, before: tuple[list[int], list[int]], part: _Part, windows: Windows
    ) -> None:
        """Replace what the engine counted of the loop's tensors by what the windows stand for."""
        for counts, then, total in zip(
            (self.state.hbm_read, self.state.hbm_write), before, windows.totals(), strict=True
        ):
            for t in np.flatnonzero(part.looped):
                counts[t] = then[t] + int(total[t])

    def dirty_by_tensor(self) -> np.ndarray[Any, Any]:
        """Bytes of each tensor number that are dirty in the L2 now."""
        dirty = self._tags[(self._tags >= 0) & (self._tags & 1 == 1)] >> 1
        tensor = self._objects["tensor"][self._samples.object[dirty]]
        return tallied(tensor, minlength=MAX_TENSORS) * int(self.config.sample_bytes)

    def replay_recorded(
        self,
        launch: LoweredLaunch,
        at_ps: np.ndarray[Any, Any],
        end_ps: np.ndarray[Any, Any],
        every: int,
        side: np.ndarray[Any, Any],
    ) -> None:
        """Play one launch at the times that were recorded of its CTAs, one a work tile. `at_ps`: [work tiles, marks]:
        when each CTA began its steps 0, every, 2 every, ... `end_ps`: [work tiles]: when it ended. `side`: [work
        tiles]: the partition of its SM. Raises InputError: arrays that are not of the launch's work tiles."""
        if at_ps.ndim != 2 or at_ps.shape[0] != launch.tiles:
            raise InputError(
                f"recorded times of {at_ps.shape[0]} CTAs; the launch has {launch.tiles} work tiles"
            )
        plan = _work_tiles(launch, launch.loop)
        at, end = (
            np.ascontiguousarray(at_ps, dtype=np.int64),
            np.ascontiguousarray(end_ps, dtype=np.int64),
        )
        sides = np.ascontiguousarray(side, dtype=np.uint8)
        result = library().iosim_replay_recorded(
            ct.addressof(self.state),
            ct.addressof(self.config),
            ct.addressof(plan),
            _pointer(at),
            _address("ends", end, np.int64, launch.tiles),
            at.shape[1],
            every,
            _address("sides", sides, np.uint8, launch.tiles),
        )
        _accept(result, f"launch {launch.name}")

    def _looped(self, launch: LoweredLaunch) -> np.ndarray[Any, Any]:
        looped = np.zeros(MAX_TENSORS, dtype=np.uint8)
        for template in launch.loop:
            # The first work tile that makes the access tells which tensor the template is of.
            first = template.base[template.base >= 0]
            if first.size:
                # A launch that was read from machine code names one tensor of many in its template: all
                # objects in its range are the loop's.
                turn = (
                    template.turn if template.turn and not template.turn_coef else 1
                )  # all objects, by their number
                looped[np.unique(self._objects["tensor"][first[0] : first[0] + turn])] = 1
        return looped


def _check_bounds(model: L2Model, owner: np.ndarray[Any, Any], size: np.ndarray[Any, Any]) -> int:
    """Bounds that the engine's arrays are compiled for; check.h refuses what else does not fit."""
    # Bounds that the engine's arrays are compiled for; check.h refuses what else does not fit.
    if not 1 <= model.ways <= MAX_WAYS:
        raise InputError(f"l2_ways {model.ways}: the replay follows sets of 1 to {MAX_WAYS} ways")
    max_partitions = MAX_PARTITIONS if model.apart else 2
    if not 1 <= model.partitions <= max_partitions:
        accepted = f"1 to {max_partitions} L2s" if model.apart else "an L2 of 1 or 2 partitions"
        raise InputError(f"l2_partitions {model.partitions}: the replay follows {accepted}")
    if model.dirty_ways < 1:
        raise InputError(f"{model.dirty_ways} dirty ways of a set; accepted: 1 or more")
    n = int(size.size)
    if owner.size != n:
        raise InputError(f"owners of {owner.size} objects; there are {n}")
    _within("size", size, 2**31)
    _within("tensor", owner, MAX_TENSORS)
    return n


class _Part:
    def __init__(self, plan: SamplingPlan, looped: np.ndarray[Any, Any]) -> None:
        room = 2 * plan.windows + 64
        self.looped = looped
        self._played, self._carried = (
            np.zeros(room + 1, dtype=np.int64),
            np.zeros(room + 1, dtype=np.int64),
        )
        self._read, self._write = (
            np.zeros((room + 1, MAX_TENSORS), dtype=np.int64) for _ in range(2)
        )
        self.state = _Sampling(
            settle=plan.settle, window=plan.window, jump=plan.jump, max_windows=room
        )
        self.state.looped[:] = looped.tolist()
        self.state.played, self.state.carried = _pointer(self._played), _pointer(self._carried)
        self.state.read, self.state.write = _pointer(self._read), _pointer(self._write)

    def windows(self) -> Windows:
        n = int(self.state.windows)
        played, carried = (
            self._played[:n],
            self._carried[:n],
        )  # carried: twice the loads outside that each stands for
        only = self.looped.astype(np.int64)
        waited = self.state.took_ps / self.state.alone_ps - 1 if self.state.alone_ps else 0.0
        return Windows(
            played,
            played + carried // 2,
            self._read[:n] * only,
            self._write[:n] * only,
            waited,
            int(self.state.passed_over),
        )


def _interruptible(play: Callable[[ct.c_int32, ct.c_int32], int], launch: LoweredLaunch) -> int:
    """Runs `play` beside the main thread, which so hears signals and can show how many work tiles are done.
    Whatever is raised here meanwhile stops the engine before it goes on: by Ctrl-C, by another signal's handler, or
    because this thread works for another that wants no more of it. A launch of few accesses is over before anybody
    would wait for it, and is played where it is. `play`: called with (work tiles that are done, whether to stop),
    both shared with the engine."""
    done, stop = ct.c_int32(0), ct.c_int32(0)
    if launch.accesses <= AT_ONCE_ACCESSES:
        return play(done, stop)
    ends: list[int] = []
    failures: list[BaseException] = []
    over = (
        threading.Event()
    )  # joining the thread again after Ctrl-C does not wait for it in every Python

    def run() -> None:
        try:
            if not stop.value:
                ends.append(play(done, stop))
        except BaseException as failure:
            failures.append(failure)
        finally:
            over.set()

    if not has_threads():
        run()
        if failures:
            raise failures[0]
        return ends[0]
    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
        while is_worker() and not over.wait(BAR_EVERY_S):
            go_on()
        if not over.wait(AFTER_S):
            # A bar appears only after AFTER_S: most replays are over by then.
            most_s = max(1, round(launch.accesses / SLOWEST_PER_S))
            task = f"replay {launch.name}, at most {most_s} s"
            with counter(launch.tiles, task, "tile", after_s=0.0) as bar:
                while not over.wait(BAR_EVERY_S):
                    bar(done.value)
        over.wait()
    except BaseException:
        stop.value = 1
        _wait(thread, over)
        raise
    if failures:
        raise failures[0]
    return ends[0]


def _wait(thread: threading.Thread, over: threading.Event) -> None:
    """Waits until the engine has stopped, whatever signals come meanwhile; the first of them is on its way already."""
    while not over.is_set() and thread.is_alive():
        with suppress(BaseException):
            over.wait(BAR_EVERY_S)


def l2_config(model: L2Model, sets: int, stride: float) -> Any:
    """The L2 for the engine: so many followed sets of a partition, each line of which stands for `stride`."""
    rates = {"dram": model.dram_bytes_per_s, "l2": model.l2_bytes_per_s}
    rates["dram_write"] = model.dram_write_bytes_per_s or model.dram_bytes_per_s
    waits = {"l2": model.l2_latency_s, "far": model.far_latency_s, "dram": model.dram_latency_s}
    # A cache at the memory's side has other sets than the L2: as many per followed L2 set as
    # the whole caches have of one another.
    behind = {}
    if model.side is not None:
        behind = {
            "side_sets": sets * max(1, round(model.side.sets / model.sets)),
            "side_ways": model.side.ways,
        }
        rates["side"], waits["side"] = model.side.bytes_per_s, model.side.latency_s
    return _L2Config(
        partitions=model.partitions,
        sets=sets,
        ways=model.ways,
        dirty_share=round(model.dirty_ways * 256),
        sample_bytes=round(stride * model.line_bytes),
        apart=int(model.apart),
        **behind,
        # Rates as picoseconds a KiB and latencies as picoseconds: the engine adds whole numbers.
        **{f"{name}_ps_per_kib": round(1024 * PS / rate) for name, rate in rates.items()},
        **{f"{name}_latency_ps": in_ps(seconds) for name, seconds in waits.items()},
    )


def launch_plan(
    launch: LoweredLaunch, ctas: Ctas, model: L2Model, coarse: Coarse | None = None
) -> tuple[Any, tuple[Any, ...]]:
    """A launch with the CTAs that play it, for the engine, and what must live as long as that is used. Raises
    InputError: no CTAs to play it."""
    if min(ctas.slots, ctas.sms) < 1:
        raise InputError(
            f"`method` replay: {ctas.slots} CTAs on {ctas.sms} SMs; at least one CTA on one SM is needed"
        )
    # A static list gives CTA c the groups c, c + stride, ...; the engine adds from a group's last
    # work tile, so that a group's length is taken off.
    stride = (
        ctas.static_stride and (ctas.static_stride - 1) * launch.group + 1
    )  # from a group's last tile
    loop = launch.loop
    if (
        coarse is not None
    ):  # what moves on with the loop, then what every small step stores to again
        loop = tuple(sorted(loop, key=lambda t: t.stays))
    plan = _work_tiles(launch, loop)
    for name in (
        "slots",
        "sms",
        "ahead",
        "sms_alike",
        "step_spread_ppm",
        "parts",
        "sm_spread_ppm",
        "waits",
    ):
        setattr(plan, name, int(getattr(ctas, name)))
    plan.static_stride, plan.group = stride, launch.group
    plan.step_ps, plan.start_ps, plan.open_ps = (
        in_ps(s) for s in (ctas.step_s, ctas.start_s, ctas.open_s)
    )
    # In whole shares, then in millionths: a rate that moves in its last digits changes nothing.
    slow = np.rint(np.rint(np.array(ctas.slow) * SLOW_SHARES) * (1e6 / SLOW_SHARES)).astype(
        np.int64
    )
    plan.crowds, plan.slow_ppm = slow.size, _pointer(slow)
    plan.ranks, plan.relaunched = len(ctas.rates), int(ctas.relaunched and launch.group == 1)
    shares = np.rint(np.array(ctas.rates) * 1e6).astype(np.int32)
    side = sm_partitions(ctas.sms, model.partitions, model.side_ends, model.apart)
    plan.queues = (
        model.partitions if model.apart and ctas.relaunched else 1
    )  # the hardware deals CTAs out
    plan.share_ppm, plan.side = _pointer(shares), _pointer(side)
    if coarse is not None:
        # n small steps vary independently: their sum varies by the root of n less, relatively.
        plan.coarse, plan.walks = coarse.how.steps, sum(not t.stays for t in loop)
        plan.step_spread_ppm = round(
            ctas.step_spread_ppm / coarse.how.steps**0.5
        )  # of so many steps together
        plan.lead = _address("first coarse steps", coarse.lead, np.int32, launch.tiles)
        plan.trail = _address("last coarse steps", coarse.trail, np.int32, launch.tiles)
    return plan, (launch, loop, coarse, shares, slow, side)


def _work_tiles(launch: LoweredLaunch, loop: tuple[Template, ...]) -> Any:
    """A launch for the engine: its work tiles with what they access, in one CTA on one SM. Raises InputError: arrays
    that are not of the launch's work tiles."""
    n = launch.tiles
    plan = _LaunchPlan(tiles=n, slots=1, sms=1, group=1, queues=1)
    for name, templates in (("pro", launch.prologue), ("loop", loop), ("epi", launch.epilogue)):
        if len(templates) > MAX_TEMPLATES:
            raise InputError(
                f"a launch has {len(templates)} accesses in one place; the replay takes {MAX_TEMPLATES}"
            )
        setattr(plan, f"n_{name}", len(templates))
        for slot, t in zip(getattr(plan, name), templates, strict=False):
            for field in ("mode", "coef", "span", "rows", "row_stride", "turn", "turn_coef"):
                setattr(slot, field, getattr(t, field))
            slot.base = _address(f"objects of {t.tensor}", t.base, np.int32, n)
            if t.skips is not None and t.block is not None:
                slot.skips = _address(f"skips of {t.tensor}", t.skips, np.int32, t.skips.size)
                slot.skipped, slot.block = (
                    t.skips.size,
                    _address(f"blocks of {t.tensor}", t.block, np.int32, n),
                )
    plan.first = _address("first steps", launch.first, np.int32, n)
    plan.count = _address("numbers of steps", launch.count, np.int32, n)
    plan.down = _address("directions", launch.down, np.uint8, n)
    if launch.indices is not None:
        plan.list = _address("indices", launch.indices, np.int32, launch.indices.size)
        plan.listed = launch.indices.size
    return plan
