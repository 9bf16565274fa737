"""Local memory through L1: what of a thread's frame a load finds there, and what goes to the L2.

Stores are written through: every stored sector reaches the L2 (counted on an H100 and an H200: stores into the L2 are
those of local and of global memory, to the byte). A load finds its word in L1 where less was touched since than its set
holds: what lies between is the word's stack distance, of all warps of the SM at one pace, and falls into sets at
random, so that the number of lines in one is Poisson's (Smith 1978, "A comparative study of set associative memory
mapping algorithms").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from iosim.base.records import dataclass
from iosim.code.frame_addresses import FrameRegisters
from iosim.code.listing import Instruction
from iosim.code.opcodes import WARP, lane_bytes, operation
from iosim.code.trace import default_use
from iosim.kernel.launch import FrameUse, Mode
from iosim.kernel.machine import SECTOR_BYTES, MemoryUse

WORD_BYTES = 4
MOST_LINES = 100.0
FRAME_PARTS = 16
"""Words of a frame whose uses stand for all."""
LAST_USE = "LU"
"""The modifier of a load of a word that is stored before it is loaded again."""
L1_WAYS = 4
"""Lines of a set. Fitted by hand, of 2, 4 and 8, on the local sectors of the Triton self-attention with 1,112 and 256
bytes of frame and of lightllm's prefill at head_dim 64 (h200_user_kernels.csv); warps out of step count as fewer
ways."""


@dataclass(frozen=True)
class LocalTraffic:
    """Local memory in a turn of a loop, by a warp: sectors of 32 bytes."""

    loaded: float
    hits_l1: float
    """Sectors among those loaded that L1 serves."""
    stored: float
    touched: float = 0.0
    """Bytes of a thread's frame that are loaded or stored at all."""
    unknown: int = 0
    """Loads and stores whose place in the frame is worked out at run time; taken to miss."""
    uses: tuple[FrameUse, ...] = ()
    """What a turn does with the words of a frame, of which every so many stand for all."""
    parts: int = 1
    """Words that do."""

    def times(self, turns: float) -> LocalTraffic:
        """That of so many turns."""
        return LocalTraffic(
            turns * self.loaded,
            turns * self.hits_l1,
            turns * self.stored,
            self.touched,
            self.unknown,
            self.uses,
            self.parts,
        )

    def plus(self, other: LocalTraffic) -> LocalTraffic:
        """That of both; a frame is used as by that which stores more."""
        more = self if self.stored > other.stored else other
        return LocalTraffic(
            self.loaded + other.loaded,
            self.hits_l1 + other.hits_l1,
            self.stored + other.stored,
            max(self.touched, other.touched),
            self.unknown + other.unknown,
            more.uses,
            more.parts,
        )

    @property
    def hit_share(self) -> float:
        return self.hits_l1 / self.loaded if self.loaded else 0.0


NO_LOCAL = LocalTraffic(0.0, 0.0, 0.0)


def local_traffic(
    turn: Sequence[Instruction],
    cc: int,
    warps: int,
    l1_bytes: float,
    use_of: Callable[[Instruction], MemoryUse | None] = lambda _: None,
    before: Sequence[Instruction] = (),
) -> LocalTraffic:
    """Local memory in a turn of a loop that is run many times.

    Args:
        turn: the instructions of a turn, in order.
        warps: resident on the SM, all at the same loop.
        l1_bytes: what L1 holds: the SM's memory without the shared memory of its CTAs.
        use_of: what global loads ask for.
        before: what runs before the loop: it sets the registers that addresses in the frame are made of.
    """
    played = _Played(cc, warps, l1_bytes, use_of)
    played.registers.run(before)
    played.turn(turn)  # a turn that leaves its lines in L1, and then one that is counted
    played.loaded = played.hits = played.stored = 0.0
    played.unknown = 0
    played.uses.clear()
    played.turn(turn)
    frame = sum(size for word, size in played.words.items() if word not in played.others)
    touched = frame / (WARP * warps)
    uses = frame_uses(played.uses, len(turn))
    parts = max((use.part + 1 for use in uses), default=1)
    return LocalTraffic(
        played.loaded, played.hits, played.stored, touched, played.unknown, uses, parts
    )


@dataclass(frozen=True)
class WordUse:
    """A load or store of a word of a frame: by which instruction of a turn, and what of a load L1 does not serve."""

    number: int
    word: int
    mode: Mode
    share: float
    last: bool


def frame_uses(uses: Sequence[WordUse], instructions: int) -> tuple[FrameUse, ...]:
    """A turn's uses of a frame, by the words that stand for its parts."""
    first: dict[int, int] = {}
    for use in uses:
        if use.mode is Mode.STORE:
            first.setdefault(use.word, use.number)
    # Words in the order in which they are stored: neighbours are used alike.
    words = sorted(first, key=lambda word: (first[word], word))
    parts = min(FRAME_PARTS, len(words))
    part_of = {words[(2 * part + 1) * len(words) // (2 * parts)]: part for part in range(parts)}
    return tuple(
        FrameUse(part_of[use.word], use.number / instructions, use.mode, use.share, use.last)
        for use in uses
        if use.word in part_of
    )


class _Played:
    """Turns of a loop through an L1: words of the frame and what global loads bring, in the order of their last use."""

    def __init__(
        self,
        cc: int,
        warps: int,
        l1_bytes: float,
        use_of: Callable[[Instruction], MemoryUse | None],
    ) -> None:
        self._cc, self._warps, self._l1_bytes, self._use_of = cc, warps, l1_bytes, use_of
        self.registers = FrameRegisters()
        self.words: dict[object, float] = {}
        """Bytes of all warps, the most recently touched last."""
        self.others: set[object] = set()
        """Words that are no part of a frame."""
        self.uses: list[WordUse] = []
        """Those of the frame's words whose place is known, in their order."""
        self.loaded = self.hits = self.stored = 0.0
        self.unknown = 0

    def turn(self, instructions: Sequence[Instruction]) -> None:
        """A turn, instruction by instruction."""
        for number, instruction in enumerate(instructions):
            self.registers.step(instruction)
            group = operation(instruction, self._cc).group
            if group in ("local-load", "local-store"):
                self._local(number, instruction, group == "local-load")
            elif group in ("global-load", "global-atomic"):
                use = self._use_of(instruction) or default_use(instruction, group)
                word = ("global", number)
                self.others.add(word)
                self._touch(word, (1 - use.hits_l1) * use.sectors * SECTOR_BYTES * self._warps)

    def _local(self, number: int, instruction: Instruction, loads: bool) -> None:
        """A load or store of the frame: its words, and which of them L1 still has."""
        # A frame is interleaved by lanes: a word of all of a warp's lanes is 128 bytes in a row, and a warp
        # at the same word as others has lines of its own.
        first, width = self.registers.place(instruction), lane_bytes(instruction)
        words: list[object] = [("any", number)]
        if first is None:
            self.unknown += 1
        else:
            words = [first + w for w in range(0, width, WORD_BYTES)]
        sectors = WARP * width / SECTOR_BYTES
        mode, last = Mode.LOAD if loads else Mode.STORE, LAST_USE in instruction.modifiers
        for word in words:
            stays = _stays(self._since(word), self._l1_bytes) if loads else 0.0
            if loads:
                self.loaded += sectors / len(words)
                self.hits += stays * sectors / len(words)
            else:
                self.stored += sectors / len(words)
            if isinstance(word, int):
                self.uses.append(WordUse(number, word, mode, 1 - stays, last))
        for word in words:
            self._touch(word, WARP * width * self._warps / len(words))

    def _touch(self, word: object, size: float) -> None:
        self.words.pop(word, None)
        self.words[word] = size

    def _since(self, word: object) -> float:
        """Bytes touched since a word was; infinite where it never was."""
        if word not in self.words:
            return math.inf
        since = 0.0
        for other in reversed(self.words):
            if other == word:
                break
            since += self.words[other]
        return since


def _stays(since: float, l1_bytes: float) -> float:
    """Chance that so many bytes leave a line in a cache of as many sets as `L1_WAYS` ways make of it."""
    # Bytes since then over those of L1 are lines of its set; it stays where fewer than its ways came.
    mean = L1_WAYS * since / l1_bytes
    if mean > MOST_LINES:
        return 0.0
    return math.exp(-mean) * sum(mean**k / math.factorial(k) for k in range(L1_WAYS))
