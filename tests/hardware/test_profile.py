"""Hardware profiles: the shipped numbers, the profile object, names."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from shipped import SHIPPED

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.hardware import profile as hardware
from iosim.hardware import profile_file as _profile_file
from iosim.hardware.profile import (
    PRODUCT_SHARE,
    HardwareProfile,
    check_profile_file,
    list_profiles,
    load_profile,
)
from iosim.hardware.profile_file import KINDS
from iosim.hardware.quantities import QUANTITIES

MIB = 2**20


def entry(value: object, **more: object) -> dict[str, object]:
    return {"value": value, "source": "test", **more}


def minimal(**more: object) -> dict[str, Any]:
    return {
        "schema": 1,
        "name": "mine",
        "compute_capability": "8.0",
        "sm_count": entry(108),
        **more,
    }


def test_the_shipped_profiles_are_the_listed_ones() -> None:
    assert list_profiles() == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profile_is_clean(name: str) -> None:
    assert check_profile_file(data_dir("hardware_profiles") / f"{name}.toml") == []
    profile = load_profile(name)
    assert profile.name == name
    for needed in (
        "l2_bytes",
        "memory_bytes",
        "boost_clock_hz",
        "power_w",
        "dram_bandwidth_bytes_per_s",
    ):
        assert profile.need(needed) > 0
    assert profile.tensor_flops("fp16") > profile.tensor_flops("fp32")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_has_a_source_and_a_kind(name: str) -> None:
    profile = load_profile(name)
    numbers = []
    for key, quantity in QUANTITIES.items():
        value = getattr(profile, key)
        if quantity.form == "rates":
            numbers += [f"{key}.{dtype}" for dtype in value]
        elif value is not None:
            numbers.append(key)
    assert len(numbers) > 30
    assert set(profile.sources) == set(profile.kinds) == set(numbers)
    for number in numbers:
        assert len(profile.source_of(number)) > 15, (
            f"{number}: '{profile.source_of(number)}' is too short for a source"
        )
        assert profile.kind_of(number) in KINDS
        measured = "_measured_" in number or "_achieved_" in number or "latency" in number
        assert not measured or profile.kind_of(number) != "specification"


def test_measured_stands_beside_specified() -> None:
    h200 = load_profile("h200")
    assert (h200.dram_bandwidth_bytes_per_s, h200.dram_bandwidth_measured_bytes_per_s) == (
        4.8e12,
        4.3e12,
    )
    assert h200.kind_of("dram_bandwidth_measured_bytes_per_s") == "measured"
    assert h200.l2_bytes == 62_914_560 == 60 * MIB
    assert h200.l2_partitions == 2
    assert (h200.tensor_flops("bf16"), h200.tensor_flops("bf16", measured=True)) == (989e12, 770e12)
    # What the driver of an H200 reports, in bytes.
    assert h200.shared_memory_per_sm_bytes == 233_472
    assert h200.shared_memory_per_block_optin_bytes == 232_448


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("t4", 15_360),
        ("v100", 16_160),
        ("a10", 23_028),
        ("l4", 23_034),
        ("3090", 24_576),
        ("4090", 24_564),
        ("5090", 32_607),
        ("a100-40gb", 40_960),
        ("l40s", 46_068),
        ("a100", 81_920),
        ("h100", 81_559),
        ("h200", 143_771),
        ("b200", 183_359),
        ("mi300x", 206_141_652_992 / 2**20),
    ],
)
def test_memory_is_what_the_device_reports_not_the_datasheets_round_number(
    name: str, mib: float
) -> None:
    profile = load_profile(name)
    assert profile.memory_bytes == mib * 2**20
    assert "datasheet" not in profile.source_of("memory_bytes")


def test_what_the_driver_keeps_of_the_memory_is_said_apart() -> None:
    """CUDA reports 85,017,493,504 bytes of an H100 whose nvidia-smi says 81,559 MiB."""
    h100 = load_profile("h100")
    assert h100.usable_memory_bytes == h100.need_memory_bytes() == 85_017_493_504
    assert h100.memory_bytes == 81_559 * 2**20
    assert (
        load_profile("t4").usable_memory_bytes == load_profile("t4").memory_bytes
    )  # not known: nothing is taken off
    assert replace(h100, memory_bytes=None).usable_memory_bytes is None


@pytest.mark.parametrize(
    (
        "cc",
        "limits",
    ),  # KB of shared memory per SM and per block, KB of L1 and shared, warps, threads, blocks
    [
        ("7.0", (96, 96, 128, 64, 2048, 32)),
        ("7.5", (64, 64, 96, 32, 1024, 16)),
        ("8.0", (164, 163, 192, 64, 2048, 32)),
        ("8.6", (100, 99, 128, 48, 1536, 16)),
        ("8.9", (100, 99, 128, 48, 1536, 24)),
        ("9.0", (228, 227, 256, 64, 2048, 32)),
        ("10.0", (228, 227, 256, 64, 2048, 32)),
        ("12.0", (100, 99, 128, 48, 1536, 24)),
    ],
)
def test_limits_of_compute_capabilities(cc: str, limits: tuple[int, ...]) -> None:
    p = HardwareProfile.from_dict(minimal(compute_capability=cc))
    shared, block, unified, warps, threads, blocks = limits
    assert p.shared_memory_per_sm_bytes == shared * 1024
    assert p.shared_memory_per_block_optin_bytes == block * 1024
    assert p.l1_shared_bytes == unified * 1024
    assert (p.max_warps_per_sm, p.max_threads_per_sm, p.max_blocks_per_sm) == (
        warps,
        threads,
        blocks,
    )
    assert (p.registers_per_sm, p.max_registers_per_thread, p.shared_memory_per_block_bytes) == (
        65536,
        255,
        49152,
    )
    assert (p.warp_size, p.sector_bytes, p.line_bytes) == (32, 32, 128)
    assert p.shared_memory_reserved_per_block_bytes == (1024 if p.cc >= 80 else 0)
    assert p.exp_per_clock_per_sm == 16


def test_unknown_is_none_and_need_says_so() -> None:
    l4 = load_profile("l4")
    assert l4.dram_bandwidth_measured_bytes_per_s is None
    with pytest.raises(InputError, match="'l4' does not know dram_bandwidth_measured_bytes_per_s"):
        l4.need("dram_bandwidth_measured_bytes_per_s")
    with pytest.raises(InputError, match="no source for 'nvlink_bytes_per_s'"):
        l4.source_of("nvlink_bytes_per_s")
    for wrong in ("no_such_thing", "name", "tensor_flops_per_s", "shared_memory_carveouts_bytes"):
        with pytest.raises(AttributeError):
            l4.need(wrong)
    assert l4.need_int("l2_bytes") == 48 * MIB
    with pytest.raises(AttributeError):
        l4.need_int("power_w")


def test_tensor_flops() -> None:
    t4 = load_profile("t4")
    assert t4.tensor_flops("float16") == t4.tensor_flops("FP16") == 65e12
    with pytest.raises(InputError, match="'t4' has no tensor rate for 'bf16'; it knows fp16, int8"):
        t4.tensor_flops("bf16")
    with pytest.raises(InputError, match="no measured tensor rate for 'int8'; it knows fp16"):
        t4.tensor_flops("int8", measured=True)
    assert load_profile("h100").tensor_flops("e4m3") == 1979e12


@pytest.mark.parametrize("name", SHIPPED)
def test_round_trips(name: str) -> None:
    profile = load_profile(name)
    again = HardwareProfile.from_dict(json.loads(json.dumps(profile.to_dict(), allow_nan=False)))
    assert again == profile
    assert hash(again) == hash(profile)
    assert (again.sources, again.kinds) == (profile.sources, profile.kinds)
    assert pickle.loads(pickle.dumps(profile)) == copy.deepcopy(profile) == profile


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("A100", "a100-sxm-80gb"),
        ("A100 SXM 80GB", "a100-sxm-80gb"),
        ("a100_sxm_40gb", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("H100", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("h100 pcie", "h100-pcie"),
        ("H200", "h200-sxm"),
        ("v100", "v100-sxm2"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2"),
        ("Tesla T4", "t4"),
        ("rtx4090", "rtx-4090"),
        ("GeForce RTX 4090", "rtx-4090"),
        ("tesla v100", "v100-sxm2"),
        ("RTX 3090", "rtx-3090"),
        ("NVIDIA A30", "a30"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA H20", "h20"),
        ("H800", "h800-sxm"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("b200", "b200"),
        (" l4 ", "l4"),
        ("L40S", "l40s"),
    ],
)
def test_names_are_forgiven(written: str, name: str) -> None:
    assert load_profile(written).name == name


@settings(deadline=None, max_examples=examples(100))
@given(data=st.data())
def test_case_and_punctuation_never_matter(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(SHIPPED))
    letters = [data.draw(st.sampled_from([c.upper(), c, c + " ", c + "_", "-" + c])) for c in name]
    assert load_profile("".join(letters)).name == name


def test_no_name_means_two_profiles() -> None:
    owners: dict[str, str] = {}
    for name in SHIPPED:
        for other in {hardware._key(n) for n in (name, *hardware._head_names(name))}:
            assert owners.setdefault(other, name) == name
    for name in SHIPPED:  # the two lines that are read without a TOML parser hold what TOML says
        profile = load_profile(name)
        assert hardware._head_names(name) == [profile.title, *profile.aliases]


@pytest.mark.parametrize(
    ("written", "suggested"),
    [("h10", "h100"), ("rtx 5081", "rtx-5080"), ("a100-sxm-8gb", "a100-sxm-80gb")],
)
def test_near_misses_are_suggested(written: str, suggested: str) -> None:
    with pytest.raises(InputError, match=f"'{written}' is not known; did you mean .*{suggested}"):
        load_profile(written)


@pytest.mark.parametrize("written", ["", "zzz", "\0", "zz\nzz", "z" * 5000, "zz/../z", "é" * 300])
def test_odd_names_give_one_line(written: str) -> None:
    with pytest.raises(InputError) as caught:
        load_profile(written)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 60 + len(", ".join(SHIPPED)) + 60


@settings(deadline=None, max_examples=examples(100))
@given(written=st.text(max_size=30))
def test_any_name_loads_or_is_refused(written: str) -> None:
    message = ""
    try:
        load_profile(written)
    except InputError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1


def test_loading_by_name_parses_what_it_needs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = _profile_file.read_toml

    def counting(path: Path) -> dict[str, Any]:
        read.append(path.name)
        return original(path)

    monkeypatch.setattr(_profile_file, "read_toml", counting)
    for cache in (
        hardware._load_shipped,
        _profile_file.shipped,
        _profile_file._capability_tables,
        _profile_file._inherited,
    ):
        cache.cache_clear()
    load_profile("h100")
    assert sorted(read) == [
        "compute_capability.toml",
        "h100-sxm.toml",
        "h200-sxm.toml",
    ]  # the last for what is taken
    load_profile("H100")
    assert len(read) == 3


def test_import_is_light() -> None:
    code = "import sys, iosim.hardware.profile, iosim.hardware.occupancy; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"numpy", "pandas", "sympy", "plotly", "torch", "tomllib"} & set(loaded)


def test_a_taken_value_may_be_in_proportion_to_a_quantity_of_both_gpus() -> None:
    """An A100's L2 answers after 205 cycles, an H200's after 287: so do tiles and steps wait."""
    h200, a100 = load_profile("h200"), load_profile("a100")
    assert a100.tile_cycles == pytest.approx(h200.need("tile_cycles") * 205 / 287, rel=1e-3)
    assert a100.kind_of("tile_cycles") == "inferred"
    assert "205 here" in a100.source_of("tile_cycles")
    assert "tile_cycles" not in a100.taken
    data = a100.to_dict() | {"tile_cycles": {"from": "h200-sxm", "per": "dram_latency_cycles"}}
    assert HardwareProfile.from_dict(data).tile_cycles == pytest.approx(3500 * 552 / 682, rel=1e-3)
    for wrong, message in (
        ({"from": "h200-sxm", "per": "l2_latency"}, "per"),
        ({"value": 1, "source": "x", "per": "l2_ways"}, "per"),
    ):
        with pytest.raises(InputError, match=message):
            HardwareProfile.from_dict(data | {"tile_cycles": wrong})


HBM_NAMES = ("read", "write", "copy")
PLAIN = {
    "dram_bandwidth_bytes_per_s": 4.0,
    "dram_bandwidth_measured_bytes_per_s": None,
    "achieved_dram_fraction": None,
    **{f"dram_{n}_bandwidth_bytes_per_s": None for n in HBM_NAMES},
}
RATES = {
    f"dram_{n}_bandwidth_bytes_per_s": rate
    for n, rate in zip(HBM_NAMES, (2.0, 4.0, 2.0), strict=True)
}


@pytest.mark.parametrize(
    ("known", "measured", "seconds"),
    [
        ({}, True, (1 / 4, 1 / 4, 0)),  # one rate for all, as specified
        ({"achieved_dram_fraction": 0.8}, True, (1 / 3.2, 1 / 3.2, 0)),
        ({"achieved_dram_fraction": 0.8}, False, (1 / 4, 1 / 4, 0)),
        ({"dram_bandwidth_measured_bytes_per_s": 3.0}, True, (1 / 3, 1 / 3, 0)),
        ({"dram_bandwidth_measured_bytes_per_s": 3.0}, False, (1 / 4, 1 / 4, 0)),
        # a byte read and one written by a copy take 2 / 2 s: what 1 / 2 and 1 / 4 leave is the turn
        (RATES, True, (1 / 2, 1 / 4, 1 / 4)),
        (RATES, False, (1 / 4, 1 / 4, 0)),
        (
            RATES | {"dram_copy_bandwidth_bytes_per_s": 3.0},
            True,
            (1 / 2, 1 / 4, 0),
        ),  # noise: less than both
        (RATES | {"dram_copy_bandwidth_bytes_per_s": None}, True, (1 / 4, 1 / 4, 0)),
        ({"dram_bandwidth_bytes_per_s": None}, True, None),
        ({"dram_bandwidth_bytes_per_s": None}, False, None),
    ],
)
def test_seconds_of_a_byte_at_hbm(
    known: dict[str, Any], measured: bool, seconds: tuple[float, ...] | None
) -> None:
    made = replace(load_profile("a100"), **PLAIN | known).hbm_seconds_per_byte(measured)
    assert made == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("kind", "known", "reached"),
    [
        ("bf16", {"tensor_flops_achieved_per_s": {"bf16": 7.0}}, 7.0),
        ("bf16", {}, PRODUCT_SHARE * 10.0),
        ("fp32", {}, PRODUCT_SHARE * 2.0),
        ("tf32", {}, PRODUCT_SHARE * 2.0),  # on the fp32 units
        ("tf32", {"tensor_flops_achieved_per_s": {"fp32": 1.5}}, 1.5),
    ],
)
def test_what_products_reach(kind: str, known: dict[str, Any], reached: float) -> None:
    rates = {
        "tensor_flops_per_s": {"bf16": 10.0},
        "fp32_flops_per_s": 2.0,
        "tensor_flops_achieved_per_s": {},
    }
    made = replace(load_profile("a100"), **rates | known)
    assert made.product_flops(kind) == pytest.approx(reached)
    assert made.computes_in_fp32(kind) is (kind == "tf32")
    assert not replace(made, fp32_flops_per_s=None).computes_in_fp32("tf32")


@pytest.mark.parametrize("value", [3, None, 8.0, ["a100"]])
def test_what_is_no_name_is_refused_in_a_line(value: Any) -> None:
    with pytest.raises(InputError, match="is no name; accepted: a name, a profile file's path"):
        hardware.load_profile(value)


@pytest.mark.parametrize("name", [name for name, q in QUANTITIES.items() if q.form == "int"])
def test_what_is_counted_in_whole_numbers_has_no_fractions(name: str) -> None:
    between = QUANTITIES[name].low + 0.5
    data = load_profile("h100").to_dict() | {name: {"value": between, "source": "by hand"}}
    with pytest.raises(InputError, match=f"{name}.*whole number"):
        HardwareProfile.from_dict(data)
