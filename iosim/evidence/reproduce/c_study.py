"""Section C, item 2: the study's grid on an L4 under several readings of what was trained and compared.

The study says batch 1, 2,048 to 16,384 tokens, width 1,024 to 4,096, 4 to 24 layers, forward and backward, PyTorch's
attention against FlashAttention. It states neither heads, MLP, vocabulary, mask nor the precision of each side. Each
reading fixes them; all are computed alike, with the profile's rates, and none is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean

from iosim.hardware.profile import load_profile
from iosim.studies.training.frontier import changed, memory_lines, step_seconds
from iosim.studies.training.model import Decoder, Setup

GPU = "l4"
TIME_SAVED, TIME_SAVED_LEAST, MEMORY_SAVED = 68.92, 65.0, 49.5
"""Percent: on average, at least, and in every configuration."""
SEQ_LENS = (2048, 4096, 8192, 16384)
WIDTHS = (1024, 2048, 4096)
LAYERS = (4, 8, 12, 16, 20, 24)

LAYERS_ALONE = Decoder(layers=4, width=1024, heads=16, vocabulary=0)
ATTENTION_ALONE = Decoder(layers=4, width=1024, heads=16, vocabulary=0, mlp_width=0, norm="none", bias=False)
GPT = Decoder(layers=4, width=1024, heads=16, vocabulary=50304)
"""Head dimension 64 in all; wider models have more heads."""


def _setup(attention: str, precision: str) -> Setup:
    return Setup(attention=attention, precision=precision, optimizer="none")


@dataclass(frozen=True)
class Reading:
    """What may have been trained (`model`, at its smallest width), and the two sides that were compared."""

    name: str
    model: Decoder
    base: Setup
    flash: Setup

    def setups(self, tokens: int) -> dict[str, Setup]:
        return {side: replace(s, seq_len=tokens) for side, s in (("base", self.base), ("flash", self.flash))}


_NAIVE16, _NAIVE32 = _setup("naive", "fp16"), _setup("naive", "fp32")
_FLASH16, _FUSED32 = _setup("flash", "fp16"), _setup("flash", "fp32")
READINGS = (
    Reading("transformer layers, eager against flash, both fp16", LAYERS_ALONE, _NAIVE16, _FLASH16),
    Reading("attention layers alone, eager against flash, both fp16", ATTENTION_ALONE, _NAIVE16, _FLASH16),
    Reading("GPT with embedding and head, eager against flash, both fp16", GPT, _NAIVE16, _FLASH16),
    Reading("GPT, eager against flash, both autocast over fp32", GPT, _setup("naive", "amp-fp16"),
            _setup("flash", "amp-fp16")),
    Reading("transformer layers, eager in fp32 against flash in fp16", LAYERS_ALONE, _NAIVE32, _FLASH16),
    Reading("transformer layers, fused attention in fp32 against flash in fp16", LAYERS_ALONE, _FUSED32, _FLASH16),
    Reading("attention layers alone, fused attention in fp32 against flash in fp16", ATTENTION_ALONE, _FUSED32,
            _FLASH16),
    Reading("GPT, fused attention in fp32 against flash in fp16", GPT, _FUSED32, _FLASH16),
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One configuration under one reading: bytes and seconds of both sides."""

    tokens: int
    width: int
    layers: int
    bytes: dict[str, int]
    seconds: dict[str, float]

    @property
    def time_saved(self) -> float:
        return 1 - self.seconds["flash"] / self.seconds["base"]

    @property
    def memory_saved(self) -> float:
        return 1 - self.bytes["flash"] / self.bytes["base"]

    def fits(self, side: str, capacity: int) -> bool:
        return self.bytes[side] <= capacity


@lru_cache(maxsize=32)
def grid(reading: Reading) -> tuple[Cell, ...]:
    """All configurations of the study's grid under one reading."""
    return tuple(_cells(reading))


def _cells(reading: Reading) -> Iterator[Cell]:
    gpu = load_profile(GPU)
    for tokens in SEQ_LENS:
        setups = reading.setups(tokens)
        for width in WIDTHS:
            model, _ = changed(reading.model, reading.base, "width", width)
            lines = {side: memory_lines(model, s) for side, s in setups.items()}
            for layers in LAYERS:
                deep = replace(model, layers=layers)
                yield Cell(
                    tokens, width, layers,
                    {side: line.peak_bytes(layers) for side, line in lines.items()},
                    {side: sum(step_seconds(deep, s, gpu).values()) for side, s in setups.items()},
                )  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """A reading in the study's own numbers, over configurations whose both sides fit in `capacity` (all, if None)."""

    cells: int
    time_mean: float
    time_min: float
    time_max: float
    memory_mean: float
    memory_min: float
    memory_max: float
    time_by_width: dict[int, float]


def summary(reading: Reading, capacity: int | None = None) -> Summary | None:
    """The study's numbers under a reading; None if nothing fits."""
    cells = [c for c in grid(reading) if capacity is None or (c.fits("base", capacity) and c.fits("flash", capacity))]
    if not cells:
        return None
    times, memory = [c.time_saved for c in cells], [c.memory_saved for c in cells]
    widths = {w: fmean(c.time_saved for c in cells if c.width == w) for w in WIDTHS if any(c.width == w for c in cells)}
    return Summary(len(cells), fmean(times), min(times), max(times), fmean(memory), min(memory), max(memory), widths)


def closest() -> Reading:
    """The reading whose mean and least time saved and least and most memory saved lie nearest the published
    numbers over all configurations: the smallest of the largest relative differences."""

    def distance(reading: Reading) -> float:
        mean_of = summary(reading)
        assert mean_of is not None
        pairs = ((mean_of.time_mean, TIME_SAVED), (mean_of.time_min, TIME_SAVED_LEAST),
                 (mean_of.memory_min, MEMORY_SAVED),
                 (mean_of.memory_max, MEMORY_SAVED))  # fmt: skip
        return max(abs(100 * computed / published - 1) for computed, published in pairs)

    return min(READINGS, key=distance)
