"""What of a call is replayed, and from which L2."""

from __future__ import annotations

from dataclasses import dataclass

from iosim.readers.replay.heads import HeadShare
from iosim.readers.replay.l2 import L2Model


@dataclass(frozen=True, kw_only=True)
class Play:
    """How a chain is played through the L2."""

    l2_start: str = "cold"
    """cold: empty, but for dirty lines that a flush leaves; warm: as the same call just before left it, its dirty lines
    with it."""
    l2_model: L2Model | None = None
    """In place of the profile's."""
    part: bool = False
    """Long launches in coarse steps, or windows of them alone; the replay says how far off that may be."""
    share: HeadShare | None = None
    """These heads of the chain alone; what they move stands for all."""
    accesses: int | None = None
    """With `part`, how many object accesses of a long launch are played, about; None: a second's worth."""
