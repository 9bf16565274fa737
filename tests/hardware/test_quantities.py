"""Quantities of a GPU: each its attribute, sizes in bytes, rates that follow from units and clocks."""

from __future__ import annotations

from dataclasses import fields

import pytest
from shipped import BUS, CORES, SHIPPED

from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.hardware.quantities import QUANTITIES


@pytest.mark.parametrize("name", SHIPPED)
def test_bandwidth_is_decimal(name: str) -> None:
    bits, gigabits = BUS[name]
    expected = bits / 8 * gigabits * 1e9
    given_rate = load_profile(name).need("dram_bandwidth_bytes_per_s")
    # A terabyte read as a tebibyte is off by 10 %, a gigabyte read as a gibibyte by 7 %: both leave this interval.
    assert given_rate == pytest.approx(expected, rel=0.025)
    assert given_rate * 2**40 / 10**12 != pytest.approx(expected, rel=0.025)
    assert given_rate * 2**30 / 10**9 != pytest.approx(expected, rel=0.025)


# fp32 units of an SM, dense fp16 operations of an SM's tensor cores in a clock (fp32 accumulate).


@pytest.mark.parametrize("name", SHIPPED)
def test_rates_follow_from_units_and_clocks(name: str) -> None:
    profile = load_profile(name)
    units, tensor = CORES[name]
    rated = profile.rated_clock_hz
    clocks = profile.sm_count * (rated or profile.need("boost_clock_hz"))
    tensor_clocks = profile.sm_count * (
        rated or profile.sustained_clock_hz or profile.need("boost_clock_hz")
    )
    assert profile.tensor_flops("fp32") == pytest.approx(2 * units * clocks, rel=0.08)
    assert profile.tensor_flops("fp16") == pytest.approx(tensor * tensor_clocks, rel=0.06)
    double = {"tf32": 0.375 if profile.is_amd else 0.5, "bf16": 1.0, "fp8": 2.0}
    for dtype, factor in double.items():
        if dtype in profile.tensor_flops_per_s:
            assert profile.tensor_flops(dtype) == pytest.approx(
                factor * profile.tensor_flops("fp16"), rel=0.02
            )
    supported = {"bf16": 80, "tf32": 80, "fp8": 89, "int8": 75}
    supported |= {"tf32": 10_000} if name in ("mi350x", "mi355x") else {}
    for dtype, since in supported.items():
        assert (dtype in profile.tensor_flops_per_s) == (profile.cc >= since)


def test_sizes_are_bytes() -> None:
    l2_mib = {
        "t4": 4,
        "v100": 6,
        "a10": 6,
        "a30": 24,
        "a40": 6,
        "a6000": 6,
        "l40": 96,
        "5090": 96,
        "h20": 60,
        "h800": 50,
        "gb200": 126.5,
        "gb300": 126.5,
        "l4": 48,
        "l40s": 96,
        "3090": 6,
        "4090": 72,
        "a100": 40,
        "h100": 50,
        "b200": 126.5,
        "b300": 126.5,
    }
    assert {name: load_profile(name).l2_bytes for name in l2_mib} == {
        n: int(m * 1024 * 1024) for n, m in l2_mib.items()
    }


def test_every_quantity_has_its_attribute() -> None:
    attributes = {f.name for f in fields(HardwareProfile)}
    others = {
        "name",
        "title",
        "aliases",
        "backed_by",
        "compute_capability",
        "sources",
        "kinds",
        "taken",
        "validation",
    }
    assert attributes == set(QUANTITIES) | others
