"""Energy of a launch by level, and the clock that power allows.

Each kind of work costs a fixed energy at the highest clock of the tensor cores: bytes at HBM, at the L2 and at shared
memory, operations of the tensor cores, instructions of the other units. Inside the SMs and the L2 it falls with the
clock, since the voltage falls with it: by `energy_clock_exponent`, near 2. What is awake costs `awake_power_w` all the
time. The constants of a GPU are those of its profile; docs/timing.md says how they were measured. A GPU without takes
an H200's, all that moves times its `energy_factor`, with a range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

from iosim.base.records import dataclass
from iosim.hardware.profile import HardwareProfile, load_profile

CONSTANTS = (
    "awake_power_w", "energy_clock_exponent", "hbm_read_pj_per_byte", "hbm_write_pj_per_byte", "l2_read_pj_per_byte",
    "l2_write_pj_per_byte", "shared_pj_per_byte", "tensor_pj_per_flop", "mma_sync_pj_per_flop", "warp_instruction_pj",
)  # fmt: skip
"""The profile's values that energy needs; all of them or none."""
IDLE_ROW_SHARE = 0.17
"""Energy of a product of zeros beside one of random numbers: rows of a tile that hold no query. wgmma on an H200,
287 - 143 W of zeros against 0.86 pJ a FLOP of random numbers, operands included
(experiments/measurements/h200_power.csv)."""
MMA_FLOPS = 4096
"""Operations of a warp's mma.sync (m16n8k16), an instruction like any other; wgmma's are too few to count."""
INSTRUCTIONS_PER_SCORE = 13.0
"""Instructions a thread executes for each score, products aside: 12 to 14.5 in FlashAttention-2's and cuDNN's forward
(counted by the profiler: smsp__inst_executed less pipe_tensor, at 512 to 16k tokens, head_dim 64 and 128)."""


TEMPLATE = "h200-sxm"
"""The GPU whose constants others take."""
AWAKE_SHARE = 0.2
"""Of the board's power, what being awake takes: 0.20 on an H200, 0.19 on an H100."""
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
    """Whether the profile holds all constants of energy, and the power limit of the board."""
    return all(getattr(profile, name) is not None for name in (*CONSTANTS, "power_w"))


@dataclass(frozen=True)
class Energies:
    """Constants of energy of a GPU, by their names in the profile; what is not awake costs `factor` times as much."""

    pj: Mapping[str, float]
    exponent: float
    top_hz: float
    """The clock at which they hold."""
    power_w: float
    """What the board draws at most, for seconds."""
    factor: float = 1.0
    ends: tuple[float, float] | None = None
    """Least and most of what moves, as shares of what is said; None where the constants were measured."""

    def between(self, by_level: Mapping[str, float], seconds: float) -> tuple[float, float] | None:
        """Least and most joules, of what `energy_j` says by level; None where the constants were measured."""
        if self.ends is None:
            return None
        awake = by_level["awake"]
        moved, most = sum(by_level.values()) - awake, self.power_w * seconds
        least, highest = (awake + moved * end for end in self.ends)
        return min(least, most), min(highest, most)


def energies(profile: HardwareProfile) -> Energies | None:
    """The constants of a GPU, its own or taken; None where its power or clock is not known."""
    top, power = (profile.boost_clock_hz or 0.0) * (profile.tensor_clock_fraction or 1.0), profile.power_w
    if not top or not power:
        return None
    exponent = profile.need("energy_clock_exponent")
    if is_known(profile):
        return Energies({name: float(profile.need(name)) for name in CONSTANTS}, exponent, top, power)
    pj, factor = {**template(), "awake_power_w": AWAKE_SHARE * power}, profile.need("energy_factor")
    return Energies(pj, exponent, top, power, factor, TAKEN_RANGE)


@cache
def template() -> Mapping[str, float]:
    found = energies(load_profile(TEMPLATE))
    assert found is not None
    return found.pj


def energy_j(done: Activity, of: Energies, clock_hz: float, seconds: float) -> dict[str, float]:
    """Joules by level: "hbm", "l2", "smem", "tensor", "instructions", and "awake" for what the time costs. By constants
    that were taken, no more than the board's power allows.

    Args:
        clock_hz: of the SMs; the constants hold at the highest clock at which tensor cores work.
    """
    pj, scale = of.pj, 1e-12 * of.factor * (clock_hz / of.top_hz) ** of.exponent
    hbm = done.hbm_read * pj["hbm_read_pj_per_byte"] + done.hbm_written * pj["hbm_write_pj_per_byte"]
    found = {
        "hbm": 1e-12 * of.factor * hbm,
        "l2": scale * (done.l2_read * pj["l2_read_pj_per_byte"] + done.l2_written * pj["l2_write_pj_per_byte"]),
        "smem": scale * done.shared * pj["shared_pj_per_byte"],
        "tensor": scale * done.product_flops * done.product_share * pj[done.product_energy],
        "instructions": scale * done.warp_instructions * pj["warp_instruction_pj"],
    }
    awake, moved = pj["awake_power_w"] * seconds, sum(found.values())
    most = math.inf if of.ends is None else of.power_w * seconds - awake
    return {**{level: joules * min(1.0, most / (moved or 1.0)) for level, joules in found.items()}, "awake": awake}
