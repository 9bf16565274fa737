"""`flash1`: keys outside, queries inside; O and the row statistics pass through memory at every key block.

FlashAttention (arXiv 2205.14135): Algorithm 1 forward, Algorithm 4 backward. One CTA walks a whole head. With dropout
the random state is saved and set once a call (Algorithm 2, line 1; Algorithm 4, line 1).
"""

from __future__ import annotations

from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms.common import (
    attention_domain,
    head_gradients,
    load,
    loop_work,
    main_launch,
    matrices,
    matrix,
    resources,
    row_domain,
    row_pass,
    store,
    sum_groups,
)
from iosim.catalog.algorithms.registry import algorithm, options_of
from iosim.catalog.algorithms.terms import backward_terms, forward_terms
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Access, Chain, Launch, Outer, Per, Role, Rows, Tensor, tensors
from iosim.kernel.options import AlgorithmOptions, number
from iosim.kernel.tensor_kinds import TensorKind
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
    """The forward, lines 1 to 16 of Algorithm 1: l and m are fp32, O between key blocks in the output's type (to the
    letter) or fp32 (the real kernel). The backward, Algorithm 4, likewise with dQ. With grouped heads, which the
    listing does not have, dK and dV are written per query head and summed over the group by one more launch."""
    options, backward = options_of(kernel, Flash1Options), problem.backward
    if (
        backward and kernel.backward.shared_memory_bytes is not None
    ):  # the real kernel's own tile, and what it takes
        shared = kernel.backward.shared_memory_bytes
        kernel = replace(kernel, tile=kernel.tile_backward, shared_memory_bytes=shared)
    # The listing reads O, l and m at the first key block, too, so that a fill comes before; the real
    # kernel starts from nothing, and keeps O (dQ) in fp32 until the last key block.
    letter = options.to_the_letter
    size = options.intermediate_bytes or (problem.output_type.bytes if letter else 4)
    same = size == problem.output_type.bytes
    output = "dQ" if backward else "O"
    running = output if same else TensorKind.SUMS.of(output)
    # What passes through memory between key blocks.
    state = (running,) if backward else (running, "l", "m")
    accesses, gradients = _accesses(backward, kernel, options, problem)
    accesses += [
        *(
            load(n, Rows.QUERY, Per.PAIR, skip=0 if letter or n not in state else 1)
            for n in (running, "l", "m")
        ),
        store(running, Rows.QUERY, Per.PAIR, skip=0 if same else 1),
        *([] if same else [store(output, Rows.QUERY, Per.QUERY)]),
        *(store(n, Rows.QUERY, Per.PAIR) for n in state[1:]),
        *(store(n, Rows.KEY, Per.KEY) for n in gradients if backward),
    ]
    domain = attention_domain(problem, kernel.tile_backward if backward else kernel.tile)
    work = replace(loop_work(problem, kernel), stages=kernel.tile.stages)
    main = main_launch(
        problem,
        kernel,
        domain,
        Outer.HEAD,
        accesses,
        resources=resources(problem, kernel),
        work=work,
    )
    main = replace(main, schedule=kernel.schedule, overheads=() if backward else kernel.overheads)
    held = _tensors(backward, problem, running, same, size)
    fill = _fill(backward, letter, problem, state)
    after = (sum_groups(problem),) if backward and problem.group > 1 else ()
    chain = Chain(tensors(held), (*fill, main, *after), kernel.notes)
    return (
        backward_terms(chain, problem, kernel, Per.LAUNCH)
        if backward
        else forward_terms(chain, problem, kernel)
    )


def _fill(
    backward: bool,
    letter: bool,
    problem: AttentionProblem,
    state: tuple[str] | tuple[str, str, str],
) -> tuple[Launch] | tuple[()]:
    """The launch that fills what the listing reads at the first key block; none in the real kernel."""
    return (
        (row_pass("bwd.fill" if backward else "fill", row_domain(problem, FILL_ROWS), (), state),)
        if letter
        else ()
    )


def _tensors(
    backward: bool, problem: AttentionProblem, running: str, same: bool, size: int
) -> tuple[Tensor, ...]:
    """Inputs, outputs, and what runs through memory in another type than the output's."""
    return (
        *matrices(problem, "Q K V O dO l m" if backward else "Q K V", Role.INPUT),
        *matrices(problem, "dQ dK dV" if backward else "O l m", Role.OUTPUT),
        *(head_gradients(problem) if backward else ()),
        *([] if same else [matrix(problem, running, Role.TEMP, element_bytes=size)]),
    )


def _accesses(
    backward: bool, kernel: Kernel, options: Flash1Options, problem: AttentionProblem
) -> tuple[list[Access], list[str]]:
    """What the main launch loads and stores: what passes through memory between key blocks at every pair."""
    gradients = [TensorKind.PER_HEAD.of(n) if problem.group > 1 else n for n in ("dK", "dV")]
    accesses = [
        *(load(n, Rows.KEY, Per.KEY, visited_only=True, edge=kernel.edge_k) for n in "KV"),
        load("Q", Rows.QUERY, Per.PAIR, edge=kernel.edge_q),
    ]
    if backward:
        once = Per.QUERY if options.output_read_once else Per.PAIR
        accesses += [
            load("O", Rows.QUERY, once, visited_only=True),
            load("dO", Rows.QUERY, Per.PAIR),
        ]
    return accesses, gradients
