"""Reads tables of measurements by their header: one row a launch, or one row a whole chain.

Columns are split here into facts, which a prediction may use, and measured quantities, which it is compared with.
Columns that are neither are dropped.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.base.files import read_text
from iosim.base.records import dataclass
from iosim.base.words import WAYS, Level, Way
from iosim.evidence import columns
from iosim.evidence.columns import CHAIN, FLAGS, WHOLE
from iosim.kernel.shared_memory import WAVEFRONT_BYTES

COUNTED: dict[str, tuple[Level, Way]] = {
    f"{level}_{way}": (level, way) for level in ("hbm", "l2") for way in WAYS
}
QUANTITIES = (*COUNTED, "smem", "time")
"""What is compared: bytes, those of loads and stores at shared memory in whole wavefronts, and seconds."""
COLUMN = {**{q: q for q in QUANTITIES}, "smem": "smem_wavefronts", "time": "seconds"}
UNIT = {"smem": WAVEFRONT_BYTES}
"""Bytes of what a column counts; 1 where it has bytes."""
NEEDED = tuple(COUNTED)
LAUNCH_COLUMNS = ("call", "launch", *columns.PROBLEM)
"""`call` and `launch` may both be left out: each row is then a call of one launch, numbered as it stands."""
LAUNCH_FACTS = (
    *columns.TILE,
    *columns.LAUNCH,
    *columns.KNOBS,
    "spill_store_bytes",
    *columns.SM90,
    "seq_lens",
    "left_out",
)
MAX_FILE_BYTES = 64 << 20
MAX_DIGITS = 18
DIGITS = rf"[0-9]{{1,{MAX_DIGITS}}}"
OPTION = "--measurements"
OWN = "h200_iosim_kernels.csv"
SHIPPED: Mapping[str, tuple[str, ...]] = {
    "h200-sxm": ("h200_library_kernels.csv", "h200_chains.csv", "h200_random.csv", OWN),
    "h100-sxm": ("h100_random.csv",),
}
"""Tables of the package by the GPU that they were measured on."""
USUAL = {"h200-sxm": 2, "h100-sxm": 1}
"""How many of them, the first, are compared unless others are asked for."""


@dataclass(frozen=True)
class Row:
    """One measured launch, or one measured chain (`chain`; then `call` numbers the rows and `launch` is 0). `facts` may
    be used as inputs. `measured` may not: by quantity, in bytes and seconds; absent where not measured."""

    source: str
    call: int
    launch: int
    chain: bool
    implementation: str
    facts: Mapping[str, str]
    measured: Mapping[str, int | float]

    def number(self, name: str) -> int | None:
        text = self.facts.get(name, "")
        return int(text) if text else None

    def flag(self, name: str) -> bool | None:
        text = self.facts.get(name, "")
        return text == "1" if text else None


def default_files(gpu: str = "h200-sxm") -> list[Path]:
    """The shipped measurements on a GPU: of library kernels and of chains on an H200, of calls drawn at random on an
    H100; those of an H200 for a GPU without any."""
    known = gpu if gpu in SHIPPED else "h200-sxm"
    return [_shipped(name) for name in SHIPPED[known][: USUAL[known]]]


def own_file() -> Path:
    return _shipped(OWN)


def _shipped(name: str) -> Path:
    return data_dir("kernels") / "measurements" / name


def measured_on(path: str | Path) -> str | None:
    """The GPU that a shipped table was measured on; None for a table of someone's own."""
    place = Path(path).absolute()
    return next(
        (gpu for gpu, names in SHIPPED.items() if place in [_shipped(n).absolute() for n in names]),
        None,
    )


def read(path: str | Path) -> list[Row]:
    """The rows of a table of measurements, in the file's order. Raises InputError where the file cannot be read,
    lacks a column, or holds a value of another type than its column's."""
    where = f"{OPTION} '{path}'"
    try:
        lines = list(csv.reader(io.StringIO(text_of_file(path, where), newline=None), strict=True))
    except csv.Error as error:
        raise InputError(
            f"{where} is no CSV table: {error}; accepted: comma-separated rows under a header"
        ) from None
    if not lines:
        raise InputError(f"{where} is empty; accepted: {_accepted()}")
    header = lines[0]
    chain = _form(header, where)
    rows: list[Row] = []
    seen: set[tuple[int, int]] = set()
    for number, values in enumerate(lines[1:], 2):
        if not values:
            continue
        at = f"{where} row {number}"
        # a short or long row would shift its values under other columns
        if len(values) != len(header):
            raise InputError(
                f"{at} has {len(values)} fields; accepted: {len(header)}, as in its header"
            )
        row = _measured_row(
            dict(zip(header, values, strict=True)), at, Path(path).name, chain, number - 1
        )
        if (row.call, row.launch) in seen:
            raise InputError(
                f"{at}: call {row.call}, launch {row.launch} stands twice; accepted: once"
            )
        seen.add((row.call, row.launch))
        rows.append(row)
    if not rows:
        raise InputError(f"{where} has a header and no rows; accepted: at least one row")
    return rows


def text_of_file(path: str | Path, where: str) -> str:
    """The text of a file of up to MAX_FILE_BYTES. Raises InputError where it cannot be read or is no text; `where`
    begins the message."""
    text = read_text(path, where, "a CSV file", MAX_FILE_BYTES)
    if "\0" in text:
        raise InputError(f"{where} holds null bytes, so it is no text; accepted: a CSV file")
    return text


def _accepted() -> str:
    return f"a header with {', '.join(LAUNCH_COLUMNS + NEEDED)}; or, a row a chain, {', '.join(CHAIN + NEEDED)}"


def _form(header: list[str], where: str) -> bool:
    if len(set(header)) != len(header):
        twice = next(c for c in header if header.count(c) > 1)
        raise InputError(f"{where} names column '{twice}' twice; accepted: once")
    # a table of chains has one length per row and no numbers of calls
    chain = "seq" in header and "call" not in header
    needed: tuple[str, ...] = CHAIN if chain else LAUNCH_COLUMNS
    # without both columns each row is a call of one launch, numbered as it stands
    if not {"call", "launch"} & {*header}:
        needed = tuple(c for c in needed if c not in ("call", "launch"))
    missing = [c for c in needed + NEEDED if c not in header]
    if missing:
        raise InputError(f"{where} lacks the columns {', '.join(missing)}; accepted: {_accepted()}")
    return chain


def _measured_row(values: dict[str, str], where: str, source: str, chain: bool, index: int) -> Row:
    names = CHAIN if chain else LAUNCH_COLUMNS
    if not chain and "call" not in values:
        values = {**values, "call": str(index), "launch": "1"}
    facts = {
        n: values[n].strip() for n in (*names, *(() if chain else LAUNCH_FACTS)) if n in values
    }
    for name, text in facts.items():
        if not text and name in ("call", "launch", "implementation"):
            raise InputError(f"{where}: {name} is empty; accepted: a value")
        if text and name in WHOLE and not re.fullmatch(DIGITS, text):
            wrong = f"is not a whole number of up to {MAX_DIGITS} digits; accepted: numbers such as 4096"
            raise InputError(f"{where}: {name} '{_short(text)}' {wrong}")
        if text and name in FLAGS and text not in ("0", "1"):
            raise InputError(f"{where}: {name} '{_short(text)}' is not known; accepted: 0, 1")
    measured = {
        q: m
        for q in QUANTITIES
        if (m := _measured(values.get(COLUMN[q], ""), q, where)) is not None
    }
    call, launch = (index, 0) if chain else (int(facts["call"]), int(facts["launch"]))
    return Row(source, call, launch, chain, facts["implementation"], facts, measured)


def _measured(text: str, quantity: str, where: str) -> int | float | None:
    text = text.strip()
    if not text:
        return None
    if quantity == "time":
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        # a NaN fails both comparisons, and so is refused like a negative time
        if 0 <= seconds < math.inf:
            return seconds
        raise InputError(
            f"{where}: seconds '{_short(text)}' is no time; accepted: seconds such as 1.5e-3"
        )
    if re.fullmatch(DIGITS, text):
        return int(text) * UNIT.get(quantity, 1)
    accepted = f"whole numbers of up to {MAX_DIGITS} digits"
    raise InputError(
        f"{where}: {quantity} '{_short(text)}' is not a number of bytes; accepted: {accepted}"
    )


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}..."
