"""Closed-form sweeps: SM<->L2 bytes of millions of problem x tile combinations, exact, without SymPy.

The kernel's launches are planned once, on duals whose companions are the swept arrays; the closed form of
`iosim.readers.formula.closed_form` is then evaluated on them. Where planning branches (a group of one or more heads, a
matrix library's choice of tile), combinations that take another branch than the first are planned again from one of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from iosim.base.errors import InputError
from iosim.base.fields import MAX_SIZE
from iosim.kernel.algorithms import plan
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.overrides import MAX_BLOCK
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import MAX_TOKENS
from iosim.problem.masks.mask import IntArray, IntervalMask
from iosim.readers.formula.closed_form import closed_form
from iosim.readers.formula.dual import ArrayKind, lifted
from iosim.readers.formula.lifting import lifted_chain

SIZES = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v", "window", "offset")
BLOCKS = ("block_q", "block_k", "backward_block_q", "backward_block_k")
FOLLOWS = {"kv_heads": "heads", "seq_k": "seq_q", "head_dim_v": "head_dim"}
"""Sizes that follow another one where they are not swept and equal it in the problem given."""
CHUNK = 1 << 15
"""Combinations evaluated at once: a few arrays of them stay in a core's L2."""
LIMIT = 1 << 60
"""Bytes up to which int64 arithmetic is trusted, with room for intermediate sums."""


@dataclass(frozen=True)
class Sweep:
    """Bytes between SMs and L2 for every combination: int64 arrays of the swept values' broadcast shape."""

    read: IntArray
    write: IntArray

    @property
    def total(self) -> IntArray:
        return self.read + self.write


def _checked(name: str, value: Any) -> IntArray:
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise InputError(f"{name} of a sweep is not an array of whole numbers")
    low = {"offset": -MAX_SIZE, "window": 0}.get(name, 1)
    high = MAX_BLOCK if name in BLOCKS else MAX_TOKENS if name in ("seq_q", "seq_k") else MAX_SIZE
    if array.size and not low <= array.min() <= array.max() <= high:
        raise InputError(f"{name} of a sweep is out of range; accepted: {low} to {high}")
    return array.astype(np.int64)


def _arrays(problem: AttentionProblem, kernel: Kernel, values: Mapping[str, Any]) -> dict[str, IntArray]:
    if not isinstance(problem.pair_mask, IntervalMask):
        packed = "" if problem.seq_lens is None else " with seq_lens"
        raise InputError(f"`mask` '{problem.mask}'{packed} cannot be swept; accepted: mask none, causal or window of "
                         "one length a batch")  # fmt: skip
    known = SIZES + BLOCKS
    for name in values:
        if name not in known:
            raise InputError(f"'{name}' cannot be swept; accepted: {', '.join(known)}")
    arrays = {name: _checked(name, value) for name, value in values.items()}
    for name, leader in FOLLOWS.items():
        if leader in arrays and name not in arrays and getattr(problem, name) == getattr(problem, leader):
            arrays[name] = arrays[leader]
    if "window" in arrays and problem.mask != "window":
        raise InputError(f"`window` contradicts `mask` '{problem.mask}'; a window goes with mask 'window'")
    if "offset" in arrays and problem.mask == "none":
        raise InputError("`offset` contradicts `mask` 'none'; it shifts a causal or window diagonal")
    if kernel.backward.tile is None and any(name.startswith("backward_") for name in arrays):
        raise InputError(f"kernel '{kernel.name}' has no tile of its own for the backward pass")
    heads, kv_heads = arrays.get("heads", problem.heads), arrays.get("kv_heads", problem.kv_heads)
    if np.any(heads % kv_heads):
        raise InputError("`heads` of a sweep is not a multiple of kv_heads everywhere")
    return arrays


def _representative(
    problem: AttentionProblem,
    kernel: Kernel,
    arrays: Mapping[str, IntArray],
    at: tuple[int, ...],
    shape: tuple[int, ...],
) -> tuple[AttentionProblem, Kernel]:
    """The problem and the kernel of one combination."""
    one = {name: int(np.broadcast_to(array, shape)[at]) for name, array in arrays.items()}
    back = kernel.backward.tile
    kernel = replace(
        kernel,
        tile=_tile(kernel.tile, one, ""),
        backward=replace(kernel.backward, tile=None if back is None else _tile(back, one, "backward_")),
    )
    return problem.with_(**{name: value for name, value in one.items() if name in SIZES}), kernel


def _tile(tile: Tile, one: Mapping[str, int], prefix: str) -> Tile:
    return replace(tile, **{n: one[prefix + n] for n in ("block_q", "block_k") if prefix + n in one})


def _pass(
    problem: AttentionProblem, kernel: Kernel, arrays: Mapping[str, IntArray], read: IntArray, write: IntArray
) -> npt.NDArray[np.bool_]:
    """Fill `read` and `write` as planned for the first combination; True where a combination takes another branch."""
    shape = read.shape
    first = _representative(problem, kernel, arrays, (0,) * len(shape), shape)
    missed = np.zeros(shape, dtype=np.bool_)
    axis = int(np.argmax(shape))
    step = max(1, CHUNK * shape[axis] // read.size)
    for start in range(0, shape[axis], step):
        cut = (slice(None),) * axis + (slice(start, start + step),)
        kind = ArrayKind()
        part = {name: a[cut] if a.shape[axis] > 1 else a for name, a in arrays.items()}
        traffic = closed_form(lifted_chain(*first, part, kind))
        read[cut] = lifted(traffic.total("l2", "read"))
        write[cut] = lifted(traffic.total("l2", "write"))
        missed[cut] = np.logical_not(kind.holds)
    return missed


def _fill(
    problem: AttentionProblem, kernel: Kernel, arrays: Mapping[str, IntArray], read: IntArray, write: IntArray
) -> None:
    """Passes until every combination has been planned for the branches that it takes."""
    missed = _pass(problem, kernel, arrays, read, write)
    left = np.flatnonzero(missed)
    rest = {name: np.broadcast_to(a, read.shape)[missed] for name, a in arrays.items()} if left.size else {}
    while left.size:
        part = np.empty((2, left.size), dtype=np.int64)
        missed = _pass(problem, kernel, rest, part[0], part[1])
        read.reshape(-1)[left], write.reshape(-1)[left] = part
        left = left[missed]
        rest = {name: a[missed] for name, a in rest.items()}


def _check_size(
    problem: AttentionProblem, kernel: Kernel, arrays: Mapping[str, IntArray], shape: tuple[int, ...]
) -> None:
    """Refuse a sweep whose largest combination leaves no room in 64 bits."""
    size: Any = np.ones((1,) * len(shape))
    for name, array in arrays.items():
        if name in ("batch", "heads", "seq_q", "seq_k", "head_dim", "head_dim_v"):
            size = size * array
    for a, b in (BLOCKS[:2], BLOCKS[2:]):
        size = size / np.minimum(arrays.get(a, 64), arrays.get(b, 64))
    largest = np.unravel_index(int(np.argmax(np.broadcast_to(size, shape))), shape)
    at = tuple(int(i) for i in largest)
    total = closed_form(plan(*_representative(problem, kernel, arrays, at, shape))).total("l2")
    if total > LIMIT:
        raise InputError(f"a sweep reaches {total} bytes, beyond exact 64-bit arithmetic; accepted: up to {LIMIT}")


def sweep(problem: AttentionProblem, kernel: Kernel, **values: npt.ArrayLike) -> Sweep:
    """SM<->L2 bytes of `kernel` on `problem` for every combination of `values`.

    Args:
        problem, kernel: what is not swept. seq_k follows seq_q, head_dim_v follows head_dim and kv_heads follows heads
            where they are equal in `problem` and not swept themselves; the offset follows seq_k - seq_q likewise.
        values: ints or arrays of ints, broadcast against each other: batch, heads, kv_heads, seq_q, seq_k, head_dim,
            head_dim_v, window, offset; block_q, block_k (and backward_block_q, backward_block_k where the kernel has a
            tile of its own for the backward pass).

    Raises:
        InputError: a value of the wrong name, type or range; a combination that the kernel cannot run.
    """
    arrays = _arrays(problem, kernel, values)
    shape = np.broadcast_shapes(*(a.shape for a in arrays.values())) or (1,)
    read, write = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
    if read.size:
        arrays = {name: a.reshape((1,) * (len(shape) - a.ndim) + a.shape) for name, a in arrays.items()}
        _check_size(problem, kernel, arrays, shape)
        _fill(problem, kernel, arrays, read, write)
    return Sweep(read, write)
