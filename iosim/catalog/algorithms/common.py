"""Tensors and domains that every algorithm builds on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.kernel.kernel import SUM_GROUPS, Kernel, RowPass, Spill, Tile
from iosim.kernel.launch import (
    Access,
    Domain,
    Edge,
    Launch,
    LaunchRole,
    Mode,
    Outer,
    Overhead,
    Per,
    Resources,
    Role,
    Rows,
    Tensor,
)
from iosim.kernel.schedule import Schedule, Scheduler
from iosim.kernel.shared_memory import by_chunk
from iosim.kernel.tensor_kinds import KEY_SUMS, TensorKind
from iosim.kernel.unit import MatrixUnit
from iosim.kernel.work import Layout, Loop, SpillAccesses, Work
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.blocks import BlockMask, CoveredMask
from iosim.problem.masks.mask import IntervalMask, Mask
from iosim.problem.masks.packed import HeadsInTurn
from iosim.problem.masks.picked import PickedMask

MATRICES = ("Q", "K", "V", "O", "dO", "dQ", "dK", "dV")


def matrix(
    problem: AttentionProblem, name: str, role: Role, *, element_bytes: int | None = None
) -> Tensor:
    """One of `MATRICES`, or with `_acc` behind its name the sums that it is made of. Raises ValueError: another."""
    shape = TensorKind.SUMS.source(name)
    if shape not in MATRICES:
        raise ValueError(f"matrix {name} is not known; accepted: {', '.join(MATRICES)}")
    # Gradients have the shape of what they are of; queries and outputs have the output's type.
    on_keys = shape in ("K", "V", "dK", "dV")
    default = problem.input_type if shape in ("Q", "K", "V") else problem.output_type
    size = default.bytes if element_bytes is None else element_bytes
    cols = problem.head_dim_v if shape in ("V", "O", "dV", "dO") else problem.head_dim
    heads, rows, along = problem.heads, problem.seq_q, Rows.QUERY
    if on_keys:
        heads, rows, along = problem.kv_heads, problem.seq_k, Rows.KEY
    strided = problem.layout == "bshd"
    return Tensor(
        name, problem.batch, heads, rows, cols, size, role, along, default.name, strided=strided
    )


def row_vector(problem: AttentionProblem, name: str, role: Role) -> Tensor:
    """An fp32 value per query row: LSE, the running max and sum, rowsum(dO o O)."""
    return Tensor(name, problem.batch, problem.heads, problem.seq_q, 1, 4, role, Rows.QUERY)


def score_matrix(
    problem: AttentionProblem, name: str, role: Role, element_bytes: int | None = None
) -> Tensor:
    size = problem.input_type.bytes if element_bytes is None else element_bytes
    return Tensor(name, problem.batch, problem.heads, problem.seq_q, problem.seq_k, size, role)


LISTED_BLOCKS = 1 << 21
"""Kept blocks of a head up to which a kernel's lists of blocks are played in their order: a causal mask of 262,016
tokens in blocks of 128. Lists of longer ones would take gigabytes."""


def _blocked(problem: AttentionProblem, tile: Tile, mask_block: int) -> Mask:
    """The mask of a kernel that knows it as a list of blocks: an interval's pairs in blocks of `mask_block` rows."""
    mask = problem.pair_mask
    sides = (mask.block_q, mask.block_k) if isinstance(mask, BlockMask) else (mask_block,) * 2
    if isinstance(mask, IntervalMask):
        if mask.is_full:
            return mask
        covered = CoveredMask(mask, problem.seq_q, problem.seq_k, mask_block)
        if covered.nnz > LISTED_BLOCKS:
            mask = covered
        else:
            mask = BlockMask.covering(mask, problem.seq_q, problem.seq_k, mask_block, mask_block)
    known = isinstance(mask, BlockMask | CoveredMask)
    if known and (sides[0] % tile.block_q or sides[1] % tile.block_k):
        hint = "accepted: tiles that do, or `mask_block` a multiple of the tile"
        raise InputError(
            f"`tile` {tile} does not divide the mask's blocks of {sides[0]}x{sides[1]}; {hint}"
        )
    return mask


def attention_domain(
    problem: AttentionProblem,
    tile: Tile,
    *,
    pack: int = 1,
    splits: int = 1,
    mask_block: int | None = None,
) -> Domain:
    """Query blocks x key blocks of every head under the problem's mask; where queries pick keys, x blocks of their
    lists. `mask_block`: rows of the blocks in which the kernel knows a mask (FlexAttention); None where it goes by
    indices."""
    mask = problem.pair_mask if mask_block is None else _blocked(problem, tile, mask_block)
    # Keys that a query walks: all, those that are picked, or compressed ones with a window before them.
    keys = problem.seq_k
    if problem.compress_ratio is not None:
        keys = problem.attended_keys
    elif problem.top_k is not None:
        mask, keys = PickedMask.of(problem.interval_mask, problem.seq_k), problem.top_k
    if problem.mask_storage != "implicit":
        mask = IntervalMask()
    heads = problem.kv_heads if pack > 1 else problem.heads
    return Domain(
        problem.batch,
        heads,
        problem.seq_q * pack,
        keys,
        tile.block_q,
        tile.block_k,
        mask,
        pack,
        splits,
    )


def heads_in_turn(problem: AttentionProblem, tile: Tile, mask_block: int | None = None) -> Domain:
    """Query blocks x key blocks of every key/value head, whose query heads are walked one after the other. Raises
    InputError: grouped heads whose last query block is ragged."""
    domain = attention_domain(problem, tile, pack=problem.group, mask_block=mask_block)
    if problem.group == 1:
        return domain
    if problem.seq_q % tile.block_q:
        why = f"no whole blocks of {tile.block_q}, and this backward takes them in turn; accepted: multiples"
        raise InputError(
            f"`seq_q` {problem.seq_q}: grouped heads of {problem.seq_q} queries are {why}"
        )
    return replace(domain, mask=HeadsInTurn(domain.mask, problem.seq_q), in_turn=True)


def row_domain(
    problem: AttentionProblem, block: int, *, keys: bool = False, heads: int | None = None
) -> Domain:
    """Blocks of rows of every head, with nothing on the key axis: preprocessing, conversions, fills, copies."""
    tensor_heads, rows = (
        (problem.kv_heads, problem.seq_k) if keys else (problem.heads, problem.seq_q)
    )
    return Domain(problem.batch, tensor_heads if heads is None else heads, rows, 1, block, 1)


def resources(problem: AttentionProblem, kernel: Kernel) -> Resources:
    """What a CTA of the kernel's main launch takes: as the kernel states it, else (block_q + 2 x stages x block_k) rows
    of shared memory, the two operands at their own widths; without Q's where it is held in registers, with P where that
    goes through shared memory, and of a latent cache with P and without V, which is part of K."""
    # Estimated where no source says: Q (and P) of the tile's rows, and `stages` buffers of K and V.
    shared, latent = kernel.shared_memory_bytes, problem.latent_kv
    if shared is None:
        d, dv = (
            max(n, kernel.compiled_head_dim or 0) for n in (problem.head_dim, problem.head_dim_v)
        )
        t = kernel.tile
        q, p = (
            (0 if kernel.loop.q_in_registers else d),
            (t.block_k if kernel.loop.p_in_shared or latent else 0),
        )
        shared = t.block_q * (q + p) * problem.input_type.bytes
        shared += t.stages * t.block_k * (d if latent else d + dv) * problem.cache_type.bytes
    return Resources(kernel.cta_threads, kernel.registers, shared)


def load(tensor: str, rows: Rows, per: Per, **kw: object) -> Access:
    return Access(tensor, Mode.LOAD, rows, per, **kw)  # type: ignore[arg-type]


def store(tensor: str, rows: Rows, per: Per, **kw: object) -> Access:
    return Access(tensor, Mode.STORE, rows, per, **kw)  # type: ignore[arg-type]


def row_pass(
    name: str,
    domain: Domain,
    reads: Iterable[str | Access],
    writes: Iterable[str | Access],
    **more: Any,
) -> Launch:
    """A launch without products in which each CTA moves its block of rows of tensors; `more` are fields of `Launch`."""
    loads = (n if isinstance(n, Access) else load(n, Rows.QUERY, Per.QUERY) for n in reads)
    stores = (n if isinstance(n, Access) else store(n, Rows.QUERY, Per.QUERY) for n in writes)
    return Launch(name, domain, Outer.FLAT, (*loads, *stores), **more)


def loop_work(problem: AttentionProblem, kernel: Kernel) -> Work:
    """What the attention loop of a pass computes, as the kernel's settings for it say: a build for one wider head_dim
    multiplies all of its columns."""
    backward, d, d_v = problem.backward, problem.head_dim, problem.head_dim_v
    # The build multiplies its own columns, zeros among them.
    if d == d_v and kernel.compiled_head_dim:
        d = d_v = max(d, kernel.compiled_head_dim)
    # Spilled registers and shared memory are of the pass's own build.
    spill = kernel.of_pass(backward).spill or Spill()
    fragments, tile = kernel.of_pass(backward).fragments, kernel.tile
    if fragments is not None and fragments.layout is Layout.CHUNKS:
        width = problem.input_type.bytes
        fragments = by_chunk(fragments, tile.block_k, tile.warps, d, problem.head_dim, width)
    loop = kernel.loop
    if backward:
        loop = Loop(warps_meet=True, interleaves=kernel.backward.interleaves)
    if problem.widens:
        loop = replace(loop, widened=(d + d_v) * tile.warps / (loop.key_warps * tile.block_q))
    return Work(
        flops_per_pair=2 * (3 * d + 2 * d_v) if backward else 2 * (d + d_v),
        exps_per_pair=1,
        tensor_cores=kernel.matrix_unit is not MatrixUnit.FP32,
        stages=(kernel.tile_backward if backward else kernel.tile).stages,
        loop=loop,
        fragments=fragments,
        spill=SpillAccesses(spill.accesses_per_pair, spill.accesses_per_tile, spill.frame),
        code=spill.code,
        machine=None if backward else kernel.machine,
    )


def main_launch(
    problem: AttentionProblem,
    kernel: Kernel,
    domain: Domain,
    outer: Outer,
    accesses: Iterable[Access],
    beside: tuple[Overhead, ...] = (),
    **more: Any,
) -> Launch:
    """The attention loop of a pass, as the kernel's settings for it say. What it moves `beside` comes on top of these;
    `more` are fields of `Launch` that differ."""
    backward = problem.backward
    settings = kernel.of_pass(backward)
    spill = settings.spill or Spill()
    taken = resources(problem, kernel)
    if backward:
        taken = Resources(
            kernel.warp_size * kernel.tile_backward.warps,
            settings.registers,
            settings.shared_memory_bytes,
        )
    # What a pass's launch has by its settings; an algorithm's own fields (`more`) go over them.
    fields: dict[str, Any] = {
        "schedule": settings.schedule,
        "resources": taken,
        "overheads": settings.overheads
        + spill.overheads(taken.threads, lambda: domain.visited.count)
        + beside,
        "work": loop_work(problem, kernel),
    }
    if backward:
        name, fields["role"] = "bwd.main", LaunchRole.MAIN_BACKWARD
    else:
        name, fields["role"] = "main", LaunchRole.MAIN
    return Launch(name, domain, outer, tuple(accesses), **{**fields, **more})


def grid(kernel: Kernel, together: int = 1, schedule: Schedule | None = None) -> int | None:
    """Work tiles that a persistent grid takes at once, each by so many CTAs together; the forward's, without another
    `schedule`."""
    if (
        schedule or kernel.schedule
    ).scheduler is Scheduler.STATIC or kernel.persistent_ctas is None:
        return None
    return kernel.persistent_ctas // together


def head_gradients(problem: AttentionProblem) -> tuple[Tensor, ...]:
    """dK and dV of every query head, where heads are grouped: what `sum_groups` sums. Empty where they are not."""
    if problem.group == 1:
        return ()
    return tuple(
        replace(matrix(problem, n, Role.TEMP), name=TensorKind.PER_HEAD.of(n), heads=problem.heads)
        for n in ("dK", "dV")
    )


def matrices(problem: AttentionProblem, names: str, role: Role) -> tuple[Tensor, ...]:
    """Matrices, and of other names row vectors, one a word of `names`."""
    return tuple(
        matrix(problem, n, role) if n in MATRICES else row_vector(problem, n, role)
        for n in names.split()
    )


def sum_groups(
    problem: AttentionProblem, rows_pass: RowPass = SUM_GROUPS, whole: Edge = Edge.EXACT
) -> Launch:
    """dK and dV of a key/value head, the sums over its group's query heads; or what these sums are added up in."""
    edges = {
        n: whole if n in KEY_SUMS else Edge.EXACT for n in (*rows_pass.reads, *rows_pass.writes)
    }
    # dK of each query head is read once; sums that all heads have added to hold the group's already.
    times = {n: 1 if n in KEY_SUMS else problem.group for n in rows_pass.reads}
    loads = [load(n, Rows.QUERY, Per.QUERY, edge=edges[n], times=times[n]) for n in rows_pass.reads]
    stores = [
        store(n, Rows.QUERY, Per.QUERY, edge=edges[n], times=rows_pass.store_packets)
        for n in rows_pass.writes
    ]
    domain, taken = (
        row_domain(problem, rows_pass.rows, keys=True),
        Resources(rows_pass.threads, rows_pass.registers),
    )
    work = Work(thread_loads=rows_pass.waits)
    launch = row_pass(f"bwd.{rows_pass.name}", domain, loads, stores, resources=taken, work=work)
    return replace(launch, values_per_thread=rows_pass.values * problem.group)
