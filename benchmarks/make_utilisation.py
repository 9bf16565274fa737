"""Writes reports/utilisation.svg: `python benchmarks/make_utilisation.py`. A few seconds.

The same code and the same published points give the same bytes.

Published speeds are dots, predicted ones lines: one panel a head dimension, mask and pass, one colour a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from iosim.base.files import write_whole
from iosim.base.units import length_text
from iosim.evidence.reproduce.published import Point, points
from iosim.show.axes import NEUTRAL, colour

KERNELS = ("fa3", "fa2", "cudnn")
NAMES = {"fa3": "FlashAttention-3", "fa2": "FlashAttention-2", "cudnn": "cuDNN"}
WIDTH, HEIGHT, GAP, LEFT, TOP = 250, 170, 46, 52, 74
"""Of a panel, between panels, and around all of them, in pixels."""
STEP = 200
"""TFLOP/s between grid lines."""
FONT = "font-family='system-ui, sans-serif'"
INK = "#6b7078"
"""Grey that can be read on white and on dark ground."""

Speeds = list[tuple[Point, float]]


def panels() -> list[tuple[str, Speeds]]:
    """Title and points of each panel that has a length axis, fp16 alone."""
    speeds: dict[str, Speeds] = {}
    for p in points():
        if p.dtype != "fp16" or p.kernel not in KERNELS:
            continue
        mask = "causal" if p.mask == "causal" else "not causal"
        gpu = "H100" if p.gpu.startswith("h100") else "A100"
        words = {"fwd": "forward", "bwd": "backward", "fwd+bwd": "both passes"}[p.passes]
        speeds.setdefault(f"{gpu}, {words}, d {p.head_dim}, {mask}", []).append(
            (p, p.speed(p.predicted()))
        )
    order = ("forward, d", "backward", "both")
    return sorted(
        speeds.items(),
        key=lambda t: (
            next(n for n, w in enumerate(order) if w in t[0]),
            t[0].endswith(", causal"),
        ),
    )


def text(
    x: float, y: float, words: str, *, size: int = 11, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f"<text x='{x:g}' y='{y:g}' font-size='{size}' text-anchor='{anchor}' font-weight='{weight}' fill='{INK}' "
        f"{FONT}>{escape(words)}</text>"
    )


def panel(title: str, speeds: Speeds, x0: float, y0: float, top: float) -> Iterator[str]:
    """One panel with its corner at (x0, y0) and `top` TFLOP/s at its upper edge."""
    lengths = sorted({p.seq for p, _ in speeds})
    low = math.log2(lengths[0])
    high = math.log2(lengths[-1])

    def x(seq: int) -> float:
        return round(x0 + (math.log2(seq) - low) / (high - low) * WIDTH, 1)

    def y(speed: float) -> float:
        return round(y0 + HEIGHT - speed / top * HEIGHT, 1)

    yield text(x0, y0 - 10, title, size=12, weight="600")
    for level in range(0, int(top) + 1, STEP):
        yield (
            f"<line x1='{x0:g}' x2='{x0 + WIDTH:g}' y1='{y(level):g}' y2='{y(level):g}' stroke='{NEUTRAL}' "
            "stroke-opacity='0.25'/>"
        )
        yield text(x0 - 6, y(level) + 4, str(level), anchor="end")
    for seq in lengths:
        yield text(x(seq), y0 + HEIGHT + 16, length_text(seq), anchor="middle")
    for kernel in KERNELS:
        mine = [(p, s) for p, s in speeds if p.kernel == kernel]
        if not mine:
            continue
        ink = colour(KERNELS.index(kernel))
        line = " ".join(f"{x(p.seq):g},{y(s):g}" for p, s in mine)
        yield f"<polyline points='{line}' fill='none' stroke='{ink}' stroke-width='2'/>"
        for p, s in mine:
            tooltip = f"{NAMES[kernel]}, {p.seq:,} tokens: published {p.tflops:g}, predicted {s:.0f} TFLOP/s"
            yield f"<circle cx='{x(p.seq):g}' cy='{y(p.tflops):g}' r='4' fill='{ink}'><title>{tooltip}</title></circle>"


def svg(panels_drawn: Sequence[tuple[str, Speeds]]) -> str:
    """All panels in three columns, under one legend."""
    columns = 3
    rows = -(-len(panels_drawn) // columns)
    width = LEFT + columns * (WIDTH + GAP)
    height = TOP + rows * (HEIGHT + GAP + 10)
    top = max(max(p.tflops, s) for _, speeds in panels_drawn for p, s in speeds)
    top = -(-top // STEP) * STEP
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' "
        "role='img' aria-label='Published and predicted TFLOP/s of attention kernels against sequence length'>",
        text(
            LEFT,
            20,
            "TFLOP/s against tokens: dots published, lines predicted",
            size=14,
            weight="600",
        ),
    ]
    for n, kernel in enumerate(KERNELS):
        x = LEFT + n * 150
        ink = colour(n)
        parts.append(
            f"<line x1='{x}' x2='{x + 18}' y1='38' y2='38' stroke='{ink}' stroke-width='2'/>"
        )
        parts.append(f"<circle cx='{x + 9}' cy='38' r='4' fill='{ink}'/>")
        parts.append(text(x + 24, 42, NAMES[kernel]))
    for n, (title, speeds) in enumerate(panels_drawn):
        x0 = LEFT + n % columns * (WIDTH + GAP)
        y0 = TOP + n // columns * (HEIGHT + GAP + 10)
        parts += panel(title, speeds, x0, y0, top)
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    write_whole(
        Path(__file__).resolve().parent.parent / "reports" / "utilisation.svg", svg(panels())
    )
