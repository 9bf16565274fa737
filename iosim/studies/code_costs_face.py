"""What the costs of a kernel's machine code look like: a table of loops by unit, and one of what costs more than it
need."""

from __future__ import annotations

from typing import Any

from iosim.base.records import plain
from iosim.base.units import seconds_text, some
from iosim.base.words import sentences
from iosim.show.page import Panel
from iosim.show.shown import Part
from iosim.show.tables import Column, Table
from iosim.studies.code_costs import CodeCosts

UNITS = {
    "issue": "issue slots",
    "fma": "fp32",
    "fmaheavy": "multiply",
    "alu": "integer",
    "xu": "exp",
    "tensor": "tensor",
    "lsu": "shared memory, L1",
    "from-l2": "from L2",
    "to-l2": "to L2",
}
"""Units by the names that people read; those without work in any loop are left out."""
LEAST_SAVED = 0.005
"""Part of the time from which on the sentence names a cost."""


def costs_answer(c: CodeCosts) -> str:
    """The sentence that comes first."""
    p = c.prediction
    sentence = f"{c.function.name} on {p.profile.name} takes {seconds_text(p.time_s)}, bound by {p.bound_by}"
    largest = [cost for cost in c.costs if cost.saved >= LEAST_SAVED]
    if largest:
        clauses = (
            f"without {cost.kind} ({cost.place}) {seconds_text(cost.time_without_s)}, {cost.saved:.0%} less"
            for cost in largest
        )
        listed = "; ".join(clauses)
        return sentences((sentence, listed[0].upper() + listed[1:]))
    if c.costs:
        return sentences(
            (
                sentence,
                " and ".join(f"{cost.kind} at {cost.place}" for cost in c.costs) + " cost no time",
            )
        )
    return sentences((sentence, "Nothing costs more than it need"))


def loop_table(c: CodeCosts) -> Table:
    """Cycles of a turn by unit; each row's busiest unit bounds it but for what is exposed."""
    # A unit that no loop uses has no column.
    used = [unit for unit in UNITS if any(loop.units.get(unit) for loop in c.loops)]
    rows: tuple[tuple[str | int | float | None, ...], ...] = tuple(
        (
            loop.name,
            loop.lines,
            loop.share,
            round(loop.turns, 1),
            loop.instructions,
            round(loop.cycles),
            *(round(loop.units.get(unit, 0.0)) for unit in used),
            round(loop.exposed),
        )
        for loop in c.loops
    )
    units = (Column(unit.replace("-", "_"), UNITS[unit], kind="count") for unit in used)
    columns = (
        Column("code", ""),
        Column("lines", ""),
        Column("share", "of the time", kind="percent"),
        Column("turns", kind="number"),
        Column("instructions", kind="count"),
        Column("cycles", "cycles a turn", kind="count"),
        *units,
        Column("exposed", kind="count"),
    )
    return Table(columns, rows)


def cost_table(c: CodeCosts) -> Table:
    """What costs more than it need, with the time without it."""
    rows = tuple(
        (cost.kind, cost.place, cost.detail, cost.time_without_s, cost.saved) for cost in c.costs
    )
    return Table(
        (
            Column("cost", ""),
            Column("place", "where"),
            Column("detail", "what"),
            Column("time_without_s", "time without"),
            Column("saved", "less", kind="percent"),
        ),
        rows,
    )


def as_text(c: CodeCosts, markdown: bool = False) -> str:
    """The tables below the answer."""
    p, f = c.prediction, c.function
    grid, block = ("x".join(map(str, sides)) for sides in (p.evaluated.grid, p.evaluated.block))
    head = (
        f"{f.name} on {p.profile.name}: grid {grid}, CTAs of {block}; {f.registers} registers, "
        f"{some(p.launch.occupancy.ctas_per_sm, 'CTA')} an SM; cycles of an SM with all of them"
    )
    written = Table.markdown if markdown else Table.text
    parts = [head, written(loop_table(c))]
    if c.costs:
        parts.append(written(cost_table(c)))
    notes = [f"note: {note}" for note in dict.fromkeys(c.notes)]
    return "\n\n".join([*parts, "\n".join(notes)])


def line(c: CodeCosts) -> str:
    return costs_answer(c)


def parts(c: CodeCosts) -> list[Part]:
    """What the text says, with its tables as tables."""
    tables = [loop_table(c), *([cost_table(c)] if c.costs else [])]
    return [costs_answer(c), *tables, tuple(dict.fromkeys(c.notes))]


def panels(c: CodeCosts) -> tuple[Panel, ...]:
    """No plots: the tables say all."""
    return ()


def as_dict(c: CodeCosts) -> dict[str, Any]:
    """As JSON has it."""
    p = c.prediction
    return {
        "kernel": {
            "name": c.function.name,
            "grid": list(p.evaluated.grid),
            "block": list(p.evaluated.block),
            "registers": c.function.registers,
            "frame_bytes": c.function.frame_bytes,
            "ctas_per_sm": p.launch.occupancy.ctas_per_sm,
        },
        "profile": p.profile.name,
        "time_s": p.time_s,
        "bound_by": p.bound_by,
        "loops": [
            plain(
                name=loop.name,
                lines=loop.lines,
                turns=loop.turns,
                instructions=loop.instructions,
                cycles=loop.cycles,
                exposed=loop.exposed,
                share=loop.share,
            )
            | {"units": dict(loop.units)}
            for loop in c.loops
        ],
        "costs": [
            plain(
                kind=cost.kind,
                place=cost.place,
                detail=cost.detail,
                time_without_s=cost.time_without_s,
                saved=cost.saved,
            )
            for cost in c.costs
        ],
        "notes": list(c.notes),
    }
