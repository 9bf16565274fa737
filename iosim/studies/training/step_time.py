"""Reader: seconds of a step on a GPU.

Matrix products take their operations at the profile's rate or their bytes at HBM's, whichever is longer; elementwise
nodes their bytes; the attention of a layer what `iosim.predict` gives for its kernels, shared out among its nodes.
Every kernel adds one launch latency. NB: nothing stays in L2 between nodes, and the host is never the bottleneck.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import lru_cache

from iosim.base.errors import InputError
from iosim.base.records import dataclass, plain
from iosim.base.words import Method
from iosim.hardware.profile import HardwareProfile
from iosim.prediction.predictor import predict
from iosim.prediction.result import method_of
from iosim.problem.attention import AttentionProblem
from iosim.studies.training import shares
from iosim.studies.training.graph import Graph, Node, Part
from iosim.studies.training.model import Decoder, Setup

PHASES = ("forward", "backward", "recompute", "step")
KERNELS = {"naive": "eager", "flash": "sdpa"}
"""Catalog kernels whose times stand for the attention; `sdpa` is PyTorch's own choice for the GPU."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step. `nodes` has (phase, node index, seconds), `kernel` the attention kernel of the catalog."""

    nodes: tuple[tuple[str, int, float], ...]
    parts: dict[str, dict[Part, float]]
    kernel: str
    method: Method
    """How the attention's HBM bytes were found; of several, the least exact."""

    @property
    def total_s(self) -> float:
        return math.fsum(s for parts in self.parts.values() for s in parts.values())

    def phase_s(self, phase: str) -> float:
        return math.fsum(self.parts.get(phase, {}).values())

    def to_dict(self) -> dict[str, object]:
        phases = {
            phase: {str(p): s for p, s in parts.items()} for phase, parts in self.parts.items()
        }
        return plain(
            time_s=self.total_s, attention_kernel=self.kernel, attention_method=self.method
        ) | {"phases": phases}


@dataclass(frozen=True)
class Rates:
    """Operations per second of matrix products, bytes per second of HBM, and the seconds of an empty launch."""

    flops_per_s: float
    bytes_per_s: float
    launch_s: float

    @classmethod
    def of(cls, profile: HardwareProfile, dtype: str) -> Rates:
        """What large products reach (`HardwareProfile.product_flops`), in fp32 on the fp32 units, and HBM's measured or
        else specified rate. Raises InputError: the profile lacks a rate."""
        hbm = profile.dram_bandwidth_measured_bytes_per_s or profile.need(
            "dram_bandwidth_bytes_per_s"
        )
        return cls(profile.product_flops(dtype), hbm, profile.need("launch_latency_s"))

    def seconds(self, flops: int, bytes_moved: int) -> float:
        return self.launch_s + max(flops / self.flops_per_s, bytes_moved / self.bytes_per_s)


def step_time(graph: Graph, profile: HardwareProfile, kernel: str | None = None) -> StepTime:
    """Seconds of one step of `graph`, with the attention's time that of `kernel` (of the catalog; by default
    `KERNELS`')."""
    model, setup = graph.model, graph.setup
    rates = Rates.of(profile, setup.number.dtype)
    attention, method = _attention_seconds(model, setup, profile, kernel)
    timed: list[tuple[str, int, float]] = []
    for phase in ("forward", "backward"):
        seconds = [_seconds(graph, node, rates, phase) for node in graph.nodes]
        # The predicted seconds of a layer's attention are shared out among its nodes in proportion to
        # what a roofline gives each.
        inside = [n for n, node in enumerate(graph.nodes) if node.part is Part.ATTENTION]
        scale = model.layers * attention[phase] / math.fsum(seconds[n] for n in inside)
        extra = _beyond_prediction(graph, rates, phase)
        for n in inside:
            seconds[n] = seconds[n] * scale + extra.get(n, 0.0)
        timed += [(phase, n, s) for n, s in enumerate(seconds) if s]
        # A recomputed node takes as long as the first time.
        if phase == "forward":
            timed += [("recompute", n, seconds[n]) for n in _run_again(graph) if seconds[n]]
    parts: dict[str, dict[Part, float]] = {phase: defaultdict(float) for phase in PHASES}
    for phase, n, s in timed:
        parts[phase][graph.nodes[n].part] += s
    step_bytes = shares.moved_bytes(setup, graph.trained)
    if step_bytes:
        parts["step"][Part.OPTIMIZER] = rates.seconds(0, step_bytes)
    return StepTime(tuple(timed), parts, kernel or KERNELS[setup.attention], method)


def _run_again(graph: Graph) -> list[int]:
    """Nodes whose forward runs twice: of a segment all up to the last that saves something, and that one if it is
    its own result that it saves."""
    last = {x.segment: n for n, x in enumerate(graph.nodes) if x.segment is not None and x.keeps}
    return [
        n
        for n, x in enumerate(graph.nodes)
        if x.segment is not None
        and (n < last[x.segment] or (n == last[x.segment] and x.saves_output))
    ]


def _seconds(graph: Graph, node: Node, rates: Rates, phase: str) -> float:
    if not node.kernel:
        return 0.0
    bytes_moved, flops = _moved(graph, node, phase), node.flops
    # A product of the same size for each operand that gets a gradient; a frozen weight gets none.
    if phase == "backward":
        flops *= sum(not g.fitted for g in node.gradients)
    return rates.seconds(flops, bytes_moved) if bytes_moved or flops else 0.0


def _moved(graph: Graph, node: Node, phase: str) -> int:
    """Bytes that a node reads and writes: its operands and results forward; backward the incoming gradient (twice for
    a product, whose two gradients are made apart), what it saved and the gradients that it makes."""
    size = graph.setup.number.parameter_bytes
    # Embeddings are read by row number and not counted, unless the head multiplies by them.
    weights = sum(
        size * p.elements for p in graph.parameters_of(node) if not p.embedding or node.flops
    )
    if phase == "forward":
        made_bytes = sum(s.bytes for s in node.makes)
        return (
            made_bytes + sum(graph.storages[n].bytes for n in node.reads) + weights
            if made_bytes
            else 0
        )
    fresh = sum(g.bytes or 0 for g in node.gradients)
    if not fresh:
        return 0
    incoming = node.makes[0].bytes if node.makes else fresh
    saved_bytes = sum(graph.storages[n].bytes for n in node.saved)
    times = sum(not g.fitted for g in node.gradients) if node.flops else 1
    return times * incoming + saved_bytes + fresh + (weights if node.flops else 0)


def _beyond_prediction(graph: Graph, rates: Rates, phase: str) -> dict[int, float]:
    """Seconds of naive nodes that the attention's prediction does not know. masked_fill copies its input and then fills
    the copy in place (aten/src/ATen/native/TensorAdvancedIndexing.cpp): one more read and write. Autocast's softmax is
    in fp32: its result forward; result, incoming gradient and their product, written and read, backward, each wider
    than the half one by the difference of the types."""
    if graph.setup.attention != "naive":
        return {}
    times, number = {"forward": 1, "backward": 4}[phase], graph.setup.number
    wider = (1 - number.compute_bytes / number.parameter_bytes) * times
    share = {"masked": 2.0, "softmax": wider}
    return {
        n: share[kind] * node.makes[0].bytes / rates.bytes_per_s
        for n, node in enumerate(graph.nodes)
        if (kind := node.name.rpartition(".")[2]) in share
    }


def _attention_seconds(
    model: Decoder, setup: Setup, profile: HardwareProfile, kernel: str | None
) -> tuple[dict[str, float], Method]:
    """(seconds of a layer's attention by phase, how its HBM bytes were found)."""
    seconds, methods = {}, []
    if (
        kernel is None
        and setup.attention == "flash"
        and profile.computes_in_fp32(setup.number.dtype)
    ):
        why = f"{profile.name}'s tensor cores do not take {setup.number.dtype}, and no kernel of PyTorch's is described"
        accepted = "amp-fp16, fp16 or fp32, or `attention` naive"
        raise InputError(
            f"`precision` {setup.precision}: {why} for its backward there; accepted: {accepted}"
        )
    for phase, passes in (("forward", "fwd"), ("backward", "bwd")):
        problem = AttentionProblem(
            batch=setup.batch,
            heads=model.heads,
            kv_heads=model.kv_heads,
            seq_q=setup.seq_len,
            head_dim=model.head_dim,
            dtype=setup.number.dtype,
            mask="causal" if setup.causal else "none",
            passes=passes,
            layout="bshd",
        )
        seconds[phase], how = _predicted(problem, kernel or KERNELS[setup.attention], profile)
        methods.append(how)
    return seconds, method_of(methods)


@lru_cache(maxsize=4096)
def _predicted(
    problem: AttentionProblem, kernel: str, profile: HardwareProfile
) -> tuple[float, Method]:
    prediction = predict(problem, kernel, profile)
    return prediction.time.total_s, prediction.method
