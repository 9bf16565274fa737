"""Profile files of users: the format, and every way to get it wrong, hostile files included."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from iosim.base.errors import InputError
from iosim.hardware import profile_file as _profile_file
from iosim.hardware.profile import HardwareProfile, check_profile_file, list_profiles, load_profile
from iosim.hardware.profile_file import HEADER_KEYS
from iosim.hardware.quantities import QUANTITIES

MIB = 2**20
GOOD = """schema = 1
name = "mine"
compute_capability = "8.0"
sm_count = { value = 108, source = "counted" }
boost_clock_hz = { value = 1.41e9, source = "read" }
l2_bytes = { value = 41_943_040, source = "read" }
dram_bandwidth_bytes_per_s = { value = 2e12, source = "read" }
[tensor_flops_per_s]
fp16 = { value = 312e12, source = "read" }
"""


def write(folder: Path, text: str | bytes, name: str = "gpu.toml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


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


def test_own_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    for spelled in (path, str(path)):
        profile = load_profile(spelled)
        assert (profile.name, profile.title, profile.cc, profile.sm_count) == (
            "mine",
            "mine",
            80,
            108,
        )
        assert profile.memory_bytes is None
        assert profile.max_warps_per_sm == 64  # from the compute capability
        assert profile.source_of("sm_count") == "counted"
    assert check_profile_file(path) == []


def test_own_file_is_found_by_path_only_when_no_profile_has_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, GOOD, "h100")
    stem = f"{max(list_profiles(), key=len)}-of-nobody"
    write(tmp_path, GOOD, stem)
    assert load_profile(stem).name == "mine"
    assert load_profile("./h100").name == "mine"
    assert load_profile("h100").name == "h100-sxm"


@pytest.mark.parametrize("field", ["sources", "kinds", "taken", "validation"])
def test_where_numbers_come_from_makes_no_other_gpu(field: str) -> None:
    profile = load_profile("h200")
    other: dict[str, Any] = {field: {"sm_count": "counted"}}
    assert replace(profile, **other) == profile
    assert replace(profile, sm_count=7) != profile


def test_own_values_win_and_unknown_capabilities_stand_alone() -> None:
    profile = HardwareProfile.from_dict(minimal(max_blocks_per_sm=entry(8)))
    assert (profile.max_blocks_per_sm, profile.source_of("max_blocks_per_sm")) == (8, "test")
    future = HardwareProfile.from_dict(
        minimal(compute_capability="13.0", max_warps_per_sm=entry(64))
    )
    assert (future.cc, future.warp_size, future.max_warps_per_sm, future.registers_per_sm) == (
        130,
        32,
        64,
        65536,
    )
    assert future.shared_memory_per_sm_bytes is None


def test_tables_of_the_inheritance_file_are_no_capabilities() -> None:
    for word in ("all", "sources", "schema"):
        with pytest.raises(InputError, match="compute_capability: must be a text such as"):
            HardwareProfile.from_dict(minimal(compute_capability=word))


def test_short_sources_are_written_out() -> None:
    profile = HardwareProfile.from_dict(
        minimal(
            sources={"sheet": "Vendor datasheet"},
            l2_bytes={"value": 4 * MIB, "source": "sheet"},
            power_w={"value": 70, "source": "sheet: page 2"},
            boost_clock_hz={"value": 1e9, "source": "other: page 3"},
        )
    )
    sources = [profile.source_of(key) for key in ("l2_bytes", "power_w", "boost_clock_hz")]
    assert sources == ["Vendor datasheet", "Vendor datasheet: page 2", "other: page 3"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("schema = 1", "schema = 2", "schema: 2 is out of range"),
        ("schema = 1", "schema = true", "schema: True is not a whole number"),
        ("schema = 1\n", "", "schema: missing"),
        ('name = "mine"\n', "", "name: missing"),
        ('name = "mine"', "name = 7", "name: must be a text such as"),
        ('name = "mine"', 'name = "a\\nb"', "name: must be one line of text"),
        ('name = "mine"', 'name = "mine"\naliases = "x"', "aliases: must be a list"),
        ('name = "mine"', 'name = "mine"\ntitle = 1', "title: must be a text"),
        ('"8.0"', "8.0", "compute_capability: must be a text such as"),
        ('"8.0"', '"eight"', "compute_capability: must be a text such as"),
        ('compute_capability = "8.0"\n', "", "compute_capability: missing"),
        ('sm_count = { value = 108, source = "counted" }\n', "", "sm_count: missing"),
        ("value = 108", "value = true", "sm_count.value: True is not a whole number"),
        ("value = 108", 'value = "108"', "sm_count.value: '108' is not a whole number"),
        ("value = 108", "value = 108.5", "sm_count.value: 108.5 is not a whole number"),
        ("value = 108", "value = [108]", "sm_count.value: a list is not a whole number"),
        ("value = 108", "value = -1", "sm_count.value: -1 is out of range"),
        ("value = 108", "value = 0", "sm_count.value: 0 is out of range"),
        (
            "value = 108",
            f"value = 0x{'f' * 9000}",
            "sm_count.value: a number of more than 20 digits is out of range",
        ),
        (
            "value = 2e12",
            "value = nan",
            "dram_bandwidth_bytes_per_s.value: must be finite, not nan",
        ),
        (
            "value = 2e12",
            "value = inf",
            "dram_bandwidth_bytes_per_s.value: must be finite, not inf",
        ),
        (
            "value = 2e12",
            "value = 1e999",
            "dram_bandwidth_bytes_per_s.value: must be finite, not inf",
        ),
        (
            "value = 2e12",
            "value = -2e12",
            "dram_bandwidth_bytes_per_s.value: -2000000000000.0 is out of range",
        ),
        (
            "value = 2e12",
            "value = 2039",
            "dram_bandwidth_bytes_per_s.value: 2039 is out of range; accepted: 1e+09",
        ),
        ("value = 2e12, ", "", "dram_bandwidth_bytes_per_s.value: missing"),
        (
            "value = 2e12",
            "valeu = 2e12",
            "dram_bandwidth_bytes_per_s.valeu: unknown key; did you mean",
        ),
        (', source = "counted"', "", "sm_count.source: missing"),
        ('source = "counted"', 'source = " "', "sm_count.source: must be a text"),
        (
            'source = "counted"',
            'source = "counted", kind = "guess"',
            "sm_count.kind: 'guess' is not known; accepted",
        ),
        ('{ value = 108, source = "counted" }', "108", "sm_count: write { value = ..., source"),
        (
            "dram_bandwidth_bytes",
            "dram_bandwith_bytes",
            "dram_bandwith_bytes_per_s: unknown key; did you mean dram_",
        ),
        ("[tensor", 'hello = "you"\n[tensor', "hello: unknown key; see docs/profiles.md"),
        (
            "fp16",
            "fp61",
            "tensor_flops_per_s.fp61: unknown key; did you mean tensor_flops_per_s.fp16?",
        ),
        (
            "value = 312e12",
            "value = 312e9",
            "tensor_flops_per_s.fp16: 3.12e+11 would be 2.05 operations per clock",
        ),
        ("value = 312e12", "value = 312", "tensor_flops_per_s.fp16.value: 312 is out of range"),
        (
            "[tensor_flops_per_s]\nfp16",
            "tensor_flops_per_s",
            "tensor_flops_per_s.value: unknown key",
        ),
        ("[tensor", "[sources]\na = 1\n[tensor", "sources.a: must be a text"),
    ],
)
def test_problems_in_a_file(tmp_path: Path, old: str, new: str, problem: str) -> None:
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    path = write(tmp_path, text)
    problems = check_profile_file(path)
    assert any(line.startswith(problem) for line in problems), problems
    assert all("\n" not in line and len(line) < 250 for line in problems)
    with pytest.raises(InputError) as caught:
        load_profile(path)
    assert str(path) in str(caught.value)
    assert problems[0] in str(caught.value)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            {"shared_memory_per_block_optin_bytes": entry(200_000)},
            "more than shared_memory_per_sm_bytes (167,936)",
        ),
        ({"shared_memory_per_sm_bytes": entry(230_000)}, "more than l1_shared_bytes"),
        ({"shared_memory_per_sm_bytes": entry(131_072)}, "carveouts_bytes: ends in 167,936"),
        ({"shared_memory_carveouts_bytes": entry([8192, 0])}, "must be in ascending order"),
        ({"shared_memory_carveouts_bytes": entry([])}, "must be a list with at least 1 entry"),
        ({"max_warps_per_sm": entry(48)}, "2,048 is not max_warps_per_sm x warp_size (1,536)"),
        ({"registers_per_block": entry(131_072)}, "more than registers_per_sm"),
        ({"sector_bytes": entry(256)}, "more than line_bytes"),
        ({"l2_bytes": entry(2**31), "memory_bytes": entry(10**9)}, "more than memory_bytes"),
        ({"l2_partitions": entry(3)}, "3 of one L2; accepted: 1 or 2, or more with l2_apart = 1"),
        ({"memory_side_bytes": entry(2**28)}, "a cache at the memory's side has one"),
        (
            {"l2_latency_near_cycles": entry(500), "l2_latency_far_cycles": entry(400)},
            "more than l2_latency_far",
        ),
        (
            {
                "dram_bandwidth_bytes_per_s": entry(2e12),
                "dram_bandwidth_measured_bytes_per_s": entry(2.5e12),
            },
            "more than 1.2 times dram_bandwidth_bytes_per_s",
        ),
        (
            {
                "l2_read_bandwidth_bytes_per_s": entry(5e12),
                "l2_read_bandwidth_measured_bytes_per_s": entry(7e12),
            },
            "more than 1.2 times l2_read_bandwidth_bytes_per_s",
        ),
        (
            {
                "tensor_flops_per_s": {"fp16": entry(3e14)},
                "tensor_flops_achieved_per_s": {"fp16": entry(6e14)},
            },
            "more than 1.2 times the rated 3e+14",
        ),
        (
            {"l2_read_bandwidth_by_footprint_bytes_per_s": entry([[2, 1e12], [1, 1e12]])},
            "footprint in bytes must be in ascending",
        ),
        ({"l2_read_bandwidth_by_footprint_bytes_per_s": entry([1e12])}, "must be a list of pairs"),
        ({"l2_bytes": entry(40)}, "l2_bytes.value: 40 is out of range"),
        ({"boost_clock_hz": entry(1410)}, "boost_clock_hz.value: 1410 is out of range"),
        ({"tensor_flops_per_s": 5}, "must be a table with an entry for each of fp16"),
    ],
)
def test_contradictions_and_slips(more: dict[str, Any], problem: str) -> None:
    problems = _profile_file.parse(minimal(**more)).problems
    assert any(problem in str(line) for line in problems), problems
    with pytest.raises(InputError, match=re.escape("profile: ")):
        HardwareProfile.from_dict(minimal(**more))


def test_all_problems_are_listed_at_once() -> None:
    data = minimal(
        l2_bytes=entry(40), power_w=entry(True), color=entry(1), registers_per_block=entry(131_072)
    )
    assert len(_profile_file.parse(data).problems) == 4
    with pytest.raises(InputError, match=r"\(and 3 more\)"):
        HardwareProfile.from_dict(data)
    # A broken value hides the inherited one, which could contradict what else the file says.
    alone = minimal(shared_memory_per_sm_bytes=entry(True), l1_shared_bytes=entry(100_000))
    assert len(_profile_file.parse(alone).problems) == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"\xff\xfe\x00\x01" * 20, "is not UTF-8 text"),
        (b"\x00" * 100, "is not valid TOML"),
        (b"schema = 1\nname = \n", "is not valid TOML: Invalid value (at line 2, column 8)"),
        (b"schema = 1\nschema = 1\n", "is not valid TOML: Cannot overwrite a value"),
        (b"[a]\n[a]\n", "is not valid TOML: Cannot declare"),
        (b'{"schema": 1}', "is not valid TOML"),
        (b"x = " + b"9" * 10_000, "is not valid TOML"),
        (b"x = " + b"[" * 100_000, "nested too deeply"),
        (b"# " + b"x" * 2_000_000, "is too large: more than 1,000,000 bytes"),
        ("\ufeff".encode() + b"broken", "is not valid TOML"),
    ],
)
def test_files_that_are_no_profiles(tmp_path: Path, content: bytes, problem: str) -> None:
    path = write(tmp_path, content)
    for action in (load_profile, check_profile_file):
        with pytest.raises(InputError) as caught:
            action(str(path))
        assert problem in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        load_profile(str(tmp_path))
    with pytest.raises(InputError, match="is a directory"):
        check_profile_file(tmp_path)
    with pytest.raises(InputError, match=r"nothing\.toml' cannot be read: it does not exist"):
        load_profile(str(tmp_path / "nothing.toml"))
    with pytest.raises(InputError, match="cannot be read"):
        load_profile("a\0b.toml")
    with pytest.raises(InputError, match="cannot be read"):
        load_profile("x" * 5000 + ".toml")
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(InputError, match="is a pipe or a device"):
        load_profile(tmp_path / "pipe.toml")


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    assert load_profile(write(tmp_path, "\ufeff" + GOOD)).name == "mine"


toml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=examples(200))
@given(
    keys=st.dictionaries(
        st.sampled_from([*QUANTITIES, *HEADER_KEYS]) | st.text(max_size=5),
        toml_values | st.fixed_dictionaries({"value": toml_values, "source": st.just("s")}),
        max_size=5,
    )
)
def test_any_content_gives_problems_or_a_profile(keys: dict[str, Any]) -> None:
    data = minimal() | keys
    problems = _profile_file.parse(data).problems
    assert all(len(str(line).splitlines()) == 1 for line in problems)
    if not problems:
        profile = HardwareProfile.from_dict(data)
        assert HardwareProfile.from_dict(profile.to_dict()) == profile


@settings(deadline=None, max_examples=examples(100))
@given(cut=st.integers(0, len(GOOD)), junk=st.binary(max_size=6))
def test_a_damaged_file_is_refused_in_one_line(
    cut: int, junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(
        tmp_path_factory.getbasetemp(),
        GOOD.encode()[:cut] + junk + GOOD.encode()[cut:],
        "damaged.toml",
    )
    message = "read"
    try:
        load_profile(path)
    except InputError as error:
        message = str(error)
    assert len(message.splitlines()) == 1
