"""Plants small changes in the code, one at a time, and says which of them the tests do not notice.

    python tests/mutate.py --map               which tests execute which line: before all else, and after tests changed
    python tests/mutate.py                     300 changes drawn from all areas
    python tests/mutate.py --count 60 --seed 7 --area timing --area tiles
    python tests/mutate.py --all --area timing every change of an area
    python tests/mutate.py --list              the changes, without running anything
    python tests/mutate.py --new --jobs 16 --out verdicts.csv
                                               on many cores, without those that were once missed
    python tests/mutate.py --held              the faults of held.json, each against the test that was written for it

A change is one edit of one line: a comparison, an operator, a constant, a condition, a branch. Left out, since no test
is to hold them: messages of errors, assertions, sentences (f-strings and functions that make texts), types, docstrings,
the sizes of caches and what APART names. Each change runs in a copy of the tree against the quick tests that execute
its line (tests/support/executed.py has the map), the cheapest first, until one is red, which must be green without the
change; then against the other tests of their files. After --seconds of tests a change counts as not noticed. For the
engine, whose lines are C and compiled anew, NAMED has the tests. A seed draws the same changes again, as far as their
lines are the same. Changes that alter nothing that can be seen stand with the reason in mutants.json, by the line's
text, so that they survive its moving about; changes that were once missed stand there, too, and are always among those
run. Ends with exit code 1 where fewer than 95 % of the others are caught.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
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
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().with_name("support")))

import executed
from edits import c_edits, python_edits

ROOT = Path(__file__).resolve().parent.parent
NOTES = Path(__file__).with_name("mutants.json")
LEAST_CAUGHT = 0.95
MEMORY_BYTES = 10 << 30
"""Address space of a run of tests: a change may ask for any amount."""
MOST_CPU_S = 200
"""What a run of tests may compute at most."""
WAIT_S = 900.0
"""What a run of tests may last at most; its CPU seconds are limited more tightly."""


AREAS = {
    "engine": "readers/replay/*.[ch]",
    "replay": "readers/replay/*.py",
    "timing": "readers/timing/*.py",
    "count": "readers/*.py",
    "formula": "readers/formula/*.py",
    "algorithms": "catalog/algorithms/*.py",
    "libraries": "catalog/libraries/*.py catalog/serving/*.py catalog/*.py",
    "kernel": "kernel/*.py",
    "code": "code/*.py",
    "problem": "problem/*.py",
    "hardware": "hardware/*.py",
    "prediction": "prediction/*.py",
    "tiles": "studies/tiles/*.py",
    "training": "studies/training/*.py",
    "distributed": "studies/distributed/*.py",
    "comparing": "studies/compare/*.py studies/*.py",
    "models": "studies/models/*.py studies/decode/*.py studies/latency/*.py",
    "sweep": "studies/sweep/*.py studies/orders/*.py",
    "report": "studies/report/*.py studies/formulas/*.py",
    "trace": "studies/trace/*.py studies/program/*.py",
    "validate": "evidence/validate/*.py",
    "measure": "evidence/measure/*.py",
    "times": "evidence/times/*.py evidence/*.py",
    "reproduce": "evidence/reproduce/*.py evidence/claims/*.py",
    "integrations": "integrations/*.py",
    "base": "base/*.py",
    "show": "show/*.py",
    "commands": "commands/*.py api/*.py",
}
"""Patterns of files below iosim/, whose * crosses folders; a file that several match is of the longest. As many changes
are drawn of each area as of the others, so that small rooms are tried as hard as large ones."""

STUDY = "tests/commands/test_recorded_studies.py::test_studies_are_as_recorded[{}]"
NAMED = {
    "engine": (
        (STUDY.format("engine"), STUDY.format("replay"), "tests/readers/replay/test_engine.py"),
        tuple(
            f"tests/{file}.py"
            for file in (
                "laws/test_once_missed",
                "laws/test_planted_changes",
                "laws/test_replay_laws",
                "readers/test_l2_orders",
                "readers/replay/test_sharing",
                "readers/test_l2_sets",
                "readers/test_followers",
                "kernel/test_touched",
                "studies/trace/test_trace",
            )
        ),
    )
}
"""Tests of what the map cannot see, by area: those that are asked first, and more."""

APART = {
    "iosim/*/page.py": "lays out what a study found",
    "iosim/*/face.py": "puts into words what a study found",
    "iosim/evidence/cuda/*": "compiles and launches on a GPU",
    "iosim/evidence/measure/torch_run.py": "runs PyTorch on a GPU",
    "iosim/readers/replay/build.py": "compiles the engine",
    "iosim/readers/replay/packed.py": "hands to a browser what the engine is given",
    "iosim/studies/explore/*": "makes a page, whose tests run browsers, which want more memory than a child may take",
    "iosim/commands/explore.py": "starts a server",
    "iosim/*__init__.py": "names what a room offers",
    "iosim/torch.py": "names what a room offers",
    "iosim/triton.py": "names what a room offers",
    "iosim/__main__.py": "starts the command line",
    "iosim/base/version.py": "a number",
}
"""Files in no area, which only show what others found, or start or compile something."""


def apart(file: str) -> bool:
    return any(fnmatchcase(file, pattern) for pattern in APART)


def area_of(file: str) -> str | None:
    """The area that a file of the tree is of; None where it is of none."""
    if apart(file):
        return None
    matching = [
        (len(pattern), name)
        for name, patterns in AREAS.items()
        for pattern in patterns.split()
        if fnmatchcase(file, f"iosim/{pattern}")
    ]
    return max(matching)[1] if matching else None


def sources() -> list[str]:
    """The package's Python and the engine's C, by their paths in the tree."""
    return sorted(
        str(p.relative_to(ROOT)) for p in ROOT.glob("iosim/**/*") if p.suffix in (".py", ".c", ".h")
    )


@dataclass(frozen=True)
class Change:
    """An edit of a file: what stood in [start, end) of its text, and what stands there in its place."""

    area: str
    file: str
    start: int
    end: int
    text: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}\n    - {self.before}\n    + {self.after}"

    @property
    def key(self) -> tuple[str, str, str]:
        """What names the change wherever its line stands."""
        return self.file, self.before, self.after


def change(area: str, file: str, source: str, start: int, end: int, text: str) -> Change:
    first = source.rfind("\n", 0, start) + 1
    last = source.find("\n", end)
    last = len(source) if last < 0 else last
    before = source[first:last]
    after = source[first:start] + text + source[end:last]
    short = [" ".join(x.split()) for x in (before, after)]
    return Change(
        area, file, start, end, text, source.count("\n", 0, start) + 1, short[0], short[1]
    )


# Which of them to run


def changes(name: str) -> list[Change]:
    """Every change of an area, in the order of its files."""
    made: list[Change] = []
    for file in (f for f in sources() if area_of(f) == name):
        source = (ROOT / file).read_text(encoding="utf-8")
        edits = python_edits(source) if file.endswith(".py") else c_edits(source)
        found = (change(name, file, source, *edit) for edit in sorted(edits))
        made += {c.key: c for c in found if c.before != c.after}.values()
    return made


@dataclass(frozen=True)
class Notes:
    """What is known of some changes."""

    equal: dict[tuple[str, str, str], str]
    once_missed: frozenset[tuple[str, str, str]]

    @classmethod
    def read(cls) -> Notes:
        data = json.loads(NOTES.read_text(encoding="utf-8"))
        equal = {(e["file"], e["before"], e["after"]): e["reason"] for e in data["equal"]}
        return cls(
            equal, frozenset((e["file"], e["before"], e["after"]) for e in data["once_missed"])
        )

    def gone(self) -> list[tuple[str, str, str]]:
        """Those whose line is no longer there."""
        return [key for key in (*self.equal, *sorted(self.once_missed)) if line_of(key) is None]


def line_of(key: tuple[str, str, str]) -> tuple[int, int, str] | None:
    """(number, where it starts, text) of the line that a change is of; None where it is not there."""
    file, before, _ = key
    if not (ROOT / file).exists():
        return None
    at = 0
    for number, line in enumerate(
        (ROOT / file).read_text(encoding="utf-8").splitlines(keepends=True), 1
    ):
        if " ".join(line.split()) == before:
            return number, at, line.rstrip("\n")
        at += len(line)
    return None


def by_hand(key: tuple[str, str, str]) -> Change | None:
    """A change that is not of the kinds above, by its line; None where that line is not there."""
    file, before, after = key
    area, found = area_of(file), line_of(key)
    if area is None or found is None:
        return None
    number, at, line = found
    text = line[: len(line) - len(line.lstrip())] + after
    return Change(area, file, at, at + len(line), text, number, before, after)


def drawn(
    areas: list[str], count: int | None, seed: int, notes: Notes, *, new: bool = False
) -> list[Change]:
    """`count` changes, as many of each area as of the others where it has them; first those that were once missed.

    Args:
        new: none that was once missed, and none that is known to alter nothing.
    """

    def by_lot(one: Change) -> str:
        """What stands elsewhere does not decide whether a change is drawn."""
        drawn_for = f"{seed} {Path(one.file).name} {one.before} {one.after}"
        return hashlib.sha256(drawn_for.encode()).hexdigest()

    known = {*notes.once_missed, *notes.equal} if new else set()
    left = {name: [c for c in changes(name) if c.key not in known] for name in areas}
    every = {c.key: c for all_ in left.values() for c in all_}
    first = [
        c
        for key in sorted(notes.once_missed - known)
        if (c := every.get(key) or by_hand(key)) and c.area in areas
    ]
    if count is None:
        return list({c.key: c for c in (*first, *every.values())}.values())
    taken = {c.key: c for c in first}
    for name in areas:
        left[name].sort(key=by_lot)
    for name in cycle(areas):
        if len(taken) >= count or not any(left.values()):
            return list(taken.values())
        while left[name] and left[name][-1].key in taken:
            left[name].pop()
        if left[name]:
            taken[left[name][-1].key] = left[name].pop()
    return []


# Running


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
) -> tuple[bool, str]:
    """(whether the tests pass in the tree, the first that does not where pytest names it), in a child of this process,
    which has what they import.

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

            asked = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"]
            words = [*asked, "-m", marks, *tests]
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
                    return status == 0, stream.readline().rstrip("\n")
            time.sleep(0.02)
        return False, ""
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
        for name in ("hypothesis.strategies", "numpy", "pytest"):  # once for all children
            import_module(name)
        self.green: dict[str, bool] = {}
        self.planted_so_far = 0

    def batches(self, one: Change) -> Iterator[tuple[Sequence[str], int]]:
        """Lists of tests to ask in turn, each with the CPU seconds that it may take: a few times its own."""
        if one.area in NAMED:
            for tests in NAMED[one.area]:
                yield tests, MOST_CPU_S
            return
        assert self.seen is not None
        tests = self.seen.of(one.file, one.line)
        first = tests & self.seen.telling(one.file, one.line)
        for group in (first, tests - first, self.seen.beside(tests)):
            for asked, seconds in self.seen.batches(one.file, group, self.most_s):
                yield asked, int(15 + 4 * seconds)

    def is_green(self, test: str) -> bool:
        """Whether a test passes alone without a change."""
        if test not in self.green:
            self.green[test] = run(self.tree, [test], MOST_CPU_S)[0]
        return self.green[test]

    def caught(self, one: Change) -> bool | None:
        """Whether a test notices; None where the change is no program."""
        for tests, limit in self.batches(one):
            asked, tried = list(tests), set[str]()
            while asked:
                with self.planted(one) as there:
                    if not there:
                        return None
                    passed, first = run(self.tree, asked, limit)
                if passed:
                    break
                if not first or self.is_green(first):
                    return True
                if first in tried:
                    break
                tried.add(first)
                # red without the change, too
                asked = [test for test in asked if test != first]
                asked += [] if first in tests else [f"--deselect={first}"]
        return False

    @contextmanager
    def planted(self, one: Change) -> Iterator[bool]:
        """The tree with the change in it; False where it does not compile."""
        file = self.tree / one.file
        source, written = file.read_text(encoding="utf-8"), file.stat().st_mtime
        is_c = file.suffix in (".c", ".h")
        engine = file.with_name("_engine.so")
        if is_c and not engine.exists() and not compiled(self.tree):
            raise SystemExit("mutate: the engine does not compile; is gcc there?")
        content = engine.read_bytes() if is_c else b""
        try:
            file.write_text(source[: one.start] + one.text + source[one.end :], encoding="utf-8")
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


def caught_in_worker(one: Change) -> tuple[Change, bool | None]:
    return one, WORKER[0].caught(one)


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


def recorded(done: Verdicts, file: Path, notes: Notes) -> Verdicts:
    """The verdicts, each written to a CSV as it comes, so that a run that is cut short leaves what it found."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(("verdict", "area", "file", "line", "before", "after"))
        for one, noticed in done:
            verdict = {None: "no program", True: "caught", False: "not caught"}[noticed]
            if noticed is False and one.key in notes.equal:
                verdict = "equal"
            table.writerow((verdict, one.area, one.file, one.line, one.before, one.after))
            stream.flush()
            yield one, noticed


def options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutate.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--area", action="append", choices=list(AREAS), help="of the code; all by default"
    )
    parser.add_argument("--count", type=int, default=300, help="changes to run")
    parser.add_argument("--seed", type=int, default=0, help="which are drawn")
    parser.add_argument("--all", action="store_true", help="every change")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    parser.add_argument("--held", nargs="*", metavar="WORD", help="run the faults of held.json")
    parser.add_argument("--map", action="store_true", help="measure which tests execute which line")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="of tests that execute a line, at most"
    )
    parser.add_argument("--file", action="append", help="only changes of files whose path ends so")
    parser.add_argument("--new", action="store_true", help="leave out those that were once missed")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with its copy")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a CSV of the verdicts")
    return parser.parse_args(words)


def report(done: Verdicts, notes: Notes) -> float:
    """Prints what is not caught as it comes, and the score; returns the share that is caught."""
    caught, missed, equal = 0, [], 0
    by_area: dict[str, list[int]] = {}
    for one, noticed in done:
        if noticed is None:
            continue
        if not noticed and one.key in notes.equal:
            equal += 1
            print(f"equal: {one}\n    {notes.equal[one.key]}", flush=True)
            continue
        caught += noticed
        by_area.setdefault(one.area, []).append(int(noticed))
        if not noticed:
            missed.append(one)
            print(f"not caught: {one.area} {one}", flush=True)
    for name, each in by_area.items():
        print(f"{name}: {sum(each)} of {len(each)}")
    share = caught / max(1, caught + len(missed))
    print(
        f"caught: {caught} of {caught + len(missed)} ({share:.1%}); {equal} more are equal to what they change"
    )
    return share


HELD_WAIT_S = 150.0
"""What a fault may make its test wait at most: some wait for ever."""
HELD = Path(__file__).with_name("held.json")
"""Faults that were mended, planted back: what was wrong, the line that was changed and to what, and the test."""


def held() -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads(HELD.read_text(encoding="utf-8"))
    return rows


def fault(row: dict[str, str]) -> Change | None:
    """The fault of a row of held.json as a change; None where its line is not there."""
    before = " ".join(row["before"].split())
    found = line_of((row["file"], before, row["after"]))
    if found is None:
        return None
    number, at, line = found
    text = line[: len(line) - len(line.lstrip())] + row["after"]
    end = at + len(line)
    return Change("held", row["file"], at, end, text, number, before, row["after"])


def run_held(words: Sequence[str] = ()) -> int:
    """Plants each fault whose wrong or test has one of the words, and prints those that its test does not see."""
    unseen = 0
    rows = [r for r in held() if not words or any(w in r["wrong"] + r["test"] for w in words)]
    with tempfile.TemporaryDirectory(prefix="iosim-held-") as folder:
        runner = Runner(Path(folder), None, 0)
        for row in rows:
            change_ = fault(row)
            if change_ is None:
                verdict = "its line is not there any more"
            else:
                with runner.planted(change_):
                    tests = row["test"].split()
                    passed, first = run(runner.tree, tests, MOST_CPU_S, "", HELD_WAIT_S)
                green = (
                    not passed and run(runner.tree, [first] if first else tests, MOST_CPU_S, "")[0]
                )
                verdict = "seen" if not passed and green else "not seen"
            unseen += verdict != "seen"
            print(f"{verdict}: {row['wrong']} ({row['test']})", flush=True)
    print(f"seen: {len(rows) - unseen} of {len(rows)}")
    return int(unseen > 0)


def measure_all(jobs: int) -> int:
    """Makes what is missing of the map; returns 1 where a file of tests could not be measured."""
    failed = 0
    for file, measured in executed.make(jobs):
        failed += not measured
        print(f"{file}: {'measured' if measured else 'could not be measured'}", flush=True)
    for test in executed.Executed().failing:
        print(f"{test} fails or is skipped without a change, and is not asked")
    return int(failed > 0)


def main(words: list[str] | None = None) -> int:
    asked = options(words)
    if asked.held is not None:
        return run_held(asked.held)
    if asked.map:
        return measure_all(asked.jobs)
    areas, notes = asked.area or list(AREAS), Notes.read()
    count = None if asked.all else asked.count
    chosen = drawn(areas, count, asked.seed, notes, new=asked.new)
    if asked.file:
        chosen = [c for c in chosen if c.file.endswith(tuple(asked.file))]
    if asked.list:
        print("\n".join(map(str, chosen)))
        print(f"{len(chosen)} changes")
        return 0
    for file, before, _ in notes.gone():
        print(f"mutants.json: {file} has no line '{before}' any more")
    seen = executed.Executed()
    if seen.missing:
        print(f"the map lacks {len(seen.missing)} files of tests, whose tests are not asked: --map")
    with tempfile.TemporaryDirectory(prefix="iosim-mutate-") as folder:
        if asked.jobs > 1:
            done = in_processes(chosen, asked.jobs, folder, seen, asked.seconds)
        else:
            runner = Runner(Path(folder), seen, asked.seconds)
            done = ((c, runner.caught(c)) for c in chosen)
        if asked.out:
            done = recorded(done, asked.out, notes)
        return int(report(done, notes) < LEAST_CAUGHT)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
