"""What a launch moves between shared memory and what computes: the one description that counts and times both read.

In bytes of whole wavefronts: a load or store of a warp, or what wgmma fetches for itself, takes one or several of 128
bytes, as the counter l1tex__data_pipe_lsu_wavefronts_mem_shared has them. Asynchronous copies into shared memory are no
such wavefronts: they are counted in bytes, and no counter here holds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

import numpy as np

from iosim.base.records import dataclass, replace
from iosim.base.words import WAYS, Way
from iosim.kernel.launch import Chain, Launch, Mode, Tensor
from iosim.kernel.tensor_kinds import LSE_PARTIAL, OUTPUT_SUMS, QUERY_SUMS
from iosim.kernel.unit import MMA_ROWS, WARP_TILE, WGMMA_ROWS, Operands, UnitModel
from iosim.kernel.work import Fragments, Layout

BANKS = 32
"""Banks of shared memory, a word of 4 bytes wide each."""
WAVEFRONT_BYTES = 128
INSTRUCTIONS = "instructions"
"""What wavefronts stand under that hold no operand: shuffles, a warp's start, words that threads hand each other, and
the three idle loads (LDS with a false predicate) that the compiler puts before asynchronous copies."""
STEP_WAVEFRONTS_PER_WARP = 26
"""The mean of such wavefronts a warp and step, as times take it of every mma.sync kernel: the counter less the
fragments in kernels/measurements/h200_iosim_kernels.csv."""
IDLE_LOADS = 3
SHUFFLES_PER_ROW_TILE = 4
"""A thread has two rows of an m16n8 tile, and a row lies in four lanes: two shuffles a row for its maximum or sum."""
CHUNK_BYTES = 16
"""What a thread copies or clears at once; a warp's take four wavefronts."""
CLEARS_OF_COLUMNS = 2.5
"""Stores of zeros beside each copy of a narrow head in FlashAttention-2's backward: four of 4 bytes or one of 16."""
MOST_WHOLE_COLUMNS = 128
"""Widest builds of FlashAttention-2's backward that are compiled for lengths of whole tiles as well."""
DEPTH, DEPTH_GROUP = 32, 8
"""Columns, or keys, that a turn of CUTLASS's product takes, and those whose fragments are fetched at once."""
ATOMIC_WAVEFRONTS = 8
"""Wavefronts of a warp's atomic to eight words, four lanes each: two per lane of a word. Taken from the counter."""
START_WAVEFRONTS = 16
"""Shuffles with which a warp of CUTLASS's forward begins."""
BACKWARD_LOADED_SHARE = 0.4
"""Fraction of the operand columns of the backward's five products that a step loads anew: Q and dO, 2 of 5."""


class Through(StrEnum):
    """How bytes reach shared memory, or leave it."""

    LSU = "lsu"
    """Loads, stores and ldmatrix of warps: the counter's wavefronts."""
    COPIES = "copies"
    """Asynchronous copies from the L2: cp.async and TMA."""
    PRODUCTS = "products"
    """wgmma's own fetches, which the counter has as well: cuDNN's rows differ by them from step to step."""


@dataclass(frozen=True)
class Staged:
    """Bytes of a tensor that a launch moves: in each step of its loop (a visited pair of blocks), or once a work tile.
    `way` is read out of shared memory, write into it. Of a warp that leaves out steps whose pairs the mask takes whole,
    `own_rows` is how many rows it has; `bytes` are then of all warps of the CTA still."""

    tensor: str
    way: Way
    bytes: float
    through: Through = Through.LSU
    step: bool = True
    own_rows: int = 0


@dataclass(frozen=True)
class CtaTile:
    """A CTA's tile with its launch: sides, warps, columns of Q and K and of V as a forward's products take them and
    those of a head, bytes of an element of the inputs, and the matrices that are written."""

    launch: Launch
    fragments: Fragments
    block_q: int
    block_k: int
    warps: int
    columns: int
    columns_v: int
    head_dim: int
    head_dim_v: int
    element_bytes: int
    outputs: tuple[Tensor, ...]

    @classmethod
    def of(cls, launch: Launch, fragments: Fragments, chain: Chain) -> CtaTile:
        d, k, v = launch.domain, chain.tensors["K"], chain.tensors["V"]
        both = launch.work.flops_per_pair // 2
        wide = both // 2 if k.cols == v.cols else v.cols
        written = (chain.tensors[a.tensor] for a in launch.accesses if a.mode is Mode.STORE)
        return cls(
            launch,
            fragments,
            d.block_q,
            d.block_k,
            max(1, launch.resources.threads // 32),
            both - wide,
            wide,
            k.cols,
            v.cols,
            k.element_bytes,
            tuple(t for t in written if not t.is_vector),
        )

    def instructions(self, a_warp: float, *, step: bool = True, own_rows: int = 0) -> Staged:
        """Wavefronts of every warp that hold no operand."""
        return Staged(
            INSTRUCTIONS,
            "read",
            self.warps * a_warp * WAVEFRONT_BYTES,
            step=step,
            own_rows=own_rows,
        )


# What a step fetches, by how warps share the products.


def every_warp(block_k: int, warps: int, columns: int, element_bytes: int) -> int:
    """Bytes of K, or V, where warps own whole rows and products take fragments from registers (ldmatrix): every warp
    fetches all of it."""
    return warps * block_k * columns * element_bytes


SCATTERED_BYTES = 8 * 128 / 32
"""Bytes at shared memory of a score's bias that each thread fetches by itself: rows of a tile lie a multiple of 128
bytes apart, so that the eight rows of a warp's load meet in the same banks, a wavefront each (pytorch,
mem_eff_attention/kernel_forward.h; counted on an H200, 1,610 wavefronts of loads a step for 832 without)."""


def estimate(
    launch: Launch, unit: UnitModel, scores: float, warps: int, element_bytes: float
) -> float:
    """Shared-memory bytes of a forward's or backward's step, whatever the kernel, for its time: operands as the
    instructions fetch them.

    mma.sync: every warp fetches all of K and V, and its rows of Q. wgmma: each 64 rows fetch K and V, Q comes from
    shared memory as well, and the loads' writes are counted. tcgen05: each 128 rows fetch Q, K and V, and P lies in
    tensor memory (768 cycles for 128 rows and 128 keys at head_dim 128, as Zadouri et al. count). FlashAttention-3 in
    fp8 reads V once more and writes it transposed (arXiv 2407.08608, section 3.3). Where warps divide the tile both
    ways, 32 x 32 to a warp, and on the fp32 units, both operands come from shared memory; there P goes through it where
    Q is fetched again. `p_in_shared` adds a store and a fetch of P, `q_in_registers` takes Q's fetches away.

    Args:
        scores: of the step, idle rows of instructions with them.
    """
    # The terms, all in bytes of a step. column_bytes: a pair's columns of one operand of both
    # products; `filled`: K and V as they are loaded; q: the query block's rows.
    d, loop = launch.domain, launch.work.loop
    column_bytes = launch.work.flops_per_pair // launch.work.scores_per_pair // 2 * element_bytes
    filled, q = d.block_k * column_bytes, d.block_q * launch.work.scores_per_pair * column_bytes / 2
    beside_operands = (2 * scores * element_bytes if loop.p_in_shared else 0) - (
        q if loop.q_in_registers else 0
    )
    # Threads, or warps of 32 x 32: each result fetches its row of one operand and its column of the
    # other, divided by how many results of a warp's tile share them.
    if unit.operands is Operands.BOTH_SHARED:
        return scores * column_bytes * 2 / WARP_TILE + filled + beside_operands
    if launch.is_backward:
        return (
            scores * column_bytes * unit.operand_share
            + d.block_q * column_bytes * BACKWARD_LOADED_SHARE
            + beside_operands
        )
    if launch.rereads_q:
        # A bias or a stored mask is copied there as it is, and fetched score by score.
        added = scores * (element_bytes + SCATTERED_BYTES) * launch.score_tensors
        return (
            scores * (column_bytes * 2 / WARP_TILE + 3 * element_bytes)
            + filled
            + beside_operands
            + added
        )
    # The unit fetches K and V once for each of its instruction's rows; loads write them, and fp8's V
    # is written once more, transposed.
    if unit.operands is Operands.FETCHED:
        fetches = (
            scores / d.block_k / unit.rows
            + unit.counts_loads
            + (unit.transposes_fp8 and element_bytes == 1)
        )
        return fetches * filled + q + beside_operands
    # mma.sync on fragments: every warp (or every group of warps with its own keys) fetches all of K
    # and V, and has wavefronts that hold no operand.
    idle: float = STEP_WAVEFRONTS_PER_WARP
    if (fragments := launch.work.fragments) is not None:
        idle = fragments.step + shuffles(d.block_q, warps)
    return (
        warps * (filled / loop.key_warps + idle * WAVEFRONT_BYTES)
        + loop.key_warps * q
        + beside_operands
    )


def shuffles(block_q: int, warps: int) -> int:
    """Shuffles of a warp in a step where warps own whole rows: its rows' maxima and sums."""
    return SHUFFLES_PER_ROW_TILE * (block_q // warps) // MMA_ROWS


# What launches stage whose layout is known.


def _copied(tile: CtaTile, tensor: str, rows: int, columns: int, *, step: bool = True) -> Staged:
    return Staged(tensor, "write", rows * columns * tile.element_bytes, Through.COPIES, step)


def _outputs(tile: CtaTile, rows: int, columns: int) -> Iterator[Staged]:
    """Tiles of results on their way out: fragments stored, whole rows fetched, once."""
    for tensor in tile.outputs:
        for way in WAYS:
            yield Staged(tensor.name, way, rows * columns * tensor.element_bytes, step=False)


def _whole_rows(tile: CtaTile) -> Iterator[Staged]:
    """A forward with mma.sync whose warps own whole rows: Q, K and V by cp.async; ldmatrix of Q (once a tile where it
    stays in registers), K and V; O stored as fragments and fetched as rows."""
    # ldmatrix moves what it fetches: bytes follow from sizes. Each warp fetches K and V whole, Q its
    # own rows, in every step or once.
    f, rows = tile.fragments, tile.block_q // tile.warps
    skipped_rows = rows if f.skips_masked else 0
    q_once = tile.launch.work.loop.q_in_registers
    turns = shuffles(tile.block_q, tile.warps)
    q_bytes = tile.block_q * tile.columns * tile.element_bytes
    yield Staged("Q", "read", q_bytes, step=not q_once, own_rows=0 if q_once else skipped_rows)
    for name, columns in (("K", tile.columns), ("V", tile.columns_v)):
        fetched = every_warp(tile.block_k, tile.warps, columns, tile.element_bytes)
        yield Staged(name, "read", fetched, own_rows=skipped_rows)
        yield _copied(tile, name, tile.block_k, columns)
    yield tile.instructions(turns, own_rows=skipped_rows)
    yield tile.instructions(f.step)
    yield _copied(tile, "Q", tile.block_q, tile.columns, step=False)
    if f.stages_output:
        yield from _outputs(tile, tile.block_q, tile.columns_v)
    yield tile.instructions(f.tile + turns + 1, step=False)


def _chunks(block: int, warps: int, columns: int, element_bytes: int) -> int:
    """Copies of a thread for a block of rows."""
    return block * columns * element_bytes // (CHUNK_BYTES * warps * 32)


def _clears(columns: int, head_dim: int) -> float:
    """Stores of zeros for each copy of V, and past a head's columns, which are copied in panels."""
    # A copy brings 64 columns of a row, or 32 in builds of other widths; panels wholly past the
    # head's columns are cleared by three further stores.
    panel = 64 if columns % 64 == 0 else 32
    return 1 + 3 * (1 - head_dim // panel / (columns // panel))


def by_chunk(
    fragments: Fragments, block_k: int, warps: int, columns: int, head_dim: int, element_bytes: int
) -> Fragments:
    """Fragments of a build of `columns` with what a step of FlashAttention-2's loop has beside: idle loads, of heads
    with fewer columns before each copy, which then has stores of zeros as well."""
    per_k = _chunks(block_k, warps, columns, element_bytes)
    instructions = (
        per_k * (IDLE_LOADS + _clears(columns, head_dim)) if head_dim < columns else IDLE_LOADS
    )
    return replace(fragments, step=2 * instructions)


def _copies_by_chunk(tile: CtaTile) -> Iterator[Staged]:
    """`_whole_rows` of FlashAttention-2: what copies leave out of V, and past a head's columns, is cleared by stores;
    a copy that is asked for one by one has idle loads of its own."""
    domain = tile.launch.domain
    per_k, per_q = (
        _chunks(rows, tile.warps, tile.columns, tile.element_bytes)
        for rows in (tile.block_k, tile.block_q)
    )
    narrow, whole = (
        tile.head_dim < tile.columns,
        domain.seq_k % tile.block_k == 0 and domain.rows % tile.block_q == 0,
    )
    # Beside the operands: idle loads before copies, and zeros stored where a copy leaves something
    # out, in each step and once a tile for Q.
    cleared = _clears(tile.columns, tile.head_dim)
    yield from _whole_rows(tile)
    # Share of a query block that has rows, in the mean over the head's blocks.
    filled = domain.rows / domain.query_blocks / tile.block_q
    once = (
        IDLE_LOADS * per_q * filled + narrow * per_q * cleared
        if narrow or not whole
        else IDLE_LOADS
    )
    if not whole:  # in the last key block each copy is asked for by itself, and rows of V past the end are cleared
        missing = (-domain.seq_k % tile.block_k) / tile.block_k
        idle_instructions = 2 * IDLE_LOADS * (per_k * (1 - missing) - (per_k if narrow else 1))
        once += (
            idle_instructions
            + per_k * (1 + 3 * missing)
            - (per_k * missing * cleared if narrow else 0)
        )
    yield tile.instructions(once, step=False)


def _wgmma(tile: CtaTile) -> Iterator[Staged]:
    """A forward by wgmma: Q, K and V by TMA; each 64 rows fetch their Q and all of K and V; O stored as fragments and
    fetched by TMA. Each CTA of a cluster has K and V for itself. P stays in registers, or is stored and fetched by its
    product. V in fp8 is fetched and stored transposed (arXiv 2407.08608, section 3.3)."""
    # wgmma takes 64 rows at a time and fetches both operands itself: K and V once for every 64.
    e, groups = tile.element_bytes, -(-tile.block_q // WGMMA_ROWS)
    turns = (
        4 * groups * shuffles(WGMMA_ROWS, 4) * WAVEFRONT_BYTES
    )  # of the four warps of each 64 rows
    for step in (True, False):
        yield Staged(INSTRUCTIONS, "read", turns, step=step)
    yield Staged("Q", "read", tile.block_q * tile.columns * e, Through.PRODUCTS)
    if tile.launch.work.loop.p_in_shared:
        yield Staged("P", "write", tile.block_q * tile.block_k * e)
        yield Staged("P", "read", tile.block_q * tile.block_k * e, Through.PRODUCTS)
    if e == 1:
        for way in WAYS:
            yield Staged("V", way, tile.block_k * tile.columns_v)
    for name, columns in (("K", tile.columns), ("V", tile.columns_v)):
        yield Staged(name, "read", groups * tile.block_k * columns * e, Through.PRODUCTS)
        yield _copied(tile, name, tile.launch.tile_ctas * tile.block_k, columns)
    yield _copied(tile, "Q", tile.block_q, tile.columns, step=False)
    for item in _outputs(tile, tile.block_q, tile.columns_v):
        yield item if item.way == "write" else replace(item, through=Through.COPIES)


@dataclass(frozen=True)
class TwoWays:
    """A forward of CUTLASS, whose warps divide a step's products 32 x 32 each; per CTA, in means over its steps. Both
    products go `DEPTH` columns, or keys, at a time. Copies of what lies past the end of a tensor write zeros, and the
    counter has these: lines of 128 bytes with a zero in them. Where all stages of a product fit its buffers, they are
    asked for before it (`whole`); else the others follow in its loop, which also asks for those past the last."""

    tile: CtaTile
    keeps_output: bool
    """True where O stays in registers; else it is staged in every step, as many columns at a time as a block has
    keys."""
    depth_keys: float
    """Turns of the second product's loop."""
    missing_k: float
    """Rows of the blocks past the last key that the tile needs."""
    missing_lines: float
    """Lines of a turn of the first product with such rows."""

    @classmethod
    def of(cls, tile: CtaTile) -> TwoWays:
        d, bk = tile.launch.domain, tile.block_k
        v, rows_a_line = d.visited, WAVEFRONT_BYTES / (DEPTH * tile.element_bytes)
        some = v.count > 0
        count, last = v.count[some], (v.end_row - (v.end - 1) * bk)[some]
        # Means over all steps of a head: of each query block its count of visits, the rows that its last
        # key block lacks, and the rows that the block itself lacks.
        steps = max(1, int(count.sum()))
        missing_q, missing_k = tile.block_q - d.query_rows[some], bk - last
        lines = (np.ceil(missing_q / rows_a_line) * count + np.ceil(missing_k / rows_a_line)).sum()
        # Turns of 32 keys: whole blocks have bk / 32, the last one as many as it has keys.
        turns = (count - 1) * (bk // DEPTH) - (-last // DEPTH)
        return cls(
            tile,
            max(tile.head_dim, tile.head_dim_v) <= bk,
            float(turns.sum() / steps),
            float(missing_k.sum() / steps),
            float(lines / steps),
        )

    @property
    def stages(self) -> int:
        """Buffers of a product's operands (DefaultGemmConfiguration; 4 of 16-bit types in kernel_forward.h)."""
        return 4 if self.tile.element_bytes == 2 else 3

    @property
    def turns(self) -> int:
        """Turns of the first product's loop."""
        return -(-self.tile.head_dim // DEPTH)

    @property
    def column_blocks(self) -> int:
        return 1 if self.keeps_output else -(-self.tile.head_dim_v // self.tile.block_k)

    def instructions_of_copies(self, rows: float, columns: int) -> float:
        """Copies that the CTA's warps ask for, 32 times 16 bytes each."""
        return rows * columns * self.tile.element_bytes / (32 * CHUNK_BYTES)

    def first_product(self) -> Iterator[Staged]:
        t, turns = self.tile, self.turns
        # With all stages buffered ("whole") a product's fragments are fetched turn by turn; else its loop
        # fetches the first fragments of one turn more.
        buffered = t.block_k // DEPTH
        whole = self.keeps_output and buffered <= self.stages
        ahead = buffered if whole else self.stages - 1
        groups = (
            turns if whole else turns + DEPTH_GROUP / DEPTH
        )  # of a loop's last turn the next one's first fragments
        for name, rows in (("Q", t.block_q), ("K", t.block_k)):
            yield Staged(name, "read", t.warps * WARP_TILE * DEPTH * t.element_bytes * groups)
            yield _copied(t, name, rows, turns * DEPTH)
        a_turn = self.instructions_of_copies(t.block_q + t.block_k, DEPTH)
        full = min(ahead, turns) - (t.head_dim % DEPTH > 0)
        beside = full * self.missing_lines + (ahead - full) * a_turn * 4
        if whole:
            beside += t.warps * t.element_bytes
        else:
            late = max(0, turns - ahead)
            beside += (
                late * self.missing_lines / 4
                + (turns - late) * a_turn
                + turns * t.warps * 3 * IDLE_LOADS
            )
        yield from self.beside(beside + t.warps * IDLE_LOADS)

    def second_product(self) -> Iterator[Staged]:
        t, turns, e = self.tile, self.depth_keys, self.tile.element_bytes
        warp = t.warps * WARP_TILE * DEPTH * e
        whole = t.block_k <= DEPTH * self.stages
        yield Staged("P", "write", t.block_q * t.block_k * e)
        yield Staged("P", "read", warp * turns * self.column_blocks * (1 if e == 2 else 2))
        yield Staged("V", "read", warp * turns * self.column_blocks)
        yield _copied(t, "V", t.block_k, t.block_k * self.column_blocks)
        filled = t.block_k if whole else DEPTH * (self.stages - 1 + turns)
        lines, present_k = t.block_k * e // WAVEFRONT_BYTES, t.block_k - self.missing_k
        widths = (min(t.block_k, t.head_dim_v - n * t.block_k) for n in range(self.column_blocks))
        full = sum(columns * e // WAVEFRONT_BYTES for columns in widths)
        beside = (
            self.column_blocks * (filled * lines + t.warps * (2 if e == 2 else 16))
            - present_k * full
        )
        beside += self.column_blocks * t.warps * IDLE_LOADS * (1 if whole else 1 + 3 * turns)
        yield from self.beside(beside)

    def softmax(self) -> Iterator[Staged]:
        """Rows' maxima by atomics, four lanes to a word; sums by two shuffles, a word a row and warp; 32 rows of these
        at once. In the first step of a tile all maxima are new, and no output is rescaled."""
        t, warps = self.tile, self.tile.warps
        # Wavefronts of a warp's scalar loads: row maxima, sums and scales (counted, see the constants).
        instructions = 2 + 4 + 5 + t.block_k // WARP_TILE
        rescale = SHUFFLES_PER_ROW_TILE * self.keeps_output
        row_groups = WARP_TILE // 8
        yield from self.beside(
            warps * (row_groups * (ATOMIC_WAVEFRONTS + 1 + 2 + 1) + 1 + instructions + rescale)
        )
        loads = (a.tensor for a in t.launch.accesses if a.mode is Mode.LOAD)
        if score_tensor := next(
            (name for name in loads if name not in ("Q", "K", "V", OUTPUT_SUMS)), None
        ):
            yield Staged(score_tensor, "write", t.block_q * t.block_k * t.element_bytes)
            yield Staged(
                score_tensor, "read", warps * WARP_TILE * 8 * WAVEFRONT_BYTES
            )  # 8 rows to a bank
        yield from self.beside(warps * (START_WAVEFRONTS - 1 - rescale) + t.block_q / 8, step=False)

    def output(self) -> Iterator[Staged]:
        t = self.tile
        for way in WAYS:
            yield Staged(
                "O", way, self.column_blocks * t.block_q * t.block_k * 4, step=not self.keeps_output
            )
        scales = 512 // t.block_k if self.keeps_output else 4
        yield from self.beside(self.column_blocks * t.warps * scales, step=not self.keeps_output)

    def beside(self, wavefronts: float, *, step: bool = True) -> Iterator[Staged]:
        yield Staged(INSTRUCTIONS, "read", wavefronts * WAVEFRONT_BYTES, step=step)


def _two_ways(tile: CtaTile) -> Iterator[Staged]:
    """PyTorch's memory-efficient forward (mem_eff_attention/kernel_forward.h)."""
    it = TwoWays.of(tile)
    for part in (it.first_product, it.softmax, it.second_product, it.output):
        yield from part()


def _split_weights(tile: CtaTile) -> Iterator[Staged]:
    """FlashAttention-2's combine: the LSE of all splits stored, fetched transposed and stored as weights, in a table as
    long as the next power of two; a row's weight fetched with each split."""
    d = tile.launch.domain
    # The table of weights holds the next power of two of splits, at least two.
    table = 1 << max(1, (d.splits - 1).bit_length())
    a_thread = -(-table * d.block_q // (32 * tile.warps))
    lanes = min(32 * tile.warps // d.block_q, table)
    for way, times in (("write", 2 * a_thread), ("read", a_thread + d.splits)):
        yield Staged(LSE_PARTIAL, way, tile.warps * times * WAVEFRONT_BYTES, step=False)  # type: ignore[arg-type]
    yield tile.instructions(1 + 2 * (lanes.bit_length() - 1), step=False)


def _keys_outside(tile: CtaTile) -> Iterator[Staged]:
    """kernels/flash_bwd.cuh: a warp owns 16 keys. K and V are fetched as its own rows in every step, Q and dO whole,
    twice each; the LSE and D by word, twice a row; dS stored, and with K fetched by all warps for dQ."""
    e, d, q, keys = tile.element_bytes, tile.head_dim, tile.block_q, tile.block_k
    for name in ("K", "V"):
        yield Staged(name, "read", keys * d * e)
        yield _copied(tile, name, keys, d, step=False)
    read = [a.tensor for a in tile.launch.accesses]
    d_o, lse = (next(name for name in read if name.startswith(kind)) for kind in ("dO", "LSE"))
    for name in ("Q", d_o):
        yield Staged(name, "read", 2 * tile.warps * q * d * e)
        yield _copied(tile, name, q, d)
    for name in (lse, "D"):
        yield Staged(name, "read", tile.warps * q // 8 * 2 * WAVEFRONT_BYTES)
    if QUERY_SUMS in read:
        yield Staged("dS", "write", q * keys * e)
        row_warps = q // MMA_ROWS
        yield Staged("dS", "read", q * keys * e * (tile.warps // row_warps))
        yield Staged("K", "read", keys * d * e * row_warps)
    yield tile.instructions(tile.fragments.step)
    yield from _outputs(tile, keys, d)
    yield tile.instructions(tile.fragments.tile + 1, step=False)


def _queries_outside(tile: CtaTile) -> Iterator[Staged]:
    """The deterministic dQ of kernels/flash_bwd.cuh: a warp owns 16 queries; K is fetched twice, V once."""
    e, d, keys = tile.element_bytes, tile.head_dim, tile.block_k
    for name, times in (("K", 2), ("V", 1)):
        yield Staged(name, "read", times * every_warp(keys, tile.warps, d, e))
        yield _copied(tile, name, keys, d)
    for name in ("Q", "dO"):
        yield Staged(name, "read", tile.block_q * d * e)
        yield _copied(tile, name, tile.block_q, d, step=False)
    yield tile.instructions(tile.fragments.step)
    yield from _outputs(tile, tile.block_q, d)
    yield tile.instructions(tile.fragments.tile + 1, step=False)


def _gradients(tile: CtaTile) -> Iterator[Staged]:
    """FlashAttention-2's backward (flash_bwd_kernel.h), whose warps divide each product both ways: scores and dP, dK
    and dV from P and dS transposed, dQ. In its loop Q and dO are copied in one go each; of heads with fewer columns
    than the build, and of a tile's first blocks where lengths are no whole tiles, each copy is asked for by itself."""
    e, warps, block_q, block_k = tile.element_bytes, tile.warps, tile.block_q, tile.block_k
    d, f, columns = tile.launch.domain, tile.fragments, tile.launch.work.flops_per_pair // (2 * 5)
    # Warps along the first side of a product fetch that operand once for each warp along the other
    # side: `warps // along` times, and the other operand `along` times.
    of_scores, of_keys, of_queries = f.warps_along
    d_o = next(a.tensor for a in tile.launch.accesses if a.tensor.startswith("dO"))
    for name in ("Q", d_o):
        yield Staged(name, "read", block_q * columns * e * (warps // of_scores + of_keys))
        yield _copied(tile, name, block_q, columns)
    yield Staged("K", "read", block_k * columns * e * (of_scores + of_queries))
    yield Staged("V", "read", block_k * columns * e * of_scores, step=not f.holds_v)
    for name, products in (("P", warps // of_keys), ("dS", warps // of_keys + warps // of_queries)):
        yield Staged(name, "write", block_q * block_k * e)
        yield Staged(name, "read", block_q * block_k * e * products)
    for name in ("K", "V"):
        yield _copied(tile, name, block_k, columns, step=False)
    of_q, of_k = (2 * _chunks(rows, warps, columns, e) for rows in (block_q, block_k))
    # Three builds: for whole tiles, for ragged lengths, and for heads narrower than the build.
    narrow, whole = tile.head_dim < columns, d.seq_k % block_k == 0 and d.rows % block_q == 0
    yield tile.instructions(of_q * (IDLE_LOADS + CLEARS_OF_COLUMNS) if narrow else 2 * IDLE_LOADS)
    once: float = IDLE_LOADS
    if narrow or not whole or columns > MOST_WHOLE_COLUMNS:
        missing = (
            of_q * (-d.rows % block_q) / block_q
            + of_k * (-d.seq_k % block_k) / block_k / d.key_blocks_total
        )
        once = (of_q + of_k) * (IDLE_LOADS + (CLEARS_OF_COLUMNS if narrow else 1)) + 3 * missing
    yield tile.instructions(once, step=False)
    yield from _outputs(tile, block_k, columns)


def _by_row(tile: CtaTile) -> Iterator[Staged]:
    a_row = tile.fragments.tile + (
        tile.head_dim / tile.fragments.step if tile.fragments.step else 0
    )
    yield Staged(INSTRUCTIONS, "read", tile.block_q * a_row * WAVEFRONT_BYTES, step=False)


def _one_warp(tile: CtaTile) -> Iterator[Staged]:
    """kernels/minimal.cu, a thread a row, in wavefronts: a scalar of each thread's own row is one, 16 bytes that all
    threads share are two; a row of K or V is stored with all lanes in one bank, 32 for each column."""
    d, side = tile.columns, tile.block_k
    for tensor, way, wavefronts in (
        ("Q", "write", d),
        ("Q", "read", side * d),
        ("K", "read", side * d // 4 * 2),
        ("V", "read", side * d),
        ("S", "write", 2 * side),
        ("S", "read", side),
    ):
        yield Staged(tensor, way, wavefronts * WAVEFRONT_BYTES)  # type: ignore[arg-type]
    steps_a_key_block = tile.launch.domain.query_blocks
    for name in ("K", "V"):
        yield Staged(name, "write", d * 32 * WAVEFRONT_BYTES / 2 / steps_a_key_block)


def _thread_rows(tile: CtaTile) -> Iterator[Staged]:
    """flash-attention-minimal, a thread a row, in wavefronts: a word of each thread's own row of Q or S is as many as
    rows share a bank, one that all threads share is one. Counted so to the last one on an H200 and an H100."""
    d, side = tile.columns, tile.block_k
    # Rows of d words: lanes that ask for the same word of 32 rows share a bank gcd(d, 32) at a time.
    of_q, of_s = (math.gcd(columns, BANKS) for columns in (d, side))
    for tensor, way, wavefronts in (
        ("Q", "write", d * of_q),
        ("Q", "read", side * d * of_q),
        ("K", "read", side * d),
        ("S", "write", 2 * side * of_s),
        ("S", "read", (side + side * d) * of_s),
        ("V", "read", side * d),
    ):
        yield Staged(tensor, way, wavefronts * WAVEFRONT_BYTES)  # type: ignore[arg-type]
    for name in ("K", "V"):
        yield Staged(name, "write", d * of_q * WAVEFRONT_BYTES / tile.launch.domain.query_blocks)


def _multiply_adds(tile: CtaTile) -> Iterator[Staged]:
    """kernels/naive.cu's products: of 16 products of every thread a warp makes 8 loads, a wavefront each, and a tile of
    64 x 64 x 32 products is stored in 128 wavefronts before."""
    shared_bytes = tile.block_q * tile.block_k * tile.launch.work.shared_bytes_per_pair
    for name in (a.tensor for a in tile.launch.accesses if a.mode is Mode.LOAD):
        yield Staged(name, "read", shared_bytes * 8 / 18)
        yield Staged(name, "write", shared_bytes / 18)


def _rows_of_scores(tile: CtaTile) -> Iterator[Staged]:
    """kernels/naive.cu's softmax, a CTA per row: stored, fetched and stored as exponentials, fetched; two
    reductions."""
    d = tile.launch.domain
    for way in WAYS:
        yield Staged("S", way, 2 * 4 * d.rows * d.seq_k / d.query_blocks, step=False)
    a_row = tile.fragments.tile * tile.warps * WAVEFRONT_BYTES
    yield Staged(INSTRUCTIONS, "read", a_row * d.rows / d.query_blocks, step=False)


LAYOUTS: Mapping[Layout, Callable[[CtaTile], Iterator[Staged]]] = {
    Layout.NOTHING: _by_row,
    Layout.WHOLE_ROWS: _whole_rows,
    Layout.CHUNKS: _copies_by_chunk,
    Layout.WGMMA: _wgmma,
    Layout.TWO_WAYS: _two_ways,
    Layout.GRADIENTS: _gradients,
    Layout.SPLIT_WEIGHTS: _split_weights,
    Layout.KEYS_OUTSIDE: _keys_outside,
    Layout.QUERIES_OUTSIDE: _queries_outside,
    Layout.ONE_WARP: _one_warp,
    Layout.THREAD_ROWS: _thread_rows,
    Layout.MULTIPLY_ADDS: _multiply_adds,
    Layout.ROWS_OF_SCORES: _rows_of_scores,
}


def staged(launch: Launch, chain: Chain) -> tuple[Staged, ...] | None:
    """What a launch moves; None where its layout is not known."""
    fragments = launch.work.fragments
    return (
        None
        if fragments is None
        else tuple(LAYOUTS[fragments.layout](CtaTile.of(launch, fragments, chain)))
    )
