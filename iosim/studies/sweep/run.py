"""Running a sweep: parts of its rows here, on several cores or on a Dask cluster, into memory or into a file."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import counter
from iosim.base.units import some
from iosim.base.version import __version__
from iosim.base.workers import cores
from iosim.studies.sweep.cases import Cases, Part
from iosim.studies.sweep.cells import Cells, csv_lines, joined
from iosim.studies.sweep.files import check_target, finish
from iosim.studies.sweep.journal import Journal, opened
from iosim.studies.sweep.rows import Asked, columns, evaluate

CLOSED_ROWS, LEAST_CLOSED_ROWS = 1 << 17, 1 << 13
"""Rows of a part in closed form: so many, or fewer where several processes share them."""
MOST_ROWS_ONE_BY_ONE = 16
PARTS_AHEAD = 3
"""Parts a process that are begun before their turn."""
CONNECT_S = 10
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
            raise InputError(f"`jobs` {self.jobs} contradicts `dask` '{self.dask}', whose workers do the work; give "
                             "one of them")  # fmt: skip

    def processes(self, rows: int, asked: Asked) -> int:
        """Processes on this machine."""
        if self.jobs is not None:
            return self.jobs
        return cores() if rows > (FEW_ROWS if asked.timed else FEW_CLOSED_ROWS) else 1


@dataclass(frozen=True)
class Summary:
    """How many rows there are, were there already, were refused, and have no closed form where one was asked for."""

    rows: int
    resumed: int
    refused: int
    one_by_one: int


@dataclass(frozen=True)
class _Done:
    """A part as a worker hands it back: its rows as CSV, or as cells."""

    start: int
    stop: int
    rows: Any
    refused: int
    one_by_one: int


def _work(part: Part, names: tuple[str, ...], asked: Asked, as_csv: bool) -> _Done:
    """What a worker does."""
    rows = evaluate(part, names, asked)
    cells: Any = csv_lines(rows.cells) if as_csv else rows.cells
    return _Done(part.start, part.start + part.rows, cells, rows.refused, rows.one_by_one)


def in_memory(cases: Cases, asked: Asked, where: Where) -> tuple[Cells, Summary]:
    """All rows of a sweep. Raises InputError: every row is refused, or the cluster cannot be reached."""
    done = list(_all(cases, asked, where, [(0, len(cases))], as_csv=False))
    done.sort(key=lambda part: part.start)
    summary = Summary(len(cases), 0, sum(p.refused for p in done), sum(p.one_by_one for p in done))
    cells = joined([part.rows for part in done])
    _refuse_nothing(summary, lambda: next(r for r in cells["refused"].to_list() if r))
    return cells, summary


def into_file(cases: Cases, asked: Asked, where: Where, target: str | Path, *, fresh: bool = False) -> Summary:
    """All rows of a sweep into a CSV or Parquet file, which appears when the last row is done.

    Until then the rows that are done stand in a journal beside it. A sweep that was interrupted goes on from there when
    it is asked for again.

    Args:
        fresh: begin anew, whatever an earlier run left.

    Raises InputError: another process writes the file, the place cannot be written, every row is refused, or the
    cluster cannot be reached.
    """
    place = Path(target)
    kind = check_target(place)
    kinds = columns(cases.names, asked)
    sweep = f"{__version__} {asked.method} {asked.l2_start} {cases.fingerprint()}"
    with opened(place, sweep, len(cases), fresh=fresh) as journal:
        resumed = journal.rows
        for part in _all(cases, asked, where, journal.gaps(len(cases)), as_csv=True):
            journal.append(part.start, part.stop, part.rows, part.refused, part.one_by_one)
        if gaps := journal.gaps(len(cases)):
            raise RuntimeError(f"rows {gaps} of the sweep were given to no worker")
        summary = _summary(journal, resumed)
        _refuse_nothing(summary, lambda: _first_reason(journal, list(kinds)))
        finish(journal.csv(), place, kind, kinds)
        journal.remove()
    return summary


def _summary(journal: Journal, resumed: int) -> Summary:
    refused, one_by_one = (sum(getattr(r, name) for r in journal.records) for name in ("refused", "one_by_one"))
    return Summary(journal.rows, resumed, refused, one_by_one)


def _refuse_nothing(summary: Summary, reason: Callable[[], str]) -> None:
    if summary.refused == summary.rows:
        rows = "its one row" if summary.rows == 1 else f"all {some(summary.rows, 'row')}"
        raise InputError(f"the sweep is refused, {rows}: {reason()}")


def _first_reason(journal: Journal, names: list[str]) -> str:
    import csv
    import io

    for data in journal.csv():
        for row in csv.reader(io.StringIO(data.decode())):
            return row[names.index("refused")]
    return ""


def _all(cases: Cases, asked: Asked, where: Where, gaps: Iterable[tuple[int, int]], *, as_csv: bool) -> Iterator[_Done]:
    """The parts of the rows in `gaps`, in the order in which they are done."""
    gaps = list(gaps)
    left = sum(stop - start for start, stop in gaps)
    processes = where.processes(left, asked)
    size = _part_rows(left, asked, processes if where.dask is None else MANY_WORKERS)
    ranges = [(at, min(at + size, stop)) for start, stop in gaps for at in range(start, stop, size)]
    tasks = ((cases.part(*ends), cases.names, asked, as_csv) for ends in ranges)
    with ExitStack() as stack:
        show = stack.enter_context(counter(len(cases), "sweeping", "row"))
        done = len(cases) - left
        for part in _run(tasks, len(ranges), where.dask, processes):
            done += part.stop - part.start
            show(done)
            yield part


MANY_WORKERS = 16
"""Workers that a cluster is taken to have, where parts are cut for it."""


def _part_rows(rows: int, asked: Asked, processes: int) -> int:
    if asked.timed:
        return max(1, min(MOST_ROWS_ONE_BY_ONE, rows // (64 * processes)))
    if processes == 1:
        return CLOSED_ROWS
    return max(LEAST_CLOSED_ROWS, min(CLOSED_ROWS, -(-rows // (4 * processes))))


Task = tuple[Part, tuple[str, ...], Asked, bool]


def _run(tasks: Iterable[Task], number: int, dask: str | None, processes: int) -> Iterator[_Done]:
    if dask is not None:
        yield from _on_cluster(tasks, dask)
    elif processes == 1 or number < 2:
        yield from (_work(*task) for task in tasks)
    else:
        from joblib import Parallel, delayed

        parallel = Parallel(n_jobs=min(processes, number), return_as="generator_unordered", batch_size=1,
                            pre_dispatch=f"{PARTS_AHEAD}*n_jobs")  # fmt: skip
        yield from parallel(delayed(_work)(*task) for task in tasks)


def _on_cluster(tasks: Iterable[Task], address: str) -> Iterator[_Done]:
    """As many parts at once as keep all workers of a cluster busy."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise InputError("`dask` needs the package distributed, which is not installed; accepted: "
                         "pip install 'iosim[dask]'") from None  # fmt: skip
    try:
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"`dask` '{address}' is not reached: {_line(error)}; accepted: the address of a scheduler, "
                         "such as tcp://host:8786") from None  # fmt: skip
    waiting = iter(tasks)
    try:
        threads = sum(client.nthreads().values())
        if not threads:
            raise InputError(f"`dask` '{address}' has no workers; accepted: a cluster with at least one")
        running = distributed.as_completed(loop=client.loop)
        for task in islice(waiting, PARTS_AHEAD * threads):
            running.add(client.submit(_work, *task, pure=False))
        for future in running:
            yield _result(future, address)
            for task in islice(waiting, 1):
                running.add(client.submit(_work, *task, pure=False))
    finally:
        with suppress(OSError, TimeoutError):
            client.close()


def _result(future: Any, address: str) -> _Done:
    try:
        done: _Done = future.result()
    except (ImportError, AttributeError) as error:
        raise InputError(f"a worker of `dask` '{address}' has no such iosim: {_line(error)}; accepted: workers with "
                         f"iosim {__version__}") from None  # fmt: skip
    future.release()
    return done


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
