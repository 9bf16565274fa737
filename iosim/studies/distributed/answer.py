"""A study's answer: the fastest way to spread attention over GPUs, and what it gains over the others."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import bytes_text, seconds_text, some, times_of
from iosim.prediction.answer import times_text
from iosim.studies.distributed.study import Result

HARDLY = 0.01
"""Share of the time below which communication is said to be hidden."""


def answer(results: Sequence[Result], gpus: str, by_default: str = "") -> str:
    """One sentence on the methods of a study over `gpus`, such as "8 x h100-sxm"; `by_default` says which kernel nobody
    asked for."""
    best = min(results, key=lambda r: r.seconds)
    first = f"{best.name} is the fastest of {len(results)} methods on" if len(results) > 1 else f"{best.name} runs on"
    parts = [
        f"{first} {gpus}: {seconds_text(best.seconds)}, {times_of(times_text(best.speedup), 'as fast as one GPU')}"
    ]
    if best.idle is not None:
        parts[0] += f", {float(best.idle.slots):.0%} of the steps idle"
    hidden = "hidden behind computation" if best.exposed_s <= HARDLY * best.seconds else (
        f"{seconds_text(best.exposed_s)} of the time waits for them")  # fmt: skip
    parts.append(f"each GPU receives {bytes_text(float(best.received_bytes))}, {hidden}")
    others = sorted((r for r in results if r is not best), key=lambda r: r.seconds)
    as_long = [times_of(times_text(r.seconds / best.seconds), "as long") for r in others]
    if others:
        named = f"{others[0].name} takes {as_long[0]}"
        if len(others) > 1:
            named += f", the slowest, {others[-1].name}, {as_long[-1]}"
        parts.append(named)
    if best.longest_sequence is not None:
        parts.append(f"up to {some(best.longest_sequence, 'token')} fit")
    parts += [by_default] if by_default else []
    parts.append("times by a model of links and GPUs that was not checked against a cluster")
    return f"{'; '.join(parts)}."
