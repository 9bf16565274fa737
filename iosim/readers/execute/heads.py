"""Arrays between a problem's heads and a tensor that has fewer: one head that all share, or several in a row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from iosim.kernel.algorithms.body import Array
from iosim.kernel.launch import Chain, Tensor
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
    apart = array.reshape(batch, heads, rows, cols // problem.head_dim_v, problem.head_dim_v).transpose(0, 1, 3, 2, 4)
    return np.asarray(apart.reshape(batch, heads * cols // problem.head_dim_v, rows, problem.head_dim_v))
