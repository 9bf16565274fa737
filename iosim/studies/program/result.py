"""A program's traffic: a row an operator, sums by module, notes, what it looks like, and a trace of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.files import write_whole
from iosim.base.progress import progress
from iosim.base.records import asdict, dataclass, plain, replace
from iosim.base.units import bytes_text, operations_text, seconds_text
from iosim.base.words import WAYS
from iosim.hardware.profile import HardwareProfile
from iosim.hardware.trust import Evidence, evidence
from iosim.kernel.traffic import Traffic, TrafficRow
from iosim.prediction.result import Moved
from iosim.readers.replay.l2 import model
from iosim.show import timeline
from iosim.show.axes import stacked
from iosim.show.page import Panel
from iosim.show.shown import Part, Several
from iosim.show.tables import Column, Table, grouped
from iosim.studies.program.operators import Program
from iosim.studies.program.play import Bytes, Playing

US = 1e6
WHOLE, OWN = "whole program", "(own)"
DEPTH = 2
MOST_BARS, MOST_ROWS = 12, 5
SUMMED = (
    Column("operators", kind="number"),
    Column("hbm_read_bytes", "HBM read"),
    Column("hbm_write_bytes", "HBM written"),
    Column("hbm_share", "share", kind="percent"),
    Column("compulsory_bytes", "in and out once"),
    Column("l2_bytes", "SM<->L2"),
    Column("gflop", "GFLOP", kind="number"),
    Column("time_s", "time"),
    Column("time_share", "of the time", kind="percent"),
)
IN_TRACE = (
    "module",
    "kernel",
    "hbm_read",
    "hbm_write",
    "compulsory",
    "l2_read",
    "l2_write",
    "flops",
    "known",
)


@dataclass(frozen=True)
class OperatorTraffic:
    module: tuple[str, ...]
    """Where it stands in the module tree, the root first."""
    operator: str
    """Its name."""
    phase: str
    """forward or backward."""
    kernel: str
    """The attention kernel; empty for others."""
    launches: int
    """Kernel launches."""
    hbm_read: int
    """Bytes read from HBM."""
    hbm_write: int
    """Bytes written to HBM."""
    l2_read: int
    """Bytes read between SMs and L2."""
    l2_write: int
    """Bytes written between SMs and L2."""
    compulsory: int
    """Bytes of its inputs and outputs, each once."""
    flops: int
    """Operations of matrix products."""
    time_s: float
    """Seconds on the GPU."""
    known: bool = True
    """True where there is a rule for it; else inputs and outputs are counted once."""
    is_attention: bool = False
    """True for attention."""

    @property
    def hbm(self) -> int:
        """Bytes read and written at HBM."""
        return self.hbm_read + self.hbm_write

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "module": ".".join(self.module)}


def events(rows: Sequence[OperatorTraffic], title: str) -> list[timeline.Event]:
    """Operators on one line of time, the modules that they stand in above them, and HBM's rate as a counter."""
    line = (1, 0)
    counters: list[timeline.Event] = []
    spans: list[list[Any]] = []
    open_modules: list[list[Any]] = []
    now = 0.0
    for row in rows:
        path = (row.phase, *row.module)
        both = zip(path, open_modules, strict=False)
        # Modules stay open while consecutive operators share them; the rest is closed, and new ones begin.
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1][0], both))
        del open_modules[shared:]
        open_modules += [[name, "module", line, now, now] for name in path[shared:]]
        spans += open_modules[shared:]
        values, seconds = row.to_dict(), max(row.time_s, 1e-12) * 1e9
        rates = {"read": row.hbm_read / seconds, "written": row.hbm_write / seconds}
        counters.append(timeline.counter("HBM GB/s", 1, now, rates))
        begin, now = now, now + row.time_s * US
        spans.append(
            [row.operator, row.phase, line, begin, now, {name: values[name] for name in IN_TRACE}]
        )
        for module in open_modules:
            module[-1] = now
    counters.append(timeline.counter("HBM GB/s", 1, now, {"read": 0, "written": 0}))
    named = [timeline.process(1, title), *timeline.row(1, 0, "modules and operators")]
    return [*named, *(timeline.span(*span) for span in spans), *counters]


@dataclass(frozen=True, repr=False)
class ProgramTraffic(Several[OperatorTraffic]):
    """What a program moves on one GPU, operator by operator, through one L2."""

    profile: HardwareProfile
    """The GPU."""
    rows: tuple[OperatorTraffic, ...]
    """The operators in the order in which they ran."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers should know, a sentence each."""

    @property
    def _members(self) -> tuple[OperatorTraffic, ...]:
        return self.rows

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
        return math.fsum(r.time_s for r in self.rows)

    @property
    def flops(self) -> int:
        """Operations of all matrix products."""
        return sum(r.flops for r in self.rows)

    @property
    def attention(self) -> ProgramTraffic:
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
        """The operators of one phase alone. Raises InputError: neither forward nor backward."""
        if name not in ("forward", "backward"):
            raise InputError(f"`phase` {name!r} is not known; accepted: forward, backward")
        return replace(self, rows=tuple(r for r in self.rows if r.phase == name))

    def table(self, depth: int = 2) -> Table:
        """A row per module, down to `depth` modules below the root, in the order in which they ran; the root is first. A
        module's rows below it add up to it: what ran in none of its children is `(own)`. Raises InputError: a depth
        below 0."""
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
            raise InputError(f"`depth` {depth!r} is out of range; accepted: 0 or more")
        paths = _paths(self.rows, depth)
        return self._summed(
            "module",
            (("  " * (len(path) - 1) + path[-1] if path else WHOLE, of) for path, of in paths),
        )

    def by_operator(self, limit: int | None = None) -> Table:
        """A row for each kind of operator and its phase, the most bytes at HBM first; all of them, or `most`."""
        # Attention is told apart by its kernel, any other operator by its name.
        kinds = grouped(
            self.rows, lambda r: (f"{r.operator} ({r.kernel})" if r.kernel else r.operator, r.phase)
        )
        order = sorted(kinds, key=lambda kind: -sum(r.hbm for r in kinds[kind]))
        return self._summed("operator", (("  ".join(kind), kinds[kind]) for kind in order[:limit]))

    def sums(self, rows: Sequence[OperatorTraffic]) -> dict[str, Any]:
        """Sums over some of the operators: their number, bytes and shares of all, operations and time."""
        part = replace(self, rows=tuple(rows))
        hbm_bytes = plain(
            hbm_read_bytes=part.hbm.read, hbm_write_bytes=part.hbm.write, hbm_bytes=part.hbm.total
        )
        shares = {"hbm_share": part.hbm.total / max(1, self.hbm.total)}
        shares |= {"compulsory_bytes": sum(row.compulsory for row in rows)}
        rest = plain(l2_bytes=part.l2.total, flops=part.flops, time_s=part.time_s) | {
            "time_share": part.time_s / (self.time_s or 1.0)
        }
        return {"operators": len(part)} | hbm_bytes | shares | rest

    def _summed(self, first: str, groups: Iterable[tuple[str, Sequence[OperatorTraffic]]]) -> Table:
        """A row per group."""
        sums = ((name, self.sums(group)) for name, group in groups)
        rows = (total | {first: name, "gflop": total["flops"] / 1e9} for name, total in sums)
        return Table.of(rows, (Column(first, first), *SUMMED[:-1]))

    def to_dict(self) -> dict[str, Any]:
        totals = {"totals": {"hbm": asdict(self.hbm), "l2": asdict(self.l2)}}
        return (
            plain(profile=self.profile.name)
            | totals
            | plain(
                flops=self.flops,
                time_s=self.time_s,
                operators=self.rows,
                unknown=self.unknown,
                notes=self.notes,
            )
        )

    def records(self) -> Iterator[dict[str, Any]]:
        return (row.to_dict() for row in self.rows)

    @property
    def answer(self) -> str:
        """One sentence: bytes at HBM, what part attention has, and what its inputs and outputs alone would come to."""
        once = sum(r.compulsory for r in self.rows)
        text = (
            f"{len(self.rows):,} operators on {self.profile.name} read {bytes_text(self.hbm.read)} from HBM and "
            f"write {bytes_text(self.hbm.write)}"
        )
        if once:
            text += f", {100 * self.hbm.total / once:.0f} % of their inputs and outputs ({bytes_text(once)})"
        attention = self.attention
        if attention.rows:
            kernels = (
                ", ".join(dict.fromkeys(r.kernel for r in attention.rows if r.kernel))
                or "decomposed"
            )
            share = 100 * attention.hbm.total / max(1, self.hbm.total)
            text += f"; attention ({kernels}) moves {bytes_text(attention.hbm.total)} of it, {share:.0f} %"
        return f"{text}; {seconds_text(self.time_s)}, {operations_text(self.flops)} in matrix products."

    def to_text(self) -> str:
        tables = f"{self.table(DEPTH).text()}\n{self.by_operator(MOST_ROWS).text()}\n"
        return f"{self.answer}\n\n{tables}" + "".join(f"note: {n}\n" for n in self._notes())

    def _line(self) -> str:
        rest = f"written {bytes_text(self.hbm.write)}; {seconds_text(self.time_s)}"
        return f"{len(self.rows):,} operators on {self.profile.name}: HBM read {bytes_text(self.hbm.read)}, {rest}"

    def _notes(self) -> tuple[str, ...]:
        return (*self.notes, f"evidence: {self.evidence}")

    def _parts(self) -> list[Part]:
        return [self.answer, self.table(DEPTH), self.by_operator(), self._notes()]

    def _panels(self) -> tuple[Panel, ...]:
        kinds = grouped(self.rows, lambda row: row.operator)
        by_name = {name: replace(self, rows=tuple(rows)).hbm for name, rows in kinds.items()}
        names = sorted(by_name, key=lambda name: -by_name[name].total)[:MOST_BARS]
        title = f"HBM bytes by operator on {self.profile.name}"
        both = {
            "read": [by_name[name].read for name in names],
            "written": [by_name[name].write for name in names],
        }
        return (stacked("operators", title, names, both, "HBM bytes", bytes_text),)

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write a trace for chrome://tracing or ui.perfetto.dev: modules above operators over predicted time, and the
        rate of HBM bytes. Raises InputError: the file cannot be written."""
        trace_events = events(self.rows, f"{self.profile.name} (predicted)")
        write_whole(Path(path), timeline.text(timeline.whole(trace_events, made_by="iosim.torch")))


def _paths(
    rows: Sequence[OperatorTraffic], depth: int
) -> list[tuple[tuple[str, ...], list[OperatorTraffic]]]:
    """Modules with what ran in them, a module before its children and they before what is its own, as far down as
    `depth` below the root."""
    # Every module holds what ran in its children; what ran in none of them gets a row "(own)".
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
    # A module's place is the first time that it ran; children follow their parent.
    order = sorted(
        inside, key=lambda path: tuple(place.get(path[:n], -1) for n in range(len(path) + 1))
    )
    return [(path, inside[path]) for path in order]


def traffic_of(
    program: Program, profile: HardwareProfile, notes: Sequence[str] = ()
) -> ProgramTraffic:
    """Play a program on a GPU, from a cold L2: what operators stream there, and what their replays find beyond."""
    playing = Playing(profile)
    code_bytes = model(profile).launch_fetch_bytes
    times: dict[tuple[int, tuple[Bytes, ...]], float] = {}
    rows: list[OperatorTraffic] = []
    kernels_run: set[str] = set()
    streams = playing.streamed(program)
    for operator, streamed in zip(progress("operators")(program.operators), streams, strict=True):
        call, beyond = playing.alone(operator)
        by_launch: dict[str, Bytes] = {}
        for name, (read, written) in streamed.items():
            more_read, more_written = beyond.get(name, (0, 0))
            # A kernel's instructions are fetched from HBM when it runs for the first time.
            kernel = f"{operator.name} {name}"
            code = 0 if kernel in kernels_run else code_bytes
            kernels_run.add(kernel)
            by_launch[name] = (max(0, read + more_read) + code, max(0, written + more_written))
        # Equal calls with equal bytes take equal times: a model has few distinct ones.
        key = id(call), tuple(by_launch.values())
        if key not in times:
            times[key] = call.time(call.counted + _at_hbm(by_launch)).total_s
        rows.append(
            OperatorTraffic(
                module=operator.module,
                operator=operator.name,
                phase=operator.phase,
                kernel=operator.kernel.name if operator.is_attention else "",
                launches=len(operator.chain.launches),
                hbm_read=sum(read for read, _ in by_launch.values()),
                hbm_write=sum(written for _, written in by_launch.values()),
                l2_read=int(call.counted.total("l2", "read")),
                l2_write=int(call.counted.total("l2", "write")),
                compulsory=operator.compulsory_bytes,
                flops=operator.flops,
                time_s=times[key],
                known=operator.known,
                is_attention=operator.is_attention,
            )
        )
    all_notes = dict.fromkeys(
        (*notes, *(note for operator in program.operators for note in operator.notes))
    )
    return ProgramTraffic(profile, tuple(rows), tuple(all_notes))


def _at_hbm(by_launch: Mapping[str, Bytes]) -> Traffic:
    """Each launch's HBM bytes as rows of traffic, tensors together."""
    return Traffic(
        tuple(
            TrafficRow(name, "hbm", "all", way, n)
            for name, both in by_launch.items()
            for way, n in zip(WAYS, both, strict=True)
        )
    )
