"""Attention over blocks of keys that each query picks by the blocks' means, over whole sequences.

`nsa` is native sparse attention (arXiv 2502.11089) as fla-org/native-sparse-attention @8cddc2ef launches it
(native_sparse_attention/ops/parallel.py: parallel_nsa), with a CTA for each query token and key/value head:

    pool_k, pool_v    the means of each block of keys and values (fla.ops.utils.mean_pooling)
    compress          attention over the means of the blocks that are whole: O_cmp and its log-sum-exp
    top_k             scores of the same means again, and the places of the `blocks` best, the query's own among them
    selected          attention over the keys of these blocks: O_slc
    window            attention over the last `window` tokens: O_swa (flash_attn_func); none where it is 0
    gate_*            O = g_slc O_slc + g_cmp O_cmp + g_swa O_swa, an elementwise launch a term

The backward (ParallelNSAFunction, ParallelNSACompressionFunction, and autograd between them), from the last term on:

    value_*, scale_*, product_*, sum_*    of each term's gate and output, elementwise
    swa_*             FlashAttention-2's backward of the window
    dot_*             rowsum(dO o O) of a term, a CTA per row
    dq_*, sum_dq_*    dQ, a CTA a token and key/value head; then torch's sum over parts, of which there is one
    fill_mask, mask   a byte for each token, key/value head and block: whether the token picked it
    dkv_slc           a CTA a block of keys walks all tokens from its own on: it waits for a byte of each, and reads
                      the rows of those that picked it. A byte comes with its sector
    dkv_cmp           a CTA for as many means as a block has keys walks all tokens from its first one's on
    pool_*            gradients of means, spread over their blocks
    add_*             the terms' gradients, summed

NB: what makes the gates is no part of it. The mask's scatter writes whole rows, with a CTA a token; the source's has
one an entry. Of `dkv_slc` the CTA of the first block waits twice as long as the mean one, which all are taken to be.
"""

from __future__ import annotations

from collections.abc import Iterable

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms import flash_backward
from iosim.catalog.algorithms.common import (
    load,
    matrices,
    matrix,
    row_domain,
    row_pass,
    row_vector,
    store,
)
from iosim.catalog.algorithms.indexer import LIST_BYTES, LISTS
from iosim.catalog.algorithms.registry import algorithm, options_of
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import (
    SECTOR_BYTES,
    Access,
    Chain,
    Domain,
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
from iosim.kernel.work import Work
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.mask import IntervalMask, Mask
from iosim.problem.masks.picked import BlockPicks

LEAST_GROUP = 16
GATED_ROWS = 8
"""Rows that a CTA of an elementwise launch takes."""
SECTOR_ENTRIES = SECTOR_BYTES // LIST_BYTES
"""Entries of a list in a sector, which CTAs of an entry each read again."""


@dataclass(frozen=True)
class NsaOptions(AlgorithmOptions):
    """`blocks`: that a query picks; `window`: tokens that it sees besides, itself included; `window_threads`: of a CTA
    of the window's launch, whose tile is the kernel's."""

    blocks: int = number(16, 1)
    window: int = number(512, 0)
    window_threads: int = number(128, 32, 1024)


@algorithm(
    "nsa", options=NsaOptions, softmax=False, dtypes=("fp16", "bf16"), example_tile=Tile(128, 64)
)
def plan_nsa(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The launches of a pass. Raises InputError: what `_check` refuses."""
    _check(problem, kernel)
    chain = _Launches(problem, kernel)
    (chain.backward if problem.backward else chain.forward)()
    return Chain(chain.held, tuple(chain.launches), kernel.notes)


class _Launches:
    """Collects tensors and launches. What a forward makes and its backward reads is of role TEMP, or INPUT."""

    def __init__(self, problem: AttentionProblem, kernel: Kernel) -> None:
        self.problem, self.kernel, self.options = problem, kernel, options_of(kernel, NsaOptions)
        self.block, self.launches = kernel.tile.block_k, list[Launch]()
        p, saved = problem, Role.INPUT if problem.backward else Role.TEMP
        # Tensors of all launches at once: a forward makes the means, the terms' outputs and the lists, a
        # backward finds them as inputs.
        self.there, listed = p.seq_k // self.block, self.options.blocks
        self.terms = ("slc", "cmp", "swa") if self.options.window else ("slc", "cmp")
        self.held = tensors(
            (
                *matrices(p, "Q dO" if p.backward else "Q", Role.INPUT),
                *(replace(matrix(p, n, Role.INPUT), picked_by=LISTS) for n in "KV"),
                *(replace(matrix(p, n, saved), name=f"{n}_cmp", rows=self.there) for n in "KV"),
                *(replace(matrix(p, "O", saved), name=f"O_{n}") for n in self.terms),
                *(
                    replace(row_vector(p, f"g_{n}", Role.INPUT), element_bytes=p.input_type.bytes)
                    for n in self.terms
                ),
                *(row_vector(p, f"LSE_{n}", saved) for n in self.terms),
                Tensor(
                    LISTS,
                    p.batch,
                    p.kv_heads,
                    p.seq_q,
                    listed,
                    LIST_BYTES,
                    saved,
                    Rows.QUERY,
                    keys_per_row=self.block,
                ),
            )
        )
        # Means a query may see: of the blocks that end before it, or of those that begin before it.
        self.whole, self.part = (
            IntervalMask(None, 0, 0, self.block),
            IntervalMask(None, self.block - 1, 0, self.block),
        )

    def hold(self, like: str, name: str, role: Role = Role.TEMP, rows: int | None = None) -> str:
        """A tensor like one of the problem's, of fewer rows where they are blocks, or like a gate."""
        source = self.held[like] if like.startswith("g_") else matrices(self.problem, like, role)[0]
        self.held[name] = replace(source, name=name, role=role, rows=rows or source.rows)
        return name

    def over(self, keys: int, mask: Mask) -> Domain:
        """A tile of a token's heads over blocks of keys, means or picked ones."""
        p = self.problem
        return Domain(
            p.batch, p.kv_heads, p.seq_q * p.group, keys, p.group, self.block, mask, pack=p.group
        )

    def by_rows(
        self, name: str, reads: str, writes: str, rows: int = GATED_ROWS, keys: bool = False
    ) -> None:
        """An elementwise pass over rows of every head, of queries or of `keys`."""
        domain = row_domain(self.problem, rows, keys=keys)
        self.launches.append(row_pass(name, domain, reads.split(), writes.split()))

    def by_blocks(self, name: str, reads: str, writes: str) -> None:
        """A pass that takes a block of keys, or one row for it."""
        p, block = self.problem, self.block
        domain = Domain(p.batch, p.kv_heads, p.seq_k, 1, block, 1, pack=block)
        self.launches.append(row_pass(name, domain, reads.split(), writes.split()))

    def loop(
        self,
        name: str,
        domain: Domain,
        outer: str,
        walked: str,
        writes: str,
        flops: int,
        threads: int = 0,
    ) -> None:
        """A launch whose CTAs hold rows of queries and walk blocks of keys."""
        accesses = (
            *(load(n, Rows.QUERY, Per.QUERY) for n in outer.split()),
            *(load(n, Rows.KEY, Per.PAIR) for n in walked.split()),
            *(store(n, Rows.QUERY, Per.QUERY) for n in writes.split()),
        )
        taken = Resources(threads or self.kernel.cta_threads)
        self.launches.append(
            Launch(
                name,
                domain,
                Outer.QUERY,
                accesses,
                resources=taken,
                work=Work(flops, exps_per_pair=1),
            )
        )

    def forward(self) -> None:
        p, products = self.problem, 2 * (self.problem.head_dim + self.problem.head_dim_v)
        # The three terms in the order in which they are launched, each a loop of a token's heads over
        # blocks: means, means again for the picks, the picked keys, the window.
        picks = BlockPicks(None, 0, 0, block=self.block)
        self.by_blocks("pool_k", "K", "K_cmp")
        self.by_blocks("pool_v", "V", "V_cmp")
        self.loop(
            "compress",
            self.over(self.there, self.whole),
            "Q",
            "K_cmp V_cmp",
            "O_cmp LSE_cmp",
            products,
        )
        self.loop(
            "top_k", self.over(self.there, self.part), "Q LSE_cmp", "K_cmp", LISTS, 2 * p.head_dim
        )
        picked = self.over(self.options.blocks * self.block, picks)
        self.loop("selected", picked, "Q", f"{LISTS} K V", "O_slc LSE_slc", products)
        if self.options.window:
            before, tile = IntervalMask(self.options.window - 1, 0), self.kernel.tile
            domain = Domain(p.batch, p.heads, p.seq_q, p.seq_k, tile.block_q, tile.block_k, before)
            self.loop(
                "window", domain, "Q", "K V", "O_swa LSE_swa", products, self.options.window_threads
            )
        self.hold("O", "O", Role.OUTPUT)
        # O is added up term by term: each launch reads the sum so far, and the last writes O.
        sums = ""
        for n, term in enumerate(self.terms, 1):
            summed = "O" if n == len(self.terms) else self.hold("O", f"O_{n}")
            self.by_rows(f"gate_{term}", f"{sums} O_{term} g_{term}", summed)
            sums = summed

    def backward(self) -> None:
        for name in ("dQ", "dK", "dV", *(f"dg_{n}" for n in self.terms)):
            self.hold(name.removeprefix("d") if name.startswith("dg_") else name, name, Role.OUTPUT)
        if self.options.window:
            # Backward of the sum in reverse, then of the terms: the gates first, as autograd walks them.
            self.ungate("swa")
            self.window_gradients()
        self.ungate("cmp")
        self.ungate("slc")
        self.selected_gradients()
        self.compressed_gradients()

    def ungate(self, term: str) -> None:
        """Gradients of a gate and of what it scales: addcmul's, whose factor of one is multiplied out, or mul's."""
        gate, o = f"g_{term}", f"O_{term}"
        if term != "slc":
            self.by_rows(f"bwd.value_g_{term}", gate, self.hold(gate, f"{gate}_1"))
            self.by_rows(f"bwd.value_O_{term}", o, self.hold("O", f"{o}_1"))
            gate, o = f"{gate}_1", f"{o}_1"
        self.by_rows(f"bwd.scale_{term}", f"dO {gate}", self.hold("O", f"dO_{term}"))
        self.by_rows(f"bwd.product_{term}", f"dO {o}", self.hold("O", f"dO_O_{term}"))
        self.by_rows(f"bwd.sum_{term}", f"dO_O_{term}", f"dg_{term}")

    def window_gradients(self) -> None:
        """FlashAttention-2's backward, on tensors of this term's names."""
        windowed = self.problem.with_(mask="window", window=self.options.window - 1)
        chain = flash_backward.backward(windowed, self.kernel)
        # The window's own tensors and launches get the term's name, and its outputs are summed later.
        renames = {n: f"{n}_swa" for n in chain.tensors if n not in ("Q", "K", "V")}
        roles = {Role.OUTPUT: Role.TEMP}
        for name, tensor in chain.tensors.items():
            renamed = replace(
                tensor, name=renames.get(name, name), role=roles.get(tensor.role, tensor.role)
            )
            self.held.setdefault(renamed.name, renamed)
        for launch in chain.launches:
            accesses = tuple(
                replace(a, tensor=renames.get(a.tensor, a.tensor)) for a in launch.accesses
            )
            name = launch.name.replace(".", ".swa_")
            self.launches.append(
                replace(launch, name=name, accesses=accesses, role=LaunchRole.OTHER)
            )

    def query_gradient(self, term: str, domain: Domain, walked: str) -> None:
        """rowsum(dO o O), a CTA per row, dQ, and its sum over one part."""
        p = self.problem
        self.by_rows(f"bwd.dot_{term}", f"O_{term} dO_{term}", self.hold("D", f"D_{term}"), rows=1)
        outer, to = f"Q dO_{term} LSE_{term} D_{term}", self.hold("dQ", f"dQ_{term}_part")
        self.loop(f"bwd.dq_{term}", domain, outer, walked, to, 2 * (2 * p.head_dim + p.head_dim_v))
        self.by_rows(f"bwd.sum_dq_{term}", to, self.hold("dQ", f"dQ_{term}"))

    def key_gradients(
        self,
        term: str,
        domain: Domain,
        outer: str,
        writes: str,
        walked: Iterable[Access] = (),
        serial_loads: int = 0,
    ) -> None:
        """dK and dV of blocks of keys, each of which walks the tokens behind it."""
        p = self.problem
        accesses = (
            *(load(n, Rows.KEY, Per.KEY) for n in outer.split()),
            *walked,
            *(
                load(n, Rows.QUERY, Per.PAIR)
                for n in ("Q", *(f"{n}_{term}" for n in ("dO", "LSE", "D")))
            ),
            *(store(n, Rows.KEY, Per.KEY) for n in writes.split()),
        )
        work = Work(4 * (p.head_dim + p.head_dim_v), exps_per_pair=1, serial_loads=serial_loads)
        taken = Resources(self.kernel.cta_threads)
        self.launches.append(
            Launch(f"bwd.dkv_{term}", domain, Outer.KEY, accesses, resources=taken, work=work)
        )

    def selected_gradients(self) -> None:
        p, block = self.problem, self.block
        picks = BlockPicks(None, 0, 0, block=block)
        self.query_gradient("slc", self.over(self.options.blocks * block, picks), f"{LISTS} K V")
        # A byte for each token and block; the walk over tokens reads a block's column of it.
        mask = Tensor(
            "block_mask", p.batch, p.kv_heads, p.seq_q, self.there, 1, Role.TEMP, Rows.QUERY
        )
        columns = Tensor(
            "mask_columns", p.batch, p.kv_heads, p.seq_q, 1, 1, Role.TEMP, copies=self.there
        )
        self.held |= tensors((mask, replace(columns, view_of=mask.name)))
        self.by_rows("bwd.fill_mask", "", "block_mask", block, keys=True)
        lists = (load(LISTS, Rows.QUERY, Per.QUERY, times=SECTOR_ENTRIES),)
        self.launches.append(
            row_pass("bwd.mask", row_domain(p, 1, keys=True), lists, ("block_mask",))
        )
        parts = " ".join(
            self.hold(n, f"{n}_slc{'_part' if n == 'dK' else ''}") for n in ("dK", "dV")
        )
        column = load("mask_columns", Rows.OWN, Per.KEY, times=SECTOR_BYTES // 2)
        domain = self.over(p.seq_k, picks.pairs(p.seq_q, self.options.blocks))
        self.key_gradients(
            "slc", domain, "K V", parts, (column,), serial_loads=(p.seq_q + block) // 2
        )
        self.by_rows("bwd.sum_dk_slc", "dK_slc_part", self.hold("dK", "dK_slc"), keys=True)
        for n in ("dQ", "dK", "dV") if self.options.window else ():
            self.by_rows(
                f"bwd.add_{n}_slc", f"{n}_swa {n}_slc", self.hold(n, f"{n}_sum"), keys=n != "dQ"
            )

    def compressed_gradients(self) -> None:
        summed = "sum" if self.options.window else "slc"
        self.query_gradient("cmp", self.over(self.there, self.whole), "K_cmp V_cmp")
        self.by_rows("bwd.add_dQ_cmp", f"dQ_{summed} dQ_cmp", "dQ")
        parts = " ".join(
            self.hold(n, f"{n}_cmp{'_part' if n == 'dK' else ''}", rows=self.there)
            for n in ("dK", "dV")
        )
        self.key_gradients("cmp", self.over(self.there, self.part), "K_cmp V_cmp", parts)
        domain = Domain(self.problem.batch, self.problem.kv_heads, self.there, 1, GATED_ROWS, 1)
        gradient = self.hold("dK", "dK_cmp", rows=self.there)
        self.launches.append(row_pass("bwd.sum_dk_cmp", domain, ("dK_cmp_part",), (gradient,)))
        for n in ("dV", "dK"):
            self.by_blocks(f"bwd.pool_{n[1].lower()}", f"{n}_cmp", self.hold(n, f"{n}_pool"))
            self.by_rows(f"bwd.add_{n}_pool", f"{n}_{summed} {n}_pool", n, keys=True)


def _check(problem: AttentionProblem, kernel: Kernel) -> None:
    """Refuse what does not pick blocks of its own sequence's keys. Raises InputError: says which."""
    p, block = problem, kernel.tile.block_k
    for field, accepted in (("dropout", 0.0), ("mask", "causal")):
        if getattr(p, field) != accepted:
            reason = f"is not possible with kernel '{kernel.name}'; accepted: {accepted}"
            raise InputError(f"`{field}` {getattr(p, field)} {reason}")
    if p.group % LEAST_GROUP:
        reason = f"kernel '{kernel.name}' takes groups of multiples of {LEAST_GROUP}"
        max_kv_heads = max(1, p.heads // LEAST_GROUP)
        raise InputError(
            f"`kv_heads` {p.kv_heads} of {p.heads} heads: {reason}; accepted: {max_kv_heads}"
        )
    if p.seq_q != p.seq_k or p.seq_k % block or p.offset:
        reason = f"kernel '{kernel.name}' takes whole sequences of whole blocks; accepted: multiples of {block}, no cache"
        raise InputError(f"`seq_q` {p.seq_q} with {p.seq_k} keys: {reason}")
