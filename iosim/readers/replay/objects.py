"""Cuts the tensors of a chain into objects, the unit that the replay moves, and lays them out in memory.

An object is a tile of a tensor, small enough that every launch moves whole objects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from iosim.base.arrays import repeated
from iosim.base.errors import TooLargeError
from iosim.base.records import dataclass, replace
from iosim.base.units import bytes_text
from iosim.kernel.launch import Chain, Launch, Outer, Per, Role, Rows, Tensor

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
MAX_BYTES = 1_750_000_000
"""Memory that the arrays of a replay may take, so that a command with its libraries stays below 2 GB."""
OBJECT_BYTES, SAMPLE_BYTES = 36, 14
"""Memory of an object, and of a line that is followed, at the peak of a replay."""
TILE_BYTES, STREAMED_TILE_BYTES = 80, 30
"""Memory of a work tile of the largest launch while it is lowered, and of one of an elementwise pass."""
TOUCH_BYTES = 8
"""Memory of an entry of what a CTA touches, as read from its code."""
ENTRY_BYTES = 40
"""Memory of an entry of the lists of keys that a work tile gathers, while it is lowered."""


@dataclass(frozen=True)
class Grid:
    """How one tensor is cut into objects: `heads` x `rows` x `cols` of them, ids from `first`."""

    tensor: str
    first: int
    heads: int
    rows: int
    cols: int
    chunk_rows: int
    chunk_cols: int
    sequences: int = 1
    """Packed sequences that the rows are divided among, evenly; a sequence's last rows may be empty."""
    step: int = 1
    """From an object to that of the next rows of its head: the number of heads where their rows lie side by side."""
    own_share: float = 1.0
    """Fraction of the lines that its rows touch that is theirs: the rest belongs to other heads' rows beside them."""

    @property
    def count(self) -> int:
        return self.heads * self.rows * self.cols

    def start_of(self, owner: Int64) -> Int64:
        if self.step == 1:
            return self.first + owner * self.rows * self.cols
        return self.first + owner // self.step * self.rows * self.step + owner % self.step

    def row_of(self, tile: Int64, tiles: int, span: int) -> Int64:
        """First row of objects of tiles that are `span` rows long, numbered through `tiles` of all sequences."""
        if self.sequences == 1:
            return tile * span
        tiles_per_sequence = tiles // self.sequences
        return (
            tile // tiles_per_sequence * (self.rows // self.sequences)
            + tile % tiles_per_sequence * span
        )

    def row_shift(
        self, fixed: Int64 | None, fixed_tiles: int, tiles: int, span: int
    ) -> Int64 | int:
        """What `row_of` adds to tile x span in the sequence of a tile `fixed` of the other axis."""
        if self.sequences == 1 or fixed is None:
            return 0
        sequence = fixed // (fixed_tiles // self.sequences)
        return sequence * (self.rows // self.sequences - tiles // self.sequences * span)


def streams(launch: Launch) -> bool:
    combines = launch.outer is Outer.QUERY and any(
        access.per is Per.SPLIT for access in launch.accesses
    )
    return launch.outer is Outer.FLAT or combines


def _blocks(chain: Chain, tensor: str) -> tuple[set[int], set[int]]:
    """Row and column block sizes by which the looping launches cut a tensor."""
    rows: set[int] = set()
    cols: set[int] = set()
    for launch in chain.launches:
        if streams(launch):
            continue
        for access in launch.accesses:
            is_table = chain.tensors[tensor].keys_per_row > 0 and access.rows is Rows.KEY
            if access.tensor == tensor and access.rows is not Rows.OWN and not is_table:
                # Rows that a step moves of this tensor: an entry of a list where rows are gathered, a key
                # block, or a query block, divided where a tile packs rows of several heads that the
                # tensor has in objects of their own.
                d, held = launch.domain.of(chain.tensors[tensor]), chain.tensors[tensor]
                keys = (
                    chain.tensors[held.picked_by].keys_per_row
                    if launch.gathers(held)
                    else d.block_k
                )
                own_rows = d.block_q // d.pack if packed_apart(chain, held, launch) else d.block_q
                rows.add(keys if access.rows is Rows.KEY else own_rows)
                if access.rows is Rows.PAIR:
                    cols.add(d.block_k)
    return rows, cols


FLAT_CHUNK_BYTES = 32768
LINE_BYTES = 128
"""Bytes of a line of the L2: rows of heads that lie side by side share lines."""


def gathers(chain: Chain, launch: Launch) -> bool:
    """True where a launch goes over rows that lists of picked keys name, so that each of them is a step of its
    replay."""
    return any(launch.gathers(chain.tensors[access.tensor]) for access in launch.accesses)


def listed_entries(launch: Launch) -> int:
    """Entries with a key of the lists that all work tiles of a launch go over."""
    d = launch.domain
    return int(d.visited.end_row.sum()) * d.grid_heads


def _rows_per_head(chain: Chain, tensor: Tensor) -> tuple[int, int]:
    """(heads, rows) of a tensor as the launches that loop over it see them: rows packed token by token belong to
    one grid head, unless some launch takes each head by itself."""
    alone = tensor.batch * tensor.heads, tensor.rows
    # Two launches may disagree: the forward pass packs heads into its tiles, a combine takes each
    # head by itself. Objects must suit both, so that the finer division wins.
    seen = alone
    for launch in chain.launches:
        d = launch.domain
        if streams(launch) or not any(
            a.tensor == tensor.name and a.rows is Rows.QUERY for a in launch.accesses
        ):
            continue
        if d.pack > 1 and not d.in_turn and d.of(tensor) is d:
            seen = d.grid_heads, d.rows
        elif d.pack == 1 and (d.grid_heads, d.rows) == alone:
            return alone
    return seen


def packed_apart(chain: Chain, tensor: Tensor, launch: Launch) -> bool:
    """True where a launch packs heads of a tensor into its tiles whose rows lie in objects of their own."""
    d = launch.domain
    packs = d.pack > 1 and not d.in_turn and tensor.heads == d.heads * d.pack
    return packs and _rows_per_head(chain, tensor) == (tensor.batch * tensor.heads, tensor.rows)


def _lengths(chain: Chain, tensor: Tensor, rows: int) -> tuple[int, ...]:
    """Rows of each sequence packed in a tensor, as the launches that loop over it cut it; all of them else."""
    for launch in chain.launches:
        if streams(launch) or launch.domain.sequences == 1:
            continue
        for access in launch.accesses:
            if access.tensor == tensor.name and access.rows in (Rows.QUERY, Rows.KEY):
                axis = (
                    launch.domain.query_axis
                    if access.rows is Rows.QUERY
                    else launch.domain.key_axis
                )
                return axis.lengths
    return (rows,)


def shape(chain: Chain, tensor: Tensor) -> tuple[int, int, int, int, int]:
    """(heads, row chunks, column chunks, rows of a chunk, columns of a chunk) of a tensor's objects, one copy."""
    # A launch whose machine code was read says which bytes its threads touch together.
    known = touched_sizes(chain, tensor.name)
    if known is not None:
        return 1, int(known.size), 1, 1, tensor.cols
    row_blocks, col_blocks = _blocks(chain, tensor.name)
    heads, rows = _rows_per_head(chain, tensor)
    # Only streamed over: any division does, as rows of about FLAT_CHUNK_BYTES.
    if not row_blocks:
        row_blocks = {
            max(1, min(rows, FLAT_CHUNK_BYTES // max(1, tensor.cols * tensor.element_bytes)))
        }
    lengths = _lengths(chain, tensor, rows)
    n_rows, chunk_rows = _chunks(max(lengths), row_blocks)
    n_rows *= len(lengths)
    n_cols, chunk_cols = _chunks(tensor.cols, col_blocks or {tensor.cols})
    return heads, n_rows, n_cols, chunk_rows, chunk_cols


def touched_sizes(chain: Chain, tensor: str) -> Int64 | None:
    """Bytes of a tensor's objects, where a launch whose code was read says how it cuts it."""
    for launch in chain.launches:
        if launch.touched is not None and tensor in launch.touched.objects:
            return launch.touched.objects[tensor].astype(np.int64)
    return None


def used_share(chain: Chain, tensor: str) -> float:
    """The part of a tensor's objects that is touched, where a launch whose code was read cuts it."""
    for launch in chain.launches:
        if launch.touched is not None and tensor in launch.touched.objects:
            return launch.touched.used.get(tensor, 1.0)
    return 1.0


def cut(chain: Chain, tensor: Tensor, first: int) -> tuple[Grid, Int32]:
    known = touched_sizes(chain, tensor.name)
    if known is not None:
        grid = Grid(tensor.name, first, 1, int(known.size), 1, 1, tensor.cols)
        return replace(grid, own_share=used_share(chain, tensor.name)), known.astype(np.int32)
    heads, n_rows, n_cols, chunk_rows, chunk_cols = shape(chain, tensor)
    _, rows = _rows_per_head(chain, tensor)
    lengths = _lengths(chain, tensor, rows)
    # Rows of each object (the last of a sequence may have fewer, or none), times its columns.
    height = np.concatenate([_sizes(n, n_rows // len(lengths), chunk_rows) for n in lengths])
    width = _sizes(tensor.cols, n_cols, chunk_cols)
    head_sizes = (height[:, None] * width[None, :] * tensor.element_bytes).reshape(-1)
    # [batch, tokens, heads, dim]: a head's rows lie `heads` rows apart. Objects are numbered so
    # that the same rows of all heads follow one another, as they do in memory.
    apart = (
        tensor.strided
        and heads == tensor.batch * tensor.heads
        and not tensor.is_vector
        and n_cols == 1
    )
    step = tensor.heads if apart else 1
    row = tensor.cols * tensor.element_bytes
    room = _room(tensor, row) if apart or (len(lengths) > 1 and n_cols == 1) else row
    sizes = (head_sizes if room == row else head_sizes // row * room).astype(np.int32)
    of = heads * tensor.copies, n_rows, n_cols, chunk_rows, chunk_cols, len(lengths), step
    return Grid(tensor.name, first, *of, row / room), np.tile(
        repeated(sizes, step), heads * tensor.copies // step
    )


def _room(tensor: Tensor, row: int) -> int:
    """Bytes of the lines that a row of `row` bytes touches in the mean, where rows of other heads lie beside it. A head
    brings them in alone where a row is at least a line; shorter rows share theirs with heads that come soon. What is
    written once is whole by the time it leaves."""
    if tensor.heads == 1 or tensor.is_vector or tensor.role is Role.OUTPUT or row < LINE_BYTES:
        return row
    # A row that begins at multiples of gcd(row, line) within a line touches, on average over
    # those beginnings, that many bytes of lines.
    return row + LINE_BYTES - math.gcd(row, LINE_BYTES)


def _chunks(length: int, blocks: set[int]) -> tuple[int, int]:
    """How many chunks cover the largest block's tiling, and the chunk size that divides every block."""
    # Launches may cut a tensor by different blocks, 64 and 128 rows, or 48 and 64: an object is
    # the greatest common divisor, and each launch moves several of them at a step.
    chunk = math.gcd(*blocks)
    return max(-(-length // b) * (b // chunk) for b in blocks), chunk


def _sizes(length: int, n: int, chunk: int) -> npt.NDArray[np.int64]:
    return np.clip(length - np.arange(n, dtype=np.int64) * chunk, 0, chunk)


def refuse_too_large(chain: Chain) -> None:
    """Refuse, before anything is allocated, what would not fit in the memory that a replay may take. Raises
    TooLargeError: says how much memory it would take."""
    counts = _object_counts(chain)
    refuse_bytes(sum(counts.values()), tile_bytes(chain), 0)


def about_bytes(chain: Chain) -> int:
    """Memory that a replay of a chain takes, with a followed line an object."""
    return sum(_object_counts(chain).values()) * (OBJECT_BYTES + SAMPLE_BYTES) + tile_bytes(chain)


def _object_counts(chain: Chain) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, tensor in chain.tensors.items():
        if tensor.role is not Role.TEMP or chain.users(name):
            heads, rows, cols, _, _ = shape(chain, tensor)
            counts[name] = heads * tensor.copies * rows * cols
    return counts


def tile_bytes(chain: Chain) -> int:
    """Memory of the work tiles of the launch that has most, while it is lowered."""
    counts = _object_counts(chain)
    return max((_launch_bytes(chain, launch, counts) for launch in chain.launches), default=0)


def _launch_bytes(chain: Chain, launch: Launch, objects: Mapping[str, int]) -> int:
    if launch.touched is not None:
        return TILE_BYTES * launch.work_tiles + TOUCH_BYTES * int(launch.touched.entries.size)
    if streams(launch):
        accessed = {a.tensor: chain.tensors[a.tensor] for a in launch.accesses}
        passes = {
            n: max(1, launch.domain.grid_heads // (t.batch * t.heads)) for n, t in accessed.items()
        }
        return STREAMED_TILE_BYTES * max((objects[n] * passes[n] for n in accessed), default=0)
    d = launch.domain
    rounds = -(-d.key_blocks_total // d.splits) if launch.outer is Outer.HEAD else 1
    listed = ENTRY_BYTES * listed_entries(launch) if gathers(chain, launch) else 0
    return TILE_BYTES * launch.work_tiles * rounds + listed


def refuse_bytes(objects: int, beside: int, samples: int) -> None:
    """Refuse a replay of so many objects and followed lines, where its work tiles take `beside` bytes. Raises
    TooLargeError: they take more than `MAX_BYTES`."""
    needed = objects * OBJECT_BYTES + beside + samples * SAMPLE_BYTES
    if needed > MAX_BYTES:
        lines = f", {samples:,} followed lines" if samples else ""
        raise TooLargeError(
            f"`method` replay: {objects:,} objects of memory{lines}, with their work tiles {bytes_text(needed)} to "
            f"replay; accepted: at most {bytes_text(MAX_BYTES)} (larger tiles, fewer tokens or heads, or `method` "
            "capacity)"
        )
