"""Which changes would alter a value anywhere in a run of tests: one run answers for all of them.

A change that alters no value that any test computes is seen by none: a bound that nothing meets, a condition that is
always true, the larger of two equal numbers. Modules of the package are imported in a form that computes, beside each
such value, what the change would make of it, until the two differ once. Constants, swapped branches and dropped calls
alter a value wherever they run, and are left to the map of executed lines.

Each process of the run writes what it found to a file of the folder that IOSIM_ALTERED names.
"""

from __future__ import annotations

import ast
import atexit
import hashlib
import importlib.abc
import importlib.machinery
import json
import marshal
import operator
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing import util
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from areas import ROOT
from edits import CALLS, COMPARISONS, OPERATORS, Finder, python_edits

PACKAGE = ROOT / "iosim"
FOLDER = "IOSIM_ALTERED"
WATCHED = "__watched__"
"""The name by which a module in its watching form calls what stands below."""
BASE = "__first_watched__"
"""The number of the first of its changes in this process."""

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "is": operator.is_,
    "is not": operator.is_not,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
INSTEAD = dict(COMPARISONS.values())
Edit = tuple[str, int, int, str]
"""(file, start, end, text)."""


class Watch:
    """What the watching forms of modules call. Each value comes with the numbers of the changes that concern it."""

    def __init__(self) -> None:
        self.edits: list[Edit] = []
        self.altered: set[int] = set()

    def number(self, edit: Edit) -> int:
        self.edits.append(edit)
        return len(self.edits) - 1

    def differs(self, number: int, value: Any, other: Callable[[], Any]) -> None:
        if number in self.altered:
            return
        try:
            same = other() == value
            if hasattr(same, "all"):
                same = same.all()
            same = bool(same)
        except Exception:  # the change ends in an error, which is seen
            same = False
        if not same:
            self.altered.add(number)

    def two(self, number: int, word: str, instead: str, first: Any, second: Any) -> Any:
        """left word right."""
        value = FUNCTIONS[word](first, second)
        if number not in self.altered:
            self.differs(number, value, lambda: FUNCTIONS[instead](first, second))
        return value

    def chain(self, numbers: Sequence[int], words: Sequence[str], *operands: Any) -> Any:
        """a < b <= c; each change is held against the comparison that it is of."""
        last = len(words) - 1
        for n, word in enumerate(words):
            value = self.two(numbers[n], word, INSTEAD[word], operands[n], operands[n + 1])
            if n == last or not value:
                return value
        raise AssertionError("a comparison of nothing")

    def up(self, number: int, first: Any, second: Any) -> Any:
        """left / right, rounded up."""
        value = -(-first // second)
        self.differs(number, value, lambda: first // second)
        return value

    def test(self, if_true: int, if_false: int, value: Any) -> Any:
        """A condition: always false is seen where it is true."""
        truth = bool(value)
        self.altered.add(if_true if truth else if_false)
        return value

    def operand(
        self, before: int | None, after: int | None, is_and: bool, is_test: bool, value: Any
    ) -> Any:
        """An operand of `and` or `or` between two of their words, with the number of the change of each.

        The word before it matters where this operand decides; the one after it where this operand is the result, which
        then gives way to the next: what that is, is not known, but a truth value is as likely the same.
        """
        if bool(value) is is_and:
            return value
        if before is not None:
            self.altered.add(before)
        if after is not None and not is_test and not isinstance(value, bool):
            self.altered.add(after)
        return value

    def call(self, number: int, name: str, instead: str) -> Callable[..., Any]:
        import builtins

        function, other = getattr(builtins, name), getattr(builtins, instead)

        def called(*args: Any, **named: Any) -> Any:
            if len(args) == 1 and name != "round":
                args = (list(args[0]),)
            value = function(*args, **named)
            if number not in self.altered:
                self.differs(number, value, lambda: other(*args, **named))
            return value

        return called

    def last_two(self, number: int, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if number not in self.altered:
            self.differs(number, value[-1], lambda: value[-2])
        return value


WATCH = Watch()


def tested(node: ast.AST) -> list[ast.expr]:
    """Expressions in a node of which only the truth matters."""
    if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
        expressions = [node.test]
    elif isinstance(node, ast.comprehension):
        expressions = list(node.ifs)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        expressions = [node.operand]
    else:
        return []
    for expression in expressions:  # grows
        if isinstance(expression, ast.BoolOp):
            expressions += expression.values
    return expressions


class Form(ast.NodeTransformer):
    """Makes the watching form of a module."""

    def __init__(self, file: str, source: str, tree: ast.Module) -> None:
        self.file, self.places, self.edits = file, Finder(source), set(python_edits(source))
        self.table: list[Edit] = []
        self.tests = {id(x) for node in ast.walk(tree) for x in tested(node)}

    def edit(self, start: int, end: int, text: str) -> int | None:
        if (start, end, text) not in self.edits:  # left out: a message, a sentence
            return None
        self.table.append((self.file, start, end, text))
        return len(self.table) - 1

    def call(
        self, name: str, node: ast.expr, *args: ast.expr | int | str | Sequence[Any]
    ) -> ast.expr:
        """A call of a method of Watch; first numbers are of the module's table."""
        arguments = [
            a if isinstance(a, ast.expr) else ast.parse(repr(a), mode="eval").body for a in args
        ]
        method = ast.Attribute(ast.Name(WATCHED, ast.Load()), name, ast.Load())
        watching_form = ast.Call(method, arguments, [])
        return ast.fix_missing_locations(ast.copy_location(watching_form, node))

    def n(self, number: int) -> ast.expr:
        """The number of a change in the process."""
        return ast.BinOp(ast.Name(BASE, ast.Load()), ast.Add(), ast.Constant(number))

    def ns(self, numbers: Sequence[int]) -> ast.expr:
        return ast.Tuple([self.n(x) for x in numbers], ast.Load())

    def word(self, first: ast.expr, second: ast.expr, word: str, text: str) -> int | None:
        before = len(self.places.found)
        self.places.between(first, second, word, text)
        if len(self.places.found) == before:
            return None
        return self.edit(*self.places.found[-1])

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        operands = [node.left, *node.comparators]
        numbers = []
        for op, first, second in zip(node.ops, operands, operands[1:], strict=False):
            start, end = self.places.span(first)[1], self.places.span(second)[0]
            word, other = COMPARISONS[type(op)]
            place = self.places.source[start:end].find(word)
            at = start + place
            numbers.append(self.edit(at, at + len(word), other) if place >= 0 else None)
        words = [COMPARISONS[type(op)][0] for op in node.ops]
        self.generic_visit(node)
        if None in numbers:
            return node
        return self.call(
            "chain",
            node,
            self.ns([n for n in numbers if n is not None]),
            words,
            node.left,
            *node.comparators,
        )

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        number = None
        if type(node.op) in OPERATORS:
            word, other = OPERATORS[type(node.op)]
            number = self.word(node.left, node.right, word, other)
        self.generic_visit(node)
        if number is None:
            return node
        return self.call("two", node, self.n(number), word, other, node.left, node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        inner = node.operand
        if (
            isinstance(node.op, ast.USub)
            and isinstance(inner, ast.BinOp)
            and isinstance(inner.op, ast.FloorDiv)
            and isinstance(inner.left, ast.UnaryOp)
        ):
            text = self.places.text
            number = self.edit(
                *self.places.span(node), f"(({text(inner.left.operand)}) // {text(inner.right)})"
            )
            first, second = self.visit(inner.left.operand), self.visit(inner.right)
            if number is not None:
                return self.call("up", node, self.n(number), first, second)
            inner.left.operand, inner.right = first, second
            return node
        self.generic_visit(node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        is_and, is_test = isinstance(node.op, ast.And), id(node) in self.tests
        word, other = ("and", "or") if is_and else ("or", "and")
        numbers = [
            self.word(first, second, word, other)
            for first, second in zip(node.values, node.values[1:], strict=False)
        ]
        values = [self.visit(value) for value in node.values]
        around = [None, *numbers, None]
        node.values = [
            self.call(
                "operand",
                value,
                *(ast.Constant(None) if x is None else self.n(x) for x in around[n : n + 2]),
                is_and,
                is_test,
                value,
            )
            for n, value in enumerate(values)
        ]
        return node

    def visit_If(self, node: ast.If) -> ast.stmt:
        span = self.places.span(node.test)
        numbers = [self.edit(*span, text) for text in ("False", "True")]
        self.generic_visit(node)
        if None not in numbers:
            node.test = self.call(
                "test", node.test, *(self.n(x) for x in numbers if x is not None), node.test
            )
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        number = None
        if isinstance(node.func, ast.Name) and node.func.id in CALLS:
            number = self.edit(*self.places.span(node.func), CALLS[node.func.id])
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        self.generic_visit(node)
        if number is not None:
            node.func = self.call("call", node.func, self.n(number), name, CALLS[name])
        return node

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        number = None
        if isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1:
            *_, before_last, last = node.value.elts
            span, text = self.places.span, self.places.text
            between = self.places.source[span(before_last)[1] : span(last)[0]]
            number = self.edit(
                span(before_last)[0], span(last)[1], text(last) + between + text(before_last)
            )
        self.generic_visit(node)
        if (
            number is not None
            and node.value is not None
            and not any(
                isinstance(x, ast.Starred)
                for x in node.value.elts  # type: ignore[attr-defined]
            )
        ):
            node.value = self.call("last_two", node.value, self.n(number), node.value)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_MatchValue(self, node: ast.MatchValue) -> ast.pattern:
        return node


def watching_form(file: str, path: Path) -> tuple[CodeType, list[Edit]]:
    source = path.read_text(encoding="utf-8")
    digest = hashlib.sha256((source + Path(__file__).read_text()).encode()).hexdigest()[:16]
    compiled = Path(
        os.environ[FOLDER], "forms", f"{file.replace('/', '.')}.{digest}.{sys.version_info[1]}"
    )
    if compiled.exists():
        return marshal.loads(compiled.read_bytes())  # type: ignore[no-any-return]
    tree = ast.parse(source)
    form = Form(file, source, tree)
    tree = form.visit(tree)
    code = compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
    compiled.parent.mkdir(parents=True, exist_ok=True)
    unfinished = compiled.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(marshal.dumps((code, form.table)))
    unfinished.replace(compiled)
    return code, form.table


class Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        path = Path(self.path)
        code, table = watching_form(path.relative_to(ROOT).as_posix(), path)
        module.__dict__[WATCHED] = WATCH
        module.__dict__[BASE] = len(WATCH.edits)
        WATCH.edits += table
        exec(code, module.__dict__)


class Importer(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "iosim" and not name.startswith("iosim."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or not spec.origin or not spec.origin.endswith(".py"):
            return spec
        if not Path(spec.origin).is_relative_to(PACKAGE):
            return spec
        spec.loader = Loader(name, spec.origin)
        return spec


def write() -> None:
    folder = Path(os.environ[FOLDER])
    edits = [WATCH.edits[n] for n in sorted(WATCH.altered)]
    unfinished = folder / f"{os.getpid()}.part"
    unfinished.write_text(json.dumps(edits), encoding="utf-8")
    unfinished.replace(folder / f"{os.getpid()}.json")


def start() -> None:
    """Has the package imported in its watching form from now on."""
    sys.meta_path.insert(0, Importer())
    atexit.register(write)
    util.Finalize(None, write, exitpriority=0)
    os.register_at_fork(after_in_child=lambda: util.Finalize(None, write, exitpriority=0))


STARTER = f"""import sys
sys.path.append({str(Path(__file__).parent)!r})
import altered
altered.start()
sys.path.remove({str(Path(__file__).parent)!r})
"""
"""What each interpreter runs first, as its `sitecustomize`."""


def altered_in(words: Sequence[str]) -> set[Edit]:
    """Runs pytest with these words and returns the changes that alter a value in it."""
    with tempfile.TemporaryDirectory(prefix="iosim-altered-") as folder:
        Path(folder, "sitecustomize.py").write_text(STARTER, encoding="utf-8")
        paths = [folder, str(ROOT), os.environ.get("PYTHONPATH", "")]
        here = os.environ | {FOLDER: folder, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        subprocess.run([sys.executable, "-m", "pytest", *words], env=here, cwd=ROOT, check=False)
        return {
            (file, start, end, text)
            for piece in Path(folder).glob("*.json")
            for file, start, end, text in json.loads(piece.read_text(encoding="utf-8"))
        }


def watched(file: str) -> set[Edit]:
    """The changes of a file that are watched."""
    source = (ROOT / file).read_text(encoding="utf-8")
    tree = ast.parse(source)
    form = Form(file, source, tree)
    form.visit(tree)
    return set(form.table)
