"""What serving calls look like: text, tables."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import seconds_text, some
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


MODEL_COLUMNS = (
    Column("stack", "stack"), Column("gpu", "gpu"), Column("layer", "layer"), Column("layers", "layers", "count"),
    Column("time_s", "time of a step", "seconds"), Column("share", "share"),
)  # fmt: skip


def of_models(found: Latencies) -> Table:
    """A row for each kind of a model's layers, and one for all of them."""
    rows = []
    for step in found.models:
        head = (step.points[0].stack.name, step.points[0].prediction.profile.name)
        for p in step.points:
            if p.layers is not None:
                seconds = p.total_s * p.layers.count
                rows.append((*head, p.layers.name, p.layers.count, seconds, f"{100 * seconds / step.total_s:.0f} %"))
        rows.append((*head, "all", step.count, step.total_s, "100 %"))
    return Table(MODEL_COLUMNS, tuple(rows))


def notes(points: Sequence[Latency]) -> tuple[str, ...]:
    """What the times assume."""
    told = dict.fromkeys(f"assumed: {sentence}" for p in points for sentence in p.assumes)
    between = ("each layer finds in the L2 what its own call left there; --l2 cold: nothing of it is left",)
    told |= dict.fromkeys(
        between if any(p.layers is not None and p.prediction.l2_start == "warm" for p in points) else ()
    )
    of_kernels = dict.fromkeys(note for p in points for note in p.prediction.kernel.notes)
    missing = dict.fromkeys(note for p in points for note in p.prediction.time.missing)
    return (*told, *of_kernels, *missing)


def line(found: Latencies) -> str:
    """Stacks, and the longest call."""
    names = ", ".join(dict.fromkeys(p.stack.name for p in found))
    return f"{names}; {some(len(found), 'call')} up to {seconds_text(max(p.total_s for p in found))}"


def text(found: Latencies) -> str:
    """As the command line prints it."""
    below = "".join(f"note: {n}\n" for n in notes(found.points))
    together = f"By kind of layer\n{of_models(found).text()}\n" if found.models else ""
    return (
        f"{answer(found.points, found.models)}\n\n{table(found.points).text()}\n{together}{below}"
        if together
        else (f"{answer(found.points)}\n\n{table(found.points).text()}{below}")
    )


def parts(found: Latencies) -> list[ShownPart]:
    """The answer, a row a part, the assumptions."""
    together = [of_models(found)] if found.models else []
    return [answer(found.points, found.models), table(found.points), *together, notes(found.points)]


def panels(found: Latencies) -> tuple[Panel, ...]:
    """No plots."""
    return ()
