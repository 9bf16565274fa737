"""Words that options and functions take; they stand apart so that a command's parser loads nothing else for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

Level = Literal["hbm", "l2", "smem", "side"]
"""side: between the L2s and a cache at the memory's side, on GPUs that have one."""
LEVELS: tuple[Level, ...] = get_args(Level)
Way = Literal["read", "write"]
"""Read is towards the SMs."""
WAYS: tuple[Way, ...] = get_args(Way)
Method = Literal["bounds", "capacity", "sampled", "replay"]
METHODS: tuple[Method, ...] = get_args(Method)
L2_STARTS = ("cold", "warm", "flushed")
"""cold: a flushed L2; warm: as the same call just before left it, its dirty lines included."""
CLOCKS = ("boost", "sustained")
"""boost: a launch after a pause, held by the board's peak power alone; sustained: launches for seconds, held by its
power limit."""
LAUNCHED = ("alone", "graph", "python")
"""alone: each launch as a profiler times it; graph: the call replayed in a CUDA graph; python: from the call's first
line of Python to its end, where the GPU waits for launches that come late."""
LAUNCHED_BY_GPU = LAUNCHED[:2]
"""Those in which the processor is never waited for."""
ECC_STATES = ("delivered", "on", "off")
"""ECC whose check bits lie in the memory itself: as the board is delivered, or switched."""
DEFAULT = "default"
"""In place of a kernel's name: the GPU's own, as `iosim.catalog.libraries.default` chooses it."""


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"


def sentences(parts: Iterable[str]) -> str:
    """Short sentences, one after the other; empty ones are left out. Each begins as it is to be read: a kernel's name
    has no capital."""
    return " ".join(f"{part}." for part in parts if part)
