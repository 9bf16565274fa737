"""Plants small changes in the code, one at a time, and says which of them the tests do not notice.

    python tests/mutate.py --map               which tests execute which line: before all else, and after tests changed
    python tests/mutate.py --map tests/show/   the same of some files of tests alone
    python tests/mutate.py                     300 changes drawn from all areas
    python tests/mutate.py --count 60 --seed 7 --area timing --area tiles
    python tests/mutate.py --all --area timing every change of an area
    python tests/mutate.py --list              the changes, without running anything
    python tests/mutate.py --new --jobs 16 --out verdicts.csv
                                               on many cores, without those that were once missed
    python tests/mutate.py --unseen tests/show/ --file show/tables.py
                                               changes of these files that alter no value in these tests, from one run
    python tests/mutate.py --held              the faults of held.json, each against the test that was written for it

A change is one edit of one line: a comparison, an operator, a constant, a condition, a branch. Left out, since no test
is to hold them: messages of errors, assertions, sentences (f-strings and functions that make texts), types, docstrings,
the sizes of caches, what gives memory back and what APART names. Each change runs in a copy of the tree against the
quick tests that execute its line (tests/support/measured.py makes the map), first those that execute most other lines
for their cost, until one is red, which must be green without the change; then against the other tests of their files.
After --seconds of tests a change counts as not noticed. For the engine, whose lines are C and compiled anew, and for
the data of kernels, NAMED has the tests. A seed draws the same
changes again, as far as their lines are the same. Changes that alter nothing that can be seen stand with the reason in
mutants.json, by the line's text, so that they survive its moving about; changes that were once missed stand there, too,
and are always among those run. Ends with exit code 1 where fewer than 95 % of the others are caught.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().with_name("support")))

import altered
import executed
import measured
from areas import AREAS
from drawing import Change, Notes, drawn, line_of
from planting import MOST_CPU_S, Runner, Verdicts, in_processes, run

LEAST_CAUGHT = 0.95


VERDICTS = {None: "no program", True: "caught", False: "not caught"}
COLUMNS = ("verdict", "area", "file", "line", "before", "after")


def judged(file: Path, chosen: Sequence[Change]) -> list[tuple[Change, bool | None]]:
    """The verdicts that a run which was cut short has written, of changes that are chosen again."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        words = {(r["file"], r["before"], r["after"]): r["verdict"] for r in csv.DictReader(stream)}
    noticed = {word: verdict for verdict, word in VERDICTS.items()} | {"equal": False}
    return [(c, noticed[words[c.key]]) for c in chosen if c.key in words]


def recorded(done: Verdicts, file: Path, notes: Notes) -> Verdicts:
    """The verdicts, each added to a CSV as it comes, so that a run that is cut short leaves what it found."""
    begun = file.exists()
    with file.open("a", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        if not begun:
            table.writerow(COLUMNS)
        for change, noticed in done:
            verdict = VERDICTS[noticed]
            if noticed is False and change.key in notes.equal:
                verdict = "equal"
            table.writerow(
                (verdict, change.area, change.file, change.line, change.before, change.after)
            )
            stream.flush()
            yield change, noticed


def options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutate.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--area", action="append", choices=list(AREAS), help="of the code; all by default"
    )
    parser.add_argument("--count", type=int, default=300, help="changes to run")
    parser.add_argument("--seed", type=int, default=0, help="which are drawn")
    parser.add_argument(
        "--unseen",
        nargs="*",
        metavar="PATH",
        help="list the changes that alter no value in any test (of files whose path begins so)",
    )
    parser.add_argument("--all", action="store_true", help="every change")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    parser.add_argument("--held", nargs="*", metavar="WORD", help="run the faults of held.json")
    parser.add_argument(
        "--map",
        nargs="*",
        metavar="PATH",
        help="measure which tests (of files whose path begins so) execute which line",
    )
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="of tests that execute a line, at most"
    )
    parser.add_argument("--file", action="append", help="only changes of files whose path ends so")
    parser.add_argument("--new", action="store_true", help="leave out those that were once missed")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with its copy")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="a CSV of the verdicts: what it has is not run again",
    )
    return parser.parse_args(words)


def report(done: Verdicts, notes: Notes) -> float:
    """Prints what is not caught as it comes, and the score; returns the share that is caught."""
    caught, missed, equal = 0, [], 0
    by_area: dict[str, list[int]] = {}
    for change, noticed in done:
        if noticed is None:
            continue
        if not noticed and change.key in notes.equal:
            equal += 1
            print(f"equal: {change}\n    {notes.equal[change.key]}", flush=True)
            continue
        caught += noticed
        by_area.setdefault(change.area, []).append(int(noticed))
        if not noticed:
            missed.append(change)
            print(f"not caught: {change.area} {change}", flush=True)
    for name, results in by_area.items():
        print(f"{name}: {sum(results)} of {len(results)}")
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


def measure_all(jobs: int, wanted: Sequence[str]) -> int:
    """Makes what is missing of the map; returns 1 where a file of tests could not be measured."""
    failed = 0
    for file, done in measured.make(jobs, wanted):
        failed += not done
        print(f"{file}: {'measured' if done else 'could not be measured'}", flush=True)
    for test in executed.Executed().failing:
        print(f"{test} fails or is skipped without a change, and is not asked")
    return int(failed > 0)


def list_unseen(tests: Sequence[str], chosen: Sequence[Change]) -> int:
    """Prints the changes that alter no value in a run of these tests, or of all quick ones."""
    files = sorted({c.file for c in chosen if c.file.endswith(".py")})
    watched = {edit for file in files for edit in altered.watched(file)}
    alone = ["-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-m", executed.MARKS]
    seen = altered.altered_in([*alone, *(tests or executed.files_of_tests())])
    edits = [(c, (c.file, c.start, c.end, c.text)) for c in chosen]
    unseen = [c for c, edit in edits if edit in watched and edit not in seen]
    print("\n".join(map(str, unseen)))
    print(f"{len(unseen)} of {len(chosen)} changes alter no value")
    return int(bool(unseen))


def main(words: list[str] | None = None) -> int:
    options_given = options(words)
    if options_given.held is not None:
        return run_held(options_given.held)
    if options_given.map is not None:
        return measure_all(options_given.jobs, options_given.map)
    areas = options_given.area or list(AREAS)
    notes = Notes.read()
    is_whole = options_given.all or options_given.unseen is not None
    count = None if is_whole else options_given.count
    chosen = drawn(areas, count, options_given.seed, notes, new=options_given.new)
    if options_given.file:
        chosen = [c for c in chosen if c.file.endswith(tuple(options_given.file))]
    if options_given.unseen is not None:
        return list_unseen(options_given.unseen, [c for c in chosen if c.key not in notes.equal])
    if options_given.list:
        print("\n".join(map(str, chosen)))
        print(f"{len(chosen)} changes")
        return 0
    for file, before, _ in notes.gone():
        print(f"mutants.json: {file} has no line '{before}' any more")
    seen = executed.Executed()
    if seen.missing:
        print(f"the map lacks {len(seen.missing)} files of tests, whose tests are not asked: --map")
    before = judged(options_given.out, chosen) if options_given.out else []
    chosen = [c for c in chosen if c.key not in {change.key for change, _ in before}]
    with tempfile.TemporaryDirectory(prefix="iosim-mutate-") as folder:
        if options_given.jobs > 1:
            done = in_processes(chosen, options_given.jobs, folder, seen, options_given.seconds)
        else:
            runner = Runner(Path(folder), seen, options_given.seconds)
            done = ((c, runner.caught(c)) for c in chosen)
        if options_given.out:
            done = recorded(done, options_given.out, notes)
        return int(report(chain(before, done), notes) < LEAST_CAUGHT)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
