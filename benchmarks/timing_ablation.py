"""What each mechanism of the time model is worth: the errors with it switched off.

A switch replaces one value: of a profile, of a launch, or a constant of the model for the while. The model itself has
no switches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from iosim.evidence.times.groups import Errors, Group, by_group, rows_of
from iosim.evidence.times.tables import Case
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.work import MaskOperations
from iosim.prediction.call import Call
from iosim.readers.timing import computing, launch_time, overlap, step_time
from iosim.readers.timing.makespan import Makespan
from iosim.show.tables import Column, Table

MOST_MOVED = 3


@dataclass(frozen=True)
class Mechanism:
    """A mechanism and how it is switched off: `profile` names values that replace a profile's, `work` those of
    launches' work, `constants` those of the model's modules."""

    name: str
    profile: Callable[[HardwareProfile], dict[str, Any]] = lambda profile: {}
    work: dict[str, Any] = field(default_factory=dict)
    constants: tuple[tuple[Any, str, Any], ...] = ()

    def without(self, call: Call) -> Call:
        launches = tuple(replace(one, work=replace(one.work, **self.work)) for one in call.chain.launches)
        return replace(call, profile=replace(call.profile, **self.profile(call.profile)),
                       chain=replace(call.chain, launches=launches))  # fmt: skip

    @contextmanager
    def off(self) -> Iterator[None]:
        """The model's constants replaced, for the while."""
        with ExitStack() as replaced:
            for constant in self.constants:
                replaced.enter_context(patch.object(*constant))
            yield


def _values(**values: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda of: values


MECHANISMS: tuple[Mechanism, ...] = (
    Mechanism("start of a launch", _values(launch_latency_s=0.0, graph_call_latency_s=0.0, graph_launch_latency_s=0.0),
              constants=((launch_time, "FIRST_LOADS", 0),)),
    Mechanism("streams from HBM start late", constants=((launch_time, "STREAM_START_S", 0.0),)),
    Mechanism("the L2 shared among the SMs at work", constants=((Makespan, "share", lambda *of: 1.0),)),
    Mechanism("cycles of a tile beside its steps", _values(tile_cycles=0.0, pingpong_tile_cycles=0.0)),
    Mechanism("waits of a step", _values(step_sync_cycles=0.0, step_single_buffer_cycles=0.0, step_load_cycles=0.0,
                                         product_step_cycles=0.0)),
    Mechanism("fp32 work of the softmax", constants=((step_time, "FP32_OPERATIONS_PER_SCORE", 0.0),)),
    Mechanism("exponentials", _values(exp_per_clock_per_sm=1e9)),
    Mechanism("products of mma.sync below the rate", _values(mma_sync_tensor_fraction=None)),
    Mechanism("phases that fail to overlap", constants=((step_time, "SPECIALISED_NORM", 50.0),
                                                        (step_time, "UNHIDDEN_FRAGMENTS", 0.0),
                                                        (step_time, "UNHIDDEN_MEETING", 0.0))),
    Mechanism("HBM beside computing, in part", constants=((overlap, "OVERLAP_NORM", 50.0),
                                                          (overlap, "SPLIT_OVERLAP_NORM", 50.0))),
    Mechanism("the L2 beside computing, in part", constants=((step_time, "L2_OVERLAP_NORM", 50.0),)),
    Mechanism("HBM's three rates", _values(dram_read_bandwidth_bytes_per_s=None)),
    Mechanism("spilled registers", _values(spill_access_cycles=0.0)),
    Mechanism("operations of masked steps", work={"mask": MaskOperations()}),
    Mechanism("code that tiles wait for", work={"code": (0, 0, 0)}),
    Mechanism("instructions of copies in narrow builds", constants=((step_time, "BESIDE_A_COPY", 0.0),)),
    Mechanism("locks of sums that CTAs share", constants=((step_time, "LOCKED_LOADS", 0.0),)),
    Mechanism("stores to the L2 below its loads", _values(l2_write_fraction=1.0)),
    Mechanism("atomic adds that warps wait for", _values(add_packet_cycles=0.0)),
    Mechanism("even shares of HBM", constants=((computing, "busiest_share", lambda *of: 1.0),)),
    Mechanism("loads of a combine, one behind the other", work={"serial_loads": 0}),
    Mechanism("loads of a pass, one behind the other", work={"thread_loads": 0.0}),
    Mechanism("instructions of a strided copy", work={"operations_per_value": 0}),
    Mechanism("clock of the tensor cores", _values(tensor_clock_fraction=1.0)),
    Mechanism("power", lambda p: {"power_w": p.power_w and 1e5, "peak_power_w": p.peak_power_w and 1e5}),
)  # fmt: skip
"""What can be switched off by one value each."""


@dataclass(frozen=True)
class Worth:
    """Errors on held-out rows by group, with everything and without the mechanism; `groups` it changes by a tenth of a
    percentage point or more, the most changed first."""

    mechanism: str
    whole: float
    without: float
    groups: tuple[tuple[str, float, float], ...]


def ablation(cases: Sequence[tuple[Group, Case]]) -> list[Worth]:
    """What each mechanism is worth over these cases: the mean of the groups' mean errors with it and without."""
    whole = by_group(rows_of(cases))
    found = []
    for mechanism in MECHANISMS:
        with mechanism.off():
            changed = {id(case): mechanism.without(case.call) for _, case in cases}
            without = by_group(rows_of(cases, changed))
        moved = [
            (key, e.mean, without[key].mean) for key, e in whole.items() if abs(without[key].mean - e.mean) >= 1e-3
        ]
        moved.sort(key=lambda one: -abs(one[2] - one[1]))
        found.append(Worth(mechanism.name, _mean(whole), _mean(without), tuple(moved)))
    return found


def _mean(groups: dict[str, Errors]) -> float:
    return sum(e.mean for e in groups.values()) / len(groups) if groups else 0.0


def worth_table(worth: Sequence[Worth]) -> Table:
    lines = tuple(
        (w.mechanism, f"{w.whole:.1%}", f"{w.without:.1%}",
         "; ".join(f"{key} {a:.1%} to {b:.1%}" for key, a, b in w.groups[:MOST_MOVED]))
        for w in worth
    )  # fmt: skip
    return Table(tuple(Column(key, key) for key in ("mechanism", "with", "without", "most changed")), lines)
