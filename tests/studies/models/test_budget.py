"""The longest context that a GPU's memory has room for, and prices, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.problem.fields import MAX_TOKENS
from iosim.studies.models.budget import longest_context, prices_of


def model(bytes_of: Any) -> Any:
    return SimpleNamespace(cache_bytes=lambda batch, context, dtype: bytes_of(batch, context))


@pytest.mark.parametrize(
    ("batch", "free", "tokens"),
    [
        (3, 995, 33),  # 30 bytes a token of all three sequences: 990 fit, 1,020 do not
        (3, 990, 33),
        (3, 989, 32),
        (1, 10, 1),
        (1, 9, 0),
        (1, 0, 0),
        (1, 10**15, MAX_TOKENS),
    ],
)
def test_the_longest_context_that_fits(batch: int, free: int, tokens: int) -> None:
    assert longest_context(model(lambda b, n: 10 * b * n), batch, "fp16", free) == tokens


def test_windows_bend_the_curve() -> None:
    """Two bytes a token of one layer, and two of another whose window keeps 100: 200 + 2 n from there on."""
    bent = model(lambda b, n: 2 * n + 2 * min(n, 100))
    assert longest_context(bent, 1, "fp16", 401) == 100
    assert longest_context(bent, 1, "fp16", 402) == 101
    assert longest_context(bent, 1, "fp16", 1000) == 400


def asked(*prices: str, gpus: tuple[str, ...] = ("a100", "h100")) -> Any:
    return SimpleNamespace(gpu=gpus, price=prices)


def test_prices_stand_under_the_names_of_gpus() -> None:
    assert prices_of(asked("a100=1.5", " h100 =2")) == {"a100-sxm-80gb": 1.5, "h100-sxm": 2.0}
    assert prices_of(asked("a100=999999.9"))["a100-sxm-80gb"] == 999999.9
    assert prices_of(SimpleNamespace(gpu=("a100",), price=None)) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["a100", "a100=", "=1", "a100=0", "a100=-1", "a100=1e6", "a100=x", "a100=nan"]
)
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=f"'{text}'"):
        prices_of(asked(text))


def test_a_price_of_a_gpu_that_is_not_asked_about_is_refused() -> None:
    with pytest.raises(InputError, match=r"t4=1.* a100-sxm-80gb, h100-sxm"):
        prices_of(asked("t4=1"))
