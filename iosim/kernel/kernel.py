"""Kernel: how attention is computed. One algorithm with its tile sizes, warps, stages, grid order and edges."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from iosim.base.errors import InputError
from iosim.base.fields import whole
from iosim.base.records import dataclass, field, plain, replace
from iosim.kernel.launch import SPILL, Edge, Fetch, Mode, Overhead
from iosim.kernel.machine import Machine
from iosim.kernel.options import AlgorithmOptions, meaning, number
from iosim.kernel.overrides import MAX_BLOCK, MAX_STAGES, MAX_WARPS
from iosim.kernel.schedule import Direction, Order, Schedule, Scheduler, Start
from iosim.kernel.tensor_kinds import KEY_SUMS, KEYS_PER_HEAD, QUERY_SUMS, TensorKind
from iosim.kernel.unit import MatrixUnit
from iosim.kernel.work import Fragments, Loop
from iosim.problem.masks.mask import IntArray


@dataclass(frozen=True)
class Tile:
    """block_q query rows x block_k key rows, computed by `warps` warps with `stages` key/value buffers."""

    block_q: int
    """Query rows."""
    block_k: int
    """Key rows."""
    warps: int = 4
    """Warps a CTA."""
    stages: int = 1
    """Key/value buffers of the software pipeline."""

    def __post_init__(self) -> None:
        limits = {
            "block_q": MAX_BLOCK,
            "block_k": MAX_BLOCK,
            "warps": MAX_WARPS,
            "stages": MAX_STAGES,
        }
        for name, limit in limits.items():
            whole(name, getattr(self, name), 1, limit)

    def __str__(self) -> str:
        return f"{self.block_q}x{self.block_k}"

    @classmethod
    def parse(cls, text: str, warps: int = 4, stages: int = 1) -> Tile:
        """A tile written QxK, such as 128x64."""
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*x\s*([0-9]{1,9})\s*", text.lower())
        if not match:
            raise InputError(
                f"`tile` '{text}' is not of the form QxK, such as 128x64, with sides of 1 to {MAX_BLOCK}"
            )
        return cls(int(match[1]), int(match[2]), warps, stages)


@dataclass(frozen=True)
class Spill:
    """Local-memory traffic of spilled registers: bytes a thread writes per work tile and per visited key block.

    `write_short` are the bytes of a work tile that visits one key block, and two, where that many do not follow from
    these. `read_*` are the bytes that miss L1 on the way back, `frame` the bytes of a thread's stack frame, where it is
    known.
    `accesses_per_pair` are the loads and stores of spilled registers (LDL and STL) that a thread makes in a visited key
    block, `accesses_per_tile` those beside them, in steps that are masked and around the loop: they hit L1 and cost
    time, not traffic. `code`: the build's instructions before the first product of each key block that is compiled
    for itself, the last of them the loop's, before what follows the loop, and in all; 0 where they are not known.
    """

    write_per_tile: float = 0.0
    write_per_pair: float = 0.0
    read_per_tile: float = 0.0
    read_per_pair: float = 0.0
    accesses_per_pair: float = 0.0
    accesses_per_tile: float = 0.0
    source: str = ""
    frame: float = 0
    write_short: tuple[float, ...] = ()
    code: tuple[int, ...] = (0, 0, 0)

    def overheads(self, threads: int, visits: Callable[[], IntArray]) -> tuple[Overhead, ...]:
        """`visits` gives the key blocks that each block of queries visits: tiles stand for their mean."""
        per_tile = self.write_per_tile
        line = [per_tile + n * self.write_per_pair for n in range(1, len(self.write_short) + 1)]
        if tuple(line) != self.write_short:
            counts = visits()
            more = (
                short - full_visit for short, full_visit in zip(self.write_short, line, strict=True)
            )
            beside = sum(
                more_bytes * int((counts == n).sum()) for n, more_bytes in enumerate(more, 1)
            )
            per_tile += beside / max(1, int((counts > 0).sum()))
        accesses = (
            (Mode.STORE, per_tile, self.write_per_pair),
            (Mode.LOAD, self.read_per_tile, self.read_per_pair),
        )
        frame = round(self.frame * threads)
        both = (
            Overhead(
                SPILL, mode, 0, round(tile * threads), round(pair * threads), 0, self.source, frame
            )
            for mode, tile, pair in accesses
        )
        return tuple(o for o in both if o.per_tile or o.per_pair)


@dataclass(frozen=True)
class RowPass:
    """A launch of a backward beside its main one, in which a CTA moves a block of whole rows. What it computes is told
    by what it writes: D = rowsum(dO o O), an X_acc of zeros, dQ out of dQ_acc, X_copy out of X, dK and dV out of
    dK_heads and dV_heads, or out of dK_acc and dV_acc. Later launches read a copy in the place of its source."""

    name: str = meaning(
        "fill, fill0, fill1, copy0, copy1, dot, convert, sum_groups, sum_dK or sum_dV"
    )
    reads: tuple[str, ...] = meaning("tensors it reads", ())
    writes: tuple[str, ...] = meaning(
        "tensors it writes: D, dQ_acc, dQ, a tensor's X_copy, dK_acc, dV_acc, dK, dV", ()
    )
    rows: int = number(128, 0, MAX_BLOCK, "rows per CTA; 0: the main launch's query rows")
    threads: int = number(128, 32, 1024, "threads a CTA")
    values: int = number(8, 1, 1024, "values a thread loads before it stores")
    registers: int | None = number(None, 1, 255, "registers a thread")
    operations: float = meaning("instructions a value, where they take longer than its bytes", 0.0)
    waits: float = meaning("loads a thread waits for, one behind the other, beside its first", 0.0)
    waits_per_value: float = meaning(
        "more of them, for each value that a CTA's rows give a thread", 0.0
    )
    packet_rows: int = number(0, 0, MAX_BLOCK, "rows of a vector that move in one packet")
    packets_of: str = meaning("that vector", "D")
    store_packets: int = number(1, 1, 32, "packets in the place of one that its stores take")
    split_percent: int = number(0, 0, 100, "share of half-stored sectors that are two packets")
    layout: str = meaning("the problem's layout that it is run for, bhsd or bshd; empty: any", "")

    @property
    def sums_heads(self) -> bool:
        """True where it is for grouped heads alone, whose gradients are summed: from a tensor of each head, or in one
        to which all of them add."""
        return any(
            TensorKind.PER_HEAD.is_kind_of(name) or name in KEY_SUMS
            for name in (*self.reads, *self.writes)
        )

    @property
    def reorders(self) -> bool:
        """True where it copies a tensor alone, to have its heads lie after its rows: one head, or one row, does."""
        return self.writes == tuple(TensorKind.COPY.of(name) for name in self.reads)

    @property
    def follows(self) -> bool:
        """True where it comes after the main launch, whose sums it reads."""
        return any(
            TensorKind.PER_HEAD.is_kind_of(name) or TensorKind.SUMS.is_kind_of(name)
            for name in self.reads
        )


SUM_GROUPS = RowPass("sum_groups", KEYS_PER_HEAD, ("dK", "dV"))
BACKWARD_PASSES = (
    RowPass("dot", ("O", "dO"), ("D", QUERY_SUMS), threads=256, values=32),
    RowPass("convert", (QUERY_SUMS,), ("dQ",), values=32),
    SUM_GROUPS,
)
"""FlashAttention-2's, where a kernel says nothing (arXiv 2307.08691, Algorithm 2)."""
QUEUE = "tile_counter"
"""The name of the bytes of a queue of work tiles."""


@dataclass(frozen=True)
class PassSettings:
    """How the main launch of one pass is tiled, scheduled and compiled. `overheads` are what it moves beside its
    tensors. In a kernel's `backward`, a `tile` of None is the forward's, `overheads` come on top of the forward's, and
    `passes` are the launches before and after."""

    tile: Tile | None = None
    schedule: Schedule = field(default_factory=Schedule)
    registers: int | None = None
    overheads: tuple[Overhead, ...] = ()
    spill: Spill | None = None
    shared_memory_bytes: int | None = None
    passes: tuple[RowPass, ...] = BACKWARD_PASSES
    fragments: Fragments | None = None
    interleaves: bool = False
    """True where the compiler begins a backward's exponentials among the products before them."""


@dataclass(frozen=True)
class Kernel:
    """A kernel to predict. `splits` is the number of parts the keys of a head are divided into; 1 for none.
    `compiled_head_dim` is what the kernel computes with where that is more than the problem's head_dim: it reads the
    true columns only. `options` are those of its algorithm (`iosim.kernel.options`); None for its defaults."""

    name: str
    """Under which name results have it."""
    algorithm: str
    """What it computes by: flash, naive, ..."""
    tile: Tile
    """Query and key rows of a work tile, its warps and stages."""
    schedule: Schedule = field(default_factory=Schedule)
    """In which order its work tiles reach the SMs."""
    splits: int = 1
    """Number of parts that the keys of a head are split into."""
    writes_lse: bool = True
    """True where it writes the log-sum-exp of every row."""
    edge_q: Edge = Edge.EXACT
    """What it fetches of the last, ragged block of queries."""
    edge_k: Edge = Edge.EXACT
    """What it fetches of the last, ragged block of keys."""
    fetch: Fetch = Fetch.BYTES
    """How its main launches ask for the rows of Q, K, V and dO."""
    rereads_q: bool = False
    """True where it loads Q again at every key block."""
    packs_group: bool = False
    """True where the query heads of a group share the rows of a tile."""
    compiled_head_dim: int | None = None
    """Columns that it computes with, where they are more than the problem's."""
    warp_size: int = 32
    """Threads of a warp: the GPU's."""
    threads: int | None = None
    """Threads a CTA, where it is not its warps'."""
    registers: int | None = None
    """Registers a thread; None where they are estimated."""
    shared_memory_bytes: int | None = None
    """Bytes of shared memory a CTA; None where they follow from the tile."""
    persistent_ctas: int | None = None
    """Number of CTAs of a persistent kernel; None for one a work tile."""
    overheads: tuple[Overhead, ...] = ()
    """Bytes that it moves beside the tensors."""
    clears_queue: bool = False
    """True where a memset clears the counter of its queue before each launch."""
    backward: PassSettings = field(default_factory=PassSettings)
    """What differs in the backward pass; the fields above are the forward's."""
    followed_by: Kernel | None = None
    """What runs the backward of a call of both passes, where more than `backward` differs; None for this kernel."""
    spill: Spill | None = None
    """Bytes of registers that it spills."""
    matrix_unit: MatrixUnit | None = None
    """What computes the products on cc 9.0 and later; None: mma.sync, as before."""
    sm_spread: float | None = None
    """Share by which SMs differ in speed, where it is known of the kernel; else the replay's own."""
    hbm_share: float = 1.0
    """Share of the rate of a stream at which HBM gives its loads of tiles, where many of them miss."""
    age_share: float | None = None
    """Height of the slope of rates by age among the CTAs of an SM, where it is stated; else as measured."""
    cta_shares: str = ""
    """Under which name the recorded table of shares by age has the compiled kernel; empty where it has none."""
    fragments: Fragments | None = None
    """How the forward's operands pass through shared memory; None where it is not known."""
    loop: Loop = field(default_factory=Loop)
    """How the forward's CTAs go through their keys, and what they keep where."""
    machine: Machine | None = None
    """The forward's machine code, where it was read; its time then follows from that."""
    options: AlgorithmOptions | None = None
    """Those of its algorithm; None for its defaults."""
    notes: tuple[str, ...] = ()
    """What a reader of its predictions should know, a sentence each."""

    def __post_init__(self) -> None:
        if self.matrix_unit is not None and not isinstance(self.matrix_unit, MatrixUnit):
            raise InputError(
                f"matrix unit '{self.matrix_unit}' is not known; accepted: {', '.join(MatrixUnit)}"
            )

    @property
    def cta_threads(self) -> int:
        """Threads a CTA."""
        return self.threads if self.threads is not None else self.warp_size * self.tile.warps

    @property
    def tile_backward(self) -> Tile:
        """The backward's tile: its own, or the forward's."""
        return self.backward.tile or self.tile

    @property
    def of_backward(self) -> Kernel:
        """What runs the backward of a call of both passes, with the settings that `backward` has here."""
        second = self.followed_by
        return self if second is None else replace(second, tile=self.tile, backward=self.backward)

    def unit_of(self, backward: bool) -> MatrixUnit | None:
        """What computes the products of a pass, where it is stated."""
        return (self.followed_by or self).matrix_unit if backward else self.matrix_unit

    def of_pass(self, backward: bool) -> PassSettings:
        """The settings of a pass, with nothing left to the other one."""
        if not backward:
            alike = (
                "tile",
                "schedule",
                "registers",
                "overheads",
                "spill",
                "shared_memory_bytes",
                "fragments",
            )
            return PassSettings(**{name: getattr(self, name) for name in alike})
        # The forward's overheads hold for the backward, too, but for a queue's counter without a queue.
        queued = self.backward.schedule.scheduler is Scheduler.DYNAMIC
        shared = tuple(o for o in self.overheads if queued or o.name != QUEUE)
        return replace(
            self.backward, tile=self.tile_backward, overheads=shared + self.backward.overheads
        )

    def copying(self, *names: str) -> Kernel:
        """The kernel with copies of no other tensors than these before its backward."""
        passes = []
        for row_pass in self.backward.passes:
            if not row_pass.reorders:
                passes.append(row_pass)
            # Named copies are made whatever the layout; other passes that reorder are left out.
            elif row_pass.reads[0] in names:
                passes.append(replace(row_pass, layout=""))
        return replace(self, backward=replace(self.backward, passes=tuple(passes)))

    def with_(self, **changes: Any) -> Kernel:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The `kernel` object of the command line's JSON."""
        start = self.schedule.start
        record = plain(
            name=self.name,
            algorithm=self.algorithm,
            block_q=self.tile.block_q,
            block_k=self.tile.block_k,
            warps=self.tile.warps,
            stages=self.tile.stages,
            order=self.schedule.order,
        )
        record |= {"heavy_first": start is Start.HEAVY_FIRST, "fold": start is Start.FOLD}
        record |= plain(
            section_heads=self.schedule.section_heads,
            chiplets=self.schedule.chiplets,
            direction=self.schedule.direction,
            scheduler=self.schedule.scheduler,
            cluster=self.schedule.cluster,
            splits=self.splits,
            writes_lse=self.writes_lse,
        )
        return record


__all__ = [
    "Direction",
    "Edge",
    "Kernel",
    "Loop",
    "MatrixUnit",
    "Order",
    "PassSettings",
    "RowPass",
    "Schedule",
    "Scheduler",
    "Spill",
    "Start",
    "Tile",
]
