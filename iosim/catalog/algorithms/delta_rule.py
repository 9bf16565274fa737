"""`delta_rule`: a state S a head that each token corrects before it is read (arXiv 2412.06464; 2510.26692).

    S <- g S + k (beta (v - k^T g S))^T,    o = scale q^T S

The decay g is a number a token and head (`gate` head: gated DeltaNet, GDN) or one a column of K (`gate` column: Kimi
delta attention, KDA, without grouped heads). Prefill takes chunks of tokens, as fla-org/flash-linear-attention launches
them (fla/ops/gated_delta_rule, fla/ops/kda, fla/ops/common):

    norm_q, norm_k  Q and K of length 1, where option `norm` asks for them
    cumsum          the gates' logarithms, summed within each chunk
    fill            zeros where A has no values (torch.zeros), but for a `separate_solve`
    kkt, solve      A = (I + tril(beta (K g)(K / g)^T, -1))^-1, chunk x chunk: one launch, or with `separate_solve` two
                    with K K^T in fp32 between them. KDA computes blocks of `sub_chunk` tokens on the diagonal first,
                    and what a query takes of its own chunk's keys (Aqk) with them
    recompute       w = A beta g K, u = A beta V, of KDA K times the decay to its chunk's end
    state           walks the chunks: writes h, the state before each, and v_new = u - w h
    output          o = scale (g Q h + tril(Q K^T g / g) v_new)

A step of decoding, one token a sequence, is one launch. NB: KDA's walk reads the last row of a chunk's gate sums alone:
it stands as a tensor of its own, `decay`, which the launch that sums them writes beside them. Squares
of a chunk are counted whole, where kernels leave blocks above the diagonal out.
"""

from __future__ import annotations

from enum import StrEnum

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.catalog.algorithms.common import store
from iosim.catalog.algorithms.registry import algorithm
from iosim.catalog.algorithms.states import GATE_BYTES, Moved, StateChain, StateOptions
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Access, Chain, Per, Role, Rows
from iosim.kernel.options import number
from iosim.kernel.work import Dependent, Work
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
"""Operations of the fp32 units for a column of a key: its decay and both products, summed."""
SIDE = 64
"""Columns of K, or of V, that a product takes at once: two halves of 128, one after the other."""
OUTPUT_DEPTH = 128
"""Columns of Q and K that a step of the output launch stages (SGLang's chunk_o.py, chunk_fwd_o: BK)."""


@algorithm(
    "delta_rule",
    options=DeltaOptions,
    softmax=False,
    dtypes=("fp16", "bf16"),
    example_tile=Tile(32, 64),
)
def plan_delta_rule(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The launches of a prefill, or of a step of decoding. Raises InputError: what `states.check` refuses, grouped
    heads with a gate a column, or a chunk that is no whole number of its parts."""
    chain = DeltaChain(problem, kernel)
    if chain.is_step:
        shared = chain.columns_shared(chain.options.step_columns)
        chain.step(*(chain.read(n, shared) for n in ("Q", "K", "g", "beta")), "V")
    else:
        chain.sums()
        chain.inverse()
        chain.recompute()
        chain.state()
        chain.output()
    return chain.chain()


class DeltaChain(StateChain):
    """A call's launches, one method or two a launch, in order; `q` and `k` are what they read as Q and K."""

    options: DeltaOptions

    def __init__(self, problem: AttentionProblem, kernel: Kernel) -> None:
        super().__init__(problem, kernel, DeltaOptions)
        p, part = problem, self.options.sub_chunk
        self.by_column = self.options.gate is Gate.COLUMN
        if self.by_column and p.group > 1:
            reason = f"each head of kernel '{kernel.name}' has a Q and a K of its own; accepted: {p.heads}"
            raise InputError(f"`kv_heads` {p.kv_heads}: {reason}")
        # A chunk is solved part by part: `sub_chunk` tokens on the diagonal, then what lies below.
        if (self.by_column or self.options.separate_solve) and self.chunk % part:
            reason = f"are no whole number of parts of {part}; accepted: multiples of {part}"
            raise InputError(f"chunks of {self.chunk} tokens {reason}")
        self.q, self.k = "Q", "K"
        self.halves = -(-p.head_dim // SIDE)
        for name in "QK":
            self.rows(name, p.head_dim, Role.INPUT, keys=True)
        self.rows("V", p.head_dim_v, Role.INPUT)
        columns, size = (p.head_dim, None) if self.by_column else (1, GATE_BYTES)
        self.rows("g", columns, Role.INPUT, size=size)
        self.rows("beta", 1, Role.INPUT, size=GATE_BYTES)
        self.rows("O", p.head_dim_v, Role.OUTPUT)

    def sums(self) -> None:
        """Q and K of length 1, and the sums of gates."""
        d = self.problem.head_dim
        if self.options.norm:
            self.q, self.k = (self.rows(f"{name}_norm", d, keys=True) for name in "QK")
            for name, to in (("Q", self.q), ("K", self.k)):
                self.over_chunks(
                    f"norm_{name.lower()}", (name,), (to,), over=self.side_by_side(keys=True)
                )
        self.rows("g_sum", d if self.by_column else 1, size=GATE_BYTES)
        written: list[str | Access] = ["g_sum"]
        if self.by_column:
            self.states("decay", 1, d, Role.TEMP, GATE_BYTES, chunks=True)
            written.append(store("decay", Rows.OWN, Per.QUERY))
        self.over_chunks("cumsum", ("g",), written, Work(dependent=Dependent(loads=1)))

    def inverse(self) -> None:
        """A; of KDA what a query takes of its own chunk, too."""
        self.rows("A", self.chunk)
        if not self.options.separate_solve or self.by_column:
            self.over_chunks("fill", (), ("A",))
        if self.by_column:
            self._inverse_by_column()
        elif self.options.separate_solve:
            self._inverse_in_parts()
        else:
            # One launch: K K^T in halves of 64 columns, then the triangular system row by row, in parts that
            # six products merge.
            dependent = Dependent(loads=self.halves, products=MERGES, rows=self.chunk)
            work, kept_numbers = (
                Work(2 * self.chunk * self.problem.head_dim, dependent=dependent),
                (2 * self.chunk**2, 0),
            )
            self.over_chunks(
                "kkt_solve", (self.k, "g_sum", "beta"), ("A",), work, kept_numbers=kept_numbers
            )

    def _inverse_by_column(self) -> None:
        """A CTA a token reads the keys and gates of its part before it, half of them in the mean; then one a chunk."""
        part, halves, d = self.options.sub_chunk, self.halves, self.problem.head_dim
        self.rows("near", part, size=GATE_BYTES)
        self.rows("Aqk_near", part)
        self.rows("Aqk_far", self.chunk - part)
        # Diagonal parts on the fp32 units, a CTA a token; below the diagonal products on tensor cores.
        reads: Moved = (self.q, "beta", *(self.read(n, part // 2 + 1) for n in (self.k, "g_sum")))
        flops, ctas = COLUMN_OPERATIONS * part * d, self.chunk
        work = Work(flops, tensor_cores=False, product_ctas=ctas, dependent=Dependent(loads=2))
        self.over_chunks("kkt", reads, ("near", "Aqk_near"), work)
        dependent = Dependent(
            loads=PARTS * halves, products=PARTS * halves + MERGES, rows=self.chunk
        )
        reads, work = (
            (self.q, self.k, "g_sum", "beta", "near"),
            Work(4 * self.chunk * d, dependent=dependent),
        )
        self.over_chunks(
            "solve", reads, ("Aqk_far", "A"), work, kept_numbers=(2 * self.chunk**2, 0)
        )

    def _inverse_in_parts(self) -> None:
        """K K^T, the inverse of each part of a chunk, and theirs merged."""
        part, square, solved = (
            self.options.sub_chunk,
            self.chunk**2,
            Dependent(loads=1, rows=self.options.sub_chunk),
        )
        self.rows("KK_near", part, size=GATE_BYTES)
        self.rows("KK_far", self.chunk - part, size=GATE_BYTES)
        self.rows("near", part, size=GATE_BYTES)
        work = Work(
            2 * self.chunk * self.problem.head_dim,
            dependent=Dependent(loads=1, products=self.halves),
        )
        self.over_chunks(
            "kkt", (self.k, "g_sum", "beta"), ("KK_near", "KK_far"), work, kept_numbers=(square, 0)
        )
        self.over_chunks(
            "solve", ("KK_near",), ("near",), Work(dependent=solved), self.side_by_side(block=part)
        )
        work = Work(dependent=Dependent(loads=1, products=MERGES))
        self.over_chunks("merge", ("near", "KK_far"), ("A",), work, kept_numbers=(2 * square, 0))

    def recompute(self) -> None:
        """w and u, and of KDA K decayed to its chunk's end."""
        d, dv = self.problem.head_dim, self.problem.head_dim_v
        self.rows("w", d)
        self.rows("u", dv)
        written = ["w", "u"]
        if self.by_column:
            written.append(self.rows("K_end", d))
        dependent = Dependent(loads=2, products=self.halves - (-dv // SIDE))
        work = Work(2 * self.chunk * (d + dv), dependent=dependent)
        kept_numbers = self.chunk * SIDE, self.chunk * (self.chunk + 2 * SIDE)
        self.over_chunks(
            "recompute",
            (self.k, "V", "beta", "g_sum", "A"),
            written,
            work,
            kept_numbers=kept_numbers,
        )

    def state(self) -> None:
        """The walk over the chunks."""
        p, per, columns = self.problem, Per.PAIR, self.kernel.tile.block_q
        self.rows("v_new", p.head_dim_v)
        self.states("h", p.head_dim, p.head_dim_v, Role.TEMP, p.input_type.bytes, chunks=True)
        ctas, kept_numbers = self.columns_shared(columns), (p.head_dim + self.chunk) * columns
        # The walk: each CTA owns some columns of V of a head's state and goes from chunk to chunk, two
        # products (w h, then K^T v_new) that wait for one another in each.
        gates = self.own("decay", ctas, per) if self.by_column else self.read("g_sum", ctas, per)
        keys = self.read("K_end" if self.by_column else self.k, ctas, per)
        reads = (self.read("w", ctas, per), keys, self.read("u", per=per), gates)
        stores = (self.write("v_new", per), store("h", Rows.OWN, per))
        self.walk(
            "state",
            (*reads, *stores),
            ctas,
            kept_numbers,
            Dependent(products=2 * self.halves),
            flops=4 * p.head_dim,
        )

    def output(self) -> None:
        """O, from the state before a chunk and from the chunk itself."""
        d, dv, columns = self.problem.head_dim, self.problem.head_dim_v, self.options.output_columns
        ctas, depth = self.columns_shared(columns), min(d, OUTPUT_DEPTH)
        shared = (self.q, "g_sum", *(("Aqk_near", "Aqk_far") if self.by_column else (self.k,)))
        # Products with the state before the chunk (d x dv) and inside the chunk: with V, and Q K^T for each
        # CTA that shares the chunk, unless it was made before (KDA).
        within = dv if self.by_column else dv + ctas * d
        reads: Moved = (*(self.read(n, ctas) for n in shared), "v_new", self.own("h"))
        flops, dependent = 2 * d * dv + 2 * self.chunk * within, Dependent(loads=3, products=3)
        kept_numbers = (
            self.chunk * (self.chunk + columns),
            2 * self.chunk * depth + (self.chunk + depth) * columns,
        )
        self.over_chunks(
            "output",
            reads,
            ("O",),
            Work(flops, product_ctas=ctas, dependent=dependent),
            kept_numbers=kept_numbers,
        )
