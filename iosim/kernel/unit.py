"""What computes a kernel's matrix products, as data: a row a kind of unit, which time, shared memory and tiles read.

A new kind is a member of `MatrixUnit` and a table of units.toml. Rows of an instruction are those of the PTX ISA
(mma.sync.m16n8k16, wgmma.m64nNk16, tcgen05.mma of 128 lanes of tensor memory).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from iosim.base.records import dataclass
from iosim.base.schema import Table, checked, read_toml
from iosim.kernel.options import built

MMA_ROWS = 16
"""Query rows of one mma.sync.m16n8k16 (PTX ISA): what a warp computes at least."""
WGMMA_ROWS = 64
"""Query rows of one wgmma.m64nNk16 (PTX ISA), which four warps compute together."""

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
    SPLIT_TF32 = "mma.sync-3xtf32"
    """mma.sync on fp32 operands, each split in two parts of tf32 by the warp that has fetched it: three products of
    them stand for one (CUTLASS's OpMultiplyAddFastF32)."""
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
    nvidia: bool = True
    """True where NVIDIA's GPUs have it."""
    amd: bool = False
    """True where AMD's GPUs have it."""
    operand_share: float = 1 / WGMMA_ROWS
    """Columns of operands that a backward's product fetches for each of its results."""
    loads_apart: bool = False
    """True where warps of their own load, so that no step waits for what it asked for itself."""
    helper_groups: float = 0.0
    """Warpgroups that take no part in a step, where a kernel does not say how many warps load."""
    issued_by_warps: bool = False
    """True where every warp issues its products among its other instructions."""
    warps_may_meet: bool = False
    """True where warps that divide a tile both ways are held up by one another (`Loop.warps_meet`)."""
    holds_buffers: bool = False
    """True where a buffer of keys is free only when its product is done, where the warps that compute load."""
    softmax_side_by_side: bool = False
    """True where exponentials and fp32 work of a step run side by side."""
    counts_loads: bool = True
    """True where what loads write into shared memory takes its time beside the products' fetches."""
    transposes_fp8: bool = False
    """True where V in fp8 is fetched once more and written transposed."""
    rate_share: str = ""
    """The profile's share of the specified rate that it reaches; empty: all of it."""
    tile_cycles: str = "tile_cycles"
    """The profile's cycles of a work tile beside its steps."""
    tensor_cores: bool = True
    """True where tensor cores compute."""
    takes_turns: bool = False
    """True where two warpgroups take turns at a forward's softmax: they begin a tile together, and the first operands
    of all tiles but a CTA's first are there."""
    hides_l2: bool = False
    """True where a step's bytes at the L2 are hidden wholly, where they take less than the rest of it."""
    splits_to: str = ""
    """The type that fp32 operands are split to, in two parts each."""
    products: int = 1
    """Products that stand for one: of operands in two parts, all but that of the small parts."""
    operand_operations: float = 0.0
    """Instructions on each operand that a warp has fetched, and on the sums of its products."""
    energy: str = "tensor_pj_per_flop"
    """The profile's energy of a FLOP."""
    backward: MatrixUnit | None = None
    """What computes the backward of a kernel with this forward; None: the same."""

    def is_on(self, cc: int, amd: bool) -> bool:
        """True where GPUs of this compute capability have it."""
        return (self.amd if amd else self.nvidia) and cc >= self.min_cc

    def rows_at_once(self, warps: int) -> int:
        """Query rows that a CTA of so many warps computes in one round of instructions."""
        return self.rows * (max(1, warps // self.owners) if self.owners else 1)


UNITS: Mapping[MatrixUnit, UnitModel] = {
    MatrixUnit(name): built(UnitModel, checked(row, Table.of(UnitModel), f"units.toml: {name}"))
    for name, row in read_toml(Path(__file__).with_name("units.toml")).items()
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
