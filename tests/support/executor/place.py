"""The `Place` of bodies (`executor.body`) as the walk of a launch moves it along."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from executor.body import Array, ExecutionError, Indices, Place
from executor.memory import Spot, packed_head, token
from executor.numerics import kept_weights
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Access, Launch, Mode, Per, Rows
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.picked import PickedMask


def tile_ends(lengths: tuple[int, ...], block: int) -> tuple[Indices, Indices]:
    """(first row, one past the last) of every tile of the grid: each sequence has as many as the longest needs."""
    longest = -(-max(lengths) // block)
    starts, ends, begin = [], [], 0
    for length in lengths:
        for n in range(longest):
            starts.append(begin + min(n * block, length))
            ends.append(begin + min((n + 1) * block, length))
        begin += length
    return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)


class Grid:
    """What the walk of a launch needs of its domain, found row by row: kept pairs, visited blocks, needed keys."""

    def __init__(self, launch: Launch) -> None:
        d = launch.domain
        self.tokens = token(d, np.arange(d.rows, dtype=np.int64))
        self.kept = d.mask.keeps(self.tokens[:, None], np.arange(d.seq_k, dtype=np.int64)[None, :])
        self.q_starts, self.q_ends = tile_ends(d.query_axis.lengths, d.block_q)
        self.k_starts, self.k_ends = tile_ends(d.key_axis.lengths, d.block_k)
        upto = np.pad(self.kept.astype(np.int64).cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
        by_rows = upto[self.q_ends] - upto[self.q_starts]
        self.visited = by_rows[:, self.k_ends] - by_rows[:, self.k_starts] > 0
        """Boolean [query blocks, key blocks]: at least one pair is kept."""
        if isinstance(d.mask, PickedMask):
            self.visited[:] = True  # a list is walked to its end
        some = np.diff(by_rows, axis=1) > 0
        self.needed_end = np.array(
            [int(np.flatnonzero(row)[-1]) + 1 if row.any() else 0 for row in some]
        )
        """One past the last key that each query block keeps."""
        self.split_of = np.arange(self.k_starts.size) % (
            self.k_starts.size // len(d.key_axis.lengths)
        )
        """Place of each key block in its sequence, by which splits divide it."""

    def q_rows(self, block: int) -> Indices:
        """True query rows of a block."""
        return np.arange(self.q_starts[block], self.q_ends[block], dtype=np.int64)

    def k_rows(self, block: int) -> Indices:
        """True key rows of a block."""
        return np.arange(self.k_starts[block], self.k_ends[block], dtype=np.int64)


class WalkPlace(Place):
    """What a body sees, and what the walk keeps for it: the tiles loaded, the stores due, the values handed over."""

    def __init__(
        self, launch: Launch, problem: AttentionProblem, kernel: Kernel, seed: int, grid: Grid
    ) -> None:
        self.launch, self.problem, self.kernel = launch, problem, kernel
        self.seed = seed
        self.grid = grid
        self.spot = Spot(0, 0)
        self.q: Indices = np.zeros(0, dtype=np.int64)
        self.keys: Indices = np.zeros(0, dtype=np.int64)
        self.used: set[str] = set()
        self.tiles: dict[Per, dict[str, Array]] = {per: {} for per in Per}
        self.skipped_loads: set[str] = set()
        self.skipped_stores: set[str] = set()
        self.due: dict[str, Access] = {}
        self.values: dict[str, Array] = {}

    @property
    def scale(self) -> float:
        return float(self.problem.head_dim**-0.5)

    def __getitem__(self, tensor: str) -> Array:
        for tiles in self.tiles.values():
            if tensor in tiles:
                self.used.add(tensor)
                return tiles[tensor]
        raise ExecutionError(
            f"launch {self.launch.name} uses a tile of {tensor} that it has not loaded here"
        )

    def resume(self, tensor: str, initial: float, cols: int = 1) -> Array:
        if tensor in self.skipped_loads:
            rows = next(a.rows for a in self.launch.accesses if a.tensor == tensor)
            return np.full(((self.keys if rows is Rows.KEY else self.q).size, cols), initial)
        return self[tensor]

    def put(self, tensor: str, value: Array) -> None:
        if tensor in self.due:
            self.values[tensor] = value
        elif tensor not in self.skipped_stores:
            raise ExecutionError(
                f"launch {self.launch.name} has a value of {tensor} and no access here to store it"
            )

    def writes(self, tensor: str) -> bool:
        return any(a.tensor == tensor and a.mode is not Mode.LOAD for a in self.launch.accesses)

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        return self.problem.pair_mask.keeps(self.grid.tokens[self.q][:, None], self.keys[None, :])

    @property
    def distance(self) -> Array:
        p = self.problem
        diagonal = p.seq_k - p.seq_q if p.offset is None else p.offset
        rows = self.grid.tokens[self.q][:, None] + diagonal
        return np.asarray(np.abs(rows - self.keys[None, :]), dtype=np.float64)

    @property
    def survivors(self) -> Array:
        return self._survivors_of(self.seed)

    def _survivors_of(self, seed: int) -> Array:
        domain = self.launch.domain
        heads = self.spot.head * domain.pack + packed_head(domain, self.q)
        queries = self.grid.tokens[self.q][:, None]
        keys = self.keys[None, :]
        weights = kept_weights(
            seed, self.spot.batch, heads[:, None], queries, keys, self.problem.dropout
        )
        return weights.astype(np.float64)

    @property
    def dropout_factor(self) -> Array:
        return (
            self._factor_of(self.seed)
            if self.problem.dropout
            else np.ones((self.q.size, self.keys.size))
        )

    @property
    def dropout_factor_again(self) -> Array:
        if not self.problem.dropout:
            return np.ones((self.q.size, self.keys.size))
        return self._factor_of(int(self["rng_state"][0, 0]))

    def _factor_of(self, seed: int) -> Array:
        return self._survivors_of(seed) / (1 - self.problem.dropout)

    @property
    def random_state(self) -> Array:
        return np.array([[self.seed], [0.0]])
