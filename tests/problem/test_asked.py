"""Problems as they are asked for: lengths, a prefix, packed sequences, and the mask that words imply."""

from __future__ import annotations

from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.problem.asked import check_queries, lengths, mask_of, problems


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        (7, [7]),
        ("512,4k", [512, 4096]),
        ("1k:4k:x2", [1024, 2048, 4096]),
        ([1, "2k", (3, "4")], [1, 2048, 3, 4]),
    ],
)
def test_lengths(value: object, numbers: list[int]) -> None:
    assert lengths(value, "seq_q") == numbers


@pytest.mark.parametrize("value", [True, 1.5, None, [], b"12", {"a": 1}])
def test_what_is_no_length(value: object) -> None:
    with pytest.raises(InputError, match="seq_q"):
        lengths(value, "seq_q")


def sides(**values: Any) -> list[tuple[int, int | None]]:
    return [(p.seq_q, p.seq_k) for p in problems(values)]


def test_queries_and_keys() -> None:
    assert sides(seq_q="1,5") == [(1, 1), (5, 5)]
    assert sides(seq_q="1,5", seq_k=9) == [(1, 9), (5, 9)]
    assert sides(seq_q="1,5", prefix=100) == [(1, 101), (5, 105)]
    assert sides(seq_lens=(3, 4)) == [(7, 7)]
    assert [p.heads for p in problems({"seq_q": 2, "heads": 3, "batch": None})] == [3]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"seq_q": 1, "prefix": 5, "seq_k": 6}, "prefix.* 5 .*seq_k.* 6"),
        ({"seq_lens": (3,), "seq_k": 6}, "seq_k.* 6 .*seq_lens"),
        ({"seq_lens": (3,), "prefix": 6}, "prefix.* 6 .*seq_lens"),
        ({"seq_lens": (3,), "seq_q": 6}, "seq_q.* 6 .*seq_lens"),
        ({"seq_k": 6}, "seq_k.* 6 "),
        ({"seq_k": [6, 7]}, "seq_k.* 6,7 "),
    ],
)
def test_two_words_that_contradict_each_other(values: dict[str, Any], names: str) -> None:
    with pytest.raises(InputError, match=names):
        problems(values)


def test_keys_with_a_word_for_queries() -> None:
    for name in ("seq_q", "prefix"):
        check_queries({"seq_k": 6, name: 1})
    check_queries({})


@pytest.mark.parametrize(
    ("values", "mask"),
    [
        ({}, "none"),
        ({"causal": True}, "causal"),
        ({"causal": False}, "none"),
        ({"causal": True, "mask": "causal"}, "causal"),
        ({"causal": True, "mask": "window", "window": 3}, "causal"),
        ({"window": 3}, "window"),
        ({"window": 0}, "window"),
        ({"window_right": 3}, "window"),
        ({"mask_file": "a.npy"}, "blocks"),
        ({"mask_file": "a.npy", "window": 3}, "blocks"),
        ({"mask": "butterfly", "window": 3}, "butterfly"),
    ],
)
def test_the_mask_that_words_imply(values: dict[str, Any], mask: str) -> None:
    assert mask_of(values)["mask"] == mask


def test_causal_beside_another_mask() -> None:
    for other in ("none", "butterfly"):
        with pytest.raises(InputError, match=other):
            mask_of({"causal": True, "mask": other})
