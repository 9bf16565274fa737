"""The addresses of an attention kernel matched to Q, K, V and O: which tile it takes, in which order, which way.

Which tensor is which is told by its name or its place among the arguments; the rows of each move by the tensor's row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.code.addresses import Evaluated
from iosim.code.addresses_moves import Move, Shapes, all_moves
from iosim.code.arguments import TensorArgument, place
from iosim.kernel.launch import SECTOR_BYTES, Mode
from iosim.kernel.schedule import Order

Rows = npt.NDArray[np.int64]
"""First row of each move, by CTA."""
NAMES = {
    "Q": ("q", "query", "queries", "desc_q"),
    "K": ("k", "kt", "key", "keys", "desc_k"),
    "V": ("v", "value", "values", "desc_v"),
    "O": ("o", "out", "output", "desc_o"),
}
"""Names of arguments, in small letters, that tell a tensor."""


@dataclass(frozen=True)
class AttentionTiles:
    """What an attention kernel's addresses say of its tiling.

    Attributes:
        block_q: query rows that a CTA loads of Q, or stores of O.
        block_k: key rows of a step.
        descending: whether steps go from the last keys to the first.
        order: of the grid, in the words of `Order`.
        heavy_first: whether the first CTAs of a head take its last queries.
        reads_q_again: whether Q is loaded in every step.
    """

    block_q: int
    block_k: int
    descending: bool
    order: str
    heavy_first: bool
    reads_q_again: bool


def attention_tiles(evaluated: Evaluated, heads: int, batch: int = 1) -> AttentionTiles:
    """The tiling of an attention kernel. Raises InputError: no tensors named as Q, K and O are, or moves that are no
    rows of them.

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
    queries = [m for m in of["Q"] if m.mode is Mode.LOAD] or [
        m for m in of["O"] if m.mode is Mode.STORE
    ]
    keys = [m for m in of["K"] if m.mode is Mode.LOAD]
    # Of several moves of K, such as of masked and unmasked blocks, the one that is made most often.
    step = max(keys, key=lambda m: int(m.times.sum()))
    block_q = max(_rows(evaluated, shapes, move) for move in queries)
    strides = [int(s) for stride in step.strides for s in np.unique(stride) if s]
    first = _first_rows(evaluated, queries)
    return AttentionTiles(
        block_q,
        _rows(evaluated, shapes, step),
        bool(strides) and min(strides) < 0,
        _order(first, block_q, heads, batch),
        _heavy_first(first),
        any(move.strides for move in of["Q"]),
    )


def _moves_of(evaluated: Evaluated, moves: Sequence[Move], role: str) -> list[Move]:
    names = (t.name.lower().removesuffix("_ptr").strip("_") for t in evaluated.bound.tensors)
    wanted = {number for number, name in enumerate(names) if name in NAMES[role]}
    return [move for move in moves if move.tensor in wanted]


def _tensor(evaluated: Evaluated, move: Move) -> TensorArgument:
    return evaluated.bound.tensors[move.tensor]


def _rows(evaluated: Evaluated, shapes: Shapes, move: Move) -> int:
    """Rows of the tensor that a CTA's move touches, in its largest shape: of as many bytes as the last axis has."""
    sectors = max(
        (shapes.sectors[s] for s in np.unique(move.shape)), key=lambda sectors_of: sectors_of.size
    )
    # Rows shorter than a sector share it: then sectors are counted, not rows.
    row = _tensor(evaluated, move).row_bytes
    touched = np.unique(sectors * SECTOR_BYTES // row) if row >= SECTOR_BYTES else sectors
    return int(touched.size) if row >= SECTOR_BYTES else int(sectors.size) * SECTOR_BYTES // row


def _first_rows(evaluated: Evaluated, moves: Sequence[Move]) -> Rows:
    """The row at which each CTA's first query lies, in the order in which CTAs start."""
    move = max(moves, key=lambda m: m.ctas.size)
    rows = np.full(evaluated.ctas, -1, dtype=np.int64)
    rows[move.ctas] = move.anchor % place(0) // _tensor(evaluated, move).row_bytes
    return rows[rows >= 0]


def _order(rows: Rows, block: int, heads: int, batch: int) -> str:
    """The grid's order, told by how far the queries of neighbours are apart."""
    if rows.size < 2 or heads * batch == 1:
        return str(Order.QUERY)
    steps = np.diff(rows)
    if int(np.median(np.abs(steps))) > block:
        return str(Order.HEAD)
    jumps = np.abs(
        steps[np.abs(steps) > block]
    )  # from the last block of a head to the first of what comes next
    tokens = (int(rows.max()) + block) // (heads * batch)
    apart = int(np.median(jumps)) if jumps.size else 0
    return str(
        Order.BATCH
        if batch > 1 and heads > 1 and apart > (heads + 1) * tokens // 2
        else Order.QUERY
    )


def _heavy_first(rows: Rows) -> bool:
    """True where neighbours go to earlier queries."""
    steps = np.diff(rows)
    return bool(steps.size) and int((steps < 0).sum()) > int((steps > 0).sum())
