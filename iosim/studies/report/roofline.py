"""The roofline of each level: FLOP/s against FLOP per byte of that level, under the ceilings of the profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.units import number_text, rate_text
from iosim.hardware.profile import HardwareProfile
from iosim.show import axes
from iosim.show.page import Figure, Panel
from iosim.show.tables import Column, Table
from iosim.studies.report.collect import Point, series
from iosim.studies.report.figures import FROM, WHO, kernel_legend, who
from iosim.studies.report.request import ReportRequest

DASHES = {"measured": "solid", "specification": "dot"}
Ceilings = dict[str, tuple[float, float]]
"""(bytes per second of a level, operations per second) by "measured" and "specification"; what is unknown is absent."""


def tensor_rate(profile: HardwareProfile, dtype: str, measured: bool) -> float | None:
    """Operations per second of matrix products; those of the fp32 units where a dtype has no tensor rate."""
    try:
        return profile.tensor_flops(dtype, measured=measured)
    except InputError:
        return None if measured else profile.fp32_flops_per_s


def bandwidth(profile: HardwareProfile, level: str, measured: bool) -> float | None:
    """Bytes per second of a level; of L2's measured curve, the best."""
    if level == "hbm":
        return profile.dram_bandwidth_measured_bytes_per_s if measured else profile.dram_bandwidth_bytes_per_s
    if not measured:
        return profile.l2_read_bandwidth_bytes_per_s
    curve = profile.l2_read_bandwidth_by_footprint_bytes_per_s
    return max(rate for _, rate in curve) if curve else profile.l2_read_bandwidth_measured_bytes_per_s


def ceilings(profile: HardwareProfile, dtype: str, level: str) -> Ceilings:
    """The roofs of a level that a profile knows. A measured roof takes the specification's number for the one half of
    it that was not measured."""
    roofs: Ceilings = {}
    rates = {m: (bandwidth(profile, level, m), tensor_rate(profile, dtype, m)) for m in (True, False)}
    if any(rates[True]):
        wide, fast = (best or plain for best, plain in zip(rates[True], rates[False], strict=True))
        if wide and fast:
            roofs["measured"] = (wide, fast)
    wide, fast = rates[False]
    if wide and fast:
        roofs["specification"] = (wide, fast)
    return roofs


def roofline(request: ReportRequest, points: Sequence[Point], level: str, profile_ids: dict[str, str]) -> Figure | None:
    """The roofline of "l2" or "hbm"; None where the level's bytes are not predicted.

    `profile_ids` gives, by GPU label, the id of the command line that prints its ceilings.
    """
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
    labels = [g.label for g in request.gpus if any(p.gpu.label == g.label for p in shown)]
    for n, label in enumerate(labels, 1):
        members = [p for p in shown if p.gpu.label == label]
        data = [_roof(name, *of_gpu, ends) for name, of_gpu in roofs[label].items()]
        readings = [f"the {name} roof is flat at {rate_text(fast)} from {number_text(fast / wide)} FLOP per byte on"
                for name, (wide, fast) in roofs[label].items()]  # fmt: skip
        for _, kernel, row in series(members):
            hover = [f"{kernel}, N = {p.seq_len:,}<br>{number_text(intensity[p.id])} FLOP/byte, "
                     f"{rate_text(p.flops / p.time_s)} ({p.id})" for p in row]  # fmt: skip
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
    columns = (*WHO, Column("flops", "FLOP", "count"), Column(f"{level}_bytes", f"{word} bytes", "bytes"),
               Column("flops_per_byte", "FLOP/byte", "number"), Column("flops_per_s", "FLOP/s", "rate"),
               Column("roof_flops_per_s", "roof there", "rate"), Column("share_of_roof", "of the roof", "percent"),
               FROM)  # fmt: skip
    guides = [(f"roof, {name}", dash) for name, dash in DASHES.items() if any(name in f for f in roofs.values())]
    return Figure(
        f"roofline-{level}", f"Roofline at {word}",
        f"Operations per second that the predicted time allows, against operations per {word} byte; a line joins a "
        f"kernel's lengths. Solid roof: measured {word} bandwidth and the matrix rate of large products, "
        "at the clock that their power leaves: a kernel that draws less may stand a few percent above it. Dotted: the "
        "specification's. "
        "FLOP counts the pairs that the mask keeps.",
        Table(columns, tuple(rows)), tuple(panels), kernel_legend(request, *guides), "seq_len",
        ("share_of_roof",), tuple(left_out),
    )  # fmt: skip


def _roof(name: str, wide: float, fast: float, ends: list[float]) -> dict[str, Any]:
    ridge = fast / wide
    x = [ends[0], *([ridge] if ends[0] < ridge < ends[1] else []), ends[1]]
    y = [min(wide * v, fast) for v in x]
    return axes.guide(f"roof, {name}", x, y, f"{name}: {rate_text(fast)}, {number_text(wide / 1e9)} GB/s", DASHES[name])
