"""A compiled Triton kernel's tiling from its PTX, in stand-ins for Triton's classes: the PTX is written by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attention_in_ptx as ptx
import numpy as np
import pytest
from attention_in_ptx import KEYS, ROWS, WIDTH

from iosim import AttentionProblem
from iosim.code.arguments import TensorArgument
from iosim.code.attention_tiles import AttentionTiles
from iosim.integrations.triton.addressed import _argument, read_tiles, tiles_by_addresses
from iosim.kernel.schedule import Order
from iosim.kernel.unit import MatrixUnit
from iosim.triton import describe

PROBLEM = AttentionProblem(batch=2, heads=4, seq_q=96, head_dim=WIDTH, dtype="fp16")
GRID = (3, 4, 2)
NAMES = {"q": "Q_ptr", "k": "K_ptr", "out": "Out", "starts": "M"}
NUMBERS = {
    "tokens": 96,
    "row": WIDTH,
    "head": 96 * WIDTH,
    "sequence": 4 * 96 * WIDTH,
}
WORDS = {"Q_ptr": "*fp16", "K_ptr": "*fp16", "Out": "*fp16", "M": "*fp32"}
TILES = AttentionTiles(ROWS, KEYS, False, "query", 0, False, False, 1, False)


def compiled(text: str, signature: dict[str, str], warps: int = 1, **more: Any) -> Any:
    """As Triton's CompiledKernel, without machine code."""
    metadata = SimpleNamespace(num_warps=warps, num_stages=2, shared=0, name="attention")
    source = SimpleNamespace(signature=signature, constants={})
    return SimpleNamespace(metadata=metadata, asm={"ptx": text}, src=source, **more)


def kernel(**how: Any) -> Any:
    signature = {**WORDS, **dict.fromkeys(NUMBERS, "i32"), "BLOCK": "constexpr"}
    return compiled(ptx.text(names=NAMES, **how), signature)


def test_words_for_types_stand_for_the_problems_tensors() -> None:
    assert tiles_by_addresses(kernel(), GRID, {**WORDS, **NUMBERS}, PROBLEM) == TILES


def test_threads_are_those_of_its_warps_where_the_code_states_none() -> None:
    text = ptx.text(names=NAMES).replace(".reqntid 32", "")
    signature = {**WORDS, **dict.fromkeys(NUMBERS, "i32")}
    for warps in (1, 2):  # of two warps the second takes the rows behind the first one's
        read = tiles_by_addresses(
            compiled(text, signature, warps), GRID, {**WORDS, **NUMBERS}, PROBLEM
        )
        assert read is not None
        assert read.block_q == warps * ROWS


@pytest.mark.parametrize(
    "changes",
    [{"asm": None}, {"asm": {}}, {"asm": {"ptx": "no kernel"}}, {"src": None}],
    ids=["no code", "no PTX", "no entry", "no source"],
)
def test_without_code_nothing_is_read(changes: dict[str, Any]) -> None:
    fn = kernel()
    for name, value in changes.items():
        setattr(fn, name, value)
    assert tiles_by_addresses(fn, GRID, {**WORDS, **NUMBERS}, PROBLEM) is None
    fn.src = SimpleNamespace(signature={})
    assert tiles_by_addresses(fn, GRID, {**WORDS, **NUMBERS}, PROBLEM) is None


def test_an_argument_without_a_value_leaves_it_unread() -> None:
    assert tiles_by_addresses(kernel(), GRID, WORDS, PROBLEM) is None


def test_why_addresses_are_not_followed_is_said() -> None:
    text = ".visible .entry attention(.param .u64 Q) { brx.idx %r1, table; ret; }"
    tiles, notes = read_tiles(compiled(text, {"Q": "*fp16"}), (1,), {"Q": "*fp16"}, PROBLEM)
    assert tiles is None
    assert notes[0].startswith("Its addresses were not read: kernel attention branches")


@pytest.mark.parametrize(
    ("name", "value", "kind", "argument"),
    [
        ("n", 5, "i32", 5),
        ("n", True, "i1", 1),
        ("scale", 0.5, "fp32", 0.5),
        ("x", TensorArgument("x", (3,), "fp32"), "*fp16", TensorArgument("x", (3,), "fp32")),
        # Of a word alone the shape is the problem's: queries, keys and values have their own head dimension.
        ("Q", "*fp16", "*fp16", TensorArgument("Q", (2, 4, 8, 16), "fp16")),
        ("Out_ptr", "*bf16", "*bf16", TensorArgument("Out_ptr", (2, 4, 8, 24), "bf16")),
        ("k", "*fp8e4nv", "*fp8e4nv", TensorArgument("k", (2, 2, 20, 16), "fp8")),
        ("V", "*fp8e5", "*fp8e5", TensorArgument("V", (2, 2, 20, 24), "fp8")),
        # Any other has a value for each query; a type that is not known has 4 bytes.
        ("M", "*fp32", "*fp32", TensorArgument("M", (2 * 4 * 8,), "fp32")),
        ("M", "*i1", "*i1", TensorArgument("M", (2 * 4 * 8,), "fp32")),
    ],
)
def test_what_an_argument_is_taken_for(name: str, value: Any, kind: str, argument: Any) -> None:
    problem = AttentionProblem(
        batch=2, heads=4, kv_heads=2, seq_q=8, seq_k=20, head_dim=16, head_dim_v=24
    )
    assert _argument(name, value, kind, problem) == argument


class Tensor:
    """As PyTorch's."""

    def __init__(self, values: Any, dtype: str, device: str = "cpu") -> None:
        self.shape, self.dtype, self.device = np.shape(values), f"torch.{dtype}", device
        self.tolist = lambda: np.asarray(values).tolist()


@pytest.mark.parametrize(
    ("tensor", "argument"),
    [
        (Tensor([3, 5], "int32"), TensorArgument("x", (2,), "int32", (3, 5))),
        (Tensor([3, 5], "int32", "meta"), TensorArgument("x", (2,), "int32")),  # no numbers there
        (Tensor([[3, 5]], "int32"), TensorArgument("x", (1, 2), "int32")),  # a table is not read
        (Tensor([3.0, 5.0], "float32"), TensorArgument("x", (2,), "fp32")),
        (Tensor(7, "int64"), TensorArgument("x", (1,), "int64", (7,))),
        (
            Tensor([1] * 65_536, "int32"),
            TensorArgument("x", (65_536,), "int32", (1,) * 65_536),
        ),
        (Tensor([1] * 65_537, "int32"), TensorArgument("x", (65_537,), "int32")),  # too many
        (
            SimpleNamespace(shape=(2,), dtype="int32"),  # numbers that cannot be had
            TensorArgument("x", (2,), "int32"),
        ),
    ],
)
def test_numbers_of_a_tensor_are_read_where_they_are_whole_and_few(
    tensor: Any, argument: TensorArgument
) -> None:
    assert _argument("x", tensor, "*i32", PROBLEM) == argument


def test_what_addresses_say_goes_before_names_and_grid() -> None:
    """Heads fastest, two splits of the keys, and constants that would say another tile."""
    axes = ("heads", "blocks", "batch")
    args = {**WORDS, **NUMBERS, "BLOCK_M": 64, "BLOCK_N": 64}
    described = describe(kernel(axes=axes, splits=2), (4, 3, 4), args, problem=PROBLEM)
    assert (described.tile.block_q, described.tile.block_k) == (ROWS, KEYS)
    assert (described.schedule.order, described.schedule.section_heads) == (Order.HEAD, 4)
    assert (described.splits, described.rereads_q) == (2, False)
    assert (described.threads, described.matrix_unit) == (32, MatrixUnit.FP32)  # as its PTX says
    again = describe(kernel(axes=axes, loads_q="each step"), (4, 3, 2), args, problem=PROBLEM)
    assert (again.splits, again.rereads_q) == (1, True)


def test_without_values_the_grid_is_told_by_its_sides() -> None:
    described = describe(kernel(), (4, 3, 2), {"BLOCK_M": 32, "BLOCK_N": 64}, problem=PROBLEM)
    assert (described.tile.block_q, described.tile.block_k) == (32, 64)
    assert described.schedule.order is Order.HEAD
    assert not described.rereads_q
