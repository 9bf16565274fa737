"""Search of orders: every order of a kernel predicted for a problem, or a set of problems with weights, the best first.

Best is the fastest; of those that take the same time (`SAME_TIME`) the one with the fewest bytes at HBM, then behind
the L2s (`SAME_BYTES`), then the one that changes least of the kernel's own order. Where replaying all would take longer
than seconds, orders that another one beats whatever their bytes are left out, the rest is replayed in coarse steps, and
the first of them whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass, replace
from iosim.base.units import picoseconds
from iosim.catalog.libraries import is_choice, resolve
from iosim.catalog.libraries.default import told
from iosim.catalog.libraries.resolver import check_cluster
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import is_attention_loop
from iosim.kernel.schedule import CLUSTER_CC, Scheduler
from iosim.kernel.traffic import Traffic, TrafficRow
from iosim.prediction.call import Call
from iosim.prediction.many import Request, predict_many, try_all
from iosim.prediction.predictor import planned
from iosim.prediction.replays import tile_accesses
from iosim.problem.attention import AttentionProblem
from iosim.studies.orders.entry import (
    COARSE,
    SAME_TIME,
    OrderEntry,
    OrderPart,
    OrderRanking,
    check_weights,
    ranked,
)
from iosim.studies.orders.space import OrderChoice, applied, choices, main_launch, pinned_fields
from iosim.studies.requests import PINNED, OrdersRequest

ALL_ACCESSES = 60_000_000
"""Tile accesses up to which every order is replayed whole: some seconds on two cores."""
COARSE_ACCESSES = 40_000_000
"""And of coarse steps, where all orders together have more, about."""
LEAST_COARSE = 150_000
"""Tile accesses of a replay in coarse steps, at least."""
FIRST = 6
"""Orders that are replayed whole before others are left out: the likeliest ones."""
REPLAYED = 8
"""Number of the ranking's first orders that are replayed whole."""
MOST_REPLAYED = 24
"""And at most, where replayed ones fall behind others."""
PASSES = ("fwd", "bwd")
STEALING_CC = 100
NEARLY_COMPULSORY = 1.02
"""Bytes at HBM over the compulsory ones below which an order leaves nothing to gain."""
REFINED = 3
"""Number of the ranking's first orders that are tried in clusters, too."""
CLUSTER = 2


@dataclass(frozen=True)
class _Candidate:
    choice: OrderChoice
    requests: tuple[Request, ...]
    least_s: float
    about_bytes: float
    accesses: int


def resolve_all(
    kernel: str | Kernel, problems: Sequence[AttentionProblem], profile: HardwareProfile
) -> list[Kernel]:
    if not isinstance(kernel, str):
        return [kernel] * len(problems)
    first = resolve(kernel, problems[0], profile)
    # "default" is resolved for the first problem: one order can only be of one kernel.
    name = first.name if is_choice(kernel) else kernel
    return [first, *(resolve(name, problem, profile) for problem in problems[1:])]


def rank_orders(request: OrdersRequest, progress: Progress = silent) -> OrderRanking:
    """Every order of a kernel, ranked; of several problems the one order that suits them all."""
    problems, gpu = tuple(request.problems), load_profile(request.gpu)
    weights = check_weights(
        request.counts if request.weights is None else request.weights, problems
    )
    for problem in problems:
        if problem.passes not in PASSES:
            accepted = f"{', '.join(PASSES)}"
            raise InputError(
                f"`passes` {problem.passes}: orders are searched for one pass at a time; accepted: {accepted}"
            )
    pinned = pinned_fields({name: getattr(request, name) for name in PINNED})
    kernels = resolve_all(request.kernel, problems, gpu)
    if any(main_launch(k, p) is None for k, p in zip(kernels, problems, strict=True)):
        hint = "accepted: kernels such as fa2, fa3 or flash"
        raise InputError(
            f"`kernel` {kernels[0].name}: no launch loops over keys, so it has no order to choose; {hint}"
        )
    check_cluster(pinned.get("cluster", 1), gpu)
    search = _Search(problems, weights, kernels, gpu, request.l2_start, progress)
    tiles = [Tile(*sides) for sides in request.tile or ()]
    listed = choices(problems, kernels, tiles=tiles, pinned=pinned, l2s=gpu.levels[0].count)
    in_clusters = (
        gpu.cc >= CLUSTER_CC
        and not gpu.is_amd
        and problems[0].passes == "fwd"
        and "cluster" not in pinned
    )
    return replace(search.ranking(listed, in_clusters), title=request.title)


class _Search:
    def __init__(
        self,
        problems: tuple[AttentionProblem, ...],
        weights: tuple[float, ...],
        kernels: Sequence[Kernel],
        profile: HardwareProfile,
        l2_start: str,
        progress: Progress,
    ) -> None:
        self.problems, self.weights, self.kernels, self.profile = (
            problems,
            weights,
            kernels,
            profile,
        )
        self.l2_start, self.progress = l2_start, progress
        self.owns = [
            OrderChoice.of(kernel, problem)
            for kernel, problem in zip(kernels, problems, strict=True)
        ]
        self.own = self.owns[0]
        self.left_out: list[tuple[OrderChoice, str]] = []
        self.entries: dict[OrderChoice, OrderEntry] = {}
        self.spilling: dict[str, None] = {}

    def candidate(self, choice: OrderChoice) -> _Candidate | None:
        requests, least, size, accesses = [], 0.0, 0.0, 0
        try:
            for problem, kernel, weight in zip(
                self.problems, self.kernels, self.weights, strict=True
            ):
                call = planned(
                    problem, applied(choice, kernel, problem, self.profile), self.profile
                )
                self.spilling |= dict.fromkeys(call.spilling)
                # The least time of an order: with compulsory bytes at HBM; its likely bytes: by the capacity rule.
                least += weight * call.time(call.counted + _compulsory(call)).total_s
                size += weight * call.capacity().total("hbm")
                accesses += tile_accesses(call.chain)
                requests.append(Request(problem, call.kernel, self.profile, l2_start=self.l2_start))
        except InputError as error:
            self.left_out.append((choice, str(error)))
            return None
        return _Candidate(choice, tuple(requests), least, size, accesses)

    def candidates(self, listed: Iterable[OrderChoice]) -> list[_Candidate]:
        return [candidate for candidate in map(self.candidate, listed) if candidate is not None]

    def ranking(self, listed: Sequence[OrderChoice], in_clusters: bool) -> OrderRanking:
        """The orders, the best first, and the kernel's own; `in_clusters`: the first are also tried in clusters."""
        # Few accesses: everything is replayed. Many: in stages, which `_play_some` has.
        able, own_entry = self.candidates(listed), self._own()
        if sum(candidate.accesses for candidate in able) <= ALL_ACCESSES:
            self._play(able)
        else:
            self._play_some(able)
        if in_clusters:
            # Clusters double the search, so they are tried on its winners alone.
            first = [e.choice for e in ranked(list(self.entries.values()), self.own)[:REFINED]]
            self._play(
                self.candidates(replace(c, cluster=CLUSTER) for c in first if c.cluster == 1)
            )
        if not self.entries:
            why = f": for the first, {self.left_out[0][1]}" if self.left_out else ""
            raise InputError(
                f"no order of {self.kernels[0].name} can run on {self.profile.name}{why}"
            )
        entries = [replace(e, is_own=set(self.owns) == {e.choice}) for e in self.entries.values()]
        return OrderRanking(
            self.problems,
            self.weights,
            self.kernels[0].name,
            self.profile,
            tuple(ranked(entries, self.own)),
            own_entry,
            tuple(self.left_out),
            tuple(self._notes(entries)),
            told([(self.kernels[0], self.profile)]),
        )

    def _notes(self, entries: Sequence[OrderEntry]) -> Iterator[str]:
        yield from self.spilling
        in_turn = any(e.choice.scheduler is not Scheduler.PERSISTENT for e in entries)
        if in_turn and self.profile.cc >= STEALING_CC and not self.profile.is_amd:
            yield (
                "a GPU of cc 10.0 can let CTAs steal work by cluster launch control, and hands it out in an order of "
                "its own; assumed: the next tile in the order of their numbers goes to the CTA that is free first"
            )
        if any(not e.is_whole for e in entries):
            near = "most are within 5 % of a replay of all steps, but some are not"
            yield f"{COARSE}: replayed in coarse steps, to choose among orders; {near}"

    def _own(self) -> OrderEntry:
        pairs = zip(self.problems, self.kernels, strict=True)
        requests = [Request(p, k, self.profile, l2_start=self.l2_start) for p, k in pairs]
        parts = [OrderPart.of(prediction) for prediction in predict_many(requests)]
        return replace(OrderEntry.of(self.own, parts, self.weights), is_own=True)

    def _play_some(self, candidates: list[_Candidate]) -> None:
        # 1. The likeliest orders and the kernel's own are replayed whole. 2. Orders that could not beat
        # them even with compulsory bytes are left out, if the rest is too much. 3. The rest is replayed
        # in coarse steps. 4. The front of the ranking is replayed whole, until it holds no coarse entry
        # or the budget ends.
        waiting = sorted(
            candidates,
            key=lambda candidate: (picoseconds(candidate.least_s), candidate.about_bytes),
        )
        likely = sorted(waiting[: 2 * FIRST], key=lambda candidate: candidate.about_bytes)[:FIRST]
        likely += [
            candidate
            for candidate in waiting
            if candidate.choice == self.own and candidate not in likely
        ]
        self._play(likely)
        rest = [candidate for candidate in waiting if candidate.choice not in self.entries]
        if len(rest) * len(self.problems) * LEAST_COARSE > COARSE_ACCESSES:
            rest = [candidate for candidate in rest if not self._is_beaten(candidate)]
        if rest:
            share = COARSE_ACCESSES // (len(rest) * len(self.problems))
            self._play(rest, max(LEAST_COARSE, share))
        by_choice = {candidate.choice: candidate for candidate in candidates}
        whole = 0
        while whole < MOST_REPLAYED:
            first = [
                e
                for e in ranked(list(self.entries.values()), self.own)[:REPLAYED]
                if not e.is_whole
            ]
            if not first:
                return
            self._play([by_choice[e.choice] for e in first])
            whole += len(first)

    def _is_beaten(self, candidate: _Candidate) -> bool:
        """True where an order that was replayed is as fast as this one could be at all, with hardly more than the
        compulsory bytes; a note says so."""
        for e in self.entries.values():
            if (
                e.time_s <= (1 + SAME_TIME) * candidate.least_s
                and e.times_compulsory <= NEARLY_COMPULSORY
            ):
                self.left_out.append(
                    (
                        candidate.choice,
                        f"takes {candidate.least_s:.3g} s at least, and {e.choice.words} takes "
                        f"{e.time_s:.3g} s with {e.times_compulsory:.3g} times the "
                        "compulsory bytes",
                    )
                )
                return True
        return False

    def _play(self, candidates: Sequence[_Candidate], accesses: int | None = None) -> None:
        """Replay orders, all steps or coarse ones of about so many accesses; those that cannot be are left out."""
        requests = [request for candidate in candidates for request in candidate.requests]
        if accesses is not None:
            requests = [
                replace(request, method="sampled", accesses=accesses) for request in requests
            ]
        outcomes = iter(try_all(requests, progress=self.progress))
        for order in candidates:
            parts = []
            for _ in order.requests:
                outcome = next(outcomes)
                if isinstance(outcome, InputError):
                    self.left_out.append((order.choice, str(outcome)))
                else:
                    # A launch with fewer accesses than the budget was played whole after all.
                    rough = accesses is not None and tile_accesses(outcome.chain) > accesses
                    parts.append(OrderPart.of(outcome, COARSE if rough else None))
            if len(parts) == len(order.requests):
                self.entries[order.choice] = OrderEntry.of(order.choice, parts, self.weights)


def _compulsory(call: Call) -> Traffic:
    """The compulsory bytes as traffic of the launch that loops over keys."""
    main = next(launch.name for launch in call.chain.launches if is_attention_loop(launch))
    inputs = TrafficRow(main, "hbm", "inputs", "read", call.bounds.compulsory_read)
    return Traffic(
        (inputs, TrafficRow(main, "hbm", "outputs", "write", call.bounds.compulsory_write))
    )
