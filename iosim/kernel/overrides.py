"""Overrides: what a user sets by hand over a kernel's own choice. Loads nothing heavy, so that a command line can be
parsed, and refused, at once."""

from __future__ import annotations

from typing import Any

from iosim.base.fields import Kind, about, fields_of
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
    warps: int | None = about(None, Kind.WHOLE, "warps a CTA", high=MAX_WARPS, metavar="N")
    stages: int | None = about(
        None, Kind.WHOLE, "key/value buffers of the software pipeline", high=MAX_STAGES, metavar="N"
    )
    order: str | None = about(
        None, Kind.WORD, "grid order: what runs fastest", words=tuple(Order), normal=_lower, metavar="ORDER",
        more="query: blocks, then heads, then batch; head: heads; batch: blocks, then batch",
    )  # fmt: skip
    heavy_first: bool | None = about(None, Kind.FLAG, "long query blocks first")
    fold: bool | None = about(None, Kind.FLAG, "the longest query block, the shortest, the second longest and so on")
    section_heads: int | None = about(None, Kind.WHOLE, "heads per section of the grid", low=0, metavar="N")
    chiplets: int | None = about(
        None,
        Kind.WHOLE,
        "L2s among which heads are shared out, so that a head's tiles meet in one",
        high=64,
        metavar="N",
    )
    direction: str | None = about(
        None, Kind.WORD, "of the key loop", words=tuple(Direction), normal=_lower, metavar="DIRECTION"
    )
    scheduler: str | None = about(
        None, Kind.WORD, "how CTAs take tiles", words=tuple(Scheduler), normal=_lower, metavar="SCHEDULER"
    )
    cluster: int | None = about(
        None, Kind.WHOLE, "neighbouring CTAs that fetch keys and values once for all of them", high=MAX_CLUSTER,
        metavar="N",
    )  # fmt: skip
    splits: int | None = about(None, Kind.WHOLE, "parts that the keys of a head are split into", metavar="N")
    registers: int | None = about(
        None, Kind.WHOLE, "registers a thread, from the compiler's report", high=MAX_REGISTERS, metavar="N"
    )
    shared_memory_bytes: int | None = about(
        None, Kind.WHOLE, "bytes of shared memory a CTA", low=0, option="--smem", metavar="BYTES"
    )
    pack_group: bool | None = about(None, Kind.FLAG, "query heads of a group in the rows of one tile")
    append_kv: bool = about(False, Kind.FLAG, "a launch before writes the queries' K and V to the cache")

    def __post_init__(self) -> None:
        for name, field in OVERRIDES.items():
            object.__setattr__(self, name, field.check(getattr(self, name)))


OVERRIDES = fields_of(Overrides)
