"""What a hardware profile may hold: every quantity with its form and plausible range, and the schema of the files.

Data alone: `iosim.hardware.profile_file` reads the files, `iosim.hardware.profile` holds the values. docs/profiles.md
says what each quantity means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from iosim.base.schema import ListOf, MapOf, Pairs, Problem, Real, Spec, Table, Text, Whole

SCHEMA = 1
KINDS = ("specification", "measured", "fitted", "estimate", "inferred", "taken")
"""Of a value: published by the vendor; measured on this GPU by itself; chosen so that predictions agree with
measurements on this GPU; a guess; worked out of others; taken from another GPU."""
TENSOR_DTYPES = ("fp16", "bf16", "tf32", "fp8", "int8")
VALIDATED = ("l2", "hbm", "time")
"""What a table of recorded measurements can check of a GPU's predictions."""
CAPABILITY = r"[0-9]{1,3}\.[0-9]{1,3}"

_KIB, _GIB = 2**10, 2**30
_UNIT = "check the unit that the name ends in"


class Quantity(NamedTuple):
    """What a quantity may be: its form, and the range outside which it must be a slip of units (both ends allowed)."""

    form: str  # "int", "float", "ints" (ascending list), "rates" (table by dtype) or "points" (bytes, bytes per second)
    low: float
    high: float
    required: bool = False

    @property
    def value(self) -> Spec:
        """What the value of an entry may be."""
        if self.form == "int":
            return Whole(self.low, self.high, _UNIT)
        if self.form == "ints":
            return ListOf(Whole(self.low, self.high, _UNIT), ascending=True)
        if self.form == "points":
            rate = Real(self.low, self.high, _UNIT)
            return Pairs(Whole(1, 1e14), rate, ("footprint in bytes", "bytes per second"))
        return Real(self.low, self.high, _UNIT)

    @property
    def entry(self) -> Spec:
        """What stands under the quantity's key in a profile."""
        return MapOf(Entry(self.value), TENSOR_DTYPES) if self.form == "rates" else Entry(self.value)


_BANDWIDTH = (1e9, 1e15)  # bytes per second: a slower memory or link means that giga was forgotten
_CLOCK = (1e8, 1e10)  # hertz
_RATE = (1e10, 1e18)  # operations per second
_ENERGY = (1e-3, 1e5)  # picojoules

QUANTITIES: Mapping[str, Quantity] = {
    "sm_count": Quantity("int", 1, 4096, required=True),
    "boost_clock_hz": Quantity("float", *_CLOCK),
    "sustained_clock_hz": Quantity("float", *_CLOCK),
    "rated_clock_hz": Quantity("float", *_CLOCK),
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
    "l2_over_dram_bandwidth": Quantity("float", 1, 100),
    "launch_latency_s": Quantity("float", 1e-7, 1e-3),
    "graph_call_latency_s": Quantity("float", 1e-7, 1e-3),
    "graph_launch_latency_s": Quantity("float", 1e-7, 1e-3),
    "tile_cycles": Quantity("float", 0, 1e6),
    "pingpong_tile_cycles": Quantity("float", 0, 1e6),
    "step_load_cycles": Quantity("float", 0, 1e5),
    "step_sync_cycles": Quantity("float", 0, 1e5),
    "step_single_buffer_cycles": Quantity("float", 0, 1e5),
    "product_step_cycles": Quantity("float", 0, 1e5),
    "spill_access_cycles": Quantity("float", 0, 1e4),
    "add_packet_cycles": Quantity("float", 0, 1e4),
    "mma_sync_tensor_fraction": Quantity("float", 0.01, 1.0),
    "achieved_tensor_fraction": Quantity("float", 0.1, 1.0),
    "achieved_dram_fraction": Quantity("float", 0.1, 1.0),
    "memory_bytes": Quantity("int", 1e8, 1e14),
    "dram_bandwidth_bytes_per_s": Quantity("float", *_BANDWIDTH),
    "dram_bandwidth_measured_bytes_per_s": Quantity("float", *_BANDWIDTH),
    "dram_read_bandwidth_bytes_per_s": Quantity("float", *_BANDWIDTH),
    "dram_write_bandwidth_bytes_per_s": Quantity("float", *_BANDWIDTH),
    "dram_copy_bandwidth_bytes_per_s": Quantity("float", *_BANDWIDTH),
    "pass_bandwidth_fraction": Quantity("float", 0.1, 1.0),
    "sector_bytes": Quantity("int", 1, 65536),
    "line_bytes": Quantity("int", 1, 65536),
    "tensor_flops_per_s": Quantity("rates", *_RATE),
    "tensor_flops_achieved_per_s": Quantity("rates", *_RATE),
    "fp32_flops_per_s": Quantity("float", *_RATE),
    "nvlink_bytes_per_s": Quantity("float", *_BANDWIDTH),
    "pcie_bytes_per_s": Quantity("float", *_BANDWIDTH),
    "power_w": Quantity("float", 1, 1e5),
    "peak_power_w": Quantity("float", 1, 1e5),
    "awake_power_w": Quantity("float", 1, 1e5),
    "tensor_clock_fraction": Quantity("float", 0.5, 1.0),
    "energy_clock_exponent": Quantity("float", 0.0, 5.0),
    "hbm_read_pj_per_byte": Quantity("float", *_ENERGY),
    "hbm_write_pj_per_byte": Quantity("float", *_ENERGY),
    "l2_read_pj_per_byte": Quantity("float", *_ENERGY),
    "l2_write_pj_per_byte": Quantity("float", *_ENERGY),
    "shared_pj_per_byte": Quantity("float", *_ENERGY),
    "tensor_pj_per_flop": Quantity("float", *_ENERGY),
    "mma_sync_pj_per_flop": Quantity("float", *_ENERGY),
    "warp_instruction_pj": Quantity("float", *_ENERGY),
}


@dataclass(frozen=True)
class Entry:
    """A value with its source and kind, or the name of the shipped profile that it is taken `from`, in proportion to
    the quantity `per` of both GPUs where it names one."""

    value: Spec

    def problems(self, value: Any, key: str) -> Iterator[Problem]:
        parts: dict[str, Spec] = {"value": self.value, "source": Text(lines=True), "kind": Text(KINDS),
                                  "from": Text(longest=64, such_as="h200-sxm"),
                                  "per": Text(tuple(QUANTITIES))}  # fmt: skip
        form = '{ value = ..., source = "..." } or { from = "GPU", per = "QUANTITY" }'
        yield from Table(parts, form=form).problems(value, key)
        if not isinstance(value, dict):
            return
        if "from" not in value:
            if value.get("kind") == "taken":
                yield Problem(f"{key}.from", "missing; a value that is taken from another GPU names it")
            for needed, why in (("value", "every entry has one"), ("source", "say where the number comes from")):
                if needed not in value:
                    yield Problem(f"{key}.{needed}", f"missing; {why}")
        elif value.get("kind", "taken") != "taken":
            yield Problem(f"{key}.kind", f"contradicts from = {value['from']!r}; accepted with it: taken")
        if "per" in value and ("from" not in value or "value" in value):
            yield Problem(f"{key}.per", "says to what a value taken from another GPU is in proportion; "
                          "accepted beside from alone")  # fmt: skip


@dataclass(frozen=True)
class Inherited:
    """In a table of what a compute capability fixes: an entry, or its value alone, with the source of the table."""

    quantity: Quantity

    def problems(self, value: Any, key: str) -> Iterator[Problem]:
        spec = self.quantity.entry if isinstance(value, dict) else self.quantity.value
        yield from spec.problems(value, key)


def source_heads(data: Mapping[str, Any]) -> set[str]:
    """What the entries of a profile name as their source, up to a colon: short names of `[sources]`, or others."""

    def heads(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("source"), str):
                yield value["source"].partition(":")[0]
            for one in value.values():
                yield from heads(one)

    return {*heads(data), *(text.partition(":")[0] for text in data.get("validation", {}).values())}


def _unused_sources(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Short names of sources that no entry uses are misspelt, here or there."""
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
        "validation": MapOf(Text(lines=True), VALIDATED),
        **{name: quantity.entry for name, quantity in QUANTITIES.items()},
    },
    required=("schema", "name", "compute_capability", *(name for name, q in QUANTITIES.items() if q.required)),
    rules=(_unused_sources,),
    see="docs/profiles.md",
)
"""A profile file."""
HEADER_KEYS = tuple(name for name in PROFILE.keys if name not in QUANTITIES)

CAPABILITY_TABLE = Table({"source": Text(), **{name: Inherited(quantity) for name, quantity in QUANTITIES.items()}},
                         see="docs/profiles.md")  # fmt: skip
INHERITANCE = Table(
    {"schema": Whole(SCHEMA, SCHEMA), "all": CAPABILITY_TABLE, "sources": MapOf(Text(lines=True))},
    required=("schema", "all", "sources"),
    others=(CAPABILITY, CAPABILITY_TABLE),
    rules=(_unused_sources,),
)
"""The file of what every GPU shares and what each compute capability fixes."""

PREDICTIONS_NEED = (
    "boost_clock_hz", "l2_bytes", "dram_bandwidth_bytes_per_s", "max_warps_per_sm", "max_threads_per_sm",
    "max_blocks_per_sm", "shared_memory_per_sm_bytes", "shared_memory_per_block_optin_bytes",
    "shared_memory_reserved_per_block_bytes", "shared_memory_allocation_unit_bytes", "shared_memory_carveouts_bytes",
)  # fmt: skip
"""What a profile may leave out as far as reading it goes, but not for a prediction of every kernel by replay."""
