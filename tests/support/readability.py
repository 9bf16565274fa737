"""What makes Python hard to read, in figures: `python tests/support/readability.py` prints them by room.

Lines and files are printed for information and bounded nowhere: a budget of lines makes people write denser lines.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "iosim"

DIALECT = frozenset(
    (
        "one",
        "found",
        "asked",
        "told",
        "own",
        "what",
        "each",
        "left",
        "most",
        "there",
        "usual",
        "kept",
        "moved",
        "shown",
        "made",
        "given",
        "said",
    )
)
"""Names of parameters and variables that could hold anything; a field's word (option, requested, default, share, count,
index) says what they hold."""
DIRECTIVES = ("fmt:", "type:", "noqa", "pragma")
"""Comments that speak to a tool, not to a reader."""
NO_TOKEN = frozenset(
    {
        tokenize.NEWLINE,
        tokenize.NL,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
)


@dataclass(frozen=True)
class Figures:
    """Counts of one file or of several; they add up."""

    lines: int = 0
    code_lines: int = 0
    """Lines on which a token starts: neither empty, nor a comment, nor the inside of a docstring."""
    tokens: int = 0
    comments: int = 0
    hidden_conditions: int = 0
    dialect_names: int = 0
    files: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def tokens_per_line(self) -> float:
        return self.tokens / max(self.code_lines, 1)

    @property
    def comments_per_thousand_lines(self) -> float:
        return 1000 * self.comments / max(self.lines, 1)


def is_truth_value(node: ast.expr) -> bool:
    """The expression is True or False by its form: a comparison, `not x`, `a and b`, `bool(x)`, `any(...)`."""
    if isinstance(node, ast.Compare):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.BoolOp):
        return isinstance(node.op, ast.And)
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("bool", "any", "all")


def hides_a_condition(node: ast.AST) -> bool:
    """A truth value is a factor or an exponent, or a tuple is indexed by an expression: `(a, b)[flag]`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Pow):
        return is_truth_value(node.left) or is_truth_value(node.right)
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Tuple)
        and not isinstance(node.slice, ast.Constant)
    )


def is_dialect(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Store) and node.id in DIALECT
    return isinstance(node, ast.arg) and node.arg in DIALECT


def figures_of(text: str) -> Figures:
    """The figures of one file's text."""
    tokens = comments = 0
    starts = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if not any(word in token.string for word in DIRECTIVES):
                comments += 1
        elif token.type not in NO_TOKEN:
            tokens += 1
            starts.add(token.start[0])
    nodes = list(ast.walk(ast.parse(text)))
    return Figures(
        lines=text.count("\n"),
        code_lines=len(starts),
        tokens=tokens,
        comments=comments,
        hidden_conditions=sum(hides_a_condition(node) for node in nodes),
        dialect_names=sum(is_dialect(node) for node in nodes),
        files=1,
    )


@cache
def figures_of_file(path: Path) -> Figures:
    return figures_of(path.read_text(encoding="utf-8"))


def total(paths: Iterable[Path]) -> Figures:
    return sum((figures_of_file(path) for path in paths), Figures())


@cache
def package_figures() -> Figures:
    return total(PACKAGE.rglob("*.py"))


MADE = ("build", "dist", "site")
"""Folders that building a wheel or the site leaves."""


@cache
def beside_figures() -> Figures:
    """The figures of all Python beside the package: tests, experiments, benchmarks, examples and scripts."""
    return total(
        path
        for folder in ROOT.iterdir()
        if folder.is_dir() and folder != PACKAGE and folder.name not in MADE
        if not folder.name.startswith(".")
        for path in folder.rglob("*.py")
    )


def line(name: str, figures: Figures) -> str:
    return (
        f"{name:14} {figures.tokens_per_line:6.1f} {figures.comments_per_thousand_lines:9.1f} "
        f"{figures.hidden_conditions:7} {figures.dialect_names:8} {figures.lines:8,} {figures.files:6}"
    )


def main() -> None:
    print("               tokens  comments  hidden   dialect")
    print("room           a line  in 1,000  conditions names    lines  files")
    for room in sorted(path for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()):
        print(line(room.name, total(room.rglob("*.py"))))
    print(line("iosim", package_figures()))
    print(line("beside it", beside_figures()))


if __name__ == "__main__":
    main()
