"""The roofs of a roofline, measured and as specified, and what stands in where a number is not known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.hardware.roofs import bandwidth, ceilings, tensor_rate


def profile(**known: Any) -> Any:
    """Rates of a GPU; none but those given is known."""

    def tensor_flops(dtype: str, measured: bool) -> float:
        rate = known.get("measured" if measured else "specified", {}).get(dtype)
        if rate is None:
            raise InputError("not known")
        return float(rate)

    names = (
        "dram_bandwidth_measured_bytes_per_s",
        "dram_bandwidth_bytes_per_s",
        "fp32_flops_per_s",
        "l2_read_bandwidth_bytes_per_s",
        "l2_read_bandwidth_measured_bytes_per_s",
    )
    values = {name: known.get(name) for name in names}
    curve = known.get("l2_read_bandwidth_by_footprint_bytes_per_s", ())
    return SimpleNamespace(
        **values, tensor_flops=tensor_flops, l2_read_bandwidth_by_footprint_bytes_per_s=curve
    )


def test_products_without_a_rate_run_on_the_fp32_units_as_specified() -> None:
    gpu = profile(measured={"bf16": 7.0}, specified={"bf16": 9.0}, fp32_flops_per_s=2.0)
    assert [tensor_rate(gpu, "bf16", measured) for measured in (True, False)] == [7.0, 9.0]
    assert [tensor_rate(gpu, "fp32", measured) for measured in (True, False)] == [None, 2.0]


def test_the_best_of_the_l2s_curve() -> None:
    bandwidths = {
        "l2_read_bandwidth_bytes_per_s": 8.0,
        "l2_read_bandwidth_measured_bytes_per_s": 5.0,
    }
    curve = {"l2_read_bandwidth_by_footprint_bytes_per_s": ((1, 4.0), (2, 6.0), (3, 3.0))}
    assert [bandwidth(profile(**bandwidths), "l2", measured) for measured in (True, False)] == [
        5.0,
        8.0,
    ]
    assert bandwidth(profile(**bandwidths, **curve), "l2", True) == 6.0
    dram = {"dram_bandwidth_measured_bytes_per_s": 3.0, "dram_bandwidth_bytes_per_s": 4.0}
    assert [bandwidth(profile(**dram), "hbm", measured) for measured in (True, False)] == [3.0, 4.0]


DRAM, MEASURED = {"dram_bandwidth_bytes_per_s": 4.0}, {"dram_bandwidth_measured_bytes_per_s": 3.0}
BF16 = {"specified": {"bf16": 9.0}}


@pytest.mark.parametrize(
    ("known", "roofs"),
    [
        (DRAM | BF16, {"specification": (4.0, 9.0)}),
        (DRAM | BF16 | MEASURED, {"specification": (4.0, 9.0), "measured": (3.0, 9.0)}),
        (
            DRAM | BF16 | {"measured": {"bf16": 7.0}},
            {"specification": (4.0, 9.0), "measured": (4.0, 7.0)},
        ),
        (MEASURED | {"measured": {"bf16": 7.0}}, {"measured": (3.0, 7.0)}),
        (DRAM, {}),
        (BF16 | {"measured": {"bf16": 7.0}}, {}),
    ],
)
def test_a_roof_that_was_not_measured_is_as_specified(
    known: dict[str, Any], roofs: dict[str, tuple[float, float]]
) -> None:
    assert ceilings(profile(**known), "bf16", "hbm") == roofs
