"""Sizes and lists of them: a number whose thousands are set apart is never taken for a list."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosim.base.errors import InputError
from iosim.base.units import (
    bytes_text,
    count_text,
    digits_text,
    joules_text,
    list_text,
    number_text,
    operations_text,
    seconds_text,
    size,
    sizes,
)
from iosim.evidence.claims.readings import parse

LENGTHS = [
    1024,
    1536,
    2048,
    3072,
    4096,
    8192,
    12288,
    16384,
    32768,
    65536,
    131072,
    196608,
    262144,
    524288,
    1048576,
]
NUMBERS = [*LENGTHS, 1000, 2500, 10_000, 50_257, 100_000, 151_936]
POWERS = [2**n for n in range(4, 21)]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_as_iosim_prints_it_is_refused_with_the_number_to_write(number: int) -> None:
    for sequences in (False, True):
        if sequences and len(f"{number:,}") == 7 and ",0" not in f"{number:,}":
            continue  # three digits each: two sequences of 196 and 608 tokens
        with pytest.raises(InputError, match=f"write {number}\\b"):
            sizes(count_text(number), "--seq-len", sequences=sequences)
    with pytest.raises(InputError, match=f"write {number}\\b"):
        size(count_text(number), "--batch")


def test_several_numbers_with_separators_are_refused_too() -> None:
    for text in ("1,024,2,048", "8,192,16,384", "512,1,024"):
        with pytest.raises(InputError, match="without separators"):
            sizes(text, "--seq-len")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4k,8k,16,384", 16384),
        ("4096,8,192", 8192),
        ("16,384,32k", 16384),
        ("1024,65,536,128k", 65536),
    ],
)
def test_one_number_among_others_may_have_a_separator(text: str, number: int) -> None:
    with pytest.raises(InputError, match=f"write {number}, or"):
        sizes(text, "--context")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("4k,8k,512", [4096, 8192, 512]),
        ("128,512,1k", [128, 512, 1024]),
        ("4k, 16, 384", [4096, 16, 384]),
        ("1024,64,128", [1024, 64, 128]),
        ("1k:2k:x2,96", [1024, 2048, 96]),
    ],
)
def test_lists_of_short_and_long_numbers(text: str, numbers: list[int]) -> None:
    assert sizes(text, "--context") == numbers


def test_no_length_that_is_common_is_taken_for_a_list() -> None:
    for number in (
        *range(1024, 47 * 1024, 1024),
        *range(8192, 1 << 20, 8192),
        *range(1000, 100_000, 500),
    ):
        with pytest.raises(InputError):
            sizes(count_text(number), "--seq-len")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("8,128", [8, 128]),
        ("16,256,512", [16, 256, 512]),
        ("8,136", None),
        ("16,400", None),
        ("512,256", None),
    ],
)
def test_a_list_grows_by_sixteen_times_at_most(text: str, numbers: list[int] | None) -> None:
    """16 x 8 = 128: 8,128 is a list of two; 8,136 would grow by 17, and 512,256 does not grow."""
    if numbers is None:
        with pytest.raises(InputError, match=f"write {text.replace(',', '')}, or"):
            sizes(text, "--seq-len")
    else:
        assert sizes(text, "--seq-len") == numbers


@pytest.mark.parametrize("first", [1, 2, 3])
def test_powers_of_two_that_follow_each_other_are_a_list(first: int) -> None:
    for start in range(len(POWERS) - first):
        listed = POWERS[start : start + first + 1]
        assert sizes(",".join(map(str, listed)), "--seq-len") == listed
    for pair in combinations((64, 96, 128, 192, 256, 512), 2):
        assert sizes(f"{pair[0]},{pair[1]}", "--head-dim") == list(pair)


@given(st.lists(st.integers(1, 1 << 24), min_size=1, max_size=5))
def test_a_list_that_is_written_out_is_read_as_it_was(numbers: list[int]) -> None:
    assert sizes(list_text(numbers), "--seq-len") == numbers


def test_sequences_of_three_digits_may_stand_in_any_order() -> None:
    assert sizes("100,900,300", "--seq-lens", sequences=True) == [100, 900, 300]
    assert sizes("8, 192", "--seq-len") == [8, 192]
    assert sizes("1,2,4,8", "--batch") == [1, 2, 4, 8]


def test_a_comma_in_an_amount_sets_thousands_apart_or_is_refused() -> None:
    assert parse("hbm", "4,300MB").value == 4_300_000_000
    for text, meant in (("4,3GB", "4.3GB"), ("1,25 ms", "1.25 ms")):
        with pytest.raises(InputError, match=f"write {meant}"):
            parse("hbm" if "GB" in text else "time", text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("512,512", 512512),  # a list grows from number to number
        ("64,512,128", 64512128),  # and to its end
        ("4k,60,128", 60128),  # of multiples of 8
        ("4k,64,124", 64124),
        ("4k,128,128", 128128),
        ("4k,16,384", 16384),  # a multiple of 8,192 is one number
    ],
)
def test_what_is_no_list_of_lengths_is_one_number(text: str, number: int) -> None:
    with pytest.raises(InputError, match=f"write {number}\\b"):
        sizes(text, "--context")


def test_neighbours_in_a_list_grow_by_sixteen_times_at_most() -> None:
    assert sizes("8,128", "--seq-len") == [8, 128]  # 16 times
    assert sizes("4k,8,128", "--seq-len") == [4096, 8, 128]
    for text in ("8,136", "4k,8,136"):  # 17 times
        with pytest.raises(InputError, match="write 8136"):
            sizes(text, "--seq-len")


@pytest.mark.parametrize("text", ["0:8:1", "1:8:0", "1:8:x1", "1:8:x0", "8:4:1", "0:8:x2"])
def test_ranges_that_are_empty_or_endless(text: str) -> None:
    with pytest.raises(InputError, match="is an empty or endless range"):
        sizes(text, "--batch")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("4:4:1", [4]), ("1:4:1", [1, 2, 3, 4]), ("1:8:x2", [1, 2, 4, 8]), ("1:9:x3", [1, 3, 9])],
)
def test_a_range_has_its_end(text: str, numbers: list[int]) -> None:
    assert sizes(text, "--batch") == numbers


def test_a_whole_unit_is_one_of_it() -> None:
    assert [joules_text(x) for x in (1.0, 1e-3, 1e-6)] == ["1 J", "1 mJ", "1 uJ"]
    assert [seconds_text(x) for x in (1.0, 1e-3, 1e-6)] == ["1 s", "1 ms", "1 us"]
    assert [bytes_text(x) for x in (999, 1000, 10**6)] == ["999 B", "1 kB", "1 MB"]


@pytest.mark.parametrize(
    ("text_of", "amount", "wanted"),
    [
        # Three digits of 999.96 us are a millisecond; more seconds than a thousand are written out.
        (seconds_text, 9.9996e-4, "1 ms"),
        (seconds_text, 9.99e-4, "999 us"),
        (seconds_text, 0.99996, "1 s"),
        (seconds_text, 1234.5, "1,234 s"),
        (joules_text, 9.9996e-4, "1 mJ"),
        (joules_text, 2345.6, "2,346 J"),
        (number_text, 9999.96, "10,000"),
        (digits_text, 999.96, "1,000"),
        (digits_text, 0.0123, "0.0123"),
        (operations_text, 17.2e9, "17.2 GFLOP"),
        (operations_text, 49e6, "49.0 MFLOP"),
        (operations_text, 30, "30 FLOP"),
    ],
)
def test_a_number_is_written_in_a_unit_that_shows_it(
    text_of: Callable[[float], str], amount: float, wanted: str
) -> None:
    assert text_of(amount) == wanted


@given(st.floats(1e-12, 1e15))
def test_no_amount_has_an_exponent_of_thousands(x: float) -> None:
    for text in (bytes_text, seconds_text, joules_text, number_text, digits_text, operations_text):
        assert "e+" not in text(x)
    assert operations_text(max(1, x)) != "0 FLOP"
