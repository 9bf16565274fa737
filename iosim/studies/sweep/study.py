"""`sweep`: predictions of a whole grid, or of every row of a file, as one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.fields import Kind
from iosim.base.units import sizes
from iosim.base.words import Method
from iosim.hardware.profile import load_profile
from iosim.kernel.conditions import Conditions
from iosim.kernel.libraries import entry_name, is_choice
from iosim.problem.asked import BESIDES, lengths
from iosim.problem.fields import FIELDS
from iosim.studies.models.asked import OF_LENGTH, OF_MODEL, chosen, rows_of
from iosim.studies.requests import SweepRequest
from iosim.studies.sweep.cases import PLACES, SETTINGS, Cases, Words, cases, name_of
from iosim.studies.sweep.files import frame_of, problems_of, read_frame
from iosim.studies.sweep.rows import Asked, columns
from iosim.studies.sweep.run import Where, in_memory, into_file

if TYPE_CHECKING:
    import pandas

    from iosim.studies.models.layers import Model


def run(asked: SweepRequest) -> pandas.DataFrame:
    """The rows of a sweep; those of `out` where it is written."""
    made = asked_cases(asked)
    how, where = checked(made, asked.method, asked.l2_start), Where(asked.jobs, asked.dask)
    kinds = columns(made.names, how)
    if asked.out is None:
        return frame_of(in_memory(made, how, where)[0], kinds)
    into_file(made, how, where, Path(asked.out), fresh=asked.fresh)
    return read_frame(asked.out, kinds)


def asked_cases(asked: SweepRequest) -> Cases:
    """The rows before anything is predicted: of a model, which gives them their sizes, one for each kind of its layers
    at every combination of the other values."""
    grid = grid_of(asked.values)
    of_problems = {
        name: several(name, value)
        for name, value in ((word if word in BESIDES else name_of(word), value) for word, value in asked.values.items())
        if value is not None and (name in FIELDS or name in BESIDES)
    }
    model = chosen(asked.model, of_problems, asked.layers, asked.tensor_parallel)
    if model is None:
        return cases(grid, None if asked.problems is None else problems_of(asked.problems))
    if asked.problems is not None:
        raise InputError("`problems` contradicts `model`, which gives the rows their sizes; give one of them")
    combinations = (dict(zip(of_problems, one, strict=True)) for one in product(*of_problems.values()))
    return cases_of_model(model, combinations, grid)


def cases_of_model(model: Model, given: Iterable[Mapping[str, Any]], grid: Mapping[str, list[Any]]) -> Cases:
    """A row for each kind of the model's layers at every combination of the other values: `given` is what was asked of
    the problems, as `iosim.studies.models.asked.calls_of` takes it, `grid` all that was asked, by column."""
    of_calls = (*OF_MODEL, *OF_LENGTH, "dtype", "passes", "batch", "page_size")
    rows = [row for one in given for row in rows_of(model, one)]
    return cases(
        {name: values for name, values in grid.items() if name not in of_calls},
        {name: Words.of(row.get(name) for row in rows) for name in dict.fromkeys(n for r in rows for n in r)},
    )


def checked(made: Cases, method: Method | None, l2_start: str) -> Asked:
    Conditions(l2_start=l2_start, method=method)
    for gpu in made.values("gpu"):
        load_profile(gpu)
    for kernel in made.values("kernel"):
        if not is_choice(kernel):
            entry_name(kernel)
    return Asked(method, l2_start)


def grid_of(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Values by column, from one value or several by any name; those that are None are left out."""
    given = dict(values)
    causal = given.pop("causal", None)
    prefix = given.pop("prefix", None)
    grid: dict[str, list[Any]] = {}
    for word, value in given.items():
        name = name_of(word)
        if name in grid:
            raise InputError(f"`{word}` is given twice; give it once")
        if value is not None:
            grid[name] = several(name, value)
    for flag in several("causal", causal):
        if not isinstance(flag, bool | None):
            raise InputError(f"`causal` {flag!r} is no truth value; accepted: True, False")
    if causal not in (None, False):
        if "mask" in grid:
            raise InputError("`causal=True` contradicts `mask`, which says another mask; give one of them")
        if "window" not in grid and "window_right" not in grid:  # beside a window it says the same
            grid["mask"] = ["causal" if flag else "none" for flag in several("causal", causal)]
    if prefix is not None:
        grid["prefix"] = lengths(several("prefix", prefix), "prefix")
    return grid


def several(name: str, value: Any) -> list[Any]:
    """The values of a column: one or several, a text of them read as the command line reads it ("1k:8k:x2", "a100,l4");
    a tuple of two sides is one value."""
    if isinstance(value, str):
        own = {"prefix": Kind.WHOLE, "causal": Kind.FLAG} | dict.fromkeys(PLACES, Kind.WORD)
        kind = own[name] if name in own else SETTINGS[name].kind
        if kind is Kind.WHOLE and not value.startswith("-"):
            return list(sizes(value, f"`{name}`"))
        return [part.strip() for part in value.split(",")] if kind in (Kind.WORD, Kind.SIDES) else [value]
    if isinstance(value, bytes | tuple) or not isinstance(value, Iterable):
        return [value]
    items = (item.item() if hasattr(item, "item") else item for item in value)
    return [one for item in items for one in (several(name, item) if isinstance(item, str) else (item,))]
