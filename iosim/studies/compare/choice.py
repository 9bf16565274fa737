"""Which GPU to take: of each its best kernel, and what a token, a joule or a dollar comes to there.

A token is a query token of the call: a prefill has all of its sequences', a step of decoding one a sequence. With a
model a call is the attention of all its layers. The capacity rule, which takes no replay, ranks the kernels of a GPU,
and the first few are predicted as asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass, plain, replace
from iosim.base.words import DEFAULT
from iosim.catalog.libraries import entry_name, is_choice, with_sinks
from iosim.catalog.libraries.default import LIBRARIES, is_suited
from iosim.kernel.conditions import Conditions
from iosim.prediction.many import Request, try_all
from iosim.prediction.result import Prediction, legend
from iosim.problem.attention import AttentionProblem
from iosim.show.shown import Faced
from iosim.show.tables import grouped
from iosim.studies.compare.points import Gpu, differ_in, gpus_of, label_of, name_on
from iosim.studies.models.asked import asked_model, asked_problems, calls_of, combinations
from iosim.studies.models.layers import Model
from iosim.studies.requests import ChoiceRequest

FINALISTS = 2
"""Kernels of a GPU that are predicted as asked: the first by the capacity rule."""
MILLION = 1_000_000
SECONDS_AN_HOUR = 3600
RANKED_BY: Mapping[str, str] = {"token": "time_s", "joule": "energy_j", "dollar": "dollars"}
"""What is asked for -> the quantity of which a token takes least on the best GPU."""
FRONTIERS: Mapping[str, str] = {"cost": "dollars", "energy": "energy_j"}
"""A frontier's name -> the quantity of a token that it holds against the time of a call."""


@dataclass(frozen=True)
class Amount:
    """A number, and its range where rates of the GPU were not measured."""

    value: float
    range: tuple[float, float] | None = None

    def times(self, factor: float) -> Amount:
        return Amount(
            self.value * factor, self.range and (self.range[0] * factor, self.range[1] * factor)
        )

    def under(self, above: float) -> Amount:
        """`above` divided by it."""
        return Amount(
            # A quotient turns its range round.
            above / self.value,
            self.range and (above / self.range[1], above / self.range[0]),
        )

    @property
    def ends(self) -> tuple[float, float]:
        return self.range or (self.value, self.value)


def total(amounts: Sequence[Amount]) -> Amount:
    # Ranges add up as if all errors went the same way: the rates behind them are the same.
    low, high = (sum(a.ends[end] for a in amounts) for end in (0, 1))
    return Amount(
        sum(a.value for a in amounts), (low, high) if any(a.range for a in amounts) else None
    )


@dataclass(frozen=True)
class Work:
    """What every GPU is asked to do: one attention call, or those of a model's layers."""

    parts: tuple[tuple[int, AttentionProblem], ...]
    """How often each problem is called."""
    batch: int
    queries: int
    """Query tokens of a sequence."""
    keys: int
    """Tokens of a sequence so far, the queries' own among them."""
    model: Model | None = None

    @property
    def tokens(self) -> int:
        """Query tokens of all sequences."""
        return self.batch * self.queries

    @property
    def length(self) -> tuple[int, int]:
        """What rows that are ranked together have in common: query and key tokens of a sequence."""
        return self.queries, self.keys

    def on(self, problem: AttentionProblem, kernel: str) -> AttentionProblem:
        """One of its problems as a kernel runs it, with a model's learned sinks where it has a place for them."""
        return with_sinks(problem, kernel) if problem.sinks and self.model is not None else problem


@dataclass(frozen=True)
class Option:
    """What a call takes on one GPU with one kernel (of a model with one for each kind of layer)."""

    gpu: Gpu
    work: Work
    predictions: tuple[Prediction, ...]
    """One of each part of the work."""
    price: float | None
    """Dollars per hour of one GPU."""
    frontier: tuple[str, ...] = ()
    """"cost", "energy": no other row of its length is better in the time of a call or that of a token, and no worse in
    the other."""
    requested: tuple[str, ...] = ()
    """The kernel of each part, as it was asked for."""

    @property
    def kernel(self) -> str:
        """The kernels, in the order of the layers."""
        return ", ".join(dict.fromkeys(p.kernel.name for p in self.predictions))

    @property
    def gpus(self) -> int:
        """GPUs that share the call."""
        return 1 if self.work.model is None else self.work.model.tensor_parallel

    @property
    def slowest(self) -> Prediction:
        """Prediction of the part of the work that takes longest."""
        # A part is a number of equal calls: its time is theirs together.
        parts = zip(self.work.parts, self.predictions, strict=True)
        return max(parts, key=lambda part: part[0][0] * part[1].time_s)[1]

    def _summed(self, amount_of: Callable[[Prediction], Amount]) -> Amount:
        return total(
            [
                amount_of(p).times(n)
                for (n, _), p in zip(self.work.parts, self.predictions, strict=True)
            ]
        )

    @property
    def time_s(self) -> Amount:
        """Seconds of the call."""
        return self._summed(
            lambda p: Amount(p.time_s, None if p.time_range is None else p.time_range.seconds)
        )

    @property
    def energy_j(self) -> Amount | None:
        """Joules of the call, on all GPUs; None where the GPU's constants are not known."""
        if any(p.energy_j is None for p in self.predictions):
            return None
        return self._summed(_energy).times(self.gpus)

    @property
    def dollars(self) -> Amount | None:
        """Price of the call, on all GPUs; None without a price."""
        return (
            None
            if self.price is None
            else self.time_s.times(self.price * self.gpus / SECONDS_AN_HOUR)
        )

    @property
    def tokens_per_s(self) -> Amount:
        return self.time_s.under(self.work.tokens)

    def a_token(self, quantity: str) -> Amount | None:
        """Seconds ("time_s"), joules ("energy_j") or "dollars" of a token: what rows of one length are ranked by."""
        amount: Amount | None = getattr(self, quantity)
        return None if amount is None else amount.times(1 / self.work.tokens)

    @property
    def memory_bytes(self) -> int:
        """On each GPU: of a call at its peak; of a model its cache and, where they are known, its weights."""
        if self.work.model is None:
            return self.predictions[0].memory_bytes["peak"]
        cache = self.work.model.cache_bytes(
            self.work.batch, self.work.keys, self.work.parts[0][1].dtype
        )
        return cache + (self.work.model.weight_bytes or 0)

    @property
    def fits(self) -> bool:
        """True where the GPU's memory holds that, or its size is not known."""
        memory = self.gpu.profile.usable_memory_bytes
        return memory is None or self.memory_bytes <= memory

    def to_dict(self) -> dict[str, Any]:
        row = plain(
            gpu=self.gpu.label,
            kernel=self.kernel,
            batch=self.work.batch,
            seq_q=self.work.queries,
            seq_k=self.work.keys,
            tokens=self.work.tokens,
            gpus=self.gpus,
            price_per_hour=self.price,
        )
        cost = self.a_token("dollars")
        # Each amount in three columns: its value and the ends of its range.
        amounts = {
            "time_s": self.time_s,
            "tokens_per_s": self.tokens_per_s,
            "energy_j": self.energy_j,
            "joules_per_token": self.a_token("energy_j"),
            "dollars_per_million_tokens": cost and cost.times(MILLION),
        }
        for name, amount in amounts.items():
            low, high = (None, None) if amount is None or amount.range is None else amount.range
            row |= {
                name: None if amount is None else amount.value,
                f"{name}_low": low,
                f"{name}_high": high,
            }
        row |= plain(
            bound_by=self.slowest.bound_by,
            method=self.slowest.method,
            memory_bytes=self.memory_bytes,
            fits=self.fits,
        )
        return row | {"frontier": " ".join(self.frontier)}


def _energy(p: Prediction) -> Amount:
    """Joules of a call. Their range is that of energies not measured, and of the time, for which the board is awake."""
    energy = p.energy_j or {}
    # The board's idle power times the time is part of the energy: a longer time costs it, too.
    joules_in_all, awake_w = math.fsum(energy.values()), energy.get("awake", 0.0) / p.time_s
    if p.time_range is None and p.energy_range_j is None:
        return Amount(joules_in_all)
    joules, seconds = (
        p.energy_range_j or (joules_in_all, joules_in_all),
        p.time_range.seconds if p.time_range else (p.time_s, p.time_s),
    )
    low, high = (of + awake_w * (end - p.time_s) for of, end in zip(joules, seconds, strict=True))
    return Amount(joules_in_all, (low, high))


@dataclass(frozen=True, repr=False)
class Choice(Faced):
    """GPUs, ranked for each length: those with the memory first, and of them those whose quantity is known."""

    _face = "iosim.studies.compare.choice_face"

    per: str
    """"token", "joule" or "dollar"."""
    model: Model | None
    options: tuple[Option, ...]
    """A GPU with its best kernel for each batch and length, in the order of their rank."""
    kernels: tuple[str, ...]
    """Those of which each GPU has its best; "default" is the GPU's own."""
    missing: tuple[str, ...]
    """What cannot run, with the reason: kernels that were asked for, and GPUs that run none."""

    @property
    def quantity(self) -> str:
        """What is ranked: "time_s", "energy_j" or "dollars", of a token."""
        return RANKED_BY[self.per]

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """Query and key tokens of a sequence."""
        return tuple(dict.fromkeys(option.work.length for option in self.options))

    @property
    def longest(self) -> tuple[int, int]:
        return max(self.lengths, key=lambda length: length[::-1])

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers should know, a sentence each."""
        sentences = [
            "a token is a query token: a prefill has all of its sequences', a step of decoding one a sequence",
            "frontier: no other row of its length is better in time per call or cost (energy) per token, and no worse in "
            "the other",
        ]
        if len(self.kernels) > 1:
            sentences.append(
                f"each GPU has its best kernel of {', '.join(self.kernels)}: the capacity rule ranks them, and "
                f"the first {FINALISTS} are predicted"
            )
        unknown = dict.fromkeys(o.gpu.label for o in self.options if o.energy_j is None)
        if unknown:
            sentences.append(
                f"energy is not known on {', '.join(unknown)}: the board's power is not known"
            )
        too_large = dict.fromkeys(o.gpu.label for o in self.options if not o.fits)
        if too_large:
            sentences.append(
                f"what does not fit in the memory of {', '.join(too_large)} comes last"
            )
        sentences += [
            note for note in (legend(p for o in self.options for p in o.predictions),) if note
        ]
        if self.model is not None:
            sentences += [
                "attention alone: projections, MLP and head are not counted",
                *self.model.all_notes,
            ]
        return tuple(sentences)

    def at(self, length: tuple[int, int]) -> list[Option]:
        """The options of one length, best first."""
        return [option for option in self.options if option.work.length == length]

    def able(self, length: tuple[int, int]) -> list[Option]:
        return [
            option
            for option in self.at(length)
            if option.fits and option.a_token(self.quantity) is not None
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            **plain(
                per=self.per,
                model=self.model,
                rows=self.options,
                cannot_run=self.missing,
                notes=self.notes,
            ),
        }

    def records(self) -> list[dict[str, Any]]:
        return [option.to_dict() for option in self.options]


Candidate = tuple[Gpu, Work, tuple[str, ...]]


def rank_gpus(request: ChoiceRequest, progress: Progress = silent) -> Choice:
    """The GPUs of a request, ranked for each of its lengths."""
    Conditions(method=request.method, l2_start=request.l2_start)
    if request.method == "bounds":
        raise InputError(
            "`method` bounds gives no time of HBM, by which GPUs differ; accepted: capacity, replay"
        )
    gpus, model, quantity = (
        gpus_of(tuple(request.gpu)),
        asked_model(request),
        RANKED_BY[request.per],
    )
    for name in request.kernel or ():
        entry_name(name) if not is_choice(name) else None
    prices, missing = _prices(request, gpus), dict[tuple[str, Work, str], InputError]()
    candidates = _candidates(gpus, model, request)
    # Two rounds: all candidates by the capacity rule, which is quick; the first of each GPU and
    # length again by the method asked for.
    estimates = _options(candidates, replace(request, method="capacity"), prices, missing, silent)
    finalists = [(o.gpu, o.work, o.requested) for o in _best(estimates, quantity, FINALISTS)]
    options = _best(_options(finalists, request, prices, missing, progress), quantity, 1)
    if not options:
        raise InputError(f"no kernel can run: {next(iter(missing.values())).marked}")
    if all(option.a_token(quantity) is None for option in options):
        unknown = ", ".join(gpu.label for gpu in gpus)
        hint = "a GPU whose constants were measured, such as h100 or h200, or `per` token or dollar"
        raise InputError(f"`per` {request.per}: energy is not known on {unknown}; accepted: {hint}")
    lengths = list(dict.fromkeys(option.work.length for option in options))
    ranked = []
    for option in sorted(
        options, key=lambda o: (lengths.index(o.work.length), *_rank(o, quantity))
    ):
        frontier = tuple(
            word for word, of in FRONTIERS.items() if _is_on_frontier(option, options, of)
        )
        ranked.append(replace(option, frontier=frontier))
    # A kernel that nobody named may fail in silence where another one ran.
    able = {(option.gpu.label, option.work) for option in options}
    cannot = dict.fromkeys(
        f"{names} on {gpu}: {why}"
        for (gpu, work, names), why in missing.items()
        if request.kernel or (gpu, work) not in able
    )
    kernels = tuple(request.kernel or (DEFAULT, *LIBRARIES))
    return Choice(request.per, model, tuple(ranked), kernels, tuple(cannot))


def _candidates(
    gpus: tuple[Gpu, ...], model: Model | None, request: ChoiceRequest
) -> list[tuple[Gpu, Work, tuple[str, ...]]]:
    """Each GPU with every combination of kernels for the layers of a piece of work."""
    candidates: list[Candidate] = []
    for work, gpu in product(_works(request, model), gpus):
        problems = [problem for _, problem in work.parts]
        # Without `kernel` a GPU has its own and every library kernel that is made for these problems.
        suited = [
            DEFAULT,
            *(name for name in LIBRARIES if all(is_suited(name, p) for p in problems)),
        ]
        by_part = (
            tuple(name_on(gpu, name.strip().lower(), p) for p in problems)
            for name in request.kernel or suited
        )
        candidates += [(gpu, work, names) for names in dict.fromkeys(by_part)]
    return candidates


def _works(request: ChoiceRequest, model: Model | None) -> list[Work]:
    """Each batch and length once. Raises InputError: problems that differ in more than those."""
    if model is None:
        problems = [problem for _, problem in asked_problems(request)]
        if differ_in(problems, "batch", "seq_q", "seq_k"):
            raise InputError(
                "problems that are ranked together may differ in their batch and sequence lengths alone"
            )
        return list(dict.fromkeys(Work(((1, p),), p.batch, p.seq_q, p.seq_k) for p in problems))
    # With a model every batch and length is one work: the calls of all its kinds of layers.
    steps = (
        (v.get("batch") or 1, calls)
        for v in combinations(request.values)
        for calls in calls_of(model, v)
    )
    parts = (
        (batch, tuple((c.kind.count, c.on(DEFAULT)) for c in calls), calls[0])
        for batch, calls in steps
    )
    return list(
        dict.fromkeys(
            Work(of, batch, first.queries, first.keys, model) for batch, of, first in parts
        )
    )


def _options(
    candidates: Sequence[Candidate],
    request: ChoiceRequest,
    prices: Mapping[str, float],
    missing: dict[tuple[str, Work, str], InputError],
    progress: Progress,
) -> list[Option]:
    requests = [
        Request(
            work.on(problem, name),
            name,
            gpu.profile,
            l2_start=request.l2_start,
            method=request.method,
        )
        for gpu, work, names in candidates
        for name, (_, problem) in zip(names, work.parts, strict=True)
    ]
    # One flat list of requests, so that all cores work; taken apart in the same order.
    outcomes, options = iter(try_all(requests, progress=progress)), []
    for gpu, work, names in candidates:
        parts = [next(outcomes) for _ in names]
        predictions = tuple(part for part in parts if not isinstance(part, InputError))
        if len(predictions) == len(parts):
            options.append(Option(gpu, work, predictions, prices.get(gpu.label), requested=names))
            continue
        why = next(part for part in parts if isinstance(part, InputError))
        missing.setdefault((gpu.label, work, ", ".join(dict.fromkeys(names))), why)
    return options


def _best(options: Sequence[Option], quantity: str, count: int) -> list[Option]:
    by_work = grouped(options, lambda o: (o.gpu.label, o.work))
    return [
        option
        for members in by_work.values()
        for option in sorted(members, key=lambda o: _rank(o, quantity))[:count]
    ]


def _rank(option: Option, quantity: str) -> tuple[bool, bool, float]:
    known = option.a_token(quantity)
    return (
        not option.fits,
        # Fitting first, then those whose quantity is known, then the least; without the quantity time
        # decides.
        known is None,
        (known or option.time_s.times(1 / option.work.tokens)).value,
    )


def _is_on_frontier(option: Option, options: Sequence[Option], quantity: str) -> bool:
    # (seconds of a call, quantity per token) of every option of the same length that fits.
    places = {
        id(other): (other.time_s.value, of_token.value)
        for other in options
        if other.fits
        and other.work.length == option.work.length
        and (of_token := other.a_token(quantity)) is not None
    }
    place = places.get(id(option))
    return place is not None and not any(
        at != place and at[0] <= place[0] and at[1] <= place[1] for at in places.values()
    )


def _prices(request: ChoiceRequest, gpus: Sequence[Gpu]) -> dict[str, float]:
    """Dollars per hour by a GPU's label."""
    prices: dict[str, float] = {}
    for text in request.price or ():
        name, _, number = text.rpartition("=")
        try:
            dollars = float(number if name.strip() else "")
        except ValueError:
            raise InputError(
                f"`price` '{text}' is no price; accepted: dollars per hour, such as a100=1.5"
            ) from None
        if not 0 < dollars < MILLION:
            raise InputError(
                f"`price` '{text}' is out of range; accepted: more than 0, less than {MILLION:,}"
            )
        label = label_of(gpus, name.strip(), "price")
        if label in prices:
            raise InputError(
                f"`price` {label} is given twice, as {prices[label]:g} and {dollars:g}; give one of them"
            )
        prices[label] = dollars
    unpriced = [gpu.label for gpu in gpus if gpu.label not in prices]
    if request.per == "dollar" and unpriced:
        example = ",".join(f"{gpu}=2.5" for gpu in unpriced)
        raise InputError(
            f"`per` dollar needs a price of {', '.join(unpriced)}; accepted: `price` {example}"
        )
    return prices
