"""predict_training(): from a model, how it is trained and a GPU to memory by kind and over time, and step time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from iosim.base.errors import unknown_name
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.show.shown import Shown
from iosim.show.tables import Table
from iosim.studies.training import allocator, saved
from iosim.studies.training.asked import AXES, SEQ_LENS, several
from iosim.studies.training.frontier import Frontier, frontier
from iosim.studies.training.graph import Graph, Kind
from iosim.studies.training.model import Decoder
from iosim.studies.training.plan import plan
from iosim.studies.training.setup import Setup
from iosim.studies.training.step_time import StepTime, step_time
from iosim.studies.training.timeline import Timeline, play

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class TrainingPrediction(Shown):
    """Memory and time of one training step."""

    FACE = "iosim.studies.training.face"

    model: Decoder
    """What is trained."""
    setup: Setup
    """How it is trained."""
    profile: HardwareProfile
    """The GPU."""
    graph: Graph
    """The step's operations, tensors and parameters."""
    timeline: Timeline
    """Bytes of tensors that live, event by event."""
    time: StepTime | None
    """Seconds of the step by phase and part; None for the cpu backend."""
    reserve_bytes: int = 0
    """Bytes of the GPU's memory taken as not usable (driver context, cuBLAS' workspace)."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes of tensors that live at once."""
        return self.timeline.peak_bytes

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the GPU's memory, less the reserve."""
        return self.profile.need_int("memory_bytes") - self.reserve_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak stays within the capacity."""
        return self.peak_bytes <= self.capacity_bytes

    @cached_property
    def saved_by_kind(self) -> dict[Kind, int]:
        """Bytes kept between forward and backward, by what they hold."""
        return saved.by_kind(saved.saved_storages(self.graph))

    @cached_property
    def allocator(self) -> allocator.AllocatorPeaks:
        """The same requests played through PyTorch's caching allocator."""
        return allocator.peaks(self.timeline.requests)

    def frontier(
        self,
        axis: str = "width",
        values: str | Sequence[int] | None = None,
        seq_lens: str | Sequence[int] = SEQ_LENS,
    ) -> Frontier:
        """The map of what fits, of this model and setup but for two axes.

        Args:
            axis: "width", "batch" or "layers".
            values: of the axis, as a list or a text such as "1k:4k:1k", which is the width's default.
            seq_lens: tokens, likewise.

        Raises:
            InputError: an unknown axis, values out of range, or more than 2,500 cells.
        """
        if axis not in AXES:
            raise unknown_name("`axis`", axis, AXES)
        rows, columns = several(AXES[axis] if values is None else values, axis), several(seq_lens, "seq_lens")
        return frontier(self.model, self.setup, self.profile, axis, rows, columns, reserve_bytes=self.reserve_bytes)

    def curve(self) -> list[tuple[float, str, dict[Kind, int]]]:
        """(seconds since the start, phase, bytes by kind) at every event; without times, events count 1 each."""
        seconds = {(phase, n): s for phase, n, s in self.time.nodes} if self.time else {}
        now, points = 0.0, []
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
            points.append((now, event.phase, event.by_kind))
        return points

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

    def to_pandas(self) -> pandas.DataFrame:
        """The step over time as a DataFrame, a row an event: phase, name, peak bytes, bytes after."""
        return Table.of(self.to_dict()["timeline"]).to_pandas()


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
