"""The `Place` of bodies (`iosim.kernel.algorithms.body`) as the walk of a launch moves it along."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from iosim.kernel.algorithms.body import Array, ExecutionError, Indices
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Access, Launch, Mode, Per, Rows
from iosim.problem.attention import AttentionProblem
from iosim.readers.execute.dropout import kept_weights
from iosim.readers.execute.memory import Spot


def tile_ends(lengths: tuple[int, ...], block: int) -> tuple[Indices, Indices]:
    """(first row, one past the last) of every tile of the grid: each sequence has as many as the longest needs."""
    most = -(-max(lengths) // block)
    starts, ends, begin = [], [], 0
    for length in lengths:
        for n in range(most):
            starts.append(begin + min(n * block, length))
            ends.append(begin + min((n + 1) * block, length))
        begin += length
    return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)


class Grid:
    """What the walk of a launch needs of its domain, found row by row: kept pairs, visited blocks, needed keys."""

    def __init__(self, launch: Launch) -> None:
        d = launch.domain
        self.tokens = d.token(np.arange(d.rows, dtype=np.int64))
        self.kept = d.mask.keeps(self.tokens[:, None], np.arange(d.seq_k, dtype=np.int64)[None, :])
        self.q_starts, self.q_ends = tile_ends(d.query_axis.lengths, d.block_q)
        self.k_starts, self.k_ends = tile_ends(d.key_axis.lengths, d.block_k)
        upto = np.pad(self.kept.astype(np.int64).cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
        by_rows = upto[self.q_ends] - upto[self.q_starts]
        self.visited = by_rows[:, self.k_ends] - by_rows[:, self.k_starts] > 0
        """Boolean [query blocks, key blocks]: at least one pair is kept."""
        some = np.diff(by_rows, axis=1) > 0
        self.needed_end = np.array([int(np.flatnonzero(row)[-1]) + 1 if row.any() else 0 for row in some])
        """One past the last key that each query block keeps."""
        self.split_of = np.arange(self.k_starts.size) % (self.k_starts.size // len(d.key_axis.lengths))
        """Place of each key block in its sequence, by which splits divide it."""

    def q_rows(self, block: int) -> Indices:
        """True query rows of a block."""
        return np.arange(self.q_starts[block], self.q_ends[block], dtype=np.int64)

    def k_rows(self, block: int) -> Indices:
        """True key rows of a block."""
        return np.arange(self.k_starts[block], self.k_ends[block], dtype=np.int64)


class WalkPlace:
    """What a body sees, and what the walk keeps for it: the tiles loaded, the stores due, the values handed over."""

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
        """A tile that has been loaded for this place. Raises ExecutionError: no access of the launch has loaded it."""
        for tiles in self.tiles.values():
            if tensor in tiles:
                self.used.add(tensor)
                return tiles[tensor]
        raise ExecutionError(f"launch {self.launch.name} uses a tile of {tensor} that it has not loaded here")

    def resume(self, tensor: str, initial: float, cols: int = 1) -> Array:
        """A running value: the tile loaded, or `initial` where the access says that its first load is left out."""
        if tensor in self.skipped_loads:
            rows = next(a.rows for a in self.launch.accesses if a.tensor == tensor)
            return np.full(((self.keys if rows is Rows.KEY else self.q).size, cols), initial)
        return self[tensor]

    def put(self, tensor: str, value: Array) -> None:
        """Hand over the value of a store that is due here; one that the access leaves out here is dropped. Raises
        ExecutionError: the launch does not store this tensor here."""
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
        return self.problem.pair_mask.keeps(self.grid.tokens[self.q][:, None], self.keys[None, :])

    @property
    def distance(self) -> Array:
        """|i + offset - j| of the tile's pairs: what ALiBi's slope multiplies, the diagonal where the mask's is."""
        p = self.problem
        diagonal = p.seq_k - p.seq_q if p.offset is None else p.offset
        rows = self.grid.tokens[self.q][:, None] + diagonal
        return np.asarray(np.abs(rows - self.keys[None, :]), dtype=np.float64)

    @property
    def survivors(self) -> Array:
        """[query rows, keys]: 1 where dropout keeps a weight, else 0; from the seed that the call was given."""
        return self.survivors_of(self.seed)

    def survivors_of(self, seed: int) -> Array:
        """The same from a seed of the launch's own: what a backward computes again from the random state it loads."""
        domain = self.launch.domain
        heads = self.spot.head * domain.pack + domain.packed_head(self.q)
        kept = kept_weights(
            seed, self.spot.batch, heads[:, None], self.grid.tokens[self.q][:, None], self.keys[None, :],
            self.problem.dropout,
        )  # fmt: skip
        return kept.astype(np.float64)

    @property
    def dropout_factor(self) -> Array:
        """[query rows, keys]: what a weight is multiplied by under dropout; ones without."""
        if not self.problem.dropout:
            return np.ones((self.q.size, self.keys.size))
        return self.survivors / (1 - self.problem.dropout)

    @property
    def dropout_factor_again(self) -> Array:
        """`dropout_factor` from the random state that the launch has loaded."""
        if not self.problem.dropout:
            return np.ones((self.q.size, self.keys.size))
        return self.survivors_of(int(self["rng_state"][0, 0])) / (1 - self.problem.dropout)

    @property
    def random_state(self) -> Array:
        """[2, 1]: the seed, and the offset at which the counter starts."""
        return np.array([[self.seed], [0.0]])
