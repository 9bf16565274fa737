"""What a map of what fits looks like: its text, its table, its heat map."""

from __future__ import annotations

from iosim.base.units import bytes_text, some
from iosim.show.page import Panel
from iosim.show.shown import Part
from iosim.show.tables import Table
from iosim.studies.training.answer import frontier_answer
from iosim.studies.training.frontier import Frontier
from iosim.studies.training.page import frontier_panel


def line(limits: Frontier) -> str:
    """The axis, the GPU and the longest sequences."""
    ends = f"{limits.axis} {limits.values[0]:,} to {limits.values[-1]:,}"
    return f"{limits.profile.name}, {ends}: longest {limits.longest[0]:,} to {some(limits.longest[-1], 'token')}"


def said(limits: Frontier) -> str:
    """The answer in one sentence."""
    return frontier_answer(limits, limits.profile.name, limits.setup.attention)


def text(limits: Frontier) -> str:
    """As the command line prints it."""
    return f"{said(limits)}\n\n{head(limits)}\n\n{table(limits).text()}"


def parts(limits: Frontier) -> list[Part]:
    """The answer, what the numbers are, the map."""
    return [said(limits), head(limits), table(limits)]


def panels(limits: Frontier) -> tuple[Panel, ...]:
    """The heat map."""
    return (frontier_panel(limits),)


def head(limits: Frontier) -> str:
    """What the table's numbers are."""
    setup = limits.setup
    return (f"Peak memory in GB on {limits.profile.name} ({bytes_text(limits.capacity_bytes)}; x does not fit), by "
            f"{limits.axis} and tokens: {setup.attention} attention, {setup.precision}, optimizer {setup.optimizer}, "
            f"recompute {setup.recompute}")  # fmt: skip


def table(limits: Frontier) -> Table:
    """Peak gigabytes, a row a value of the axis and a column a length, and the longest sequence that fits."""
    return Table.of(
        {limits.axis: f"{v:,}"} | {some(n, "token"): f"{p / 1e9:.2f}{'' if p <= limits.capacity_bytes else ' x'}"
                           for n, p in zip(limits.seq_lens, row, strict=True)} | {"longest": f"{longest:,}"}
        for v, row, longest in zip(limits.values, limits.peak_bytes, limits.longest, strict=True)
    )  # fmt: skip
