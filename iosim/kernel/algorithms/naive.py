"""`naive`: attention through N x N tensors in memory (arXiv 2205.14135, Algorithms 0 and 3).

Forward: S = Q K^T, P = softmax(S), O = P V; every further pass over an N x N tensor is a launch of its own, and which
of them run is the kernel's option `passes`, in order, out of:

    scale_q   Q times the softmax scale, before the product (u read, u written)
    scale     S times the softmax scale (where no product folds it in)
    mask      S with a mask of one byte a (query, key) pair that all heads share
    dropout   P with a mask of one byte an element (option `dropout_mask_bytes`), kept for the backward

A bias and a key-padding mask are passes over S as well, after the scale and before the mask; ALiBi's bias is made as a
tensor by a launch first. A mask given as an additive tensor is added, and its backward is no pass.
Backward: dV = P^T dO, dP = dO V^T, dS = P o (dP - rowsum), dK = dS^T Q, dQ = dS K, with the passes undone in reverse.
With grouped heads dK and dV are made per query head and summed over the group by one more launch.
Option `softmax_backward_product`: P o dP is written by a launch of its own first, as PyTorch's softmax backward does
(aten/src/ATen/native/cuda/SoftMax.cu).
A naive product computes every pair: masks save nothing.

The products' SM<->L2 bytes depend on the tiles of the matrix library: see `iosim.kernel.algorithms.matrix_tiles`.
NB: PyTorch's products take further tiles from a queue in memory, 64 bytes each time; these are left out (0.02 %).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import numpy as np

from iosim.base.records import dataclass, replace
from iosim.kernel.algorithms import terms
from iosim.kernel.algorithms.body import Array, Body, Place, body
from iosim.kernel.algorithms.common import (
    add_group_gradients,
    head_gradients,
    load,
    matrices,
    matrix,
    row_domain,
    row_pass,
    score_matrix,
    store,
    sum_groups,
)
from iosim.kernel.algorithms.matrix_tiles import ProductTile, fp32_tile, half_tile
from iosim.kernel.algorithms.registry import algorithm, options_of
from iosim.kernel.algorithms.softmax import divided, exp_less
from iosim.kernel.algorithms.terms import add_bias_gradients, write_alibi
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Access, Chain, Domain, Edge, Launch, Mode, Outer, Per, Resources, Role, Rows, Tensor
from iosim.kernel.options import AlgorithmOptions, number
from iosim.kernel.work import Work
from iosim.problem.attention import AttentionProblem


class Pass(StrEnum):
    """A further pass over an N x N tensor, or over Q."""

    SCALE_Q = "scale_q"
    SCALE = "scale"
    MASK = "mask"
    DROPOUT = "dropout"


@dataclass(frozen=True)
class ProductOptions(AlgorithmOptions):
    """What the products' tiles go by: `gemm_tile` where it is fixed, else the sizes and the GPU's `sm_count`."""

    gemm_tile: tuple[int, int] | None = None
    sm_count: int = number(108, 1)


@dataclass(frozen=True)
class NaiveOptions(ProductOptions):
    """`passes`: those that run, in order; None for a mask's and dropout's where the problem has them. `score_bytes`: of
    an element of the N x N tensors; None for the inputs' type. `dropout_mask_bytes`: of the stored dropout mask; some
    chains keep it in the type of the scores, scaled. `softmax_backward_product`: P o dP is written by a launch of its
    own first."""

    passes: tuple[Pass, ...] | None = None
    score_bytes: int | None = number(None, 1)
    dropout_mask_bytes: int = number(1, 1)
    softmax_backward_product: bool = False


WIDE = Resources(256)
COPY_ROWS = 128
ELEMENTWISE_VALUES = 8
"""Values that a thread of PyTorch's elementwise passes takes: their grids in h200_chain_launches.csv."""
LONGEST_ROW_OF_A_WARP = 2048


def softmax_values(keys: int) -> int:
    """Values that a thread of PyTorch's softmax holds: a warp has a row, or a CTA of 1,024 threads where it is long
    (aten/src/ATen/native/cuda/PersistentSoftmax.cuh, SoftMax.cu)."""
    return -(-keys // (32 if keys <= LONGEST_ROW_OF_A_WARP else 1024))


@algorithm(
    "naive",
    takes=("bias", "alibi", "bias_grad", "key_padding", "mask_tensor", "block_lists", "looks_ahead"),
    options=NaiveOptions,
    standard=True,
)
def plan_naive(problem: AttentionProblem, kernel: Kernel) -> Chain:
    return forward(problem, kernel) if problem.forward else backward(problem, kernel)


def passes(problem: AttentionProblem, kernel: Kernel) -> tuple[Pass, ...]:
    """The extra passes that run: as the kernel says, else a mask pass and a dropout pass where the problem has them. A
    mask that is stored always has its pass."""
    wanted = options_of(kernel, NaiveOptions).passes
    if wanted is None:
        wanted = (Pass.MASK, Pass.DROPOUT)
    elif problem.mask_storage != "implicit" and Pass.MASK not in wanted:
        wanted = (*wanted, Pass.MASK)
    idle = {Pass.MASK} if problem.mask == "none" else set()
    if not problem.dropout:
        idle.add(Pass.DROPOUT)
    return tuple(one for one in wanted if one not in idle)


class ChainBuilder:
    """Collects launches and tensors; every pass gives its output a name of its own."""

    def __init__(
        self, problem: AttentionProblem, kernel: Kernel, score_bytes: int | None = None, padding_bytes: int = 1
    ) -> None:
        self.problem = problem
        self.kernel = kernel
        self.products = options_of(kernel, ProductOptions)
        self.score_bytes = problem.input_type.bytes if score_bytes is None else score_bytes
        """Bytes of an element of the N x N tensors."""
        self.wide_scores = score_bytes == 4
        self.padding_bytes = padding_bytes
        self.launches: list[Launch] = []
        self.held: dict[str, Tensor] = {}

    def hold(self, *items: Tensor) -> None:
        for item in items:
            self.held.setdefault(item.name, item)

    def _domain(self, tile: tuple[int, int]) -> Domain:
        p = self.problem
        return Domain(p.batch, p.heads, p.seq_q, p.seq_k, tile[0], tile[1])

    def tile(self, rows: int, cols: int, *, narrow: bool) -> ProductTile:
        """Tile of one of the chain's products, whose result is rows x cols; `narrow`: the columns are a head's."""
        fixed, p = self.products.gemm_tile, self.problem
        if fixed:
            return ProductTile(*fixed)
        if p.dtype != "tf32" and (p.dtype == "fp32" or self.wide_scores):
            return fp32_tile(rows, cols, p.batch * p.heads, narrow=narrow)
        return half_tile(rows, cols, p.batch * p.heads, self.products.sm_count, narrow=narrow)

    def product_to_scores(self, name: str, left: str, right: str, out: str, cols: int) -> None:
        """out[q, k] = left[q, :] . right[k, :]: a CTA a tile of the N x N result."""
        p = self.problem
        self.hold(score_matrix(p, out, Role.TEMP, self.score_bytes))
        product_tile = self.tile(p.seq_q, p.seq_k, narrow=False)
        self.launches.append(
            Launch(name, self._domain((product_tile.rows, product_tile.cols)), Outer.PAIR,
                   (load(left, Rows.QUERY, Per.PAIR), load(right, Rows.KEY, Per.PAIR), store(out, Rows.PAIR, Per.PAIR)),
                   resources=WIDE, work=Work(2 * cols, stages=3))
        )  # fmt: skip

    def product_over_keys(self, name: str, scores: str, right: str, out: str, cols: int) -> None:
        """out[q, :] = sum over k of scores[q, k] right[k, :]: a work tile is a query block, or a cluster of them."""
        self._product_over(name, scores, right, out, cols, Outer.QUERY)

    def product_over_queries(self, name: str, scores: str, right: str, out: str, cols: int) -> None:
        """out[k, :] = sum over q of scores[q, k] right[q, :]: a work tile is a key block, or a cluster of them."""
        self._product_over(name, scores, right, out, cols, Outer.KEY)

    def _product_over(self, name: str, scores: str, right: str, out: str, cols: int, outer: Outer) -> None:
        """The product with a row a query (or a key), summed over the other axis in steps of 64. Each CTA of a cluster
        reads the other operand for itself."""
        by_query = outer is Outer.QUERY
        mine, other, per = (Rows.QUERY, Rows.KEY, Per.QUERY) if by_query else (Rows.KEY, Rows.QUERY, Per.KEY)
        product_tile = self.tile(self.problem.seq_q if by_query else self.problem.seq_k, cols, narrow=True)
        edge = Edge.WHOLE if product_tile.cluster > 1 else Edge.EXACT
        own, beside = product_tile.rows * product_tile.cluster, -(-cols // product_tile.cols)
        self.launches.append(
            Launch(name, self._domain((own, 64) if by_query else (64, own)), outer,
                   (load(scores, Rows.PAIR, Per.PAIR, times=beside, edge=edge),
                    load(right, other, Per.PAIR, times=product_tile.cluster, edge=edge), store(out, mine, per)),
                   resources=WIDE, work=Work(2 * cols, product_ctas=product_tile.cluster * beside, stages=3))
        )  # fmt: skip

    def pass_over_scores(
        self,
        name: str,
        reads: tuple[str, ...],
        writes: tuple[Tensor, ...],
        exps: int = 0,
        rows: int = terms.PASS_ROWS,
        values: int = ELEMENTWISE_VALUES,
    ) -> None:
        """An elementwise or row-wise launch over N x N tensors, `rows` rows a work tile, `values` a thread."""
        self.hold(*writes)
        accesses: tuple[Access, ...] = tuple(load(n, Rows.PAIR, Per.PAIR) for n in reads)
        accesses += tuple(store(t.name, Rows.PAIR, Per.PAIR) for t in writes)
        p = self.problem
        domain = Domain(p.batch, p.heads, p.seq_q, p.seq_k, rows, p.seq_k)
        self.launches.append(
            Launch(name, domain, Outer.FLAT, accesses, resources=WIDE, work=Work(exps_per_pair=exps),
                   values_per_thread=softmax_values(p.seq_k) if exps else values)
        )  # fmt: skip

    def also(self, *accesses: Access) -> None:
        """More accesses of the last launch, before its own."""
        last = self.launches.pop()
        self.launches.append(replace(last, accesses=(*accesses, *last.accesses)))

    def keep(self, launch: str, *names: str) -> None:
        """Give the memory of temporaries back after `launch`, later than their last use."""
        for name in names:
            if name in self.held and self.held[name].role is Role.TEMP:
                self.held[name] = replace(self.held[name], kept_to=launch)

    def copy(self, name: str, source: str, target: Tensor, *, keys: bool = False) -> None:
        """A pass over one N x d tensor of the queries (or the keys): a cast, a copy or a scaling."""
        self.hold(target)
        self.launches.append(
            row_pass(name, row_domain(self.problem, COPY_ROWS, keys=keys), (source,), (target.name,), resources=WIDE)
        )

    def chain(self) -> Chain:
        return Chain(self.held, tuple(self.launches), self.kernel.notes)


def add_bias(b: ChainBuilder, scores: str) -> str:
    """A pass that adds the bias, made by a launch first where it is ALiBi's; gives the name of its result."""
    if b.problem.bias == "alibi":
        p = b.problem
        bias = Tensor("bias", p.bias_batch, p.heads, p.seq_q, p.seq_k, b.score_bytes, Role.TEMP)
        b.hold(terms.slopes(p), bias)
        b.launches.append(terms.materialise(p))
    else:
        b.hold(terms.bias(b.problem))
    b.pass_over_scores("bias", (scores, "bias"), (_tensor(b, "S_biased"),))
    return "S_biased"


def mask_keys(b: ChainBuilder, name: str, scores: str, out: str) -> str:
    """A pass over scores (or their gradient) with the key-padding mask; gives the name of its result."""
    b.hold(terms.padding(b.problem, b.padding_bytes))
    b.pass_over_scores(name, (scores,), (_tensor(b, out),))
    b.also(load("padding", Rows.KEY, Per.PAIR))
    return out


def _tensor(b: ChainBuilder, name: str, size: int | None = None) -> Tensor:
    return score_matrix(b.problem, name, Role.TEMP, b.score_bytes if size is None else size)


def forward(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """S, the passes over it, P, O."""
    options = options_of(kernel, NaiveOptions)
    b = ChainBuilder(problem, kernel, options.score_bytes)
    run = passes(problem, kernel)
    b.hold(*matrices(problem, "Q K V", Role.INPUT))
    query = "Q"
    if Pass.SCALE_Q in run:
        b.copy("scale_q", "Q", replace(matrix(problem, "Q", Role.TEMP), name="Q_scaled"))
        query = "Q_scaled"
    b.product_to_scores("scores", query, "K", "S", problem.head_dim)
    scores = "S"
    if Pass.SCALE in run:
        b.pass_over_scores("scale", (scores,), (_tensor(b, "S_scaled"),))
        scores = "S_scaled"
    if problem.bias != "none":
        scores = add_bias(b, scores)
    if problem.key_padding:
        scores = mask_keys(b, "padding", scores, "S_padded")
    if Pass.MASK in run:
        b.hold(terms.stored_mask(problem))
        b.pass_over_scores("mask", (scores, "mask"), (_tensor(b, "S_masked"),))
        scores = "S_masked"
    b.pass_over_scores("softmax", (scores,), (_tensor(b, "P"),), exps=1)
    weights = "P"
    if Pass.DROPOUT in run:
        dropped = (_tensor(b, "P_dropped"), _tensor(b, "dropout_mask", options.dropout_mask_bytes))
        b.pass_over_scores("dropout", ("P",), dropped)
        weights = "P_dropped"
    b.hold(matrix(problem, "O", Role.OUTPUT))
    b.product_over_keys("values", weights, "V", "O", problem.head_dim_v)
    b.keep("bwd.dk", "Q_scaled")
    return b.chain()


def backward(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """dV, dP, dS, dK, dQ, from the P that the forward kept."""
    options = options_of(kernel, NaiveOptions)
    b = ChainBuilder(problem, kernel, options.score_bytes)
    run = passes(problem, kernel)
    dropped = Pass.DROPOUT in run
    b.hold(*matrices(problem, "Q K V dO", Role.INPUT))
    kept = ("P", "P_dropped", "dropout_mask") if dropped else ("P",)
    sizes = {"dropout_mask": options.dropout_mask_bytes}
    b.hold(*(replace(_tensor(b, n, sizes.get(n)), role=Role.INPUT) for n in kept))
    b.hold(*matrices(problem, "dV dQ dK", Role.OUTPUT))
    b.hold(*head_gradients(problem))
    tail = "_heads" if problem.group > 1 else ""
    b.product_over_queries("bwd.dv", "P_dropped" if dropped else "P", "dO", f"dV{tail}", problem.head_dim_v)
    b.product_to_scores("bwd.dp", "dO", "V", "dP", problem.head_dim_v)
    grad = "dP"
    if dropped:
        b.pass_over_scores("bwd.dropout", (grad, "dropout_mask"), (_tensor(b, "dP_dropped"),))
        grad = "dP_dropped"
    if options.softmax_backward_product:
        b.pass_over_scores("bwd.product", ("P", grad), (_tensor(b, "PdP"),))
        grad = "PdP"
    b.pass_over_scores("bwd.softmax", ("P", grad), (_tensor(b, "dS"),))
    b.keep("bwd.softmax", "dP", "dP_dropped")
    scores = "dS"
    if Pass.MASK in run and problem.mask_storage != "additive":
        b.hold(terms.stored_mask(problem))
        b.pass_over_scores("bwd.mask", (scores, "mask"), (_tensor(b, "dS_masked"),))
        scores = "dS_masked"
    if problem.key_padding:
        scores = mask_keys(b, "bwd.padding", scores, "dS_padded")
    if problem.bias_grad:
        b.hold(terms.bias(problem, "dBias", Role.OUTPUT))
        b.launches.append(terms.sum_bias(problem, scores))
    if Pass.SCALE in run:
        b.pass_over_scores("bwd.scale", (scores,), (_tensor(b, "dS_scaled"),))
        scores = "dS_scaled"
    b.product_over_queries("bwd.dk", scores, "Q", f"dK{tail}", problem.head_dim)
    if Pass.SCALE_Q in run:
        b.hold(replace(matrix(problem, "dQ", Role.TEMP), name="dQ_scaled"))
        b.product_over_keys("bwd.dq", scores, "K", "dQ_scaled", problem.head_dim)
        b.copy("bwd.scale_q", "dQ_scaled", matrix(problem, "dQ", Role.OUTPUT))
    else:
        b.product_over_keys("bwd.dq", scores, "K", "dQ", problem.head_dim)
    if tail:
        b.launches.append(sum_groups(problem))
    return b.chain()


# What the launches compute. A step that is no launch of its own is folded into a neighbour: the scale into the
# products, the mask into the softmax, dropout (recomputed) into the products with V and dO.
# NB: scores stored in fp8 have no -inf: a mask pass in fp8 is right only for rows that keep a key.

BESIDE = ("bias", "mask", "mask_added", "padding", "dropout_mask", "P")
"""What a pass reads beside the tensor that it goes over; P as well, where it is not that."""


def _operands(at: Place) -> list[str]:
    return [a.tensor for a in at.launch.accesses if a.mode is Mode.LOAD]


def source(at: Place) -> Array:
    """What a pass goes over."""
    read = _operands(at)
    return at[next((n for n in read if n not in BESIDE), "P")]


def put(at: Place, value: Array) -> None:
    (target,) = (a.tensor for a in at.launch.accesses if a.mode is Mode.STORE)
    at.put(target, value)


def step(compute: Callable[[Place], Array], *launches: str, algorithms: tuple[str, ...] = ("naive",)) -> None:
    """Register what launches with one result compute at a tile."""
    for name in algorithms:
        body(name, *launches)(lambda at: put(at, compute(at)))


def _runs(at: Place, name: Pass) -> bool:
    return name in passes(at.problem, at.kernel)


def _scale_share(at: Place) -> float:
    """Factor of each of the passes that scale: they share the scale where there are two."""
    return float(at.scale ** (1 / max(1, _runs(at, Pass.SCALE) + _runs(at, Pass.SCALE_Q))))


def _scores(at: Place) -> Array:
    left, right = _operands(at)
    folded = 1.0 if _runs(at, Pass.SCALE) or _runs(at, Pass.SCALE_Q) else at.scale
    return at[left] @ at[right].T * folded


def masked(at: Place, scores: Array) -> Array:
    """Scores with the mask's tensor: added, or -inf where its bytes are 0."""
    return scores + at["mask"] if at.problem.mask_storage == "additive" else np.where(at["mask"] > 0, scores, -np.inf)


def _softmax(at: Place) -> Array:
    scores = source(at) if _runs(at, Pass.MASK) else np.where(at.kept, source(at), -np.inf)
    weights = exp_less(scores, scores.max(axis=1, keepdims=True))
    return divided(weights, np.broadcast_to(weights.sum(axis=1, keepdims=True), weights.shape))


@body("naive", "dropout")
@body("math", "dropout")
def dropout(at: Place) -> None:
    at.put("P_dropped", at["P"] * at.dropout_factor)
    at.put("dropout_mask", at.survivors)


def _weight_gradient(at: Place) -> Array:
    return at["dP_dropped"] if _runs(at, Pass.DROPOUT) else at["dP"] * at.dropout_factor


def _softmax_gradient(at: Place) -> Array:
    whole = options_of(at.kernel, NaiveOptions).softmax_backward_product
    product = at["PdP"] if whole else at["P"] * _weight_gradient(at)
    return np.asarray(product - at["P"] * product.sum(axis=1, keepdims=True))


def _scale_left(at: Place) -> float:
    """The part of the scale that no pass over the scores has applied."""
    return at.scale / _scale_share(at) if _runs(at, Pass.SCALE) else at.scale


class Summed(Body):
    """A product with a matrix over one axis of an N x N tensor, scaled by a part of `factor`'s; P without its dropout
    is dropped here."""

    def begin(self, at: Place) -> None:
        self.sums: Array = np.zeros(())

    def pair(self, at: Place) -> None:
        left, right = _operands(at)
        weights = at[left] * at.dropout_factor if left == "P" else at[left]
        self.sums = self.sums + (weights.T if at.launch.outer is Outer.KEY else weights) @ at[right]

    def factor(self, at: Place) -> float:
        """What the sums are multiplied by: the scale, for dQ and dK."""
        scales = at.launch.name == "bwd.dk" or (at.launch.name == "bwd.dq" and at.writes("dQ"))
        return _scale_left(at) if scales else 1.0

    def end(self, at: Place) -> None:
        put(at, self.sums * self.factor(at))


body("naive", "values", "bwd.dv", "bwd.dq", "bwd.dk")(Summed)
body("math", "values")(Summed)
step(lambda at: source(at) * _scale_share(at), "scale_q", "scale", "bwd.scale")
step(_scores, "scores")
step(lambda at: source(at) + at["bias"], "bias", algorithms=("naive", "math"))
step(lambda at: np.where(at["padding"].T > 0, source(at), -np.inf), "padding", algorithms=("naive", "math"))
step(lambda at: masked(at, source(at)), "mask")
step(_softmax, "softmax")
step(lambda at: at["dO"] @ at["V"].T, "bwd.dp")
step(lambda at: source(at) * at["dropout_mask"] / (1 - at.problem.dropout), "bwd.dropout")
step(lambda at: at["P"] * _weight_gradient(at), "bwd.product")
step(_softmax_gradient, "bwd.softmax")
step(lambda at: source(at) * at["mask"], "bwd.mask")
step(lambda at: source(at) * at["padding"].T, "bwd.padding")
step(lambda at: source(at) * _scale_left(at), "bwd.scale_q")
body("naive", "bwd.sum_groups")(add_group_gradients)
body("naive", "bwd.sum_bias")(add_bias_gradients)
body("naive", "alibi")(write_alibi)
