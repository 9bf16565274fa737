"""Makes the map of which tests execute which line: a piece a file of tests, by the interpreter's own monitoring.

    python tests/mutate.py --map                            the pieces that are missing, or whose file of tests changed
    python tests/mutate.py --map tests/readers tests/show/  those of some files and folders alone

Each file of quick tests runs in a child of its own. The first time that a test runs a line, sys.monitoring reports it;
after that it costs nothing until the next test, so that a map takes about as long as the tests. Python 3.12 is the
first to have it. Not seen is what a test executes in processes that it starts.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from importlib import import_module
from types import CodeType
from typing import Any

from executed import (
    FOLDER,
    MARKS,
    QUICK_SHARE,
    ROOT,
    digest,
    files_of_tests,
    piece_of,
    source,
    stale,
)

MOST_CPU_S = 900
WAIT_S = 3000.0
PACKAGE = f"{ROOT / 'iosim'}/"

Line = tuple[str, int]
"""(file, number)."""


class Monitor:
    """The lines of the package's functions that run, each reported once until they are taken."""

    def __init__(self) -> None:
        self.ran: set[Line] = set()
        monitoring = sys.monitoring
        self.tool = monitoring.COVERAGE_ID
        monitoring.use_tool_id(self.tool, "iosim tests/mutate.py")
        monitoring.register_callback(self.tool, monitoring.events.LINE, self._line)
        monitoring.set_events(self.tool, monitoring.events.LINE)

    def _line(self, code: CodeType, line: int) -> object:
        if code.co_filename.startswith(PACKAGE):
            self.ran.add((code.co_filename, line))
        return sys.monitoring.DISABLE

    def taken(self) -> set[Line]:
        """What ran since the last call; from now on every line is reported anew."""
        ran, self.ran = self.ran, set()
        sys.monitoring.restart_events()
        return ran

    def close(self) -> None:
        sys.monitoring.set_events(self.tool, sys.monitoring.events.NO_EVENTS)
        sys.monitoring.free_tool_id(self.tool)


class ByTest:
    """A plugin of pytest: the lines of each test, its CPU seconds, and whether it passed."""

    def __init__(self) -> None:
        self.monitor = Monitor()
        self.lines: dict[str, set[Line]] = {}
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.monitor.taken()
        self.began = time.process_time()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed or report.skipped:
            self.failed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] = time.process_time() - self.began
        self.lines[nodeid] = self.monitor.taken()


def measured(file: str) -> dict[str, Any]:
    """The piece of a file of tests, as this process finds it."""
    import pytest

    os.environ["IOSIM_EXAMPLES_SHARE"] = QUICK_SHARE
    seen = ByTest()
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0", "-m", MARKS]
    code = pytest.main([*words, file], plugins=[seen])
    seen.monitor.close()
    tests = [test for test in seen.seconds if test not in seen.failed]
    lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, test in enumerate(tests):
        keys: dict[str, set[str]] = defaultdict(set)
        for path, line in seen.lines[test]:
            if path.endswith(".py"):  # no template
                name = path.removeprefix(f"{ROOT}/")
                keys[name].add(source(name).key(line))
        for name, ran in keys.items():
            for key in ran:
                lines[name][key].append(number)
    return {
        "digest": digest(file),
        "code": int(code),
        "failed": sorted(seen.failed),
        "tests": [[test.removeprefix(file), round(seen.seconds[test], 3)] for test in tests],
        "lines": lines,
    }


def measure(file: str) -> bool:
    """Writes the piece of a file of tests, in a child of this process; False where the child does not end well."""
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
            os.setsid()
            quiet = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(quiet, stream)
            os.chdir(ROOT)
            piece = measured(file)
            FOLDER.mkdir(exist_ok=True)
            unfinished = piece_of(file).with_suffix(f".{os.getpid()}")
            with gzip.open(unfinished, "wt", encoding="utf-8") as stream:
                json.dump(piece, stream, separators=(",", ":"))
            unfinished.replace(piece_of(file))
            os._exit(0)
        except BaseException:
            os._exit(1)
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def import_once() -> None:
    """Imports for all children what each would import: the package, and what its tests need."""
    sys.path[:0] = [str(ROOT)]
    for name in ("hypothesis.strategies", "numpy", "pandas", "pytest", "sympy"):
        import_module(name)
    for path in sorted(ROOT.glob("iosim/**/*.py")):
        name = path.relative_to(ROOT).as_posix()
        source(name)
        with suppress(ImportError):  # of torch, which need not be there
            if path.stem != "__main__":
                import_module(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))


def make(jobs: int, wanted: Sequence[str] = ()) -> Iterator[tuple[str, bool]]:
    """Measures the pieces that are missing or stale, so many at a time.

    Args:
        wanted: beginnings of the paths of files of tests: those alone; all where there is none.
    """
    if not hasattr(sys, "monitoring"):
        raise SystemExit(
            "mutate: --map needs Python 3.12 or later, which reports the lines that run"
        )
    files = [f for f in files_of_tests() if not wanted or f.startswith(tuple(wanted))]
    import_once()
    with ThreadPoolExecutor(jobs) as pool:
        work = {pool.submit(measure, file): file for file in files if stale(file)}
        for done in as_completed(work):
            yield work[done], done.result()
