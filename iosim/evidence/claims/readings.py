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
        is_predicted: it is what iosim predicts for the claimed quantity itself, and no other count of it.
    """

    counts: str
    level: str
    direction: str
    value: float
    why: str = ""
    slips: tuple[str, ...] = ()
    is_predicted: bool = False

    def slipped(self, slip: str, factor: float = 1.0) -> Reading:
        return replace(
            self, value=self.value * factor, slips=(*self.slips, slip), is_predicted=False
        )


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
    # naive attention's counts are tried beside the kernel's: many texts quote them as "attention's bytes"
    for name in dict.fromkeys((kernel, NAIVE)):
        settings = overrides if name == kernel else None
        try:
            call = planned(problem, name, gpu, settings)
        except InputError:
            continue
        other = [] if name == kernel else [f"it is {name}'s, not {kernel}'s"]
        # a slipped problem is replayed only where that takes a moment
        if replayed or tile_accesses(call.chain) <= QUICK_ACCESSES:
            p = predict(problem, name, gpu, overrides=settings)
            is_predicted = quantity == "hbm" and name == kernel and replayed
            reasons = [FEWER_AT_HBM, *other] if quantity == "l2" else other
            yield from _hbm_readings(name, p, reasons, is_predicted)
        reasons = [L2_SERVES, *other] if quantity == "hbm" else other
        counted = (int(call.counted.total("l2", way)) for way in WAYS)
        is_predicted = quantity == "l2" and name == kernel and replayed
        yield from _both_ways(f"{name}'s SM<->L2 bytes", "l2", counted, reasons, is_predicted)
        if name == kernel:
            least = call.bounds.compulsory_read, call.bounds.compulsory_write
            why = FEWER_AT_HBM if quantity == "l2" else WHILE_IT_FITS
            yield from _both_ways(
                "the compulsory bytes, every input read and every output written once",
                "hbm",
                least,
                [why],
            )
    yield from _by_tools(problem, gpu)


def _hbm_readings(
    name: str, p: Prediction, reasons: Sequence[str], is_predicted: bool
) -> Iterator[Reading]:
    """A prediction's HBM bytes, where they are known: with the check bits of ECC, and without them."""
    if not p.hbm_known:
        return
    moved = (int(p.total("hbm", way)) for way in WAYS)
    yield from _both_ways(f"{name}'s HBM bytes by {p.method}", "hbm", moved, reasons, is_predicted)
    if p.check_bits.total:
        # a tool that computes bytes from tensors knows nothing of ECC
        payload = p.hbm_payload.read, p.hbm_payload.write
        yield from _both_ways(
            f"{name}'s HBM bytes without check bits",
            "hbm",
            payload,
            [WITHOUT_CHECK_BITS, *reasons],
        )


def _both_ways(
    counts: str, level: str, ways: Iterable[int], reasons: Sequence[str], is_predicted: bool = False
) -> Iterator[Reading]:
    """`ways`: the bytes that are read and those that are written."""
    read, written = ways
    for direction, value in (
        ("read and written", read + written),
        ("read", read),
        ("written", written),
    ):
        yield Reading(
            counts, level, direction, value, "; ".join(reasons), is_predicted=is_predicted
        )


_texts = cache(lambda: read_toml(Path(__file__).with_suffix(".toml")))


def _said(key: str, value: float, **words: object) -> Reading:
    """The reading of that key in readings.toml."""
    text: dict[str, Any] = {
        name: pattern.format(**words) for name, pattern in _texts()[key].items()
    }
    return Reading(**{"direction": "", **text}, value=value)


def _by_tools(problem: AttentionProblem, gpu: HardwareProfile) -> Iterator[Reading]:
    """Counts that no kernel of the catalog makes: those of papers and of other tools."""
    try:
        chain = standard(problem, standard_kernel(gpu, problem))
    except InputError:
        return
    # standard attention (naive, unfused) is what papers count by hand: every matrix once each way
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
    # the hand counts below are of full attention alone
    if problem.mask != "none":
        return
    # FlashAttention by hand: keys and values once per query tile of so many rows, without the lse
    for rows in (64, 128, 256):
        try:
            kernel = resolve("flash", problem, gpu, Overrides(tile=(rows, 64)))
        except InputError:
            return
        tiled = moved(plan(problem, kernel.with_(writes_lse=False)))
        yield _said("query_tiles", tiled, rows=rows)
        # a known mistake: the output taken as wide as the scores, written and read
        wide = tiled - chain.tensors["O"].bytes + 2 * scores
        yield _said("wide_output", wide, rows=rows, right=bytes_text(tiled))


def time_readings(p: Prediction) -> Iterator[Reading]:
    gpu, bounds = p.profile, p.hbm_bounds
    yield replace(_said("time", p.time.total_s), is_predicted=True)
    yield _said("specified_time", p.time_specification.total_s)
    moved_bytes = {"the compulsory bytes": bounds.compulsory_read + bounds.compulsory_write}
    moved_bytes["the SM<->L2 bytes"] = p.total("l2")
    if p.hbm_known:
        moved_bytes["the predicted HBM bytes"] = p.hbm_payload.total
    # what a roofline by hand gives: bytes over the specified bandwidth, operations over the tensor rate
    bandwidth, rate = (
        gpu.dram_bandwidth_bytes_per_s,
        (gpu.tensor_flops_per_s or {}).get(p.problem.dtype),
    )
    if bandwidth:
        yield from (
            _said("over_bandwidth", n / bandwidth, what=level) for level, n in moved_bytes.items()
        )
    if rate:
        yield _said("over_tensor_rate", p.flops / rate)


def flop_readings(p: Prediction) -> Iterator[Reading]:
    q = p.problem
    whole = 2 * q.batch * q.heads * q.seq_q * q.seq_k * (q.head_dim + q.head_dim_v)
    # two products forward, five backward: the convention of FlashAttention's benchmarks
    factor = {"fwd": 1.0, "bwd": 2.5, "fwd+bwd": 3.5}[q.passes]
    yield replace(_said("kept_operations", p.flops), is_predicted=True)
    yield _said("multiply_adds", p.flops / 2)
    if q.mask != "none":
        yield _said("all_operations", whole * factor)
    # benchmarks halve the operations of a causal mask, where the kept pairs are slightly more than half
    if q.mask == "causal":
        yield _said("half_operations", whole * factor / 2)


def speed_readings(p: Prediction) -> Iterator[Reading]:
    """Operations per second, by each way to count operations, and the rates that a GPU is said to have."""
    for count in flop_readings(p):
        yield replace(
            count,
            counts=f"{count.counts}, over the predicted time",
            level="speed",
            value=count.value / p.time_s,
        )
    for name, rate in tensor_rates(p).items():
        yield Reading(
            f"the {name} tensor rate",
            "speed",
            "",
            rate,
            "a rate of the GPU: no attention kernel reaches it",
        )


def tensor_rates(p: Prediction) -> dict[str, float]:
    """Rates of the GPU's matrix products in the problem's type, by how they are known."""
    rates = {
        "specified": p.profile.tensor_flops_per_s,
        "measured": p.profile.tensor_flops_achieved_per_s,
    }
    return {
        how: rate for how, known in rates.items() if (rate := (known or {}).get(p.problem.dtype))
    }


def utilisation_readings(p: Prediction) -> Iterator[Reading]:
    """Shares of the tensor rate: of each speed, over each rate."""
    for how, rate in tensor_rates(p).items():
        for count in flop_readings(p):
            is_predicted = count.is_predicted and how == "specified"
            why = (
                count.why
                if how == "specified"
                else f"{count.why}; the specified rate is higher".removeprefix("; ")
            )
            counts = f"{count.counts}, over the predicted time and the {how} tensor rate"
            yield Reading(
                counts, "speed", "", count.value / p.time_s / rate, why, is_predicted=is_predicted
            )


def bandwidth_readings(p: Prediction) -> Iterator[Reading]:
    """Bytes per second that a call moves, and the rates that a GPU is said to have."""
    if p.hbm_known:
        moved_by = [int(p.total("hbm", way)) for way in WAYS]
        for count in _both_ways(
            "HBM bytes over the predicted time", "hbm", moved_by, (), is_predicted=True
        ):
            yield replace(count, value=count.value / p.time_s)
    counted = [int(p.total("l2", way)) for way in WAYS]
    for count in _both_ways("SM<->L2 bytes over the predicted time", "l2", counted, [L2_SERVES]):
        yield replace(count, value=count.value / p.time_s)
    least = (p.hbm_bounds.compulsory_read, p.hbm_bounds.compulsory_write)
    for count in _both_ways(
        "the compulsory bytes over the predicted time", "hbm", least, [WHILE_IT_FITS]
    ):
        yield replace(count, value=count.value / p.time_s)
    gpu = p.profile
    known = {
        "specified": gpu.dram_bandwidth_bytes_per_s,
        "measured": gpu.dram_bandwidth_measured_bytes_per_s,
        "measured reading": gpu.dram_read_bandwidth_bytes_per_s,
    }
    for how, rate in known.items():
        if rate:
            yield Reading(
                f"HBM's {how} bandwidth",
                "hbm",
                "",
                rate,
                "a rate of the GPU, not what this call draws",
            )


def ratio_readings(
    claim: Amount, p: Prediction, problem: AttentionProblem, replayed: bool
) -> Iterator[Reading]:
    """What naive attention moves, takes and holds over what the kernel does; `replayed`: of the problem as given."""
    kernel, gpu = p.kernel.name, p.profile
    if kernel == NAIVE:
        return
    try:
        mine = p if replayed else predict(problem, kernel, gpu, method="capacity")
        # naive attention's score matrix makes long replays: the capacity rule stands in
        quick = (
            replayed and tile_accesses(planned(problem, NAIVE, gpu, None).chain) <= QUICK_ACCESSES
        )
        other = predict(problem, NAIVE, gpu, method="replay" if quick else "capacity")
    except InputError:
        return
    # a bare "9x" is of HBM bytes
    level = {"time": "time", "l2": "l2"}.get(claim.of, "hbm")
    pairs: list[tuple[str, str, float, float]] = [
        ("ratio_hbm", "hbm", other.total("hbm"), mine.total("hbm")),
        ("ratio_hbm_read", "hbm", other.total("hbm", "read"), mine.total("hbm", "read")),
        ("ratio_l2", "l2", other.total("l2"), mine.total("l2")),
        ("ratio_time", "time", other.time_s, mine.time_s),
        ("ratio_memory", "memory", other.memory_bytes["peak"], mine.memory_bytes["peak"]),
    ]
    for key, at, above, below in pairs:
        # nothing read or written at a level: no ratio
        if below:
            is_predicted = replayed and at == level and key != "ratio_hbm_read"
            yield replace(_said(key, above / below, kernel=kernel), is_predicted=is_predicted)
    try:
        # papers divide naive attention counted by hand by a counter's SM<->L2 bytes
        standard_bytes = moved(standard(problem, standard_kernel(gpu, problem)))
    except InputError:
        return
    yield _said("ratio_counted", standard_bytes / mine.total("l2"), kernel=kernel)


# Slips


PASSES = {"fwd": "forward alone", "bwd": "backward alone", "fwd+bwd": "forward and backward"}


def other_problems(p: AttentionProblem) -> Iterator[tuple[str, AttentionProblem]]:
    changes: dict[str, dict[str, object]] = {}
    # one fact is changed at a time: element type, mask, pass, grouping of heads
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


TWO_CALLS = "of two calls, or of one and its warm-up"


def factors(p: AttentionProblem, claim: Amount, layers: int | None) -> Iterator[tuple[str, float]]:
    """What a claim may be off by. Rates and ratios are of one call whatever is summed up."""
    if claim.quantity in RATES:
        return
    yield TWO_CALLS, 2.0
    # a number of one head or one sequence is the claim times a unit fraction
    if p.heads > 1:
        yield "of one head", 1 / p.heads
    if p.batch > 1:
        yield "of one sequence", 1 / p.batch
    if layers is not None and layers > 1:
        yield f"of all {layers} layers", float(layers)
    # what a bytes text may have mixed up: elements with bytes, powers of ten with powers of two
    if claim.unit in BYTES:
        if p.input_type.bytes > 1:
            yield "elements in place of bytes", 1 / p.input_type.bytes
        if claim.unit in OTHER_UNIT:
            meant = OTHER_UNIT[claim.unit]
            yield f"{meant} written as {claim.unit}", BYTES[claim.unit] / BYTES[meant]


BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
FLOPS = {
    "FLOP": 1,
    "kFLOP": 10**3,
    "MFLOP": 10**6,
    "GFLOP": 10**9,
    "TFLOP": 10**12,
    "PFLOP": 10**15,
}
SPEEDS = {f"{unit}/s": factor for unit, factor in FLOPS.items()}
BANDWIDTHS = {f"{unit}/s": factor for unit, factor in BYTES.items()}
SHARES = {"%": 0.01, "": 1.0}
TIMES = {"x": 1.0}
UNITS: dict[str, Mapping[str, float]] = {
    "hbm": BYTES,
    "l2": BYTES,
    "time": SECONDS,
    "flops": FLOPS,
    "ratio": TIMES,
    "tflops": SPEEDS,
    "mfu": SHARES,
    "bandwidth": BANDWIDTHS,
}
RATES = ("ratio", "tflops", "mfu", "bandwidth")
"""Quantities of which two calls have no more than one."""
OTHER_UNIT = {
    "kB": "KiB",
    "MB": "MiB",
    "GB": "GiB",
    "TB": "TiB",
    "KiB": "kB",
    "MiB": "MB",
    "GiB": "GB",
    "TiB": "TB",
}
"""Decimal for binary, and the other way round."""
EXAMPLES = {
    "hbm": "4.3GB, 33.6MiB or 9x",
    "l2": "2.2GB or 9x",
    "time": "1.4ms or 2x",
    "flops": "137GFLOP",
    "ratio": "9x",
    "tflops": "230TFLOP/s",
    "mfu": "35%",
    "bandwidth": "1.5TB/s",
}


@dataclass(frozen=True)
class Amount:
    """A number of bytes, seconds or operations, of any of them per second, or a ratio. `share` is half a unit of its
    last digit, over the number; `of` the quantity that a ratio is of, where that was said."""

    quantity: str
    text: str
    value: float
    unit: str
    share: float
    of: str = ""


_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,9}|[0-9][0-9_]{0,30})(?:\.[0-9]{0,15})?"
NUMBER = re.compile(
    rf"\s*({_DIGITS})(?:[eE]([+-]?[0-9]{{1,2}}))?\s*([A-Za-z/%]{{0,12}})\s*", re.ASCII
)


def parse(quantity: str, text: str) -> Amount:
    """The amount of a text such as 4.3GB: a number and a unit of its quantity, in upper or lower case. GB may be
    written G, and GFLOP G or GFLOPs. A comma stands before three digits, as iosim prints thousands, or is refused.
    Raises InputError where there is no number above zero with such a unit."""
    match, of = NUMBER.fullmatch(text), ""
    if match is None and (
        # a comma before one, two or more than three digits is a decimal comma: it is named, not guessed
        decimal := re.fullmatch(r"\s*([0-9]+),([0-9]{1,2}|[0-9]{4,})(\s*[A-Za-z/%]*\s*)", text)
    ):
        raise InputError(
            f"`{quantity}` '{text}': write {decimal[1]}.{decimal[2]}{decimal[3].rstrip()}"
        )
    # --hbm 9x is a ratio of HBM bytes
    if match is not None and match[3].lower() == "x" and quantity in ("hbm", "l2", "time"):
        quantity, of = "ratio", quantity
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
    if quantity == "mfu" and not match[3] and value > 1:
        raise InputError(f"`mfu` '{text}' is no share: write {text.strip()}%, or a number up to 1")
    # half a unit of the last digit that was written, as a share of the number
    decimals = len(digits.partition(".")[2])
    with_unit = text.strip() if match[3] else f"{text.strip()}{unit}"
    return Amount(quantity, with_unit, value, unit, 0.5 * 10.0**-decimals * scale / value, of)


def _unit(quantity: str, typed: str) -> str | None:
    known = {name.lower(): name for name in UNITS[quantity]}
    if quantity == "flops":
        known |= {f"{name.lower()}s": name for name in FLOPS}
    if quantity == "tflops":
        # TFLOPS, TFLOPs/s and a bare number are TFLOP/s
        known |= {f"{name.lower()}s{end}": f"{name}/s" for name in FLOPS for end in ("", "/s")} | {
            "": "TFLOP/s"
        }
    if quantity == "ratio":
        known[""] = "x"
    # G for GB and GFLOP: decimal units alone, GiB is always written out
    if quantity not in ("time", *RATES):
        known |= {
            name[0].lower(): name
            for name in UNITS[quantity]
            if name[:1] in "kMGTP" and not name.endswith("iB")
        }
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
        raise InputError(
            f"`tolerance` '{text}' is out of range; accepted: above 0 and below 1, such as 2% or 0.02"
        )
    return value
