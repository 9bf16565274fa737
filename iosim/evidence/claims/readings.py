"""A claimed number as it was typed, and what numbers of a problem can be meant: every count that tools, papers and
counters give for it, with its reason.

A reading is one such number: of the problem as given, or of the problem with one slip (another type, mask or pass, a
head in place of all, ...). A slip is also a factor that a claim may be off by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.base.schema import read_toml
from iosim.base.units import bytes_text
from iosim.base.words import WAYS
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.evidence.reproduce.side import moved, standard, standard_kernel
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.overrides import Overrides
from iosim.prediction.predictor import planned, predict
from iosim.prediction.replays import tile_accesses
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem

QUICK_ACCESSES = 3_000_000
"""Tile accesses up to which the counts of a slip are replayed, too."""
NAIVE = "naive"
L2_SERVES = "no counter of HBM shows it: the L2 serves a part, which models of two levels leave out"
WHILE_IT_FITS = "it holds at HBM only while the L2 keeps K and V, and once all is written back"
WITHOUT_CHECK_BITS = "check bits of ECC lie in the same memory, and a counter shows them"
FEWER_AT_HBM = "SMs read the same bytes several times, from the L2"


@dataclass(frozen=True)
class Reading:
    """One number that can be meant.

    Attributes:
        counts: what it counts, in a few words.
        level: "hbm", "l2", "memory" (sizes, no traffic), "time" or "flops".
        direction: "read", "written", or "read and written"; empty where that says nothing.
        why: why a counter of the claimed quantity would show another number; empty where it would show this one.
        slips: what the number is of in place of the problem as given.
    """

    counts: str
    level: str
    direction: str
    value: float
    why: str = ""
    slips: tuple[str, ...] = ()

    def slipped(self, slip: str, factor: float = 1.0) -> Reading:
        return replace(self, value=self.value * factor, slips=(*self.slips, slip))


def byte_readings(
    quantity: str,
    problem: AttentionProblem,
    kernel: str,
    gpu: HardwareProfile,
    overrides: Overrides | None,
    replayed: bool,
) -> Iterator[Reading]:
    """Bytes of a problem at both levels, and sizes that are taken for traffic; `quantity`, "hbm" or "l2", is the one
    that is claimed. HBM bytes are replayed where that is asked for, or takes a moment."""
    for name in dict.fromkeys((kernel, NAIVE)):
        settings = overrides if name == kernel else None
        try:
            call = planned(problem, name, gpu, settings)
        except InputError:
            continue
        other = [] if name == kernel else [f"it is {name}'s, not {kernel}'s"]
        if replayed or tile_accesses(call.chain) <= QUICK_ACCESSES:
            p = predict(problem, name, gpu, overrides=settings)
            if p.hbm_known:
                moved_by = (int(p.total("hbm", way)) for way in WAYS)
                reasons = [FEWER_AT_HBM, *other] if quantity == "l2" else other
                yield from _both_ways(f"{name}'s HBM bytes by {p.method}", "hbm", moved_by, reasons)
                if p.check_bits.total:
                    data = p.hbm_payload.read, p.hbm_payload.write
                    less = [WITHOUT_CHECK_BITS, *reasons]
                    yield from _both_ways(f"{name}'s HBM bytes without check bits", "hbm", data, less)
        reasons = [L2_SERVES, *other] if quantity == "hbm" else other
        counted = (int(call.counted.total("l2", way)) for way in WAYS)
        yield from _both_ways(f"{name}'s SM<->L2 bytes", "l2", counted, reasons)
        if name == kernel:
            least = call.bounds.compulsory_read, call.bounds.compulsory_write
            why = FEWER_AT_HBM if quantity == "l2" else WHILE_IT_FITS
            yield from _both_ways("the compulsory bytes, every input read and every output written once", "hbm",
                                  least, [why])  # fmt: skip
    yield from _by_tools(problem, gpu)


def _both_ways(counts: str, level: str, ways: Iterable[int], reasons: Sequence[str]) -> Iterator[Reading]:
    """`ways`: the bytes that are read and those that are written."""
    read, written = ways
    for direction, value in (("read and written", read + written), ("read", read), ("written", written)):
        yield Reading(counts, level, direction, value, "; ".join(reasons))


_texts = cache(lambda: read_toml(Path(__file__).with_suffix(".toml")))


def _said(key: str, value: float, **words: object) -> Reading:
    """The reading of that key in readings.toml."""
    text: dict[str, Any] = {name: pattern.format(**words) for name, pattern in _texts()[key].items()}
    return Reading(**{"direction": "", **text}, value=value)


def _by_tools(problem: AttentionProblem, gpu: HardwareProfile) -> Iterator[Reading]:
    """Counts that no kernel of the catalog makes: those of papers and of other tools."""
    try:
        chain = standard(problem, standard_kernel(gpu, problem))
    except InputError:
        return
    once = sum(chain.tensors[n].bytes for n in "QKVO")
    scores = chain.tensors["S"].bytes
    yield _said("inputs_and_output", once)
    yield _said("inputs", once - chain.tensors["O"].bytes)
    yield _said("scores", scores)
    yield _said("all_in_memory", once + scores)
    if problem.passes != "fwd":
        return
    yield _said("standard", moved(chain))
    yield _said("without_softmax", moved(chain, outside=("softmax",)))
    if problem.mask != "none":
        return
    for rows in (64, 128, 256):
        try:
            kernel = resolve("flash", problem, gpu, Overrides(tile=(rows, 64)))
        except InputError:
            return
        tiled = moved(plan(problem, kernel.with_(writes_lse=False)))
        yield _said("query_tiles", tiled, rows=rows)
        wide = tiled - chain.tensors["O"].bytes + 2 * scores
        yield _said("wide_output", wide, rows=rows, right=bytes_text(tiled))


def time_readings(p: Prediction) -> Iterator[Reading]:
    gpu, bounds = p.profile, p.hbm_bounds
    yield _said("time", p.time.total_s)
    yield _said("specified_time", p.time_specification.total_s)
    moved_bytes = {"the compulsory bytes": bounds.compulsory_read + bounds.compulsory_write}
    moved_bytes["the SM<->L2 bytes"] = p.total("l2")
    if p.hbm_known:
        moved_bytes["the predicted HBM bytes"] = p.hbm_payload.total
    bandwidth, rate = gpu.dram_bandwidth_bytes_per_s, (gpu.tensor_flops_per_s or {}).get(p.problem.dtype)
    if bandwidth:
        yield from (_said("over_bandwidth", n / bandwidth, what=level) for level, n in moved_bytes.items())
    if rate:
        yield _said("over_tensor_rate", p.flops / rate)


def flop_readings(p: Prediction) -> Iterator[Reading]:
    q = p.problem
    whole = 2 * q.batch * q.heads * q.seq_q * q.seq_k * (q.head_dim + q.head_dim_v)
    factor = {"fwd": 1.0, "bwd": 2.5, "fwd+bwd": 3.5}[q.passes]
    yield _said("kept_operations", p.flops)
    yield _said("multiply_adds", p.flops / 2)
    if q.mask != "none":
        yield _said("all_operations", whole * factor)
    if q.mask == "causal":
        yield _said("half_operations", whole * factor / 2)


# Slips


PASSES = {"fwd": "forward alone", "bwd": "backward alone", "fwd+bwd": "forward and backward"}


def other_problems(p: AttentionProblem) -> Iterator[tuple[str, AttentionProblem]]:
    changes: dict[str, dict[str, object]] = {}
    if p.input_type.bytes == 2:
        changes[f"fp32 in place of {p.dtype}"] = {"dtype": "fp32", "output": "fp32"}
    elif p.dtype == "fp32":
        changes["fp16 in place of fp32"] = {"dtype": "fp16", "output": "fp16"}
    if p.mask == "causal":
        changes["without the causal mask"] = {"mask": "none"}
    elif p.mask == "none" and p.seq_lens is None:
        changes["with a causal mask"] = {"mask": "causal"}
    changes |= {words: {"passes": passes} for passes, words in PASSES.items() if passes != p.passes}
    if p.group > 1:
        changes[f"with {p.heads} key/value heads in place of {p.kv_heads}"] = {"kv_heads": p.heads}
    for words, values in changes.items():
        try:
            yield words, p.with_(**values)
        except InputError:
            continue


def factors(p: AttentionProblem, claim: Amount, layers: int | None) -> Iterator[tuple[str, float]]:
    if p.heads > 1:
        yield "of one head", 1 / p.heads
    if p.batch > 1:
        yield "of one sequence", 1 / p.batch
    if layers is not None and layers > 1:
        yield f"of all {layers} layers", float(layers)
    if claim.unit in BYTES:
        if p.input_type.bytes > 1:
            yield "elements in place of bytes", 1 / p.input_type.bytes
        if claim.unit in OTHER_UNIT:
            meant = OTHER_UNIT[claim.unit]
            yield f"{meant} written as {claim.unit}", BYTES[claim.unit] / BYTES[meant]


BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15, "KiB": 1 << 10, "MiB": 1 << 20,
         "GiB": 1 << 30, "TiB": 1 << 40}  # fmt: skip
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
FLOPS = {"FLOP": 1, "kFLOP": 10**3, "MFLOP": 10**6, "GFLOP": 10**9, "TFLOP": 10**12, "PFLOP": 10**15}
UNITS: dict[str, Mapping[str, float]] = {"hbm": BYTES, "l2": BYTES, "time": SECONDS, "flops": FLOPS}
OTHER_UNIT = {"kB": "KiB", "MB": "MiB", "GB": "GiB", "TB": "TiB", "KiB": "kB", "MiB": "MB", "GiB": "GB", "TiB": "TB"}
"""Decimal for binary, and the other way round."""
EXAMPLES = {"hbm": "4.3GB or 33.6MiB", "l2": "2.2GB", "time": "1.4ms", "flops": "137GFLOP"}


@dataclass(frozen=True)
class Amount:
    """A number of bytes, seconds or operations. `share` is half a unit of its last digit, over the number."""

    quantity: str
    text: str
    value: float
    unit: str
    share: float


NUMBER = re.compile(r"\s*([0-9][0-9,_]{0,30}(?:\.[0-9]{0,15})?)(?:[eE]([+-]?[0-9]{1,2}))?\s*([A-Za-z]+)\s*", re.ASCII)


def parse(quantity: str, text: str) -> Amount:
    """The amount of a text such as 4.3GB: a number and a unit of its quantity, in upper or lower case. GB may be
    written G, and GFLOP G or GFLOPs. Raises InputError where there is no number above zero with such a unit."""
    match = NUMBER.fullmatch(text)
    unit = None if match is None else _unit(quantity, match[3])
    if match is None or unit is None:
        raise InputError(
            f"`{quantity}` '{text}' is no amount; accepted: a number with a unit, such as {EXAMPLES[quantity]}"
        )
    digits = re.sub("[,_]", "", match[1])
    scale = 10.0 ** int(match[2] or 0) * UNITS[quantity][unit]
    value = float(digits) * scale
    if not value > 0:
        raise InputError(f"`{quantity}` '{text}' is out of range; accepted: more than 0")
    decimals = len(digits.partition(".")[2])
    return Amount(quantity, text.strip(), value, unit, 0.5 * 10.0**-decimals * scale / value)


def _unit(quantity: str, typed: str) -> str | None:
    known = {name.lower(): name for name in UNITS[quantity]}
    if quantity == "flops":
        known |= {f"{name.lower()}s": name for name in FLOPS}
    if quantity != "time":
        known |= {name[0].lower(): name for name in UNITS[quantity] if name[:1] in "kMGTP" and not name.endswith("iB")}
    return known.get(typed.lower())


def share(text: str | float | None) -> float | None:
    """2% or 0.02. Raises InputError where it is no such number."""
    if text is None:
        return None
    text = str(text)
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise InputError(f"`tolerance` '{text}' is out of range; accepted: above 0 and below 1, such as 2% or 0.02")
    return value
