"""Plants small changes in the code, one at a time, and says which of them the tests do not notice.

    python tests/mutate.py                     300 changes drawn from all areas
    python tests/mutate.py --count 60 --seed 7 --area timing --area tiles
    python tests/mutate.py --all --area timing every change of an area
    python tests/mutate.py --list              the changes, without running anything
    python tests/mutate.py --new --jobs 16 --out verdicts.csv
                                               on many cores, without those that were once missed

A change is one edit of one line: a comparison, an operator, a constant, a condition, a branch. Each runs in a copy of
the tree against the few test files that AREAS names for its file, without their slow tests; C is compiled anew. A seed
draws the same changes again, as far as their lines are the same. Changes that alter nothing that can be seen stand with
the reason in mutants.json, by the line's text, so that they survive its moving about; changes that were once missed
stand there, too, and are always among those run. Ends with exit code 1 where fewer than 95 % of the others are caught.
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
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().with_name("support")))

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


@dataclass(frozen=True)
class Area:
    """Files that are changed, the quick tests that must notice, and more of them that are asked where the first do not.

    Files are patterns, whose * crosses folders; a file that several match is of the longest.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]
    more: tuple[str, ...] = ()


EVERYWHERE = "planted_changes"
"""Tests of a second that each area is held against, too."""


def area(files: str, first: str, more: str = "") -> Area:
    """Of words: patterns below iosim/, and tests by their files' names, with a folder where several have one; '@name' is
    a recorded study."""
    asked = [tuple(map(test, words.split())) for words in (f"{first} {EVERYWHERE}", more)]
    return Area(tuple(f"iosim/{pattern}" for pattern in files.split()), *asked)


def test(word: str) -> str:
    if word.startswith("@"):
        return f"{test('recorded_studies')}::test_studies_are_as_recorded[{word[1:]}]"
    folder, _, name = word.rpartition("/")
    (file,) = (ROOT / "tests").glob(f"**/{folder or '*'}/test_{name}.py")
    return file.relative_to(ROOT).as_posix()


AREAS = {
    "engine": area(
        "readers/replay/*.[ch]",
        "@engine @replay engine",
        "once_missed l2_orders trace l2_sets followers touched replay_laws",
    ),
    "replay": area(
        "readers/replay/*.py",
        "@engine @replay lowering",
        "once_missed engine sharing trace coarse sampling true_times placement "
        "drift l2_sets followers "
        "measured_l2",
    ),
    "timing": area(
        "readers/timing/*.py",
        "once_missed @timing warps said",
        "energy timing/step_time makespan chain_time tile_terms loop_time "
        "step_terms rates running launch_time launch_terms one_time "
        "reason_and_ceiling passes terms linear_times",
    ),
    "count": area(
        "readers/*.py",
        "traffic check_bits @counts level_bounds",
        "traffic_laws memory_bounds tile_rules l2 shared_memory scan",
    ),
    "formula": area(
        "readers/formula/*.py",
        "floor_sums theory @counts symbolic",
        "level_bounds masks/blocks check readings",
    ),
    "algorithms": area(
        "catalog/algorithms/*.py",
        "once_missed @counts execute uniform matrix_tiles said",
        "@timing @replay algorithms/cache mla efficient bias packed mixture "
        "indexer naive fa2 by_hand",
    ),
    "libraries": area(
        "catalog/libraries/*.py catalog/serving/*.py catalog/*.py",
        "once_missed @catalog resolver sdpa loader rules kernel/options",
        "decode/study cudnn errors catalog_file flashinfer amd cutlass default "
        "fits_or_is_refused flash_backward "
        "fa3 fa4 fp8 cascade picked_blocks states cudnn_ampere cudnn_decode "
        "triton shared_prefix "
        "fa2 @commands",
    ),
    "kernel": area(
        "kernel/*.py",
        "residency @catalog @tiles lowering",
        "kernel/launch space orders/code search constant entry compiled tile_rules @commands",
    ),
    "code": area(
        "code/*.py",
        "module listing tools loops local opcodes runs counts frame_addresses ptx ptx_values",
        "prediction/code compiled tile_builds",
    ),
    "problem": area(
        "problem/*.py", "masks/files fields masks/blocks", "packed mask bias cli @commands"
    ),
    "hardware": area(
        "hardware/*.py",
        "profile_file occupancy profile quantities said",
        "confidence trust ranges @commands",
    ),
    "prediction": area(
        "prediction/*.py",
        "time_range ranges prediction/cache said",
        "call predictor play many answer reason_and_ceiling grammar @commands",
    ),
    "tiles": area("studies/tiles/*.py", "once_missed @tiles", "one pick @commands"),
    "training": area(
        "studies/training/*.py",
        "once_missed @training",
        "training/prediction frontier training/model training/timeline shares "
        "training/step_time lora replay/blocks @commands",
    ),
    "distributed": area(
        "studies/distributed/*.py",
        "once_missed @distributed",
        "schedule distributed/links collectives closed_forms count timing "
        "distributed/study @commands",
    ),
    "comparing": area(
        "studies/compare/*.py studies/*.py",
        "compare/study choice explain against said",
        "code_costs terms answers_studies @commands",
    ),
    "models": area(
        "studies/models/*.py studies/decode/*.py studies/latency/*.py",
        "load asked models/prediction picking latency fit calibration varlen stack kinds",
        "models_in_commands stack_times answers_studies whole decoder decode "
        "silent_choices @commands",
    ),
    "sweep": area(
        "studies/sweep/*.py studies/orders/*.py",
        "run closed cases sweep/files sweep/rows space orders/code search constant entry",
        "workers @commands",
    ),
    "report": area(
        "studies/report/*.py studies/formulas/*.py", "report/study report_files answer", "symbolic"
    ),
    "trace": area(
        "studies/trace/*.py studies/program/*.py",
        "trace",
        "mode values whole decoder training/prediction frontier training/model "
        "training/timeline shares training/step_time lora replay/blocks pages "
        "@commands",
    ),
    "validate": area(
        "evidence/validate/*.py",
        "recognise report summary validate/rows residuals",
        "others published/tables match rule ncu_rows @commands",
    ),
    "measure": area(
        "evidence/measure/*.py",
        "calibrate @plans bundle choose",
        "collect machine chain_case fit_published harness",
    ),
    "times": area(
        "evidence/times/*.py evidence/*.py",
        "fitted groups",
        "evidence/links published/tables shipped_is_validated",
    ),
    "reproduce": area(
        "evidence/reproduce/*.py evidence/claims/*.py",
        "check readings paper said",
        "training_grid chunk_schedules reproduce_f @commands",
    ),
    "integrations": area(
        "integrations/*.py",
        "rule kernel triton/model streaming_mask load asked models/prediction picking kinds",
        "launched tape values torch_counts mode",
    ),
    "base": area(
        "base/*.py",
        "schema progress errors units records registry many",
        "silent_choices workers attack show/tables show/page html shown "
        "prediction/cache report_files profile quantities @commands",
    ),
    "show": area(
        "show/*.py",
        "show/tables show/page html shown axes terminal show/timeline",
        "looks notebook calls @commands",
    ),
    "commands": area(
        "commands/*.py api/*.py",
        "cli completion schemas commands/options calls",
        "first_lines common defaults pages bad_input silent_choices attack "
        "pick space orders/code search constant entry rule collect machine "
        "trace summary validate/rows residuals @commands",
    ),
}
"""By room, so that a file that moves within one, or is new, is of an area."""

APART = {
    "iosim/*/page.py": "lays out what a study found",
    "iosim/*/face.py": "puts into words what a study found",
    "iosim/evidence/cuda/*": "compiles and launches on a GPU",
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
        (len(p), name) for name, a in AREAS.items() for p in a.files if fnmatchcase(file, p)
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
        ".git", ".venv*", "__pycache__", ".hypothesis", ".*_cache", "*.egg-info"
    )
    shutil.copytree(ROOT, to, ignore=skipped, dirs_exist_ok=True)


def compiled(tree: Path) -> bool:
    """The engine of the tree, built from its C; with few optimizations, which take longer than the tests."""
    (build,) = tree.glob("iosim/**/build.py")
    engine = build.with_name("_engine.so")
    engine.unlink(missing_ok=True)  # not written to: a run of tests may have opened it
    command = [sys.executable, str(build), str(engine), "-O1", "-w"]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def run(tree: Path, tests: tuple[str, ...], cpu_s: int) -> tuple[bool, float]:
    """(whether the tests pass in the tree, CPU seconds they took), in a child of this process, which has what they
    import.

    Args:
        cpu_s: CPU seconds after which they have failed; so have they after WAIT_S of idling.
    """
    child = os.fork()
    if child == 0:
        try:
            sys.dont_write_bytecode = False  # the next run need not compile what this one did
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
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
            code = pytest.main([*asked, "-m", "not slow or recorded", *tests])
            os._exit(0 if code == 0 else 1)
        except BaseException:
            os._exit(1)
    end, done = time.monotonic() + WAIT_S, 0
    try:
        while time.monotonic() < end:
            done, status, used = os.wait4(child, os.WNOHANG)
            if done:
                return status == 0, used.ru_utime + used.ru_stime
            time.sleep(0.02)
        return False, 0.0
    finally:
        if not done:  # too long, or Ctrl-C
            os.kill(child, 9)
            os.waitpid(child, 0)


Stages = Iterable[tuple[tuple[str, ...], int]]
"""Files of tests that are run together, with the CPU seconds they may take; the later where the earlier do not notice."""
Verdicts = Iterator[tuple[Change, bool | None]]
"""Changes, and whether a test notices; None where a change is no program."""


class Runner:
    """Runs changes in one copy of the tree.

    Args:
        trusting: of an area's tests only the first are tried without a change, as where the whole suite is run, too.
    """

    def __init__(self, tree: Path, *, trusting: bool = False) -> None:
        self.tree, self.trusting = tree, trusting
        copied_tree(tree)
        for name in ("hypothesis.strategies", "numpy", "pytest"):  # once for all children
            import_module(name)
        self.limits: dict[tuple[str, ...], int] = {}
        self.planted_so_far = 0

    def limit(self, tests: tuple[str, ...]) -> int:
        """CPU seconds that these tests may take with a change: a few times what they take without one."""
        tried = tests[:1] if self.trusting else tests
        if tried not in self.limits:
            passed, used = run(self.tree, tried, MOST_CPU_S)
            if not passed:
                raise SystemExit(f"mutate: {' '.join(tried)} fail without a change")
            self.limits[tried] = MOST_CPU_S if self.trusting else int(5 + 3 * used)
        return self.limits[tried]

    def stages(self, area: Area) -> Stages:
        """The first tests of an area, then more, each with the limit of its CPU seconds."""
        for tests in filter(None, (area.tests, area.more)):
            yield tests, self.limit(tests)

    def caught(self, one: Change, stages: Stages | None = None) -> bool | None:
        """Whether a test notices; None where the change is no program."""
        for tests, limit in stages or self.stages(AREAS[one.area]):
            with self.planted(one) as there:
                if not there:
                    return None
                if not run(self.tree, tests, limit)[0]:
                    return True
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


def start_worker(folder: str, processors: SimpleQueue[int] | None) -> None:
    if processors is not None:  # what its tests start stays on its processor, too
        os.sched_setaffinity(0, {processors.get()})
    WORKER[:] = [Runner(Path(tempfile.mkdtemp(dir=folder)))]


def seconds_in_worker(test: str) -> tuple[str, float | None]:
    """CPU seconds of a file of tests without a change; None where it fails."""
    passed, used = run(WORKER[0].tree, (test,), MOST_CPU_S)
    return test, used if passed else None


def caught_in_worker(work: tuple[Change, Stages]) -> tuple[Change, bool | None]:
    one, stages = work
    return one, WORKER[0].caught(one, stages)


def stages_by_area(areas: set[str], pool: ProcessPoolExecutor) -> dict[str, Stages]:
    """The tests of areas with their limits. A file that fails without a change is left out and said.

    Some fail where a package is missing; those that are left must notice alone.
    """
    tests = sorted({t for name in areas for t in (*AREAS[name].tests, *AREAS[name].more)})
    seconds = dict(pool.map(seconds_in_worker, tests))
    for test in tests:
        if seconds[test] is None:
            print(f"{test} fails without a change and is left out", flush=True)

    def with_limits(area: Area) -> Stages:
        for group in (area.tests, area.more):
            used = {t: s for t in group if (s := seconds[t]) is not None}
            if used:
                yield tuple(used), int(5 + 3 * sum(used.values()))

    return {name: list(with_limits(AREAS[name])) for name in areas}


def in_processes(chosen: list[Change], jobs: int, folder: str) -> Verdicts:
    """The verdicts as they come, of `jobs` processes, each with its copy of the tree; tests are tried once for all."""
    context = get_context("fork")
    usable = sorted(os.sched_getaffinity(0))
    processors = context.SimpleQueue() if jobs >= len(usable) > 2 else None
    if processors is not None:
        for _, processor in zip(range(jobs), cycle(usable), strict=False):
            processors.put(processor)
    with ProcessPoolExecutor(jobs, context, start_worker, (folder, processors)) as pool:
        stages = stages_by_area({c.area for c in chosen}, pool)
        verdicts = [pool.submit(caught_in_worker, (c, stages[c.area])) for c in chosen]
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
    parser.add_argument(
        "--trusting", action="store_true", help="try only an area's first tests without a change"
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


def main(words: list[str] | None = None) -> int:
    asked = options(words)
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
    with tempfile.TemporaryDirectory(prefix="iosim-mutate-") as folder:
        if asked.jobs > 1:
            done = in_processes(chosen, asked.jobs, folder)
        else:
            runner = Runner(Path(folder), trusting=asked.trusting)
            done = ((c, runner.caught(c)) for c in chosen)
        if asked.out:
            done = recorded(done, asked.out, notes)
        return int(report(done, notes) < LEAST_CAUGHT)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
