"""Threads that work for another: they show no bars of their own, and stop when nobody waits for them any more."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
