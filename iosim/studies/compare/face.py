"""What a comparison looks like: its answer, its text, its tables, and its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from iosim.base.errors import InputError
from iosim.base.units import bytes_text, seconds_text
from iosim.base.words import Level
from iosim.prediction.face import LEVEL_NAMES
from iosim.prediction.predictor import planned, predict
from iosim.prediction.replays import tile_accesses
from iosim.prediction.result import Prediction, marked
from iosim.show import axes
from iosim.show.axes import Beside, bars
from iosim.show.axes import Part as BarPart
from iosim.show.page import Figure, Page, Panel, Series, listed
from iosim.show.shown import Part, panels_of
from iosim.show.tables import Cell, Column, ColumnKind, Table
from iosim.show.tables import grouped as grouped_by
from iosim.studies.compare.lines import (
    FROM,
    WHO,
    call_time,
    hbm_traffic,
    l2_traffic,
    memory_footprint,
    who,
)
from iosim.studies.compare.overview import overview
from iosim.studies.compare.page import SideBySide, numbers
from iosim.studies.compare.points import ALWAYS_SAID, Point
from iosim.studies.compare.sentences import LEVELS, further, subject, verdicts
from iosim.studies.compare.study import GROUPS, Comparison, Entry, by_group

QUICK_ACCESSES = 5_000_000
"""Tile accesses up to which a problem is replayed with a key/value head per query head, too: a quarter of a second."""
SAME = 1e-3
"""Bytes between SMs and L2 that differ by less are said to be the same."""
TITLE = "Which kernel moves the fewest bytes?"
COLUMNS = (
    Column("gpu", "GPU"),
    Column("kernel"),
    Column("seq_q", "N", kind="count"),
    Column("tile"),
    Column("smem_bytes", "shared memory"),
    Column("l2_bytes", "SM<->L2"),
    Column("hbm_bytes", "HBM"),
    Column("time_s", "time"),
    Column("bound_by", "bound by"),
    Column("peak_bytes", "peak"),
    Column("workspace_bytes", "workspace"),
    Column("fits", colours={"no": "red"}),
    Column("l2_ratio", "x less L2", kind="number"),
    Column("hbm_ratio", "x less HBM", kind="number"),
    Column("time_ratio", "x faster", kind="number"),
    Column("memory_ratio", "x less memory", kind="number"),
    Column("reason", "cannot run"),
)
BY_PROBLEM = (COLUMNS[2], *COLUMNS[:2], *COLUMNS[3:])
"""With the length first, under which rows are grouped."""


def answer(comparison: Comparison) -> str:
    """A line for each GPU."""
    return "\n".join(verdicts(comparison.points, comparison.baseline.kernel))


def beneath(comparison: Comparison) -> tuple[str, ...]:
    """What stands under the answer: more for each GPU, and a line on grouped heads where the problem has them."""
    lines = [*further(comparison.points, comparison.baseline.kernel)]
    longest = max(p.seq_len for p in comparison.points)
    # Grouped heads are told by a kernel other than the baseline, which writes its scores to memory.
    tiled = [
        p
        for p in comparison.points
        if p.seq_len == longest and p.kernel != comparison.baseline.kernel
    ]
    example = (tiled or [p for p in comparison.points if p.seq_len == longest])[0].prediction
    with suppress(InputError):  # of a kernel that runs groups alone
        lines += [grouped(example)] if example.problem.group > 1 else []
    lines += dict.fromkeys(
        f"On {p.profile.name} HBM's bytes hold check bits of ECC: {bytes_text(p.check_bits.total)} of {p.kernel.name}'s."
        for p in (point.prediction for point in comparison.points if point.seq_len == longest)
        if p.hbm_known and p.check_bits.total
    )
    return tuple(lines)


def grouped(p: Prediction) -> str:
    """What its key/value heads save against one a query head, between SMs and L2 and at HBM."""
    problem = p.problem.with_(kv_heads=p.problem.heads)
    call = planned(problem, p.kernel.name, p.profile)
    ratio = f"GQA {p.problem.group}:1" if p.problem.kv_heads > 1 else f"MQA {p.problem.group}:1"
    moved_bytes, alone = p.total("l2"), int(call.counted.total("l2"))
    change = f"the SM<->L2 bytes of {p.kernel.name} from {bytes_text(alone)} to {bytes_text(moved_bytes)}"
    if abs(alone - moved_bytes) <= SAME * moved_bytes:
        rereads = f"each query head reads K and V again ({bytes_text(moved_bytes)} in all)"
        l2 = f"{ratio} does not change the SM<->L2 bytes of {p.kernel.name}: {rereads}"
    elif moved_bytes < alone:
        l2 = f"{ratio} lowers {change}: query heads of a group share what is read"
    else:
        l2 = f"{ratio} raises {change}"
    # A second replay, with a key/value head per query head, only where it takes under a second.
    if not p.hbm_known or tile_accesses(call.chain) > QUICK_ACCESSES:
        key_bytes = p.chain.tensors["K"].bytes
        return f"{l2}; K itself has {bytes_text(key_bytes)} in place of {bytes_text(call.chain.tensors['K'].bytes)}."
    ungrouped = predict(problem, p.kernel.name, p.profile, l2_start=p.l2_start, method=p.method)
    before, after = (
        int(prediction.traffic.total("hbm", "read", tensor="K")) for prediction in (ungrouped, p)
    )
    verb = "falls" if after < before else "goes"
    return f"{l2}; what HBM reads of K {verb} from {bytes_text(before)} to {bytes_text(after)}."


def summary(entries: Sequence[Entry], columns: Sequence[Column] = COLUMNS) -> Table:
    """Every entry in one row, what cannot run included. `peak` counts the workspace."""
    table = Table.of(map(_entry_row, entries), columns)
    known = any(e.point is not None and e.point.smem for e in entries)
    return table if known else table.without("smem_bytes")


def _entry_row(e: Entry) -> dict[str, Any]:
    if e.point is None:
        return e.to_dict() | {"tile": "cannot run"}
    level_bytes = {
        "smem_bytes": e.point.smem,
        "l2_bytes": e.point.l2,
        "hbm_bytes": e.point.hbm_shown,
    }
    return e.to_dict() | level_bytes | {"hbm_ratio": e.shown("hbm"), "reason": ""}


def tensors(entries: Sequence[Entry], level: Level) -> Table:
    """A row per prediction: bytes by group of tensors, for groups that any of them has."""
    by_entry: list[tuple[Entry, dict[str, float | None]]] = []
    for e in entries:
        if e.point is not None:
            p = e.point.prediction
            by_entry.append(
                (
                    e,
                    {
                        g: marked(n, p) if level == "hbm" else n
                        for g, n in by_group(p, level).items()
                    },
                )
            )
    used = [g for g in GROUPS if any(g in groups for _, groups in by_entry)]
    columns = (Column("gpu", "GPU"), Column("kernel"), *(Column(g, kind="bytes") for g in used))
    rows = ((e.gpu, e.kernel, *(groups.get(g) for g in used)) for e, groups in by_entry)
    return Table(columns, tuple(rows) if used else ())


def as_text(comparison: Comparison) -> str:
    further_lines = "\n".join(beneath(comparison))
    parts = [
        answer(comparison),
        *([further_lines] if further_lines else []),
        subject(comparison.request),
        ratios(comparison),
    ]
    for n in comparison.request.lengths:
        # Per length: a row per kernel and GPU, then bytes by tensor at each level.
        of_length, *by_tensor = _tables(comparison, n)
        parts += [f"N = {n:,}", of_length[1].text().rstrip()]
        parts += [f"{heading}\n{table.text().rstrip()}" for heading, table in by_tensor]
    parts += [comparison.legend] if comparison.legend else []
    return "\n\n".join([*parts, *closing(missing(comparison), notes(comparison))]) + "\n"


def _tables(comparison: Comparison, length: int) -> list[tuple[str, Table]]:
    entries = [e for e in comparison.entries if e.seq_len == length]
    by_tensor = (
        (f"{name} bytes by tensor", tensors(entries, level)) for level, name in LEVEL_NAMES.items()
    )
    times = [e.point.time_s for e in entries if e.point is not None]
    whole = (
        summary(entries).without("seq_q", "reason").winning("time_s", [min(times)] if times else [])
    )
    first = (f"N = {length:,}", whole)
    return [first, *((heading, table) for heading, table in by_tensor if table.rows)]


def ratios(comparison: Comparison) -> str:
    return f"Ratios: {comparison.baseline} over the row's; above 1, this row is better."


def notes(comparison: Comparison) -> list[str]:
    return [n for n in comparison.notes if ALWAYS_SAID not in n]


def missing(comparison: Comparison) -> list[str]:
    several = len(comparison.request.lengths) > 1
    at = (f" at N = {e.seq_len:,}" if several else "" for e in comparison.missing)
    entries = zip(comparison.missing, at, strict=True)
    return list(dict.fromkeys(f"{e.kernel} on {e.gpu}{n}: {e.reason}" for e, n in entries))


def closing(missing: Sequence[str], notes: Sequence[str]) -> list[str]:
    """What stands at the end of a text: what cannot run, and notes; none where there are none."""
    cannot = ["\n".join(["Cannot run:", *(f"  {line}" for line in missing)])] if missing else []
    return [*cannot, "\n".join(f"note: {note}" for note in notes)] if notes else cannot


def as_page(comparison: Comparison, command: str = "iosim compare") -> Page:
    # One line for all lengths at which a kernel fails for the same reason.
    alike = grouped_by(comparison.missing, lambda e: (e.kernel, e.gpu, e.reason))
    missing = []
    for (kernel, gpu, reason), entries in alike.items():
        missing.append(
            f"{kernel} on {gpu} (N = {'; '.join(f'{e.seq_len:,}' for e in entries)}): {reason}"
        )
    runnable = tuple(e for e in comparison.entries if e.point is not None)
    table = summary(runnable, BY_PROBLEM).without("reason")
    page = SideBySide(
        comparison,
        comparison.points,
        TITLE,
        comparison.baseline.kernel,
        figures(comparison),
        under=beneath(comparison),
        tables=(
            numbers(comparison, "Side by side", table, (ratios(comparison),)),
            *listed("missing", "Cannot run", missing),
        ),
        closing=listed("notes", "Notes", comparison.notes, folded=True),
        reading=(LEVELS,),
    )
    return page.page(command, comparison.commands)


def panels(comparison: Comparison) -> tuple[Panel, ...]:
    return panels_of(as_page(comparison))


def line(comparison: Comparison) -> str:
    request = comparison.request
    lengths = ", ".join(f"{n:,}" for n in request.lengths)
    return f"{', '.join(request.kernels)} on {', '.join(g.label for g in request.gpus)} at {lengths} tokens"


def parts(comparison: Comparison) -> list[Part]:
    sentences = (*answer(comparison).split("\n"), *beneath(comparison))
    result: list[Part] = [*sentences, subject(comparison.request), ratios(comparison)]
    for n in comparison.request.lengths:
        result += [part for both in _tables(comparison, n) for part in both]
    return [*result, tuple(missing(comparison)), tuple(notes(comparison))]


T = TypeVar("T")
Text = Callable[[float], str]


def figures(comparison: Comparison) -> tuple[Figure, ...]:
    """Bytes of both levels first. Lines against the length where there are several lengths, else bars; a lone bar is
    not drawn, for the table says as much."""
    request, points = comparison.request, comparison.points
    kernels_by_gpu = grouped_by(
        dict.fromkeys((e.gpu, e.kernel) for e in comparison.entries), lambda pair: pair[0]
    )
    drawn = [
        overview(
            request,
            points,
            {gpu: [kernel for _, kernel in pairs] for gpu, pairs in kernels_by_gpu.items()},
        )
    ]
    # Several lengths draw lines; one length draws bars; one prediction draws its parts alone.
    if len(request.lengths) > 1:
        drawn += [
            draw(request, points) for draw in (l2_traffic, hbm_traffic, call_time, memory_footprint)
        ]
    elif len(points) > 1:
        quantities: list[tuple[str, str, Text]] = [
            ("time", "time", seconds_text),
            ("memory", "peak bytes", bytes_text),
        ]
        drawn += [bars_of(comparison, *quantity) for quantity in quantities]
    drawn.append(stacked(comparison, "l2", "SM<->L2"))
    return (
        (*drawn, stacked(comparison, "hbm", "HBM")) if request.method != "bounds" else tuple(drawn)
    )


def bars_of(comparison: Comparison, quantity: str, title: str, text: Text) -> Figure:
    """One quantity, a panel per GPU and a bar per kernel; what is missing has no bar."""
    known = [e for e in comparison.entries if e.value(quantity) is not None]
    kind: ColumnKind = "seconds" if quantity == "time" else "bytes"
    columns = (
        *WHO,
        Column(quantity, title, kind=kind),
        Column("ratio", f"{comparison.baseline} over it", kind="ratio"),
        FROM,
    )
    rows = _bar_rows(known, quantity)
    # One scale for the panels of all GPUs: bars compare across them.
    top = max(e.value(quantity) or 0.0 for e in known)
    kernels = comparison.request.kernels
    panels = []
    for n, (gpu, members) in enumerate(_panels([(e.gpu, e.kernel, e) for e in known]), 1):
        values = [e.value(quantity) or 0.0 for _, e in members]
        hover = [
            f"{e.kernel} on {e.gpu}<br>{text(v)}" for (_, e), v in zip(members, values, strict=True)
        ]
        part = BarPart(
            title, [axes.colour(kernels.index(e.kernel)) for _, e in members], values, hover
        )
        readings = "; ".join(
            f"{name} {text(v)}" for (name, _), v in zip(members, values, strict=True)
        )
        panels.append(
            bars(
                f"{quantity}-{n}",
                gpu,
                f"{title}, {gpu}: {readings}.",
                [name for name, _ in members],
                [part],
                text,
                beside=Beside(top, len(kernels)),
            )
        )
    heading = title[0].upper() + title[1:]
    return Figure(
        quantity,
        heading,
        f"{heading} of one call.",
        Table(columns, tuple(rows)),
        tuple(panels),
        (),
        "seq_q",
        (quantity, "ratio"),
        most_across=2,
    )


def _bar_rows(known: list[Entry], quantity: str) -> list[tuple[str | int | float | None, ...]]:
    """A row per bar, with the command lines that give its numbers."""
    rows: list[tuple[Cell, ...]] = []
    for e in known:
        assert e.point is not None
        ids = dict.fromkeys(p.id for p in (e.point, e.baseline) if p is not None)
        value = e.point.hbm_shown if quantity == "hbm" else e.value(quantity)
        rows.append((*who(e.point), value, e.shown(quantity), " ".join(ids)))
    return rows


def _panels(bars_there: Sequence[tuple[str, str, T]]) -> list[tuple[str, list[tuple[str, T]]]]:
    # A panel per GPU, unless each would hold one bar: then one panel for all.
    by_gpu = grouped_by(bars_there, lambda entry: entry[0])
    if all(len(members) == 1 for members in by_gpu.values()):
        return [("", [(f"{gpu}, {kernel}", bar) for gpu, kernel, bar in bars_there])]
    return [(gpu, [(kernel, bar) for _, kernel, bar in members]) for gpu, members in by_gpu.items()]


def stacked(comparison: Comparison, level: Level, word: str) -> Figure:
    points = [p for p in comparison.points if p.seq_len == comparison.request.lengths[-1]]
    parts = {p.id: by_group(p.prediction, level) for p in points}
    used = [g for g in GROUPS if any(g in part for part in parts.values())]
    columns = (
        *WHO,
        Column("group", "tensors"),
        Column("bytes", f"{word} bytes", kind="bytes"),
        FROM,
    )
    rows = tuple((*who(p), g, n, p.id) for p in points for g, n in parts[p.id].items())
    top = float(max((sum(part.values()) for part in parts.values()), default=0))
    panels = []
    for n, (gpu, members) in enumerate(_panels([(p.gpu.label, p.kernel, p) for p in points]), 1):
        data = [_part(g, [p for _, p in members], parts) for g in used]
        listed_parts = {
            p.id: ", ".join(f"{g} {bytes_text(v)}" for g, v in parts[p.id].items())
            for _, p in members
        }
        readings = "; ".join(f"{name}: {listed_parts[p.id]}" for name, p in members)
        panels.append(
            bars(
                f"parts-{level}-{n}",
                gpu,
                f"{word} bytes by tensor, {gpu}: {readings}.",
                [name for name, _ in members],
                data,
                bytes_text,
                beside=Beside(top, len(comparison.request.kernels)),
            )
        )
    legend = tuple(Series(g, axes.colour(GROUPS.index(g)), "■") for g in used)
    at = (
        f", at N = {comparison.request.lengths[-1]:,}"
        if len(comparison.request.lengths) > 1
        else ""
    )
    return Figure(
        f"parts-{level}",
        f"{word} bytes by tensor{at}",
        f"What the {word} bytes are for. A pass over the scores stands with the bias, mask or dropout it is for.",
        Table(columns, rows),
        tuple(panels),
        legend,
        "group",
        ("bytes",),
        most_across=2,
    )


def _part(group: str, points: Sequence[Point], parts: dict[str, dict[str, int]]) -> BarPart:
    values = [parts[p.id].get(group) for p in points]
    hover = [
        f"{p.kernel}, {group}<br>{bytes_text(v)}" if v else ""
        for p, v in zip(points, values, strict=True)
    ]
    return BarPart(group, axes.colour(GROUPS.index(group)), values, hover)
