"""Results of replays kept on disk between runs, as plain data, in one SQLite file of the user's cache directory.

A result is found again only under the digest of all inputs of its replay, made by the same source code. The file is
bounded: what was used longest ago goes first. Nothing here is needed for a prediction: a file that cannot be opened,
read or written is as good as an empty one.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from iosim.base.data import cache_dir
from iosim.base.records import dataclass, fields, is_dataclass
from iosim.kernel.traffic import Traffic, TrafficRow
from iosim.readers.replay import build
from iosim.readers.replay.play import PlayedHeads
from iosim.readers.replay.replay import Replay, ReplayedLaunch
from iosim.readers.replay.sampling import CoarseSteps, Windows

FILE = "replays.sqlite3"
MOST_BYTES = 256 << 20
"""Bytes of results that are kept: some hundred thousand results."""
KEPT_SHARE = 0.9
"""Fraction of `MOST_BYTES` that is left once results had to go."""
BUSY_S = 2.0
"""What is waited for another process to end its writing."""
USED_AGAIN_S = 86_400.0
"""A result's time of last use is written again once it is so old: reading stays free of writes."""
TABLE = """CREATE TABLE IF NOT EXISTS replays (
    version TEXT NOT NULL, key TEXT NOT NULL, used REAL NOT NULL, result BLOB NOT NULL, PRIMARY KEY (version, key)
) WITHOUT ROWID"""
SUFFIXES = ("", "-journal", "-wal", "-shm")


@dataclass(frozen=True)
class CacheState:
    """What a cache holds: `current` of its `results` are of this version of iosim."""

    place: Path
    results: int
    current: int
    bytes: int


_LOCK = threading.Lock()


def _renew_lock() -> None:
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)  # whoever held it is not in the child


@dataclass(frozen=True)
class ReplayCache:
    """The file at `place`, opened anew for each use, by several threads and processes at once."""

    place: Path
    version: str
    most_bytes: int = MOST_BYTES

    def get(self, key: str) -> dict[str, Any] | None:
        mine = (self.version, key)

        def look_up(file: sqlite3.Connection) -> bytes | None:
            row = file.execute(
                "SELECT result, used FROM replays WHERE version = ? AND key = ?", mine
            ).fetchone()
            # The time of last use is renewed once a day: look-ups are reads, which many processes can do at once.
            if row is not None and not 0 <= time.time() - row[1] < USED_AGAIN_S:
                with suppress(sqlite3.Error):
                    file.execute(
                        "UPDATE replays SET used = ? WHERE version = ? AND key = ?",
                        (time.time(), *mine),
                    )
            return None if row is None else bytes(row[0])

        record = self._try(look_up)
        try:
            plain = None if record is None else json.loads(zlib.decompress(record))
        except (zlib.error, ValueError):
            return None
        return plain if isinstance(plain, dict) else None

    def put(self, key: str, plain: dict[str, Any]) -> None:
        result = zlib.compress(json.dumps(plain, separators=(",", ":"), allow_nan=False).encode())

        def keep(file: sqlite3.Connection) -> None:
            file.execute(
                "INSERT OR REPLACE INTO replays VALUES (?, ?, ?, ?)",
                (self.version, key, time.time(), result),
            )
            # Room is made right after a result was kept, so that the file never grows far beyond its bound.
            used = _used_bytes(file)
            if used > self.most_bytes:
                self._drop_oldest(file, used)

        self._try(keep)

    def state(self) -> CacheState:
        def count(file: sqlite3.Connection) -> tuple[int, int, int]:
            counts = "SELECT count(*), coalesce(sum(version = ?), 0) FROM replays"
            return *file.execute(counts, (self.version,)).fetchone(), _used_bytes(file)

        return CacheState(
            self.place, *((self._try(count) if self.place.is_file() else None) or (0, 0, 0))
        )

    def clear(self) -> None:
        """Drop all results, and the file. Raises OSError: the file is there and cannot be removed."""
        for suffix in SUFFIXES:
            self.place.with_name(self.place.name + suffix).unlink(missing_ok=True)

    def _drop_oldest(self, file: sqlite3.Connection, used: int) -> None:
        """Drop results until `KEPT_SHARE` of the bytes are left: those of other versions first, then the oldest."""
        # Results of other versions are of no more use; then what was used longest ago.
        rows = file.execute(
            "SELECT version, key, length(result) FROM replays ORDER BY version = ?, used",
            (self.version,),
        ).fetchall()
        excess = (used - KEPT_SHARE * self.most_bytes) * sum(row[2] for row in rows) / used
        for version, key, size in rows:
            if excess <= 0:
                break
            file.execute("DELETE FROM replays WHERE version = ? AND key = ?", (version, key))
            excess -= size

    def _try(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """What `work` gives of the open file; None where there is no such file or it cannot be used. A damaged file, or
        whatever else lies there, is dropped and begun anew, once."""
        # Twice: a file that is no database is removed, and the second turn begins a new one.
        for _ in range(2):
            try:
                self.place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                with _LOCK, closing(sqlite3.connect(self.place, timeout=BUSY_S)) as file, file:
                    file.execute("PRAGMA synchronous = OFF")  # what a crash damages is begun anew
                    file.execute(TABLE)
                    return work(file)
            except (
                OSError,
                sqlite3.OperationalError,
            ):  # locked for too long, read-only, or a full disk
                return None
            # Not locked and not full, but damaged, or another program's file of that name.
            except sqlite3.DatabaseError:
                with suppress(OSError):
                    self.clear()
        return None


def _used_bytes(file: sqlite3.Connection) -> int:
    pages, free, size = (
        file.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def replay_cache() -> ReplayCache | None:
    """The user's cache of replays; None where it is switched off."""
    folder = cache_dir()
    return None if folder is None else ReplayCache(folder / FILE, version())


PACKAGE = Path(__file__).resolve().parents[1]
SOURCES = ("kernel", "problem/masks", "readers/replay")
"""Directories whose Python files decide what a replay finds from its inputs; what is imported beside them only makes
the inputs. The engine's own sources are in its mark."""


@cache
def version() -> str:
    """Changes with any source file that a replay's result may depend on, and with NumPy."""
    # Everything that a replay's result can follow from beside its inputs.
    text = hashlib.sha256(build.mark() + np.__version__.encode() + Path(__file__).read_bytes())
    for folder in SOURCES:
        for source in sorted((PACKAGE / folder).glob("*.py")):
            text.update(f"\0{folder}/{source.name}\0".encode() + source.read_bytes())
    return text.hexdigest()[:32]


def to_plain(value: Any) -> Any:
    """A replay as dicts and lists."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return list(map(to_plain, value))
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def from_plain(plain: dict[str, Any]) -> Replay:
    """The replay that `to_plain` was given. Raises KeyError, TypeError, ValueError: it is not what `to_plain` makes."""
    traffic = Traffic(tuple(TrafficRow(**row) for row in plain["traffic"]["rows"]))
    # Lists become the records that they were made of; whatever does not fit is an error here, which the
    # reader takes for a result that is not there.
    share = plain["share"] and PlayedHeads(**plain["share"])
    return Replay(
        **plain
        | {"traffic": traffic, "launches": tuple(map(_launch, plain["launches"])), "share": share}
    )


def _launch(plain: dict[str, Any]) -> ReplayedLaunch:
    windows, coarse = plain["windows"], plain["coarse"]
    if windows is not None:
        arrays = {
            name: np.array(values, dtype=np.int64)
            for name, values in windows.items()
            if isinstance(values, list)
        }
        windows = Windows(**windows | arrays)
    return ReplayedLaunch(
        **plain | {"coarse": coarse and CoarseSteps(**coarse), "windows": windows}
    )
