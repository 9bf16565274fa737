"""Launch, Chain and what they are made of: the one description of a kernel that all readers take.

A launch tiles the queries and the keys of every (batch, head) of its grid, and lists its accesses: which tensor, how
often, which rows. It knows nothing of caches or SMs; the schedule beside it says in which order its CTAs start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from iosim.base.records import cached_property, dataclass, field, replace
from iosim.base.words import Way
from iosim.kernel.schedule import Schedule
from iosim.kernel.touched import Touched
from iosim.kernel.work import Work
from iosim.problem.masks.mask import Axis, IntArray, IntervalMask, Mask, Steps, Visited

SECTOR_BYTES, HALF_SECTOR_BYTES, BOX_BYTES = 32, 16, 128
SPILL = "spill"
"""What the bytes of spilled registers stand under, in overheads and in traffic, where others have a tensor."""
COLUMNS_OUTSIDE = "columns_outside"
"""What the bytes stand under that boxes hold beside a tensor's columns."""


class Mode(StrEnum):
    """What an access does. A REDUCE is an atomic add performed at the L2: it counts as a write there."""

    LOAD = "load"
    STORE = "store"
    REDUCE = "reduce"

    @property
    def direction(self) -> Way:
        return "read" if self is Mode.LOAD else "write"


class Edge(StrEnum):
    """Which rows of the last, ragged tile are moved."""

    EXACT = "exact"
    """Rows up to the end of the tensor."""
    WHOLE = "whole"
    """The whole tile, past the end of the tensor."""
    NEEDED = "needed"
    """Key rows of a matrix up to the last one that the query block's mask keeps; where an access is not made for a
    query block, or moves a row vector, as EXACT."""


class Per(StrEnum):
    """How often an access happens, for every (batch, head) of the grid."""

    QUERY = "q"
    KEY = "k"
    PAIR = "qk"
    """Every visited (query block, key block) pair."""
    SPLIT = "q,split"
    """Every (query block, split of its keys); where key blocks are outside, all query blocks by each CTA as it
    starts."""
    LAUNCH = "launch"
    """Once in the whole launch, by its first work tile, whatever the number of heads."""


class Rows(StrEnum):
    """Whose rows an access moves."""

    QUERY = "q"
    """Those of the query block."""
    KEY = "k"
    """Those of the key block."""
    PAIR = "qk"
    """A query block's rows and a key block's columns of an N x N tensor."""
    OWN = "own"
    """All rows of the vector that belong to the (batch, head), whatever the tile: a slope, a random state."""


class Outer(StrEnum):
    """What one work tile of a launch is, and so which loop runs outside."""

    QUERY = "q"
    """A query block, which loops over its key blocks."""
    SPLIT = "q,split"
    """A query block with one split of its key blocks."""
    KEY = "k"
    """A key block, which loops over its query blocks."""
    PAIR = "qk"
    """One (query block, key block) pair."""
    HEAD = "head"
    """A whole head: key blocks outside, query blocks inside. Where the domain has splits, one of them: split s of n
    walks the key blocks s, s + n, s + 2 n, ..."""
    FLAT = "flat"
    """A block of rows of an elementwise pass."""


class Fetch(StrEnum):
    """How the bytes of a matrix's row are asked for. It matters where a row is no whole number of sectors: with 16
    bytes more than that, every second row begins inside a sector."""

    BYTES = "bytes"
    """So that neighbouring rows share a sector: in one instruction, or by TMA."""
    SECTORS = "sectors"
    """Row by row: each moves the sectors that it touches."""
    LANES = "lanes"
    """16 bytes a lane by asynchronous copies: two neighbouring lanes are a request, of one sector where the row begins
    at one, else of two. Counted so for head_dim 24 to 248 (experiments/measurements/h100_library_builds.csv)."""
    BOXES = "boxes"
    """In boxes of 128 bytes per row, a request each (TMA)."""
    WIDE_BOXES = "wide-boxes"
    """In boxes, the last of which reaches past the tensor's columns: where the row begins inside a sector, that box
    takes one more (cuDNN's kernels at head_dim 8 to 120, ibid.)."""


class Role(StrEnum):
    """What a tensor is to its chain."""

    INPUT = "input"
    OUTPUT = "output"
    TEMP = "temp"
    """Made and used up inside the chain."""


class LaunchRole(StrEnum):
    """What a launch is to its chain: readers ask for the main one, whatever it is called."""

    MAIN = "main"
    """The attention loop of a forward, as the kernel's settings for that pass describe it."""
    MAIN_BACKWARD = "main of the backward"
    """The attention loop of a backward."""
    COMBINE = "combine"
    """Adds up what the splits of the keys left."""
    APPEND = "append"
    """Writes new tokens into the cache."""
    OTHER = "other"
    """A pass over rows, a product of a matrix library, a second loop."""


@dataclass(frozen=True)
class Tensor:
    """A tensor in device memory, [batch, heads, rows, cols], or [copies x that] for split partial results."""

    name: str
    batch: int
    heads: int
    rows: int
    cols: int
    element_bytes: int
    role: Role
    along: Rows = Rows.OWN
    """Whose rows it holds, where a mask may leave some of them, or some of their pairs, unneeded."""
    format: str = ""
    """Name of the number format that the problem gives its elements, as long as they are as wide."""
    copies: int = 1
    """Copies of the tensor: one per block where an access moves its rows as a whole (`Rows.OWN`), of keys where the
    access is made for a key block or a pair, else of queries; one per split for others."""
    strided: bool = False
    """Rows of one head do not lie next to each other in memory (heads between sequence and head_dim)."""
    page_rows: int = 0
    """Rows of a page of the cache, of which a block table says where it lies; 0 where all rows lie in one piece."""
    shared_rows: int = 0
    """First rows of every sequence that lie in the same memory: whole pages of a prompt that sequences share."""
    shared_by: int = 1
    """Sequences whose first rows these are."""
    kept_to: str = ""
    """The launch after which a temporary's memory is given back, where that is later than its last use."""
    wraps: bool = False
    """Row r of a launch's axis lies at r modulo the tensor's rows: a workspace in whole tiles, whose rows CTAs use
    again for their next key blocks."""
    keys_per_row: int = 0
    """Keys that one row of a block table stands for: those of a page; 0 for other tensors. Its entries are read as the
    rows of key blocks are, each sector once by every work tile. Where its rows are queries it holds their lists of what
    is picked, a column per entry, which is one key or a block of so many."""
    view_of: str = ""
    """The tensor whose memory it is, cut otherwise by other launches. NB: a replay fetches both."""
    picked_by: str = ""
    """The table that says which rows of it a query's entries stand for, in launches that read the table."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory taken: whole pages where rows lie in pages."""
        rows = -(-self.rows // self.page_rows) * self.page_rows if self.page_rows else self.rows
        return self.bytes // max(1, self.rows) * rows - self.saved_bytes

    @property
    def saved_bytes(self) -> int:
        """Bytes that sequences need not hold, as they share them."""
        return self.heads * self.cols * self.element_bytes * (self.shared_by - 1) * self.shared_rows

    @cached_property
    def elements(self) -> int:
        return self.batch * self.heads * self.rows * self.cols * self.copies

    @cached_property
    def bytes(self) -> int:
        return self.elements * self.element_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes moved for one row of a matrix: whole sectors where rows are strided."""
        raw = self.cols * self.element_bytes
        return -(-raw // SECTOR_BYTES) * SECTOR_BYTES if self.strided else raw

    def split_bytes(self, fetch: Fetch) -> int:
        """Bytes that a row takes beyond `row_bytes` in the mean over rows, where every second one begins inside a
        sector and is asked for as `fetch` says."""
        if fetch is Fetch.BYTES or self.is_vector or self.keys_per_row:
            return 0
        # Rows of 16 bytes more than whole sectors: every second one begins in the middle of a sector. By
        # how it is asked for, each row takes further half sectors in the mean, of which 16 bytes are in
        # `row_bytes` already where rows are strided.
        raw = self.cols * self.element_bytes
        if raw % SECTOR_BYTES != HALF_SECTOR_BYTES:
            return 0
        more = {
            Fetch.SECTORS: HALF_SECTOR_BYTES,
            Fetch.LANES: (raw + HALF_SECTOR_BYTES) // 2,
            Fetch.BOXES: HALF_SECTOR_BYTES * -(-raw // BOX_BYTES),
            Fetch.WIDE_BOXES: HALF_SECTOR_BYTES * (1 - -raw // BOX_BYTES),
        }[fetch]
        return more - HALF_SECTOR_BYTES * self.strided

    @property
    def keys_per_sector(self) -> int:
        """Keys whose entries one sector of a block table holds."""
        return self.keys_per_row * (SECTOR_BYTES // self.element_bytes)

    @property
    def is_vector(self) -> bool:
        return self.cols == 1

    @property
    def is_list(self) -> bool:
        """True where it holds lists of picked keys, each its query's own."""
        return self.keys_per_row > 0 and self.along is Rows.QUERY


@dataclass(frozen=True)
class Access:
    """One tensor access of a launch.

    Args:
        tensor: name of a tensor of the chain.
        rows: whose rows.
        per: how often; must cover the axes of `rows`.
        visited_only: happens only where at least one key block is visited (a CTA with nothing to do exits early).
    """

    tensor: str
    mode: Mode
    rows: Rows
    per: Per
    edge: Edge = Edge.EXACT
    visited_only: bool = False
    times: int = 1
    """How many times in a row the same tile is moved (a softmax that reads its row again); how many walks over its keys
    a work tile makes, where the launch `walks_again`."""
    skip: int = 0
    """Visits of the block whose rows it moves that go without this access (0 or 1; per PAIR only): running sums of a
    query block, or a key block, that are not read at the first visit, or not written at the last."""
    packet_rows: int = 0
    """Rows of a vector that one store instruction covers, where that is less than a sector's worth."""
    fetch: Fetch = Fetch.BYTES
    """How the bytes of a matrix's row are asked for."""


@dataclass(frozen=True)
class FrameUse:
    """A load or store of a part of a frame, `at` so much of a turn of the loop. Of loads, `share` is what L1 does not
    serve; after the `last` of a word before it is stored again, the L2 need not keep it (LDL.LU)."""

    part: int
    at: float
    mode: Mode
    share: float = 1.0
    last: bool = False


@dataclass(frozen=True)
class Overhead:
    """Bytes that follow no tensor: spilled registers, tile counters, descriptors. total = per_cta x CTAs + per_tile x
    work tiles that hold rows + per_pair x visited pairs. `per_tile_fetch` is per work tile fetched from a queue, where
    every CTA also makes one last fetch that finds the queue empty. `frame` is how many bytes of a CTA's memory they lie
    in, where that is known, `uses` those of a turn of its loop, in their order: of each of its `parts`, which are
    equal."""

    name: str
    mode: Mode
    per_cta: int = 0
    per_tile: int = 0
    per_pair: int = 0
    per_tile_fetch: int = 0
    inferred_from: str = ""
    frame: int = 0
    parts: int = 1
    uses: tuple[FrameUse, ...] = ()


@dataclass(frozen=True)
class Domain:
    """The tile domain of a launch. `heads` are grid heads: query heads, or key/value heads where the query heads of a
    group are packed into the rows of one tile (`pack` rows a query token). `rows` = query tokens x pack."""

    batch: int
    heads: int
    rows: int
    seq_k: int
    block_q: int
    block_k: int
    mask: Mask = field(default_factory=IntervalMask)
    pack: int = 1
    splits: int = 1
    undivided: bool = False
    """All keys are the first split's; the others have none."""
    in_turn: bool = False
    """The rows of the heads packed lie one head after the other, not token by token."""

    def of(self, tensor: Tensor) -> Domain:
        """The domain as query rows of a tensor see it: by token, where it has one row for all that are packed."""
        # A tensor with one row a token, beside a tile that packs `pack` heads of each token.
        packed = (
            self.pack > 1 and tensor.heads == self.heads and tensor.rows * self.pack == self.rows
        )
        if not packed or tensor.along is Rows.OWN or self.block_q % self.pack:
            return self
        return replace(self, rows=tensor.rows, block_q=self.block_q // self.pack, pack=1)

    @property
    def query_axis(self) -> Axis:
        return self.mask.query_axis(self.rows, self.pack)

    @property
    def key_axis(self) -> Axis:
        return self.mask.key_axis(self.seq_k)

    @property
    def query_blocks(self) -> int:
        return self.query_axis.blocks(self.block_q)

    @property
    def key_blocks_total(self) -> int:
        return self.key_axis.blocks(self.block_k)

    @property
    def key_blocks_per_split(self) -> int:
        splits = 1 if self.undivided else self.splits
        return -(-self.key_axis.blocks_each(self.block_k) // splits)

    @property
    def sequences(self) -> int:
        """Sequences that lie one after the other in the rows of a (batch, head); 1 but for packed ones."""
        return len(self.query_axis.lengths)

    @property
    def grid_heads(self) -> int:
        return self.batch * self.heads

    @property
    def pairs(self) -> int:
        """Pairs of a query row and a key row of one sequence over all heads, kept or not."""
        # A sequence's queries meet its own keys alone.
        queries, keys = self.query_axis.lengths, self.key_axis.lengths
        if len(queries) != len(keys):
            return self.rows * self.seq_k * self.grid_heads
        return sum(q * k for q, k in zip(queries, keys, strict=True)) * self.grid_heads

    @property
    def kept_pairs(self) -> int:
        """Those of them that the mask keeps."""
        # The common case, without counting.
        if isinstance(self.mask, IntervalMask) and self.mask.is_full:
            return self.pairs
        return (
            self.mask.kept_pairs(self.rows // self.pack, self.seq_k) * self.pack * self.grid_heads
        )

    @cached_property
    def query_rows(self) -> IntArray:
        """True rows of every query block: fewer in a ragged one, 0 where a packed sequence has ended."""
        return self.query_axis.block_rows(self.block_q)

    @cached_property
    def key_rows(self) -> IntArray:
        return self.key_axis.block_rows(self.block_k)

    @cached_property
    def visited(self) -> Visited:
        return self.mask.key_blocks(self.rows, self.seq_k, self.block_q, self.block_k, self.pack)

    @cached_property
    def visitors(self) -> Steps:
        """The query blocks that visit each key block."""
        return self.visited.by_key(self.key_blocks_total)


@dataclass(frozen=True)
class Resources:
    """What one CTA takes of an SM. `registers` and `shared_memory_bytes` are None where no source states them."""

    threads: int
    registers: int | None = None
    shared_memory_bytes: int | None = None


@dataclass(frozen=True)
class Launch:
    """One kernel launch; `outer` says what one work tile is."""

    name: str
    """What it is called in its chain, and what its bytes stand under."""
    domain: Domain
    outer: Outer
    accesses: tuple[Access, ...]
    """What it moves of its tensors, in the order of a step."""
    schedule: Schedule = field(default_factory=Schedule)
    resources: Resources = field(default_factory=lambda: Resources(threads=128))
    overheads: tuple[Overhead, ...] = ()
    """Bytes that follow no tensor."""
    persistent_ctas: int | None = None
    """Grid of a persistent launch: what fits on the GPU; None for one CTA a tile."""
    tile_ctas: int = 1
    """CTAs of a cluster, an SM each, that share the rows of a work tile and walk its keys in step; keys that one of
    them fetches arrive at all (TMA multicast). Grids are then counted in clusters."""
    values_per_thread: int = 8
    """What a thread of an elementwise pass loads before it stores."""
    walks_round: bool = False
    """With key blocks outside and no mask, the CTA of split s begins each walk at query block s and goes on with the
    first after the last; only a replay and locks know the difference."""
    walks_again: bool = False
    """A work tile goes over its keys several times, as many as its accesses have `times`; only a replay knows the
    difference."""
    joins: bool = False
    """Its CTAs are of the grid of the launch before it, behind those of the same key/value head: the replay plays both
    as one, whose bytes at HBM stand under that launch's name, and it takes no start of its own."""
    work: Work = field(default_factory=Work)
    """What it computes and what its warps wait for."""
    role: LaunchRole = LaunchRole.OTHER
    touched: Touched | None = None
    """What its CTAs touch, where that was read from its code: then its work tiles are CTAs, and its accesses say no
    more than which tensors it loads and stores."""

    def gathers(self, tensor: Tensor) -> bool:
        """True where it goes over rows of a tensor that lists of picked keys name."""
        return any(access.tensor == tensor.picked_by for access in self.accesses)

    @property
    def work_tiles(self) -> int:
        return self.work_tiles_per_head * self.domain.grid_heads

    @property
    def work_tiles_per_head(self) -> int:
        d = self.domain
        # Work tiles of a head follow from what one is; query blocks count packed rows.
        match self.outer:
            case Outer.QUERY | Outer.FLAT:
                return d.query_blocks
            case Outer.SPLIT:
                return d.query_blocks * d.splits
            case Outer.KEY:
                return d.key_blocks_total
            case Outer.PAIR:
                return d.query_blocks * d.key_blocks_total
            case Outer.HEAD:
                return d.splits

    @property
    def visited_pairs(self) -> int:
        """Visited pairs of a query block and a key block, over all heads."""
        return int(self.domain.visited.count.sum()) * self.domain.grid_heads

    @property
    def tiles_with_rows(self) -> int:
        """Work tiles without those past the end of a packed sequence, whose CTAs leave at once."""
        d = self.domain
        # Packed sequences: the grid has as many blocks for each as for the longest.
        blocks = d.key_axis if self.outer is Outer.KEY else d.query_axis
        if len(blocks.lengths) == 1 or self.outer in (Outer.HEAD, Outer.PAIR):
            return self.work_tiles
        filled = blocks.filled(d.block_k if self.outer is Outer.KEY else d.block_q)
        return filled * d.grid_heads * (d.splits if self.outer is Outer.SPLIT else 1)

    @property
    def is_backward(self) -> bool:
        return self.outer is Outer.KEY or (
            self.outer is Outer.HEAD and self.work.pipelines is not None
        )

    @property
    def streams_queries(self) -> bool:
        """True where no tile begins with queries alone: its products fetch their operands anew, queries as well, or a
        tile asks for queries and keys at once."""
        return self.rereads_q or self.work.pipelines is not None or self.work.asks_at_once

    @property
    def rereads_q(self) -> bool:
        """True where it is a forward that fetches Q again for every key block."""
        return not self.is_backward and any(
            a.per is Per.PAIR and a.rows is Rows.QUERY and a.mode is Mode.LOAD
            for a in self.accesses
        )

    @property
    def score_tensors(self) -> int:
        """Tensors of the scores' shape that it loads at every pair: a bias, a stored mask."""
        at_pairs = (a for a in self.accesses if a.per is Per.PAIR and a.rows is Rows.PAIR)
        return sum(a.mode is Mode.LOAD for a in at_pairs)

    @property
    def ctas(self) -> int:
        return (
            self.work_tiles
            if self.persistent_ctas is None
            else min(self.persistent_ctas, self.work_tiles)
        )


def is_attention_loop(launch: Launch) -> bool:
    loops = launch.outer in (Outer.QUERY, Outer.SPLIT, Outer.KEY, Outer.HEAD)
    work = launch.work
    return (
        loops
        and work.flops_per_pair > 0
        and (work.exps_per_pair > 0 or work.loop.score_operations > 0)
    )


@dataclass(frozen=True)
class Chain:
    """The launches of one call in order, and the tensors they move. A temporary lives from the launch that first writes
    it to the launch that last reads it, or to the one that it is kept to (`Chain.life`)."""

    tensors: Mapping[str, Tensor]
    launches: tuple[Launch, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for launch in self.launches:
            for access in launch.accesses:
                if access.tensor not in self.tensors:
                    raise KeyError(
                        f"launch {launch.name} accesses {access.tensor}, which the chain does not hold"
                    )

    @property
    def product_flops(self) -> int:
        """Operations of all products over the pairs that their masks keep."""
        works = ((launch.work.flops_per_pair, launch.domain) for launch in self.launches)
        return sum(per_pair * domain.kept_pairs for per_pair, domain in works if per_pair)

    @property
    def exponentials(self) -> int:
        works = ((launch.work.exps_per_pair, launch.domain) for launch in self.launches)
        return sum(per_pair * domain.kept_pairs for per_pair, domain in works if per_pair)

    def role(self, role: Role) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors.values() if t.role is role)

    def launch_of(self, role: LaunchRole) -> Launch | None:
        """The first launch of a role; None where the chain has none."""
        return next((launch for launch in self.launches if launch.role is role), None)

    def users(self, tensor: str) -> tuple[int, ...]:
        """The launches that access it, or a view of it."""
        # Who touches a view touches the tensor's memory.
        names = {tensor, *(name for name, t in self.tensors.items() if t.view_of == tensor)}
        return tuple(
            n
            for n, launch in enumerate(self.launches)
            if any(a.tensor in names for a in launch.accesses)
        )

    def life(self, tensor: str) -> tuple[int, int] | None:
        """First and last launch between which a temporary holds memory; None where no launch touches it."""
        used, last_launch = self.users(tensor), self.tensors[tensor].kept_to
        if not used:
            return None
        to = (
            [n for n, launch in enumerate(self.launches) if launch.name == last_launch]
            if last_launch
            else []
        )
        return used[0], max(used[-1], *to) if to else used[-1]

    def then(self, other: Chain) -> Chain:
        merged = dict(self.tensors)
        for name, tensor in other.tensors.items():
            mine = merged.get(name)
            # What the forward leaves and the backward takes is one tensor: of another role, else alike.
            if mine is not None and replace(mine, role=tensor.role) != tensor:
                raise ValueError(f"the chains disagree on tensor {name}")
            if mine is None:
                merged[name] = tensor
        return Chain(merged, self.launches + other.launches, self.notes + other.notes)


def tensors(items: Iterable[Tensor]) -> dict[str, Tensor]:
    return {t.name: t for t in items}
