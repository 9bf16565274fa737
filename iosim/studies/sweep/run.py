"""A sweep: what is asked for, and the parts of its rows run here, on several cores or on a Dask cluster, into memory or
into a file."""

from __future__ import annotations

import csv
import importlib
import io
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager, suppress
from itertools import islice, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.fields import Kind
from iosim.base.progress import announce, cores, counter
from iosim.base.records import dataclass, replace
from iosim.base.units import sizes, some
from iosim.base.version import __version__
from iosim.base.words import Method
from iosim.base.workers import in_processes
from iosim.catalog.libraries import entry_name, is_choice
from iosim.hardware.profile import load_profile
from iosim.kernel.conditions import Conditions
from iosim.problem.asked import BESIDES, lengths
from iosim.problem.fields import FIELDS
from iosim.studies.models.asked import OF_LENGTH, OF_MODEL, chosen, rows_of
from iosim.studies.requests import SweepRequest
from iosim.studies.sweep.cases import (
    PLACES,
    SETTINGS,
    Cases,
    Cells,
    Part,
    Words,
    cases,
    csv_lines,
    joined,
    name_of,
)
from iosim.studies.sweep.files import check_target, finish, frame_of, problems_of, read_frame
from iosim.studies.sweep.rows import Done, columns, evaluate, timed

if TYPE_CHECKING:
    import pandas

    from iosim.studies.models.layers import Model


CLOSED_ROWS, LEAST_CLOSED_ROWS = 1 << 17, 1 << 13
"""Rows of a part in closed form: so many, or fewer where several processes share them."""
MOST_ROWS_ONE_BY_ONE = 16
PARTS_AHEAD = 3
"""Parts a process that are begun before their turn."""
MANY_WORKERS = 16
"""Workers that a cluster is taken to have, where parts are cut for it."""
CONNECT_S = 10
LOOK_S, ALONE_S, POLL_S = 5.0, 30.0, 0.01
"""From one look at a cluster's workers to the next, how long it may have none, and from one look at its parts to the
next."""
GOES_ON = "accepted: the same command once there is one, which goes on from what is done where --out is given"
FEW_ROWS, FEW_CLOSED_ROWS = 8, 1 << 18
"""Rows, predicted one by one or in closed form, up to which a second process is not worth its start."""


@dataclass(frozen=True)
class Where:
    """What runs the parts: `jobs` processes here (None: as many as are worth it), or the Dask cluster at `dask`."""

    jobs: int | None = None
    dask: str | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None and (isinstance(self.jobs, bool) or self.jobs < 1):
            raise InputError(f"`jobs` {self.jobs} is out of range; accepted: 1 or more")
        if self.jobs is not None and self.dask is not None:
            hint = "give one of them"
            raise InputError(
                f"`jobs` {self.jobs} contradicts `dask` '{self.dask}', whose workers do the work; {hint}"
            )

    def processes(self, rows: int, conditions: Conditions) -> int:
        if self.jobs is not None:
            return self.jobs
        return cores() if rows > (FEW_ROWS if timed(conditions) else FEW_CLOSED_ROWS) else 1


@dataclass(frozen=True)
class Summary:
    """How many rows there are, were there already, were refused, and have no closed form where one was asked for."""

    rows: int
    resumed: int
    refused: int
    one_by_one: int

    @classmethod
    def of(cls, parts: Sequence[Done], resumed: int, reason: Callable[[], str]) -> Summary:
        """Raises InputError where every row is refused, with the first one's `reason`."""
        rows, refused = sum(p.stop - p.start for p in parts), sum(p.refused for p in parts)
        if refused == rows:
            number = "its one row" if rows == 1 else f"all {some(rows, 'row')}"
            raise InputError(f"the sweep is refused, {number}: {reason()}")
        return cls(rows, resumed, refused, sum(p.one_by_one for p in parts))


def _work(part: Part, names: tuple[str, ...], conditions: Conditions, as_csv: bool) -> Done:
    done = evaluate(part, names, conditions)
    return replace(done, rows=csv_lines(done.rows)) if as_csv else done


def in_memory(cases: Cases, conditions: Conditions, where: Where) -> tuple[Cells, Summary]:
    done = list(_all(cases, conditions, where, [(0, len(cases))], as_csv=False))
    done.sort(key=lambda part: part.start)
    cells = joined([part.rows for part in done])
    return cells, Summary.of(done, 0, lambda: next(r for r in cells["refused"].tolist() if r))


def into_file(
    cases: Cases, conditions: Conditions, where: Where, target: str | Path, *, fresh: bool = False
) -> Summary:
    place = Path(target)
    kind = check_target(place)
    kinds = columns(cases.names, conditions)
    # What a journal must agree with to be gone on from: version, conditions and rows.
    sweep = f"{__version__} {conditions.method} {conditions.l2_start} {cases.fingerprint()}"
    with opened(place, sweep, fresh=fresh) as journal:
        resumed = sum(part.stop - part.start for part in journal.parts)
        for part in _all(cases, conditions, where, journal.gaps(len(cases)), as_csv=True):
            journal.append(part)
        if gaps := journal.gaps(len(cases)):
            raise RuntimeError(f"rows {gaps} of the sweep were given to no worker")
        # Lazily: read only where every row is refused and a reason is needed.
        first = (row for data in journal.csv() for row in csv.reader(io.StringIO(data.decode())))
        summary = Summary.of(
            journal.parts, resumed, lambda: dict(zip(kinds, next(first), strict=True))["refused"]
        )
        finish(journal.csv(), place, kind, kinds)
    return summary


def _all(
    cases: Cases, conditions: Conditions, where: Where, gaps: list[tuple[int, int]], *, as_csv: bool
) -> Iterator[Done]:
    rows_left = sum(stop - start for start, stop in gaps)
    processes = where.processes(rows_left, conditions)
    # Parts small enough that all processes end together, large enough to be worth sending.
    size = _part_rows(rows_left, conditions, processes if where.dask is None else MANY_WORKERS)
    ranges = [(at, min(at + size, stop)) for start, stop in gaps for at in range(start, stop, size)]
    tasks = ((cases.part(*ends), cases.names, conditions, as_csv) for ends in ranges)
    with counter(len(cases), "sweeping", "row") as show:
        done = len(cases) - rows_left
        for part in _run(tasks, len(ranges), where.dask, processes):
            done += part.stop - part.start
            show(done)
            yield part


def _part_rows(rows: int, conditions: Conditions, processes: int) -> int:
    if timed(conditions):
        return max(1, min(MOST_ROWS_ONE_BY_ONE, rows // (64 * processes)))
    if processes == 1:
        return CLOSED_ROWS
    return max(LEAST_CLOSED_ROWS, min(CLOSED_ROWS, -(-rows // (4 * processes))))


Task = tuple[Part, tuple[str, ...], Conditions, bool]


def _run(tasks: Iterable[Task], number: int, dask: str | None, processes: int) -> Iterator[Done]:
    if dask is not None:
        yield from _on_cluster(tasks, dask)
    elif processes == 1 or number < 2:
        yield from (_work(*task) for task in tasks)
    else:
        how = {
            "return_as": "generator_unordered",
            "batch_size": 1,
            "pre_dispatch": f"{PARTS_AHEAD}*n_jobs",
        }
        yield from in_processes(_work, tasks, min(processes, number), **how)


def _on_cluster(tasks: Iterable[Task], address: str) -> Iterator[Done]:
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        why = "needs the package distributed, which is not installed; accepted: pip install 'iosim[dask]'"
        raise InputError(f"`dask` {why}") from None
    try:
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        accepted = "the address of a scheduler, such as tcp://host:8786"
        raise InputError(
            f"`dask` '{address}' is not reached: {_line(error)}; accepted: {accepted}"
        ) from None
    waiting = iter(tasks)
    try:
        threads = sum(client.nthreads().values())
        if not threads:
            raise InputError(
                f"`dask` '{address}' has no workers; accepted: a cluster with at least one"
            )
        running = distributed.as_completed(loop=client.loop)
        # A few parts per thread ahead, and one more for each that comes back: tasks are made only when
        # they are sent.
        for task in islice(waiting, PARTS_AHEAD * threads):
            running.add(client.submit(_work, *task, pure=False))
        while not running.is_empty():
            _wait(running, client, address)
            yield _result(next(running), address)
            for task in islice(waiting, 1):
                running.add(client.submit(_work, *task, pure=False))
    finally:
        with suppress(OSError, TimeoutError):
            client.close()


def _wait(running: Any, client: Any, address: str) -> None:
    """Returns once a part is done. Raises InputError: the cluster has had no worker for a while, or its scheduler is
    gone."""
    look, alone_since = time.monotonic() + LOOK_S, None
    while not running.has_ready():
        time.sleep(POLL_S)
        now = time.monotonic()
        if now < look:
            continue
        look = now + LOOK_S
        try:
            workers = client.nthreads() if client.status == "running" else None
        except (OSError, TimeoutError, RuntimeError):
            workers = None
        if workers is None:
            raise InputError(f"the scheduler of `dask` '{address}' is gone; {GOES_ON}")
        if workers:
            alone_since = None
        elif alone_since is None:
            announce(
                f"iosim: dask '{address}' has no worker left; waiting {ALONE_S:.0f} s for one",
                in_pipes=True,
            )
            alone_since = now
        elif now - alone_since >= ALONE_S:
            raise InputError(f"`dask` '{address}' has no worker left; {GOES_ON}")


def _result(future: Any, address: str) -> Done:
    try:
        done: Done = future.result()
    except CancelledError:
        raise InputError(f"the scheduler of `dask` '{address}' is gone; {GOES_ON}") from None
    except (ImportError, AttributeError) as error:
        hint = f"accepted: workers with iosim {__version__}"
        raise InputError(
            f"a worker of `dask` '{address}' has no such iosim: {_line(error)}; {hint}"
        ) from None
    future.release()
    return done


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


TABLES = """CREATE TABLE IF NOT EXISTS sweep (name TEXT);
CREATE TABLE IF NOT EXISTS parts (start INTEGER PRIMARY KEY, stop INTEGER, refused INTEGER, one_by_one INTEGER, csv)"""
ALONE = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL"


@dataclass(frozen=True)
class Journal:
    """The parts of a sweep that are done: what an interrupt leaves. Of `out.csv` it is the SQLite `out.csv.partial`."""

    file: sqlite3.Connection

    @property
    def parts(self) -> list[Done]:
        rows = self.file.execute(
            "SELECT start, stop, refused, one_by_one FROM parts ORDER BY start"
        )
        return [Done(start, stop, None, refused, alone) for start, stop, refused, alone in rows]

    def gaps(self, rows: int) -> list[tuple[int, int]]:
        """The runs of rows that are not done, of a sweep of `rows`."""
        # Between the end of one part and the start of the next, also before the first and after the last.
        ends = [(0, 0), *((part.start, part.stop) for part in self.parts), (rows, rows)]
        return [(before, after) for (_, before), (after, _) in pairwise(ends) if before < after]

    def append(self, done: Done) -> None:
        values = done.start, done.stop, done.refused, done.one_by_one, done.rows
        self.file.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", values)

    def csv(self) -> Iterator[bytes]:
        for (text,) in self.file.execute("SELECT csv FROM parts ORDER BY start"):
            yield text.encode()


def journal_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial")


@contextmanager
def opened(target: Path, sweep: str, *, fresh: bool = False) -> Iterator[Journal]:
    """The journal of `target`, with the parts of an earlier run of the same sweep. No other process has it meanwhile.
    It is gone at the end, unless an error ends it."""
    path = journal_of(target)
    try:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as file:
            # SQLite's exclusive lock keeps a second sweep off the same file; a transaction per part survives
            # a killed process.
            file.executescript(f"{ALONE}; {TABLES}")
            recorded = file.execute("SELECT name FROM sweep").fetchone()
            if recorded not in (None, (sweep,)) and not fresh:
                holds = "holds rows of another sweep, or of another version of iosim"
                accepted = "another file, or `fresh=True` to drop them"
                raise InputError(
                    f"`path` '{target}': '{path.name}' beside it {holds}; accepted: {accepted}"
                )
            if recorded != (sweep,) or fresh:
                file.executescript("DELETE FROM parts; DELETE FROM sweep")
                file.execute("INSERT INTO sweep VALUES (?)", (sweep,))
            journal = Journal(file)
            try:
                yield journal
            # Also at an interrupt: a journal without parts is removed, one with parts stays.
            except BaseException:
                if not journal.parts:  # nothing to go on from
                    file.close()
                    path.unlink(missing_ok=True)
                raise
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 255 in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            accepted = "another file, or to wait for that one's end"
            raise InputError(
                f"`path` '{target}' is being written by another sweep; accepted: {accepted}"
            ) from None
        why = f"{path.name} beside it: {error}" if path.exists() else str(error)
        hint = (
            "a file in a directory that can be written is needed, with no other file of that name"
        )
        raise InputError(f"`path` '{target}' cannot be written: {why}; {hint}") from None
    with suppress(PermissionError):  # Windows keeps a file that another process has opened
        path.unlink(missing_ok=True)


def run_sweep(request: SweepRequest) -> pandas.DataFrame:
    cases_of_sweep = asked_cases(request)
    how, where = (
        checked(cases_of_sweep, request.method, request.l2_start),
        Where(request.jobs, request.dask),
    )
    kinds = columns(cases_of_sweep.names, how)
    if request.out is None:
        return frame_of(in_memory(cases_of_sweep, how, where)[0], kinds)
    into_file(cases_of_sweep, how, where, Path(request.out), fresh=request.fresh)
    return read_frame(request.out, kinds)


def asked_cases(request: SweepRequest) -> Cases:
    """The rows before anything is predicted: of a model, which gives them their sizes, one for each kind of its layers
    at every combination of the other values."""
    grid = grid_of(request.values)
    # Options that a model's calls read; all others vary beside them as columns of the grid.
    of_problems = {
        name: several(name, value)
        for name, value in (
            (word if word in BESIDES else name_of(word), value)
            for word, value in request.values.items()
        )
        if value is not None and (name in FIELDS or name in BESIDES)
    }
    model = chosen(request.model, of_problems, request.layers, request.tensor_parallel)
    if model is None:
        return cases(grid, None if request.problems is None else problems_of(request.problems))
    if request.problems is not None:
        raise InputError(
            "`problems` contradicts `model`, which gives the rows their sizes; give one of them"
        )
    combinations = (
        dict(zip(of_problems, combination, strict=True))
        for combination in product(*of_problems.values())
    )
    return cases_of_model(model, combinations, grid)


def cases_of_model(
    model: Model, combinations: Iterable[Mapping[str, Any]], grid: Mapping[str, list[Any]]
) -> Cases:
    """A row for each kind of the model's layers at every combination of the other values: `given` is what was asked of
    the problems, as `iosim.studies.models.asked.calls_of` takes it, `grid` all that was asked, by column."""
    of_calls = (*OF_MODEL, *OF_LENGTH, "dtype", "passes", "batch", "page_size")
    rows = [row for combination in combinations for row in rows_of(model, combination)]
    return cases(
        {name: values for name, values in grid.items() if name not in of_calls},
        {
            name: Words.of(row.get(name) for row in rows)
            for name in dict.fromkeys(n for r in rows for n in r)
        },
    )


def checked(cases_of_sweep: Cases, method: Method | None, l2_start: str) -> Conditions:
    conditions = Conditions(l2_start=l2_start, method=method)
    for gpu in cases_of_sweep.values("gpu"):
        load_profile(gpu)
    for kernel in cases_of_sweep.values("kernel"):
        if not is_choice(kernel):
            entry_name(kernel)
    return conditions


def grid_of(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Values by column, from one value or several by any name; those that are None are left out."""
    columns = dict(values)
    causal = columns.pop("causal", None)
    prefix = columns.pop("prefix", None)
    grid: dict[str, list[Any]] = {}
    for word, value in columns.items():
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
            raise InputError(
                "`causal=True` contradicts `mask`, which says another mask; give one of them"
            )
        if "window" not in grid and "window_right" not in grid:  # beside a window it says the same
            grid["mask"] = ["causal" if flag else "none" for flag in several("causal", causal)]
    if prefix is not None:
        grid["prefix"] = lengths(several("prefix", prefix), "prefix")
    return grid


def several(name: str, value: Any) -> list[Any]:
    """The values of a column: one or several, a text of them read as the command line reads it ("1k:8k:x2", "a100,l4");
    a tuple of two sides is one value."""
    if isinstance(value, str):
        kinds = {"prefix": Kind.WHOLE, "causal": Kind.FLAG} | dict.fromkeys(PLACES, Kind.WORD)
        kind = kinds[name] if name in kinds else SETTINGS[name].kind
        if kind is Kind.WHOLE and not value.startswith("-"):
            return list(sizes(value, f"`{name}`"))
        return (
            [part.strip() for part in value.split(",")]
            if kind in (Kind.WORD, Kind.SIDES)
            else [value]
        )
    # A tuple is one value (two sides of a tile), any other iterable several.
    if isinstance(value, bytes | tuple) or not isinstance(value, Iterable):
        return [value]
    items = (item.item() if hasattr(item, "item") else item for item in value)
    return [
        entry
        for item in items
        for entry in (several(name, item) if isinstance(item, str) else (item,))
    ]
