"""Arrays of a call as tensors hold them: heads that all share or that lie side by side in a row, and rows in pages of a
cache, which stand in memory where a shuffled block table says.

Slots are numbered over all sequences: slot s is page s % pages of sequence s // pages in the array. Rows of a last page
that no token has are NaN, so that a kernel which reads past the sequence's end does not compute attention.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from executor.body import Array, Indices
from executor.numerics import round_to
from iosim.catalog.algorithms.cache import TABLE
from iosim.kernel.launch import SECTOR_BYTES, Chain, Role, Tensor
from iosim.problem.attention import AttentionProblem


def cut(arrays: Mapping[str, Array], chain: Chain) -> dict[str, Array]:
    """Random arrays with as many heads as a tensor of the same width has."""
    parts = dict(arrays)
    for name, array in arrays.items():
        tensor = chain.tensors.get(name)
        if tensor is not None and array.ndim == 4 and array.shape[2:] == (tensor.rows, tensor.cols):
            parts[name] = array[:, : tensor.heads]
    return parts


def joined(arrays: Mapping[str, npt.ArrayLike], chain: Chain) -> dict[str, npt.ArrayLike]:
    """Arrays [batch, heads, rows, cols] as tensors hold them, whose rows may have several heads side by side."""
    return {n: _joined(a, chain.tensors[n]) if n in chain.tensors else a for n, a in arrays.items()}


def _joined(values: npt.ArrayLike, tensor: Tensor) -> npt.ArrayLike:
    array = np.asarray(values)
    if array.ndim != 4 or array.shape[1] <= tensor.heads:
        return values
    batch, heads, rows, cols = array.shape
    if heads % tensor.heads or heads * cols != tensor.heads * tensor.cols:
        return values
    apart = array.reshape(batch, tensor.heads, heads // tensor.heads, rows, cols)
    return apart.transpose(0, 1, 3, 2, 4).reshape(batch, tensor.heads, rows, tensor.cols)


def parted(outputs: Mapping[str, Array], problem: AttentionProblem) -> dict[str, Array]:
    """Outputs by the problem's own heads."""
    return {n: _parted(a, problem) if n in ("O", "dV") else a for n, a in outputs.items()}


def _parted(array: Array, problem: AttentionProblem) -> Array:
    batch, heads, rows, cols = array.shape
    if cols == problem.head_dim_v:
        return array
    apart = array.reshape(
        batch, heads, rows, cols // problem.head_dim_v, problem.head_dim_v
    ).transpose(0, 1, 3, 2, 4)
    return np.asarray(
        apart.reshape(batch, heads * cols // problem.head_dim_v, rows, problem.head_dim_v)
    )


def gated(chain: Chain, seed: int) -> dict[str, Array]:
    """Random arrays of a chain with gates: V by its own heads, gates that forget a little, keys of about length 1, and
    a state. Empty for other chains."""
    if not {"g", "dt", "g_slc"} & chain.tensors.keys():
        return {}
    generator, arrays = np.random.default_rng(seed), {}
    for name, t in chain.tensors.items():
        if t.role is Role.INPUT:
            shape = (t.batch, t.heads, t.rows, t.cols)
            is_number = name in ("beta", "dt", "A") or name.split("_")[0] == "g"
            values = generator.random(shape) if is_number else generator.standard_normal(shape)
            scale = {"g": -0.25, "A": -1.0, "K": t.cols**-0.5}.get(name, 1.0)
            arrays[name] = round_to(
                scale * values, "fp32" if is_number or t.element_bytes == 4 else t.format
            )
    return arrays


def shuffled_table(problem: AttentionProblem, seed: int) -> dict[str, Array]:
    """A block table [batch, pages] by name, every slot used once; empty where the cache has no pages."""
    if problem.page_size is None:
        return {}
    pages = -(-problem.scored_keys // problem.page_size)
    slots = np.random.default_rng(seed).permutation(problem.batch * pages)
    return {TABLE: slots.reshape(problem.batch, pages).astype(np.float64)}


def new_tokens(
    problem: AttentionProblem, chain: Chain, arrays: Mapping[str, npt.ArrayLike]
) -> dict[str, Array]:
    """The last keys and values as [batch, 1, seq_q, kv_heads x width] and their slots, where the chain appends them."""
    p, arrays_by_name = problem, {}
    for name in ("K", "V"):
        if f"{name}_new" in chain.tensors:
            rows = np.asarray(arrays[name], dtype=np.float64)[:, :, p.seq_k - p.seq_q :]
            arrays_by_name[f"{name}_new"] = np.moveaxis(rows, 1, 2).reshape(p.batch, 1, p.seq_q, -1)
    if "slot_mapping" in chain.tensors:
        slots = np.arange(p.seq_k - p.seq_q, p.seq_k, dtype=np.float64)
        arrays_by_name["slot_mapping"] = np.broadcast_to(slots, (p.batch, p.seq_q))
    return arrays_by_name


def scattered(tensor: Tensor, values: Array, table: npt.ArrayLike) -> Array:
    """`values` [copies, batch, heads, rows, cols] as they lie in memory, whole pages of rows."""
    slots = np.asarray(table).astype(np.int64).reshape(tensor.batch, -1)
    size, pages = tensor.page_rows, slots.shape[1]
    in_pages = np.full((*values.shape[:3], pages * size, values.shape[4]), np.nan)
    for (batch, page), slot in np.ndenumerate(slots):
        rows = values[:, batch, :, page * size : (page + 1) * size]
        to_batch, to_page = divmod(int(slot), pages)
        in_pages[:, to_batch, :, to_page * size : to_page * size + rows.shape[2]] = rows
    return in_pages


def at_sectors(tensor: Tensor, keys: Indices) -> list[int]:
    """Sectors of a sequence's block table in which the entries of `keys` lie."""
    where = keys // tensor.keys_per_row * tensor.element_bytes // SECTOR_BYTES
    return [int(n) for n in np.unique(where)]


def place_of_rows(tensor: Tensor, row: Indices, entries: Array) -> tuple[Indices, Indices]:
    """(sequence, row) in memory of rows that the loaded `entries`, those of the pages from the first row's, tell."""
    size = tensor.page_rows
    pages = -(-tensor.rows // size)
    slot = entries[:, 0].astype(np.int64)[row // size - int(row[0]) // size]
    return slot // pages, slot % pages * size + row % size
