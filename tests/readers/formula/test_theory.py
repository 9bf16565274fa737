"""The papers' bounds: values by hand, their order, and the formula beside the number."""

import subprocess
import sys

import pytest
import sympy as sp

from iosim.base.errors import InputError
from iosim.catalog.algorithms.flash1 import algorithm1_blocks
from iosim.readers.formula.theory import BOUNDS, bound

N, D, M = 1024, 64, 50_000


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("standard", 1024 * 64 + 1024**2),  # N d + N^2 = 65,536 + 1,048,576
        ("standard_backward", 1_114_112),
        ("flash", 1024**2 * 64**2 / 50_000),  # N^2 d^2 / M = 4.295e9 / 50,000 = 85,899
        ("flash_backward", 85_899.34592),
        ("block_sparse", 65_536 + 85_899.34592 / 4),
    ],
)
def test_values(name, expected):
    assert bound(name).elements(N, D, M, 0.25) == pytest.approx(expected, rel=1e-12)


def test_memory_beyond_a_head_leaves_the_compulsory_elements():
    # At M = N d one head fits, and N^2 d^2 / M = N d.
    assert bound("flash").elements(N, D, N * D) == N * D
    assert bound("flash").elements(N, D, 100 * N * D) == N * D


def test_times_above():
    # 2 bytes x 3 heads x the term, moved 7 times over.
    term = bound("flash").elements(N, D, M)
    assert bound("flash").times_above(7 * 3 * 2 * term, 2, N, D, M, heads=3) == pytest.approx(7)


@pytest.mark.parametrize("name", BOUNDS)
def test_text_and_number_say_the_same(name):
    bound_named = bound(name)
    expression = bound_named.expression()
    values = {"N": N, "d": D, "M": M, "s": 0.25}
    number = expression.subs({s: values[s.name] for s in expression.free_symbols})
    assert float(number) == pytest.approx(bound_named.elements(N, D, M, 0.25))
    assert bound_named.latex
    assert "arXiv" in bound_named.source


def test_flash1_blocks():
    # ceil(40960 / 256) = 160; the query block is cut to d
    assert algorithm1_blocks(64, 40_960) == (64, 160)
    assert algorithm1_blocks(128, 40_961) == (81, 81)


@pytest.mark.parametrize(
    "bad",
    [
        (0, 64, 4096, 1.0),
        (10, 0, 4096, 1.0),
        (10, 64, 63, 1.0),
        (10, 64, 640, 0.0),
        (10, 64, 640, 1.1),
    ],
)
def test_refused(bad):
    with pytest.raises(InputError, match="out of range"):
        bound("flash").elements(*bad)


def test_unknown_bound():
    with pytest.raises(InputError, match="accepted: standard"):
        bound("flesh")


def test_needs_no_sympy():
    code = "import sys, iosim.readers.formula.theory as t; "
    code += "t.bound('flash').elements(1024, 64, 4096); sys.exit('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_expression_uses_the_formulas_symbols():
    from iosim.readers.formula.symbolic import symbol

    assert {symbol("seq"), symbol("head_dim"), sp.Symbol("M", positive=True)} == bound(
        "flash"
    ).expression().free_symbols
