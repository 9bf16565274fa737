"""A formula with what is to be said of it, and what it looks like: its text, its tables, and no plots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iosim.base.units import bytes_text
from iosim.show.shown import Face, Part, Shown, shows
from iosim.show.tables import Column, Table

if TYPE_CHECKING:
    import pandas

    from iosim.readers.formula.symbolic import Formula

COLUMNS = (Column("launch", "launch"), Column("tensor", "tensor"), Column("direction", "direction"),
           Column("formula", "formula"), Column("bytes", "bytes", "count"))  # fmt: skip


@dataclass(frozen=True, repr=False)
class FormulaStudy(Shown):
    """A formula and what is to be said of it."""

    formula: Formula
    """The SymPy expressions, by launch, tensor and direction, in bytes."""
    description: Mapping[str, Any]
    """The command line's `formula` object: rows, totals, the leading term, the limit, symbols and conditions."""

    def to_dict(self) -> dict[str, Any]:
        """The command line's `formula` object."""
        return dict(self.description)

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a DataFrame: launch, tensor, direction, the formula as text and LaTeX, and its bytes."""
        return Table.of(self.description["traffic"]).to_pandas()

    @property
    def latex(self) -> str:
        """The bytes read and written, as LaTeX."""
        return " + ".join(self.description["totals"][way]["latex"] for way in ("read", "write"))


def line(study: FormulaStudy) -> str:
    """What it is the formula of, and its leading term."""
    d = study.description
    return f"{d['kernel']}, {d['pass']}, mask {d['mask']}: SM<->L2 bytes, leading term {d['leading']['text']}"


def text(study: FormulaStudy) -> str:
    """As the command line prints it."""
    return f"{answer(study.description)}\n\n{table(study.description, 'text')}"


def parts(study: FormulaStudy) -> list[Part]:
    """A row a tensor, the leading term, the limit and the symbols."""
    d = study.description
    rows = [{**row, "formula": row["text"]} for row in _rows(d, "all launches")]
    symbols = [f"{_value(s)}: {s['meaning']}" for s in d["symbols"]]
    return [
        answer(d), _title(d), Table(COLUMNS, tuple(tuple(row[c.key] for c in COLUMNS) for row in rows)),
        f"leading term: {d['leading']['text']}", _limit_text(d, "text"),
        tuple(d["why"]["text"].splitlines()) if d["why"] else (), tuple(symbols),
    ]  # fmt: skip


def _value(symbol: Mapping[str, Any]) -> str:
    """A symbol, with its number where that is known."""
    return f"{symbol['symbol']}" if symbol["value"] is None else f"{symbol['symbol']} = {symbol['value']:,}"


def _title(description: Mapping[str, Any]) -> str:
    return f"{description['kernel']}, {description['pass']}, mask {description['mask']}: bytes between SMs and L2"


def _rows(description: Mapping[str, Any], all_launches: str) -> list[dict[str, Any]]:
    """A row a launch, tensor and direction, and the totals."""
    totals = description["totals"].items()
    return [
        *description["traffic"],
        *({"launch": all_launches, "tensor": "total", "direction": way, **entry} for way, entry in totals),
    ]


def answer(description: Mapping[str, Any]) -> str:
    """One sentence: the bytes where every size is given, else what they grow with, against the paper's term."""
    name = f"{description['kernel']}, {description['pass']}, mask {description['mask']},"
    read, written = (description["totals"][way]["bytes"] for way in ("read", "write"))
    theta = description["theta"]
    blocks = f" with blocks of {theta['blocks']} rows" if theta["blocks"] else ""
    grows = (f"grow as {description['leading']['text']}:{blocks} {theta['ratio']['text']} times the {theta['text']} "
             f"elements a head of {theta['source']}")  # fmt: skip
    if read is None or written is None:
        return f"The SM<->L2 bytes of {name} {grows}; HBM bytes depend on the L2 and have no closed form."
    return (f"{name} moves {bytes_text(read + written)} between SMs and L2 ({bytes_text(read)} read, "
            f"{bytes_text(written)} written), which {grows}.")  # fmt: skip


def _limit_text(description: Mapping[str, Any], key: str) -> str:
    theta = description["theta"]
    blocks = f" with blocks of {theta['blocks']} rows" if theta["blocks"] else ""
    return f"leading term{blocks} / ({theta['text']} elements a head, {theta['source']}) = {theta['ratio'][key]}"


def table(description: Mapping[str, Any], key: str) -> str:
    """The whole text, its formulas under `key`: text or latex."""
    lines = [
        _title(description),
        "",
    ]
    launch = None
    rows = _rows(description, "all launches")
    wide = max(len(r["tensor"]) for r in rows)
    for r in rows:
        if r["launch"] != launch:
            launch = r["launch"]
            lines.append(launch)
        number = "" if r["bytes"] is None else f"{r['bytes']:,}"
        formula = r[key] if r["bytes"] is None else number
        lines.append(f"  {r['tensor']:<{wide}}  {r['direction']:<5}  {formula}")
    lines += ["", f"leading term: {description['leading'][key]}", _limit_text(description, key)]
    if description["sparse"]:
        from iosim.readers.formula.theory import beside_text

        lines.append(beside_text(description["sparse"]))
    if description["why"]:
        lines += ["", description["why"]["text"]]
    lines += ["", "where"]
    for s in description["symbols"]:
        lines.append(f"  {_value(s)}: {s['meaning']}")
    if "FloorSum(" in "".join(r["text"] for r in rows):
        lines.append("  ClippedFloorSum(n, m, a, b, h): sum over 0 <= i < n of min(h, max(0, floor((a i + b) / m)))")
    if description["conditions"]:
        lines.append("holds where " + " and ".join(description["conditions"]))
    return "\n".join(lines) + "\n"


def markdown(description: Mapping[str, Any], latex: bool) -> str:
    """The whole as Markdown."""

    def cell(entry: dict[str, Any]) -> str:
        return f"${entry['latex']}$" if latex else f"`{entry['text']}`"

    rows = [{**row, "formula": cell(row)} for row in _rows(description, "all")]
    table = Table(COLUMNS, tuple(tuple(row[c.key] for c in COLUMNS) for row in rows))
    lines = [
        f"### {_title(description)}",
        "",
        table.markdown(),
        f"Leading term: {cell(description['leading'])}",
        "",
        _limit_text(description, "text"),
        "",
    ]
    if description["why"]:
        first, *rest = description["why"]["text"].splitlines()
        lines += [f"{first[0].upper()}{first[1:]}:", "", *(f"- {line.strip()}" for line in rest), ""]
    lines += [f"- `{s['symbol']}`: {s['meaning']}" for s in description["symbols"]]
    return "\n".join(lines) + "\n"


shows(FormulaStudy, Face(line, text, parts))
