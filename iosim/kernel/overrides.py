"""Overrides: what a user sets by hand over a kernel's own choice. Loads nothing heavy, so that a command line can be
parsed, and refused, at once."""

from __future__ import annotations

from typing import Any

from iosim.base import fields as ask
from iosim.base.fields import Kind, about, fields_of, put_checked
from iosim.base.records import dataclass
from iosim.kernel.schedule import Direction, Order, Scheduler

MAX_BLOCK = 4096
MAX_WARPS = 32
MAX_STAGES = 16
MAX_REGISTERS = 255
MAX_CLUSTER = 16


def _lower(word: Any) -> Any:
    return word.strip().lower() if isinstance(word, str) else word


@dataclass(frozen=True)
class Overrides:
    """Settings over a catalog kernel's own choice; None leaves the choice.

    Fields:

    Raises:
        InputError: a value of another type, or out of range.
    """

    tile: tuple[int, int] | None = about(
        None, Kind.SIDES, "query rows x key rows, such as 128x64", high=MAX_BLOCK, metavar="QxK"
    )
    warps: int | None = ask.count("warps per CTA", high=MAX_WARPS)
    stages: int | None = ask.count("key/value buffers of the software pipeline", high=MAX_STAGES)
    order: str | None = ask.word(
        "grid order: what runs fastest. query: blocks, then heads, then batch; head: heads; batch: blocks, then batch",
        tuple(Order),
        normal=_lower,
        metavar="ORDER",
    )
    heavy_first: bool | None = ask.flag("long query blocks first", None)
    fold: bool | None = ask.flag(
        "the longest query block, the shortest, the second longest and so on", None
    )
    section_heads: int | None = ask.count("heads per section of the grid", low=0)
    chiplets: int | None = ask.count(
        "L2s among which heads are shared out, so that a head's tiles meet in one", high=64
    )
    direction: str | None = ask.word(
        "of the key loop", tuple(Direction), normal=_lower, metavar="DIRECTION"
    )
    scheduler: str | None = ask.word(
        "how CTAs take tiles", tuple(Scheduler), normal=_lower, metavar="SCHEDULER"
    )
    cluster: int | None = ask.count(
        "neighbouring CTAs that fetch keys and values once for all of them", high=MAX_CLUSTER
    )
    splits: int | None = ask.count("parts that the keys of a head are split into")
    registers: int | None = ask.count(
        "registers per thread, from the compiler's report", high=MAX_REGISTERS
    )
    shared_memory_bytes: int | None = ask.count(
        "bytes of shared memory a CTA", low=0, option="--smem", metavar="BYTES"
    )
    pack_group: bool | None = ask.flag("query heads of a group in the rows of one tile", None)
    append_kv: bool = ask.flag("a launch before writes the queries' K and V to the cache")

    def __post_init__(self) -> None:
        put_checked(self)

    def blamed(self, tile: str, kernel: str) -> str:
        """What the refusal of a tile begins with: the setting that was asked for, else the kernel whose own it is."""
        if self.tile is not None:
            return f"`tile` {tile}"
        for setting in ("stages", "warps", "registers", "shared_memory_bytes"):
            value = getattr(self, setting)
            if value is not None:
                return f"`{setting}` {value}: {kernel}, tile {tile}"
        return f"`kernel` {kernel}: its tile {tile}"


OVERRIDES = fields_of(Overrides)
