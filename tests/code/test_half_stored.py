"""Lines that a CTA holds open between its first store to a line and its last, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from iosim.code.half_stored import _open


@pytest.mark.parametrize(
    ("stores", "longest", "lines"),
    [
        ([(5, 0)], 0, 1.0),  # one line, stored at once
        ([(5, 0), (5, 3)], 3, 1.0),  # one line, open all the time
        ([(5, 0), (5, 1), (6, 2), (6, 3)], 3, 1.0),  # two, each half of the time: 2 / 4 + 2 / 4
        ([(5, 3), (6, 1), (5, 0), (6, 2)], 3, 1.5),  # four moves and two: 4 / 4 + 2 / 4
        ([(5, 1), (6, 2), (7, 3)], 9, 0.3),  # three, a tenth of the time each
    ],
)
def test_lines_that_are_open_in_the_mean(
    stores: list[tuple[int, int]], longest: int, lines: float
) -> None:
    assert _open(np.array(stores), longest) == pytest.approx(lines)
