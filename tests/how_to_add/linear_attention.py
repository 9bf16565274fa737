"""`linear`: attention without a softmax, O = phi(Q) (phi(K)^T V) / (phi(Q) sum phi(K)) (arXiv 2006.16236), no mask.

phi(x) = elu(x) + 1 acts on each column, so a row of Q or K has head_dim features. Two launches: `state` adds up
S = phi(K)^T V and z = sum phi(K) over all keys, `output` multiplies. In `state` the features stand on the query axis
and the keys on the key axis; in `output` the queries and the features do.
"""

from __future__ import annotations

import numpy as np
from executor.body import Array, Body, Place, body

from iosim.base.errors import InputError
from iosim.catalog.algorithms.common import load, matrix, store
from iosim.catalog.algorithms.registry import algorithm
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import (
    Chain,
    Domain,
    Launch,
    Outer,
    Per,
    Resources,
    Role,
    Rows,
    Tensor,
    tensors,
)
from iosim.kernel.work import Work
from iosim.problem.attention import AttentionProblem


@algorithm("linear", softmax=False)
def plan_linear(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """Both launches.

    Raises:
        InputError: a backward, a mask, dropout or grouped heads.
    """
    for name, value, accepted in (
        ("passes", problem.passes, "fwd"),
        ("mask", problem.mask, "none"),
        ("dropout", problem.dropout, 0.0),
        ("kv_heads", problem.kv_heads, problem.heads),
    ):
        if value != accepted:
            raise InputError(
                f"{name} {value} is not possible with kernel '{kernel.name}'; accepted: {accepted}"
            )
    batch, heads, features, columns = (
        problem.batch,
        problem.heads,
        problem.head_dim,
        problem.head_dim_v,
    )
    products = {
        "resources": Resources(kernel.cta_threads, kernel.registers, kernel.shared_memory_bytes),
        "schedule": kernel.schedule,
        "work": Work(flops_per_pair=2 * columns, stages=kernel.tile.stages),
    }
    state = Launch(
        "state",
        Domain(
            batch,
            heads,
            rows=features,
            seq_k=problem.seq_k,
            block_q=features,
            block_k=kernel.tile.block_k,
        ),
        Outer.QUERY,
        (
            load("K", Rows.KEY, Per.PAIR),
            load("V", Rows.KEY, Per.PAIR),
            store("S", Rows.QUERY, Per.QUERY),
            store("z", Rows.QUERY, Per.QUERY),
        ),
        **products,
    )
    output = Launch(
        "output",
        Domain(
            batch,
            heads,
            rows=problem.seq_q,
            seq_k=features,
            block_q=kernel.tile.block_q,
            block_k=features,
        ),
        Outer.QUERY,
        (
            load("Q", Rows.QUERY, Per.QUERY),
            load("S", Rows.KEY, Per.PAIR),
            load("z", Rows.KEY, Per.PAIR),
            store("O", Rows.QUERY, Per.QUERY),
        ),
        **products,
    )
    traffic = (
        *(matrix(problem, name, Role.INPUT) for name in "QKV"),
        matrix(problem, "O", Role.OUTPUT),
        Tensor("S", batch, heads, features, columns, element_bytes=4, role=Role.TEMP),
        Tensor("z", batch, heads, features, 1, element_bytes=4, role=Role.TEMP),
    )
    return Chain(tensors(traffic), (state, output), kernel.notes)


# What the launches compute.


def phi(x: Array) -> Array:
    """elu(x) + 1: positive everywhere."""
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


@body("linear", "state")
class State(Body):
    """All keys of a head, block by block; S and z stay on chip until the end."""

    def begin(self, at: Place) -> None:
        self.state: Array = np.zeros((at.problem.head_dim, at.problem.head_dim_v))
        self.total: Array = np.zeros((at.problem.head_dim, 1))

    def pair(self, at: Place) -> None:
        features = phi(at["K"])
        self.state += features.T @ at["V"]
        self.total += features.sum(axis=0)[:, None]

    def end(self, at: Place) -> None:
        at.put("S", self.state)
        at.put("z", self.total)


@body("linear", "output")
class Output(Body):
    """A block of queries against all features."""

    def pair(self, at: Place) -> None:
        features = phi(at["Q"])
        self.rows = features @ at["S"] / (features @ at["z"])

    def end(self, at: Place) -> None:
        at.put("O", self.rows)
