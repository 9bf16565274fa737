"""Why a launch reads from HBM what its CTAs share: one of a few regimes, found once, for whoever tells it.

The regime follows from what was predicted and from the launch's order. A trace adds where CTAs stood, but changes no
regime.
"""

from __future__ import annotations

import numpy as np

from iosim.base.errors import TooLargeError
from iosim.base.records import dataclass
from iosim.base.words import Level
from iosim.kernel.launch import Launch
from iosim.kernel.schedule import Order
from iosim.prediction.result import Prediction
from iosim.readers.replay.l2 import model
from iosim.readers.replay.lowering import LoweredLaunch, lower
from iosim.readers.replay.tracing import Int64, shared_loop

NEARLY = 1.15
"""HBM bytes within this factor of those in step are said to be those."""
ONCE = 1.2
"""Bytes within this factor of a tensor's own are said to be read once."""
MISSING_SHARE = 0.5
"""Share of the shared tensors' loads that miss from which on a kernel is said to thrash."""


@dataclass(frozen=True)
class Reuse:
    """What a launch reads of the tensors that its CTAs loop over, in bytes, and the regime that follows.
    `one_head_bytes` and `all_bytes` are the tensors' of one head and of all, `in_progress_bytes` those of the heads
    that CTAs in step work on at once; `in_step_bytes` what HBM would be read for if the CTAs of a wave walked in step
    and nothing outlived its wave, None where that takes too much memory to find."""

    tensors: tuple[str, ...]
    slots: int
    waves: float
    capacity_bytes: int
    one_head_bytes: int
    all_bytes: int
    heads_at_once: int
    in_step_bytes: int | None
    loaded_bytes: int
    hbm_read_bytes: int

    @property
    def in_progress_bytes(self) -> int:
        """Bytes of all that is shared, of the heads at once."""
        return self.heads_at_once * self.one_head_bytes

    @property
    def outgrows(self) -> bool:
        """True where they do not fit in what the L2 keeps of data shared by all SMs, were CTAs to keep step."""
        return self.in_progress_bytes > self.capacity_bytes

    @property
    def regime(self) -> str:
        """One of: streamed, read once, fits, thrashing, wave-bound, drift."""
        read = self.hbm_read_bytes
        if not self.tensors:
            return "streamed"
        if self.loaded_bytes <= ONCE * self.all_bytes:
            return "read once"
        if read <= ONCE * self.all_bytes:
            return "fits"
        if read > MISSING_SHARE * self.loaded_bytes:
            return "thrashing"
        if self.outgrows and self.in_step_bytes is not None and read <= NEARLY * self.in_step_bytes:
            return "wave-bound"
        return "drift"


def reuse(p: Prediction, launch: Launch) -> Reuse:
    number = p.chain.launches.index(launch)
    slots = p.call.residencies[number].slots
    names: tuple[str, ...] = ()
    one_head = owners = heads = in_step = 0
    try:
        # The same lowering as the replay's, with one CTA's local memory: only the order of work tiles and
        # what their loops walk is asked for.
        lowered = lower(p.chain, 1)
        low = lowered.launches[number]
        names, owner, per_index = shared_loop(launch, low, lowered)
    except TooLargeError:
        low = None
    if low is not None and names:
        used = low.count > 0
        # Indices that the loops of a head's CTAs span, times the bytes of one.
        span = int((low.first + low.count)[used].max() - low.first[used].min()) if used.any() else 0
        one_head, owners = span * per_index, len(set(owner[used].tolist()))
        in_step, heads = (
            _in_step(low, owner, slots) * per_index,
            _heads_at_once(launch, slots, owners),
        )

    def moved(level: Level) -> int:
        return sum(
            int(p.traffic.total(level, "read", launch=launch.name, tensor=name)) for name in names
        )

    return Reuse(
        tensors=names,
        slots=slots,
        waves=launch.work_tiles / slots,
        capacity_bytes=partition_bytes(p),
        one_head_bytes=one_head,
        all_bytes=owners * one_head,
        heads_at_once=heads,
        in_step_bytes=in_step if low is not None else None,
        loaded_bytes=moved("l2"),
        hbm_read_bytes=moved("hbm"),
    )


def _in_step(low: LoweredLaunch, owner: Int64, slots: int) -> int:
    """Indices that the work tiles of every wave walk through together, each head's once a wave."""
    # Tiles in start order, so many a wave. In each wave a head's CTAs walk one span together.
    wave = np.arange(low.tiles, dtype=np.int64) // slots
    order = np.lexsort((owner, wave))
    same = (np.diff(wave[order], prepend=-1) == 0) & (np.diff(owner[order], prepend=-1) == 0)
    begins = np.flatnonzero(~same)
    first = np.where(low.count > 0, low.first, np.iinfo(np.int32).max).astype(np.int64)[order]
    end = np.where(low.count > 0, low.first + low.count, 0).astype(np.int64)[order]
    span = np.maximum.reduceat(end, begins) - np.minimum.reduceat(first, begins)
    return int(np.maximum(span, 0).sum())


def _heads_at_once(launch: Launch, slots: int, heads: int) -> int:
    """Heads that the CTAs of a launch work on at once, were they to keep step."""
    # Heads fastest: as many as there are slots. Else slots over tiles of a head, rounded up.
    if launch.schedule.order is Order.HEAD:
        return min(heads, slots, launch.schedule.section_heads or heads)
    return min(heads, max(1, -(-slots * heads // max(1, launch.work_tiles))))


def partition_bytes(p: Prediction) -> int:
    """Bytes of data shared by all SMs that the last level of caches keeps: each partition of an L2 has a copy of its
    own."""
    l2 = model(p.profile)
    if l2.side is not None:
        return l2.side.sets * l2.side.ways * l2.line_bytes
    return l2.sets * l2.ways * l2.line_bytes
