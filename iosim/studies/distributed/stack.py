"""A model's attention over several GPUs: a study for each kind of layer, and the time of all layers by method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iosim.base.errors import InputError
from iosim.base.units import bytes_text, seconds_text, some
from iosim.hardware.profile import HardwareProfile
from iosim.show.tables import Column, Table
from iosim.studies.distributed.face import text
from iosim.studies.distributed.ring import Ring, ring
from iosim.studies.models.asked import calls_of
from iosim.studies.models.layers import LayerKind, Model

COLUMNS = (
    Column("method", "method"), Column("layers", "layers", "count"), Column("time_s", "time", "seconds"),
    Column("received_bytes", "received", "bytes"),
)  # fmt: skip


@dataclass(frozen=True)
class RingStack:
    """A model's layers over several GPUs."""

    model: Model
    rings: tuple[tuple[LayerKind, Ring], ...]
    """A study for each kind of layer that can be spread."""
    left_out: tuple[tuple[LayerKind, str], ...]
    """The other kinds, and why."""

    @property
    def totals(self) -> list[dict[str, Any]]:
        """Seconds and bytes received of all layers that can be spread, by method, those of every kind."""
        common = set.intersection(*({r.name for r in found} for _, found in self.rings))
        layers = sum(kind.count for kind, _ in self.rings)
        return [
            {
                "name": name,
                "layers": layers,
                "time_s": sum(kind.count * r.seconds for kind, found in self.rings for r in found if r.name == name),
                "received_bytes": sum(
                    kind.count * float(r.received_bytes) for kind, found in self.rings for r in found if r.name == name
                ),
            }
            for name in dict.fromkeys(r.name for _, found in self.rings for r in found)
            if name in common
        ]

    @property
    def answer(self) -> str:
        """The fastest method for all layers, in one sentence."""
        one = self.rings[0][1]
        best = min(self.totals, key=lambda row: row["time_s"])
        more = f", {sum(kind.count for kind, _ in self.left_out)} others left out" if self.left_out else ""
        spread = f"{some(best['layers'], 'layer')} of {self.model.title}{more}"
        where = f"Over {one.num_gpus} x {one.profile.name}, {some(one.problem.seq_q, 'token')}"
        kernels = dict.fromkeys(f"; {found.by_default}" for _, found in self.rings if found.by_default)
        return (f"{where}, {best['name']} is the fastest for the attention of {spread}: "
                f"{seconds_text(best['time_s'])}, a GPU receiving {bytes_text(best['received_bytes'])}"
                f"{''.join(kernels)}.")  # fmt: skip

    def to_dict(self, *, steps: bool) -> dict[str, Any]:
        """The command line's JSON."""
        layers = [{"layer": kind.name, "count": kind.count, **found.to_dict(steps=steps)} for kind, found in self.rings]
        return {
            "schema": 1, "model": self.model.to_dict(), "totals": self.totals, "layers": layers,
            "left_out": [{"layer": kind.name, "count": kind.count, "reason": why} for kind, why in self.left_out],
        }  # fmt: skip

    def to_text(self) -> str:
        """The answer, the totals, and a study for each kind of layer."""
        rows = tuple((row["name"], row["layers"], row["time_s"], row["received_bytes"]) for row in self.totals)
        layers = sum(kind.count for kind, _ in self.rings)
        out = [
            self.answer,
            f"{self.model.line}.",
            f"All {some(layers, 'layer')}\n{Table(COLUMNS, rows).text().rstrip()}",
        ]
        out += [f"left out: {some(kind.count, f'{kind.name} layer')}: {why}" for kind, why in self.left_out]
        out += [f"{kind.title}. {text(found).rstrip()}" for kind, found in self.rings]
        return "\n\n".join((*out, "\n".join(f"note: {note}" for note in self.model.all_notes))) + "\n"


def ring_model(
    model: Model, values: Mapping[str, Any], num_gpus: int, gpu: str | HardwareProfile, **settings: Any
) -> RingStack:
    """A study for each kind of a model's layers; the arguments are those of `ring`.

    Raises:
        InputError: several lengths, or no kind of layer that can be spread.
    """
    asked = calls_of(model, values)
    if len(asked) != 1:
        raise InputError(f"`seq_q` {values.get('seq_q')} are {len(asked)} lengths; accepted: one of them")
    rings, left_out = [], []
    for call in asked[0]:
        try:
            rings.append((call.kind, ring(call.problem, num_gpus, gpu, layers=call.kind.count, **settings)))
        except InputError as error:
            refused = error
            left_out.append((call.kind, str(error)))
    if not rings:
        raise refused
    return RingStack(model, tuple(rings), tuple(left_out))
