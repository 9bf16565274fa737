"""HBM traffic by the capacity rule: an estimate without replay.

Two questions decide it. For data that CTAs share (the keys and values of a head): do the heads in use at once fit in
the part of L2 that holds distinct shared lines, half of it where the L2 has two partitions? If so each is read once; if
not, every wave of CTAs reads what it uses again. For tensors passed from one launch to the next: does what is moved in
between fit in the L2? The rule knows nothing of drift between CTAs, grid order within a wave, or dirty lines.

From a warm start, as the same call just before left the L2, a third: does what is moved from a tensor's last use in
that call to its first use in this one fit? Then it is read from the L2. Where all of the call fits, and what it writes
may stay dirty, nothing is written back. With two partitions what all SMs read takes its size twice, and anything else
half as much again, as half of it lies on the other side.

The rule is written once, over numbers and over arrays of the same quantity in many problems alike: `estimate` gives it
the numbers of a chain, a sweep the arrays of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from iosim.base.words import WAYS, Way
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.launch import (
    SPILL,
    Access,
    Chain,
    Domain,
    Launch,
    Mode,
    Outer,
    Per,
    Role,
    Rows,
    Tensor,
)
from iosim.kernel.residency import Residency
from iosim.kernel.schedule import Order
from iosim.kernel.traffic import Traffic, TrafficRow

Number = Any


Reach = Callable[[Domain], tuple[Number, Number]]
"""What the mask leaves of a domain: (key rows of a head in key blocks that some query block visits, visited pairs of
blocks of a head)."""


def estimate(
    chain: Chain,
    profile: HardwareProfile,
    counted: Traffic,
    residencies: Sequence[Residency],
    reach: Reach,
    warm: bool = False,
) -> Traffic:
    """HBM rows by launch and tensor under the capacity rule, with all dirty lines written back that do not stay.
    `counted`: what the chain moves between SMs and L2; no tensor moves more at HBM. `residencies`: of each launch, in
    order. `warm`: from an L2 as the same call just before left it; else from an empty one."""
    rule = CapacityRule(
        chain, profile, counted, [resident.slots for resident in residencies], reach, warm=warm
    )
    rows = (
        TrafficRow(row.launch, row.level, row.tensor, row.direction, int(row.bytes))
        for row in rule.traffic()
    )
    return Traffic(tuple(rows))


def _is_looped(access: Access) -> bool:
    """True where it loads rows that CTAs share at each step of their loops."""
    return access.per is Per.PAIR and access.mode is Mode.LOAD and access.rows is not Rows.PAIR


class CapacityRule:
    """The rule over one chain.

    Args:
        counted, slots: as `estimate` has them; the CTAs of each launch that run at once.
        reach: what the mask leaves of a launch's domain.
        value: the number or the array that a size of the chain stands for.
        warm: as `estimate` has it.
    """

    def __init__(
        self,
        chain: Chain,
        profile: HardwareProfile,
        counted: Traffic,
        slots: Sequence[Number],
        reach: Reach,
        value: Callable[[Number], Number] = lambda size: size,
        warm: bool = False,
    ) -> None:
        self.chain, self.counted, self.slots = chain, counted, slots
        self.value = value
        self._reach_of, self._reached = reach, dict[int, tuple[Number, Number]]()
        # The last cache before memory: the L2, or the cache at the memory's side behind it.
        last = profile.levels[-1]
        self.whole = last.bytes
        self.warm, self.partitions = warm, last.copies
        self.shared = last.shared_bytes  # each keeps a copy of what all SMs read
        self.held = int(self.whole * profile.need("l2_effective_capacity_fraction")) if warm else 0
        keeps_dirty = warm and last.name == "L2"
        self.dirty = int(self.whole * profile.need("l2_dirty_fraction")) if keeps_dirty else 0

    def _reach(self, launch: Launch) -> tuple[Number, Number]:
        if id(launch) not in self._reached:
            rows, visits = self._reach_of(launch.domain)
            self._reached[id(launch)] = self.value(rows), self.value(visits)
        return self._reached[id(launch)]

    def _bytes(self, tensor: Tensor) -> Number:
        return self.value(tensor.bytes)

    def _unique(self, launch: Launch, tensor: Tensor, access: Access) -> Number:
        if access.rows is Rows.KEY and access.per is Per.PAIR:
            rows = self.value(tensor.rows)
            if tensor.is_list:
                return self._bytes(tensor)
            lists = (
                self.value(launch.domain.rows) // self.value(launch.domain.pack)
                if launch.gathers(tensor)
                else 1
            )
            # Rows in key blocks that the mask leaves, at most all; less what rows share.
            reached = self._bytes(tensor) // rows * np.minimum(self._reach(launch)[0] * lists, rows)
            return reached - self.value(tensor.saved_bytes)
        return self._bytes(tensor)

    def _reread_factor(self, launch: Launch, slots: Number) -> Number:
        """How many times the data shared along the loop is fetched from HBM: 1 where it fits."""
        looped = [
            a for a in launch.accesses if _is_looped(a) and not self.chain.tensors[a.tensor].is_list
        ]
        if launch.outer not in (Outer.QUERY, Outer.KEY, Outer.SPLIT) or not looped:
            return 1.0
        heads = self.value(launch.domain.grid_heads)
        # Heads in use at once: slots over tiles of a head; at least one, and where heads run fastest as
        # many as there are slots (or heads in a section).
        tiles_per_head = np.maximum(1, self.value(launch.work_tiles) // heads)
        in_use_heads = np.minimum(heads, np.maximum(1.0, slots / tiles_per_head))
        if launch.schedule.order is Order.HEAD:
            in_use_heads = 1.0 * np.minimum(
                np.minimum(heads, slots), self._in_section(launch, heads)
            )
        streamed = {a.tensor: self._unique(launch, self.chain.tensors[a.tensor], a) for a in looped}
        bytes_per_head = sum(streamed.values()) / heads
        # If the heads in use do not fit, each wave of CTAs fetches its keys anew. A mask shortens the
        # walk by the share of key blocks that a query block visits.
        waves_per_head = tiles_per_head * in_use_heads / slots
        if launch.outer is Outer.QUERY:
            key_blocks = np.maximum(1, self.value(launch.domain.key_blocks_total))
            visits = self._reach(launch)[1] / self.value(launch.domain.query_blocks)
            waves_per_head = waves_per_head * (visits / key_blocks)
        return np.where(
            in_use_heads * bytes_per_head <= self.shared, 1.0, np.maximum(1.0, waves_per_head)
        )

    def _in_section(self, launch: Launch, heads: Number) -> Number:
        """Heads that a launch which runs them fastest goes through together: a section's, or all."""
        section = self.value(launch.schedule.section_heads)
        return np.where(section > 0, section, heads) if np.ndim(section) else section or heads

    def _shared_passes(self, launch: Launch, tensor: Tensor, slots: Number) -> Number:
        """How many times an N x N tensor that several heads share (a bias, a mask) is fetched: once where it stays in
        L2 beside what a head moves meanwhile, or where heads run fastest; else once for every round of heads in use."""
        order = launch.schedule.order
        heads, copies = (
            self.value(launch.domain.grid_heads),
            self.value(tensor.batch * tensor.heads),
        )
        # A bias of one head serves `sharing` heads. It is fetched once where it stays beside what one
        # head moves, else once for each round of heads that run together.
        sharing = heads / copies
        copy_bytes = (
            self._bytes(tensor) if order is not Order.QUERY else self._bytes(tensor) // copies
        )
        others = {a.tensor for a in launch.accesses} - {tensor.name}
        meanwhile = sum(self._bytes(self.chain.tensors[name]) for name in sorted(others)) / heads
        if order is Order.HEAD:
            rounds = sharing / np.minimum(slots, self._in_section(launch, heads))
        else:
            rounds = sharing / np.maximum(1.0, slots * heads / self.value(launch.work_tiles))
        fits = (sharing <= 1) | (copy_bytes + meanwhile <= self.shared)
        return np.where(fits, 1.0, np.maximum(1.0, rounds))

    def _between(self, tensor: str, launch: int) -> Number | None:
        """Distinct bytes moved since the launch before `launch` that touched `tensor`; None if none did."""
        earlier = [n for n in self.chain.users(tensor) if n < launch]
        if not earlier:
            return None
        # Reuse distance over launches: all tensors touched in between, each counted once.
        touched: set[str] = set()
        for n in range(earlier[-1], launch + 1):
            touched |= {a.tensor for a in self.chain.launches[n].accesses}
        return sum(self._bytes(self.chain.tensors[name]) for name in touched)

    def _stays(self, tensor: str, launch: int) -> Any:
        """True where a temporary tensor's last reader gets it from L2: as it is dead afterwards, it is not written
        back."""
        later = [n for n in self.chain.users(tensor) if n > launch]
        between = self._between(tensor, later[0]) if later else None
        return False if between is None else between <= self.whole

    def _taken(self, tensor: str) -> Number:
        """L2 bytes that a tensor takes, the copies on the other side counted."""
        accesses = (a for launch in self.chain.launches for a in launch.accesses)
        looped = any(a.tensor == tensor and _is_looped(a) for a in accesses)
        times = self.partitions if looped else (self.partitions + 1) / 2
        return self._bytes(self.chain.tensors[tensor]) * times

    def _left(self, tensor: str, launch: int) -> Any:
        if not self.warm:
            return False
        last = self.chain.users(tensor)[-1]
        # From the last use in the call before to the first in this one: the end of one, the begin of the
        # other.
        since = [*range(last, len(self.chain.launches)), *range(launch + 1)]
        touched = {a.tensor for n in since for a in self.chain.launches[n].accesses}
        return sum(self._taken(name) for name in sorted(touched)) <= self.held

    def _rewritten(self) -> Any:
        if not self.warm:
            return False
        accesses = [access for launch in self.chain.launches for access in launch.accesses]
        written = sorted({a.tensor for a in accesses if a.mode is not Mode.LOAD})
        dirty = sum(self._bytes(self.chain.tensors[name]) for name in written)
        taken = sum(self._taken(name) for name in sorted({a.tensor for a in accesses}))
        return (dirty <= self.dirty) & (taken <= self.held)

    def _loaded(self, n: int, launch: Launch, access: Access, factor: Number) -> Number:
        tensor, slots = self.chain.tensors[access.tensor], self.slots[n]
        unique, between = self._unique(launch, tensor, access), self._between(access.tensor, n)
        times: Number = 1.0
        if access.rows is Rows.PAIR:
            # How often the tensor is fetched: an N x N tensor by its rounds, looped keys and values by the
            # re-read factor, all else once.
            times = self._shared_passes(launch, tensor, slots)
        elif access.per is Per.PAIR and launch.outer is not Outer.FLAT and not tensor.is_list:
            times = factor
        fetched = np.rint(unique * times).astype(np.int64)
        hits = self._left(access.tensor, n) if between is None else between <= self.whole
        return np.where(hits & (times == 1.0), 0, fetched)

    def _stored(self, n: int, tensor: Tensor) -> Number:
        stays = False if tensor.role is not Role.TEMP else self._stays(tensor.name, n)
        return np.where(stays | self._rewritten(), 0, self._bytes(tensor))

    def traffic(self) -> Traffic:
        rows: list[TrafficRow] = []
        for n, launch in enumerate(self.chain.launches):
            factor = self._reread_factor(launch, self.slots[n])
            bytes_of: dict[tuple[str, Way], Number] = {}
            for access in launch.accesses:
                if access.mode is Mode.LOAD:
                    value = self._loaded(n, launch, access, factor)
                else:
                    value = self._stored(n, self.chain.tensors[access.tensor])
                key = (access.tensor, access.mode.direction)
                bytes_of[key] = np.maximum(bytes_of.get(key, 0), value)
            # What an SM does not ask for, memory does not give: no more than moves between SMs and L2.
            limit = {
                (r.tensor, r.direction): self.value(r.bytes)
                for r in self.counted
                if r.launch == launch.name
            }
            for direction in WAYS:
                for (name, way), value in bytes_of.items():
                    if way == direction:
                        least = np.minimum(value, limit[name, way])
                        rows.append(TrafficRow(launch.name, "hbm", name, way, least))
            rows += self._spilled(launch, self.slots[n])
        return Traffic(tuple(rows))

    def _spilled(self, launch: Launch, slots: Number) -> list[TrafficRow]:
        spill = [o for o in launch.overheads if o.name == SPILL and o.mode is Mode.STORE]
        if not spill:
            return []
        # Frames of the resident CTAs that fit stay in the L2: stores go over and over the same lines.
        in_use = slots * sum(o.per_tile + o.per_pair for o in spill)
        spilled = self.value(self.counted.total("l2", "write", launch=launch.name, tensor=SPILL))
        return [
            TrafficRow(
                launch.name, "hbm", SPILL, "write", np.where(in_use < self.whole, 0, spilled)
            )
        ]
