"""Loop: how a CTA goes through its key blocks, and what it keeps where, as far as a kernel states it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loop:
    """The key loop of a kernel's forward; the defaults are what holds where a kernel says nothing.

    Time and shared memory follow from it; bytes do not.
    """

    producer_warps: int | None = None
    """Warps that load and do not compute; None for a warpgroup where one loads."""
    q_in_registers: bool = False
    """Whether Q is held in registers, and takes no shared memory; else products fetch it from there."""
    p_in_shared: bool = False
    """Whether P goes through shared memory between the products; else it stays in registers."""
    loads_ahead: bool | None = None
    """Whether a step's keys and values are fetched during the step before; None where it follows from the unit and
    the number of buffers."""
    score_operations: float = 0.0
    """Instructions on each score in every step, beyond its exponential and what every softmax needs."""
