"""A replay as data, for an engine that Python does not drive: engine.wasm in a browser.

The launches of a chain, which are of no GPU, are integer arrays; what a GPU makes of them is a few numbers. Both are
what `replay` hands to the engine, so that what plays them finds the same, bit for bit. Nothing here plays anything.
"""

from __future__ import annotations

import ctypes as ct
import zlib
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from iosim.base.errors import InputError
from iosim.base.records import fields
from iosim.readers.replay.engine import in_ps, l2_config, launch_plan
from iosim.readers.replay.l2 import followed_sets, sampler
from iosim.readers.replay.library import HEADER, Layout
from iosim.readers.replay.lowering import Lowered, LoweredLaunch, lower
from iosim.readers.replay.replay import (
    FOREIGN_OBJECT_BYTES,
    Inputs,
    asked_of,
    ctas_of,
    refuse_small_l2,
)
from iosim.readers.replay.templates import Template

WASM32 = Layout(HEADER.read_text(encoding="utf-8"), pointer=ct.c_uint32)
"""The engine's structures where a pointer has four bytes."""
PLACES = ("prologue", "loop", "epilogue")


class Arrays:
    """Integer arrays side by side, as differences from number to number, those that differ alike once."""

    def __init__(self) -> None:
        self.streams: list[bytes] = []
        """The four bytes of all differences, plane by plane."""
        self._known: dict[bytes, int] = {}
        self.listed: list[tuple[int, int, int]] = []
        """The stream of each array, its first number and how many it has."""

    def add(self, values: npt.NDArray[Any] | None) -> int | None:
        if values is None:
            return None
        numbers = values.astype(np.int32)
        # Differences of work tiles' numbers repeat, so do their bytes plane by plane: deflate finds both.
        step = np.diff(numbers).astype("<i4")
        planes = step.view(np.uint8).reshape(-1, 4).T.tobytes()
        # Arrays that differ only in their first number share a stream (the objects of two tensors).
        stream = self._known.setdefault(planes, len(self.streams))
        if stream == len(self.streams):
            self.streams.append(planes)
        self.listed.append((stream, int(numbers[0]) if numbers.size else 0, int(numbers.size)))
        return len(self.listed) - 1


def squeezed(data: bytes) -> bytes:
    """In raw deflate, which browsers undo by themselves."""
    deflate = zlib.compressobj(9, wbits=-15)
    return deflate.compress(data) + deflate.flush()


def packed_chain(lowered: Lowered) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """The launches of a chain, with the numbers of their arrays, and the arrays' streams."""
    arrays = Arrays()
    chain = {
        "tensors": lowered.tensors,
        "own": lowered.own_share,
        "size": arrays.add(lowered.size),
        "owner": arrays.add(lowered.owner),
        "launches": [_launch(low, arrays) for low in lowered.launches],
    }
    return chain | {"arrays": arrays.listed}, tuple(map(squeezed, arrays.streams))


def _launch(low: LoweredLaunch, arrays: Arrays) -> dict[str, Any]:
    numbered = {
        name: arrays.add(getattr(low, name))
        for name in ("first", "count", "down", "head", "block", "indices")
    }
    owned = [(objects.start, len(objects), tensor) for objects, tensor in low.owned]
    templates = {place: [_template(t, arrays) for t in getattr(low, place)] for place in PLACES}
    return {"name": low.name, "group": low.group, "owned": owned, **numbered, **templates}


def _template(t: Template, arrays: Arrays) -> dict[str, Any]:
    names = (field.name for field in fields(t))
    values = {name: getattr(t, name) for name in names}
    return {
        name: arrays.add(v) if isinstance(v, np.ndarray) else v
        for name, v in values.items()
        if v is not None
    }


def packed_gpu(inputs: Inputs, lowered: Lowered) -> dict[str, Any]:
    """What a GPU makes of a chain's launches, from a cold L2: whole numbers, by the names of the engine's structures.
    Raises InputError: the L2 does not hold one tile; there are several L2s, which the page's engine does not play."""
    l2 = inputs.l2
    if l2.apart or l2.side:
        raise InputError(
            f"{inputs.gpu} has L2s of their own, and a page plays but one; accepted: iosim predict"
        )
    refuse_small_l2(l2, lowered, inputs.gpu)
    foreign = l2.foreign_dirty_bytes // FOREIGN_OBJECT_BYTES
    size = np.concatenate([lowered.size, np.full(foreign, FOREIGN_OBJECT_BYTES, dtype=np.int32)])
    sets, stride, placements = followed_sets(l2, size)
    launches = []
    for launch, of_launch, low in zip(
        inputs.launches, inputs.of_launch, lowered.launches, strict=True
    ):
        ctas = ctas_of(inputs, inputs.chain, launch, of_launch, low, lowered.size)
        plan, (*_, shares, slow, side) = launch_plan(low, ctas, l2)
        launches.append(
            {
                "ready_ps": in_ps(of_launch.pace.launch_s),
                "plan": _numbers(plan),
                "shares": shares.tolist(),
                "slow": slow.tolist(),
                "sides": [len([*alike]) for _, alike in groupby(side.tolist())],
                "asked": asked_of(launch, inputs.counted, of_launch.added),
                "stored": int(inputs.counted.total("l2", "write", launch=launch.name)),
            }
        )
    return {
        "config": _numbers(l2_config(l2, placements * sets, stride / placements)),
        "sampler": _numbers(sampler(l2, sets, stride, placements)),
        "foreign": foreign,
        "foreign_bytes": FOREIGN_OBJECT_BYTES,
        "code": l2.launch_fetch_bytes,
        "launches": launches,
    }


def _numbers(structure: Any) -> dict[str, int]:
    """The whole numbers of a structure that are not 0. A pointer is read as a number, too, but says nothing outside the
    process that it is of: the page has arrays of its own."""
    values = {
        name: getattr(structure, name)
        for name, kind, *_ in structure._fields_
        if kind is not ct.c_void_p
    }
    return {name: int(value) for name, value in values.items() if isinstance(value, int) and value}


def packed(inputs: Inputs) -> tuple[dict[str, Any], tuple[bytes, ...], dict[str, Any]]:
    """The launches of a call's chain, their streams, and what its GPU makes of them. Raises InputError: they do not fit
    in memory."""
    lowered = lower(
        inputs.chain, spill_slots=max(launch_inputs.slots for launch_inputs in inputs.of_launch)
    )
    return *packed_chain(lowered), packed_gpu(inputs, lowered)


def layouts() -> Mapping[str, Mapping[str, Any]]:
    """Bytes of each structure of engine.wasm, and its fields' places: (offset, bytes of an element, elements)."""
    return {
        name: {
            "bytes": ct.sizeof(structure),
            "fields": {
                field: _place(structure, field, kind) for field, kind, *_ in structure._fields_
            },
        }
        for name, structure in WASM32.structures.items()
    }


def _place(structure: Any, field: str, kind: Any) -> tuple[int, int, int]:
    length = getattr(kind, "_length_", 1)
    return getattr(structure, field).offset, ct.sizeof(kind) // length, length


__all__ = ["layouts", "packed"]
