"""The tiling of a compiled Triton attention kernel from the addresses of its PTX, whatever its arguments are called.

Tensors among the arguments say their shapes; where words for types stand in their place, Q, K, V and O are taken to be
those of the problem, contiguous, and any other tensor to have a value for each query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.code.addresses import evaluate
from iosim.code.arguments import ELEMENT_BYTES, LONG_NAMES, Argument, TensorArgument, dtype_named
from iosim.code.attention_tiles import NAMES, AttentionTiles, attention_tiles
from iosim.code.ptx import entries
from iosim.problem.attention import AttentionProblem

WARP = 32
FEW_VALUES = 1 << 16
"""Whole numbers of a tensor up to which they are read: lengths, page tables."""


def tiles_by_addresses(
    compiled: Any, grid: Sequence[int], arguments: Mapping[str, Any], problem: AttentionProblem
) -> AttentionTiles | None:
    """The tiling of a launch; None where there is no PTX, or an argument has no value. Raises InputError: addresses
    that cannot be followed, or no tensors that are named as K and O are."""
    text = str((getattr(compiled, "asm", None) or {}).get("ptx", ""))
    signature = getattr(getattr(compiled, "src", None), "signature", None)
    if not text or not signature or ".entry" not in text:
        return None
    taken = [name for name, kind in signature.items() if kind != "constexpr"]
    if any(name not in arguments for name in taken):
        return None
    (entry,) = entries(text).values()
    given = {
        name: _argument(name, arguments[name], str(signature[name]), problem) for name in taken
    }
    threads = (int(compiled.metadata.num_warps) * WARP, 1, 1)
    evaluated = evaluate(entry, tuple(grid), given, entry.threads or threads)
    return attention_tiles(evaluated, problem.heads, problem.sequence_count)


def _argument(name: str, value: Any, kind: str, problem: AttentionProblem) -> Argument:
    """A number or a tensor, as addresses are evaluated with it."""
    if isinstance(value, TensorArgument):
        return value
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _tensor(name, value)
    if not kind.startswith("*"):
        return int(value) if isinstance(value, bool) else value
    word = kind.lstrip("*").removesuffix("e4nv").removesuffix("e5")
    dtype = LONG_NAMES.get(word, word)
    shape = _shape(name, problem)
    return TensorArgument(name, shape, dtype if dtype in ELEMENT_BYTES else "fp32")


def _tensor(name: str, value: Any) -> TensorArgument:
    """A tensor's shape and type, and its numbers where they are whole and few."""
    shape = tuple(int(side) for side in value.shape) or (1,)
    dtype = dtype_named(str(value.dtype).removeprefix("torch."))
    numbers: tuple[int, ...] = ()
    whole = "int" in dtype and str(getattr(value, "device", "cpu")) != "meta"
    if whole and hasattr(value, "tolist") and len(shape) == 1 and shape[0] <= FEW_VALUES:
        listed = value.tolist()
        numbers = tuple(int(n) for n in (listed if isinstance(listed, list) else [listed]))
    return TensorArgument(name, shape, dtype, numbers)


def _shape(name: str, problem: AttentionProblem) -> tuple[int, ...]:
    """The shape of a tensor that is told by its name alone."""
    bare = name.lower().removesuffix("_ptr").strip("_")
    role = next((role for role, names in NAMES.items() if bare in names), None)
    p = problem
    if role in ("Q", "O"):
        return p.batch, p.heads, p.seq_q, p.head_dim if role == "Q" else p.head_dim_v
    if role in ("K", "V"):
        return p.batch, p.kv_heads, p.seq_k, p.head_dim if role == "K" else p.head_dim_v
    return (p.batch * p.heads * p.seq_q,)


def read_tiles(
    compiled: Any, grid: Sequence[int], arguments: Mapping[str, Any], problem: AttentionProblem
) -> tuple[AttentionTiles | None, tuple[str, ...]]:
    """The tiling by addresses, and why there is none where they could not be followed."""
    try:
        return tiles_by_addresses(compiled, grid, arguments, problem), ()
    except InputError as error:
        return None, (f"Its addresses were not read: {error}",)
