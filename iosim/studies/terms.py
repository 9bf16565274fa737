"""The time of a prediction term by term: what each is worth, with its constants, where these come from, and its place.

The terms are those of `iosim.readers.timing.terms`; `iosim.readers.timing.breakdown` says what each is worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iosim.base.fitted import rows_of
from iosim.base.records import dataclass
from iosim.base.units import seconds_text
from iosim.hardware.profile import HardwareProfile
from iosim.prediction.result import Prediction
from iosim.readers.timing.breakdown import Breakdown, TermWorth
from iosim.readers.timing.terms import Scope, Term
from iosim.show.tables import Column, Table

REST = "instructions as the warps play them"
"""What is said of the time of a launch whose machine code is played: it has no terms."""


@dataclass(frozen=True)
class ConstantUsed:
    """A constant that a term reads."""

    name: str
    """Its name in its module, or in the profile."""
    value: float | None
    """Its value; None where it is one for each type, or the profile does not know it."""
    kind: str
    """Where it is from: fitted, measured, specification, ..., or source for a constant with its source beside it."""
    source: str
    """The rows that it was fitted on, or the profile's source."""


@dataclass(frozen=True)
class LaunchTerms:
    """The time of a launch by terms."""

    breakdown: Breakdown
    """What each term is worth."""
    profile: HardwareProfile
    """The GPU."""

    @property
    def line(self) -> str:
        """The launch, its time and how much of it the terms are."""
        time = self.breakdown.time
        return f"Launch {time.name}: {seconds_text(time.total_s)}, bound by {time.bound_by}; its terms:"

    def table(self) -> Table:
        """A row per term, the most worth first; they add up to the time of the launch."""
        titles = ("term", "value", "seconds", "share", "constants", "file: function")
        rows = []
        total = self.breakdown.time.total_s or 1.0
        for worth in self.breakdown.terms:
            constants = ", ".join(
                _constant_text(constant) for constant in constants_of(worth.term, self.profile)
            )
            share = f"{100 * worth.seconds / total:.1f} %"
            rows.append(
                (
                    worth.term.name,
                    _value_text(worth),
                    seconds_text(worth.seconds),
                    share,
                    constants,
                    worth.term.place,
                )
            )
        # Time that no term explains: instructions played one by one. Below a rounding it has no row.
        if self.breakdown.rest_s > 1e-4 * total:
            rest = self.breakdown.rest_s
            share = f"{100 * rest / total:.1f} %"
            rows.append(
                (REST, "", seconds_text(rest), share, "", "iosim/readers/timing/machine_time.py")
            )
        rows.append(("all", "", seconds_text(total), "100.0 %", "", ""))
        return Table(tuple(Column(title.replace(" ", "_"), title) for title in titles), tuple(rows))

    def to_dict(self) -> dict[str, Any]:
        return {
            "launch": self.breakdown.time.name,
            "time_s": self.breakdown.time.total_s,
            "rest_s": self.breakdown.rest_s,
            "terms": [
                {
                    "term": worth.term.name,
                    "scope": worth.term.scope.value,
                    "value": worth.value,
                    "seconds": worth.seconds,
                    "formula": worth.term.formula,
                    "zero": worth.term.zero,
                    "place": worth.term.place,
                    "constants": [
                        vars(constant) for constant in constants_of(worth.term, self.profile)
                    ],
                }
                for worth in self.breakdown.terms
            ],
        }


def terms_of(prediction: Prediction) -> tuple[LaunchTerms, ...]:
    """The time of each launch of a prediction by its terms."""
    launches = prediction.call.breakdowns(prediction.traffic.payload, prediction.conditions)
    return tuple(LaunchTerms(launch, prediction.profile) for launch in launches)


def constants_of(term: Term, profile: HardwareProfile) -> list[ConstantUsed]:
    """The constants that a term reads, with their values on a GPU."""
    constants = []
    for name in term.constants:
        value = term.constant(name)
        if value is not None:
            rows = rows_of(term.module_of(name), name)
            constants.append(
                ConstantUsed(
                    name, value, "fitted" if rows else "source", rows or "beside the constant"
                )
            )
            continue
        number = getattr(profile, name)
        # A rate for each number type has no one value to show.
        if isinstance(number, Mapping):
            number = None
        kind, source = (_noted(notes, name) for notes in (profile.kinds, profile.sources))
        constants.append(ConstantUsed(name, number, kind or "unknown", source or "not known"))
    return constants


def _noted(notes: Mapping[str, str], name: str) -> str | None:
    """What is noted of a quantity of a profile; of one with a value for each type, of the first."""
    return next(
        (text for key, text in notes.items() if key == name or key.startswith(f"{name}.")), None
    )


def _constant_text(constant: ConstantUsed) -> str:
    value = "" if constant.value is None else f" {constant.value:.4g}"
    return f"{constant.name}{value} ({constant.kind})"


def _value_text(worth: TermWorth) -> str:
    if worth.term.scope is Scope.LAUNCH:
        return f"{seconds_text(worth.value)} per launch"
    return f"{worth.value:,.1f} {worth.term.scope.value}"
