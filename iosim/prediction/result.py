"""Prediction: the result of predict(), as data and JSON; and the marks of HBM bytes that are estimates, with the line
that says what they mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.records import cached_property, dataclass, field
from iosim.base.words import WAYS, Level, Method, Way
from iosim.catalog.algorithms.registry import operations
from iosim.hardware.profile import HardwareProfile
from iosim.hardware.trust import Evidence, evidence
from iosim.kernel.conditions import ALONE, Conditions
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain, LaunchRole
from iosim.kernel.traffic import CHECK_BITS, CODE, Traffic
from iosim.prediction import ranges
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import HbmBounds
from iosim.readers.replay.replay import Replay
from iosim.readers.timing.chain_time import ChainTime, ceiling_s
from iosim.readers.timing.launch_time import LaunchTime
from iosim.show.shown import Faced
from iosim.show.tables import Marked, Table

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Moved:
    """Bytes at one level: read is towards the SMs."""

    read: int
    """Bytes read."""
    write: int
    """Bytes written."""

    @property
    def total(self) -> int:
        """Bytes read and written."""
        return self.read + self.write


@dataclass(frozen=True, repr=False)
class Prediction(Faced):
    """Bytes by level, launch, tensor and direction; bounds; time; memory; and notes on how they were found. `traffic`
    has rows at level "l2" (SM<->L2, counted), unless the method is "bounds" at "hbm", at "smem" (shared memory,
    counted) of launches whose fragments are known, and at "side" (L2s<->memory-side cache) on GPUs that have one, where
    it was played."""

    _face = "iosim.prediction.face"

    call: Call
    """The problem, the kernel and the GPU, with the launches and the bytes that were counted of them."""
    traffic: Traffic
    """Bytes by launch, level, tensor and direction."""
    hbm_bounds: HbmBounds
    """The least bytes at HBM, and those with no L2."""
    l2_start: str
    """The L2 at the start: "cold" (flushed) or "warm", as the same call just before left it with its dirty lines."""
    method: Method
    """How bytes at HBM were found: "replay", "sampled" (a replay of a part), "capacity" (an estimate), "bounds"."""
    time: ChainTime
    """Seconds by launch and resource, at measured rates where the GPU's profile has them."""
    time_specification: ChainTime
    """Seconds by launch and resource at the rates of the GPU's specification alone."""
    memory_bytes: dict[str, int]
    """Bytes of GPU memory: "workspace" (made inside the call) and "peak" (with all inputs and outputs)."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers should know, a sentence each."""
    conditions: Conditions = field(default=ALONE, repr=False)
    """How the call was asked to meet the GPU."""
    replay: Replay | None = field(default=None, repr=False)
    """The replay behind the bytes at HBM; None where there was none."""

    @property
    def hbm(self) -> Moved:
        """Bytes between L2 and device memory (HBM, or GDDR where the GPU has that), as a counter shows them: with
        `check_bits`. Raises InputError: the method is "bounds", which gives `hbm_bounds` alone."""
        return Moved(self.total("hbm", "read"), self.total("hbm", "write"))

    @property
    def check_bits(self) -> Moved:
        """Bytes of `hbm` that are check bits of ECC in the same memory; none where the GPU keeps them elsewhere."""
        return Moved(*(int(self.traffic.total("hbm", way, tensor=CHECK_BITS)) for way in WAYS))

    @property
    def hbm_payload(self) -> Moved:
        """Bytes of `hbm` without check bits: what rates of memory count. Raises InputError: as `hbm`."""
        return Moved(self.hbm.read - self.check_bits.read, self.hbm.write - self.check_bits.write)

    @property
    def l2(self) -> Moved:
        """Bytes between SMs and L2, exact."""
        return Moved(self.total("l2", "read"), self.total("l2", "write"))

    @property
    def smem(self) -> Moved | None:
        """Bytes between shared memory and what computes: read out of it, written into it; None where the fragments of
        a launch are not known."""
        return (
            Moved(self.total("smem", "read"), self.total("smem", "write"))
            if self.smem_known()
            else None
        )

    @property
    def side(self) -> Moved | None:
        """Bytes between the L2s and the cache at the memory's side; None where the GPU has none, or none was played."""
        if not self.profile.memory_side_bytes or self.replay is None:
            return None
        return Moved(self.total("side", "read"), self.total("side", "write"))

    @property
    def l2_hit_rate(self) -> float | None:
        """Share of the bytes read from an L2, those that atomic adds read among them, that lie in it; None where no
        replay tells. What another partition of the same L2 holds counts as there."""
        if self.replay is None:
            return None
        # Atomic adds read at the L2 what they add to; code is read beside what SMs ask for.
        requested = self.l2.read + sum(sum(adds.values()) for adds in self.call.added)
        level: Level = "hbm" if self.side is None else "side"
        bytes_of = self.traffic.payload.tensors(level)
        missed = sum(
            int(n) for (name, way), n in bytes_of.items() if way == "read" and name != CODE
        )
        return max(0.0, 1 - missed / requested) if requested else None

    def smem_known(self, launch: str | None = None) -> bool:
        """True where the fragments of a launch, or of all, are known."""
        return all(n.work.fragments for n in self.chain.launches if launch in (None, n.name))

    @property
    def time_s(self) -> float:
        """Seconds of the call on the GPU."""
        return self.time.total_s

    @property
    def ceiling_s(self) -> float:
        """Seconds of the HBM bytes or the products, whichever are longer in each launch, at the specification's
        ceilings: never above `time_s`."""
        fastest_hz = max((launch.clock_hz or 0.0 for launch in self.time.launches), default=0.0)
        return ceiling_s(self.problem, self.chain, self.traffic.payload, self.profile, fastest_hz)

    @property
    def energy_j(self) -> dict[str, float] | None:
        """Energy in joules by level: "hbm", "l2", "smem", "tensor", "instructions", and "awake" (what the time costs);
        None where the GPU's constants are not known."""
        return self.time.energy_j

    @property
    def energy_range_j(self) -> tuple[float, float] | None:
        """Least and most joules where energies were not measured on the GPU; None elsewhere."""
        return self.time.energy_range_j

    @property
    def bound_by(self) -> str:
        """What bounds the time: tensor, exp, smem, l2, hbm or latency."""
        return self.time.bound_by

    @property
    def problem(self) -> AttentionProblem:
        """What is computed."""
        return self.call.problem

    @property
    def kernel(self) -> Kernel:
        """How it is computed: its tile and settings as resolved for the problem and the GPU."""
        return self.call.kernel

    @property
    def profile(self) -> HardwareProfile:
        """The GPU."""
        return self.call.profile

    @property
    def chain(self) -> Chain:
        """The launches of the call, in order, with their tensors."""
        return self.call.chain

    def times_of(self, role: LaunchRole) -> tuple[LaunchTime, ...]:
        """The times of the launches of a role, in order."""
        names = {launch.name for launch in self.chain.launches if launch.role is role}
        return tuple(time for time in self.time.launches if time.name in names)

    def total(self, level: Level, direction: Way | None = None) -> int:
        """Bytes at "l2", "hbm", "smem" or "side", read, written or both. Raises InputError: another level or direction,
        "hbm" of a prediction that knows its bounds alone, or "smem" where a launch's fragments are not known."""
        if level == "smem" and not self.smem_known():
            raise InputError(
                f"`level` 'smem' is not known of kernel {self.kernel.name}; accepted: l2, hbm"
            )
        if level == "hbm" and not self.hbm_known:
            raise InputError(
                "`level` 'hbm' is not known with `method` bounds; accepted: l2, or the bounds themselves"
            )
        return int(self.traffic.total(level, direction))

    @property
    def flops(self) -> int:
        """Operations of the matrix products, of softmax attention those over kept pairs, as the kernel reads the
        problem."""
        return operations(self.problem, self.kernel, self.chain)[0]

    @property
    def evidence(self) -> Evidence:
        """How far the bytes at HBM and the times can be trusted: what the models of this GPU rest on."""
        return evidence(self.profile)

    @cached_property
    def hbm_range(self) -> ranges.HbmRange | None:
        """Least and most bytes at HBM, where constants of the L2 are another GPU's or CTAs may drift apart; None
        elsewhere, or where no L2 was played. Up to four more replays."""
        if not self.hbm_known:
            return None
        data = self.hbm_payload
        return ranges.hbm_range(self.call, self.method, self.l2_start, (data.read, data.write))

    @cached_property
    def time_range(self) -> ranges.TimeRange | None:
        """Least and most seconds, where rates were not measured on this GPU; None where they were."""
        return ranges.time_range(self.call, self.traffic.payload, self.time_s, self.conditions)

    @property
    def exactness(self) -> str:
        """How exact the bytes between SMs and L2 are: what is counted, and which of it no counter confirms."""
        return ranges.exactness(self.problem, self.kernel, self.chain, self.traffic)

    @property
    def missing(self) -> tuple[str, ...]:
        """What is not known of the call, a sentence each."""
        names = [n.name for n in self.chain.launches if not n.work.fragments]
        shared = f"shared-memory bytes are not known: how warps of {', '.join(names)} divide operands is not described"
        return (*self.time.missing, *([shared] if names else []))

    @property
    def hbm_known(self) -> bool:
        """True where bytes at HBM were found, rather than their bounds alone."""
        return self.method != "bounds"

    def _totals(self, launch: str | None = None) -> dict[str, Any]:
        levels: dict[Level, bool] = {
            "hbm": self.hbm_known,
            "side": self.side is not None,
            "l2": True,
        }
        levels["smem"] = self.smem_known(launch)
        return {
            level: {d: int(self.traffic.total(level, d, launch=launch)) for d in WAYS}
            if known
            else None
            for level, known in levels.items()
        }

    def to_dict(self, *, ranged: bool = True) -> dict[str, Any]:
        """One entry of `predictions` in the command line's JSON; bytes are integers. `ranged`: with `range`, for which
        up to four more replays are played; null without."""
        span = self.hbm_range if ranged else None
        return {
            "problem": self.problem.to_dict(),
            "kernel": self.kernel.to_dict(),
            "profile": self.profile.name,
            "l2_start": self.l2_start,
            "l2_end_dirty_bytes": self.replay.dirty_bytes if self.replay else None,
            "l2_hit_rate": self.l2_hit_rate,
            "fabric_bytes": self.replay.fabric_bytes if self.replay else None,
            "method": self.method,
            "totals": self._totals(),
            "check_bits": {"read": self.check_bits.read, "write": self.check_bits.write}
            if self.hbm_known
            else None,
            "launches": [
                {"name": n.name, "totals": self._totals(n.name)} for n in self.chain.launches
            ],
            "traffic": [row.to_dict() for row in self.traffic],
            "hbm_bounds": self.hbm_bounds.to_dict(),
            "range": None if span is None else span.to_dict(),
            "flops": self.flops,
            "exps": operations(self.problem, self.kernel, self.chain)[1],
            "time_s": self.time.total_s,
            "ceiling_s": self.ceiling_s,
            "time_range": None if self.time_range is None else self.time_range.to_dict(),
            "bound_by": self.time.bound_by,
            "energy_j": self.energy_j,
            "energy_range_j": None if self.energy_range_j is None else list(self.energy_range_j),
            "power_w": self.time.power_w,
            "time": [self.time.to_dict(), self.time_specification.to_dict()],
            "memory_bytes": dict(self.memory_bytes),
            "evidence": {**self.evidence.to_dict(), "sm_l2": self.exactness},
            "notes": list(self.notes) + list(self.missing),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """The traffic as a DataFrame, a row a launch, level, tensor and direction."""
        return Table.of(row.to_dict() for row in self.traffic).to_pandas()


MARKS = {"sampled": "~", "capacity": "*"}
"""Method -> the mark of what it gives."""
MEANINGS = {
    "sampled": "replayed in part, off by some percent",
    "capacity": "by the capacity rule, which knows no order of CTAs and may be off by many times",
}


def mark_of(method: str) -> str:
    """The mark of a method's HBM bytes; empty for a replay of all."""
    return MARKS.get(method, "")


def marked(value: float | None, *predictions: Prediction) -> float | None:
    """A number that follows from the HBM bytes of predictions, with the marks of those that estimate them."""
    marks = "".join(dict.fromkeys(mark_of(p.method) for p in predictions))
    return value if value is None or not marks else Marked.of(value, marks)


def legend(predictions: Iterable[Prediction]) -> str | None:
    """One line with the marks that these predictions carry; None where they carry none."""
    return legend_of(p.method for p in predictions)


def legend_of(methods: Iterable[str]) -> str | None:
    used = set(methods)
    meanings = [f"{mark} {MEANINGS[method]}" for method, mark in MARKS.items() if method in used]
    return f"HBM bytes: {'; '.join(meanings)}" if meanings else None


def method_of(methods: Iterable[Method]) -> Method:
    """The method of a sum: the least exact of its parts'."""
    used = set(methods)
    return next(
        (method for method in ("bounds", "capacity", "sampled") if method in used), "replay"
    )
