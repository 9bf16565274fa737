"""What a program's traffic looks like: its line, its text, tables by module and by operator, and bars."""

from __future__ import annotations

from iosim.base.units import bytes_text, seconds_text
from iosim.show import axes
from iosim.show.page import Panel
from iosim.show.shown import Part
from iosim.studies.program.result import ProgramTraffic

DEPTH = 2
MOST_BARS, MOST_ROWS = 12, 5


def line(t: ProgramTraffic) -> str:
    """Operators, bytes and time."""
    return (f"{len(t.rows):,} operators on {t.profile.name}: HBM read {bytes_text(t.hbm.read)}, written "
            f"{bytes_text(t.hbm.write)}; {seconds_text(t.time_s)}")  # fmt: skip


def answer(t: ProgramTraffic) -> str:
    """One sentence: bytes at HBM, what part attention has, and what its inputs and outputs alone would come to."""
    once = sum(r.compulsory for r in t.rows)
    text = (f"{len(t.rows):,} operators on {t.profile.name} read {bytes_text(t.hbm.read)} from HBM and write "
            f"{bytes_text(t.hbm.write)}")  # fmt: skip
    if once:
        text += f", {100 * t.hbm.total / once:.0f} % of their inputs and outputs ({bytes_text(once)})"
    attention = t.attention
    if attention.rows:
        kernels = ", ".join(dict.fromkeys(r.kernel for r in attention.rows if r.kernel)) or "decomposed"
        share = 100 * attention.hbm.total / max(1, t.hbm.total)
        text += f"; attention ({kernels}) moves {bytes_text(attention.hbm.total)} of it, {share:.0f} %"
    return f"{text}; {seconds_text(t.time_s)}, {t.flops / 1e9:,.1f} GFLOP in matrix products."


def text(t: ProgramTraffic) -> str:
    """The answer, the table by module, the operators that move most, the notes."""
    tables = f"{t.table(DEPTH).text()}\n{t.by_operator(MOST_ROWS).text()}\n"
    return f"{answer(t)}\n\n{tables}" + "".join(f"note: {n}\n" for n in notes(t))


def notes(t: ProgramTraffic) -> tuple[str, ...]:
    """What a reader should know, and what the model rests on."""
    return (*t.notes, f"evidence: {t.evidence}")


def parts(t: ProgramTraffic) -> list[Part]:
    """The answer, tables by module and by operator, the notes."""
    return [answer(t), t.table(DEPTH), t.by_operator(), notes(t)]


def panels(t: ProgramTraffic) -> tuple[Panel, ...]:
    """HBM bytes by kind of operator, read and written."""
    sums: dict[str, list[int]] = {}
    for row in t.rows:
        mine = sums.setdefault(row.operator, [0, 0])
        mine[0] += row.hbm_read
        mine[1] += row.hbm_write
    names = sorted(sums, key=lambda n: -sum(sums[n]))[:MOST_BARS]
    data, readings = [], []
    for n, word in enumerate(("read", "written")):
        values = [sums[name][n] for name in names]
        hover = [f"{name} {word}<br>{bytes_text(v)}" for name, v in zip(names, values, strict=True)]
        data.append(axes.bar(word, names, values, hover, n))
        readings += [f"{name} {word} {bytes_text(v)}" for name, v in zip(names, values, strict=True)]
    y = axes.linear_axis((sum(sums[name]) for name in names), "HBM bytes", bytes_text)
    title = f"HBM bytes by operator on {t.profile.name}"
    return (Panel("operators", title, f"{title}: {', '.join(readings)}.", tuple(data),
                  axes.layout(axes.category_axis(names), y, barmode="stack")),)  # fmt: skip
