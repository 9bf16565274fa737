"""Which tests execute a line of the package, by the map that measured.py makes.

A piece of it a file of tests is kept in .executed/. It has the CPU seconds of each test and, for each line of the
package, which of the file's tests execute it. Lines are known by their function and text and not by their number, so
that a map outlives edits elsewhere.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from areas import FORMS, GOLDEN

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / ".executed"
QUICK_SHARE = "24"
"""One in so many examples of a property is drawn, as by the README's test command."""
MARKS = "not slow or recorded"
LEFT_OUT = {
    "tests/house/test_mutants.py": "starts this",
    "tests/house/test_architecture_doc.py": "reads the sources' imports",
    "tests/house/test_budget.py": "reads the sources' words",
    "tests/house/test_dead_names.py": "reads the sources' names",
    "tests/house/test_layers.py": "reads the sources' imports",
    "tests/house/test_packaging.py": "builds a wheel of the tree",
    "tests/house/test_release.py": "builds a wheel of the tree",
    "tests/house/test_trial_additions.py": "copies the tree",
    "tests/readers/test_wasm.py": "compiles the engine for browsers",
    "tests/studies/test_report_browser.py": "runs a browser",
}
"""Files of tests that hold no value of the code, or take no copy of the tree."""


def files_of_tests() -> list[str]:
    paths = (p.relative_to(ROOT).as_posix() for p in ROOT.glob("tests/**/test_*.py"))
    return sorted(f for f in paths if f not in LEFT_OUT)


def piece_of(file: str) -> Path:
    return FOLDER / (file.removeprefix("tests/").replace("/", ".") + ".json.gz")


def digest(file: str) -> str:
    return hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]


def read(file: str) -> dict[str, Any]:
    with gzip.open(piece_of(file), "rt", encoding="utf-8") as stream:
        data: dict[str, Any] = json.load(stream)
    return data


def stale(file: str) -> bool:
    """Whether the piece of a file of tests is missing, or of another text of it."""
    return not piece_of(file).exists() or read(file)["digest"] != digest(file)


# Lines and what they are of


@dataclass(frozen=True)
class Place:
    """Where a line stands: its function, the lines of its statement, and those that a condition guards."""

    function: str
    first: int
    last: int
    guarded: tuple[int, int] | None = None


class Source:
    """The lines of a file of the package, by their functions and statements."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.tree = ast.parse(text)
        self.place: dict[int, Place] = {}
        self._visit(self.tree, "")

    def _visit(self, node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            inside = function
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = f"{function}.{child.name}"
            if isinstance(child, ast.stmt):
                first, last = child.lineno, child.end_lineno or child.lineno
                body = getattr(child, "body", None)
                if isinstance(body, list) and body:  # the head alone: what follows is of its own
                    last = max(first, min(last, body[0].lineno - 1))
                guarded = None
                if isinstance(child, ast.If | ast.While):
                    guarded = child.body[0].lineno, child.body[-1].end_lineno or child.lineno
                for line in range(first, last + 1):
                    self.place[line] = Place(function, first, last, guarded)
            self._visit(child, inside)

    def key(self, line: int) -> str:
        """Eight hexadecimal digits that name a line by its function and text."""
        place = self.place.get(line)
        words = " ".join(self.lines[line - 1].split()) if line <= len(self.lines) else ""
        function = place.function if place else ""
        return f"{zlib.crc32(f'{function} {words}'.encode()):08x}"

    @cached_property
    def functions(self) -> dict[str, tuple[int, int]]:
        """First and last line of each function's body, by its name with its classes'."""
        spans: dict[str, tuple[int, int]] = {}

        def visit(node: ast.AST, name: str) -> None:
            for child in ast.iter_child_nodes(node):
                inside = name
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    inside = f"{name}.{child.name}"
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    spans[inside] = (child.body[0].lineno, child.end_lineno or child.lineno)
                visit(child, inside)

        visit(self.tree, "")
        return spans

    def function_at(self, line: int) -> tuple[int, int] | None:
        """Lines of the innermost function whose body has the line; None at the module's level."""
        around = [(a, b) for a, b in self.functions.values() if a <= line <= b]
        return max(around, default=None)

    def names_at(self, line: int) -> set[str]:
        """Names that the statement of a line outside all functions gives: constants, fields, functions."""
        place = self.place.get(line)
        if place is None:
            return set()
        names: set[str] = set()
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.stmt) or node.lineno != place.first:
                continue
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
            names |= {
                n.id
                for t in targets
                if t is not None
                for n in ast.walk(t)
                if isinstance(n, ast.Name)
            }
        return names


@cache
def source(file: str) -> Source:
    """A file of the package as it stands in this tree."""
    return Source((ROOT / file).read_text(encoding="utf-8"))


# Asking


OWN, NEAR, RECORDED = 0.1, 0.2, 0.3
"""Shares of its cost at which a file of tests is ranked, which is asked the sooner: the module's own, one that imports
the module, and one that holds all numbers to recorded ones."""
FILE_S = 0.1
"""CPU seconds that a file of tests takes to be collected."""
LEAST_S = 0.01
"""CPU seconds that any test takes, to be started and ended."""
LINES_OF_A_LOOK = 10
"""New lines that the results which a test looks at, and others do not, are worth."""
BATCHES_S = (2.0, 8.0, 30.0, 100.0)
"""CPU seconds up to which tests are asked together: the cheapest first, since most changes are seen by few."""
FEW_USERS = 60
"""Lines that use a name up to which all count as users of it; of more, those of its own file alone."""


class Executed:
    """The map: for a line of the package, the tests that execute it."""

    def __init__(self) -> None:
        self.tests: list[tuple[str, str, float]] = []
        """(file, test in it, CPU seconds)."""
        self.missing = [f for f in files_of_tests() if stale(f)]
        self.failing: list[str] = []
        self._at: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self._number: dict[tuple[str, str], int] = {}
        """(file, key) of a line -> its number."""
        self._lines_of: list[npt.NDArray[np.intp]] = []
        """Of each test the numbers of the lines that it executes."""
        for file in files_of_tests():
            if piece_of(file).exists():
                self._add(file, read(file))

    def _add(self, file: str, piece: dict[str, Any]) -> None:
        imports(file)  # now: the tree may change while changes run in a copy of it
        begin = len(self.tests)
        self.tests += [(file, name, seconds) for name, seconds in piece["tests"]]
        self.failing += piece["failed"]
        ran: list[list[int]] = [[] for _ in piece["tests"]]
        for name, keys in piece["lines"].items():
            for key, which in keys.items():
                self._at[name][key] += [begin + n for n in which]
                number = self._number.setdefault((name, key), len(self._number))
                for n in which:
                    ran[n].append(number)
        self._lines_of += [np.array(numbers, dtype=np.intp) for numbers in ran]

    def at(self, file: str, first: int, last: int) -> set[int]:
        """Tests that execute one of the lines of a file."""
        keys = self._at.get(file, {})
        of = source(file)
        return {n for line in range(first, last + 1) for n in keys.get(of.key(line), ())}

    def of(self, file: str, line: int) -> set[int]:
        """Tests that execute the statement of a line; where none is seen to, those of its function; for a line outside
        functions, those that execute a line which uses a name that it gives, else those of the file's functions; and
        those whose file imports the module."""
        of = source(file)
        function = of.function_at(line)
        if function is not None:
            place = of.place[line]
            return self.at(file, place.first, place.last) or self.at(file, *function)
        users = self._users(file, of.names_at(line), set())
        if not users:
            users = {n for span in of.functions.values() for n in self.at(file, *span)}
        own = {n for n, test in enumerate(self.tests) if module_of(file) in imports(test[0])}
        return users | own | self.telling(file, line)

    def telling(self, file: str, line: int) -> set[int]:
        """Of the tests of a condition's line those for which it was true, which see most of its changes; of a line
        outside functions those that hold tables."""
        if source(file).function_at(line) is None:
            return {n for n, (of, name, _) in enumerate(self.tests) if of + name == FORMS}
        place = source(file).place.get(line)
        return self.at(file, *place.guarded) if place is not None and place.guarded else set()

    def _users(self, file: str, names: set[str], seen: set[str]) -> set[int]:
        users: set[int] = set()
        for name in names - seen:
            seen.add(name)
            uses = words().get(name, [])
            same_file = [u for u in uses if u[0] == file]
            for where, line in uses if len(uses) <= FEW_USERS else same_file:
                of = source(where)
                if of.function_at(line) is not None:
                    users |= self.at(where, line, line)
                elif len(seen) < 8:  # a table made of the name: what uses the table
                    users |= self._users(where, of.names_at(line), seen)
            span = next(
                (s for n, s in source(file).functions.items() if n.endswith(f".{name}")), None
            )
            if span:  # a default of a function's argument
                users |= self.at(file, *span)
        return users

    def beside(self, tests: set[int]) -> set[int]:
        """The other tests of their files: what a file computes once is its first test's, and held by all."""
        files = {self.tests[n][0] for n in tests}
        return {n for n, test in enumerate(self.tests) if test[0] in files} - tests

    def batches(
        self, file: str, tests: set[int], most_s: float
    ) -> Iterator[tuple[list[str], float]]:
        """The tests in the order to ask them, in lists that are run together, each with its CPU seconds."""
        together: dict[str, list[int]] = defaultdict(list)
        used, before, limits = 0.0, 0.0, [s for s in BATCHES_S if s < most_s] + [most_s]
        for n in self._ranked(file, tests):
            of, seconds = self.tests[n][0], self.tests[n][2]
            more = seconds if of in together else seconds + FILE_S
            if before + used + more > limits[0] and together:
                yield self._names(together), used
                before, used, more = before + used, 0.0, seconds + FILE_S
                together.clear()
            limits = [s for s in limits if s >= before + used + more] or limits[-1:]
            if before + used + more > limits[0]:  # another may be short enough
                continue
            together[of].append(n)
            used += more
        if together:
            yield self._names(together), used

    def _names(self, by_file: dict[str, list[int]]) -> list[str]:
        return ["".join(self.tests[n][:2]) for which in by_file.values() for n in which]

    def _ranked(self, file: str, tests: set[int]) -> Iterator[int]:
        """Tests in the order to ask them: next is always the one that executes most lines of the package that none
        before it does, for its cost. Tests that execute the same see much the same changes; but each looks at other
        results, which counts as a few lines."""
        left, open_files = set(tests), set[str]()
        shares = {of: share_of_cost(file, of) for of in {self.tests[n][0] for n in tests}}
        fresh = np.ones(len(self._number), dtype=bool)

        def score(n: int) -> tuple[float, int]:
            of, _, seconds = self.tests[n]
            cost = LEAST_S + seconds + (0.0 if of in open_files else FILE_S)
            lines = LINES_OF_A_LOOK + int(fresh[self._lines_of[n]].sum())
            return -lines / (cost * shares[of]), n

        # A score only falls as lines are executed, but for a file's first test, which opens it.
        waiting = [score(n) for n in left]
        heapify(waiting)
        while waiting:
            _, n = heappop(waiting)
            if n not in left:
                continue
            now = score(n)
            if waiting and now > waiting[0]:
                heappush(waiting, now)
                continue
            yield n
            left.remove(n)
            fresh[self._lines_of[n]] = False
            of = self.tests[n][0]
            if of not in open_files:
                open_files.add(of)
                for other in left:
                    if self.tests[other][0] == of:
                        heappush(waiting, score(other))


def share_of_cost(file: str, test_file: str) -> float:
    """Share of its cost at which a file of tests is ranked for a change of a module."""
    module_path = Path(file)
    if Path(test_file) == Path("tests", *module_path.parts[1:-1], f"test_{module_path.name}"):
        return OWN
    if module_of(file) in imports(test_file):
        return NEAR
    return RECORDED if test_file in GOLDEN else 1.0


def module_of(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


def files_of_module(file: str) -> list[str]:
    """Files of tests that import a module of the package or its room, which run where the map knows no test."""
    around = {module_of(file), module_of(str(Path(file).parent))}
    return [test for test in files_of_tests() if around & imports(test)]


@cache
def imports(test_file: str) -> frozenset[str]:
    """Modules of the package that a file of tests imports from."""
    text = (ROOT / test_file).read_text(encoding="utf-8")
    return frozenset(re.findall(r"(?:from|import) (iosim[\w.]*)", text))


@cache
def words() -> dict[str, list[tuple[str, int]]]:
    """Lines of the package in which a word stands, as (file, line); comments and texts are not told from code."""
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path in sorted(ROOT.glob("iosim/**/*.py")):
        name = path.relative_to(ROOT).as_posix()
        for number, line in enumerate(source(name).lines, 1):
            for word in set(re.findall(r"[A-Za-z_]\w*", line)):
                places[word].append((name, number))
    return places
