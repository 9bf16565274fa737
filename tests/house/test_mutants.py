"""The script that plants changes: which ones, that it draws the same again, and that the tests notice them."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import areas
import drawing
import edits
import executed
import measured
import pytest
from effort import examples, some
from scripts import ROOT, load_script

from iosim.base import units

MUTATE = load_script("tests/mutate.py")
RECORDED = load_script("tests/commands/test_recorded_studies.py")
SOURCE = '''
"""Text with 3 < 4."""
LIMIT: int = 192
MOST = 60_000_000

def f(a: int, b: int = 7) -> int:
    if a < b and not b:
        raise ValueError(f"{a + 1}")
    return -(-a // b), min(a, 2)
'''
C_SOURCE = """
/* if (a < b) c += 1; */
#define SLACK 128
#define MOST 1000000
static int f(int a, int b) {
    if (a < b) a += 2;
    free(x);
    return a ? b : a;
}
"""


def edited(source: str, made_of: list[tuple[int, int, str]]) -> set[str]:
    """The changed lines of a source, each with one edit."""
    changes = (drawing.change("timing", "x", source, *edit) for edit in made_of)
    return {c.after for c in changes}


def test_changes_of_python() -> None:
    assert edited(SOURCE, edits.python_edits(SOURCE)) == {
        "LIMIT: int = 193",
        "MOST = 6000000",
        "LIMIT: int = 19",
        "def f(a: int, b: int = 8) -> int:",
        "if a <= b and not b:",
        "if a < b or not b:",
        "if a < b and bool(b):",
        "if False:",
        "if True:",
        "return ((a) // b), min(a, 2)",
        "return -(-a // b), max(a, 2)",
        "return -(-a // b), min(a, 3)",
        "return min(a, 2), -(-a // b)",
    }


def test_changes_of_c() -> None:
    assert edited(C_SOURCE, edits.c_edits(C_SOURCE)) == {
        "#define SLACK 129",
        "#define MOST 100000",
        "#define SLACK 12",
        "if (a <= b) a += 2;",
        "if (a < b) a -= 2;",
        "if (a < b) a += 3;",
        "if (a < b) ;",
        "if (0) a += 2;",
        "if (1) a += 2;",
        "return a ? a : b;",
    }


def test_changes_of_toml() -> None:
    source = 'schema = 1\nname = "a 64"  # 64\nsizes = [64, 3]\nshare = 0.5\nruns = true\n'
    assert edited(source, edits.toml_edits(source)) == {
        "sizes = [128, 3]",
        "sizes = [64, 4]",
        "share = 0.625",
        "runs = false",
    }


def test_the_same_seed_draws_the_same() -> None:
    notes = drawing.Notes.read()
    first, two, other = (drawing.drawn(["timing", "tiles"], 80, seed, notes) for seed in (0, 0, 1))
    assert first == two
    assert first != other
    assert len({c.key for c in first}) == 80
    assert {c.area for c in first} == {"timing", "tiles"}


def test_every_source_is_of_an_area_or_apart() -> None:
    sources = areas.sources()
    missing = [f for f in sources if areas.area_of(f) is None and not areas.apart(f)]
    assert not missing, f"name their room in AREAS of tests/support/areas.py: {missing}"
    assert {areas.area_of(f) for f in sources} >= set(areas.AREAS), "an area without files"
    for pattern, reason in areas.APART.items():
        assert reason
        assert any(fnmatchcase(f, pattern) for f in sources), f"no file is {pattern}"


def test_the_longest_pattern_decides() -> None:
    assert areas.area_of("iosim/kernel/launch.py") == "kernel"
    assert areas.area_of("iosim/catalog/algorithms/new/plan.py") == "algorithms"
    assert areas.area_of("iosim/readers/replay/cache.h") == "engine"
    assert areas.area_of("iosim/studies/tiles/page.py") is None


def test_named_tests_are_there() -> None:
    kernels, studies = RECORDED.entry_names(), RECORDED.STUDIES.STUDIES
    known = {"", *kernels, *studies, *(f"{s}-{k}" for s, k in itertools.product(studies, kernels))}
    waiting = set[str]()
    for file in areas.sources():
        area = areas.area_of(file)
        if area in areas.NAMED:
            waiting |= {*itertools.chain(*areas.named(area, file))}
    for test in waiting:
        path, _, case = test.partition("::")
        assert (ROOT / path).exists(), test
        assert case.partition("[")[2].rstrip("]") in known, test


def test_what_is_recorded_of_a_kernel_is_asked_first_of_its_data() -> None:
    launches, studies, *others = areas.named("data", "iosim/catalog/libraries/fa2.toml")
    assert launches == [f"{areas.LAUNCHES}::test_launches_are_as_recorded[fa2]"]
    assert areas.KERNEL.format("counts", "fa2") in studies
    assert others == [*areas.NAMED["data"]]
    assert [*areas.named("data", "iosim/kernel/units.toml")] == others


# Which tests execute a line

PACKAGE_FILE = "iosim/example.py"
PACKAGE_SOURCE = """
LIMIT = 3
class Fields:
    rows: int = LIMIT
    def area(self, side=2):
        if side:
            return (self.rows
                    * side)
        return 0
"""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A map of one file: two tests execute its product, one the other branch."""
    source = executed.Source(PACKAGE_SOURCE)
    monkeypatch.setattr(executed, "source", lambda file: source)
    monkeypatch.setattr(executed, "files_of_tests", list)
    monkeypatch.setattr(
        executed,
        "words",
        lambda: {
            "LIMIT": [(PACKAGE_FILE, 2), (PACKAGE_FILE, 4)],
            "rows": [(PACKAGE_FILE, 4), (PACKAGE_FILE, 7)],
        },
    )
    monkeypatch.setattr(
        executed, "imports", lambda file: {"iosim.example"} if "near" in file else ()
    )
    lines_run = executed.Executed()
    lines = {source.key(6): [0, 1, 2], source.key(7): [0, 2], source.key(9): [1]}
    piece = {"tests": [["::dear", 9.0], ["::zero", 0.1], ["::cheap", 1.0]], "failed": []}
    lines_run._add("tests/far.py", piece | {"lines": {PACKAGE_FILE: lines}})
    return lines_run


def test_tests_of_a_line_are_those_that_execute_it_or_use_its_name(seen: Any) -> None:
    assert seen.of(PACKAGE_FILE, 6) == {0, 1, 2}
    assert seen.of(PACKAGE_FILE, 8) == {0, 2}  # the second line of a statement
    assert seen.of(PACKAGE_FILE, 4) == {0, 2}  # a field, where it is used
    assert seen.of(PACKAGE_FILE, 2) == {0, 2}  # what the field takes from a constant
    assert seen.of(PACKAGE_FILE, 5) == {0, 1, 2}  # a default, by its function
    assert seen.beside({1}) == {0, 2}
    assert seen.telling(PACKAGE_FILE, 6) == {0, 2}  # the condition was true for them
    assert seen.telling(PACKAGE_FILE, 7) == set()


def test_a_line_is_known_wherever_it_stands() -> None:
    source = executed.Source("import os\n" + PACKAGE_SOURCE)
    assert source.key(8) == executed.Source(PACKAGE_SOURCE).key(7)
    assert source.key(7) != source.key(8)


def test_what_executes_most_new_lines_for_its_cost_is_asked_first(seen: Any) -> None:
    """Two lines and what is looked at in 1.4 s; one in 2.4 s; two in a fifth of 20.4 s, since the file is of the module;
    none that is new, in 9 s."""
    own, small = {"::own": [0], "::more": [0]}, {"::small": [0]}
    seen._add("tests/near.py", {"tests": [["::own", 20.0]], "failed": []} | lines_of(own))
    seen._add("tests/small.py", {"tests": [["::small", 2.0]], "failed": []} | lines_of(small))
    lists = [tests for tests, _ in seen.batches(PACKAGE_FILE, {0, 2, 3, 4}, 60.0)]
    order = [test for tests in lists for test in tests]
    assert order == [
        "tests/far.py::cheap",
        "tests/small.py::small",
        "tests/near.py::own",
        "tests/far.py::dear",
    ]
    assert len(lists) > 1  # the first are few, for most changes are seen by them
    few = [t for tests, _ in seen.batches(PACKAGE_FILE, {0, 2, 3, 4}, 4.0) for t in tests]
    assert few == ["tests/far.py::cheap", "tests/small.py::small"]


def lines_of(keys: dict[str, list[int]]) -> dict[str, Any]:
    return {"lines": {PACKAGE_FILE: keys}}


def test_a_modules_own_tests_and_recorded_numbers_come_sooner() -> None:
    file = "iosim/studies/orders/constant.py"
    others = ("tests/studies/orders/test_constant.py", areas.RECORDED, "tests/show/test_axes.py")
    assert [executed.share_of_cost(file, x) for x in others] == [executed.OWN, executed.RECORDED, 1]


def test_a_line_is_reported_once_a_test() -> None:
    if sys.version_info < (3, 12):
        pytest.skip("sys.monitoring is of Python 3.12")
    monitor = measured.Monitor()
    try:
        units.some(2, "tile")
        first = monitor.taken()
        units.some(2, "tile")
        units.some(3, "tile")
        assert monitor.taken() == first
        assert monitor.taken() == set()
    finally:
        monitor.close()
    assert {path for path, _ in first} == {units.__file__}


def test_where_no_test_is_known_those_that_import_the_module_are_asked() -> None:
    files = executed.files_of_module("iosim/studies/orders/constant.py")
    assert "tests/studies/orders/test_constant.py" in files
    assert "tests/show/test_axes.py" not in files


def test_a_run_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    notes, file = drawing.Notes.read(), tmp_path / "verdicts.csv"
    chosen = drawing.drawn(["tiles"], 30, 0, notes, new=True)
    verdicts = list(zip(chosen, (True, False, None) * 10, strict=True))
    assert MUTATE.judged(file, chosen) == []
    for part in (verdicts[:10], verdicts[10:20]):
        assert list(MUTATE.recorded(iter(part), file, notes)) == part
    assert MUTATE.judged(file, chosen) == verdicts[:20]


# Faults that were mended


def test_faults_planted_back_are_of_lines_and_tests_that_are_there() -> None:
    for row in MUTATE.held():
        assert row["wrong"]
        assert MUTATE.fault(row), row
        for word in row["test"].split():
            file, _, name = word.partition("::")
            if word.startswith("-k="):
                name = word[3:]
                file = row["test"].split()[0]
            assert (ROOT / file).exists(), word
            assert name in (ROOT / file).read_text(encoding="utf-8"), word


@pytest.mark.slow
def test_faults_planted_back_are_seen_by_their_tests() -> None:
    words = some(sorted({row["wrong"] for row in MUTATE.held()}))
    command = [sys.executable, str(ROOT / "tests" / "mutate.py"), "--held", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr


def test_reasons_are_given() -> None:
    notes = drawing.Notes.read()
    assert all(notes.equal.values())
    assert not notes.once_missed & notes.equal.keys()


def test_notes_are_of_lines_that_are_there() -> None:
    assert list(drawing.Notes.read().gone()) == []


def scored(*words: str) -> tuple[int, int, str]:
    """(changes that are caught, changes that were run, what was printed)."""
    command = [sys.executable, str(ROOT / "tests" / "mutate.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)
    score = re.findall(r"^caught: (\d+) of (\d+)", done.stdout, re.M)
    assert score, done.stdout + done.stderr
    assert "has no line" not in done.stdout, done.stdout  # a note for a line that has gone
    return int(score[0][0]), int(score[0][1]), done.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the engine is compiled anew with gcc")
def test_planted_changes_are_noticed() -> None:
    """Those once missed, and a few others, by the map of executed lines, which is made for it."""
    if executed.Executed().missing:
        pytest.skip("no map of executed lines is there: python tests/mutate.py --map")
    count = examples(20)
    caught, run, report = scored("--count", str(count))
    assert caught >= MUTATE.LEAST_CAUGHT * run, report
    assert run >= count - 2, report


def test_no_fault_was_lost_in_a_merge() -> None:
    """Two rows that ran into one are one object with its keys twice, of which JSON keeps the last."""

    def keys_of(pairs: list[tuple[str, str]]) -> list[str]:
        return [key for key, _ in pairs]

    text = (ROOT / "tests" / "held.json").read_text(encoding="utf-8")
    for keys in json.loads(text, object_pairs_hook=keys_of):
        assert len(keys) == len(set(keys))
