"""Traffic: bytes by launch, level, tensor and direction, as integers or SymPy expressions alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import asdict, dataclass
from iosim.base.words import LEVELS, WAYS, Level, Way

CODE, FOREIGN, CHECK_BITS = "code", "foreign", "check bits"
HALF_WRITTEN = "half-written sectors"
"""Names of traffic at HBM that is no tensor's of the chain: what a launch reads beside its tensors, dirty lines of
others that it drives out of the L2, check bits of ECC that lie in the same memory, and sectors that the L2 reads to make
them whole, and writes once more."""


@dataclass(frozen=True)
class TrafficRow:
    """`bytes` moved at `level` for `tensor`; read is towards the SMs. `bytes` is an int or a SymPy expression."""

    launch: str
    level: Level
    tensor: str
    direction: Way
    bytes: Any

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Traffic:
    """A table of `TrafficRow`s that adds with `+`."""

    rows: tuple[TrafficRow, ...] = ()

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.rows + other.rows)

    def __iter__(self) -> Iterator[TrafficRow]:
        return iter(self.rows)

    def total(
        self,
        level: Level,
        direction: Way | None = None,
        *,
        launch: str | None = None,
        tensor: str | None = None,
    ) -> Any:
        """Sum of the rows that match; 0 when none does. Raises InputError: a level or a direction that there is not."""
        if level not in LEVELS:
            raise InputError(f"`level` {level!r} is not known; accepted: {', '.join(LEVELS)}")
        if direction is not None and direction not in WAYS:
            raise InputError(f"`direction` {direction!r} is not known; accepted: {', '.join(WAYS)}")
        return sum(
            r.bytes
            for r in self.rows
            if r.level == level
            and direction in (None, r.direction)
            and launch in (None, r.launch)
            and tensor in (None, r.tensor)
        )

    @property
    def payload(self) -> Traffic:
        """The rows without check bits: what rates of memory count."""
        return Traffic(tuple(row for row in self.rows if row.tensor != CHECK_BITS))

    def tensors(self, level: Level) -> dict[tuple[str, Way], Any]:
        """(tensor, direction) -> bytes at `level`, over all launches."""
        # Sums by key in the order of first mention, which tables keep.
        out: dict[tuple[str, Way], Any] = {}
        for row in self.rows:
            if row.level == level:
                key = (row.tensor, row.direction)
                out[key] = out.get(key, 0) + row.bytes
        return out
