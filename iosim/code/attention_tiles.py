"""The addresses of an attention kernel matched to Q, K, V and O: which tile it takes, in which order, which way.

Which tensor is which is told by its name; a sequence, a head and a row of each CTA by where its first query lies. So
the axes of the grid may stand in any order, sequences may be packed, and CTAs of the same queries are splits of keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.code.addresses import Evaluated
from iosim.code.addresses_moves import Move, Shapes, all_moves
from iosim.code.arguments import TensorArgument, place
from iosim.kernel.launch import SECTOR_BYTES, Mode
from iosim.kernel.schedule import Direction, Order, Schedule, Scheduler, Start

Rows = npt.NDArray[np.int64]
"""A number for each CTA, in the order in which they start."""
NAMES = {
    "Q": ("q", "query", "queries", "desc_q"),
    "K": ("k", "kt", "key", "keys", "desc_k"),
    "V": ("v", "value", "values", "desc_v"),
    "O": ("o", "out", "output", "desc_o"),
}
"""Names of arguments, in small letters, that tell a tensor."""


WHOLE_TYPES = ("int32", "int64", "uint32", "uint64")


@dataclass(frozen=True)
class AttentionTiles:
    """What an attention kernel's addresses say of its tiling.

    Attributes:
        block_q: query rows that a CTA loads of Q, or stores of O.
        block_k: key rows of a step.
        descending: whether steps go from the last keys to the first.
        order: of the grid, in the words of `Order`.
        section_heads: heads that run fastest inside a section; 0 where there are no sections.
        heavy_first: whether the first CTAs of a head take its last queries.
        reads_q_again: whether Q is loaded in every step.
        splits: CTAs that share out the keys of the same queries.
        persistent: whether a CTA goes on to other queries.
    """

    block_q: int
    block_k: int
    descending: bool
    order: str
    section_heads: int
    heavy_first: bool
    reads_q_again: bool
    splits: int
    persistent: bool

    @property
    def schedule(self) -> Schedule:
        """How its tiles reach the SMs."""
        return Schedule(
            order=Order(self.order),
            start=Start.HEAVY_FIRST if self.heavy_first else Start.LIGHT_FIRST,
            section_heads=self.section_heads,
            direction=Direction.DESCENDING if self.descending else Direction.ASCENDING,
            scheduler=Scheduler.PERSISTENT if self.persistent else Scheduler.STATIC,
        )


@dataclass(frozen=True)
class _Places:
    """Where the first query of each CTA lies, in the order in which CTAs start: sequence, head, row of its sequence."""

    sequence: Rows
    head: Rows
    row: Rows


def attention_tiles(evaluated: Evaluated, heads: int, batch: int = 1) -> AttentionTiles:
    """The tiling of an attention kernel. Raises InputError: no tensors named as K and O are, or moves that are no rows
    of them.

    Args:
        heads: query heads of a sequence.
        batch: sequences.
    """
    moves, shapes = all_moves(evaluated)
    of = {role: _moves_of(evaluated, moves, role) for role in NAMES}
    lacking = [role for role in ("K", "O") if not of[role]]
    if lacking:
        known = ", ".join(t.name for t in evaluated.bound.tensors)
        raise InputError(
            f"`arg` names no tensor {' and '.join(lacking)} of attention; given: {known}"
        )
    # Queries that come by tensor maps are not seen; their outputs lie in the same rows.
    loaded = [m for m in of["Q"] if m.mode is Mode.LOAD]
    queries = loaded or [m for m in of["O"] if m.mode is Mode.STORE]
    keys = [m for m in of["K"] if m.mode is Mode.LOAD]
    # Of several moves of K, such as of masked and unmasked blocks, the one that is made most often.
    step = max(keys, key=lambda m: int(m.times.sum()))
    block_q = max(_rows(evaluated, shapes, move) for move in queries)
    places = _places(evaluated, queries, heads, batch)
    splits = _most_alike(places)
    order, section = order_of(_walk(places, block_q), {"heads": heads, "batch": batch})
    return AttentionTiles(
        block_q,
        _step_rows(evaluated, shapes, keys),
        any(bool((stride < 0).any()) for stride in step.strides),
        str(order),
        section,
        _heavy_first(places),
        any(move.strides for move in loaded) and not _goes_on(loaded),
        splits,
        _goes_on(queries),
    )


def _moves_of(evaluated: Evaluated, moves: Sequence[Move], role: str) -> list[Move]:
    names = (t.name.lower().removesuffix("_ptr").strip("_") for t in evaluated.bound.tensors)
    wanted = {number for number, name in enumerate(names) if name in NAMES[role]}
    return [move for move in moves if move.tensor in wanted]


def _tensor(evaluated: Evaluated, move: Move) -> TensorArgument:
    return evaluated.bound.tensors[move.tensor]


def _rows(evaluated: Evaluated, shapes: Shapes, move: Move) -> int:
    """Rows of the tensor that a CTA's move touches, in its largest shape."""
    row = _tensor(evaluated, move).row_bytes
    return max(_rows_of(shapes.sectors[shape], row) for shape in np.unique(move.shape))


def _step_rows(evaluated: Evaluated, shapes: Shapes, moves: Sequence[Move]) -> int:
    """Rows that most moves touch, each as often as it is made: loads ahead of a loop are several steps' at once."""
    often: dict[int, int] = {}
    for move in moves:
        row = _tensor(evaluated, move).row_bytes
        for shape in np.unique(move.shape):
            rows = _rows_of(shapes.sectors[shape], row)
            often[rows] = often.get(rows, 0) + int(move.times[move.shape == shape].sum())
    return max(often, key=lambda rows: (often[rows], -rows))


def _rows_of(sectors: Rows, row_bytes: int) -> int:
    """Rows that a set of sectors touches, of so many bytes each."""
    # Rows shorter than a sector share it: then sectors are counted, not rows.
    if row_bytes < SECTOR_BYTES:
        return int(sectors.size) * SECTOR_BYTES // row_bytes
    return int(np.unique(sectors * SECTOR_BYTES // row_bytes).size)


def _goes_on(moves: Sequence[Move]) -> bool:
    """True where a CTA comes to other rows after its first ones."""
    return any(bool(np.any(stride)) for move in moves for stride in move.strides)


def _places(evaluated: Evaluated, moves: Sequence[Move], heads: int, batch: int) -> _Places:
    """Sequence, head and row of each CTA's first query. The axes of its tensor are told by their sizes: [batch, heads,
    rows, columns] or [batch, rows, heads, columns]; of three, [heads, rows, columns], or packed [rows, heads, columns]
    with the sequences' first rows in an argument of whole numbers."""
    move = max(moves, key=lambda m: m.ctas.size)
    tensor = _tensor(evaluated, move)
    rows = np.full(evaluated.ctas, -1, dtype=np.int64)
    rows[move.ctas] = move.anchor % place(0) // tensor.row_bytes
    rows = rows[rows >= 0]
    outer = tensor.shape[:-1]
    if len(outer) == 3:
        first, second, third = np.unravel_index(np.minimum(rows, np.prod(outer) - 1), outer)
        heads_last = outer[1] != heads and outer[2] == heads
        return _Places(first, third, second) if heads_last else _Places(first, second, third)
    if (
        len(outer) == 2
        and (starts := _starts(evaluated, outer[0])) is not None
        and outer[1] == heads
    ):
        row, head = rows // heads, rows % heads
        sequence = np.searchsorted(starts, row, side="right") - 1
        return _Places(sequence, head, row - starts[sequence])
    if len(outer) == 2 and outer[0] != heads * batch and outer[1] == heads:
        tokens = max(1, outer[0] // batch)
        return _Places(rows // heads // tokens, rows % heads, rows // heads % tokens)
    if len(outer) == 2:
        return _Places(rows // outer[1] // heads, rows // outer[1] % heads, rows % outer[1])
    tokens = max(1, math.prod(outer) // (heads * batch))
    return _Places(rows // tokens // heads, rows // tokens % heads, rows % tokens)


def _starts(evaluated: Evaluated, rows: int) -> Rows | None:
    """The first row of each packed sequence: the numbers of an argument that rise from 0 to all rows."""
    for tensor in evaluated.bound.tensors:
        values = np.array(tensor.values, dtype=np.int64)
        if (
            tensor.dtype in WHOLE_TYPES
            and values.size > 1
            and values[0] == 0
            and values[-1] == rows
        ):
            return values[:-1]
    return None


def _most_alike(places: _Places) -> int:
    """CTAs that have the same queries, of those that most have: they share out the keys."""
    keys = np.stack([places.sequence, places.head, places.row])
    _, counts = np.unique(keys, axis=1, return_counts=True)
    return int(counts.max(initial=1))


def _walk(places: _Places, block: int) -> tuple[str, ...]:
    """Axes of the grid of which a launch has more than one, the fastest first: what changes most often, CTA by CTA."""
    changes = {
        "blocks": np.diff(places.row // max(1, block)),
        "heads": np.diff(places.head),
        "batch": np.diff(places.sequence),
    }
    often = {axis: int(np.count_nonzero(change)) for axis, change in changes.items()}
    return tuple(sorted((axis for axis in often if often[axis]), key=lambda axis: -often[axis]))


def order_of(walk: Sequence[str], sizes: Mapping[str, int]) -> tuple[Order, int]:
    """(order, heads of a section) of a grid whose axes run so, the fastest first, those of one place left out.

    NB: where sequences run faster than heads, they are taken as heads: the same bytes where no heads share keys.
    """
    if "blocks" not in walk or len(walk) == 1:
        return Order.QUERY, 0
    if walk[-1] == "blocks":
        return Order.HEAD, 0
    if (
        walk[0] != "blocks"
    ):  # all heads of a sequence, or the sequences of a head, before the next one's
        return Order.HEAD, sizes[walk[0]]
    return (Order.BATCH if tuple(walk) == ("blocks", "batch", "heads") else Order.QUERY), 0


def _heavy_first(places: _Places) -> bool:
    """True where the CTAs of a head go to earlier queries."""
    turn = np.lexsort((np.arange(places.row.size), places.head, places.sequence))
    steps = np.diff(places.row[turn])
    same = (np.diff(places.head[turn]) == 0) & (np.diff(places.sequence[turn]) == 0)
    return int((steps[same] < 0).sum()) > int((steps[same] > 0).sum())
