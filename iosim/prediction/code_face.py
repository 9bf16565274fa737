"""What a prediction from code looks like: bytes by level and tensor, and loads and stores line by line."""

from __future__ import annotations

from typing import Any

from iosim.base.records import dataclass, replace
from iosim.base.units import bytes_text, seconds_text, some
from iosim.base.words import sentences
from iosim.code.addresses import GLOBAL, LOCAL, SHARED, Site
from iosim.kernel.launch import Mode
from iosim.prediction.code import CodePrediction
from iosim.show.page import Panel
from iosim.show.shown import Part
from iosim.show.tables import Column, Table

SHOWN_SITES = 24
"""Groups of loads and stores that a table shows; JSON has all."""
WASTED = 0.5
"""The part of its sectors' bytes below which an access is named for what it wastes."""
CONFLICTS = 1.5
"""Times its least wavefronts from which on an access is named for its bank conflicts."""


def answer(p: CodePrediction) -> str:
    """The sentence that comes first."""
    hbm = (
        f"reads {bytes_text(p.hbm.read)} from HBM and writes {bytes_text(p.hbm.write)}"
        if p.replay
        else ""
    )
    l2 = f"SM<->L2 {bytes_text(p.l2.read)} read, {bytes_text(p.l2.write)} written"
    time = f"{seconds_text(p.time_s)}, bound by {p.bound_by}"
    said = [f"{p.name} on {p.profile.name} {hbm or 'moves'}; {l2}; {time}"]
    if p.replay and p.hbm_is_uncertain:
        said.append(
            "HBM bytes are uncertain: registers are spilled, and CTAs of such kernels may part, up to "
            f"{bytes_text(p.most_hbm_read)} read"
        )
    return sentences((*said, *problems(p)))


def problems(p: CodePrediction) -> list[str]:
    """What of its accesses costs more than their bytes."""
    sentences_on = []
    sums = [group.sum for group in groups(p)]
    # The worst of each kind: sectors that are fetched for little, and bank conflicts.
    wasted = [g for g in sums if g.space == GLOBAL and g.used_share < WASTED and g.sectors]
    if wasted:
        worst = max(wasted, key=lambda g: g.sectors * (1 - g.used_share))
        sentences_on.append(
            f"{'stores' if worst.mode is Mode.STORE else 'loads'} of {worst.tensor} ({worst.line or worst.text}) use "
            f"{worst.used_share:.0%} of the sectors that they touch"
        )
    shared = [
        g for g in sums if g.space == SHARED and g.wavefronts > CONFLICTS * g.least_wavefronts
    ]
    if shared:
        worst = max(shared, key=lambda g: g.wavefronts)
        times = worst.wavefronts / worst.least_wavefronts
        place = worst.line or f"instruction {worst.number // 2}"
        sentences_on.append(
            f"{worst.text} ({place}) takes {times:.1f} times its wavefronts: bank conflicts"
        )
    return sentences_on


@dataclass(frozen=True)
class Group:
    """Accesses of one source line, tensor, kind and loop together; `served` is the part of their sectors that L1
    serves, None where they go past it."""

    sum: Site
    served: float | None


def groups(p: CodePrediction) -> list[Group]:
    """Accesses by source line, tensor, kind and loop."""
    together: dict[tuple[Any, ...], list[Site]] = {}
    for site in p.sites:
        key = (
            site.space,
            site.mode,
            site.tensor,
            site.line or site.number,
            site.loop,
            site.width,
            site.asynchronous,
        )
        together.setdefault(key, []).append(site)
    return [Group(_sum(sites), _served(p, sites)) for sites in together.values()]


def _served(p: CodePrediction, sites: list[Site]) -> float | None:
    cached = [
        s for s in sites if s.space == GLOBAL and s.mode is Mode.LOAD and s.through_l1 and s.sectors
    ]
    if not cached:
        return None
    missed = sum(p.launch.missed.get(s.number, 1.0) * s.sectors for s in cached)
    return 1 - missed / sum(s.sectors for s in cached)


def _sum(sites: list[Site]) -> Site:
    strides = tuple(sorted({stride for s in sites for stride in s.strides}))
    sums: dict[str, Any] = {name: sum(getattr(s, name) for s in sites) for name in SUMMED}
    return replace(sites[0], **sums, strides=strides, past_end=max(s.past_end for s in sites))


SUMMED = ("requests", "sectors", "lines", "wavefronts", "bytes", "distinct_bytes")


def head_lines(p: CodePrediction) -> list[str]:
    e, fit = p.evaluated, p.launch.occupancy
    registers = p.launch.launch.resources.registers
    grid, block = ("x".join(map(str, sides)) for sides in (e.grid, e.block))
    register_text = f"{registers} registers, " if registers else ""
    executed = []
    if p.work is not None:
        c = p.work.counters
        executed = [
            f"  {c['instructions']:,} instructions of warps, {c['xu_instructions']:,} of them special functions"
        ]
    return [
        f"{p.name} on {p.profile.name}: grid {grid}, {some(e.threads, 'thread')} per CTA ({block})",
        f"  {register_text}{bytes_text(p.launch.launch.resources.shared_memory_bytes or 0)} of shared memory, "
        f"{some(fit.ctas_per_sm, 'CTA')} an SM, {bytes_text(p.launch.l1_bytes)} of L1",
        *executed,
    ]


def level_table(p: CodePrediction) -> Table:
    rows = [("SM <-> L2 (counted)", p.l2.read, p.l2.write)]
    if p.replay is not None:
        rows.append((f"L2 <-> HBM ({p.method})", p.hbm.read, p.hbm.write))
    return Table(
        (
            Column("level", ""),
            Column("read_bytes", "read"),
            Column("write_bytes", "written"),
        ),
        tuple(rows),
    )


def tensor_table(p: CodePrediction) -> Table:
    l2, hbm = p.traffic.tensors("l2"), p.traffic.tensors("hbm")
    sizes = {t.name: t.bytes for t in p.evaluated.bound.tensors}
    rows = tuple(
        (tensor, way, sizes.get(tensor), l2.get((tensor, way)), hbm.get((tensor, way)))
        for tensor, way in dict.fromkeys((*l2, *hbm))
    )
    return Table(
        (
            Column("tensor"),
            Column("direction", ""),
            Column("size_bytes", "size"),
            Column("l2_bytes", "SM<->L2"),
            Column("hbm_bytes", "HBM"),
        ),
        rows,
    )


def site_table(p: CodePrediction) -> Table:
    """Loads and stores by line of the source, those that move most first."""
    by_size = sorted(
        groups(p), key=lambda group: -(group.sum.sectors * 32 + group.sum.wavefronts * 128)
    )
    rows = []
    for group in by_size[:SHOWN_SITES]:
        g = group.sum
        if g.space not in (GLOBAL, SHARED, LOCAL) or not g.requests:
            continue
        sectors_each = g.sectors_per_request if g.space == GLOBAL else None
        used = g.used_share if g.space == GLOBAL else None
        waves = g.wavefronts / g.least_wavefronts if g.space == SHARED else None
        rows.append(
            (
                g.line or f"instruction {g.number // 2}",
                f"{g.mode} {g.width} bytes a lane",
                g.tensor or g.space,
                g.requests,
                sectors_each,
                used,
                group.served,
                waves,
                _moves(g),
            )
        )
    columns = (
        Column("line"),
        Column("access", ""),
        Column("tensor", ""),
        Column("requests", kind="count"),
        Column("sectors", "sectors a request", kind="number"),
        Column("used", "of them used", kind="percent"),
        Column("l1", "served by L1", kind="percent"),
        Column("conflicts", "bank conflicts", kind="ratio"),
        Column("loop", "from trip to trip"),
    )
    return Table(columns, tuple(rows))


def _moves(g: Site) -> str:
    """How an access goes on with its loop: once, stays, or so many bytes on."""
    if not g.loop:
        return "once"
    if not g.moves_with_loop:
        return "stays"
    steps = [s for s in g.strides if s]
    return f"{steps[0]:+,} bytes" if len(set(steps)) == 1 else "moves"


def body(p: CodePrediction) -> str:
    tables = (level_table(p), tensor_table(p), site_table(p))
    texts = [
        line for table in tables for line in (*("  " + x for x in table.text().splitlines()), "")
    ]
    notes = [f"  note: {note}" for note in (*p.notes, *p.time.missing)]
    return "\n".join(
        [
            *head_lines(p),
            "",
            *texts,
            f"  time {seconds_text(p.time_s)}, bound by {p.bound_by}",
            *notes,
        ]
    )


def as_text(p: CodePrediction) -> str:
    return f"{answer(p)}\n\n{body(p)}"


def panels(p: CodePrediction) -> tuple[Panel, ...]:
    """No plots: a launch's tables say all."""
    return ()


def line(p: CodePrediction) -> str:
    return answer(p)


def parts(p: CodePrediction) -> list[Part]:
    """What the text says, with its tables as tables."""
    return [
        answer(p),
        *(x.strip() for x in head_lines(p)),
        level_table(p),
        tensor_table(p),
        site_table(p),
        p.notes,
    ]


def as_dict(p: CodePrediction) -> dict[str, Any]:
    e, launch = p.evaluated, p.launch.launch
    return {
        "kernel": {
            "name": p.name,
            "grid": list(e.grid),
            "block": list(e.block),
            "registers": launch.resources.registers,
            "shared_memory_bytes": launch.resources.shared_memory_bytes,
            "ctas_per_sm": p.launch.occupancy.ctas_per_sm,
        },
        "arguments": [
            {"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in e.bound.tensors
        ],
        "profile": p.profile.name,
        "l2_start": p.conditions.l2_start,
        "method": p.method,
        "totals": {
            "hbm": {"read": p.hbm.read, "write": p.hbm.write} if p.replay else None,
            "l2": {"read": p.l2.read, "write": p.l2.write},
        },
        "traffic": [row.to_dict() for row in p.traffic],
        "counters": {
            "global_load_sectors": e.sectors(Mode.LOAD),
            "global_store_sectors": e.sectors(Mode.STORE),
            "shared_load_wavefronts": e.wavefronts(Mode.LOAD),
            "shared_store_wavefronts": e.wavefronts(Mode.STORE),
        }
        | (p.work.counters if p.work else {}),
        "sites": [_site(p, site) for site in p.sites],
        "time_s": p.time_s,
        "bound_by": p.bound_by,
        "notes": [*p.notes, *p.time.missing],
    }


def _site(p: CodePrediction, site: Site) -> dict[str, Any]:
    return {
        "instruction": site.text,
        "line": site.line,
        "space": site.space,
        "mode": str(site.mode),
        "tensor": site.tensor,
        "loop": site.loop,
        "requests": site.requests,
        "sectors": site.sectors,
        "wavefronts": site.wavefronts,
        "bytes": site.bytes,
        "used_share": site.used_share if site.sectors else None,
        "served_by_l1": 1 - p.launch.missed[site.number]
        if site.number in p.launch.missed
        else None,
        "strides": list(site.strides),
        "past_end_bytes": max(0, site.past_end),
    }
