"""`efficient`: flash attention whose backward passes dQ through memory, as PyTorch's memory-efficient kernel does.

The forward is that of `flash`. In the backward a CTA owns key blocks of a head and walks the query blocks that see
them. It fetches operands anew for each of a pair's five products. dQ is summed in fp32 tiles of a workspace, loaded and
stored at every pair by the CTA that has the tile's lock; the last one writes dQ. dK and dV stay in registers where the
type has 16 bits and a block of queries as many rows as the head has columns; else they pass through buffers of the
CTA's own, or in fp32 through dK and dV themselves. D = rowsum(dO o O) is computed for all queries by every CTA as it
starts, in fp32 by launches before. (pytorch/pytorch, aten/src/ATen/native/transformers/cuda: attention_backward.cu and
mem_eff_attention/kernel_backward.h.)

NB: Queries that see no key get no dQ there; here it is 0.
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms.cache import check_append
from iosim.catalog.algorithms.common import (
    attention_domain,
    head_gradients,
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
from iosim.catalog.algorithms.flash import TAKES, output_tensor, plan_flash
from iosim.catalog.algorithms.flash_options import FlashOptions
from iosim.catalog.algorithms.flash_rows import DEPTH
from iosim.catalog.algorithms.registry import Packs, algorithm, options_of
from iosim.catalog.algorithms.terms import backward_terms
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import (
    SPILL,
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
from iosim.kernel.options import number
from iosim.kernel.tensor_kinds import KEY_SUMS, QUERY_SUMS, TensorKind
from iosim.kernel.work import Pipelines, Work
from iosim.problem.attention import AttentionProblem

SOURCE = "experiments/measurements/h100_library_builds.csv"
WARP_ROWS = 32
FRAGMENT_BYTES = 16
"""What a thread loads at once of O, and of dO."""
PASS_ROWS, PASS_THREADS = 128, 128


@dataclass(frozen=True)
class EfficientOptions(FlashOptions):
    """`key_splits`: CTAs that share a head's key blocks in the backward; None: one a key block. `keeps_keys`: where dK
    and dV stay in registers, K is fetched for the scores once a key block in place of once a pair."""

    key_splits: int | None = number(None, 1)
    keeps_keys: bool = True
    header_bytes: int = number(0, 0, 4096)
    """Bytes of the header of a tile of the workspace: its lock, a counter of the CTAs that are done with it, padding."""
    lock_read_bytes: int = number(0, 0, 4096)
    """Bytes that locks and counters read for a tile of dQ's sums at a pair."""
    lock_write_bytes: int = number(0, -4096, 4096)
    lock_write_bytes_per_warp: int = number(0, 0, 4096)
    """Bytes that locks, counters and fences write for such a tile: so many, and so many more for each warp of a CTA."""
    lock_loads: int = number(0, 0, 100)
    """Loads that all warps wait for, of such a tile."""
    epilogue_loads: int = number(0, 0, 100)
    """Loads one behind the other of a tile of dK or dV that is added to."""
    unrolled_columns: int = number(65536, 1)
    """Widest builds whose loop for D is unrolled. Others keep its fragments of O and dO in local memory, and take a turn
    for each column in place of one for each fragment."""
    idle_warps_spill: float = 0.0
    """Fraction of what a warp spills at a pair, in builds with buffers for dK and dV, that it does not spill where none
    of its rows of queries are there."""


@algorithm(
    "efficient",
    takes=TAKES,
    options=EfficientOptions,
    splits=True,
    appends=True,
    packs=Packs.WHERE_ASKED,
)
def plan_efficient(problem: AttentionProblem, kernel: Kernel) -> Chain:
    check_append(problem, kernel)
    if problem.forward:
        return plan_flash(problem, kernel)
    return backward_terms(backward(problem, kernel), problem, kernel)


def backward(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """In fp32 the launches for D; the fill of the workspace, where CTAs share its tiles; the main launch. With grouped
    heads dK and dV are written per query head and summed over the group by one more launch. Raises InputError: packed
    sequences."""
    if problem.seq_lens is not None:
        why = f"the backward of kernel {kernel.name} is described for sequences of one length; accepted: passes fwd"
        raise InputError(f"`seq_lens` with `passes` {problem.passes}: {why}")
    # The backward: key blocks outside, several for a CTA where a head has fewer CTAs than blocks. dQ is
    # summed tile by tile in a workspace; CTAs of a head that share it take turns by locks.
    tile, domain = kernel.tile_backward, _domain(problem, kernel)
    half = problem.input_type.bytes < 4
    zeroed = (
        domain.splits > 1 or problem.mask == "window"
    )  # else the first to come knows it, and loads nothing
    workspace = workspace_tensors(problem, kernel)
    tiles = workspace[0].cols // tile.block_k
    # CTAs that share a tile of dQ's sums take turns at it: each takes its lock and leaves a fence behind.
    locked = tiles if domain.splits > 1 else 0
    options = options_of(kernel, EfficientOptions)
    _, turns = _row_sum_loop(problem, tile, options) if half else (0, 0)
    # A CTA per key block, or a CTA that walks every splits-th block of its head.
    outer = Outer.KEY if domain.splits == domain.key_blocks_total else Outer.HEAD
    amounts = (
        (Mode.LOAD, options.lock_read_bytes),
        (Mode.STORE, options.lock_write_bytes + options.lock_write_bytes_per_warp * tile.warps),
    )
    locks = (
        Overhead("locks", m, per_pair=n * locked, inferred_from=SOURCE)
        for m, n in amounts
        if locked
    )
    main = main_launch(
        problem,
        kernel,
        domain,
        outer,
        _accesses(problem, kernel, workspace, zeroed),
        (*locks, *_local_fragments(tile, turns, domain.query_blocks)),
        walks_round=domain.splits > 1
        and (problem.mask == "none" or problem.mask_storage != "implicit"),
        work=_work(problem, kernel, domain, workspace, locked),
    )
    buffered = len(workspace) > 1
    main = replace(
        main,
        overheads=tuple(
            _spilled(o, problem, main, locked, options.idle_warps_spill if buffered else 0.0)
            for o in main.overheads
        ),
    )
    # In fp32 launches of their own compute D before; in 16 bits the main launch does.
    before = () if half else _row_sums(problem)
    headers = options.header_bytes * tiles * domain.query_blocks
    fill = (_fill(problem, workspace, headers),) if zeroed else ()
    after = (sum_groups(problem),) if problem.group > 1 else ()
    held = _backward_tensors(before, half, kernel, problem, workspace)
    return Chain(tensors(held), (*before, *fill, main, *after), kernel.notes)


def _backward_tensors(
    before: tuple[Launch, ...],
    half: bool,
    kernel: Kernel,
    problem: AttentionProblem,
    workspace: list[Tensor],
) -> tuple[Tensor, ...]:
    """The tensors of the backward, with those that it makes for itself."""
    return (
        *matrices(problem, "Q K V dO", Role.INPUT),
        replace(output_tensor(problem, kernel), role=Role.INPUT),
        row_vector(problem, "LSE", Role.INPUT),
        *(
            []
            if half
            else [
                replace(
                    matrix(problem, "O", Role.TEMP), name="dO_O", element_bytes=4, strided=False
                )
            ]
        ),
        *(
            row_vector(problem, n, Role.TEMP)
            for n in ("D", *(["D_rows"] if len(before) == 3 else []))
        ),
        *workspace,
        *matrices(problem, "dQ dK dV", Role.OUTPUT),
        *head_gradients(problem),
    )


def _accesses(
    problem: AttentionProblem, kernel: Kernel, workspace: list[Tensor], zeroed: bool
) -> list[Access]:
    """What the main launch loads and stores. Operands are fetched anew for each product, but for K where dK and dV stay
    in registers; sums pass through the workspace, and the first visit loads those of dQ where they are `zeroed`."""
    half = problem.input_type.bytes < 4
    keeps = keeps_sums(problem, kernel) and options_of(kernel, EfficientOptions).keeps_keys
    # Results leave row by row where rows of other heads lie between.
    by_row = (
        Fetch.BYTES if kernel.fetch is Fetch.BYTES else Fetch.SECTORS
    )  # heads lie between a head's rows
    accesses = [
        *([load("K", Rows.KEY, Per.KEY, visited_only=True, fetch=kernel.fetch)] if keeps else []),
        load("K", Rows.KEY, Per.PAIR, times=1 if keeps else 2, fetch=kernel.fetch),
        load("V", Rows.KEY, Per.PAIR, fetch=kernel.fetch),
        load("Q", Rows.QUERY, Per.PAIR, times=2, fetch=kernel.fetch),
        load("dO", Rows.QUERY, Per.PAIR, times=2, fetch=kernel.fetch),
        load("LSE", Rows.QUERY, Per.PAIR),
        load("D", Rows.QUERY, Per.PAIR),
        *_running(QUERY_SUMS, Rows.QUERY, Edge.WHOLE, read_first=zeroed),
        store("dQ", Rows.QUERY, Per.QUERY, fetch=by_row),
    ]
    gradients = [TensorKind.PER_HEAD.of(n) if problem.group > 1 else n for n in ("dK", "dV")]
    for sums in workspace[1:]:
        accesses += _running(sums.name, Rows.KEY, Edge.WHOLE)
    for gradient in gradients:
        accesses += [] if half else _running(gradient, Rows.KEY, Edge.EXACT)
        accesses.append(store(gradient, Rows.KEY, Per.KEY, fetch=by_row))
    if half:
        # In 16 bits every CTA computes D of all queries as it begins.
        accesses += [load(n, Rows.QUERY, Per.SPLIT, fetch=by_row) for n in ("O", "dO")]
        accesses.append(store("D", Rows.QUERY, Per.SPLIT))
    return accesses


def _work(
    problem: AttentionProblem, kernel: Kernel, domain: Domain, workspace: list[Tensor], locked: int
) -> Work:
    """What the main launch computes: five products of a pair in tiles of the workspace's width, `locked` of which are
    added to under a lock."""
    tile, half = kernel.tile_backward, problem.input_type.bytes < 4
    options = options_of(kernel, EfficientOptions)
    fragments, turns = _row_sum_loop(problem, tile, options) if half else (0, 0)
    locked_flops = 2 * tile.block_q * tile.block_k**2 if locked else 0
    work, (dk_dv, dq, depth) = loop_work(problem, kernel), _products(problem, tile)
    exposed_loads = options.lock_loads * locked + sum(
        sums.cols // tile.block_q for sums in workspace[1:]
    )
    return replace(
        work,
        loop=replace(work.loop, serial_loads=0 if half else options.epilogue_loads * dk_dv),
        flops_per_pair=2 * depth,
        pipelines=Pipelines(2 + dk_dv + dq, depth, exposed_loads, locked_flops),
        serial_loads=fragments * domain.query_blocks,
        spill=replace(work.spill, tile=work.spill.tile + 4 * turns * domain.query_blocks),
    )


def _domain(problem: AttentionProblem, kernel: Kernel) -> Domain:
    domain, splits = (
        attention_domain(problem, kernel.tile_backward),
        options_of(kernel, EfficientOptions).key_splits,
    )
    blocks = domain.key_blocks_total
    return replace(domain, splits=blocks if splits is None or splits >= blocks else splits)


def _width(problem: AttentionProblem) -> int:
    return max(problem.head_dim, problem.head_dim_v)


def keeps_sums(problem: AttentionProblem, kernel: Kernel) -> bool:
    return problem.input_type.bytes < 4 and _width(problem) <= kernel.tile_backward.block_q


def workspace_tensors(problem: AttentionProblem, kernel: Kernel) -> list[Tensor]:
    """fp32 sums in whole tiles of the products: of dQ, and of dK and dV where they pass through buffers."""
    block_q, block_k = kernel.tile_backward.block_q, kernel.tile_backward.block_k
    # Sums lie in whole tiles of the products, block_q x block_k for dQ.
    shapes = [
        (
            QUERY_SUMS,
            -(-problem.seq_q // block_q) * block_q,
            -(-problem.head_dim // block_k) * block_k,
        )
    ]
    if problem.input_type.bytes < 4 and not keeps_sums(problem, kernel):
        rows = _domain(problem, kernel).splits * block_k
        sides = zip(KEY_SUMS, (problem.head_dim, problem.head_dim_v), strict=True)
        shapes += [(name, rows, -(-columns // block_q) * block_q) for name, columns in sides]
    return [
        Tensor(n, problem.batch, problem.heads, rows, cols, 4, Role.TEMP, wraps=True)
        for n, rows, cols in shapes
    ]


def _running(tensor: str, rows: Rows, edge: Edge, read_first: bool = False) -> list[Access]:
    """Sums that pass through memory between the visits of a block: not stored at the last one, and not loaded at the
    first one unless `read_first`."""
    return [
        load(tensor, rows, Per.PAIR, edge=edge, skip=0 if read_first else 1),
        store(tensor, rows, Per.PAIR, edge=edge, skip=1),
    ]


def _products(problem: AttentionProblem, tile: Tile) -> tuple[int, int, int]:
    """The products of a pair: (those for dV and dK, one a tile of columns; those for dQ; the sum of all depths). QK^T
    and dO V^T are as deep as the head has columns, in whole k-steps, the others as a block has rows."""
    d, d_v, of_query, of_key = problem.head_dim, problem.head_dim_v, tile.block_q, tile.block_k
    # A product makes a tile of block_k x block_q (dV, dK) or block_q x block_k (dQ): one for each
    # such run of columns.
    dk_dv, dq = -(-d_v // of_query) - (-d // of_query), -(-d // of_key)
    return dk_dv, dq, sum(-(-n // DEPTH) * DEPTH for n in (d, d_v)) + dk_dv * of_query + dq * of_key


def _row_sum_loop(
    problem: AttentionProblem, tile: Tile, options: EfficientOptions
) -> tuple[int, int]:
    """The loop for D of a block of queries: (pairs of fragments that a thread loads one behind the other, turns in
    which it keeps them in local memory). The first fragment of a pair is waited for, the next one is under way."""
    columns = max(1, 32 * tile.warps // tile.block_q) * (FRAGMENT_BYTES // problem.input_type.bytes)
    fragments = -(-problem.head_dim_v // columns)
    return -(-fragments // 2), fragments * columns if _width(
        problem
    ) > options.unrolled_columns else 0


def _local_fragments(tile: Tile, turns: int, query_blocks: int) -> tuple[Overhead, ...]:
    """What a CTA keeps in local memory as it computes D: fragments of O and of dO, stored at each turn and before the
    first; two of each are under way."""
    fragment_bytes = 2 * FRAGMENT_BYTES * 32 * tile.warps
    stored = fragment_bytes * (turns + 1) * query_blocks
    return (
        (
            Overhead(
                "spill", Mode.STORE, per_tile=stored, inferred_from=SOURCE, frame=2 * fragment_bytes
            ),
        )
        if turns
        else ()
    )


def _spilled(
    spill: Overhead, problem: AttentionProblem, main: Launch, locked: int, saved_by_idle: float
) -> Overhead:
    """What of spilled registers leaves the SM: of an overhead of that name, its mean over pairs. Warps without rows at
    the end of the queries spill less, by the fraction `saved_by_idle`. A CTA that visits one block of queries, and takes
    no lock, whose fence empties L1, finds there what it spilled, but for as much as O and dO drove out as it read
    them."""
    if spill.name != SPILL or not spill.per_pair:
        return spill
    d, per_pair = main.domain, float(spill.per_pair)
    if spill.mode is Mode.LOAD and d.query_blocks == 1 and not locked and spill.frame:
        per_pair *= min(
            1.0, 2 * problem.seq_q * problem.head_dim_v * problem.output_type.bytes / spill.frame
        )
    if spill.mode is Mode.STORE and saved_by_idle:
        # Warps own 32 rows each; those wholly past the last query spill less.
        rows, visits = problem.seq_q - (d.query_blocks - 1) * d.block_q, d.visited.count
        idle = (d.block_q - rows) // WARP_ROWS * WARP_ROWS / d.block_q
        per_pair *= 1 - saved_by_idle * idle * int(visits[-1]) / max(1, int(visits.sum()))
    return replace(spill, per_pair=round(per_pair))


def _fill(problem: AttentionProblem, workspace: list[Tensor], headers: int) -> Launch:
    """Clears the workspace, `headers` bytes of headers with each block of queries' sums."""
    sums, *others = workspace
    cleared = store(sums.name, Rows.QUERY, Per.QUERY, edge=Edge.WHOLE)
    stores = (cleared, *(store(b.name, Rows.OWN, Per.QUERY) for b in others))
    locks, taken = (
        Overhead("locks", Mode.STORE, per_tile=headers),
        Resources(PASS_THREADS),
    )
    return row_pass(
        "bwd.fill", row_domain(problem, sums.rows), (), stores, resources=taken, overheads=(locks,)
    )


def _row_sums(problem: AttentionProblem) -> tuple[Launch, ...]:
    """dO o O, its row sums, and these with a head's rows next to one another."""
    transposes = problem.heads > 1 and problem.seq_q > 1
    moves = [("multiply", ("O", "dO"), "dO_O"), ("sum", ("dO_O",), "D_rows" if transposes else "D")]
    moves += [("transpose", ("D_rows",), "D")] if transposes else []
    rows = row_domain(problem, PASS_ROWS)
    return tuple(
        row_pass(f"bwd.{name}", rows, sources, (target,)) for name, sources, target in moves
    )
