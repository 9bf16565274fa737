"""What the CTAs of a launch touch, one by one: of a kernel whose code was read, in place of a description by tiles.

Memory is cut into objects, so that every move takes whole ones; a CTA's moves are a list of them in its order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from iosim.base.arrays import repeated
from iosim.base.records import dataclass, field

Int32 = npt.NDArray[np.int32]
TOUCHED_MODES = ("load", "store", "reduce", "last load")
"""Ways of a move, in the order in which `Touched.entries` counts them."""


@dataclass(frozen=True)
class InParts:
    """Stores of a part of a sector each. `open_lines`: those of which a CTA has stored a part and will store more, in
    the mean. `bytes`: what all such stores ask for."""

    open_lines: float
    bytes: int


@dataclass(frozen=True, eq=False)
class Touched:
    """Moves of all CTAs, in the order in which these start. Objects are numbered through the tensors, in the order of
    `objects`. Entry e of CTA c, for e below count[c], is entries[first[c] + e]: the number of its mode times that of
    all objects, plus the object's number."""

    objects: Mapping[str, npt.NDArray[Any]]
    """Bytes of each object, by tensor."""
    first: Int32
    count: Int32
    entries: Int32
    request_bytes: tuple[tuple[str, str, int], ...]
    """Bytes between SMs and L2: (tensor, mode, bytes), counted request by request."""
    used: Mapping[str, float] = field(default_factory=dict)
    """The part of a tensor's objects, which are whole lines of the L2, that is fetched and stored; by default all."""
    in_parts: Mapping[str, InParts] = field(default_factory=dict)
    """Tensors whose sectors are stored in parts."""
    shares: npt.NDArray[Any] | None = None
    """The work of each CTA over that of the mean one; None: all have as much."""

    @property
    def total(self) -> int:
        """Objects of all tensors."""
        return sum(int(sizes.size) for sizes in self.objects.values())

    def begin(self, tensor: str) -> int:
        """The number of a tensor's first object."""
        before = 0
        for name, sizes in self.objects.items():
            if name == tensor:
                return before
            before += int(sizes.size)
        raise KeyError(tensor)

    def asked_together(self, ctas: int) -> dict[str, float]:
        """How many of so many CTAs that follow one another in the grid ask for an object of a tensor, in the mean over
        those rounds in which one does."""
        starts = np.cumsum(self.count) - self.count
        steps = np.arange(int(self.count.sum())) - repeated(starts, self.count)
        entries = self.entries[repeated(self.first, self.count) + steps]
        rounds = repeated(np.arange(self.count.size) // max(1, ctas), self.count)
        # Loads are the first of the modes.
        loads = entries < self.total
        together: dict[str, float] = {}
        for name, sizes in self.objects.items():
            begin = self.begin(name)
            mine = loads & (entries >= begin) & (entries < begin + sizes.size)
            asked = entries[mine].astype(np.int64) + self.total * rounds[mine].astype(np.int64)
            if asked.size:
                together[name] = asked.size / np.unique(asked).size
        return together
