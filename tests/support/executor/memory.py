"""Device memory of an execution: one array a tensor, addressed tile by tile, with the bytes that each touch moves.

Arrays are float64 [copies, batch, heads, rows, cols] whatever the layout in memory is, and hold values rounded to the
tensor's storage format. Memory that nobody has written holds NaN.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from executor.arrays import place_of_rows, scattered
from executor.body import Array, ExecutionError, Indices
from executor.numerics import round_to
from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.catalog.algorithms.cache import TABLE
from iosim.kernel.launch import (
    SECTOR_BYTES,
    Access,
    Chain,
    Domain,
    Fetch,
    Mode,
    Per,
    Role,
    Rows,
    Tensor,
)
from iosim.problem.attention import AttentionProblem
from iosim.problem.dtypes import dtype

MAX_ELEMENTS = 1 << 27
ROW_STATISTICS = ("LSE", "l", "m", "D")


def storage_format(tensor: Tensor, problem: AttentionProblem) -> str:
    """Name of the format a tensor is stored in: the one that the problem gives it; else, and for temporaries of four
    bytes, fp32 or the problem's own format of that width if it has one. Raises ExecutionError: no format is that wide.
    """
    stated = tensor.format != "" and dtype(tensor.format).bytes == tensor.element_bytes
    if tensor.element_bytes == 4 and (tensor.role is Role.TEMP or not stated):
        return "fp32"
    if stated:
        return tensor.format
    for kind in (problem.input_type, problem.output_type):
        if kind.bytes == tensor.element_bytes:
            return kind.name
    by_width = {1: "fp8", 2: "bf16", 8: "fp64"}
    if tensor.element_bytes not in by_width:
        raise ExecutionError(
            f"tensor {tensor.name} has {tensor.element_bytes} bytes an element: no known format"
        )
    return by_width[tensor.element_bytes]


def check_size(chain: Chain) -> None:
    """Refuse what would not fit. Raises InputError: the tensors, or the pairs of a head, are more than
    `MAX_ELEMENTS`."""
    tensors = sum(t.elements for t in chain.tensors.values())
    largest = max([tensors, *(x.domain.rows * x.domain.seq_k for x in chain.launches)])
    if largest > MAX_ELEMENTS:
        raise InputError(
            f"a problem of {largest} elements is too large to execute; accepted: up to {MAX_ELEMENTS}"
        )


def whole_sectors(n_bytes: int) -> int:
    """Bytes of the sectors that a run of bytes starting on a sector touches."""
    return (n_bytes + SECTOR_BYTES - 1) // SECTOR_BYTES * SECTOR_BYTES


def moved_bytes(tensor: Tensor, access: Access, rows: int, cols: int, inside: int) -> int:
    """Bytes between SM and L2 as `rows` x `cols` elements are touched once, `inside` rows of them in the tensor.

    A row vector moves whole sectors, one run or `packet_rows` rows at a time; a matrix whose rows lie apart, whole
    sectors a row; any other tile, its elements.
    """
    if access.rows is Rows.PAIR:
        return rows * cols * tensor.element_bytes
    if cols == 1:
        run = access.packet_rows or rows
        return sum(
            whole_sectors(min(run, rows - start) * tensor.element_bytes)
            for start in range(0, rows, max(run, 1))
        )
    row = cols * tensor.element_bytes
    plain = whole_sectors(row) if tensor.strided else row
    if access.fetch is Fetch.BYTES or row % SECTOR_BYTES != SECTOR_BYTES // 2:
        return rows * plain
    fetched = sum(_requested(row, start, access.fetch) for start in (0, SECTOR_BYTES // 2)) // 2
    return rows * plain + min(rows, inside) * (fetched - plain)


def _requested(row: int, start: int, fetch: Fetch) -> int:
    """Bytes of the sectors asked for with a row that begins `start` bytes into a sector: by as many of its chunks of 16
    bytes together as `fetch` says."""
    chunks = range(start, start + row, SECTOR_BYTES // 2)
    together = {Fetch.SECTORS: len(chunks), Fetch.LANES: 2}.get(fetch, 8)
    groups = (chunks[n : n + together] for n in range(0, len(chunks), together))
    sectors = sum(len({chunk // SECTOR_BYTES for chunk in some}) for some in groups)
    if fetch is Fetch.WIDE_BOXES and start:
        sectors += 1
    return SECTOR_BYTES * sectors


@dataclass(frozen=True)
class Spot:
    """Where a work tile stands: grid position, split, and the repetition of an access that is made several times."""

    batch: int
    head: int
    split: int = 0
    repetition: int = 0


def token(domain: Domain, row: Indices) -> Indices:
    """The query token of each row of a head."""
    return row % (domain.rows // domain.pack) if domain.in_turn else row // domain.pack


def packed_head(domain: Domain, row: Indices) -> Indices:
    """Which of the heads packed into a tile's rows each row belongs to."""
    return row // (domain.rows // domain.pack) if domain.in_turn else row % domain.pack


class Memory:
    """The arrays of a chain. `given` fills tensors by name, in the shape [batch, heads, rows, cols] or without cols."""

    def __init__(
        self, chain: Chain, problem: AttentionProblem, inputs: Mapping[str, npt.ArrayLike]
    ) -> None:
        self.tensors = chain.tensors
        self.formats = {name: storage_format(t, problem) for name, t in chain.tensors.items()}
        self.arrays: dict[str, Array] = {}
        self.written: set[str] = set()
        for name, t in chain.tensors.items():
            shape = (t.copies, t.batch, t.heads, t.rows, t.cols)
            if name not in inputs:
                self.arrays[name] = np.full(shape, np.nan)
                continue
            values = np.asarray(inputs[name], dtype=np.float64)
            if values.size != t.elements:
                raise InputError(f"array {name} has shape {values.shape}; accepted: {shape[1:]}")
            rounded = round_to(values.reshape(shape), self.formats[name])
            self.arrays[name] = scattered(t, rounded, inputs[TABLE]) if t.page_rows else rounded
            self.written.add(name)

    def array(self, name: str) -> Array:
        """A tensor as [batch, heads, rows, cols], or [batch, heads, rows] for a row statistic."""
        whole = self.arrays[name][0]
        return np.asarray(whole[..., 0] if name in ROW_STATISTICS else whole, dtype=np.float64)

    def read(
        self,
        access: Access,
        domain: Domain,
        spot: Spot,
        q: Indices,
        k: Indices,
        entries: Array | None = None,
    ) -> Array:
        """The tile of the access at query rows `q` and key rows `k`, found through `entries` of the block table where
        its rows lie in pages."""
        tensor = self.tensors[access.tensor]
        if tensor.name not in self.written:
            raise ExecutionError(f"{tensor.name} is loaded before anything has written it")
        copy, batch, head, row, cols = self._index(access, domain, spot, q, k)
        if tensor.picked_by and entries is not None:
            keys_per_row = self.tensors[tensor.picked_by].keys_per_row
            picks = (
                (entries.reshape(-1, 1) * keys_per_row + np.arange(keys_per_row))
                .reshape(-1)
                .astype(np.int64)
            )
            tile = self.arrays[tensor.name][
                0, batch[0], head[0], np.maximum(picks, 0)[:, None], cols
            ]
            return np.where(picks[:, None] >= 0, tile, 0.0)
        if entries is not None and not isinstance(row, int):
            page_index, row = place_of_rows(tensor, row[:, 0], entries)
            batch = page_index[:, None]
            row = row[:, None]
        tile = self.arrays[tensor.name][copy, batch, head, row, cols]
        return np.asarray(tile, dtype=np.float64)

    def write(
        self, access: Access, domain: Domain, spot: Spot, q: Indices, k: Indices, values: Array
    ) -> None:
        """Store `values`, or add them, at the access's tile, rounded to the tensor's format."""
        tensor = self.tensors[access.tensor]
        add = access.mode is Mode.REDUCE
        index = self._index(access, domain, spot, q, k)
        stored = self.arrays[tensor.name]
        if stored[index].shape != values.shape:
            raise ExecutionError(
                f"a tile of {tensor.name} has shape {stored[index].shape}, not {values.shape}"
            )
        shared = tensor.heads < domain.heads or tensor.batch < domain.batch
        if shared and not add and access.per is not Per.LAUNCH:
            raise ExecutionError(
                f"several heads of the grid store over each other in {tensor.name}"
            )
        stored[index] = round_to(
            stored[index] + values if add else values, self.formats[tensor.name]
        )
        self.written.add(tensor.name)

    def _index(
        self, access: Access, domain: Domain, spot: Spot, q: Indices, k: Indices
    ) -> tuple[int | Indices, ...]:
        tensor = self.tensors[access.tensor]
        along, length = (k, domain.seq_k) if access.rows is Rows.KEY else (q, domain.rows)
        if access.rows is Rows.OWN:
            along = np.arange(tensor.rows)
            length = tensor.rows
        if tensor.wraps:
            along, length = along % tensor.rows, tensor.rows
        if (
            tensor.keys_per_row and access.rows is Rows.KEY and tensor.along is Rows.QUERY
        ):  # a query's list
            row = token(domain, q[:1])
            head = spot.head // (domain.heads // tensor.heads)
            cols = np.unique(k // tensor.keys_per_row)
            return 0, np.array([[spot.batch]]), np.array([[head]]), row[:, None], cols[None, :]
        if tensor.keys_per_row and access.rows is Rows.KEY:
            along, length = (
                np.unique(k // tensor.keys_per_row),
                -(-domain.seq_k // tensor.keys_per_row),
            )
        cols = np.arange(tensor.cols)
        if access.rows is Rows.PAIR:
            if tensor.cols != domain.seq_k:
                raise ExecutionError(
                    f"{tensor.name} has {tensor.cols} columns, the launch {domain.seq_k} keys"
                )
            cols = k
        copy = spot.split if tensor.copies > 1 else 0
        if tensor.copies > 1 and access.rows is Rows.OWN:  # a state a block
            by_key = access.per in (Per.KEY, Per.PAIR)
            copy = int(k[0]) // domain.block_k if by_key else int(q[0]) // domain.block_q
        batch, head, row = _locate(tensor, access, domain, spot, along, length)
        return copy, batch[:, None], head[:, None], row[:, None], cols[None, :]


def _locate(
    tensor: Tensor, access: Access, domain: Domain, spot: Spot, along: Indices, length: int
) -> tuple[Indices, Indices, Indices]:
    """(batch, head, row) in the tensor of every row of a tile."""
    ones = np.ones_like(along)
    packs = access.rows is not Rows.KEY and domain.pack > 1
    if not packs and domain.grid_heads == 1 and tensor.batch * tensor.heads * tensor.rows == length:
        batch, head, row = np.unravel_index(along, (tensor.batch, tensor.heads, tensor.rows))
        return batch.astype(np.int64), head.astype(np.int64), row.astype(np.int64)
    if tensor.picked_by:  # rows that a list names
        length = tensor.rows
    in_batch = (spot.batch if tensor.batch == domain.batch else 0) * ones
    sequences = tensor.batch // domain.batch
    if (
        sequences > 1
        and access.times * domain.grid_heads == tensor.batch * tensor.heads
        and tensor.rows == length
    ):
        heads = tensor.heads // domain.heads
        which, inside = divmod(spot.repetition, heads)
        return (spot.batch * sequences + which) * ones, (spot.head * heads + inside) * ones, along
    if tensor.batch not in (1, domain.batch):
        raise ExecutionError(f"{tensor.name} has {tensor.batch} sequences, the grid {domain.batch}")
    pack = domain.pack
    if packs and tensor.heads == domain.heads * pack and tensor.rows * pack == length:
        return in_batch, spot.head * pack + packed_head(domain, along), token(domain, along)
    if packs and domain.of(tensor) is not domain:  # a row for all heads, or rows, that are packed
        along = np.unique(token(domain, along))
        return spot.batch * np.ones_like(along), spot.head * np.ones_like(along), along
    if tensor.rows != length:
        raise ExecutionError(
            f"{tensor.name} has {tensor.rows} rows, the launch {length} along {access.rows}"
        )
    if domain.heads % tensor.heads == 0:
        head_index = spot.head // (domain.heads // tensor.heads)
    elif tensor.heads == domain.heads * access.times:
        head_index = spot.head * access.times + spot.repetition
    else:
        raise ExecutionError(f"{tensor.name} has {tensor.heads} heads, the grid {domain.heads}")
    return in_batch, head_index * ones, along
