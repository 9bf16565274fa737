"""`iosim` and `python -m iosim`: the command line as a process of its own."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from iosim.base.errors import Terminated
from iosim.commands.cli import main


@contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM raises `Terminated` in the main thread, so that workers and temporary files go with the process."""

    def end(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends it at once
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def script() -> int:
    """Run a command; returns the exit code. What it leaves ends with the process: no circles are looked for in it."""
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # no matrices here: NumPy's threads would wait, busily, for some
    with ended_in_order():
        code = main()
    gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(script())
