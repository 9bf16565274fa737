"""Attention over blocks of keys that each query picks by the blocks' means: forwards over whole sequences.

`nsa` is native sparse attention (arXiv 2502.11089) as fla-org/native-sparse-attention @8cddc2ef launches it
(native_sparse_attention/ops/parallel.py: parallel_nsa), with a CTA for each query token and key/value head:

    pool_k, pool_v    the means of each block of keys and values (fla.ops.utils.mean_pooling)
    compress          attention over the means of the blocks that are whole: O_cmp and its log-sum-exp
    top_k             scores of the same means again, and the places of the `blocks` best, the query's own among them
    selected          attention over the keys of these blocks: O_slc
    window            attention over the last `window` tokens: O_swa (flash_attn_func); none where it is 0
    gate_*            O = g_slc O_slc + g_cmp O_cmp + g_swa O_swa, an elementwise launch a term

NB: what makes the gates is no part of it.
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.kernel.algorithms.common import load, matrices, matrix, row_domain, row_pass, row_vector, store
from iosim.kernel.algorithms.indexer import LIST_BYTES, LISTS
from iosim.kernel.algorithms.registry import algorithm, options_of
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain, Domain, Launch, Outer, Per, Resources, Role, Rows, Tensor, tensors
from iosim.kernel.options import AlgorithmOptions, number
from iosim.kernel.work import Work
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.mask import IntervalMask
from iosim.problem.masks.picked import BlockPicks

LEAST_GROUP = 16
GATED_ROWS = 8
"""Rows that a CTA of an elementwise launch takes."""


@dataclass(frozen=True)
class NsaOptions(AlgorithmOptions):
    """`blocks`: that a query picks; `window`: tokens that it sees besides, itself included; `window_threads`: of a CTA
    of the window's launch, whose tile is the kernel's."""

    blocks: int = number(16, 1)
    window: int = number(512, 0)
    window_threads: int = number(128, 32, 1024)


@algorithm("nsa", options=NsaOptions, softmax=False, dtypes=("fp16", "bf16"), example_tile=Tile(128, 64))
def plan_nsa(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The launches of a forward. Raises InputError: what `_check` refuses."""
    p, options, block = problem, options_of(kernel, NsaOptions), kernel.tile.block_k
    _check(p, kernel)
    there, picked = p.seq_k // block, options.blocks * block
    terms = ("slc", "cmp", "swa") if options.window else ("slc", "cmp")
    outputs = [f"O_{n}" for n in (*terms, *range(1, len(terms)))]
    all_tensors = (
        *matrices(p, "Q", Role.INPUT),
        *(replace(matrix(p, n, Role.INPUT), picked_by=LISTS) for n in "KV"),
        *(replace(matrix(p, n, Role.TEMP), name=f"{n}_cmp", rows=there) for n in "KV"),
        *(replace(matrix(p, "O", Role.TEMP), name=name) for name in outputs),
        *(replace(row_vector(p, f"g_{n}", Role.INPUT), element_bytes=p.input_type.bytes) for n in terms),
        *(row_vector(p, f"LSE_{n}", Role.TEMP) for n in terms),
        Tensor(
            LISTS, p.batch, p.kv_heads, p.seq_q, options.blocks, LIST_BYTES, Role.TEMP, Rows.QUERY, keys_per_row=block
        ),
        *matrices(p, "O", Role.OUTPUT),
    )

    def over(keys: int, mask: IntervalMask) -> Domain:
        """A tile of a token's heads over blocks of keys, means or picked ones."""
        return Domain(p.batch, p.kv_heads, p.seq_q * p.group, keys, p.group, block, mask, pack=p.group)

    products, threads = 2 * (p.head_dim + p.head_dim_v), kernel.cta_threads
    pooled = Domain(p.batch, p.kv_heads, p.seq_k, 1, block, 1, pack=block)
    whole, part = IntervalMask(None, 0, 0, block), IntervalMask(None, block - 1, 0, block)
    launches = [
        *(row_pass(f"pool_{n.lower()}", pooled, (n,), (f"{n}_cmp",)) for n in "KV"),
        _loop("compress", over(there, whole), ("K_cmp", "V_cmp"), ("O_cmp", "LSE_cmp"), products, threads),
        _loop("top_k", over(there, part), ("K_cmp",), (LISTS,), 2 * p.head_dim, threads, ("LSE_cmp",)),
        _loop("selected", over(picked, BlockPicks(None, 0, 0, block=block)), (LISTS, "K", "V"), ("O_slc", "LSE_slc"),
              products, threads),
    ]  # fmt: skip
    if options.window:
        before = IntervalMask(options.window - 1, 0)
        domain = Domain(p.batch, p.heads, p.seq_q, p.seq_k, kernel.tile.block_q, block, before)
        launches.append(_loop("window", domain, ("K", "V"), ("O_swa", "LSE_swa"), products, options.window_threads))
    made = "O_slc"
    for n, term in enumerate(terms, 1):
        reads = ("O_slc", "g_slc") if n == 1 else (made, f"O_{term}", f"g_{term}")
        made = "O" if n == len(terms) else f"O_{n}"
        launches.append(row_pass(f"gate_{term}", row_domain(p, GATED_ROWS), reads, (made,)))
    return Chain(tensors(all_tensors), tuple(launches), kernel.notes)


def _check(problem: AttentionProblem, kernel: Kernel) -> None:
    """Refuse what does not pick blocks of its own sequence's keys. Raises InputError: says which."""
    p, block = problem, kernel.tile.block_k
    for field, accepted in (("passes", "fwd"), ("dropout", 0.0), ("mask", "causal")):
        if getattr(p, field) != accepted:
            told = f"is not possible with kernel '{kernel.name}'; accepted: {accepted}"
            raise InputError(f"`{field}` {getattr(p, field)} {told}")
    if p.group % LEAST_GROUP:
        told = f"kernel '{kernel.name}' takes groups of multiples of {LEAST_GROUP}"
        most = max(1, p.heads // LEAST_GROUP)
        raise InputError(f"`kv_heads` {p.kv_heads} of {p.heads} heads: {told}; accepted: {most}")
    if p.seq_q != p.seq_k or p.seq_k % block or p.offset:
        told = f"kernel '{kernel.name}' takes whole sequences of whole blocks; accepted: multiples of {block}, no cache"
        raise InputError(f"`seq_q` {p.seq_q} with {p.seq_k} keys: {told}")


def _loop(
    name: str, domain: Domain, walked: tuple[str, ...], writes: tuple[str, ...], flops: int, threads: int,
    before: tuple[str, ...] = (),
) -> Launch:  # fmt: skip
    """A launch whose CTAs hold rows of Q, and of what was made `before`, and walk blocks of keys."""
    accesses = (
        *(load(n, Rows.QUERY, Per.QUERY) for n in ("Q", *before)),
        *(load(n, Rows.KEY, Per.PAIR) for n in walked),
        *(store(n, Rows.QUERY, Per.QUERY) for n in writes),
    )
    return Launch(name, domain, Outer.QUERY, accesses, resources=Resources(threads), work=Work(flops, exps_per_pair=1))
