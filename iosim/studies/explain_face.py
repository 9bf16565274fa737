"""What an explanation looks like: its text, its tables, and what one change after the other would do."""

from __future__ import annotations

from iosim.base.units import bytes_text, seconds_text, some
from iosim.show import axes
from iosim.show.page import Panel
from iosim.show.shown import Part
from iosim.show.tables import Table
from iosim.studies.explain import Explanation, answer


def line(e: Explanation) -> str:
    """What is explained, and its regime."""
    p = e.prediction
    regimes = ", ".join(dict.fromkeys(one.regime for one in e.launches)) or "nothing at HBM"
    return (
        f"{p.kernel.name} on {p.profile.name}, {some(p.problem.seq_q, 'token')}: {regimes}; HBM "
        f"{bytes_text(p.hbm.total)}"
    )


def text(e: Explanation) -> str:
    """As the command line prints it."""
    return f"{answer([e])}\n\n{as_text(e, markdown=False)}"


def parts(e: Explanation) -> list[Part]:
    """The answer, the regime of each launch with its reasons, the sources and the changes."""
    shown: list[Part] = [answer([e]), *heads(e)]
    for one in e.launches:
        shown += [f"Regime of launch {one.name}: {one.regime}", one.reasons]
    shown += ["Where the HBM bytes come from", source_table(e), f"What a change would do: {e.advice}"]
    shown += [change_table(e)] if e.tried.trials else []
    return [*shown, tuple(f"not tried: {words}: {reason}" for words, reason in e.tried.skipped)]


def panels(e: Explanation) -> tuple[Panel, ...]:
    """HBM bytes now and with each change; none where nothing was tried."""
    if not e.tried.trials:
        return ()
    p = e.prediction
    bars = [("(now)", p.hbm.total), *((t.words, t.hbm_bytes) for t in e.tried.trials)]
    title = f"HBM bytes of {p.kernel.name} on {p.profile.name} with each change"
    hover = [f"{words}<br>{bytes_text(n)}" for words, n in bars]
    data = axes.bar("HBM", [words for words, _ in bars], [n for _, n in bars], hover, 0)
    layout = axes.layout(axes.category_axis([words for words, _ in bars]),
                         axes.linear_axis((n for _, n in bars), "HBM bytes", bytes_text))  # fmt: skip
    alt = f"{title}: {'; '.join(f'{words} {bytes_text(n)}' for words, n in bars)}."
    return (Panel("changes", title, alt, (data,), layout),)


def as_text(e: Explanation, *, markdown: bool) -> str:
    """The explanation for a person."""
    written = Table.markdown if markdown else Table.text
    head, item = ("### ", "- ") if markdown else ("", "  ")
    first, second = heads(e)
    out = [f"{head}{first}\n", f"{second}\n"]
    for one in e.launches:
        out.append(f"{head}Regime of launch {one.name}: {one.regime}")
        out += [f"{item}{reason}" for reason in one.reasons]
        out.append("")
    out.append("### Where the HBM bytes come from\n" if markdown else "Where the HBM bytes come from")
    out.append(written(source_table(e)))
    out.append(f"{head}What a change would do: {e.advice}" + "\n" * markdown)
    if e.tried.trials:
        out.append(written(change_table(e)))
    out += [f"{item}not tried: {words}: {reason}" for words, reason in e.tried.skipped]
    return "\n".join(out) + "\n"


def _percent(then: float, now: float) -> str:
    return f"{100 * (then / now - 1):+.1f} %" if now else ""


def heads(e: Explanation) -> tuple[str, str]:
    """What was computed; its bytes at HBM against the compulsory ones, and its time."""
    p, once = e.prediction, e.prediction.hbm_bounds
    return (
        f"{p.kernel.name} on {p.profile.name}: {p.problem.line}; tile {p.kernel.tile}",
        f"HBM read {bytes_text(p.hbm.read)} (compulsory {bytes_text(once.compulsory_read)}), written "
        f"{bytes_text(p.hbm.write)} (compulsory {bytes_text(once.compulsory_write)}); time "
        f"{seconds_text(p.time.total_s)}, bound by {p.time.bound_by}",
    )


def source_table(e: Explanation) -> Table:
    """HBM bytes by launch and tensor."""
    total = max(1, e.prediction.hbm.total)
    return Table.of([
        {"launch": s.launch, "tensor": s.tensor, "direction": s.direction, "HBM": bytes_text(s.hbm_bytes),
         "compulsory": bytes_text(s.once_bytes), "share": f"{100 * s.hbm_bytes / total:.1f} %"}
        for s in e.sources
    ])  # fmt: skip


def change_table(e: Explanation) -> Table:
    """HBM bytes and time with each change, the kernel as it is first."""
    moved, time_s = e.prediction.hbm.total, e.prediction.time_s
    now = {"change": "(now)", "HBM": bytes_text(moved), "against now": "", "time": seconds_text(time_s),
           "time against now": ""}  # fmt: skip
    return Table.of([now] + [
        {"change": t.words, "HBM": bytes_text(t.hbm_bytes), "against now": _percent(t.hbm_bytes, moved),
         "time": seconds_text(t.time_s), "time against now": _percent(t.time_s, time_s)}
        for t in e.tried.trials
    ])  # fmt: skip
