"""Files of sweeps: rows that are read as problems, and rows that were found, as CSV and as Parquet."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iosim.base.errors import InputError
from iosim.base.files import require_file, written_whole
from iosim.studies.sweep.cases import PLACES, Cells, Numbers, Words, checked, csv_lines, name_of
from iosim.studies.sweep.closed import KERNEL

if TYPE_CHECKING:
    import pandas

CSV, PARQUET = "csv", "parquet"
TYPES = {"text": "string", "int": "Int64", "float": "Float64", "bool": "boolean"}
AT_ONCE = 32 << 20
"""Bytes of CSV that make a row group of a Parquet file."""
FOUND = (
    "runs_as",
    *KERNEL,
    "method",
    "l2_start",
    "flops",
    "spilled_registers",
    "time_s",
    "bound_by",
    "refused",
)
"""Columns that a sweep writes and that ask for nothing, beside those that end in "_bytes"."""
ASKS_BYTES = ("shared_memory_bytes",)


def kind_of(path: str | os.PathLike[str]) -> str:
    end = Path(path).suffix.lower()
    if end not in (".csv", ".parquet"):
        raise InputError(
            f"`path` '{path}' ends in neither .csv nor .parquet; accepted: a name that does"
        )
    return end[1:]


def _parquet() -> Any:
    try:
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        hint = "accepted: pip install 'iosim[parquet]', or a file that ends in .csv"
        raise InputError(
            f"Parquet files need the package pyarrow, which is not installed; {hint}"
        ) from None
    return pyarrow


def check_target(path: Path) -> str:
    kind = kind_of(path)
    if path.is_dir() or not path.absolute().parent.is_dir():
        why = (
            "is a directory" if path.is_dir() else "cannot be written: its directory does not exist"
        )
        raise InputError(f"`path` '{path}' {why}; a file in a directory that exists is needed")
    if kind == PARQUET:
        _parquet()
    return kind


def finish(lines: Iterable[bytes], target: Path, kind: str, kinds: Mapping[str, str]) -> None:
    if kind == CSV:
        with written_whole(target) as file:
            file.write((",".join(kinds) + "\n").encode())
            for data in lines:
                file.write(data)
        return
    arrow = _parquet()
    types = {
        "text": arrow.string(),
        "int": arrow.int64(),
        "float": arrow.float64(),
        "bool": arrow.bool_(),
    }
    schema = arrow.schema([(name, types[word]) for name, word in kinds.items()])
    reading = {
        "read_options": arrow.csv.ReadOptions(column_names=list(kinds)),
        "convert_options": arrow.csv.ConvertOptions(
            column_types=schema,
            null_values=[""],
            strings_can_be_null=True,
            # An empty cell is null, a quoted "" is an empty text.
            quoted_strings_can_be_null=False,
        ),
    }
    # A row group per so many bytes of CSV: the file is never in memory as a whole.
    with written_whole(target) as file, arrow.parquet.ParquetWriter(file, schema) as writer:
        for data in _gathered(lines):
            writer.write_table(arrow.csv.read_csv(io.BytesIO(data), **reading))


def _gathered(lines: Iterable[bytes]) -> Iterator[bytes]:
    waiting = bytearray()
    for data in lines:
        waiting += data
        if len(waiting) >= AT_ONCE:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


def read_frame(path: str | os.PathLike[str], kinds: Mapping[str, str]) -> pandas.DataFrame:
    import pandas

    if kind_of(path) == PARQUET:
        _parquet()
        return pandas.read_parquet(path, dtype_backend="numpy_nullable")
    types = {name: TYPES[word] for name, word in kinds.items()}
    return pandas.read_csv(path, dtype=types, keep_default_na=False, na_values=[""])


def frame_of(cells: Cells, kinds: Mapping[str, str]) -> pandas.DataFrame:
    """The rows as `read_frame` gives them."""
    import pandas

    def column(cells_of_column: Words | Numbers, kind: Any) -> Any:
        if not isinstance(cells_of_column, Words):
            return pandas.Series(cells_of_column.data, dtype=kind).mask(
                np.ma.getmaskarray(cells_of_column)
            )
        return (
            pandas.Series(cells_of_column.values, dtype="object")
            .astype(kind)
            .array.take(cells_of_column.codes)
        )

    return pandas.DataFrame(
        {name: column(column_cells, TYPES[kinds[name]]) for name, column_cells in cells.items()}
    )


def problems_of(source: str | os.PathLike[str] | pandas.DataFrame) -> dict[str, Words]:
    """The columns of a file of problems, or of a DataFrame, by their names in Python."""
    if isinstance(source, str | os.PathLike):
        where, frame = f"'{os.fspath(source)}'", _frame(Path(source))
    else:
        where, frame = "the rows", source
    columns: dict[str, Words] = {}
    for head in frame.columns:
        word = str(head).strip()
        if word in FOUND or (word.endswith("_bytes") and word not in ASKS_BYTES):
            continue
        try:
            name = "mask" if word == "causal" else name_of(word)
        except InputError as error:
            raise InputError(f"{where}: {error.marked}") from None
        if name in columns:
            raise InputError(f"{where}: two columns say what `{name}` is; accepted: one")
        columns[name] = _column(frame[head], name, word == "causal", where)
    if not columns:
        raise InputError(
            f"{where}: no column of a problem; accepted: columns such as seq_len, heads, kernel, gpu"
        )
    return columns


def _frame(path: Path) -> pandas.DataFrame:
    import pandas

    kind = kind_of(path)
    try:
        require_file(path, f"'{path}'")
        if kind == PARQUET:
            _parquet()
            return pandas.read_parquet(path)
        return pandas.read_csv(
            path, dtype="category", keep_default_na=False, na_values=[""], skipinitialspace=True
        )
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        why = (error.strerror if isinstance(error, OSError) else None) or " ".join(
            str(error).split()
        )
        raise InputError(
            f"'{path}' cannot be read: {why}; accepted: a {kind.upper()} file with a head line"
        ) from None


def _column(series: pandas.Series[Any], name: str, is_causal: bool, where: str) -> Words:
    import pandas

    # Distinct values are read and checked once; an empty cell has code -1.
    codes, distinct = pandas.factorize(series)
    values: list[Any] = []
    for n, value in enumerate(distinct):
        try:
            plain = value.item() if isinstance(value, np.generic) else value
            # A column with an empty cell is read as floats: 4096.0 is 4096.
            plain = int(plain) if isinstance(plain, float) and plain.is_integer() else plain
            if is_causal:
                plain = "causal" if str(value).strip().lower() in ("true", "1", "yes") else None
            values.append(None if plain is None else checked(name, plain))
        except InputError as error:
            row = int(np.argmax(codes == n)) + 1
            raise InputError(f"{where}, row {row}: {error.marked}") from None
    if (codes >= 0).all():
        return Words(tuple(values), codes.astype(np.int64))
    if name in PLACES:
        raise InputError(
            f"{where}, row {int(np.argmax(codes < 0)) + 1}: `{name}` is empty; accepted: a name"
        )
    return Words((*values, None), np.where(codes < 0, len(values), codes).astype(np.int64))


def written(cells: Cells) -> str:
    return ",".join(cells) + "\n" + csv_lines(cells)
