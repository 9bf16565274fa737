"""Time of a launch from the rates of a profile: a roofline with one ceiling a resource.

Every launch takes the longest of: HBM bytes over bandwidth, L2 bytes over bandwidth, matrix operations over the tensor
rate with wave quantisation, exponentials over the special-function rate, and the latency of a launch. Launches of a
chain run one after the other. NB: overlap of matrix work and exponentials is taken as perfect, so times of kernels that
do not overlap them are too short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from iosim.errors import InputError
from iosim.hardware import HardwareProfile
from iosim.launch import Chain, Launch
from iosim.problem import AttentionProblem
from iosim.residency import Residency, residency
from iosim.traffic import Traffic

LAUNCH_LATENCY_S = 3.0e-6
"""Shortest duration of a small attention launch in kernels/measurements/h200_library_kernels.csv, rounded down."""


@dataclass(frozen=True)
class LaunchTime:
    """Seconds that each resource alone would need, and the longest of them."""

    name: str
    seconds: dict[str, float]
    waves: float

    @property
    def bound_by(self) -> str:
        return max(self.seconds, key=lambda k: self.seconds[k])

    @property
    def total_s(self) -> float:
        return max(self.seconds.values())


@dataclass(frozen=True)
class ChainTime:
    """Times of a chain's launches, at one set of ceilings."""

    launches: tuple[LaunchTime, ...]
    ceilings: str
    missing: tuple[str, ...]

    @property
    def total_s(self) -> float:
        return sum(t.total_s for t in self.launches)

    @property
    def bound_by(self) -> str:
        """The resource that bounds the launches which take the longest together."""
        share: dict[str, float] = {}
        for t in self.launches:
            share[t.bound_by] = share.get(t.bound_by, 0.0) + t.total_s
        return max(share, key=lambda k: share[k]) if share else "latency"

    def to_dict(self) -> dict[str, Any]:
        return {
            "ceilings": self.ceilings,
            "time_s": self.total_s,
            "bound_by": self.bound_by,
            "launches": [{"name": t.name, "time_s": t.total_s, "bound_by": t.bound_by, "seconds": t.seconds,
                          "waves": t.waves} for t in self.launches],
        }  # fmt: skip


def executed_pairs(launch: Launch) -> int:
    """(query row, key row) pairs that a launch computes: whole tiles of every visited pair of blocks."""
    d = launch.domain
    return int(d.visited.count.sum()) * d.block_q * d.block_k * d.grid_heads


def quantisation(launch: Launch, held: Residency) -> float:
    """Time of the launch over that of the same work spread evenly: whole waves for equal tiles, half of the longest
    tile as the tail for unequal ones."""
    work = launch.domain.visited.count.astype(np.float64)
    tiles, slots = launch.work_tiles, held.slots
    if launch.outer in ("k", "qk", "head", "flat") or float(work.max(initial=0.0)) == float(work.min(initial=0.0)):
        return -(-tiles // slots) * slots / tiles
    mean, longest = float(work.mean()), float(work.max())
    even = mean * tiles / slots
    return max(even + longest / 2, longest) / even


class _Rates:
    """Ceilings of a profile; what is unknown is remembered, not guessed."""

    def __init__(self, profile: HardwareProfile, measured: bool) -> None:
        self.profile = profile
        self.measured = measured
        self.missing: list[str] = []

    def hbm(self) -> float | None:
        best = self.profile.dram_bandwidth_measured_bytes_per_s if self.measured else None
        best = best or self.profile.dram_bandwidth_bytes_per_s
        return best if best else self._absent("dram_bandwidth_bytes_per_s")

    def l2(self, footprint: int) -> float | None:
        try:
            return self.profile.l2_read_bandwidth(footprint)
        except InputError:
            best = self.profile.l2_read_bandwidth_bytes_per_s
            return best if best else self._absent("l2_read_bandwidth_bytes_per_s")

    def tensor(self, dtype: str) -> float | None:
        for measured in (True, False) if self.measured else (False,):
            try:
                return self.profile.tensor_flops(dtype, measured=measured)
            except InputError:
                continue
        if dtype in ("bf16", "fp16", "tf32") and self.profile.fp32_flops_per_s:
            self.missing.append(f"no {dtype} tensor rate: fp32 units' rate used")
            return self.profile.fp32_flops_per_s
        return self._absent(f"tensor_flops_per_s.{dtype}")

    def exp(self) -> float | None:
        p = self.profile
        clock = (p.sustained_clock_hz if self.measured else None) or p.boost_clock_hz
        if p.exp_per_clock_per_sm is None or clock is None:
            return self._absent("exp_per_clock_per_sm")
        return p.exp_per_clock_per_sm * clock * p.sm_count

    def _absent(self, what: str) -> float | None:
        text = f"{self.profile.name} does not know {what}: its ceiling is left out"
        if text not in self.missing:
            self.missing.append(text)
        return None


def chain_time(
    problem: AttentionProblem, chain: Chain, traffic: Traffic, profile: HardwareProfile, *, measured: bool = True
) -> ChainTime:
    """Time of a chain whose `traffic` holds rows at l2 and hbm.

    Args:
        measured: use measured bandwidths and rates where the profile has them; else the specification's alone.
    """
    rates = _Rates(profile, measured)
    times = []
    for launch in chain.launches:
        held = residency(launch, profile)
        stretch = quantisation(launch, held)
        seconds: dict[str, float] = {"latency": LAUNCH_LATENCY_S}
        l2_bytes = traffic.total("l2", launch=launch.name)
        hbm_bytes = traffic.total("hbm", launch=launch.name)
        footprint = sum(chain.tensors[a.tensor].bytes for a in launch.accesses)
        hbm, l2, exp = rates.hbm(), rates.l2(footprint), rates.exp()
        if hbm:
            seconds["hbm"] = hbm_bytes / hbm
        if l2:
            seconds["l2"] = l2_bytes / l2
        pairs = executed_pairs(launch)
        if launch.flops_per_pair:
            rate = rates.tensor(problem.dtype if launch.tensor_cores else "fp32")
            if rate:
                seconds["tensor"] = pairs * launch.flops_per_pair / rate * stretch
        if launch.exps_per_pair and exp:
            seconds["exp"] = pairs * launch.exps_per_pair / exp * stretch
        times.append(LaunchTime(launch.name, seconds, held.waves))
    return ChainTime(tuple(times), "measured" if measured else "specification", tuple(rates.missing))
