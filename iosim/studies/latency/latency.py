"""The latency of one attention call inside a serving stack, as a list of parts.

A stack (`iosim.kernel.serving`) says which kernel a GPU runs, in which pages the cache lies, whether the call writes to
it first, and what else it launches. The launches are predicted as anywhere else, from a CUDA graph and with what the
same call left in the L2; what none of them explains is the gap between calls, a constant of the stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.units import some
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.conditions import Conditions
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Access, Chain, Domain, Launch, Mode, Outer, Per, Role, Rows, Tensor
from iosim.kernel.libraries import resolve
from iosim.kernel.overrides import Overrides
from iosim.kernel.serving import Stack, read_stack
from iosim.prediction.call import Call
from iosim.prediction.many import Request, predict_many
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.show.shown import Shown
from iosim.show.tables import Table
from iosim.studies.latency.calibration import Calibration
from iosim.studies.models.layers import Layers

if TYPE_CHECKING:
    import pandas

WRITE = "append"
"""The launch that writes the new tokens' K and V."""
ROWS_A_CTA = 128


@dataclass(frozen=True)
class Part:
    """One part of a call's time."""

    name: str
    kind: str
    """attention, combine, write, extra or gap."""
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class Latency:
    """One call in one stack on one GPU."""

    stack: Stack
    prediction: Prediction
    parts: tuple[Part, ...]
    calibration: Calibration | None = None
    layers: Layers | None = None
    """The layers of a model that make such a call, where a model was asked for."""

    @property
    def total_s(self) -> float:
        """Seconds of the whole call."""
        return sum(part.seconds for part in self.parts)

    @property
    def launches(self) -> int:
        """Launches of the call."""
        return sum(part.kind != "gap" for part in self.parts)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the time rests on, a sentence each."""
        p, problem = self.prediction, self.prediction.problem
        written = "first writes the new tokens' K and V to the cache" if self._writes else "writes nothing to the cache"
        ragged = problem.seq_lens is not None
        told = (
            f"{self.stack.title}, {self.stack.version}: kernel {p.kernel.name}, pages of "
            f"{some(problem.page_size or 0, 'token')}, "
            f"{some(p.kernel.splits, 'split')}; a call {written}",
            f"launched {'from a CUDA graph' if self._graph else 'one by one, without the host'}, the L2 {p.l2_start}",
        )
        more = ("splits of different lengths are as long as the longest sequence's; the block table is not counted",)
        return (*told, *self.stack.assumes, *(more if ragged else ()))

    @property
    def _writes(self) -> bool:
        return any(part.kind == "write" for part in self.parts)

    @property
    def _graph(self) -> bool:
        return any(part.kind == "gap" for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """One entry of `latencies` in the JSON of `iosim latency`."""
        p = self.prediction
        return _of_model(self.layers) | {
            "stack": self.stack.name, "profile": p.profile.name, "kernel": p.kernel.name, "splits": p.kernel.splits,
            "time_s": self.total_s, "bound_by": p.time.bound_by, "calibrated": self.calibration is not None,
            "parts": [{"name": q.name, "kind": q.kind, "time_s": q.seconds, "why": q.why} for q in self.parts],
            "l2_start": p.l2_start, "method": p.method, "problem": p.problem.to_dict(), "assumes": list(self.assumes),
            "notes": list(p.notes),
        }  # fmt: skip


@dataclass(frozen=True)
class AllLayers:
    """The calls of all layers of a model for one step, in one stack on one GPU: a point for each kind of layer."""

    points: tuple[Latency, ...]

    @property
    def total_s(self) -> float:
        """Seconds of all layers' calls, one after the other."""
        return sum(p.total_s * p.layers.count for p in self.points if p.layers is not None)

    @property
    def count(self) -> int:
        """Layers of the model."""
        return sum(p.layers.count for p in self.points if p.layers is not None)

    @property
    def title(self) -> str:
        """The model, for people."""
        return self.points[0].layers.title if self.points[0].layers is not None else ""

    def to_dict(self) -> dict[str, Any]:
        """One entry of `models` in the JSON of `iosim latency`."""
        first, sizes = self.points[0], [_sizes(p.prediction.problem) for p in self.points]
        return {
            "model": self.title, "stack": first.stack.name, "profile": first.prediction.profile.name,
            "layers": self.count, "batch": sizes[0]["batch"], "seq_q": sizes[0]["seq_q"],
            "seq_k": max(size["seq_k"] for size in sizes), "time_s": self.total_s,
        }  # fmt: skip


def _of_model(layers: Layers | None) -> dict[str, Any]:
    return {} if layers is None else {"model": layers.title, "layer": layers.name, "count": layers.count}


@dataclass(frozen=True, repr=False)
class Latencies(Shown):
    """Calls in serving stacks, for every stack, GPU and problem asked for."""

    FACE = "iosim.studies.latency.face"

    points: tuple[Latency, ...]
    """A point a stack, GPU and problem, in the order of the request."""

    def __iter__(self) -> Iterator[Latency]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def models(self) -> tuple[AllLayers, ...]:
        """All layers of a model together, for every stack, GPU and length; none without a model."""
        steps: list[list[Latency]] = []
        for p in self.points:
            if p.layers is not None:
                if not steps or p.layers.name in {q.layers.name for q in steps[-1] if q.layers is not None}:
                    steps.append([])
                steps[-1].append(p)
        return tuple(AllLayers(tuple(step)) for step in steps)

    def to_dict(self) -> dict[str, Any]:
        """The command line's JSON."""
        together = {"models": [step.to_dict() for step in self.models]} if self.models else {}
        return {"schema": 1, "latencies": [p.to_dict() for p in self.points]} | together

    def rows(self) -> list[dict[str, Any]]:
        """A row a part."""
        return [
            _of_model(p.layers) |
            {"stack": p.stack.name, "gpu": p.prediction.profile.name, "kernel": p.prediction.kernel.name,
             "splits": p.prediction.kernel.splits, **_sizes(p.prediction.problem), "part": part.name,
             "time_s": part.seconds, "call_s": p.total_s}
            for p in self.points for part in p.parts
        ]  # fmt: skip

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row a part of a call: its seconds, and those of the call."""
        return Table.of(self.rows()).to_pandas()


def _sizes(problem: AttentionProblem) -> dict[str, Any]:
    each = problem.sequences
    return {"batch": len(each), "heads": problem.heads, "kv_heads": problem.kv_heads, "seq_q": problem.longest_q,
            "seq_k": max(k for _, k in each), "head_dim": problem.head_dim}  # fmt: skip


def latencies(
    problems: Sequence[AttentionProblem],
    stacks: Iterable[str] = ("vllm",),
    gpus: Iterable[str | HardwareProfile] = ("h100",),
    *,
    write: bool | None = None,
    launched: str = "graph",
    l2_start: str = "warm",
    clocks: str | float = "boost",
    method: str | None = None,
    calibration: Calibration | None = None,
    layers: Sequence[Layers | None] | None = None,
) -> Latencies:
    """Every problem in every stack on every GPU.

    Args:
        write: whether the call first writes the new tokens' K and V; by default as the stack does.
        launched: "graph" (a CUDA graph, call after call), or "alone" (each launch as a profiler times it; no gap).
        l2_start, clocks, method: as in `predict`.
        calibration: of the stack on that GPU, in place of its shipped constants.
        layers: which layers of a model each problem is of.

    Raises:
        InputError: an unknown stack, a GPU that it has no kernel for, or a problem that the kernel cannot run.
    """
    which = [None] * len(problems) if layers is None else layers
    asked = [(read_stack(name), load_profile(gpu) if isinstance(gpu, str) else gpu, problem, of)
             for name in stacks for gpu in gpus for problem, of in zip(problems, which, strict=True)]  # fmt: skip
    requests = []
    for stack, profile, given, _ in asked:
        problem = in_pages(given, stack)
        writes = (stack.append_kv if write is None else write) and problem.seq_lens is None and _has_new_keys(problem)
        requests.append(Request(problem, stack.kernel(profile), profile, Overrides(append_kv=writes), l2_start=l2_start,
                                method=method, clocks=clocks, launched=launched))  # fmt: skip
    made = predict_many(requests)
    return Latencies(tuple(
        replace(
            latency_of(stack, prediction, stack.append_kv if write is None else write, launched, calibration), layers=of
        )
        for (stack, _, _, of), prediction in zip(asked, made, strict=True)
    ))  # fmt: skip


def in_pages(problem: AttentionProblem, stack: Stack) -> AttentionProblem:
    """The problem with the stack's pages, where it names none.

    Raises:
        InputError: a backward pass.
    """
    if problem.passes != "fwd":
        raise InputError(f"`passes` {problem.passes}: a serving stack runs no backward; accepted: fwd")
    return problem if problem.page_size is not None else problem.with_(page_size=stack.page_size)


def _has_new_keys(problem: AttentionProblem) -> bool:
    return all(q <= k for q, k in problem.sequences)


def latency_of(
    stack: Stack, prediction: Prediction, write: bool = True, launched: str = "graph",
    calibration: Calibration | None = None,
) -> Latency:  # fmt: skip
    """A stack's call from the prediction of its launches."""
    problem, kernel, profile = prediction.problem, prediction.kernel, prediction.profile
    constants = calibration or Calibration(stack.call_gap_s)
    decodes = problem.longest_q == 1
    parts: list[Part] = []
    if write and problem.seq_lens is not None and _has_new_keys(problem):
        seconds = _written_s(problem, kernel, profile, launched)
        parts.append(Part("write to the cache", "write", seconds * constants.write_factor, _new(problem)))
    for launch in prediction.time.launches:
        if launch.name == WRITE:
            seconds = launch.total_s * constants.write_factor
            parts.append(Part("write to the cache", "write", seconds, _new(problem)))
        elif launch.name == "main":
            seconds = constants.attention_s(launch.total_s, launch.seconds.get("hbm", 0.0), decodes)
            parts.append(Part("attention", "attention", seconds, f"bound by {launch.bound_by}"))
        else:
            seconds = constants.attention_s(launch.total_s, 0.0, decodes)
            parts.append(Part(f"{launch.name} of {some(kernel.splits, 'split')}", "combine", seconds))
    for extra in stack.extras:
        if extra.is_launched(problem, kernel, profile):
            seconds = _extra_s(extra.bytes_moved(problem), problem, kernel, profile, launched)
            parts.append(Part(extra.name, "extra", seconds, extra.source))
    if launched == "graph":
        parts.append(Part("gap between calls", "gap", constants.call_gap_s, "calibrated" if calibration else "fitted"))
    return Latency(stack, prediction, tuple(parts), calibration)


def _new(problem: AttentionProblem) -> str:
    tokens = sum(q for q, _ in problem.sequences)
    return f"{tokens:,} new token{'s' * (tokens != 1)}"


def _written_s(problem: AttentionProblem, kernel: Kernel, profile: HardwareProfile, launched: str) -> float:
    """Seconds of the write of a batch of different lengths: as of as many sequences of one new token."""
    tokens = sum(q for q, _ in problem.sequences)
    one = problem.with_(seq_lens=None, seq_lens_k=None, batch=tokens, seq_q=1, seq_k=1, mask="none")
    writer = resolve(kernel.name, one, profile, Overrides(append_kv=True))
    call = Call.of(one, writer, profile)
    first = next(n for n, launch in enumerate(call.chain.launches) if launch.name == WRITE)
    warm = Conditions(l2_start="warm", launched=launched)
    return call.time(call.counted + call.capacity("warm"), warm).launches[first].total_s


def _extra_s(moved: int, problem: AttentionProblem, kernel: Kernel, profile: HardwareProfile, launched: str) -> float:
    """Seconds of a small launch that reads and writes half of `moved` bytes each, which the L2 has."""
    rows = max(1, moved // 2 // (problem.head_dim_v * problem.output_type.bytes))
    names = ("O_rows", "O") if moved else ()
    tensors = {
        name: Tensor(name, 1, 1, rows, problem.head_dim_v, problem.output_type.bytes, Role.TEMP) for name in names
    }
    accesses = tuple(
        Access(name, mode, Rows.QUERY, Per.QUERY) for name, mode in zip(names, (Mode.LOAD, Mode.STORE), strict=False)
    )
    launch = Launch("extra", Domain(1, 1, rows, 1, ROWS_A_CTA, 1), Outer.FLAT, accesses, tensor_cores=False)
    call = Call.of(problem, kernel, profile, Chain(tensors, (launch, launch), ()))
    return call.time(call.counted, Conditions(l2_start="warm", launched=launched)).launches[1].total_s
