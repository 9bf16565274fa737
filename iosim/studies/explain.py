"""explain(): why a kernel reads from HBM what it reads, in words and numbers, and which change would help most.

The numbers come from a traced replay and from trials; the words are chosen by the numbers alone, never by a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass, plain
from iosim.base.schema import read_toml
from iosim.base.units import bytes_text, digits_text, seconds_text, some
from iosim.base.words import Level, Way, sentences
from iosim.kernel.launch import SPILL, Launch, Role, Rows
from iosim.prediction.answer import moves, reason, sharing_cache, why
from iosim.prediction.confidence import basis, confidence, who
from iosim.prediction.result import Prediction
from iosim.prediction.reuse import MISSING_SHARE, reuse
from iosim.readers.bounds import needed_bytes
from iosim.readers.replay.engine import PS
from iosim.readers.replay.tracing import LaunchTrace
from iosim.show import axes
from iosim.show.page import Panel
from iosim.show.shown import Part, Shown
from iosim.show.tables import Table
from iosim.studies.trace.trace import TraceResult, trace
from iosim.studies.trials import MAX_ACCESSES, SAME_TIME, Tried, try_changes

HELPS = 0.02
"""Share of HBM bytes or of time that a change must save to be worth naming."""
MAIN_SHARE = 0.2
"""Share of the chain's HBM bytes from which on a launch is explained."""
SPILL_SHARE = 0.1
"""Spilled bytes over the launch's other written bytes from which on spills are named."""


@dataclass(frozen=True)
class LaunchFacts:
    """What the regime of one launch follows from. Bytes; the shared tensors are those that its CTAs loop over.
    `one_head_bytes` and `all_bytes` are the shared tensors' of one head and of all; `peak_` and `median_in_use_bytes`
    the range between foremost and hindmost CTA of every head in progress, added up; `in_step_bytes` what HBM would be
    read for if the CTAs of a wave walked in step and nothing outlived its wave."""

    name: str
    regime: str
    shared_tensors: tuple[str, ...]
    slots: int
    waves: float
    capacity_bytes: int
    one_head_bytes: int
    all_bytes: int
    peak_in_use_bytes: int | None
    median_in_use_bytes: int | None
    share_above_capacity: float
    in_step_bytes: int
    loaded_bytes: int
    hbm_read_bytes: int
    spill_bytes: int
    spill_hbm_bytes: int
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return plain(**vars(self))


@dataclass(frozen=True)
class Source:
    """HBM bytes of one tensor, and how many of them are compulsory: once what the mask needs of an input read, or all
    of an output written."""

    launch: str
    """The launch that moves them."""
    tensor: str
    """The tensor."""
    direction: Way
    """read or write."""
    hbm_bytes: int
    """Bytes at HBM."""
    once_bytes: int
    """Bytes of them that are compulsory."""


@dataclass(frozen=True, repr=False)
class Explanation(Shown):
    """Why a prediction's bytes at HBM are what they are, and which change would help."""

    prediction: Prediction
    """What is explained."""
    trace: TraceResult
    """The replay, with where every CTA stood when."""
    launches: tuple[LaunchFacts, ...]
    """The launches with most of the HBM bytes."""
    sources: tuple[Source, ...]
    """HBM bytes by launch and tensor, most first."""
    tried: Tried
    """The changes that were predicted, best first, and those that were not."""
    advice: str
    """The change that would help most, in one sentence."""

    def to_dict(self) -> dict[str, Any]:
        p = self.prediction
        return {
            **plain(
                problem=p.problem, kernel=p.kernel, profile=p.profile.name, l2_start=p.l2_start
            ),
            "hbm": {d: p.total("hbm", d) for d in ("read", "write")},
            **plain(time_s=p.time_s, bound_by=p.bound_by),
            "compulsory": p.hbm_bounds.to_dict()["compulsory"],
            "launches": [n.to_dict() for n in self.launches],
            "sources": [s.__dict__ for s in self.sources],
            "trials": [
                {
                    "change": t.words,
                    "hbm_bytes": t.hbm_bytes,
                    "time_s": t.time_s,
                    "hbm_change_bytes": t.hbm_bytes - p.total("hbm"),
                    "time_change_s": t.time_s - p.time.total_s,
                }
                for t in self.tried.trials
            ],
            "skipped": [
                {"change": words, "reason": reason} for words, reason in self.tried.skipped
            ],
            "advice": self.advice,
        }

    def _line(self) -> str:
        p = self.prediction
        regimes = (
            ", ".join(dict.fromkeys(launch.regime for launch in self.launches)) or "nothing at HBM"
        )
        return (
            f"{who(p)}, {some(p.problem.seq_q, 'token')}: {regimes}; HBM {bytes_text(p.hbm.total)}"
        )

    def to_text(self) -> str:
        return f"{explanations_answer([self])}\n\n{as_text(self, markdown=False)}"

    def _parts(self) -> list[Part]:
        result: list[Part] = [*explanations_answer([self]).split("\n"), *heads(self)]
        for launch in self.launches:
            result += [f"Regime of launch {launch.name}: {launch.regime}", launch.reasons]
        result += [
            "Where the HBM bytes come from",
            source_table(self),
            f"What a change would do: {self.advice}",
        ]
        result += [change_table(self)] if self.tried.trials else []
        lines = [f"why: {why(self.prediction)}"] if why(self.prediction) else []
        lines += [f"not tried: {words}: {why_not}" for words, why_not in self.tried.skipped]
        return [*result, (*lines, *(f"basis: {launch}" for launch in basis([self.prediction])))]

    def _panels(self) -> tuple[Panel, ...]:
        """HBM bytes now and with each change; none where nothing was tried."""
        if not self.tried.trials:
            return ()
        p = self.prediction
        bars = [("(now)", p.hbm.total), *((t.words, t.hbm_bytes) for t in self.tried.trials)]
        title = f"HBM bytes of {who(p)} with each change"
        hover = [f"{words}<br>{bytes_text(n)}" for words, n in bars]
        data = axes.bar("HBM", [words for words, _ in bars], [n for _, n in bars], hover, 0)
        y = axes.linear_axis((n for _, n in bars), "HBM bytes", bytes_text)
        layout = axes.layout(axes.category_axis([words for words, _ in bars]), y)
        alt = f"{title}: {'; '.join(f'{words} {bytes_text(n)}' for words, n in bars)}."
        return (Panel("changes", title, alt, (data,), layout),)


def explain(
    prediction: Prediction, *, progress: Progress = silent, budget: int = MAX_ACCESSES
) -> Explanation:
    """Why the HBM bytes of a prediction are what they are."""
    traced = trace(prediction)
    total = prediction.total("hbm")
    launches = tuple(
        _facts(prediction, traced, launch)
        for launch in prediction.chain.launches
        if prediction.traffic.total("hbm", launch=launch.name) >= MAIN_SHARE * total
    )
    # Trials play the chain again: only where one replay is within the budget are any tried.
    played = sum(replayed.accesses for replayed in traced.replay.launches)
    tried = try_changes(prediction, progress, budget if played <= budget else 0)
    return Explanation(
        prediction, traced, launches, sources(prediction), tried, _advice(prediction, tried)
    )


def explanations_answer(explanations: Sequence[Explanation]) -> str:
    """What each reads from HBM, why, and the change that would help most, in a line each."""
    sure = confidence([e.prediction for e in explanations])
    lines = [
        sentences([line]) for e in explanations for line in (_reason(e), _change_to_make(e)) if line
    ]
    return "\n".join([*lines[:-1], f"{lines[-1]} {sure}."])


def _reason(e: Explanation) -> str:
    p = e.prediction
    return ". ".join(part for part in (moves(p), reason(p)) if part)


def _change_to_make(e: Explanation) -> str:
    """The change that saves HBM bytes at no cost of time; empty where none of those tried does."""
    p = e.prediction
    best, now = e.tried.trials[0] if e.tried.trials else None, p.total("hbm")
    if (
        best is not None
        and best.hbm_bytes < (1 - HELPS) * now
        and best.time_s <= SAME_TIME * p.time.total_s
    ):
        return (
            f"With '{best.words}' {p.kernel.name} would read {bytes_text(best.prediction.hbm.read)}"
        )
    return ""


def sources(p: Prediction) -> tuple[Source, ...]:
    """HBM bytes of a prediction by launch and tensor, most first."""
    role = {"read": "input", "write": "output"}
    rows, counted = [], set()
    for row in p.traffic:
        if row.level == "hbm":
            tensor = p.chain.tensors.get(row.tensor)
            needed = (
                tensor is not None
                and tensor.role == role[row.direction]
                and row.tensor not in counted
            )
            once = 0
            if tensor is not None and needed:
                once = (
                    needed_bytes(p.problem, tensor) if tensor.role is Role.INPUT else tensor.bytes
                )
            # Compulsory bytes of a tensor belong to the first launch that moves it; later moves are not
            # compulsory.
            counted |= {row.tensor} if needed else set()
            rows.append(Source(row.launch, row.tensor, row.direction, int(row.bytes), once))
    return tuple(sorted(rows, key=lambda s: -s.hbm_bytes))


def _facts(p: Prediction, traced: TraceResult, launch: Launch) -> LaunchFacts:
    traced_launch, reused = traced.launch(launch.name), reuse(p, launch)

    def spilled(level: Level, direction: Way) -> int:
        return int(p.traffic.total(level, direction, launch=launch.name, tensor=SPILL))

    # Facts from three sources: the traced replay, the reading of the reuse, and counted spills.
    values = {"name": launch.name, "shared_tensors": reused.tensors} | plain(
        peak_in_use_bytes=traced_launch.peak_in_use_bytes,
        median_in_use_bytes=traced_launch.median_in_use_bytes,
    )
    values |= plain(
        slots=reused.slots,
        waves=reused.waves,
        capacity_bytes=reused.capacity_bytes,
        one_head_bytes=reused.one_head_bytes,
        all_bytes=reused.all_bytes,
        loaded_bytes=reused.loaded_bytes,
        hbm_read_bytes=reused.hbm_read_bytes,
    )
    values |= {
        "share_above_capacity": traced_launch.share_above(reused.capacity_bytes),
        "in_step_bytes": reused.in_step_bytes or 0,
    }
    values |= {"spill_bytes": spilled("l2", "write")}
    values |= {"spill_hbm_bytes": spilled("hbm", "write") + spilled("hbm", "read")}
    regime = reused.regime
    step = (
        f" (kept in step, it would be at most {bytes_text(reused.in_step_bytes or 0)})"
        if reused.outgrows
        else ""
    )
    words = {"where": sharing_cache(p), "step": step}
    reasons = [_headline(regime, values | words), *_between(p, traced, launch)]
    if regime not in ("streamed", "read once"):
        reasons += _order(launch, traced_launch)
    written = int(p.traffic.total("l2", "write", launch=launch.name)) - values["spill_bytes"]
    if values["spill_bytes"] > SPILL_SHARE * written:
        regime += ", spills"
        reasons.append(
            f"spilled registers: {bytes_text(values['spill_bytes'])} written into the L2 beside {bytes_text(written)} "
            f"of results; they take room there, and {bytes_text(values['spill_hbm_bytes'])} of them reach HBM"
        )
    return LaunchFacts(regime=regime, reasons=tuple(reasons), **values)


def _headline(regime: str, v: dict[str, Any]) -> str:
    """The regime in one sentence, with the numbers that it follows from."""
    words = read_toml(Path(__file__).with_suffix(".toml"))
    # explain.toml holds the sentences; bytes go in as text, shares as numbers.
    put_in = v | {k: bytes_text(x or 0) for k, x in v.items() if k.endswith("_bytes")}
    put_in |= {
        "names": " and ".join(v["shared_tensors"]),
        "times": v["hbm_read_bytes"] / max(1, v["all_bytes"]),
    }
    put_in |= {"percent_above": 100 * v["share_above_capacity"]}
    put_in["past"] = (
        "" if v["one_head_bytes"] > v["capacity_bytes"] else "those in progress together go "
    )
    put_in |= {name: part.format(**put_in) for name, part in words["parts"].items()}
    # Two regimes have a stronger form: all tensors fit at once; CTAs drift apart past the capacity.
    if regime == "fits" and v["all_bytes"] <= v["capacity_bytes"]:
        regime = "all fits"
    if regime == "drift" and (v["peak_in_use_bytes"] or 0) > v["capacity_bytes"]:
        regime = "drifts past it"
    return str(words["regimes"][regime].format(**put_in))


def _between(p: Prediction, traced: TraceResult, launch: Launch) -> list[str]:
    chain = p.chain
    names = sorted({a.tensor for a in launch.accesses if chain.tensors[a.tensor].role is Role.TEMP})
    large = [
        f"{n} ({bytes_text(chain.tensors[n].bytes)})"
        for n in names
        if chain.tensors[n].bytes > traced.partition_bytes
    ]
    if not large:
        return []
    outgrown = f"outgrow the {bytes_text(traced.partition_bytes)} of {sharing_cache(p)}"
    return [f"{' and '.join(large)} live between launches and {outgrown}: they go through HBM"]


def _order(launch: Launch, traced: LaunchTrace) -> list[str]:
    """What sets where CTAs stand: which blocks start first, which way they walk, and where they are half-way."""
    c = traced.ctas
    if not traced.shared_tensors:
        return []
    # Only neighbours of the same head are compared: from light to heavy blocks the steps rise.
    same = np.diff(c.owner) == 0
    steps = np.diff(c.count.astype(np.int64))[same]
    # -1: each CTA has fewer steps than the one before it, heavy first; +1: light first.
    lean = float(np.sign(steps).sum()) / max(1, steps.size)
    axis = "keys" if traced.shared_axis is Rows.KEY else "queries"
    equal = abs(lean) < MISSING_SHARE
    blocks = "equal blocks" if equal else "light blocks first" if lean > 0 else "heavy blocks first"
    down = float(c.down.mean())
    if 0 < down < 1:
        walk = f"{axis} in alternating directions, so that neighbouring CTAs meet only once"
    elif down:
        walk = f"{axis} from the last of each CTA down"
        if not equal:
            walk = f"{axis} from the diagonal down, so every CTA begins at a place of its own"
            spread = " and later ones further on: CTAs of a head are everywhere in it"
            walk += spread if lean > 0 else ", and the next CTA beside it"
    else:
        lead = int(np.unique(c.first[c.count > 0]).size) == 1
        walk = (
            f"{axis} upwards"
            + ", all CTAs from the same first one: they are as far apart as their starts" * lead
        )
    sentences = [f"order {launch.schedule.order}, {blocks}, {walk}"]
    # A snapshot half-way through the launch: which heads run, and how far apart their CTAs stand.
    middle = (traced.begin_ps + traced.end_ps) / 2
    running = np.flatnonzero((c.start_ps <= middle) & (middle < c.end_ps) & (c.count > 0))
    if running.size:
        owners, n = np.unique(c.owner[running], return_counts=True)
        mine = running[c.owner[running] == owners[int(n.argmax())]]
        at = c.position(mine, middle)
        rows = launch.domain.block_q if axis == "queries" else launch.domain.block_k
        sentences.append(
            f"half-way through, at {seconds_text(middle / PS)}, {running.size} CTAs run on "
            f"{some(owners.size, 'head')}; the {mine.size} of the busiest one stand at {axis} {int(at.min()) * rows:,} "
            f"to {(int(at.max()) + 1) * rows - 1:,} of it"
        )
    return sentences


def _change(now: float, then: float) -> str:
    if now <= 0:
        return "as now"
    if then < now / 2:
        return f"{digits_text(now / then)} x less" if then > 0 else "none left"
    return f"{100 * (then / now - 1):+.1f} %"


def _advice(p: Prediction, tried: Tried) -> str:
    """The change that saves most HBM bytes at no cost of time; or that nothing does."""
    now, time_now = p.total("hbm"), p.time.total_s
    if not tried.trials:
        why = (
            tried.skipped[0][1] if tried.skipped else "no setting of this kernel changes what runs"
        )
        return f"nothing was tried: {why}"
    best, quick = tried.trials[0], min(tried.trials, key=lambda t: t.time_s)
    if now == 0:
        advice = "nothing is read from or written to HBM"
        if quick.time_s < (1 - HELPS) * time_now:
            advice += f"; fastest is '{quick.words}': {seconds_text(quick.time_s)}, HBM {bytes_text(quick.hbm_bytes)}"
        return advice
    # Three answers: nothing saves bytes at no cost of time; one change saves most; and beside it
    # the fastest change, where that is another one.
    saved, faster = 1 - best.hbm_bytes / now, 1 - best.time_s / time_now
    if best.time_s > SAME_TIME * time_now or (saved < HELPS and faster < HELPS):
        least = min(tried.trials, key=lambda t: t.hbm_bytes)
        many = len(tried.trials)
        none = (
            "the one change tried does not lower"
            if many == 1
            else f"none of the {many} changes tried lowers"
        )
        advice = f"{none} HBM bytes by 2 % at no cost of time"
        if least.hbm_bytes < (1 - HELPS) * now:
            longer = f"{100 * (least.time_s / time_now - 1):.0f} % longer"
            advice += (
                f"; '{least.words}' saves {bytes_text(now - least.hbm_bytes)} and takes {longer}"
            )
        if quick.time_s < (1 - HELPS) * time_now:
            beside = f"{bytes_text(quick.hbm_bytes)} of HBM traffic"
            advice += f"; '{quick.words}' is {100 * (1 - quick.time_s / time_now):.0f} % faster with {beside}"
        return advice
    compulsory = p.hbm_bounds.compulsory_read + p.hbm_bounds.compulsory_write
    advice = (
        f"'{best.words}' helps most: HBM {bytes_text(now)} -> {bytes_text(best.hbm_bytes)} "
        f"({_change(now, best.hbm_bytes)}; compulsory {bytes_text(compulsory)}), time {seconds_text(time_now)} -> "
        f"{seconds_text(best.time_s)}"
    )
    if abs(faster) < HELPS and p.time.bound_by != "hbm":
        advice += f"; the time stays, since {p.time.bound_by} bounds it, not HBM"
    if quick.time_s < (1 - HELPS) * best.time_s:
        advice += f"; fastest is '{quick.words}': {seconds_text(quick.time_s)}, HBM {bytes_text(quick.hbm_bytes)}"
    return advice


def as_text(e: Explanation, *, markdown: bool) -> str:
    written = Table.markdown if markdown else Table.text
    head, item = ("### ", "- ") if markdown else ("", "  ")
    _, *parts = e._parts()
    out = []
    for n, part in enumerate(parts):
        if isinstance(part, Table):
            out.append(written(part))
        elif isinstance(part, tuple):
            out += [f"{item}{reason}" for reason in part]
            if n + 1 < len(parts):
                out.append("")
        else:
            # Markdown wants a blank line after each heading, the terminal after the first two parts.
            below = "\n" * (n < 2 or (markdown and not part.startswith("Regime")))
            out.append(f"{head if n != 1 else ''}{part}{below}")
    return "\n".join(out) + "\n"


def heads(e: Explanation) -> tuple[str, str]:
    p, once = e.prediction, e.prediction.hbm_bounds
    pairs = ((p.hbm.read, once.compulsory_read), (p.hbm.write, once.compulsory_write))
    read, written = (
        f"{bytes_text(moved_bytes)} (compulsory {bytes_text(least)})"
        for moved_bytes, least in pairs
    )
    moves = f"HBM read {read}, written {written}; time {seconds_text(p.time.total_s)}, bound by {p.time.bound_by}"
    return f"{who(p)}: {p.problem.line}; tile {p.kernel.tile}", moves


def source_table(e: Explanation) -> Table:
    total, rows = max(1, e.prediction.hbm.total), []
    for s in e.sources:
        row = {
            "launch": s.launch,
            "tensor": s.tensor,
            "direction": s.direction,
            "HBM": bytes_text(s.hbm_bytes),
        }
        rows.append(
            row
            | {
                "compulsory": bytes_text(s.once_bytes),
                "share": f"{100 * s.hbm_bytes / total:.1f} %",
            }
        )
    return Table.of(rows)


def change_table(e: Explanation) -> Table:
    now = e.prediction.hbm.total, e.prediction.time_s
    rows = []
    for words, *then in [
        ("(now)", *now),
        *((t.words, t.hbm_bytes, t.time_s) for t in e.tried.trials),
    ]:
        more = (
            f"{100 * (b / a - 1):+.1f} %" if a and words != "(now)" else ""
            for a, b in zip(now, then, strict=True)
        )
        cells = (words, bytes_text(then[0]), next(more), seconds_text(then[1]), next(more))
        rows.append(
            dict(
                zip(
                    ("change", "HBM", "against now", "time", "time against now"), cells, strict=True
                )
            )
        )
    return Table.of(rows)
