"""What a model's attention looks like: its line, its tables, bars of its bytes by kind of layer."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import bytes_text, seconds_text, some
from iosim.prediction.estimates import legend, marked
from iosim.prediction.face import body
from iosim.show import axes
from iosim.show.page import Panel
from iosim.show.shown import Part
from iosim.show.tables import Cell, Column, Table
from iosim.studies.models.answer import answer
from iosim.studies.models.prediction import ModelPrediction

COLUMNS = (
    Column("layer", "layer"), Column("count", "layers", "count"), Column("sees", "a query sees"),
    Column("kernel", "kernel"), Column("l2_bytes", "SM<->L2", "bytes"), Column("hbm_bytes", "HBM", "bytes"),
    Column("time_s", "time", "seconds"), Column("share", "of the time"), Column("bound_by", "bound by"),
    Column("kv_cache_bytes", "KV cache", "bytes"),
)  # fmt: skip


def line(result: ModelPrediction) -> str:
    """The model, the time and the bytes."""
    hbm = f", reads HBM {bytes_text(result.hbm.read)}" if result.hbm_known else ""
    tokens = f"{result.queries:,} x {some(result.keys, 'token')}"
    took = f"attention of {some(result.model.layers, 'layer')} {seconds_text(result.time_s)}"
    return f"{result.model.title} on {result.profile.name}, {tokens}: {took}{hbm}"


def text(result: ModelPrediction) -> str:
    """As the command line prints it."""
    return several([result])


def several(results: Sequence[ModelPrediction]) -> str:
    """The answer; of each result the table by kind of layer; what one layer of each kind does."""
    parts = [answer(results), results[0].model.line + "."]
    for one in results:
        parts.append(f"{heading(one)}\n{table(one).text().rstrip()}")
    told = notes(results)
    parts.append("\n".join(f"note: {note}" for note in told))
    for one in results:
        for layer in one.layers:
            parts.append(f"{layer.kind.title}. {body(layer.prediction)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(result: ModelPrediction) -> str:
    """What a table is of."""
    queries = "" if result.queries == result.keys else f"{result.queries:,} x "
    return f"{result.profile.name}, batch {result.batch}, {queries}{some(result.keys, 'token')}"


def table(result: ModelPrediction) -> Table:
    """A row a kind of layer, all its layers together, and one of all."""
    rows: list[tuple[Cell, ...]] = []
    for one in result.layers:
        p = one.prediction
        hbm = one.count * p.total("hbm") if p.hbm_known else None
        seconds = one.count * p.time_s
        rows.append((one.kind.name, one.count, one.kind.sees, p.kernel.name, one.count * p.l2.total, marked(hbm, p),
                     seconds, f"{seconds / result.time_s:.0%}", p.bound_by, one.cache_bytes))  # fmt: skip
    if len(rows) > 1:
        hbm = result.total("hbm") if result.hbm_known else None
        rows.append(("all", result.model.layers, "", "", result.l2.total, marked(hbm, *result.predictions),
                     result.time_s, "100%", "", result.cache_bytes))  # fmt: skip
    return Table(COLUMNS, tuple(rows))


def notes(results: Sequence[ModelPrediction]) -> tuple[str, ...]:
    """What was read of the model, and what marks mean."""
    told = legend(p for one in results for p in one.predictions)
    return (*([] if told is None else [told]), *results[0].model.all_notes)


def parts(result: ModelPrediction) -> list[Part]:
    """The answer, the model, the table and the notes."""
    return [answer([result]), f"{result.model.line}.", table(result), notes([result])]


def panels(result: ModelPrediction) -> tuple[Panel, ...]:
    """Bytes by kind of layer, a plot a level."""
    shown = []
    for level, title in (("hbm", "HBM"), ("l2", "SM<->L2")):
        if level == "hbm" and not result.hbm_known:
            continue
        names = [one.kind.name for one in result.layers]
        data, readings = [], []
        for n, (direction, word) in enumerate((("read", "read"), ("write", "written"))):
            values = [one.count * one.prediction.total(level, direction) for one in result.layers]
            hover = [f"{name} layers {word}<br>{bytes_text(v)}" for name, v in zip(names, values, strict=True)]
            data.append(axes.bar(word, names, values, hover, n))
            readings += [f"{name} {word} {bytes_text(v)}" for name, v in zip(names, values, strict=True)]
        heading_ = f"{title} bytes of all layers of a kind: {result.model.title} on {result.profile.name}"
        sums = [one.count * one.prediction.total(level) for one in result.layers]
        layout = axes.layout(axes.category_axis(names), axes.linear_axis(sums, f"{title} bytes", bytes_text),
                             barmode="stack")  # fmt: skip
        shown.append(Panel(level, heading_, f"{heading_}: {', '.join(readings)}.", tuple(data), layout))
    return tuple(shown)
