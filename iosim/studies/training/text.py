"""A training step as text: memory by what it holds, whether it fits, and where the time goes."""

from __future__ import annotations

from iosim.base.units import bytes_text, seconds_text, some
from iosim.prediction.estimates import legend_of
from iosim.show.tables import Column, Table
from iosim.studies.training.prediction import TrainingPrediction
from iosim.studies.training.step_time import StepTime


def memory_table(prediction: TrainingPrediction) -> Table:
    """Bytes at the peak and bytes kept for the backward, by what they hold."""
    at, kept = prediction.timeline.peak.by_kind, prediction.saved_by_kind
    columns = (Column("kind", "holds"), Column("peak_bytes", "at the peak", "bytes"),
               Column("saved_bytes", "saved by the forward", "bytes"))  # fmt: skip
    kinds = sorted(at | kept, key=lambda k: -at.get(k, 0))
    rows = [(str(k), at.get(k, 0), kept.get(k, 0)) for k in kinds]
    return Table(columns, (*rows, ("all", prediction.peak_bytes, sum(kept.values()))))


def as_text(prediction: TrainingPrediction) -> str:
    """A table and a few sentences."""
    m, s, peak = prediction.model, prediction.setup, prediction.timeline.peak
    heads = some(m.heads, "head") + (f" ({m.kv_heads} key/value)" if m.heads != m.kv_heads else "")
    phases = ", ".join(f"{p} {bytes_text(b)}" for p, b in prediction.timeline.phase_peaks().items())
    fits = "fits" if prediction.fits else "does not fit"
    lines = [
        f"{some(m.layers, 'layer')} of width {m.width}, {heads}, {prediction.graph.parameter_elements / 1e6:,.1f} M "
        f"parameters; batch {s.tokens}, {s.attention} attention, {s.precision}, {s.optimizer} "
        f"({s.step}), recompute {s.recompute}; {prediction.profile.name}",
        "",
        memory_table(prediction).text(),
        f"peak in {peak.phase}, at {peak.name}; {phases}",
        f"{fits} in {bytes_text(prediction.capacity_bytes)}; caching allocator: "
        f"{bytes_text(prediction.allocator.reserved_bytes)} reserved if no segment is given back",
        *([] if prediction.time is None else _time_lines(prediction.time)),
    ]
    return "".join(f"{line}\n" for line in lines)


def _time_lines(time: StepTime) -> list[str]:
    phases = ", ".join(f"{p} {seconds_text(time.phase_s(p))}" for p in time.parts if time.phase_s(p))
    parts: dict[str, float] = {}
    for of_phase in time.parts.values():
        for part, seconds in of_phase.items():
            parts[part] = parts.get(part, 0.0) + seconds
    longest_first = sorted(parts.items(), key=lambda x: -x[1])
    shares = ", ".join(f"{part} {seconds_text(seconds)}" for part, seconds in longest_first)
    told = legend_of([time.method])
    return [f"step {seconds_text(time.total_s)}: {phases}", f"of it {shares} (attention as {time.kernel})",
            *([] if told is None else [f"attention's {told}"])]  # fmt: skip
