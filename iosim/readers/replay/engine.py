"""The compiled replay engine: its C structures, and one object that holds an L2 between launches."""

from __future__ import annotations

import ctypes as ct
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from iosim.base.errors import InputError
from iosim.base.progress import AFTER_S, counter
from iosim.readers.replay.coarse import Coarse
from iosim.readers.replay.l2 import LEAST_SETS, L2Model, Samples, sample_lines, sm_partitions
from iosim.readers.replay.lowering import LoweredLaunch, Template
from iosim.readers.replay.sampling import SamplingPlan, Windows, windows_of

MAX_DEPTH, MAX_TEMPLATES, MAX_TENSORS = 64, 24, 64
MAX_WAYS = 32
PS = 10**12
BAR_EVERY_S = 0.1
SLOWEST_PER_S = 5_000_000
"""Accesses that a second plays at least, but on busy machines: of those tried, 10 to 30 million."""
MISSING = "the compiled engine is missing; reinstall iosim where a C compiler is at hand"


class _L2Config(ct.Structure):
    _fields_ = [
        ("partitions", ct.c_int32), ("sets", ct.c_int32), ("ways", ct.c_int32), ("dirty_share", ct.c_int32),
        ("sample_bytes", ct.c_int64), ("dram_ps_per_kib", ct.c_int64), ("l2_ps_per_kib", ct.c_int64),
        ("l2_latency_ps", ct.c_int64), ("far_latency_ps", ct.c_int64), ("dram_latency_ps", ct.c_int64),
    ]  # fmt: skip


OBJECT = np.dtype(
    [("ready", "<i8"), ("size", "<i4"), ("first", "<i4"), ("samples", "<i4"), ("tensor", "u1"), ("touched", "u1"),
     ("pad", "<u2")]
)  # fmt: skip


class _L2State(ct.Structure):
    _fields_ = [
        ("objects", ct.c_int64), ("object", ct.c_void_p), ("object_of", ct.c_void_p), ("place", ct.c_void_p),
        ("tags", ct.c_void_p), ("dram_free", ct.c_int64), ("l2_free", ct.c_int64), ("now", ct.c_int64),
        ("stands", ct.c_int32), ("whole", ct.c_int32), ("lost", ct.c_void_p), ("again", ct.c_int64),
        ("hbm_read", ct.c_int64 * MAX_TENSORS), ("hbm_write", ct.c_int64 * MAX_TENSORS), ("fabric", ct.c_int64),
        ("step_ps", ct.c_int64), ("took_ps", ct.c_int64), ("alone_ps", ct.c_int64),
    ]  # fmt: skip


class _Template(ct.Structure):
    _fields_ = [
        ("mode", ct.c_int32), ("coef", ct.c_int32), ("span", ct.c_int32), ("rows", ct.c_int32),
        ("row_stride", ct.c_int32), ("pad", ct.c_int32), ("base", ct.c_void_p), ("skips", ct.c_void_p),
        ("block", ct.c_void_p),
    ]  # fmt: skip


class _LaunchPlan(ct.Structure):
    _fields_ = [
        ("tiles", ct.c_int32), ("slots", ct.c_int32), ("sms", ct.c_int32), ("sm_spread_ppm", ct.c_int32),
        ("static_stride", ct.c_int32), ("group", ct.c_int32), ("n_pro", ct.c_int32), ("n_loop", ct.c_int32),
        ("n_epi", ct.c_int32), ("pad", ct.c_int32), ("pro", _Template * MAX_TEMPLATES),
        ("loop", _Template * MAX_TEMPLATES), ("epi", _Template * MAX_TEMPLATES), ("first", ct.c_void_p),
        ("count", ct.c_void_p), ("side", ct.c_void_p), ("down", ct.c_void_p), ("list", ct.c_void_p),
        ("step_ps", ct.c_int64), ("start_ps", ct.c_int64), ("ranks", ct.c_int32), ("relaunched", ct.c_int32),
        ("share_ppm", ct.c_void_p),
        ("coarse", ct.c_int32), ("walks", ct.c_int32), ("lead", ct.c_void_p), ("trail", ct.c_void_p),
    ]  # fmt: skip


class _Sampling(ct.Structure):
    _fields_ = [
        ("settle", ct.c_int64), ("window", ct.c_int64), ("jump", ct.c_int64), ("max_windows", ct.c_int32),
        ("windows", ct.c_int32), ("played", ct.c_void_p), ("carried", ct.c_void_p), ("read", ct.c_void_p),
        ("write", ct.c_void_p), ("skipped_ps", ct.c_int64), ("took_ps", ct.c_int64),
        ("alone_ps", ct.c_int64), ("looped", ct.c_uint8 * MAX_TENSORS),
    ]  # fmt: skip


class TraceRecord(ct.Structure):
    """What the engine writes down of one launch; see engine.c's Trace."""

    _fields_ = [
        ("bin_ps", ct.c_int64), ("bins", ct.c_int32), ("ctas", ct.c_int32), ("bin_hit", ct.c_void_p),
        ("bin_miss", ct.c_void_p), ("cta_sm", ct.c_void_p), ("cta_start", ct.c_void_p), ("cta_end", ct.c_void_p),
        ("order", ct.c_void_p), ("seen", ct.c_void_p), ("samples", ct.c_int64), ("first", ct.c_int64),
        ("depth", ct.c_int64 * (MAX_DEPTH + 1)),
    ]  # fmt: skip


@cache
def library() -> ct.CDLL:
    """The compiled engine.

    Raises:
        InputError: this installation has none (it was installed where there is no C compiler), or it is no engine.
    """
    path = Path(os.environ.get("IOSIM_ENGINE", str(Path(__file__).with_name("_engine.so"))))
    if not path.exists():
        raise InputError(f"--method replay: {MISSING}")
    other = f"--method replay: {path} is no engine of this version of iosim; reinstall iosim"
    try:
        lib = ct.CDLL(str(path))
        _declare(lib)
    except (OSError, AttributeError):
        raise InputError(other) from None
    sizes = (ct.c_int32 * 6)()
    lib.iosim_sizes(sizes)
    if list(sizes) != [*(ct.sizeof(x) for x in (_L2Config, _L2State, _LaunchPlan, TraceRecord)), OBJECT.itemsize,
                       ct.sizeof(_Sampling)]:  # fmt: skip
        raise InputError(other)
    return lib


def _declare(lib: ct.CDLL) -> None:
    """Argument types; an AttributeError where a function is not there."""
    lib.iosim_replay.restype = ct.c_int64
    pointer = ct.c_void_p
    lib.iosim_replay.argtypes = [pointer, pointer, pointer, ct.c_int64, *[pointer] * 4]
    lib.iosim_place.argtypes = [ct.c_void_p, ct.c_void_p, ct.c_int64, ct.c_int32]
    lib.iosim_access.argtypes = [pointer, pointer, ct.c_int64, *[pointer] * 3]
    lib.iosim_replay_recorded.argtypes = [*[pointer] * 5, ct.c_int32, ct.c_int32, pointer]
    lib.iosim_sizes.argtypes = [ct.c_void_p]


def _pointer(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)


class L2:
    """An L2 with its objects; keeps its contents from one launch to the next.

    `samples_per_object` is how many lines of an object of middling size are followed; more where that would leave fewer
    than `least_sets` of a partition's sets. `beside` are bytes of memory that a replay needs for other things.
    """

    def __init__(
        self, model: L2Model, size: np.ndarray[Any, Any], owner: np.ndarray[Any, Any], samples_per_object: float = 1.0,
        least_sets: float = LEAST_SETS, beside: int = 0,
    ) -> None:  # fmt: skip
        if not 1 <= model.ways <= MAX_WAYS:
            raise InputError(f"l2_ways {model.ways}: the replay follows sets of 1 to {MAX_WAYS} ways")
        n = int(size.size)
        self.model = model
        sampled = sample_lines(model, np.ascontiguousarray(size, dtype=np.int32), samples_per_object,
                               least_sets, beside)  # fmt: skip
        self._samples = sampled
        self._objects = np.zeros(n, dtype=OBJECT)
        self._objects["size"], self._objects["tensor"] = size, owner
        self._objects["first"], self._objects["samples"] = sampled.first[:-1], np.diff(sampled.first)
        self._place = sampled.set.astype(np.uint32) * 2 + sampled.home
        row = -(-model.ways // 4) * 4
        self._tags = np.full(model.partitions * sampled.sets * row, -1, dtype=np.int32)
        self.config = _L2Config(
            partitions=model.partitions, sets=sampled.sets, ways=model.ways, dirty_share=round(model.dirty_ways * 256),
            sample_bytes=round(sampled.stride * model.line_bytes),
            dram_ps_per_kib=round(1024 * PS / model.dram_bytes_per_s),
            l2_ps_per_kib=round(1024 * PS / model.l2_bytes_per_s), l2_latency_ps=round(model.l2_latency_s * PS),
            far_latency_ps=round(model.far_latency_s * PS), dram_latency_ps=round(model.dram_latency_s * PS),
        )  # fmt: skip
        s = self.state = _L2State(objects=n, stands=1, whole=1)
        s.object, s.object_of, s.place = _pointer(self._objects), _pointer(sampled.object), _pointer(self._place)
        s.tags = _pointer(self._tags)
        self._lost = np.zeros(sampled.sets, dtype=np.int64)
        s.lost = _pointer(self._lost)

    def place(self, objects: range, *, dirty: bool) -> None:
        """Put objects into the L2 as though an SM had touched them before the launch."""
        lib = library()
        for o in objects:
            lib.iosim_place(ct.addressof(self.state), ct.addressof(self.config), o, int(dirty))

    def access(
        self, mode: np.ndarray[Any, Any], number: np.ndarray[Any, Any], side: np.ndarray[Any, Any]
    ) -> None:  # fmt: skip
        """Accesses one after the other, without times of their own: contents and bytes alone.

        Args:
            mode: [n]: 0 a load, 1 a store, 2 an atomic add.
            number: [n]: of the object.
            side: [n]: the partition of the SM.

        Raises:
            InputError: arrays of different lengths, or a mode, an object or a partition that there is not.
        """
        if not mode.shape == number.shape == side.shape == (mode.size,):
            raise InputError(f"accesses of {mode.size} modes, {number.size} objects and {side.size} sides")
        known = (3, self._objects.size, self.model.partitions)
        for what, each, end in zip(("mode", "object", "side"), (mode, number, side), known, strict=True):
            if mode.size and not 0 <= each.min() <= each.max() < end:
                raise InputError(f"{what} {each.min()} to {each.max()}; accepted: 0 to {end - 1}")
        modes, numbers, sides = (np.ascontiguousarray(a, dtype=t) for a, t in
                                 ((mode, np.uint8), (number, np.int32), (side, np.uint8)))  # fmt: skip
        library().iosim_access(ct.addressof(self.state), ct.addressof(self.config), modes.size, _pointer(modes),
                               _pointer(numbers), _pointer(sides))  # fmt: skip

    def own(self, objects: range, number: int) -> None:
        """Traffic of these objects counts for tensor `number` from now on."""
        self._objects["tensor"][objects.start : objects.stop] = number

    @property
    def samples(self) -> Samples:
        """The lines that are followed."""
        return self._samples

    def counts(self) -> tuple[list[int], list[int]]:
        """(HBM bytes read, HBM bytes written) so far, by tensor number."""
        return list(self.state.hbm_read), list(self.state.hbm_write)

    def placement_bytes(self) -> float:
        """Standard deviation of the bytes read from HBM again over placements of the tensors in memory.

        Sets of a placement are spread regularly over its pages, so that the mean over few of them stands for all.
        """
        lost = self._lost.reshape(self._samples.placements, -1).mean(axis=1)
        if lost.size < 2 or not lost.any():
            return 0.0
        return int(self.state.again) * float(lost.std(ddof=1) / lost.mean())

    def dirty_bytes(self) -> int:
        """Bytes that are dirty in the L2 now."""
        return int(((self._tags >= 0) & (self._tags & 1 == 1)).sum()) * int(self.config.sample_bytes)

    def replay(
        self, launch: LoweredLaunch, *, slots: int, sms: int, static_stride: int, step_s: float,
        start_s: float, begin_ps: int, sm_spread_ppm: int, rates: tuple[float, ...] = (1.0,), relaunched: bool = True,
        trace: Any = None, sampling: SamplingPlan | None = None, coarse: Coarse | None = None,
    ) -> tuple[int, Windows | None]:  # fmt: skip
        """Play one launch; returns its end in picoseconds, and the windows where it was played in part. Ctrl-C ends it;
        a long one shows a bar on a terminal.

        Args:
            static_stride: how much further on a CTA's next work tile, or group of them, is; 0 for a queue.
            rates: of an SM's CTAs, the oldest first, in units of their mean.
            relaunched: a CTA ends with its work tile, or group of them, and the next is a new CTA, the SM's youngest.
            step_s: a step of a CTA that has its SM for itself; a small one where the launch is `coarse`.
            sampling: play windows alone; None for all steps.
            coarse: the launch's steps are coarse ones.

        Raises:
            KeyboardInterrupt: the engine has been stopped; the L2 is of no further use.
        """
        if min(slots, sms) < 1:
            raise InputError(f"--method replay: {slots} CTAs on {sms} SMs; at least one CTA on one SM is needed")
        stride = static_stride and (static_stride - 1) * launch.group + 1  # from a group's last tile
        plan = _LaunchPlan(
            tiles=launch.tiles, slots=slots, sms=sms, static_stride=stride, group=launch.group,
            sm_spread_ppm=sm_spread_ppm,
            step_ps=round(step_s * PS), start_ps=round(start_s * PS), ranks=len(rates),
            relaunched=int(relaunched and launch.group == 1),
        )  # fmt: skip
        shares = np.rint(np.array(rates) * 1e6).astype(np.int32)
        plan.share_ppm = _pointer(shares)
        plan.n_pro = _fill(plan.pro, launch.prologue)
        loop = launch.loop if coarse is None else coarse.walking_first(launch.loop)
        plan.n_loop = _fill(plan.loop, loop)
        plan.n_epi = _fill(plan.epi, launch.epilogue)
        if coarse is not None:
            plan.coarse, plan.walks = coarse.steps, coarse.walks(launch.loop)
            plan.lead, plan.trail = _pointer(coarse.lead), _pointer(coarse.trail)
        side = sm_partitions(sms, self.model.partitions, self.model.side_ends)
        plan.side = _pointer(side)
        plan.first, plan.count, plan.down = _pointer(launch.first), _pointer(launch.count), _pointer(launch.down)
        plan.list = None if launch.indices is None else _pointer(launch.indices)
        done, stop = ct.c_int32(0), ct.c_int32(0)
        lib, traced = library(), ct.addressof(trace) if trace is not None else None
        part = None if sampling is None else _Part(sampling, self._looped(launch))
        before = self.counts()

        def play() -> int:
            return int(lib.iosim_replay(
                ct.addressof(self.state), ct.addressof(self.config), ct.addressof(plan), begin_ps, traced,
                None if part is None else ct.addressof(part.state), ct.addressof(done), ct.addressof(stop),
            ))  # fmt: skip

        end = _interruptible(play, launch, done, stop)
        if end == -1:
            raise MemoryError("the replay ran out of memory")
        if part is None:
            return end, None
        found = part.windows()
        for counts, then, total in zip((self.state.hbm_read, self.state.hbm_write), before, found.totals(),
                                       strict=True):  # fmt: skip
            for t in np.flatnonzero(part.looped):
                counts[t] = then[t] + int(total[t])
        return end, found

    def dirty_by_tensor(self) -> np.ndarray[Any, Any]:
        """Bytes of each tensor number that are dirty in the L2 now."""
        dirty = self._tags[(self._tags >= 0) & (self._tags & 1 == 1)] >> 1
        tensor = self._objects["tensor"][self._samples.object[dirty]]
        return np.bincount(tensor, minlength=MAX_TENSORS) * int(self.config.sample_bytes)

    def replay_recorded(
        self, launch: LoweredLaunch, at_ps: np.ndarray[Any, Any], end_ps: np.ndarray[Any, Any], every: int,
        side: np.ndarray[Any, Any],
    ) -> None:  # fmt: skip
        """Play one launch at the times that were recorded of its CTAs, one a work tile.

        Args:
            at_ps: [work tiles, marks]: when each CTA began its steps 0, every, 2 every, ...
            end_ps: [work tiles]: when it ended.
            side: [work tiles]: the partition of its SM.

        Raises:
            InputError: arrays that are not of the launch's work tiles.
        """
        if at_ps.shape[0] != launch.tiles or end_ps.shape != (launch.tiles,) or side.shape != (launch.tiles,):
            raise InputError(f"recorded times of {at_ps.shape[0]} CTAs; the launch has {launch.tiles} work tiles")
        plan = _LaunchPlan(tiles=launch.tiles, slots=1, sms=1, group=1)
        plan.n_pro, plan.n_loop, plan.n_epi = (
            _fill(plan.pro, launch.prologue), _fill(plan.loop, launch.loop), _fill(plan.epi, launch.epilogue)
        )  # fmt: skip
        plan.first, plan.count, plan.down = _pointer(launch.first), _pointer(launch.count), _pointer(launch.down)
        plan.list = None if launch.indices is None else _pointer(launch.indices)
        at, end = np.ascontiguousarray(at_ps, dtype=np.int64), np.ascontiguousarray(end_ps, dtype=np.int64)
        sides = np.ascontiguousarray(side, dtype=np.uint8)
        if library().iosim_replay_recorded(
            ct.addressof(self.state), ct.addressof(self.config), ct.addressof(plan), _pointer(at), _pointer(end),
            at.shape[1], every, _pointer(sides),
        ):  # fmt: skip
            raise MemoryError("the replay ran out of memory")

    def _looped(self, launch: LoweredLaunch) -> np.ndarray[Any, Any]:
        """By tensor number, whether the launch's loop accesses it."""
        looped = np.zeros(MAX_TENSORS, dtype=np.uint8)
        for template in launch.loop:
            first = template.base[template.base >= 0]
            if first.size:
                looped[self._objects["tensor"][first[0]]] = 1
        return looped


class _Part:
    """Room for the windows of a launch that is played in part."""

    def __init__(self, plan: SamplingPlan, looped: np.ndarray[Any, Any]) -> None:
        room = 2 * plan.windows + 64
        self.looped = looped
        self._played, self._carried = np.zeros(room + 1, dtype=np.int64), np.zeros(room + 1, dtype=np.int64)
        self._read, self._write = (np.zeros((room + 1, MAX_TENSORS), dtype=np.int64) for _ in range(2))
        self.state = _Sampling(settle=plan.settle, window=plan.window, jump=plan.jump, max_windows=room)
        self.state.looped[:] = looped.tolist()
        self.state.played, self.state.carried = _pointer(self._played), _pointer(self._carried)
        self.state.read, self.state.write = _pointer(self._read), _pointer(self._write)

    def windows(self) -> Windows:
        n = int(self.state.windows)
        only = self.looped.astype(np.int64)
        waited = self.state.took_ps / self.state.alone_ps - 1 if self.state.alone_ps else 0.0
        return windows_of(self._played[:n], self._carried[:n], self._read[:n] * only, self._write[:n] * only, waited)


def _interruptible(play: Callable[[], int], launch: LoweredLaunch, done: ct.c_int32, stop: ct.c_int32) -> int:
    """Runs `play` beside the main thread, which so hears Ctrl-C and can show how many work tiles have started."""
    ends: list[int] = []
    over = threading.Event()  # joining the thread again after Ctrl-C does not wait for it in every Python

    def run() -> None:
        try:
            ends.append(play())
        finally:
            over.set()

    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
        if not over.wait(AFTER_S):
            with counter(launch.tiles, f"replay {launch.name}{_about(launch)}", "tile", after_s=0.0) as shown:
                while not over.wait(BAR_EVERY_S):
                    shown(done.value)
        over.wait()
    except KeyboardInterrupt:
        stop.value = 1
        while not over.wait(AFTER_S) and thread.is_alive():
            pass
        raise
    return ends[0]


def _about(launch: LoweredLaunch) -> str:
    """How long a launch takes, where all of it is played."""
    return f", at most {max(1, round(launch.accesses / SLOWEST_PER_S))} s"


def _fill(target: Any, templates: tuple[Template, ...]) -> int:
    if len(templates) > MAX_TEMPLATES:
        raise InputError(f"a launch has {len(templates)} accesses in one place; the replay takes {MAX_TEMPLATES}")
    for slot, t in zip(target, templates, strict=False):
        slot.mode, slot.coef, slot.span, slot.rows, slot.row_stride = t.mode, t.coef, t.span, t.rows, t.row_stride
        slot.base = _pointer(t.base)
        slot.skips = None if t.skips is None else _pointer(t.skips)
        slot.block = None if t.block is None else _pointer(t.block)
    return len(templates)
