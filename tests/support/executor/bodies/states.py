"""States that a launch walks: `delta_rule` and `ssd`."""

from __future__ import annotations

import numpy as np

from executor.body import Array, Body, Place, body
from iosim.catalog.algorithms.delta_rule import DeltaOptions, Gate
from iosim.catalog.algorithms.registry import options_of
from iosim.catalog.algorithms.states import STATE


class Walk(Body):
    """A head's state over the chunks of a sequence: `pair` takes it over one."""

    def begin(self, at: Place) -> None:
        p = at.problem
        before = any(a.tensor == STATE for a in at.launch.accesses)
        self.state: Array = at[STATE] if before else np.zeros((p.head_dim, p.head_dim_v))

    def end(self, at: Place) -> None:
        if at.writes("state_after"):
            at.put("state_after", self.state)


# The delta rule.

ONE: Array = np.ones((1, 1))


def unit(rows: Array) -> Array:
    """Rows of length 1."""
    lengths: Array = np.sqrt((rows * rows).sum(axis=1, keepdims=True) + 1e-6)
    return rows / lengths


@body("delta_rule", "norm_q", "norm_k")
def norm(at: Place) -> None:
    name = at.launch.name[-1].upper()
    at.put(f"{name}_norm", unit(at[name]))


@body("delta_rule", "cumsum")
def cumsum(at: Place) -> None:
    sums = at["g"].cumsum(axis=0)
    at.put("g_sum", sums)
    if at.writes("decay"):
        at.put("decay", sums[-1:])


def _keys(at: Place) -> Array:
    return at["K_norm" if options_of(at.kernel, DeltaOptions).norm else "K"]


def _queries(at: Place) -> Array:
    return at["Q_norm" if options_of(at.kernel, DeltaOptions).norm else "Q"]


def decayed(rows: Array, keys: Array, sums: Array) -> Array:
    """rows_i . keys_j, each column decayed from token j to token i; where j <= i, else 0."""
    between = np.tril(np.ones((len(rows), len(rows))))[:, :, None] * (sums[:, None] - sums[None, :])
    products: Array = np.einsum(
        "id,jd,ijd->ij", rows, keys, np.exp(between) * np.ones(keys.shape[1])
    )
    return np.tril(products)


def inverse(square: Array, beta: Array) -> Array:
    """(I + tril(beta square, -1))^-1."""
    return np.asarray(
        np.linalg.inv(np.eye(len(square)) + np.tril(beta * square, -1)), dtype=np.float64
    )


def _whole(at: Place, square: Array) -> Array:
    """A chunk's square with the columns of a whole chunk."""
    return np.pad(square, ((0, 0), (0, at.kernel.tile.block_k - square.shape[1])))


@body("delta_rule", "fill")
def fill(at: Place) -> None:
    at.put("A", np.zeros((len(at.q), at.kernel.tile.block_k)))


@body("delta_rule", "kkt_solve")
def kkt_solve(at: Place) -> None:
    at.put("A", _whole(at, inverse(decayed(_keys(at), _keys(at), at["g_sum"]), at["beta"])))


class Parts:
    """A chunk's square in two: each token's columns of its `near` part of the chunk, and all the others, `far`."""

    def __init__(self, at: Place, tokens: int) -> None:
        self.chunk, part = at.kernel.tile.block_k, options_of(at.kernel, DeltaOptions).sub_chunk
        self.columns = np.arange(tokens)[:, None] // part * part + np.arange(part)[None, :]
        self.is_far = np.ones((tokens, self.chunk), dtype=np.bool_)
        np.put_along_axis(self.is_far, self.columns, False, axis=1)

    def near(self, square: Array) -> Array:
        return np.take_along_axis(square, self.columns, axis=1)

    def far(self, square: Array) -> Array:
        return square[self.is_far].reshape(len(square), -1)

    def joined(self, near: Array, far: Array) -> Array:
        """[tokens, tokens] of the two."""
        square = np.zeros(self.is_far.shape)
        square[self.is_far] = far.reshape(-1)
        np.put_along_axis(square, self.columns, near, axis=1)
        return square[:, : len(square)]


@body("delta_rule", "kkt")
def kkt(at: Place) -> None:
    keys, sums = _keys(at), at["g_sum"]
    square = at["beta"] * decayed(keys, keys, sums)
    parts = Parts(at, len(keys))
    if at.writes("KK_near"):
        at.put("KK_near", parts.near(_whole(at, square)))
        at.put("KK_far", parts.far(_whole(at, square)))
        return
    at.put("near", parts.near(_whole(at, square)))
    at.put("Aqk_near", parts.near(_whole(at, decayed(_queries(at), keys, sums) * at.scale)))


@body("delta_rule", "solve")
def solve(at: Place) -> None:
    """The inverse of one part, or of KDA's whole chunk."""
    if not at.writes("A"):
        square = at["KK_near"]
        at.put(
            "near",
            np.pad(
                inverse(square[:, : len(square)], ONE), ((0, 0), (0, square.shape[1] - len(square)))
            ),
        )
        return
    keys, sums = _keys(at), at["g_sum"]
    parts = Parts(at, len(keys))
    far = parts.far(_whole(at, at["beta"] * decayed(keys, keys, sums)))
    at.put("A", _whole(at, inverse(parts.joined(at["near"], far), ONE)))
    at.put("Aqk_far", parts.far(_whole(at, decayed(_queries(at), keys, sums) * at.scale)))


@body("delta_rule", "merge")
def merge(at: Place) -> None:
    """(D + F)^-1 of the parts' inverse, D^-1, and what is far from them: (I + D^-1 F)^-1 D^-1."""
    near, far = at["near"], at["KK_far"]
    parts = Parts(at, len(near))
    diagonal = parts.joined(near, np.zeros_like(far))
    at.put(
        "A", _whole(at, inverse(diagonal @ parts.joined(np.zeros_like(near), far), ONE) @ diagonal)
    )


@body("delta_rule", "recompute")
def recompute(at: Place) -> None:
    keys = _keys(at)
    sums = at["g_sum"]
    beta = at["beta"]
    mine = at["A"][:, : len(keys)]
    at.put("w", mine @ (beta * np.exp(sums) * keys))
    at.put("u", mine @ (beta * at["V"]))
    if at.writes("K_end"):
        at.put("K_end", keys * np.exp(sums[-1:] - sums))


@body("delta_rule", "state")
class State(Walk):
    """A head's state over the chunks of a sequence."""

    def pair(self, at: Place) -> None:
        new = at["u"] - at["w"] @ self.state
        at.put("h", self.state)
        at.put("v_new", new)
        if "K_end" in {a.tensor for a in at.launch.accesses}:
            self.state = np.exp(at["decay"]).T * self.state + at["K_end"].T @ new
            return
        sums = at["g_sum"]
        self.state = np.exp(sums[-1]) * self.state + _keys(at).T @ (np.exp(sums[-1:] - sums) * new)


@body("delta_rule", "output")
def output(at: Place) -> None:
    queries = _queries(at)
    sums = at["g_sum"]
    new = at["v_new"]
    if options_of(at.kernel, DeltaOptions).gate is Gate.COLUMN:
        square = Parts(at, len(queries)).joined(at["Aqk_near"], at["Aqk_far"])
    else:
        square = decayed(queries, _keys(at), sums) * at.scale
    at.put("O", (np.exp(sums) * queries) @ at["h"] * at.scale + square @ new)


@body("delta_rule", "step")
def step(at: Place) -> None:
    """One token after the other, as the recurrence says."""
    state, rows = at[STATE], []
    scaled = unit if options_of(at.kernel, DeltaOptions).norm else lambda x: x
    for q, k, v, g, beta in zip(
        scaled(at["Q"]), scaled(at["K"]), at["V"], at["g"], at["beta"], strict=True
    ):
        state = np.exp(g)[:, None] * state
        state = state + np.outer(k, beta * (v - k @ state))
        rows.append(q @ state * at.scale)
    at.put("O", np.array(rows))
    at.put("state_after", state)


# State space duality.


@body("ssd", "chunk_cumsum")
def chunk_cumsum(at: Place) -> None:
    sums = (at["A"] * at["dt"]).cumsum(axis=0)
    at.put("dt_chunk", at["dt"])
    at.put("sums", sums)
    at.put("decay", sums[-1:])


@body("ssd", "chunk_state")
def chunk_state(at: Place) -> None:
    sums = at["sums"]
    at.put("added", (at["K"] * np.exp(sums[-1:] - sums) * at["dt_chunk"]).T @ at["V"])


@body("ssd", "state_passing")
class Passing(Walk):
    """A head's state over the chunks of a sequence."""

    def pair(self, at: Place) -> None:
        at.put("before", self.state)
        self.state = np.exp(at["decay"]) * self.state + at["added"]


@body("ssd", "bmm")
def bmm(at: Place) -> None:
    square = at["Q"] @ at["K"].T
    at.put("CB", np.pad(square, ((0, 0), (0, at.kernel.tile.block_k - len(square)))))


@body("ssd", "chunk_scan")
def chunk_scan(at: Place) -> None:
    sums = at["sums"]
    n = len(at["sums"])
    within = np.tril(at["CB"][:, :n] * np.exp(np.minimum(sums - sums.T, 0))) @ (
        at["dt_chunk"] * at["V"]
    )
    at.put("O", np.exp(sums) * (at["Q"] @ at["before"]) + within)


@body("ssd", "step")
def ssd_step(at: Place) -> None:
    """One token after the other, as the recurrence says."""
    state, rows = at[STATE], []
    for c, b, x, dt in zip(at["Q"], at["K"], at["V"], at["dt"], strict=True):
        state = np.exp(at["A"] * dt) * state + np.outer(dt * b, x)
        rows.append(c @ state)
    at.put("O", np.array(rows))
    at.put("state_after", state)
