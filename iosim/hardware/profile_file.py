"""Reads one hardware profile from TOML and says what is wrong with it.

A profile file holds a short header and quantities, each an inline table of a value and its source; docs/profiles.md
describes the format. This module knows the file: keys, types, plausible ranges, contradictions, inheritance from
`compute_capability.toml`. It does not know names and aliases (`iosim.hardware.profile` does).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from iosim.base import schema
from iosim.base.data import data_dir
from iosim.base.records import dataclass, field
from iosim.base.schema import ListOf, MapOf, Problem, Spec, Table, Text, Whole, one_line
from iosim.hardware.quantities import QUANTITIES, Quantity

SCHEMA = 1
KINDS = ("specification", "measured", "fitted", "estimate", "inferred", "taken")
"""Of a value: published by the vendor; measured on this GPU by itself; chosen so that predictions agree with
measurements on this GPU; a guess; worked out of others; taken from another GPU."""
TENSOR_DTYPES = ("fp16", "bf16", "tf32", "fp8", "int8")
VALIDATED = ("l2", "hbm", "time")
"""What a table of recorded measurements can check of a GPU's predictions."""
BACKING = ("measured", "public counters", "public times", "nothing")
"""What a GPU's predictions were held against: counters and times of this project's own, counters that others published,
times alone that others published, or nothing."""
CAPABILITY = r"[0-9]{1,3}\.[0-9]{1,3}|gfx9[0-9a-f]{2}"
"""NVIDIA's, or the target of AMD's compilers in its place."""
INHERITANCE_FILE = "compute_capability.toml"


@dataclass(frozen=True)
class Entry:
    """A value with its source and kind, or the name of the shipped profile that it is taken `from`, in proportion to
    the quantity `per` of both GPUs where it names one."""

    value: Spec

    def problems(self, value: Any, key: str) -> Iterator[Problem]:
        parts: dict[str, Spec] = {
            "value": self.value,
            "source": Text(lines=True),
            "kind": Text(KINDS),
            "from": Text(longest=64, such_as="h200-sxm"),
            "per": Text(tuple(QUANTITIES)),
        }
        form = '{ value = ..., source = "..." } or { from = "GPU", per = "QUANTITY" }'
        yield from Table(parts, form=form).problems(value, key)
        if not isinstance(value, dict):
            return
        if "from" not in value:
            if value.get("kind") == "taken":
                yield Problem(
                    f"{key}.from", "missing; a value that is taken from another GPU names it"
                )
            for needed, why in (
                ("value", "every entry has one"),
                ("source", "say where the number comes from"),
            ):
                if needed not in value:
                    yield Problem(f"{key}.{needed}", f"missing; {why}")
        elif value.get("kind", "taken") != "taken":
            yield Problem(
                f"{key}.kind", f"contradicts from = {value['from']!r}; accepted with it: taken"
            )
        if "per" in value and ("from" not in value or "value" in value):
            yield Problem(
                f"{key}.per",
                "says to what a value taken from another GPU is in proportion; accepted beside from alone",
            )


def _entry(quantity: Quantity) -> Spec:
    return (
        MapOf(Entry(quantity.value), TENSOR_DTYPES)
        if quantity.form == "rates"
        else Entry(quantity.value)
    )


@dataclass(frozen=True)
class Inherited:
    """In a table of what a compute capability fixes: an entry, or its value alone, with the source of the table."""

    quantity: Quantity

    def problems(self, value: Any, key: str) -> Iterator[Problem]:
        spec = _entry(self.quantity) if isinstance(value, dict) else self.quantity.value
        yield from spec.problems(value, key)


def source_heads(data: Mapping[str, Any]) -> set[str]:
    """What the entries of a profile name as their source, up to a colon: short names of `[sources]`, or others."""

    def heads(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("source"), str):
                yield value["source"].partition(":")[0]
            for element in value.values():
                yield from heads(element)

    return {*heads(data), *(text.partition(":")[0] for text in data.get("validation", {}).values())}


def _unused_sources(data: Mapping[str, Any]) -> Iterator[Problem]:
    heads = source_heads(data)
    for name in data.get("sources", {}):
        if name not in heads:
            yield Problem(f"sources.{name}", "no entry has this source")


PROFILE = Table(
    {
        "schema": Whole(SCHEMA, SCHEMA, "this version reads schema 1"),
        "name": Text(longest=64, such_as="a100-sxm-80gb"),
        "title": Text(longest=200),
        "aliases": ListOf(Text(such_as="a100"), least=0),
        "compute_capability": Text(pattern=CAPABILITY, such_as="8.0"),
        "sources": MapOf(Text(lines=True)),
        "backed_by": Text(BACKING),
        "validation": MapOf(Text(lines=True), VALIDATED),
        **{name: _entry(quantity) for name, quantity in QUANTITIES.items()},
    },
    required=("schema", "name", "compute_capability", "sm_count"),
    rules=(_unused_sources,),
    see="docs/profiles.md",
)
HEADER_KEYS = tuple(name for name in PROFILE.keys if name not in QUANTITIES)

CAPABILITY_TABLE = Table(
    {"source": Text(), **{name: Inherited(quantity) for name, quantity in QUANTITIES.items()}},
    see="docs/profiles.md",
)
INHERITANCE = Table(
    {"schema": Whole(SCHEMA, SCHEMA), "all": CAPABILITY_TABLE, "sources": MapOf(Text(lines=True))},
    required=("schema", "all", "sources"),
    others=(CAPABILITY, CAPABILITY_TABLE),
    rules=(_unused_sources,),
)

PREDICTIONS_NEED = (
    "boost_clock_hz",
    "l2_bytes",
    "dram_bandwidth_bytes_per_s",
    "max_warps_per_sm",
    "max_threads_per_sm",
    "max_blocks_per_sm",
    "shared_memory_per_sm_bytes",
    "shared_memory_per_block_optin_bytes",
    "shared_memory_reserved_per_block_bytes",
    "shared_memory_allocation_unit_bytes",
    "shared_memory_carveouts_bytes",
)
"""What a profile may leave out as far as reading it goes, but not for a prediction of every kernel by replay."""


@dataclass
class Parsed:
    """A profile file taken apart. Keys of `sources`, `kinds` and `taken` are fields, or `table.dtype` for tables by
    dtype; `taken` holds the GPU that a value is taken from, `proportions` that GPU and to which quantity of both a
    value is in proportion; `validation` what was checked by which measurements."""

    header: dict[str, Any]
    validation: dict[str, str]
    problems: list[Problem]
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    taken: dict[str, str] = field(default_factory=dict)
    proportions: dict[str, tuple[str, str]] = field(default_factory=dict)

    def take(self, name: str, entry: Mapping[str, Any]) -> None:
        """Takes in what stands under a quantity's name, which has the right form; what is taken from another GPU is
        looked up."""
        quantity = QUANTITIES[name]
        if quantity.form == "rates":
            rates = {
                dtype: self._entry(f"{name}.{dtype}", quantity, element)
                for dtype, element in entry.items()
            }
            self.values[name] = {dtype: rate for dtype, rate in rates.items() if rate is not None}
            return
        value = self._entry(name, quantity, entry)
        if value is not None:
            self.values[name] = value

    def _entry(self, key: str, quantity: Quantity, entry: Mapping[str, Any]) -> Any:
        # A value of one's own, one taken from another GPU whose profile states it, or both alike.
        source, kind, raw = (
            entry.get("source", ""),
            entry.get("kind", "specification"),
            entry.get("value"),
        )
        if "from" in entry:
            kind, other = "taken", str(entry["from"])
            stated = _stated(other, key)
            if isinstance(stated, str):
                if raw is None:
                    self.problems.append(Problem(f"{key}.from", stated))
                    return None
            elif raw not in (None, stated["value"]):
                theirs = f"is not what {other} states ({schema.shown(stated['value'])})"
                self.problems.append(Problem(key, f"{schema.shown(raw)} {theirs}"))
                return None
            else:
                raw, source = stated["value"], source or f"{other}: {stated['source']}"
            self.taken[key] = other
            if "per" in entry:
                self.proportions[key] = other, str(entry["per"])
        if not source and "from" in entry:
            source = f"{entry['from']}, as this file says"
        self.sources[key], self.kinds[key] = (
            source,
            kind,
        )  # an empty source is a problem that the schema tells
        return _typed(quantity, raw)


def read_toml(path: Path) -> dict[str, Any]:
    return schema.read_toml(path, "profile file", "docs/profiles.md")


def parse(data: Mapping[str, Any]) -> Parsed:
    problems = list(PROFILE.problems(dict(data)))
    capability, short = data.get("compute_capability"), _texts(data.get("sources"))
    validation = {
        name: _expand(text, short) for name, text in _texts(data.get("validation")).items()
    }
    parsed = Parsed({key: data[key] for key in HEADER_KEYS if key in data}, validation, problems)
    # Entries of the right form are taken in even where others are wrong: all problems are told at once.
    wrong = {re.split(r"[.\[]", problem.key)[0] for problem in problems}
    values = {name: data[name] for name in QUANTITIES if name in data and name not in wrong}
    inherited = _inherited(capability if isinstance(capability, str) else "")
    for name, entry in {
        name: entry for name, entry in inherited.items() if name not in data
    }.items():
        parsed.take(name, entry)
    # What a compute capability brings comes first; the file's own entries then take its place.
    by_default = {*parsed.taken}  # what is taken there is not the file's own contradiction
    for name, entry in values.items():
        parsed.take(name, _sourced(entry, short))
    problems += _contradictions(
        {key: value for key, value in parsed.values.items() if key not in by_default}
    )
    _put_in_proportion(parsed)
    return parsed


def _put_in_proportion(parsed: Parsed) -> None:
    """Values that are taken from another GPU in proportion to a quantity of both: where the two GPUs differ in it, such
    a value is inferred."""
    for key, (other, per) in parsed.proportions.items():
        # The other's value times the ratio of the quantity in both; alike, it is taken as it is.
        stated, mine = _stated(other, per), parsed.values.get(per)
        if (
            isinstance(stated, str)
            or not mine
            or stated["value"] == mine
            or key not in parsed.values
        ):
            continue
        theirs = parsed.values[key]
        parsed.values[key] = float(f"{theirs * mine / stated['value']:.4g}")
        parsed.kinds[key] = "inferred"
        parsed.taken.pop(key, None)
        source = f"{other}'s {theirs:g}, in proportion to {per} ({stated['value']:g} there, {mine:g} here)"
        parsed.sources[key] = one_line(f"{source}: {parsed.sources[key]}", 400)


def missing_for_predictions(values: Mapping[str, Any]) -> list[Problem]:
    """What a profile that can be read must still state before every prediction can be made on it."""
    return [
        Problem(key, "missing; predictions need it")
        for key in PREDICTIONS_NEED
        if key not in values
    ]


def parse_capability(text: object) -> tuple[int, int] | None:
    """`"8.0"` as `(8, 0)` and `"gfx942"` as `(94, 2)`; None when it is not a string of that form."""
    if not isinstance(text, str) or not re.fullmatch(CAPABILITY, text):
        return None
    if text.startswith("gfx"):
        return int(text[3:5]), int(text[5], 16)
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _stated(name: str, key: str) -> Mapping[str, Any] | str:
    """The entry of that key that the shipped profile `name` states itself, its source written out; else why there is
    none."""
    data = shipped(name)
    if data is None:
        return f"'{one_line(name, 60)}' is no shipped profile; accepted: a name that `iosim profiles list` shows"
    field, _, dtype = key.partition(".")
    entry = data.get(field, {}).get(dtype) if dtype else data.get(field)
    if entry is None or "from" in entry:
        return f"{name} does not state it either; accepted: a GPU whose profile does"
    return _sourced(entry, _texts(data.get("sources")))


@lru_cache(maxsize=32)
def shipped(name: str) -> dict[str, Any] | None:
    if not re.fullmatch(r"[a-z0-9-]{1,64}", name):
        return None
    path = data_dir("hardware_profiles") / f"{name}.toml"
    return read_toml(path) if path.is_file() else None


def _typed(quantity: Quantity, raw: Any) -> Any:
    if quantity.form == "ints":
        return tuple(raw)
    if quantity.form == "points":
        return tuple((size, float(rate)) for size, rate in raw)
    return raw if quantity.form in ("int", "word") else float(raw)


def _contradictions(v: Mapping[str, Any]) -> Iterator[Problem]:

    def exceeds(small: str, large: str, factor: float = 1.0) -> Iterator[Problem]:
        if small in v and large in v and v[small] > factor * v[large]:
            times = f"{factor:g} times " if factor != 1 else ""
            yield Problem(f"{small}", f"{v[small]:,} is more than {times}{large} ({v[large]:,})")

    # Limits inside each other: a block's within an SM's, an SM's within the chip's.
    yield from exceeds("shared_memory_per_block_bytes", "shared_memory_per_block_optin_bytes")
    yield from exceeds("shared_memory_per_block_optin_bytes", "shared_memory_per_sm_bytes")
    yield from exceeds("shared_memory_per_sm_bytes", "l1_shared_bytes")
    yield from exceeds("max_threads_per_block", "max_threads_per_sm")
    yield from exceeds("registers_per_block", "registers_per_sm")
    yield from exceeds("sector_bytes", "line_bytes")
    yield from exceeds("l2_bytes", "memory_bytes")
    yield from exceeds("memory_side_bytes", "memory_bytes")
    yield from exceeds("memory_reserved_bytes", "memory_bytes")
    if v.get("l2_partitions", 1) > 2 and not v.get("l2_apart"):
        yield Problem(
            "l2_partitions",
            f"{v['l2_partitions']} of one L2; accepted: 1 or 2, or more with l2_apart = 1",
        )
    if "memory_side_bytes" in v and "memory_side_bandwidth_bytes_per_s" not in v:
        yield Problem(
            "memory_side_bandwidth_bytes_per_s", "missing; a cache at the memory's side has one"
        )
    yield from exceeds("sustained_clock_hz", "boost_clock_hz")
    yield from exceeds("l2_latency_near_cycles", "l2_latency_far_cycles")
    yield from exceeds("l2_latency_far_cycles", "dram_latency_cycles")
    yield from exceeds("l2_latency_near_cycles", "dram_latency_cycles")
    yield from exceeds("dram_bandwidth_measured_bytes_per_s", "dram_bandwidth_bytes_per_s", 1.2)
    yield from exceeds(
        "l2_read_bandwidth_measured_bytes_per_s", "l2_read_bandwidth_bytes_per_s", 1.2
    )
    yield from exceeds("dram_bandwidth_bytes_per_s", "l2_read_bandwidth_bytes_per_s")
    if {"max_warps_per_sm", "warp_size", "max_threads_per_sm"} <= v.keys():
        threads = v["max_warps_per_sm"] * v["warp_size"]
        if threads != v["max_threads_per_sm"]:
            is_not = (
                f"{v['max_threads_per_sm']:,} is not max_warps_per_sm x warp_size ({threads:,})"
            )
            yield Problem("max_threads_per_sm", is_not)
    if {"shared_memory_carveouts_bytes", "shared_memory_per_sm_bytes"} <= v.keys():
        largest, whole = v["shared_memory_carveouts_bytes"][-1], v["shared_memory_per_sm_bytes"]
        if largest != whole:
            ends = f"ends in {largest:,}, not in shared_memory_per_sm_bytes ({whole:,})"
            yield Problem("shared_memory_carveouts_bytes", ends)
    yield from _contradicting_rates(v)


def _contradicting_rates(v: Mapping[str, Any]) -> Iterator[Problem]:
    """Matrix rates that contradict each other, or the number of SMs and their clock."""
    rates = v.get("tensor_flops_per_s", {})
    for dtype, achieved in v.get("tensor_flops_achieved_per_s", {}).items():
        if dtype in rates and achieved > 1.2 * rates[dtype]:
            more = f"{achieved:g} is more than 1.2 times the rated {rates[dtype]:g}"
            yield Problem(f"tensor_flops_achieved_per_s.{dtype}", more)
    if {"sm_count", "boost_clock_hz"} <= v.keys():
        clocks = v["sm_count"] * v["boost_clock_hz"]
        for dtype, rate in rates.items():
            if not 64 <= rate / clocks <= 65536:
                per = f"{rate / clocks:,.3g} operations per clock and SM"
                yield Problem(
                    f"tensor_flops_per_s.{dtype}", f"{rate:,g} would be {per}; check the unit"
                )


def capability_fact(capability: str, quantity: str) -> int | None:
    """A whole number that a compute capability, such as "8.6", fixes for all its GPUs; None where it is not known."""
    entry = _capability_tables().get(capability, {}).get(quantity)
    value = entry.get("value") if isinstance(entry, dict) else entry
    return None if value is None else int(value)


@lru_cache(maxsize=1)
def _capability_tables() -> dict[str, Any]:
    tables = read_toml(data_dir("hardware_profiles") / INHERITANCE_FILE)
    return dict(schema.checked(tables, INHERITANCE, f"{INHERITANCE_FILE} of this installation"))


@lru_cache(maxsize=64)
def _inherited(capability: str) -> dict[str, Any]:
    """The entries that every GPU shares and this compute capability fixes; only the former when it is not known."""
    tables, inherited = _capability_tables(), {}
    for table in ("all", capability):
        entries = dict(tables.get(table, {}) if table == "all" or parse_capability(table) else {})
        source = entries.pop("source", "")
        for name, raw in entries.items():
            entry = raw if isinstance(raw, dict) else {"value": raw, "source": source}
            inherited[name] = _sourced(entry, _texts(tables["sources"]))
    return inherited


def _sourced(entry: Mapping[str, Any], short: Mapping[str, str]) -> dict[str, Any]:
    return {
        key: _sourced(element, short)
        if isinstance(element, Mapping)
        else _expand(element, short)
        if key == "source"
        else element
        for key, element in entry.items()
    }


def _texts(value: Any) -> dict[str, str]:
    return {k: v for k, v in value.items() if isinstance(v, str)} if isinstance(value, dict) else {}


def _expand(source: str, short: Mapping[str, str]) -> str:
    head, colon, rest = source.partition(":")
    return one_line(short[head] + colon + rest if head in short else source, 400)
