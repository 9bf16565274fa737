"""Rows of tables that stand by columns, and all their combinations."""

from __future__ import annotations

import pytest

from iosim.evidence.crossed import columns, crossed


def test_rows_of_both_forms_of_a_table() -> None:
    rows = [{"a": 1, "b": 3}, {"a": 2, "b": 4}]
    assert list(columns({"a": [1, 2], "b": [3, 4]})) == rows
    assert list(columns({"columns": ["a", "b"], "rows": [[1, 3], [2, 4]]})) == rows
    with pytest.raises(ValueError):  # a column that is shorter  # noqa: PT011
        list(columns({"a": [1, 2], "b": [3]}))


def test_the_first_table_is_the_slowest_and_later_ones_win() -> None:
    combinations = list(crossed([{"a": [1, 2]}, {"b": [5, 6]}], [{"c": 7, "a": 9}]))
    assert combinations == [{"a": 9, "b": 5, "c": 7}, {"a": 9, "b": 6, "c": 7}] * 2
    assert [r["a"] * 10 + r["b"] for r in crossed([{"a": [1, 2]}, {"b": [5, 6]}])] == [
        15,
        16,
        25,
        26,
    ]
