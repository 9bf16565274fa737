"""`moba`: mixture of block attention (arXiv 2502.13189), a forward over one sequence.

As MoonshotAI/MoBA launches it (moba/moba_efficient.py, read in yibozhong/MoBA @28458cc7: moba_attn_varlen,
MixedAttention.forward): PyTorch's passes gate each query by the fp32 means of the whole blocks before its own, top-k
finds `top_k` - 1 of them, passes gather queries and keys block by block, FlashAttention-2 runs over each token's own
block ("main") and over the blocks that were picked ("picked"), and passes scale both by their log-sum-exps and add them
up in fp32.

Assumed: a query picks evenly among the blocks that it sees, by turns from the
last one on, so that each block gets as many as the next.
NB: passes over one number a token or block, and over one bool a token and block for all heads, are left out; what is
gathered takes room for `top_k` - 1 blocks of every query.
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms import flash, flash_options
from iosim.catalog.algorithms.common import load, row_pass, store
from iosim.catalog.algorithms.registry import algorithm, options_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import (
    Access,
    Chain,
    Domain,
    Launch,
    LaunchRole,
    Mode,
    Outer,
    Per,
    Resources,
    Role,
    Rows,
    Tensor,
)
from iosim.kernel.options import number
from iosim.kernel.work import Work
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.mask import IntervalMask

PASS_ROWS = 8
SECTOR_SCORES = 8
"""Scores of a query lie apart, so that the top-k, a CTA a query, reads a sector for each (inferred)."""
GATE_TILE = 128


@dataclass(frozen=True)
class MobaOptions(flash_options.FlashOptions):
    """`block`: tokens of a block; `top_k`: blocks that a query attends to, its own among them; `own_tile`: rows of
    queries and of keys of the launch over own blocks, where they are not the kernel's."""

    block: int = number(4096, 1)
    top_k: int = number(12, 2)
    own_tile: tuple[int, ...] = ()


def blocks_of(problem: AttentionProblem, options: MobaOptions) -> tuple[int, int]:
    """(blocks before the last one, those of them that a query picks)."""
    before = -(-problem.seq_k // options.block) - 1
    return before, min(options.top_k - 1, before)


def levels(
    problem: AttentionProblem, options: MobaOptions
) -> tuple[AttentionProblem, AttentionProblem | None]:
    """Attention within blocks, and that of picked blocks over the queries that picked each; None without any."""
    before, picks = blocks_of(problem, options)
    block, last = options.block, problem.seq_k - before * options.block
    lens = (block,) * before + (last,)
    self_blocks = problem.with_(seq_lens=lens, seq_lens_k=lens)
    if not picks:
        return self_blocks, None
    # Queries that each block gets: of block n's queries each picks min(picks, n) of the n blocks before
    # it, shared out evenly, the rest to the last ones.
    queries = [0] * before
    for n in range(1, before + 1):
        share, rest = divmod(lens[n] * min(picks, n), n)
        for m in range(n):
            queries[m] += share + (m >= n - rest)
    return self_blocks, self_blocks.with_(
        mask="none",
        seq_q=sum(queries),
        seq_k=before * block,
        seq_lens=tuple(queries),
        seq_lens_k=(block,) * before,
    )


@algorithm("moba", options=MobaOptions, softmax=False, symbolic=False, dtypes=("fp16", "bf16"))
def plan_moba(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The launches of a forward. Raises InputError: what `_check` refuses."""
    _check(problem, kernel)
    options = options_of(kernel, MobaOptions)
    self_blocks, picked = levels(problem, options)
    kernel = replace(kernel, writes_lse=True)
    if picked is None:
        return flash.forward(self_blocks, kernel)
    rows, keys = options.own_tile or (kernel.tile.block_q, kernel.tile.block_k)
    first = flash.forward(
        self_blocks, replace(kernel, tile=replace(kernel.tile, block_q=rows, block_k=keys))
    )
    second = flash.forward(picked, kernel)
    # In the order of the program: gate, gather, own blocks, picked blocks, merge.
    builder = _Passes(problem, options)
    builder.gate()
    builder.gather()
    builder.attend("main", first, {"Q": "Q_again", "O": "O_self", "LSE": "LSE_self"})
    names = {"Q": "Q_sorted", "K": "K_block", "V": "V_block", "O": "O_sorted", "LSE": "LSE_sorted"}
    builder.attend("picked", second, names, LaunchRole.OTHER)
    builder.merge()
    return Chain(builder.held, tuple(builder.launches), first.notes)


def _check(problem: AttentionProblem, kernel: Kernel) -> None:
    p = problem
    wanted = {
        "passes": "fwd",
        "dropout": 0.0,
        "mask": "causal",
        "batch": 1,
        "kv_heads": p.heads,
        "seq_q": p.seq_k,
    }
    for field, accepted in (wanted | ({"offset": 0} if p.offset else {})).items():
        if getattr(p, field) != accepted:
            reason = f"is not possible with kernel '{kernel.name}'; accepted: {accepted}"
            raise InputError(f"`{field}` {getattr(p, field)} {reason}")


class _Passes:
    """Collects tensors and launches."""

    def __init__(self, problem: AttentionProblem, options: MobaOptions) -> None:
        self.problem, self.block = problem, options.block
        self.before, self.picks = blocks_of(problem, options)
        self.held: dict[str, Tensor] = {}
        self.launches: list[Launch] = []

    def hold(
        self, names: str, rows: int, cols: int, size: int, copies: int = 1, view_of: str = ""
    ) -> None:
        for name in names.split():
            self.held[name] = Tensor(
                name,
                1,
                self.problem.heads,
                rows,
                cols,
                size,
                Role.TEMP,
                copies=copies,
                view_of=view_of,
            )

    def rows(
        self, name: str, reads: str, writes: str, rows: int, block: int = PASS_ROWS, times: int = 1
    ) -> None:
        """An elementwise pass over rows of each head."""
        domain = Domain(
            1, self.problem.heads, rows, 1, block, 1, pack=block if name == "mean" else 1
        )
        loads = (load(n, Rows.QUERY, Per.QUERY, times=times) for n in reads.split())
        self.launches.append(row_pass(name, domain, loads, writes.split()))

    def each_pick(self, name: str, reads: str, writes: str, adds: str = "") -> None:
        """A pass over each query's picks, which stand as splits: the one of number n is there from block n + 1 on."""
        p, mask = self.problem, IntervalMask(None, 0, -1, self.block)
        rows = next(n for n in (PASS_ROWS, 4, 2, 1) if self.block % n == 0)
        # Picks stand as splits; the mask of ratio `block` says that queries of block n have n picks at most.
        domain = Domain(1, p.heads, p.seq_q, self.picks, rows, 1, mask, splits=self.picks)
        accesses = (
            *(load(n, Rows.QUERY, Per.SPLIT, visited_only=True) for n in reads.split()),
            *(store(n, Rows.QUERY, Per.SPLIT, visited_only=True) for n in writes.split()),
            *(
                Access(n, Mode.REDUCE, Rows.QUERY, Per.SPLIT, visited_only=True)
                for n in adds.split()
            ),
        )
        self.launches.append(Launch(name, domain, Outer.SPLIT, accesses, resources=Resources(128)))

    def gate(self) -> None:
        """Copies of K and V, means, gates, and which blocks each query has."""
        p, tokens = self.problem, self.before * self.block
        size, (n, d, blocks) = p.input_type.bytes, (p.seq_q, p.head_dim, self.before)
        self.hold("K_kv V_kv Q_again Q_rows", n, d, size)
        self.hold("K_whole V_whole K_block V_block", tokens, d, size)
        self.hold("K_mean", blocks, d, size)
        self.held["K_mean"] = replace(self.held["K_mean"], along=Rows.KEY)
        self.hold("K_mean_32", blocks, d, 4)
        self.hold("Q_32", n, d, 4)
        self.hold("gate", n, blocks, 4)
        self.hold("values", n, self.picks, 4)
        self.hold("indices", n, self.picks, 8)
        self.hold("hidden seen taken chosen", n, blocks, 1)
        self.rows("stack", "K V", "K_kv V_kv", n)
        for name in "KV":
            self.hold(f"{name}_first", tokens, d, size, view_of=f"{name}_kv")
        self.rows("filter", "K_first V_first", "K_whole V_whole", tokens)
        self.rows("mean", "K_whole", "K_mean", tokens, self.block)
        self.rows("widen_K", "K_mean", "K_mean_32", blocks)
        self.rows("widen_Q", "Q", "Q_32", n)
        product = (
            load("Q_32", Rows.QUERY, Per.PAIR),
            load("K_mean_32", Rows.KEY, Per.PAIR),
            store("gate", Rows.PAIR, Per.PAIR),
        )
        domain = Domain(1, p.heads, n, blocks, GATE_TILE, min(GATE_TILE, blocks))
        work = Work(2 * d, dtype="fp32", tensor_cores=False, stages=3)
        self.launches.append(
            Launch("gate", domain, Outer.PAIR, product, resources=Resources(256), work=work)
        )
        self.rows("narrow_Q", "Q_32", "Q_again", n)
        self.rows("mask", "gate", "gate", n)
        self.rows("top_k", "gate", "values indices", n, times=SECTOR_SCORES)
        self.rows("isinf", "gate", "hidden", n)
        self.rows("not", "hidden", "seen", n)
        self.rows("fill_taken", "", "taken", n)
        self.rows("scatter", "indices", "taken", n)
        self.rows("and", "seen taken", "chosen", n)
        self.rows("count", "chosen", "", n, times=2)

    def gather(self) -> None:
        """Queries in the order of the blocks that they picked, and these."""
        p, size = self.problem, self.problem.input_type.bytes
        self.hold("places", p.seq_q, 2, 8, self.picks)
        self.hold("Q_picked", p.seq_q, p.head_dim, size, self.picks)
        self.each_pick("places", "", "places")
        self.rows("rows", "Q_again", "Q_rows", p.seq_q)
        self.each_pick("pick", "places Q_rows", "Q_picked")
        self.rows("arrange", "K_whole V_whole", "K_block V_block", self.before * self.block)

    def attend(
        self,
        name: str,
        chain: Chain,
        names: dict[str, str],
        launch_role: LaunchRole = LaunchRole.MAIN,
    ) -> None:
        """A call of FlashAttention-2, on tensors of these names."""
        # The two calls of attention keep their launches; their tensors get the names of this chain.
        views = {"Q_sorted": "Q_picked"}
        for old, tensor in chain.tensors.items():
            new = names.get(old, old)
            role = tensor.role if new in ("K", "V") else Role.TEMP
            self.held.setdefault(
                new, replace(tensor, name=new, role=role, view_of=views.get(new, ""))
            )
        (launch,) = chain.launches
        accesses = tuple(replace(a, tensor=names.get(a.tensor, a.tensor)) for a in launch.accesses)
        self.launches.append(replace(launch, name=name, accesses=accesses, role=launch_role))

    def merge(self) -> None:
        p, d = self.problem, self.problem.head_dim_v
        n, size = p.seq_q, p.output_type.bytes
        self.hold("O_picked", n, d, size, self.picks, "O_sorted")
        self.hold("LSE_picked", n, 1, 4, self.picks, "LSE_sorted")
        self.hold("sums", n, 1, 4)
        self.hold("O_self_32 O_32", n, d, 4)
        self.hold("O_picked_32", n, d, 4, self.picks)
        self.hold("O", n, d, size)
        inputs = {
            name: replace(self.held["Q_again"], name=name, role=Role.INPUT, along=Rows.QUERY)
            for name in "Q"
        }
        self.held |= {**inputs, "O": replace(self.held["O"], role=Role.OUTPUT)}
        self.rows("sum_self", "LSE_self", "sums", n)
        self.each_pick("sum_picked", "LSE_picked", "", "sums")
        self.rows("scale_self", "O_self LSE_self sums", "O_self_32", n)
        self.rows("fill_O", "", "O_32", n)
        self.rows("add_self", "O_32 O_self_32", "O_32", n)
        self.each_pick("scale_picked", "O_picked LSE_picked sums", "O_picked_32")
        self.each_pick("add_picked", "O_picked_32", "", "O_32")
        self.rows("narrow_O", "O_32", "O", n)
