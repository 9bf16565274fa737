"""What stands beside Q, K and V: a bias of the scores, stored masks, key padding, and dropout's random state.

Each tiled algorithm reads them as FlashAttention's Algorithm 2 reads its mask, tile by tile (arXiv 2205.14135, appendix
B.3): a full bias, or a stored mask, a query x key tile at every visited pair; a key-padding mask a key tile at every
visited pair; ALiBi's slope and a learned sink once a CTA. Dropout is not stored: the forward leaves the seed and the
offset of its counter-based generator, 16 bytes, from which the backward makes the same decisions again
(FlashAttention-2, csrc/flash_attn/src/flash_fwd_kernel.h; PyTorch's kernels likewise).

NB: what the added terms cost in instructions and shared memory is not in the timing model; their bytes are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms.common import load, store
from iosim.catalog.algorithms.registry import options_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import (
    Access,
    Chain,
    Domain,
    Edge,
    Launch,
    LaunchRole,
    Outer,
    Per,
    Resources,
    Role,
    Rows,
    Tensor,
    tensors,
)
from iosim.kernel.options import AlgorithmOptions, number
from iosim.kernel.tensor_kinds import TensorKind
from iosim.problem.attention import AttentionProblem

SCORE_TERMS = (
    "bias",
    "alibi",
    "bias_grad",
    "key_padding",
    "mask_tensor",
    "block_lists",
    "looks_ahead",
)
"""What a problem may add to its scores, or take from them, by its terms' names."""


@dataclass(frozen=True)
class TermOptions(AlgorithmOptions):
    """How a kernel takes masks that are stored. `converts_mask`: a mask of bytes is made additive by a launch of its
    own first. `padding_is_added`: a key-padding mask comes in the bias's type, not as bytes."""

    converts_mask: bool = False
    padding_is_added: bool = False
    sink_bytes: int = number(4, 1, 8)
    """Bytes of a head's learned logit."""


PASS_ROWS = 4
TMA_STRIDE_BYTES = 16


def bias(problem: AttentionProblem, name: str = "bias", role: Role = Role.INPUT) -> Tensor:
    p = problem
    return Tensor(
        name,
        p.bias_batch,
        p.bias_heads,
        p.seq_q,
        p.seq_k,
        p.bias_type.bytes,
        role,
        Rows.PAIR,
        p.bias_type.name,
    )


def slopes(problem: AttentionProblem) -> Tensor:
    """ALiBi's fp32 slopes, one a head, or one a sequence and head."""
    return Tensor("slopes", problem.bias_batch, problem.heads, 1, 1, 4, Role.INPUT)


def padding(problem: AttentionProblem, element_bytes: int = 1) -> Tensor:
    """The key-padding mask, [batch, seq_k]: bytes, or wider elements where it is added to the scores."""
    return Tensor(
        "padding", problem.batch, 1, problem.seq_k, 1, element_bytes, Role.INPUT, Rows.KEY
    )


def stored_mask(problem: AttentionProblem, name: str = "mask", role: Role = Role.INPUT) -> Tensor:
    """A mask as a tensor that all sequences and heads share: of bytes, or of the bias's type where it is added."""
    size = problem.bias_type.bytes if problem.mask_storage == "additive" else 1
    return Tensor(
        name, 1, 1, problem.seq_q, problem.seq_k, size, role, format=problem.bias_type.name
    )


def _random_state(role: Role) -> Tensor:
    """Seed and offset of dropout's generator: two whole numbers of eight bytes."""
    return Tensor("rng_state", 1, 1, 2, 1, 8, role)


def converts_mask(problem: AttentionProblem, kernel: Kernel) -> bool:
    return problem.mask_storage == "bool" and options_of(kernel, TermOptions).converts_mask


def added_mask(
    problem: AttentionProblem, role: Role = Role.TEMP, element_bytes: int | None = None
) -> Tensor:
    size = problem.bias_type.bytes if element_bytes is None else element_bytes
    return replace(stored_mask(problem, "mask_added", role), element_bytes=size)


def convert_mask(problem: AttentionProblem) -> Launch:
    """Bytes to 0 and -inf (PyTorch, aten/src/ATen/native/transformers/attention.cpp, convert_boolean_attn_mask)."""
    accesses = (load("mask", Rows.PAIR, Per.PAIR), store("mask_added", Rows.PAIR, Per.PAIR))
    return score_pass("convert_mask", problem, 1, 1, accesses)


def matrix_edge(kernel: Kernel, row_bytes: int) -> Edge:
    """Which rows and columns of a query x key matrix's last tile a kernel moves.

    Whole boxes are TMA's, which takes a matrix only if its rows lie a multiple of 16 bytes apart (CUDA driver API,
    cuTensorMapEncodeTiled, globalStrides). Threads load another one, and ask for nothing past its end.
    """
    if kernel.edge_k is Edge.WHOLE and row_bytes % TMA_STRIDE_BYTES:
        return Edge.EXACT
    return kernel.edge_k


def _score_terms(
    problem: AttentionProblem, kernel: Kernel, once: Per
) -> Iterator[tuple[Tensor, Access]]:
    """What a tiled loop reads to form its scores besides Q and K; `once` is how often a CTA's own values are read."""
    options = options_of(kernel, TermOptions)
    # One term after the other, each with how its tile is read: pairs where it is N x N, keys where it is
    # a row for all queries, once a CTA where it is a number a head.
    if problem.bias == "full":
        edge = matrix_edge(kernel, problem.seq_k * problem.bias_type.bytes)
        yield bias(problem), load("bias", Rows.PAIR, Per.PAIR, edge=edge)
    if problem.bias == "alibi":
        yield slopes(problem), load("slopes", Rows.OWN, once)
    if problem.key_padding:
        size = problem.bias_type.bytes if options.padding_is_added else 1
        yield padding(problem, size), load("padding", Rows.KEY, Per.PAIR, edge=kernel.edge_k)
    if problem.mask_storage != "implicit":
        mask = (
            added_mask(problem, Role.INPUT)
            if converts_mask(problem, kernel)
            else stored_mask(problem)
        )
        edge = matrix_edge(kernel, mask.cols * mask.element_bytes)
        yield mask, load(mask.name, Rows.PAIR, Per.PAIR, edge=edge)


def forward_terms(chain: Chain, problem: AttentionProblem, kernel: Kernel) -> Chain:
    """`chain`, a tiled forward, with what the problem adds: its main launch reads the terms and leaves the random
    state."""
    main = next(x for x in chain.launches if x.role is LaunchRole.MAIN)
    # Terms are read before Q, K and V; the random state is written once, by the first CTA.
    terms = [*_score_terms(problem, kernel, Per.SPLIT if main.outer is Outer.SPLIT else Per.QUERY)]
    if problem.sinks:  # of the query heads whose rows share a tile
        size, d = options_of(kernel, TermOptions).sink_bytes, main.domain
        read = load("sinks", Rows.OWN, Per.SPLIT if main.outer is Outer.SPLIT else Per.QUERY)
        terms.append((Tensor("sinks", 1, d.heads, d.pack, 1, size, Role.INPUT), read))
    held = [tensor for tensor, _ in terms]
    before: tuple[Launch, ...] = ()
    if converts_mask(problem, kernel):
        # The mask of bytes is read by the launch before, the additive one by the main launch.
        held = [*held[:-1], stored_mask(problem), added_mask(problem)]
        before = (convert_mask(problem),)
    writes: tuple[Access, ...] = ()
    if problem.dropout:
        held.append(_random_state(Role.OUTPUT))
        writes = (store("rng_state", Rows.OWN, Per.LAUNCH),)
    more = replace(main, accesses=(*(read for _, read in terms), *main.accesses, *writes))
    return _with(chain, more, held, before)


def backward_terms(
    chain: Chain, problem: AttentionProblem, kernel: Kernel, once: Per = Per.KEY
) -> Chain:
    """`chain`, a tiled backward, with what the problem adds: its main launch reads the terms and the random state
    and writes the gradient of the bias; where heads or sequences share a bias, one more launch sums it. `once` is how
    often a CTA reads its own values."""
    main = next(x for x in chain.launches if x.role is LaunchRole.MAIN_BACKWARD)
    terms = [*_score_terms(problem, kernel, once)]
    if problem.dropout:
        terms.append((_random_state(Role.INPUT), load("rng_state", Rows.OWN, once)))
    gradients = bias_gradient(problem)
    writes = [store(gradient.name, Rows.PAIR, Per.PAIR) for gradient in gradients[:1]]
    # Tiles that nobody visits have a gradient of 0, which a fill writes before.
    skips = problem.mask != "none" and problem.mask_storage == "implicit"
    fill = score_pass(
        "bwd.fill_bias", problem, problem.batch, problem.heads, tuple(writes)
    )  # where no tile is visited
    before = (fill,) if gradients and skips else ()
    after = (sum_bias(problem),) if len(gradients) > 1 else ()
    more = replace(main, accesses=(*(read for _, read in terms), *main.accesses, *writes))
    return _with(chain, more, [*(tensor for tensor, _ in terms), *gradients], before, after)


def _with(
    chain: Chain,
    main: Launch,
    held: list[Tensor],
    before: tuple[Launch, ...],
    after: tuple[Launch, ...] = (),
) -> Chain:
    """`chain` with another main launch, launches before it and at the end, and what these hold."""
    launches = [
        y for x in chain.launches for y in ((*before, main) if x.name == main.name else (x,))
    ]
    return replace(chain, tensors={**chain.tensors, **tensors(held)}, launches=(*launches, *after))


def summed(problem: AttentionProblem) -> int:
    """(sequence, head) pairs whose gradients are summed into one of dBias."""
    over_batch = problem.batch if problem.bias_shared in ("batch", "both") else 1
    over_heads = problem.heads if problem.bias_shared in ("heads", "both") else 1
    return over_batch * over_heads


def bias_gradient(problem: AttentionProblem) -> tuple[Tensor, ...]:
    """dBias, and before it the gradient of every head of every sequence where they are summed. Empty without one."""
    if not problem.bias_grad:
        return ()
    gradient = bias(problem, "dBias", Role.OUTPUT)
    if summed(problem) == 1:
        return (gradient,)
    return replace(
        gradient,
        name=TensorKind.PER_HEAD.of("dBias"),
        batch=problem.batch,
        heads=problem.heads,
        role=Role.TEMP,
    ), gradient


def sum_bias(problem: AttentionProblem, source: str = TensorKind.PER_HEAD.of("dBias")) -> Launch:
    """dBias: the sum of `source` over the sequences and heads that share it (a copy where none do)."""
    accesses = (
        load(source, Rows.PAIR, Per.PAIR, times=summed(problem)),
        store("dBias", Rows.PAIR, Per.PAIR),
    )
    return score_pass("bwd.sum_bias", problem, problem.bias_batch, problem.bias_heads, accesses)


def materialise(problem: AttentionProblem) -> Launch:
    accesses = (load("slopes", Rows.OWN, Per.QUERY), store("bias", Rows.PAIR, Per.PAIR))
    return score_pass("alibi", problem, problem.bias_batch, problem.heads, accesses)


def score_pass(
    name: str,
    problem: AttentionProblem,
    batch: int,
    heads: int,
    accesses: tuple[Access, ...],
    rows: int = PASS_ROWS,
    **more: Any,
) -> Launch:
    """An elementwise or row-wise launch over N x N tensors; `more` are fields of `Launch`."""
    domain = Domain(batch, heads, problem.seq_q, problem.seq_k, rows, problem.seq_k)
    return Launch(name, domain, Outer.FLAT, accesses, resources=Resources(256), **more)
