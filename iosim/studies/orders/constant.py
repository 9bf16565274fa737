"""Where a library's constant size of sections is right, and where it loses, against the best section of each problem.

A section is so many heads that their keys and values take a constant number of bytes, whatever the L2: 32 MiB in
FlashAttention-3, 50 MiB in FlashAttention-4. Here each problem of a grid is predicted with every section that such a
rule can come to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import cached_property, dataclass, plain, replace
from iosim.base.units import bytes_text, capacity_text, picoseconds, seconds_text, some
from iosim.base.words import DEFAULT, sentences
from iosim.catalog.libraries.default import told
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.kernel import Kernel
from iosim.kernel.schedule import Order, Start
from iosim.prediction.answer import times_text
from iosim.prediction.confidence import in_dtype
from iosim.prediction.many import Request, try_all
from iosim.problem.attention import AttentionProblem
from iosim.show.tables import Table
from iosim.studies.orders.entry import SAME_TIME, SAME_WORD, heads_text
from iosim.studies.orders.search import resolve_all
from iosim.studies.orders.space import (
    MIB,
    SECTION_MIB,
    OrderChoice,
    applied,
    is_even,
    main_launch,
    section_heads,
)

ACCESSES = 2_000_000
"""Tile accesses that are played of a launch, about: in coarse steps where it has more."""
SAME_BYTES = 0.05
"""A section that moves up to this share more bytes than the best one is right."""


@dataclass(frozen=True)
class SectionCost:
    heads: int
    """Query heads of a section; 0 where all heads are in one."""
    hbm_bytes: int
    time_s: float

    def is_right(self, others: Iterable[SectionCost]) -> bool:
        """True where no other is faster, nor as fast with fewer bytes."""
        return all(
            self.time_s <= (1 + SAME_TIME) * o.time_s
            and (
                self.hbm_bytes <= (1 + SAME_BYTES) * o.hbm_bytes
                or o.time_s > (1 + SAME_TIME) * self.time_s
            )
            for o in others
        )


@dataclass(frozen=True)
class ConstantRow:
    """One problem: what the constant comes to there, and the best section."""

    problem: AttentionProblem
    by_heads: dict[int, SectionCost]
    """What every section costs, by its heads."""
    section_bytes: int

    def of_size(self, section_bytes: int) -> SectionCost:
        """What sections of so many bytes come to."""
        heads = section_heads(self.problem, section_bytes)
        return self.by_heads[0 if heads >= self.problem.batch * self.problem.heads else heads]

    @property
    def constant(self) -> SectionCost:
        return self.of_size(self.section_bytes)

    @property
    def best(self) -> SectionCost:
        """The fastest section; of those that take the same time, the one with the fewest bytes."""
        fastest = min(cost.time_s for cost in self.by_heads.values())
        # Equal times are decided by bytes, equal bytes by the constant itself.
        as_fast = [
            cost for cost in self.by_heads.values() if cost.time_s <= (1 + SAME_TIME) * fastest
        ]
        return min(
            as_fast,
            key=lambda cost: (cost.hbm_bytes, cost != self.constant, picoseconds(cost.time_s)),
        )

    @property
    def is_right(self) -> bool:
        return self.constant.is_right(self.by_heads.values())

    @property
    def more_time(self) -> float:
        """Share of the best section's time that the constant takes beside it."""
        return self.constant.time_s / self.best.time_s - 1

    @property
    def times_bytes(self) -> float:
        """Bytes of the constant over those of the best section."""
        return self.constant.hbm_bytes / self.best.hbm_bytes

    @property
    def words(self) -> str:
        p = self.problem
        return f"{some(p.seq_q, 'token')} x {heads_text(p)}, mask {p.mask_text}"

    def to_dict(self) -> dict[str, Any]:
        return plain(
            problem=self.problem,
            section_heads=self.constant.heads,
            hbm_bytes=self.constant.hbm_bytes,
            time_s=self.constant.time_s,
            best_section_heads=self.best.heads,
            best_hbm_bytes=self.best.hbm_bytes,
            best_time_s=self.best.time_s,
            right=self.is_right,
        )


@dataclass(frozen=True)
class ConstantCheck:
    section_bytes: int
    profile: HardwareProfile
    kernel: str
    rows: tuple[ConstantRow, ...]
    by_default: str = ""

    @property
    def right(self) -> int:
        return sum(row.is_right for row in self.rows)

    @cached_property
    def best_constant(self) -> tuple[int, int]:
        """(bytes, problems that it is right for) of the size that is right most often; of equals the nearest one."""
        sizes = {self.section_bytes, *(size * MIB for size in SECTION_MIB)}
        # Every size that was searched, judged as the constant is: right for how many problems.
        counted = {
            size: sum(row.of_size(size).is_right(row.by_heads.values()) for row in self.rows)
            for size in sizes
        }
        size = min(counted, key=lambda size: (-counted[size], abs(size - self.section_bytes), size))
        return size, counted[size]

    @property
    def answer(self) -> str:
        size, right = self.best_constant
        dtype = in_dtype(self.rows[0].problem)
        constant, problems = (
            capacity_text(self.section_bytes),
            f"{self.right} of {some(len(self.rows), 'problem')}",
        )
        parts = [
            f"Sections of {constant} are right for {problems} on {self.profile.name} ({self.kernel}{dtype})"
        ]
        slowest = max(self.rows, key=lambda row: row.more_time)
        heaviest = max(self.rows, key=lambda row: row.times_bytes)
        if slowest.more_time > SAME_WORD:
            parts.append(
                f"They cost most time, {100 * slowest.more_time:.1f} %, at {slowest.words}"
            )
        if heaviest.times_bytes > 1 + SAME_BYTES:
            rest = f"{times_text(heaviest.times_bytes)} times the bytes of the best section, at {heaviest.words}"
            parts.append(f"They move most, {rest}")
        if right > self.right:
            parts.append(f"{capacity_text(size)} are right for {right}")
        parts += [self.by_default] if self.by_default else []
        return sentences(parts)

    @property
    def table(self) -> Table:
        """A row per problem: what the constant comes to, the best section, and what it costs beside that."""
        return Table.of(
            {
                "tokens": f"{row.problem.seq_q:,}",
                "heads": row.problem.heads,
                "on": row.problem.kv_heads,
                "mask": row.problem.mask_text,
                "section": _heads(row.constant.heads),
                "best section": _heads(row.best.heads),
                "HBM": bytes_text(row.constant.hbm_bytes),
                "over the best's": f"{100 * (row.times_bytes - 1):+.1f} %",
                "time": seconds_text(row.constant.time_s),
                "over its time": f"{100 * row.more_time:+.1f} %",
                "right": "yes" if row.is_right else "no",
            }
            for row in self.rows
        )

    def to_dict(self) -> dict[str, Any]:
        size, right = self.best_constant
        best = {
            "best_constant_bytes": size,
            "best_constant_right": right,
            "checks": [r.to_dict() for r in self.rows],
        }
        return (
            plain(
                profile=self.profile.name,
                kernel=self.kernel,
                section_bytes=self.section_bytes,
                right=self.right,
            )
            | best
        )


def check_constant(
    section_bytes: int,
    problems: Sequence[AttentionProblem],
    kernel: str | Kernel = DEFAULT,
    profile: str | HardwareProfile = "b200",
    *,
    progress: Progress = silent,
) -> ConstantCheck:
    if section_bytes < 1:
        raise InputError(
            f"`check_constant` section {section_bytes} is out of range; accepted: 1 byte or more"
        )
    gpu = load_profile(profile)
    requests: dict[tuple[int, int], Request] = {}
    kernels = resolve_all(kernel, problems, gpu)
    for number, (problem, resolved) in enumerate(zip(problems, kernels, strict=True)):
        every = problem.batch * problem.heads
        # Libraries round the heads of a section down to a power of two key/value heads.
        powers = (
            problem.group << n for n in range(every.bit_length())
        )  # of two key/value heads; 0 for all heads
        for heads in (*(power for power in powers if power < every), 0):
            in_sections = _in_sections(resolved, problem, gpu, heads)
            requests[number, heads] = Request(
                problem, in_sections, gpu, method="sampled", accesses=ACCESSES
            )
    rows = [ConstantRow(problem, {}, section_bytes) for problem in problems]
    for (number, heads), outcome in zip(
        requests, try_all(list(requests.values()), progress=progress), strict=True
    ):
        if isinstance(outcome, InputError):
            raise outcome
        rows[number].by_heads[heads] = SectionCost(
            heads, outcome.total("hbm"), outcome.time.total_s
        )
    return ConstantCheck(
        section_bytes, gpu, kernels[0].name, tuple(rows), told([(kernels[0], gpu)])
    )


def _in_sections(
    kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile, heads: int
) -> Kernel:
    # All but the section stays the kernel's own; heavy blocks first, where blocks differ.
    own_order = OrderChoice.of(kernel, problem)
    launch = main_launch(kernel, problem)
    start = Start.LIGHT_FIRST if launch is None or is_even(launch) else Start.HEAVY_FIRST
    choice = replace(own_order, order=Order.HEAD, section_heads=heads, start=start)
    return applied(choice, kernel, problem, profile)


def _heads(heads: int) -> str:
    return "all heads" if heads == 0 else f"{heads} head{'s' if heads > 1 else ''}"
