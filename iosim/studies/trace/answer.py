"""A trace's answer: what share of the SMs' reads the L2 serves, and whether what is in use at once fits in it."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import bytes_text
from iosim.prediction.answer import trust, who
from iosim.studies.trace.trace import TraceResult
from iosim.studies.trace.views import tensor_rows


def answer(traces: Sequence[TraceResult]) -> str:
    """One sentence, the kernels apart by semicolons."""
    return f"{'; '.join((*map(_clause, traces), trust([t.prediction for t in traces])))}."


def _clause(t: TraceResult) -> str:
    rows = tensor_rows(t)
    asked, missed = (sum(int(r[key]) for r in rows) for key in ("asked_bytes", "missed_bytes"))
    share = 100 * (1 - missed / asked) if asked else 0.0
    parts = [f"{who(t.prediction)} asks {bytes_text(asked)} of the L2: {share:.1f} % are there, {bytes_text(missed)} "
             "come from HBM"]  # fmt: skip
    drifting = [one for one in t.launches if one.peak_in_use_bytes is not None]
    if drifting:
        widest = max(drifting, key=lambda one: one.peak_in_use_bytes or 0)
        peak, kept = widest.peak_in_use_bytes or 0, t.partition_bytes
        names = " and ".join(widest.shared_tensors)
        above = f"for {100 * widest.share_above(kept):.0f} % of the time more than"
        fits = "never more than" if peak <= kept else above
        parts.append(f"up to {bytes_text(peak)} of {names} are in use at once, {fits} the {bytes_text(kept)} that one "
                     "partition keeps")  # fmt: skip
    return "; ".join(parts)
