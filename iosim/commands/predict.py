"""`iosim predict`: the bytes, time and memory of attention on a GPU."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from iosim.base.progress import progress
from iosim.commands import common, with_model

if TYPE_CHECKING:
    from iosim.prediction.result import Prediction
    from iosim.studies.models.layers import Model


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "predict", help="bytes by level and tensor, bounds, time and memory of attention on a GPU"
    )
    common.add_gpus(parser)
    common.add_kernels(parser, "naive,default", "naive,default; with --model default")
    with_model.add_options(parser)
    common.add_problem_options(parser, several=common.ALL_SIZES)
    common.add_kernel_options(parser)
    common.add_conditions(parser)
    common.add_output_options(parser)
    parser.set_defaults(run=run)


def flat(p: Prediction) -> dict[str, Any]:
    """One row of the CSV: what was asked, and the totals."""
    d = p.to_dict(ranged=False)
    row = {"gpu": d["profile"], **{f"kernel_{k}" if k in ("name",) else k: v for k, v in d["kernel"].items()}}
    row |= d["problem"]
    row |= {"l2_start": p.l2_start, "method": p.method}
    for level in ("hbm", "l2"):
        for direction in ("read", "write"):
            totals = d["totals"][level]
            row[f"{level}_{direction}_bytes"] = totals[direction] if totals else None
    for name, bound in d["hbm_bounds"].items():
        row |= {f"{name}_{k}_bytes": v for k, v in bound.items()}
    row |= {"flops": d["flops"], "time_s": d["time_s"], "bound_by": d["bound_by"]}
    row |= {"energy_j": sum(d["energy_j"].values()) if d["energy_j"] else None}
    row |= {f"memory_{k}_bytes": v for k, v in d["memory_bytes"].items()}
    return row


def run(args: argparse.Namespace) -> int:
    from iosim.prediction.answer import answer
    from iosim.prediction.face import body
    from iosim.prediction.many import Request, predict_many

    common.check_place(args.out)
    settings = common.overrides(args)
    model = with_model.model(args)
    if model is not None:
        return run_model(args, model)
    asked = [(problem, kernel, gpu) for gpu in args.gpu for problem in common.problems(args) for kernel in args.kernel]
    requests = [Request(*one, settings, **common.conditions(args)) for one in asked]
    predictions = list(predict_many(requests, progress=progress("predicting")))
    return common.tell(
        args, answer(predictions), json=lambda: {"predictions": [p.to_dict() for p in predictions]},
        rows=lambda: map(flat, predictions), text=lambda _: "\n\n".join(map(body, predictions)) + "\n",
    )  # fmt: skip


def run_model(args: argparse.Namespace, model: Model) -> int:
    """A prediction for each kind of the model's layers, and all of them together."""
    from iosim.studies.models.prediction import answer, as_json, predict_model, several

    results = [
        result
        for values in with_model.values(args)
        for result in predict_model(
            model, values, with_model.kernels(args), args.gpu, progress=progress("predicting"),
            overrides=common.overrides(args), **common.conditions(args),
        )
    ]  # fmt: skip
    if args.format == "table":
        common.emit(several(results), args.out)
        return 0
    return common.tell(
        args, answer(results), json=lambda: as_json(results),
        rows=lambda: (
            {"model": model.name, "layer": one.kind.name, "count": one.count, **flat(one.prediction),
             "kv_cache_bytes": one.cache_bytes}
            for result in results
            for one in result.layers
        ),
    )  # fmt: skip
