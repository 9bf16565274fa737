"""Conditions: how a call meets its GPU, from what a user asks for to the time of a launch. Loads nothing heavy, so that
a command line can be parsed, and refused, at once."""

from __future__ import annotations

from typing import Any

from iosim.base import fields as ask
from iosim.base.errors import InputError
from iosim.base.fields import fields_of, put_checked
from iosim.base.records import dataclass
from iosim.base.words import CLOCKS, ECC_STATES, L2_STARTS, LAUNCHED, METHODS, Method

LEAST_HZ, MOST_HZ = 1e8, 1e10


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """How a call meets its GPU.

    Fields:

    Raises:
        InputError: a word that is not known, or a clock out of range.
    """

    l2_start: str = ask.word(
        "the L2 at the start: cold (empty), warm, as the same call left it, or flushed, full of lines that a "
        "memset left to be written back (nvbench, do_bench)",
        L2_STARTS,
        L2_STARTS[0],
        option="--l2",
        metavar="START",
    )
    method: Method | None = ask.word(
        "how HBM bytes are found: bounds (none, limits alone), capacity (a rule, an estimate), sampled (a replay in "
        "which long launches are played in part) or replay",
        METHODS,
        metavar="METHOD",
        default_text="replay where that takes seconds",
    )
    clocks: str | float = ask.text(
        "boost (a call after a pause, as nvbench or ncu --clock-control none times it, held by the board's peak "
        "power), sustained (calls for seconds: do_bench, a training step; held by its power limit) or the SMs' clock "
        "in MHz: a profiler as it comes locks the base clock, 1095 on an H100; power counts where the GPU's energies "
        "are known",
        CLOCKS[0],
        metavar="CLOCKS",
    )
    launched: str = ask.word(
        "alone (each launch as a profiler times it), graph (replayed in a CUDA graph) or python (the whole call as a "
        "program times it, whose small launches come later than the GPU could take them)",
        LAUNCHED,
        LAUNCHED[0],
        metavar="HOW",
    )

    ecc: str = ask.word(
        "check bits of ECC in the same memory, which a counter of HBM bytes counts: as the board is delivered, on or "
        "off; nothing changes where a GPU has none",
        ECC_STATES,
        ECC_STATES[0],
        metavar="STATE",
    )

    def __post_init__(self) -> None:
        put_checked(self)
        object.__setattr__(self, "clocks", _clocks(self.clocks))

    @property
    def warm(self) -> bool:
        """True where the first loads find their data in the L2."""
        return self.l2_start == "warm"


CONDITIONS = fields_of(Conditions)


def _clocks(value: Any) -> str | float:
    """A word, or hertz of a clock in MHz: a number or a text of one. Hertz, as conditions keep them, stay. Raises
    InputError: another word, or a clock that no GPU has."""
    if isinstance(value, str) and value in CLOCKS:
        return value
    try:
        number = (
            float(str(value).lower().removesuffix("mhz").strip())
            if not isinstance(value, bool)
            else 0.0
        )
    except ValueError:
        number = 0.0
    # Text is in MHz; a bare number below any clock in hertz is, too.
    hertz = 1e6 * number if isinstance(value, str) or number < LEAST_HZ else number
    if not LEAST_HZ <= hertz <= MOST_HZ:
        raise InputError(
            f"`clocks` '{value}' is not known; accepted: {', '.join(CLOCKS)}, or MHz such as 1500"
        )
    return hertz


ALONE = Conditions()
"""A launch by itself, after a pause, from a cold L2."""
