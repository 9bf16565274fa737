"""Which loads of a CTA its L1 serves: lines of 128 bytes in sectors of 32, least recently used first out.

L1 is filled sector by sector, written through, and shared by the CTAs of an SM, which are played side by side, and then
those that follow them. Whether a line is still there hangs on how many lines have come since its last use. Of many trips that
repeat, the first are played, and the last stand for those between: a line's age is counted in lines that came, so that
what is skipped ages it, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from iosim.base.arrays import tallied
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
WAYS, EFFECTIVE_SHARE = 2, 0.58
"""Lines of a set, and the part of L1 that holds lines of global memory: fitted on every second row of the kernel that
reads rows twice (h100_cache_edges.csv, twice-1024-0, twice-2048-0, ...: without stores beside them)."""
MOST_PLAYED = 8
"""CTAs of an SM that are played side by side; of more, so many stand for all in their part of L1."""
MOST_SECTORS = 400_000
"""Sectors that are looked up, about, before fewer SMs and rounds of CTAs have to do."""
ROUNDS_PLAYED = 3
"""CTAs that follow one another in a place: the first round, one that stands for the rest, and one behind it."""
MOST_LANES = 40_000
"""Lanes' accesses of a loop up to which all of its trips are played: what is read twice is as old at its end as at its
beginning only where all between has come."""
MOST_LIKELY = 0.5
LONGEST_TURN = 32
"""Trips after which addresses lie alike inside a line again, at most that are played."""


@dataclass
class Served:
    """Sectors that an instruction's requests ask for, and those of them that had to come from the L2."""

    requested: float = 0.0
    missed: float = 0.0


@dataclass
class _Cache:
    """Lines by when they were last used, on a clock that counts the lines that came since. How many came tells with which
    chance a line is still there: they fall into sets of `WAYS` at random. Chances add up to sectors that miss."""

    lines: float
    clock: float = 0.0
    last: dict[int, float] = field(default_factory=dict)
    present: dict[int, int] = field(default_factory=dict)

    def load(self, sectors: Array) -> float:
        """Sectors that miss; they are there afterwards."""
        missed = 0.0
        for line, bits in _bits_by_line(sectors):
            chance = self._chance(line)
            wanted, known = bits.bit_count(), (bits & self.present.get(line, 0)).bit_count()
            missed += wanted - chance * known
            self._use(line, bits, chance)
        return missed

    def store(self, sectors: Array) -> None:
        """Stores go through, and leave their lines behind: rows that are stored beside their second reading drive out
        what is still to be read (h100_cache_edges.csv, twice)."""
        for line, bits in _bits_by_line(sectors):
            self._use(line, bits, self._chance(line))

    def _use(self, line: int, bits: int, chance: float) -> None:
        """A line comes as far as it is not there, and is the latest used. Of one that is more likely gone, no sectors
        are left but those that come now."""
        self.clock += 1 - chance
        self.present[line] = bits | (self.present.get(line, 0) if chance > MOST_LIKELY else 0)
        self.last[line] = self.clock

    def _chance(self, line: int) -> float:
        last = self.last.get(line)
        if last is None:
            return 0.0
        # Lines that came since fall into the sets at random (Poisson); it stays where fewer than WAYS did.
        mean = WAYS * (self.clock - last) / self.lines
        return math.exp(-mean) * sum(mean**k / math.factorial(k) for k in range(WAYS))


def _bits_by_line(sectors: Array) -> list[tuple[int, int]]:
    """Each line of some sectors with these as bits."""
    # A line has four sectors: which of them are asked for is a number of four bits.
    lines, where = np.unique(sectors >> 2, return_inverse=True)
    bits = tallied(where.reshape(-1), weights=1 << (sectors & 3)).astype(np.int64)
    return list(zip(lines.tolist(), bits.tolist(), strict=True))


class _Player:
    """One CTA's accesses through an L1 that it shares with others: `steps` makes one at a time."""

    def __init__(self, evaluated: Evaluated, trace: Trace, cta: int, cache: _Cache) -> None:
        self._evaluated, self._trace, self._cta, self._cache = evaluated, trace, cta, cache
        self.served: dict[int, Served] = {}
        self.sectors = 0
        self._brought = 0.0
        self._patterns: dict[tuple[int, int], tuple[Array, int]] = {}

    def steps(self) -> Iterator[None]:
        """All accesses of the CTA, one at a time."""
        return self._play(_of_cta(self._evaluated, self._trace.nodes, self._cta), (), 1.0)

    def _play(self, nodes: Sequence[Node], trips: tuple[int, ...], weight: float) -> Iterator[None]:
        for node in nodes:
            if isinstance(node, Fold):
                yield from self._fold(node, trips, weight)
            elif isinstance(node, Access):
                self._access(node, trips, weight)
                yield

    def _fold(self, fold: Fold, trips: tuple[int, ...], weight: float) -> Iterator[None]:
        count = int(fold.count[self._cta])
        turn = self._turn(fold.body, len(trips))
        # Few trips are played one by one. Of many, the first `turn` stand for themselves, some before the
        # end warm the cache up to there, and the last stand for all between; what they bring ages the rest.
        if count <= 3 * turn or count * self._lanes_of(fold.body) <= MOST_LANES:
            for trip in range(count):
                yield from self._play(fold.body, (*trips, trip), weight)
            return
        for trip in range(turn):
            yield from self._play(fold.body, (*trips, trip), weight)
        for trip in range(count - 2 * turn, count - turn):
            yield from self._play(fold.body, (*trips, trip), 0.0)
        before, stands_for = self._brought, (count - turn) / turn
        for trip in range(count - turn, count):
            yield from self._play(fold.body, (*trips, trip), weight * stands_for)
        self._cache.clock += (self._brought - before) * max(0.0, stands_for - 2)

    def _lanes_of(self, body: Sequence[Node]) -> int:
        """Lanes that a trip has at work in its accesses, about as many as it touches sectors at most."""
        patterns = self._trace.patterns
        return sum(patterns[a.pattern].lanes for a in _accesses(body) if a.pattern is not None)

    def _turn(self, body: Sequence[Node], depth: int) -> int:
        """Trips after which all addresses of a body lie as they did inside a line."""
        turn = 1
        for access in _accesses(body):
            stride = (
                int(access.strides[depth][int(np.searchsorted(access.ctas, self._cta))])
                % LINE_BYTES
            )
            turn = math.lcm(turn, LINE_BYTES // math.gcd(stride, LINE_BYTES))
        return min(turn, LONGEST_TURN)

    def _access(self, access: Access, trips: tuple[int, ...], weight: float) -> None:
        instruction = instruction_of(self._evaluated.entry, access.site)
        at = int(np.searchsorted(access.ctas, self._cta))
        assert access.pattern is not None
        base = int(access.base[at]) + sum(
            t * int(s[at]) for t, s in zip(trips, access.strides, strict=True)
        )
        sectors, requested = self._sectors_at(access.pattern, base)
        self.sectors += sectors.size
        mode, clock = mode_of(instruction, access.site % 2), self._cache.clock
        if mode is Mode.STORE:
            self._cache.store(sectors)
        elif mode is Mode.LOAD and through_l1(instruction):
            served = self.served.setdefault(access.site, Served())
            missed = self._cache.load(sectors)
            served.requested += weight * requested
            served.missed += weight * missed
        self._brought += self._cache.clock - clock

    def _sectors_at(self, number: int, base: int) -> tuple[Array, int]:
        """The sectors of all warps, each once, and how many their requests ask for."""
        phase = base % 32
        key = (number, phase)
        if key not in self._patterns:
            parts = [
                touched_sectors(p.offset + phase, p.width)
                for p in warps(self._trace.patterns[number])
            ]
            self._patterns[key] = np.unique(np.concatenate(parts)), sum(part.size for part in parts)
        sectors, requested = self._patterns[key]
        return sectors + (base >> 5), requested


def _accesses(body: Sequence[Node]) -> Any:
    for node in body:
        if isinstance(node, Fold):
            yield from _accesses(node.body)
        elif isinstance(node, Access):
            yield node


def _of_cta(evaluated: Evaluated, nodes: Sequence[Node], cta: int) -> list[Node]:
    """What one CTA does of some nodes, as far as it goes to global memory."""
    kept_nodes: list[Node] = []
    for node in nodes:
        if isinstance(node, Fold):
            body = _of_cta(evaluated, node.body, cta) if node.count[cta] else []
            if body:
                kept_nodes.append(Fold(node.head, tuple(body), node.count))
        elif (
            isinstance(node, Access)
            and node.pattern is not None
            and space_of(evaluated.entry, node) == GLOBAL
        ):
            at = int(np.searchsorted(node.ctas, cta))
            if at < node.ctas.size and node.ctas[at] == cta:
                kept_nodes.append(node)
    return kept_nodes


def missed_shares(evaluated: Evaluated, l1_bytes: float, beside: int, sms: int) -> dict[int, float]:
    """The part of each load's sectors that an SM's L1 does not serve, by instruction; loads that go past L1 are not
    among them. An SM or two stand for all.

    Args:
        l1_bytes: of the SM's L1.
        beside: CTAs that the SM holds at once.
        sms: SMs, to which CTAs go in turn.
    """
    together = max(1, min(beside, MOST_PLAYED))
    lines = EFFECTIVE_SHARE * l1_bytes * together / max(1, beside) / LINE_BYTES
    rounds = max(1.0, evaluated.ctas / (sms * max(1, beside)))
    total: dict[int, Served] = {}
    done = steps = sectors = 0
    for first in _first_ctas(evaluated, sms):
        if not steps:  # how much one CTA does, which an L1 of its own does not change
            alone = _player(evaluated, first, _Cache(lines))
            assert alone is not None
            steps, sectors = sum(1 for _ in alone.steps()), alone.sectors
        # The first round begins cold and stands for itself, the second for all others, a third keeps its
        # neighbours busy to the end of the second.
        turns = ROUNDS_PLAYED if sectors * together * ROUNDS_PLAYED <= MOST_SECTORS else 1
        cache = _Cache(lines)
        places = [
            [_player(evaluated, first + (turn * beside + n) * sms, cache) for turn in range(turns)]
            for n in range(together)
        ]
        _in_turn(places, steps)
        for place in places:
            for player, weight in zip(place, (1.0, rounds - 1, 0.0), strict=False):
                if player is not None and weight:
                    done += player.sectors
                    _add(total, player.served, weight)
        if done > MOST_SECTORS:
            break
    return {
        site: served.missed / served.requested for site, served in total.items() if served.requested
    }


def _first_ctas(evaluated: Evaluated, sms: int) -> list[int]:
    """The first CTAs of the SMs that stand for all."""
    busy_sms = min(sms, evaluated.ctas)
    return sorted({busy_sms // 3, 2 * busy_sms // 3})


def _player(evaluated: Evaluated, cta: int, cache: _Cache) -> _Player | None:
    for trace in evaluated.traces:
        if cta < trace.ctas:
            return _Player(evaluated, trace, cta, cache)
        cta -= trace.ctas
    return None


def _in_turn(places: Sequence[Sequence[_Player | None]], steps: int) -> None:
    """CTAs of an SM go on side by side, an access at a time, and each of its places has its CTAs one after the other.
    Warps of the oldest go first, and later CTAs begin as others end, so that they are apart: of R places each is a share
    1/R of a CTA's `steps` behind the one before it."""
    running: list[Iterator[None]] = []
    behind = max(1, steps // max(1, len(places)))
    for place in places:
        running.append(chain.from_iterable(player.steps() for player in place if player))
        for _ in range(behind):
            running = [steps_left for steps_left in running if _goes_on(steps_left)]
    while running:
        running = [steps_left for steps_left in running if _goes_on(steps_left)]


def _goes_on(steps: Iterator[None]) -> bool:
    """Makes one step; False where there is none."""
    return next(steps, steps) is not steps


def _add(total: dict[int, Served], served: Mapping[int, Served], weight: float) -> None:
    for site, of_site in served.items():
        both = total.setdefault(site, Served())
        both.requested += weight * of_site.requested
        both.missed += weight * of_site.missed


def l2_sectors(evaluated: Evaluated, missed: dict[int, float]) -> dict[tuple[str, Mode], float]:
    """Sectors between SMs and L2 by tensor and way: loads that L1 does not serve, and all stores."""
    by_tensor: dict[tuple[str, Mode], float] = {}
    for site in evaluated.sites:
        if site.space == GLOBAL:
            share = missed.get(site.number, 1.0) if site.mode is Mode.LOAD else 1.0
            key = (site.tensor, site.mode)
            by_tensor[key] = by_tensor.get(key, 0.0) + share * site.sectors
    return by_tensor
