"""Schedule: in which order the tiles of a launch reach the SMs. Loads nothing heavy."""

from __future__ import annotations

from enum import StrEnum

from iosim.base.records import dataclass


class Order(StrEnum):
    """Grid order: which index of the grid runs fastest as CTAs start."""

    QUERY = "query"
    """Query (or key) blocks fastest, then heads, then batch."""
    HEAD = "head"
    """Heads fastest, then batch, then query blocks."""
    BATCH = "batch"
    """Query blocks fastest, then batch, then heads (FlashAttention-2's grid)."""


class Direction(StrEnum):
    ASCENDING = "ascending"
    DESCENDING = "descending"
    ALTERNATING = "alternating"


class Start(StrEnum):
    """Which query blocks of a head start first."""

    LIGHT_FIRST = "light-first"
    """In ascending order: under a causal mask the short rows."""
    HEAVY_FIRST = "heavy-first"
    """In descending order, so that causal's long rows start first (longest-processing-time-first)."""
    FOLD = "fold"
    """The last, the first, the last but one, the second: under a causal mask each heavy block beside a light one."""


class Scheduler(StrEnum):
    STATIC = "static"
    """One CTA a tile; the hardware starts the next CTA when one ends."""
    PERSISTENT = "persistent"
    """As many CTAs as fit; CTA c takes tiles c, c + CTAs, c + 2 CTAs, ..."""
    DYNAMIC = "dynamic"
    """As many CTAs as fit; each takes the next tile from an atomic counter."""


CLUSTER_CC = 90
"""Compute capability that brought clusters of CTAs."""


@dataclass(frozen=True)
class Schedule:
    """How a launch's tiles reach the SMs."""

    order: Order = Order.QUERY
    start: Start = Start.LIGHT_FIRST
    section_heads: int = 0
    """Heads per section of an L2-aware schedule (0: no sections); inside one, heads run fastest."""
    direction: Direction = Direction.ASCENDING
    scheduler: Scheduler = Scheduler.STATIC
    claims_ahead: bool = False
    """A CTA of a dynamic scheduler claims its next tile as it begins one, not as it ends one."""
    overlaps_tiles: bool = False
    """A CTA of a persistent or dynamic grid runs the next tile's first loads and products while a tile's output is
    written, so that a tile takes its steps and nothing besides."""
    chiplets: int = 1
    """L2s among which the heads are shared out, where CTAs go to L2s in turn: each works through heads of its own, in
    `order`. NB: where the heads, or a section's, are no multiple of it, or the last section
    is smaller, they are not shared out."""
    cluster: int = 1
    """CTAs of neighbouring query blocks that start together and fetch keys and values once for all of them (TMA
    multicast)."""
