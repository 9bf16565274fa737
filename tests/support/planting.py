"""Runs tests against a change, planted in a copy of the tree: its cheapest tests first, until one is red."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from importlib import import_module
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import executed
from areas import NAMED, ROOT, named
from drawing import Change

MEMORY_BYTES = 10 << 30
"""Address space of a run of tests: a change may ask for any amount."""
MOST_CPU_S = 200
"""What a run of tests may compute at most."""
WAIT_S = 900.0
"""What a run of tests may last at most; its CPU seconds are limited more tightly."""


def copied_tree(to: Path) -> None:
    skipped = shutil.ignore_patterns(
        ".git", ".venv*", ".executed", "__pycache__", ".hypothesis", ".*_cache", "*.egg-info"
    )
    shutil.copytree(ROOT, to, ignore=skipped, dirs_exist_ok=True)


def compiled(tree: Path) -> bool:
    """The engine of the tree, built from its C; with few optimizations, which take longer than the tests."""
    (build,) = tree.glob("iosim/**/build.py")
    engine = build.with_name("_engine.so")
    engine.unlink(missing_ok=True)  # not written to: a run of tests may have opened it
    command = [sys.executable, str(build), str(engine), "-O1", "-w"]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def run(
    tree: Path,
    tests: Sequence[str],
    cpu_s: int,
    marks: str = executed.MARKS,
    wait_s: float = WAIT_S,
) -> tuple[bool, str | None]:
    """(whether the tests pass in the tree, the first that does not where pytest names it, None where they were cut
    short), in a child of this process, which has what they import.

    Args:
        cpu_s: CPU seconds after which they have failed; so have they after `wait_s` of idling.
        marks: which of them are run.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            sys.dont_write_bytecode = False  # the next run need not compile what this one did
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
            os.environ["IOSIM_EXAMPLES_SHARE"] = executed.QUICK_SHARE
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.setsid()
            quiet = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(quiet, stream)
            os.chdir(tree)
            sys.path[:0] = [str(tree), str(tree / "tests"), str(tree / "tests" / "support")]
            os.environ["PYTHONPATH"] = os.pathsep.join(
                filter(None, (str(tree), os.environ.get("PYTHONPATH", "")))
            )
            import pytest

            options = [
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                "--hypothesis-seed=0",
            ]
            words = [*options, "-m", marks, *tests]
            code = pytest.main(words, plugins=[First(writing)])
            os._exit(0 if code == 0 else 1)
        except BaseException:
            os._exit(1)
    os.close(writing)
    end, done = time.monotonic() + wait_s, 0
    try:
        while time.monotonic() < end:
            done, status, _ = os.wait4(child, os.WNOHANG)
            if done:
                with open(reading, encoding="utf-8", closefd=False) as stream:
                    first = stream.readline().rstrip("\n")
                return status == 0, first or (None if os.WIFSIGNALED(status) else "")
            time.sleep(0.02)
        return False, None
    finally:
        os.close(reading)
        if not done:  # too long, or Ctrl-C
            os.kill(child, 9)
            os.waitpid(child, 0)


class First:
    """A plugin of pytest that writes the name of the first test that fails to a pipe."""

    def __init__(self, writing: int) -> None:
        self.writing = writing

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            os.write(self.writing, f"{report.nodeid}\n".encode())


Verdicts = Iterator[tuple[Change, bool | None]]
"""Changes, and whether a test notices; None where a change is no program."""


class Runner:
    """Runs changes in one copy of the tree.

    Args:
        seen: which tests execute which line.
        most_s: CPU seconds of tests, as they take without a change, after which a change counts as not noticed.
    """

    def __init__(self, tree: Path, seen: executed.Executed | None, most_s: float) -> None:
        self.tree, self.seen, self.most_s = tree, seen, most_s
        copied_tree(tree)
        # Once for all children.
        for name in (
            "hypothesis.strategies",
            "jinja2",
            "joblib",
            "numpy",
            "pandas",
            "pytest",
            "sympy",
        ):
            import_module(name)
        self.green: dict[tuple[str, ...], bool] = {}
        self.planted_so_far = 0

    def batches(self, change: Change) -> Iterator[tuple[Sequence[str], int]]:
        """Lists of tests to ask in turn, each with the CPU seconds that it may take: a few times its own."""
        if change.area in NAMED:
            for tests in named(change.area, change.file):
                yield tests, MOST_CPU_S
            return
        assert self.seen is not None
        tests = self.seen.of(change.file, change.line)
        first = tests & self.seen.telling(change.file, change.line)
        left_s = self.most_s  # all of them together
        for group in (first, tests - first, self.seen.beside(tests)):
            for batch, seconds in self.seen.batches(change.file, group, left_s):
                yield batch, int(15 + 4 * seconds)
                left_s -= seconds
                if left_s <= 0:
                    return
        if not tests:  # of torch, perhaps, which may be lacking where the map was made
            yield executed.files_of_module(change.file), MOST_CPU_S

    def is_green(self, tests: Sequence[str], cpu_s: int) -> bool:
        """Whether tests pass alone without a change; a single one may take its time."""
        key = tuple(tests)
        if key not in self.green:
            limit = MOST_CPU_S if len(key) == 1 else cpu_s
            self.green[key] = run(self.tree, key, limit)[0]
        return self.green[key]

    def caught(self, change: Change) -> bool | None:
        """Whether a test notices; None where the change is no program."""
        for tests, limit in self.batches(change):
            waiting, tried = list(tests), set[str]()
            while waiting:
                with self.planted(change) as is_planted:
                    if not is_planted:
                        return None
                    passed, first = run(self.tree, waiting, limit)
                if passed:
                    break
                if first == "" or self.is_green([first] if first else waiting, limit):
                    return True
                if first is None:  # they take that long without the change, too
                    break
                if first in tried:
                    break
                tried.add(first)
                # red without the change, too
                waiting = [test for test in waiting if test != first]
                waiting += [] if first in tests else [f"--deselect={first}"]
        return False

    @contextmanager
    def planted(self, change: Change) -> Iterator[bool]:
        """The tree with the change in it; False where it does not compile."""
        file = self.tree / change.file
        source = file.read_text(encoding="utf-8")
        written = file.stat().st_mtime
        is_c = file.suffix in (".c", ".h")
        engine = file.with_name("_engine.so")
        if is_c and not engine.exists() and not compiled(self.tree):
            raise SystemExit("mutate: the engine does not compile; is gcc there?")
        content = engine.read_bytes() if is_c else b""
        try:
            file.write_text(
                source[: change.start] + change.text + source[change.end :], encoding="utf-8"
            )
            self.planted_so_far += 1
            os.utime(
                file, (self.planted_so_far, self.planted_so_far)
            )  # compiled forms know their sources by it
            yield not is_c or compiled(self.tree)
        finally:
            file.write_text(source, encoding="utf-8")
            os.utime(file, (written, written))
            if is_c:
                engine.unlink(missing_ok=True)
                engine.write_bytes(content)


WORKER: list[Runner] = []
"""The runner of a worker process, with its copy of the tree."""


def start_worker(
    folder: str, processors: SimpleQueue[int] | None, seen: executed.Executed, most_s: float
) -> None:
    if processors is not None:  # what its tests start stays on its processor, too
        os.sched_setaffinity(0, {processors.get()})
    WORKER[:] = [Runner(Path(tempfile.mkdtemp(dir=folder)), seen, most_s)]


def caught_in_worker(change: Change) -> tuple[Change, bool | None]:
    return change, WORKER[0].caught(change)


def in_processes(
    chosen: list[Change], jobs: int, folder: str, seen: executed.Executed, most_s: float
) -> Verdicts:
    """The verdicts as they come, of `jobs` processes, each with its copy of the tree."""
    context = get_context("fork")
    usable = sorted(os.sched_getaffinity(0))
    processors = context.SimpleQueue() if jobs >= len(usable) > 2 else None
    if processors is not None:
        for _, processor in zip(range(jobs), cycle(usable), strict=False):
            processors.put(processor)
    start = (folder, processors, seen, most_s)
    with ProcessPoolExecutor(jobs, context, start_worker, start) as pool:
        verdicts = [pool.submit(caught_in_worker, c) for c in chosen]
        yield from (verdict.result() for verdict in as_completed(verdicts))
