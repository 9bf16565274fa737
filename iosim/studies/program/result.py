"""A program's traffic: a row an operator, sums by module, notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.hardware.profile import HardwareProfile
from iosim.hardware.trust import Evidence, evidence
from iosim.kernel.traffic import Traffic, TrafficRow
from iosim.prediction.result import Moved
from iosim.show.shown import Shown
from iosim.show.tables import Column, Table
from iosim.studies.program.operators import Operator, Program
from iosim.studies.program.play import Alone, Bytes, Playing, operators_with_bytes
from iosim.studies.program.row import OperatorTraffic

if TYPE_CHECKING:
    import pandas

WHOLE, OWN = "whole program", "(own)"


@dataclass(frozen=True, repr=False)
class ProgramTraffic(Shown):
    """What a program moves on one GPU, operator by operator, through one L2."""

    FACE = "iosim.studies.program.face"

    profile: HardwareProfile
    """The GPU."""
    rows: tuple[OperatorTraffic, ...]
    """The operators in the order in which they ran."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers should know, a sentence each."""

    def __iter__(self) -> Iterator[OperatorTraffic]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def hbm(self) -> Moved:
        """Bytes between L2 and device memory."""
        return Moved(sum(r.hbm_read for r in self.rows), sum(r.hbm_write for r in self.rows))

    @property
    def l2(self) -> Moved:
        """Bytes between SMs and L2."""
        return Moved(sum(r.l2_read for r in self.rows), sum(r.l2_write for r in self.rows))

    @property
    def time_s(self) -> float:
        """Seconds of all launches; waits for the host are no part of it."""
        return sum(r.time_s for r in self.rows)

    @property
    def flops(self) -> int:
        """Operations of all matrix products."""
        return sum(r.flops for r in self.rows)

    @property
    def attention(self) -> ProgramTraffic:
        """The attention alone."""
        return replace(self, rows=tuple(r for r in self.rows if r.is_attention))

    @property
    def unknown(self) -> tuple[str, ...]:
        """Operators without a rule, by name."""
        return tuple(dict.fromkeys(r.operator for r in self.rows if not r.known))

    @property
    def evidence(self) -> Evidence:
        """How far bytes at HBM and times can be trusted: what the models of this GPU rest on."""
        return evidence(self.profile)

    def phase(self, name: str) -> ProgramTraffic:
        """The operators of one phase alone.

        Raises:
            InputError: neither forward nor backward.
        """
        if name not in ("forward", "backward"):
            raise InputError(f"`phase` {name!r} is not known; accepted: forward, backward")
        return replace(self, rows=tuple(r for r in self.rows if r.phase == name))

    def table(self, depth: int = 2) -> Table:
        """A row a module, down to `depth` modules below the root, in the order in which they ran; the root is first. A
        module's rows below it add up to it: what ran in none of its children is `(own)`.

        Raises:
            InputError: a depth below 0.
        """
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
            raise InputError(f"`depth` {depth!r} is out of range; accepted: 0 or more")
        return summed(self.rows, _paths(self.rows, depth), "module", _module_text)

    def by_operator(self, most: int | None = None) -> Table:
        """A row for each kind of operator and its phase, the most bytes at HBM first; all of them, or `most`."""
        kinds: dict[tuple[str, ...], list[OperatorTraffic]] = {}
        for row in self.rows:
            kinds.setdefault((_named(row), row.phase), []).append(row)
        order = sorted(kinds, key=lambda kind: -sum(r.hbm for r in kinds[kind]))
        return summed(self.rows, [(kind, kinds[kind]) for kind in order[:most]], "operator", "  ".join)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "profile": self.profile.name,
            "totals": {"hbm": asdict(self.hbm), "l2": asdict(self.l2)},
            "flops": self.flops,
            "time_s": self.time_s,
            "operators": [row.to_dict() for row in self.rows],
            "unknown": list(self.unknown),
            "notes": list(self.notes),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """A row an operator, in the order in which they ran."""
        return Table.of(row.to_dict() for row in self.rows).to_pandas()

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write a trace for chrome://tracing or ui.perfetto.dev: modules above operators over predicted time, and the
        rate of HBM bytes.

        Raises:
            InputError: the file cannot be written.
        """
        from iosim.studies.program.chrome import write

        write(self.rows, f"{self.profile.name} (predicted)", path)


def _named(row: OperatorTraffic) -> str:
    return f"{row.operator} ({row.kernel})" if row.kernel else row.operator


def _module_text(path: tuple[str, ...]) -> str:
    return "  " * (len(path) - 1) + path[-1] if path else WHOLE


def _paths(rows: Sequence[OperatorTraffic], depth: int) -> list[tuple[tuple[str, ...], list[OperatorTraffic]]]:
    """Modules with what ran in them, a module before its children and they before what is its own, as far down as
    `depth` below the root."""
    inside: dict[tuple[str, ...], list[OperatorTraffic]] = {(): list(rows)}
    for row in rows:
        for length in range(1, min(len(row.module), depth + 1) + 1):
            inside.setdefault(row.module[:length], []).append(row)
    parents = {path[:-1] for path in inside if path}
    for row in rows:
        if row.module in parents:
            inside.setdefault((*row.module, OWN), []).append(row)
    if len({row.module[:1] for row in rows}) == 1 and rows and rows[0].module:
        del inside[()]  # all ran in one module
    place = {path: n for n, path in enumerate(inside)}
    order = sorted(inside, key=lambda path: tuple(place.get(path[:n], -1) for n in range(len(path) + 1)))
    return [(path, inside[path]) for path in order]


def summed(
    rows: Sequence[OperatorTraffic],
    groups: Iterable[tuple[tuple[str, ...], Sequence[OperatorTraffic]]],
    first: str,
    text: Any,
) -> Table:
    """A row a group: operators, bytes at HBM and their share of all, bytes at L2, compulsory ones, operations, time."""
    total = max(1, sum(r.hbm for r in rows))
    columns = (
        Column(first, first), Column("operators", "operators", "number"), Column("hbm_read_bytes", "HBM read", "bytes"),
        Column("hbm_write_bytes", "HBM written", "bytes"), Column("hbm_share", "share", "percent"),
        Column("compulsory_bytes", "in and out once", "bytes"), Column("l2_bytes", "SM<->L2", "bytes"),
        Column("gflop", "GFLOP", "number"), Column("time_s", "time", "seconds"),
    )  # fmt: skip
    table = tuple(
        (
            text(name), len(group), sum(r.hbm_read for r in group), sum(r.hbm_write for r in group),
            sum(r.hbm for r in group) / total, sum(r.compulsory for r in group),
            sum(r.l2_read + r.l2_write for r in group), sum(r.flops for r in group) / 1e9, sum(r.time_s for r in group),
        )
        for name, group in groups
    )  # fmt: skip
    return Table(columns, table)


def traffic_of(program: Program, profile: HardwareProfile, notes: Sequence[str] = ()) -> ProgramTraffic:
    """Play a program on a GPU, from a cold L2.

    Raises:
        InputError: the GPU's profile lacks a number, or an operator cannot run there.
    """
    playing = Playing(profile)
    times: dict[tuple[int, tuple[Bytes, ...]], float] = {}
    rows = []
    for operator, alone, moved in operators_with_bytes(playing, program):
        key = id(alone), tuple(moved.values())
        if key not in times:
            times[key] = _seconds(alone, moved)
        rows.append(_row(operator, alone, moved, times[key]))
    said = dict.fromkeys((*notes, *(note for operator in program.operators for note in operator.notes)))
    return ProgramTraffic(profile, tuple(rows), tuple(said))


def _seconds(alone: Alone, moved: dict[str, Bytes]) -> float:
    """Time of an operator with the HBM bytes that it moves in its program."""
    at_hbm = tuple(
        TrafficRow(name, "hbm", "all", direction, n)
        for name, both in moved.items()
        for direction, n in zip(("read", "write"), both, strict=True)
    )
    return alone.call.time(alone.call.counted + Traffic(at_hbm)).total_s


def _row(operator: Operator, alone: Alone, moved: dict[str, Bytes], seconds: float) -> OperatorTraffic:
    counted = alone.call.counted
    return OperatorTraffic(
        operator.module, operator.name, operator.phase, operator.kernel.name if operator.is_attention else "",
        len(operator.chain.launches), sum(r for r, _ in moved.values()), sum(w for _, w in moved.values()),
        int(counted.total("l2", "read")), int(counted.total("l2", "write")), operator.compulsory_bytes, operator.flops,
        seconds, operator.known, operator.is_attention,
    )  # fmt: skip
