"""What serving calls look like: text, tables."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import count_text, seconds_text
from iosim.show.page import Panel
from iosim.show.shown import Part as ShownPart
from iosim.show.tables import Column, Table
from iosim.studies.latency.answer import answer
from iosim.studies.latency.latency import Latencies, Latency

COLUMNS = (
    Column("stack", "stack"), Column("gpu", "gpu"), Column("kernel", "kernel"), Column("batch", "batch", "count"),
    Column("seq_q", "new tokens", "count"), Column("seq_k", "keys", "count"), Column("part", "part"),
    Column("time_s", "time", "seconds"), Column("share", "share"),
)  # fmt: skip


def table(points: Sequence[Latency]) -> Table:
    """A row a part, and one a call."""
    rows = []
    for p in points:
        each = p.prediction.problem.sequences
        keys = {k for _, k in each}
        head = (p.stack.name, p.prediction.profile.name, p.prediction.kernel.name, len(each),
                p.prediction.problem.longest_q, max(keys))  # fmt: skip
        for part in p.parts:
            rows.append((*head, part.name, part.seconds, f"{100 * part.seconds / p.total_s:.0f} %"))
        rows.append((*head, "whole call", p.total_s, "100 %"))
    return Table(COLUMNS, tuple(rows))


def notes(points: Sequence[Latency]) -> tuple[str, ...]:
    """What the times assume."""
    told = dict.fromkeys(f"assumed: {sentence}" for p in points for sentence in p.assumes)
    of_kernels = dict.fromkeys(note for p in points for note in p.prediction.kernel.notes)
    missing = dict.fromkeys(note for p in points for note in p.prediction.time.missing)
    return (*told, *of_kernels, *missing)


def line(found: Latencies) -> str:
    """Stacks, and the longest call."""
    names = ", ".join(dict.fromkeys(p.stack.name for p in found))
    return f"{names}; {count_text(len(found))} calls up to {seconds_text(max(p.total_s for p in found))}"


def text(found: Latencies) -> str:
    """As the command line prints it."""
    below = "".join(f"note: {n}\n" for n in notes(found.points))
    return f"{answer(found.points)}\n\n{table(found.points).text()}{below}"


def parts(found: Latencies) -> list[ShownPart]:
    """The answer, a row a part, the assumptions."""
    return [answer(found.points), table(found.points), notes(found.points)]


def panels(found: Latencies) -> tuple[Panel, ...]:
    """No plots."""
    return ()
