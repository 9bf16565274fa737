"""The executing reader: P ranks with arrays of their own run a chunk schedule, and every byte sent is counted.

A rank may use what it owns and what arrived in the step before; a schedule that forgets a message, or sends what its
source does not hold, fails here. Arithmetic is float64, and nothing is rounded on the wire. Formulas: online softmax
and its merge, and the gradients from the log-sum-exp, of arXiv 2307.08691, sections 2.3 and 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from executor.body import ExecutionError
from executor.reference import random_arrays, reference

from iosim.base.errors import InputError
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed.schedule import INPUTS, ChunkSchedule, Compute, Send, token_bytes

Array = npt.NDArray[np.float64]
Key = tuple[str, int]
"""(tensor, chunk)."""

MAX_PAIRS = 1 << 26


@dataclass
class Partial:
    """Unnormalised output of a query chunk, with its row maximum and row sum."""

    output: Array
    maximum: Array
    total: Array

    def merge(self, other: Partial) -> None:
        """Rescale both to the common maximum and add."""
        top = np.maximum(self.maximum, other.maximum)
        safe = np.where(np.isneginf(top), 0.0, top)
        mine = np.exp(self.maximum - safe)
        theirs = np.exp(other.maximum - safe)
        self.output = self.output * mine[..., None] + other.output * theirs[..., None]
        self.total = self.total * mine + other.total * theirs
        self.maximum = top


@dataclass
class Rank:
    """One GPU: what it owns, what arrived for this step and for the next, and its partial results."""

    owned: dict[Key, Array]
    inbox: dict[Key, Array] = field(default_factory=dict)
    arriving: dict[Key, Array] = field(default_factory=dict)
    partials: dict[int, Partial] = field(default_factory=dict)
    gradients: dict[Key, Array] = field(default_factory=dict)

    def get(self, tensor: str, chunk: int) -> Array:
        """An input held in this step.

        Raises:
            ExecutionError: the rank neither owns it nor received it in the step before.
        """
        for place in (self.owned, self.inbox):
            if (tensor, chunk) in place:
                return place[tensor, chunk]
        raise ExecutionError(f"{tensor} of chunk {chunk} is not here in this step")

    def add_partial(self, chunk: int, partial: Partial) -> None:
        if chunk in self.partials:
            self.partials[chunk].merge(partial)
        else:
            self.partials[chunk] = partial

    def add_gradient(self, key: Key, value: Array) -> None:
        self.gradients[key] = self.gradients[key] + value if key in self.gradients else value


@dataclass(frozen=True)
class DistributedExecution:
    """What an execution gives.

    Args:
        outputs: O and LSE, and dQ, dK, dV of a backward, whole: [batch, heads, seq, cols], LSE [batch, heads, seq].
        received: bytes received by each GPU.
        tensors: bytes over all links, by tensor.
        peak_received: bytes of received inputs that a GPU holds at once, at most: this step's and those arriving.
    """

    outputs: dict[str, Array]
    received: tuple[int, ...]
    tensors: dict[str, int]
    peak_received: tuple[int, ...]


def execute(
    schedule: ChunkSchedule,
    problem: AttentionProblem,
    arrays: Mapping[str, npt.ArrayLike] | None = None,
    seed: int = 0,
) -> DistributedExecution:
    """Run a schedule on arrays.

    Args:
        arrays: Q, K, V [batch, heads, seq, cols]; for a backward also dO, and O and LSE of the forward, which are
            computed densely where they are not given. Random ones by default.

    Raises:
        InputError: the problem is too large.
        ExecutionError: a rank uses or sends what it does not hold.
    """
    if problem.batch * problem.heads * problem.seq_q**2 > MAX_PAIRS:
        raise InputError(
            f"`seq_q` {problem.seq_q} is too long to execute; accepted: up to {MAX_PAIRS} pairs"
        )
    whole = problem.with_(passes="bwd" if schedule.backward else "fwd")
    inputs = {
        n: np.asarray(a, dtype=np.float64)
        for n, a in (arrays or random_arrays(whole, seed)).items()
    }
    if schedule.backward and "LSE" not in inputs:
        inputs |= {
            n: a
            for n, a in reference(whole.with_(passes="fwd"), inputs).items()
            if n in ("O", "LSE")
        }
    return _Run(schedule, problem, inputs).run()


class _Run:
    def __init__(
        self, schedule: ChunkSchedule, problem: AttentionProblem, inputs: Mapping[str, Array]
    ) -> None:
        self.schedule, self.problem = schedule, problem
        self.widths = token_bytes(problem)
        names = [n for n in INPUTS if n in inputs and (schedule.backward or n in ("Q", "K", "V"))]
        self.ranks = [
            Rank(
                {(n, c): inputs[n][:, :, _slice(schedule.chunks[c])] for n in names for c in chunks}
            )
            for chunks in schedule.owned
        ]
        self.received = [0] * schedule.gpus
        self.peak = [0] * schedule.gpus
        self.tensors: dict[str, int] = {}

    def run(self) -> DistributedExecution:
        for step in self.schedule.steps:
            sends = [
                (s, [self._taken(s, t, c) for t in s.tensors for c in s.chunks]) for s in step.sends
            ]
            for compute in step.computes:
                self._compute(compute)
            for send, values in sends:
                self._deliver(send, values)
            for g, rank in enumerate(self.ranks):
                held_bytes = sum(self._bytes(k) for k in (*rank.inbox, *rank.arriving))
                self.peak[g] = max(self.peak[g], held_bytes)
                rank.inbox, rank.arriving = rank.arriving, {}
        return DistributedExecution(
            self._outputs(), tuple(self.received), self.tensors, tuple(self.peak)
        )

    def _bytes(self, key: Key) -> int:
        return len(self.schedule.chunks[key[1]]) * self.widths[key[0]]

    def _taken(self, send: Send, tensor: str, chunk: int) -> Array | Partial | None:
        """What leaves its source at the start of a step: a copy of an input, or a partial result, which moves."""
        rank = self.ranks[send.source]
        if tensor in INPUTS:
            return rank.get(tensor, chunk)
        if tensor == "stats":  # travels with O_part
            return None
        if tensor == "O_part":
            if chunk not in rank.partials:
                raise ExecutionError(
                    f"GPU {send.source} has no partial output of chunk {chunk} to send"
                )
            return rank.partials.pop(chunk)
        if (tensor, chunk) not in rank.gradients:
            raise ExecutionError(f"GPU {send.source} has no {tensor} of chunk {chunk} to send")
        return rank.gradients.pop((tensor, chunk))

    def _deliver(self, send: Send, values: list[Array | Partial | None]) -> None:
        rank = self.ranks[send.target]
        keys = [(t, c) for t in send.tensors for c in send.chunks]
        for key, value in zip(keys, values, strict=True):
            self.received[send.target] += self._bytes(key)
            self.tensors[key[0]] = self.tensors.get(key[0], 0) + self._bytes(key)
            if isinstance(value, Partial):
                rank.add_partial(key[1], value)
            elif value is not None and key[0] in INPUTS:
                rank.arriving[key] = value
            elif value is not None:
                rank.add_gradient(key, value)

    def _compute(self, c: Compute) -> None:
        rank = self.ranks[c.gpu]
        q = rank.get("Q", c.queries)
        k = rank.get("K", c.keys)
        v = rank.get("V", c.keys)
        group = self.problem.group
        k = np.repeat(k, group, axis=1)
        v = np.repeat(v, group, axis=1)
        scale = self.problem.head_dim**-0.5
        scores = np.where(self._kept(c), np.einsum("bhid,bhjd->bhij", q, k) * scale, -np.inf)
        if not self.schedule.backward:
            top = scores.max(axis=-1)
            weights = np.exp(scores - np.where(np.isneginf(top), 0.0, top)[..., None])
            rank.add_partial(
                c.queries,
                Partial(np.einsum("bhij,bhjd->bhid", weights, v), top, weights.sum(axis=-1)),
            )
            return
        do, o, lse = (rank.get(n, c.queries) for n in ("dO", "O", "LSE"))
        weights = np.exp(scores - np.where(np.isneginf(lse), 0.0, lse)[..., None])
        dp = np.einsum("bhid,bhjd->bhij", do, v)
        ds = weights * (dp - (do * o).sum(axis=-1, keepdims=True)) * scale
        rank.add_gradient(("dQ", c.queries), np.einsum("bhij,bhjd->bhid", ds, k))
        rank.add_gradient(("dK", c.keys), self._grouped(np.einsum("bhij,bhid->bhjd", ds, q)))
        rank.add_gradient(("dV", c.keys), self._grouped(np.einsum("bhij,bhid->bhjd", weights, do)))

    def _kept(self, c: Compute) -> npt.NDArray[np.bool_]:
        """From the tokens themselves, not from the pair's offset."""
        i, j = (np.asarray(self.schedule.chunks[n]) for n in (c.queries, c.keys))
        kept_pairs = (
            j[None, :] <= i[:, None]
            if self.schedule.causal
            else np.ones((i.size, j.size), dtype=np.bool_)
        )
        return np.asarray(kept_pairs, dtype=np.bool_)

    def _grouped(self, gradient: Array) -> Array:
        b, _, rows, cols = gradient.shape
        p = self.problem
        return np.asarray(gradient.reshape(b, p.kv_heads, p.group, rows, cols).sum(axis=2))

    def _outputs(self) -> dict[str, Array]:
        """The owners' results, put together; what lies elsewhere is lost."""
        p, s = self.problem, self.schedule
        wide = {
            "dQ": (p.heads, p.head_dim),
            "dK": (p.kv_heads, p.head_dim),
            "dV": (p.kv_heads, p.head_dim_v),
        }
        if s.backward:
            out = {n: np.zeros((p.batch, h, p.seq_q, d)) for n, (h, d) in wide.items()}
            for rank, chunks in zip(self.ranks, s.owned, strict=True):
                for c in chunks:
                    for n in wide:
                        if (n, c) in rank.gradients:
                            out[n][:, :, _slice(s.chunks[c])] = rank.gradients[n, c]
            return out
        rows = (p.batch, p.heads, p.seq_q)
        out = {"O": np.zeros((*rows, p.head_dim_v)), "LSE": np.full(rows, -np.inf)}
        for rank, chunks in zip(self.ranks, s.owned, strict=True):
            for c in chunks:
                if c in rank.partials:
                    part = rank.partials[c]
                    where = _slice(s.chunks[c])
                    with np.errstate(
                        divide="ignore", invalid="ignore"
                    ):  # rows that a wrong schedule left empty
                        out["O"][:, :, where] = part.output / part.total[..., None]
                        out["LSE"][:, :, where] = part.maximum + np.log(part.total)
        return out


def _slice(tokens: range) -> slice:
    return slice(tokens.start, tokens.stop, tokens.step)
