"""What fits: peak memory over a grid of sequence lengths and widths (or batches), and the longest sequence of each.

Models of many layers follow from two of few: layers are alike, so that every event's bytes, and the step's seconds,
grow by the same for each layer. An event of the first, second, last but one or last layer lies on a straight line over
the number of layers, and events between the second and the last but one lie between these two. Four and five layers
give the lines.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass, plain, replace
from iosim.base.units import bytes_text, length_text, some
from iosim.hardware.profile import HardwareProfile
from iosim.show import axes
from iosim.show.page import Panel
from iosim.show.shown import Part, Shown
from iosim.show.tables import Column, Table
from iosim.studies.training.model import MAX_TOKENS, Decoder, Setup
from iosim.studies.training.plan import plan
from iosim.studies.training.step_time import step_time
from iosim.studies.training.timeline import play

FEW = 4
AXES = {"width": "1k:4k:1k", "batch": "1:64:x2", "layers": "4:24:4"}
SEQ_LENS = "2k:16k:2k"
MAX_CELLS = 2500
TOKEN_STEP = 64
"""Longest sequences are found to this many tokens."""
GB = 1e9
MOST_WORDS = 9
"""Columns of the map up to which its cells hold numbers."""
_LAYER = re.compile(r"^layer(\d+)\.")

Place = tuple[str, int, str]
"""Phase, layer (counted from the front, or below zero from the back), name within the layer."""


def peak_bytes(model: Decoder, setup: Setup) -> int:
    """The most bytes of tensors that live at once in a step of `model`."""
    if model.layers <= FEW:
        return play(plan(model, setup)).peak_bytes
    return memory_lines(replace(model, layers=FEW), setup)(model.layers)


@lru_cache(maxsize=4096)
def memory_lines(model: Decoder, setup: Setup) -> Callable[[int], int]:
    """Bytes at the peak by the number of layers, from lines through every event; the model's own does not matter."""
    # A line through each event: bytes at four layers, and what a fifth adds.
    few, more = (_places(replace(model, layers=n), setup) for n in (FEW, FEW + 1))
    return lambda layers: max(at + (layers - FEW) * (more[place] - at) for place, at in few.items())


def _places(model: Decoder, setup: Setup) -> dict[Place, int]:
    peaks: dict[Place, int] = {}
    for event in play(plan(model, setup)).events:
        match = _LAYER.match(event.name)
        layer = int(match[1]) if match else 0
        # Inner layers lie between their neighbours: the first two and last two bound them.
        if 1 < layer < model.layers - 2:
            continue
        place = layer if layer < 2 else layer - model.layers
        key = (event.phase, place, event.name[match.end() :] if match else f"/{event.name}")
        peaks[key] = max(peaks.get(key, 0), event.peak_bytes)
    return peaks


def step_seconds(model: Decoder, setup: Setup, profile: HardwareProfile) -> dict[str, float]:
    """Seconds of a step by phase, on a straight line over the number of layers."""
    few, more = (_seconds(replace(model, layers=n), setup, profile) for n in (1, 2))
    return {phase: few[phase] + (model.layers - 1) * (more[phase] - few[phase]) for phase in few}


@lru_cache(maxsize=4096)
def _seconds(model: Decoder, setup: Setup, profile: HardwareProfile) -> dict[str, float]:
    time = step_time(plan(model, setup), profile)
    return {phase: time.phase_s(phase) for phase in time.parts}


@dataclass(frozen=True, repr=False)
class Frontier(Shown):
    axis: str
    """What the rows are of: width, batch or layers."""
    values: tuple[int, ...]
    """The rows: columns of the residual stream, sequences or layers."""
    seq_lens: tuple[int, ...]
    """The columns: tokens of a sequence."""
    peak_bytes: tuple[tuple[int, ...], ...]
    """Bytes at the peak, a row per value and a column per length."""
    longest: tuple[int, ...]
    """Tokens of the longest sequence that fits, a number per row; 0 for none."""
    capacity_bytes: int
    """Bytes of the GPU's memory, less the reserve."""
    model: Decoder
    """What is trained, but for the axis."""
    setup: Setup
    """How it is trained, but for the sequence length."""
    profile: HardwareProfile
    """The GPU."""

    def fits(self, row: int, column: int) -> bool:
        return self.peak_bytes[row][column] <= self.capacity_bytes

    def records(self) -> Iterator[dict[str, Any]]:
        for value, peaks in zip(self.values, self.peak_bytes, strict=True):
            for seq_len, peak in zip(self.seq_lens, peaks, strict=True):
                yield {
                    self.axis: value,
                    "seq_len": seq_len,
                    "peak_bytes": peak,
                    "fits": peak <= self.capacity_bytes,
                }

    def to_dict(self) -> dict[str, Any]:
        return plain(
            axis=self.axis,
            values=self.values,
            seq_lens=self.seq_lens,
            peak_bytes=self.peak_bytes,
            longest_seq_len=self.longest,
            capacity_bytes=self.capacity_bytes,
        )

    def setting(self) -> dict[str, Any]:
        return {
            "model": self.model.to_dict(),
            "setup": self.setup.to_dict(),
            "profile": self.profile.name,
        }

    @property
    def answer(self) -> str:
        """The answer in one sentence."""
        ends = dict.fromkeys(
            ((self.values[0], self.longest[0]), (self.values[-1], self.longest[-1]))
        )
        at = {
            v: some(v, "layer") if self.axis == "layers" else f"{self.axis} {v:,}" for v, _ in ends
        }
        clauses = " and ".join(
            f"{some(n, 'token') if n else 'nothing'} at {at[v]}" for v, n in ends
        )
        cells = sum(p <= self.capacity_bytes for row in self.peak_bytes for p in row)
        of = some(len(self.values) * len(self.seq_lens), "cell")
        return (
            f"On {self.profile.name} ({bytes_text(self.capacity_bytes)}) with {self.setup.attention} attention in "
            f"{self.setup.precision} the longest sequence that fits has {clauses}; "
            f"{cells} of {of} fit{'s' if cells == 1 else ''}."
        )

    def to_text(self) -> str:
        return f"{self.answer}\n\n{self._head()}\n\n{self._table().text()}"

    def _line(self) -> str:
        ends = f"{self.axis} {self.values[0]:,} to {self.values[-1]:,}"
        return f"{self.profile.name}, {ends}: longest {self.longest[0]:,} to {some(self.longest[-1], 'token')}"

    def _parts(self) -> list[Part]:
        return [self.answer, self._head(), self._table()]

    def _panels(self) -> tuple[Panel, ...]:
        return (self.panel,)

    def _head(self) -> str:
        setup = self.setup
        return (
            f"Peak memory in GB on {self.profile.name} ({bytes_text(self.capacity_bytes)}; x does not fit), by "
            f"{self.axis} and tokens: {setup.attention} attention, {setup.precision}, optimizer {setup.optimizer}, "
            f"recompute {setup.recompute}"
        )

    def _table(self) -> Table:
        return Table.of(
            {self.axis: f"{v:,}"}
            | {
                some(n, "token"): f"{p / 1e9:.2f}{'' if p <= self.capacity_bytes else ' x'}"
                for n, p in zip(self.seq_lens, row, strict=True)
            }
            | {"longest": f"{longest:,}"}
            for v, row, longest in zip(self.values, self.peak_bytes, self.longest, strict=True)
        )

    @property
    def table(self) -> Table:
        """Bytes at the peak for each length, and the longest sequence that fits, a row per value of the axis."""
        lengths = (Column(f"peak_bytes_{n}", f"{n:,} tokens", kind="bytes") for n in self.seq_lens)
        columns = (
            Column(self.axis, kind="count"),
            *lengths,
            Column("longest_seq_len", "longest that fits", kind="count"),
        )
        rows = zip(self.values, self.peak_bytes, self.longest, strict=True)
        return Table(columns, tuple((v, *peaks, longest) for v, peaks, longest in rows))

    @property
    def panel(self) -> Panel:
        """A heat map of peak bytes over the GPU's memory; a cross on cells that do not fit."""
        share = [[p / self.capacity_bytes for p in row] for row in self.peak_bytes]
        lengths = [some(n, "token") for n in self.seq_lens]
        text = [
            [f"{self.axis} {v:,}, {n}: {bytes_text(p)}" for n, p in zip(lengths, row, strict=True)]
            for v, row in zip(self.values, self.peak_bytes, strict=True)
        ]
        xs, ys = [length_text(n) for n in self.seq_lens], [f"{v:,}" for v in self.values]
        cells = [
            [f"{p / GB:.3g}{'' if self.fits(r, c) else ' ✕'}" for c, p in enumerate(row)]
            for r, row in enumerate(self.peak_bytes)
        ]
        in_words = len(xs) <= MOST_WORDS and len(ys) <= 2 * MOST_WORDS
        heat = _heat(cells, in_words, share, text, xs, ys)
        outside = [
            (xs[c], ys[r]) for r in range(len(ys)) for c in range(len(xs)) if not self.fits(r, c)
        ]
        marks = {
            "type": "scatter",
            "mode": "markers",
            "x": [x for x, _ in outside],
            "y": [y for _, y in outside],
            "hoverinfo": "skip",
            "name": "does not fit",
            "marker": {"symbol": "x-thin", "size": 26, "line": {"color": "#5a2a2a", "width": 1}},
        }
        layout = axes.layout(
            axes.axis("sequence length N (tokens)", type="category"),
            axes.axis(self.axis, type="category"),
        )
        fitting = len(xs) * len(ys) - len(outside)
        alt = f"{fitting} of {len(xs) * len(ys)} combinations fit in {bytes_text(self.capacity_bytes)}."
        title = (
            f"Peak memory in GB, {self.axis} against tokens"
            if in_words
            else f"{self.axis} against tokens"
        )
        height = min(26.0, max(12.0, 5.0 + 2.2 * len(ys)))
        return Panel(
            "frontier-0", title, alt, (heat,) if in_words else (heat, marks), layout, height
        )


def _heat(
    cells: list[list[str]],
    in_words: bool,
    share: list[list[float]],
    text: list[list[str]],
    xs: list[str],
    ys: list[str],
) -> dict[str, object]:
    """The heat map's trace; cells are written where there are few."""
    return {
        "type": "heatmap",
        "x": xs,
        "y": ys,
        "z": [[min(2.0, s) for s in row] for row in share],
        "text": cells,
        "hovertext": text,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "zmin": 0,
        "zmax": 2,
        "xgap": 1,
        "ygap": 1,
        **({"texttemplate": "%{text}", "textfont": {"size": 11}} if in_words else {}),
        "colorscale": [[0, "#2f9a6c"], [0.5, "#f2e6c9"], [0.5001, "#e9a46a"], [1, "#cf4357"]],
        "colorbar": {
            "tickvals": [0, 1, 2],
            "ticktext": ["0 %", "100 %", "200 %"],
            "thickness": 10,
        },
    }


def changed(model: Decoder, setup: Setup, axis: str, value: int) -> tuple[Decoder, Setup]:
    """The model and setup with `axis` at `value`. Wider models keep their head dimension, their ratio of MLP to width
    and of query to key/value heads."""
    if axis == "batch":
        return model, replace(setup, batch=value)
    if axis == "layers":
        return replace(model, layers=value), setup
    if axis != "width":
        raise InputError(f"`axis` '{axis}' is not known; accepted: {', '.join(AXES)}")
    if value % model.head_dim:
        raise InputError(
            f"`width` {value} is not a multiple of the head dimension {model.head_dim}; accepted: multiples of it"
        )
    heads = value // model.head_dim
    kv_heads = max(1, heads * model.kv_heads // model.heads)
    if heads % kv_heads:
        hint = f"accepted: multiples of {model.width // model.kv_heads}"
        raise InputError(
            f"`width` {value} gives {heads} heads, which {kv_heads} key/value heads do not divide; {hint}"
        )
    # The ratios of a model stay as it grows wider.
    wider = model.mlp_width * value // model.width
    return replace(model, width=value, heads=heads, kv_heads=kv_heads, mlp_width=wider), setup


def frontier(
    model: Decoder,
    setup: Setup,
    profile: HardwareProfile,
    axis: str,
    values: Sequence[int],
    seq_lens: Sequence[int],
    *,
    reserve_bytes: int = 0,
    progress: Progress = silent,
) -> Frontier:
    """The map of what fits: `values` of `axis` ("width", "batch" or "layers") are the rows, `seq_lens` the columns."""
    if not values or not seq_lens or len(values) * len(seq_lens) > MAX_CELLS:
        raise InputError(
            f"`frontier` over {len(values)} x {len(seq_lens)} cells; accepted: 1 to {MAX_CELLS} cells"
        )
    capacity = profile.need_memory_bytes() - reserve_bytes
    cells, longest = [], []
    for value in progress(values):
        sized, how = changed(model, setup, axis, value)
        cells.append(tuple(peak_bytes(sized, replace(how, seq_len=n)) for n in seq_lens))
        # The grid has bracketed the longest sequence already.
        fitting = [n for n, p in zip(seq_lens, cells[-1], strict=True) if p <= capacity]
        beyond = [n for n, p in zip(seq_lens, cells[-1], strict=True) if p > capacity]
        longest.append(
            longest_sequence(
                sized, how, capacity, max(fitting, default=0), min(beyond, default=None)
            )
        )
    return Frontier(
        axis,
        tuple(values),
        tuple(seq_lens),
        tuple(cells),
        tuple(longest),
        capacity,
        model,
        setup,
        profile,
    )


def longest_sequence(
    model: Decoder, setup: Setup, capacity_bytes: int, fitting: int = 0, beyond: int | None = None
) -> int:
    """The most tokens, a multiple of `TOKEN_STEP`, whose step fits; 0 if not even that many do."""

    def fits(steps: int) -> bool:
        try:
            return peak_bytes(model, replace(setup, seq_len=steps * TOKEN_STEP)) <= capacity_bytes
        except InputError:
            return False

    low, high = (
        fitting // TOKEN_STEP,
        -(-beyond // TOKEN_STEP) if beyond else max(1, 2 * fitting // TOKEN_STEP),
    )
    # Without an upper end: doubled until it no longer fits, then bisected.
    while beyond is None and high * TOKEN_STEP <= MAX_TOKENS and fits(high):
        low, high = high, 2 * high
    return (
        low + bisect_left(range(low + 1, high), True, key=lambda steps: not fits(steps))
    ) * TOKEN_STEP
