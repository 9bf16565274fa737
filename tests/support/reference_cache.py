"""Slow, obvious models of a cache, to hold the compiled engine against: the L2 of the replay, plain LRU, and exact
reuse distances."""

from __future__ import annotations

from dataclasses import dataclass, field

LOAD, STORE, REDUCE = 0, 1, 2


@dataclass
class RecentSet:
    """A set of lines in the order of their use, the latest first, with the dirty ones among them."""

    ways: int
    dirty_ways: int
    lines: list[int] = field(default_factory=list)
    dirty: set[int] = field(default_factory=set)

    def touch(self, line: int, dirty: bool) -> tuple[bool, int]:
        """(whether the line was there, how many lines were written back)."""
        hit, written = line in self.lines, 0
        if (not hit or (dirty and line not in self.dirty)) and len(self.dirty) >= self.dirty_ways:
            self.dirty.remove(next(x for x in reversed(self.lines) if x in self.dirty))
            written += 1
        if hit:
            self.lines.remove(line)
        elif len(self.lines) == self.ways:
            written += self._make_room()
        self.lines.insert(0, line)
        if dirty:
            self.dirty.add(line)
        return hit, written

    def _make_room(self) -> int:
        """Drives out the last of the order; a dirty one is written back and stays if a clean one can go instead."""
        last = self.lines[-1]
        was_dirty = last in self.dirty
        clean = [x for x in self.lines if x not in self.dirty]
        self.dirty.discard(last)
        self.lines.remove(clean[-1] if was_dirty and clean else last)
        return int(was_dirty)

    def drop(self, line: int) -> None:
        if line in self.lines:
            self.lines.remove(line)
            self.dirty.discard(line)


@dataclass
class SlowL2:
    """Partitions of sets of lines; every line has a set and a home partition. Counts are in lines."""

    partitions: int
    sets: int
    ways: int
    set_of: list[int]
    home_of: list[int]
    dirty_ways: int
    hits: int = 0
    misses: int = 0
    read: int = 0
    written: int = 0
    crossed: int = 0
    caches: list[list[RecentSet]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.caches = [
            [RecentSet(self.ways, self.dirty_ways) for _ in range(self.sets)]
            for _ in range(self.partitions)
        ]

    def _set(self, partition: int, line: int) -> RecentSet:
        return self.caches[partition][self.set_of[line]]

    def _touch(self, partition: int, line: int, dirty: bool = False) -> bool:
        hit, written = self._set(partition, line).touch(line, dirty)
        self.written += written
        return hit

    def access(self, mode: int, line: int, partition: int) -> bool:
        """One access by an SM of `partition`; returns whether the L2 held the line."""
        home = self.home_of[line] if self.partitions == 2 else partition
        if mode == LOAD:
            hit = self._touch(partition, line)
            if not hit and home != partition:
                self.crossed += 1
                hit = self._touch(home, line)
        else:
            hit = self._touch(home, line, dirty=True)
            if self.partitions == 2:
                if mode == STORE and home != partition:
                    self._touch(partition, line)
                else:
                    self._set(1 - home, line).drop(line)
            self.crossed += home != partition
        self.hits += hit
        self.misses += not hit
        self.read += not hit and mode != STORE
        return hit

    def dirty(self) -> int:
        return sum(len(one_set.dirty) for cache in self.caches for one_set in cache)


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
    distances: list[int | None] = []
    for n, line in enumerate(trace):
        earlier = [k for k in range(n) if trace[k] == line]
        distances.append(len(set(trace[earlier[-1] + 1 : n])) if earlier else None)
    return distances
