"""Amounts and rates that people write: units, precision, and what is none."""

from __future__ import annotations

import pytest

from iosim.base.errors import InputError
from iosim.evidence.claims import parse

pytestmark = pytest.mark.usefixtures("replays_once")


@pytest.mark.parametrize(
    ("quantity", "text", "value", "share"),
    [
        ("hbm", "4.3GB", 4.3e9, 0.05 / 4.3), ("hbm", "33.6 MiB", 33.6 * 2**20, 0.05 / 33.6),
        ("hbm", "1,073,741,824 B", 2**30, 0.5 / 2**30), ("l2", "2.2g", 2.2e9, 0.05 / 2.2),
        ("hbm", "4.3e3 MB", 4.3e9, 0.05 / 4.3), ("time", "1.4ms", 1.4e-3, 0.05 / 1.4), ("time", "3 s", 3.0, 0.5 / 3),
        ("time", "250US", 2.5e-4, 0.5 / 250), ("flops", "137GFLOP", 1.37e11, 0.5 / 137),
        ("flops", "0.137 TFLOPs", 1.37e11, 0.0005 / 0.137), ("flops", "137G", 1.37e11, 0.5 / 137),
    ],
)  # fmt: skip
def test_amounts_have_units_and_a_precision(
    quantity: str, text: str, value: float, share: float
) -> None:
    amount = parse(quantity, text)
    assert amount.value == pytest.approx(value, rel=1e-12)
    assert amount.share == pytest.approx(share, rel=1e-9)


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        ("hbm", "4.3"),
        ("hbm", "4.3 furlongs"),
        ("hbm", "-4GB"),
        ("hbm", "0GB"),
        ("hbm", ""),
        ("hbm", "GB"),
        ("hbm", "nanGB"),
        ("time", "3GB"),
        ("flops", "3ms"),
        ("hbm", "3ms"),
        ("hbm", "1e999GB"),
        ("time", "3 m"),
    ],
)
def test_what_is_no_amount_is_refused(quantity: str, text: str) -> None:
    with pytest.raises(InputError, match="accepted"):
        parse(quantity, text)


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("tflops", "230", 230e12),
        ("tflops", "230 TFLOPS", 230e12),
        ("tflops", "0.23PFLOP/s", 230e12),
        ("tflops", "230TFLOPs/s", 230e12),
        ("mfu", "35%", 0.35),
        ("mfu", "0.35", 0.35),
        ("bandwidth", "1.5TB/s", 1.5e12),
        ("ratio", "9", 9.0),
        ("ratio", "9.5X", 9.5),
    ],
)
def test_rates_and_ratios_have_their_units(option: str, text: str, value: float) -> None:
    assert parse(option, text).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("option", "text"),
    [("bandwidth", "1.5TB"), ("tflops", "3GB/s"), ("mfu", "9x"), ("flops", "9x")],
)
def test_what_is_no_rate_is_refused(option: str, text: str) -> None:
    with pytest.raises(InputError, match="accepted"):
        parse(option, text)


def test_a_share_above_one_is_not_guessed_to_be_a_factor() -> None:
    """People write 45 for 45 %: as a factor of the tensor rate it would be 4,500 %."""
    with pytest.raises(InputError, match=r"'45' is no share: write 45%, or a number up to 1"):
        parse("mfu", "45")
    assert parse("mfu", "0.45").value == parse("mfu", "45%").value
