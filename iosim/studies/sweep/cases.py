"""The rows of a sweep, their columns, and how they are written as CSV: a grid of values, rows of a file, or both.

A column is a list of values and a code a row: a million rows of a grid take no memory until a part of them is asked
for. Which problem a row is, `problem_of` says; whether it makes sense is found when it is predicted.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from iosim.base.errors import InputError, unknown_name
from iosim.base.fields import About, Kind
from iosim.base.records import cached_property, dataclass, replace
from iosim.base.words import DEFAULT
from iosim.kernel.overrides import OVERRIDES, Overrides
from iosim.problem.asked import check_queries
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import FIELDS, FIRST_TOKENS_MASKS
from iosim.problem.masks.mask import IntArray

ma: Any = np.ma
"""Untyped in NumPy's stubs."""
Numbers = np.ma.MaskedArray[Any, Any]
"""A column of whole numbers or seconds; where it is masked, the cell is empty."""


@dataclass(frozen=True)
class Words:
    """Distinct values (words, sizes asked for, truth values), and which of them each row has; None is an empty cell."""

    values: tuple[Any, ...]
    codes: IntArray

    @classmethod
    def of(cls, values: Iterable[Any]) -> Words:
        known: dict[Any, int] = {}
        # The type joins the key: 1, 1.0 and True are equal in Python and are three values here.
        plain = ((type(v), tuple(v) if type(v) is list else v) for v in values)
        codes = np.array([known.setdefault(key, len(known)) for key in plain], dtype=np.int64)
        return cls(tuple(value for _, value in known), codes)

    def row(self, n: int) -> Any:
        return self.values[self.codes[n]]

    def cells(self) -> list[str]:
        # Distinct values are formatted once, then picked by code: a million rows of few words.
        texts = np.array([_text(value) for value in self.values], dtype=object)
        return list(texts[self.codes].tolist())

    def tolist(self) -> list[Any]:
        return [self.values[code] for code in self.codes.tolist()]


def _text(value: Any) -> str:
    if value is None:
        return ""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([value])
    return out.getvalue()


Cells = Mapping[str, Words | Numbers]


def csv_lines(cells: Cells) -> str:
    columns = [
        column.cells() if isinstance(column, Words) else _cells(column) for column in cells.values()
    ]
    return "".join(f"{line}\n" for line in map(",".join, zip(*columns, strict=True)))


def _cells(numbers: Numbers) -> list[str]:
    texts, empty = list(map(repr, numbers.data.tolist())), ma.getmaskarray(numbers)
    return (
        ["" if no else text for no, text in zip(empty.tolist(), texts, strict=True)]
        if empty.any()
        else texts
    )


def joined(parts: Sequence[Cells]) -> Cells:
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _joined(columns: Sequence[Words | Numbers]) -> Words | Numbers:
    if not isinstance(columns[0], Words):
        joined: Numbers = ma.concatenate(columns)
        return joined
    values: dict[Any, int] = {}
    codes = []
    for part in columns:
        assert isinstance(part, Words)
        # Codes of each part are renumbered into the values of the whole.
        at = [values.setdefault((type(value), value), len(values)) for value in part.values]
        codes.append(np.array(at, dtype=np.int64)[part.codes])
    return Words(tuple(value for _, value in values), np.concatenate(codes))


PLACES = ("gpu", "kernel")
FOLLOWS = {"seq_k": "seq_q", "head_dim_v": "head_dim", "kv_heads": "heads"}
"""Size -> the one that it equals where it is not given."""
NOT_SWEPT = ("seq_lens", "seq_lens_k")
SETTINGS: Mapping[str, About] = {
    name: field
    for name, field in (*FIELDS.items(), *OVERRIDES.items())
    if field.option and name not in NOT_SWEPT
}
SPELLINGS = {
    "profile": "gpu",
    "pass": "passes",
    "output_dtype": "output",
    "smem": "shared_memory_bytes",
} | {str(field.option)[2:].replace("-", "_"): name for name, field in SETTINGS.items()}
NAMES = (*PLACES, *SETTINGS)
LABELS = {"model": "text", "layer": "text", "count": "int"}
"""Columns that say what a row is of and change nothing, and their types."""
ALWAYS = (
    "batch",
    "heads",
    "kv_heads",
    "seq_q",
    "seq_k",
    "head_dim",
    "head_dim_v",
    "dtype",
    "mask",
    "window",
    "passes",
)
"""Columns of the problem that every row shows."""
USUAL: Mapping[str, tuple[Any, ...]] = {"gpu": ("a100",), "kernel": ("naive", DEFAULT)} | {
    name: (FIELDS[name].usual,) for name in FIELDS if FIELDS[name].usual is not None
}
"""Values of what is not given; they are those of `iosim predict`."""
SLOWEST_FIRST = (
    *PLACES,
    *(n for n in SETTINGS if n not in ("batch", "heads", "kv_heads", "seq_q", "seq_k", "tile")),
    "batch",
    "heads",
    "kv_heads",
    "tile",
    "seq_k",
    "seq_q",
)
"""The order of a grid: the last name's values follow each other."""
MAX_ROWS = 1 << 31


def name_of(word: str) -> str:
    name = SPELLINGS.get(word.strip().lstrip("-").replace("-", "_"), word.strip().replace("-", "_"))
    if name not in NAMES:
        raise unknown_name("column", word, NAMES)
    return name


def checked(name: str, value: Any) -> Any:
    if name in LABELS:
        return value
    if name in PLACES:
        if not isinstance(value, str) or not value:
            raise InputError(
                f"`{name}` {value!r} is no name; accepted: a name, or for `gpu` a profile file"
            )
        return value
    field = SETTINGS[name]
    if value is None:  # an empty cell is what is not given
        return USUAL[name][0] if name in USUAL else field.default
    if isinstance(value, str) and field.kind is not Kind.WORD:
        value = field.read(value.strip(), f"`{name}`")
    return field.check(value)


def shown(name: str, column: Words) -> Words:
    if name in SETTINGS and SETTINGS[name].kind in (Kind.SIDES, Kind.LENGTHS):
        return replace(
            column,
            values=tuple(None if v is None else SETTINGS[name].text(v) for v in column.values),
        )
    return column


@dataclass(frozen=True)
class Part:
    start: int
    rows: int
    columns: Block

    def case(self, n: int) -> dict[str, Any]:
        return {name: column.row(n) for name, column in self.columns.items()}

    def followed(self, name: str) -> Words:
        """A size where it is given, and the one that it follows where it is not."""
        leader, column, latent = (
            self.columns[FOLLOWS[name]],
            self.columns.get(name),
            self.columns.get("latent_kv"),
        )
        # One list of values: the leader's, then 1 (key/value heads of a latent cache), then the
        # column's own. Codes point into it, row by row.
        values = (*leader.values, 1, *(() if column is None else column.values))
        codes = leader.codes
        if name == "kv_heads" and latent is not None:
            codes = np.where(
                np.array([bool(v) for v in latent.values])[latent.codes], len(leader.values), codes
            )
        if column is not None:
            is_stated = np.array([value is not None for value in column.values])[column.codes]
            codes = np.where(is_stated, column.codes + len(leader.values) + 1, codes)
        return Words(values, codes)


Block = Mapping[str, Words]
"""Columns that go together row by row."""


def _rows(block: Block) -> int:
    return len(next(iter(block.values())).codes)


def _checked(columns: Block) -> Block:
    return {
        name: replace(column, values=tuple(checked(name, value) for value in column.values))
        for name, column in columns.items()
    }


@dataclass(frozen=True)
class Cases:
    """All rows: every row of each block with every row of the others, those of the last block fastest."""

    blocks: tuple[Block, ...]

    def __len__(self) -> int:
        return prod(map(_rows, self.blocks))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Columns that a row has, in the order of a table."""
        present = {name for block in self.blocks for name in block}
        return tuple(name for name in (*LABELS, *NAMES) if name in present)

    def values(self, name: str) -> tuple[Any, ...]:
        """The distinct values of a column; none where no row has it."""
        return next((block[name].values for block in self.blocks if name in block), ())

    def part(self, start: int, stop: int) -> Part:
        numbers = np.arange(start, stop, dtype=np.int64)
        columns: dict[str, Words] = {}
        for block in reversed(self.blocks):
            # A row number in mixed radix: one digit per block, the last block fastest.
            numbers, at = np.divmod(numbers, _rows(block))
            columns |= {
                name: replace(column, codes=column.codes[at]) for name, column in block.items()
            }
        return Part(start, stop - start, columns)

    def fingerprint(self) -> str:
        """Two sweeps of the same rows, on profiles and kernels that are the same, have the same."""
        digest = hashlib.sha256()
        for block in self.blocks:
            for name, column in block.items():
                digest.update(json.dumps([name, [repr(value) for value in column.values]]).encode())
                digest.update(np.ascontiguousarray(column.codes).tobytes())
            digest.update(b";")
        for name in PLACES:
            # Profiles and kernels that are files count by what they hold: an edited file is another sweep.
            for place in map(Path, self.values(name)):
                digest.update(place.read_bytes() if place.is_file() else b";")
        return digest.hexdigest()


def cases(grid: Mapping[str, Iterable[Any]], rows: Block | None = None) -> Cases:
    """The rows of a sweep: every combination of the values of `grid`, by column, among which None stands for the
    default; each with every one of `rows`, columns of one length that go together row by row. What neither gives is as
    `iosim predict` has it. A window implies the mask "window" where no mask is given; values of `window` in a grid go
    with masks that take one alone. Raises InputError: a column that there is not, a value out of range, or a column
    given twice."""
    listed = dict(rows or {})
    columns = {name: list(values) for name, values in grid.items()}
    for name, values in columns.items():
        if not values:
            raise InputError(f"`{name}` has no values; accepted: one or more")
        if name in listed:
            raise InputError(
                f"`{name}` is given twice, as an option and as a column of the rows; give one of them"
            )
    if "seq_q" not in {*columns, *listed}:
        check_queries(columns)
    blocks = []
    if listed:
        blocks.append(_checked(_with_mask(listed)))
        if not _rows(blocks[0]):
            raise InputError("the rows of the sweep are none; accepted: one or more")
    # Defaults first, then the grid's own values.
    columns = {name: list(values) for name, values in USUAL.items() if name not in listed} | columns
    if "window_right" in columns and not {"mask", "window"} & {*columns, *listed}:
        columns["mask"] = ["window"]
    # Masks and windows go in pairs, in one block: a window makes sense with masks that take one.
    if "window" in columns and "mask" not in listed:
        masks, windows = columns.pop("mask", [None]), columns.pop("window")
        taken = [(mask, windows if mask is None or mask in WINDOWED else (None,)) for mask in masks]
        pairs = [(_mask(mask, window), window) for mask, of_mask in taken for window in of_mask]
        blocks.append(
            _checked(
                {"mask": Words.of(m for m, _ in pairs), "window": Words.of(w for _, w in pairs)}
            )
        )
    prefixes = columns.pop("prefix", None)
    if prefixes is not None:
        blocks.append(_prefixed(columns, prefixes, listed))
    blocks += [
        _checked({name: Words.of(columns[name])}) for name in SLOWEST_FIRST if name in columns
    ]
    all_cases = Cases(tuple(blocks))
    if len(all_cases) > MAX_ROWS:
        raise InputError(f"the sweep has {len(all_cases):,} rows; accepted: up to {MAX_ROWS:,}")
    return all_cases


def _prefixed(columns: dict[str, list[Any]], prefixes: Sequence[int], listed: Block) -> Block:
    """Query and key tokens where so many tokens are cached before the queries."""
    if "seq_k" in columns or "seq_k" in listed or "seq_q" in listed:
        raise InputError(
            "`prefix` contradicts key tokens, and lengths that a file gives; accepted with it: `seq_q` of the grid"
        )
    lengths = [checked("seq_q", value) for value in columns.pop("seq_q")]
    # Prefix and query tokens give both lengths, so they share a block.
    pairs = [(queries, queries + prefix) for prefix in prefixes for queries in lengths]
    return _checked(
        {"seq_q": Words.of(q for q, _ in pairs), "seq_k": Words.of(k for _, k in pairs)}
    )


WINDOWED = ("window", *FIRST_TOKENS_MASKS)


def _mask(mask: str | None, window: int | None) -> str | None:
    return "window" if mask is None and window is not None else mask


def _with_mask(columns: Block) -> Block:
    if "window" not in columns:
        return columns
    windows = columns["window"].tolist()
    masks = columns["mask"].tolist() if "mask" in columns else [None] * len(windows)
    return {**columns, "mask": Words.of(map(_mask, masks, windows))}


def problem_of(case: Mapping[str, Any]) -> AttentionProblem:
    values = {name: value for name, value in case.items() if name in FIELDS and value is not None}
    return AttentionProblem(**values)


def settings_of(case: Mapping[str, Any]) -> Overrides:
    return Overrides(**{name: value for name, value in case.items() if name in OVERRIDES})
