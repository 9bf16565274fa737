"""A study of training: its grid on an L4 under several readings of what was trained and compared.

The study says batch 1, 2,048 to 16,384 tokens, width 1,024 to 4,096, 4 to 24 layers, forward and backward, PyTorch's
attention against FlashAttention. It states neither heads, MLP, vocabulary, mask nor the precision of each side. Each
reading fixes them; all are computed alike, with the profile's rates, and none is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product
from statistics import fmean
from types import MappingProxyType
from typing import Any

from iosim.base.records import dataclass, replace
from iosim.base.schema import read_toml
from iosim.evidence.reproduce.paper import PLACE, arithmetic, each_of
from iosim.hardware.profile import load_profile
from iosim.studies.training.frontier import (
    changed,
    longest_sequence,
    memory_lines,
    peak_bytes,
    step_seconds,
)
from iosim.studies.training.model import Decoder, Setup

GPU = "l4"
TIME_SAVED, TIME_SAVED_LEAST, MEMORY_SAVED = 68.92, 65.0, 49.5
"""Percent: on average, at least, and in every configuration."""
SEQ_LENS = (2048, 4096, 8192, 16384)
WIDTHS = (1024, 2048, 4096)
LAYERS = (4, 8, 12, 16, 20, 24)

LAYERS_ALONE = Decoder(layers=4, width=1024, heads=16, vocabulary=0)
MODELS = {
    "layers": LAYERS_ALONE,
    "attention": replace(LAYERS_ALONE, mlp_width=0, norm="none", bias=False),
    "gpt": replace(LAYERS_ALONE, vocabulary=50304),
}
"""Head dimension 64 in all; wider models have more heads."""


@dataclass(frozen=True)
class Reading:
    """What may have been trained (`model`, at its smallest width), and the two sides that were compared."""

    name: str
    model: Decoder
    base: Setup
    flash: Setup


def _setup(attention: str, precision: str) -> Setup:
    return Setup(attention=attention, precision=precision, optimizer="none")


_STATED = read_toml(PLACE / "memory-constrained-study.toml")["reading"]
READINGS = tuple(
    Reading(r["name"], MODELS[r["model"]], _setup(*r["base"]), _setup(*r["flash"])) for r in _STATED
)


@dataclass(frozen=True)
class Cell:
    """One configuration under one reading: bytes of both sides, and the shares of time and of memory that are saved."""

    tokens: int
    width: int
    bytes: dict[str, int]
    saved: dict[str, float]


@lru_cache(maxsize=32)
def grid(reading: Reading) -> tuple[Cell, ...]:
    gpu, cells = load_profile(GPU), []
    for tokens, width in product(SEQ_LENS, WIDTHS):
        setups = {
            side: replace(getattr(reading, side), seq_len=tokens) for side in ("base", "flash")
        }
        model, _ = changed(reading.model, reading.base, "width", width)
        lines = {side: memory_lines(model, setup) for side, setup in setups.items()}
        for layers in LAYERS:
            deep = replace(model, layers=layers)
            peaks = {side: line(layers) for side, line in lines.items()}
            seconds = {
                side: sum(step_seconds(deep, setup, gpu).values()) for side, setup in setups.items()
            }
            both: dict[str, Mapping[str, float]] = {"time": seconds, "memory": peaks}
            saved = {
                quantity: 1 - sides["flash"] / sides["base"] for quantity, sides in both.items()
            }
            cells.append(Cell(tokens, width, peaks, saved))
    return tuple(cells)


def closest() -> Reading:
    """The reading whose mean and least time saved and least and most memory saved lie nearest the published
    numbers over all configurations: the smallest of the largest relative differences."""

    def distance(reading: Reading) -> float:
        times, memory = (
            [cell.saved[quantity] for cell in grid(reading)] for quantity in ("time", "memory")
        )
        computed = fmean(times), min(times), min(memory), max(memory)
        published = TIME_SAVED, TIME_SAVED_LEAST, MEMORY_SAVED, MEMORY_SAVED
        return max(
            abs(100 * value / other - 1) for value, other in zip(computed, published, strict=True)
        )

    return min(READINGS, key=distance)


@each_of
def readings() -> Iterator[Mapping[str, Any]]:
    return ({"reading": reading} for reading in READINGS)


@arithmetic
def training_saved(
    reading: Reading, quantity: str, notes: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Percent of `quantity` (time or memory) that a reading saves: the mean over configurations that fit in the GPU's
    memory, `least` and `most` of all, the `trend` with width in points; and the note for a reading of its kind."""
    capacity, cells = load_profile(GPU).need_memory_bytes(), grid(reading)
    every = [100 * cell.saved[quantity] for cell in cells]
    fitting = [c.saved[quantity] for c in cells if max(c.bytes.values()) <= capacity]
    widths = {w: fmean(c.saved["time"] for c in cells if c.width == w) for w in WIDTHS}
    trend = 100 * (widths[WIDTHS[-1]] - widths[WIDTHS[0]])
    kind = (
        "closest"
        if reading == closest()
        else "near"
        if reading.base.attention == "flash"
        else "far"
    )
    return {
        "computed": 100 * fmean(fitting),
        "fit": len(fitting),
        "cells": len(cells),
        "capacity": capacity / 1e9,
        "least": min(every),
        "most": max(every),
        "trend": trend,
        "by_width": ", ".join(f"{w:,}: {100 * v:.1f} %" for w, v in widths.items()),
        "kind_note": notes.get(kind, ""),
        "holds": "holds" if min(every) > TIME_SAVED_LEAST else "does not hold under this reading",
        "more": ""
        if trend < 0
        else "; here it is more: wide products gain the most from tensor cores",
    }


@arithmetic
def configurations_that_fit(number: int | str, side: str, bytes: int) -> dict[str, Any]:
    """How many of a reading's configurations fit on one side; a reading by its number, or the closest."""
    reading = READINGS[number] if isinstance(number, int) else closest()
    cells = grid(reading)
    fitting = sum(cell.bytes[side] <= bytes for cell in cells)
    return {
        "computed": fitting,
        "cells": len(cells),
        "reading": reading,
        "setup": getattr(reading, side),
    }


@arithmetic
def longest_that_fits(width: int, layers: int) -> dict[str, Any]:
    """Tokens that fit in the GPU's memory with flash in fp16."""
    model, setup = changed(LAYERS_ALONE, READINGS[0].flash, "width", width)
    deep, _ = changed(model, setup, "layers", layers)
    return {"computed": longest_sequence(deep, setup, load_profile(GPU).need_memory_bytes())}


@arithmetic
def fp32_over_fp16() -> dict[str, Any]:
    """Peak memory of training twelve layers at 2,048 tokens in fp32 over that in fp16."""
    model = replace(LAYERS_ALONE, layers=12)
    wide, half = (
        peak_bytes(model, replace(_setup("flash", kind), seq_len=2048)) for kind in ("fp32", "fp16")
    )
    return {"computed": wide / half, "wide": wide / 1e9, "half": half / 1e9}
