"""Many predictions: on all cores, equal replays played once, results in the order of the requests.

    for prediction in predict_many(Request(problem, kernel, "h100") for kernel in ("naive", "fa2")): ...

Threads share the work. A replay spends its time in the compiled engine and in NumPy, which let other threads run, and a
thread costs nothing to start; what is planned and counted in Python takes turns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import length_hint
from typing import TYPE_CHECKING

from iosim.base.errors import InputError
from iosim.base.progress import Progress, cores, silent, working
from iosim.base.records import dataclass
from iosim.prediction.predictor import Request as Request
from iosim.prediction.replays import KEPT_OF_MANY, Replays

if TYPE_CHECKING:
    from concurrent.futures import Future

    from iosim.prediction.result import Prediction

AHEAD = 16
"""Requests a thread that are begun before their turn: enough that one long replay leaves no thread idle."""
LITTLE_WORK = 1 << 31
"""Work of all requests together that threads would not shorten: some tenths of a second."""


def predict_many(
    requests: Iterable[Request], jobs: int | None = None, progress: Progress = silent
) -> Iterator[Prediction]:
    """The prediction of each request, in order, each as soon as it and those before it are there. `requests`: taken as
    they are needed: an endless iterable works as well. `jobs`: predictions at once; by default as many as there are
    cores. `progress`: hands the predictions on one by one, and may show how far it is. Raises InputError: as `predict`
    does, at the turn of the request that cannot be predicted; `jobs` below 1."""
    for outcome in try_many(requests, jobs, progress):
        if isinstance(outcome, InputError):
            raise outcome
        yield outcome


def try_many(
    requests: Iterable[Request], jobs: int | None = None, progress: Progress = silent
) -> Iterator[Prediction | InputError]:
    """The prediction of each request, in order, or the error in the place of one that cannot be made. Raises
    InputError: `jobs` below 1."""
    # Threads are not started for a few tenths of a second of work.
    little = (
        isinstance(requests, Sequence) and sum(request.work for request in requests) <= LITTLE_WORK
    )
    at_once = (1 if little else cores()) if jobs is None else jobs
    if at_once < 1:
        raise InputError(f"`jobs` {jobs} is out of range; accepted: 1 or more")
    # A single request shares nothing; several keep their replays, on disk from a lower bound on.
    shares = length_hint(requests) != 1
    replays = Replays(
        shares=shares, kept_accesses=KEPT_OF_MANY if shares and jobs is None else None
    )
    if at_once == 1:
        outcomes: Iterator[Prediction | InputError] = (
            _tried(request, replays) for request in requests
        )
    else:
        outcomes = _in_threads(requests, at_once, replays)
    return iter(progress(_Sized(outcomes, length_hint(requests))))


def try_all(
    requests: Sequence[Request], jobs: int | None = None, progress: Progress = silent
) -> list[Prediction | InputError]:
    """The outcomes of `try_many`, all at once: long requests are begun first, so that the cores end together."""
    # Longest first (longest-processing-time-first): the last to end is then a short one.
    order = sorted(range(len(requests)), key=lambda n: -requests[n].work)
    outcomes = dict(zip(order, try_many([requests[n] for n in order], jobs, progress), strict=True))
    return [outcomes[n] for n in range(len(requests))]


def _tried(request: Request, replays: Replays) -> Prediction | InputError:
    try:
        return request.predict(replays)
    except InputError as error:
        return error


@dataclass(frozen=True)
class _Sized:
    """Outcomes, with how many there will be where that is known."""

    outcomes: Iterator[Prediction | InputError]
    size: int

    def __iter__(self) -> Iterator[Prediction | InputError]:
        return self.outcomes

    def __length_hint__(self) -> int:
        return self.size


def _in_threads(
    requests: Iterable[Request], threads: int, replays: Replays
) -> Iterator[Prediction | InputError]:
    from concurrent.futures import ThreadPoolExecutor

    stop = threading.Event()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="iosim")

    def work(request: Request) -> Prediction | InputError:
        with working(stop):
            return _tried(request, replays)

    waiting: deque[Future[Prediction | InputError]] = deque()
    try:
        for request in requests:
            waiting.append(pool.submit(work, request))
            if len(waiting) > AHEAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # also where the reader has gone, or Ctrl-C came
        stop.set()
        pool.shutdown(cancel_futures=True)
