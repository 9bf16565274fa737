"""`naive`: attention through N x N tensors in memory (arXiv 2205.14135, Algorithms 0 and 3).

Forward: S = Q K^T, P = softmax(S), O = P V; every further pass over an N x N tensor is a launch of its own, and which
of them run is the kernel's option `passes`, in order, out of:

    scale_q   Q times the softmax scale, before the product (u read, u written)
    scale     S times the softmax scale (where no product folds it in)
    mask      S with a mask of one byte a (query, key) pair that all heads share; with the option `mask_fill` S is
              copied first and the copy filled, as masked_fill does (TensorAdvancedIndexing.cpp); with `mask_added`
              the mask is of the inputs' type, for each sequence
    dropout   P with a mask of one byte an element (option `dropout_mask_bytes`), kept for the backward

A bias and a key-padding mask are passes over S as well, after the scale and before the mask; ALiBi's bias is made as a
tensor by a launch first. A mask given as an additive tensor is added, and its backward is no pass.
Backward: dV = P^T dO, dP = dO V^T, dS = P o (dP - rowsum), dK = dS^T Q, dQ = dS K, with the passes undone in reverse.
With grouped heads dK and dV are made per query head and summed over the group by one more launch.
Option `softmax` = "fp32": half-precision scores become fp32 weights, which a launch casts back; of bf16 the scores are
cast first, as PyTorch does (SoftMax.cpp: one launch for fp16 alone); "cast": of fp16, too, where the program casts.
Option `softmax_backward_product`: P o dP is written by a launch of its own first, as PyTorch's softmax backward does
(aten/src/ATen/native/cuda/SoftMax.cu).
A naive product computes every pair: masks save nothing.

The products' SM<->L2 bytes depend on the tiles of the matrix library: see `iosim.catalog.algorithms.matrix_tiles`.
NB: PyTorch's products take further tiles from a queue in memory, 64 bytes each time; these are left out (0.02 %).
"""

from __future__ import annotations

from enum import StrEnum

from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms import terms
from iosim.catalog.algorithms.common import (
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
from iosim.catalog.algorithms.matrix_tiles import ProductTile, fp32_tile, half_tile
from iosim.catalog.algorithms.registry import algorithm, options_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import (
    Access,
    Chain,
    Domain,
    Edge,
    Launch,
    Outer,
    Per,
    Resources,
    Role,
    Rows,
    Tensor,
)
from iosim.kernel.options import AlgorithmOptions, number
from iosim.kernel.work import Work
from iosim.problem.attention import AttentionProblem


class Pass(StrEnum):
    SCALE_Q = "scale_q"
    SCALE = "scale"
    MASK = "mask"
    DROPOUT = "dropout"


class Softmax(StrEnum):
    """The type in which a chain's softmax computes what it stores."""

    OWN = "own"
    FP32 = "fp32"
    CAST = "cast"


@dataclass(frozen=True)
class ProductOptions(AlgorithmOptions):
    """What the products' tiles go by: `gemm_tile` where it is fixed, else the sizes and the GPU's `sm_count`, and in fp32
    `fp32_side` where all have one."""

    gemm_tile: tuple[int, int] | None = None
    sm_count: int = number(108, 1)
    fp32_side: int | None = number(None, 1)


@dataclass(frozen=True)
class NaiveOptions(ProductOptions):
    """`passes`: those that run, in order; None for a mask's and dropout's where the problem has them. `score_bytes`: of
    an element of the N x N tensors; None for the inputs' type. `dropout_mask_bytes`: of the stored dropout mask; some
    chains keep it in the type of the scores, scaled. `softmax_backward_product`: P o dP is written by a launch of its
    own first. `mask_fill`, `mask_added`: how a mask that no problem's option stores is applied."""

    passes: tuple[Pass, ...] | None = None
    score_bytes: int | None = number(None, 1)
    dropout_mask_bytes: int = number(1, 1)
    softmax_backward_product: bool = False
    softmax: Softmax = Softmax.OWN
    mask_fill: bool = False
    mask_added: bool = False


WIDE = Resources(256)
COPY_ROWS = 128
ELEMENTWISE_VALUES = 8
"""Values that a thread of PyTorch's elementwise passes takes: their grids in h200_chain_launches.csv."""
LONGEST_ROW_OF_A_WARP = 2048
ISSUED_BY_SOFTMAX = (39.0, 75.0)
"""Instructions a value of softmax, where a warp has the row and where a CTA has: 36.7 to 43.5 and 73.4 to 79.5 for rows
of 256 to 8,192 in fp16 and fp32, counted on an H200 (h200_passes_issued.csv, experiments/passes_issued.py)."""
ISSUED_BY_CAST, ISSUED_BY_MASK = 89.0, 85.0
"""What a value takes of the schedulers' slots in the casts of PyTorch that find their types as they run (16 bits to
fp32) and in passes with a broadcast mask, which find their offsets so: 188, 178 and 164 us for 2^26 values on an H200,
HBM's part apart (the same file). They issue 52, 53 and 57 instructions; what holds up the rest is not known."""


def softmax_issues(keys: int) -> float:
    """Instructions that a value of softmax takes."""
    return ISSUED_BY_SOFTMAX[keys > LONGEST_ROW_OF_A_WARP]


def softmax_values(keys: int) -> int:
    """Values that a thread of PyTorch's softmax holds: a warp has a row, or a CTA of 1,024 threads where it is long
    (aten/src/ATen/native/cuda/PersistentSoftmax.cuh, SoftMax.cu)."""
    return -(-keys // (32 if keys <= LONGEST_ROW_OF_A_WARP else 1024))


@algorithm("naive", takes=terms.SCORE_TERMS, options=NaiveOptions, standard=True)
def plan_naive(problem: AttentionProblem, kernel: Kernel) -> Chain:
    return forward(problem, kernel) if problem.forward else backward(problem, kernel)


def passes(problem: AttentionProblem, kernel: Kernel) -> tuple[Pass, ...]:
    """The extra passes that run: as the kernel says, else a mask pass and a dropout pass where the problem has them. A
    mask that is stored always has its pass."""
    # What the chain runs is the kernel's option; without one, what the problem needs. A pass with nothing
    # to do is left out.
    wanted = options_of(kernel, NaiveOptions).passes
    if wanted is None:
        wanted = (Pass.MASK, Pass.DROPOUT)
    elif problem.mask_storage != "implicit" and Pass.MASK not in wanted:
        wanted = (*wanted, Pass.MASK)
    idle = {Pass.MASK} if problem.mask == "none" else set()
    if not problem.dropout:
        idle.add(Pass.DROPOUT)
    return tuple(name for name in wanted if name not in idle)


class ChainBuilder:
    """Collects launches and tensors; every pass gives its output a name of its own."""

    def __init__(
        self,
        problem: AttentionProblem,
        kernel: Kernel,
        score_bytes: int | None = None,
        padding_bytes: int = 1,
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
            side, sms = self.products.fp32_side, self.products.sm_count
            heads = p.batch * p.heads
            return fp32_tile(rows, cols, heads, narrow=narrow, side=side, sm_count=sms)
        return half_tile(rows, cols, p.batch * p.heads, self.products.sm_count, narrow=narrow)

    def _product(self, cols: int, ctas: int = 1) -> Work:
        """Work of a product over `cols`, in fp32 where half-precision operands were cast to it before."""
        in_fp32 = self.wide_scores and self.problem.input_type.bytes < 4
        dtype = "fp32" if in_fp32 else ""
        return Work(2 * cols, product_ctas=ctas, stages=3, dtype=dtype)

    def product_to_scores(self, name: str, first: str, right: str, out: str, cols: int) -> None:
        """out[q, k] = left[q, :] . right[k, :]: a CTA a tile of the N x N result."""
        p = self.problem
        self.hold(score_matrix(p, out, Role.TEMP, self.score_bytes))
        # A CTA a tile of the N x N result: it reads a row of tiles of both operands and writes its own.
        product_tile = self.tile(p.seq_q, p.seq_k, narrow=False)
        domain, work = (
            self._domain((product_tile.rows, product_tile.cols)),
            self._product(cols),
        )
        accesses = (
            load(first, Rows.QUERY, Per.PAIR),
            load(right, Rows.KEY, Per.PAIR),
            store(out, Rows.PAIR, Per.PAIR),
        )
        self.launches.append(Launch(name, domain, Outer.PAIR, accesses, resources=WIDE, work=work))

    def product_over(
        self, outer: Outer, name: str, scores: str, right: str, out: str, cols: int
    ) -> None:
        """out[q, :] = sum over k of scores[q, k] right[k, :], where a work tile is a query block (or a cluster);
        out[k, :], the sum over q, where it is a key block. In steps of 64; each CTA of a cluster reads the other
        operand for itself."""
        # S V, S^T Q and the like: the CTA owns rows of the result and walks the other axis in steps of 64.
        # A result wider than a tile's columns has CTAs side by side, which read the scores each.
        by_query = outer is Outer.QUERY
        mine, other, per = (
            (Rows.QUERY, Rows.KEY, Per.QUERY) if by_query else (Rows.KEY, Rows.QUERY, Per.KEY)
        )
        product_tile = self.tile(
            self.problem.seq_q if by_query else self.problem.seq_k, cols, narrow=True
        )
        cluster, edge = product_tile.cluster, Edge.WHOLE if product_tile.cluster > 1 else Edge.EXACT
        cluster_rows, beside = product_tile.rows * cluster, -(-cols // product_tile.cols)
        domain = self._domain((cluster_rows, 64) if by_query else (64, cluster_rows))
        loads = [load(scores, Rows.PAIR, Per.PAIR, times=beside, edge=edge)]
        loads.append(load(right, other, Per.PAIR, times=cluster, edge=edge))
        work = self._product(cols, ctas=cluster * beside)
        if self.products.fp32_side == product_tile.cols:
            work = replace(work, product_columns=beside * product_tile.cols)
        accesses = (*loads, store(out, mine, per))
        self.launches.append(Launch(name, domain, outer, accesses, resources=WIDE, work=work))

    def pass_over_scores(
        self,
        name: str,
        reads: tuple[str, ...],
        *writes: str | Tensor,
        exps: int = 0,
        rows: int = terms.PASS_ROWS,
        values: int = ELEMENTWISE_VALUES,
        issued: float = 0.0,
    ) -> str:
        """An elementwise or row-wise launch over N x N tensors, `rows` rows a work tile, `values` a thread, `issued`
        instructions a value; gives the name of what it writes first. A name stands for a tensor of scores."""
        p = self.problem
        outputs = [
            score_matrix(p, t, Role.TEMP, self.score_bytes) if isinstance(t, str) else t
            for t in writes
        ]
        self.hold(*outputs)
        accesses = (
            *(load(n, Rows.PAIR, Per.PAIR) for n in reads),
            *(store(t.name, Rows.PAIR, Per.PAIR) for t in outputs),
        )
        values = softmax_values(p.seq_k) if exps else values
        issued = softmax_issues(p.seq_k) if exps else issued
        work = Work(exps_per_pair=exps, issued_per_value=issued)
        more = {"work": work, "values_per_thread": values}
        self.launches.append(terms.score_pass(name, p, p.batch, p.heads, accesses, rows, **more))
        return outputs[0].name if outputs else ""

    def also(self, *accesses: Access) -> None:
        """More accesses of the last launch, before its own."""
        last = self.launches.pop()
        self.launches.append(replace(last, accesses=(*accesses, *last.accesses)))

    def keep(self, launch: str, *names: str) -> None:
        """Give the memory of temporaries back after `launch`, later than their last use."""
        for name in names:
            if name in self.held and self.held[name].role is Role.TEMP:
                self.held[name] = replace(self.held[name], kept_to=launch)

    def copy(
        self, name: str, source: str, target: Tensor, *, keys: bool = False, issued: float = 0.0
    ) -> None:
        """A pass over one N x d tensor of the queries (or the keys): a cast, a copy or a scaling."""
        self.hold(target)
        rows, work = row_domain(self.problem, COPY_ROWS, keys=keys), Work(issued_per_value=issued)
        made = row_pass(name, rows, (source,), (target.name,), resources=WIDE, work=work)
        self.launches.append(made)

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
    return b.pass_over_scores("bias", (scores, "bias"), "S_biased")


def mask_keys(b: ChainBuilder, name: str, scores: str, out: str) -> str:
    """A pass over scores (or their gradient) with the key-padding mask; gives the name of its result."""
    b.hold(terms.padding(b.problem, b.padding_bytes))
    b.pass_over_scores(name, (scores,), out)
    b.also(load("padding", Rows.KEY, Per.PAIR))
    return out


def apply_mask(b: ChainBuilder, name: str, scores: str, out: str) -> str:
    """The mask's pass or passes over scores, or over their gradient; gives the name of the result."""
    p, options = b.problem, options_of(b.kernel, NaiveOptions)
    mask = terms.stored_mask(p)
    if options.mask_added and p.mask_storage == "implicit":
        mask = replace(mask, batch=p.batch, element_bytes=p.input_type.bytes)
    b.hold(mask)
    if not options.mask_fill:
        return b.pass_over_scores(name, (scores, "mask"), out, issued=ISSUED_BY_MASK)
    b.pass_over_scores(f"{name}_copy", (scores,), out)
    return b.pass_over_scores(name, (out, "mask"), out, issued=ISSUED_BY_MASK)


def softmax(b: ChainBuilder, scores: str) -> str:
    """P of the scores, by way of fp32 where the chain computes it so; gives its name."""
    p, kind = b.problem, options_of(b.kernel, NaiveOptions).softmax
    if not _is_wide(b):
        return b.pass_over_scores("softmax", (scores,), "P", exps=1)
    if kind is Softmax.CAST or p.dtype == "bf16":
        wide = score_matrix(p, "S_fp32", Role.TEMP, 4)
        scores = b.pass_over_scores("cast_S", (scores,), wide, issued=ISSUED_BY_CAST)
    b.pass_over_scores("softmax", (scores,), score_matrix(p, "P_fp32", Role.TEMP, 4), exps=1)
    return b.pass_over_scores("cast_P", ("P_fp32",), "P")


def _is_wide(b: ChainBuilder) -> bool:
    """True where the softmax leaves fp32 weights beside those of the scores' type."""
    return options_of(b.kernel, NaiveOptions).softmax is not Softmax.OWN and b.score_bytes < 4


def softmax_backward(b: ChainBuilder, grad: str) -> str:
    """dS of dP and P; gives its name. Through a softmax in fp32 all but the first and the last is fp32."""
    p, weights, gradient = b.problem, "P", "dS"
    wide = _is_wide(b)

    def tensor(name: str) -> str | Tensor:
        return score_matrix(p, name, Role.TEMP, 4) if wide else name

    if wide:
        weights, gradient = "P_fp32", "dS_fp32"
        wider = tensor("dP_fp32")
        grad = b.pass_over_scores("bwd.cast_P", (grad,), wider, issued=ISSUED_BY_CAST)
    if options_of(b.kernel, NaiveOptions).softmax_backward_product:
        grad = b.pass_over_scores("bwd.product", (weights, grad), tensor("PdP"))
    scores = b.pass_over_scores("bwd.softmax", (weights, grad), tensor(gradient))
    b.keep("bwd.softmax", "dP", "dP_dropped")
    return b.pass_over_scores("bwd.cast_S", (scores,), "dS") if wide else scores


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
    # Passes over S in the program's order; each writes a tensor of its own.
    scores = "S"
    if Pass.SCALE in run:
        scores = b.pass_over_scores("scale", (scores,), "S_scaled")
    if problem.bias != "none":
        scores = add_bias(b, scores)
    if problem.key_padding:
        scores = mask_keys(b, "padding", scores, "S_padded")
    if Pass.MASK in run:
        scores = apply_mask(b, "mask", scores, "S_masked")
    weights = softmax(b, scores)
    if Pass.DROPOUT in run:
        mask = score_matrix(problem, "dropout_mask", Role.TEMP, options.dropout_mask_bytes)
        weights = b.pass_over_scores("dropout", ("P",), "P_dropped", mask)
    b.hold(matrix(problem, "O", Role.OUTPUT))
    b.product_over(Outer.QUERY, "values", weights, "V", "O", problem.head_dim_v)
    b.keep("bwd.dk", "Q_scaled")
    return b.chain()


def backward(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """dV, dP, dS, dK, dQ, from the P that the forward kept."""
    options = options_of(kernel, NaiveOptions)
    b = ChainBuilder(problem, kernel, options.score_bytes)
    run = passes(problem, kernel)
    dropped = Pass.DROPOUT in run
    b.hold(*matrices(problem, "Q K V dO", Role.INPUT))
    # What the forward left for the backward: P (twice where its softmax was wide), dropout's mask.
    element_bytes_of = {"P": b.score_bytes}
    if _is_wide(b):
        element_bytes_of["P_fp32"] = 4
    if dropped:
        element_bytes_of |= {"P_dropped": b.score_bytes, "dropout_mask": options.dropout_mask_bytes}
    b.hold(
        *(score_matrix(problem, name, Role.INPUT, size) for name, size in element_bytes_of.items())
    )
    b.hold(*matrices(problem, "dV dQ dK", Role.OUTPUT))
    b.hold(*head_gradients(problem))
    tail = "_heads" if problem.group > 1 else ""
    # The forward's passes undone, last first: dV needs P alone, dP is new, then dropout, softmax, mask,
    # padding, bias and scale; dK and dQ are products with what is then dS.
    b.product_over(
        Outer.KEY, "bwd.dv", "P_dropped" if dropped else "P", "dO", f"dV{tail}", problem.head_dim_v
    )
    b.product_to_scores("bwd.dp", "dO", "V", "dP", problem.head_dim_v)
    grad = "dP"
    if dropped:
        grad = b.pass_over_scores("bwd.dropout", (grad, "dropout_mask"), "dP_dropped")
    scores = softmax_backward(b, grad)
    if Pass.MASK in run and problem.mask_storage != "additive" and not options.mask_added:
        scores = apply_mask(b, "bwd.mask", scores, "dS_masked")
    if problem.key_padding:
        scores = mask_keys(b, "bwd.padding", scores, "dS_padded")
    if problem.bias_grad:
        b.hold(terms.bias(problem, "dBias", Role.OUTPUT))
        b.launches.append(terms.sum_bias(problem, scores))
    if Pass.SCALE in run:
        scores = b.pass_over_scores("bwd.scale", (scores,), "dS_scaled")
    b.product_over(Outer.KEY, "bwd.dk", scores, "Q", f"dK{tail}", problem.head_dim)
    if Pass.SCALE_Q in run:
        b.hold(replace(matrix(problem, "dQ", Role.TEMP), name="dQ_scaled"))
        b.product_over(Outer.QUERY, "bwd.dq", scores, "K", "dQ_scaled", problem.head_dim)
        b.copy("bwd.scale_q", "dQ_scaled", matrix(problem, "dQ", Role.OUTPUT))
    else:
        b.product_over(Outer.QUERY, "bwd.dq", scores, "K", "dQ", problem.head_dim)
    if tail:
        b.launches.append(sum_groups(problem))
    return b.chain()
