"""`minimal`: the public minimal CUDA re-implementation of FlashAttention's forward.

fp32, 32 x 32 tiles, one thread a row, keys outside, one CTA a head; O, l and m are read and written at every key block
and zero-filled by the host. The access pattern of its threads (a warp touches 32 rows at once and uses 4 bytes of each
sector) is an L1 matter and not part of the SM<->L2 count.
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.kernel.algorithms.body import Body, Place, body
from iosim.kernel.algorithms.common import attention_domain, load, matrix, resources, row_domain, row_vector, store
from iosim.kernel.algorithms.flash1 import fill, running_output
from iosim.kernel.algorithms.registry import algorithm
from iosim.kernel.algorithms.terms import masked_scores
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain, Launch, Outer, Per, Role, Rows, tensors
from iosim.problem.attention import AttentionProblem


@algorithm("minimal", keys_outside=True, dtypes=("fp32", "tf32"), example_tile=Tile(32, 32))
def plan_minimal(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The fill and the one launch.

    Raises:
        InputError: a backward pass, a mask, dropout, another type than fp32, grouped heads, or a length that is not a
            multiple of the tile: the kernel has none of these.
    """
    if problem.passes != "fwd":
        raise InputError(f"`passes` '{problem.passes}' is not possible with kernel 'minimal': it has a forward only")
    if problem.mask != "none":
        raise InputError(f"`mask` '{problem.mask}' is not possible with kernel 'minimal': it has no mask")
    if problem.dropout:
        raise InputError(f"`dropout` {problem.dropout} is not possible with kernel 'minimal': it has none")
    if problem.dtype not in ("fp32", "tf32"):
        raise InputError(f"`dtype` '{problem.dtype}' is not possible with kernel 'minimal'; accepted: fp32")
    if problem.group != 1:
        raise InputError(
            f"`kv_heads` {problem.kv_heads} is not possible with kernel 'minimal': it has no grouped heads"
        )
    for name, value, block in (("seq_q", problem.seq_q, kernel.tile.block_q),
                               ("seq_k", problem.seq_k, kernel.tile.block_k)):  # fmt: skip
        if value % block:
            raise InputError(f"`{name}` {value} is not possible with kernel 'minimal': not a multiple of {block}")
    all_tensors = [matrix(problem, n, Role.OUTPUT if n == "O" else Role.INPUT) for n in "QKVO"]
    all_tensors += [row_vector(problem, n, Role.TEMP) for n in ("l", "m")]
    fill = Launch(
        "fill",
        row_domain(problem, kernel.tile.block_q),
        Outer.FLAT,
        tuple(store(n, Rows.QUERY, Per.QUERY) for n in ("O", "l", "m")),
        tensor_cores=False,
    )
    main = Launch(
        "main",
        attention_domain(problem, kernel.tile),
        Outer.HEAD,
        (
            load("K", Rows.KEY, Per.KEY),
            load("V", Rows.KEY, Per.KEY),
            *(load(n, Rows.QUERY, Per.PAIR) for n in ("Q", "O", "l", "m")),
            *(store(n, Rows.QUERY, Per.PAIR) for n in ("O", "l", "m")),
        ),
        schedule=kernel.schedule,
        resources=resources(problem, kernel),
        flops_per_pair=2 * (problem.head_dim + problem.head_dim_v),
        exps_per_pair=1,
        tensor_cores=False,
    )
    return Chain(tensors(all_tensors), (fill, main), kernel.notes)


# What the launches compute.


body("minimal", "fill")(fill)


@body("minimal", "main")
class Forward(Body):
    """A head: keys outside, queries inside; O, l and m through memory at every pair."""

    def pair(self, at: Place) -> None:
        output, total, maximum = running_output(at, masked_scores(at), "O")
        at.put("O", output)
        at.put("l", total)
        at.put("m", maximum)
