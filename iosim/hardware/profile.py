"""Hardware profiles: what iosim knows about a GPU, every number with its source.

`load_profile("h100")` reads one TOML file; `list_profiles()` names those that iosim ships; `check_profile_file(path)`
lists what is wrong with a file of your own. What is not known is None, and `HardwareProfile.need` says so. Occupancy,
bandwidth ceilings and times are derived elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from iosim.base.data import data_dir, profiles_dir
from iosim.base.errors import InputError, unknown_name
from iosim.base.records import dataclass, field, replace
from iosim.base.schema import one_line, refuse
from iosim.hardware import profile_file as _file
from iosim.hardware.quantities import QUANTITIES, Quantities

_FP8 = ("float8", "fp8_e4m3", "fp8_e5m2", "e4m3", "e5m2")
_DTYPE_WORDS = {
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
} | dict.fromkeys(_FP8, "fp8")


@dataclass(frozen=True)
class CacheLevel:
    """A level of caches between SMs and memory: `count` of them, each of `bytes_each`. Data that all SMs read stand in
    the level in `copies`: in each partition of an L2, and in each L2 where there are several."""

    name: str
    bytes_each: int
    count: int
    copies: int

    @property
    def bytes(self) -> int:
        """Of all."""
        return self.bytes_each * self.count

    @property
    def shared_bytes(self) -> int:
        """What the level holds of data that all SMs read."""
        return self.bytes // self.copies


ON_FP32_UNITS = ("bf16", "fp16", "tf32")
"""Types whose products PyTorch and Triton compute on the fp32 units of a GPU whose tensor cores do not take them."""
PRODUCT_SHARE = 0.8
"""Of the specified rate, what large products are taken to reach where none were measured: an A100's reach 0.87, an
H100's 0.80, an H200's and a B200's 0.78 (the profiles' achieved rates)."""
FIRST_GFX = 900
"""From here on the number of a compute capability is that of AMD's target: 942 is gfx942."""


def cc_text(cc: int) -> str:
    """A compute capability by its number, as profiles write it: `9.0`, `gfx942`."""
    return f"gfx{cc // 10}{cc % 10:x}" if cc >= FIRST_GFX else f"{cc // 10}.{cc % 10}"


@dataclass(frozen=True, kw_only=True)
class HardwareProfile(Quantities):
    """One GPU. Sizes are in bytes, rates in units per second, clocks in hertz; None is unknown. Rates of tensor cores
    are dense, with fp32 accumulation where the GPU distinguishes it; a multiply-add is two operations. Links count both
    directions together. Memory sizes are the vendor's, read with GB = 10**9 bytes."""

    name: str
    title: str
    aliases: tuple[str, ...]
    compute_capability: tuple[int, int]
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False, repr=False)
    kinds: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False, repr=False)
    taken: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False, repr=False)
    """The GPU from whose profile a value is taken, for those of kind "taken"."""
    validation: Mapping[str, str] = field(
        default_factory=dict, hash=False, compare=False, repr=False
    )
    """The measurements by which predictions for this GPU were checked: of "l2", "hbm" and "time" bytes and seconds."""

    backed_by: str = field(default=_file.BACKING[-1], compare=False)
    """What predictions for this GPU were held against, in a word of `profile_file.BACKING`."""

    @property
    def cc(self) -> int:
        """The compute capability as one number: 80 for 8.0, 100 for 10.0."""
        major, minor = self.compute_capability
        return 10 * major + minor

    @property
    def is_amd(self) -> bool:
        """True where it is AMD's: its SMs are compute units, their warps waves of 64, its tensor cores matrix cores."""
        return self.cc >= FIRST_GFX

    @property
    def levels(self) -> tuple[CacheLevel, ...]:
        """The caches between SMs and memory, the nearest first: an L2 for all or several, then a cache at the memory's
        side where there is one. Raises InputError: the profile does not know the L2."""
        parts, whole = self.need_int("l2_partitions"), self.need_int("l2_bytes")
        count = parts if self.l2_apart else 1
        first = CacheLevel("L2", whole // count, count, parts)
        if self.memory_side_bytes is None:
            return (first,)
        return first, CacheLevel("memory-side cache", self.memory_side_bytes, 1, 1)

    @property
    def usable_memory_bytes(self) -> int | None:
        """Bytes of device memory that processes share: what the device reports, less what its driver keeps where that
        is known. A process's own context and its libraries take more; they are not counted. None: not known."""
        return (
            None
            if self.memory_bytes is None
            else self.memory_bytes - (self.memory_reserved_bytes or 0)
        )

    def need_memory_bytes(self) -> int:
        """As `usable_memory_bytes`. Raises InputError: the profile does not know the memory."""
        return self.need_int("memory_bytes") - (self.memory_reserved_bytes or 0)

    @property
    def target(self) -> str:
        """What compilers call it: `sm_90`, `gfx942`."""
        return cc_text(self.cc) if self.is_amd else f"sm_{self.cc}"

    def need(self, quantity: str) -> float:
        """The number called `quantity`. Raises InputError: the profile does not know it. Raises AttributeError: there
        is no such quantity, or it is a list or a table."""
        if quantity not in QUANTITIES or QUANTITIES[quantity].form not in ("int", "float"):
            raise AttributeError(f"'{quantity}' is not a single number of a hardware profile")
        value: float | None = getattr(self, quantity)
        if value is None:
            raise InputError(
                f"profile '{self.name}' does not know {quantity}; a profile file of your own can give it"
            )
        return value

    def need_int(self, quantity: str) -> int:
        """As `need`, for a quantity that is a whole number."""
        value = self.need(quantity)
        if not isinstance(value, int):
            raise AttributeError(f"'{quantity}' is not a whole number")
        return value

    def tensor_flops(self, dtype: str, measured: bool = False) -> float:
        """Operations per second of dense matrix products in `dtype` (fp16, bf16, tf32, fp8, int8, or fp32). fp32
        products run on the ordinary fp32 units, not on tensor cores: their specified rate is `fp32_flops_per_s`. With
        `measured`, the rate that large products have reached. Raises InputError: the rate is not known: most often, the
        GPU has no such units."""
        # fp32 is no type of tensor cores: its specified rate stands apart, and what products reached in it does not.
        word = _DTYPE_WORDS.get(dtype.lower(), dtype.lower())
        if word == "fp32" and not measured:
            return self.need("fp32_flops_per_s")
        rates = self.tensor_flops_achieved_per_s if measured else self.tensor_flops_per_s
        if word not in rates:
            quantity = "measured tensor rate" if measured else "tensor rate"
            known = ", ".join(rates) or "none"
            raise InputError(
                f"profile '{self.name}' has no {quantity} for '{one_line(dtype, 40)}'; it knows {known}"
            )
        return rates[word]

    def product_flops(self, dtype: str) -> float:
        """Operations per second that large matrix products reach: measured, or PRODUCT_SHARE of the specified rate; on
        the fp32 units where the tensor cores do not take the type. Raises InputError: neither is known."""
        kind = "fp32" if self.computes_in_fp32(dtype) else dtype
        return self.tensor_flops_achieved_per_s.get(kind) or PRODUCT_SHARE * self.tensor_flops(kind)

    def computes_in_fp32(self, dtype: str) -> bool:
        """True where products in a type of 16 bits or tf32 run on the fp32 units, since the tensor cores do not take
        it: bf16 and tf32 before cc 8.0. The bytes are those of the type all the same."""
        return (
            dtype in ON_FP32_UNITS
            and dtype not in self.tensor_flops_per_s
            and self.fp32_flops_per_s is not None
        )

    def hbm_seconds_per_byte(self, measured: bool = True) -> tuple[float, float, float] | None:
        """Seconds that HBM takes for a byte read and a byte written, and for a byte of both more, as it turns round.
        Measured: rates of reads alone, of writes alone and of a copy. Else one rate for all: a measured one, or the
        share of the specified one that GPUs reach. None where there is none."""
        # A copy of n bytes takes n reads, n writes and what turning the bus between them costs: 2 n over the copy's
        # rate. What is left of that over reads and writes alone is the turn; noise may make it negative.
        read, write = self.dram_read_bandwidth_bytes_per_s, self.dram_write_bandwidth_bytes_per_s
        copy = self.dram_copy_bandwidth_bytes_per_s
        if measured and read and write and copy:
            return 1 / read, 1 / write, max(0.0, 2 / copy - 1 / read - 1 / write)
        # With one rate alone the turn is in it already.
        rate = self.dram_bandwidth_measured_bytes_per_s if measured else None
        if rate is None and self.dram_bandwidth_bytes_per_s:
            rate = self.dram_bandwidth_bytes_per_s * (
                (self.achieved_dram_fraction if measured else None) or 1.0
            )
        return (1 / rate, 1 / rate, 0.0) if rate else None

    def with_ecc(self, state: str) -> HardwareProfile:
        """The GPU with ECC in line as it is delivered, on or off. Raises InputError: it cannot be switched on, since
        the profile does not know check bits that lie in the memory itself."""
        if state == "on" and self.ecc is None:
            raise InputError(
                f"`ecc` on: profile '{self.name}' knows no check bits in its memory; accepted: delivered, off"
            )
        if state == "delivered":
            return self
        return replace(self, ecc="inline" if state == "on" else None)

    def source_of(self, quantity: str) -> str:
        """Where the number comes from; entries of tables are `table.dtype`, such as `tensor_flops_per_s.fp16`. Raises
        InputError: the profile does not know the quantity."""
        return self._note(self.sources, quantity)

    def kind_of(self, quantity: str) -> str:
        """`specification`, `measured`, `fitted`, `estimate`, `inferred` or `taken` (from the GPU in `taken`); names and
        errors as `source_of`."""
        return self._note(self.kinds, quantity)

    def _note(self, notes: Mapping[str, str], quantity: str) -> str:
        if quantity not in notes:
            raise InputError(f"profile '{self.name}' has no source for '{one_line(quantity, 60)}'")
        return notes[quantity]

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain types, JSON-able, with the structure of a profile file; `from_dict` takes it back."""

        def entry(key: str, value: Any) -> dict[str, Any]:
            # Tuples become lists, as JSON and TOML would have them, so that a dict that was read equals one that was made.
            plain = (
                [list(v) if isinstance(v, tuple) else v for v in value]
                if isinstance(value, tuple)
                else value
            )
            noted = {"value": plain, "source": self.source_of(key), "kind": self.kind_of(key)}
            return noted | ({"from": self.taken[key]} if key in self.taken else {})

        result: dict[str, Any] = {
            "schema": _file.SCHEMA,
            "name": self.name,
            "title": self.title,
            "aliases": list(self.aliases),
            "compute_capability": cc_text(self.cc),
        }
        if self.backed_by != _file.BACKING[-1]:
            result["backed_by"] = self.backed_by
        if self.validation:
            result["validation"] = dict(self.validation)
        for key, quantity in QUANTITIES.items():
            value = getattr(self, key)
            if quantity.form == "rates" and value:
                result[key] = {
                    dtype: entry(f"{key}.{dtype}", rate) for dtype, rate in value.items()
                }
            elif quantity.form != "rates" and value is not None:
                result[key] = entry(key, value)
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], origin: str = "profile") -> HardwareProfile:
        """A profile from the structure of a profile file (see docs/profiles.md), as TOML or `to_dict` gives it.
        `origin` names the data in error messages. Limits that the compute capability fixes are added. Raises
        InputError: the data has a problem; the message tells the first and how many more there are."""
        parsed = _file.parse(data)
        refuse(parsed.problems, origin)
        capability = _file.parse_capability(parsed.header["compute_capability"])
        assert capability is not None, "parse() has checked it"
        name = parsed.header["name"]
        return cls(
            name=name,
            title=parsed.header.get("title", name),
            aliases=tuple(parsed.header.get("aliases", ())),
            compute_capability=capability,
            backed_by=parsed.header.get("backed_by", _file.BACKING[-1]),
            **{
                noted: getattr(parsed, noted)
                for noted in ("sources", "kinds", "taken", "validation")
            },
            **parsed.values,
        )


def load_profile(name_or_path: str | os.PathLike[str] | HardwareProfile) -> HardwareProfile:
    """The profile of that name, or of that file; a profile is itself. Names forgive case and punctuation and are
    matched with names, aliases and the driver's device name: `"A100"`, `"rtx4090"`, `"NVIDIA H100 80GB HBM3"`. A path
    is what contains a separator, ends in `.toml`, or exists. Raises InputError: no such profile (the nearest names are
    suggested), or the file is unreadable or has a problem."""
    if isinstance(name_or_path, HardwareProfile):
        return name_or_path
    if not isinstance(name_or_path, str | os.PathLike):
        what = one_line(repr(name_or_path), 60)
        raise InputError(
            f"GPU {what} is no name; accepted: a name, a profile file's path, a profile"
        )
    if (
        not isinstance(name_or_path, str)
        or {"/", os.sep} & {*name_or_path}
        or name_or_path.lower().endswith(".toml")
    ):
        return _load_file(Path(name_or_path))
    stem = _find(name_or_path)
    if stem is not None:
        return _load_shipped(stem)
    added = next(
        (path for stem, path in added_profiles().items() if _key(stem) == _key(name_or_path)), None
    )
    if added is not None or (name_or_path and os.path.exists(name_or_path)):
        return _load_file(added or Path(name_or_path))
    excerpt, stems = one_line(name_or_path, 60), list_profiles()
    stems += list(added_profiles())
    names = [*stems, *(alias for stem in list_profiles() for alias in _head_names(stem)[1:])]
    raise unknown_name("GPU", excerpt, names, stems)


def list_profiles() -> list[str]:
    """The names of the profiles that iosim ships, sorted. Reads no file."""
    return list(_shipped_stems(data_dir("hardware_profiles")))


@lru_cache(maxsize=4)
def _shipped_stems(folder: Path) -> tuple[str, ...]:
    """The names of the profiles in the directory of shipped ones, which stays as it is while a process runs."""
    files = folder.glob("*.toml")
    return tuple(sorted(path.stem for path in files if path.name != _file.INHERITANCE_FILE))


def added_profiles() -> dict[str, Path]:
    """The user's own profiles, those that `iosim profiles add` has put in their place: file by name, sorted."""
    folder = profiles_dir()
    try:
        files = sorted(folder.glob("*.toml")) if folder is not None else []
    except OSError:
        return {}
    return {path.stem: path for path in files}


def check_profile_file(path: str | os.PathLike[str]) -> list[str]:
    """Everything that is wrong with a profile file, one line each, the key first; empty when it is fine. A number that
    predictions need and that is missing counts, though a profile without it can be read. Raises InputError: the file
    cannot be read as TOML at all."""
    parsed = _file.parse(_file.read_toml(Path(path)))
    return [
        str(problem) for problem in parsed.problems or _file.missing_for_predictions(parsed.values)
    ]


def _load_file(path: Path) -> HardwareProfile:
    return HardwareProfile.from_dict(_file.read_toml(path), origin=f"profile file '{path}'")


@lru_cache(maxsize=64)
def _load_shipped(stem: str) -> HardwareProfile:
    data = _file.shipped(stem)
    assert data is not None, "the stem is a shipped profile's"
    return HardwareProfile.from_dict(data, origin=f"profile file '{stem}.toml'")


def _key(name: str) -> str:
    """`name` in lower case without punctuation and without the vendor's brand."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    while len(words) > 1 and words[0] in ("nvidia", "geforce", "tesla"):
        words = words[1:]
    return "".join(words)


@lru_cache(maxsize=256)
def _find(name: str) -> str | None:
    """The file stem of the shipped profile called `name`; opens files only where no stem matches."""
    key, stems = _key(name), list_profiles()
    by_stem = (stem for stem in stems if _key(stem) == key)
    by_other_names = (stem for stem in stems if key in map(_key, _head_names(stem)))
    return next(chain(by_stem, by_other_names), None)


def _head_names(stem: str) -> list[str]:
    """The title and the aliases of a shipped profile, from the two lines that hold them: no TOML parser needed."""
    names: list[str] = []
    with (data_dir("hardware_profiles") / f"{stem}.toml").open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith(("title =", "aliases =")):
                names += re.findall(r'"([^"]*)"', line)
            if line.startswith("compute_capability"):
                break
    return names
