"""PTX text as data: entries, their parameters, instructions with guards, labels by scope, blocks and what is live.

It reads what `nvcc -ptx` and Triton's `asm["ptx"]` write (PTX ISA 9.0, chapters 4 to 9) and knows nothing of what an
instruction does (`iosim.code.ptx_operations`) nor of lanes (`iosim.code.ptx_lanes`).
"""

from __future__ import annotations

import re
from itertools import pairwise

from iosim.base.errors import InputError
from iosim.base.records import cached_property, dataclass, field

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
ENTRY = re.compile(r"\.entry\s+([\w$.]+)\s*(?:\((.*?)\))?\s*((?:\.\w+[^{;]*?)*)\{", re.S)
PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s*(?:\.ptr\b[^,]*?)?\s+([\w$]+)\s*(?:\[(\d+)\])?\s*$"
)
THREADS = re.compile(r"\.(?:reqntid|maxntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")
TOKEN = re.compile(r"[{};]|(?:[^{};\"]|\"[^\"]*\")+")
LABEL = re.compile(r"\s*([$%\w]+)\s*:(?!:)")
INSTRUCTION = re.compile(r"(?:@(!?)\s*([%$\w]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.S)
REGISTERS = re.compile(r"\.reg\s+\.\w+\s+(.*)", re.S)
SHARED = re.compile(
    r"\.shared\s+(?:\.align\s+(\d+)\s+)?\.(?:attribute\S*\s+)?(\w+)\s+([\w$]+)\s*(?:\[\s*(\d*)\s*\])?"
)
LOCATION = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
WIDTHS = re.compile(r"[a-z]+?(\d+)(?:x2)?$")
ENDS = ("ret", "exit", "trap")


@dataclass(frozen=True)
class Parameter:
    """A parameter of an entry: `type` is PTX's word, such as "u64"; `size` its bytes."""

    name: str
    type: str
    size: int


@dataclass(frozen=True)
class Instruction:
    """One instruction. `opcode` is its parts between dots; `operands` are as written, vectors in braces as a tuple."""

    opcode: tuple[str, ...]
    operands: tuple[str | tuple[str, ...], ...]
    guard: str = ""
    negated: bool = False
    line: str = ""
    target: int = -1
    """The instruction that a branch goes to; -1 for others."""
    row: int = 0
    """Its line in the PTX's text, from 1."""

    @property
    def name(self) -> str:
        return self.opcode[0]

    @property
    def text(self) -> str:
        return ".".join(self.opcode)


@dataclass(frozen=True)
class Entry:
    """A kernel in PTX. `threads` is what it says a CTA has, () where it does not; `shared` gives each shared variable's
    offset; `variables` those of other spaces that have addresses (local depots, constants)."""

    name: str
    parameters: tuple[Parameter, ...]
    instructions: tuple[Instruction, ...]
    threads: tuple[int, ...] = ()
    shared: dict[str, int] = field(default_factory=dict)
    shared_bytes: int = 0
    registers: frozenset[str] = frozenset()

    @cached_property
    def flow(self) -> Flow:
        return Flow(self)


def entries(text: str) -> dict[str, Entry]:
    """The kernels of a module, by name. Raises InputError: no PTX, or a branch to a label that there is not."""
    plain = COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    files = dict(FILE.findall(plain))
    outside = _shared_outside(plain)
    by_name = {}
    for match in ENTRY.finditer(plain):
        body = _body(plain, match.end() - 1)
        by_name[match[1]] = _entry(
            match, body, files, outside, 1 + plain.count("\n", 0, match.end())
        )
    if not by_name:
        raise InputError(
            "the text holds no `.entry`: it is no PTX of a kernel; accepted: nvcc -ptx, Triton's asm[ptx]"
        )
    return by_name


def _body(text: str, at: int) -> str:
    """What stands between the brace at `at` and the one that closes it."""
    depth = 0
    for match in re.finditer(r"[{}]", text[at:]):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return text[at + 1 : at + match.start()]
    raise InputError("the PTX ends inside a kernel: a brace is not closed")


def _shared_outside(text: str) -> dict[str, int]:
    """Shared variables of the module with their bytes; 0 for what is `extern`, given at the launch."""
    sizes = {}
    for match in SHARED.finditer(text):
        sizes[match[3]] = (
            int(match[4] or 0) * _bytes(match[2]) if "[" in match[0] else _bytes(match[2])
        )
    return sizes


def _bytes(kind: str) -> int:
    match = WIDTHS.fullmatch(kind)
    return max(1, int(match[1]) // 8) if match else 1


def _entry(
    match: re.Match[str], body: str, files: dict[str, str], shared: dict[str, int], row: int
) -> Entry:
    parameters = []
    for declared in filter(None, (part.strip() for part in (match[2] or "").split(","))):
        known = PARAMETER.match(re.sub(r"\s+", " ", declared))
        if known is None:
            raise InputError(f"the parameter '{declared}' of kernel {match[1]} cannot be read")
        parameters.append(Parameter(known[2], known[1], _bytes(known[1]) * int(known[3] or 1)))
    threads = THREADS.search(match[3] or "")
    reader = _Reader(files, row)
    reader.read(body)
    used = [name for name in shared if re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", body)]
    offsets, end = {}, 0
    for name in sorted(
        used, key=lambda n: shared[n] == 0
    ):  # what is given at the launch lies behind the others
        end = -(-end // 128) * 128
        offsets[name] = end
        end += shared[name]
    sides = tuple(int(side) for side in threads.groups() if side) if threads else ()
    return Entry(
        match[1],
        tuple(parameters),
        reader.resolved(match[1]),
        sides,
        offsets,
        end,
        frozenset(reader.names),
    )


@dataclass
class _Reader:
    """Instructions, labels and registers of a kernel's body, scope by scope: inline assembly has labels of its own."""

    files: dict[str, str]
    row: int
    names: set[str] = field(default_factory=set)
    labels: dict[tuple[int, str], int] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    scope_of: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=lambda: [-1])
    line: str = ""
    begins: int = 0

    def read(self, body: str) -> None:
        scope, pending = 0, ""
        for token in TOKEN.findall(body):
            if token == "{" and not pending.strip():
                self.parents.append(scope)
                scope = len(self.parents) - 1
            elif token == "}" and not pending.strip():
                scope = max(0, self.parents[scope])
            elif token == ";":
                self._statement(pending, scope)
                pending = ""
            elif token in "{}" or pending.strip():
                pending += token
            else:
                pending = self._labels(token, scope)
            self.row += token.count("\n")

    def _labels(self, text: str, scope: int) -> str:
        """What is left of a piece of text once labels and directives that end with their line are taken off."""
        self.begins = self.row
        while True:
            self.begins += text[: len(text) - len(text.lstrip())].count("\n")
            text = text.lstrip()
            if text.startswith((".loc", ".file", ".pragma")):
                first, _, rest = text.partition("\n")
                if (where := LOCATION.match(first)) is not None:
                    self.line = (
                        f"{self.files.get(where[1], where[1]).rsplit('/', 1)[-1]}:{where[2]}"
                    )
                text = rest
                self.begins += 1
            elif (label := LABEL.match(text)) is not None:
                self.labels[scope, label[1]] = len(self.instructions)
                text = text[label.end() :]
            else:
                return text

    def _statement(self, text: str, scope: int) -> None:
        text = " ".join(text.split())
        if text.startswith(".reg"):
            match = REGISTERS.match(text)
            for name in (match[1] if match else "").split(","):
                self.names.add(name.strip().split("<")[0])
            return
        match = INSTRUCTION.fullmatch(text)
        if not text or text.startswith(".") or match is None:
            return
        # "::" joins words of one modifier (shared::cluster) and must not part them.
        negated, guard, opcode, operands = match.groups()
        parts = tuple(opcode.replace("::", "_").split("."))
        self.instructions.append(
            Instruction(
                parts, _operands(operands), guard or "", bool(negated), self.line, -1, self.begins
            )
        )
        self.scope_of.append(scope)

    def resolved(self, entry: str) -> tuple[Instruction, ...]:
        """The instructions with their branches' targets."""
        done = []
        for number, instruction in enumerate(self.instructions):
            if instruction.name != "bra":
                done.append(instruction)
                continue
            label, scope = str(instruction.operands[0]), self.scope_of[number]
            # Inline assembly has scopes with labels of its own: the innermost one that has it counts.
            while scope >= 0 and (scope, label) not in self.labels:
                scope = self.parents[scope]
            if scope < 0:
                raise InputError(f"kernel {entry} branches to {label}, which it does not have")
            target = self.labels[scope, label]
            done.append(
                Instruction(
                    instruction.opcode,
                    instruction.operands,
                    instruction.guard,
                    instruction.negated,
                    instruction.line,
                    target,
                    instruction.row,
                )
            )
        return tuple(done)


def _operands(text: str) -> tuple[str | tuple[str, ...], ...]:
    """Operands between commas, those in braces or brackets whole."""
    parts, depth, now = [], 0, ""
    for letter in text:
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            parts.append(now.strip())
            now = ""
        else:
            now += letter
    if now.strip():
        parts.append(now.strip())
    return tuple(_operand(part) for part in parts)


def _operand(text: str) -> str | tuple[str, ...]:
    """What stands in braces as a tuple; a vector of one, as inline assembly writes it, is a scalar."""
    if not text.startswith("{"):
        return text
    inside = tuple(BRACED_OR_REGISTER.findall(text))
    return inside[0] if len(inside) == 1 else inside


BRACED_OR_REGISTER = re.compile(r"[%$\w.\-]+")
NAMES = re.compile(r"%?[A-Za-z_$][\w$]*")


class Flow:
    """Blocks of an entry, its loops and what is live where each begins."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        code = entry.instructions
        starts = {0, *(i.target for i in code if i.target >= 0)}
        # A block begins at the entry, at every target and behind every branch or end.
        starts |= {n + 1 for n, i in enumerate(code) if i.target >= 0 or i.name in ENDS}
        self.starts = sorted(s for s in starts if s <= len(code))
        self.reads = [reads(i) for i in code]
        self.writes = [writes(i) for i in code]
        self.loops = self._loops()

    def _loops(self) -> dict[int, int]:
        """First instruction of each loop, and the last branch back to it."""
        ends: dict[int, int] = {}
        for n, i in enumerate(self.entry.instructions):
            if 0 <= i.target <= n:
                ends[i.target] = max(ends.get(i.target, 0), n)
        return ends

    @cached_property
    def needed(self) -> frozenset[str]:
        """Registers that decide an address or which instruction comes next, directly or through others."""
        # From what decides back to what makes it, until nothing new is found: all else is not evaluated.
        makers: dict[str, list[int]] = {}
        for n, names in enumerate(self.writes):
            for name in names:
                makers.setdefault(name, []).append(n)
        wanted: set[str] = set()
        for i in self.entry.instructions:
            wanted |= decides(i)
        needed_names: set[str] = set()
        while wanted:
            name = wanted.pop()
            needed_names.add(name)
            for n in makers.get(name, ()):
                wanted |= self.reads[n] - needed_names
        return frozenset(needed_names)

    @cached_property
    def live(self) -> dict[int, frozenset[str]]:
        """Registers that are read before they are written, by the instruction with which a block begins."""
        code, bounds = self.entry.instructions, [*self.starts, len(self.entry.instructions)]
        used: dict[int, set[str]] = {}
        by_start: dict[int, set[str]] = {}
        after: dict[int, list[int]] = {}
        for first, end in pairwise(bounds):
            used[first], by_start[first] = set(), set()
            for n in range(first, end):
                # Under a guard a register is written in some lanes only, so that its old value lives on.
                used[first] |= self.reads[n] - by_start[first]
                if not code[n].guard:
                    by_start[first] |= self.writes[n]
            last = code[end - 1] if end > first else None
            # Falls through unless it ends or branches in all lanes.
            goes_on = last is None or not (last.name in (*ENDS, "bra") and not last.guard)
            after[first] = [end] if goes_on and end < len(code) else []
            if last is not None and last.target >= 0:
                after[first].append(last.target)
        live = {first: set(names) for first, names in used.items()}
        changed = True
        while changed:
            changed = False
            for first in reversed(list(live)):
                # Liveness by backward flow: what blocks behind read and this one does not write first.
                more = set().union(*(live.get(n, set()) for n in after[first])) - by_start[first]
                if not more <= live[first]:
                    live[first] |= more
                    changed = True
        return {first: frozenset(names) for first, names in live.items()}

    def carried(self, head: int) -> tuple[str, ...]:
        """Registers that a loop hands from one trip to the next and that decide something."""
        written = set().union(*self.writes[head : self.loops[head] + 1])
        return tuple(sorted(written & self.live.get(head, frozenset()) & self.needed))


def _names(operand: str | tuple[str, ...]) -> set[str]:
    texts = operand if isinstance(operand, tuple) else (operand,)
    return {name for text in texts for name in NAMES.findall(text)}


STORES = (
    "st",
    "red",
    "cp",
    "prefetch",
    "discard",
    "applypriority",
    "bar",
    "barrier",
    "stmatrix",
    "fence",
    "mbarrier",
)


def writes(i: Instruction) -> set[str]:
    """Registers that an instruction writes."""
    if not i.operands or i.name in ENDS or i.name == "bra":
        return set()
    if i.name in STORES and not (i.name == "mbarrier" and _gives(i)):
        return set()
    first = i.operands[0]
    return set().union(
        *(_names(p) for p in (first if isinstance(first, tuple) else first.split("|")))
    )


def _gives(i: Instruction) -> bool:
    return len(i.operands) > 1 and not str(i.operands[0]).startswith("[")


def reads(i: Instruction) -> set[str]:
    """Registers that an instruction reads, its guard among them."""
    names = {i.guard} if i.guard else set()
    writes_first = bool(writes(i))
    for operand in i.operands[1 if writes_first else 0 :]:
        names |= _names(operand)
    if i.guard and writes_first:  # without the guard's word the old value stays
        names |= writes(i)
    return names


def decides(i: Instruction) -> set[str]:
    """Registers of an instruction that decide where it goes, which memory it touches or which lanes do."""
    if i.name in ("bra", "brx"):
        return {i.guard} if i.guard else set()
    names: set[str] = set()
    if i.name in MEMORY:
        names |= {i.guard} if i.guard else set()
        for operand in i.operands:
            if isinstance(operand, str) and operand.startswith("["):
                names |= _names(operand)
        if i.name == "cp":
            for operand in i.operands:
                names |= _names(operand)
    if i.name in ENDS and i.guard:
        names.add(i.guard)
    return names


MEMORY = ("ld", "ldu", "st", "atom", "red", "cp", "ldmatrix", "stmatrix")
