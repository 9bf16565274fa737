"""Predictions against earlier ones: what changed by level, launch and tensor, why, and which limits it passes.

Both sides are read in the form of `iosim predict --format json`. A kernel, its tile and its settings may differ;
another problem, GPU or start of the L2 is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.files import read_object
from iosim.base.progress import Progress, silent
from iosim.base.records import cached_property, dataclass, plain
from iosim.base.schema import ListOf, MapOf, Problem, Real, Spec, Text, Whole, checked, one_line
from iosim.base.schema import Table as Form
from iosim.base.units import bytes_text, digits_text, parse_limit, seconds_text, some
from iosim.base.words import sentences
from iosim.kernel.launch import SPILL
from iosim.prediction.answer import ONCE, times_text, why
from iosim.prediction.confidence import left_out_spills, who
from iosim.prediction.face import LEVEL_NAMES
from iosim.prediction.result import Prediction
from iosim.show.shown import Part, Shown
from iosim.show.tables import Column, Table
from iosim.studies.models.prediction import LayerPrediction, ModelPrediction
from iosim.studies.models.prediction import run_models as predictions_of
from iosim.studies.requests import AgainstRequest

SCHEMA = 1
MAX_BYTES = 100_000_000
TITLES: Mapping[str, str] = {"hbm": LEVEL_NAMES["hbm"], "l2": LEVEL_NAMES["l2"], "time": "time"}
ROUNDING = 1e-9
"""Times nearer than this share are the same."""
OF_OTHERS = ("name", "algorithm", "block_q", "block_k")
"""Fields of a kernel that its name and its tile stand for."""
ACCEPTED = "what 'iosim predict --format json' wrote"
UNSAID = (
    "The JSON shows no difference of the kernel: the cause is a key of its file that JSON does not hold (registers, "
    "roles of warps), the GPU's profile, the clocks or launches that were asked for, or iosim's version"
)
COLUMNS = (
    Column("level"),
    Column("launch"),
    Column("tensor"),
    Column("direction"),
    Column("before", kind="right"),
    Column("now", kind="right"),
    Column("change", kind="right"),
    Column("limit"),
)
Entry = Mapping[str, Any]


class _Anything:
    def problems(self, value: Any, key: str) -> Iterator[Problem]:
        return iter(())


def _holding(**keys: Spec) -> Form:
    # Required keys, and any others unread: a file of an older or newer version has more.
    return Form(keys, tuple(keys), others=("(?s).*", _Anything()))


WORDS = dict.fromkeys(("profile", "l2_start", "method", "bound_by"), Text())
SECONDS = Real(0, 1e18)
PREDICTION = _holding(
    **WORDS,
    problem=MapOf(_Anything()),
    kernel=_holding(name=Text(), block_q=Whole(), block_k=Whole()),
    traffic=ListOf(
        _holding(launch=Text(), level=Text(), tensor=Text(), direction=Text(), bytes=Whole())
    ),
    hbm_bounds=_holding(compulsory=_holding(read=Whole())),
    time=ListOf(_holding(launches=ListOf(_holding(name=Text(), time_s=SECONDS)))),
    time_s=SECONDS,
    notes=ListOf(Text(lines=True, longest=100_000), least=0),
)
FORM = _holding(predictions=ListOf(PREDICTION))


@dataclass(frozen=True)
class Change:
    """Bytes at "hbm" or "l2", or seconds ("time"), before and now; None where they are not known."""

    level: str
    """hbm, l2 or time."""
    launch: str
    """The launch; empty for all."""
    tensor: str
    """The tensor; empty for all, and for times."""
    direction: str
    """read or write; empty for both, and for times."""
    before: float | None
    """Bytes or seconds of the earlier prediction."""
    now: float | None
    """Bytes or seconds of today's."""
    limit: float | None = None
    """The share above before that is allowed."""

    @property
    def more(self) -> float | None:
        """How much more there is now; None where either is not known."""
        if self.before is None or self.now is None:
            return None
        more = self.now - self.before
        # Times are sums of floats, which a change of their order moves in the last bits; bytes are
        # whole numbers and compare exactly.
        return 0 if self.level == "time" and abs(more) <= ROUNDING * self.before else more

    @property
    def share(self) -> float | None:
        """By which share of before that is; None where nothing was there, too."""
        return self.more / self.before if self.more is not None and self.before else None

    @property
    def holds(self) -> bool:
        """True where the limit holds, or there is none. Less always does."""
        return self.limit is None or (self.more or 0) <= self.limit * (self.before or 0)

    @property
    def texts(self) -> tuple[str, str, str]:
        """Before, now and the change, as people read them."""
        text = seconds_text if self.level == "time" else bytes_text
        change = "not known" if self.more is None else "new" if self.more else "as before"
        if self.share:
            change = f"{digits_text(100 * self.share, sign='+')} %"
        before, now = ("-" if value is None else text(value) for value in (self.before, self.now))
        return before, now, change

    @property
    def verdict(self) -> str:
        """How the change stands to its limit, in words; empty without one."""
        less = ", less never fails" if (self.more or 0) < 0 else ""
        return (
            ""
            if self.limit is None
            else f"{'within' if self.holds else 'above'} +{100 * self.limit:g} %{less}"
        )

    def to_dict(self) -> dict[str, Any]:
        where = {
            "launch": self.launch or None,
            "tensor": self.tensor or None,
            "direction": self.direction or None,
        }
        return {
            "level": self.level,
            **where,
            "before": self.before,
            "now": self.now,
            "change": self.share,
        }


@dataclass(frozen=True)
class Difference:
    """One prediction against the earlier one of the same call."""

    earlier: Entry
    """As the file has it."""
    later: Entry
    """Today's, in the same form."""
    prediction: Prediction
    """Today's."""
    limits: Mapping[str, float]
    """Level -> the share above before that is allowed."""

    @cached_property
    def levels(self) -> tuple[Change, ...]:
        """All bytes at HBM, all between SMs and L2, and the time."""
        changes = []
        for level in TITLES:
            before, now = (_total(entry, level) for entry in (self.earlier, self.later))
            changes.append(Change(level, "", "", "", before, now, self.limits.get(level)))
        return tuple(changes)

    @cached_property
    def parts(self) -> tuple[Change, ...]:
        """What moved by launch, tensor and direction, the most first; times of launches where there are several."""
        before, now = _parts(self.earlier), _parts(self.later)
        # A level that is unknown on one side has no parts. With one launch its time is the call's,
        # which stands among the levels already.
        compared = {c.level for c in self.levels if c.more is not None}
        compared -= {"time"} if len({launch for _, launch, *_ in (*before, *now)}) == 1 else set()
        # Tensors that only one side has count as 0 bytes on the other; today's order first.
        changes = (
            Change(*key, before.get(key, 0), now.get(key, 0))
            for key in {**now, **before}
            if key[0] in compared
        )
        changed = (c for c in changes if c.more)
        return tuple(sorted(changed, key=lambda c: ([*TITLES].index(c.level), -abs(c.more or 0))))

    @property
    def fields(self) -> dict[str, tuple[Any, Any]]:
        before, now = (
            {"kernel": k["name"], "tile": f"{k['block_q']}x{k['block_k']}"}
            | {n: k[n] for n in k if n not in OF_OTHERS}
            for k in (self.earlier["kernel"], self.later["kernel"])
        )
        return {
            name: (before[name], now[name])
            for name in now
            if name in before and before[name] != now[name]
        }

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """What differs and explains it, a sentence each without its full stop."""
        # Causes in the order in which they explain: settings, the method, spills, re-reads, the bound.
        both = (self.later, self.earlier)
        changed = ", ".join(
            f"{name} {now} (before {was})" for name, (was, now) in self.fields.items()
        )
        sentences = [f"Changed: {changed}"] if changed else []
        sentences += self._became("method", "HBM bytes are found")
        spilled = [bytes_text(_sum(entry, "l2", SPILL, "write")) for entry in both]
        sentences += (
            [f"Spilled registers: {spilled[0]} stored, before {spilled[1]}"]
            if len({*spilled}) > 1
            else []
        )
        if self.levels[0].more is not None:
            times = [
                _sum(entry, "hbm", "read") / (entry["hbm_bounds"]["compulsory"]["read"] or 1)
                for entry in both
            ]
            # Compared as texts: a change that people do not see is no reason.
            now, was = map(times_text, times)
            if now != was and max(times) > ONCE:
                sentences.append(f"HBM reads are {now} times the compulsory bytes, before {was}")
                sentences += [why(self.prediction)] if times[0] > times[1] else []
        sentences += self._became("bound_by", "The time is bound")
        return tuple(filter(None, sentences)) or (
            (UNSAID,) if any(c.more for c in self.levels) else ()
        )

    def _became(self, name: str, subject: str) -> list[str]:
        before, now = self.earlier[name], self.later[name]
        return [f"{subject} by {now}, before by {before}"] if now != before else []

    @property
    def notes(self) -> tuple[str, ...]:
        before, now = (
            # Notes are compared without their numbers of bytes: the same sentence is not new.
            [re.sub(r"[\d.,]+ [kMGT]?B", "", note) for note in entry["notes"]]
            for entry in (self.earlier, self.later)
        )
        return tuple(
            note for note, bare in zip(self.later["notes"], now, strict=True) if bare not in before
        )

    @property
    def exceeded(self) -> tuple[str, ...]:
        """Limits that it passes, in words; none where all hold."""
        return tuple(
            f"{c.level} of {who(self.prediction)} is {c.texts[1]}, before {c.texts[0]} ({c.texts[2]}), {c.verdict}"
            for c in self.levels
            if not c.holds
        )

    @property
    def line(self) -> str:
        """What became of each level."""
        levels = (
            f"{TITLES[c.level]} {c.texts[2]}" + (f" ({c.texts[1]})" if c.more else "")
            for c in self.levels
        )
        return f"{who(self.prediction)}: {', '.join(levels)}"

    def tables(self) -> list[Table]:
        levels, parts = (
            Table(
                COLUMNS,
                tuple(
                    (TITLES[c.level], c.launch, c.tensor, c.direction, *c.texts, c.verdict)
                    for c in rows
                ),
            )
            for rows in (self.levels, self.parts)
        )
        hidden = ("launch", "tensor", "direction", *([] if self.limits else ["limit"]))
        return [levels.without(*hidden), *([parts.without("limit")] if self.parts else [])]

    def to_dict(self) -> dict[str, Any]:
        names = {
            key: self.later[key] for key in ("layer", "problem", "profile") if key in self.later
        }
        levels = [c.to_dict() | {"limit": c.limit, "holds": c.holds} for c in self.levels]
        fields = [
            {"field": name, "before": was, "now": now} for name, (was, now) in self.fields.items()
        ]
        document = {
            "kernel": self.later["kernel"]["name"],
            "levels": levels,
            **plain(parts=self.parts),
            "fields": fields,
        }
        return names | document | plain(reasons=self.reasons, new_notes=self.notes)


@dataclass(frozen=True, repr=False)
class Differences(Shown):
    """Predictions against earlier ones, and the limits that they pass."""

    file: str
    """Where the earlier ones are from."""
    results: Sequence[Prediction] | Sequence[ModelPrediction]
    """Today's predictions."""
    differences: tuple[Difference, ...]
    """One for each prediction, of a model for each kind of its layers."""
    left_out: tuple[str, ...]
    """Earlier predictions that were not made again, by kernel and GPU."""

    @property
    def exceeded(self) -> tuple[str, ...]:
        """Limits that are passed, in words; none where all hold."""
        return tuple(limit for d in self.differences for limit in d.exceeded)

    @property
    def holds(self) -> bool:
        """True where no limit is passed."""
        return not self.exceeded

    @property
    def answer(self) -> str:
        """The verdict on the limits, what moved furthest, what was changed, and which kernels spill what is not counted."""
        verdict = (
            f"{'Within' if self.holds else 'Above'} the limits"
            if self.differences[0].limits
            else ""
        )
        # The prediction that passes most limits, then the one that moved furthest, heads the answer.
        first = max(
            self.differences,
            key=lambda d: (len(d.exceeded), max(abs(c.share or 0) for c in d.levels)),
        )
        moved_count = sum(any(c.more for c in d.levels) for d in self.differences)
        several = (
            f"{moved_count} of {len(self.differences)} predictions moved"
            if len(self.differences) > 1
            else ""
        )
        spills = left_out_spills(d.prediction for d in self.differences)
        return sentences(
            (verdict, several, f"Against {self.file}, {first.line}", *first.reasons[:1], spills)
        )

    def sections(self) -> list[Part]:
        """What stands below the answer: of each prediction its tables and reasons."""
        parts: list[Part] = []
        for d in self.differences:
            layer = f"{d.later['layer']}: " if "layer" in d.later else ""
            lines = (
                *(f"{reason}." for reason in d.reasons),
                *(f"new note: {note}" for note in d.notes),
            )
            parts += [
                f"{layer}{who(d.prediction)}: {d.prediction.problem.line}",
                *d.tables(),
                lines,
            ]
        parts.append(f"not predicted again: {', '.join(self.left_out)}" if self.left_out else "")
        return [part for part in parts if part]

    def _line(self) -> str:
        within = "within" if self.holds else "above"
        return (
            f"{some(len(self.differences), 'prediction')} against {self.file}, {within} the limits"
        )

    def _parts(self) -> list[Part]:
        return [self.answer, *self.sections()]

    def to_text(self) -> str:
        return f"{self.answer}\n\n{self.body()}"

    def body(self) -> str:
        parts = (
            part.text().rstrip() if isinstance(part, Table) else part for part in self.sections()
        )
        texts = (part if isinstance(part, str) else "\n".join(part) for part in parts)
        return "\n\n".join(texts) + "\n"

    def to_dict(self) -> dict[str, Any]:
        return plain(
            file=self.file, holds=self.holds, differences=self.differences, left_out=self.left_out
        )

    def records(self) -> Iterator[dict[str, Any]]:
        for d in self.differences:
            named = {"gpu": d.prediction.profile.name, "kernel": d.prediction.kernel.name}
            yield from (named | c.to_dict() for c in (*d.levels, *d.parts))


def held_against(request: AgainstRequest, progress: Progress = silent) -> Differences:
    file, before = _read(request.against)
    limits: dict[str, float] = {}
    for text in request.fail_above or ():
        level, _, limit = parse_limit(text, "level", tuple(TITLES), (), "", "hbm=5% or time=10%")
        # Given twice, the stricter one holds.
        limits[level] = min(limit, limits.get(level, limit))
    results = predictions_of(request, progress)
    layers = [
        layer
        for result in results
        for layer in ([result] if isinstance(result, Prediction) else result.layers)
    ]
    predictions = [
        p
        for result in results
        for p in ([result] if isinstance(result, Prediction) else result.predictions)
    ]
    entries = [_entry(item) for item in layers]
    differences = tuple(
        Difference(_earlier_of(entry, before, entries, file), entry, prediction, limits)
        for entry, prediction in zip(entries, predictions, strict=True)
    )
    if "hbm" in limits and any(d.levels[0].more is None for d in differences):
        accepted = "accepted: l2 or time, or another method on both sides"
        raise InputError(
            f"`fail_above` hbm needs HBM bytes, which `method` bounds does not find; {accepted}"
        )
    # By identity: two equal entries of a file are two predictions.
    unmatched = (item for item in before if not any(item is d.earlier for d in differences))
    left_out = tuple(f"{item['kernel']['name']} on {item['profile']}" for item in unmatched)
    return Differences(file, results, differences, left_out)


def _entry(prediction: Prediction | LayerPrediction) -> Entry:
    # Through JSON, so that tuples and enumerations compare as the file has them.
    return dict(json.loads(json.dumps(prediction.to_dict(ranged=False))))


def _read(against: str | os.PathLike[str] | Prediction) -> tuple[str, list[Entry]]:
    """What earlier predictions are called, and their entries. Raises InputError: the file is not of that form."""
    if isinstance(against, Prediction):
        return "the earlier prediction", [_entry(against)]
    file = one_line(os.fspath(against))
    where = f"`against` '{file}'"
    data = read_object(os.fspath(against), where, ACCEPTED, MAX_BYTES)
    if "predictions" in data and data.get("schema") != SCHEMA:
        raise InputError(
            f"{where} has schema {one_line(data.get('schema'), 20)}; accepted: {SCHEMA}, {ACCEPTED}"
        )
    return file, checked(data, FORM, f"{where} is not {ACCEPTED}")["predictions"]


def _call(entry: Entry) -> dict[str, Any]:
    """What two predictions must share to be compared."""
    return {
        "layer": entry.get("layer"),
        "gpu": entry["profile"],
        "l2": entry["l2_start"],
        **entry["problem"],
    }


def _earlier_of(entry: Entry, before: Sequence[Entry], today: Sequence[Entry], file: str) -> Entry:
    call, name = _call(entry), entry["kernel"]["name"]
    # Entries of the same call, by kernel. If there is none, the refusal names the nearest call.
    same = {earlier["kernel"]["name"]: earlier for earlier in before if _call(earlier) == call}
    if not same:
        apart = (
            ([k for k in {**was, **call} if was.get(k) != call.get(k)], was)
            for was in map(_call, before)
        )
        keys, was = min(apart, key=lambda pair: len(pair[0]))
        differs = ", ".join(
            f"{key} {one_line(was.get(key), 40)} (now {one_line(call.get(key), 40)})"
            for key in keys
        )
        accepted = "accepted: the same problem, GPU and start of the L2"
        raise InputError(f"`against` '{file}' is of another call: {differs}; {accepted}")
    # Another kernel may be held against an earlier one, if only one is left that today does not ask
    # for by its own name.
    kernels_today = {earlier["kernel"]["name"] for earlier in today if _call(earlier) == call}
    others = [earlier for kernel, earlier in same.items() if kernel not in kernels_today]
    if name not in same and len(others) != 1:
        held = f"`against` '{file}' has {', '.join(same)}, and which is to be held against `kernel` {name} is open"
        raise InputError(f"{held}; accepted: a kernel that it has, or a file of one kernel")
    return same[name] if name in same else others[0]


def _parts(entry: Entry) -> dict[tuple[str, str, str, str], float]:
    """Level, launch, tensor and direction -> bytes; for times level and launch -> seconds."""
    rows = {
        (r["level"], r["launch"], r["tensor"], r["direction"]): r["bytes"] for r in entry["traffic"]
    }
    return rows | {("time", n["name"], "", ""): n["time_s"] for n in entry["time"][0]["launches"]}


def _total(entry: Entry, level: str) -> float | None:
    """Seconds, or bytes at a level; None where they are not known."""
    if level == "time":
        return float(entry["time_s"])
    return None if level == "hbm" and entry["method"] == "bounds" else _sum(entry, level)


def _sum(entry: Entry, level: str, *of: str) -> float:
    """Bytes at a level, of a tensor or direction alone where they are named."""
    return sum(n for key, n in _parts(entry).items() if key[0] == level and {*of} <= {*key[1:]})
