"""A process that is forked while other threads predict can predict, too, once all is imported: Python's own locks of
modules that are being imported no child can open."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import iosim
from iosim import AttentionProblem

CHILDREN, PATIENCE_S = 25, 20.0


def ends_well(child: int) -> bool:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_among_threads_that_predict() -> None:
    over = threading.Event()
    iosim.predict(
        AttentionProblem(heads=8, seq_q=128, head_dim=64), "fa2", "a100"
    )  # what is imported is there

    def predict(heads: int) -> None:
        for queries in range(128, 100_000, 8):
            if over.is_set():
                return
            iosim.predict(
                AttentionProblem(heads=heads, seq_q=queries, head_dim=64),
                "fa2",
                "a100",
                method="bounds",
            )

    threads = [threading.Thread(target=predict, args=(heads,)) for heads in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.5)
        for number in range(CHILDREN):
            child = os.fork()
            if child == 0:
                try:
                    iosim.predict(
                        AttentionProblem(heads=8, seq_q=256 + number, head_dim=64), "fa2", "a100"
                    )
                    os._exit(0)
                except BaseException:
                    os._exit(1)
            assert ends_well(child), number
    finally:
        over.set()
        for thread in threads:
            thread.join()
