"""A study of several GPUs as a page: what each GPU does when, idle fractions and link bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iosim.base.units import bytes_text, seconds_text
from iosim.problem.attention import AttentionProblem
from iosim.show import axes
from iosim.show.page import Page, Panel, Section
from iosim.show.tables import Cell, Column, Table
from iosim.studies.distributed.answer import answer
from iosim.studies.distributed.closed_forms import idle_of_unbalanced
from iosim.studies.distributed.schedule import schedules
from iosim.studies.distributed.study import Result
from iosim.studies.distributed.timing import Timeline

MAX_BARS = 5000
IDLE_GPUS = range(2, 33)

COLUMNS = (
    Column("name", "method"), Column("steps", "steps", "count"), Column("idle_slots", "idle slots"),
    Column("idle_of_unbalanced", "idle slots / P^2"), Column("received_bytes_per_gpu", "received by a GPU", "bytes"),
    Column("received_nd", "in Nd", "number"), Column("compute_s", "computing", "seconds"),
    Column("exposed_s", "exposed", "seconds"), Column("time_s", "time", "seconds"),
    Column("speedup", "speed-up over one GPU", "ratio"), Column("memory_bytes_per_gpu", "memory of a GPU", "bytes"),
    Column("longest_sequence", "longest sequence", "count"),
)  # fmt: skip


def table(results: Sequence[Result]) -> Table:
    """One row a method."""
    rows: list[tuple[Cell, ...]] = []
    for r in results:
        rows.append((
            r.name, r.steps, str(r.idle.slots) if r.idle else None, str(r.idle.of_unbalanced) if r.idle else None,
            round(r.received_bytes), r.received_nd, r.compute_s, r.exposed_s, r.seconds, r.speedup, r.memory_bytes,
            r.longest_sequence,
        ))  # fmt: skip
    return Table(COLUMNS, tuple(rows))


def as_page(results: Sequence[Result], problem: AttentionProblem, gpus: int, subject: str, command: str) -> Page:
    """The whole page. `command` is the command line that makes it again."""
    drawn = [r for r in results if r.timelines]
    bars = tuple(_gantt(r, n) for n, r in enumerate(drawn) if _drawable(r))
    bars_are = "Computations of a GPU as bars, forward; a lighter bar is a message that it sends. Gaps are idle time."
    idle_is = ("Idle (GPU, step) slots over the P x P slots of the unbalanced schedule, with no time for communication "
               "(arXiv 2310.03294, equation 2).")  # fmt: skip
    links_are = "In units of N x d, d the width of all query heads."
    sections = [
        Section("summary", "Summary", table=table(results)),
        Section("time", "What each GPU does", (bars_are,), panels=bars),
        Section("idle", "Idle fraction by the number of GPUs", (idle_is,), panels=(_idle(problem),)),
        Section("links", "Bytes that a GPU receives", (links_are,), panels=(_links(results),)),
    ]
    shown = tuple(s for s in sections if s.panels or s.table)
    said = answer(results, f"{gpus} GPUs")
    return Page(f"Attention over {gpus} GPUs", subject, shown, command=command, answer=(said,))


def _drawable(result: Result) -> bool:
    return len(result.timelines[0].events) <= MAX_BARS


def _gantt(result: Result, n: int) -> Panel:
    timeline: Timeline = result.timelines[0]
    data = [_bars(timeline, kind, n, opacity) for kind, opacity in (("compute", 0.9), ("send", 0.35))]
    busy = min(timeline.compute_s)
    alt = (f"{result.title}: {seconds_text(timeline.total_s)} forward; the GPU with least work computes for "
           f"{seconds_text(busy)}; GPUs do not compute in {timeline.idle_fraction:.1%} of their time.")  # fmt: skip
    y = axes.axis("GPU", autorange="reversed", dtick=max(1, timeline.gpus // 8))
    layout = axes.layout(axes.axis("time (ms)"), y, barmode="overlay", bargap=0.25)
    return Panel(f"time-{n}", result.title, alt, tuple(data), layout)


def _bars(timeline: Timeline, kind: str, n: int, opacity: float) -> dict[str, Any]:
    events = [e for e in timeline.events if e.kind == kind]
    text = [
        f"GPU {e.gpu}, step {e.step}: {e.label}" + (f" to GPU {e.target}, {bytes_text(e.bytes)}" if e.bytes else "")
        + f", {seconds_text(e.end_s - e.start_s)}" for e in events
    ]  # fmt: skip
    colour = axes.colour(n) if kind == "compute" else axes.NEUTRAL
    return axes.bar(
        kind, [round(1e3 * (e.end_s - e.start_s), 6) for e in events], [e.gpu for e in events], text, n,
        orientation="h", base=[round(1e3 * e.start_s, 6) for e in events], opacity=opacity,
        width=0.8 if kind == "compute" else 0.3, marker={"color": colour, "line": {"width": 0.5}},
    )  # fmt: skip


def _idle(problem: AttentionProblem) -> Panel:
    causal = problem.mask == "causal"
    data, readings = [], []
    for n, name in enumerate(schedules(causal)):
        values = [float(idle_of_unbalanced(name, gpus, causal)) for gpus in IDLE_GPUS]
        hover = [f"{name}, {gpus} GPUs: {idle_of_unbalanced(name, gpus, causal)}" for gpus in IDLE_GPUS]
        data.append(axes.line(name, list(IDLE_GPUS), values, hover, n))
        readings.append(f"{name} {values[0]:.3g} at 2 GPUs, {values[-1]:.3g} at 32")
    layout = axes.layout(axes.axis("GPUs"), axes.axis("idle fraction", rangemode="tozero"), **axes.LEGEND_ABOVE)
    return Panel(
        "idle-1", "causal" if causal else "no mask", f"Idle fraction: {'; '.join(readings)}.", tuple(data), layout
    )


def _links(results: Sequence[Result]) -> Panel:
    values = [round(r.received_nd, 6) for r in results]
    text = [f"{r.name}: {bytes_text(float(r.received_bytes))}, {r.received_nd:.4g} Nd" for r in results]
    data = axes.bar("received", [r.name for r in results], values, text, 0,
                    marker={"color": [axes.colour(n) for n in range(len(results))]})  # fmt: skip
    layout = axes.layout(axes.axis("method"), axes.axis("Nd", rangemode="tozero"))
    return Panel("links-1", "one layer, an average GPU", f"Bytes received: {'; '.join(text)}.", (data,), layout)
