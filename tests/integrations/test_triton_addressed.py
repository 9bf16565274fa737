"""Attention in Triton as anybody writes it: its tile, the order of its grid and its splits, from addresses alone."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from iosim import AttentionProblem
from iosim.code.arguments import TensorArgument
from iosim.kernel.schedule import Order, Schedule, Start
from iosim.triton import describe

triton = pytest.importorskip("triton")
BATCH, HEADS, TOKENS, WIDTH = 2, 4, 256, 64
TILE = {"ROWS": 64, "KEYS": 32, "WIDTH": WIDTH}
SIDES = {"blocks": TOKENS // TILE["ROWS"], "heads": HEADS, "batch": BATCH}
SOURCE = """
import triton
import triton.language as tl

@triton.jit
def walk(q, k, out, starts, tokens, heads, row, head, sequence, AXES: tl.constexpr, SPLITS: tl.constexpr,
         PACKED: tl.constexpr, DOWN: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr):
    ids = (tl.program_id(0), tl.program_id(1), tl.program_id(2))
    block, at_head, at_sequence = ids[AXES[0]], ids[AXES[1]], ids[AXES[2]]
    split = 0
    if SPLITS > 1:
        split = at_sequence % SPLITS
        at_sequence = at_sequence // SPLITS
    if DOWN:
        block = tl.cdiv(tokens, ROWS) - 1 - block
    if PACKED:
        base = tl.load(starts + at_sequence) * row + at_head * head
    else:
        base = at_sequence * sequence + at_head * head
    columns = tl.arange(0, WIDTH)
    rows = block * ROWS + tl.arange(0, ROWS)
    queries = tl.load(q + base + rows[:, None] * row + columns[None, :])
    sums = tl.zeros([ROWS, KEYS], tl.float32)
    part = tokens // SPLITS
    for first in range(split * part, split * part + part, KEYS):
        keys = first + tl.arange(0, KEYS)
        sums += tl.dot(queries, tl.trans(tl.load(k + base + keys[:, None] * row + columns[None, :])))
    answer = tl.sum(tl.exp2(sums), 1)
    tl.store(out + base + rows[:, None] * row + columns[None, :], (queries + answer[:, None]).to(tl.bfloat16))
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    file = tmp_path_factory.mktemp("kernels") / "walks.py"
    file.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("walks", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(
    kernels: ModuleType, grid: tuple[int, ...], axes: tuple[int, ...], **changes: Any
) -> Any:
    """The kernel on [batch, heads, rows, columns], with a grid whose axes are (blocks, heads, batch) at `axes`."""
    shape = (BATCH, HEADS, TOKENS, WIDTH)
    tensors = {name: TensorArgument(name, shape, "bf16") for name in ("q", "k", "out")}
    arguments: Mapping[str, Any] = {
        **tensors,
        "starts": TensorArgument("starts", (BATCH + 1,), "int32"),
        "tokens": TOKENS,
        "heads": HEADS,
        "row": WIDTH,
        "head": TOKENS * WIDTH,
        "sequence": HEADS * TOKENS * WIDTH,
        "AXES": axes,
        "SPLITS": 1,
        "PACKED": False,
        "DOWN": False,
        **TILE,
        **changes,
    }
    problem = AttentionProblem(batch=BATCH, heads=HEADS, seq_q=TOKENS, head_dim=WIDTH, dtype="bf16")
    return describe(kernels.walk, grid, arguments, problem=problem, gpu="h100", num_stages=1)


@pytest.mark.parametrize(
    ("axes", "schedule"),
    [
        (("blocks", "heads", "batch"), Schedule()),
        (("blocks", "batch", "heads"), Schedule(order=Order.BATCH)),
        (("heads", "batch", "blocks"), Schedule(order=Order.HEAD)),
        (("batch", "heads", "blocks"), Schedule(order=Order.HEAD)),
        (("heads", "blocks", "batch"), Schedule(order=Order.HEAD, section_heads=HEADS)),
        (("batch", "blocks", "heads"), Schedule(order=Order.HEAD, section_heads=BATCH)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_axes_of_a_grid_in_any_order(
    kernels: ModuleType, axes: tuple[str, ...], schedule: Schedule
) -> None:
    grid = tuple(SIDES[axis] for axis in axes)
    kernel = described(kernels, grid, tuple(axes.index(axis) for axis in SIDES))
    assert (kernel.tile.block_q, kernel.tile.block_k) == (TILE["ROWS"], TILE["KEYS"])
    assert (kernel.schedule, kernel.splits) == (schedule, 1)


def test_sides_of_equal_length_are_told_apart(kernels: ModuleType) -> None:
    """A grid of 4 heads and 4 blocks may be either way round: its addresses alone say which."""
    assert SIDES["blocks"] == SIDES["heads"]
    assert described(kernels, (4, 4, 2), (1, 0, 2)).schedule.order is Order.HEAD


def test_programs_of_the_same_queries_are_splits(kernels: ModuleType) -> None:
    assert described(kernels, (4, HEADS, 2 * BATCH), (0, 1, 2), SPLITS=2).splits == 2


def test_late_queries_first(kernels: ModuleType) -> None:
    assert (
        described(kernels, (4, HEADS, BATCH), (0, 1, 2), DOWN=True).schedule.start
        is Start.HEAVY_FIRST
    )


def test_packed_sequences(kernels: ModuleType) -> None:
    """[rows of all sequences, heads, columns], whose first rows stand in a tensor."""
    shape = (BATCH * TOKENS, HEADS, WIDTH)
    packed = {name: TensorArgument(name, shape, "bf16") for name in ("q", "k", "out")}
    starts = TensorArgument("starts", (BATCH + 1,), "int32", (0, TOKENS, 2 * TOKENS))
    kernel = described(
        kernels,
        (4, BATCH, HEADS),
        (0, 2, 1),
        PACKED=True,
        **packed,
        starts=starts,
        row=HEADS * WIDTH,
        head=WIDTH,
    )
    assert (kernel.tile.block_q, kernel.schedule.order) == (TILE["ROWS"], Order.BATCH)


def test_without_numbers_for_its_arguments_the_grid_is_told_by_its_sides(
    kernels: ModuleType, tmp_path: Path
) -> None:
    problem = AttentionProblem(batch=1, heads=8, seq_q=TOKENS, head_dim=WIDTH, dtype="bf16")
    words = {
        "q": "*bf16",
        "k": "*bf16",
        "out": "*bf16",
        "starts": "*i32",
        "tokens": "i32",
        "heads": "i32",
        "row": "i32",
        "head": "i32",
        "sequence": "i32",
        "AXES": (0, 1, 2),
        "SPLITS": 1,
        "PACKED": False,
        "DOWN": False,
        **TILE,
    }
    kernel = describe(
        kernels.walk,
        (4, 8),
        words,
        problem=problem,
        gpu="h100",
        names=("ROWS", "KEYS"),
        num_stages=1,
    )
    assert kernel.schedule == Schedule()
