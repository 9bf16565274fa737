"""Spilled registers as a tensor of an evaluated launch: the frames of the threads that are resident, which every turn
of a loop stores and loads again, and which so take room in the L2 beside what the kernel's arguments are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iosim.base.records import replace
from iosim.code.local import LocalTraffic
from iosim.code.opcodes import WARP
from iosim.kernel.launch import SPILL, Chain, Mode, Role, Tensor, tensors
from iosim.kernel.machine import SECTOR_BYTES
from iosim.kernel.touched import TOUCHED_MODES, Touched

MOST_ENTRIES = 6_000_000
"""Moves of frames that a replay plays; of more turns, as many as these are spread over a CTA's."""
Int32 = npt.NDArray[np.int32]


def with_frames(chain: Chain, local: LocalTraffic, frame_bytes: int, turns: float, warps: int, slots: int) -> Chain:
    """A chain of one launch with its local memory.

    Args:
        chain: the launch as its arguments have it.
        local: what a warp loads and stores of its frame in a work tile.
        frame_bytes: of a thread.
        turns: of its loop with most of it.
        warps: of a CTA.
        slots: CTAs that are resident on the GPU; the next one in its place has the same frame.
    """
    launch = chain.launches[0]
    touched, frame = launch.touched, round(min(local.touched, frame_bytes) * WARP * warps)
    if touched is None or not frame:
        return chain
    each = warps * SECTOR_BYTES / max(1.0, turns)
    stored, loaded = each * local.stored, each * (local.loaded - local.hits_l1)
    slots = min(slots, int(touched.first.size))
    most = max(1, MOST_ENTRIES // max(1, 2 * int(touched.first.size)))
    times = min(max(1, round(turns)), most)
    moves = _moves(times, min(1.0, stored / frame), min(1.0, loaded / frame))
    moved = tuple(
        (SPILL, str(mode), round(bytes_each * turns * touched.first.size))
        for mode, bytes_each in ((Mode.STORE, stored), (Mode.LOAD, loaded)) if bytes_each
    )  # fmt: skip
    made = _inserted(touched, moves, slots, frame)
    made = replace(made, moved=(*touched.moved, *moved))
    tensor = Tensor(SPILL, 1, 1, slots, frame, 1, Role.OUTPUT)  # it lasts: the driver keeps it
    return replace(
        chain,
        tensors=tensors((*chain.tensors.values(), tensor)),
        launches=(replace(launch, touched=made),),
    )


def _moves(times: int, stores: float, loads: float) -> Int32:
    """Modes of the moves of a frame in so many turns, of which these parts store and load it."""
    found = []
    for turn in range(times):
        if int((turn + 1) * stores) > int(turn * stores):
            found.append(TOUCHED_MODES.index(str(Mode.STORE)))
        if int((turn + 1) * loads) > int(turn * loads):
            found.append(TOUCHED_MODES.index(str(Mode.LOAD)))
    return np.array(found, dtype=np.int32)


def _inserted(touched: Touched, moves: Int32, slots: int, frame: int) -> Touched:
    """Moves of all CTAs with those of their frames evenly between them."""
    old, ctas = touched.total, int(touched.first.size)
    total = old + slots
    mode, number = np.divmod(touched.entries, old)
    entries = (mode * total + number).astype(np.int32)
    parts: list[Int32] = []
    counts = np.empty(ctas, dtype=np.int32)
    for cta in range(ctas):
        begin, count = int(touched.first[cta]), int(touched.count[cta])
        own = entries[begin : begin + count]
        frames = (moves * total + old + cta % slots).astype(np.int32)
        places = (np.arange(1, moves.size + 1) * count // (moves.size + 1)).astype(np.int64)
        parts.append(np.insert(own, places, frames).astype(np.int32))
        counts[cta] = count + moves.size
    first = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)[:-1])).astype(np.int32)
    objects = dict(touched.objects) | {SPILL: np.full(slots, frame, dtype=np.int32)}
    return Touched(objects, first, counts, np.concatenate(parts), touched.moved)
