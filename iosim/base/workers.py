"""Work in processes of its own: they end with the process that started them, however that ends, and leave Ctrl-C to it.

A worker looks now and then whether its parent is still there, since a parent that is killed can tell nobody. Not for
threads (`iosim.prediction.many`), which end with their process.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from typing import Any, TypeVar

from iosim.base.errors import Terminated

T = TypeVar("T")
LOOK_S = 0.5
"""From one look at the parent to the next."""
FILTERS = "PYTHONWARNINGS"
GONE = 1
"""Exit code of a worker whose parent is gone."""


def in_processes(
    work: Callable[..., T], tasks: Iterable[tuple[Any, ...]], processes: int, **how: Any
) -> Iterator[T]:
    """The results of `work` for the arguments of each task. `processes`: -1 for as many as there are cores; `how`: what
    else `joblib.Parallel` is told, such as in which order results come."""
    from joblib import Parallel, delayed, parallel_config

    guarded = delayed(_guarded)
    with _quiet_tracker():
        _start_trackers()
    try:
        config = parallel_config("loky", initializer=_watch, initargs=(os.getpid(),))
    except TypeError:  # an older joblib: a worker watches from its first task on
        config = nullcontext()
    with (
        config,
        _interrupts_held(),
    ):  # the workers start here, and what is held back here stays so in them
        results: Iterator[T] = Parallel(processes, **how)(
            guarded(os.getpid(), work, *task) for task in tasks
        )
    manager = _Manager(threading.excepthook)
    threading.excepthook = manager
    try:
        yield from results
    except (KeyboardInterrupt, Terminated, GeneratorExit):
        manager.is_stopped = True
        raise
    finally:
        manager.tell()


MANAGER = "ExecutorManagerThread"


class _Manager:
    """In place of `threading.excepthook`: what joblib's thread of that name fails with where its workers were stopped
    under it is nobody's concern, and told where they were not."""

    def __init__(self, usual: Callable[[threading.ExceptHookArgs], object]) -> None:
        self.usual, self.is_stopped = usual, False
        self.held: list[threading.ExceptHookArgs] = []

    def __call__(self, failure: threading.ExceptHookArgs, /) -> None:
        if failure.thread is not None and failure.thread.name == MANAGER:
            self.held.append(failure)
        else:
            self.usual(failure)

    def tell(self) -> None:
        """Tells what was held, and makes room for the usual hook, unless the workers were stopped: their thread may
        fail later still."""
        if not self.is_stopped:
            threading.excepthook = self.usual
            for failure in self.held:
                self.usual(failure)


def _guarded(parent: int, work: Callable[..., T], *task: Any) -> T:
    _watch(parent)
    return work(*task)


@cache
def _watch(parent: int) -> None:
    """Ends this process once `parent` is no longer the one that it belongs to. In a thread: the work may be in C."""
    if os.getpid() != parent:
        threading.Thread(target=_end_without, args=(parent,), daemon=True).start()


def _end_without(parent: int) -> None:
    # A process whose parent has ended is given another one (init, or a subreaper): then nobody waits for its work.
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(GONE)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Holds Ctrl-C back from this thread and from the processes that start meanwhile, which a terminal interrupts, too:
    they are ended by their parent, which hears of it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_trackers() -> None:
    """Starts the processes that start with the first worker, and whose start lets go of interrupts that are held back
    (multiprocessing.resource_tracker, and joblib's own)."""
    for name in ("multiprocessing", "joblib.externals.loky.backend"):
        with suppress(ImportError):  # another version may have it elsewhere
            importlib.import_module(f"{name}.resource_tracker").ensure_running()


@contextmanager
def _quiet_tracker() -> Iterator[None]:
    """joblib's process that clears away what others leave says nothing where it does: an interrupt leaves some."""
    before = os.environ.get(FILTERS)
    os.environ[FILTERS] = ",".join(filter(None, ["ignore:resource_tracker", before]))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(FILTERS, None)
        else:
            os.environ[FILTERS] = before
