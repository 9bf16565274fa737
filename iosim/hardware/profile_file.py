"""Reads one hardware profile from TOML and says what is wrong with it.

A profile file holds a short header and quantities, each an inline table of a value and its source; docs/profiles.md
describes the format. This module knows the file: keys, types, plausible ranges, contradictions, inheritance from
`compute_capability.toml`. It does not know names and aliases (`iosim.hardware.profile` does).
"""

from __future__ import annotations

import math
import stat
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from iosim.base.data import data_dir
from iosim.base.errors import InputError

SCHEMA = 1
MAX_FILE_BYTES = 1_000_000
KINDS = ("specification", "measured", "estimate", "inferred")
TENSOR_DTYPES = ("fp16", "bf16", "tf32", "fp8", "int8")
INHERITANCE_FILE = "compute_capability.toml"
HEADER_KEYS = ("schema", "name", "title", "aliases", "compute_capability", "sources")

_ENTRY_KEYS = ("value", "source", "kind")
_KIB, _GIB = 2**10, 2**30


class Quantity(NamedTuple):
    """What a quantity may be: its form, and the range outside which it must be a slip of units (both ends allowed)."""

    form: str  # "int", "float", "ints" (ascending list), "rates" (table by dtype) or "points" (bytes, bytes per second)
    low: float
    high: float
    required: bool = False


_BANDWIDTH = (1e9, 1e15)  # bytes per second: a slower memory or link means that giga was forgotten
_CLOCK = (1e8, 1e10)  # hertz
_RATE = (1e10, 1e18)  # operations per second

QUANTITIES: Mapping[str, Quantity] = {
    "sm_count": Quantity("int", 1, 4096, required=True),
    "boost_clock_hz": Quantity("float", *_CLOCK),
    "sustained_clock_hz": Quantity("float", *_CLOCK),
    "warp_size": Quantity("int", 1, 128),
    "max_warps_per_sm": Quantity("int", 1, 1024),
    "max_threads_per_sm": Quantity("int", 32, 65536),
    "max_threads_per_block": Quantity("int", 32, 65536),
    "max_blocks_per_sm": Quantity("int", 1, 1024),
    "registers_per_sm": Quantity("int", 1024, 2**24),
    "registers_per_block": Quantity("int", 1024, 2**24),
    "max_registers_per_thread": Quantity("int", 16, 65536),
    "register_allocation_unit": Quantity("int", 1, 65536),
    "warp_allocation_granularity": Quantity("int", 1, 64),
    "l1_shared_bytes": Quantity("int", _KIB, 2**26),
    "shared_memory_per_sm_bytes": Quantity("int", _KIB, 2**26),
    "shared_memory_per_block_bytes": Quantity("int", _KIB, 2**26),
    "shared_memory_per_block_optin_bytes": Quantity("int", _KIB, 2**26),
    "shared_memory_reserved_per_block_bytes": Quantity("int", 0, 2**20),
    "shared_memory_allocation_unit_bytes": Quantity("int", 1, 2**20),
    "shared_memory_carveouts_bytes": Quantity("ints", 0, 2**26),
    "shared_memory_bytes_per_clock_per_sm": Quantity("int", 1, 2**16),
    "exp_per_clock_per_sm": Quantity("float", 0.25, 4096),
    "l2_bytes": Quantity("int", 64 * _KIB, 16 * _GIB),
    "l2_partitions": Quantity("int", 1, 2),
    "l2_ways": Quantity("int", 1, 32),
    "l2_effective_capacity_fraction": Quantity("float", 0.25, 2.0),
    "l2_dirty_fraction": Quantity("float", 0.0, 1.0),
    "l2_side_ends": Quantity("ints", 1, 2**16),
    "l2_foreign_dirty_bytes": Quantity("int", 0, 2**30),
    "launch_fetch_bytes": Quantity("int", 0, 2**20),
    "sm_speed_spread_fraction": Quantity("float", 0.0, 0.5),
    "l2_read_bandwidth_bytes_per_s": Quantity("float", *_BANDWIDTH),
    "l2_read_bandwidth_measured_bytes_per_s": Quantity("float", *_BANDWIDTH),
    "l2_read_bandwidth_by_footprint_bytes_per_s": Quantity("points", *_BANDWIDTH),
    "l2_latency_near_cycles": Quantity("float", 10, 1e5),
    "l2_latency_far_cycles": Quantity("float", 10, 1e5),
    "dram_latency_cycles": Quantity("float", 10, 1e5),
    "memory_bytes": Quantity("int", 1e8, 1e14),
    "dram_bandwidth_bytes_per_s": Quantity("float", *_BANDWIDTH),
    "dram_bandwidth_measured_bytes_per_s": Quantity("float", *_BANDWIDTH),
    "sector_bytes": Quantity("int", 1, 65536),
    "line_bytes": Quantity("int", 1, 65536),
    "tensor_flops_per_s": Quantity("rates", *_RATE),
    "tensor_flops_achieved_per_s": Quantity("rates", *_RATE),
    "fp32_flops_per_s": Quantity("float", *_RATE),
    "nvlink_bytes_per_s": Quantity("float", *_BANDWIDTH),
    "pcie_bytes_per_s": Quantity("float", *_BANDWIDTH),
    "power_w": Quantity("float", 1, 1e5),
}


class Parsed(NamedTuple):
    """A profile file taken apart. Keys of `sources` and `kinds` are fields, or `table.dtype` for tables by dtype."""

    header: dict[str, Any]
    values: dict[str, Any]
    sources: dict[str, str]
    kinds: dict[str, str]
    problems: list[str]


def one_line(text: object, limit: int = 200) -> str:
    """`text` as one line of printable characters, cut after `limit` of them, for messages about hostile input."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        InputError: there is no such regular file, it is empty, longer than a megabyte, not UTF-8 or not valid TOML.
    """
    shown = one_line(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"profile file '{shown}' is a directory; a TOML file is needed")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"profile file '{shown}' is not a regular file; a TOML file is needed")
        if status.st_size > MAX_FILE_BYTES:
            raise InputError(f"profile file '{shown}' is too large: {status.st_size:,} bytes; a profile is a few KB")
        raw = path.read_bytes()
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"profile file '{shown}' does not exist") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"profile file '{shown}' cannot be read: {one_line(reason)}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"profile file '{shown}' is not UTF-8 text; a TOML file is needed") from None
    if not text.strip():
        raise InputError(f"profile file '{shown}' is empty; docs/profiles.md shows what belongs in it")
    import tomllib  # costs milliseconds; whoever loads no profile need not wait for it

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InputError(f"profile file '{shown}' is not a profile: nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, and integers beyond Python's limit of digits
        raise InputError(f"profile file '{shown}' is not valid TOML: {one_line(error)}") from None


def parse(data: Mapping[str, Any]) -> Parsed:
    """Takes a profile apart, with what its compute capability adds, and lists every problem that it has."""
    problems = list(_header_problems(data))
    capability = data.get("compute_capability")
    inherited = _inherited(capability) if isinstance(capability, str) else None
    # What [all] and the capability's table give comes first, so that the file's own entries win.
    values: dict[str, Any] = dict(inherited.values) if inherited else {}
    sources: dict[str, str] = dict(inherited.sources) if inherited else {}
    kinds: dict[str, str] = dict(inherited.kinds) if inherited else {}
    header = {key: data[key] for key in HEADER_KEYS if key in data}
    short = {k: v for k, v in _table(data.get("sources")).items() if isinstance(v, str)}
    for field, quantity in QUANTITIES.items():
        if field not in data:
            if quantity.required:
                problems.append(f"{field}: missing; every profile needs it")
            continue
        own = _Collector(short)
        values.pop(field, None)
        values.update(own.quantity(field, quantity, data[field]))
        sources.update(own.sources)
        kinds.update(own.kinds)
        problems.extend(own.problems)
    for key in data:
        if key not in QUANTITIES and key not in HEADER_KEYS:
            problems.append(_unknown(key, [*QUANTITIES, *HEADER_KEYS]))
    problems.extend(_contradictions(values))
    return Parsed(header, values, sources, kinds, problems)


def parse_capability(text: object) -> tuple[int, int] | None:
    """`"8.0"` as `(8, 0)`; None when it is not a string of that form."""
    if not isinstance(text, str):
        return None
    major, dot, minor = text.partition(".")
    if dot and major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit() and len(text) <= 5:
        return int(major), int(minor)
    return None


def _header_problems(data: Mapping[str, Any]) -> Iterator[str]:
    schema = data.get("schema")
    if "schema" not in data:
        yield f"schema: missing; write schema = {SCHEMA}"
    elif type(schema) is not int or schema != SCHEMA:
        yield f"schema: {_shown(schema)} is not supported; this version reads schema {SCHEMA}"
    name = data.get("name")
    if "name" not in data:
        yield "name: missing; every profile needs it"
    elif not isinstance(name, str) or not name.strip() or name != one_line(name, 64):
        yield 'name: must be a short text such as "a100-sxm-80gb"'
    if "title" in data and (not isinstance(data["title"], str) or data["title"] != one_line(data["title"])):
        yield "title: must be one line of text"
    aliases = data.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(a, str) and a.strip() for a in aliases):
        yield 'aliases: must be a list of texts such as ["a100"]'
    if "compute_capability" not in data:
        yield 'compute_capability: missing; write for example compute_capability = "8.0"'
    elif parse_capability(data["compute_capability"]) is None:
        yield f'compute_capability: must be a text such as "8.0", not {_shown(data["compute_capability"])}'
    if "sources" in data:
        sources = data["sources"]
        if not isinstance(sources, dict) or not all(isinstance(v, str) and v.strip() for v in sources.values()):
            yield "sources: must be a table of texts"


class _Collector:
    """Parses one quantity; gathers sources, kinds and problems on the way."""

    def __init__(self, short_sources: Mapping[str, str]) -> None:
        self.short_sources = short_sources
        self.sources: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.problems: list[str] = []

    def quantity(self, field: str, quantity: Quantity, entry: Any) -> dict[str, Any]:
        """`{field: value}`, or nothing when the entry has a problem."""
        if quantity.form != "rates":
            value = self._entry(field, quantity, entry)
            return {} if value is None else {field: value}
        if not isinstance(entry, dict):
            self.problems.append(f"{field}: must be a table with an entry for each dtype: {', '.join(TENSOR_DTYPES)}")
            return {}
        rates = {}
        for dtype, one in entry.items():
            if dtype not in TENSOR_DTYPES:
                self.problems.append(_unknown(f"{field}.{dtype}", [f"{field}.{d}" for d in TENSOR_DTYPES]))
                continue
            rate = self._entry(f"{field}.{dtype}", quantity, one)
            if rate is not None:
                rates[dtype] = rate
        return {field: rates}

    def _entry(self, key: str, quantity: Quantity, entry: Any) -> Any:
        if not isinstance(entry, dict):
            self.problems.append(f'{key}: write {{ value = ..., source = "..." }}, not a bare value')
            return None
        before = len(self.problems)
        allowed = [f"{key}.{k}" for k in _ENTRY_KEYS]
        self.problems += [_unknown(f"{key}.{k}", allowed) for k in entry if k not in _ENTRY_KEYS]
        source = entry.get("source")
        if not isinstance(source, str) or not source.strip():
            self.problems.append(f"{key}: needs a source, a text that says where the number comes from")
        else:
            self.sources[key] = _expand(source, self.short_sources)
        kind = entry.get("kind", KINDS[0])
        if kind not in KINDS:
            self.problems.append(f"{key}: kind must be one of {', '.join(KINDS)}, not {_shown(kind)}")
        else:
            self.kinds[key] = kind
        if "value" not in entry:
            self.problems.append(f"{key}: needs a value")
            return None
        try:
            value = _value(quantity, entry["value"])
        except ValueError as error:
            self.problems.append(f"{key}: {error}")
            return None
        return value if len(self.problems) == before else None


def _value(quantity: Quantity, raw: Any) -> Any:
    """The value in its final type. Raises ValueError with the reason."""
    if quantity.form == "int":
        return _number(raw, quantity, whole=True)
    if quantity.form in ("float", "rates"):
        return _number(raw, quantity, whole=False)
    if not isinstance(raw, list) or not raw:
        raise ValueError("must be a list with at least one entry")
    if quantity.form == "ints":
        items = tuple(_number(item, quantity, whole=True) for item in raw)
        if any(b <= a for a, b in pairwise(items)):
            raise ValueError("must be in ascending order")
        return items
    footprint = Quantity("int", 1, 1e14)
    points = []
    for pair in raw:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError("must be a list of pairs [footprint in bytes, bytes per second]")
        points.append((_number(pair[0], footprint, whole=True), _number(pair[1], quantity, whole=False)))
    if any(b[0] <= a[0] for a, b in pairwise(points)):
        raise ValueError("footprints must be in ascending order")
    return tuple(points)


def _number(raw: Any, quantity: Quantity, whole: bool) -> int | float:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        wanted = "a whole number" if whole else "a number"
        raise ValueError(f"must be {wanted}, not {_shown(raw)}")
    if isinstance(raw, float) and not math.isfinite(raw):
        raise ValueError(f"must be finite, not {raw}")
    if whole and not isinstance(raw, int):
        raise ValueError(f"must be a whole number, not {raw}")
    if not quantity.low <= raw <= quantity.high:
        allowed = f"{quantity.low:g} to {quantity.high:g}"
        raise ValueError(f"{_shown(raw)} is out of range ({allowed}); check the unit that the name ends in")
    return raw if whole else float(raw)


def _contradictions(v: Mapping[str, Any]) -> Iterator[str]:
    """What cannot hold at once. Quantities that are absent contradict nothing."""

    def exceeds(small: str, large: str, factor: float = 1.0) -> Iterator[str]:
        if small in v and large in v and v[small] > factor * v[large]:
            times = f"{factor:g} times " if factor != 1 else ""
            yield f"{small}: {v[small]:,} is more than {times}{large} ({v[large]:,})"

    yield from exceeds("shared_memory_per_block_bytes", "shared_memory_per_block_optin_bytes")
    yield from exceeds("shared_memory_per_block_optin_bytes", "shared_memory_per_sm_bytes")
    yield from exceeds("shared_memory_per_sm_bytes", "l1_shared_bytes")
    yield from exceeds("max_threads_per_block", "max_threads_per_sm")
    yield from exceeds("registers_per_block", "registers_per_sm")
    yield from exceeds("sector_bytes", "line_bytes")
    yield from exceeds("l2_bytes", "memory_bytes")
    yield from exceeds("sustained_clock_hz", "boost_clock_hz")
    yield from exceeds("l2_latency_near_cycles", "l2_latency_far_cycles")
    yield from exceeds("l2_latency_far_cycles", "dram_latency_cycles")
    yield from exceeds("dram_bandwidth_measured_bytes_per_s", "dram_bandwidth_bytes_per_s", 1.2)
    yield from exceeds("l2_read_bandwidth_measured_bytes_per_s", "l2_read_bandwidth_bytes_per_s", 1.2)
    yield from exceeds("dram_bandwidth_bytes_per_s", "l2_read_bandwidth_bytes_per_s")
    if {"max_warps_per_sm", "warp_size", "max_threads_per_sm"} <= v.keys():
        threads = v["max_warps_per_sm"] * v["warp_size"]
        if threads != v["max_threads_per_sm"]:
            yield f"max_threads_per_sm: {v['max_threads_per_sm']:,} is not max_warps_per_sm x warp_size ({threads:,})"
    if {"shared_memory_carveouts_bytes", "shared_memory_per_sm_bytes"} <= v.keys():
        largest, whole = v["shared_memory_carveouts_bytes"][-1], v["shared_memory_per_sm_bytes"]
        if largest != whole:
            yield f"shared_memory_carveouts_bytes: ends in {largest:,}, not in shared_memory_per_sm_bytes ({whole:,})"
    rates = v.get("tensor_flops_per_s", {})
    for dtype, achieved in v.get("tensor_flops_achieved_per_s", {}).items():
        if dtype in rates and achieved > 1.2 * rates[dtype]:
            yield f"tensor_flops_achieved_per_s.{dtype}: {achieved:g} is more than 1.2 times the rated {rates[dtype]:g}"
    if {"sm_count", "boost_clock_hz"} <= v.keys():
        clocks = v["sm_count"] * v["boost_clock_hz"]
        for dtype, rate in rates.items():
            if not 64 <= rate / clocks <= 65536:
                per = f"{rate / clocks:,.3g} operations per clock and SM"
                yield f"tensor_flops_per_s.{dtype}: {rate:,g} would be {per}; check the unit"


def capabilities() -> list[str]:
    """The compute capabilities whose limits iosim knows, such as `"8.0"`, in ascending order."""
    known = [key for key in _capability_tables() if parse_capability(key)]
    return sorted(known, key=lambda key: parse_capability(key) or (0, 0))


@lru_cache(maxsize=1)
def _capability_tables() -> dict[str, Any]:
    return read_toml(data_dir("hardware_profiles") / INHERITANCE_FILE)


@lru_cache(maxsize=32)
def _inherited(capability: str) -> Parsed:
    """What every GPU shares and what this compute capability fixes; only the former when it is not known."""
    tables = _capability_tables()
    collector = _Collector(_table(tables["sources"]))
    values: dict[str, Any] = {}
    for table in ("all", capability):
        entries = dict(_table(tables.get(table) if table == "all" or parse_capability(table) else None))
        source = entries.pop("source", None)
        for field, raw in entries.items():
            entry = raw if isinstance(raw, dict) else {"value": raw, "source": source}
            if field not in QUANTITIES:
                collector.problems.append(_unknown(field, QUANTITIES))
            else:
                values |= collector.quantity(field, QUANTITIES[field], entry)
    if collector.problems:
        raise InputError(f"{INHERITANCE_FILE} of this installation is broken: {collector.problems[0]}")
    return Parsed({}, values, collector.sources, collector.kinds, [])


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _shown(raw: object) -> str:
    """A value of a TOML file, short enough for a message."""
    if isinstance(raw, dict | list):
        return "a table" if isinstance(raw, dict) else "a list"
    if isinstance(raw, int) and abs(raw) >= 10**21:
        return "a number of more than 20 digits"
    return one_line(repr(raw), 40)


def _expand(source: str, short: Mapping[str, str]) -> str:
    """`datasheet` or `datasheet: page 2` with the name in the table [sources] written out."""
    head, colon, rest = source.partition(":")
    return one_line(short[head] + colon + rest if head in short else source, 400)


def _unknown(key: object, known: Iterable[str]) -> str:
    shown = one_line(key, 60)
    near = get_close_matches(shown, list(known), n=1, cutoff=0.6)
    return f"{shown}: unknown key; did you mean {near[0]}?" if near else f"{shown}: unknown key; see docs/profiles.md"
