"""Sweeps in Python: a grid of values, the rows of a file, or the layers of a model."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any

from iosim.api.keywords import check_types, in_keywords
from iosim.api.with_model import model_of
from iosim.problem.asked import BESIDES
from iosim.studies.sweep import sweep as sweep_rows
from iosim.studies.sweep.cases import name_of
from iosim.studies.sweep.study import several

if TYPE_CHECKING:
    import pandas

    from iosim.api.with_model import ModelLike


@in_keywords
def sweep(
    problems: str | os.PathLike[str] | pandas.DataFrame | None = None,
    *,
    model: ModelLike | None = None,
    layers: int | None = None,
    tensor_parallel: int | None = None,
    out: str | os.PathLike[str] | None = None,
    method: str | None = None,
    l2_start: str = "cold",
    jobs: int | None = None,
    dask: str | None = None,
    fresh: bool = False,
    **values: Any,
) -> pandas.DataFrame:
    """A prediction for every combination of `values`, a row each: bytes by level, bounds, time, memory.

        >>> iosim.sweep(gpu=["a100", "h100"], kernel="fa2", seq_len=[1024, 4096], heads=[16, 32], method="capacity")
        >>> iosim.sweep(model="gemma-3-12b", gpu="h100", kernel="fa3", seq_len=[1024, 4096], method="capacity")

    A combination that cannot run is a row with its reason in the column `refused`.

    Args:
        problems: rows to predict, each with every combination of `values`: a CSV or Parquet file, or a DataFrame.
            Columns are named as fields of `AttentionProblem`, settings of a kernel, or options of the command line;
            `gpu` and `kernel` may be among them. Empty cells are defaults.
        model: a model's name, a path to a config.json or its directory, or what such a file holds: a row for each kind
            of its layers, with the columns `model`, `layer` and `count`.
        layers: the model's first layers; by default all.
        tensor_parallel: GPUs that share the heads of the model's layers.
        out: a file ending in .csv or .parquet that the rows are written to, in a journal beside it until the last is
            done. Asked for again after an interrupt, the sweep goes on with the rows that are missing.
        method: as of `predict`. "bounds" and "capacity" have closed forms, a million rows in seconds, and no times.
        l2_start: "cold" or "warm".
        jobs: processes; by default one a core where the rows are worth it.
        dask: address of the scheduler of a Dask cluster whose workers predict the rows instead.
        fresh: begin anew where `out` was begun.
        values: fields, settings, `gpu` and `kernel`, each one value or several; `seq_len` is `seq_q`, `causal=True` is
            `mask="causal"`, None is the default. What is not given is as `iosim predict` has it.

    Raises:
        InputError: values that make no sense, every row refused, or a file that cannot be written.
    """
    options = {"problems": problems, "model": model, "layers": layers, "tensor_parallel": tensor_parallel, "out": out,
               "method": method, "l2_start": l2_start, "jobs": jobs, "dask": dask, "fresh": fresh}  # fmt: skip
    check_types(options, inspect.signature(sweep), ("l2_start", "fresh"))
    rest: dict[str, Any] = {"out": out, "method": method, "l2_start": l2_start, "jobs": jobs, "dask": dask}
    chosen = model_of(model, None, {} if model is None else _shape(values), layers, tensor_parallel)
    return sweep_rows(problems, **rest, fresh=fresh, model=chosen, **values)


def _shape(values: dict[str, Any]) -> dict[str, Any]:
    """What takes the place of a model's own numbers, or contradicts it; several values of one are refused there."""
    from iosim.studies.models.asked import FIXED, SHAPE

    named = {
        name: several(name, value)
        for name, value in ((word if word in BESIDES else name_of(word), value) for word, value in values.items())
        if name not in BESIDES and value is not None
    }
    return {name: many[0] if len(many) == 1 else many for name, many in named.items() if name in (*SHAPE, *FIXED)}
