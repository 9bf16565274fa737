"""Rows of tables that others published, as what to predict and what was measured."""

from __future__ import annotations

import csv
import io
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.base.schema import read_toml
from iosim.evidence.recorded import rows as recorded_rows
from iosim.evidence.validate.rows import OPTION, text_of_file
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.problem.attention import AttentionProblem

NOT_DESCRIBED = "-"
FOLDER = "published"
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
PASSES = {"bwd": "bwd", "backward": "bwd", "fwd+bwd": "fwd+bwd"}
SIZES = ("batch", "heads", "kv_heads", "head_dim", "head_dim_v", "window")
BYTES = ("hbm", "hbm_read", "hbm_write", "l2_hits")
"""Quantities that an L2 decides."""
SHARED = "shared_memory"
"""Bytes of it that a CTA of the longest launch takes."""
ADDED_TO = ("values", "names")
"""Keys of a form that a case adds to rather than replaces."""
OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
TIME, SPEEDUP = "time", "speedup"
"""The others: seconds, and the seconds of another kernel over them."""


class Unread(Exception):
    """A row is not compared; the text says why."""


@dataclass(frozen=True)
class Sample:
    """One measured quantity of one row: `measured` in bytes, seconds, or as a share. `launch`: of the chain
    the one that was measured, empty for a whole call. `launches_before`: from Python, ahead of what the kernel describes.
    `fitted`: constants were fitted on it. `over`: of a speed-up the slower kernel."""

    source: str
    row: int
    profile: HardwareProfile
    kernel: str
    launch: str
    problem: AttentionProblem
    l2_start: str
    clocks: str
    launched: str
    launches_before: int
    quantity: str
    measured: float
    fitted: bool
    rounding: float = 0.0
    """Half of the last digit that its author printed, in the unit of `measured`."""
    over: str = ""
    stack: str = ""
    """The serving stack whose other launches stand in the time; none: the kernel's alone."""
    appends: bool = True
    """The stack writes new keys and values to the cache."""
    without: tuple[str, ...] = ()
    """Launches of the stack that are not in the time."""
    calls: int = 1
    """Calls without a pause between them."""
    options: Mapping[str, Any] | None = None
    """Of the kernel's algorithm, in place of its usual ones."""


@dataclass(frozen=True)
class LeftOut:
    """A row that is not compared, and why."""

    source: str
    row: int
    gpu: str
    reason: str


@cache
def _known() -> Mapping[str, Any]:
    return read_toml(Path(__file__).with_name("forms.toml"), "table of forms")


def shipped() -> list[Path]:
    """The tables of others that iosim ships."""
    return sorted((data_dir("kernels") / "measurements" / FOLDER).glob("*.csv"))


def form_of(header: Sequence[str]) -> Mapping[str, Any] | None:
    """The form of a table with that header; None where it is none of others' tables."""
    forms: Sequence[Mapping[str, Any]] = _known()["form"]
    return _fits(forms, header)


def _fits(known: Sequence[Mapping[str, Any]], header: Sequence[str]) -> Mapping[str, Any] | None:
    return next((form for form in known if set(form["columns"]) <= set(header)), None)


def is_published(path: str | Path) -> bool:
    """True where a file is a table of one of the known forms, or of one that holds no attention. Raises InputError: it
    cannot be read."""
    lines = text_of_file(path, f"{OPTION} '{path}'").splitlines()
    known = [*_known()["form"], *_known()["other"]]
    return bool(lines) and _fits(known, next(csv.reader(lines[:1]))) is not None


def read(path: str | Path) -> tuple[list[Sample], list[LeftOut]]:
    """The samples of a table in the file's order, and the rows that are not compared. Raises InputError: the file
    cannot be read, has none of the known forms, or holds no attention."""
    where = f"{OPTION} '{path}'"
    reader = csv.DictReader(io.StringIO(text_of_file(path, where), newline=""))
    form = form_of(reader.fieldnames or ())
    if form is None:
        other = _fits(_known()["other"], reader.fieldnames or ())
        if other is not None:
            raise InputError(
                f"{where} holds {other['holds']}, no attention; accepted: {other['used_by']}"
            )
        known = "; ".join(known_form["title"] for known_form in _known()["form"])
        raise InputError(f"{where} has the columns of no published table; accepted: {known}")
    samples: list[Sample] = []
    left_out: list[LeftOut] = []
    for number, cells in enumerate(reader, 2):
        row = {name: (text or "").strip() for name, text in cells.items() if name is not None}
        row |= _parts(form, row)
        of_row = _with_cases(form, row)
        gpu = form.get("gpu", row.get("gpu", ""))
        try:
            samples += _samples(of_row, row, Path(path).name, number, gpu)
        except (Unread, InputError) as reason:
            left_out.append(LeftOut(Path(path).name, number, _name(form, gpu), str(reason)))
    return samples, left_out


def _samples(
    form: Mapping[str, Any], row: Mapping[str, str], source: str, number: int, gpu: str
) -> Iterator[Sample]:
    for name, pattern in form.get("rows", {}).items():
        if not re.search(pattern, row.get(name, "")):
            raise Unread(f"{name} '{row.get(name, '')}'")
    for name, pattern in form.get("unclear", {}).items():
        if re.search(pattern, row.get(name, "")):
            raise Unread(f"{name}: {row[name]}")
    if "refused" in form:
        raise Unread(form["refused"])
    kernel_text = " ".join(row[name] for name in form.get("kernel", "").split())
    of_row = _kernel(form, kernel_text) if "kernel" in form else ("", "")
    profile, problem = load_profile(_name(form, gpu)), _problem(form, row)
    fitted = _is_seen(form, row) or bool(
        form.get("fitted") and re.search(form["fitted"], kernel_text)
    )
    start = row.get("l2_start", "").split(" ")[0] or form.get("l2_start", "cold")
    for quantity, text, unit, named in _measured(form, row):
        kernel, launch = _split(named) if named else of_row
        yield Sample(
            source,
            number,
            profile,
            kernel,
            launch,
            problem,
            start,
            _clocks(form, row),
            form.get("launched", "alone"),
            form.get("launches_before", 0),
            quantity,
            float(text) * unit,
            fitted,
            half_digit(text) * unit,
            form.get("over", ""),
            form.get("stack", ""),
            form.get("appends", True),
            tuple(form.get("without", ())),
            form.get("calls", 1),
            form.get("options"),
        )


def _parts(form: Mapping[str, Any], row: Mapping[str, str]) -> dict[str, str]:
    """Columns that are read out of the text of others."""
    found = (re.search(text, row.get(name, "")) for name, text in form.get("parts", {}).items())
    groups = [match.groupdict() for match in found if match]
    columns = {name: text for of_one in groups for name, text in of_one.items() if text is not None}
    for name, (over, under) in form.get("ratios", {}).items():
        if row[over].isdigit() and row[under].isdigit() and int(row[under]):
            columns[name] = str(int(row[over]) // int(row[under]))
    return columns


def _with_cases(form: Mapping[str, Any], row: Mapping[str, str]) -> dict[str, Any]:
    """The form as it holds for one row: later cases over earlier ones, `values` and `names` added to."""
    of_row = dict(form)
    for case in form.get("case", ()):
        if all(re.search(pattern, row.get(name, "")) for name, pattern in case["when"].items()):
            added = {name: of_row.get(name, {}) | case.get(name, {}) for name in ADDED_TO}
            of_row |= {**case, **added}
    return of_row


def _is_seen(form: Mapping[str, Any], row: Mapping[str, str]) -> bool:
    """True where a recorded table that constants were fitted on has the row. Raises InputError: it is in no wheel."""
    if "seen" not in form:
        return False
    same: Mapping[str, str] = form["seen"]["same"]
    return tuple(row[name] for name in same) in _recorded(
        form["seen"]["file"], tuple(same.values())
    )


@cache
def _recorded(file: str, columns: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(row[name] for name in columns) for row in recorded_rows(file))


def _clocks(form: Mapping[str, Any], row: Mapping[str, str]) -> str:
    """The clocks that a row was measured at: its own, where they are stated, or the table's."""
    if row.get(form.get("clock_column", "")):
        return row[form["clock_column"]]
    return str(form.get("clocks", "boost"))


def _kernel(form: Mapping[str, Any], text: str) -> tuple[str, str]:
    for pattern, name in form["kernels"].items():
        match = re.search(pattern, text)
        if match:
            # the table names this kernel on purpose as one that the catalog does not describe
            if name == NOT_DESCRIBED:
                break
            return _split(name.format(match[0]))
    raise Unread(f"no kernel of the catalog is '{text[:60]}'")


def _split(name: str) -> tuple[str, str]:
    kernel, _, launch = name.partition(":")
    return kernel, launch


def _name(form: Mapping[str, Any], gpu: str) -> str:
    """The profile's name of a GPU as a table calls it; its own text where none is known."""
    board = form.get("boards", {}).get(gpu, gpu)
    names: Mapping[str, str] = _known()["gpus"]
    return next((name for text, name in names.items() if board.startswith(text)), str(board))


def _problem(form: Mapping[str, Any], row: Mapping[str, str]) -> AttentionProblem:
    columns = {**{name: name for name in SIZES}, **form.get("names", {})}
    values: dict[str, Any] = {
        name: value for name, value in form.get("values", {}).items() if value
    }
    for field, expression in columns.items():
        size = _size(expression, row)
        if size is not None:
            values[field] = min(size, form.get("at_most", {}).get(field, size))
    needed = [name for name in ("batch", "heads", "seq_q", "head_dim") if name not in values]
    if needed:
        raise Unread(f"{', '.join(needed)} not stated")
    if row.get("dtype"):
        values["dtype"] = DTYPES.get(row["dtype"], row["dtype"])
    # columns of phases hold prefill and decode as well, which are forwards
    passes = row.get("pass") or row.get("phase", "")
    values["passes"] = PASSES.get(passes, "fwd")
    values["mask"] = _mask(row, values)
    if row.get("kv_mode") == "shared":
        values["shared_prefix"] = values["seq_k"]
    return AttentionProblem(**values)


def _size(expression: str, row: Mapping[str, str]) -> int | None:
    """A column's whole number, or what columns and numbers give from left to right: "batch * new + cached"; None where a
    column is empty. Raises Unread: a cell is no number."""
    first, *rest = expression.split(" ")
    size = _whole(first, row)
    for sign, name in zip(rest[::2], rest[1::2], strict=True):
        value = _whole(name, row)
        if size is None or value is None:
            return None
        size = OPERATORS[sign](size, value)
    return size


def _whole(name: str, row: Mapping[str, str]) -> int | None:
    if name.isdigit():
        return int(name)
    # a column with gaps went through floats in some tables: 128.0
    text = row.get(name, "").removesuffix(".0")
    if text and not text.isdigit():
        raise Unread(f"{name} '{text}' is no number")
    return int(text) if text else None


def _mask(row: Mapping[str, str], values: Mapping[str, Any]) -> str:
    if "window" in values:
        return "window"
    if "mask" in values:
        return str(values["mask"])
    mask_text = row.get("mask", "")
    causal = mask_text.startswith("causal") or row.get("causal") == "1"
    return "causal" if causal and values["seq_q"] > 1 else "none"


def half_digit(text: str) -> float:
    """Half of the last digit of a number as it is printed: of 33.6, 0.05."""
    _, _, decimals = text.lower().partition("e")[0].partition(".")
    _, _, exponent = text.lower().partition("e")
    return float(0.5 * 10.0 ** (int(exponent or 0) - len(decimals)))


def _measured(
    form: Mapping[str, Any], row: Mapping[str, str]
) -> Iterator[tuple[str, str, float, str]]:
    """Quantity, the number as it is printed, what one of its unit stands for, and the kernel where the column names it."""
    if "quantities" in form:
        quantity = form["quantities"].get(row["quantity"])
        if quantity is None:
            raise Unread(f"quantity '{row['quantity']}' is not compared")
        text = row[form.get("value", "value")]
        if not _is_number(text):
            raise Unread(f"'{text}' is no number")
        yield quantity, text, _known()["units"][row["unit"]] if "unit" in row else 1, ""
        return
    for column, (quantity, unit, *named) in form["measured"].items():
        if row.get(column):
            yield quantity, row[column], unit, named[0] if named else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
