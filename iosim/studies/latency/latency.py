"""The latency of one attention call inside a serving stack, as a list of parts.

A stack (`iosim.kernel.serving`) says which kernel a GPU runs, in which pages the cache lies, whether the call writes to
it first, and what else it launches. The launches are predicted as anywhere else, from a CUDA graph and with what the
same call left in the L2; what none of them explains is the gap between calls, a constant of the stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from iosim.base.errors import InputError
from iosim.base.units import some
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.conditions import CONDITIONS, Conditions
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Access, Chain, Domain, Launch, Mode, Outer, Per, Role, Rows, Tensor
from iosim.kernel.libraries import resolve
from iosim.kernel.overrides import Overrides
from iosim.kernel.serving import Stack, read_stack
from iosim.prediction.call import Call
from iosim.prediction.many import Request, predict_many
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.studies.latency.calibration import Calibration
from iosim.studies.models.layers import Layers
from iosim.studies.requests import LatencyRequest

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
        return of_layers(self.layers) | {
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
        first, sizes = self.points[0], [sizes_of(p.prediction.problem) for p in self.points]
        return {
            "model": self.title, "stack": first.stack.name, "profile": first.prediction.profile.name,
            "layers": self.count, "batch": sizes[0]["batch"], "seq_q": sizes[0]["seq_q"],
            "seq_k": max(size["seq_k"] for size in sizes), "time_s": self.total_s,
        }  # fmt: skip


def of_layers(layers: Layers | None) -> dict[str, Any]:
    return {} if layers is None else {"model": layers.title, "layer": layers.name, "count": layers.count}


def sizes_of(problem: AttentionProblem) -> dict[str, Any]:
    each = problem.sequences
    return {"batch": len(each), "heads": problem.heads, "kv_heads": problem.kv_heads, "seq_q": problem.longest_q,
            "seq_k": max(k for _, k in each), "head_dim": problem.head_dim}  # fmt: skip


def latencies(
    problems: Sequence[tuple[Layers | None, AttentionProblem]],
    request: LatencyRequest,
    calibration: Calibration | None = None,
) -> tuple[Latency, ...]:
    """Every problem in every stack on every GPU of a request, under its conditions. Raises InputError: an unknown
    stack, a GPU that it has no kernel for, or a problem that the kernel cannot run.

    Args:
        problems: each with the layers of a model that it is of.
        calibration: of the stack on that GPU, in place of its shipped constants.
    """
    r = request
    profiles = [load_profile(gpu) if isinstance(gpu, str) else gpu for gpu in r.gpu]
    asked = [(read_stack(name), profile, *one) for name in r.stack for profile in profiles for one in problems]
    how: dict[str, Any] = {name: getattr(r, name) for name in CONDITIONS}
    requests = []
    for stack, profile, _, given in asked:
        problem = in_pages(given, stack)
        writes = r.cache_write and stack.append_kv and problem.seq_lens is None and _has_new_keys(problem)
        requests.append(Request(problem, stack.kernel(profile), profile, Overrides(append_kv=writes), **how))
    return tuple(
        replace(
            latency_of(stack, prediction, r.cache_write and stack.append_kv, r.launched, calibration), layers=layers
        )
        for (stack, _, layers, _), prediction in zip(asked, predict_many(requests), strict=True)
    )


def in_pages(problem: AttentionProblem, stack: Stack) -> AttentionProblem:
    """The problem with the stack's pages, where it names none. Raises InputError: a backward pass."""
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
