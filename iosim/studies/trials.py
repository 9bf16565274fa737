"""Changes to a kernel that might lower its HBM bytes, each tried by predicting it.

Knows nothing of why a change helps. NB: a tile by hand has estimated registers and no spills; one that would spill is
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from operator import attrgetter, methodcaller
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass, replace
from iosim.base.units import some
from iosim.catalog.algorithms import algorithm_of, plan
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain, is_attention_loop
from iosim.kernel.schedule import Direction, Start
from iosim.kernel.tile_rules import retiled
from iosim.prediction.call import Call
from iosim.prediction.predictor import check_fits, predict
from iosim.prediction.result import Prediction
from iosim.readers.replay.lowering import lower
from iosim.studies.orders.space import sections

MAX_ACCESSES = 80_000_000
"""Accesses that all trials of a kernel may replay together: under ten seconds."""
PAIRED = 3
"""How many of the best single changes are tried in pairs."""
SAME_TIME = 1.02
"""A change within this factor of the time now costs no time."""


@dataclass(frozen=True)
class Change:
    option: str
    words: str
    apply: Callable[[Kernel], Kernel]


@dataclass(frozen=True)
class Trial:
    changes: tuple[Change, ...]
    prediction: Prediction

    @property
    def words(self) -> str:
        return ", ".join(c.words for c in self.changes)

    @property
    def hbm_bytes(self) -> int:
        return self.prediction.total("hbm")

    @property
    def time_s(self) -> float:
        return self.prediction.time.total_s

    def rank(self, now: Prediction) -> tuple[bool, int, float]:
        """Sorts changes that cost no time before those that do, and by HBM bytes."""
        return self.time_s > SAME_TIME * now.time.total_s, self.hbm_bytes, self.time_s


@dataclass(frozen=True)
class Tried:
    """`trials` best first; `skipped` are (words, reason) of those not predicted."""

    trials: tuple[Trial, ...]
    skipped: tuple[tuple[str, str], ...]


def changes(now: Prediction) -> Iterator[Change]:
    """Settings that differ from the kernel's own, likely ones first: what `iosim orders` searches, one setting at a
    time; the sides of the tile doubled and halved, its warps following the query rows; splits."""
    kernel, problem = now.kernel, now.problem
    backward = problem.passes == "bwd"
    schedule = kernel.of_pass(backward).schedule
    # Under a mask blocks differ in their steps, and "heavy" means something.
    by_weight = problem.mask != "none" and not backward
    starts = {
        Start.LIGHT_FIRST: "light blocks first" if by_weight else "blocks from the first up",
        Start.HEAVY_FIRST: "heavy blocks first" if by_weight else "blocks from the last down",
        Start.FOLD: "heavy blocks beside light ones" if by_weight else "blocks from both ends",
    }

    def scheduled(option: str, words: str, **fields: Any) -> Change:
        def apply(k: Kernel) -> Kernel:
            of_backward = replace(k.backward, schedule=replace(k.backward.schedule, **fields))
            return k.with_(schedule=replace(k.schedule, **fields), backward=of_backward)

        return Change(option, words, apply)

    yield from (
        scheduled("direction", f"keys {d}", direction=d)
        for d in Direction
        if d is not schedule.direction
    )
    yield from (scheduled("start", starts[s], start=s) for s in starts if s is not schedule.start)
    for order, heads, _ in sections([problem]):
        if heads and heads != schedule.section_heads:
            yield scheduled("section", f"sections of {some(heads, 'head')}", section_heads=heads)
        elif not heads and (order is not schedule.order or schedule.section_heads):
            yield scheduled("section", f"order {order}", order=order, section_heads=0)
    own_tile = kernel.tile_backward if backward else kernel.tile
    q, k, warps = own_tile.block_q, own_tile.block_k, own_tile.warps
    # One side at a time; more query rows bring more warps, keys do not.
    for sides in ((2 * q, k, min(2 * warps, 16)), (q, 2 * k, warps), (q, k // 2, warps)):
        if 16 <= sides[1] <= 256 and sides[0] <= 256:
            tile = Tile(*sides, own_tile.stages)
            words = f"tile {tile}, {some(tile.warps, 'warp')}"
            yield Change(
                "tile", words, partial(retiled, problem=problem, tile=tile, backward=backward)
            )
    if algorithm_of(kernel.algorithm).splits and problem.passes == "fwd":
        for n in (1, 2, 4):
            if n != kernel.splits:
                yield Change("splits", some(n, "split"), methodcaller("with_", splits=n))


def _check(chain: Chain, now: Prediction) -> None:
    """Raises InputError: a changed chain cannot run as its kernel stands, or would spill where that one does not."""
    call = Call.of(now.problem, now.kernel, now.profile, chain)
    check_fits(call)
    spilling = [fit.spilling for fit in call.residencies if fit.spilling]
    if spilling and not now.call.spilling:
        raise InputError(f"{spilling[0]}: it would spill")


class _Trier:
    def __init__(self, now: Prediction, budget: int) -> None:
        self.now, self.left = now, budget
        self.trials: list[Trial] = []
        self.skipped: list[tuple[str, str]] = []
        self._seen = {self._signature(now.kernel, now.chain)[0]}

    def _signature(self, kernel: Kernel, chain: Chain) -> tuple[Any, int]:
        # Kernels that lower to the same work in the same order move the same bytes: one is played.
        launches, order = (
            lower(chain, 1).launches,
            attrgetter("head", "block", "first", "count", "down"),
        )
        key = tuple(
            (n.name, n.tiles, n.accesses, hash(tuple(a.tobytes() for a in order(n))))
            for n in launches
        )
        return (kernel.tile, kernel.backward.tile, kernel.splits, key), sum(
            n.accesses for n in launches
        )

    def add(self, *combined: Change) -> None:
        now, kernel = self.now, self.now.kernel
        for change in combined:
            kernel = change.apply(kernel)
        try:
            chain = plan(now.problem, kernel)
            if any(c.option in ("tile", "splits") for c in combined):
                _check(chain, now)
            signature, accesses = self._signature(kernel, chain)
            if signature in self._seen:
                return
            if accesses > self.left:
                allowed = f"of those allowed for all trials {self.left:,} are left"
                raise InputError(f"{accesses:,} accesses to replay; {allowed}")
            self._seen.add(signature)
            self.left -= accesses
            prediction = predict(
                now.problem, kernel, now.profile, l2_start=now.l2_start, method="replay"
            )
            self.trials.append(Trial(combined, prediction))
        except InputError as error:
            self.skipped.append((", ".join(c.words for c in combined), str(error)))


def try_changes(now: Prediction, progress: Progress = silent, budget: int = MAX_ACCESSES) -> Tried:
    """Every change alone, then the best ones in pairs, in a `budget` of accesses that may be replayed."""
    if not any(is_attention_loop(launch) for launch in now.chain.launches):
        return Tried(
            (),
            (
                (
                    "all changes",
                    "no launch loops over keys, so no order or tile changes its HBM bytes",
                ),
            ),
        )
    trier = _Trier(now, budget)
    for change in progress(list(changes(now))):
        trier.add(change)
    # Pairs of the best changes of different settings: two of the same would undo each other.
    best = sorted(trier.trials, key=lambda t: t.rank(now))[:PAIRED]
    for first, second in combinations(best, 2):
        if first.changes[0].option != second.changes[0].option:
            trier.add(*first.changes, *second.changes)
    ranked = sorted(trier.trials, key=lambda t: (*t.rank(now), len(t.changes)))
    return Tried(tuple(ranked), tuple(trier.skipped))
