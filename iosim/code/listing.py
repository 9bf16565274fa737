"""A listing of machine code as instructions, and back: what nvdisasm prints, with what each instruction waits for.

An instruction of cc 7.0 and later takes 16 bytes, of which 21 bits steer the warp that issues it: cycles until its next
instruction, a barrier that its result sets, one that its operands free, and those it waits for (Jia et al. 2018,
"Dissecting the NVIDIA Volta GPU architecture via microbenchmarking", section 2.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from iosim.base.records import dataclass

INSTRUCTION_BYTES = 16
CONTROL_SHIFT = 105
NO_BARRIER = 7
LINE = re.compile(
    r"^\s*/\*(?P<at>[0-9a-f]{4,})\*/\s+(?:@(?P<predicate>!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*)\s*(?P<rest>[^;]*?)\s*"
    r"(?:;|&|\?|$)"
)
CONTROL = re.compile(r"//\s*c=0x([0-9a-f]+)(?:\s+p=(\d+))?(?:\s+(\S.*):(\d+))?\s*$")
PTX_FILE = ".nv_debug_ptx_txt"
"""The name under which nvdisasm gives lines of the PTX that the code was assembled from."""
LABEL = re.compile(r"^\s*(\.L_x_\w+|\$?[\w$.]+):\s*$")
SOURCE_LINE = re.compile(r'//## File "([^"]+)", line (\d+)')
TO_LABEL, TO_ADDRESS = re.compile(r"`\(([^)]+)\)"), re.compile(r"\b0x([0-9a-f]+)\s*$")
HEAD = re.compile(r"^//\s*function\s+(\S+)\s+(.*)$")
SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)")
BRANCHES = ("BRA", "BRX", "JMP", "JMX", "CALL", "BSSY", "BREAK", "WARPSYNC")
Place = tuple[tuple[str, int] | None, int | None]
"""An instruction's line of the source, and that of its PTX."""
SPLIT = re.compile(r",\s*(?![^\[{]*[\]}])")


@dataclass(frozen=True)
class Control:
    """What the warp that issues an instruction does around it."""

    stall: int = 1
    """Cycles until the warp may issue its next instruction."""
    sets: int | None = None
    """The barrier that is set until the result is there."""
    frees: int | None = None
    """The barrier that is set until the operands are read."""
    waits: int = 0
    """The barriers, a bit each, that must be clear before it is issued."""

    @classmethod
    def of(cls, word: int) -> Control:
        """As the 21 bits have it."""
        sets, frees = word >> 5 & 7, word >> 8 & 7
        return cls(
            word & 0xF,
            None if sets == NO_BARRIER else sets,
            None if frees == NO_BARRIER else frees,
            word >> 11 & 0x3F,
        )

    @property
    def word(self) -> int:
        sets = NO_BARRIER if self.sets is None else self.sets
        frees = NO_BARRIER if self.frees is None else self.frees
        return self.stall | sets << 5 | frees << 8 | self.waits << 11


@dataclass(frozen=True)
class Instruction:
    """One instruction of a warp."""

    address: int
    """Bytes from the function's beginning."""
    opcode: str
    """With its modifiers, such as LDG.E.128."""
    operands: tuple[str, ...] = ()
    predicate: str = ""
    """The predicate that it is under, with a ! where it must not hold; empty where it is always done."""
    target: int | None = None
    """Where a branch goes."""
    control: Control = Control()
    source: tuple[str, int] | None = None
    """File and line, where the code was compiled with -lineinfo."""
    ptx_line: int | None = None
    """The line of its PTX, where the code was compiled with -lineinfo."""

    @property
    def kind(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        return tuple(self.opcode.split(".")[1:])

    @property
    def text(self) -> str:
        under = f"@{self.predicate} " if self.predicate else ""
        return f"{under}{self.opcode} {', '.join(self.operands)}".rstrip()


def control_words(code: bytes) -> list[int]:
    """The 21 bits of every instruction of a function."""
    return [
        int.from_bytes(code[at : at + INSTRUCTION_BYTES], "little") >> CONTROL_SHIFT & 0x1FFFFF
        for at in range(0, len(code) - INSTRUCTION_BYTES + 1, INSTRUCTION_BYTES)
    ]


def functions_of(text: str) -> Iterator[tuple[str, str, str]]:
    """(name, what its head says, listing) of each function in a listing of nvdisasm, or one that was written here."""
    name, head, lines = "", "", list[str]()
    for line in text.splitlines():
        # nvdisasm begins a function with its section, a listing of iosim's with a comment.
        recorded, section = HEAD.match(line), SECTION.match(line)
        if recorded or section:
            if name:
                yield name, head, "\n".join(lines)
            name, head, lines = (
                (recorded[1], recorded[2], [])
                if recorded
                else (section[1] if section else "", "", [])
            )
        elif name:
            lines.append(line)
    if name:
        yield name, head, "\n".join(lines)


def read_listing(text: str, words: list[int] | None = None) -> tuple[Instruction, ...]:
    """The instructions of one function's listing; `words` are its control words where the listing has none."""
    labels, matches = dict[str, int](), list[tuple[re.Match[str], str, Place]]()
    source, ptx_line, waiting = None, None, list[str]()
    for line in text.splitlines():
        if place := SOURCE_LINE.search(line):
            if place[1] == PTX_FILE:
                ptx_line = int(place[2])
            else:
                source = (place[1], int(place[2]))
        elif label := LABEL.match(line):
            waiting.append(label[1])
        elif match := LINE.match(line):
            # Labels stand in lines of their own, before the instruction that they name.
            labels |= dict.fromkeys(waiting, int(match["at"], 16))
            waiting = []
            matches.append((match, line, (source, ptx_line)))
    return tuple(_instruction(match, line, place, labels, words) for match, line, place in matches)


def _instruction(
    match: re.Match[str], line: str, place: Place, labels: dict[str, int], words: list[int] | None
) -> Instruction:
    address, opcode, rest = int(match["at"], 16), match["opcode"], match["rest"].strip()
    written = CONTROL.search(line)
    # What an instruction waits for: of the listing's comment, else of the code's words, else a cycle.
    word = 1 | NO_BARRIER << 5 | NO_BARRIER << 8
    if written:
        word = int(written[1], 16)
        source = (written[3], int(written[4])) if written[3] else None
        place = (source, int(written[2]) if written[2] else None)
    elif words and address // INSTRUCTION_BYTES < len(words):
        word = words[address // INSTRUCTION_BYTES]
    target = None
    if opcode.partition(".")[0] in BRANCHES:
        # Targets are kept as addresses, and written back as labels that name them.
        if label := TO_LABEL.search(rest):
            target = labels.get(label[1])
            if target is not None:
                rest = TO_LABEL.sub(f"`(.L_x_{target:x})", rest)
        elif to := TO_ADDRESS.search(rest):
            target = int(to[1], 16)
    operands = tuple(part.strip() for part in SPLIT.split(rest) if part.strip())
    return Instruction(
        address, opcode, operands, match["predicate"] or "", target, Control.of(word), *place
    )


def write_listing(name: str, head: str, instructions: Iterable[Instruction]) -> str:
    """A listing that `read_listing` reads without any tool, as tests and pages keep it: an instruction a line with its
    control bits, and its line of the source where that is known."""
    listed = list(instructions)
    targets = {instruction.target for instruction in listed if instruction.target is not None}
    lines = [f"// function {name} {head}"]
    for instruction in listed:
        if instruction.address in targets:
            lines.append(f".L_x_{instruction.address:x}:")
        place = f" p={instruction.ptx_line}" if instruction.ptx_line is not None else ""
        place += (
            f" {instruction.source[0].rpartition('/')[2]}:{instruction.source[1]}"
            if instruction.source
            else ""
        )
        lines.append(
            f"/*{instruction.address:04x}*/ {instruction.text} ;  // c=0x{instruction.control.word:x}{place}"
        )
    return "\n".join(lines) + "\n"
