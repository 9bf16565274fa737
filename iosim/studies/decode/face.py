"""What a decoding study shows: its sentences, tables and plots against the context.

Tokens per second with the bound that the keys and values set, a panel per GPU; bytes from and to HBM per generated
token, and the splits that the kernel chose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from iosim.base.records import plain
from iosim.base.units import bytes_text, count_text, per_second_text, seconds_text, some, times_of
from iosim.base.words import listed as listed_words
from iosim.prediction.answer import ONCE, times_text
from iosim.prediction.confidence import in_dtype
from iosim.prediction.result import legend, marked
from iosim.problem.asked import found_to_fit
from iosim.show import axes
from iosim.show.axes import End, Part, alike, at_ends, bars, layered
from iosim.show.page import PLOT_REM, Panel, Section, Series
from iosim.show.tables import Column, Table, grouped, spread_out
from iosim.studies.decode.decode import (
    DecodePoint,
)
from iosim.studies.decode.picking import CONTEXTS as PICKED_CONTEXTS
from iosim.studies.decode.picking import Picking

TITLE = "How many tokens per second does attention allow while generating?"


TOKENS_ARE = (
    "All sequences together, if attention were all there is.",
    "The time of a step stands at the end of each line. K/V bound: HBM delivers the kept keys and values, and nothing "
    "else takes time.",
)


WORK = "splits and work of each sequence"


HOLLOW = "Hollow marks: the cache, with the weights where they are known, does not fit in the GPU's memory."


NOT_THERE = "; does not fit"


MORE_IS = "GPUs and kernels that do not differ share a line."


BOUND = "K/V bound"


LINES = (Series("attention", axes.NEUTRAL, dash="solid"), Series(BOUND, axes.NEUTRAL, dash="dot"))


AXES_REM, END_REM = 5.0, 2.0


MOST_SAID = 4
"""GPUs and kernels whose step stands above the figure; of more, the shortest and the longest."""


MOST_SHORT = 3
"""Contexts in the table of Markdown."""


MOST_OPEN = 12
"""Rows of a table that is not folded away."""


NOTE = (
    "attention of all layers alone; a step makes one new token of every sequence, or as many as were asked for. K/V "
    "bound: tokens per second if HBM delivered the kept keys and values and nothing else took time."
)


IN_MEMORY = (
    "in the bytes that the device reports; a process's context and its libraries take some, too"
)


FITS = {
    True: f"fits: the cache and the weights, {IN_MEMORY}",
    False: f"fits: the cache alone, {IN_MEMORY}; a model's weights are counted with --model where its config says them",
}
"""What fits, with the weights and without."""


COLUMNS = (
    Column("gpu"),
    Column("kernel"),
    Column("batch", kind="count"),
    Column("context", kind="count"),
    Column("step_s", "step"),
    Column("tokens_per_s", "tokens/s", kind="per_second"),
    Column("bound_tokens_per_s", "K/V bound", kind="per_second"),
    Column("bound_by", "bound by"),
    Column("splits", kind="count"),
    Column("cache_bytes", "cache"),
    Column("weight_bytes", "weights"),
    Column("fits", colours={"no": "red"}),
    Column("hbm_bytes_per_token", "HBM/token", kind="bytes"),
    Column("l2_bytes_per_token", "SM<->L2/token", kind="bytes"),
)


KIND_COLUMNS = (
    Column("gpu"),
    Column("kernel"),
    Column("batch", kind="count"),
    Column("layer"),
    Column("count", "layers", kind="count"),
    Column("sees", "a query sees"),
    Column("cache_bytes", "cache"),
    Column("hbm_bytes_per_token", "HBM/token", kind="bytes"),
    Column("step_s", "of the step"),
    Column("share", "of the time"),
    Column("bound_by", "bound by"),
)


WORK_COLUMNS = (
    Column("gpu"),
    Column("kernel"),
    Column("context", kind="count"),
    Column("sequences", kind="count"),
    Column("splits", kind="count"),
    Column("keys_per_split", "keys per split", kind="count"),
    Column("work_tiles", "work tiles", kind="count"),
)


Value = Callable[[DecodePoint], float | None]


def more_section(points: Sequence[DecodePoint]) -> Section:
    """Bytes and splits against the context, folded."""
    return Section(
        "more",
        "Bytes and splits",
        (MORE_IS,),
        panels=(
            _panel(
                "bytes",
                points,
                "HBM bytes per generated token",
                lambda p: p.per_token("hbm"),
                bytes_text,
            ),
            _panel(
                "splits",
                points,
                "splits of the keys",
                lambda p: float(p.prediction.kernel.splits),
                count_text,
            ),
        ),
        folded=True,
    )


def headline(points: Sequence[DecodePoint]) -> int:
    """The longest context that fits on every GPU and that the model has positions for; of those that none has, the
    longest that fits somewhere, and else the longest."""
    # In order of preference: within the model's positions and fitting on every GPU, fitting on one,
    # any.
    has = [
        p for p in points if p.model is None or p.context <= (p.model.most_tokens or p.context)
    ] or [*points]
    lacks = {p.context for p in has if p.fits is False}
    fitting = [p.context for p in has if p.context not in lacks] or [
        p.context for p in has if p.fits is not False
    ]
    return max(fitting or [p.context for p in has])


def work(points: Sequence[DecodePoint]) -> Table | None:
    """What a launch does for each sequence of a batch, a row a context; None where all have one length."""
    batches = [p for p in points if p.prediction.problem.seq_lens is not None]
    rows = (
        plain(gpu=p.prediction.profile.name, kernel=p.kernel_name) | sequence
        for p in batches
        for sequence in p.sequences
    )
    return Table.of(rows, WORK_COLUMNS) if batches else None


def _point_row(p: DecodePoint) -> dict[str, Any]:
    row = p.to_dict() | {"gpu": p.prediction.profile.name, "l2_bytes_per_token": p.per_token("l2")}
    return row | {"hbm_bytes_per_token": marked(p.per_token("hbm"), *p.predictions)}


def kinds_table(points: Sequence[DecodePoint]) -> Table | None:
    """A row per kind of layer at the longest context; None where there is one kind."""
    longest = headline(points)
    rows = [
        _point_row(part)
        | plain(layer=kind.name, count=kind.count, sees=kind.sees)
        | {"share": f"{part.step_s / p.step_s:.0%}"}
        for p in points
        if p.model is not None and p.context == longest and len(p.kinds) > 1
        for kind, part in zip(p.model.all_kinds, p.kinds, strict=True)
    ]
    if not rows:
        return None
    kinds = Table.of(rows, KIND_COLUMNS)
    return kinds if len({p.batch for p in points}) > 1 else kinds.without("batch")


def kinds_title(points: Sequence[DecodePoint]) -> str:
    return f"By kind of layer, at a context of {headline(points):,} tokens"


def where_text(p: DecodePoint) -> str:
    if p.prediction.problem.seq_lens is None:
        return f"At {some(p.context, 'token')} of context"
    keys = [keys for _, keys in p.prediction.problem.sequences]
    return (
        f"With {some(len(keys), 'sequence')} of {min(keys):,} to {max(keys):,} tokens in one launch"
    )


def step_text(p: DecodePoint) -> str:
    dtype = in_dtype(p.prediction.problem, p.prediction.profile)
    who = f"{p.kernel_name} on {p.prediction.profile.name}{dtype}"
    step_tokens = "one token" if p.tokens == 1 else some(p.tokens, "token")
    bound = f", bound by {p.prediction.time.bound_by}"
    if p.bound_tokens_per_s is not None:
        share = 100 * p.tokens_per_s / p.bound_tokens_per_s
        bound = f", {share:.0f} % of HBM's bound"
    fits = "" if p.fits is not False else ", over its memory"
    most = None if p.model is None else p.model.most_tokens
    past = f", past its {most:,} positions" if most is not None and p.context > most else ""
    rate = f"{_rate(p)}{bound}{fits}{past}"
    return f"{who} takes {seconds_text(p.step_s)} per step of {step_tokens}: {rate}"


def reads(p: DecodePoint, several: bool) -> Iterator[str]:
    """What a step reads of the cache, and what does not fit; `several` batches are told apart."""
    batch = f" at batch {p.batch}" if several else ""
    read = p.per_token("hbm", "read")
    who = f"{p.kernel_name} on {p.prediction.profile.name}{batch}"
    if read is not None:
        check_bits = p.check_bits_read
        times = (read * p.tokens - check_bits) / p.cache_bytes
        whole = (
            "the whole cache"
            if abs(times - 1) <= ONCE - 1
            else times_of(times_text(times), "the cache")
        )
        beside = f", {bytes_text(check_bits)} of it check bits" if check_bits else ""
        amount = f"{bytes_text(read * p.tokens)} from HBM{beside}"
        yield f"A step of {who} reads {amount} ({whole} of {bytes_text(p.cache_bytes)})."
    if p.picking is not None:
        yield f"{_picking(p.picking)}."
    if p.fits is False:
        weights = p.weight_bytes
        subject_and_verb = (
            "the cache does"
            if weights is None
            else f"the cache and {bytes_text(weights)} of weights do"
        )
        has = bytes_text(p.prediction.profile.usable_memory_bytes or 0)
        place = f"the {has} of {p.prediction.profile.name}{batch}"
        yield f"At {some(p.context, 'token')} {subject_and_verb} not fit in {place}."


def _picking(picked: Picking) -> str:
    of_bytes = (
        ""
        if picked.index_hbm_bytes is None
        else f" and {bytes_text(picked.index_hbm_bytes)} of what is read"
    )
    beside = (
        f"Its indexer takes {seconds_text(picked.index_s)} of it{of_bytes}; dense attention over all tokens "
        f"({picked.dense_kernel}) would take {seconds_text(picked.dense_s)}"
    )
    if picked.pays_from is None:
        return f"{beside}: the indexer costs more than it saves at all contexts to {PICKED_CONTEXTS[-1]:,}"
    if picked.pays_from <= PICKED_CONTEXTS[0]:
        return f"{beside}: the indexer saves more than it costs at all contexts from {PICKED_CONTEXTS[0]:,}"
    return f"{beside}: the indexer costs more than it saves up to a context of about {picked.pays_from:,}, less beyond"


def points_table(points: Sequence[DecodePoint]) -> Table:
    rows = Table.of(
        (_point_row(p) | {"fits": {True: "yes", False: "no", None: None}[p.fits]} for p in points),
        COLUMNS,
    )
    # Columns that say nothing here are left out: weights that are not known, one batch of all rows.
    if len({p.batch for p in points}) == 1:
        rows = rows.without("batch")
    return rows if any(p.weight_bytes for p in points) else rows.without("weight_bytes")


def notes(points: Sequence[DecodePoint]) -> tuple[str, ...]:
    marks = legend(prediction for p in points for prediction in p.predictions)
    of_kernels = dict.fromkeys(
        n for p in points for prediction in p.predictions for n in prediction.kernel.notes
    )
    of_models = dict.fromkeys(n for p in points if p.model is not None for n in p.model.all_notes)
    fits = FITS[any(p.weight_bytes for p in points)]
    beyond = {
        p.model.title: most_tokens
        for p in points
        if p.model and p.context > (most_tokens := p.model.most_tokens or p.context)
    }
    has = [
        f"{title} has positions for {some(most_tokens, 'token')}: longer contexts are none of it"
        for title, most_tokens in beyond.items()
    ]
    longest = {
        (p.prediction.profile.name, p.batch): n
        for p in points
        if (n := p.longest_context) is not None
    }
    up_to = [
        f"longest context that fits on {gpu} at batch {batch}: {found_to_fit(n)}"
        if n
        else f"no context fits on {gpu} at batch {batch}"
        for (gpu, batch), n in longest.items()
    ]
    return (*([] if marks is None else [marks]), *of_kernels, *of_models, *has, *up_to, NOTE, fits)


def subject(points: Sequence[DecodePoint]) -> str:
    """The model and the step in one line."""
    p = points[0]
    tokens = "one new token" if p.new_tokens == 1 else some(p.new_tokens, "new token")
    batch = f"batch {listed_words([str(n) for n in dict.fromkeys(p.batch for p in points)])}"
    if p.model is not None:
        return f"{p.model.line}; {p.prediction.problem.dtype}; {batch}, {tokens} per step"
    shape, problem = p.shape, p.prediction.problem
    d, d_v = problem.head_dim, problem.head_dim_v
    width = f"{d}" if d_v == d else f"{d}/{d_v}"
    kind = "one latent K/V" if shape.latent_kv else some(shape.kv_heads, "key/value head")
    pages = f", pages of {some(shape.page_size, 'token')}" if shape.page_size else ""
    rest = f"head_dim {width}, {problem.dtype}{pages}; {batch}, {tokens} per step"
    return f"{some(shape.layers, 'layer')}, {some(shape.heads, 'query head')}, {kind}, {rest}"


def short_table(points: Sequence[DecodePoint]) -> Table:
    contexts = set(spread_out(sorted({p.context for p in points}), MOST_SHORT))
    return points_table([p for p in points if p.context in contexts]).without(
        "cache_bytes", "l2_bytes_per_token", "splits"
    )


def token_curves(points: Sequence[DecodePoint]) -> tuple[Panel, ...]:
    """Tokens per second of each GPU and kernel, below the bound that the keys and values set on the GPU."""
    rates = [v for p in points for v in (p.tokens_per_s, p.bound_tokens_per_s) if v]
    x = axes.length_axis(sorted({p.context for p in points}), "context (tokens)")
    y = axes.log_axis(rates, "tokens per second", per_second_text)
    bounds: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    drawn, ends, readings = [], [], []
    for n, (name, members) in enumerate(grouped(points, _namer(points)).items()):
        gpu, last = members[0].prediction.profile.name, members[-1]
        hover = [
            f"{name}, {some(p.context, 'token')}<br>{per_second_text(p.tokens_per_s)} per second, "
            f"{seconds_text(p.step_s)} per step{NOT_THERE if p.fits is False else ''}"
            for p in members
        ]
        line = axes.line(
            name, [p.context for p in members], [p.tokens_per_s for p in members], hover, n
        )
        line = axes.hollow(line, [p.fits is False for p in members])
        drawn.append(line | {"legendgroup": LINES[0].name})
        allowed = {p.context: b for p in members if (b := p.bound_tokens_per_s)}
        # The bound is the GPU's, whatever the kernel: one line, in the colour of its first kernel.
        bounded = gpu, tuple(per_second_text(b) for b in allowed.values())
        if allowed and bounded not in bounds:
            line = axes.guide(
                BOUND, list(allowed), list(allowed.values()), f"{BOUND} of {gpu}", "dot"
            )
            bounds[bounded] = line | {"line": line["line"] | {"color": axes.colour(n)}}
        step = seconds_text(last.step_s)
        ends.append(
            End(f"{name}<br>{step} per step", last.tokens_per_s, axes.colour(n), axes.symbol(n)[1])
        )
        readings.append(
            f"{name} {_rate(members[0])} at "
            f"{some(members[0].context, 'token')} of context, {per_second_text(last.tokens_per_s)} at "
            f"{last.context:,}, {step} per step"
        )
    layout = axes.layout(x, y, **at_ends(ends, y))
    height = max(PLOT_REM, AXES_REM + END_REM * len(ends))
    return (
        Panel(
            "tokens-1",
            "",
            f"{'; '.join(readings)}.",
            (*bounds.values(), *layered(drawn)),
            layout,
            height,
        ),
    )


def token_bars(points: Sequence[DecodePoint]) -> tuple[Panel, ...]:
    if len(points) < 2:
        return ()
    names = [*map(_namer(points), points)]
    hover = [
        f"{name}<br>{_rate(p)}, {seconds_text(p.step_s)} per step"
        for name, p in zip(names, points, strict=True)
    ]
    part = Part("tokens per second", axes.colour(0), [p.tokens_per_s for p in points], hover)
    readings = "; ".join(
        f"{name} {per_second_text(p.tokens_per_s)}" for name, p in zip(names, points, strict=True)
    )
    return (
        bars(
            "tokens-1",
            "",
            f"Tokens per second: {readings}.",
            names,
            [part],
            per_second_text,
            axis_title="tokens per second",
        ),
    )


def _rate(p: DecodePoint) -> str:
    return f"{per_second_text(p.tokens_per_s)} tokens per second"


def _namer(points: Sequence[DecodePoint]) -> Callable[[DecodePoint], str]:
    """What tells lines apart: the GPU, the kernel, and the batch where there are several."""
    several = len({p.batch for p in points}) > 1

    def name(p: DecodePoint) -> str:
        batch = f", batch {p.batch}" if several else ""
        return f"{p.prediction.profile.name}, {p.kernel_name}{batch}"

    return name


def _panel(
    name: str, points: Sequence[DecodePoint], title: str, value: Value, text: Callable[[float], str]
) -> Panel:
    """A line per GPU and kernel; one for those that do not differ."""
    data: list[dict[str, Any]] = []
    ends: list[End] = []
    readings: list[str] = []
    lines = {
        name: [(p.context, v) for p in members if (v := value(p)) is not None]
        for name, members in grouped(points, _namer(points)).items()
    }
    values = [v for line in lines.values() for _, v in line]
    # Lines that lie on each other get one line and both names.
    together = alike(
        {
            name: [v for _, v in values_of_line]
            for name, values_of_line in lines.items()
            if values_of_line
        }
    )
    for n, names in enumerate(together):
        contexts, ys = zip(*lines[names[0]], strict=True)
        who = " and ".join(names) if len(names) < len(lines) or len(names) == 1 else "all"
        hover = [f"{who}, {some(c, 'token')}<br>{text(v)}" for c, v in lines[names[0]]]
        data.append(axes.line(who, contexts, ys, hover, n))
        ends.append(End(who.replace(" and ", " +<br>"), ys[-1], axes.colour(n), axes.symbol(n)[1]))
        readings.append(
            f"{who}: {text(ys[0])} at {some(contexts[0], 'token')} to {text(ys[-1])} at {contexts[-1]:,}"
        )
    x = axes.length_axis(sorted({p.context for p in points}), "context (tokens)")
    y = axes.log_axis(values, "", text)
    heading = f"{title[0].upper()}{title[1:]}"
    return Panel(
        f"figure-{name}",
        heading,
        f"{heading}. {'; '.join(readings)}.",
        tuple(layered(data)),
        axes.layout(x, y, **at_ends(ends, y)),
    )
