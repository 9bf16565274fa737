"""Triton's kernels in a program: compiled for a GPU that is not there, and counted by their code."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from torch.library import triton_op, wrap_triton  # noqa: E402

from iosim.integrations.triton.launched import _argument  # noqa: E402
from iosim.torch import TrafficMode  # noqa: E402

ROWS, COLUMNS = 512, 4096
BYTES = ROWS * COLUMNS * 2


@triton.jit
def scale_rows(x, w, y, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < columns
        value = tl.load(x + row * columns + at, mask=inside) * tl.load(w + at, mask=inside)
        tl.store(y + row * columns + at, value, mask=inside)


@triton_op("iosim_tests::scale", mutates_args={})
def scale(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    wrap_triton(scale_rows)[(x.shape[0],)](x, w, y, x.shape[1], BLOCK=1024)
    return y


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_an_operator_of_a_users_kernel_is_counted_by_its_code(device: str) -> None:
    x = torch.empty(ROWS, COLUMNS, device=device, dtype=torch.bfloat16)
    w = torch.empty(COLUMNS, device=device, dtype=torch.bfloat16)
    with TrafficMode(gpu="h100") as traffic:
        scale(x, w)
    row = next(iter(traffic.result))
    assert (row.operator, row.known) == ("scale_rows", True)
    assert row.time_s > 0
    assert row.l2_write == BYTES
    assert (
        BYTES < row.l2_read < 1.6 * BYTES
    )  # rows, and the weight that CTAs of an SM read for one another
    assert row.hbm_read == pytest.approx(BYTES + COLUMNS * 2, rel=0.1)
    assert traffic.notes == ()


def test_a_kernel_that_is_launched_by_itself_is_counted_too() -> None:
    x, w, y = (torch.empty(ROWS, COLUMNS, device="meta", dtype=torch.bfloat16) for _ in range(3))
    with TrafficMode(gpu="a100") as traffic:
        scale_rows[(ROWS,)](x, w[0], y, COLUMNS, BLOCK=512)
    assert [row.operator for row in traffic.result] == ["scale_rows"]


@triton.jit
def gather_rows(x, index, y, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    source = tl.load(index + row)
    tl.store(y + row * columns + at, tl.load(x + source * columns + at))


def test_a_kernel_that_looks_rows_up_says_that_their_places_are_not_known() -> None:
    x, y = (torch.empty(ROWS, 1024, device="meta", dtype=torch.bfloat16) for _ in range(2))
    with TrafficMode(gpu="h100") as traffic:
        gather_rows[(ROWS,)](
            x, torch.empty(ROWS, device="meta", dtype=torch.int32), y, 1024, BLOCK=1024
        )
    (row,) = traffic.result
    assert row.known
    assert row.l2_write == ROWS * 1024 * 2
    assert any("gather_rows: an address that was loaded" in note for note in traffic.notes)


def test_a_kernel_that_does_not_compile_is_named_and_its_tensors_counted_once() -> None:
    x = torch.empty(ROWS, COLUMNS, device="meta", dtype=torch.bfloat16)
    with TrafficMode(gpu="h100") as traffic:
        scale_rows[(ROWS,)](x, x, x, COLUMNS, BLOCK=1000)  # no power of two
    (row,) = traffic.result
    assert not row.known
    assert "scale_rows is not known by its code (Triton does not compile it" in traffic.notes[0]


@pytest.mark.parametrize(
    ("tensor", "elements"),
    [
        (torch.empty(3, 5, device="meta"), 15),
        (torch.empty(3, 5, device="meta")[:, ::2], 15),  # 1 + 2 x 5 + 2 x 2
        (torch.empty(3, 5, device="meta")[:, :2], 12),  # 1 + 2 x 5 + 1
        (torch.empty(5, device="meta").expand(4, 5), 5),  # a stride of 0
        (torch.empty(0, device="meta"), 1),
    ],
)
def test_a_tensor_reaches_from_its_first_to_its_last_element(
    tensor: torch.Tensor, elements: int
) -> None:
    assert _argument("x", tensor).shape == (elements,)
