"""A prediction's replay, played once more and written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from iosim.base.errors import InputError
from iosim.base.fields import whole
from iosim.base.records import dataclass, fields, plain, replace
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
from iosim.readers.replay.tracing import LaunchTrace, Recording, Span, record
from iosim.show import timeline

DEFAULT_BINS = 200
MAX_BINS = 100_000
MAX_ACCESSES = 600_000_000


@dataclass(frozen=True)
class TraceResult(Recording):
    prediction: Prediction


def trace(
    prediction: Prediction, *, launch: str | None = None, bins: int = DEFAULT_BINS
) -> TraceResult:
    """Replay a prediction's chain once more, and write down what happens."""
    p = prediction
    if p.replay is None:
        raise InputError(f"`method` {p.method}: a trace needs a replay; accepted: replay")
    check_bins(bins)
    _refuse_untraceable(
        p.problem, {played.name: played.accesses for played in p.replay.launches}, launch
    )
    spans = _spans(p, p.replay)
    end_s = max(
        span.begin_s + span.seconds for name, span in spans.items() if launch in (None, name)
    )
    recording = record(
        lambda tracer: p.call.replay(Play(l2_start=p.l2_start), tracer),
        p.profile,
        launch=launch,
        bins=bins,
        # Bins of equal length, rounded up, so that the last one holds the end.
        bin_ps=max(1, -(-round(end_s * PS) // bins)),
        spans=spans,
    )
    return TraceResult(
        **{f.name: getattr(recording, f.name) for f in fields(recording)}, prediction=p
    )


def _spans(p: Prediction, played: Replay) -> dict[str, Span]:
    spans, begin = {}, 0.0
    for launch, timed in zip(played.launches, p.time.launches, strict=True):
        # The replay has a clock of its own: each launch is stretched to its predicted seconds.
        spans[launch.name] = Span(begin, timed.total_s, launch.end_s - launch.begin_s)
        begin += timed.total_s
    return spans


def check_bins(bins: int) -> None:
    whole("bins", bins, 1, MAX_BINS)


def check_traceable(call: Call, launch: str | None = None) -> int:
    """Accesses of a call's replay; refuses what `trace` would refuse before it is replayed, or lowered, at all."""
    chain = call.chain
    _refuse_untraceable(
        call.problem,
        {
            chain_launch.name: tile_accesses(replace(chain, launches=(chain_launch,)))
            for chain_launch in chain.launches
        },
        launch,
    )
    # Checked twice: by a quick count before anything is lowered, then by the lowered launches.
    lowered = lower(chain, 1)
    followed_sets(model(call.profile), lowered.size, beside=tile_bytes(chain))
    accesses = {chain_launch.name: chain_launch.accesses for chain_launch in lowered.launches}
    _refuse_untraceable(call.problem, accesses, launch)
    return sum(accesses.values())


def _refuse_untraceable(
    problem: AttentionProblem, accesses: Mapping[str, int], launch: str | None
) -> None:
    if launch is not None and launch not in accesses:
        raise InputError(
            f"`launch` '{launch}' is not of this chain; accepted: {', '.join(accesses)}"
        )
    total = sum(accesses.values())
    if total > MAX_ACCESSES:
        accepted = f"up to {MAX_ACCESSES:,}, so fewer heads or tokens"
        raise InputError(
            f"`seq_q` {problem.seq_q}: a trace of {total:,} accesses takes too long; accepted: {accepted}"
        )


MAX_EVENTS = 100_000
"""Work tiles in a Chrome trace; beyond it whole SMs are left out."""
PS_PER_US = 1e6
SMS, MEMORY, LAUNCHES = 1, 2, 3
"""Numbers of a timeline's processes."""


def tensor_rows(t: TraceResult) -> list[dict[str, Any]]:
    """Bytes asked of the L2 and bytes that missed, by tensor; tensors that are only written are left out."""
    loaded, missed = t.loaded(), t.misses()
    return [
        {
            "tensor": name,
            "asked_bytes": loaded[name],
            "missed_bytes": missed[name],
            "hit_rate": 1 - missed[name] / loaded[name],
        }
        for name in t.tensors
        if loaded[name]
    ]


def reuse_rows(launch: LaunchTrace, partition_bytes: int) -> list[dict[str, Any]]:
    """The reuse histogram in few rows: powers of two of the histogram's width, the partition's size always an edge;
    empty rows at the end are left out."""
    h = launch.reuse
    # The partition's size is an edge, so that hits and misses never share a row.
    size = min(round(partition_bytes / h.width_bytes), h.loads.size)
    edges = sorted({0, 1, 2, 4, 8, 16, 32, h.loads.size, size})
    rows = [{"from_bytes": 0, "to_bytes": 0, "kind": "first load", "bytes": h.first}]
    for low, high in pairwise(edges):
        rows.append(
            {
                "from_bytes": low * h.width_bytes,
                "to_bytes": high * h.width_bytes,
                "kind": "reuse",
                "bytes": int(h.loads[low:high].sum()),
            }
        )
    rows.append(
        {
            "from_bytes": h.loads.size * h.width_bytes,
            "to_bytes": None,
            "kind": "reuse",
            "bytes": h.deeper,
        }
    )
    while not rows[-1]["bytes"] and len(rows) > 1:
        rows.pop()
    return rows


def cta_rows(t: TraceResult) -> Iterator[dict[str, Any]]:
    for launch in t.launches:
        columns = _cta_columns(launch)
        ends = {
            f"{end}_us": [ps / PS_PER_US for ps in columns.pop(f"{end}_ps")]
            for end in ("start", "end")
        }
        for n, row in enumerate(zip(*columns.values(), *ends.values(), strict=True)):
            head = {"kernel": t.prediction.kernel.name, "launch": launch.name, "work_tile": n}
            yield head | dict(zip((*columns, *ends), row, strict=True))


def _cta_columns(launch: LaunchTrace) -> dict[str, list[int]]:
    ctas = launch.ctas
    columns: dict[str, np.ndarray[Any, Any]] = {
        "head": ctas.head,
        "block": ctas.block,
        "sm": ctas.sm,
        "slot": ctas.slot,
        "steps": ctas.count,
        "start_ps": ctas.start_ps,
        "end_ps": ctas.end_ps,
    }
    return {key: column.tolist() for key, column in columns.items()}


def numbers(values: Sequence[float] | np.ndarray[Any, Any], digits: int = 6) -> list[float | None]:
    return [round(float(v), digits) if np.isfinite(v) else None for v in values]


def as_dict(t: TraceResult) -> dict[str, Any]:
    p = t.prediction
    rate = t.hit_rate()
    loaded = [n for n, name in enumerate(t.tensors) if t.loaded()[name]]
    return {
        **plain(
            problem=p.problem,
            kernel=p.kernel,
            profile=p.profile.name,
            l2_start=p.l2_start,
            time_s=p.time_s,
        ),
        "partition_bytes": t.partition_bytes,
        "hbm": {d: p.total("hbm", d) for d in ("read", "write")},
        "tensors": tensor_rows(t),
        "bin_s": t.bin_ps / PS,
        "bins": {
            "hit_rate": {t.tensors[n]: numbers(rate[:, n]) for n in loaded},
            "hit_bytes": {t.tensors[n]: t.hit[:, n].tolist() for n in loaded},
            "miss_bytes": {t.tensors[n]: t.miss[:, n].tolist() for n in loaded},
        },
        "launches": [_launch_dict(launch) for launch in t.launches],
    }


def _launch_dict(launch: LaunchTrace) -> dict[str, Any]:
    return {
        "name": launch.name,
        "begin_s": launch.begin_ps / PS,
        "end_s": launch.end_ps / PS,
        **plain(
            slots=launch.slots,
            shared_tensors=launch.shared_tensors,
            peak_in_use_bytes=launch.peak_in_use_bytes,
            median_in_use_bytes=launch.median_in_use_bytes,
        ),
        "in_use_bytes": numbers(launch.in_use_bytes),
        "heads_in_use": numbers(launch.heads_in_use),
        "reuse": {
            "width_bytes": launch.reuse.width_bytes,
            "first_bytes": launch.reuse.first,
            "deeper_bytes": launch.reuse.deeper,
            "bytes": launch.reuse.loads.tolist(),
        },
        "ctas": _cta_columns(launch),
    }


def chrome(t: TraceResult, max_events: int = MAX_EVENTS) -> dict[str, Any]:
    """A trace in Chrome's JSON format: a row a place on an SM, a complete event a work tile, counters by time bin."""
    p = t.prediction
    tiles = sum(launch.ctas.tiles for launch in t.launches)
    # Whole SMs are left out, not single tiles: what is drawn of an SM is complete.
    every = max(1, -(-tiles // max_events))
    places = 1 + max((int(launch.ctas.slot.max(initial=0)) for launch in t.launches), default=0)
    rows: set[int] = set()
    events = [
        timeline.process(SMS, f"SMs ({p.kernel.name} on {p.profile.name})"),
        timeline.process(MEMORY, "L2 and HBM"),
        timeline.process(LAUNCHES, "launches"),
        *timeline.row(LAUNCHES, 0, "launches"),
    ]
    for traced in t.launches:
        begin, end = traced.begin_ps / PS_PER_US, traced.end_ps / PS_PER_US
        events.append(
            timeline.span(traced.name, "launch", (LAUNCHES, 0), begin, end, {"slots": traced.slots})
        )
        c = traced.ctas
        for n in np.flatnonzero(c.sm % every == 0).tolist():
            row = int(c.sm[n]) * places + int(c.slot[n])
            rows.add(row)
            args = {
                "launch": traced.name,
                "work_tile": n,
                "head": int(c.head[n]),
                "block": int(c.block[n]),
                "steps": int(c.count[n]),
            }
            name = f"head {args['head']} block {args['block']}"
            begin, end = int(c.start_ps[n]) / PS_PER_US, int(c.end_ps[n]) / PS_PER_US
            events.append(timeline.span(name, traced.name, (SMS, row), begin, end, args))
    for row in sorted(rows):
        events += timeline.row(SMS, row, f"SM {row // places} slot {row % places}")
    about: dict[str, Any] = {
        "kernel": p.kernel.name,
        "gpu": p.profile.name,
        "made_by": "iosim trace",
    }
    if every > 1:
        about["note"] = (
            f"{tiles:,} work tiles, more than {max_events:,}: every {every}th SM is shown, from SM 0"
        )
    return timeline.whole([*events, *_counters(t)], **about)


def _counters(t: TraceResult) -> Iterator[timeline.Event]:
    rate = t.hit_rate()
    loaded = [n for n, name in enumerate(t.tensors) if t.loaded()[name]]
    for b in range(t.bins):
        at = b * t.bin_ps / PS_PER_US
        for n in loaded:
            if np.isfinite(rate[b, n]):
                percent = round(100 * float(rate[b, n]), 3)
                yield timeline.counter(f"hit rate of {t.tensors[n]}", MEMORY, at, {"%": percent})
        yield timeline.counter(
            "HBM bytes read", MEMORY, at, {t.tensors[n]: int(t.miss[b, n]) for n in loaded}
        )
        for launch in t.launches:
            if launch.in_use_bytes.size and np.isfinite(launch.in_use_bytes[b]):
                used = {"bytes": int(launch.in_use_bytes[b])}
                yield timeline.counter(f"{launch.name}: bytes in use at once", MEMORY, at, used)
