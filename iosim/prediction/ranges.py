"""How far off a prediction may be: HBM bytes where the L2's constants are not the GPU's own or CTAs may drift apart,
times where rates were not measured on it; and how exact SM<->L2 bytes are, which are counted.

What is taken from another GPU, inferred or assumed is replaced by the least and by the most that is known of any GPU:
two more replays of the L2 that holds least and of the one that holds most, and two more times. In two more CTAs part
least and most, where tiles are read again. What is left unexplained where all is measured comes on top. Nothing of it
is computed unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iosim.base.records import dataclass, replace
from iosim.base.units import bytes_text
from iosim.base.words import WAYS, Method
from iosim.catalog.algorithms import algorithm_of
from iosim.catalog.libraries.loader import entry_names, was_timed
from iosim.catalog.libraries.resolver import AND
from iosim.hardware.profile import HardwareProfile
from iosim.hardware.trust import L2_KNOWN, RATES_KNOWN, borrowed_l2, unmeasured_rates
from iosim.kernel.conditions import Conditions
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import SPILL, Chain, Mode, Per, is_attention_loop
from iosim.kernel.traffic import Traffic
from iosim.prediction.call import Call
from iosim.prediction.replays import Replays, play_of, tile_accesses
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import memory
from iosim.readers.check_bits import with_check_bits
from iosim.readers.replay.play import Play

ROOMY = 8
"""Calls whose memory fits so many times in the L2 stay in it whatever its constants: copies in two partitions, half of
the lines dirty at most, and pages that fill some sets twice."""
REPLAYED = ("replay", "sampled")
DRIFTS = ("least", "most")
"""As `iosim.readers.replay.play.Play` has them."""
UNEXPLAINED = {"read": (0.03, 200_000), "write": (0.05, 2_000_000), "time": (0.15, 2e-6)}
"""Share, and bytes or seconds, whichever is more, that replays are off where the L2's constants were measured, of 95 %
of recorded rows on an H200 (docs/validation.md); and times where rates were, of nine tenths (docs/timing.md)."""
RATES_OF_OTHERS, NOBODY_MEASURED, LIBRARY_PRODUCTS = 0.22, 0.25, 0.3
"""Shares of a time left unexplained where rates are another GPU's, on a GPU that no measurement at all backs, and of
chains whose products are cuBLAS's, whose tiles are not published. Of 278 times that others published (`iosim validate
--published`) 95 % lie within, and nine tenths of the 97 of an H100; with 0.15 everywhere 80. Others' times of plain
attention are off by up to 0.21 on an A100, 0.23 on a T4 and 0.35 on an RTX A6000, there with one query."""
FEW_QUERIES, FEW_QUERIES_PRODUCTS = 8, 0.52
"""Queries up to which a matrix library runs products in fp32 by kernels of its own (gemvx, gemmSN, of which the tiles
are not published), and the share of such a chain's time that is left unexplained: six calls of PyTorch's math path with
1, 2 and 7 queries on an H200 took 0.57 to 1.52 times what is predicted (h200_math_few_queries.csv)."""
UNTIMED = (0.35, 0.9)
"""Shares that a call may take less, and more, of a catalog kernel that nobody timed or counted on any GPU. Kernels whose
first public times came after their descriptions took 0.68 to 1.92 times as long as predicted: PyTorch's memory-efficient
kernel on a T4 1.72 to 1.92, FlashAttention-2 on GeForce 0.68 to 0.84, cudnn-frontend's backward on an A100, by its
source, 1.6 to 1.8; plain attention, whose passes were then not described, up to 2.6."""
NOTHING = "nothing"
"""What a profile says that has no measurement behind it."""
READ_AGAIN, DRIFTING = 1.25, 0.15
"""HBM reads over the compulsory ones from which on CTAs of a loop may part; and the share that comes on top then."""
RANGE_ACCESSES = 6_000_000
"""Tile accesses that each further replay of a range plays, about: what a range says, two digits bear. With 2 million a
range loses tiles that are read again."""
COUNTED_TOKENS = 131_072
"""Keys that a tile walks up to which counted HBM reads of drifting CTAs agree with predicted ones."""
OUTGROWN = (0.99, 1.36)
"""Shares of the predicted reads that calls beyond it read where tiles are read again, at least and at most, of four
that were counted on an H100: FlashAttention-2 over 262,144 keys 1.11, cuDNN over 524,288 1.21 and over 262,144, causal,
1.00, the memory-efficient kernel over 262,144, causal, 1.35."""
HBM_RATES = tuple(f"dram_{way}_bandwidth_bytes_per_s" for way in ("read", "write", "copy"))
"""Known or not known together."""
CONFIRMED = "counted, within 0.1 % of an H200's counters where library kernels were recorded"


@dataclass(frozen=True)
class HbmRange:
    """Least and most bytes read and written at HBM, check bits of ECC in line among them; `constants` of the L2 are
    borrowed, each with the least and the most that is known of any GPU; `drifts`: CTAs may part, so that tiles are read
    again."""

    read: tuple[int, int]
    write: tuple[int, int]
    constants: Mapping[str, tuple[float, float]]
    drifts: bool = False
    outgrown: bool = False
    """True where CTAs may drift and walk over more keys than where counted reads agree with predicted ones."""

    @property
    def total(self) -> tuple[int, int]:
        return self.read[0] + self.write[0], self.read[1] + self.write[1]

    def to_dict(self) -> dict[str, Any]:
        constants = {name: list(values) for name, values in self.constants.items()}
        hbm = {"read": list(self.read), "write": list(self.write)}
        return {
            "hbm": hbm,
            "constants": constants,
            "drifts": self.drifts,
            "outgrown": self.outgrown,
        }


@dataclass(frozen=True)
class TimeRange:
    """Least and most seconds of a call; `rates` were not measured on its GPU, each with the factors by which it may be
    slower and faster; `untimed`: nobody counted or timed the kernel on any GPU."""

    seconds: tuple[float, float]
    rates: Mapping[str, tuple[float, float]]
    untimed: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            "time_s": list(self.seconds),
            "rates": {name: list(values) for name, values in self.rates.items()},
            "untimed": self.untimed,
        }


def may_drift(call: Call, read: int) -> bool:
    """True where CTAs of a loop may part: what is read from HBM, `read` bytes, is read again and again."""
    return read > READ_AGAIN * call.bounds.compulsory_read and any(
        map(is_attention_loop, call.chain.launches)
    )


def has_outgrown(call: Call, read: int) -> bool:
    """True where CTAs may drift and walk over more keys than where counted reads agree with predicted ones."""
    return may_drift(call, read) and max(call.problem.seq_q, call.problem.seq_k) > COUNTED_TOKENS


def hbm_range(
    call: Call, method: Method, l2_start: str, predicted: tuple[int, int]
) -> HbmRange | None:
    """The range of a call whose replay found so many bytes read and written; None where no L2 was played, or its
    constants are the GPU's own and CTAs read no tile again."""
    constants = {name: L2_KNOWN[name] for name in borrowed_l2(call.profile)}
    drifts = may_drift(call, predicted[0])
    if method not in REPLAYED or not (constants or drifts or call.profile.ecc == "inline"):
        return None
    several, outgrown = [predicted], has_outgrown(call, predicted[0])
    # A call that fits many times in the L2 reads every tensor once whatever the constants: no further
    # replays.
    if memory(call.chain)["peak"] * ROOMY > call.profile.levels[-1].bytes:
        # Up to four replays more: the L2 that holds least and the one that holds most, CTAs that part least
        # and most. The range spans all of them, widened by what is left unexplained. Over so many keys that
        # the model of drift is known to fail, what it says of CTAs that part is not asked for.
        sampled = tile_accesses(call.chain) > RANGE_ACCESSES
        play = play_of(call, "sampled" if sampled else method, l2_start, RANGE_ACCESSES)
        several += [_again(call, profile, play) for profile in extremes(call.profile, constants)]
        several += [
            _again(call, call.profile, replace(play, drift=drift))
            for drift in DRIFTS
            if drifts and not outgrown
        ]
    margins = {"read": DRIFTING if drifts else 0.0, "write": 0.0}
    read, write = (
        tuple(map(int, _widened(alternatives, direction, margins[direction])))
        for alternatives, direction in zip(zip(*several, strict=True), WAYS, strict=True)
    )
    # There the range is that of what was counted.
    if outgrown:
        read = (
            min(read[0], round(OUTGROWN[0] * predicted[0])),
            max(read[1], round(OUTGROWN[1] * predicted[0])),
        )
    # Compulsory bytes are a floor unless the L2 is warm or less was predicted.
    if l2_start != "warm":  # no L2 spares these
        read = max(read[0], min(call.bounds.compulsory_read, predicted[0])), read[1]
    ends = with_check_bits((read[0], read[1]), (write[0], write[1]), predicted[1], call.profile)
    return HbmRange(*ends, constants, drifts, outgrown)


def time_range(
    call: Call, traffic: Traffic, predicted_s: float, conditions: Conditions
) -> TimeRange | None:
    """The range of a call that was predicted to take `found_s`; None where its GPU's rates were measured."""
    rates = {name: RATES_KNOWN[name] for name in unmeasured_rates(call.profile)}
    if not rates:
        return None
    # All unmeasured rates at their slowest together, then all at their fastest.
    profiles = (
        _scaled(call.profile, {name: shares[end] for name, shares in rates.items()})
        for end in (0, 1)
    )
    others = (
        replace(call, profile=profile).time(traffic, conditions).total_s for profile in profiles
    )
    share = NOBODY_MEASURED if call.profile.backed_by == NOTHING else RATES_OF_OTHERS
    if algorithm_of(call.kernel.algorithm).standard:
        few = call.problem.longest_q <= FEW_QUERIES and _fp32_products(call.chain)
        share = max(share, FEW_QUERIES_PRODUCTS if few else LIBRARY_PRODUCTS)
    least, most = _widened((predicted_s, *others), "time", share)
    untimed = not _somebody_timed(call)
    if untimed:
        less, more = UNTIMED
        least, most = min(least, predicted_s * (1 - less)), max(most, predicted_s * (1 + more))
    return TimeRange((least, most), rates, untimed)


def _somebody_timed(call: Call) -> bool:
    """False where it is a catalog kernel, or two of them, and of a pass that it makes no time is known on any GPU."""
    passes = {"fwd": (False,), "bwd": (True,), "fwd+bwd": (False, True)}[call.problem.passes]
    forward, _, backward = call.kernel.name.partition(AND)
    names = {False: forward, True: backward or forward}
    return all(
        names[passed] not in entry_names() or was_timed(names[passed], passed) for passed in passes
    )


def _widened(several: tuple[float, ...], direction: str, share: float = 0.0) -> tuple[float, float]:
    # A share of the value, or so many bytes (seconds) where that is more.
    (unexplained, least), low, high = UNEXPLAINED[direction], min(several), max(several)
    share = max(share, unexplained)
    return max(0, low - max(share * low, least)), high + max(share * high, least)


def extremes(
    profile: HardwareProfile, constants: Mapping[str, tuple[float, float]]
) -> list[HardwareProfile]:
    """The GPU with an L2 that holds least, and with one that holds most; each once, and not as it is."""
    # An L2 of two partitions holds less of what all SMs read: there the larger number holds least.
    least = {name: values[name == "l2_partitions"] for name, values in constants.items()}
    largest = {name: values[name != "l2_partitions"] for name, values in constants.items()}
    as_it_is = {name: getattr(profile, name) for name in constants}
    others: list[dict[str, Any]] = [changes for changes in (least, largest) if changes != as_it_is]
    return [replace(profile, **changes) for changes in others]


def _again(call: Call, profile: HardwareProfile, play: Play) -> tuple[int, int]:
    traffic = Replays().of(Call.of(call.problem, call.kernel, profile, call.chain), play).traffic
    return int(traffic.total("hbm", "read")), int(traffic.total("hbm", "write"))


def _scaled(profile: HardwareProfile, factors: Mapping[str, float]) -> HardwareProfile:
    changed: dict[str, Any] = {}
    for name, factor in factors.items():
        for rate in HBM_RATES if name == HBM_RATES[0] else (name,):
            value = getattr(profile, rate)
            if isinstance(value, Mapping):
                changed[rate] = {
                    dtype: rate_of_type * factor for dtype, rate_of_type in value.items()
                }
            else:
                changed[rate] = value and value * factor
    return replace(profile, **changed)


def exactness(problem: AttentionProblem, kernel: Kernel, chain: Chain, traffic: Traffic) -> str:
    """In a few words: that SM<->L2 bytes are counted, and which of them counters do not confirm to 0.1 %
    (docs/validation.md); that follows from the description of the launches, never from a kernel's name."""
    exceptions = []
    spilled = sum(int(r.bytes) for r in traffic if r.level == "l2" and r.tensor == SPILL)
    if spilled:
        exceptions.append(
            f"the {bytes_text(spilled)} of spilled registers, counted at a few lengths"
        )
    if problem.backward and _inferred_stores(chain):
        exceptions.append("the backward's writes, whose packets are inferred (up to 7 % off)")
    if algorithm_of(kernel.algorithm).standard and _fp32_products(chain):
        exceptions.append(
            "reads of fp32 products that find data in L1, which is not modelled (up to 21 % too many)"
        )
    return f"{CONFIRMED}{' but for ' if exceptions else ''}{' and '.join(exceptions)}"


def _inferred_stores(chain: Chain) -> bool:
    overheads = (o for launch in chain.launches for o in launch.overheads)
    return any(o.inferred_from and o.mode is Mode.STORE and o.name != SPILL for o in overheads)


def _fp32_products(chain: Chain) -> bool:
    products = (launch for launch in chain.launches if launch.work.flops_per_pair)
    loads = (
        a
        for launch in products
        for a in launch.accesses
        if a.per is Per.PAIR and a.mode is Mode.LOAD
    )
    return any(chain.tensors[a.tensor].element_bytes == 4 for a in loads)
