"""What the arguments of a Triton kernel say of the problem: those of the tutorial's kernels, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from iosim.base.errors import InputError
from iosim.problem.attention import AttentionProblem

Arguments = Mapping[str, Any]
ProblemOf = Callable[[Arguments], AttentionProblem]
CAUSAL_STAGE = 3
"""The tutorial's STAGE of a causal kernel: both loops, off and on the diagonal."""
DTYPES = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp32": "fp32",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "fp8e4nv": "fp8", "fp8e5": "fp8",
}  # fmt: skip
QUERY_NAMES = ("Q", "q", "desc_q")


def tutorial_problem(arguments: Arguments) -> AttentionProblem:
    """The problem behind the arguments of the tutorial's kernels: Z, H, N_CTX and HEAD_DIM; STAGE or CAUSAL for the
    mask; the type of Q (fp16 where no tensor tells). Raises InputError: an argument is missing, or makes no sense."""
    missing = [n for n in ("Z", "H", "N_CTX", "HEAD_DIM") if n not in arguments]
    if missing:
        raise InputError(f"the kernel's arguments lack {', '.join(missing)}; give TritonModel a problem of your own")
    causal = bool(arguments.get("CAUSAL", arguments.get("STAGE") == CAUSAL_STAGE))
    return AttentionProblem(
        batch=int(arguments["Z"]), heads=int(arguments["H"]), seq_q=int(arguments["N_CTX"]),
        head_dim=int(arguments["HEAD_DIM"]), mask="causal" if causal else "none", dtype=dtype_of(arguments),
    )  # fmt: skip


def sides_of(arguments: Arguments, names: tuple[str, str]) -> tuple[int, int]:
    """(query rows, key rows) of a tile, by the arguments that hold them. Raises InputError: one is missing."""
    missing = [n for n in names if n not in arguments]
    if missing:
        raise InputError(f"the kernel's arguments lack {', '.join(missing)}; `names` is {names}")
    return int(arguments[names[0]]), int(arguments[names[1]])


def dtype_of(arguments: Arguments, default: str = "fp16") -> str:
    """The type of the query tensor, or of the tensor behind its descriptor."""
    for name in QUERY_NAMES:
        tensor = arguments.get(name)
        tensor = getattr(tensor, "base", tensor)
        tensor_dtype = getattr(tensor, "dtype", None)
        if tensor_dtype is not None:
            word = str(tensor_dtype).removeprefix("torch.")
            if word not in DTYPES:
                raise InputError(f"dtype '{word}' of {name} is not known; accepted: {', '.join(DTYPES)}")
            return DTYPES[word]
    return default
