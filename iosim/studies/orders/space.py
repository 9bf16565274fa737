"""The orders that a kernel may run in: sections, starts, directions, schedulers, clusters and tiles.

Orders that come to the same for every problem asked for are listed once, under the simplest of their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, field, replace
from iosim.base.units import capacity_text, some
from iosim.catalog.algorithms import plan
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Launch, is_attention_loop
from iosim.kernel.overrides import Overrides
from iosim.kernel.residency import residency
from iosim.kernel.schedule import Direction, Order, Schedule, Scheduler, Start
from iosim.kernel.tile_rules import retiled
from iosim.problem.attention import AttentionProblem

MIB = 1 << 20
SECTION_MIB = (4, 8, 16, 24, 32, 40, 50, 64, 96)
"""Sizes of sections, of a head's keys and values, that a set of problems is searched with."""


def section_heads(problem: AttentionProblem, section_bytes: int) -> int:
    """Query heads of a section whose keys and values take so many bytes: key/value heads, rounded down to a power of
    two, at least one, times the group, as FlashAttention-3 and -4 round (hopper/tile_scheduler.hpp,
    flash_attn/cute/tile_scheduler.py)."""
    head_bytes = problem.seq_k * (problem.head_dim + problem.head_dim_v) * problem.input_type.bytes
    return int(1 << (max(1, section_bytes // head_bytes).bit_length() - 1)) * problem.group


@dataclass(frozen=True)
class OrderChoice:
    """One order, for whatever problem: a section is a number of heads, or bytes of their keys and values."""

    order: Order = Order.QUERY
    section_heads: int = 0
    section_bytes: int = 0
    start: Start = Start.LIGHT_FIRST
    direction: Direction = Direction.ASCENDING
    scheduler: Scheduler = Scheduler.STATIC
    cluster: int = 1
    chiplets: int = 1
    tile: Tile | None = field(default=None)
    """None for the kernel's own."""

    @classmethod
    def of(cls, kernel: Kernel, problem: AttentionProblem) -> OrderChoice:
        s = kernel.of_pass(problem.passes == "bwd").schedule
        order = (
            # Normal form: a section of one head is queries fastest; of one batch, "batch" is "query".
            Order.HEAD if s.section_heads > 1 else Order.QUERY if s.section_heads == 1 else s.order
        )
        # With a single sequence the two orders are the same.
        if order is Order.BATCH and problem.batch == 1:
            order = Order.QUERY
        section = s.section_heads if s.section_heads > 1 else 0
        return cls(order, section, 0, s.start, s.direction, s.scheduler, s.cluster, s.chiplets)

    def schedule(self, problem: AttentionProblem) -> Schedule:
        """The schedule that it comes to: a section of all heads is none, one of a single head is queries fastest."""
        section = (
            section_heads(problem, self.section_bytes) if self.section_bytes else self.section_heads
        )
        order = self.order
        if section >= problem.batch * problem.heads:
            section = 0
        elif section == 1:
            order, section = Order.QUERY, 0
        return Schedule(
            order,
            self.start,
            section,
            self.direction,
            self.scheduler,
            cluster=self.cluster,
            chiplets=self.chiplets,
        )

    def changed_from(self, other: OrderChoice) -> int:
        return sum(
            getattr(self, name) != getattr(other, name) for name in self.__dataclass_fields__
        )

    @property
    def words(self) -> str:
        """The order in words."""
        fastest = {
            Order.QUERY: "queries fastest",
            Order.HEAD: "heads fastest",
            Order.BATCH: "queries, then batch fastest",
        }[self.order]
        if self.section_bytes:
            fastest = f"sections of {capacity_text(self.section_bytes)}"
        elif self.section_heads:
            fastest = f"sections of {some(self.section_heads, 'head')}"
        start = {
            Start.LIGHT_FIRST: "",
            Start.HEAVY_FIRST: "heavy first",
            Start.FOLD: "heavy beside light",
        }[self.start]
        parts = [fastest, start, f"keys {self.direction}", str(self.scheduler)]
        parts += [f"clusters of {self.cluster}"] if self.cluster > 1 else []
        parts += [f"heads shared out to {self.chiplets} L2s"] if self.chiplets > 1 else []
        parts += [f"tile {self.tile}"] if self.tile is not None else []
        return ", ".join(part for part in parts if part)


def main_launch(kernel: Kernel, problem: AttentionProblem) -> Launch | None:
    """The launch that loops over keys or queries; None where the kernel has none."""
    return next(
        (launch for launch in plan(problem, kernel).launches if is_attention_loop(launch)), None
    )


def is_even(launch: Launch) -> bool:
    """True where all work tiles of a head take equally many steps, so that it does not matter which start first."""
    d = launch.domain
    steps = d.visitors.count if launch.name.startswith("bwd") else d.visited.count
    return steps.size == 0 or bool(steps.min() == steps.max())


def applied(
    choice: OrderChoice, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile
) -> Kernel:
    """The kernel in this order for this problem: a persistent grid has as many CTAs as the GPU holds."""
    backward = problem.passes == "bwd"
    stated = kernel.of_pass(backward).schedule
    ahead = stated.claims_ahead and choice.scheduler is Scheduler.DYNAMIC
    schedule = replace(
        choice.schedule(problem), claims_ahead=ahead, overlaps_tiles=stated.overlaps_tiles
    )
    if choice.tile is not None:
        kernel = retiled(kernel, problem, choice.tile, backward)
    if backward:
        kernel = kernel.with_(backward=replace(kernel.backward, schedule=schedule))
    else:
        kernel = kernel.with_(schedule=schedule)
    if schedule.scheduler is not Scheduler.STATIC:
        unsized = kernel.with_(persistent_ctas=None)
        launch = main_launch(unsized, problem)
        # A persistent grid is as large as the GPU holds CTAs of this launch at once.
        ctas = profile.sm_count * (
            residency(launch, profile).ctas_per_sm if launch is not None else 1
        )
        kernel = kernel.with_(persistent_ctas=ctas)
    return kernel


def sections(problems: Sequence[AttentionProblem]) -> list[tuple[Order, int, int]]:
    """(order, heads of a section, its bytes) that are worth a try: by heads for one problem, by bytes for several."""
    choices: list[tuple[Order, int, int]] = [(Order.QUERY, 0, 0), (Order.HEAD, 0, 0)]
    if any(p.batch > 1 for p in problems):
        choices.append((Order.BATCH, 0, 0))
    # Several problems share no number of heads: sections are bytes of keys and values.
    if len(problems) > 1:
        return [*choices, *((Order.HEAD, 0, size * MIB) for size in SECTION_MIB)]
    (problem,) = problems
    heads = problem.group if problem.group > 1 else 2
    while heads < problem.batch * problem.heads:
        choices.append((Order.HEAD, heads, 0))
        heads *= 2
    return choices


def choices(
    problems: Sequence[AttentionProblem],
    kernels: Sequence[Kernel],
    *,
    tiles: Iterable[Tile] = (),
    pinned: Mapping[str, Any] = MappingProxyType({}),
    l2s: int = 1,
) -> list[OrderChoice]:
    """Every order to predict, the kernel's own first.

    Args:
        kernels: as they run each of the problems by themselves.
        tiles: tried beside the kernel's own.
        pinned: fields of `OrderChoice` that are given, and stay as they are.
        l2s: of the GPU, to which CTAs go in turn: heads may be shared out to them.
    """
    launches = [main_launch(k, p) for k, p in zip(kernels, problems, strict=True)]
    even = all(launch is None or is_even(launch) for launch in launches)
    own_orders = [
        OrderChoice.of(kernel, problem) for kernel, problem in zip(kernels, problems, strict=True)
    ]
    # Equal work tiles: neither the start nor the descending direction matters.
    starts = [own_orders[0].start] if even else [Start.HEAVY_FIRST, Start.LIGHT_FIRST, Start.FOLD]
    ways = [Direction.ASCENDING, Direction.ALTERNATING] if even else list(Direction)
    spaces: dict[str, Sequence[Any]] = {
        "start": starts,
        "direction": ways,
        "scheduler": list(Scheduler),
        "cluster": [own_orders[0].cluster],
        "tile": [None, *tiles],
        "chiplets": sorted({1, l2s, own_orders[0].chiplets}),
    }
    names = ("order", "section_heads", "section_bytes")
    by_section = _pinned_sections(
        [dict(zip(names, item, strict=True)) for item in sections(problems)], pinned
    )
    spaces = {name: [pinned[name]] if name in pinned else values for name, values in spaces.items()}
    listed = [
        OrderChoice(**{**section, **dict(zip(spaces, values, strict=True))})
        for section in by_section
        for values in product(*spaces.values())
    ]
    # Heads can be shared out to several L2s only in a static grid, where a CTA's place is known.
    listed = [item for item in listed if item.chiplets == 1 or item.scheduler is Scheduler.STATIC]
    first = (
        [replace(choice, **pinned) for choice in own_orders[:1]]
        if len(set(own_orders)) == 1
        else []
    )
    return list(_different([*first, *listed], problems))


def _pinned_sections(
    by_section: list[dict[str, Any]], pinned: Mapping[str, Any]
) -> list[dict[str, Any]]:
    stated = {
        name: pinned[name] for name in ("order", "section_heads", "section_bytes") if name in pinned
    }
    if not stated:
        return by_section
    if "section_heads" in stated or "section_bytes" in stated:
        return [{"order": Order.HEAD, "section_heads": 0, "section_bytes": 0} | stated]
    of_order = [section for section in by_section if section["order"] is stated["order"]]
    return of_order or [{"section_heads": 0, "section_bytes": 0} | stated]


def _different(
    listed: Iterable[OrderChoice], problems: Sequence[AttentionProblem]
) -> Iterator[OrderChoice]:
    seen = set()
    for choice in listed:
        # Two choices are one where they come to the same schedule for every problem.
        key = (*(choice.schedule(p) for p in problems), choice.tile)
        if key not in seen:
            seen.add(key)
            yield choice


def pinned_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an order for the settings that are given by hand, spelled as those over a kernel's choice are."""
    over = Overrides(**settings)
    fields: dict[str, Any] = {}
    if over.fold and over.heavy_first is not None:
        both = "both say which query blocks start first; accepted: one of them"
        raise InputError(f"`fold=True` contradicts `heavy_first`: {both}")
    if over.fold:
        fields["start"] = Start.FOLD
    elif over.heavy_first is not None:
        fields["start"] = Start.HEAVY_FIRST if over.heavy_first else Start.LIGHT_FIRST
    kinds: dict[str, type] = {"order": Order, "direction": Direction, "scheduler": Scheduler}
    kinds |= dict.fromkeys(("section_heads", "cluster", "chiplets"), int)
    return fields | {
        name: kind(value)
        for name, kind in kinds.items()
        if (value := getattr(over, name)) is not None
    }
