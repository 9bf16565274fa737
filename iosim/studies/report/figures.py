"""Figures against the sequence length: traffic of each level, memory and time; and each level's roofline.

Bytes between SMs and L2 and bytes between L2 and HBM never share a plot of these; overview.py draws both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from iosim.base.errors import InputError
from iosim.base.schema import read_toml
from iosim.base.units import bytes_text, number_text, rate_text, seconds_text
from iosim.base.words import WAYS, Level
from iosim.hardware.profile import HardwareProfile
from iosim.prediction.result import mark_of, marked
from iosim.show import axes
from iosim.show.axes import hollow, layered
from iosim.show.page import Figure, Panel, Series
from iosim.show.tables import COMMANDS, Cell, Column, Table, columns_of
from iosim.studies.report.collect import Gpu, Point, ReportRequest, by_gpu, least_bytes, series

Value = Callable[[Point], float | None]
Guide = tuple[str, str, str, list[int], list[float]]

WHO = columns_of("gpu=GPU | kernel | seq_len:count=N")
FROM = Column("commands", "command (listed at the end)", COMMANDS)


@cache
def _texts() -> Mapping[str, Mapping[str, Any]]:
    return read_toml(Path(__file__).with_suffix(".toml"))


def drawn(
    kind: str, rows: Iterable[tuple[Cell, ...]], panels: Iterable[Panel], legend: Sequence[Series], *, id: str = "",
    without: Sequence[str] = (), words: Mapping[str, object] = MappingProxyType({}), **more: Any,
) -> Figure:  # fmt: skip
    """The figure of a kind of figures.toml: `words` are what its texts leave open, `without` columns that it has not,
    `more` further fields of `Figure`."""
    text = _texts()[kind]
    title, caption, columns = (text[name].format(**words) for name in ("title", "caption", "columns"))
    table = Table((*WHO, *columns_of(columns), FROM), tuple(rows)).without(*without)
    fields = {"pivot": text.get("pivot", "seq_len"), "shows": tuple(text["shows"])} | more
    return Figure(id or kind, title, caption, table, tuple(panels), tuple(legend), **fields)


def who(p: Point) -> tuple[Cell, ...]:
    return p.gpu.label, p.kernel, p.seq_len


def kernel_legend(request: ReportRequest, *guides: tuple[str, str]) -> tuple[Series, ...]:
    named = [Series(k, axes.colour(n), axes.symbol(n)[1]) for n, k in enumerate(request.kernels)]
    return (*named, *(Series(name, axes.NEUTRAL, dash=dash) for name, dash in guides))


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
    """One panel a GPU, all with the same axes: `value` against N, a line a kernel; its marks are hollow where a value
    is an `estimate`."""
    drawn = by_gpu(points)
    lines = {label: guides(members[0].gpu, members) for label, members in drawn.items()}
    values = [v for p in points if (v := value(p)) is not None]
    values += [v for of_gpu in lines.values() for *_, ys in of_gpu for v in ys]
    x, y = axes.length_axis(request.lengths), axes.log_axis(values, title, text)
    panels = []
    for n, (label, members) in enumerate(drawn.items(), 1):
        grey = [axes.guide(name, ns, ys, hover, dash) for name, hover, dash, ns, ys in lines[label]]
        drawn_lines, readings = [], []
        for kernel, row in series(members).items():
            shown = [(p, v) for p in row if (v := value(p)) is not None]
            if not shown:
                continue
            hover = [f"{kernel}, N = {p.seq_len:,}<br>{text(v)} ({p.id})" for p, v in shown]
            line = axes.line(
                kernel, [p.seq_len for p, _ in shown], [v for _, v in shown], hover, request.kernels.index(kernel)
            )
            drawn_lines.append(hollow(line, [estimate(p) for p, _ in shown]))
            place = f"N = {shown[0][0].seq_len:,} to {text(shown[-1][1])} at N = {shown[-1][0].seq_len:,}"
            readings.append(f"{kernel} {text(shown[0][1])} at {place}")
        panels.append(Panel(f"{figure_id}-{n}", label, f"{title}, {label}: {'; '.join(readings)}.",
                            (*grey, *layered(drawn_lines)), axes.layout(x, y)))  # fmt: skip
    return tuple(panels)


HOLLOW = " Hollow marks are estimates."


def estimated(p: Point) -> bool:
    """Whether its HBM bytes are an estimate, not a replay of the whole."""
    return bool(mark_of(p.prediction.method))


def l2_traffic(request: ReportRequest, points: Sequence[Point]) -> Figure:
    moved = ((p, (p.prediction.total("l2", way) for way in WAYS)) for p in points)
    rows = ((*who(p), *ways, p.l2, str(p.prediction.kernel.tile), p.id) for p, ways in moved)
    panels = gpu_panels(request, points, "traffic-l2", lambda p: p.l2, "SM<->L2 bytes", bytes_text)
    return drawn("traffic-l2", rows, panels, kernel_legend(request))


def hbm_traffic(request: ReportRequest, points: Sequence[Point]) -> Figure:
    """Bytes between L2 and HBM: the estimate, and the bounds it lies between."""
    known = request.method != "bounds"
    rows = []
    for p in points:
        ways = (marked(p.prediction.total("hbm", way), p.prediction) if known else None for way in WAYS)
        rows.append((*who(p), *ways, p.hbm_shown, p.compulsory, p.no_l2, p.prediction.method, p.id))

    def guides(gpu: Gpu, members: list[Point]) -> list[Guide]:
        least, hover = least_bytes(members), f"{gpu.label}: inputs once, outputs once"
        grey_lines: list[Guide] = [("compulsory", hover, "dot", list(least), list(least.values()))]
        for k, row in () if known else series(members).items():
            grey_lines.append(
                ("with no L2", f"{k}: with no L2", "dash", [p.seq_len for p in row], [p.no_l2 for p in row])
            )
        return grey_lines

    how = "of which only the bounds are asked for: compulsory (dotted) and with no L2 (dashed)."
    if known:
        by = "replay" if request.method is None else f"the method '{request.method}'"
        more = "The truth lies between the compulsory bytes (inputs once, outputs once; dotted) and those with no L2."
        how = f"by {by}, L2 {request.l2_start} at the start. {more}"
    panels = gpu_panels(request, points, "traffic-hbm", lambda p: p.hbm, "HBM bytes", bytes_text, guides, estimated)
    legend = kernel_legend(request, ("compulsory", "dot"), *([] if known else [("with no L2", "dash")]))
    words = {"how": how, "hollow": HOLLOW * any(map(estimated, points))}
    bounds: dict[str, Any] = {} if known else {"shows": ("compulsory_bytes", "no_l2_bytes")}
    return drawn("traffic-hbm", rows, panels, legend, words=words, **bounds)


def memory_footprint(request: ReportRequest, points: Sequence[Point]) -> Figure:
    sizes = ((p, (p.prediction.memory_bytes[name] for name in ("peak", "workspace"))) for p in points)
    rows = ((*who(p), *of_call, p.gpu.profile.memory_bytes, p.id) for p, of_call in sizes)

    def guides(gpu: Gpu, members: list[Point]) -> list[Guide]:
        size = gpu.profile.memory_bytes
        ends = [request.lengths[0], request.lengths[-1]]
        return [("memory of the GPU", f"{gpu.label} has {bytes_text(size)}", "dash", ends, [size] * 2)] if size else []

    panels = gpu_panels(
        request, points, "memory", lambda p: p.prediction.memory_bytes["peak"], "peak bytes", bytes_text, guides
    )
    return drawn("memory", rows, panels, kernel_legend(request, ("memory of the GPU", "dash")))


def call_time(request: ReportRequest, points: Sequence[Point]) -> Figure:
    rows = (
        (*who(p), p.time_s, p.prediction.time.bound_by, p.prediction.time_specification.total_s, p.id) for p in points
    )
    panels = gpu_panels(request, points, "time", lambda p: p.time_s, "time", seconds_text)
    return drawn("time", rows, panels, kernel_legend(request))


DASHES = {"measured": "solid", "specification": "dot"}
Ceilings = dict[str, tuple[float, float]]
"""(bytes per second of a level, operations per second) by "measured" and "specification"; what is unknown is absent."""


def tensor_rate(profile: HardwareProfile, dtype: str, measured: bool) -> float | None:
    """Operations per second of matrix products; those of the fp32 units where a dtype has no tensor rate."""
    try:
        return profile.tensor_flops(dtype, measured=measured)
    except InputError:
        return None if measured else profile.fp32_flops_per_s


def bandwidth(profile: HardwareProfile, level: Level, measured: bool) -> float | None:
    """Bytes per second of a level; of L2's measured curve, the best."""
    if level == "hbm":
        return profile.dram_bandwidth_measured_bytes_per_s if measured else profile.dram_bandwidth_bytes_per_s
    if not measured:
        return profile.l2_read_bandwidth_bytes_per_s
    curve = profile.l2_read_bandwidth_by_footprint_bytes_per_s
    return max(rate for _, rate in curve) if curve else profile.l2_read_bandwidth_measured_bytes_per_s


def ceilings(profile: HardwareProfile, dtype: str, level: Level) -> Ceilings:
    """The roofs of a level that a profile knows. A measured roof takes the specification's number for the one half of
    it that was not measured."""
    plain, own = ((bandwidth(profile, level, m), tensor_rate(profile, dtype, m)) for m in (False, True))
    measured = tuple(best or other for best, other in zip(own, plain, strict=True)) if any(own) else (None, None)
    both = {"measured": measured, "specification": plain}
    return {name: (wide, fast) for name, (wide, fast) in both.items() if wide and fast}


def roofline(
    request: ReportRequest, points: Sequence[Point], level: Level, profile_ids: dict[str, str]
) -> Figure | None:
    """The roofline of "l2" or "hbm"; None where the level's bytes are not predicted."""
    moved = {p.id: n for p in points if (n := p.l2 if level == "l2" else p.hbm) and p.flops}
    shown = [p for p in points if p.id in moved]
    if not shown:
        return None
    word = "SM<->L2" if level == "l2" else "HBM"
    roofs = {g.label: ceilings(g.profile, request.middle.dtype, level) for g in request.gpus}
    intensity = {p.id: p.flops / moved[p.id] for p in shown}
    ridges = [fast / wide for of_gpu in roofs.values() for wide, fast in of_gpu.values()]
    x = axes.log_axis([*intensity.values(), *ridges], f"FLOP per {word} byte", number_text)
    ends = [10**e for e in x["range"]]
    rates = [p.flops / p.time_s for p in shown] + [f for of_gpu in roofs.values() for _, f in of_gpu.values()]
    y = axes.log_axis(rates, "TFLOP/s", lambda v: number_text(v / 1e12))
    panels, rows, left_out = [], [], []
    for n, (label, members) in enumerate(by_gpu(shown).items(), 1):
        data = [_roof(name, *of_gpu, ends) for name, of_gpu in roofs[label].items()]
        readings = [
            f"the {name} roof is flat at {rate_text(fast)} from {number_text(fast / wide)} FLOP per byte on"
            for name, (wide, fast) in roofs[label].items()
        ]
        for kernel, row in series(members).items():
            hover = [
                f"{kernel}, N = {p.seq_len:,}<br>{number_text(intensity[p.id])} FLOP/byte, "
                f"{rate_text(p.flops / p.time_s)} ({p.id})"
                for p in row
            ]
            data.append(axes.line(kernel, [intensity[p.id] for p in row], [p.flops / p.time_s for p in row], hover,
                                  request.kernels.index(kernel)))  # fmt: skip
            readings.append(f"{kernel} reaches {rate_text(max(p.flops / p.time_s for p in row))}")
        if not roofs[label]:
            left_out.append(f"the roof of {label}: its profile does not know the {word} bandwidth or the matrix rate")
        panels.append(Panel(f"roofline-{level}-{n}", label, f"Roofline at {word}, {label}: {'; '.join(readings)}.",
                            tuple(data), axes.layout(x, y)))  # fmt: skip
        for p in members:
            roof = next((min(wide * intensity[p.id], fast) for wide, fast in roofs[label].values()), None)
            rate = p.flops / p.time_s
            rows.append((*who(p), p.flops, moved[p.id], intensity[p.id], rate, roof,
                         rate / roof if roof else None, f"{p.id} {profile_ids[label]}"))  # fmt: skip
    guides = [(f"roof, {name}", dash) for name, dash in DASHES.items() if any(name in f for f in roofs.values())]
    words = {"word": word, "level": level}
    legend, left = kernel_legend(request, *guides), tuple(left_out)
    return drawn("roofline", rows, panels, legend, id=f"roofline-{level}", words=words, left_out=left)


def _roof(name: str, wide: float, fast: float, ends: list[float]) -> dict[str, Any]:
    ridge = fast / wide
    x = [ends[0], *([ridge] if ends[0] < ridge < ends[1] else []), ends[1]]
    y = [min(wide * v, fast) for v in x]
    return axes.guide(f"roof, {name}", x, y, f"{name}: {rate_text(fast)}, {number_text(wide / 1e9)} GB/s", DASHES[name])
