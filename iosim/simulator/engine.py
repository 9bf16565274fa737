"""The compiled replay engine: its C structures, and one object that holds an L2 between launches."""

from __future__ import annotations

import ctypes as ct
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from iosim.errors import InputError
from iosim.simulator.l2 import L2Model, Samples, sample_lines, sm_partitions
from iosim.simulator.lowering import LoweredLaunch, Template

MAX_DEPTH, MAX_TEMPLATES, MAX_TENSORS = 64, 24, 64
MAX_WAYS = 24
PS = 10**12
BAR_AFTER_S, BAR_EVERY_S = 2.0, 0.1
MISSING = "the compiled engine is missing; reinstall iosim where a C compiler is at hand"


class _L2Config(ct.Structure):
    _fields_ = [
        ("partitions", ct.c_int32), ("sets", ct.c_int32), ("ways", ct.c_int32), ("keeps_written", ct.c_int32),
        ("sample_bytes", ct.c_int64), ("dram_ps_per_kib", ct.c_int64), ("l2_ps_per_kib", ct.c_int64),
        ("l2_latency_ps", ct.c_int64), ("far_latency_ps", ct.c_int64), ("dram_latency_ps", ct.c_int64),
    ]  # fmt: skip


class _L2State(ct.Structure):
    _fields_ = [
        ("objects", ct.c_int64), ("size", ct.c_void_p), ("tensor", ct.c_void_p), ("first_sample", ct.c_void_p),
        ("object_of", ct.c_void_p), ("set_of", ct.c_void_p), ("home_of", ct.c_void_p), ("touched", ct.c_void_p),
        ("ready", ct.c_void_p), ("tags", ct.c_void_p), ("used", ct.c_void_p), ("dram_free", ct.c_int64),
        ("l2_free", ct.c_int64), ("now", ct.c_int64), ("hbm_read", ct.c_int64 * MAX_TENSORS),
        ("hbm_write", ct.c_int64 * MAX_TENSORS), ("fabric", ct.c_int64),
    ]  # fmt: skip


class _Template(ct.Structure):
    _fields_ = [
        ("mode", ct.c_int32), ("coef", ct.c_int32), ("span", ct.c_int32), ("rows", ct.c_int32),
        ("row_stride", ct.c_int32), ("pad", ct.c_int32), ("base", ct.c_void_p),
    ]  # fmt: skip


class _LaunchPlan(ct.Structure):
    _fields_ = [
        ("tiles", ct.c_int32), ("slots", ct.c_int32), ("sms", ct.c_int32), ("sm_spread_ppm", ct.c_int32),
        ("static_stride", ct.c_int32), ("group", ct.c_int32), ("n_pro", ct.c_int32), ("n_loop", ct.c_int32),
        ("n_epi", ct.c_int32), ("pad", ct.c_int32), ("pro", _Template * MAX_TEMPLATES),
        ("loop", _Template * MAX_TEMPLATES), ("epi", _Template * MAX_TEMPLATES), ("first", ct.c_void_p),
        ("count", ct.c_void_p), ("side", ct.c_void_p), ("down", ct.c_void_p), ("list", ct.c_void_p),
        ("step_ps", ct.c_int64), ("start_ps", ct.c_int64),
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
    sizes = (ct.c_int32 * 4)()
    lib.iosim_sizes(sizes)
    if list(sizes) != [ct.sizeof(x) for x in (_L2Config, _L2State, _LaunchPlan, TraceRecord)]:
        raise InputError(other)
    return lib


def _declare(lib: ct.CDLL) -> None:
    """Argument types; an AttributeError where a function is not there."""
    lib.iosim_replay.restype = ct.c_int64
    pointer = ct.c_void_p
    lib.iosim_replay.argtypes = [pointer, pointer, pointer, ct.c_int64, pointer, pointer, pointer]
    lib.iosim_place.argtypes = [ct.c_void_p, ct.c_void_p, ct.c_int64, ct.c_int32]
    lib.iosim_sizes.argtypes = [ct.c_void_p]


def _pointer(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)


class L2:
    """An L2 with its objects; keeps its contents from one launch to the next.

    `samples_per_object` is how many lines of an object of middling size are followed.
    """

    def __init__(
        self, model: L2Model, size: np.ndarray[Any, Any], owner: np.ndarray[Any, Any], samples_per_object: float = 1.0
    ) -> None:
        if not 1 <= model.ways <= MAX_WAYS:
            raise InputError(f"l2_ways {model.ways}: the replay follows sets of 1 to {MAX_WAYS} ways")
        n = int(size.size)
        self.model = model
        self._size = np.ascontiguousarray(size, dtype=np.int32)
        self._owner = np.ascontiguousarray(owner, dtype=np.uint8)
        sampled = sample_lines(model, self._size, samples_per_object)
        self._samples = sampled
        self._touched = np.zeros(n, dtype=np.uint8)
        self._ready = np.zeros(n, dtype=np.int64)
        self._tags = np.full(model.partitions * sampled.sets * model.ways, -1, dtype=np.int32)
        self.config = _L2Config(
            partitions=model.partitions, sets=sampled.sets, ways=model.ways, keeps_written=int(model.keeps_written),
            sample_bytes=sampled.stride * model.line_bytes,
            dram_ps_per_kib=round(1024 * PS / model.dram_bytes_per_s),
            l2_ps_per_kib=round(1024 * PS / model.l2_bytes_per_s), l2_latency_ps=round(model.l2_latency_s * PS),
            far_latency_ps=round(model.far_latency_s * PS), dram_latency_ps=round(model.dram_latency_s * PS),
        )  # fmt: skip
        s = self.state = _L2State(objects=n)
        s.size, s.tensor, s.touched = _pointer(self._size), _pointer(self._owner), _pointer(self._touched)
        s.first_sample, s.object_of = _pointer(sampled.first), _pointer(sampled.object)
        s.set_of, s.home_of = _pointer(sampled.set), _pointer(sampled.home)
        self._used = np.zeros(model.partitions * sampled.sets, dtype=np.uint32)
        s.ready, s.tags, s.used = _pointer(self._ready), _pointer(self._tags), _pointer(self._used)

    def place(self, objects: range, *, dirty: bool) -> None:
        """Put objects into the L2 as though an SM had touched them before the launch."""
        lib = library()
        for o in objects:
            lib.iosim_place(ct.addressof(self.state), ct.addressof(self.config), o, int(dirty))

    def own(self, objects: range, number: int) -> None:
        """Traffic of these objects counts for tensor `number` from now on."""
        self._owner[objects.start : objects.stop] = number

    @property
    def samples(self) -> Samples:
        """The lines that are followed."""
        return self._samples

    def counts(self) -> tuple[list[int], list[int]]:
        """(HBM bytes read, HBM bytes written) so far, by tensor number."""
        return list(self.state.hbm_read), list(self.state.hbm_write)

    def dirty_bytes(self) -> int:
        """Bytes that are dirty in the L2 now."""
        return int(((self._tags >= 0) & (self._tags & 1 == 1)).sum()) * int(self.config.sample_bytes)

    def replay(
        self, launch: LoweredLaunch, *, slots: int, sms: int, static_stride: int, step_s: float,
        start_s: float, begin_ps: int, sm_spread_ppm: int, trace: Any = None,
    ) -> int:  # fmt: skip
        """Play one launch; returns its end in picoseconds. Ctrl-C ends it; a long one shows a bar on a terminal.

        Args:
            static_stride: how much further on a CTA's next work tile, or group of them, is; 0 for a queue.

        Raises:
            KeyboardInterrupt: the engine has been stopped; the L2 is of no further use.
        """
        if min(slots, sms) < 1:
            raise InputError(f"--method replay: {slots} CTAs on {sms} SMs; at least one CTA on one SM is needed")
        stride = static_stride and (static_stride - 1) * launch.group + 1  # from a group's last tile
        plan = _LaunchPlan(
            tiles=launch.tiles, slots=slots, sms=sms, static_stride=stride, group=launch.group,
            sm_spread_ppm=sm_spread_ppm,
            step_ps=round(step_s * PS), start_ps=round(start_s * PS),
        )  # fmt: skip
        plan.n_pro = _fill(plan.pro, launch.prologue)
        plan.n_loop = _fill(plan.loop, launch.loop)
        plan.n_epi = _fill(plan.epi, launch.epilogue)
        side = sm_partitions(sms, self.model.partitions)
        plan.side = _pointer(side)
        plan.first, plan.count, plan.down = _pointer(launch.first), _pointer(launch.count), _pointer(launch.down)
        plan.list = None if launch.indices is None else _pointer(launch.indices)
        done, stop = ct.c_int32(0), ct.c_int32(0)
        lib, traced = library(), ct.addressof(trace) if trace is not None else None

        def play() -> int:
            return int(lib.iosim_replay(
                ct.addressof(self.state), ct.addressof(self.config), ct.addressof(plan), begin_ps, traced,
                ct.addressof(done), ct.addressof(stop),
            ))  # fmt: skip

        end = _interruptible(play, launch, done, stop)
        if end == -1:
            raise MemoryError("the replay ran out of memory")
        return end


def _interruptible(play: Callable[[], int], launch: LoweredLaunch, done: ct.c_int32, stop: ct.c_int32) -> int:
    """Runs `play` beside the main thread, which so hears Ctrl-C and can show how many work tiles have started."""
    ends: list[int] = []
    thread = threading.Thread(target=lambda: ends.append(play()), daemon=True)
    thread.start()
    try:
        thread.join(BAR_AFTER_S)
        if thread.is_alive() and sys.stderr.isatty():
            from tqdm import tqdm

            with tqdm(total=launch.tiles, desc=f"replay {launch.name}", unit="tile", leave=False) as bar:
                while thread.is_alive():
                    thread.join(BAR_EVERY_S)
                    bar.update(min(done.value, launch.tiles) - bar.n)
        thread.join()
    except KeyboardInterrupt:
        stop.value = 1
        thread.join()
        raise
    return ends[0]


def _fill(target: Any, templates: tuple[Template, ...]) -> int:
    if len(templates) > MAX_TEMPLATES:
        raise InputError(f"a launch has {len(templates)} accesses in one place; the replay takes {MAX_TEMPLATES}")
    for slot, t in zip(target, templates, strict=False):
        slot.mode, slot.coef, slot.span, slot.rows, slot.row_stride = t.mode, t.coef, t.span, t.rows, t.row_stride
        slot.base = _pointer(t.base)
    return len(templates)
