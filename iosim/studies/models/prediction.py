"""What a model's attention moves: a prediction for every kind of layer, times its count, and their sum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iosim.base.progress import Progress, silent
from iosim.base.words import DEFAULT
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.prediction.many import Request, predict_many
from iosim.prediction.result import Moved, Prediction
from iosim.show.shown import Shown
from iosim.show.tables import Table
from iosim.studies.models.asked import LayerCall, calls_of
from iosim.studies.models.layers import LayerKind, Model

if TYPE_CHECKING:
    import pandas

    from iosim.kernel.kernel import Kernel


@dataclass(frozen=True)
class LayerPrediction:
    """One layer's call, for all layers of its kind."""

    call: LayerCall
    prediction: Prediction
    """Of one layer."""

    @property
    def kind(self) -> LayerKind:
        """The layers."""
        return self.call.kind

    @property
    def count(self) -> int:
        """Layers of this kind."""
        return self.kind.count

    @property
    def batch(self) -> int:
        """Sequences: those of a chunked call lie packed in one."""
        p = self.prediction.problem
        return p.batch if p.seq_lens is None else p.seq_q // self.call.queries

    @property
    def cache_bytes(self) -> int:
        """Bytes of all these layers' key/value caches after the call."""
        return self.kind.cache_bytes(self.batch, self.call.keys, self.prediction.problem.dtype)

    def to_dict(self, *, ranged: bool = True) -> dict[str, Any]:
        """One entry of `predictions` in JSON: one layer's, with the layer and how many there are."""
        own = {"layer": self.kind.name, "count": self.count}
        return own | self.prediction.to_dict(ranged=ranged) | {"kv_cache_bytes": self.cache_bytes}


@dataclass(frozen=True, repr=False)
class ModelPrediction(Shown):
    """The attention of all of a model's layers, on one GPU (or each of several that share the heads)."""

    FACE = "iosim.studies.models.face"

    model: Model
    """The model."""
    layers: tuple[LayerPrediction, ...]
    """A prediction a kind of layer."""

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """A prediction of one layer for each kind."""
        return tuple(one.prediction for one in self.layers)

    @property
    def profile(self) -> HardwareProfile:
        """The GPU."""
        return self.layers[0].prediction.profile

    @property
    def queries(self) -> int:
        """Query tokens of a sequence."""
        return self.layers[0].call.queries

    @property
    def keys(self) -> int:
        """Tokens of a sequence so far, the queries' own among them."""
        return self.layers[0].call.keys

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.layers[0].batch

    @property
    def kernels(self) -> str:
        """The kernels, in the order of the layers."""
        return ", ".join(dict.fromkeys(p.kernel.name for p in self.predictions))

    @property
    def hbm_known(self) -> bool:
        """Whether bytes at HBM were found, rather than their bounds alone."""
        return all(p.hbm_known for p in self.predictions)

    def total(self, level: str, direction: str | None = None) -> int:
        """Bytes of all layers at "l2" or "hbm", read, written or both.

        Raises:
            InputError: another level or direction, or "hbm" of predictions that know their bounds alone.
        """
        return sum(one.count * one.prediction.total(level, direction) for one in self.layers)

    @property
    def hbm(self) -> Moved:
        """Bytes of all layers between L2 and device memory."""
        return Moved(self.total("hbm", "read"), self.total("hbm", "write"))

    @property
    def l2(self) -> Moved:
        """Bytes of all layers between SMs and L2."""
        return Moved(self.total("l2", "read"), self.total("l2", "write"))

    @property
    def compulsory(self) -> Moved:
        """The least bytes at HBM, of all layers."""
        bounds = [(one.count, one.prediction.hbm_bounds) for one in self.layers]
        return Moved(sum(n * b.compulsory_read for n, b in bounds), sum(n * b.compulsory_write for n, b in bounds))

    @property
    def time_s(self) -> float:
        """Seconds of all layers' attention."""
        return sum(one.count * one.prediction.time_s for one in self.layers)

    @property
    def flops(self) -> int:
        """Operations of all layers' matrix products."""
        return sum(one.count * one.prediction.flops for one in self.layers)

    @property
    def energy_j(self) -> float | None:
        """Joules of all layers; None where the GPU's constants are not known."""
        parts = [(one.count, one.prediction.energy_j) for one in self.layers]
        return None if any(e is None for _, e in parts) else sum(n * sum(e.values()) for n, e in parts if e is not None)

    @property
    def cache_bytes(self) -> int:
        """Bytes of all layers' key/value cache after the call, which windows and chunks bound."""
        return sum(one.cache_bytes for one in self.layers)

    def totals(self) -> dict[str, Any]:
        """One entry of `models` in JSON: all layers together."""
        hbm = {"read": self.hbm.read, "write": self.hbm.write} if self.hbm_known else None
        return {
            "name": self.model.name, "profile": self.profile.name, "kernels": [p.kernel.name for p in self.predictions],
            "batch": self.batch, "seq_q": self.queries, "seq_k": self.keys, "layers": self.model.layers,
            "tensor_parallel": self.model.tensor_parallel,
            "totals": {"hbm": hbm, "l2": {"read": self.l2.read, "write": self.l2.write}},
            "compulsory": {"read": self.compulsory.read, "write": self.compulsory.write},
            "flops": self.flops, "time_s": self.time_s, "energy_j": self.energy_j, "kv_cache_bytes": self.cache_bytes,
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The command line's JSON, but for its answer."""
        return as_json([self])

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row a kind of layer, of one layer, and its count."""
        return Table.of(self.rows()).to_pandas()

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row a kind of layer: what one layer moves, and how many there are."""
        for one in self.layers:
            p = one.prediction
            known = p.hbm_known
            yield {
                "model": self.model.name, "layer": one.kind.name, "count": one.count, "gpu": p.profile.name,
                "kernel": p.kernel.name, "seq_q": self.queries, "seq_k": self.keys,
                "l2_read_bytes": p.l2.read, "l2_write_bytes": p.l2.write,
                "hbm_read_bytes": p.hbm.read if known else None, "hbm_write_bytes": p.hbm.write if known else None,
                "time_s": p.time_s, "bound_by": p.bound_by, "kv_cache_bytes": one.cache_bytes // one.count,
            }  # fmt: skip


def as_json(results: Sequence[ModelPrediction]) -> dict[str, Any]:
    """The JSON of several results: predictions of one layer each, and what all layers come to."""
    return {
        "schema": 1,
        "model": results[0].model.to_dict(),
        "models": [one.totals() for one in results],
        "predictions": [layer.to_dict() for one in results for layer in one.layers],
    }


def predict_model(
    model: Model,
    values: Mapping[str, Any],
    kernels: Sequence[str | Kernel] = (DEFAULT,),
    gpus: Sequence[str | HardwareProfile] = ("a100",),
    *,
    progress: Progress = silent,
    **settings: Any,
) -> list[ModelPrediction]:
    """The attention of a model, for every GPU, length and kernel.

    Args:
        values: of the problem's fields, as `calls_of` takes them.
        kernels: of every kind of layer; by default each kind has the GPU's own.
        settings: other fields of a `Request`: l2_start, method, overrides, clocks, launched.

    Raises:
        InputError: as `predict` does.
    """
    profiles = [load_profile(gpu) if isinstance(gpu, str) else gpu for gpu in gpus]
    jobs = [
        [Request(call.problem, kernel, profile, **settings) for call in calls]
        for profile in profiles
        for calls in calls_of(model, values)
        for kernel in kernels
    ]
    asked = [calls for _ in profiles for calls in calls_of(model, values) for _ in kernels]
    made: Iterable[Prediction] = iter(predict_many([one for job in jobs for one in job], progress=progress))
    found = iter(made)
    return [ModelPrediction(model, tuple(LayerPrediction(call, next(found)) for call in calls)) for calls in asked]
