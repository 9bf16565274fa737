"""Replays as predictions ask for them: equal ones are played once, and long ones are kept on disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from iosim.base.data import cache_dir
from iosim.base.digest import digest
from iosim.base.progress import go_on
from iosim.base.words import Method
from iosim.kernel.launch import Access, Chain, Launch, Per
from iosim.prediction.call import Call
from iosim.readers.replay.objects import about_bytes
from iosim.readers.replay.play import HeadShare, Play, head_share
from iosim.readers.replay.replay import Inputs, Replay, replay

KEPT_ACCESSES = 500_000
"""Tile accesses from which a replay is kept on disk: a twentieth of a second. To open the disk's file takes a fifth of
that, which a short prediction does without."""
KEPT_OF_MANY = 10_000
"""And where many are asked for: one is read in 0.3 ms and written in 0.7, a play of so many takes two."""

MOST_BYTES = 4_000_000_000
"""Memory that replays side by side take, about: two of the largest."""
MOST_SHARED = 10_000
"""Results that are kept in memory: a few kilobytes each."""


def tile_accesses(chain: Chain) -> int:
    """Tile accesses of a chain's loops: what a replay would play, about; of picked rows each by itself."""

    def each(launch: Launch, access: Access) -> int:
        # Gathered rows are accesses of their own; a walk that begins again counts each time.
        picks = launch.gathers(chain.tensors[access.tensor])
        return launch.domain.block_k if picks else access.times if launch.walks_again else 1

    touched = sum(
        int(launch.touched.entries.size) for launch in chain.launches if launch.touched is not None
    )
    return touched + sum(
        launch.visited_pairs * sum(each(launch, a) for a in launch.accesses if a.per is Per.PAIR)
        for launch in chain.launches
    )


def head_share_of(call: Call) -> HeadShare | None:
    """The heads of a call whose replay may stand for all of it, where there are such."""
    return head_share(call.chain, tile_accesses(call.chain), call.profile.levels[-1].bytes)


def play_of(call: Call, method: Method, l2_start: str, accesses: int | None = None) -> Play:
    """What a replay by a method plays: all, or, sampled, some heads where they may stand for all, else a part of long
    launches."""
    if method == "replay":
        return Play(l2_start=l2_start)
    # Heads that stand for all are more exact than parts of launches, so that they come first.
    if heads := head_share_of(call):
        return Play(l2_start=l2_start, share=heads)
    return Play(l2_start=l2_start, part=True, accesses=accesses)


class Memory:
    """Bytes that replays take side by side: at most `capacity` together, but one alone whatever it takes."""

    def __init__(self, capacity: int) -> None:
        self._most, self._taken = capacity, 0
        self._freed = threading.Condition()

    @contextmanager
    def taken(self, needed: int) -> Iterator[None]:
        with self._freed:
            self._freed.wait_for(lambda: not self._taken or self._taken + needed <= self._most)
            self._taken += needed
        try:
            yield
        finally:
            with self._freed:
                self._taken -= needed
                self._freed.notify_all()


class Shared:
    """A replay that several predictions ask for: the first plays it, and the others wait."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.replay: Replay | None = None


class Replays:
    """Replays of several predictions, which may run in threads side by side. `shares` keeps the latest results in
    memory, so that predictions that come to equal replays have them played once: those that ask while one is being
    played wait for it. Those of `kept_accesses` and more are kept on disk."""

    def __init__(self, *, shares: bool = False, kept_accesses: int | None = None) -> None:
        self._shares = shares
        self._kept_accesses = KEPT_ACCESSES if kept_accesses is None else kept_accesses
        self._lock = threading.Lock()
        self._played: dict[str, Shared] = {}
        self._memory = Memory(MOST_BYTES)

    def of(self, call: Call, play: Play | None = None) -> Replay:
        """The replay of a call. Raises InputError: as the replay does. Stopped: the thread works for another that wants
        no more of it."""
        go_on()
        inputs = call.replay_inputs(play)
        keeps = tile_accesses(call.chain) >= self._kept_accesses
        if not (keeps or self._shares):
            return replay(inputs)
        key = digest(inputs)
        if not self._shares:
            return _kept(key, inputs)
        with self._lock:
            # The table's lock is held for the entry alone; the entry's own lock is held while it is played.
            shared = self._played.setdefault(key, Shared())
            if len(self._played) > MOST_SHARED:
                del self._played[next(iter(self._played))]
        with shared.turn:
            if shared.replay is None:
                part = inputs.play.share
                # Wait until the memory for it is free: threads side by side would else take gigabytes each.
                with self._memory.taken(about_bytes(inputs.chain if part is None else part.chain)):
                    shared.replay = _kept(key, inputs) if keeps else replay(inputs)
            return shared.replay


def _kept(key: str, inputs: Inputs) -> Replay:
    if cache_dir() is None:  # a browser's Python comes without the database, too
        return replay(inputs)
    from iosim.prediction.cache import from_plain, replay_cache, to_plain

    cache = replay_cache()
    plain = None if cache is None else cache.get(key)
    if plain is not None:
        try:
            return from_plain(plain)
        except (KeyError, TypeError, ValueError):
            pass  # written by hand, or by a version that said it was this one
    played = replay(inputs)
    if cache is not None:
        cache.put(key, to_plain(played))
    return played
