"""Processes that work for a command end with it, say nothing of their own, and a cluster without workers is told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import iosim
from iosim.base import workers
from iosim.studies.sweep import run

LINE = [
    "--gpu",
    "a100,h100,l4,t4,b200",
    "--kernel",
    "fa2,naive,cutlass",
    "--seq-len",
    "1k:32k:1k",
    "--jobs",
    "2",
]
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def facts(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def is_running(pid: int) -> bool:
    process_facts = facts(pid)
    return bool(process_facts) and process_facts[0] != "Z"


def below(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    mine = [
        int(p)
        for p in os.listdir("/proc")
        if p.isdigit() and (of := facts(int(p))) and int(of[1]) == pid
    ]
    return [*mine, *(descendant for child in mine for descendant in below(child))]


def eventually(holds: object, seconds: float = 30.0) -> bool:
    assert callable(holds)
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_workers_end_with_their_command_and_say_nothing(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "iosim", "sweep", *LINE, "--out", str(tmp_path / "grid.csv")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert eventually(lambda: len(below(process.pid)) >= 3), (
        "two workers and what clears away after them"
    )
    workers = below(process.pid)
    if name == "SIGINT":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    else:
        os.kill(process.pid, getattr(signal, name))
    assert eventually(lambda: not any(map(is_running, workers)), 10), workers
    printed = process.communicate(timeout=10)[1]
    assert process.returncode == {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": -signal.SIGKILL}[name]
    assert "Traceback" not in printed
    assert "resource_tracker" not in printed
    last = {"SIGINT": "iosim: interrupted\n", "SIGTERM": "iosim: terminated\n", "SIGKILL": ""}[name]
    assert printed.endswith(last)


@contextlib.contextmanager
def worker(address: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        address,
        "--no-nanny",
        "--nthreads",
        "1",
    ]
    process = subprocess.Popen(
        [*command, "--no-dashboard"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_cluster_whose_workers_are_all_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(run, "LOOK_S", 0.2)
    monkeypatch.setattr(run, "ALONE_S", 1.0)
    with distributed.LocalCluster(
        n_workers=0, processes=True, protocol="tcp", dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        with (
            worker(address) as process,
            distributed.Client(address, set_as_default=False) as client,
        ):
            client.wait_for_workers(1, timeout=60)
            original = run._wait

            def killed_first(*arguments: object) -> None:
                process.kill()
                original(*arguments)

            monkeypatch.setattr(run, "_wait", killed_first)
            with pytest.raises(
                iosim.InputError, match="has no worker left; accepted: the same command"
            ):
                iosim.sweep(
                    gpu="a100",
                    kernel="fa2",
                    seq_len="1k:64k:1k",
                    dask=address,
                    out=tmp_path / "grid.csv",
                )
    assert "has no worker left; waiting" in capsys.readouterr().err


def test_a_scheduler_that_is_not_there_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(run, "CONNECT_S", 1)
    with pytest.raises(iosim.InputError, match="is not reached"):
        iosim.sweep(
            gpu="a100",
            kernel="fa2",
            seq_len="1k",
            dask="tcp://127.0.0.1:9",
            out=tmp_path / "grid.csv",
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("thread", "stopped", "told_at_once", "told_at_the_end"),
    [
        # What others fail with is told as ever; what joblib's manager does, once it is known that nobody stopped its workers.
        ("another", False, 1, 1),
        ("another", True, 1, 1),
        (workers.MANAGER, False, 0, 1),
        (workers.MANAGER, True, 0, 0),
    ],
)
def test_failures_of_a_manager_whose_workers_were_stopped_are_nobodys_concern(
    thread: str,
    stopped: bool,
    told_at_once: int,
    told_at_the_end: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures: list[object] = []
    manager = workers._Manager(failures.append)
    monkeypatch.setattr(threading, "excepthook", manager)
    failure: Any = SimpleNamespace(thread=SimpleNamespace(name=thread))
    manager(failure)
    assert len(failures) == told_at_once
    manager.is_stopped = stopped
    manager.tell()
    assert failures == [failure] * told_at_the_end
    # The usual hook is back, unless the manager may fail later still.
    assert threading.excepthook == (manager if stopped else failures.append)
