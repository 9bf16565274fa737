"""What a study of several GPUs looks like: its answer, its tables, and its page of what each GPU does when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iosim.base.units import bytes_text, seconds_text, some
from iosim.base.words import sentences
from iosim.prediction.answer import times_text
from iosim.problem.asked import up_to
from iosim.problem.attention import AttentionProblem
from iosim.show import axes
from iosim.show.axes import End, Part, alike, at_ends, bars
from iosim.show.page import Page, Panel, Section, Series
from iosim.show.tables import Column, Table
from iosim.studies.distributed.closed_forms import idle_of_unbalanced
from iosim.studies.distributed.links import TIMED_GPUS, longer_than_predicted
from iosim.studies.distributed.schedule import schedules
from iosim.studies.distributed.study import Result
from iosim.studies.distributed.timing import Timeline

HARDLY = 0.01
"""Share of the time below which communication is said to be hidden."""
NOTES = """\
  idle: (GPU, step) slots without work over all slots; idle/P^2: over the slots of the unbalanced schedule
  received: by an average GPU; Nd: in units of N x d, d the width of all query heads; megatron: the whole layer's
  computing: with adding up partial results; exposed: time beyond the busiest GPU's computation
  memory: attention alone, without weights and other activations
  longest: tokens that fit; of ulysses, all-gather, megatron and rsa no more than 16,777,216 are tried
"""
MAX_BARS = 5000
IDLE_GPUS = range(2, 33)

ON_TERMINAL = (
    Column("name", "method"),
    Column("steps", kind="count"),
    Column("idle_slots", "idle", kind="right"),
    Column("idle_of_unbalanced", "idle/P^2", kind="right"),
    Column("received_bytes_per_gpu", "received", kind="bytes"),
    Column("received_nd", "Nd", kind="number"),
    Column("compute_s", "computing"),
    Column("exposed_s", "exposed"),
    Column("time_s", "time"),
    Column("speedup", "speed-up", kind="number"),
    Column("memory_bytes_per_gpu", "memory", kind="bytes"),
    Column("longest_sequence", "longest", kind="count"),
)


def on_page(gpus: int) -> tuple[Column, ...]:
    """Columns of a page's table, which has room for the bytes of all GPUs beside those of one."""
    return (
        Column("name", "method"),
        Column("steps", kind="count"),
        Column("idle_slots", "idle slots"),
        Column("idle_of_unbalanced", "idle /P^2"),
        Column("received_bytes", f"received by all {gpus}"),
        Column("received_bytes_per_gpu", "by a GPU", kind="bytes"),
        Column("received_nd", "in Nd", kind="number"),
        Column("compute_s", "computing"),
        Column("exposed_s", "exposed"),
        Column("time_s", "time"),
        Column("speedup", "speed-up", kind="ratio"),
        Column("memory_bytes_per_gpu", "memory", kind="bytes"),
        Column("longest_sequence", "longest N", kind="count"),
    )


NAMES = (
    "Idle slots: (GPU, step) slots without work over all slots; /P^2: over those of the unbalanced schedule. Exposed: "
    "time beyond the busiest GPU's computing. Memory: attention alone, without weights and other activations."
)
_WORK = {"compute": "computation", "send": "message"}
_WORK_LEGEND = tuple(Series(name, axes.colour(n), "■") for n, name in enumerate(_WORK.values()))
_TIME_LEGEND = tuple(
    Series(name, axes.colour(n), "■") for n, name in enumerate(("computing", "exposed"))
)


def methods_answer(results: Sequence[Result], gpus: str, number: int) -> str:
    """The methods of a study over `gpus`, such as "8 x h100-sxm", a `number` of them: the fastest, what it waits for,
    and the others."""
    best = min(results, key=lambda r: r.seconds)
    first = (
        f"{best.name} is fastest of {len(results)} methods on"
        if len(results) > 1
        else f"{best.name} runs on"
    )
    parts = [
        f"{first} {gpus}: {seconds_text(best.seconds)}, {times_text(best.speedup)}x one GPU's speed"
    ]
    if best.idle is not None:
        parts[0] += f", {float(best.idle.slots):.0%} of the steps idle"
    hidden = (
        "hidden behind computation"
        if best.exposed_s <= HARDLY * best.seconds
        else (f"waiting {seconds_text(best.exposed_s)}")
    )
    parts.append(f"Each GPU receives {bytes_text(float(best.received_bytes))}, {hidden}")
    others = sorted((r for r in results if r is not best), key=lambda r: r.seconds)
    # Compared as texts: a difference that no digit shows is a tie.
    as_long = [times_text(r.seconds / best.seconds) for r in others]
    if others:
        named = f"{others[0].name} {'ties' if as_long[0] == '1' else f'takes {as_long[0]}x'}"
        if len(others) > 1:
            named += f"; {others[-1].name} (slowest) {as_long[-1]}x"
        parts.append(named)
    shortest_factor, longest_factor = longer_than_predicted(number)
    if longest_factor > shortest_factor:
        parts.append(f"Timed on {TIMED_GPUS} GPUs; eight may take {longest_factor:g}x")
    else:
        parts.append(f"Timed on {TIMED_GPUS} H200s")
    return sentences(parts)


def beneath(results: Sequence[Result], number: int, by_default: str = "") -> str:
    """What stands under the table: the longest sequence that fits, how much longer a `number` of GPUs may take, and the
    kernel that nobody asked for."""
    best = min(results, key=lambda r: r.seconds)
    longest = best.longest_sequence
    fits = "" if longest is None else f"With {best.name} {up_to(longest, number)} fit"
    shortest_factor, longest_factor = longer_than_predicted(number)
    eight = (
        f"Public times of eight GPUs are up to {longest_factor:g}x as long as predicted"
        if longest_factor > shortest_factor
        else ""
    )
    return sentences([fits, eight, by_default])


def methods_table(results: Sequence[Result], columns: Sequence[Column], gpus: int = 1) -> Table:
    rows = []
    for r in results:
        received = round(r.received_bytes)
        rows.append(r.row | {"received_bytes_per_gpu": received, "received_bytes": gpus * received})
    return Table.of(rows, columns)


def as_page(
    results: Sequence[Result], problem: AttentionProblem, gpus: int, subject: str, command: str
) -> Page:
    several = len(results) > 1
    title = (
        f"Which schedule suits attention over {gpus} GPUs?"
        if several
        else f"How long does {results[0].title} take over {gpus} GPUs?"
    )
    drawn = [r for r in results if r.timelines and len(r.timelines[0].events) <= MAX_BARS]
    last = max((r.timelines[0].total_s for r in drawn), default=0.0)
    work = Section(
        "work",
        "What each GPU does, forward",
        ("Computations of a GPU, and below them the messages that it sends. Gaps are idle time.",),
        _WORK_LEGEND if drawn else (),
        tuple(_gantt(r, n, last) for n, r in enumerate(drawn)),
        folded=several,
        most_across=1,
    )
    # The page compares clusters of different sizes: all GPUs' bytes stand beside one GPU's.
    whole = methods_table(results, on_page(gpus), gpus)
    summary = Section("summary", "Summary", (NAMES,), table=whole)
    idle = _idle_section(problem)
    sentence = methods_answer(results, some(gpus, "GPU"), gpus)
    time = _time_section(gpus, results)
    sections = tuple(
        s
        # Several methods: their times lead. One: what its GPUs do leads.
        for s in ((time, summary, work, idle) if several else (work, summary, idle))
        if s.panels or s.table
    )
    best = min(results, key=lambda r: r.seconds)
    verdict = (
        sentence.split(". ")[0] + ".",
        f"The {some(gpus, 'GPU')} receive {bytes_text(gpus * float(best.received_bytes))} in all.",
    )
    return Page(
        title,
        f"{subject}.",
        sections,
        command=command,
        answer=(sentence, beneath(results, gpus)),
        verdict=verdict,
    )


def _time_section(gpus: int, results: Sequence[Result]) -> Section:
    """Time and received bytes of each method side by side."""
    return Section(
        "time",
        "Time and bytes of one layer",
        (
            "Computing on the busiest GPU, and the time beyond it that "
            "messages are waited for; bytes that all GPUs of the cluster receive.",
        ),
        _TIME_LEGEND,
        (_time(results), _links(results, gpus)),
        most_across=2,
    )


def _idle_section(problem: AttentionProblem) -> Section:
    """Idle slots against the number of GPUs."""
    return Section(
        "idle",
        "Idle fraction by the number of GPUs",
        (
            "Idle (GPU, step) slots over the P x P slots of the unbalanced "
            "schedule, with no time for communication (arXiv 2310.03294, equation 2). Schedules that do not differ share a "
            "line.",
        ),
        panels=(_idle(problem),),
        folded=True,
    )


def _time(results: Sequence[Result]) -> Panel:
    """A bar per method, the fastest first."""
    ordered = sorted(results, key=lambda r: r.seconds)
    values = {
        "computing": [r.compute_s for r in ordered],
        "exposed": [r.exposed_s for r in ordered],
    }
    parts = []
    for n, (name, seconds) in enumerate(values.items()):
        hover = [
            f"{r.name}: {name} {seconds_text(s)}" for r, s in zip(ordered, seconds, strict=True)
        ]
        parts.append(Part(name, axes.colour(n), seconds, hover))
    readings = "; ".join(f"{r.name} {seconds_text(r.seconds)}" for r in ordered)
    return bars(
        "layer-1",
        "Time",
        f"Time of one layer: {readings}.",
        [r.name for r in ordered],
        parts,
        seconds_text,
    )


def _gantt(result: Result, n: int, last_s: float) -> Panel:
    """A row per GPU, on one time axis for all schedules."""
    timeline: Timeline = result.timelines[0]
    data = [_bars(timeline, "compute", 0), _bars(timeline, "send", 1)]
    busy = min(timeline.compute_s)
    alt = (
        f"{result.title}: {seconds_text(timeline.total_s)} forward; the GPU with least work computes for "
        f"{seconds_text(busy)}; GPUs do not compute in {timeline.idle_fraction:.1%} of their time."
    )
    y = axes.axis("GPU", autorange="reversed", dtick=max(1, timeline.gpus // 8))
    x = axes.axis("time (ms)", range=[0, 1.03e3 * last_s])
    return Panel(
        f"time-{n}",
        f"{result.title}, {seconds_text(timeline.total_s)}",
        alt,
        tuple(data),
        axes.layout(x, y, barmode="overlay", bargap=0.25),
        min(26.0, 5.5 + timeline.gpus),
    )


def _bars(timeline: Timeline, kind: str, n: int) -> dict[str, Any]:
    events = [e for e in timeline.events if e.kind == kind]
    text = [
        f"GPU {e.gpu}, step {e.step}: {e.label}"
        + (f" to GPU {e.target}, {bytes_text(e.bytes)}" if e.bytes else "")
        + f", {seconds_text(e.end_s - e.start_s)}"
        for e in events
    ]
    computes = kind == "compute"
    return axes.bar(
        _WORK[kind],
        [round(1e3 * (e.end_s - e.start_s), 6) for e in events],
        [e.gpu for e in events],
        text,
        n,
        orientation="h",
        base=[round(1e3 * e.start_s, 6) for e in events],
        # Wide bars for computations, thin ones below them for messages.
        width=0.62 if computes else 0.16,
        offset=-0.42 if computes else 0.24,
        marker={
            "color": axes.colour(n),
            "line": {"width": 0.7 if computes else 0, "color": "#f7f8fa"},
        },
    )


def _idle(problem: AttentionProblem) -> Panel:
    causal = problem.mask == "causal"
    by_name = {
        name: [float(idle_of_unbalanced(name, gpus, causal)) for gpus in IDLE_GPUS]
        for name in schedules(causal)
    }
    data, readings, ends = [], [], []
    for n, names in enumerate(alike(by_name)):
        values, name = by_name[names[0]], " and ".join(names)
        hover = [
            f"{name}, {some(gpus, 'GPU')}: {idle_of_unbalanced(names[0], gpus, causal)}"
            for gpus in IDLE_GPUS
        ]
        data.append(axes.line(name, list(IDLE_GPUS), values, hover, n))
        ends.append(
            End(name.replace(" and ", " +<br>"), values[-1], axes.colour(n), axes.symbol(n)[1])
        )
        readings.append(f"{name} {values[0]:.3g} at 2 GPUs, {values[-1]:.3g} at 32")
    y = axes.linear_axis(
        [v for values in by_name.values() for v in values], "idle fraction", lambda v: f"{v:.3g}"
    )
    y["range"] = [-0.03 * y["range"][1], y["range"][1]]
    x = axes.axis(
        "GPUs", range=[1, IDLE_GPUS[-1] + 1], tickvals=[2, *range(4, IDLE_GPUS[-1] + 1, 4)]
    )
    return Panel(
        "idle-1",
        "causal" if causal else "no mask",
        f"Idle fraction: {'; '.join(readings)}.",
        tuple(data),
        axes.layout(x, y, **at_ends(ends, y)),
    )


def _links(results: Sequence[Result], gpus: int) -> Panel:
    ordered = sorted(results, key=lambda r: r.seconds)
    values = [gpus * float(r.received_bytes) for r in ordered]
    hover = [
        f"{r.name}: {bytes_text(v)}, {bytes_text(v / gpus)} per GPU, {r.received_nd:.4g} Nd"
        for r, v in zip(ordered, values, strict=True)
    ]
    part = Part("received", axes.colour(2), values, hover)
    title = f"Received by all {gpus} GPUs"
    return bars(
        "links-1",
        title,
        f"{title}: {'; '.join(hover)}.",
        [r.name for r in ordered],
        [part],
        bytes_text,
    )
