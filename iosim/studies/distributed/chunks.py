"""Chunks of a sequence on several GPUs, and what a causal mask leaves of a pair of them.

A chunk is a `range` of tokens: neighbours (step 1), or every P-th token (striped). Query a of a chunk that starts at qs
is token qs + a step, key b likewise, so a causal mask keeps b <= a + floor((qs - ks) / step): an interval mask again,
with that offset. Everything else follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from iosim.base.errors import InputError
from iosim.problem.attention import AttentionProblem

MAX_GPUS = 512


def check_gpus(gpus: object) -> int:
    """`gpus` as a whole number of at least 1.

    Raises:
        InputError: it is none, or too large.
    """
    if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= MAX_GPUS:
        raise InputError(f"`gpus` {gpus!r} is out of range; accepted: 1 to {MAX_GPUS}")
    return gpus


def contiguous(tokens: int, parts: int) -> tuple[range, ...]:
    """`parts` runs of neighbours, the first ones a token longer where `parts` does not divide `tokens`.

    Raises:
        InputError: fewer tokens than parts.
    """
    if tokens < parts:
        raise InputError(f"`seq_q` {tokens} is too short for {parts} chunks; accepted: {parts} or more")
    base, longer = divmod(tokens, parts)
    starts = [n * base + min(n, longer) for n in range(parts + 1)]
    return tuple(range(starts[n], starts[n + 1]) for n in range(parts))


def striped(tokens: int, parts: int) -> tuple[range, ...]:
    """Token t in chunk t mod `parts` (Striped Attention, arXiv 2311.09431).

    Raises:
        InputError: fewer tokens than parts.
    """
    if tokens < parts:
        raise InputError(f"`seq_q` {tokens} is too short for {parts} chunks; accepted: {parts} or more")
    return tuple(range(n, tokens, parts) for n in range(parts))


@dataclass(frozen=True)
class Pair:
    """A query chunk against a key chunk under the mask, as one local attention call.

    `offset` is the causal diagonal's: query a keeps the keys b <= a + offset. None where the mask drops nothing.
    """

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
        masked = self.offset is not None and not self.is_full
        return whole.with_(
            seq_q=self.queries, seq_k=self.keys, passes=passes, mask="causal" if masked else "none",
            offset=self.offset if masked else None,
        )  # fmt: skip


def pair(queries: range, keys: range, causal: bool) -> Pair:
    """What the mask leaves of two chunks; both have the same step. Pairs that keep everything are equal."""
    offset = (queries.start - keys.start) // queries.step if causal else None
    if offset is not None and offset >= len(keys) - 1:
        offset = None
    return Pair(len(queries), len(keys), offset)


def check_problem(problem: AttentionProblem) -> bool:
    """Whether the problem is causal.

    Raises:
        InputError: a mask, lengths or options that are not distributed here.
    """
    if problem.mask not in ("none", "causal"):
        raise InputError(f"`mask` '{problem.mask}' is not distributed over GPUs here; accepted: none, causal")
    if problem.seq_q != problem.seq_k:
        raise InputError(f"`seq_k` {problem.seq_k} differs from `seq_q` {problem.seq_q}: one sequence is "
                         "split over the GPUs; accepted: equal lengths")  # fmt: skip
    if problem.mask == "causal" and problem.interval_mask.offset != 0:
        raise InputError(f"`offset` {problem.interval_mask.offset} is not distributed over GPUs here; accepted: 0")
    for option in problem.terms.values():
        raise InputError(f"`{option}` is not distributed over GPUs here; accepted: Q, K and V alone, with dropout 0")
    if problem.dropout:
        raise InputError(f"`dropout` {problem.dropout} is not distributed over GPUs here; accepted: 0")
    return problem.mask == "causal"
