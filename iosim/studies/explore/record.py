"""What the explorer's page needs to know of a call beside its packed launches: what was counted, and what the page says
of the HBM bytes that its replay finds."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from iosim.base.records import plain, replace
from iosim.hardware.roofs import ceilings
from iosim.kernel.launch import Launch, Outer, Per, Role, is_attention_loop
from iosim.kernel.traffic import Traffic, TrafficRow
from iosim.prediction import answer, reuse
from iosim.prediction.confidence import in_dtype
from iosim.prediction.predictor import predict
from iosim.prediction.replays import tile_accesses
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import needed_bytes
from iosim.readers.replay.packed import packed
from iosim.readers.timing.overlap import norm_of
from iosim.readers.timing.running import reuses_keys

MOST_ACCESSES = 100_000_000
"""Accesses of the longest replay that a browser is asked for: some ten seconds."""
HBM_SHARES = (0.25, 0.5, 0.75, 1.0, 1.5, 0.0)
"""HBM's seconds over those of computing at which the page knows the time, beside none."""
LONGER_ALONE = 32.0
"""A norm that takes the longer of two: of launches that no loop holds together."""


def record(p: Prediction) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """(facts of a call for the page, the streams of its packed launches; none where a browser would take too long to
    play them), of a prediction by any method: its HBM bytes are not used."""
    accesses = tile_accesses(p.chain)
    chain, streams, gpu = (
        packed(p.call.replay_inputs()) if accesses <= MOST_ACCESSES else (None, (), None)
    )
    bounds = p.hbm_bounds
    bandwidth, flops_per_s = ceilings(p.profile, p.problem.dtype, "hbm").get(
        "specification", (None, None)
    )
    q, tile, schedule = p.problem, p.kernel.tile, p.kernel.schedule
    facts = plain(
        kernel=p.kernel.name, gpu=p.profile.name, problem=p.problem.line, flops=p.flops
    ) | {
        "heads": q.batch * q.heads,
        "in_dtype": in_dtype(q, p.profile),
        "how": f"tile {tile}, order {schedule.order}, keys {schedule.direction}, {schedule.scheduler}",
        "accesses": accesses,
        "l2_bytes": p.profile.need_int("l2_bytes"),
        "peaks": [flops_per_s, bandwidth],
        "compulsory": [bounds.compulsory_read, bounds.compulsory_write],
        "no_l2": [bounds.no_l2_read, bounds.no_l2_write],
        "traffic": [
            [r.launch, r.tensor, r.direction, r.level, int(r.bytes)]
            for r in p.traffic
            if r.level != "hbm"
        ],
        "loops": {n.name: _loop(n) for n in p.chain.launches},
        "drawn": _drawn(p),
        "times": _times(p),
        "why": _why(p),
        "notes": list(p.call.notes),
        "chain": chain,
        "replay": gpu,
    }
    return facts, streams


def _loop(launch: Launch) -> list[Any]:
    """Which axis a launch's work tiles have, which they walk, and how many blocks either has; empty for none. Where keys
    are split, a query block has a work tile for each split, numbered split by split."""
    d = launch.domain
    blocks = {"query": d.query_blocks, "key": d.key_blocks_total}
    by_query = ("query", "key")
    axes = {
        Outer.QUERY: by_query,
        Outer.SPLIT: by_query,
        Outer.KEY: ("key", "query"),
    }.get(launch.outer)
    return [] if axes is None else [*axes, *(blocks[axis] for axis in axes)]


def _drawn(p: Prediction) -> str:
    """The launch whose tiles are drawn: the one that reads most from the L2."""
    return max(p.chain.launches, key=lambda n: p.traffic.total("l2", "read", launch=n.name)).name


def _times(p: Prediction) -> list[dict[str, Any]]:
    """What the page makes the time of each launch of: its start, then its computing beside its HBM bytes, as
    `iosim.readers.timing.launch_terms` has it; none where HBM's rate is not known. `computing` are the seconds beside
    HBM's by the bytes read: with more of them, power may lower the clock."""
    rates = p.profile.hbm_seconds_per_byte()
    if rates is None:
        return []
    # The browser finds the HBM bytes and needs the time from them: t = start + (hbm^n + computing^n)
    # to the power 1 / n, with n the norm by which the two overlap.
    launches = p.chain.launches
    entries: list[dict[str, Any]] = []
    for n in launches:
        is_pass = n.outer is Outer.FLAT and not is_attention_loop(n)
        # A pass over memory without a loop reaches only part of the bandwidth.
        share = (p.profile.pass_bandwidth_fraction if is_pass else None) or 1.0
        hbm = [seconds / share for seconds in rates]
        walks = is_attention_loop(n) or n.work.dependent is not None
        norm = norm_of(reuses_keys(n)) if walks else LONGER_ALONE
        entries.append({"launch": n.name, "norm": norm, "hbm": hbm, "computing": []})
    read = dict.fromkeys((n.name for n in launches), 0)
    for share in HBM_SHARES:
        # Probe the model at a few amounts of HBM bytes, and solve the formula above for `computing`.
        rows = (
            TrafficRow(n.name, "hbm", n.accesses[0].tensor, "read", read[n.name]) for n in launches
        )
        at = p.call.time(p.call.counted + Traffic(tuple(rows)), p.conditions)
        for entry, time in zip(entries, at.launches, strict=True):
            entry["start"], name, norm = time.parts["start"], entry["launch"], entry["norm"]
            rest = max(
                0.0,
                (time.total_s - entry["start"]) ** norm - (read[name] * entry["hbm"][0]) ** norm,
            ) ** (1 / norm)
            if not entry["computing"] or read[name] > entry["computing"][-1][0]:
                entry["computing"].append([read[name], float(f"{rest:.5g}")])
            # The next probe: so many bytes that HBM takes this share of the computing time, but no more
            # than the launch asks of the L2.
            l2_reads = p.call.counted.total("l2", "read", launch=name)
            read[name] = min(
                int(l2_reads), round(share * entry["computing"][0][1] / entry["hbm"][0])
            )
    return entries


def _why(p: Prediction) -> dict[str, Any]:
    """What the page makes the reason of, once it knows what is read from HBM; see `iosim.prediction.answer.why`."""
    launch = next(n for n in p.chain.launches if n.name == _drawn(p))
    reused, tensors = reuse.reuse(p, launch), p.chain.tensors
    return {
        "once": answer.read_once(p),
        "spills": answer.spills_beside(p),
        "limits": [answer.ONCE, answer.NAMED_SHARE, reuse.ONCE, reuse.MISSING_SHARE, reuse.NEARLY],
        "inputs": {t.name: needed_bytes(p.problem, t) for t in p.chain.role(Role.INPUT)},
        "roles": {name: t.role for name, t in tensors.items()},
        "temps": {name: t.bytes for name, t in tensors.items() if t.role is Role.TEMP},
        "users": {
            name: sum(any(a.tensor == name for a in n.accesses) for n in p.chain.launches)
            for name in tensors
        },
        "looped": sorted({a.tensor for a in launch.accesses if a.per is Per.PAIR}),
        **plain(
            tensors=reused.tensors,
            all=reused.all_bytes,
            loaded=reused.loaded_bytes,
            in_step=reused.in_step_bytes,
        ),
        "outgrows": reused.outgrows,
        "clauses": answer.reread_clauses(p, reused),
    }


@lru_cache(maxsize=256)
def naive(problem: AttentionProblem, gpu: str) -> dict[str, Any] | None:
    """What standard attention moves beside it, by the capacity rule, data alone as on the whole page; None where it
    cannot run the problem."""
    from iosim.base.errors import InputError

    unpaged = replace(problem, page_size=None)
    try:
        p = predict(unpaged, "naive", gpu, method="capacity", ecc="off")
    except InputError:
        return None
    rows = [
        [tensor, way, int(bytes_moved)]
        for (tensor, way), bytes_moved in p.traffic.tensors("hbm").items()
    ]
    return {
        "hbm": [p.hbm.read, p.hbm.write],
        "l2": [p.l2.read, p.l2.write],
        "tensors": rows,
        "time": p.time_s,
    }
