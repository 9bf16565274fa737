"""Slow, obvious models of a cache, to hold the compiled engine against: the L2 of the replay, plain LRU, and exact
reuse distances."""

from __future__ import annotations

from dataclasses import dataclass, field

LOAD, STORE, REDUCE = 0, 1, 2


@dataclass
class Way:
    line: int | None = None
    used: bool = False
    dirty: bool = False


def hash32(x: int) -> int:
    """The engine's integer hash."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF
    return x ^ (x >> 16)


@dataclass
class Marking:
    """Which hits of loads mark their line as used: a share of them, by a hash of their number."""

    share: float
    hits: int = 0

    def marks(self) -> bool:
        self.hits += 1
        return (hash32(self.hits) & 0xFFFF) < round(self.share * 65536)


@dataclass
class NotRecentlyUsedSet:
    """A set whose victim is the first way not used lately, searched from behind the last victim."""

    ways: list[Way]
    marking: Marking
    start: int = 0

    def touch(self, line: int, dirty: bool) -> tuple[bool, int | None]:
        """(whether the line was there, the dirty line that was driven out or None)."""
        found = next((way for way in self.ways if way.line == line), None)
        there, written = found is not None, None
        if found is None:
            turn = [(self.start + k) % len(self.ways) for k in range(len(self.ways))]
            victim = next((w for w in turn if not self.ways[w].used), turn[-1])
            found = self.ways[victim]
            written = found.line if found.dirty else None
            found.line, found.dirty = line, False
            self.start = (victim + 1) % len(self.ways)
        elif not dirty and not self.marking.marks():
            return there, None
        found.dirty = found.dirty or dirty
        found.used = True
        if all(way.used for way in self.ways):
            for way in self.ways:
                way.used = way is found
        return there, written


@dataclass
class SlowL2:
    """Partitions of sets of lines; every line has a set and a home partition. Counts are in lines."""

    partitions: int
    sets: int
    ways: int
    set_of: list[int]
    home_of: list[int]
    keeps_written: bool
    marking: float = 1.0
    hits: int = 0
    misses: int = 0
    read: int = 0
    written: int = 0
    crossed: int = 0
    caches: list[list[NotRecentlyUsedSet]] = field(default_factory=list)

    def __post_init__(self) -> None:
        marking = Marking(self.marking)
        self.caches = [
            [NotRecentlyUsedSet([Way() for _ in range(self.ways)], marking) for _ in range(self.sets)]
            for _ in range(self.partitions)
        ]

    def _touch(self, partition: int, line: int, dirty: bool = False) -> bool:
        there, driven_out = self.caches[partition][self.set_of[line]].touch(line, dirty)
        self.written += driven_out is not None
        return there

    def access(self, mode: int, line: int, partition: int) -> bool:
        """One access by an SM of `partition`; returns whether the L2 held the line."""
        home = self.home_of[line] if self.partitions == 2 else partition
        if mode == LOAD:
            there = self._touch(partition, line)
            if not there and home != partition:
                self.crossed += 1
                there = self._touch(home, line)
        else:
            there = self._touch(home, line, dirty=True)
            if self.partitions == 2 and self.keeps_written:
                self._touch(1 - home, line)
            self.crossed += home != partition
        self.hits += there
        self.misses += not there
        self.read += not there and mode != STORE
        return there

    def dirty(self) -> int:
        return sum(way.dirty for cache in self.caches for one in cache for way in one.ways)


def lru_hits(trace: list[int], capacity: int) -> int:
    """Hits of a fully associative cache of `capacity` lines that drives out the least recently used."""
    stack: list[int] = []
    hits = 0
    for line in trace:
        if line in stack:
            hits += 1
            stack.remove(line)
        elif len(stack) == capacity:
            stack.pop()
        stack.insert(0, line)
    return hits


def reuse_distances(trace: list[int]) -> list[int | None]:
    """Distinct other lines since the last use of each access's line; None at its first use."""
    found: list[int | None] = []
    for n, line in enumerate(trace):
        earlier = [k for k in range(n) if trace[k] == line]
        found.append(len(set(trace[earlier[-1] + 1 : n])) if earlier else None)
    return found
