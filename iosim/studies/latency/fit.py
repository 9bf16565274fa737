"""Fits a stack's constants to a user's own times, robustly, and says how far off rows are that the fit has not seen.

The predicted time of a call is linear in the constants. A few steps of reweighted least squares on relative errors come
near the least sum of absolute ones, so that single odd rows count little; each constant is held to its prior with the
weight of a small error, so that twenty rows do not fix what they do not tell.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iosim.base.errors import InputError
from iosim.base.files import read_text
from iosim.base.records import dataclass
from iosim.base.units import some
from iosim.catalog.serving import read_stack
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.launch import LaunchRole
from iosim.problem.attention import AttentionProblem
from iosim.studies.latency.calibration import BOUNDS, Calibration
from iosim.studies.latency.latency import Latency, latencies
from iosim.studies.requests import LatencyRequest

Array = npt.NDArray[np.float64]

COLUMNS = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim")
"""Columns of a file of times beside the time, as seconds, ms or us; `causal` (0 or 1) and `dtype` may be there."""
UNITS: Mapping[str, float] = {"seconds": 1.0, "ms": 1e-3, "us": 1e-6}
MAX_FILE_BYTES = 4_000_000
LEAST_ROWS = 8
FOLDS = 5
STEPS = 30
PRIOR_WEIGHT = 0.03
"""Relative error that a constant's distance from its prior, in its spread, counts as."""
KNEE = 0.02
"""Relative errors below it count as squares, above it by their size."""
SPREADS: Mapping[str, float] = {
    "call_gap_s": 6e-6,
    "prefill_factor": 0.1,
    "decode_factor": 0.1,
    "hbm_factor": 0.1,
    "write_factor": 0.3,
}
NAMES = tuple(BOUNDS)


@dataclass(frozen=True)
class Timed:
    """A measured call. `terms`: what each constant, in the order of `NAMES`, is multiplied by; `rest_s`: seconds that
    none changes."""

    measured_s: float
    terms: tuple[float, ...]
    rest_s: float

    @classmethod
    def of(cls, latency: Latency, measured_s: float) -> Timed:
        """From a latency without calibration."""

        def seconds(*kinds: str) -> float:
            return math.fsum(part.seconds for part in latency.parts if part.kind in kinds)

        # hbm_factor adds to the seconds that HBM alone takes for the main launch.
        main = latency.prediction.times_of(LaunchRole.MAIN)[0]
        attention, decodes = (
            seconds("attention", "combine"),
            latency.prediction.problem.longest_q == 1,
        )
        of_phases = (0.0, attention) if decodes else (attention, 0.0)
        return cls(
            measured_s,
            (1.0, *of_phases, main.seconds.get("hbm", 0.0), seconds("write")),
            seconds("extra"),
        )

    def predicted_s(self, constants: Calibration) -> float:
        terms = (
            getattr(constants, name) * term for name, term in zip(NAMES, self.terms, strict=True)
        )
        return self.rest_s + math.fsum(terms)

    def error(self, constants: Calibration) -> float:
        return abs(self.predicted_s(constants) / self.measured_s - 1)


def fit(rows: Sequence[Timed], prior: Calibration) -> Calibration:
    # The unknowns are distances from the prior in units of its spread: all of size one.
    start = np.array([getattr(prior, name) for name in NAMES])
    spread = np.array([SPREADS[name] for name in NAMES])
    low, high = (np.array([BOUNDS[name][side] for name in NAMES]) for side in (0, 1))
    terms = np.array([row.terms for row in rows])
    measured = np.array([row.measured_s for row in rows])
    explained = np.array([row.measured_s - row.rest_s for row in rows])
    weights = np.ones(len(rows))
    constants: Array = start
    for _ in range(STEPS):
        # Relative errors: a row of microseconds weighs as much as one of milliseconds.
        scaled = terms * spread / measured[:, None] * weights[:, None]
        wanted = (explained - terms @ start) / measured * weights
        # One more row per constant pulls it to its prior (ridge regression).
        held = np.vstack([scaled, PRIOR_WEIGHT * np.eye(len(NAMES))])
        steps = np.linalg.lstsq(held, np.concatenate([wanted, np.zeros(len(NAMES))]), rcond=None)[0]
        constants = np.clip(start + steps * spread, low, high)
        # Huber weights: beyond the knee a row pulls by its sign alone, not by its size.
        off = np.abs((explained - terms @ constants) / measured)
        weights = np.sqrt(KNEE / np.maximum(off, KNEE))
    return Calibration(**dict(zip(NAMES, map(float, constants), strict=True)))


def mean_error(rows: Sequence[Timed], constants: Calibration) -> float:
    return statistics.fmean(row.error(constants) for row in rows)


def held_out_error(rows: Sequence[Timed], prior: Calibration, folds: int = FOLDS) -> float:
    """The mean error of each row by a fit of those in the other folds; row n is in fold n modulo `folds`."""
    errors = []
    for fold in range(folds):
        # A constant that fits only the rows it was fitted on shows here.
        constants = fit([row for n, row in enumerate(rows) if n % folds != fold], prior)
        errors += [row.error(constants) for row in rows[fold::folds]]
    return statistics.fmean(errors)


def read_times(path: str) -> list[tuple[AttentionProblem, float]]:
    """(problem, measured seconds) of every row of a CSV."""
    where = f"`times` '{path}'"
    text = read_text(path, where, f"a CSV of {', '.join(COLUMNS)} and a time", MAX_FILE_BYTES)
    try:
        reader = csv.DictReader(io.StringIO(text, newline=None))  # line ends of any kind
        header, cells = [name.strip() for name in reader.fieldnames or ()], list(reader)
    except csv.Error as error:
        raise InputError(
            f"{where} is no CSV table: {error}; accepted: comma-separated rows under a header"
        ) from None
    unit = next((name for name in UNITS if name in header), None)
    missing = [name for name in COLUMNS if name not in header] + (
        [] if unit else ["seconds, ms or us"]
    )
    if missing or unit is None:
        accepted = f"{', '.join(COLUMNS)}, causal, dtype, and one of {', '.join(UNITS)}"
        raise InputError(f"{where} has no column {', '.join(missing)}; accepted: {accepted}")
    rows = [_timed_call(cell, unit, f"{where}, line {line}") for line, cell in enumerate(cells, 2)]
    if len(rows) < LEAST_ROWS:
        raise InputError(
            f"{where} holds {len(rows)} rows; accepted: {LEAST_ROWS} or more, 20 are enough"
        )
    return rows


def _timed_call(row: Mapping[str, str], unit: str, where: str) -> tuple[AttentionProblem, float]:
    def number(name: str, read: Callable[[str], float]) -> float:
        try:
            return read((row.get(name) or "").strip())
        except ValueError:
            raise InputError(f"{where}: {name} '{row.get(name)}' is no number") from None

    sizes = {name: int(number(name, int)) for name in COLUMNS}
    seconds = number(unit, float) * UNITS[unit]
    if not 0 < seconds < 1e4:
        raise InputError(f"{where}: {unit} '{row[unit]}' is out of range; accepted: more than 0")
    causal = (row.get("causal") or "1").strip() not in ("0", "false", "False")
    try:
        fields: dict[str, Any] = {**sizes, "dtype": (row.get("dtype") or "bf16").strip()}
        problem = AttentionProblem(**fields, mask="causal" if causal else "none")
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return problem, seconds


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
        return {"rows": self.rows, "before": self.before, "held_out": self.held_out}

    @property
    def answer(self) -> str:
        who = f"{some(self.rows, 'call')} of {self.stack} on {self.profile}"
        return (
            f"{who} are predicted {100 * self.before:.1f} % off in the mean before and {100 * self.held_out:.1f} % "
            f"after, each by a fit that left it out ({FOLDS} folds)."
        )


def calibrate_times(
    rows: Sequence[tuple[AttentionProblem, float]], stack: str, profile: HardwareProfile
) -> Calibrated:
    """The constants of a stack on a GPU by measured calls, (problem, seconds)."""
    prior = Calibration(read_stack(stack).call_gap_s)
    request = LatencyRequest(gpu=[profile], stack=[stack], values={})
    predicted = latencies([(None, problem) for problem, _ in rows], request)
    timed = [
        Timed.of(latency, seconds) for latency, (_, seconds) in zip(predicted, rows, strict=True)
    ]
    return Calibrated(
        stack,
        profile.name,
        fit(timed, prior),
        len(rows),
        mean_error(timed, prior),
        held_out_error(timed, prior),
    )
