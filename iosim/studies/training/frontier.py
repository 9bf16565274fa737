"""What fits: peak memory over a grid of sequence lengths and widths (or batches), and the longest sequence of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.hardware.profile import HardwareProfile
from iosim.show.shown import Shown
from iosim.show.tables import Table
from iosim.studies.training.layers import peak_bytes
from iosim.studies.training.model import Decoder
from iosim.studies.training.setup import MAX_TOKENS, Setup

if TYPE_CHECKING:
    import pandas

AXES = ("width", "batch", "layers")
MAX_CELLS = 2500
TOKEN_STEP = 64
"""Longest sequences are found to this many tokens."""


@dataclass(frozen=True, repr=False)
class Frontier(Shown):
    """What fits on a GPU: peak memory over values of one axis and sequence lengths."""

    FACE = "iosim.studies.training.frontier_face"

    axis: str
    """What the rows are of: width, batch or layers."""
    values: tuple[int, ...]
    """The rows: columns of the residual stream, sequences or layers."""
    seq_lens: tuple[int, ...]
    """The columns: tokens of a sequence."""
    peak_bytes: tuple[tuple[int, ...], ...]
    """Bytes at the peak, a row a value and a column a length."""
    longest: tuple[int, ...]
    """Tokens of the longest sequence that fits, a number a row; 0 for none."""
    capacity_bytes: int
    """Bytes of the GPU's memory, less the reserve."""
    model: Decoder
    """What is trained, but for the axis."""
    setup: Setup
    """How it is trained, but for the sequence length."""
    profile: HardwareProfile
    """The GPU."""

    def fits(self, row: int, column: int) -> bool:
        """Whether a cell stays within the capacity."""
        return self.peak_bytes[row][column] <= self.capacity_bytes

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row a cell of the map: the axis, seq_len, peak_bytes, fits."""
        return Table.of(self.cells()).to_pandas()

    def cells(self) -> Iterator[dict[str, Any]]:
        """Every cell of the map, row by row."""
        for value, peaks in zip(self.values, self.peak_bytes, strict=True):
            for seq_len, peak in zip(self.seq_lens, peaks, strict=True):
                yield {self.axis: value, "seq_len": seq_len, "peak_bytes": peak, "fits": peak <= self.capacity_bytes}

    def to_dict(self) -> dict[str, Any]:
        return {
            "axis": self.axis, "values": list(self.values), "seq_lens": list(self.seq_lens),
            "peak_bytes": [list(row) for row in self.peak_bytes], "longest_seq_len": list(self.longest),
            "capacity_bytes": self.capacity_bytes,
        }  # fmt: skip


def changed(model: Decoder, setup: Setup, axis: str, value: int) -> tuple[Decoder, Setup]:
    """The model and setup with `axis` at `value`. Wider models keep their head dimension, their ratio of MLP to width
    and of query to key/value heads.

    Raises:
        InputError: an unknown axis, or a width that is no multiple of the head dimension.
    """
    if axis == "batch":
        return model, replace(setup, batch=value)
    if axis == "layers":
        return replace(model, layers=value), setup
    if axis != "width":
        raise InputError(f"`axis` '{axis}' is not known; accepted: {', '.join(AXES)}")
    if value % model.head_dim:
        raise InputError(f"`width` {value} is not a multiple of the head dimension {model.head_dim}; accepted: "
                         "multiples of it")  # fmt: skip
    heads = value // model.head_dim
    kv_heads = max(1, heads * model.kv_heads // model.heads)
    if heads % kv_heads:
        raise InputError(f"`width` {value} gives {heads} heads, which {kv_heads} key/value heads do not divide; "
                         f"accepted: multiples of {model.width // model.kv_heads}")  # fmt: skip
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
    """The map of what fits.

    Args:
        model, setup: what is trained, but for the two axes.
        profile: the GPU, whose memory_bytes decide.
        axis: "width", "batch" or "layers"; `values` of it are the rows.
        seq_lens: the columns.
        reserve_bytes: memory that tensors cannot use.
        progress: hands on the rows one by one, and may show how far it is.

    Raises:
        InputError: an unknown axis, values out of range, or more than 2,500 cells.
    """
    if not values or not seq_lens or len(values) * len(seq_lens) > MAX_CELLS:
        raise InputError(f"`frontier` over {len(values)} x {len(seq_lens)} cells; accepted: 1 to {MAX_CELLS} cells")
    capacity = profile.need_int("memory_bytes") - reserve_bytes
    cells, longest = [], []
    for value in progress(values):
        one, how = changed(model, setup, axis, value)
        cells.append(tuple(peak_bytes(one, replace(how, seq_len=n)) for n in seq_lens))
        fitting = [n for n, p in zip(seq_lens, cells[-1], strict=True) if p <= capacity]
        beyond = [n for n, p in zip(seq_lens, cells[-1], strict=True) if p > capacity]
        longest.append(longest_sequence(one, how, capacity, max(fitting, default=0), min(beyond, default=None)))
    return Frontier(axis, tuple(values), tuple(seq_lens), tuple(cells), tuple(longest), capacity, model, setup, profile)


def longest_sequence(
    model: Decoder, setup: Setup, capacity_bytes: int, fitting: int = 0, beyond: int | None = None
) -> int:
    """The most tokens, a multiple of `TOKEN_STEP`, whose step fits; 0 if not even that many do.

    Peak memory grows with the length, so that it is found by halving between a length that is known to fit and one
    that is known not to, where they are known.
    """

    def fits(steps: int) -> bool:
        try:
            return peak_bytes(model, replace(setup, seq_len=steps * TOKEN_STEP)) <= capacity_bytes
        except InputError:
            return False

    low, high = fitting // TOKEN_STEP, -(-beyond // TOKEN_STEP) if beyond else max(1, 2 * fitting // TOKEN_STEP)
    while beyond is None and high * TOKEN_STEP <= MAX_TOKENS and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * TOKEN_STEP
