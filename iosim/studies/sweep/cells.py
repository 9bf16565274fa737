"""What a sweep found: columns of numbers and words, and how they are written as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iosim.base.records import dataclass
from iosim.problem.masks.mask import BoolArray, IntArray

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Words:
    """Distinct values (words, sizes that were asked for, truth values), and which of them each row has; None is an
    empty cell."""

    values: tuple[Any, ...]
    codes: IntArray

    @classmethod
    def of(cls, values: Iterable[Any]) -> Words:
        known: dict[Any, int] = {}
        plain = ((type(v), tuple(v) if type(v) is list else v) for v in values)
        codes = np.array([known.setdefault(key, len(known)) for key in plain], dtype=np.int64)
        return cls(tuple(value for _, value in known), codes)

    def row(self, n: int) -> Any:
        return self.values[self.codes[n]]

    def cells(self) -> list[str]:
        texts = np.array([_text(value) for value in self.values], dtype=object)
        return list(texts[self.codes].tolist())

    def to_list(self) -> list[Any]:
        return [self.values[code] for code in self.codes.tolist()]


@dataclass(frozen=True)
class Numbers:
    """A column of whole numbers or seconds; where `known` is not, the cell is empty."""

    numbers: IntArray | Floats
    known: BoolArray

    @classmethod
    def unknown(cls, rows: int, kind: type = np.int64) -> Numbers:
        return cls(np.zeros(rows, dtype=kind), np.zeros(rows, dtype=np.bool_))

    def put(self, at: Any, values: Any) -> None:
        self.numbers[at] = values
        self.known[at] = True

    def cells(self) -> list[str]:
        texts = list(map(repr, self.numbers.tolist()))
        if self.known.all():
            return texts
        return [text if known else "" for text, known in zip(texts, self.known.tolist(), strict=True)]

    def to_list(self) -> list[Any]:
        return [n if k else None for n, k in zip(self.numbers.tolist(), self.known.tolist(), strict=True)]


def _text(value: Any) -> str:
    if value is None:
        return ""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([value])
    return out.getvalue()


Cells = Mapping[str, Words | Numbers]


def csv_lines(cells: Cells) -> str:
    columns = [column.cells() for column in cells.values()]
    return "".join(f"{line}\n" for line in map(",".join, zip(*columns, strict=True)))


def joined(parts: Sequence[Cells]) -> Cells:
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _joined(columns: Sequence[Words | Numbers]) -> Words | Numbers:
    first = columns[0]
    if isinstance(first, Numbers):
        numbers = [c for c in columns if isinstance(c, Numbers)]
        return Numbers(np.concatenate([c.numbers for c in numbers]), np.concatenate([c.known for c in numbers]))
    values: dict[Any, int] = {}
    codes = []
    for part in columns:
        assert isinstance(part, Words)
        at = [values.setdefault((type(value), value), len(values)) for value in part.values]
        codes.append(np.array(at, dtype=np.int64)[part.codes])
    return Words(tuple(value for _, value in values), np.concatenate(codes))
