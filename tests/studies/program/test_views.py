"""Views of storages by hand: the pieces of rows that they take, and the CTAs of passes over them."""

from __future__ import annotations

import pytest

from iosim.studies.program.operators import ROW_THREADS, Scratch, View, _strided_bytes, streaming


@pytest.mark.parametrize(
    ("offset", "sizes", "strides", "band"),
    [
        (0, (4, 8), (8, 1), (32, 32, 0)),  # dense: one piece of 4 x 8
        (64, (4, 64), (192, 1), (64, 192, 64)),  # the second of three matrices side by side
        (199, (4, 64), (192, 1), (64, 192, 7)),  # begins in the second row: 199 - 192
        (7, (3, 4, 8), (80, 20, 1), (8, 20, 7)),  # the innermost gap says how wide a row is
        (
            0,
            (4, 1, 8),
            (100, 50, 1),
            (8, 100, 0),
        ),  # an axis of one element has no gap, whatever its stride
        (5, (1, 8), (999, 1), (8, 8, 0)),
        (0, (4, 8), (0, 1), (8, 8, 0)),  # expanded: one row four times
        (0, (2, 4, 8), (32, 8, 1), (64, 64, 0)),
    ],
)
def test_the_piece_of_a_row(
    offset: int, sizes: tuple[int, ...], strides: tuple[int, ...], band: tuple[int, int, int]
) -> None:
    assert View(0, offset, sizes, strides, 2).band == band


@pytest.mark.parametrize(
    ("rows", "ctas"),
    [
        (1, 1),
        (2, 2),
        (300, 300),
        (0, 1),  # nothing is one CTA still
        (None, 293),  # 300 x 1000 elements in CTAs of 128 threads x 8 values
    ],
)
def test_ctas_of_a_pass(rows: int | None, ctas: int) -> None:
    read, written = (View(n, 0, (300, 1000), (1000, 1), 2) for n in (0, 1))
    (launch,) = streaming("pass", (read,), (written,), rows=rows)[0].launches
    assert launch.domain.rows == ctas
    assert launch.resources.threads == (128 if rows is None else ROW_THREADS)
    elements = {None: 8, 0: 293, 1: 293, 2: 146, 300: 1}  # 300,000 over rows of 1,024 threads
    assert launch.values_per_thread == elements[rows]


@pytest.mark.parametrize(
    ("sizes", "strides", "element_bytes", "values"),
    [
        ((64, 64), (64, 1), 4, 8),  # as the result: vectors
        ((64, 64), (64, 1), 2, 4),  # widened
        ((64, 64), (1, 64), 4, 1),  # transposed: a loop of loads and stores
        ((64, 64), (128, 1), 4, 1),  # part of every row
        ((64, 1), (1, 1), 4, 1),  # broadcast
        ((1,), (1,), 4, 8),  # a number
    ],
)
def test_values_that_a_thread_loads_before_it_stores(
    sizes: tuple[int, ...], strides: tuple[int, ...], element_bytes: int, values: int
) -> None:
    """PyTorch's kernels: vectorized_elementwise_kernel<8>, unrolled_elementwise_kernel of four, elementwise_kernel."""
    read = View(0, 0, sizes, strides, element_bytes)
    (launch,) = streaming("pass", (read,), (View(1, 0, (64, 64), (64, 1), 4),))[0].launches
    assert launch.values_per_thread == values


def test_a_norm_holds_a_row() -> None:
    """96 rows of 1,280: ten values for each of a CTA's 128 threads."""
    whole = [View(n, 0, (96, 1280), (1280, 1), 2) for n in (0, 1)]
    rstd = View(2, 0, (96, 1), (1, 1), 4)
    (launch,) = streaming("norm", whole[:1], (whole[1], rstd), apart=(rstd,))[0].launches
    assert launch.values_per_thread == 10


def test_bytes_beside_the_elements_of_a_transposed_tensor() -> None:
    """64 x 64 halves, of which a CTA writes 8 rows and reads 8 columns: half of each sector of 16 halves, so that all
    are loaded twice. What writes nothing, or memory for itself alone, goes in no order."""
    plain, turned = (View(0, 0, (64, 64), strides, 2) for strides in ((64, 1), (1, 64)))
    result = View(1, 0, (64, 64), (64, 1), 2)
    assert _strided_bytes((turned,), (result,)) == 64 * 64 * 2
    assert _strided_bytes((plain,), (result,)) == 0
    assert _strided_bytes((turned,), ()) == 0
    assert _strided_bytes((turned,), (Scratch(8192),)) == 0
