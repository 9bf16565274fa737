"""A call worked out once: its chain of launches, what was counted of it, and what is resident on the GPU.

Readers know nothing of each other. What one needs of another (the bytes that were counted, the seconds of a launch
beside HBM) is handed over here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iosim.base.records import cached_property, dataclass
from iosim.catalog.algorithms import plan
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.conditions import ALONE, Conditions
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain
from iosim.kernel.pace import Pace
from iosim.kernel.residency import Residency, residency
from iosim.kernel.traffic import Traffic
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import HbmBounds, bounds
from iosim.readers.formula.closed_form import added_bytes, closed_form, reach
from iosim.readers.replay.play import Play
from iosim.readers.replay.replay import Inputs, Replay, Trace, launch_inputs, replay, replay_inputs
from iosim.readers.staged import count_shared
from iosim.readers.timing.chain_time import ChainTime, chain_time

if TYPE_CHECKING:
    from iosim.readers.timing.breakdown import Breakdown


@dataclass(frozen=True)
class Call:
    """A problem, a kernel and a GPU, with all that several readers need of them. `counted` holds the bytes between SMs
    and L2; `residencies` has an entry for each launch of `chain`, in its order."""

    problem: AttentionProblem
    kernel: Kernel
    profile: HardwareProfile
    chain: Chain
    counted: Traffic
    residencies: tuple[Residency, ...]

    @classmethod
    def of(
        cls,
        problem: AttentionProblem,
        kernel: Kernel,
        profile: HardwareProfile,
        chain: Chain | None = None,
    ) -> Call:
        """Work a call out. `chain`: in place of the one that the kernel's algorithm plans for the problem. Raises
        InputError: the algorithm cannot do what the problem asks for, or the profile lacks a limit of occupancy."""
        # Counted and fitted onto the SMs once; every reader takes these.
        launches = plan(problem, kernel) if chain is None else chain
        resident = tuple(residency(launch, profile) for launch in launches.launches)
        return cls(problem, kernel, profile, launches, closed_form(launches), resident)

    @cached_property
    def bounds(self) -> HbmBounds:
        return bounds(
            self.problem, self.chain, self.counted, sum(sum(adds.values()) for adds in self.added)
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of any number of the call should know: of the kernel, and of spills that are in none."""
        return *self.kernel.notes, *self.chain.notes, *self.spilling

    @property
    def spilling(self) -> tuple[str, ...]:
        """A sentence per launch that the compiler would have spill registers at a cost that is not known."""
        return tuple(
            f"launch {launch.name} {fit.spilling}: the compiler would spill the others; what these spills move, and "
            "their time, is in no number here"
            for launch, fit in zip(self.chain.launches, self.residencies, strict=True)
            if fit.spilling
        )

    @cached_property
    def added(self) -> tuple[dict[str, int], ...]:
        """Bytes of atomic adds by tensor, of each launch in order."""
        return tuple(added_bytes(launch, self.chain) for launch in self.chain.launches)

    @cached_property
    def staged(self) -> Traffic:
        known = (count_shared(launch, self.chain) for launch in self.chain.launches)
        return sum((traffic for traffic in known if traffic is not None), Traffic())

    def capacity(self, l2_start: str = "cold") -> Traffic:
        from iosim.readers import capacity

        return capacity.estimate(
            self.chain, self.profile, self.counted, self.residencies, reach, l2_start == "warm"
        )

    def time(
        self, traffic: Traffic, conditions: Conditions = ALONE, *, measured: bool = True
    ) -> ChainTime:
        """Seconds and joules of the chain while `traffic` moves; `measured` and the conditions as in `chain_time`."""
        of_call = (self.problem, self.chain, traffic, self.profile, self.residencies, self.kernel)
        return chain_time(*of_call, measured=measured, conditions=conditions)

    def breakdowns(self, traffic: Traffic, conditions: Conditions = ALONE) -> tuple[Breakdown, ...]:
        """The time of each launch by its terms, while `traffic` moves."""
        from iosim.readers.timing.breakdown import breakdowns

        of_call = (self.problem, self.chain, traffic, self.profile, self.residencies, self.kernel)
        return breakdowns(*of_call, time=self.time(traffic, conditions), conditions=conditions)

    @cached_property
    def paces(self) -> tuple[Pace, ...]:
        # The pace of a step as though HBM took no time: the replay adds its own waits.
        return tuple(launch.pace for launch in self.time(self.counted).launches)

    def replay_inputs(self, play: Play | None = None) -> Inputs:
        """All that a replay of the call depends on; by default of all of it, from a cold L2."""
        of_launch = tuple(
            launch_inputs(
                self.problem, self.kernel, self.profile, launch, resident.slots, pace, added
            )
            for launch, resident, pace, added in zip(
                self.chain.launches, self.residencies, self.paces, self.added, strict=True
            )
        )
        return replay_inputs(
            self.kernel, self.chain, self.profile, of_launch, self.counted, play or Play()
        )

    def replay(self, play: Play | None = None, trace: Trace | None = None) -> Replay:
        return replay(self.replay_inputs(play), trace)
