"""A step of decoding of a whole model: a point for each kind of layer, and all of them together.

Each kind of layer has its own problem and cache: a window or a chunk bounds what it keeps, MLA's cache holds one latent
vector a token, and a sparse layer reads the keys that it picks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from iosim.base.errors import InputError
from iosim.base.words import DEFAULT
from iosim.hardware.profile import HardwareProfile
from iosim.prediction.estimates import marked, method_of
from iosim.problem.attention import AttentionProblem
from iosim.show.tables import Column, Table
from iosim.studies.decode.decode import DecodePoint, ModelShape, Step, sweep
from iosim.studies.models.asked import OF_MODEL
from iosim.studies.models.layers import LayerKind, Model

if TYPE_CHECKING:
    from iosim.prediction.result import Prediction

OF_SHAPE = ("heads", "kv_heads", "head_dim", "head_dim_v")


@dataclass(frozen=True)
class KindShape(ModelShape):
    """The attention of one kind of a model's layers."""

    kind: LayerKind | None = None
    fields: tuple[tuple[str, Any], ...] = ()
    """Of the problem, what the layer does not decide."""

    @classmethod
    def of(cls, kind: LayerKind, fields: Mapping[str, Any]) -> KindShape:
        """The shape of a kind of layers, with what else was asked of the problem."""
        step = kind.problem(1, 2, **fields)
        sizes = {name: getattr(step, name) for name in OF_SHAPE}
        return cls(**sizes, layers=kind.count, dtype=step.dtype, latent_kv=step.latent_kv, page_size=step.page_size,
                   kind=kind, fields=tuple(fields.items()))  # fmt: skip

    def call(self, batch: int, context: int, new_tokens: int) -> AttentionProblem:
        """One layer's call, over what its cache holds."""
        assert self.kind is not None
        return self.kind.problem(new_tokens, context, batch=batch, latent_kv=self.latent_kv, **dict(self.fields))

    def kept_bytes(self, batch: int, context: int) -> int | None:
        """Bytes of all these layers' caches, of whole pages where there are pages."""
        assert self.kind is not None
        tokens = self.kind.cached_tokens(context)
        page = self.page_size or 1
        return self.layers * batch * -(-tokens // page) * page * self.kind.token_bytes(self.dtype)


@dataclass(frozen=True)
class StackPoint(DecodePoint):
    """One context length on one GPU, of a whole model; `prediction` is of the kind of layer that takes longest."""

    model: Model
    parts: tuple[DecodePoint, ...]
    """A point for each kind of layer."""

    @classmethod
    def of(cls, model: Model, parts: tuple[DecodePoint, ...]) -> StackPoint:
        """All kinds of layers together."""
        longest = max(parts, key=lambda part: part.step_s)
        return cls(longest.shape, longest.batch, longest.context, longest.new_tokens, longest.prediction, model, parts)

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        return tuple(part.prediction for part in self.parts)

    @property
    def step_s(self) -> float:
        return sum(part.step_s for part in self.parts)

    @property
    def cache_bytes(self) -> int:
        return sum(part.cache_bytes for part in self.parts)

    @property
    def weight_bytes(self) -> int | None:
        return self.model.weight_bytes

    @property
    def kept_read_bytes(self) -> int:
        return sum(part.kept_read_bytes for part in self.parts)

    @property
    def kernel_name(self) -> str:
        return ", ".join(dict.fromkeys(part.kernel_name for part in self.parts))

    def per_token(self, level: str, direction: str | None = None) -> float | None:
        parts = [part.per_token(level, direction) for part in self.parts]
        return None if any(n is None for n in parts) else sum(n for n in parts if n is not None)

    def to_dict(self) -> dict[str, Any]:
        """One entry of `points`: all layers, and under `kinds` those of each kind."""
        whole = super().to_dict() | {
            "layers": self.model.layers, "method": method_of(p.method for p in self.predictions),
        }  # fmt: skip
        kinds = [
            {"layer": kind.name, **part.to_dict()} for kind, part in zip(self.model.kinds, self.parts, strict=True)
        ]
        return {"model": self.model.name, "tensor_parallel": self.model.tensor_parallel, **whole, "kinds": kinds}


def sweep_model(
    model: Model, contexts: Iterable[int], gpu: str | HardwareProfile = "a100", kernel: str = DEFAULT, *,
    asked: Mapping[str, Any], **step: Unpack[Step],
) -> Iterator[StackPoint]:  # fmt: skip
    """A whole model's step at every context. Raises InputError: a model that generates nothing, or as `decode_point`
    does.

    Args:
        asked: fields of the problem that were given, such as `dtype` and `page_size`.
    """
    if not model.causal:
        raise InputError(f"`model` '{model.name}' generates nothing: its tokens see all others; accepted: a decoder, "
                         "and "
                         "`iosim predict` for this one")  # fmt: skip
    fields = {name: value for name, value in asked.items() if value is not None and name not in (*OF_MODEL, "batch")}
    fields["dtype"] = asked.get("dtype") or model.dtype or "bf16"
    at = list(contexts)
    shapes = [KindShape.of(kind, fields) for kind in model.kinds]
    kinds = [list(sweep(shape, at, gpu, kernel, **step)) for shape in shapes]
    for parts in zip(*kinds, strict=True):
        yield StackPoint.of(model, parts)


COLUMNS = (
    Column("gpu", "gpu"), Column("kernel", "kernel"), Column("layer", "layer"), Column("count", "layers", "count"),
    Column("sees", "a query sees"), Column("cache_bytes", "cache", "bytes"),
    Column("hbm_bytes_per_token", "HBM/token", "bytes"), Column("step_s", "of the step", "seconds"),
    Column("share", "of the time"), Column("bound_by", "bound by"),
)  # fmt: skip


def kinds_table(points: Sequence[DecodePoint]) -> Table | None:
    """A row a kind of layer at the longest context; None where there is one kind."""
    longest = max(point.context for point in points)
    stacks = [p for p in points if isinstance(p, StackPoint) and p.context == longest and len(p.parts) > 1]
    rows = tuple(
        (p.prediction.profile.name, part.kernel_name, kind.name, kind.count, kind.sees, part.cache_bytes,
         marked(part.per_token("hbm"), part.prediction), part.step_s, f"{part.step_s / p.step_s:.0%}",
         part.prediction.time.bound_by)
        for p in stacks
        for kind, part in zip(p.model.kinds, p.parts, strict=True)
    )  # fmt: skip
    return Table(COLUMNS, rows) if rows else None


def kinds_title(points: Sequence[DecodePoint]) -> str:
    """What that table is of."""
    return f"By kind of layer, at a context of {max(point.context for point in points):,} tokens"
