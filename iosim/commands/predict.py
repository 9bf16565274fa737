"""`iosim predict`: the bytes, time and memory of attention on a GPU."""

from __future__ import annotations

import argparse
import math
from typing import Any

from iosim.base.progress import progress
from iosim.base.words import DEFAULT
from iosim.commands import common
from iosim.prediction.answer import answer
from iosim.prediction.face import body
from iosim.prediction.result import Prediction
from iosim.studies.models import prediction as models
from iosim.studies.requests import AgainstRequest, CodeRequest


def flat(p: Prediction) -> dict[str, Any]:
    d = p.to_dict(ranged=False)
    row = {
        "gpu": d["profile"],
        **{"kernel" if k == "name" else k: v for k, v in d["kernel"].items()},
    }
    row |= d["problem"]
    row |= {"l2_start": p.l2_start, "method": p.method}
    # Totals of a level are absent, not zero, where the method finds none.
    for level in ("hbm", "l2"):
        for direction in ("read", "write"):
            totals = d["totals"][level]
            row[f"{level}_{direction}_bytes"] = totals[direction] if totals else None
    for name, bound in d["hbm_bounds"].items():
        row |= {f"{name}_{k}_bytes": v for k, v in bound.items()}
    row |= {"flops": d["flops"], "time_s": d["time_s"], "bound_by": d["bound_by"]}
    row |= {"energy_j": math.fsum(d["energy_j"].values()) if d["energy_j"] else None}
    row |= {f"memory_{k}_bytes": v for k, v in d["memory_bytes"].items()}
    return row


def predict(args: argparse.Namespace) -> int:
    if args.code is not None and not common.has_problem(args):
        return _tell_code(args)
    if args.code is not None:
        args.kernel = common.with_code(args)
    # With a model one kernel is the default, each GPU's own; naive beside it is for single calls.
    named = common.is_given(args, "kernel") or args.code is not None
    default = args.model is not None and not named
    request = common.request(args, AgainstRequest, kernel=[DEFAULT] if default else args.kernel)
    if request.against is not None:
        return _tell_differences(args, request)
    predictions: Any = models.run_models(request, progress("predicting"))
    if request.model is not None:
        return _tell_models(args, predictions)
    return common.tell(
        args,
        answer(predictions),
        json=lambda: {"predictions": [p.to_dict() for p in predictions]},
        rows=lambda: map(flat, predictions),
        text=lambda _: "\n\n".join(map(body, predictions)) + "\n",
    )


def _tell_code(args: argparse.Namespace) -> int:
    """A launch of a kernel that is known by its code, on each GPU."""
    from iosim.studies import code

    predictions = [code.run_code(common.request(args, CodeRequest, gpu=gpu)) for gpu in args.gpu]
    return common.tell(
        args,
        predictions[0].answer,
        json=lambda: {"predictions": [p.to_dict() for p in predictions]},
        rows=lambda: (row for p in predictions for row in p.records()),
        text=lambda _: "\n\n".join(p.body for p in predictions) + "\n",
    )


def _tell_differences(args: argparse.Namespace, request: AgainstRequest) -> int:
    """What changed since; the JSON holds today's predictions, too, so that others can be held against it."""
    from iosim.studies.against import held_against

    differences = held_against(request, progress("predicting"))
    results: Any = differences.results

    def whole() -> dict[str, Any]:
        document = (
            {"predictions": [p.to_dict() for p in results]}
            if request.model is None
            else models.as_json(results)
        )
        return document | {"against": differences.to_dict()}

    common.tell(
        args,
        differences.answer,
        json=whole,
        rows=differences.records,
        text=lambda _: differences.body(),
    )
    return common.held(differences.exceeded)


def _tell_models(args: argparse.Namespace, results: Any) -> int:
    return common.tell(
        args,
        models.models_answer(results),
        json=lambda: models.as_json(results),
        table=lambda: models.several(results),
        rows=lambda: (
            {
                "model": result.model.name,
                "layer": layer.kind.name,
                "count": layer.count,
                **flat(layer.prediction),
                "kv_cache_bytes": layer.cache_bytes,
            }
            for result in results
            for layer in result.layers
        ),
    )
