"""Energy of a launch by level, and the clock that power allows.

Each kind of work costs a fixed energy at the highest clock of the tensor cores: bytes at HBM, at the L2 and at shared
memory, operations of the tensor cores, instructions of the other units. Inside the SMs and the L2 it falls with the
clock, since the voltage falls with it: by `energy_clock_exponent`, near 2. What is awake costs `awake_power_w` all the
time. The constants of a GPU are those of its profile; docs/timing.md says how they were measured. A GPU without takes
an H200's, all that moves times its `energy_factor`, and no more than its large products leave, with a range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from iosim.base.records import dataclass, replace
from iosim.hardware.profile import HardwareProfile, load_profile

CONSTANTS = (
    "awake_power_w",
    "energy_clock_exponent",
    "hbm_read_pj_per_byte",
    "hbm_write_pj_per_byte",
    "l2_read_pj_per_byte",
    "l2_write_pj_per_byte",
    "shared_pj_per_byte",
    "tensor_pj_per_flop",
    "mma_sync_pj_per_flop",
    "warp_instruction_pj",
)
"""The profile's values that energy needs; all of them or none."""
IDLE_ROW_SHARE = 0.17
"""Energy of a product of zeros beside one of random numbers: rows of a tile that hold no query. wgmma on an H200,
287 - 143 W of zeros against 0.86 pJ a FLOP of random numbers, operands included
(experiments/measurements/h200_power.csv)."""
MMA_FLOPS = 4096
"""Operations of a warp's mma.sync (m16n8k16), an instruction like any other; wgmma's are too few to count."""
FMA_FLOPS = 64
"""Operations of a warp's multiply-add on the fp32 units, an instruction like any other. So counted, large products in
fp32 draw more than a T4's and an L4's board has: they reach 4.2 to 4.4 and 15.4 TFLOP/s there, half of the specified
rates (zzc0721/torch-performance-test-data @9d82827)."""
INSTRUCTIONS_PER_SCORE = 13.0
"""Instructions a thread executes for each score, products aside, where a build's were not counted: 12 to 14.5 in
PyTorch's FlashAttention-2 and in cuDNN's forward (counted by the profiler: smsp__inst_executed less pipe_tensor, at 512
to 16k tokens, head_dim 64 and 128)."""
PRODUCT_TILE, PRODUCT_WARP = (128, 256), (64, 64)
"""Rows and columns of a tile of a large product, whose operands come from the L2, and of a warp's part of it, whose
operands come from shared memory where mma.sync computes it (CUTLASS's largest). With these and its own constants an
H200's large products draw 694 W at 770 TFLOP/s, an H100's 738 at 794; both boards have 700."""
PRODUCTS = ("tensor_pj_per_flop", "mma_sync_pj_per_flop")
"""Energies of a FLOP, the second where mma.sync is the fastest."""
ON_CHIP = (*PRODUCTS, "l2_read_pj_per_byte", "l2_write_pj_per_byte", "shared_pj_per_byte")
"""Energies of what large products move inside the GPU, which their power bounds together."""
SIXTEEN_BITS = ("fp16", "bf16")
TEMPLATE = "h200-sxm"
"""The GPU whose constants others take."""
AWAKE_SHARE = 0.2
"""Share of the board's power that being awake takes: 0.20 on an H200, 0.19 on an H100."""
TAKEN_RANGE = (0.75, 1.25)
"""Least and most of what `energy_factor` may be, as shares: published boards lie 18 % below and 11 % above theirs
(`python benchmarks/power_error.py`), an H100 14 % above its architecture's."""


@dataclass(frozen=True)
class Activity:
    """What a launch does that costs energy: bytes by level, FLOPs of products, the profile's name for the energy of one
    and the share of it that operands of their width take, and warp instructions."""

    hbm_read: float = 0.0
    hbm_written: float = 0.0
    l2_read: float = 0.0
    l2_written: float = 0.0
    shared: float = 0.0
    product_flops: float = 0.0
    product_energy: str = "tensor_pj_per_flop"
    product_share: float = 1.0
    warp_instructions: float = 0.0


def is_known(profile: HardwareProfile) -> bool:
    """True where the profile holds all constants of energy, the power limit of the board, and the clock."""
    return all(
        getattr(profile, name) is not None for name in (*CONSTANTS, "power_w", "boost_clock_hz")
    )


@dataclass(frozen=True)
class Energies:
    """Constants of energy of a GPU, by their names in the profile."""

    pj: Mapping[str, float]
    exponent: float
    top_hz: float
    """The clock at which they hold."""
    power_w: float
    """What the board draws at most, for seconds."""
    peak_power_w: float
    """What the board draws at most in a call after a pause."""
    ends: tuple[float, float] | None = None
    """Least and most of what moves, as shares of what is said; None where the constants were measured."""

    def between(self, by_level: Mapping[str, float], seconds: float) -> tuple[float, float] | None:
        """Least and most joules, of what `energy_j` says by level; None where the constants were measured."""
        if self.ends is None:
            return None
        awake = by_level["awake"]
        moving_j, limit_j = math.fsum(by_level.values()) - awake, self.peak_power_w * seconds
        least, highest = (awake + moving_j * end for end in self.ends)
        return min(least, limit_j), min(highest, limit_j)


def energies(profile: HardwareProfile) -> Energies | None:
    """The constants of a GPU, its own or taken; None where neither its power nor its products, or no clock is known.

    A FLOP, and a byte at the L2 and at shared memory, cost what is taken for them, or less by one share, so that large
    products draw the board's power and no more at the rate that they reach (`tensor_flops_achieved_per_s`). One share
    of all, since their power tells the sum alone: by products alone an L40S's FLOP would cost a third of an H200's,
    which is of the same process. Products that reach the highest clock are not held by power, which bounds their
    energies and does not tell them: `on_chip_energy_share` is then that of a board of the same chip whose products are.
    Where the board's power is not known, it is what they draw.
    """
    top, exponent = (
        (profile.boost_clock_hz or 1.0) * (profile.tensor_clock_fraction or 1.0),
        "energy_clock_exponent",
    )
    limits = profile.power_w or 0.0, profile.peak_power_w or profile.power_w or 0.0
    if is_known(profile):
        constants = {name: float(profile.need(name)) for name in CONSTANTS}
        return Energies(constants, profile.need(exponent), top, *limits)
    factor, template = profile.need("energy_factor"), load_profile(TEMPLATE)
    pj = {name: factor * template.need(name) for name in CONSTANTS}
    pj |= {name: (profile.on_chip_energy_share or 1.0) * pj[name] for name in ON_CHIP}
    # Unknown GPU: a known one's energies, scaled; then fitted so that large products draw no more
    # than the board's power at the rate that they reach.
    taken = Energies(pj, profile.need(exponent), top, *limits, TAKEN_RANGE)
    drawn = _of_large_products(profile, taken)
    power = profile.power_w or math.fsum(drawn.values()) / (1 - AWAKE_SHARE)
    rest_w = (1 - AWAKE_SHARE) * power - math.fsum(drawn.values())
    on_chip_w = math.fsum(drawn[level] for level in ("l2", "smem", "tensor"))
    share = max(0.0, min(1.0, 1.0 + rest_w / (on_chip_w or math.inf)))
    pj |= {"awake_power_w": AWAKE_SHARE * power} | {name: share * pj[name] for name in ON_CHIP}
    with_limits = replace(taken, power_w=power, peak_power_w=profile.peak_power_w or power)
    return with_limits if power and profile.boost_clock_hz else None


def _of_large_products(profile: HardwareProfile, of: Energies) -> dict[str, float]:
    """Watts by level that large products of 16 bits draw, but for being awake, at the rate that they reach and in as
    many cycles of tensor cores as that takes; 0 where their rate is not known."""
    reached = {name: profile.tensor_flops_achieved_per_s.get(name, 0.0) for name in SIXTEEN_BITS}
    dtype = max(reached, key=lambda name: reached[name])
    rate, rated = reached[dtype], profile.rated_clock_hz or profile.sustained_clock_hz or of.top_hz
    by_mma = profile.mma_sync_tensor_fraction is None
    done = Activity(
        l2_read=rate * math.fsum(1 / side for side in PRODUCT_TILE),
        shared=rate * math.fsum(1 / side for side in PRODUCT_WARP) * by_mma,
        product_flops=rate,
        product_energy=PRODUCTS[by_mma],
        warp_instructions=rate / MMA_FLOPS * by_mma,
    )
    clock_hz = min(of.top_hz, rated * rate / profile.tensor_flops_per_s.get(dtype, math.inf))
    return energy_j(done, of, clock_hz, 0.0)


def energy_j(done: Activity, of: Energies, clock_hz: float, seconds: float) -> dict[str, float]:
    """Joules by level: "hbm", "l2", "smem", "tensor", "instructions", and "awake" for what the time costs.

    Args:
        clock_hz: of the SMs; the constants hold at the highest clock at which tensor cores work.
    """
    pj, scale = of.pj, 1e-12 * (clock_hz / of.top_hz) ** of.exponent
    return {
        "hbm": 1e-12
        * (
            done.hbm_read * pj["hbm_read_pj_per_byte"]
            + done.hbm_written * pj["hbm_write_pj_per_byte"]
        ),
        "l2": scale
        * (done.l2_read * pj["l2_read_pj_per_byte"] + done.l2_written * pj["l2_write_pj_per_byte"]),
        "smem": scale * done.shared * pj["shared_pj_per_byte"],
        "tensor": scale * done.product_flops * done.product_share * pj[done.product_energy],
        "instructions": scale * done.warp_instructions * pj["warp_instruction_pj"],
        "awake": pj["awake_power_w"] * seconds,
    }


def mean_power_w(joules: Mapping[str, float] | None, seconds: float) -> float | None:
    """Mean power of the board, in watts, of joules by level; None where they are not known."""
    return math.fsum(joules.values()) / seconds if joules is not None and seconds else None
