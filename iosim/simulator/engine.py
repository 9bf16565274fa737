"""The compiled replay engine: its C structures, and one object that holds an L2 between launches."""

from __future__ import annotations

import ctypes as ct
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from iosim.errors import InputError
from iosim.simulator.l2 import L2Model, sample_lines
from iosim.simulator.lowering import LoweredLaunch, Template

MAX_DEPTH, MAX_TEMPLATES, MAX_TENSORS = 64, 24, 64
PS = 10**12


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
        ("ready", ct.c_void_p), ("tags", ct.c_void_p), ("used", ct.c_void_p), ("dram_free", ct.c_int64), ("l2_free", ct.c_int64),
        ("now", ct.c_int64), ("hbm_read", ct.c_int64 * MAX_TENSORS), ("hbm_write", ct.c_int64 * MAX_TENSORS),
        ("fabric", ct.c_int64),
    ]  # fmt: skip


class _Template(ct.Structure):
    _fields_ = [
        ("mode", ct.c_int32), ("coef", ct.c_int32), ("span", ct.c_int32), ("rows", ct.c_int32),
        ("row_stride", ct.c_int32), ("pad", ct.c_int32), ("base", ct.c_void_p),
    ]  # fmt: skip


class _LaunchPlan(ct.Structure):
    _fields_ = [
        ("tiles", ct.c_int32), ("slots", ct.c_int32), ("sms", ct.c_int32), ("per_sm", ct.c_int32),
        ("static_stride", ct.c_int32), ("group", ct.c_int32), ("n_pro", ct.c_int32), ("n_loop", ct.c_int32),
        ("n_epi", ct.c_int32), ("pad", ct.c_int32), ("pro", _Template * MAX_TEMPLATES),
        ("loop", _Template * MAX_TEMPLATES), ("epi", _Template * MAX_TEMPLATES), ("first", ct.c_void_p),
        ("count", ct.c_void_p), ("list", ct.c_void_p), ("sm_spread_ppm", ct.c_int32), ("pad1", ct.c_int32), ("direction", ct.c_int32), ("pad2", ct.c_int32),
        ("step_ps", ct.c_int64), ("start_ps", ct.c_int64),
    ]  # fmt: skip


class _Trace(ct.Structure):
    _fields_ = [
        ("bin_ps", ct.c_int64), ("bins", ct.c_int32), ("ctas", ct.c_int32), ("bin_hit", ct.c_void_p),
        ("bin_miss", ct.c_void_p), ("cta_sm", ct.c_void_p), ("cta_start", ct.c_void_p), ("cta_end", ct.c_void_p),
        ("order", ct.c_void_p), ("depth", ct.c_int64 * (MAX_DEPTH + 1)),
    ]  # fmt: skip


@cache
def library() -> ct.CDLL:
    """The compiled engine.

    Raises:
        InputError: this installation has none (it was installed where there is no C compiler).
    """
    path = Path(os.environ.get("IOSIM_ENGINE", str(Path(__file__).with_name("_engine.so"))))
    if not path.exists():
        raise InputError("--method replay: the compiled engine is missing; reinstall iosim where a C compiler is at hand")
    lib = ct.CDLL(str(path))
    lib.iosim_replay.restype = ct.c_int64
    lib.iosim_replay.argtypes = [ct.c_void_p, ct.c_void_p, ct.c_void_p, ct.c_int64, ct.c_void_p, ct.c_void_p, ct.c_void_p]
    lib.iosim_place.argtypes = [ct.c_void_p, ct.c_void_p, ct.c_int64, ct.c_int32]
    sizes = (ct.c_int32 * 4)()
    lib.iosim_sizes(sizes)
    expected = [ct.sizeof(x) for x in (_L2Config, _L2State, _LaunchPlan, _Trace)]
    if list(sizes) != expected:
        raise InputError(f"the compiled engine {path} is of another version; reinstall iosim")
    return lib


def _pointer(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)


class L2:
    """An L2 with its objects; keeps its contents from one launch to the next."""

    def __init__(self, model: L2Model, size: np.ndarray[Any, Any], owner: np.ndarray[Any, Any]) -> None:
        n = int(size.size)
        self.model = model
        self._size = np.ascontiguousarray(size, dtype=np.int32)
        self._owner = np.ascontiguousarray(owner, dtype=np.uint8)
        sampled = sample_lines(model, self._size)
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

    def counts(self) -> tuple[list[int], list[int]]:
        """(HBM bytes read, HBM bytes written) so far, by tensor number."""
        return list(self.state.hbm_read), list(self.state.hbm_write)

    def dirty_bytes(self) -> int:
        """Bytes that are dirty in the L2 now."""
        return int(((self._tags >= 0) & (self._tags & 1 == 1)).sum()) * int(self.config.sample_bytes)

    def replay(
        self, launch: LoweredLaunch, *, slots: int, sms: int, per_sm: int, static_stride: int, step_s: float,
        start_s: float, begin_ps: int, sm_spread_ppm: int, trace: Any = None,
    ) -> int:  # fmt: skip
        """Play one launch; returns its end in picoseconds."""
        plan = _LaunchPlan(
            tiles=launch.tiles, slots=slots, sms=sms, per_sm=per_sm, static_stride=static_stride, group=launch.group,
            direction=launch.direction, sm_spread_ppm=sm_spread_ppm,
            step_ps=round(step_s * PS), start_ps=round(start_s * PS),
        )  # fmt: skip
        plan.n_pro = _fill(plan.pro, launch.prologue)
        plan.n_loop = _fill(plan.loop, launch.loop)
        plan.n_epi = _fill(plan.epi, launch.epilogue)
        plan.first, plan.count = _pointer(launch.first), _pointer(launch.count)
        end = library().iosim_replay(
            ct.addressof(self.state), ct.addressof(self.config), ct.addressof(plan), begin_ps,
            ct.addressof(trace) if trace is not None else None, None, None,
        )
        if end == -1:
            raise MemoryError("the replay ran out of memory")
        return int(end)


def _fill(target: Any, templates: tuple[Template, ...]) -> int:
    if len(templates) > MAX_TEMPLATES:
        raise InputError(f"a launch has {len(templates)} accesses in one place; the replay takes {MAX_TEMPLATES}")
    for slot, t in zip(target, templates, strict=False):
        slot.mode, slot.coef, slot.span, slot.rows, slot.row_stride = t.mode, t.coef, t.span, t.rows, t.row_stride
        slot.base = _pointer(t.base)
    return len(templates)
