"""Sparse attention: the indexer's launches, and the latent cache's launch over picked keys."""

from __future__ import annotations

import numpy as np

from executor.bodies.flash import Combine, Forward, append
from executor.bodies.terms import masked_scores
from executor.body import Array, Body, Indices, Place, body
from iosim.catalog.algorithms.indexer import LISTS
from iosim.problem.attention import AttentionProblem


@body("mla", "main")
class Latent(Forward):
    """Online softmax over the visited keys, or a list's, values taken from the same tile."""

    def pair(self, at: Place) -> None:
        p = at.problem
        if not p.gathers:
            self.softmax.add(masked_scores(at), at["K"][:, : p.head_dim_v], at.dropout_factor)
            return
        rows = at["K"]
        if (
            p.compress_ratio is not None
        ):  # in fp8 columns with positions lie as one byte each, scales behind them
            rows = rows[:, : p.head_dim]
        elif p.cache_dtype is not None:  # scales are 1 in the executing reader
            last = p.head_dim - p.head_dim_v
            rows = np.concatenate(
                (rows[:, : p.head_dim_v], rows[:, rows.shape[1] - 2 * last :][:, :last]), axis=1
            )
        present = at[LISTS][0] >= 0
        scores = np.where(present[None, :], at["Q"] @ rows.T * at.scale, -np.inf)
        self.softmax.add(scores, rows[:, : p.head_dim_v], at.dropout_factor)


body("mla", "combine")(Combine)
body("mla", "append")(append)


@body("mla", "lists")
def list_all(at: Place) -> None:
    """All keys that the queries see, in order."""
    p = at.problem
    entries = np.arange(
        min(p.top_k or 0, p.scored_keys) if p.compress_ratio is not None else p.top_k or 0
    )[None, :]
    sees = p.scored_mask.end_key(at.q[:, None], p.scored_keys)
    at.put(LISTS, behind_window(p, at.q, np.where(entries < sees, entries, -1)))


def behind_window(p: AttentionProblem, queries: Indices, picks: Array) -> Array:
    """Lists of picked keys; beside compressed ones, behind the places of the tokens of each query's window."""
    if p.compress_ratio is None:
        return picks.astype(np.float64)
    behind = p.shown_tokens
    last = queries[:, None] + p.seq_k - p.seq_q
    tokens = last + 1 - behind + np.arange(behind)[None, :]
    first = max(0, p.seq_k - p.seq_q + 1 - behind)
    window = np.where(tokens >= 0, p.scored_keys + tokens - first, -1)
    return np.concatenate((window, picks), axis=1).astype(np.float64)


@body("mla", "logits")
def score(at: Place) -> None:
    weights, keys = at["index_weights"], at["index_K"]
    heads = weights.shape[1]
    scores = np.maximum(
        np.einsum("thd,sd->ths", at["index_Q"].reshape(len(weights), heads, -1), keys), 0.0
    )
    at.put("logits", np.einsum("ths,th->ts", scores, weights) * at["index_scale"].T)


@body("mla", "top_k")
class Select(Body):
    """The places of the largest logits, in ascending order; all of them where there are too few."""

    def begin(self, at: Place) -> None:
        self.seen: list[Array] = []

    def pair(self, at: Place) -> None:
        kept_pairs = at.problem.scored_mask.keeps(at.q[:, None], at.keys[None, :])
        self.seen.append(np.where(kept_pairs, at["logits"], -np.inf)[0])

    def end(self, at: Place) -> None:
        logits = np.concatenate(self.seen or [np.zeros(0)])
        picks = at.problem.top_k or 0
        best = np.sort(
            np.argsort(-logits, kind="stable")[: min(picks, int(np.isfinite(logits).sum()))]
        )
        at.put(
            LISTS,
            behind_window(
                at.problem, at.q, np.concatenate((best, np.full(picks - best.size, -1)))[None, :]
            ),
        )
