"""Results of replays kept on disk between runs, in one SQLite file of the user's cache directory.

A result is found again only under the digest of all inputs of its replay, made by the same source code. The file is
bounded: what was used longest ago goes first. Nothing here is needed for a prediction: a file that cannot be opened,
read or written is as good as an empty one.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iosim.base.places import cache_dir

FILE = "replays.sqlite3"
MOST_BYTES = 256 << 20
"""Of results that are kept: some hundred thousand."""
KEPT_SHARE = 0.9
"""Of `MOST_BYTES`, what is left once results had to go."""
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


class ReplayCache:
    """The file at `place`; several threads and processes may use it at once."""

    def __init__(self, place: Path, version: str, most_bytes: int = MOST_BYTES) -> None:
        self.place, self.version, self.most_bytes = place, version, most_bytes
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        self._broken = False

    def get(self, key: str) -> dict[str, Any] | None:
        """The result kept under `key`, or None."""
        with self._lock:
            found = self._try(lambda connection: self._look_up(connection, key))
        if found is None:
            return None
        try:
            plain = json.loads(zlib.decompress(found))
        except (zlib.error, ValueError):
            return None
        return plain if isinstance(plain, dict) else None

    def put(self, key: str, plain: dict[str, Any]) -> None:
        """Keep a result, in place of what there is under `key`."""
        result = zlib.compress(json.dumps(plain, separators=(",", ":"), allow_nan=False).encode())
        with self._lock:
            self._try(lambda connection: self._keep(connection, key, result))

    def state(self) -> CacheState:
        """How much is kept; nothing where there is no file."""
        with self._lock:
            counts = self._try(self._count) if self.place.is_file() else None
        return CacheState(self.place, *(counts or (0, 0, 0)))

    def clear(self) -> None:
        """Drop all results, and the file.

        Raises:
            OSError: the file is there and cannot be removed.
        """
        with self._lock:
            self._close()
            self._remove()
            self._broken = False

    def _look_up(self, connection: sqlite3.Connection, key: str) -> bytes | None:
        row = connection.execute(
            "SELECT result, used FROM replays WHERE version = ? AND key = ?", (self.version, key)
        ).fetchone()
        if row is None:
            return None
        now = time.time()
        if not 0 <= now - row[1] < USED_AGAIN_S:
            with suppress(sqlite3.Error), connection:
                connection.execute(
                    "UPDATE replays SET used = ? WHERE version = ? AND key = ?", (now, self.version, key)
                )
        return bytes(row[0])

    def _keep(self, connection: sqlite3.Connection, key: str, result: bytes) -> None:
        with connection:
            connection.execute(
                "INSERT OR REPLACE INTO replays VALUES (?, ?, ?, ?)", (self.version, key, time.time(), result)
            )
            used = _used_bytes(connection)
            if used > self.most_bytes:
                self._drop_oldest(connection, used)

    def _drop_oldest(self, connection: sqlite3.Connection, used: int) -> None:
        """Drop results until `KEPT_SHARE` of the bytes are left: those of other versions first, then the oldest."""
        rows = connection.execute(
            "SELECT version, key, length(result) FROM replays ORDER BY version = ?, used", (self.version,)
        ).fetchall()
        excess = (used - KEPT_SHARE * self.most_bytes) * sum(row[2] for row in rows) / used
        for version, key, size in rows:
            if excess <= 0:
                break
            connection.execute("DELETE FROM replays WHERE version = ? AND key = ?", (version, key))
            excess -= size

    def _count(self, connection: sqlite3.Connection) -> tuple[int, int, int]:
        results, current = connection.execute(
            "SELECT count(*), coalesce(sum(version = ?), 0) FROM replays", (self.version,)
        ).fetchone()
        return results, current, _used_bytes(connection)

    def _try(self, work: Any) -> Any:
        """What `work` gives of the open file; None where there is no such file or it cannot be used.

        A damaged file is dropped and begun anew, once.
        """
        for again in (True, False):
            connection = self._open()
            if connection is None:
                return None
            try:
                return work(connection)
            except sqlite3.OperationalError:  # locked for too long, read-only, or a full disk
                return None
            except sqlite3.DatabaseError:
                self._close()
                if not again:
                    break
                try:
                    self._remove()
                except OSError:
                    break
        self._broken = True
        return None

    def _open(self) -> sqlite3.Connection | None:
        """The connection of this process; a fork does not share its parent's."""
        if self._process != os.getpid():
            self._connection, self._process = None, os.getpid()
        if self._connection is None and not self._broken:
            try:
                self.place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._connection = _connect(self.place)
            except sqlite3.OperationalError:
                self._broken = True
            except sqlite3.DatabaseError:  # no database: whatever it is, it lies where results of replays belong
                try:
                    self._remove()
                    self._connection = _connect(self.place)
                except (OSError, sqlite3.Error):
                    self._broken = True
            except OSError:
                self._broken = True
        return self._connection

    def _close(self) -> None:
        if self._connection is not None and self._process == os.getpid():
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    def _remove(self) -> None:
        for suffix in SUFFIXES:
            self.place.with_name(self.place.name + suffix).unlink(missing_ok=True)


def _connect(place: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(place, timeout=BUSY_S, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = OFF")  # what a crash damages is begun anew
        connection.execute(TABLE)
    except BaseException:
        connection.close()
        raise
    return connection


def _used_bytes(connection: sqlite3.Connection) -> int:
    """Bytes of the file's pages that hold something."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


_OPEN: dict[tuple[Path, str], ReplayCache] = {}


def replay_cache() -> ReplayCache | None:
    """The user's cache of replays, opened at its first use; None where it is switched off."""
    from iosim.readers.replay.saved import version

    folder = cache_dir()
    if folder is None:
        return None
    return _OPEN.setdefault((folder, version()), ReplayCache(folder / FILE, version()))
