"""Kernels that are no forward of attention, grids and arguments that make no sense: each is refused in a line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from iosim.base.errors import InputError  # noqa: E402
from iosim.integrations.triton.forward import flash_forward  # noqa: E402
from iosim.kernel.kernel import Tile  # noqa: E402
from iosim.problem.attention import AttentionProblem  # noqa: E402
from iosim.triton import describe  # noqa: E402

PROBLEM = AttentionProblem(heads=8, seq_q=1024, head_dim=32, dtype="fp16")
GRID = (16, 8, 1)
ARGS: dict[str, Any] = {
    **dict.fromkeys(("Q", "K", "V", "Out"), "*fp16"),
    **{"M": "*fp32", "sm_scale": 0.1, "Z": 1, "H": 8, "N_CTX": 1024, "HEAD_DIM": 32},
    **{"STAGE": 1, "BLOCK_M": 64, "BLOCK_N": 32},
}


@triton.jit
def add(x, y, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1.0, mask=at < n)


@triton.jit
def product(x, y, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # type: ignore[no-untyped-def]
    rows, columns = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    tile = tl.load(x + rows[:, None] * BLOCK_N + columns[None, :])
    tl.store(y + rows[:, None] * BLOCK_M + rows[None, :], tl.dot(tile, tl.trans(tile)))


@pytest.mark.parametrize(
    ("kernel", "lacks"), [(add, "no product and no exponential"), (product, "no exponential")]
)
def test_what_is_no_attention_is_not_predicted_as_one(kernel: Any, lacks: str) -> None:
    """Attention multiplies twice and takes exponentials; a sum or a matrix product alone are none."""
    args = {"x": "*fp16", "y": "*fp16", "n": 1024, "BLOCK_M": 64, "BLOCK_N": 32}
    with pytest.raises(InputError, match=f"is no attention: its code has {lacks}"):
        describe(kernel, GRID, args, gpu="a100", problem=PROBLEM)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": (15, 8)}, r"does not cover the problem; accepted: tiles for 8,192 query rows"),
        ({"grid": (16.0, 8)}, "is no grid"),
        ({"grid": "16"}, "is no grid"),
        ({"gpu": "mi300x"}, "code of AMD's GPUs is not read"),
        ({"num_warps": 3}, "num_warps 3 is out of range; accepted: 1, 2, 4"),
        ({"num_warps": "4"}, "num_warps '4' is out of range"),
        ({"args": [1, 2]}, "are no arguments; accepted: their values by name"),
        ({"args": ARGS | {"BLOCK_M": 48}}, "Triton does not compile it: .*power of 2"),
        ({"args": ARGS | {"Q": "*fp99"}}, "Triton does not compile it: 'fp99'"),
    ],
)
def test_what_makes_no_sense_is_one_line(changes: dict[str, Any], message: str) -> None:
    launch = {"grid": GRID, "args": ARGS, "gpu": "a100", **changes}
    with pytest.raises(InputError, match=message) as error:
        describe(flash_forward, **launch)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"grid": lambda constants: (1024 // constants["BLOCK_M"], 8, 1)},
        {"args": ARGS | {"BLOCK_M": np.int64(64), "H": np.int32(8)}},
        {"fn": triton.heuristics({"STAGE": lambda arguments: 1})(flash_forward)},
        {"fn": triton.autotune([triton.Config({})], key=[])(flash_forward)},
    ],
)
def test_a_launch_as_triton_takes_it(changes: dict[str, Any]) -> None:
    described = describe(
        **{"fn": flash_forward, "grid": GRID, "args": ARGS, "gpu": "a100", **changes}
    )
    assert described.tile == Tile(64, 32, 4, 3)
