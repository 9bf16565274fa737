"""`delta_rule`: a state S a head that each token corrects before it is read (arXiv 2412.06464; 2510.26692).

    S <- g S + k (beta (v - k^T g S))^T,    o = scale q^T S

The decay g is a number a token and head (`gate` head: gated DeltaNet, GDN) or one a column of K (`gate` column: Kimi
delta attention, KDA, without grouped heads). Prefill takes chunks of tokens, as fla-org/flash-linear-attention launches
them (fla/ops/gated_delta_rule, fla/ops/kda, fla/ops/common):

    norm_q, norm_k  Q and K of length 1, where option `norm` asks for them
    cumsum          the gates' logarithms, summed within each chunk
    kkt, solve      A = (I + tril(beta (K g)(K / g)^T, -1))^-1, chunk x chunk: one launch, or with `separate_solve` two
                    with K K^T in fp32 between them. KDA computes blocks of `sub_chunk` tokens on the diagonal first,
                    and what a query takes of its own chunk's keys (Aqk) with them
    recompute       w = A beta g K, u = A beta V, of KDA K times the decay to its chunk's end
    state           walks the chunks: writes h, the state before each, and v_new = u - w h
    output          o = scale (g Q h + tril(Q K^T g / g) v_new)

A step of decoding, one token a sequence, is one launch. NB: KDA's walk reads the last row of a chunk's gate sums alone:
it stands as a tensor of its own, `decay`, which the launch that sums them writes beside them. What a launch reads again
for its rows' neighbours on the same SM is not counted.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.kernel.algorithms.body import Array, Place, body
from iosim.kernel.algorithms.common import store
from iosim.kernel.algorithms.registry import algorithm, options_of
from iosim.kernel.algorithms.states import GATE_BYTES, StateChain, StateOptions, Walk
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain, Per, Role, Rows
from iosim.kernel.options import number
from iosim.kernel.work import Dependent
from iosim.problem.attention import AttentionProblem


class Gate(StrEnum):
    """What has a decay of its own."""

    HEAD = "head"
    COLUMN = "column"


@dataclass(frozen=True)
class DeltaOptions(StateOptions):
    """Options of all states; `gate`, `norm`, `separate_solve`, `sub_chunk`: see the module."""

    gate: Gate = Gate.HEAD
    norm: bool = True
    separate_solve: bool = False
    sub_chunk: int = number(16, 1)


PARTS, MERGES = 3, 6
"""Parts of a chunk below the first, whose products with those before stand one behind the other in KDA's kernel; and
products, one behind the other, that merge the inverses of all parts."""
COLUMN_OPERATIONS = 8
"""Of the fp32 units, for a column of a key: its decay and both products, summed."""
SIDE = 64
"""Columns of K, or of V, that a product takes at once: two halves of 128, one after the other."""


@algorithm("delta_rule", options=DeltaOptions, softmax=False, dtypes=("fp16", "bf16"), example_tile=Tile(32, 64))
def plan_delta_rule(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The launches of a prefill, or of a step of decoding. Raises InputError: what `states.check` refuses, grouped
    heads with a gate a column, or a chunk that is no whole number of its parts."""
    b, options = StateChain(problem, kernel), options_of(kernel, DeltaOptions)
    p, by_column = problem, options.gate is Gate.COLUMN
    if by_column and p.group > 1:
        raise InputError(f"`kv_heads` {p.kv_heads}: each head of kernel '{kernel.name}' has a Q and a K of its own; "
                         f"accepted: {p.heads}")  # fmt: skip
    if by_column and b.chunk % options.sub_chunk:
        raise InputError(f"chunks of {b.chunk} tokens are no whole number of parts of {options.sub_chunk}; accepted: "
                         f"multiples of {options.sub_chunk}")  # fmt: skip
    d, dv, size = p.head_dim, p.head_dim_v, GATE_BYTES
    b.rows("Q", d, Role.INPUT, keys=True)
    b.rows("K", d, Role.INPUT, keys=True)
    b.rows("V", dv, Role.INPUT)
    b.rows("g", d if by_column else 1, Role.INPUT, size=None if by_column else size)
    b.rows("beta", 1, Role.INPUT, size=size)
    b.rows("O", dv, Role.OUTPUT)
    if b.is_step:
        shared = b.columns_shared(options.step_columns)
        b.step(*(b.read(n, shared) for n in ("Q", "K", "g", "beta")), b.read("V"))
        return b.chain()
    q, k = "Q", "K"
    if options.norm:
        q, k = (b.rows(f"{name}_norm", d, keys=True) for name in "QK")
        for name, to in (("Q", q), ("K", k)):
            b.over_chunks(f"norm_{name.lower()}", (b.read(name), b.write(to)), keys=True)
    b.rows("g_sum", d if by_column else 1, size=size)
    sums = [b.read("g"), b.write("g_sum")]
    if by_column:
        b.states("decay", 1, d, Role.TEMP, size, chunks=True)
        sums.append(store("decay", Rows.OWN, Per.QUERY))
    b.over_chunks("cumsum", tuple(sums), dependent=Dependent(loads=1))
    b.rows("A", b.chunk)
    _inverse(b, options, q, k)
    b.rows("w", d)
    b.rows("u", dv)
    to_end = [b.write(b.rows("K_end", d))] if by_column else []
    b.over_chunks(
        "recompute",
        (*(b.read(n) for n in (k, "V", "beta", "g_sum", "A")), b.write("w"), b.write("u"), *to_end),
        kept=b.chunk * SIDE,
        staged=b.chunk * (b.chunk + 2 * SIDE),
        flops_per_pair=2 * b.chunk * (d + dv),
        dependent=Dependent(loads=2, products=-(-d // SIDE) + -(-dv // SIDE)),
    )
    b.rows("v_new", dv)
    b.states("h", d, dv, Role.TEMP, p.input_type.bytes, chunks=True)
    walkers = b.columns_shared(kernel.tile.block_q)
    b.walk(
        "state",
        (
            *(b.read(n, walkers, Per.PAIR) for n in ("w", "K_end" if by_column else k)),
            b.read("u", per=Per.PAIR),
            b.own("decay", walkers, Per.PAIR) if by_column else b.read("g_sum", walkers, Per.PAIR),
            b.write("v_new", Per.PAIR),
            store("h", Rows.OWN, Per.PAIR),
        ),
        walkers,
        Dependent(products=2 * -(-d // SIDE)),
        flops=4 * d,
    )
    beside = b.columns_shared(options.output_columns)
    within = ("Aqk_near", "Aqk_far") if by_column else (k,)
    b.over_chunks(
        "output",
        (*(b.read(n, beside) for n in (q, "g_sum", *within)), b.read("v_new"), b.own("h"), b.write("O")),
        flops_per_pair=2 * d * dv + 2 * b.chunk * (dv + (0 if by_column else beside * d)),
        kept=b.chunk * (b.chunk + options.output_columns),
        staged=2 * b.chunk * d + (b.chunk + d) * options.output_columns,
        product_ctas=beside,
        dependent=Dependent(loads=3, products=3),
    )
    return b.chain()


def _inverse(b: StateChain, options: DeltaOptions, q: str, k: str) -> None:
    """The launches that compute A, and of KDA Aqk."""
    d, part = b.problem.head_dim, options.sub_chunk
    kept, products, halves = 2 * b.chunk * b.chunk, 2 * b.chunk * d, -(-d // SIDE)
    by_column = options.gate is Gate.COLUMN
    if not by_column and not options.separate_solve:
        b.over_chunks(
            "kkt_solve",
            (*(b.read(n) for n in (k, "g_sum", "beta")), b.write("A")),
            kept=kept,
            flops_per_pair=products,
            dependent=Dependent(loads=halves, products=MERGES, rows=b.chunk),
        )
        return
    parted = [b.rows("near", part, size=GATE_BYTES)]
    if by_column:
        parted.append(b.rows("Aqk_near", part))
        b.rows("Aqk_far", b.chunk - part)
        before = part // 2 + 1
        b.over_chunks(
            "kkt",
            (*(b.read(n) for n in (q, "beta")), *(b.read(n, before) for n in (k, "g_sum")),
             *(b.write(n) for n in parted)),
            flops_per_pair=COLUMN_OPERATIONS * part * d,
            tensor_cores=False,
            product_ctas=b.chunk,
            dependent=Dependent(loads=2),
        )  # fmt: skip
        b.over_chunks(
            "solve",
            (*(b.read(n) for n in (q, k, "g_sum", "beta", "near")), b.write("Aqk_far"), b.write("A")),
            kept=kept,
            flops_per_pair=2 * products,
            dependent=Dependent(loads=PARTS * halves, products=PARTS * halves + MERGES, rows=b.chunk),
        )
        return
    b.rows("KK_near", part, size=GATE_BYTES)
    b.rows("KK_far", b.chunk - part, size=GATE_BYTES)
    b.over_chunks(
        "kkt",
        (*(b.read(n) for n in (k, "g_sum", "beta")), b.write("KK_near"), b.write("KK_far")),
        kept=b.chunk * b.chunk,
        flops_per_pair=products,
        dependent=Dependent(loads=1, products=halves),
    )
    b.over_chunks("solve", (b.read("KK_near"), b.write("near")), block=part, dependent=Dependent(loads=1, rows=part))
    b.over_chunks(
        "merge",
        (b.read("near"), b.read("KK_far"), b.write("A")),
        kept=kept,
        dependent=Dependent(loads=1, products=MERGES),
    )


# What the launches compute.


ONE: Array = np.ones((1, 1))


def unit(rows: Array) -> Array:
    """Rows of length 1."""
    return rows / np.sqrt((rows * rows).sum(axis=1, keepdims=True) + 1e-6)


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
    products: Array = np.einsum("id,jd,ijd->ij", rows, keys, np.exp(between) * np.ones(keys.shape[1]))
    return np.tril(products)


def inverse(square: Array, beta: Array) -> Array:
    """(I + tril(beta square, -1))^-1."""
    return np.linalg.inv(np.eye(len(square)) + np.tril(beta * square, -1))


def _whole(at: Place, square: Array) -> Array:
    """A chunk's square with the columns of a whole chunk."""
    return np.pad(square, ((0, 0), (0, at.kernel.tile.block_k - square.shape[1])))


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
    square, parts = at["beta"] * decayed(keys, keys, sums), Parts(at, len(keys))
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
        at.put("near", np.pad(inverse(square[:, : len(square)], ONE), ((0, 0), (0, square.shape[1] - len(square)))))
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
    at.put("A", _whole(at, inverse(diagonal @ parts.joined(np.zeros_like(near), far), ONE) @ diagonal))


@body("delta_rule", "recompute")
def recompute(at: Place) -> None:
    keys, sums, beta = _keys(at), at["g_sum"], at["beta"]
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
    queries, sums, new = _queries(at), at["g_sum"], at["v_new"]
    if options_of(at.kernel, DeltaOptions).gate is Gate.COLUMN:
        square = Parts(at, len(queries)).joined(at["Aqk_near"], at["Aqk_far"])
    else:
        square = decayed(queries, _keys(at), sums) * at.scale
    at.put("O", (np.exp(sums) * queries) @ at["h"] * at.scale + square @ new)


@body("delta_rule", "step")
def step(at: Place) -> None:
    """One token after the other, as the recurrence says."""
    state, rows = at["state_before"], []
    scaled = unit if options_of(at.kernel, DeltaOptions).norm else lambda x: x
    for q, k, v, g, beta in zip(scaled(at["Q"]), scaled(at["K"]), at["V"], at["g"], at["beta"], strict=True):
        state = np.exp(g)[:, None] * state
        state = state + np.outer(k, beta * (v - k @ state))
        rows.append(q @ state * at.scale)
    at.put("O", np.array(rows))
    at.put("state_after", state)
