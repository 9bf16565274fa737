"""The rows of a sweep that are done already, beside the file that they will be: what an interrupt leaves behind.

The journal of `out.csv` is `out.csv.partial`. It opens with a line that says which sweep it belongs to; then come
records, each a line of JSON (which rows, how many bytes, their checksum) and those rows as CSV. Records are appended
whole, in whatever order parts are done. A record that was cut short by a kill is dropped when the sweep goes on. The
process that writes holds a lock on it, which ends with the process.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from iosim.base.errors import InputError

SCHEMA = 1
SYNC_S = 2.0
"""At least so often what was written is on the disk, whatever happens to the machine."""


@dataclass(frozen=True)
class Record:
    """Rows `start` to `stop`: where their CSV begins in the journal and how long it is."""

    start: int
    stop: int
    offset: int
    size: int
    refused: int
    one_by_one: int


class Journal:
    """The done rows of one sweep; made by `opened`."""

    def __init__(self, path: Path, file: BinaryIO, records: list[Record]) -> None:
        self.path, self.records = path, records
        self._file = file
        self._synced = time.monotonic()

    @property
    def rows(self) -> int:
        return sum(record.stop - record.start for record in self.records)

    def gaps(self, rows: int) -> list[tuple[int, int]]:
        """The runs of rows that are not done, of a sweep of `rows`."""
        left, at = [], 0
        for record in sorted(self.records, key=lambda record: record.start):
            if record.start > at:
                left.append((at, record.start))
            at = max(at, record.stop)
        return left + ([(at, rows)] if at < rows else [])

    def append(self, start: int, stop: int, lines: str, refused: int, one_by_one: int) -> None:
        """Rows that are done."""
        data = lines.encode()
        head = {"start": start, "stop": stop, "bytes": len(data), "crc32": zlib.crc32(data), "refused": refused,
                "one_by_one": one_by_one}  # fmt: skip
        line = json.dumps(head).encode() + b"\n"
        try:
            begin = self._file.seek(0, os.SEEK_END)
            self._file.write(line + data)
            self._file.flush()
            if time.monotonic() - self._synced > SYNC_S:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            raise InputError(f"`path` '{self.path}' cannot be written: {error.strerror}") from None
        self.records.append(Record(start, stop, begin + len(line), len(data), refused, one_by_one))

    def csv(self) -> Iterator[bytes]:
        """The CSV of all records, in the order of their rows."""
        for record in sorted(self.records, key=lambda record: record.start):
            self._file.seek(record.offset)
            yield self._file.read(record.size)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def journal_of(target: Path) -> Path:
    """The journal of the sweep that writes `target`."""
    return target.with_name(f"{target.name}.partial")


@contextmanager
def opened(target: Path, sweep: str, rows: int, *, fresh: bool = False) -> Iterator[Journal]:
    """The journal of `target`, with the rows of an earlier run of the same sweep; locked.

    Args:
        sweep: tells sweeps apart: what is asked for, and by which version.
        fresh: drop what an earlier run left.

    Raises InputError: another process writes the file, or the journal belongs to another sweep.
    """
    path = journal_of(target)
    with _locked(path, target) as file:
        head = json.dumps({"iosim_sweep": SCHEMA, "sweep": sweep, "rows": rows}).encode() + b"\n"
        there = b"" if fresh else file.readline()
        if there and there != head and there.endswith(b"\n"):
            raise InputError(f"`path` '{target}': '{path.name}' beside it holds rows of another sweep, or of another "
                             "version of iosim; accepted: another file, or `fresh=True` to drop them")  # fmt: skip
        records, end = _records(file, rows) if there == head else ([], 0)
        file.truncate(end)
        if not end:
            file.seek(0)
            file.write(head)
            file.flush()
        yield Journal(path, file, records)


@contextmanager
def _locked(path: Path, target: Path) -> Iterator[BinaryIO]:
    while True:
        try:
            file = open(path, "a+b")  # noqa: SIM115  (closed below)
        except OSError as error:
            raise InputError(f"`path` '{target}' cannot be written: {error.strerror}; a file in a directory that "
                             "exists and can be written is needed") from None  # fmt: skip
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise InputError(f"`path` '{target}' is being written by another sweep; accepted: another file, or to wait "
                             "for that one's end") from None  # fmt: skip
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            break
        file.close()  # its sweep ended, and took the journal away, as it was opened
    with file:
        file.seek(0)
        yield file


def _records(file: BinaryIO, rows: int) -> tuple[list[Record], int]:
    """The whole records from here on, and where the last of them ends."""
    records: list[Record] = []
    end = file.tell()
    done: set[int] = set()
    while line := file.readline():
        try:
            head = json.loads(line)
            start, stop, size = head["start"], head["stop"], head["bytes"]
            data = file.read(size)
            whole = len(data) == size and zlib.crc32(data) == head["crc32"] and 0 <= start < stop <= rows
        except (ValueError, KeyError, TypeError):
            break
        if not whole or start in done:
            break
        done.add(start)
        records.append(Record(start, stop, end + len(line), size, head["refused"], head["one_by_one"]))
        end = file.tell()
    return records, end
