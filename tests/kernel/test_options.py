"""Options of algorithms: their types, and those of another."""

from __future__ import annotations

import pytest

from iosim.base.errors import InputError
from iosim.catalog.algorithms import options_for, plan
from iosim.kernel.kernel import Kernel, Tile
from iosim.problem.attention import AttentionProblem


@pytest.mark.parametrize(
    ("algorithm", "values", "message"),
    [
        (
            "flash1",
            {"to_the_leter": False},
            "flash1: option 'to_the_leter' is not known; did you mean to_the_letter",
        ),
        ("flash1", {"to_the_letter": 1}, "to_the_letter: must be true or false, not 1"),
        ("flash", {"combine_rows": 0}, "combine_rows: 0 is out of range; accepted: 1 or more"),
        (
            "flash",
            {"statistics_per_row": 3},
            "statistics_per_row: 3 is out of range; accepted: 1 to 2",
        ),
        ("flash", {"combine_threads": 128.0}, "combine_threads: 128.0 is not a whole number"),
        (
            "naive",
            {"passes": ["scale", "mask", "twist"]},
            "'twist' is not known; accepted: scale_q, scale",
        ),
        ("naive", {"gemm_tile": [64]}, r"gemm_tile: must be a list of 2, not of 1"),
        (
            "minimal",
            {"splits": 1},
            "algorithm minimal: option 'splits' is not known; accepted: none",
        ),
    ],
)
def test_options_are_checked(algorithm: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        options_for(algorithm, values)


def test_options_of_another_algorithm_are_refused() -> None:
    kernel = Kernel("k", "flash", Tile(64, 64), options=options_for("naive", {}))
    with pytest.raises(
        InputError, match="kernel 'k' has NaiveOptions; accepted by algorithm flash: FlashOptions"
    ):
        plan(AttentionProblem(seq_q=64), kernel)
