"""Section C: "A Practical Study of FlashAttention for Memory-Constrained Environments" (Sun, Yu).

A minimal kernel on a T4 whose shape is not stated (`c_minimal`), and training on an L4 whose precision, model and mask
are not stated (`c_study`). Every reading is computed alike and printed; nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from iosim.evidence.reproduce import c_minimal
from iosim.evidence.reproduce.c_study import (
    GPU,
    LAYERS,
    LAYERS_ALONE,
    MEMORY_SAVED,
    READINGS,
    SEQ_LENS,
    TIME_SAVED,
    TIME_SAVED_LEAST,
    WIDTHS,
    Reading,
    Summary,
    closest,
    grid,
    summary,
)
from iosim.evidence.reproduce.registry import section
from iosim.evidence.reproduce.row import Row
from iosim.hardware.profile import load_profile
from iosim.studies.training.frontier import changed, longest_sequence

TITLE = "A Practical Study of FlashAttention for Memory-Constrained Environments: a kernel on a T4, training on an L4"
STATED_BYTES = 32_000_000_000
"""Memory that the study gives the L4."""

row = partial(Row, "C")


@section("C", TITLE)
def rows() -> Iterator[Row]:
    """The minimal kernel, the training study under every reading, what fits, the qualitative remarks."""
    yield from c_minimal.rows()
    for reading in READINGS:
        yield from _reading_rows(reading)
    yield from _fit_rows()
    yield from c_minimal.remark_rows()


def _reading_rows(reading: Reading) -> Iterator[Row]:
    """The study's three numbers and its trend, over the configurations of which both sides fit in the GPU's memory."""
    capacity = load_profile(GPU).need_int("memory_bytes")
    fitting, every = summary(reading, capacity), summary(reading)
    assert fitting is not None
    assert every is not None
    how = f"mean over the {fitting.cells} of {every.cells} configurations whose both sides fit in {capacity / 1e9:g} GB"
    yield row(f"training on an L4, time saved; read as: {reading.name}", TIME_SAVED, 100 * fitting.time_mean, "%",
              f"{how}; {_range(every, 'time')} over all", _verdict(reading))  # fmt: skip
    yield row(f"training on an L4, least time saved; read as: {reading.name}", TIME_SAVED_LEAST,
              100 * every.time_min, "%", "the least of all configurations; the source says above 65 % everywhere",
              "holds" if 100 * every.time_min > TIME_SAVED_LEAST else "does not hold under this reading")  # fmt: skip
    yield row(f"training on an L4, memory saved; read as: {reading.name}", MEMORY_SAVED, 100 * fitting.memory_mean, "%",
              f"{how}; {_range(every, 'memory')} over all",
              "the source has about the same in every configuration")  # fmt: skip
    by_width = ", ".join(f"{w:,}: {100 * v:.1f} %" for w, v in every.time_by_width.items())
    trend = 100 * (every.time_by_width[WIDTHS[-1]] - every.time_by_width[WIDTHS[0]])
    yield row(f"training on an L4, time saved at the largest width less that at the smallest; read as: {reading.name}",
              None, trend, "points", by_width, "the source says slightly less for wider models"
              + ("" if trend < 0 else "; here it is more: wide products gain the most from tensor cores"))  # fmt: skip


def _range(fitting: Summary, what: str) -> str:
    low, high = getattr(fitting, f"{what}_min"), getattr(fitting, f"{what}_max")
    return f"{100 * low:.1f} to {100 * high:.1f} %"


def _verdict(reading: Reading) -> str:
    if reading == closest():
        return ("the closest reading: what is saved is the half precision. The same attention algorithm, linear in "
                "memory, runs on both sides; 65 % and 49.5 % in every configuration come out together, the trend with "
                "width does not")  # fmt: skip
    if reading.base.attention == "flash":
        return "near the closest reading: half precision against fp32"
    return ("eager attention keeps N x N tensors, so that its savings grow with N: neither 49.5 % in every "
            "configuration nor a narrow range of times can come out, whatever the mean")  # fmt: skip


def _fit_rows() -> Iterator[Row]:
    """What fits, in the memory that an L4 has and in the memory that the source states."""
    gpu = load_profile(GPU)
    have = gpu.need_int("memory_bytes")
    for reading in (READINGS[0], READINGS[5], closest()):
        cells = grid(reading)
        for side, setup in (("base", reading.base), ("flash", reading.flash)):
            for capacity, words in ((have, "the 24 GB of an L4"), (STATED_BYTES, "the 32 GB stated")):
                fitting = [c for c in cells if c.fits(side, capacity)]
                yield row(f"training on an L4, configurations that fit in {words}; {side} side of: {reading.name}",
                          None, len(fitting), "configurations",
                          f"of {len(cells)}: {len(SEQ_LENS)} lengths x {len(WIDTHS)} widths x {len(LAYERS)} depths, "
                          f"{setup.attention} attention, {setup.precision}",
                          "the source names no configuration that fails in a form that could be compared")  # fmt: skip
    for width in WIDTHS:
        model, setup = changed(LAYERS_ALONE, READINGS[0].flash, "width", width)
        for layers in (LAYERS[0], LAYERS[-1]):
            deep, _ = changed(model, setup, "layers", layers)
            longest = longest_sequence(deep, setup, have)
            yield row(f"training on an L4, longest sequence that fits with flash in fp16: width {width:,}, {layers} "
                      "layers", None, longest, "tokens", "peak of tensors against 24 GB, no optimizer; transformer "
                      "layers without vocabulary", "no such number is published")  # fmt: skip
