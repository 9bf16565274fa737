"""What a checked claim looks like: its answer, and the counts that agree with it."""

from __future__ import annotations

from iosim.evidence.claims.check import MOST_SHOWN, Check
from iosim.show.shown import Face, shows
from iosim.show.tables import Column, Table


def line(c: Check) -> str:
    said = c.matches[0].reading.counts if c.matches else f"none of {c.tried} counts"
    return f"{c.claim.text} ({c.claim.quantity}) matches {said}"


def head(c: Check) -> str:
    return f"{c.claim.text} within {100 * c.tolerance:.2g} % of" if c.matches else f"{c.claim.text}: the nearest count"


def table(c: Check) -> Table:
    columns = (Column("counts", "what it may count"), Column("direction", "direction"), Column("value", "value"),
               Column("error", "claim is off by"), Column("slips", "if it is"),
               Column("why", "why a counter differs"))  # fmt: skip
    listed = c.matches[:MOST_SHOWN] or (c.nearest,)
    rows = (
        (m.reading.counts, m.reading.direction or None, c.text(m.reading.value), f"{100 * m.error:+.2f} %",
         "; ".join(m.reading.slips) or "as asked", m.reading.why or None)
        for m in listed
    )  # fmt: skip
    return Table(columns, tuple(rows))


def as_text(c: Check) -> str:
    left = len(c.matches) - min(len(c.matches), MOST_SHOWN)
    more = f"and {left} more; --format json has all\n" if left > 0 else ""
    return f"{head(c)}\n\n{table(c).text()}{more}"


shows(Check, Face(line, lambda c: f"{c.answer()}\n\n{as_text(c)}", lambda c: [c.answer(), head(c), table(c)]))
