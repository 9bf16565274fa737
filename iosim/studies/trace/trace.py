"""A prediction's replay, played once more and written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from iosim.base.errors import InputError
from iosim.prediction.call import Call
from iosim.prediction.replays import tile_accesses
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.engine import PS
from iosim.readers.replay.l2 import followed_sets, model
from iosim.readers.replay.lowering import lower
from iosim.readers.replay.objects import tile_bytes
from iosim.readers.replay.play import Play
from iosim.readers.replay.replay import Replay
from iosim.readers.replay.tracing import Recording, Span, record

DEFAULT_BINS = 200
MAX_BINS = 100_000
MAX_ACCESSES = 600_000_000
"""About a minute of replay."""


@dataclass(frozen=True)
class TraceResult(Recording):
    """What the replay of `prediction` wrote down."""

    prediction: Prediction


def trace(prediction: Prediction, *, launch: str | None = None, bins: int = DEFAULT_BINS) -> TraceResult:
    """Replay a prediction's chain once more, and write down what happens. Raises InputError: no such launch, a
    prediction without replay, bins out of range, or a replay too long to trace.

    Args:
        launch: trace this launch alone; the whole chain is replayed all the same.
        bins: time bins of equal length, from the chain's begin to its end, on the clock of `prediction.time`.
    """
    p = prediction
    if p.replay is None:
        raise InputError(f"`method` {p.method}: a trace needs a replay; accepted: replay")
    check_bins(bins)
    _refuse_untraceable(p.problem, {one.name: one.accesses for one in p.replay.launches}, launch)
    spans = _spans(p, p.replay)
    end_s = max(span.begin_s + span.seconds for name, span in spans.items() if launch in (None, name))
    recording = record(
        lambda tracer: p.call.replay(Play(l2_start=p.l2_start), tracer), p.profile,
        launch=launch, bins=bins, bin_ps=max(1, -(-round(end_s * PS) // bins)), spans=spans,
    )  # fmt: skip
    return TraceResult(**{f.name: getattr(recording, f.name) for f in fields(recording)}, prediction=p)


def _spans(p: Prediction, played: Replay) -> dict[str, Span]:
    """When each launch begins and ends by the prediction's time, and how long the replay plays it."""
    spans, begin = {}, 0.0
    for launch, timed in zip(played.launches, p.time.launches, strict=True):
        spans[launch.name] = Span(begin, timed.total_s, launch.end_s - launch.begin_s)
        begin += timed.total_s
    return spans


def check_bins(bins: int) -> None:
    """Raises an InputError where there are none, or too many to keep."""
    if not 1 <= bins <= MAX_BINS:
        raise InputError(f"`bins` {bins} is out of range; accepted: 1 to {MAX_BINS}")


def check_traceable(call: Call, launch: str | None = None) -> int:
    """Accesses of a call's replay. Refuses what `trace` would refuse, before it is replayed at all, and what is far too
    long or too large before its launches are made into arrays.

    Raises:
        InputError: no such launch, or a replay too long to trace.
        TooLargeError: a replay that would take too much memory.
    """
    chain = call.chain
    _refuse_untraceable(call.problem, {one.name: tile_accesses(replace(chain, launches=(one,)))
                                       for one in chain.launches}, launch)  # fmt: skip
    lowered = lower(chain, 1)
    followed_sets(model(call.profile), lowered.size, beside=tile_bytes(chain))
    accesses = {one.name: one.accesses for one in lowered.launches}
    _refuse_untraceable(call.problem, accesses, launch)
    return sum(accesses.values())


def _refuse_untraceable(problem: AttentionProblem, accesses: Mapping[str, int], launch: str | None) -> None:
    if launch is not None and launch not in accesses:
        raise InputError(f"`launch` '{launch}' is not of this chain; accepted: {', '.join(accesses)}")
    total = sum(accesses.values())
    if total > MAX_ACCESSES:
        raise InputError(f"`seq_q` {problem.seq_q}: a trace of {total:,} accesses takes too long; accepted: up "
                         f"to {MAX_ACCESSES:,}, so fewer heads or tokens")  # fmt: skip
