"""What each mechanism of the time model is worth: the errors with it switched off.

Every term of `iosim.readers.timing.terms` can be switched off; the other mechanisms are values of a profile that are
replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from iosim import HardwareProfile
from iosim.evidence.times.groups import Errors, Group, by_group, rows_of
from iosim.evidence.times.tables import Case
from iosim.prediction.call import Call
from iosim.readers.timing.terms import TERMS, without
from iosim.show.tables import Column, Table

MOST_MOVED = 3


@dataclass(frozen=True)
class Mechanism:
    """What is switched off: `terms` by name, or `profile`, what replaces values of a profile."""

    name: str
    terms: tuple[str, ...] = ()
    profile: Callable[[HardwareProfile], dict[str, Any]] = lambda profile: {}

    def without(self, call: Call) -> Call:
        return replace(call, profile=replace(call.profile, **self.profile(call.profile)))


def _values(**values: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda of: values


MECHANISMS: tuple[Mechanism, ...] = (
    *(Mechanism(name, (name,)) for name in TERMS),
    Mechanism(
        "products of mma.sync below the rate", profile=_values(mma_sync_tensor_fraction=None)
    ),
    Mechanism("HBM's three rates", profile=_values(dram_read_bandwidth_bytes_per_s=None)),
    Mechanism("stores to the L2 below its loads", profile=_values(l2_write_fraction=1.0)),
    Mechanism("clock of the tensor cores", profile=_values(tensor_clock_fraction=1.0)),
    Mechanism(
        "power",
        profile=lambda p: {"power_w": p.power_w and 1e5, "peak_power_w": p.peak_power_w and 1e5},
    ),
)
"""Every term of a time, and what a profile says beside."""


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
    worths = []
    for mechanism in MECHANISMS:
        with without(mechanism.terms):
            changed = {id(case): mechanism.without(case.call) for _, case in cases}
            errors = by_group(rows_of(cases, changed))
        moved_terms = [
            (key, e.mean, errors[key].mean)
            for key, e in whole.items()
            if abs(errors[key].mean - e.mean) >= 1e-3
        ]
        moved_terms.sort(key=lambda worth: -abs(worth[2] - worth[1]))
        worths.append(Worth(mechanism.name, _mean(whole), _mean(errors), tuple(moved_terms)))
    return worths


def _mean(groups: dict[str, Errors]) -> float:
    return sum(e.mean for e in groups.values()) / len(groups) if groups else 0.0


def worth_table(worth: Sequence[Worth]) -> Table:
    lines = tuple(
        (
            w.mechanism,
            f"{w.whole:.1%}",
            f"{w.without:.1%}",
            "; ".join(f"{key} {a:.1%} to {b:.1%}" for key, a, b in w.groups[:MOST_MOVED]),
        )
        for w in worth
    )
    return Table(
        tuple(Column(key, key) for key in ("mechanism", "with", "without", "most changed")), lines
    )
