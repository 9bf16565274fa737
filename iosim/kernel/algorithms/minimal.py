"""`minimal`: the public minimal CUDA re-implementation of FlashAttention's forward.

fp32, 32 x 32 tiles, one thread a row, keys outside, one CTA a head; O, l and m are read and written at every key block
and zero-filled by the host. The access pattern of its threads (a warp touches 32 rows at once and uses 4 bytes of each
sector) is an L1 matter and not part of the SM<->L2 count.
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.kernel.algorithms.common import attention_domain, load, main_launch, matrices, row_domain, row_pass, store
from iosim.kernel.algorithms.registry import algorithm
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain, Outer, Per, Role, Rows, tensors
from iosim.kernel.work import Work
from iosim.problem.attention import AttentionProblem


@algorithm("minimal", keys_outside=True, dtypes=("fp32", "tf32"), example_tile=Tile(32, 32))
def plan_minimal(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The fill and the one launch. Raises InputError: a backward pass, a mask, dropout, another type than fp32, grouped
    heads, or a length that is not a multiple of the tile: the kernel has none of these."""
    for field, accepted, lacks in (
        ("passes", ("fwd",), ": it has a forward only"),
        ("mask", ("none",), ": it has no mask"),
        ("dropout", (0.0,), ": it has none"),
        ("dtype", ("fp32", "tf32"), "; accepted: fp32"),
        ("kv_heads", (problem.heads,), ": it has no grouped heads"),
        ("seq_q", range(0, problem.seq_q + 1, kernel.tile.block_q), f": not a multiple of {kernel.tile.block_q}"),
        ("seq_k", range(0, problem.seq_k + 1, kernel.tile.block_k), f": not a multiple of {kernel.tile.block_k}"),
    ):
        if (value := getattr(problem, field)) not in accepted:
            raise InputError(f"`{field}` {value!r} is not possible with kernel 'minimal'{lacks}")
    running = ("O", "l", "m")
    fill = row_pass("fill", row_domain(problem, kernel.tile.block_q), (), running)
    main = main_launch(
        problem,
        kernel,
        attention_domain(problem, kernel.tile),
        Outer.HEAD,
        (
            *(load(n, Rows.KEY, Per.KEY) for n in "KV"),
            *(load(n, Rows.QUERY, Per.PAIR) for n in ("Q", *running)),
            *(store(n, Rows.QUERY, Per.PAIR) for n in running),
        ),
        overheads=(),
        work=Work(2 * (problem.head_dim + problem.head_dim_v), exps_per_pair=1, tensor_cores=False),
    )
    held = (
        *matrices(problem, "Q K V", Role.INPUT),
        *matrices(problem, "O", Role.OUTPUT),
        *matrices(problem, "l m", Role.TEMP),
    )
    return Chain(tensors(held), (fill, main), kernel.notes)
