"""The figure of a choice between GPUs: cost or energy against the time of a call, with ranges; and how amounts are
written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from iosim.base.units import joules_text, seconds_text, some
from iosim.show import axes
from iosim.show.page import Figure, Panel, Series
from iosim.show.tables import Cell, Column, Table
from iosim.studies.compare.choice import FRONTIERS, MILLION, Amount, Choice, Option


def dollars_text(dollars: float) -> str:
    """0.1404 -> "$0.14", 1234.5 -> "$1,234"."""
    return f"${dollars:,.0f}" if dollars >= 100 else f"${dollars:.3g}"


TEXT: dict[str, Callable[[float], str]] = {
    "time_s": seconds_text,
    "energy_j": joules_text,
    "dollars": dollars_text,
}


def ranged(amount: Amount | None, text: Callable[[float], str]) -> str:
    if amount is None:
        return "not known"
    return text(amount.value) + (
        f" ({text(amount.range[0])} to {text(amount.range[1])})" if amount.range else ""
    )


def unit(choice: Choice, quantity: str) -> str:
    """How many tokens the numbers that are shown are of: dollars of a million of a model's, or of a billion of one
    attention call's, which has but one layer."""
    if quantity != "dollars":
        return "per token"
    return "per billion tokens" if choice.model is None else "per million tokens"


def amount(choice: Choice, option: Option, quantity: str) -> Amount | None:
    """Joules or dollars of one option, of as many tokens as `unit` says."""
    of_token = option.a_token(quantity)
    if of_token is None or quantity != "dollars":
        return of_token
    return of_token.times(1000 * MILLION if choice.model is None else MILLION)


def tokens_text(length: tuple[int, int]) -> str:
    queries, keys = length
    return some(queries, "token") if queries == keys else f"{queries:,} x {keys:,} tokens"


def figure(choice: Choice, word: str) -> Figure | None:
    """Cost or energy against the time of a call, a panel per length, with the frontier as a line; None where it is known
    of nothing that fits."""
    quantity, gpus = FRONTIERS[word], list(dict.fromkeys(o.gpu.label for o in choice.options))
    text, axis_title = TEXT[quantity], f"{word} {unit(choice, quantity)}"
    panels = []
    rows: list[tuple[Cell, ...]] = []
    for number, length in enumerate(choice.lengths, 1):
        of_length = sorted((o for o in choice.at(length) if o.fits), key=lambda o: o.time_s.value)
        # Sorted by time, so that the frontier can be drawn as one line.
        known = [(o, y.value) for o in of_length if (y := amount(choice, o, quantity)) is not None]
        if not known:
            continue
        front = [(o.time_s.value, y) for o, y in known if word in o.frontier]
        data = [
            axes.guide("frontier", [x for x, _ in front], [y for _, y in front], "frontier", "dot")
        ]
        for n, gpu in enumerate(gpus):
            data += _ranges(choice, gpu, known, n, quantity)
            data += _series(choice, gpu, known, n, quantity, text)
        title = tokens_text(length)
        values = [end for o, _ in known for end in _ends(choice, o, quantity)]
        panels.append(_length_panel(axis_title, data, known, number, text, title, word, values))
        rows += _frontier_rows(known, text, title, word)
    if not panels:
        return None
    drawn = {gpu for _, gpu, *_ in rows}
    legend = tuple(
        Series(gpu, axes.colour(n), axes.symbol(n)[1]) for n, gpu in enumerate(gpus) if gpu in drawn
    )
    left_out = tuple(
        f"{gpu}: {word} is not known, or memory too small" for gpu in gpus if gpu not in drawn
    )
    caption = (
        "Down and left is better; beside each point stands its batch. Of a point on the dotted line, the frontier, no "
        f"other is better in time or {word} and no worse in the other. Upright lines are ranges: where those of two "
        "GPUs overlap, which of them is better is not certain."
    )
    columns = _frontier_columns(axis_title, word)
    table, by = Table(columns, tuple(rows)), ("gpu", "batch")
    title = f"Time against {word}"
    return Figure(
        word, title, caption, table, tuple(panels), legend, "length", (word,), left_out, by
    )


def _frontier_columns(
    axis_title: str, word: str
) -> tuple[Column, Column, Column, Column, Column, Column, Column]:
    """The columns of the figure's table."""
    return (
        Column("length", "tokens"),
        Column("gpu", "GPU"),
        Column("kernel"),
        Column("batch", kind="count"),
        Column("time_s", "time per call"),
        Column(word, axis_title, kind="right"),
        Column("frontier"),
    )


def _length_panel(
    axis_title: str,
    data: list[dict[str, Any]],
    known: list[tuple[Option, float]],
    number: int,
    text: Callable[[float], str],
    title: str,
    word: str,
    values: Sequence[float],
) -> Panel:
    """The panel of one length, with `values` on its upright axis."""
    readings = "; ".join(
        f"{o.gpu.label} batch {o.work.batch}: {seconds_text(o.time_s.value)}, {text(y)}"
        for o, y in known
    )
    x = axes.log_axis([o.time_s.value for o, _ in known], "time per call", seconds_text)
    layout = axes.layout(x, axes.log_axis(values, axis_title, text))
    return Panel(f"{word}-{number}", title, f"{title}: {readings}.", tuple(data), layout)


def _frontier_rows(
    known: list[tuple[Option, float]], text: Callable[[float], str], title: str, word: str
) -> list[tuple[str | int | float | None, ...]]:
    """A row of the table per point."""
    return [
        (
            title,
            o.gpu.label,
            o.kernel,
            o.work.batch,
            o.time_s.value,
            text(y),
            "yes" if word in o.frontier else "",
        )
        for o, y in known
    ]


def _ends(choice: Choice, option: Option, quantity: str) -> tuple[float, float]:
    """The range of an option's quantity, known or not."""
    of_option = amount(choice, option, quantity)
    assert of_option is not None
    return of_option.ends


def _ranges(
    choice: Choice, gpu: str, known: list[tuple[Option, float]], n: int, quantity: str
) -> list[dict[str, Any]]:
    """An upright line for each of a GPU's points, from the lower to the upper end of its range."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for o, _ in known:
        low, high = _ends(choice, o, quantity)
        if o.gpu.label == gpu and low < high:
            xs += [o.time_s.value, o.time_s.value, None]
            ys += [low, high, None]
    line = axes.line(gpu, xs, ys, [""] * len(xs), n, mode="lines")
    return [line | {"line": {"color": axes.colour(n), "width": 1.5}}] if xs else []


def _series(
    choice: Choice,
    gpu: str,
    known: list[tuple[Option, float]],
    n: int,
    quantity: str,
    text: Callable[[float], str],
) -> list[dict[str, Any]]:
    """A GPU's points against time, each with its batch beside it; nothing where it has none."""
    mine = [(o, y) for o, y in known if o.gpu.label == gpu]
    batches = [f" {o.work.batch}" for o, _ in mine]
    hover = [
        f"{gpu}, {o.kernel}, batch {o.work.batch}<br>{seconds_text(o.time_s.value)}, {text(y)} "
        f"{unit(choice, quantity)}"
        for o, y in mine
    ]
    points = axes.line(gpu, [o.time_s.value for o, _ in mine], [y for _, y in mine], batches, n)
    texts = {
        "hovertext": hover,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "cliponaxis": False,
    }
    return (
        [{**points, **texts, "mode": "markers+text", "textposition": "middle right"}]
        if mine
        else []
    )
