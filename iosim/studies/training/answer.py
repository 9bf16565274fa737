"""A training step's answer: whether it fits, what holds the memory, how long it takes; and what fits at most."""

from __future__ import annotations

from iosim.base.units import bytes_text, seconds_text, some
from iosim.studies.training.frontier import Frontier, longest_sequence
from iosim.studies.training.prediction import TrainingPrediction


def answer(training: TrainingPrediction) -> str:
    """One sentence on a step, with the longest sequence that fits."""
    t = training
    s, peak = t.setup, t.timeline.peak
    fits = "fits" if t.fits else "does not fit"
    most = max(peak.by_kind, key=lambda k: peak.by_kind[k])
    parts = [f"Training with {s.tokens} and {s.attention} attention {fits} on {t.profile.name}: "
             f"{bytes_text(t.peak_bytes)} at the peak of {bytes_text(t.capacity_bytes)}, "
             f"{bytes_text(peak.by_kind[most])} of them {most}"]  # fmt: skip
    longest = longest_sequence(t.model, s, t.capacity_bytes)
    parts.append(
        f"the longest sequence that fits has {some(longest, 'token')}" if longest else "not even 64 tokens fit"
    )
    if t.time is not None:
        parts.append(f"a step takes {seconds_text(t.time.total_s)}")
    parts.append("tensors alone are counted: the driver's own memory and fragments come on top")
    return f"{'; '.join(parts)}."


def frontier_answer(limits: Frontier, gpu: str, attention: str) -> str:
    """One sentence on a map of what fits."""
    ends = dict.fromkeys(((limits.values[0], limits.longest[0]), (limits.values[-1], limits.longest[-1])))
    at = {v: some(v, "layer") if limits.axis == "layers" else f"{limits.axis} {v:,}" for v, _ in ends}
    said = " and ".join(f"{some(n, 'token') if n else 'nothing'} at {at[v]}" for v, n in ends)
    cells = sum(p <= limits.capacity_bytes for row in limits.peak_bytes for p in row)
    of = some(len(limits.values) * len(limits.seq_lens), "cell")
    return (f"On {gpu} ({bytes_text(limits.capacity_bytes)}) with {attention} attention the longest sequence that fits "
            f"has {said}; {cells} of {of} fit{'s' * (cells == 1)}.")  # fmt: skip
