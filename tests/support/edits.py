"""Small edits of a source, of Python, C or TOML: a comparison, an operator, a constant, a condition, a branch at a time.

tests/mutate.py plants them. An edit is (start, end, text): what stands in [start, end) of the source gives way to text.
"""

from __future__ import annotations

import ast
import re

# Python

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
"""Of each its word, and what takes its place."""
OPERATORS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
}
BY_CHANCE = 100_000
"""A whole number from here on is not changed by one: a limit on accesses or bytes is met to the last by chance alone."""
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "round": "int"}
TEXTS = ("__repr__", "__str__", "to_text", "as_text", "notes", "_time_lines")
"""Functions that make sentences: their numbers are those of others."""

ASSERTED = ("strict", "repr")
"""Arguments that assert something, as of zip, or are for who reads messages."""


class Finder(ast.NodeVisitor):
    """Collects the edits of a module as (start, end, text) in characters."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.wide = not source.isascii()
        self.found: list[tuple[int, int, str]] = []

    def at(self, line: int, column: int) -> int:
        begin = self.lines[line - 1]
        if self.wide:
            text = self.source[begin : self.lines[line]]
            column = len(text.encode()[:column].decode())
        return begin + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def put(self, node: ast.expr | ast.stmt, text: str) -> None:
        self.found.append((*self.span(node), text))

    def between(self, left: ast.expr, right: ast.expr, word: str, text: str) -> None:
        """An operator between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        place = re.search(
            re.escape(word) if not word.isalpha() else rf"\b{word}\b", self.source[start:end]
        )
        if place:
            self.found.append((start + place.start(), start + place.end(), text))

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    # What is left alone: messages, types, sentences.

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in ASSERTED:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in TEXTS:
            return
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)

    # What is changed.

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for op, left, right in zip(node.ops, operands, operands[1:], strict=False):
            (start, end), (word, other) = (
                (self.span(left)[1], self.span(right)[0]),
                COMPARISONS[type(op)],
            )
            place = self.source[start:end].find(word)
            if place >= 0:
                self.found.append((start + place, start + place + len(word), other))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add) and any(
            isinstance(x, ast.Constant | ast.JoinedStr)
            and not isinstance(getattr(x, "value", ""), int | float)
            for x in (node.left, node.right)
        ):
            return  # texts put together
        if type(node.op) in OPERATORS:
            self.between(node.left, node.right, *OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        inner = node.operand
        if (
            isinstance(node.op, ast.USub)
            and isinstance(inner, ast.BinOp)
            and isinstance(inner.op, ast.FloorDiv)
        ):
            if isinstance(inner.left, ast.UnaryOp):  # rounded up: now down
                self.put(node, f"(({self.text(inner.left.operand)}) // {self.text(inner.right)})")
                self.visit(inner.left.operand)
                self.visit(inner.right)
                return
        elif isinstance(node.op, ast.USub) and not isinstance(inner, ast.Constant):
            self.put(node, self.text(inner))
        elif isinstance(node.op, ast.Not):
            self.put(node, f"bool({self.text(inner)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between(left, right, word, other)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.put(node, str(not value))
        elif isinstance(value, int):
            if value < BY_CHANCE:
                self.put(node, str(value + 1))
            if value >= 16:
                self.put(node, str(value // 10))
        elif isinstance(value, float):
            self.put(node, repr(value * 1.25 if value else 1.0))

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        for text in ("False", "True"):
            self.put(node.test, text)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        if any(
            isinstance(x, ast.JoinedStr) or isinstance(getattr(x, "value", None), str)
            for x in (node.body, node.orelse)
        ):
            return  # a choice of words
        start, end = self.span(node)
        body, test, other = self.text(node.body), self.text(node.test), self.text(node.orelse)
        self.found.append((start, end, f"{other} if {test} else {body}"))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in CALLS:
            self.put(node.func, CALLS[node.func.id])
        if isinstance(node.func, ast.Name) and node.func.id in ("warn", "print"):
            return
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1:
            *_, one, two = node.value.elts
            between = self.source[self.span(one)[1] : self.span(two)[0]]
            self.found.append(
                (self.span(one)[0], self.span(two)[1], self.text(two) + between + self.text(one))
            )
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.put(node, "pass")
        if isinstance(node.op, ast.Add | ast.Sub) and not isinstance(
            node.value, ast.List | ast.Tuple | ast.ListComp
        ):
            self.between(
                node.target,
                node.value,
                "+=" if isinstance(node.op, ast.Add) else "-=",
                "-=" if isinstance(node.op, ast.Add) else "+=",
            )
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.put(node, "pass")
            self.generic_visit(node)


def python_edits(source: str) -> list[tuple[int, int, str]]:
    finder = Finder(source)
    finder.visit(ast.parse(source))
    return finder.found


# C

C_WORDS = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "&&": "||",
    "||": "&&",
    "+": "-",
    "-": "+",
    "*": "+",
    "/": "*",
    "%": "/",
    "+=": "-=",
    "-=": "+=",
    "<<": ">>",
    ">>": "<<",
    "&": "|",
    "|": "&",
    "^": "|",
}
C_TOKEN = re.compile(r"(?<= )(<<|>>|<=|>=|==|!=|&&|\|\||\+=|-=|[-+*/%<>&|^])(?= )")
C_STATEMENT = re.compile(r"(?m)(?:^ +|[;{)] )(\w+\([^;{}\n]*\);|[\w>.\[\]-]+ [-+&]?= [^;{}\n]*;)")
"""A call or an assignment, declarations apart."""
C_NUMBER = re.compile(r"(?<![\w.])(0x[0-9a-f]+|\d+)(?=[UL]*\b)")


def blanked(source: str) -> str:
    """The source with comments, includes and declarations of structures as blanks."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    for pattern in (
        r"(?s)/\*.*?\*/",
        r"(?m)^#(?!define).*$",
        r"(?s)typedef struct.*?\} \w+;",
        r"(?m)^enum.*$",
        r"(?s)(?<=void iosim_sizes).*",
    ):
        source = re.sub(pattern, blank, source)
    return source


def c_edits(source: str) -> list[tuple[int, int, str]]:
    code = blanked(source)
    found = [(m.start(), m.end(), C_WORDS[m[0]]) for m in C_TOKEN.finditer(code)]
    for m in C_NUMBER.finditer(code):
        value = int(m[0], 0)
        if value < BY_CHANCE:
            found.append((m.start(), m.end(), str(value + 1)))
        if value >= 16:
            found.append((m.start(), m.end(), str(value // 10)))
    for m in re.finditer(r"\b(?:if|while) \(", code):
        end = closing(code, m.end() - 1)
        found += [
            (m.end(), end, text) for text in (("0", "1") if m[0].startswith("if") else ("0",))
        ]
    for m in re.finditer(r"(\+\+|--)", code):
        found.append((m.start(), m.end(), "--" if m[0] == "++" else "++"))
    # what gives memory back alters no answer
    kept = (m for m in C_STATEMENT.finditer(code) if not m[1].startswith("free("))
    found += [(*m.span(1), ";") for m in kept]
    for m in re.finditer(r"\? ([^?:;(),]+) : ([^?:;(),]+)(?=[;),])", code):
        found.append((m.start(1), m.end(2), f"{m[2]} : {m[1]}"))
    return [x for x in found if source[x[0] : x[1]] != x[2]]


def closing(code: str, at: int) -> int:
    depth = 0
    for n in range(at, len(code)):
        depth += {"(": 1, ")": -1}.get(code[n], 0)
        if depth == 0:
            return n
    raise ValueError("a bracket that nothing closes")


# TOML

TOML_VALUE = re.compile(r"(?<![\w.+-])(true|false|\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.-])")


def toml_edits(source: str) -> list[tuple[int, int, str]]:
    """Another value for each number and each truth: texts are names and sources."""
    code = re.sub(
        r'"[^"\n]*"|#.*|^schema = .*', lambda text: " " * len(text[0]), source, flags=re.M
    )
    return [(*m.span(1), other_value(m[1])) for m in TOML_VALUE.finditer(code)]


def other_value(text: str) -> str:
    """Twice a size, so that it is one still, and a step more of a small number."""
    if text in ("true", "false"):
        return "false" if text == "true" else "true"
    if text.isdigit():
        return str(2 * int(text) if int(text) >= 16 else int(text) + 1)
    return repr(1.25 * float(text) or 1.0)
