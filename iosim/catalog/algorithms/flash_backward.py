"""The backward of `flash`: keys outside, dQ by fp32 atomic adds or by CTAs that own queries, between passes over rows
(arXiv 2307.08691, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from iosim.base.records import replace
from iosim.catalog.algorithms.common import (
    attention_domain,
    grid,
    head_gradients,
    heads_in_turn,
    load,
    loop_work,
    main_launch,
    matrices,
    matrix,
    row_domain,
    row_pass,
    row_vector,
    store,
    sum_groups,
)
from iosim.catalog.algorithms.flash_options import Adds, FlashOptions, Workspace
from iosim.catalog.algorithms.flash_rows import (
    columns_outside,
    narrow_stores,
    stored,
)
from iosim.catalog.algorithms.registry import options_of
from iosim.kernel.kernel import Kernel, RowPass, Tile
from iosim.kernel.launch import (
    SECTOR_BYTES,
    Access,
    Chain,
    Domain,
    Edge,
    Fetch,
    Launch,
    Mode,
    Outer,
    Overhead,
    Per,
    Resources,
    Role,
    Rows,
    Tensor,
    tensors,
)
from iosim.kernel.tensor_kinds import (
    KEY_SUMS,
    LSE_COPY,
    QUERY_SUMS,
    TensorKind,
)
from iosim.kernel.work import Loop, Work
from iosim.problem.attention import AttentionProblem

SUMS_PER_LINE = 32
"""fp32 values of dQ in a line of the L2, which an atomic add takes as one request where lanes add to neighbours."""


def backward(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The kernel's passes over rows, and between them the main launch over key blocks. With grouped heads that are not
    taken in turn, dK and dV are written per query head and summed by a pass, or added to fp32 sums that passes convert,
    where the kernel has these. Raises InputError: heads in turn whose last query block is ragged."""
    options = options_of(kernel, FlashOptions)
    # The backward, keys outside: (1) passes before it make D and clear dQ's sums; (2) the main launch,
    # a CTA per key block, walks the query blocks that see it, adds its part of dQ atomically and writes
    # dK and dV of its block at the end; (3) passes after it convert the sums of dQ and sum dK and dV
    # over the heads of a group (arXiv 2307.08691, Algorithm 2).
    grouped = problem.group > 1 and not options.heads_in_turn
    # Where CTAs that own queries compute dQ, nobody adds to sums of it, and no pass clears or converts them.
    apart = options.adds in (Adds.OWNERS, Adds.SAME_GRID)
    # Which tensors there are follows from the passes: sums of dK and dV where one fills them, copies
    # where one makes them.
    passes = _row_passes(problem, kernel, grouped, apart)
    sums = [name for name in KEY_SUMS if any(name in rows_pass.writes for rows_pass in passes)]
    copies = [
        name
        for rows_pass in passes
        for name in rows_pass.writes
        if TensorKind.COPY.is_kind_of(name)
    ]
    held = _backward_tensors(problem, kernel, sums, copies, grouped, apart)
    before = [
        _row_launch(problem, kernel, rows_pass, held, copies)
        for rows_pass in passes
        if not rows_pass.follows
    ]
    after = [
        _row_launch(problem, kernel, rows_pass, held, copies)
        for rows_pass in passes
        if rows_pass.follows
    ]
    # Heads of a group one after the other: the CTA that owns keys walks the query blocks of all of them.
    walked = heads_in_turn if options.heads_in_turn else attention_domain
    domain = walked(problem, kernel.tile_backward, mask_block=options.mask_block)
    beside = _backward_beside(domain, grouped, kernel, problem)
    main = main_launch(
        problem,
        kernel,
        domain,
        Outer.KEY,
        _backward_accesses(problem, kernel, sums, copies, grouped, apart),
        beside,
        persistent_ctas=grid(kernel, schedule=kernel.backward.schedule),
        work=_backward_work(problem, kernel, apart),
    )
    launches = query_owners(problem, kernel, main) if apart else (main,)
    return Chain(held, (*before, *launches, *after), kernel.notes)


def _backward_beside(
    domain: Domain, grouped: bool, kernel: Kernel, problem: AttentionProblem
) -> tuple[Overhead, ...]:
    """Sectors beside the operands. Rows of dK and dV that end inside a sector share it with the next row, unless a grouped
    head's or another sequence's rows lie between them."""
    between = grouped or domain.sequences > 1
    beside = columns_outside(problem, kernel, keys_outer=True)
    beside += narrow_stores(problem, kernel, lambda: domain.key_rows, 1.0, tensors=2, apart=between)
    return beside


def _row_passes(
    problem: AttentionProblem, kernel: Kernel, grouped: bool, apart: bool
) -> list[RowPass]:
    """The passes over rows that a call launches: none of another layout, none that sums heads where each has its own
    keys, none that reorders where heads and rows lie in order already, and, with dQ computed `apart`, none of its
    sums."""
    passes = [
        p
        for p in kernel.backward.passes
        if (grouped or not p.sums_heads) and p.layout in ("", problem.layout)
    ]
    if 1 in (problem.heads, problem.seq_q):
        passes = [rows_pass for rows_pass in passes if not rows_pass.reorders]
    if not apart:
        return passes
    # Nobody adds to dQ's sums: passes that clear or convert them fall away, others lose them.
    without_sums = (
        replace(rows_pass, writes=tuple(n for n in rows_pass.writes if n != QUERY_SUMS))
        for rows_pass in passes
    )
    return [
        rows_pass
        for rows_pass in without_sums
        if rows_pass.writes and QUERY_SUMS not in rows_pass.reads
    ]


def _backward_tensors(
    problem: AttentionProblem,
    kernel: Kernel,
    sums: list[str],
    copies: list[str],
    grouped: bool,
    apart: bool,
) -> dict[str, Tensor]:
    """The tensors of a backward, in the order in which a framework allocates them."""
    sums_of_dq = dq_sums(problem, kernel)
    workspace: tuple[Tensor, ...] = (
        row_vector(problem, "D", Role.TEMP),
        *(() if apart else (sums_of_dq,)),
    )
    if (
        options_of(kernel, FlashOptions).workspace is Workspace.BLOCKS
    ):  # one piece of memory, which begins with the sums
        workspace = (sums_of_dq, *matrices(problem, f"{LSE_COPY} D", Role.TEMP))
    return tensors(
        (
            *matrices(problem, "Q K V O dO LSE", Role.INPUT),
            *workspace,
            *matrices(problem, "dQ dK dV", Role.OUTPUT),
            *(
                replace(matrix(problem, name[:2], Role.TEMP, element_bytes=4), name=name)
                for name in sums
            ),
            *(head_gradients(problem) if grouped and not sums else ()),
            *(
                replace(*matrices(problem, TensorKind.COPY.source(name), Role.TEMP), name=name)
                for name in copies
            ),
        )
    )


def _backward_accesses(
    problem: AttentionProblem,
    kernel: Kernel,
    sums: list[str],
    copies: list[str],
    grouped: bool,
    apart: bool,
) -> tuple[Access, ...]:
    """What a CTA that owns a key block moves: K and V once, each visiting query block's Q, dO, LSE and D, its additions
    to dQ, and dK and dV at the end."""
    rows = Edge.WHOLE if kernel.edge_q is Edge.WHOLE else Edge.EXACT
    whole = _workspace_edge(kernel)
    # A copy that a pass made (in another layout, or padded to whole tiles) is read in the place of its source.
    lse, d_o = (
        TensorKind.COPY.of(n) if TensorKind.COPY.of(n) in copies else n for n in ("LSE", "dO")
    )
    gradients = [TensorKind.PER_HEAD.of(n) if grouped else n for n in ("dK", "dV")]
    return (
        *(
            load(n, Rows.KEY, Per.KEY, visited_only=True, edge=kernel.edge_k, fetch=kernel.fetch)
            for n in "KV"
        ),
        *(load(n, Rows.QUERY, Per.PAIR, edge=rows, fetch=kernel.fetch) for n in ("Q", d_o)),
        load(lse, Rows.QUERY, Per.PAIR, edge=whole if lse in copies else Edge.EXACT),
        load("D", Rows.QUERY, Per.PAIR, edge=whole),
        *(() if apart else (Access(QUERY_SUMS, Mode.REDUCE, Rows.QUERY, Per.PAIR, edge=whole),)),
        *(Access(n, Mode.REDUCE, Rows.KEY, Per.KEY, visited_only=True, edge=whole) for n in sums),
        *(store(n, Rows.KEY, Per.KEY, fetch=stored(kernel)) for n in gradients if not sums),
    )


def _backward_work(problem: AttentionProblem, kernel: Kernel, apart: bool) -> Work:
    """The work of a pair with its additions to dQ: lane by lane in requests of a line, or in packets of a sector."""
    adds = options_of(kernel, FlashOptions).adds
    # What the warps wait for: a request a line of dQ's row, or packets of 32 bytes.
    requests = packets = 0
    if not apart and adds is not Adds.APART:
        requests = -(-dq_sums(problem, kernel).cols // SUMS_PER_LINE)
    if adds is Adds.PACKETS:
        packets = problem.head_dim * 4 // SECTOR_BYTES
    return replace(
        loop_work(problem, kernel), add_requests_per_row=requests, add_packets_per_row=packets
    )


def query_owners(problem: AttentionProblem, kernel: Kernel, main: Launch) -> tuple[Launch, Launch]:
    """The main launch, of four products where nothing is added to dQ, and the CTAs that own queries: as many as those
    of the main launch own keys. They walk blocks of keys as long as its blocks of queries: scores and dP again, then
    dQ."""
    # Two kinds of CTAs: owners of keys compute four products (S, dP, dV, dK), owners of queries three (S
    # and dP again, dQ) over key blocks as long as the others' query blocks.
    options, tile, d, d_v = (
        options_of(kernel, FlashOptions),
        kernel.tile_backward,
        problem.head_dim,
        problem.head_dim_v,
    )
    joins = options.adds is Adds.SAME_GRID
    lse, d_o = (
        next(a.tensor for a in main.accesses if a.tensor.startswith(n)) for n in ("LSE", "dO")
    )
    loop = Loop() if joins else main.work.loop
    domain = attention_domain(
        problem, Tile(tile.block_k, tile.block_q), mask_block=options.mask_block
    )
    accesses = (
        *(load(name, Rows.QUERY, Per.QUERY) for name in ("Q", d_o, lse, "D")),
        *(load(name, Rows.KEY, Per.PAIR) for name in "KV"),
        store("dQ", Rows.QUERY, Per.QUERY),
    )
    work = Work(2 * (2 * d + d_v), exps_per_pair=1, stages=tile.stages)
    owners = Launch(
        "bwd.dq", domain, Outer.QUERY, accesses, resources=main.resources, work=work, joins=joins
    )
    if joins:
        owners = replace(owners, schedule=main.schedule, overheads=main.overheads)
    return replace(main, work=replace(main.work, flops_per_pair=4 * (d + d_v), loop=loop)), owners


def _workspace_edge(kernel: Kernel) -> Edge:
    return (
        Edge.EXACT if options_of(kernel, FlashOptions).workspace is Workspace.ROWS else Edge.WHOLE
    )


def dq_sums(problem: AttentionProblem, kernel: Kernel) -> Tensor:
    sums = matrix(problem, QUERY_SUMS, Role.TEMP, element_bytes=4)
    if options_of(kernel, FlashOptions).workspace is not Workspace.PADDED:
        return sums
    # The workspace has whole blocks of rows and the build's columns.
    block = kernel.tile_backward.block_q
    rows, cols = (
        -(-problem.seq_q // block) * block,
        max(problem.head_dim, kernel.compiled_head_dim or 0),
    )
    return replace(sums, rows=rows, cols=cols)


def _row_launch(
    problem: AttentionProblem,
    kernel: Kernel,
    rows_pass: RowPass,
    held: Mapping[str, Tensor],
    copies: Sequence[str],
) -> Launch:
    """A pass over rows. O and dO are read as they lie in memory, or their copies where the pass makes none."""
    if rows_pass.sums_heads:
        return sum_groups(problem, rows_pass, _workspace_edge(kernel))
    rows, apart = rows_pass.rows or kernel.tile_backward.block_q, kernel.fetch is Fetch.LANES

    def access(mode: Mode, name: str) -> Access:
        source = TensorKind.COPY.source(name)
        workspace = name in ("D", QUERY_SUMS) or (name in copies and held[name].is_vector)
        return Access(
            name,
            mode,
            Rows.QUERY,
            Per.QUERY,
            edge=_workspace_edge(kernel) if workspace else Edge.EXACT,
            packet_rows=rows_pass.packet_rows if name == rows_pass.packets_of else 0,
            fetch=Fetch.SECTORS
            if apart and mode is Mode.LOAD and source in ("O", "dO")
            else Fetch.BYTES,
        )

    reads = _pass_reads(copies, rows_pass)
    # Some passes store half sectors: a share of them leaves as two packets (fitted in the catalog).
    domain = row_domain(problem, rows)
    overheads = _split_sectors(domain, held, rows_pass)
    # Values that a thread of the pass has: loads that it waits for may grow with them.
    of_a_thread = rows * max(problem.head_dim, kernel.compiled_head_dim or 0) // rows_pass.threads
    loads, stores = (
        (access(Mode.LOAD, n) for n in reads),
        (access(Mode.STORE, n) for n in rows_pass.writes),
    )
    waits = rows_pass.waits + rows_pass.waits_per_value * of_a_thread
    taken = Resources(rows_pass.threads, rows_pass.registers)
    work = Work(operations_per_value=round(rows_pass.operations), thread_loads=waits)
    launch = row_pass(
        f"bwd.{rows_pass.name}",
        domain,
        loads,
        stores,
        resources=taken,
        overheads=overheads,
        work=work,
    )
    return replace(launch, values_per_thread=rows_pass.values)


def _pass_reads(copies: Sequence[str], rows_pass: RowPass) -> Generator[str, None, None]:
    """What a pass reads: tensors as they lie in memory, or their copies where the pass makes none."""
    return (
        TensorKind.COPY.of(n)
        if TensorKind.COPY.of(n) in copies and TensorKind.COPY.of(n) not in rows_pass.writes
        else n
        for n in rows_pass.reads
    )


def _split_sectors(
    domain: Domain, held: Mapping[str, Tensor], rows_pass: RowPass
) -> tuple[Overhead, ...]:
    """Sectors that leave as two packets: some passes store half sectors (fitted in the catalog)."""
    row_bytes = held[rows_pass.writes[-1]].row_bytes
    if not rows_pass.split_percent or row_bytes % SECTOR_BYTES:
        return ()
    split = int(float(domain.query_rows.mean()) * row_bytes * rows_pass.split_percent) // 100
    return (Overhead("split_sectors", Mode.STORE, per_tile=split),)
