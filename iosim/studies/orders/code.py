"""An order as code: lines of Triton, a CUDA device function, or a formula.

All three come of `iosim.kernel.remap.place`, the arithmetic that the replay plays, taken with symbols: nothing is
written twice. Numbers of tiles, heads and blocks stay names, so that the code holds for any grid.
"""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

from iosim.base.errors import unknown_name
from iosim.base.records import dataclass
from iosim.kernel.remap import place
from iosim.kernel.schedule import Direction, Schedule, Scheduler

LANGUAGES = ("triton", "cuda", "formula")


@dataclass(frozen=True)
class Language:
    """How a language writes the quotient of whole numbers, and the smaller of two."""

    quotient: str
    least: str


PYTHON = Language("//", "min")
TRITON = Language("//", "tl.minimum")
CUDA = Language("/", "min")
SUM, PRODUCT, NAME = 1, 2, 3


def _operator(sign: str, binds: int, *, turned: bool = False) -> Callable[[Term, Term | int], Term]:
    return lambda term, other: term._with(sign, other, binds, turned=turned)


@dataclass(frozen=True)
class Term:
    """A piece of an expression: its text, and how tightly its outermost operator binds."""

    text: str
    binds: int
    language: Language

    def _with(self, operator: str, other: Term | int, binds: int, *, turned: bool = False) -> Term:
        second = other if isinstance(other, Term) else Term(str(other), NAME, self.language)
        left, right = (second, self) if turned else (self, second)
        keeps = operator == "*" and left.binds == PRODUCT and "%" not in left.text
        bare = left.binds > binds or (left.binds == binds and (binds == SUM or keeps))
        first = left.text if bare else f"({left.text})"
        last = right.text if right.binds > binds else f"({right.text})"
        return Term(f"{first} {operator} {last}", binds, self.language)

    def __add__(self, other: Term | int) -> Term:
        return self if other == 0 else self._with("+", other, SUM)

    def __radd__(self, other: int) -> Term:
        return self if other == 0 else self._with("+", other, SUM, turned=True)

    def __floordiv__(self, other: Term | int) -> Term:
        return self._with(self.language.quotient, other, PRODUCT)

    __sub__, __rsub__ = _operator("-", SUM), _operator("-", SUM, turned=True)
    __mul__, __rmul__ = _operator("*", PRODUCT), _operator("*", PRODUCT, turned=True)
    __mod__ = _operator("%", PRODUCT)


def steps(schedule: Schedule, language: Language, number: str = "tile") -> list[tuple[str, str]]:
    """(name, expression) of each step from a tile's number to `head` and `block`, in `blocks`, `heads` and `batch`."""
    lines: list[tuple[str, str]] = []

    def let(name: str, value: Term) -> Term:
        if value.text != name:
            lines.append((name, value.text))
        return Term(name, NAME, language)

    def least(a: Term | int, b: Term | int) -> Term:
        first, second = (one.text if isinstance(one, Term) else str(one) for one in (a, b))
        return Term(f"{language.least}({first}, {second})", NAME, language)

    def symbol(name: str) -> Term:
        return Term(name, NAME, language)

    place(schedule, symbol(number), blocks=symbol("blocks"), heads=symbol("heads"), batch=symbol("batch"), let=let,
          least=least)  # fmt: skip
    return lines


def sizes(schedule: Schedule) -> tuple[str, ...]:
    """The names that an order's steps use beside the tile's number, in the order of the functions' arguments."""
    used = " ".join(text for _, text in steps(schedule, PYTHON))
    return tuple(
        name for name in ("blocks", "heads", "batch") if name in used.replace("(", " ").replace(")", " ").split()
    )


def grid(schedule: Schedule) -> str:
    if schedule.cluster == 1:
        return "blocks * heads"
    return f"(blocks + {schedule.cluster - 1}) // {schedule.cluster} * {schedule.cluster} * heads"


def key_block(schedule: Schedule, language: Language) -> str:
    """The key block of step t of a tile that visits [first, last), as an expression."""
    if schedule.direction is Direction.ASCENDING:
        return "first_key + t"
    if schedule.direction is Direction.DESCENDING:
        return "last_key - 1 - t"
    whose = "block" if schedule.cluster == 1 else f"(block {language.quotient} {schedule.cluster})"
    odd = f"{whose} % 2"
    return f"first_key + t + {odd} * (last_key - 1 - first_key - 2 * t)"


def triton(schedule: Schedule) -> str:
    lines = [f"{name} = {text}" for name, text in steps(schedule, TRITON)]
    lines += [f"# step t of the loop over keys: key_block = {key_block(schedule, TRITON)}"]
    ends = ["if block >= blocks: return  # the last cluster is not full"] if schedule.cluster > 1 else []
    total = grid(schedule)
    head = "# blocks: query blocks of a head; heads: batch x query heads" + _heads_note(schedule)
    if schedule.scheduler is Scheduler.STATIC:
        return _text([head, f"# grid: ({total},)", "tile = tl.program_id(0)", *lines, *ends])
    if schedule.scheduler is Scheduler.PERSISTENT:
        loop = [f"for tile in range(tl.program_id(0), {total}, tl.num_programs(0)):"]
        body = [*lines, "...  # the tile"]
        return _text(
            [head, "# grid: as many programs as the GPU holds at once", *loop, indent("\n".join(body), " " * 4)]
        )
    body = [*lines, "...  # the tile", "tile = tl.atomic_add(counter, 1)"]
    start = [
        "# grid: as many programs as the GPU holds at once; counter: an int32 that is 0 before the launch",
        "tile = tl.atomic_add(counter, 1)",
        f"while tile < {total}:",
    ]
    return _text([head, *start, indent("\n".join(body), " " * 4)])


def cuda(schedule: Schedule) -> str:
    names = "".join(f", int {name}" for name in sizes(schedule))
    given = "".join(f", {name}" for name in sizes(schedule))
    body = [f"const int {name} = {text};" for name, text in steps(schedule, CUDA)]
    total = grid(schedule).replace("//", "/")
    calls = {
        Scheduler.STATIC: [f"// Grid: {total} CTAs.", f"// const int2 at = remap(blockIdx.x{given});"],
        Scheduler.PERSISTENT: [
            "// Grid: as many CTAs as the GPU holds at once.",
            f"// for (int tile = blockIdx.x; tile < {total}; tile += gridDim.x) {{",
            f"//   const int2 at = remap(tile{given}); ...",
        ],
        Scheduler.DYNAMIC: [
            "// Grid: as many CTAs as the GPU holds at once; counter: 0 before the launch. A thread of a CTA fetches",
            f"// tile = atomicAdd(counter, 1) until tile >= {total}; const int2 at = remap(tile{given}) ...",
        ],
    }[schedule.scheduler]
    return _text([
        f"// blocks: query blocks of a head; heads: batch x query heads{_heads_note(schedule)}.", *calls,
        *([f"// Clusters of {schedule.cluster} CTAs; blocks from `blocks` on do not exist."] * (schedule.cluster > 1)),
        f"// Step t of the loop over keys: key_block = {key_block(schedule, CUDA)}.",
        f"__device__ __forceinline__ int2 remap(int tile{names}) {{  // x: head, y: block",
        indent("\n".join([*body, "return make_int2(head, block);"]), " " * 2), "}",
    ])  # fmt: skip


def formula(schedule: Schedule) -> str:
    """The order as arithmetic on whole numbers, // the quotient rounded down."""
    takes = {
        Scheduler.STATIC: "tile: the number of a CTA, 0 first",
        Scheduler.PERSISTENT: "tile: c, c + n, c + 2 n, ... of CTA c of n",
        Scheduler.DYNAMIC: "tile: 0, 1, 2, ..., the next one to the CTA that is free first",
    }[schedule.scheduler]
    lines = [f"{name} = {text}" for name, text in steps(schedule, PYTHON)]
    return _text([takes, f"tiles: {grid(schedule)}", *lines, f"key_block = {key_block(schedule, PYTHON)}"])


def code(schedule: Schedule, language: str) -> str:
    written: dict[str, Callable[[Schedule], str]] = {"triton": triton, "cuda": cuda, "formula": formula}
    if language not in written:
        raise unknown_name("`code`", language, LANGUAGES)
    return written[language](schedule)


def _heads_note(schedule: Schedule) -> str:
    multiple = schedule.section_heads or schedule.chiplets
    shared_out = f", a multiple of {multiple}" if schedule.chiplets > 1 else ""
    return shared_out + ("; batch: sequences" if "batch" in sizes(schedule) else "")


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
