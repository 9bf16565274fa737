"""Ways to spread attention side by side: idle fractions, bytes on links, time and memory of one layer's attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, TypedDict, Unpack

from iosim.base.errors import InputError, unknown_name
from iosim.base.progress import Progress, silent
from iosim.base.records import asdict, dataclass, field, plain
from iosim.base.units import some
from iosim.base.words import DEFAULT, Method
from iosim.catalog.algorithms.registry import reading
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.conditions import Conditions as OfCall
from iosim.kernel.kernel import Kernel
from iosim.prediction.result import method_of
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed import collectives
from iosim.studies.distributed.closed_forms import FORMULAS
from iosim.studies.distributed.collectives import SWAPPED, all_to_all, split_heads
from iosim.studies.distributed.count import (
    Idle,
    compute_steps,
    idle,
    link_bytes,
    longest_sequence,
    memory,
)
from iosim.studies.distributed.links import Cluster
from iosim.studies.distributed.schedule import (
    SCHEDULES,
    ChunkSchedule,
    build,
    check_gpus,
    check_problem,
    schedules,
    sequence_width_bytes,
    token_bytes,
)
from iosim.studies.distributed.timing import BOOST, ChunkTimes, Timeline, simulate

BY_COLLECTIVES = ("ulysses", "all-gather", "megatron", "rsa")
HYBRID = "usp"
METHODS = (*SCHEDULES, HYBRID, *BY_COLLECTIVES)


@dataclass(frozen=True)
class Result:
    """One method. Sums over the passes that the problem asks for; `received_bytes` is a GPU's average, `l2_bytes` and
    `hbm_bytes` are moved by the GPU with most, in its own memory; `method` is how the latter were found, of several the
    least exact."""

    name: str
    title: str
    received_bytes: Fraction
    width_bytes: int
    compute_s: float
    seconds: float
    speedup: float
    memory_bytes: int
    longest_sequence: int | None
    l2_bytes: int
    hbm_bytes: int
    method: Method
    steps: int | None = None
    idle: Idle | None = None
    formula: str = ""
    schedules: tuple[ChunkSchedule, ...] = field(default=(), repr=False)
    timelines: tuple[Timeline, ...] = field(default=(), repr=False)

    @property
    def received_nd(self) -> float:
        """Bytes a GPU receives in units of N x d, d the width of all query heads."""
        return float(self.received_bytes / self.width_bytes)

    @property
    def exposed_s(self) -> float:
        """Time beyond the busiest GPU's computation: communication that nothing hides, and waiting."""
        return self.seconds - self.compute_s

    def to_dict(self) -> dict[str, Any]:
        idle = (
            {name: str(share) for name, share in asdict(self.idle).items()} if self.idle else None
        )
        received = {"received_bytes_per_gpu": float(self.received_bytes)}
        return (
            plain(name=self.name, title=self.title, steps=self.steps)
            | {"idle": idle}
            | received
            | plain(
                received_nd=self.received_nd,
                formula=self.formula,
                compute_s=self.compute_s,
                exposed_s=self.exposed_s,
                time_s=self.seconds,
                speedup=self.speedup,
                memory_bytes_per_gpu=self.memory_bytes,
                longest_sequence=self.longest_sequence,
                l2_bytes_per_gpu=self.l2_bytes,
                hbm_bytes_per_gpu=self.hbm_bytes,
                method=self.method,
            )
        )

    @property
    def row(self) -> dict[str, Any]:
        """The dictionary with idle fractions beside the other values."""
        values = self.to_dict()
        idle = values.pop("idle") or dict.fromkeys(("slots", "of_unbalanced", "work"))
        return values | {f"idle_{name}": share for name, share in idle.items()}


class Conditions(TypedDict, total=False):
    """The kernel of local calls, whether messages run beside the computations of their step, the layers that keep their
    tensors for the backward, and how calls meet their GPU."""

    kernel: str | Kernel
    overlap: bool
    layers: int
    conditions: OfCall


def study(
    problem: AttentionProblem,
    gpus: int,
    profile: HardwareProfile,
    cluster: Cluster,
    *,
    names: Iterable[str] | None = None,
    progress: Progress = silent,
    **conditions: Unpack[Conditions],
) -> list[Result]:
    """The methods `names` on one problem; by default every schedule that the mask allows, and the other methods that
    can run it. `progress` hands on the names one by one, and may show how far it is. Raises InputError: an unknown
    method, or a problem, kernel or number of GPUs that does not go with one of them."""
    causal = check_problem(problem)
    wanted = (
        list(dict.fromkeys(names))
        if names is not None
        else [*schedules(causal), HYBRID, *BY_COLLECTIVES]
    )
    for name in wanted:
        if name not in METHODS:
            raise unknown_name("`schedule`", name, METHODS)
    if not wanted:
        raise InputError(f"`schedule` is empty; accepted: {', '.join(METHODS)}")
    times = ChunkTimes(
        problem, conditions.get("kernel", DEFAULT), profile, conditions.get("conditions", BOOST)
    )
    overlap, layers = conditions.get("overlap", True), conditions.get("layers", 1)
    methods = _Study(times, check_gpus(gpus), cluster, overlap, layers)
    results = []
    for name in progress(wanted):
        if name in SCHEDULES:
            results.append(methods.of_schedule(name))
            continue
        try:
            results.append(methods.of_hybrid() if name == HYBRID else methods.by_collectives(name))
        # A method that was not asked for by name is left out where it cannot run.
        except InputError:
            if names is not None:
                raise
    return results


class _Study:
    def __init__(
        self, times: ChunkTimes, gpus: int, cluster: Cluster, overlap: bool, layers: int
    ) -> None:
        problem, kernel, profile = times.problem, times.kernel, times.profile
        chosen = resolve(kernel, problem, profile) if isinstance(kernel, str) else kernel
        # Kernels that read the problem otherwise (one latent K/V for all heads) have no chunks of heads.
        if reading(problem, chosen) is not problem:
            more = (
                "which is not distributed over GPUs here; accepted: kernels of multi-head attention"
            )
            raise InputError(f"`kernel` {chosen.name} shares one Q and K among its heads, {more}")
        self.problem, self.gpus, self.profile, self.cluster = problem, gpus, profile, cluster
        self.kernel, self.overlap, self.layers = kernel, overlap, layers
        self.passes = [
            b for b, wanted in ((False, problem.forward), (True, problem.backward)) if wanted
        ]
        self.times = times
        # The same attention on one GPU, pass by pass: what speed-ups are against.
        words = [problem.with_(passes="bwd" if b else "fwd") for b in self.passes]
        self.alone_s = math.fsum(
            prediction.time.total_s for prediction in self.times.predictions(words)
        )
        self.width = sequence_width_bytes(problem)

    def _chunked(self, name: str, times: ChunkTimes, gpus: int, cluster: Cluster) -> dict[str, Any]:
        """What comes of a chunk schedule, forward and backward as far as the problem asks for them."""
        p, from_graph = times.problem, times.conditions.launched == "graph"
        built = tuple(build(name, p, gpus, backward=b) for b in self.passes)
        for schedule in built:
            times.prepare(schedule)
        how: dict[str, Any] = {
            "overlap": self.overlap,
            "merged": times.merged,
            "from_graph": from_graph,
        }
        lines = tuple(simulate(schedule, p, cluster, times, **how) for schedule in built)
        # Each level's bytes per GPU and pass: the GPU with most over all passes is reported.
        by_level = {
            level: zip(*(times.moved(s, level) for s in built), strict=True)
            for level in collectives.BOTH
        }
        of_levels = {
            f"{level}_bytes": max(map(sum, of_passes)) for level, of_passes in by_level.items()
        }
        return of_levels | {
            "schedules": built,
            "timelines": lines,
            "seconds": math.fsum(line.total_s for line in lines),
            "steps": sum(len(compute_steps(s)) for s in built),
            "idle": idle(built[0]),
            "received_bytes": Fraction(sum(link_bytes(s, p).total for s in built), gpus),
            "compute_s": math.fsum(max(line.compute_s) for line in lines),
            "memory_bytes": max(memory(s, p, self.layers).total for s in built),
            "method": method_of(method for s in built for method in times.methods(s)),
        }

    def of_schedule(self, name: str) -> Result:
        p, gpus, layers = self.problem, self.gpus, self.layers
        formula = " + ".join(FORMULAS[name, b] for b in self.passes)
        values = self._chunked(name, self.times, gpus, self.cluster)

        def most(budget: int, b: bool) -> int:
            return longest_sequence(name, p, gpus, budget, backward=b, layers=layers)

        return self._result(name, most, title=SCHEDULES[name].title, formula=formula, **values)

    def of_hybrid(self) -> Result:
        """Ulysses between neighbours, as many as share a node and divide the key heads, and a ring of such groups (USP,
        Fang and Zhao, arXiv 2405.07719). Raises InputError: one of the two would be left."""
        p, gpus, causal = self.problem, self.gpus, self.problem.mask == "causal"
        inner = math.gcd(gpus, p.kv_heads, self.cluster.gpus_per_node or gpus)
        if inner in (1, gpus):
            alone = "a ring" if inner == 1 else "Ulysses"
            raise InputError(
                f"`schedule` {HYBRID} would be {alone} alone, with {some(gpus, 'GPU')} and "
                f"{some(p.kv_heads, 'key head')}; accepted: a divisor of both, in a node"
            )
        # Inside a group of `inner` GPUs heads are split; between groups the sequence goes round a ring,
        # in which a GPU stands for its group's head share.
        share, outer, ring = split_heads(p, inner), gpus // inner, "zigzag" if causal else "ring"
        times = ChunkTimes(share, self.kernel, self.profile, self.times.conditions)
        values = self._chunked(ring, times, outer, self.cluster.every(inner))
        widths, tokens, held = token_bytes(p), -(-p.seq_q // outer), values["memory_bytes"]
        tensor_bytes = [
            widths[tensor] * tokens
            for b in self.passes
            for tensor in SWAPPED["bwd" if b else "fwd"]
        ]
        swaps = [all_to_all(size, inner, Cluster(self.cluster.link)) for size in tensor_bytes]
        # Each swapped tensor is also copied into another order, 1 / inner of it by each GPU.
        copies, copied = (
            math.fsum(times.copied(size // inner, size // inner) for size in tensor_bytes),
            2 * sum(tensor_bytes) // inner,
        )
        before = sum(widths[tensor] for tensor in ("Q", "K", "V")) * -(-p.seq_q // gpus)

        def most(budget: int, b: bool) -> int:
            # Memory is linear in the tokens: the ring's part of the budget is its part of the bytes.
            rest = budget * held // (held + before)
            return longest_sequence(ring, share, outer, rest, backward=b, layers=self.layers)

        values |= {
            "seconds": values["seconds"] + copies + math.fsum(seconds for _, seconds in swaps),
            "received_bytes": values["received_bytes"] + sum(n for n, _ in swaps),
            "compute_s": values["compute_s"] + copies,
            "memory_bytes": held + before,
            "l2_bytes": values["l2_bytes"] + copied,
            "hbm_bytes": values["hbm_bytes"] + copied,
        }
        return self._result(
            HYBRID, most, title=f"Ulysses of {inner} inside a ring of {outer}", **values
        )

    def by_collectives(self, name: str) -> Result:
        """Ulysses, an all-gather of K and V, Megatron-LM or ring self-attention."""
        p, gpus, kernel, gpu = self.problem, self.gpus, self.kernel, self.profile
        passes = [
            collectives.spread(name, p, gpus, self.times, self.cluster, backward=b)
            for b in self.passes
        ]
        summed = {
            of: sum(getattr(b, of) for b in passes)
            for of in ("seconds", "compute_s", "l2_bytes", "hbm_bytes")
        }
        return self._result(
            name,
            lambda budget, b: collectives.longest_sequence(
                name, p, gpus, budget, kernel, gpu, backward=b
            ),
            title=collectives.TITLES[name],
            received_bytes=Fraction(sum(b.received_bytes for b in passes)),
            memory_bytes=max(b.memory_bytes for b in passes),
            method=method_of(b.method for b in passes),
            **summed,
        )

    def _result(self, name: str, most_tokens: Callable[[int, bool], int], **values: Any) -> Result:
        """`most_tokens` says how many fit into so many bytes, forward or backward."""
        budget, speedup = self.profile.usable_memory_bytes, self.alone_s / values["seconds"]
        longest = None if budget is None else min(most_tokens(budget, b) for b in self.passes)
        return Result(
            name, width_bytes=self.width, speedup=speedup, longest_sequence=longest, **values
        )
