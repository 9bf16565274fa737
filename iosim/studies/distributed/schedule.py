"""The chunk schedule: who computes which pair of chunks in which step, and what is sent meanwhile. Data, no more.

A step's computations use what a GPU owns and what arrived in the step before. A step's sends run beside its
computations, and arrive at its end:

- inputs (Q, K, V, and for the backward dO, O, LSE) are copied; the copy lasts for the next step, in which it may be
  used and sent on;
- partial results (O_part with its row statistics; dQ, dK, dV) are moved, and added to what their target holds. What a
  step computes is sent in the next one at the earliest.

A chunk is a `range` of tokens: neighbours (step 1), or every P-th token (striped). Query a of a chunk that starts at qs
is token qs + a step, key b likewise, so a causal mask keeps b <= a + floor((qs - ks) / step): an interval mask again,
with that offset.

Readers: `count` (bytes, idle slots and memory), `timing` (seconds), `closed_forms` (formulas in P).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from iosim.base.errors import InputError, unknown_name
from iosim.base.fields import whole
from iosim.base.records import asdict, cached_property, dataclass, plain
from iosim.base.units import some
from iosim.problem.attention import AttentionProblem
from iosim.show.tables import grouped

INPUTS = ("Q", "K", "V", "dO", "O", "LSE")
MAX_GPUS = 512
FP32_BYTES = 4
STATISTICS = 2


def check_gpus(gpus: object) -> int:
    return whole("num_gpus", gpus, 1, MAX_GPUS)


def check_length(tokens: int, parts: int) -> None:
    if tokens < parts:
        raise InputError(
            f"`seq_q` {tokens} is too short for {parts} chunks; accepted: {parts} or more"
        )


def contiguous(tokens: int, parts: int) -> tuple[range, ...]:
    """`parts` runs of neighbours, the first ones a token longer where `parts` does not divide `tokens`."""
    check_length(tokens, parts)
    base, longer = divmod(tokens, parts)
    # The first `longer` chunks have one token more.
    starts = [n * base + min(n, longer) for n in range(parts + 1)]
    return tuple(range(starts[n], starts[n + 1]) for n in range(parts))


def striped(tokens: int, parts: int) -> tuple[range, ...]:
    """Token t in chunk t mod `parts` (Striped Attention, arXiv 2311.09431)."""
    check_length(tokens, parts)
    return tuple(range(n, tokens, parts) for n in range(parts))


@dataclass(frozen=True)
class Pair:
    """A query chunk against a key chunk under the mask, as one local attention call."""

    queries: int
    keys: int
    offset: int | None

    @property
    def kept(self) -> int:
        """(query, key) pairs kept, of one head."""
        if self.offset is None:
            return self.queries * self.keys
        # Row a keeps clip(a + offset + 1, 0, keys) keys: first nothing, then a triangle, then everything.
        first = min(max(-self.offset, 0), self.queries)
        full = min(max(self.keys - self.offset, first), self.queries)
        low, high = first + self.offset + 1, full + self.offset
        return (low + high) * (full - first) // 2 + (self.queries - full) * self.keys

    @property
    def is_full(self) -> bool:
        return self.kept == self.queries * self.keys

    def problem(self, whole: AttentionProblem, passes: str) -> AttentionProblem:
        """The local call as an `AttentionProblem` with the heads and types of the whole one."""
        mask, offset = (
            ("none", None) if self.offset is None or self.is_full else ("causal", self.offset)
        )
        return whole.with_(
            seq_q=self.queries, seq_k=self.keys, passes=passes, mask=mask, offset=offset
        )


def pair(queries: range, keys: range, causal: bool) -> Pair:
    """What the mask leaves of two chunks; both have the same step. Pairs that keep everything are equal."""
    # Both chunks have the same step, so their difference in chunk-local rows is floor(d / step).
    offset = (queries.start - keys.start) // queries.step if causal else None
    if offset is not None and offset >= len(keys) - 1:
        offset = None
    return Pair(len(queries), len(keys), offset)


def check_problem(problem: AttentionProblem) -> bool:
    """True for a causal problem. Raises InputError: one that is not distributed here."""
    if problem.mask not in ("none", "causal"):
        raise InputError(
            f"`mask` '{problem.mask}' is not distributed over GPUs here; accepted: none, causal"
        )
    if problem.seq_q != problem.seq_k:
        why = "one sequence is split over the GPUs; accepted: equal lengths"
        raise InputError(f"`seq_k` {problem.seq_k} differs from `seq_q` {problem.seq_q}: {why}")
    if problem.mask == "causal" and problem.interval_mask.offset != 0:
        raise InputError(
            f"`offset` {problem.interval_mask.offset} is not distributed over GPUs here; accepted: 0"
        )
    for option in problem.terms.values():
        raise InputError(
            f"`{option}` is not distributed over GPUs here; accepted: Q, K and V alone, with dropout 0"
        )
    if problem.dropout:
        raise InputError(
            f"`dropout` {problem.dropout} is not distributed over GPUs here; accepted: 0"
        )
    return problem.mask == "causal"


def token_bytes(problem: AttentionProblem) -> dict[str, int]:
    """Tensor -> bytes per token, over all heads and sequences. Partial outputs and gradients travel in the output's type,
    row statistics in fp32, as DistFlashAttn's code does."""
    p = problem
    heads, kv_heads = p.batch * p.heads, p.batch * p.kv_heads
    e, out = p.input_type.bytes, p.output_type.bytes
    return {
        "Q": heads * p.head_dim * e,
        "K": kv_heads * p.head_dim * e,
        "V": kv_heads * p.head_dim_v * e,
        "O": heads * p.head_dim_v * out,
        "dO": heads * p.head_dim_v * out,
        "O_part": heads * p.head_dim_v * out,
        "LSE": heads * FP32_BYTES,
        "stats": heads * STATISTICS * FP32_BYTES,
        "dQ": heads * p.head_dim * out,
        "dK": kv_heads * p.head_dim * out,
        "dV": kv_heads * p.head_dim_v * out,
    }


def sequence_width_bytes(problem: AttentionProblem) -> int:
    """Bytes of one N x d tensor, d the width of all query heads: the unit "Nd" of arXiv 2310.03294, appendix D."""
    return (
        problem.batch * problem.seq_q * problem.heads * problem.head_dim * problem.input_type.bytes
    )


@dataclass(frozen=True)
class Compute:
    gpu: int
    queries: int
    keys: int


@dataclass(frozen=True)
class Send:
    source: int
    target: int
    tensors: tuple[str, ...]
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    computes: tuple[Compute, ...] = ()
    sends: tuple[Send, ...] = ()


LocalCall: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...], Pair]"
"""Query chunks, key chunks, and the call as one pair."""


@dataclass(frozen=True)
class ChunkSchedule:
    """A whole pass over P GPUs. `chunks` are token ranges, `owned[g]` the chunks that live on GPU g."""

    name: str
    gpus: int
    causal: bool
    backward: bool
    chunks: tuple[range, ...]
    owned: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]

    @property
    def passes(self) -> str:
        return "bwd" if self.backward else "fwd"

    def tokens(self, chunks: Iterable[int]) -> int:
        return sum(len(self.chunks[c]) for c in chunks)

    def sent_bytes(self, send: Send, widths: Mapping[str, int]) -> int:
        """Bytes of a message, with those of a token by tensor."""
        return self.tokens(send.chunks) * sum(widths[tensor] for tensor in send.tensors)

    def pair(self, compute: Compute) -> Pair:
        return pair(self.chunks[compute.queries], self.chunks[compute.keys], self.causal)

    @cached_property
    def calls(self) -> tuple[dict[int, list[LocalCall]], ...]:
        """By step, each computing GPU's local calls. Chunks that lie side by side in memory go into one call where all
        pairs of them are full, or where the GPU's own chunks meet under the mask: a zigzag's step has one call, as
        zhuzilin/ring-flash-attention has."""
        return tuple(
            {
                gpu: self._joined(computes)
                for gpu, computes in grouped(step.computes, lambda c: c.gpu).items()
            }
            for step in self.steps
        )

    def _joined(self, computes: Sequence[Compute]) -> list[LocalCall]:
        pairs = [self.pair(c) for c in computes]
        if len(computes) > 1:
            queries, keys = (
                tuple(sorted({getattr(c, of) for c in computes})) for of in ("queries", "keys")
            )
            # Kept pairs say what the joined call is: all of them, a rectangle; n (n + 1) / 2 of n x n, the
            # GPU's own chunks under the causal mask. Anything else stays pair by pair.
            n, m, kept_pairs = (
                self.tokens(queries),
                self.tokens(keys),
                sum(chunk_pair.kept for chunk_pair in pairs),
            )
            if kept_pairs == n * m:
                return [(queries, keys, Pair(n, m, None))]
            if queries == keys and kept_pairs == n * (n + 1) // 2:
                return [(queries, keys, Pair(n, n, 0))]
        return [
            ((c.queries,), (c.keys,), chunk_pair)
            for c, chunk_pair in zip(computes, pairs, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        chunks = [{"start": c.start, "tokens": len(c), "step": c.step} for c in self.chunks]
        rest = {
            "chunks": chunks,
            "owned": self.owned,
            "steps": [asdict(step) for step in self.steps],
        }
        return (
            plain(name=self.name, gpus=self.gpus, causal=self.causal, **{"pass": self.passes})
            | rest
        )

    def to_text(self) -> str:
        mask, way = (
            "causal" if self.causal else "no mask",
            "backward" if self.backward else "forward",
        )
        lines = [
            f"{self.name}, {some(self.gpus, 'GPU')}, {mask}, {way}: q2k0 is query chunk 2 against key chunk 0"
        ]
        for n, step in enumerate(self.steps):
            lines.append(f"step {n}")
            for gpu in range(self.gpus):
                work = (
                    " ".join(f"q{c.queries}k{c.keys}" for c in step.computes if c.gpu == gpu) or "-"
                )
                sent = "; ".join(
                    f"{'+'.join(s.tensors)} of {','.join(map(str, s.chunks))} to GPU {s.target}"
                    for s in step.sends
                    if s.source == gpu
                )
                lines.append(f"  GPU {gpu}: {work}" + (f" | sends {sent}" if sent else ""))
        return "\n".join(lines) + "\n"


class _Builder:
    def __init__(
        self, chunks: tuple[range, ...], owned: tuple[tuple[int, ...], ...], causal: bool
    ) -> None:
        self.chunks, self.owned, self.causal = chunks, owned, causal
        self.computes: dict[int, list[Compute]] = {}
        self.sends: dict[int, list[Send]] = {}

    def compute(self, step: int, gpu: int, queries: int, keys: int) -> None:
        """A computation, unless the mask leaves nothing of the pair."""
        if pair(self.chunks[queries], self.chunks[keys], self.causal).kept:
            self.computes.setdefault(step, []).append(Compute(gpu, queries, keys))

    def send(
        self, step: int, source: int, target: int, tensors: tuple[str, ...], chunks: Iterable[int]
    ) -> None:
        if source != target:
            self.sends.setdefault(step, []).append(Send(source, target, tensors, tuple(chunks)))

    def made(self, name: str, backward: bool) -> ChunkSchedule:
        last = max([*self.computes, *self.sends])
        steps = tuple(
            Step(tuple(self.computes.get(n, ())), tuple(self.sends.get(n, ())))
            for n in range(last + 1)
        )
        return ChunkSchedule(
            name, len(self.owned), self.causal, backward, self.chunks, self.owned, steps
        )


def _rotating(b: _Builder, backward: bool) -> None:
    """Keys and values go round the ring; backward, their gradients follow one step behind and end at home."""
    gpus = len(b.owned)
    for t in range(gpus):
        for g in range(gpus):
            # At step t GPU g holds the keys of the GPU t places before it on the ring.
            home = (g - t) % gpus
            for queries in b.owned[g]:
                for keys in b.owned[home]:
                    b.compute(t, g, queries, keys)
            after = (g + 1) % gpus
            # Keys and values are of no use after the last step; their gradients go one hop further, home.
            if t < gpus - 1:
                b.send(t, g, after, ("K", "V"), b.owned[home])
            if backward:
                b.send(t + 1, g, after, ("dK", "dV"), b.owned[home])


def _vanilla(b: _Builder, backward: bool) -> None:
    """Every GPU fetches the chunks it needs from where they live (DistFlashAttn, Algorithm 1)."""
    gpus = len(b.owned)
    for t in range(gpus):
        # Under a causal mask GPU g has nothing to fetch from GPUs after it: g - t >= 0.
        for g in range(t if b.causal else 0, gpus):
            keys = (g - t) % gpus
            b.compute(t, g, g, keys)
            if t:
                _fetch_keys(b, t, g, keys, backward)


def _fetch_keys(b: _Builder, t: int, gpu: int, keys: int, backward: bool) -> None:
    """K and V before step t; backward, their gradients back after it."""
    b.send(t - 1, keys, gpu, ("K", "V"), (keys,))
    if backward:
        b.send(t + 1, gpu, keys, ("dK", "dV"), (keys,))


def _balanced(b: _Builder, backward: bool) -> None:
    """GPUs whose own work has ended compute for those with more (DistFlashAttn, Algorithm 2). At step t GPU p >= t
    attends to chunk p - t, and GPU p < t, a helper, computes the pair (p - t + P, p), which its owner would reach at
    step P - t. NB: at t = P / 2 both are the same pair, and helpers idle; the printed algorithm's exception for t =
    floor(P / 2) is right for even P alone."""
    gpus = len(b.owned)
    for t in range(gpus // 2 + 1):
        for g in range(gpus):
            if g >= t:
                b.compute(t, g, g, g - t)
                if t:
                    _fetch_keys(b, t, g, g - t, backward)
            # A helper gets the queries one step ahead and sends its partial results one step after.
            elif 2 * t < gpus:
                helped = g - t + gpus
                b.compute(t, g, helped, g)
                b.send(t - 1, helped, g, ("Q", "dO", "O", "LSE") if backward else ("Q",), (helped,))
                b.send(t + 1, g, helped, ("dQ",) if backward else ("O_part", "stats"), (helped,))


@dataclass(frozen=True)
class Kind:
    """A way to distribute attention: how tokens are cut, who owns what, who fetches what."""

    title: str
    cut: Callable[[int, int], tuple[range, ...]]
    build: Callable[[_Builder, bool], None]
    source: str
    causal_only: bool = False
    chunks_per_gpu: int = 1


SCHEDULES: dict[str, Kind] = {
    "ring": Kind(
        "ring attention", contiguous, _rotating, "arXiv 2310.01889, section 3 and Algorithm 1"
    ),
    "vanilla": Kind(
        "DistFlashAttn, unbalanced", contiguous, _vanilla, "arXiv 2310.03294, Algorithm 1"
    ),
    "balanced": Kind(
        "DistFlashAttn, balanced", contiguous, _balanced, "arXiv 2310.03294, Algorithm 2", True
    ),
    "zigzag": Kind("zigzag ring", contiguous, _rotating, "zhuzilin/ring-flash-attention", True, 2),
    "striped": Kind("striped ring", striped, _rotating, "arXiv 2311.09431", True),
}


def schedules(causal: bool) -> tuple[str, ...]:
    return tuple(name for name, kind in SCHEDULES.items() if causal or not kind.causal_only)


def build(
    name: str, problem: AttentionProblem, gpus: int, *, backward: bool = False
) -> ChunkSchedule:
    if name not in SCHEDULES:
        raise unknown_name("`schedule`", name, SCHEDULES)
    kind, gpus, causal = SCHEDULES[name], check_gpus(gpus), check_problem(problem)
    if kind.causal_only and not causal:
        hint = f"accepted without `causal`: {', '.join(schedules(False))}"
        raise InputError(f"`schedule` {name} balances a causal mask and there is none; {hint}")
    chunks = kind.cut(problem.seq_q, gpus * kind.chunks_per_gpu)
    # Zigzag: one chunk from the start and its mirror from the end, equal work under a causal mask.
    owned = tuple((g,) if kind.chunks_per_gpu == 1 else (g, 2 * gpus - 1 - g) for g in range(gpus))
    b = _Builder(chunks, owned, causal)
    kind.build(b, backward)
    return b.made(name, backward)
