"""What an operator launches, by its rules, with the arithmetic beside it: places here are (elements, bytes of each)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from iosim.studies.program import launches
from iosim.studies.program.launches import Pass

Place = tuple[int, int]
TABLE = (30_000 * 64, 2)
NUMBERS = (512, 8)
OUT = (512 * 64, 2)


class Sizes:
    def elements(self, place: Place) -> int:
        return place[0]

    def element_bytes(self, place: Place) -> int:
        return place[1]

    def part(self, place: Place, elements: int) -> Place:
        return elements, place[1]

    def scratch(self, size: int) -> Place:
        return size, 1


def run(operator: str, **places: Sequence[Place]) -> list[Pass[Place]]:
    return launches.by_rules(launches.rules()[operator], lambda name: places.get(name, ()), Sizes())


def test_an_embedding_reads_the_rows_that_are_looked_up() -> None:
    assert run("embedding", weight=[TABLE], indices=[NUMBERS], out=[OUT]) == [
        Pass([OUT, NUMBERS], [OUT])  # as many elements of the table as are written
    ]


def test_its_backward_writes_zeros_first_and_then_adds_to_rows() -> None:
    zeros, rows = run("embedding_dense_backward", grad_output=[OUT], indices=[NUMBERS], out=[TABLE])
    assert zeros == Pass([], [TABLE], "zeros")
    assert rows == Pass([OUT, NUMBERS, OUT], [OUT], "rows")
    assert launches.called("embedding_dense_backward", rows.name) == "embedding_dense_backward.rows"


def test_a_loss_reads_a_sector_of_every_row() -> None:
    target = (512, 8)
    (loss,) = run("nll_loss_forward", self=[(512 * 30_000, 4)], target=[target], out=[(1, 4)])
    assert loss.reads[0] == (512 * 8, 4)  # 32 bytes are 8 numbers of 4


def test_scratch_is_bytes_for_each_element() -> None:
    sums, _ = run("masked_scatter_backward", mask=[(100, 1)], grad_output=[(100, 2)], out=[OUT])
    assert sums.writes == [(800, 1)]


@pytest.mark.parametrize(("cols", "times"), [(12_288, 1), (12_289, 3)])
def test_a_row_beyond_shared_memory_is_read_again(cols: int, times: int) -> None:
    x = (8 * cols, 4)  # 48 KiB are 12,288 numbers of 4 bytes
    passes = launches.softmax([x], x, 8, 4 * cols, launches.SOFTMAX_READS)
    assert dict(passes.again).get(x, 1) == times
    assert passes.rows == (8 if times > 1 else None)


def test_no_more_of_a_table_is_read_than_there_is() -> None:
    small = (10 * 64, 2)
    (lookup,) = run("embedding", weight=[small], indices=[NUMBERS], out=[OUT])
    assert lookup.reads[0] == small
