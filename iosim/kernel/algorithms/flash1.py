"""`flash1`: keys outside, queries inside; O and the row statistics pass through memory at every key block.

FlashAttention (arXiv 2205.14135): Algorithm 1 forward, Algorithm 4 backward. One CTA walks a whole head. With dropout
the random state is saved and set once a call (Algorithm 2, line 1; Algorithm 4, line 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iosim.kernel.algorithms.body import Array, Body, Place, body
from iosim.kernel.algorithms.common import (
    add_group_gradients,
    attention_domain,
    head_gradients,
    load,
    main_launch,
    matrices,
    matrix,
    resources,
    row_domain,
    row_pass,
    store,
    sum_groups,
)
from iosim.kernel.algorithms.registry import algorithm, options_of
from iosim.kernel.algorithms.softmax import divided, exp_less
from iosim.kernel.algorithms.terms import (
    KeyGradients,
    PairGradients,
    backward_terms,
    forward_terms,
    masked_scores,
    save_random_state,
)
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain, Launch, Outer, Per, Role, Rows, tensors
from iosim.kernel.options import AlgorithmOptions, number
from iosim.problem.attention import AttentionProblem

FILL_ROWS = 128


def algorithm1_blocks(head_dim: int, fast_elements: int) -> tuple[int, int]:
    """(block_q, block_k) of Algorithm 1, line 1, with M elements of fast memory: min(ceil(M / 4d), d), ceil(M / 4d)."""
    block_k = -(-fast_elements // (4 * head_dim))
    return min(block_k, head_dim), block_k


@dataclass(frozen=True)
class Flash1Options(AlgorithmOptions):
    """`to_the_letter`: O, l and m are read at the first key block too, as the paper's listing does; the real kernel
    starts from zero. `intermediate_bytes`: of an element of O (and dQ) between key blocks; None for fp32 in the real
    kernel, the output's type to the letter. `output_read_once`: the backward reads O once a query block."""

    to_the_letter: bool = True
    intermediate_bytes: int | None = number(None, 1)
    output_read_once: bool = False


@algorithm("flash1", takes=("block_lists", "looks_ahead"), options=Flash1Options, keys_outside=True)
def plan_flash1(problem: AttentionProblem, kernel: Kernel) -> Chain:
    if problem.forward:
        return forward_terms(forward(problem, kernel), problem, kernel)
    return backward_terms(backward(problem, kernel), problem, kernel, Per.LAUNCH)


def _letter(kernel: Kernel) -> bool:
    return options_of(kernel, Flash1Options).to_the_letter


def _intermediate_bytes(problem: AttentionProblem, kernel: Kernel) -> int:
    stated = options_of(kernel, Flash1Options).intermediate_bytes
    if stated is not None:
        return stated
    return problem.output_type.bytes if _letter(kernel) else 4


def forward(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """Lines 1 to 16 of Algorithm 1; l and m are fp32, O in the output's type (to the letter) or fp32 (real kernel)."""
    letter = _letter(kernel)
    size = _intermediate_bytes(problem, kernel)
    same = size == problem.output_type.bytes
    running = "O" if same else "O_acc"
    accesses = [
        *(load(n, Rows.KEY, Per.KEY, visited_only=True, edge=kernel.edge_k) for n in "KV"),
        load("Q", Rows.QUERY, Per.PAIR, edge=kernel.edge_q),
        *(load(n, Rows.QUERY, Per.PAIR, skip=0 if letter else 1) for n in (running, "l", "m")),
        store(running, Rows.QUERY, Per.PAIR, skip=0 if same else 1),
        *([] if same else [store("O", Rows.QUERY, Per.QUERY)]),
        *(store(n, Rows.QUERY, Per.PAIR) for n in "lm"),
    ]
    main = main_launch(problem, kernel, attention_domain(problem, kernel.tile), Outer.HEAD, accesses)
    held = tensors((
        *matrices(problem, "Q K V", Role.INPUT),
        *matrices(problem, "O l m", Role.OUTPUT),
        *([] if same else [matrix(problem, "O_acc", Role.TEMP, element_bytes=size)]),
    ))  # fmt: skip
    launches = (_fill(problem, (running, "l", "m")), main) if letter else (main,)
    return Chain(held, launches, kernel.notes)


def _fill(problem: AttentionProblem, names: tuple[str, ...], launch: str = "fill") -> Launch:
    """Line 2: O = 0, l = 0, m = -inf."""
    return row_pass(launch, row_domain(problem, FILL_ROWS), (), names)


def backward(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """Algorithm 4: for every key block K, V once; for every query block in it Q, O, dO, dQ, l, m in and dQ out.

    With grouped heads, which the listing does not have, dK and dV are written per query head and summed over the group
    by one more launch.
    """
    letter = _letter(kernel)
    size = _intermediate_bytes(problem, kernel)
    same = size == problem.output_type.bytes
    running = "dQ" if same else "dQ_acc"
    once = options_of(kernel, Flash1Options).output_read_once
    gradients = [f"{n}_heads" if problem.group > 1 else n for n in ("dK", "dV")]
    accesses = [
        *(load(n, Rows.KEY, Per.KEY, visited_only=True, edge=kernel.edge_k) for n in "KV"),
        load("Q", Rows.QUERY, Per.PAIR, edge=kernel.edge_q),
        load("O", Rows.QUERY, Per.QUERY if once else Per.PAIR, visited_only=True),
        load("dO", Rows.QUERY, Per.PAIR),
        load(running, Rows.QUERY, Per.PAIR, skip=0 if letter else 1),
        *(load(n, Rows.QUERY, Per.PAIR) for n in "lm"),
        store(running, Rows.QUERY, Per.PAIR, skip=0 if same else 1),
        *([] if same else [store("dQ", Rows.QUERY, Per.QUERY)]),
        *(store(n, Rows.KEY, Per.KEY) for n in gradients),
    ]
    main = main_launch(
        problem,
        kernel,
        attention_domain(problem, kernel.tile_backward),
        Outer.HEAD,
        accesses,
        schedule=kernel.schedule,
        resources=resources(problem, kernel),
        overheads=(),
        stages=kernel.tile.stages,
    )
    held = tensors((
        *matrices(problem, "Q K V O dO l m", Role.INPUT),
        *matrices(problem, "dQ dK dV", Role.OUTPUT),
        *head_gradients(problem),
        *([] if same else [matrix(problem, "dQ_acc", Role.TEMP, element_bytes=size)]),
    ))  # fmt: skip
    fill = (_fill(problem, (running,), "bwd.fill"),) if letter else ()
    after = (sum_groups(problem),) if problem.group > 1 else ()
    return Chain(held, (*fill, main, *after), kernel.notes)


# What the launches compute.


def running_output(at: Place, scores: Array, running: str) -> tuple[Array, Array, Array]:
    """Lines 10 to 12 of Algorithm 1: the new normalised O, l and m of a tile's rows."""
    d_v = at.problem.head_dim_v
    old_max, old_sum = at.resume("m", -np.inf), at.resume("l", 0.0)
    maximum = np.maximum(old_max, scores.max(axis=1, keepdims=True))
    weights = exp_less(scores, maximum)
    kept_sum = exp_less(old_max, maximum) * old_sum
    total = kept_sum + weights.sum(axis=1, keepdims=True)
    sums = kept_sum * at.resume(running, 0.0, d_v) + (weights * at.dropout_factor) @ at["V"]
    return divided(sums, total), total, maximum


@body("flash1", "fill")
def fill(at: Place) -> None:
    at.put("O_acc" if at.writes("O_acc") else "O", np.zeros((at.q.size, at.problem.head_dim_v)))
    at.put("l", np.zeros((at.q.size, 1)))
    at.put("m", np.full((at.q.size, 1), -np.inf))


@body("flash1", "main")
class Forward(Body):
    def __init__(self) -> None:
        self.output: Array | None = None

    def launch(self, at: Place) -> None:
        save_random_state(at)

    def pair(self, at: Place) -> None:
        running = "O_acc" if at.writes("O_acc") else "O"
        self.output, total, maximum = running_output(at, masked_scores(at), running)
        at.put(running, self.output)
        at.put("l", total)
        at.put("m", maximum)

    def finish_query(self, at: Place) -> None:
        if at.writes("O_acc"):
            at.put("O", np.zeros((at.q.size, at.problem.head_dim_v)) if self.output is None else self.output)

    def end(self, at: Place) -> None:
        self.output = None


@body("flash1", "bwd.fill")
def backward_fill(at: Place) -> None:
    at.put("dQ_acc" if at.writes("dQ_acc") else "dQ", np.zeros((at.q.size, at.problem.head_dim)))


@body("flash1", "bwd.main")
class Backward(KeyGradients):
    """Algorithm 4: P again from l and m, D = rowsum(dO o O) at every pair, dQ through memory."""

    def __init__(self) -> None:
        self.dq: Array | None = None

    def pair(self, at: Place) -> None:
        running = "dQ_acc" if at.writes("dQ_acc") else "dQ"
        weights = divided(exp_less(masked_scores(at), at["m"]), np.broadcast_to(at["l"], (at.q.size, at.keys.size)))
        more = PairGradients(at, weights, (at["dO"] * at["O"]).sum(axis=1, keepdims=True), at["dO"])
        self.dq = at.resume(running, 0.0, at.problem.head_dim) + more.dq
        at.put(running, self.dq)
        self.add(more)

    def finish_query(self, at: Place) -> None:
        if at.writes("dQ_acc"):
            at.put("dQ", np.zeros((at.q.size, at.problem.head_dim)) if self.dq is None else self.dq)

    def end(self, at: Place) -> None:
        super().end(at)
        self.dq = None


body("flash1", "bwd.sum_groups")(add_group_gradients)
