"""Which loads of a CTA its L1 serves: lines of 128 bytes in sectors of 32, least recently used first out.

L1 is filled sector by sector, written through, and shared by the CTAs of an SM, of which each is given an equal part.
A line is there as long as fewer lines have come since its last use than the part holds. Of trips that repeat, the first
are played, and the last stand for those between: a line's age is counted in lines that came, so that what is skipped
ages it, too. NB: CTAs of one SM that load the same lines serve one another here only where one CTA does so itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from iosim.base.records import dataclass, field
from iosim.code.addresses import (
    GLOBAL,
    Evaluated,
    instruction_of,
    mode_of,
    space_of,
    through_l1,
    touched_sectors,
    warps,
)
from iosim.code.ptx_trace import Access, Fold, Node, Trace
from iosim.code.ptx_values import Array
from iosim.kernel.launch import Mode

LINE_BYTES = 128
SAMPLED_CTAS = 4
LONGEST_TURN = 32
"""Trips after which addresses lie alike inside a line again, at most that are played."""


@dataclass
class Served:
    """Of one instruction: sectors that its requests ask for, and those that had to come from the L2."""

    asked: float = 0.0
    missed: float = 0.0


@dataclass
class _Cache:
    lines: float
    clock: float = 0.0
    last: dict[int, float] = field(default_factory=dict)
    there: dict[int, int] = field(default_factory=dict)

    def load(self, sectors: Array) -> int:
        """Sectors that miss; they are there afterwards."""
        missed = 0
        for sector in sectors.tolist():
            line, bit = sector >> 2, 1 << (sector & 3)
            held = self._held(line)
            if not held & bit:
                missed += 1
                if not held:
                    self.clock += 1
                self.there[line] = held | bit
            self.last[line] = self.clock
        return missed

    def store(self, sectors: Array) -> None:
        """Stores go through; lines that are there stay."""
        for sector in sectors.tolist():
            line = sector >> 2
            if self._held(line):
                self.last[line] = self.clock

    def _held(self, line: int) -> int:
        last = self.last.get(line)
        return 0 if last is None or self.clock - last >= self.lines else self.there[line]


class _Player:
    """One CTA's accesses through its part of L1."""

    def __init__(self, evaluated: Evaluated, trace: Trace, cta: int, lines: float) -> None:
        self._evaluated, self._trace, self._cta = evaluated, trace, cta
        self.cache = _Cache(lines)
        self.served: dict[int, Served] = {}
        self._patterns: dict[tuple[int, int], tuple[Array, int]] = {}

    def play(self, nodes: Sequence[Node], trips: tuple[int, ...] = (), weight: float = 1.0) -> None:
        for node in nodes:
            if isinstance(node, Fold):
                self._fold(node, trips, weight)
            elif isinstance(node, Access):
                self._access(node, trips, weight)

    def _fold(self, fold: Fold, trips: tuple[int, ...], weight: float) -> None:
        count = int(fold.count[self._cta])
        turn = self._turn(fold.body, len(trips))
        if count <= 3 * turn:
            for trip in range(count):
                self.play(fold.body, (*trips, trip), weight)
            return
        for trip in range(turn):
            self.play(fold.body, (*trips, trip), weight)
        for trip in range(count - 2 * turn, count - turn):
            self.play(fold.body, (*trips, trip), 0.0)
        before, stands_for = self.cache.clock, (count - turn) / turn
        for trip in range(count - turn, count):
            self.play(fold.body, (*trips, trip), weight * stands_for)
        self.cache.clock += (self.cache.clock - before) * max(0.0, stands_for - 2)

    def _turn(self, body: Sequence[Node], depth: int) -> int:
        """Trips after which all addresses of a body lie as they did inside a line."""
        turn = 1
        for access in _accesses(body):
            stride = int(access.strides[depth][int(np.searchsorted(access.ctas, self._cta))]) % LINE_BYTES
            turn = math.lcm(turn, LINE_BYTES // math.gcd(stride, LINE_BYTES))
        return min(turn, LONGEST_TURN)

    def _access(self, access: Access, trips: tuple[int, ...], weight: float) -> None:
        one = instruction_of(self._evaluated.entry, access.site)
        at = int(np.searchsorted(access.ctas, self._cta))
        assert access.pattern is not None
        base = int(access.base[at]) + sum(t * int(s[at]) for t, s in zip(trips, access.strides, strict=True))
        sectors, asked = self._sectors(access.pattern, base)
        mode = mode_of(one, access.site % 2)
        if mode is Mode.STORE:
            self.cache.store(sectors)
        elif mode is Mode.LOAD and through_l1(one):
            served = self.served.setdefault(access.site, Served())
            missed = self.cache.load(sectors)
            served.asked += weight * asked
            served.missed += weight * missed

    def _sectors(self, number: int, base: int) -> tuple[Array, int]:
        """The sectors of all warps, each once, and how many their requests ask for."""
        phase = base % 32
        key = (number, phase)
        if key not in self._patterns:
            parts = [touched_sectors(p.offset + phase, p.width) for p in warps(self._trace.patterns[number])]
            self._patterns[key] = np.unique(np.concatenate(parts)), sum(part.size for part in parts)
        sectors, asked = self._patterns[key]
        return sectors + (base >> 5), asked


def _accesses(body: Sequence[Node]) -> Any:
    for node in body:
        if isinstance(node, Fold):
            yield from _accesses(node.body)
        elif isinstance(node, Access):
            yield node


def _way(nodes: Sequence[Node], cta: int) -> Any:
    """What tells one CTA's way from another's, but for where its tensors' parts lie."""
    for node in nodes:
        if isinstance(node, Fold):
            yield node.head, int(node.count[cta])
            yield from _way(node.body, cta)
        elif isinstance(node, Access):
            at = int(np.searchsorted(node.ctas, cta))
            yield node.site, node.pattern, int(node.base[at]) % LINE_BYTES


def _of_cta(evaluated: Evaluated, nodes: Sequence[Node], cta: int) -> list[Node]:
    """What one CTA does of some nodes, as far as it goes to global memory."""
    found: list[Node] = []
    for node in nodes:
        if isinstance(node, Fold):
            body = _of_cta(evaluated, node.body, cta) if node.count[cta] else []
            if body:
                found.append(Fold(node.head, tuple(body), node.count))
        elif isinstance(node, Access) and node.pattern is not None and space_of(evaluated.entry, node) == GLOBAL:
            at = int(np.searchsorted(node.ctas, cta))
            if at < node.ctas.size and node.ctas[at] == cta:
                found.append(node)
    return found


def missed_shares(evaluated: Evaluated, l1_bytes: float) -> dict[int, float]:
    """The part of each load's sectors that its CTA's share of L1, `l1_bytes`, does not serve, by instruction; loads
    that go past L1 are not among them. A few CTAs stand for all."""
    total: dict[int, Served] = {}
    played: dict[tuple[Any, ...], dict[int, Served]] = {}
    for trace, cta, weight in _sampled(evaluated):
        nodes = _of_cta(evaluated, trace.nodes, cta)
        way = tuple(_way(nodes, cta))
        if way not in played:
            player = _Player(evaluated, trace, cta, l1_bytes / LINE_BYTES)
            player.play(nodes)
            played[way] = player.served
        for site, served in played[way].items():
            both = total.setdefault(site, Served())
            both.asked += weight * served.asked
            both.missed += weight * served.missed
    return {site: served.missed / served.asked for site, served in total.items() if served.asked}


def _sampled(evaluated: Evaluated) -> list[tuple[Trace, int, float]]:
    """CTAs that stand for all, spread over the launch, with how many each stands for."""
    whole = evaluated.ctas
    numbers = sorted({round((n + 0.5) * whole / SAMPLED_CTAS - 0.5) for n in range(SAMPLED_CTAS)})
    found = []
    for number in numbers:
        for trace in evaluated.traces:
            if number < trace.ctas:
                found.append((trace, number, whole / len(numbers)))
                break
            number -= trace.ctas
    return found


def l2_sectors(evaluated: Evaluated, missed: dict[int, float]) -> dict[tuple[str, Mode], float]:
    """Sectors between SMs and L2 by tensor and way: loads that L1 does not serve, and all stores."""
    found: dict[tuple[str, Mode], float] = {}
    for site in evaluated.sites:
        if site.space == GLOBAL:
            share = missed.get(site.number, 1.0) if site.mode is Mode.LOAD else 1.0
            key = (site.tensor, site.mode)
            found[key] = found.get(key, 0.0) + share * site.sectors
    return found
