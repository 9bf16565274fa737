"""Calibrates a stack on a GPU with measured calls: predicts each, fits, and tries the fit on rows left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iosim.base.units import some
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.serving import read_stack
from iosim.problem.attention import AttentionProblem
from iosim.studies.latency.calibration import Calibration
from iosim.studies.latency.fit import FOLDS, Timed, fit, held_out_error, mean_error
from iosim.studies.latency.latency import latencies


@dataclass(frozen=True)
class Calibrated:
    """Constants fitted to rows, and mean errors: before, and after on rows left out of the fit."""

    stack: str
    profile: str
    constants: Calibration
    rows: int
    before: float
    held_out: float

    @property
    def errors(self) -> dict[str, float]:
        """As a file of constants has them."""
        return {"rows": self.rows, "before": self.before, "held_out": self.held_out}

    @property
    def answer(self) -> str:
        """One sentence."""
        who = f"{some(self.rows, 'call')} of {self.stack} on {self.profile}"
        return (f"{who} are predicted {100 * self.before:.1f} % off in the mean before and {100 * self.held_out:.1f} % "
                f"after, each by a fit that left it out ({FOLDS} folds).")  # fmt: skip


def calibrate_times(
    rows: Sequence[tuple[AttentionProblem, float]], stack: str, profile: HardwareProfile, *, write: bool | None = None
) -> Calibrated:
    """The constants of a stack on a GPU by measured calls.

    Args:
        rows: (problem, seconds).
        write: whether the calls wrote to the cache; by default as the stack does.

    Raises:
        InputError: an unknown stack, or a problem that its kernel cannot run.
    """
    prior = Calibration(read_stack(stack).call_gap_s)
    found = latencies([problem for problem, _ in rows], [stack], [profile], write=write)
    timed = [Timed.of(one, seconds) for one, (_, seconds) in zip(found, rows, strict=True)]
    return Calibrated(stack, profile.name, fit(timed, prior), len(rows), mean_error(timed, prior),
                      held_out_error(timed, prior))  # fmt: skip
