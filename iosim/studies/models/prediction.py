"""What a model's attention moves: a prediction for every kind of layer, times its count, and their sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from iosim.base.progress import Progress, silent
from iosim.base.records import asdict, dataclass, plain
from iosim.base.units import bytes_text, seconds_text, some
from iosim.base.words import WAYS, Level, Way, sentences
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.conditions import CONDITIONS
from iosim.prediction.answer import against, left_in_l2
from iosim.prediction.confidence import basis, confidence, in_dtype
from iosim.prediction.face import LEVEL_NAMES, body
from iosim.prediction.many import Request, predict_many
from iosim.prediction.result import Moved, Prediction, legend, marked
from iosim.show.page import Panel
from iosim.show.shown import Part, Shown
from iosim.show.tables import Cell, Column, Table
from iosim.studies.models.asked import (
    LayerCall,
    asked_model,
    asked_problems,
    calls_of,
    combinations,
)
from iosim.studies.models.layers import LayerKind, Model
from iosim.studies.requests import PredictRequest

COLUMNS = (
    Column("layer"),
    Column("count", "layers", kind="count"),
    Column("sees", "a query sees"),
    Column("kernel"),
    Column("l2_bytes", "SM<->L2"),
    Column("hbm_bytes", "HBM"),
    Column("time_s", "time"),
    Column("share", "of the time"),
    Column("bound_by", "bound by"),
    Column("kv_cache_bytes", "KV cache"),
)
MOST_NAMED = 6
"""Results that a sentence names."""


@dataclass(frozen=True)
class LayerPrediction:
    """One layer's call, for all layers of its kind."""

    call: LayerCall
    prediction: Prediction
    """Prediction of one layer."""

    @property
    def kind(self) -> LayerKind:
        return self.call.kind

    @property
    def count(self) -> int:
        """Layers of this kind."""
        return self.kind.count

    @property
    def batch(self) -> int:
        """Sequences: those of a chunked call lie packed in one."""
        p = self.prediction.problem
        # A chunked call packs all chunks of all sequences in one: its query tokens over those of one.
        return p.batch if p.seq_lens is None else p.seq_q // self.call.queries

    @property
    def cache_bytes(self) -> int:
        """Bytes of all these layers' key/value caches after the call."""
        return self.kind.cache_bytes(self.batch, self.call.keys, self.prediction.problem.dtype)

    def to_dict(self, *, ranged: bool = True) -> dict[str, Any]:
        head = {"layer": self.kind.name, "count": self.count}
        return head | self.prediction.to_dict(ranged=ranged) | {"kv_cache_bytes": self.cache_bytes}


@dataclass(frozen=True, repr=False)
class ModelPrediction(Shown):
    """The attention of all of a model's layers, on one GPU (or each of several that share the heads)."""

    model: Model
    """The model."""
    layers: tuple[LayerPrediction, ...]
    """A prediction per kind of layer."""

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """A prediction of one layer for each kind."""
        return tuple(layer.prediction for layer in self.layers)

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
        """True where bytes at HBM were found, rather than their bounds alone."""
        return all(p.hbm_known for p in self.predictions)

    def total(self, level: Level, direction: Way | None = None) -> int:
        """Bytes of all layers at "l2" or "hbm", read, written or both. Raises InputError: another level or direction,
        or "hbm" of predictions that know their bounds alone."""
        return sum(layer.count * layer.prediction.total(level, direction) for layer in self.layers)

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
        bounds = [(layer.count, layer.prediction.hbm_bounds) for layer in self.layers]
        return Moved(
            sum(n * b.compulsory_read for n, b in bounds),
            sum(n * b.compulsory_write for n, b in bounds),
        )

    @property
    def time_s(self) -> float:
        return math.fsum(layer.count * layer.prediction.time_s for layer in self.layers)

    @property
    def flops(self) -> int:
        """Operations of all layers' matrix products."""
        return sum(layer.count * layer.prediction.flops for layer in self.layers)

    @property
    def energy_j(self) -> float | None:
        """Joules of all layers; None where the GPU's constants are not known."""
        parts = [(layer.count, layer.prediction.energy_j) for layer in self.layers]
        return (
            None
            if any(e is None for _, e in parts)
            else math.fsum(n * math.fsum(e.values()) for n, e in parts if e is not None)
        )

    @property
    def cache_bytes(self) -> int:
        """Bytes of all layers' key/value cache after the call, which windows and chunks bound."""
        return sum(layer.cache_bytes for layer in self.layers)

    def totals(self) -> dict[str, Any]:
        """One entry of `models` in JSON: all layers together."""
        hbm = {"read": self.hbm.read, "write": self.hbm.write} if self.hbm_known else None
        head = plain(name=self.model.name, profile=self.profile.name)
        head |= {"kernels": [p.kernel.name for p in self.predictions]}
        levels = {
            "totals": {"hbm": hbm, "l2": asdict(self.l2)},
            "compulsory": asdict(self.compulsory),
        }
        return (
            head
            | plain(
                batch=self.batch,
                seq_q=self.queries,
                seq_k=self.keys,
                layers=self.model.layers,
                tensor_parallel=self.model.tensor_parallel,
            )
            | levels
            | plain(
                flops=self.flops,
                time_s=self.time_s,
                energy_j=self.energy_j,
                kv_cache_bytes=self.cache_bytes,
            )
        )

    def to_dict(self) -> dict[str, Any]:
        return as_json([self])

    def records(self) -> Iterator[dict[str, Any]]:
        """A row per kind of layer: what one layer moves, and how many there are."""
        for layer in self.layers:
            p = layer.prediction
            known = p.hbm_known
            row = {"model": self.model.name, "layer": layer.kind.name, "count": layer.count}
            row |= plain(gpu=p.profile.name, kernel=p.kernel.name) | {
                "seq_q": self.queries,
                "seq_k": self.keys,
            }
            row |= plain(l2_read_bytes=p.l2.read, l2_write_bytes=p.l2.write)
            row |= {f"hbm_{way}_bytes": p.total("hbm", way) if known else None for way in WAYS}
            yield (
                row
                | plain(time_s=p.time_s, bound_by=p.bound_by)
                | {"kv_cache_bytes": layer.cache_bytes // layer.count}
            )

    def to_text(self) -> str:
        return several([self])

    def _line(self) -> str:
        hbm = f", reads HBM {bytes_text(self.hbm.read)}" if self.hbm_known else ""
        tokens = f"{self.queries:,} x {some(self.keys, 'token')}"
        took = f"attention of {some(self.model.layers, 'layer')} {seconds_text(self.time_s)}"
        return f"{self.model.title} on {self.profile.name}, {tokens}: {took}{hbm}"

    def _parts(self) -> list[Part]:
        return [
            *models_answer([self]).split("\n"),
            f"{self.model.line}.",
            layers_table(self),
            notes([self]),
        ]

    def _panels(self) -> tuple[Panel, ...]:
        from iosim.show.axes import stacked  # pages alone need it

        panels = []
        for level, word in reversed(LEVEL_NAMES.items()):
            if level in ("smem", "side") or (level == "hbm" and not self.hbm_known):
                continue
            title = (
                f"{word} bytes of all layers of a kind: {self.model.title} on {self.profile.name}"
            )
            both = {
                word_of_way: [
                    layer.count * layer.prediction.total(level, way) for layer in self.layers
                ]
                for way, word_of_way in zip(WAYS, ("read", "written"), strict=True)
            }
            names = [layer.kind.name for layer in self.layers]
            panels.append(
                stacked(level, title, names, both, f"{word} bytes", bytes_text, of="layers ")
            )
        return tuple(panels)


def as_json(results: Sequence[ModelPrediction]) -> dict[str, Any]:
    predictions = [layer.to_dict() for result in results for layer in result.layers]
    models = [result.totals() for result in results]
    return {
        "schema": 1,
        "model": results[0].model.to_dict(),
        "models": models,
        "predictions": predictions,
    }


def requests_of(request: PredictRequest) -> list[Request]:
    """A call for every GPU, problem and kernel of a request without a model."""
    problems = [problem for _, problem in asked_problems(request)]
    how = {name: getattr(request, name) for name in CONDITIONS}
    combinations_of_request = product(request.gpu, problems, request.kernel)
    return [
        Request(problem, kernel, gpu, request.overrides, **how)
        for gpu, problem, kernel in combinations_of_request
    ]


def run_models(
    request: PredictRequest, progress: Progress = silent
) -> list[Prediction] | list[ModelPrediction]:
    """The predictions of a request, of a model one for every GPU, length and kernel."""
    model = asked_model(request)
    if model is None:
        return list(predict_many(requests_of(request), progress=progress))
    how = {name: getattr(request, name) for name in CONDITIONS}
    # GPU, then length, then kernel; within each the calls of all kinds of layers.
    jobs = [
        job
        for values in combinations(request.values)
        for job in product(request.gpu, calls_of(model, values, states=True), request.kernel)
    ]
    requests = [
        call.request(kernel, gpu, request.overrides, **how)
        for gpu, calls, kernel in jobs
        for call in calls
    ]
    # One flat list, so that equal calls of different jobs are predicted once.
    predictions = iter(predict_many(requests, progress=progress))
    return [
        ModelPrediction(model, tuple(LayerPrediction(call, next(predictions)) for call in calls))
        for _, calls, _ in jobs
    ]


def several(results: Sequence[ModelPrediction]) -> str:
    """The answer; of each result the table by kind of layer; what one layer of each kind does."""
    parts = [models_answer(results), results[0].model.line + "."]
    for result in results:
        parts.append(f"{heading(result)}\n{layers_table(result).text().rstrip()}")
    parts.append("\n".join(f"note: {note}" for note in notes(results)))
    for result in results:
        for layer in result.layers:
            parts.append(f"{layer.kind.title}. {body(layer.prediction)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(result: ModelPrediction) -> str:
    queries = "" if result.queries == result.keys else f"{result.queries:,} x "
    return f"{result.profile.name}, batch {result.batch}, {queries}{some(result.keys, 'token')}"


def layers_table(result: ModelPrediction) -> Table:
    """A row per kind of layer, all its layers together, and one of all."""
    rows: list[tuple[Cell, ...]] = []
    for layer in result.layers:
        p = layer.prediction
        hbm = layer.count * p.total("hbm") if p.hbm_known else None
        seconds = layer.count * p.time_s
        rows.append(
            (
                layer.kind.name,
                layer.count,
                layer.kind.sees,
                p.kernel.name,
                layer.count * p.l2.total,
                marked(hbm, p),
                seconds,
                f"{seconds / result.time_s:.0%}",
                p.bound_by,
                layer.cache_bytes,
            )
        )
    if len(rows) > 1:
        hbm = result.total("hbm") if result.hbm_known else None
        rows.append(
            (
                "all",
                result.model.layers,
                "",
                "",
                result.l2.total,
                marked(hbm, *result.predictions),
                result.time_s,
                "100%",
                "",
                result.cache_bytes,
            )
        )
    return Table(COLUMNS, tuple(rows))


def notes(results: Sequence[ModelPrediction]) -> tuple[str, ...]:
    """What was read of the model, and what marks mean."""
    marks = legend(p for result in results for p in result.predictions)
    bases = basis(p for result in results for p in result.predictions)
    return (
        *([] if marks is None else [marks]),
        *_caches(results),
        *results[0].model.all_notes,
        *bases,
    )


def _caches(results: Sequence[ModelPrediction]) -> tuple[str, ...]:
    """What a model's key/value cache takes, where it keeps one."""
    largest = max(result.cache_bytes for result in results)
    # Training keeps no cache.
    if not largest or results[0].predictions[0].problem.passes != "fwd":
        return ()
    several_sizes = len({result.cache_bytes for result in results}) > 1
    held = (
        "the key/value cache and the states take"
        if results[0].model.states
        else "the key/value cache takes"
    )
    held = held if results[0].model.kinds else "the states take"
    return (f"{held} {'up to ' if several_sizes else ''}{bytes_text(largest)}",)


def models_answer(results: Sequence[ModelPrediction]) -> str:
    """A model, on each GPU and with each kernel, at the longest length."""
    longest = max((result.keys, result.queries) for result in results)
    taken = [result for result in results if (result.keys, result.queries) == longest]
    first = taken[0]
    # The batch stands behind each clause only where it differs between them.
    batches = len({model_result.batch for model_result in taken}) > 1
    clauses = [
        _clause(model_result) + (f" at batch {model_result.batch:,}" if batches else "")
        for model_result in taken[:MOST_NAMED]
    ]
    more = [f"and {len(taken) - MOST_NAMED} more"] if len(taken) > MOST_NAMED else []
    sure = confidence([p for model_result in taken for p in model_result.predictions])
    if len(clauses) == 1:
        return sentences([f"{_subject(first, batches)} {clauses[0]}", sure])
    return "\n".join(
        [
            f"{_subject(first, batches)}:",
            *(f"{model_result}." for model_result in (*clauses, *more)),
            f"{sure}.",
        ]
    )


def _subject(result: ModelPrediction, batches: bool) -> str:
    model = result.model
    sequences = "" if result.batch == 1 or batches else f"{some(result.batch, 'sequence')} of "
    if result.keys == result.queries:
        at = f"over {sequences}{some(result.keys, 'token')}"
    else:
        news = "one new token" if result.queries == 1 else some(result.queries, "new token")
        at = f"of {news} over {sequences}{result.keys:,}"
    gpus = f" (each of {model.tensor_parallel} GPUs)" if model.tensor_parallel > 1 else ""
    gpus += in_dtype(result.predictions[0].problem)
    passes = {"bwd": " backward", "fwd+bwd": " forward and backward"}.get(
        result.predictions[0].problem.passes, ""
    )
    if not model.kinds:
        return f"Updating the states of {model.title}{gpus} {at} takes"
    mixing = f"Attention{passes} and the states" if model.states else f"Attention{passes}"
    return f"{mixing} of {model.title}{gpus} {at} {'take' if model.states else 'takes'}"


def _clause(result: ModelPrediction) -> str:
    text = f"{seconds_text(result.time_s)} on {result.profile.name} with {result.kernels}"
    if result.hbm_known:
        read, least = result.hbm.read, result.compulsory.read
        how = against(read, least)
        if left_in_l2(read, least, result.predictions[0].l2_start):
            how = (
                f"of the compulsory {bytes_text(least)} its own call before left the rest in the L2"
            )
        text += f", reading {bytes_text(read)} from HBM ({how})"
    return text
