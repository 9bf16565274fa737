"""Figures of a report alone: naive over tiled, each level's roofline, and block-sparse over dense against the blocks kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.units import number_text, rate_text
from iosim.base.words import Level
from iosim.hardware.roofs import ceilings
from iosim.prediction.predictor import predict
from iosim.prediction.result import marked
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import OF_THE_MASK
from iosim.problem.masks.blocks import BlockMask
from iosim.show import axes
from iosim.show.axes import layered
from iosim.show.page import Figure, Panel, Series
from iosim.show.tables import Cell, Column
from iosim.studies.compare.lines import Dot, drawn, kernel_legend, kernel_lines, who
from iosim.studies.compare.points import (
    CaseGrid,
    Point,
    baseline,
    by_gpu,
)

DASHES = {"measured": "solid", "specification": "dot"}


Roofs = Mapping[str, tuple[float, float]]
"""Name of a roof -> bytes per second below its bend, and operations per second above."""


def roofline(
    request: CaseGrid, points: Sequence[Point], level: Level, profile_ids: dict[str, str]
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
    x, y = _roofline_axes(counted, intensity, roofs, word)

    def place(p: Point) -> Dot:
        at, rate = intensity[p.id], p.flops / p.time_s
        reading = f"{number_text(at)} FLOP/byte, {rate_text(rate)} ({p.id})"
        return at, rate, f"{p.kernel}, N = {p.seq_len:,}<br>{reading}"

    panels, rows = [], []
    for n, (label, members) in enumerate(by_gpu(counted).items(), 1):
        lines = [
            (kernel, dots, line) for kernel, _, dots, line in kernel_lines(request, members, place)
        ]
        data, readings = _roofline_lines(roofs[label], lines, [10**e for e in x["range"]])
        alt = f"Roofline at {word}, {label}: {'; '.join(readings)}."
        panels.append(Panel(f"roofline-{level}-{n}", label, alt, tuple(data), axes.layout(x, y)))
        rows += [
            _roofline_row(p, level, intensity[p.id], roofs[label], profile_ids[label])
            for p in members
        ]
    guides = [
        (f"roof, {name}", dash)
        for name, dash in DASHES.items()
        if any(name in of_gpu for of_gpu in roofs.values())
    ]
    left_out = _missing_roofs(counted, roofs, word)
    return drawn(
        "roofline",
        _roofline_columns(level, word),
        rows,
        panels,
        kernel_legend(request, *guides),
        id=f"roofline-{level}",
        words={"word": word, "level": level},
        left_out=left_out,
    )


def _missing_roofs(
    counted: list[Point], roofs: dict[str, dict[str, tuple[float, float]]], word: str
) -> tuple[str, ...]:
    """A line for each GPU without a roof."""
    return tuple(
        f"the roof of {label}: its profile does not know the {word} bandwidth or the matrix rate"
        for label in by_gpu(counted)
        if not roofs[label]
    )


def _roofline_axes(
    points: Sequence[Point], intensity: Mapping[str, float], roofs: Mapping[str, Roofs], word: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """FLOP per byte, and FLOP per second."""
    # A roof bends at peak rate over bandwidth, FLOP per byte: the bend must lie on the axis.
    ridges = [fast / wide for of_gpu in roofs.values() for wide, fast in of_gpu.values()]
    rates = [p.flops / p.time_s for p in points]
    rates += [fast for of_gpu in roofs.values() for _, fast in of_gpu.values()]
    x = axes.log_axis([*intensity.values(), *ridges], f"FLOP per {word} byte", number_text)
    return x, axes.log_axis(rates, "TFLOP/s", lambda v: number_text(v / 1e12))


def _roofline_lines(
    roofs: Roofs, lines: Sequence[tuple[str, list[Dot], dict[str, Any]]], ends: list[float]
) -> tuple[list[dict[str, Any]], list[str]]:
    """The roofs of a GPU and the `lines` of its kernels, drawn and in words."""
    data = [_roof(name, *of_gpu, ends) for name, of_gpu in roofs.items()]
    readings = [
        f"the {name} roof is flat at {rate_text(fast)} from {number_text(fast / wide)} FLOP per byte on"
        for name, (wide, fast) in roofs.items()
    ]
    for kernel, dots, line in lines:
        data.append(line)
        readings.append(f"{kernel} reaches {rate_text(max(rate for _, rate, _ in dots))}")
    return data, readings


def _roofline_row(
    p: Point, level: Level, intensity: float, roofs: Roofs, profile_id: str
) -> tuple[Cell, ...]:
    # The lower of bandwidth x intensity and the matrix rate, by the first roof that is known.
    roof = next((min(wide * intensity, fast) for wide, fast in roofs.values()), None)
    rate = p.flops / p.time_s
    share = rate / roof if roof else None
    command_ids = f"{p.id} {profile_id}"
    return (*who(p), p.flops, p.value(level), intensity, rate, roof, share, command_ids)


def _roofline_columns(level: Level, word: str) -> tuple[Column, ...]:
    return (
        Column("flops", "FLOP", kind="count"),
        Column(f"{level}_bytes", f"{word} bytes"),
        Column("flops_per_byte", "FLOP/byte", kind="number"),
        Column("flops_per_s", "FLOP/s", kind="rate"),
        Column("roof_flops_per_s", "roof there", kind="rate"),
        Column("share_of_roof", "of the roof", kind="percent"),
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


Pair = tuple[Point, Point, float]
"""A point, the naive kernel's at the same length, and the naive one's bytes over its own."""


def ratio(request: CaseGrid, points: Sequence[Point], level: Level) -> Figure | None:
    """Bytes of the naive kernel over those of every other at one level; None where there is nothing to compare."""
    base = baseline(points)
    pairs = _naive_pairs(request, points, level)
    if base is None or not pairs:
        return None
    word = "SM<->L2" if level == "l2" else "HBM"
    gpus = [g.label for g in request.gpus]
    x = axes.length_axis(request.lengths)
    y = axes.log_axis([r for *_, r in pairs], f"{base} / kernel", _times)
    panels = []
    for n, kernel in enumerate(dict.fromkeys(p.kernel for p, *_ in pairs), 1):
        data, readings = _ratio_lines(gpus, [pair for pair in pairs if pair[0].kernel == kernel])
        alt = f"{word} bytes of {base} over those of {kernel}, from the shortest N to the longest: "
        alt += f"{'; '.join(readings)}."
        panel_id, title = f"ratio-{level}-{n}", f"{base} / {kernel}"
        panels.append(Panel(panel_id, title, alt, tuple(layered(data)), axes.layout(x, y)))
    labels = {p.gpu.label for p, *_ in pairs}
    legend = [
        Series(label, axes.colour(g), axes.symbol(g)[1])
        for g, label in enumerate(gpus)
        if label in labels
    ]
    columns = (
        Column("baseline"),
        Column(f"{level}_bytes", f"{word} bytes"),
        Column(f"baseline_{level}_bytes", "baseline's"),
        Column("ratio", f"{base} over it", kind="ratio"),
    )
    words = {"word": word, "base": base, "level": level}
    rows = [_ratio_row(pair, base, level) for pair in pairs]
    return drawn("ratio", columns, rows, panels, legend, id=f"ratio-{level}", words=words)


def _naive_pairs(request: CaseGrid, points: Sequence[Point], level: Level) -> list[Pair]:
    """Every point that stands beside one of the naive kernel, kernel by kernel."""
    base = baseline(points)
    below = {(p.gpu.label, p.seq_len): p for p in points if p.kernel == base}
    others = [k for k in request.kernels if any(p.kernel == k and not p.naive for p in points)]
    return [
        (p, b, above / under)
        for k in others
        for p in points
        if p.kernel == k
        and (b := below.get((p.gpu.label, p.seq_len)))
        and (above := b.value(level))
        and (under := p.value(level))
    ]


def _ratio_row(pair: Pair, base: str, level: Level) -> tuple[Cell, ...]:
    p, b, r = pair
    cells: tuple[Cell, ...] = p.value(level), b.value(level), r
    if level == "hbm":
        cells = (
            marked(p.value(level), p.prediction),
            marked(b.value(level), b.prediction),
            marked(r, p.prediction, b.prediction),
        )
    return (*who(p), base, *cells, f"{p.id} {b.id}")


def _ratio_lines(
    gpus: Sequence[str], pairs: Sequence[Pair]
) -> tuple[list[dict[str, Any]], list[str]]:
    """A line for each GPU through the ratios of one kernel, and its ends in words."""
    data: list[dict[str, Any]] = []
    readings = []
    for g, label in enumerate(gpus):
        row = [(p.seq_len, r) for p, _, r in pairs if p.gpu.label == label]
        if row:
            dots = ((n, r, f"{label}, N = {n:,}<br>{_times(r)}") for n, r in row)
            data.append(axes.through(label, dots, g))
            readings.append(f"{label} {_times(row[0][1])} to {_times(row[-1][1])}")
    return data, readings


def _times(r: float) -> str:
    return f"{number_text(r)}x"


def without_mask(problem: AttentionProblem) -> AttentionProblem:
    return problem.with_(mask="none", window=None, window_right=None, **dict.fromkeys(OF_THE_MASK))


def kept(p: Point) -> float:
    """The share of blocks that the problem's mask keeps; 1 where it is no list of blocks."""
    mask = p.prediction.problem.pair_mask
    return mask.kept_fraction if isinstance(mask, BlockMask) else 1.0


def pairs(
    request: CaseGrid, points: Sequence[Point], commands: dict[str, str]
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


def density(request: CaseGrid, points: Sequence[Point], commands: dict[str, str]) -> Figure | None:
    """Sparse over dense against the share of blocks kept; None for a report without lists of blocks."""
    with_dense = pairs(request, points, commands)
    if not with_dense:
        return None
    rows = []
    for p, d in with_dense:
        cells = (cell for key in QUANTITIES for cell in _cells(p.value(key), d.value(key)))
        rows.append((*who(p), kept(p), *cells, f"{p.id} {d.id}"))
    legend = kernel_legend(request, ("as the blocks", "dot"))
    columns = (
        Column("kept_fraction", "blocks kept", kind="percent"),
        Column("l2_bytes", "SM<->L2 bytes"),
        Column("dense_l2_bytes", "dense"),
        Column("l2_share", "SM<->L2 bytes, of dense", kind="percent"),
        Column("hbm_bytes", "HBM bytes"),
        Column("dense_hbm_bytes", "dense"),
        Column("hbm_share", "HBM bytes, of dense", kind="percent"),
        Column("time_s", "time"),
        Column("dense_time_s", "dense"),
        Column("time_share", "time, of dense", kind="percent"),
    )
    return drawn("density", columns, rows, _density_panels(request, with_dense), legend)


def _cells(sparse: float | None, dense: float | None) -> tuple[float | None, ...]:
    return sparse, dense, sparse / dense if sparse is not None and dense else None


def _percent(share: float) -> str:
    return f"{number_text(100 * share)} %"


def _density_panels(request: CaseGrid, with_dense: list[tuple[Point, Point]]) -> tuple[Panel, ...]:
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
