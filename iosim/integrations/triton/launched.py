"""Launches of Triton's kernels as calls that are known by their code: compiled for a GPU that need not be there.

`kernel[grid](*args)` gives a kernel, its arguments and its grid; nothing is launched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iosim.base.records import dataclass
from iosim.code.arguments import TensorArgument, dtype_named
from iosim.code.module import read_module
from iosim.hardware.profile import HardwareProfile
from iosim.integrations.triton.compiled import compile_for
from iosim.prediction.code import CodeCall, entry_of

WARPS, STAGES = 4, 3
"""Triton's defaults (triton/backends/nvidia/compiler.py, CUDAOptions)."""


@dataclass(frozen=True)
class TritonLaunch:
    """A launch: the kernel's name, its call, and the tensors among its arguments by name."""

    name: str
    call: CodeCall
    tensors: Mapping[str, Any]


def arguments_of(fn: Any, args: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a launch by name, with the kernel's own defaults."""
    arguments = dict(zip(fn.arg_names, args, strict=False))
    arguments |= {name: value for name, value in options.items() if name in fn.arg_names}
    defaults = {p.name: p.default for p in fn.params if p.has_default}
    return {**defaults, **arguments}


def launched(
    fn: Any, grid: Any, named: Mapping[str, Any], options: Mapping[str, Any], gpu: HardwareProfile
) -> TritonLaunch:
    """A launch of a `triton.jit` function on a GPU. Raises InputError: no Triton, an argument of a type that is not
    known, or code that cannot be read."""
    sides = grid(named) if callable(grid) else grid
    sides = (sides,) if isinstance(sides, int) else tuple(int(side) for side in sides)
    tensors = {name: value for name, value in named.items() if hasattr(value, "data_ptr")}
    warps, stages = (
        int(options.get(name, default))
        for name, default in (("num_warps", WARPS), ("num_stages", STAGES))
    )
    compiled = compile_for(fn, named, gpu, warps, stages)
    entry, function = entry_of(read_module(compiled), None, gpu.cc)
    taken = [name for name, kind in compiled.src.signature.items() if kind != "constexpr"]
    arguments = {name: _argument(name, named[name]) for name in taken}
    block = (warps * gpu.warp_size, 1, 1)
    return TritonLaunch(
        entry.name, CodeCall(entry, sides, arguments, entry.threads or block, function), tensors
    )


def _argument(name: str, value: Any) -> Any:
    """A number, or a tensor with as many elements as lie between its first and its last."""
    if not hasattr(value, "data_ptr"):
        return int(value) if isinstance(value, bool) else value
    extent = 1 + sum(
        (int(side) - 1) * int(stride)
        for side, stride in zip(value.shape, value.stride(), strict=True)
    )
    return TensorArgument(
        name, (max(1, extent),), dtype_named(str(value.dtype).removeprefix("torch."))
    )
