"""How many lines of a tensor a CTA holds open: those it has stored a part of a sector of, and will store more of.

A warp that stores down a column writes 4 of a sector's 32 bytes; other warps, or its own later stores, write the rest.
What the L2 makes of that is the replay's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iosim.code.addresses import GLOBAL, Evaluated
from iosim.code.addresses_moves import Move, Shapes, expanded
from iosim.code.addresses_objects import LINE_SECTORS
from iosim.kernel.launch import Mode
from iosim.kernel.touched import InParts

HALF = 0.5
"""The part of its sectors' bytes up to which a request's store is in parts; more is a sector cut at a row's edge."""


def stored_in_parts(
    evaluated: Evaluated, moves: Sequence[Move], shapes: Shapes
) -> dict[int, InParts]:
    """Stores in parts by tensor, with the lines that a CTA of the middle of the grid holds open."""
    stores = [s for s in evaluated.sites if s.mode is Mode.STORE and s.used_share <= HALF]
    in_parts = {s.number: s.distinct_bytes for s in stores if s.space == GLOBAL}
    sites: dict[int, set[int]] = {}
    lines: dict[int, list[np.ndarray]] = {}
    longest = 0
    for move in moves:
        if move.mode is Mode.STORE:
            sites.setdefault(move.tensor, set()).update(in_parts.keys() & set(move.sites))
        mine = np.flatnonzero(move.ctas == evaluated.ctas // 2)
        if not mine.size:
            continue
        made = expanded(move.of(mine))
        longest = max(longest, int(made.order.max(initial=0)))
        if move.mode is not Mode.STORE or not in_parts.keys() & set(move.sites):
            continue
        for anchor, shape, order in zip(made.anchor, made.shape, made.order, strict=True):
            touched = np.unique(((int(anchor) >> 5) + shapes.sectors[int(shape)]) // LINE_SECTORS)
            entry = np.stack([touched, np.full(touched.size, order)], axis=1)
            lines.setdefault(move.tensor, []).append(entry)
    return {
        tensor: InParts(
            _open(np.concatenate(entries), longest), sum(in_parts[site] for site in sites[tensor])
        )
        for tensor, entries in lines.items()
    }


def _open(stores: np.ndarray, longest: int) -> float:
    """Lines that are open in the mean: each from its first store to its last (Little's law)."""
    line, which = np.unique(stores[:, 0], return_inverse=True)
    first = np.full(line.size, longest + 1)
    last = np.zeros(line.size, dtype=np.int64)
    np.minimum.at(first, which.reshape(-1), stores[:, 1])
    np.maximum.at(last, which.reshape(-1), stores[:, 1])
    return float((last - first + 1).sum() / (longest + 1))
