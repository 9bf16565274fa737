"""`mla`: decode over one latent key/value cache (DeepSeek-V2, arXiv 2405.04434, section 2.1, in its absorbed form).

All query heads share one latent K [seq_k, head_dim] (512 latent and 64 rotary columns in DeepSeek-V2 and V3), and V is
its first head_dim_v columns: a tile of K is read once and used for both products. The query heads and tokens are the
rows of a tile, as in FlashMLA (deepseek-ai/FlashMLA @69f31931, csrc/sm90). Forward only. Splits and their combine are
those of `flash`. NB: the projections into and out of the latent space are no part of it; nor is the scale, which models
take from the width before absorption.
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.kernel.algorithms.cache import append_tensors, in_cache, table_access, table_tensor
from iosim.kernel.algorithms.common import load, main_launch, matrices, matrix, resources
from iosim.kernel.algorithms.flash import SplitOptions, finish, grid, split_domain
from iosim.kernel.algorithms.registry import Packs, algorithm
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain, Per, Resources, Role, Rows, tensors
from iosim.problem.attention import AttentionProblem


@algorithm("mla", takes=("latent_kv", "page_size"), options=SplitOptions, splits=True, appends=True, packs=Packs.ALWAYS)
def plan_mla(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The launch over the latent cache, or the split launch and its combine. Raises InputError: a cache that is not
    latent, a backward pass, or more splits than key blocks."""
    if not problem.latent_kv:
        raise InputError(
            f"`kernel` {kernel.name}: algorithm mla reads one latent K/V; accepted with it: `latent_kv=True`"
        )
    if problem.passes != "fwd":
        raise InputError(f"`passes` {problem.passes}: algorithm mla serves inference; accepted: fwd")
    domain, outer, per_q = split_domain(problem, kernel, kernel.tile, problem.group)
    main = main_launch(
        problem,
        kernel,
        domain,
        outer,
        (
            load("Q", Rows.QUERY, per_q, edge=kernel.edge_q, visited_only=True),
            *table_access(problem),
            load("K", Rows.KEY, Per.PAIR, edge=kernel.edge_k),
        ),
        resources=_resources(problem, kernel),
        persistent_ctas=grid(kernel),
    )
    all_tensors = (
        matrix(problem, "Q", Role.INPUT),
        in_cache(problem, matrix(problem, "K", Role.INPUT)),
        *matrices(problem, "O LSE", Role.OUTPUT),
        *table_tensor(problem),
        *append_tensors(problem, kernel),
    )
    return finish(problem, kernel, main, tensors(all_tensors))


def _resources(problem: AttentionProblem, kernel: Kernel) -> Resources:
    """What a CTA takes of an SM: as stated, else a tile of Q, `stages` of K and the scores' tile."""
    if kernel.shared_memory_bytes is not None:
        return resources(problem, kernel)
    t, size = kernel.tile, problem.input_type.bytes
    shared = ((t.block_q + t.stages * t.block_k) * problem.head_dim + t.block_q * t.block_k) * size
    source = "(block_q x d + stages x block_k x d + block_q x block_k) x element bytes"
    return Resources(kernel.cta_threads, kernel.registers, shared, source)
