"""Reader: every allocation of a step in order, and what lives at once.

The forward frees a storage after its last reader unless autograd, a checkpoint or autocast's cache keeps it. The
backward runs the nodes in reverse order of their recording, as PyTorch's engine does on one device; a node's saved
storages and its incoming gradient go when it has run. Gradients that meet are added in place where nobody else holds
the first one, else into a new tensor (torch/csrc/autograd/input_buffer.cpp). The first node of a checkpointed segment
that wants something saved runs the segment's forward again, up to the last thing that it saves
(torch/utils/checkpoint.py, not reentrant, early stop).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from iosim.base.records import dataclass
from iosim.readers.replay.blocks import Block, CachingAllocator
from iosim.show.tables import grouped
from iosim.studies.training import shares
from iosim.studies.training.graph import Gradient, Graph, Kind, Node, Storage, layer_of


@dataclass(frozen=True)
class Event:
    """A node, or the optimizer's step, as memory sees it. `peak_bytes` is reached while it runs; `by_kind` is what
    lives at that peak."""

    phase: str
    name: str
    node: int | None
    peak_bytes: int
    after_bytes: int
    by_kind: dict[Kind, int]


@dataclass(frozen=True)
class Timeline:
    """The events of one step, from the second step on: the optimizer's states are there from the start. `requests` has
    every allocation (its bytes) and release (minus its bytes) in order, by storage."""

    events: tuple[Event, ...]
    requests: tuple[tuple[str, int], ...] = ()

    @property
    def peak(self) -> Event:
        return max(self.events, key=lambda e: e.peak_bytes)

    @property
    def peak_bytes(self) -> int:
        return self.peak.peak_bytes

    def phase_peaks(self) -> dict[str, int]:
        by_phase = grouped(self.events, lambda e: e.phase)
        return {phase: max(e.peak_bytes for e in events) for phase, events in by_phase.items()}


class _Heap:
    """Storages that live, by name, with the number of holders each has."""

    def __init__(self) -> None:
        self.live: dict[str, Storage] = {}
        self.holders: Counter[str] = Counter()
        self.by_kind: Counter[Kind] = Counter()
        self.total = 0
        self.requests: list[tuple[str, int]] = []

    def hold(self, storage: Storage) -> None:
        self.holders[storage.name] += 1
        if storage.name not in self.live:
            self.live[storage.name] = storage
            self._count(storage, storage.bytes)

    def drop(self, name: str) -> None:
        self.holders[name] -= 1
        if not self.holders[name]:
            storage = self.live.pop(name)
            self._count(storage, -storage.bytes)

    def _count(self, storage: Storage, size: int) -> None:
        self.requests.append((storage.name, size))
        self.total += size
        self.by_kind[storage.kind] += size


class _Gathered:
    """Parameters that are shared out (ZeRO's stage 3) where they are read: a layer's, and the next one's, which is
    fetched beside it. Where every GPU has all of them nothing is gathered."""

    def __init__(self, graph: Graph, heap: _Heap) -> None:
        self.heap = heap
        self.size = shares.units(graph) if graph.setup.zero >= shares.PARAMETERS else None
        self.layers = [layer_of(node.name) for node in graph.nodes]
        self.live: set[int] = set()

    def begin(self) -> None:
        if self.size is not None:
            self._fetch(shares.ROOT)

    def end(self) -> None:
        self._free({shares.ROOT})

    def enter(self, n: int, towards: int) -> None:
        """Node `n` begins to run, in the direction of later layers (`towards` 1) or of earlier ones (-1)."""
        layer = self.layers[n]
        if self.size is None or layer is None:
            return
        self._free({live for live in self.live if live not in (shares.ROOT, layer)})
        for unit in (layer, layer + towards):
            if unit != shares.ROOT and unit in self.size:
                self._fetch(unit)

    def leave(self) -> None:
        """The last layer in this direction has run."""
        self._free(self.live - {shares.ROOT})

    def _fetch(self, unit: int) -> None:
        if unit not in self.live and self.size is not None:
            self.live.add(unit)
            self.heap.hold(Storage(_gathered(unit), Kind.GATHERED, self.size[unit]))

    def _free(self, units: set[int]) -> None:
        for unit in sorted(units & self.live):
            self.live.discard(unit)
            self.heap.drop(_gathered(unit))


def _gathered(unit: int) -> str:
    return "gathered" if unit == shares.ROOT else f"layer{unit}.gathered"


class _Player:
    def __init__(self, graph: Graph, in_place: bool) -> None:
        self.graph = graph
        self.in_place = in_place
        self.heap = _Heap()
        self.events: list[Event] = []
        self.optimizer, self.element_bytes = graph.setup.rule, graph.setup.number.parameter_bytes
        self.gathered = _Gathered(graph, self.heap)
        self.parameters = {p.name: p for p in graph.trained}
        self.gradient_of: dict[str, str] = {}
        self.again: dict[str, dict[str, str]] = {}
        self.transposed: set[str] = set()
        # A parameter that is used twice gets several gradients: its sum is ready with the last.
        self.awaited = Counter(gradient.to for node in graph.nodes for gradient in node.gradients)
        self.first_of = {
            node.segment: node for node in reversed(graph.nodes) if node.segment and node.keeps
        }
        self.made = 0
        constant = self._constant()
        for storage in (*constant, *graph.inputs, *((graph.seed,) if graph.seed_held else ())):
            self.heap.hold(storage)

    def _constant(self) -> list[Storage]:
        """Parameters, states of the optimizer and gradients of an earlier backward, or this GPU's shares of them."""
        graph, setup = self.graph, self.graph.setup
        constant = [
            Storage(p.name, Kind.PARAMETER, self._share(p.elements, shares.PARAMETERS))
            for p in graph.parameters
        ]
        stepped = shares.shares(setup, graph.trained)
        states = self.optimizer.state_bytes(stepped, setup.state_bytes)
        constant.append(Storage("states", Kind.OPTIMIZER, states))
        if setup.master_weights:
            masters = shares.master_bytes(setup, graph.trained)
            constant.append(Storage("masters", Kind.MASTER, masters))
        if setup.accumulate:
            constant += [
                Storage(f"{p.name}.grad", Kind.GRADIENT, self._share(p.elements, shares.GRADIENTS))
                for p in graph.trained
            ]
        return constant

    def _share(self, elements: int, stage: int) -> int:
        return shares.shared(self.graph.setup, elements, stage) * self.element_bytes

    def play(self) -> Timeline:
        self.gathered.begin()
        self._forward()
        self.gathered.leave()
        self._backward()
        self.gathered.leave()
        self.gathered.end()
        scratch = shares.step_bytes(self.graph.setup, self.graph.trained)
        self._event("step", f"{self.optimizer.name} step", None, scratch)
        return Timeline(tuple(self.events), tuple(self.heap.requests))

    def _event(self, phase: str, name: str, node: int | None, scratch: int = 0) -> None:
        heap = self.heap
        seen = {k: v for k, v in heap.by_kind.items() if v}
        if scratch:
            seen[Kind.WORKSPACE] = seen.get(Kind.WORKSPACE, 0) + scratch
            heap.requests += [("scratch", scratch), ("scratch", -scratch)]
        self.events.append(Event(phase, name, node, heap.total + scratch, heap.total, seen))

    # Forward

    def _forward(self) -> None:
        graph, heap = self.graph, self.heap
        # Reference counts decide: a storage goes with its last reader, unless it was saved as well.
        last = _last_readers(graph.nodes)
        result = graph.lies_in[graph.nodes[-1].values[0]]
        begun: set[str] = set()
        cached: list[str] = []
        for n, node in enumerate(graph.nodes):
            if node.segment is not None and node.segment not in begun:
                begun.add(node.segment)
                # A segment that keeps nothing for a backward lets go of its inputs at its end.
                kept = graph.segments[node.segment] if node.segment in self.first_of else ()
                for name in kept:
                    heap.hold(graph.storages[name])
            self.gathered.enter(n, 1)
            for storage in node.makes:
                heap.hold(storage)
            self._event("forward", node.name, n)
            for name in node.saved if node.segment is None else ():
                heap.hold(graph.storages[name])
            cached += [s.name for s in node.makes if s.cached]
            for name in last[n]:
                if (
                    not graph.storages[name].cached and name != result
                ):  # the caller keeps the result
                    heap.drop(name)
        for name in cached:
            heap.drop(name)

    # Backward

    def _backward(self) -> None:
        graph, heap = self.graph, self.heap
        self.gradient_of[graph.nodes[-1].values[0]] = graph.seed.name
        for _ in range(2):  # the engine, and the call to backward
            heap.hold(graph.seed)
        # Autograd runs nodes in the reverse order of their recording (sequence numbers).
        for n in range(len(graph.nodes) - 1, -1, -1):
            node = graph.nodes[n]
            self.gathered.enter(n, -1)
            if node.segment is not None and node.keeps and node.segment not in self.again:
                self._run_again(node.segment)
            self._node_backward(n, node)
        heap.drop(graph.seed.name)

    def _node_backward(self, n: int, node: Node) -> None:
        """What is saved lives until the node and the engine's fitting of its gradients are done; what a checkpoint
        computed again is held by the running node alone, and goes before the fitting."""
        heap = self.heap
        incoming = [self.gradient_of.pop(v) for v in node.values if v in self.gradient_of]
        sent = self._send(node, incoming, fitted=False)
        # Outside of segments the engine fits gradients while the node's saved tensors still live.
        if node.segment is None:
            sent += self._send(node, incoming, fitted=True)
        self._event("backward", node.name, n, node.backward_scratch)
        for name in self._kept(node):
            heap.drop(name)
        if node.segment is not None and any(g.fitted for g in node.gradients):
            sent += self._send(node, incoming, fitted=True)
            self._event("backward", node.name, n)
        if node.segment is not None and node is self.first_of.get(node.segment):
            for name in self.graph.segments[node.segment]:
                heap.drop(name)
        for name in incoming:
            heap.drop(name)
        for gradient, name in sent:
            self._deliver(n, node, gradient, name)

    def _kept(self, node: Node) -> Sequence[str]:
        return (
            node.saved
            if node.segment is None
            else [self.again[node.segment][name] for name in node.saved]
        )

    def _send(self, node: Node, incoming: list[str], *, fitted: bool) -> list[tuple[Gradient, str]]:
        """The gradients that a node gives, or the engine fits, as they come to live."""
        sent = []
        for gradient in (g for g in node.gradients if g.fitted is fitted):
            if gradient.bytes is None:
                self.heap.hold(self.heap.live[incoming[0]])
            sent.append(
                (
                    gradient,
                    incoming[0]
                    if gradient.bytes is None
                    else self._flow(gradient.to, gradient.bytes),
                )
            )
        return sent

    def _flow(self, to: str, size: int) -> str:
        self.made += 1
        kind = Kind.GRADIENT if to in self.parameters else Kind.FLOWING
        storage = Storage(f"gradient {self.made} of {to}", kind, size)
        self.heap.hold(storage)
        return storage.name

    def _deliver(self, n: int, node: Node, gradient: Gradient, name: str) -> None:
        """Hand a gradient to its receiver, where it may meet one that came before."""
        heap, to = self.heap, gradient.to
        earlier = self.gradient_of.get(to)
        if earlier is None:
            self.gradient_of[to] = name
        # Nobody else holds the first gradient: the second is added into it and goes.
        elif self.in_place and heap.holders[earlier] == 1 and earlier not in self.transposed:
            heap.drop(name)
        else:
            self.gradient_of[to] = self._flow(to, heap.live[earlier].bytes)
            self._event("backward", f"{node.name} (sum)", n)
            heap.drop(earlier)
            heap.drop(name)
        if gradient.transposed:
            self.transposed.add(name)
        if to in self.parameters:
            self.awaited[to] -= 1
            if not self.awaited[to]:
                self._complete(n, node, to)

    def _complete(self, n: int, node: Node, to: str) -> None:
        """A parameter's gradient is complete: shared out, and added to the gradient that is there."""
        heap, setup = self.heap, self.graph.setup
        if setup.zero >= shares.GRADIENTS:
            part = Storage(
                f"{to}.share",
                Kind.GRADIENT,
                self._share(self.parameters[to].elements, shares.GRADIENTS),
            )
            heap.hold(part)
            self._event("backward", f"{node.name} (shared out)", n)
            heap.drop(self.gradient_of[to])
            self.gradient_of[to] = part.name
        if f"{to}.grad" in heap.live:
            heap.drop(self.gradient_of[to])

    # Recomputation

    def _run_again(self, segment: str) -> None:
        """The segment's forward, up to the last thing that it saves; a kernel whose operands alone are saved does not
        run. What it saves stays, the rest goes."""
        graph, heap = self.graph, self.heap
        nodes = [(n, x) for n, x in enumerate(graph.nodes) if x.segment == segment]
        stop = max(i for i, (_, x) in enumerate(nodes) if x.keeps)
        # Recomputed storages live beside their first life's names.
        made_again = {s.name for _, x in nodes for s in x.makes}
        names = {
            s: f"{s} (again)" if s in made_again else s
            for _, x in nodes
            for s in (*made_again, *x.saved)
        }
        last = _last_readers([x for _, x in nodes])
        live: set[str] = set()
        # Early stop: nothing runs after the last storage that the backward needs.
        for i, (n, node) in enumerate(nodes[: stop + 1]):
            runs = i < stop or node.saves_output
            for s in node.makes if runs else ():
                heap.hold(Storage(names[s.name], s.kind, s.bytes))
                live.add(s.name)
            self._event("backward", f"{node.name} (again)", n)
            for name in node.saved:
                heap.hold(heap.live[names[name]])
            for name in last[i]:
                if name in live and not graph.storages[name].cached:
                    heap.drop(names[name])
                    live.discard(name)
        for name in sorted(live):
            heap.drop(names[name])
        self.again[segment] = names


def _last_readers(nodes: Sequence[Node]) -> list[list[str]]:
    last_use = {s.name: n for n, node in enumerate(nodes) for s in node.makes}
    for n, node in enumerate(nodes):
        last_use |= {name: n for name in (*node.reads, *node.held) if name in last_use}
    by_node = grouped(last_use, last_use.__getitem__)
    return [by_node.get(n, []) for n in range(len(nodes))]


def play(graph: Graph, *, in_place: bool = True) -> Timeline:
    """Allocations of one step. With `in_place` gradients that meet may be added in place (PyTorch never does so under a
    dispatch mode)."""
    return _Player(graph, in_place).play()


def allocated(requests: Iterable[tuple[str, int]]) -> CachingAllocator:
    """The allocator after a timeline's requests (`Timeline.requests`): `most` bytes of blocks in use at once
    (`memory_allocated`), and those `reserved` for all segments at the end."""
    allocator = CachingAllocator()
    live: dict[str, Block] = {}
    for name, size in requests:
        if size > 0:
            live[name] = allocator.allocate(size)
        elif size < 0:
            allocator.release(live.pop(name))
    return allocator
