"""What a prediction looks like: its line, its tables, and bars of its bytes by tensor."""

from __future__ import annotations

import math

from iosim.base.units import bytes_text, joules_text, operations_text, seconds_text, some
from iosim.base.words import WAYS, Level, listed
from iosim.kernel.shared_memory import INSTRUCTIONS
from iosim.prediction.answer import answer, why
from iosim.prediction.confidence import left_out_spills
from iosim.prediction.result import Prediction
from iosim.show.page import Panel
from iosim.show.shown import Part
from iosim.show.tables import Cell, Column, Table

LEVEL_NAMES: dict[Level, str] = {
    "smem": "shared memory",
    "l2": "SM<->L2",
    "side": "L2<->memory-side cache",
    "hbm": "HBM",
}
ENERGY_TITLES = {
    "hbm": "HBM",
    "l2": "L2",
    "smem": "shared memory",
    "tensor": "tensor cores",
    "instructions": "instructions",
    "awake": "being awake",
}


def line(p: Prediction) -> str:
    hbm = f", HBM {bytes_text(p.hbm.read)} ({p.method})" if p.hbm_known else ""
    return (
        f"{p.kernel.name} on {p.profile.name}, {some(p.problem.seq_q, 'token')}: reads SM<->L2 "
        f"{bytes_text(p.l2.read)}"
        f"{hbm}; {seconds_text(p.time_s)}, bound by {p.bound_by}"
    )


def as_text(p: Prediction) -> str:
    return f"{answer([p])}\n\n{body(p)}"


def body(p: Prediction) -> str:
    return "\n".join(
        [
            *head_lines(p),
            "",
            *_indented(level_table(p).text()),
            "",
            *_indented(tensor_table(p).text()),
            "",
            *foot_lines(p),
        ]
    )


def _indented(table: str) -> list[str]:
    return [f"  {line}" for line in table.splitlines()]


def head_lines(p: Prediction) -> list[str]:
    k = p.kernel
    return [
        f"{k.name} on {p.profile.name}: {p.problem.line}",
        f"  tile {k.tile}, {some(k.tile.warps, 'warp')}, {some(k.tile.stages, 'stage')}, order {k.schedule.order}, "
        f"keys {k.schedule.direction}, {k.schedule.scheduler}"
        + (f", {k.splits} splits" if k.splits > 1 else ""),
    ]


def foot_lines(p: Prediction) -> list[str]:
    hits = p.l2_hit_rate if p.side else None
    least = f"no less than {seconds_text(p.ceiling_s)}, by HBM's bytes and products at their highest rates"
    return [
        f"  time {seconds_text(p.time.total_s)}, bound by {p.time.bound_by} ({least}); {operations_text(p.flops)}; "
        f"memory {bytes_text(p.memory_bytes['peak'])}, of it workspace {bytes_text(p.memory_bytes['workspace'])}",
        *(
            []
            if hits is None
            else [f"  {hits:.1%} of the bytes that are read from an L2 lie in it"]
        ),
        *range_lines(p),
        f"  {energy_line(p)}",
        *(f"  why: {text}" for text in [why(p)] if text),
        *(f"  note: {text}" for text in [left_out_spills([p])] if text),
        f"  evidence: {p.evidence}; SM<->L2 bytes {p.exactness}",
        *(f"  note: {n}" for n in (*p.notes, *p.missing)),
    ]


def range_lines(p: Prediction) -> list[str]:
    """How far off HBM bytes may be for constants of the L2 that are not the GPU's own and for CTAs that may part, and
    the time for rates that were not measured on it and kernels that nobody timed, where there are such."""
    lines, span, times = [], p.hbm_range, p.time_range
    if span is not None:
        read, write = (
            f"{bytes_text(least)} to {bytes_text(highest)}"
            for least, highest in (span.read, span.write)
        )
        why = (
            [f"L2 constants that are not this GPU's own ({', '.join(span.constants)})"]
            if span.constants
            else []
        )
        if span.outgrown:
            why.append("how far CTAs drift apart, which is not understood over so many keys")
        elif span.drifts:
            why.append("how far CTAs drift apart")
        why += ["check bits of ECC in the same memory"] if p.profile.ecc == "inline" else []
        lines.append(f"  range: HBM read {read}, written {write}, for {listed(why)}")
    if times is not None:
        least, highest = map(seconds_text, times.seconds)
        why = [f"rates that were not measured on this GPU ({', '.join(times.rates)})"]
        why += ["a kernel that nobody timed on any GPU"] if times.untimed else []
        lines.append(f"  range: time {least} to {highest}, for {listed(why)}")
    return lines


def energy_line(p: Prediction) -> str:
    energy, power = p.energy_j, p.time.power_w
    if energy is None or power is None:
        return "energy not known on this GPU"
    parts = ", ".join(
        f"{ENERGY_TITLES[name]} {joules_text(joules)}" for name, joules in energy.items() if joules
    )
    clock = min(t.clock_hz for t in p.time.launches if t.clock_hz is not None)
    text = f"energy {joules_text(math.fsum(energy.values()))} ({parts}); {power:,.0f} W at {clock / 1e6:,.0f} MHz"
    if p.energy_range_j is None:
        return text
    least, highest = map(joules_text, p.energy_range_j)
    return f"{text}; {least} to {highest}, for energies that were not measured on this GPU"


def level_table(p: Prediction) -> Table:
    bounds = p.hbm_bounds
    rows: list[tuple[Cell, ...]] = [
        ("SM <-> L2 (counted)", p.total("l2", "read"), p.total("l2", "write"))
    ]
    if p.smem is not None:
        rows.insert(0, ("shared memory (counted)", p.smem.read, p.smem.write))
    below = "L2"
    if p.side is not None:
        below = "memory-side cache"
        rows.append((f"L2s <-> {below} ({p.method})", p.side.read, p.side.write))
    if p.hbm_known:
        rows.append(
            (f"{below} <-> HBM ({p.method})", p.total("hbm", "read"), p.total("hbm", "write"))
        )
    if p.check_bits.total:
        rows.append(("  of it check bits", p.check_bits.read, p.check_bits.write))
    rows.append(("  compulsory", bounds.compulsory_read, bounds.compulsory_write))
    rows.append(("  with no L2", bounds.no_l2_read, bounds.no_l2_write))
    return Table(
        (
            Column("level", ""),
            Column("read_bytes", "read"),
            Column("write_bytes", "written"),
        ),
        tuple(rows),
    )


def tensor_table(p: Prediction) -> Table:
    bytes_of: dict[Level, dict[tuple[str, str, str], int]] = {level: {} for level in LEVEL_NAMES}
    for r in p.traffic:
        bytes_of[r.level][r.launch, r.tensor, r.direction] = int(r.bytes)
    keys = list(dict.fromkeys((*bytes_of["l2"], *bytes_of["smem"])))
    # Shared memory has rows that no other level has (instructions): launches in order, then tensors.
    if bytes_of["smem"]:  # both directions of a tensor together
        tensors = list(dict.fromkeys(key[:2] for key in keys if key[1] != INSTRUCTIONS))
        launches = [n.name for n in p.chain.launches]
        keys.sort(
            key=lambda k: (
                launches.index(k[0]),
                tensors.index(k[:2]) if k[:2] in tensors else len(tensors),
            )
        )
    rows = ((*key, *(bytes_of[level].get(key) for level in LEVEL_NAMES)) for key in keys)
    levels = (Column(f"{level}_bytes", name) for level, name in LEVEL_NAMES.items())
    columns = (Column("launch"), Column("tensor"), Column("direction", ""), *levels)
    table = Table(columns, tuple(rows))
    # Columns that would be empty are left out.
    unknown = [name for name in ("smem", "side") if not bytes_of[name]]
    without = [f"{name}_bytes" for name in unknown]
    if len(p.chain.launches) == 1:
        without.append("launch")
    return table.without(*without)


def parts(p: Prediction) -> list[Part]:
    time, *notes = foot_lines(p)
    return [
        *answer([p]).split("\n"),
        *(line.strip() for line in head_lines(p)),
        level_table(p),
        tensor_table(p),
        time.strip(),
        tuple(note.strip() for note in notes),
    ]


def panels(p: Prediction) -> tuple[Panel, ...]:
    levels = {row.level for row in p.traffic}
    known = [level for level in LEVEL_NAMES if level == "l2" or level in levels]
    return tuple(_panel(p, level) for level in reversed(known))


def _panel(p: Prediction, level: Level) -> Panel:
    from iosim.show import axes  # pages alone need it

    bytes_of = p.traffic.tensors(level)
    names = list(dict.fromkeys(tensor for tensor, _ in bytes_of))
    quantity = f"{LEVEL_NAMES[level]} bytes"
    title = f"{quantity} by tensor: {p.kernel.name} on {p.profile.name}, {some(p.problem.seq_q, 'token')}"
    data, readings = [], []
    for n, (direction, word) in enumerate(zip(WAYS, ("read", "written"), strict=True)):
        mine = [(t, int(bytes_of[t, direction])) for t in names if (t, direction) in bytes_of]
        hover = [f"{t} {word}<br>{bytes_text(v)}" for t, v in mine]
        data.append(axes.bar(word, [t for t, _ in mine], [v for _, v in mine], hover, n))
        readings += [f"{t} {word} {bytes_text(v)}" for t, v in mine]
    y = axes.linear_axis(
        (sum(n for (t, _), n in bytes_of.items() if t == name) for name in names),
        quantity,
        bytes_text,
    )
    layout = axes.layout(axes.category_axis(names), y, barmode="stack")
    return Panel(level, title, f"{title}: {', '.join(readings)}.", tuple(data), layout)


def time_table(p: Prediction) -> Table:
    """Where the time of each launch goes: its start, the longest resource at its rate, and what waits; then what each
    resource alone would need, the clock and the power."""
    rows: list[tuple[Cell, ...]] = []
    for t in p.time.launches:
        alone = {name: seconds for name, seconds in t.seconds.items() if name != "latency"}
        longest = max(alone, key=lambda name: alone[name]) if alone else ""
        power = t.power_w
        rows.append(
            (
                t.name,
                seconds_text(t.total_s),
                seconds_text(t.parts["start"]),
                longest,
                seconds_text(t.parts["work"]),
                seconds_text(t.parts["waits"]),
                ", ".join(
                    f"{name} {seconds_text(seconds)}"
                    for name, seconds in alone.items()
                    if name != longest
                ),
                f"{t.clock_hz / 1e6:,.0f} MHz" if t.clock_hz else "",
                f"{power:,.0f} W" if power is not None else "",
            )
        )
    titles = (
        "launch",
        "time",
        "start",
        "longest",
        "its work",
        "waits",
        "the others alone",
        "clock",
        "power",
    )
    return Table(tuple(Column(title.replace(" ", "_"), title) for title in titles), tuple(rows))
