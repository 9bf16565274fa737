"""Writes a calibrated profile: what was measured over the shipped profile of the same GPU.

For a GPU that no shipped profile describes: beside what its compute capability fixes, and a few figures scaled from a
profile of the same capability. What was measured and has no key stands in comments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.base.records import asdict
from iosim.base.schema import Problem, one_line, toml_text
from iosim.evidence.measure.calibrate import Entry, derive, digits, in_range, sound, tensor
from iosim.hardware.profile import HardwareProfile, list_profiles, load_profile
from iosim.hardware.profile_file import parse, read_toml, source_heads

VENDORS = ("boost_clock_hz",)
"""What a shipped profile knows better than the driver."""
REMARKS = {
    "launch_interval_s": "{:.3g} s from one launch of an empty kernel to the next",
    "hbm_write_bandwidth_bytes_per_s": "{:.4g} bytes/s written to device memory",
    "tensor_fp16_mma_flop_per_s": "{:.4g} fp16 operations/s of mma.sync",
    "l2_shared_read_bandwidth_bytes_per_s": "{:.4g} bytes/s into the SMs where all read the same data in step",
    "sustained_clock_hz": "{:.4g} Hz of the SMs after a second of mma.sync",
}
"""What is measured and has no key in a profile."""
BURST = 2
"""Transfers a clock of the memory (double data rate), by which the driver's clock and bus width give its bandwidth."""


def base_profile(gpu: str) -> HardwareProfile | None:
    try:
        return load_profile(gpu)
    except InputError:
        return None


def specified(raw: Mapping[str, Any]) -> dict[str, Entry]:
    """For a GPU without a shipped profile: what the driver says of its memory, and rates scaled from a relative's.
    `raw`: the sound numbers of a raw file."""
    driver = f"the driver, asked by iosim calibrate on {raw['gpu']}, {raw['date']}"
    entries = (
        {"memory_bytes": Entry(int(raw["memory_bytes"]), driver)} if raw.get("memory_bytes") else {}
    )
    if raw.get("memory_clock_hz") and raw.get("memory_bus_bits"):
        rate = digits(raw["memory_clock_hz"] * BURST * raw["memory_bus_bits"] / 8)
        least = raw.get("hbm_read_bandwidth_bytes_per_s") or 0
        source = f"{driver}: memory clock x {BURST} x bus width"
        entries["dram_bandwidth_bytes_per_s"] = Entry(max(rate, digits(least)), source, "inferred")
    profiles = (load_profile(name) for name in list_profiles())
    capability = str(raw["compute_capability"])
    relative = next(
        (p for p in profiles if ".".join(map(str, p.compute_capability)) == capability), None
    )
    if (
        relative is not None
        and relative.boost_clock_hz is not None
        and raw.get("sms")
        and raw.get("clock_hz")
    ):
        # rates of one capability go with SMs and clock
        share = raw["sms"] * raw["clock_hz"] / (relative.sm_count * relative.boost_clock_hz)
        rates = {"fp32_flops_per_s": relative.fp32_flops_per_s}
        rates |= {
            f"tensor_flops_per_s.{dtype}": rate
            for dtype, rate in relative.tensor_flops_per_s.items()
        }
        source = f"{relative.name}'s, by SMs and clock"
        entries |= {
            name: Entry(digits(rate * share), source, "inferred")
            for name, rate in rates.items()
            if rate
        }
    for name, entry in tensor(raw).items():
        table, _, dtype = name.partition(".")
        if table == "tensor_flops_achieved_per_s":
            # boards of one capability differ in it: below wgmma's rate the measured one is the better guess
            source = f"taken as reached: {entry.source}"
            entries[f"tensor_flops_per_s.{dtype}"] = Entry(entry.value, source, "inferred")
    return entries


def combined(
    raw: Mapping[str, Any],
    measured: Mapping[str, Entry],
    name: str,
    left_out: list[str] | None = None,
) -> dict[str, Any]:
    """The whole profile as the structure of a profile file: what was measured over what was known. Raises InputError
    where no valid profile comes of it: no shipped one describes the GPU, and the number of its SMs or its compute
    capability is not known. `measured`: what `derive` made of `raw`. `left_out`: takes a line for each number that
    contradicts what is known of the GPU, and so is not used."""
    remarks_left_out: list[str] = [] if left_out is None else left_out
    readable = sound(raw, [])
    base = base_profile(str(readable["gpu"]))
    if base is not None:
        entries = {key: entry for key, entry in measured.items() if key not in VENDORS}
    else:
        entries = in_range(specified(readable), remarks_left_out) | dict(measured)
        needed = {
            "compute_capability": readable["compute_capability"],
            "sms": "sm_count" in entries,
        }
        if missing := [key for key, present in needed.items() if not present]:
            more = f"and its raw numbers lack {' and '.join(missing)}; accepted: what iosim calibrate --raw writes"
            raise InputError(f"no shipped profile describes '{readable['gpu']}', {more}")
    while True:
        values = _values(readable, base, entries, name)
        # one contradicting number is dropped at a time, until the profile is valid or no number is to blame
        wrong = parse(values).problems
        guilty = _guilty(
            wrong, entries, lambda less: parse(_values(readable, base, less, name)).problems
        )
        if not wrong or guilty is None:
            break
        remarks_left_out.append(f"{guilty}: contradicts what is known: {wrong[0]}")
        del entries[guilty]
    HardwareProfile.from_dict(values, "the calibrated profile")
    return values


def _guilty(
    wrong: Sequence[Problem],
    entries: Mapping[str, Entry],
    problems: Callable[[Mapping[str, Entry]], Sequence[Problem]],
) -> str | None:
    """The entry without which a profile has fewer problems: one that they name, if that is enough; None where none
    is."""
    named = [key for key in entries if any(problem.key == key for problem in wrong)]
    less = (
        (key, {k: e for k, e in entries.items() if k != key})
        for key in dict.fromkeys((*named, *entries))
    )
    return next((key for key, others in less if len(problems(others)) < len(wrong)), None)


def _values(
    raw: Mapping[str, Any], base: HardwareProfile | None, entries: Mapping[str, Entry], name: str
) -> dict[str, Any]:
    title, capability = f"{raw['gpu']}, calibrated", str(raw["compute_capability"])
    values: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "title": title,
        "compute_capability": capability,
    }
    if base is not None:
        values["compute_capability"] = ".".join(map(str, base.compute_capability))
        known = read_toml(data_dir("hardware_profiles") / f"{base.name}.toml")
        values |= {key: value for key, value in known.items() if key not in (*values, "aliases")}
    for key, entry in entries.items():
        table, _, dtype = key.partition(".")
        if dtype:
            values[table] = {**values.get(table, {}), dtype: asdict(entry)}
        else:
            values[table] = asdict(entry)
    # a far partition is never nearer than the near one
    near, far = (values.get(f"l2_latency_{side}_cycles") for side in ("near", "far"))
    if near and far and {"value"} <= near.keys() & far.keys() and far["value"] < near["value"]:
        del values["l2_latency_far_cycles"]  # known before, and overtaken by the measured one
    if "sources" in values:
        used = source_heads(values)
        values["sources"] = {name: text for name, text in values["sources"].items() if name in used}
    return values


def profile_text(
    raw: Mapping[str, Any],
    name: str,
    measured: Mapping[str, Entry] | None = None,
    left_out: list[str] | None = None,
) -> str:
    """The profile as a TOML file, with what no key holds as comments. Raises InputError where no valid profile comes
    of it. `left_out`: what `derive` left out; takes a line for each further number that is not used."""
    remarks_left_out: list[str] = [] if left_out is None else left_out
    values = combined(
        raw,
        derive(raw, left_out=remarks_left_out) if measured is None else measured,
        name,
        remarks_left_out,
    )
    readable = sound(raw, [])
    gpu, date, driver = (one_line(readable[key]) for key in ("gpu", "date", "driver_cuda"))
    lines = [f"# Written by iosim calibrate: {gpu}, {date}, driver for CUDA {driver}."]
    lines += [
        f"# {line}"
        for line in (
            *remarks(readable),
            *(f"Left out: {one_line(element)}." for element in remarks_left_out),
        )
    ]
    tables: list[str] = []
    for key, value in values.items():
        written = toml_text if key in ("sources", "validation") else _inline
        if not isinstance(value, dict):
            lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
        elif written is _inline and {"value", "from"} & value.keys():
            lines.append(f"{key} = {_inline(value)}")
        elif value:
            tables += [
                "",
                f"[{key}]",
                *(f"{word} = {written(element)}" for word, element in value.items()),
            ]
    return "\n".join([*lines, *tables]) + "\n"


def remarks(raw: Mapping[str, Any]) -> list[str]:
    base = base_profile(str(raw["gpu"]))
    lines = [
        f"Over the shipped profile {base.name}."
        if base
        else "No shipped profile describes this GPU."
    ]
    lines += [
        f"Measured: {text.format(raw[key])}." for key, text in REMARKS.items() if raw.get(key)
    ]
    if not raw["rows"]:
        reason = raw["no_counters"]
        lines.append(f"Not measured ({reason}): partitions, ways, effective capacity, dirty share.")
    return lines


def _inline(entry: Mapping[str, Any]) -> str:
    if "value" not in entry:
        return f"{{ from = {toml_text(entry['from'])} }}"
    value = entry["value"]
    if isinstance(value, list) and value and isinstance(value[0], list):
        points = "\n".join(f"  [{size:_}, {rate:.4e}]," for size, rate in value)
        text = f"[\n{points}\n]"
    else:
        text = json.dumps(value) if isinstance(value, list) else _number(value)
    kind = f'kind = "{entry["kind"]}", ' if "kind" in entry else ""
    return f"{{ {kind}source = {toml_text(entry['source'])}, value = {text} }}"


def _number(value: float | str) -> str:
    """A number as TOML has it, or a word in quotes."""
    if isinstance(value, str):
        return json.dumps(value)
    return (
        f"{value:_}"
        if isinstance(value, int)
        else f"{value:.6g}"
        if abs(value) >= 1e6
        else repr(float(value))
    )
