"""Section C of the published numbers, with the arithmetic written out."""

from __future__ import annotations

import pytest
import reproduced

from iosim.evidence.reproduce import Row
from iosim.evidence.reproduce.training_grid import READINGS, closest, grid

pytestmark = [pytest.mark.slow, pytest.mark.recorded]  # half a minute


def find(*words: str) -> Row:
    return reproduced.find("C", *words)


def test_the_published_rate_is_not_possible_on_a_t4() -> None:
    row = find("rate that 16 x 12 heads of d 64")
    assert row.computed == pytest.approx(4 * 512**2 * 64 * 192 / 0.17e-3 / 1e12)  # 75.8 TFLOP/s
    assert row.ratio == pytest.approx(1, abs=0.001)
    assert "8.1 TFLOP/s" in row.mistake
    assert find("most heads x head_dim").computed == int(8.1e12 * 0.17e-3 / (4 * 512**2))  # 1313
    assert find("largest head_dim").computed == int(8.1e12 / 40 / 4 * 0.17e-3 / (4 * 512**2))  # 8


def test_no_shape_gives_both_published_times() -> None:
    for row in reproduced.rows("C"):
        if row.claim.startswith("minimal kernel on a T4, N = 512"):
            assert row.computed is not None
            assert row.computed > 5 * 0.17
    assert find("d 64: most over").computed is not None
    assert find("d 64: most over").computed < 1  # type: ignore[operator]


def test_measured_ratios_stand_beside_predictions() -> None:
    rows = [r for r in reproduced.rows("C") if r.claim.startswith("measured on an H200")]
    assert [round(r.claimed or 0) for r in rows] == [124, 89, 30, 10, 5]
    assert all(r.computed is not None and r.computed > 0.8 for r in rows)


def test_the_grid() -> None:
    cells = grid(READINGS[0])
    assert len(cells) == 4 * 3 * 6
    assert {c.tokens for c in cells} == {2048, 4096, 8192, 16384}
    assert all(0 < c.saved["time"] < 1 and 0 < c.saved["memory"] < 1 for c in cells)


def test_half_precision_is_the_closest_reading() -> None:
    best = closest()
    assert best.base.precision == "fp32"
    assert best.base.attention == best.flash.attention == "flash"
    assert min(cell.saved["time"] for cell in grid(best)) > 0.55
    memory = [cell.saved["memory"] for cell in grid(best)]
    assert 0.48 < min(memory) < max(memory) < 0.5
    assert "closest" in find("an L4, time saved; read as", best.name).note


@pytest.mark.parametrize(
    "reading", [r for r in READINGS if r.base.attention == "naive"], ids=lambda r: r.name
)
def test_eager_attention_cannot_save_the_same_share_everywhere(reading) -> None:  # type: ignore[no-untyped-def]
    memory = [cell.saved["memory"] for cell in grid(reading)]
    assert max(memory) - min(memory) > 0.25


def test_every_row_has_its_arithmetic_and_gaps_a_note() -> None:
    for row in reproduced.rows("C"):
        assert row.arithmetic
        if row.ratio is not None and abs(row.ratio - 1) > 0.1:
            assert row.note


def test_fp32_doubles_memory() -> None:
    assert find("fp32 doubles memory").ratio == pytest.approx(1, abs=0.01)
