"""How far work is, on standard error: bars on a terminal for work of more than two seconds, nothing in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import length_hint
from typing import Protocol, TypeVar

from iosim.base.workers import is_worker

T = TypeVar("T")

AFTER_S = 2.0
"""Work that is done by then shows nothing."""


class Progress(Protocol):
    """Hands on the items of a loop one by one, and may show how far it is."""

    def __call__(self, items: Iterable[T], /) -> Iterable[T]: ...


def silent(items: Iterable[T], /) -> Iterable[T]:
    return items


def progress(what: str) -> Progress:
    """A bar that is headed `what`; `silent` where standard error is no terminal, and in a thread that works for
    another."""
    if is_worker() or not sys.stderr.isatty():
        return silent

    def shown(items: Iterable[T], /) -> Iterator[T]:
        begin, bar = time.monotonic(), None
        try:
            for number, item in enumerate(items, 1):
                yield item
                if bar is None and time.monotonic() - begin >= AFTER_S:
                    from tqdm import tqdm  # work of less than two seconds does not wait for it

                    bar = tqdm(total=length_hint(items) or None, desc=what, leave=False)
                if bar is not None:
                    bar.update(number - bar.n)
        finally:
            if bar is not None:
                bar.close()

    return shown


def announce(line: str, *, in_pipes: bool = False) -> None:
    """A line on standard error: what is being done, or how long it will take. On a terminal only, or `in_pipes` too."""
    if in_pipes or sys.stderr.isatty():
        print(line, file=sys.stderr)


@contextmanager
def counter(total: int, what: str, unit: str = "it", *, after_s: float = AFTER_S) -> Iterator[Callable[[int], None]]:
    """A bar for work that counts its own steps: calls of what is handed out say how many steps are done by now."""
    if is_worker() or not sys.stderr.isatty():
        yield lambda done: None
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=what, unit=unit, delay=after_s, leave=False) as bar:
        yield lambda done: bar.update(min(done, total) - bar.n) and None
