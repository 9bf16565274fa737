"""How far work is, on standard error: a bar on a terminal for work of more than two seconds, a line every ten in a
pipe."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import length_hint
from typing import Protocol, TypeVar

from iosim.base.records import dataclass

_here = threading.local()


class Stopped(Exception):
    """The work of this thread is no longer wanted."""


@contextmanager
def working(stop: threading.Event) -> Iterator[None]:
    """This thread works for another, which sets `stop` where it wants no more of it."""
    _here.stop = stop
    try:
        yield
    finally:
        _here.stop = None


def is_worker() -> bool:
    return getattr(_here, "stop", None) is not None


def go_on() -> None:
    """Nothing, in most cases. Raises Stopped: this thread works for another, which wants no more of it."""
    stop = getattr(_here, "stop", None)
    if stop is not None and stop.is_set():
        raise Stopped


def has_threads() -> bool:
    """False in a browser, where a thread cannot be started."""
    return sys.platform not in ("emscripten", "wasi")


def cores() -> int:
    if not has_threads():
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _on_terminal() -> bool:
    """True where standard error is a terminal; a process that closed it has none."""
    return sys.stderr is not None and sys.stderr.isatty()


T = TypeVar("T")
_quiet = threading.Event()


def hush(quiet: bool) -> None:
    """True where nothing is shown of how far work is, nor what is announced: errors alone."""
    if quiet:
        _quiet.set()
    else:
        _quiet.clear()


AFTER_S = 2.0
"""Work that is done by then shows nothing."""
LINE_S = 10.0
"""From the begin of work to its first line in a pipe, and from each to the next."""


class Progress(Protocol):
    """Hands on the items of a loop one by one, and may show how far it is."""

    def __call__(self, items: Iterable[T], /) -> Iterable[T]: ...


def silent(items: Iterable[T], /) -> Iterable[T]:
    return items


def progress(task: str) -> Progress:
    """A bar that is headed `task`, or lines in a pipe; `silent` in a thread that works for another."""
    if is_worker() or _quiet.is_set():
        return silent

    def shown(items: Iterable[T], /) -> Iterator[T]:
        with counter(length_hint(items), task) as done:
            for number, item in enumerate(items, 1):
                yield item
                done(number)

    return shown


def announce(line: str, *, in_pipes: bool = False) -> None:
    """A line on standard error: what is being done, or how long it will take. On a terminal only, or `in_pipes` too."""
    if not _quiet.is_set() and sys.stderr is not None and (in_pipes or _on_terminal()):
        print(line, file=sys.stderr)


@contextmanager
def counter(
    total: int, task: str, unit: str = "it", *, after_s: float | None = None
) -> Iterator[Callable[[int], object]]:
    """A bar, or lines in a pipe, for work that counts its own steps: calls of what is handed out say how many are done
    by now. `total` is 0 where nobody knows; a bar waits `after_s`, by default `AFTER_S`."""
    if is_worker() or _quiet.is_set():
        yield lambda done: None
    # A bar on a terminal; lines now and then in a pipe, from a thread of their own.
    elif _on_terminal():
        from tqdm import tqdm  # a pipe does not wait for it

        delay = AFTER_S if after_s is None else after_s
        with tqdm(total=total or None, desc=task, unit=unit, leave=False, delay=delay) as bar:
            yield lambda done: bar.update((min(done, total) if total else done) - bar.n)
    else:
        work = _Work(task, total, "" if unit == "it" else f" {unit}s", time.monotonic())
        LINES.add(work)
        try:
            yield work.count
        finally:
            LINES.remove(work)


@dataclass(eq=False)
class _Work:
    what: str
    total: int
    units: str
    begin: float
    done: int = 0

    def count(self, done: int) -> None:
        self.done = min(done, self.total) if self.total else done

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.done:,}{f' of {self.total:,}' if self.total else ''}{self.units}"
        )


class _Lines:
    """Work that is under way, the outermost first, and a thread of its own that prints it now and then: what works may
    be in C, or wait for threads."""

    def __init__(self) -> None:
        self._works: list[_Work] = []
        self._said = 0.0
        self._thread: threading.Thread | None = None

    def add(self, work: _Work) -> None:
        self._works.append(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            with suppress(RuntimeError):  # no threads here
                self._thread.start()

    def remove(self, work: _Work) -> None:
        self._works.remove(work)

    def due(self, now: float) -> str | None:
        works = [*self._works]
        # The outermost work decides when a line is due; a line names all that is under way.
        if not works or now - max(works[0].begin, self._said) < LINE_S:
            return None
        self._said = now
        return f"iosim: {'; '.join(map(str, works))}; {now - works[0].begin:.0f} s"

    def _watch(self) -> None:
        while True:
            time.sleep(min(1.0, LINE_S / 4))
            line = self.due(time.monotonic())
            if line is not None and sys.stderr is not None and not _on_terminal():
                with suppress(OSError, ValueError):  # nobody reads any more
                    print(line, file=sys.stderr, flush=True)


LINES = _Lines()
