"""A rule book a library: what it decides at launch by a rule rather than a table. Each in a module of its own.

A catalog file names its rule book (`rules = "fa3"`); the resolver asks it, and nobody else asks what a kernel is
called. Files without one have the rules of this module's `Rules`: none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from iosim.base.pointwise import pointwise
from iosim.base.records import dataclass, replace
from iosim.base.registry import Registry
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Overhead
from iosim.kernel.schedule import Schedule
from iosim.problem.attention import AttentionProblem

MAX_SPLITS = 128
SPLIT_EFFICIENCY = 0.85


@dataclass(frozen=True)
class SplitGrid:
    """The grid of a split kernel before it splits: its work tiles, key blocks per head, the GPU's SMs, and its tile."""

    tiles: int
    key_blocks: int
    sms: int
    block_q: int
    block_k: int


@pointwise
def fewest_efficient(tiles: int, key_blocks: int, slots: int, differ: bool = False) -> int:
    """The fewest splits within 85 % of the best wave efficiency, the share of the slots that work (FlashAttention's
    num_splits_heuristic); where they are to `differ`, among those that change the number of key blocks a split gets."""
    blocks = [
        -(-key_blocks // splits) for splits in range(1, min(MAX_SPLITS, slots, key_blocks) + 1)
    ]
    # Wave efficiency: CTAs over the slots of the rounds that they take. Splits that give no split fewer
    # key blocks than one less would are left out where they are to differ.
    efficiency = {
        splits: tiles * splits / slots / -(-tiles * splits // slots)
        for splits, block_count in enumerate(blocks, 1)
        if splits == 1 or not differ or block_count != blocks[splits - 2]
    }
    best = max(efficiency.values())
    return next(splits for splits, share in efficiency.items() if share >= SPLIT_EFFICIENCY * best)


class Rules:
    """What a library decides at launch, question by question; the answers here are those of a kernel without rules."""

    splits_alike = False
    """True where all sequences of a call get as many splits; else splits of one length."""
    splits_packed = False
    """True where the splits of sequences of different lengths are known."""
    packs_groups = False
    """True where the query heads of a group share the rows of a tile wherever there are several."""
    split_options: ClassVar[Mapping[str, Any]] = {}
    """The algorithm's options of the split kernel."""

    def as_launched(self, problem: AttentionProblem) -> AttentionProblem:
        """The problem as the library's own rules see it."""
        return problem

    def split_kernel(self, problem: AttentionProblem, grid: SplitGrid) -> tuple[int, bool]:
        """(number of splits, whether the split kernel runs), for files that have its tiles. Asked for forwards without
        dropout of sequences of one length."""
        return 1, False

    def splits_of_tile(
        self, problem: AttentionProblem, sms: int, block_q: int, block_k: int
    ) -> int | None:
        """The number of splits where it goes by the tile; None where it does not. Asked as `split_kernel` is."""
        return None

    def packs_group(
        self, problem: AttentionProblem, stated: bool, splits: int, block_q: int, block_k: int
    ) -> bool:
        """True where the query heads of a group share the rows of a tile; `stated`: whether the file says that they
        may. Asked for forwards without dropout whose heads can share rows."""
        return problem.group > 1 if self.packs_groups else stated and problem.seq_q == 1

    def schedule(
        self, problem: AttentionProblem, stated: Schedule, splits: int, packed: bool
    ) -> Schedule:
        """The forward's schedule, where the problem changes the file's. `packed`: whether heads of the grid are
        key/value heads."""
        return stated

    def options(self, profile: HardwareProfile, split: bool) -> dict[str, Any]:
        """The algorithm's options that the GPU, or the split kernel, decides."""
        return dict(self.split_options) if split else {}

    def split_overheads(self, problem: AttentionProblem, block_q: int) -> tuple[Overhead, ...]:
        """What the split kernel moves besides its tensors, whose tile has `block_q` query rows."""
        return ()

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """The kernel with what is decided once all else is known: a tile found by rule, clusters, the backward's
        registers and schedule. Raises InputError: the library cannot do what is asked."""
        return kernel

    def leading(
        self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile
    ) -> Kernel:
        """The forward whose backward follows; a note says what it does otherwise than a forward alone, and why."""
        notes = []
        if not kernel.writes_lse:
            notes.append("writes its log-sum-exp; alone it writes none")
        if kernel.packs_group:
            notes.append(
                "is described with one head per tile; alone it packs a group's query heads"
            )
        sentences = (
            f"{kernel.name}: with the backward behind it the forward {note}" for note in notes
        )
        return replace(kernel, packs_group=False, notes=(*kernel.notes, *sentences))

    def built(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """The kernel with a tile by hand, and what the compiler said of its forward, where that is recorded."""
        return kernel

    def compiled(
        self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile
    ) -> Kernel:
        """The kernel with what its compiler makes of the tile, be it by hand: its matrix unit, how warps share it."""
        return kernel


NO_RULES = Rules()
_IN_MODULES = {
    "amd": ("amd",),
    "cudnn": ("cudnn", "cudnn-oss-sm80", "cudnn-sm80"),
    "cutlass": ("cutlass", "eager"),
    "fa2": ("fa2", "moba"),
    "fa3": ("fa3",),
    "fa4": (
        "fa4",
        *(
            f"fa4-{how}"
            for how in ("deterministic", "one-tile", "sm90", "splits", "stealing", "varlen")
        ),
    ),
    "flashinfer": ("flashinfer", "flashinfer-cascade", "flashinfer-decode", "xqa", "xqa-sm90"),
    "flashmla": ("dsa", "dsv4", "flashmla", "mla"),
    "tiled": ("flash1", "tiled", "uniform"),
    "triton": ("flex", "triton", "triton-tutorial", "vllm-triton"),
    "varlen": ("fa3-sm80", "fa3-varlen", "vllm-fa2", "vllm-fa3"),
}
_BOOKS: Registry[str, Rules] = Registry(
    "rules", {f"{__package__}.{name}": of for name, of in _IN_MODULES.items()}
)


def rule_book(name: str) -> Callable[[type[Rules]], type[Rules]]:
    """Register a rule book under the name that catalog files give. Raises ValueError: the name is taken."""

    def register(book: type[Rules]) -> type[Rules]:
        _BOOKS.put(name, book())
        return book

    return register


def rule_books() -> tuple[str, ...]:
    return _BOOKS.names()


def rules_of(name: str | None) -> Rules:
    """The rule book of a catalog file that names it; None: no rules. Raises InputError: there is none of that name."""
    return NO_RULES if name is None else _BOOKS.named(name)
