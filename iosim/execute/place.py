"""Place: where a body stands in a launch, the tiles it may use there and the stores it owes there."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from iosim.execute.dropout import kept_weights
from iosim.execute.memory import Indices, Spot
from iosim.execute.registry import ExecutionError
from iosim.execute.rounding import Array
from iosim.kernel import Kernel
from iosim.launch import Access, Launch, Mode, Per
from iosim.mask import IntervalMask
from iosim.problem import AttentionProblem


def kept_pairs(mask: IntervalMask, queries: Indices, keys: Indices) -> npt.NDArray[np.bool_]:
    """Boolean [queries, keys] by the mask's definition: i + offset - left <= j <= i + offset + right."""
    distance = keys[None, :] - (queries[:, None] + mask.offset)
    kept = np.ones(distance.shape, dtype=np.bool_)
    if mask.left is not None:
        kept &= distance >= -mask.left
    if mask.right is not None:
        kept &= distance <= mask.right
    return kept


class Grid:
    """What the walk of a launch needs of its domain, found row by row: kept pairs, visited blocks, needed keys."""

    def __init__(self, launch: Launch) -> None:
        d = launch.domain
        self.tokens = np.arange(d.rows, dtype=np.int64) // d.pack
        self.kept = kept_pairs(d.mask, self.tokens, np.arange(d.seq_k, dtype=np.int64))
        self.q_starts = np.arange(0, d.rows, d.block_q)
        self.k_starts = np.arange(0, d.seq_k, d.block_k)
        by_rows = np.add.reduceat(self.kept.astype(np.int64), self.q_starts, axis=0)
        self.visited = np.add.reduceat(by_rows, self.k_starts, axis=1) > 0
        """Boolean [query blocks, key blocks]: at least one pair is kept."""
        self.needed_end = np.array([int(np.flatnonzero(row)[-1]) + 1 if row.any() else 0 for row in by_rows])
        """One past the last key that each query block keeps."""

    def q_rows(self, block: int, block_q: int) -> Indices:
        """True query rows of a block."""
        start = int(self.q_starts[block])
        return np.arange(start, min(start + block_q, self.kept.shape[0]), dtype=np.int64)

    def k_rows(self, block: int, block_k: int) -> Indices:
        """True key rows of a block."""
        start = int(self.k_starts[block])
        return np.arange(start, min(start + block_k, self.kept.shape[1]), dtype=np.int64)


class Place:
    """What a body sees. Tiles are [rows, cols]; a row vector's are [rows, 1]; rows past a tensor's end are left out.

    Key rows that an access leaves out because no query of the block needs them are zero.
    """

    def __init__(self, launch: Launch, problem: AttentionProblem, kernel: Kernel, seed: int, grid: Grid) -> None:
        self.launch = launch
        self.problem = problem
        self.kernel = kernel
        self.seed = seed
        self.grid = grid
        self.spot = Spot(0, 0)
        self.q: Indices = np.zeros(0, dtype=np.int64)
        """Rows of the query block, within the domain."""
        self.keys: Indices = np.zeros(0, dtype=np.int64)
        """Key indices of the key block."""
        self.used: set[str] = set()
        self.tiles: dict[Per, dict[str, Array]] = {per: {} for per in Per}
        self.skipped_loads: set[str] = set()
        self.skipped_stores: set[str] = set()
        self.due: dict[str, Access] = {}
        self.values: dict[str, Array] = {}

    @cached_property
    def scale(self) -> float:
        """The softmax scale, 1 / sqrt(head_dim)."""
        return float(self.problem.head_dim**-0.5)

    def __getitem__(self, tensor: str) -> Array:
        """A tile that has been loaded for this place.

        Raises:
            ExecutionError: no access of the launch has loaded it.
        """
        for tiles in self.tiles.values():
            if tensor in tiles:
                self.used.add(tensor)
                return tiles[tensor]
        raise ExecutionError(f"launch {self.launch.name} uses a tile of {tensor} that it has not loaded here")

    def resume(self, tensor: str, initial: float, cols: int = 1) -> Array:
        """A running value: the tile loaded, or `initial` where the access says that its first load is left out."""
        if tensor in self.skipped_loads:
            return np.full((self.q.size, cols), initial)
        return self[tensor]

    def put(self, tensor: str, value: Array) -> None:
        """Hand over the value of a store that is due here; one that the access leaves out here is dropped.

        Raises:
            ExecutionError: the launch does not store this tensor here.
        """
        if tensor not in self.due:
            if tensor in self.skipped_stores:
                return
            raise ExecutionError(f"launch {self.launch.name} has a value of {tensor} and no access here to store it")
        self.values[tensor] = value

    def writes(self, tensor: str) -> bool:
        """Whether the launch has any write of `tensor`."""
        return any(a.tensor == tensor and a.mode is not Mode.LOAD for a in self.launch.accesses)

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """Boolean [query rows, keys] of the problem's mask at this tile, from indices alone."""
        return kept_pairs(self.problem.interval_mask, self.grid.tokens[self.q], self.keys)

    @property
    def survivors(self) -> Array:
        """[query rows, keys]: 1 where dropout keeps a weight, else 0; recomputed from the counter."""
        pack = self.launch.domain.pack
        heads = self.spot.head * pack + self.q % pack
        kept = kept_weights(
            self.seed, self.spot.batch, heads[:, None], self.grid.tokens[self.q][:, None], self.keys[None, :],
            self.problem.dropout,
        )  # fmt: skip
        return kept.astype(np.float64)

    @property
    def dropout_factor(self) -> Array:
        """[query rows, keys]: what a weight is multiplied by under dropout; ones without."""
        if not self.problem.dropout:
            return np.ones((self.q.size, self.keys.size))
        return self.survivors / (1 - self.problem.dropout)
