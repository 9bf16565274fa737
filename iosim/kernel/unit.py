"""What computes a kernel's matrix products, as data: a row a kind of unit, which time, shared memory and tiles read.

A new kind is a member of `MatrixUnit` and its row of `UNITS`. Rows of an instruction are those of the PTX ISA
(mma.sync.m16n8k16, wgmma.m64nNk16, tcgen05.mma of 128 lanes of tensor memory).
"""

from __future__ import annotations

from enum import StrEnum

from iosim.base.records import dataclass

MMA_ROWS = 16
"""Query rows of one mma.sync.m16n8k16 (PTX ISA): what a warp computes at least."""
WGMMA_ROWS = 64
"""Query rows of one wgmma.m64nNk16 (PTX ISA), which four warps compute together."""
TENSOR_MEMORY_ROWS = 128
"""Query rows of a tcgen05 product, the lanes of tensor memory."""
MFMA_ROWS = 32
"""Query rows of one v_mfma_f32_32x32x8 (CDNA 3 ISA), which a wave of 64 threads computes."""
WARPS_PER_GROUP = 4
"""Warps of a warpgroup; also warp schedulers of an SM since Volta, each with its own tensor core."""
WGMMA_CC = 90
"""Compute capability from which there are units beside mma.sync (PTX ISA, wgmma)."""
WARP_TILE = 32
"""Rows and columns of a warp's tile where warps divide it both ways (CUTLASS; FlashAttention-2's backward)."""


class MatrixUnit(StrEnum):
    """What computes the matrix products, and whether other work runs beside it; `UNITS` says how."""

    FP32 = "fp32"
    MMA_SYNC = "mma.sync"
    WGMMA = "wgmma"
    SPECIALISED = "wgmma-specialised"
    """wgmma with warps of their own for loads, and products running beside the other warpgroup's softmax."""
    PINGPONG = "wgmma-pingpong"
    """FlashAttention-3's forward: one warpgroup loads, the others take turns at the tensor cores, and each starts the
    next block's QK^T before this block's softmax (arXiv 2407.08608, sections 3.1 and 3.2)."""
    MFMA = "mfma"
    """AMD's matrix cores, which each wave feeds from its registers."""
    TCGEN05 = "tcgen05"
    """Blackwell's: one warp issues products of 128 query rows into tensor memory, a warpgroup a tile of 128 rows takes
    the softmax, and the tiles of a CTA take turns at both (FlashAttention-4: Zadouri et al. 2026, section 3)."""


class Specialisation(StrEnum):
    """Which warps of a CTA do what, beside the unit that computes the products."""

    NONE = "none"
    """All warps load and compute."""
    PRODUCER = "producer"
    """Some warps load; products of one warpgroup run beside the softmax of another."""
    PINGPONG = "ping-pong"
    """Some load, and the computing warpgroups take turns at the tensor cores."""


class Overlap(StrEnum):
    """What of a step runs beside what."""

    QUEUE = "queue"
    """Streams of warps go from product to softmax to product, and queue for the units."""
    INSIDE = "inside"
    """Products of a CTA run beside its own softmax."""
    FIXED_TURN = "fixed-turn"
    """The tiles of a CTA take turns in a fixed order, products of one beside the softmax of the other."""


class Operands(StrEnum):
    """Where a product's operands come from."""

    BOTH_SHARED = "both-shared"
    """Threads fetch both from shared memory."""
    FRAGMENTS = "fragments"
    """Each warp fetches fragments of K and V, whole, into its registers."""
    FETCHED = "fetched"
    """The unit fetches them from shared memory itself, K and V once for each of its instruction's rows."""


@dataclass(frozen=True)
class UnitModel:
    rows: int
    """Query rows of an instruction; rows of a tile are rounded up to them."""
    owners: int
    """Warps to which an instruction's rows belong, so that as many instructions as a CTA has of them are done at once;
    0: instructions take rows in turn."""
    operands: Operands
    overlap: Overlap
    source: str
    """Where the row's facts stand."""
    min_cc: int = 0
    """Compute capability from which GPUs have it."""
    amd: tuple[bool, ...] = (False,)
    """Whether AMD's GPUs have it, others, or both."""
    operand_share: float = 1 / WGMMA_ROWS
    """Columns of operands that a backward's product fetches for each of its results."""
    loads_apart: bool = False
    """Whether warps of their own load, so that no step waits for what it asked for itself."""
    helper_groups: float = 0.0
    """Warpgroups that take no part in a step, where a kernel does not say how many warps load."""
    issued_by_warps: bool = False
    """Whether every warp issues its products among its other instructions."""
    warps_may_meet: bool = False
    """Whether warps that divide a tile both ways are held up by one another (`Loop.warps_meet`)."""
    holds_buffers: bool = False
    """Whether a buffer of keys is free only when its product is done, where the warps that compute load."""
    softmax_side_by_side: bool = False
    """Whether exponentials and fp32 work of a step run side by side."""
    counts_loads: bool = True
    """Whether what loads write into shared memory takes its time beside the products' fetches."""
    transposes_fp8: bool = False
    """Whether V in fp8 is fetched once more and written transposed."""
    specified_rate: bool = False
    """Whether a step's products run at the specified rate, and what large products reach limits the mean alone."""
    rate_share: str = ""
    """The profile's share of the specified rate that it reaches; empty: all of it."""
    tile_cycles: str = "tile_cycles"
    """The profile's cycles of a work tile beside its steps."""
    beside_l2: bool = False
    """Whether a launch's L2 bytes count beside its steps, each once for a cluster, and not inside them."""
    energy: str = "tensor_pj_per_flop"
    """The profile's energy of a FLOP."""
    backward: MatrixUnit | None = None
    """What computes the backward of a kernel with this forward; None: the same."""

    def is_on(self, cc: int, amd: bool) -> bool:
        """Whether GPUs of this compute capability have it."""
        return amd in self.amd and cc >= self.min_cc

    def rows_at_once(self, warps: int) -> int:
        """Query rows that a CTA of so many warps computes in one round of instructions."""
        return self.rows * (max(1, warps // self.owners) if self.owners else 1)


UNITS: dict[MatrixUnit, UnitModel] = {
    MatrixUnit.FP32: UnitModel(
        rows=1,
        owners=0,
        amd=(False, True),
        operands=Operands.BOTH_SHARED,
        overlap=Overlap.QUEUE,
        warps_may_meet=True,
        source="CUDA C++ Programming Guide, arithmetic instructions",
    ),
    MatrixUnit.MMA_SYNC: UnitModel(
        rows=MMA_ROWS,
        owners=1,
        operands=Operands.FRAGMENTS,
        overlap=Overlap.QUEUE,
        operand_share=2 / WARP_TILE,
        issued_by_warps=True,
        warps_may_meet=True,
        specified_rate=True,
        rate_share="mma_sync_tensor_fraction",
        energy="mma_sync_pj_per_flop",
        source="PTX ISA, mma; full rate in steps on an A100 and an RTX 3070 Ti: Sun et al., arXiv 2206.02874",
    ),
    MatrixUnit.MFMA: UnitModel(
        rows=MFMA_ROWS,
        owners=2,  # a wave is two warps of 32
        amd=(True,),
        operands=Operands.FRAGMENTS,
        overlap=Overlap.QUEUE,
        operand_share=2 / WARP_TILE,
        issued_by_warps=True,
        warps_may_meet=True,
        specified_rate=True,
        source="CDNA 3 ISA, v_mfma; assumed: waves queue for it as warps do for mma.sync, and steps run at the "
        "specified rate",
    ),
    MatrixUnit.WGMMA: UnitModel(
        rows=WGMMA_ROWS,
        min_cc=WGMMA_CC,
        owners=WARPS_PER_GROUP,
        operands=Operands.FETCHED,
        overlap=Overlap.QUEUE,
        holds_buffers=True,
        source="PTX ISA, wgmma; buffers: experiments/measurements/h200_triton_autotune.csv",
    ),
    MatrixUnit.SPECIALISED: UnitModel(
        rows=WGMMA_ROWS,
        min_cc=WGMMA_CC,
        owners=0,
        operands=Operands.FETCHED,
        overlap=Overlap.INSIDE,
        loads_apart=True,
        source="NVIDIA/cudnn-frontend, sdpa/sm90/prefill; arXiv 2407.08608, section 7.1 (the backward)",
    ),
    MatrixUnit.PINGPONG: UnitModel(
        rows=WGMMA_ROWS,
        min_cc=WGMMA_CC,
        owners=0,
        operands=Operands.FETCHED,
        overlap=Overlap.QUEUE,
        loads_apart=True,
        helper_groups=1,
        transposes_fp8=True,
        specified_rate=True,
        tile_cycles="pingpong_tile_cycles",
        beside_l2=True,
        backward=MatrixUnit.SPECIALISED,
        source="arXiv 2407.08608, sections 3.1 to 3.3 and 7.1",
    ),
    MatrixUnit.TCGEN05: UnitModel(
        rows=TENSOR_MEMORY_ROWS,
        min_cc=WGMMA_CC,
        owners=0,
        operands=Operands.FETCHED,
        overlap=Overlap.FIXED_TURN,
        loads_apart=True,
        helper_groups=2,
        softmax_side_by_side=True,
        counts_loads=False,
        specified_rate=True,
        tile_cycles="pingpong_tile_cycles",
        source="Zadouri et al. 2026, section 3: four warps correct O, four load, issue and store; 768 cycles of shared "
        "memory for 128 rows and 128 keys at head_dim 128",
    ),
}
"""What the kinds of units are like."""

FMA = "fma"
SPECIALISED_UNITS = {
    (MatrixUnit.WGMMA, Specialisation.PRODUCER): MatrixUnit.SPECIALISED,
    (MatrixUnit.WGMMA, Specialisation.PINGPONG): MatrixUnit.PINGPONG,
    (MatrixUnit.TCGEN05, Specialisation.PINGPONG): MatrixUnit.TCGEN05,
}
"""(unit, specialisation) -> the unit with it. Of others no time is known."""


def stated_unit(unit: str, specialisation: str = Specialisation.NONE) -> MatrixUnit | None:
    """The unit that two words name; None where they cannot stand together."""
    known = MatrixUnit.FP32 if unit == FMA else MatrixUnit(unit)
    roles = Specialisation(specialisation)
    return known if roles is Specialisation.NONE else SPECIALISED_UNITS.get((known, roles))
