"""Holds a claimed number against everything that it can be, and says which it is and why a counter shows another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import cached_property, dataclass, plain
from iosim.base.units import bytes_text, digits_text, number_text, rate_text, seconds_text
from iosim.base.words import DEFAULT, LEVELS, WAYS, Way, sentences
from iosim.evidence.claims import readings
from iosim.evidence.claims.readings import (
    BYTES,
    FLOPS,
    SECONDS,
    SPEEDS,
    Amount,
    Reading,
    parse,
    share,
)
from iosim.evidence.reproduce.paper import Row, rows_that_claim, sections
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.overrides import Overrides
from iosim.prediction.confidence import basis, in_dtype
from iosim.prediction.predictor import predict
from iosim.prediction.ranges import UNEXPLAINED
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.show.shown import Part, Shown
from iosim.show.tables import Column, Table, grouped
from iosim.studies.requests import CLAIM, CLAIMS, ClaimRequest

TOLERANCE = 0.01
MOST_TOLERANCE = 0.05
"""However few digits a claim has."""
MOST_SHOWN, MOST_NAMED = 5, 2
NAMES = {
    "hbm": "{} of HBM bytes",
    "l2": "{} of SM<->L2 bytes",
    "time": "{}",
    "flops": "{} of operations",
    "ratio": "{} against naive attention",
    "tflops": "{}",
    "mfu": "{} of the tensor rate",
    "bandwidth": "{} of bandwidth",
}
IN_UNITS: Mapping[str, Mapping[str, float]] = {
    "hbm": BYTES,
    "l2": BYTES,
    "time": SECONDS,
    "flops": FLOPS,
    "tflops": SPEEDS,
    "ratio": {"times": 1.0, "x": 1.0},
}
"""Units that published numbers of a quantity stand in."""


@dataclass(frozen=True)
class Match:
    """A reading that a claim agrees with; `error` is (claim - reading) / reading."""

    reading: Reading
    error: float

    def to_dict(self) -> dict[str, Any]:
        r = self.reading
        return {
            "counts": r.counts,
            "level": r.level,
            "direction": r.direction or None,
            "value": r.value,
            "error": self.error,
            "slips": list(r.slips),
            "why": r.why or None,
        }


@dataclass(frozen=True, repr=False)
class Check(Shown):
    claim: Amount
    """The number as it was published, and of which quantity."""
    prediction: Prediction
    """What iosim predicts for the same problem."""
    tolerance: float
    """How far a count may be from the claim, as a share of it."""
    matches: tuple[Match, ...]
    """The counts that agree with the fewest slips, closest first."""
    nearest: Match
    """The nearest count, where none agrees."""
    tried: int
    """Number of counts that the claim was held against, so that a chance agreement can be judged."""
    agrees: Match | None = None
    """The prediction of the claimed quantity, where the claim agrees with it within the tolerance or its error."""
    published: Row | None = None
    """The row of `iosim reproduce` whose published number the claim is."""

    @cached_property
    def counter(self) -> dict[str, float]:
        """What the claimed quantity is by iosim's prediction: bytes read and written, seconds, or operations."""
        p, quantity = self.prediction, self.claim.quantity
        for level in LEVELS:
            if level == quantity:
                return {direction: p.total(level, direction) for direction in WAYS}
        predicted = [
            r.value
            for r in _of_problem(self.claim, p.problem, p, None, replayed=True)
            if r.is_predicted
        ]
        return {"total": predicted[0] if predicted else math.nan}

    def to_text(self) -> str:
        return f"{self.answer()}\n\n{as_text(self)}"

    def answer(self) -> str:
        claim = NAMES[self.claim.quantity].format(self.claim.text)
        if self.published is None:
            claim += in_dtype(self.prediction.problem)
        if self.agrees is not None:
            off = (
                "to the digit"
                if abs(self.agrees.error) < 5e-5
                else f"{digits_text(100 * self.agrees.error, 2, '+')} %"
            )
            within = (
                ""
                if abs(self.agrees.error) <= self.tolerance
                else ", within the error of the model"
            )
            r = self.agrees.reading
            quantity = f"{r.counts}, {r.direction}" if r.direction else r.counts
            true = f"{claim} agrees with the prediction: {quantity}, {self.text(r.value)} ({off}{within})"
            return sentences([true])
        if self.published is not None:
            return sentences([self._published(claim, self.published)])
        if not self.matches:
            near = self.nearest
            none = (
                f"{claim} matches none of {self.tried} counts within {100 * self.tolerance:.2g} %"
            )
            return sentences([f"{none}: the nearest is {self._named(near)}"])
        best = self.matches[0]
        chance = " with two slips, which may be chance," if len(best.reading.slips) > 1 else ""
        return sentences([f"{claim} matches{chance} {self._named(best)}"])

    def beneath(self) -> tuple[str, ...]:
        """What stands under the answer: why a counter shows another number, what matches, too, where a paper's number
        is from, and what is predicted."""
        parts = []
        if self.agrees is None and self.published is not None:
            parts += self._source(self.published)
        elif self.agrees is None and self.matches:
            why = self.matches[0].reading.why
            parts += [why[:1].upper() + why[1:]] if why else []
            parts += [
                f"It matches, too: {self._named(other)}" for other in self.matches[1:MOST_NAMED]
            ]
        sure = basis([self.prediction])
        if self.claim.quantity == "l2":
            sure = (f"SM<->L2 bytes are {self.prediction.exactness}",)
        return (*parts, self._counter(), *(sure if self.claim.quantity in ("hbm", "l2") else ()))

    def _published(self, claim: str, row: Row) -> str:
        """What a number of a paper is, and what iosim computes for it: its problem is the paper's, not the one asked
        for."""
        title = next(
            section.title for section in sections() if section.letter == row.section
        ).split(":")[0]
        computed = (
            "nothing"
            if row.computed is None
            else f"{digits_text(row.computed, 4)} {row.unit} ({row.verdict.value})"
        )
        return f"{claim} is published ({title}): of its own problem iosim computes {computed}"

    def _source(self, row: Row) -> list[str]:
        """Where a paper's number stands, and what is wrong with it."""
        title = next(section.title for section in sections() if section.letter == row.section)
        wrong = [f"It is a mistake: {row.mistake}"] if row.mistake else []
        place = f"It is {row.claim}, a row of section {row.section} of 'iosim reproduce', {title}"
        return [place, *wrong, *([f"Computed as {row.arithmetic}"] if row.arithmetic else [])]

    def _named(self, match: Match) -> str:
        r = match.reading
        direction = "".join(f", {words}" for words in (r.direction, *r.slips) if words)
        off = "to the digit" if abs(match.error) < 5e-5 else f"{100 * match.error:+,.2f} %"
        return f"{r.counts}{direction} ({self.text(r.value)}, {off})"

    def _counter(self) -> str:
        p = self.prediction
        who = f"{p.kernel.name} on {p.profile.name}"
        if self.claim.quantity in ("hbm", "l2"):
            read, written = (self.text(self.counter[direction]) for direction in ("read", "write"))
            level = "HBM" if self.claim.quantity == "hbm" else "the L2"
            checks = (
                f", {bytes_text(p.check_bits.total)} of both check bits"
                if p.check_bits.total
                else ""
            )
            of_hbm = checks if self.claim.quantity == "hbm" else ""
            return f"{who} is predicted to read {read} from {level} and to write {written}{of_hbm}"
        if math.isnan(self.counter["total"]):
            return f"Nothing of this kind is predicted for {who}"
        return f"Predicted for {who}: {self.text(self.counter['total'])}"

    def text(self, value: float) -> str:
        return _TEXT[self.claim.quantity](value)

    def to_dict(self) -> dict[str, Any]:
        p = self.prediction
        record = plain(
            quantity=self.claim.quantity,
            claim=self.claim.text,
            value=self.claim.value,
            tolerance=self.tolerance,
            readings_tried=self.tried,
            matches=self.matches,
            nearest=self.nearest,
            predicted=self.counter,
            agrees=self.agrees,
        )
        record["published"] = None if self.published is None else self.published.to_dict()
        return (
            record
            | plain(
                problem=p.problem, kernel=p.kernel.name, profile=p.profile.name, method=p.method
            )
            | {"answer": self.answer()}
        )

    def _line(self) -> str:
        return line(self)

    def _parts(self) -> list[Part]:
        return parts(self)


_TEXT: Mapping[str, Callable[[float], str]] = {
    "hbm": bytes_text,
    "l2": bytes_text,
    "time": seconds_text,
    "flops": lambda n: f"{number_text(n / 1e9)} GFLOP",
    "ratio": lambda n: f"{digits_text(n)}x",
    "tflops": rate_text,
    "mfu": lambda n: f"{digits_text(100 * n)} %",
    "bandwidth": lambda n: f"{bytes_text(n)}/s",
}


def check_claims(request: ClaimRequest) -> list[Check]:
    layers, tolerance = CLAIM["layers"].check(request.layers), share(request.tolerance)
    claims = [parse(name, text) for name in CLAIMS if (text := getattr(request, name)) is not None]
    subject = request.problem, request.kernel, _gpu(request.gpu).with_ecc(request.ecc)
    return [
        check(claim, *subject, tolerance=tolerance, layers=layers, overrides=request.overrides)
        for claim in claims
    ]


def _gpu(profile: str | HardwareProfile) -> HardwareProfile:
    return load_profile(profile) if isinstance(profile, str) else profile


def check(
    claim: Amount,
    problem: AttentionProblem,
    kernel: str = DEFAULT,
    profile: str | HardwareProfile = "a100",
    *,
    tolerance: float | None = None,
    layers: int | None = None,
    overrides: Overrides | None = None,
) -> Check:
    """What a claimed number counts. Raises InputError where the kernel cannot run the problem there, or the tolerance
    is out of range.

    Args:
        claim: as `parse` gives it.
        problem, kernel, profile, overrides: what the claim is of, as in `predict`; counts of naive attention and of
            other tools are tried as well.
        tolerance: how far a count may be from the claim; by default 1 %, or half a unit of the claim's last digit
            up to 5 %.
        layers: of a model, where the claim may be of all of them.
    """
    # a claim of few digits may be off by its own rounding: "4 GB" stands for 3.5 to 4.5
    allowed = max(TOLERANCE, min(MOST_TOLERANCE, claim.share)) if tolerance is None else tolerance
    if not 0 < allowed < 1:
        raise InputError(f"`tolerance` {allowed:g} is out of range; accepted: above 0 and below 1")
    gpu = _gpu(profile)
    p = predict(problem, kernel, gpu, overrides=overrides)
    # a reading of zero bytes (a level that nothing crosses) agrees with no claim
    tried = [r for r in _readings(claim, p, overrides, layers) if r.value > 0]
    held = [Match(r, claim.value / r.value - 1) for r in tried]
    if not held:  # naive attention beside itself, or what naive attention cannot run
        raise InputError(
            f"`{claim.quantity}` {claim.text}: naive attention cannot be set beside {p.kernel.name} on this problem; "
            "accepted: another kernel, or a number of bytes or seconds"
        )
    agreeing, fewest = _simplest(allowed, claim, held)
    # one count under several slips' values is one line
    alike = grouped(agreeing, lambda m: (m.reading.counts, m.reading.direction, m.reading.slips))
    nearest = min(held, key=lambda m: (abs(m.error), len(m.reading.slips)))
    agrees = _agreeing(
        claim,
        p,
        [m for m in held if m.reading.is_predicted],
        allowed,
        within_error=tolerance is None,
    )
    # a paper's own number is looked up only where no count agrees as it stands
    published = None if agrees is not None or (agreeing and fewest == 0) else _published(claim)
    matches = tuple(first for first, *_ in alike.values())
    return Check(claim, p, allowed, matches, nearest, len(tried), agrees, published)


def _simplest(allowed: float, claim: Amount, held: list[Match]) -> tuple[list[Match], int]:
    """The counts that agree with the fewest slips, the level that was claimed first, then the closest, then those that need
    no further reason; and how many slips they have. With enough slips some count agrees with any number."""
    # the simplest explanation wins: with enough slips, some count agrees with any number
    least = {m.reading.slips for m in held if abs(m.error) <= allowed}
    fewest = min(map(len, least), default=0)
    agreeing = [m for m in held if abs(m.error) <= allowed and len(m.reading.slips) == fewest]
    # first the level that was claimed, then the closest, then those that need no further reason
    agreeing.sort(
        key=lambda m: (
            m.reading.level != claim.quantity,
            round(abs(m.error), 3),
            bool(m.reading.why),
        )
    )
    return agreeing, fewest


def _agreeing(
    claim: Amount, p: Prediction, predicted: Sequence[Match], allowed: float, *, within_error: bool
) -> Match | None:
    """The prediction that a claim agrees with: within what is allowed, or, where no tolerance was asked for, within the
    error that predictions of the quantity have."""
    if not predicted:
        return None
    nearest = min(predicted, key=lambda m: abs(m.error))
    if abs(nearest.error) <= allowed:
        return nearest
    # a tolerance that was asked for is meant strictly: the model's error widens the default alone
    if not within_error:
        return None
    low, high = _error(claim, p, nearest.reading)
    return nearest if low <= 1 + nearest.error <= high else None


def _error(claim: Amount, p: Prediction, r: Reading) -> tuple[float, float]:
    """Least and most of a true number over what is predicted: of HBM bytes and of what times decide."""
    # HBM bytes: the range that was measured for such kernels, else the share that is unexplained
    if claim.quantity in ("hbm", "ratio") and claim.of != "time":
        way: Way = "write" if r.direction == "written" else "read"
        hbm_range = p.hbm_range if claim.quantity == "hbm" else None
        known = (
            None
            if hbm_range is None
            else {"read": hbm_range.read, "written": hbm_range.write}.get(
                r.direction, hbm_range.total
            )
        )
        share = UNEXPLAINED[way][0]
        return (1 - share, 1 + share) if known is None else (known[0] / r.value, known[1] / r.value)
    # SM<->L2 bytes and operations are counted, not modelled
    if claim.quantity in ("l2", "flops"):
        return 1.0, 1.0
    span = p.time_range
    share = UNEXPLAINED["time"][0]
    low, high = (1 - share, 1 + share) if span is None else (s / p.time_s for s in span.seconds)
    # speeds and utilisations fall where time grows: their range is the reciprocal one
    return (low, high) if claim.quantity in ("time", "ratio") else (1 / high, 1 / low)


def _published(claim: Amount) -> Row | None:
    """The row of a paper whose number the claim is, to the last digit; of several the one that iosim meets best."""
    units = IN_UNITS.get(claim.quantity, {})

    def is_meant(stated: float, unit: str) -> bool:
        return unit in units and abs(stated * units[unit] / claim.value - 1) < 1e-6

    # one number may stand in several papers: the row that is computed best is the one to quote
    rows = rows_that_claim(is_meant)
    return min(rows, key=lambda row: abs((row.ratio or math.inf) - 1), default=None)


def _readings(
    claim: Amount, p: Prediction, overrides: Overrides | None, layers: int | None
) -> Iterator[Reading]:
    # every count of the problem as asked, and of each with one fact changed; each again by each factor
    for words, problem in (("", p.problem), *readings.other_problems(p.problem)):
        factors = list(readings.factors(problem, claim, layers))
        for reading in _of_problem(claim, problem, p, overrides, replayed=not words):
            variant = reading.slipped(words) if words else reading
            yield from (variant, *(variant.slipped(slip, factor) for slip, factor in factors))


def _of_problem(
    claim: Amount,
    problem: AttentionProblem,
    p: Prediction,
    overrides: Overrides | None,
    *,
    replayed: bool,
) -> Iterator[Reading]:
    if claim.quantity in ("hbm", "l2"):
        yield from readings.byte_readings(
            claim.quantity, problem, p.kernel.name, p.profile, overrides, replayed
        )
        return
    if claim.quantity == "ratio":
        yield from readings.ratio_readings(claim, p, problem, replayed)
        return
    try:
        prediction = (
            p
            if replayed
            # time and operations of a changed problem need no replay
            else predict(problem, p.kernel.name, p.profile, overrides=overrides, method="bounds")
        )
    except InputError:
        return
    # quantities of one prediction, without another kernel beside it
    yield from _OF_ONE[claim.quantity](prediction)


_OF_ONE: Mapping[str, Callable[[Prediction], Iterator[Reading]]] = {
    "time": readings.time_readings,
    "flops": readings.flop_readings,
    "tflops": readings.speed_readings,
    "mfu": readings.utilisation_readings,
    "bandwidth": readings.bandwidth_readings,
}


# What a checked claim looks like


def line(c: Check) -> str:
    if c.agrees is not None:
        return f"{c.claim.text} ({c.claim.quantity}) agrees with the prediction"
    if c.published is not None:
        return f"{c.claim.text} ({c.claim.quantity}) is published"
    outcome = c.matches[0].reading.counts if c.matches else f"none of {c.tried} counts"
    return f"{c.claim.text} ({c.claim.quantity}) matches {outcome}"


def head(c: Check) -> str:
    if c.agrees is not None and not c.matches:
        return f"{c.claim.text}: what is predicted"
    return (
        f"{c.claim.text} within {100 * c.tolerance:.2g} % of"
        if c.matches
        else f"{c.claim.text}: the nearest count"
    )


def counts_table(c: Check) -> Table:
    columns = (
        Column("counts", "what it may count"),
        Column("direction"),
        Column("value"),
        Column("error", "claim is off by"),
        Column("slips", "if it is"),
        Column("why", "why a counter differs"),
    )
    rows = []
    for r, error in (
        (m.reading, m.error) for m in c.matches[:MOST_SHOWN] or (c.agrees or c.nearest,)
    ):
        counted = (r.counts, r.direction or None, c.text(r.value), f"{100 * error:+,.2f} %")
        rows.append((*counted, "; ".join(r.slips) or "as asked", r.why or None))
    return Table(columns, tuple(rows))


def as_text(c: Check) -> str:
    unlisted = len(c.matches) - MOST_SHOWN
    more = f"and {unlisted} more; --format json has all\n" if unlisted > 0 else ""
    return f"{sentences(c.beneath())}\n\n{head(c)}\n\n{counts_table(c).text()}{more}"


def parts(c: Check) -> list[Part]:
    return [c.answer(), *c.beneath(), head(c), counts_table(c)]
