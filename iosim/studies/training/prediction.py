"""predict_training(): from a model, how it is trained and a GPU to memory by kind and over time, and step time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from iosim.base.units import bytes_text, seconds_text
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.studies.training import allocator, saved
from iosim.studies.training.graph import Graph, Kind
from iosim.studies.training.model import Decoder
from iosim.studies.training.plan import plan
from iosim.studies.training.setup import Setup
from iosim.studies.training.step_time import StepTime, step_time
from iosim.studies.training.timeline import Timeline, play


@dataclass(frozen=True)
class TrainingPrediction:
    """Memory and time of one training step. `time` is None for the cpu backend. `reserve_bytes` of the GPU's memory are
    taken as not usable (driver context, cuBLAS' workspace)."""

    model: Decoder
    setup: Setup
    profile: HardwareProfile
    graph: Graph
    timeline: Timeline
    time: StepTime | None
    reserve_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """The most bytes of tensors that live at once."""
        return self.timeline.peak_bytes

    @property
    def capacity_bytes(self) -> int:
        """Memory of the GPU, less the reserve."""
        return self.profile.need_int("memory_bytes") - self.reserve_bytes

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes

    @cached_property
    def saved_by_kind(self) -> dict[Kind, int]:
        """Bytes kept between forward and backward, by what they hold."""
        return saved.by_kind(saved.saved_storages(self.graph))

    @cached_property
    def allocator(self) -> allocator.AllocatorPeaks:
        """The same requests played through PyTorch's caching allocator."""
        return allocator.peaks(self.timeline.requests)

    def curve(self) -> list[tuple[float, str, dict[Kind, int]]]:
        """(seconds since the start, phase, bytes by kind) at every event; without times, events count 1 each."""
        seconds = {(phase, n): s for phase, n, s in self.time.nodes} if self.time else {}
        now, made = 0.0, []
        for event in self.timeline.events:
            again = event.phase == "backward" and event.name.endswith("(again)")
            key = ("recompute" if again else event.phase, -1 if event.node is None else event.node)
            if self.time is None:
                taken = 1.0
            elif event.node is None:
                taken = self.time.phase_s("step")
            else:  # a node with several events takes its time at the first
                taken = seconds.pop(key, 0.0)
            now += taken
            made.append((now, event.phase, event.by_kind))
        return made

    def to_dict(self) -> dict[str, Any]:
        """One entry of `training` in the command line's JSON; bytes are integers."""
        peak = self.timeline.peak
        return {
            "model": self.model.to_dict() | {"parameters": self.graph.parameter_elements},
            "setup": self.setup.to_dict(),
            "profile": self.profile.name,
            "memory_bytes": {
                "peak": self.peak_bytes,
                "peak_at": {"phase": peak.phase, "name": peak.name},
                "peak_by_kind": {str(k): v for k, v in peak.by_kind.items()},
                "phases": self.timeline.phase_peaks(),
                "saved": sum(self.saved_by_kind.values()),
                "saved_by_kind": {str(k): v for k, v in self.saved_by_kind.items()},
                "allocator": {"blocks": self.allocator.blocks_bytes, "reserved": self.allocator.reserved_bytes},
                "capacity": self.capacity_bytes,
            },
            "fits": self.fits,
            "time": self.time.to_dict() if self.time else None,
            "timeline": [
                {"phase": e.phase, "name": e.name, "peak": e.peak_bytes, "after": e.after_bytes}
                for e in self.timeline.events
            ],
        }

    def to_text(self) -> str:
        """A table a person can read."""
        m, s, peak = self.model, self.setup, self.timeline.peak
        heads = f"{m.heads} heads" + (f" ({m.kv_heads} key/value)" if m.heads != m.kv_heads else "")
        lines = [
            f"{m.layers} layers of width {m.width}, {heads}, {self.graph.parameter_elements / 1e6:,.1f} M parameters; "
            f"batch {s.batch} x {s.seq_len} tokens, {s.attention} attention, {s.precision}, {s.optimizer} ({s.step}), "
            f"recompute {s.recompute}; {self.profile.name}",
            "",
            f"  {'':<26}{'at the peak':>14}{'saved forward':>16}",
        ]
        for kind in sorted(peak.by_kind | self.saved_by_kind, key=lambda k: -peak.by_kind.get(k, 0)):
            lines.append(f"  {kind:<26}{bytes_text(peak.by_kind.get(kind, 0)):>14}"
                         f"{bytes_text(self.saved_by_kind.get(kind, 0)):>16}")  # fmt: skip
        lines += [
            f"  {'all':<26}{bytes_text(self.peak_bytes):>14}{bytes_text(sum(self.saved_by_kind.values())):>16}",
            "",
            f"  peak in {peak.phase}, at {peak.name}; "
            + ", ".join(f"{p} {bytes_text(b)}" for p, b in self.timeline.phase_peaks().items()),
            f"  {'fits' if self.fits else 'does not fit'} in {bytes_text(self.capacity_bytes)}; caching allocator: "
            f"{bytes_text(self.allocator.reserved_bytes)} reserved if no segment is given back",
        ]
        return "\n".join(lines + self._time_lines())

    def _time_lines(self) -> list[str]:
        if self.time is None:
            return []
        phases = ", ".join(f"{p} {seconds_text(self.time.phase_s(p))}" for p in self.time.parts if self.time.phase_s(p))
        parts: dict[str, float] = {}
        for found in self.time.parts.values():
            for part, seconds in found.items():
                parts[part] = parts.get(part, 0.0) + seconds
        return [
            f"  step {seconds_text(self.time.total_s)}: {phases}",
            "  of it " + ", ".join(f"{p} {seconds_text(v)}" for p, v in sorted(parts.items(), key=lambda x: -x[1]))
            + f" (attention as {self.time.kernel})",
        ]  # fmt: skip


def predict_training(
    model: Decoder,
    setup: Setup,
    profile: str | HardwareProfile = "l4",
    *,
    kernel: str | None = None,
    reserve_bytes: int = 0,
    times: bool = True,
) -> TrainingPrediction:
    """Memory and time of one training step of `model` under `setup` on a GPU.

    Args:
        model, setup: what is trained, and how.
        profile: a GPU's name, a path to a profile file, or a HardwareProfile.
        kernel: catalog kernel whose time stands for the attention; by default `eager` or PyTorch's choice.
        reserve_bytes: memory of the GPU that tensors cannot use.
        times: whether the step's time is wanted.

    Raises:
        InputError: a profile that lacks a number, an attention that cannot run on it, or sizes out of range.
    """
    gpu = load_profile(profile) if isinstance(profile, str) else profile
    graph = plan(model, setup)
    line = play(graph, setup.rule, setup.number.parameter_bytes, accumulate=setup.accumulate)
    timed = times and setup.backend == "cuda"
    seconds = step_time(graph, model, setup, gpu, kernel) if timed else None
    return TrainingPrediction(model, setup, gpu, graph, line, seconds, reserve_bytes)
