"""Figures against the sequence length: traffic of each level, memory, time, and naive over tiled; each level's
roofline; and block-sparse over dense against the blocks kept.

Bytes between SMs and L2 and bytes between L2 and HBM never share a plot of these; overview.py draws both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from iosim.base.errors import InputError
from iosim.base.schema import read_toml
from iosim.base.units import bytes_text, number_text, rate_text, seconds_text
from iosim.base.words import WAYS, Level
from iosim.hardware.roofs import ceilings
from iosim.prediction.predictor import predict
from iosim.prediction.result import mark_of, marked
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import OF_THE_MASK
from iosim.problem.masks.blocks import BlockMask
from iosim.show import axes
from iosim.show.axes import hollow, layered
from iosim.show.page import Figure, Panel, Series
from iosim.show.tables import COMMANDS, Cell, Column, Table, columns_of
from iosim.studies.report.collect import (
    Gpu,
    Point,
    ReportRequest,
    baseline,
    by_gpu,
    least_bytes,
    series,
)

Value = Callable[[Point], float | None]
Guide = tuple[str, str, str, list[int], list[float]]
Dot = tuple[float, float, str]
"""Where a point stands, and its hover text."""

WHO = columns_of("gpu=GPU | kernel | seq_len:count=N")
FROM = Column("commands", "command (listed at the end)", COMMANDS)


@cache
def _texts() -> Mapping[str, Mapping[str, Any]]:
    return read_toml(Path(__file__).with_suffix(".toml"))


def drawn(
    kind: str,
    rows: Iterable[tuple[Cell, ...]],
    panels: Iterable[Panel],
    legend: Sequence[Series],
    *,
    id: str = "",
    without: Sequence[str] = (),
    words: Mapping[str, object] = MappingProxyType({}),
    **more: Any,
) -> Figure:
    """The figure of a kind of figures.toml: `words` are what its texts leave open, `without` columns that it has not,
    `more` further fields of `Figure`."""
    text = _texts()[kind]
    title, caption, columns = (
        text[name].format(**words) for name in ("title", "caption", "columns")
    )
    table = Table((*WHO, *columns_of(columns), FROM), tuple(rows)).without(*without)
    fields = {"pivot": text.get("pivot", "seq_len"), "shows": tuple(text["shows"])} | more
    return Figure(id or kind, title, caption, table, tuple(panels), tuple(legend), **fields)


def who(p: Point) -> tuple[Cell, ...]:
    return p.gpu.label, p.kernel, p.seq_len


def kernel_legend(request: ReportRequest, *guides: tuple[str, str]) -> tuple[Series, ...]:
    named = [Series(k, axes.colour(n), axes.symbol(n)[1]) for n, k in enumerate(request.kernels)]
    return (*named, *(Series(name, axes.NEUTRAL, dash=dash) for name, dash in guides))


def kernel_lines(
    request: ReportRequest, points: Iterable[Point], place: Callable[[Point], Dot | None]
) -> Iterator[tuple[str, list[Point], list[Dot], dict[str, Any]]]:
    """(kernel, its points, their places, the line through them) of each kernel that `place` puts somewhere."""
    for kernel, row in series(points).items():
        placed = [(p, dot) for p in row if (dot := place(p)) is not None]
        if placed:
            dots = [dot for _, dot in placed]
            yield (
                kernel,
                [p for p, _ in placed],
                dots,
                axes.through(kernel, dots, request.kernels.index(kernel)),
            )


def gpu_panels(
    request: ReportRequest,
    points: Sequence[Point],
    figure_id: str,
    value: Value,
    title: str,
    text: Callable[[float], str],
    guides: Callable[[Gpu, list[Point]], list[Guide]] = lambda gpu, points: [],
    estimate: Callable[[Point], bool] = lambda p: False,
) -> tuple[Panel, ...]:
    """One panel per GPU, all with the same axes: `value` against N, a line per kernel; its marks are hollow where a value
    is an `estimate`."""
    drawn = by_gpu(points)
    lines = {label: guides(members[0].gpu, members) for label, members in drawn.items()}
    # Axes span the points and the guides of all GPUs, so that panels compare.
    values = [v for p in points if (v := value(p)) is not None]
    values += [v for of_gpu in lines.values() for *_, ys in of_gpu for v in ys]
    x, y = axes.length_axis(request.lengths), axes.log_axis(values, title, text)

    def place(p: Point) -> Dot | None:
        v = value(p)
        return (
            None
            if v is None
            else (p.seq_len, v, f"{p.kernel}, N = {p.seq_len:,}<br>{text(v)} ({p.id})")
        )

    panels = []
    for n, (label, members) in enumerate(drawn.items(), 1):
        grey = [axes.guide(name, ns, ys, hover, dash) for name, hover, dash, ns, ys in lines[label]]
        marks, readings = [], []
        for kernel, kernel_points, dots, line in kernel_lines(request, members, place):
            marks.append(hollow(line, [estimate(p) for p in kernel_points]))
            ends = (f"{text(v)} at N = {at:,}" for at, v, _ in (dots[0], dots[-1]))
            readings.append(f"{kernel} {' to '.join(ends)}")
        panels.append(
            Panel(
                f"{figure_id}-{n}",
                label,
                f"{title}, {label}: {'; '.join(readings)}.",
                (*grey, *layered(marks)),
                axes.layout(x, y),
            )
        )
    return tuple(panels)


HOLLOW = " Hollow marks are estimates."


def estimated(p: Point) -> bool:
    """True where its HBM bytes are an estimate, not a replay of the whole."""
    return bool(mark_of(p.prediction.method))


def l2_traffic(request: ReportRequest, points: Sequence[Point]) -> Figure:
    by_way = ((p, (p.prediction.total("l2", way) for way in WAYS)) for p in points)
    rows = ((*who(p), *ways, p.l2, str(p.prediction.kernel.tile), p.id) for p, ways in by_way)
    panels = gpu_panels(request, points, "traffic-l2", lambda p: p.l2, "SM<->L2 bytes", bytes_text)
    return drawn("traffic-l2", rows, panels, kernel_legend(request))


def hbm_traffic(request: ReportRequest, points: Sequence[Point]) -> Figure:
    """Bytes between L2 and HBM: the estimate, and the bounds it lies between."""
    known = request.method != "bounds"
    rows = []
    for p in points:
        ways = (
            marked(p.prediction.total("hbm", way), p.prediction) if known else None for way in WAYS
        )
        rows.append((*who(p), *ways, p.hbm_shown, p.compulsory, p.no_l2, p.prediction.method, p.id))

    def guides(gpu: Gpu, members: list[Point]) -> list[Guide]:
        least, hover = least_bytes(members), f"{gpu.label}: inputs once, outputs once"
        grey_lines: list[Guide] = [("compulsory", hover, "dot", list(least), list(least.values()))]
        # The upper bound only where HBM bytes are not found: beside replayed bytes it would stretch the
        # axis.
        for k, row in () if known else series(members).items():
            grey_lines.append(
                (
                    "with no L2",
                    f"{k}: with no L2",
                    "dash",
                    [p.seq_len for p in row],
                    [p.no_l2 for p in row],
                )
            )
        return grey_lines

    how = "of which only the bounds are asked for: compulsory (dotted) and with no L2 (dashed)."
    if known:
        by = "replay" if request.method is None else f"the method '{request.method}'"
        more = "The truth lies between the compulsory bytes (inputs once, outputs once; dotted) and those with no L2."
        how = f"by {by}, L2 {request.l2_start} at the start. {more}"
    panels = gpu_panels(
        request, points, "traffic-hbm", lambda p: p.hbm, "HBM bytes", bytes_text, guides, estimated
    )
    legend = kernel_legend(
        request, ("compulsory", "dot"), *([] if known else [("with no L2", "dash")])
    )
    words = {"how": how, "hollow": HOLLOW if any(map(estimated, points)) else ""}
    bounds: dict[str, Any] = {} if known else {"shows": ("compulsory_bytes", "no_l2_bytes")}
    return drawn("traffic-hbm", rows, panels, legend, words=words, **bounds)


def memory_footprint(request: ReportRequest, points: Sequence[Point]) -> Figure:
    sizes = (
        (p, (p.prediction.memory_bytes[name] for name in ("peak", "workspace"))) for p in points
    )
    rows = ((*who(p), *of_call, p.gpu.profile.usable_memory_bytes, p.id) for p, of_call in sizes)

    def guides(gpu: Gpu, members: list[Point]) -> list[Guide]:
        size = gpu.profile.usable_memory_bytes
        ends = [request.lengths[0], request.lengths[-1]]
        return (
            [("memory of the GPU", f"{gpu.label} has {bytes_text(size)}", "dash", ends, [size] * 2)]
            if size
            else []
        )

    panels = gpu_panels(
        request,
        points,
        "memory",
        lambda p: p.prediction.memory_bytes["peak"],
        "peak bytes",
        bytes_text,
        guides,
    )
    return drawn("memory", rows, panels, kernel_legend(request, ("memory of the GPU", "dash")))


def call_time(request: ReportRequest, points: Sequence[Point]) -> Figure:
    rows = (
        (
            *who(p),
            p.time_s,
            p.prediction.time.bound_by,
            p.prediction.time_specification.total_s,
            p.id,
        )
        for p in points
    )
    panels = gpu_panels(request, points, "time", lambda p: p.time_s, "time", seconds_text)
    return drawn("time", rows, panels, kernel_legend(request))


DASHES = {"measured": "solid", "specification": "dot"}


def roofline(
    request: ReportRequest, points: Sequence[Point], level: Level, profile_ids: dict[str, str]
) -> Figure | None:
    """The roofline of "l2" or "hbm"; None where the level's bytes are not predicted."""
    payload = {
        p.id: n for p in points if (n := p.l2 if level == "l2" else p.hbm_payload) and p.flops
    }
    counted = [p for p in points if p.id in payload]
    if not counted:
        return None
    word = "SM<->L2" if level == "l2" else "HBM"
    roofs = {g.label: ceilings(g.profile, request.middle.dtype, level) for g in request.gpus}
    intensity = {p.id: p.flops / payload[p.id] for p in counted}
    # A roof bends at peak rate over bandwidth, FLOP per byte: the bend must lie on the axis.
    ridges = [fast / wide for of_gpu in roofs.values() for wide, fast in of_gpu.values()]
    x = axes.log_axis([*intensity.values(), *ridges], f"FLOP per {word} byte", number_text)
    ends = [10**e for e in x["range"]]
    rates = [p.flops / p.time_s for p in counted] + [
        f for of_gpu in roofs.values() for _, f in of_gpu.values()
    ]
    y = axes.log_axis(rates, "TFLOP/s", lambda v: number_text(v / 1e12))

    def place(p: Point) -> Dot:
        at, rate = intensity[p.id], p.flops / p.time_s
        reading = f"{number_text(at)} FLOP/byte, {rate_text(rate)} ({p.id})"
        return at, rate, f"{p.kernel}, N = {p.seq_len:,}<br>{reading}"

    panels, rows, left_out = [], [], []
    for n, (label, members) in enumerate(by_gpu(counted).items(), 1):
        data = [_roof(name, *of_gpu, ends) for name, of_gpu in roofs[label].items()]
        readings = [
            f"the {name} roof is flat at {rate_text(fast)} from {number_text(fast / wide)} FLOP per byte on"
            for name, (wide, fast) in roofs[label].items()
        ]
        for kernel, _, dots, line in kernel_lines(request, members, place):
            data.append(line)
            readings.append(f"{kernel} reaches {rate_text(max(rate for _, rate, _ in dots))}")
        if not roofs[label]:
            left_out.append(
                f"the roof of {label}: its profile does not know the {word} bandwidth or the matrix rate"
            )
        panels.append(
            Panel(
                f"roofline-{level}-{n}",
                label,
                f"Roofline at {word}, {label}: {'; '.join(readings)}.",
                tuple(data),
                axes.layout(x, y),
            )
        )
        for p in members:
            # The lower of bandwidth x intensity and the matrix rate, by the first roof that is known.
            roof = next(
                (min(wide * intensity[p.id], fast) for wide, fast in roofs[label].values()), None
            )
            rate = p.flops / p.time_s
            rows.append(
                (
                    *who(p),
                    p.flops,
                    p.value(level),
                    intensity[p.id],
                    rate,
                    roof,
                    rate / roof if roof else None,
                    f"{p.id} {profile_ids[label]}",
                )
            )
    guides = [
        (f"roof, {name}", dash)
        for name, dash in DASHES.items()
        if any(name in f for f in roofs.values())
    ]
    words = {"word": word, "level": level}
    legend, omitted = kernel_legend(request, *guides), tuple(left_out)
    return drawn(
        "roofline", rows, panels, legend, id=f"roofline-{level}", words=words, left_out=omitted
    )


def _roof(name: str, wide: float, fast: float, ends: list[float]) -> dict[str, Any]:
    ridge = fast / wide
    x = [ends[0], *([ridge] if ends[0] < ridge < ends[1] else []), ends[1]]
    y = [min(wide * v, fast) for v in x]
    return axes.guide(
        f"roof, {name}",
        x,
        y,
        f"{name}: {rate_text(fast)}, {number_text(wide / 1e9)} GB/s",
        DASHES[name],
    )


QUANTITIES = {"l2": "SM<->L2 bytes", "hbm": "HBM bytes", "time": "time"}


def ratio(request: ReportRequest, points: Sequence[Point], level: Level) -> Figure | None:
    """Bytes of the naive kernel over those of every other at one level; None where there is nothing to compare."""
    base = baseline(points)
    below = {(p.gpu.label, p.seq_len): p for p in points if p.kernel == base}
    others = [k for k in request.kernels if any(p.kernel == k and not p.naive for p in points)]
    # (point, the naive kernel's at the same length, ratio), kernel by kernel.
    pairs = [
        (p, b, above / under)
        for k in others
        for p in points
        if p.kernel == k
        and (b := below.get((p.gpu.label, p.seq_len)))
        and (above := b.value(level))
        and (under := p.value(level))
    ]
    if base is None or not pairs:
        return None
    word = "SM<->L2" if level == "l2" else "HBM"
    cell = (
        (lambda v, *ps: marked(v, *(p.prediction for p in ps)))
        if level == "hbm"
        else (lambda v, *ps: v)
    )
    rows = tuple(
        (
            *who(p),
            base,
            cell(p.value(level), p),
            cell(b.value(level), b),
            cell(r, p, b),
            f"{p.id} {b.id}",
        )
        for p, b, r in pairs
    )
    gpus = [g.label for g in request.gpus]
    x = axes.length_axis(request.lengths)
    y = axes.log_axis([r for *_, r in pairs], f"{base} / kernel", _times)
    panels = []
    for n, kernel in enumerate([k for k in others if any(p.kernel == k for p, *_ in pairs)], 1):
        data: list[dict[str, Any]] = []
        readings = []
        for g, label in enumerate(gpus):
            row = [
                (p.seq_len, r) for p, _, r in pairs if p.kernel == kernel and p.gpu.label == label
            ]
            if row:
                data.append(
                    axes.through(
                        label, ((n, r, f"{label}, N = {n:,}<br>{_times(r)}") for n, r in row), g
                    )
                )
                readings.append(f"{label} {_times(row[0][1])} to {_times(row[-1][1])}")
        alt = f"{word} bytes of {base} over those of {kernel}, from the shortest N to the longest: "
        alt += f"{'; '.join(readings)}."
        panels.append(
            Panel(
                f"ratio-{level}-{n}",
                f"{base} / {kernel}",
                alt,
                tuple(layered(data)),
                axes.layout(x, y),
            )
        )
    labels = {p.gpu.label for p, *_ in pairs}
    legend = [
        Series(label, axes.colour(g), axes.symbol(g)[1])
        for g, label in enumerate(gpus)
        if label in labels
    ]
    words = {"word": word, "base": base, "level": level}
    return drawn("ratio", rows, panels, legend, id=f"ratio-{level}", words=words)


def _times(r: float) -> str:
    return f"{number_text(r)}x"


def without_mask(problem: AttentionProblem) -> AttentionProblem:
    return problem.with_(mask="none", window=None, window_right=None, **dict.fromkeys(OF_THE_MASK))


def kept(p: Point) -> float:
    """The share of blocks that the problem's mask keeps; 1 where it is no list of blocks."""
    mask = p.prediction.problem.pair_mask
    return mask.kept_fraction if isinstance(mask, BlockMask) else 1.0


def pairs(
    request: ReportRequest, points: Sequence[Point], commands: dict[str, str]
) -> list[tuple[Point, Point]]:
    """(point, the same without a mask) of every point under a list of blocks; the command lines go to `commands`."""
    with_dense: list[tuple[Point, Point]] = []
    for p in points:
        if not isinstance(p.prediction.problem.pair_mask, BlockMask):
            continue
        dense = without_mask(p.prediction.problem)
        try:
            prediction = predict(
                dense, p.kernel, p.gpu.profile, l2_start=request.l2_start, method=request.method
            )
        except InputError:  # more than the method takes
            continue
        other = Point(f"D{len(with_dense) + 1:03d}", p.gpu, p.kernel, p.seq_len, prediction)
        commands[other.id] = request.predict_line(p.gpu, p.kernel, dense)
        with_dense.append((p, other))
    return with_dense


def density(
    request: ReportRequest, points: Sequence[Point], commands: dict[str, str]
) -> Figure | None:
    """Sparse over dense against the share of blocks kept; None for a report without lists of blocks."""
    with_dense = pairs(request, points, commands)
    if not with_dense:
        return None
    rows = []
    for p, d in with_dense:
        cells = (cell for key in QUANTITIES for cell in _cells(p.value(key), d.value(key)))
        rows.append((*who(p), kept(p), *cells, f"{p.id} {d.id}"))
    legend = kernel_legend(request, ("as the blocks", "dot"))
    return drawn("density", rows, _density_panels(request, with_dense), legend)


def _cells(sparse: float | None, dense: float | None) -> tuple[float | None, ...]:
    return sparse, dense, sparse / dense if sparse is not None and dense else None


def _percent(share: float) -> str:
    return f"{number_text(100 * share)} %"


def _density_panels(
    request: ReportRequest, with_dense: list[tuple[Point, Point]]
) -> tuple[Panel, ...]:
    x = axes.log_axis([kept(p) for p, _ in with_dense], "blocks kept", _percent)
    dense = {p.id: d for p, d in with_dense}
    panels: list[Panel] = []
    for gpu, members in by_gpu(p for p, _ in with_dense).items():
        for key, name in QUANTITIES.items():
            shares = {
                p.id: share
                for p in members
                if (share := _cells(p.value(key), dense[p.id].value(key))[2])
            }
            if not shares:
                continue
            # The diagonal from the sparsest mask to the densest: bytes in proportion to blocks kept.
            ends = sorted(kept(p) for p in members)[:: max(1, len(members) - 1)]
            data, readings = [axes.guide("as the blocks", ends, ends, "as the blocks", "dot")], []

            def place(p: Point, shares: Mapping[str, float] = shares) -> Dot | None:
                reading = f"{p.kernel}, N = {p.seq_len:,}<br>{_percent(shares.get(p.id, 0))} of dense ({p.id})"
                return (kept(p), shares[p.id], reading) if p.id in shares else None

            in_order = sorted(members, key=lambda p: (request.kernels.index(p.kernel), kept(p)))
            for kernel, _, dots, line in kernel_lines(request, in_order, place):
                data.append(line)
                readings.append(
                    f"{kernel} {_percent(dots[0][1])} of dense with {_percent(dots[0][0])} of the blocks"
                )
            y = axes.log_axis([*shares.values(), *ends], f"{name}, share of dense", _percent)
            panels.append(
                Panel(
                    f"density-{key}-{len(panels) + 1}",
                    f"{gpu}, {name}",
                    f"{name} on {gpu}: {'; '.join(readings)}.",
                    tuple(data),
                    axes.layout(x, y),
                )
            )
    return tuple(panels)
