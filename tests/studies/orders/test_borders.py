"""Orders at their borders: stages of a search that cannot play everything, sections of one head and of all, entries that
weigh alike, numbers that are no whole ones."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Tile
from iosim.kernel.schedule import Direction, Order, Schedule, Scheduler, Start
from iosim.problem.attention import AttentionProblem
from iosim.studies.orders import search
from iosim.studies.orders.code import code
from iosim.studies.orders.constant import check_constant
from iosim.studies.orders.entry import (
    COARSE,
    OrderEntry,
    OrderPart,
    check_weights,
    ranked,
    ranking_table,
)
from iosim.studies.orders.search import _Search, resolve_all
from iosim.studies.orders.space import (
    OrderChoice,
    _pinned_sections,
    applied,
    choices,
    main_launch,
    pinned_fields,
    sections,
)
from iosim.studies.requests import OrdersRequest
from iosim.triton import remap

H200 = load_profile("h200")
PROBLEM = AttentionProblem(batch=2, heads=8, seq_q=1024, head_dim=64, mask="causal", dtype="bf16")
CHOICES = [OrderChoice(section_heads=n) for n in range(40)]


# ---- a search in stages ----


def candidate(number: int, least_s: float, about: float, accesses: int = 100) -> Any:
    return search._Candidate(CHOICES[number], ("request",), least_s, about, accesses)  # type: ignore[arg-type]


class Stages(_Search):
    """A search that notes what it plays; an entry is whole unless it was played in coarse steps."""

    def __init__(self, own_number: int = 0, problems: int = 1) -> None:
        self.own, self.problems = CHOICES[own_number], ("problem",) * problems  # type: ignore[assignment]
        self.entries, self.left_out = {}, []
        self.played: list[tuple[list[int], int | None]] = []

    def _play(self, candidates: Sequence[Any], accesses: int | None = None) -> None:
        numbers = [CHOICES.index(c.choice) for c in candidates]
        self.played.append((numbers, accesses))
        for c in candidates:
            entry: Any = SimpleNamespace(choice=c.choice, is_whole=accesses is None)
            self.entries[c.choice] = entry

    def _is_beaten(self, candidate: Any) -> bool:
        return CHOICES.index(candidate.choice) >= 20


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three orders are replayed whole at first, then the ranking's first two, four at most."""
    sizes = {
        "FIRST": 3,
        "REPLAYED": 2,
        "MOST_REPLAYED": 4,
        "LEAST_COARSE": 10,
        "COARSE_ACCESSES": 100,
    }
    for name, value in sizes.items():
        monkeypatch.setattr(search, name, value)
    # The ranking is that of the sections' heads.
    monkeypatch.setattr(
        search, "ranked", lambda entries, _: sorted(entries, key=lambda e: e.choice.section_heads)
    )


def test_the_likeliest_are_replayed_whole_before_the_others(small: None) -> None:
    """Of the six that could be fastest the three with fewest bytes; of equal times fewer bytes first."""
    stages = Stages(own_number=9)
    orders = [(1, 1.0, 9), (2, 2.0, 1), (3, 3.0, 8), (4, 3.0, 7), (5, 4.0, 2), (6, 5.0, 3)]
    orders += [(7, 6.0, 0), (9, 9.0, 0)]
    stages._play_some([candidate(*order) for order in orders])
    first, rest, *others = stages.played
    assert first == ([2, 5, 6, 9], None)  # and the kernel's own, which could not be fast
    assert rest == ([1, 4, 3, 7], 25)  # 100 accesses for four
    # Of the ranking's first two one was coarse: it is played whole, and then both are.
    assert others == [([1], None)]


def test_the_kernels_own_is_not_played_twice(small: None) -> None:
    stages = Stages(own_number=2)
    stages._play_some([candidate(1, 1.0, 9), candidate(2, 2.0, 1)])
    assert stages.played == [([2, 1], None)]


@pytest.mark.parametrize(("rest", "is_pruned"), [(9, False), (10, False), (11, True)])
@pytest.mark.parametrize("problems", [1, 2])
def test_what_is_too_much_is_left_out_where_it_is_beaten(
    rest: int, is_pruned: bool, problems: int, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten accesses an order and problem, at least, are more than there is to spend."""
    monkeypatch.setattr(search, "COARSE_ACCESSES", 100 * problems)
    stages = Stages(problems=problems)
    likely = [candidate(n, 0.1, 0) for n in (0, 1, 2)]
    # Three likely ones of six; the others are the rest, of which the second half is beaten.
    others = [candidate(15 + n, 1.0 + n, n) for n in range(rest)]
    stages._play_some([*likely, *others])
    played, accesses = stages.played[1]
    expected = [15 + n for n in range(rest) if not is_pruned or 15 + n < 20]
    assert sorted(played) == expected
    assert accesses == max(10, 100 // len(expected))


def test_where_all_others_are_beaten_none_is_played(small: None) -> None:
    stages = Stages()
    stages._play_some(
        [*(candidate(n, 0.1, 0) for n in (0, 1, 2)), *(candidate(n, 1.0, n) for n in range(20, 32))]
    )
    assert [sorted(numbers) for numbers, _ in stages.played] == [[0, 1, 2]]


def test_no_more_than_a_few_are_played_whole(small: None) -> None:
    """Two at a time where both are coarse; after four the search ends."""
    stages = Stages(own_number=38)

    def play(candidates: Sequence[Any], accesses: int | None = None) -> None:
        # Whole ones fall behind: the ranking's first are coarse again.
        numbers = [CHOICES.index(c.choice) for c in candidates]
        stages.played.append((numbers, accesses))
        for c in candidates:
            choice = c.choice if accesses is not None else CHOICES[39]
            stages.entries.pop(c.choice, None)
            entry: Any = SimpleNamespace(choice=choice, is_whole=accesses is None)
            stages.entries[choice] = entry

    stages._play = play  # type: ignore[method-assign]
    stages._play_some([candidate(n, 1.0, n) for n in range(10)])
    whole = [numbers for numbers, accesses in stages.played[2:] if accesses is None]
    assert [len(numbers) for numbers in whole] == [2, 2]


@pytest.mark.parametrize(("accesses", "in_stages"), [(30, False), (31, True)])
def test_few_accesses_are_all_played(
    accesses: int, in_stages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "ALL_ACCESSES", 60)
    stages = Stages()
    stages.kernels, stages.profile = [SimpleNamespace(name="k")], H200  # type: ignore[list-item]
    outcome = [candidate(n, 1.0, n, accesses) for n in (0, 1)]
    called: list[str] = []
    stages.candidates = lambda _: outcome  # type: ignore[method-assign]
    stages._own = lambda: None  # type: ignore[method-assign, return-value, assignment]
    stages._play = lambda _: called.append("all")  # type: ignore[method-assign, assignment]
    stages._play_some = lambda _: called.append("some")  # type: ignore[method-assign]
    with pytest.raises(InputError, match="no order of k can run on"):
        stages.ranking([], in_clusters=False)
    assert called == ["some" if in_stages else "all"]
    stages.left_out = [(CHOICES[0], "it does not fit")]
    with pytest.raises(InputError, match="for the first, it does not fit"):
        stages.ranking([], in_clusters=False)


@pytest.mark.parametrize(
    ("time_s", "times", "is_beaten"),
    [(1.0, 1.0, True), (1.02, 1.0, True), (1.2, 1.0, False), (1.0, 1.02, True), (1.0, 1.03, False)],
)
def test_an_order_is_beaten_by_one_as_fast_as_it_could_be(
    time_s: float, times: float, is_beaten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 2 % slower, as is said here, and with hardly more than the compulsory bytes."""
    monkeypatch.setattr(search, "SAME_TIME", 0.02)
    stages = Stages()
    entry: Any = SimpleNamespace(time_s=time_s, times_compulsory=times, choice=CHOICES[1])
    stages.entries = {CHOICES[1]: entry}
    assert _Search._is_beaten(stages, candidate(0, 1.0, 1)) == is_beaten
    assert [choice for choice, _ in stages.left_out] == ([CHOICES[0]] if is_beaten else [])


def test_what_cannot_be_played_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order of two problems of which one fails has no entry; the next one is not taken for it."""
    stages = Stages()
    stages.weights, stages.progress = (1.0, 1.0), None  # type: ignore[assignment]
    two = search._Candidate(CHOICES[0], ("a", "b"), 1.0, 1.0, 1)  # type: ignore[arg-type]
    other = search._Candidate(CHOICES[1], ("c", "d"), 1.0, 1.0, 1)  # type: ignore[arg-type]
    outcomes = {"a": SimpleNamespace(chain=5), "b": InputError("too large")}
    outcomes |= {"c": SimpleNamespace(chain=6), "d": SimpleNamespace(chain=7)}
    monkeypatch.setattr(
        search, "try_all", lambda requests, progress: [outcomes[r] for r in requests]
    )
    monkeypatch.setattr(search, "replace", lambda request, **_: request)
    monkeypatch.setattr(search, "tile_accesses", lambda chain: chain)
    parts: list[tuple[int, str | None]] = []
    part = SimpleNamespace(of=lambda outcome, method: parts.append((outcome.chain, method)))
    monkeypatch.setattr(search, "OrderPart", part)
    entry = SimpleNamespace(of=lambda choice, *_: choice)
    monkeypatch.setattr(search, "OrderEntry", entry)
    for accesses, marks in ((None, [None] * 3), (6, [None, None, COARSE])):
        parts.clear()
        stages.entries, stages.left_out = {}, []
        _Search._play(stages, [two, other], accesses)
        assert stages.entries == {CHOICES[1]: CHOICES[1]}
        assert stages.left_out == [(CHOICES[0], "too large")]
        assert parts == list(
            zip((5, 6, 7), marks, strict=True)
        )  # of more accesses: in coarse steps


def test_notes_of_coarse_steps() -> None:
    stages = Stages()
    stages.profile, stages.spilling = H200, {"it spills": None}

    def entry(is_whole: bool) -> Any:
        return SimpleNamespace(is_whole=is_whole, choice=CHOICES[0])

    assert list(stages._notes([entry(True), entry(True)])) == ["it spills"]
    spilled, coarse = stages._notes([entry(True), entry(False)])
    assert (spilled, coarse.startswith(COARSE)) == ("it spills", True)


@pytest.mark.parametrize(
    ("gpu", "passes", "pinned", "tries"),
    [
        ("h200", "fwd", {}, True),
        ("b200", "fwd", {}, True),
        ("a100", "fwd", {}, False),  # CTAs form clusters from compute capability 9.0 on
        ("h200", "bwd", {}, False),
        ("h200", "fwd", {"cluster": 1}, False),
        ("a100", "bwd", {}, False),
        ("mi300x", "fwd", {}, False),
    ],
)
def test_where_orders_are_tried_in_clusters(
    gpu: str, passes: str, pinned: dict[str, int], tries: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bool] = []
    monkeypatch.setattr(_Search, "ranking", lambda _, __, in_clusters: tried.append(in_clusters))
    monkeypatch.setattr(search, "replace", lambda ranking, **_: ranking)
    problem = PROBLEM.with_(passes=passes)
    search.rank_orders(OrdersRequest(problems=[problem], kernel="flash", gpu=gpu, **pinned))
    assert tried == [tries]


def test_a_kernel_that_loops_over_no_keys_has_no_order() -> None:
    """Nor has it for several problems where one of them makes no loop."""
    with pytest.raises(InputError, match="no launch loops over keys"):
        search.rank_orders(OrdersRequest(problems=[PROBLEM], kernel="naive", gpu=H200))


def test_kernels_of_several_problems() -> None:
    """A kernel made by hand is that of all; one by name is resolved for each."""
    problems = [PROBLEM, PROBLEM.with_(head_dim=128)]
    by_hand = resolve("flash", PROBLEM, H200)
    assert resolve_all(by_hand, problems, H200) == [by_hand, by_hand]
    by_name = resolve_all("fa3", problems, H200)
    assert by_name == [resolve("fa3", p, H200) for p in problems]
    chosen = resolve_all("sdpa", problems, H200)
    assert {kernel.name for kernel in chosen} == {resolve("sdpa", PROBLEM, H200).name}


# ---- orders ----


@pytest.mark.parametrize(
    ("schedule", "batch", "choice"),
    [
        (Schedule(), 2, OrderChoice()),
        (Schedule(order=Order.BATCH), 2, OrderChoice(Order.BATCH)),
        (Schedule(order=Order.BATCH), 1, OrderChoice(Order.QUERY)),  # one sequence: the same
        (Schedule(order=Order.HEAD), 1, OrderChoice(Order.HEAD)),
        (Schedule(order=Order.HEAD, section_heads=4), 2, OrderChoice(Order.HEAD, 4)),
        (Schedule(order=Order.HEAD, section_heads=2), 2, OrderChoice(Order.HEAD, 2)),
        (Schedule(order=Order.HEAD, section_heads=1), 2, OrderChoice(Order.QUERY)),
    ],
)
def test_a_kernels_own_order(schedule: Schedule, batch: int, choice: OrderChoice) -> None:
    """A section of one head is queries fastest."""
    kernel = resolve("flash", PROBLEM, H200).with_(schedule=schedule)
    assert OrderChoice.of(kernel, PROBLEM.with_(batch=batch)) == choice


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (OrderChoice(), "queries fastest, keys ascending, static"),
        (OrderChoice(Order.HEAD), "heads fastest, keys ascending, static"),
        (OrderChoice(Order.BATCH), "queries, then batch fastest, keys ascending, static"),
        (OrderChoice(Order.HEAD, 1), "sections of 1 head, keys ascending, static"),
        (OrderChoice(Order.HEAD, 4), "sections of 4 heads, keys ascending, static"),
        (OrderChoice(Order.HEAD, 4, 8 << 20), "sections of 8 MiB, keys ascending, static"),
        (
            OrderChoice(
                start=Start.HEAVY_FIRST,
                direction=Direction.DESCENDING,
                scheduler=Scheduler.PERSISTENT,
                cluster=2,
                chiplets=4,
                tile=Tile(128, 64),
            ),
            "queries fastest, heavy first, keys descending, persistent, clusters of 2, "
            f"heads shared out to 4 L2s, tile {Tile(128, 64)}",
        ),
    ],
)
def test_an_order_in_words(choice: OrderChoice, words: str) -> None:
    assert choice.words == words


def test_sections_of_one_problem_and_of_several() -> None:
    plain = [(Order.QUERY, 0, 0), (Order.HEAD, 0, 0)]
    by_batch = (Order.BATCH, 0, 0)
    alone = PROBLEM.with_(batch=1)
    assert sections([alone]) == [*plain, (Order.HEAD, 2, 0), (Order.HEAD, 4, 0)]
    assert sections([PROBLEM])[:4] == [*plain, by_batch, (Order.HEAD, 2, 0)]
    assert sections([PROBLEM])[-1] == (Order.HEAD, 8, 0)  # of 16 heads
    # Query heads that share a key head stay together.
    assert sections([alone.with_(kv_heads=2)]) == [*plain, (Order.HEAD, 4, 0)]
    several = sections([alone, PROBLEM])
    assert several[:3] == [*plain, by_batch]
    assert all(heads == 0 and size > 0 for _, heads, size in several[3:])
    assert by_batch not in sections([alone, alone])


@pytest.mark.parametrize(
    ("pinned", "kept"),
    [
        ({}, [(Order.QUERY, 0), (Order.HEAD, 0), (Order.HEAD, 4)]),
        ({"order": Order.HEAD}, [(Order.HEAD, 0), (Order.HEAD, 4)]),
        ({"order": Order.BATCH}, [(Order.BATCH, 0)]),  # none is listed: as it is given
        ({"section_heads": 3}, [(Order.HEAD, 3)]),
        ({"order": Order.QUERY, "section_heads": 3}, [(Order.QUERY, 3)]),
        ({"section_bytes": 3}, [(Order.HEAD, 0)]),
    ],
)
def test_orders_that_are_pinned(pinned: dict[str, Any], kept: list[tuple[Order, int]]) -> None:
    listed = [
        {"order": order, "section_heads": heads, "section_bytes": 0}
        for order, heads in ((Order.QUERY, 0), (Order.HEAD, 0), (Order.HEAD, 4))
    ]
    outcome = _pinned_sections(listed, pinned)
    assert [(s["order"], s["section_heads"]) for s in outcome] == kept
    assert [s["section_bytes"] for s in outcome] == [pinned.get("section_bytes", 0)] * len(kept)


def test_one_problem_with_unequal_tiles_is_enough_to_try_all_starts() -> None:
    full, causal = PROBLEM.with_(mask="none"), PROBLEM
    kernels = {p: resolve("flash", p, H200) for p in (full, causal)}
    for problems, uneven in (((full,), False), ((causal,), True), ((full, causal), True)):
        listed = choices(problems, [kernels[p] for p in problems])
        starts = {choice.start for choice in listed}
        assert (Start.FOLD in starts) == uneven
        assert (Direction.DESCENDING in {choice.direction for choice in listed}) == uneven


@pytest.mark.parametrize("passes", ["fwd", "bwd"])
def test_an_order_is_applied_to_the_pass_that_is_made(passes: str) -> None:
    problem = PROBLEM.with_(passes=passes)
    kernel = resolve("fa2", problem, H200)
    choice = OrderChoice(Order.HEAD, 4)
    changed = applied(choice, kernel, problem, H200)
    backward = passes == "bwd"
    assert changed.of_pass(backward).schedule.section_heads == 4
    assert changed.of_pass(not backward).schedule == kernel.of_pass(not backward).schedule
    persistent = applied(OrderChoice(scheduler=Scheduler.PERSISTENT), kernel, problem, H200)
    assert persistent.persistent_ctas
    assert persistent.persistent_ctas % H200.sm_count == 0
    assert main_launch(kernel, problem) is not None


# ---- entries ----


def part(**changes: Any) -> OrderPart:
    plain: dict[str, Any] = {
        "tile": Tile(64, 64),
        "schedule": Schedule(),
        "read_bytes": 100,
        "write_bytes": 10,
        "compulsory_bytes": 50,
        "time_s": 1.0,
        "bound_by": "hbm",
        "method": "replay",
    }
    return OrderPart(**plain | changes)


def test_sums_over_problems_are_rounded() -> None:
    """Weights of a third: 100 and 101 bytes are 67, not 66."""
    parts = [part(side_bytes=100), part(read_bytes=101, side_bytes=100, time_s=2.0, bound_by="l2")]
    entry = OrderEntry.of(OrderChoice(), parts, (1 / 3, 1 / 3))
    assert (entry.hbm_read_bytes, entry.hbm_write_bytes, entry.compulsory_bytes) == (67, 7, 33)
    assert entry.side_bytes == 67
    assert entry.time_s == pytest.approx(1.0)
    assert entry.bound_by == "l2"
    without = OrderEntry.of(OrderChoice(), [part(side_bytes=100), part()], (1.0, 1.0))
    assert without.side_bytes is None
    none_moved = OrderEntry.of(OrderChoice(), [part(side_bytes=0)], (1.0,))
    assert none_moved.side_bytes == 0


def test_the_tile_of_a_backward_is_its_own_or_the_forwards() -> None:
    for tile_backward, expected in ((None, Tile(64, 32)), (Tile(16, 16), Tile(16, 16))):
        settings = SimpleNamespace(tile=tile_backward, schedule=Schedule())
        kernel = SimpleNamespace(tile=Tile(64, 32), of_pass=lambda _, s=settings: s)
        p: Any = SimpleNamespace(
            kernel=kernel,
            problem=SimpleNamespace(passes="bwd"),
            hbm_bounds=SimpleNamespace(compulsory_read=3, compulsory_write=4),
            total=lambda *_: 5,
            time=SimpleNamespace(total_s=1.0, bound_by="hbm"),
            side=None,
            method="replay",
        )
        read = OrderPart.of(p)
        assert (read.tile, read.compulsory_bytes, read.method) == (expected, 7, "replay")
        assert OrderPart.of(p, COARSE).method == COARSE


def entry(number: int, time_s: float, read: int, **changes: Any) -> OrderEntry:
    plain: dict[str, Any] = {
        "choice": CHOICES[number],
        "parts": (part(),),
        "hbm_read_bytes": read,
        "hbm_write_bytes": 0,
        "compulsory_bytes": 100,
        "time_s": time_s,
    }
    return OrderEntry(**plain | changes)


def test_the_front_and_the_order_of_entries() -> None:
    assert ranked([], CHOICES[0]) == []
    entries = [entry(1, 2.0, 100), entry(2, 1.0, 200), entry(3, 1.0, 300), entry(4, 2.0, 100)]
    outcome = ranked(entries, CHOICES[4])
    # Of equals the kernel's own comes first; nothing is both slower and as heavy on the front.
    assert [CHOICES.index(e.choice) for e in outcome] == [2, 3, 4, 1]
    assert {CHOICES.index(e.choice) for e in outcome if e.on_front} <= {2, 4, 1}
    assert [e.on_front for e in outcome][:2] == [True, False]


@pytest.mark.parametrize(
    ("limit", "rows"), [(1, [1, 3]), (2, [1, 2, 3]), (3, [1, 2, 3]), (None, [1, 2, 3])]
)
def test_the_kernels_own_order_stands_in_the_table_once(limit: int | None, rows: list[int]) -> None:
    orders = [entry(1, 1.0, 100), entry(2, 2.0, 200), entry(3, 3.0, 300, is_own=True)]
    ranking: Any = SimpleNamespace(orders=orders)
    table = ranking_table(ranking, limit)
    assert [row[0] for row in table.rows] == rows


def test_bytes_at_the_memorys_side_are_shown_where_any_are_known() -> None:
    none, some = entry(1, 1.0, 100), entry(2, 2.0, 200, side_bytes=7)
    for orders, is_shown in (([none, none], False), ([none, some], True), ([some, some], True)):
        ranking: Any = SimpleNamespace(orders=orders)
        names = [column.key for column in ranking_table(ranking, 5).columns]
        assert ("side_bytes" in names) == is_shown


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan"), "1", None])
def test_weights_that_are_none(weight: Any) -> None:
    with pytest.raises(InputError, match=r"weights .* is out of range"):
        check_weights([1, weight], [PROBLEM, PROBLEM])


def test_weights_of_problems() -> None:
    assert check_weights(None, [PROBLEM, PROBLEM]) == (1.0, 1.0)
    assert check_weights([2, 0.5], [PROBLEM, PROBLEM]) == (2.0, 0.5)
    with pytest.raises(InputError, match="weights are 1; accepted: 2"):
        check_weights([1], [PROBLEM, PROBLEM])


# ---- words and lines ----


def test_a_section_of_less_than_a_byte_is_refused() -> None:
    with pytest.raises(InputError, match="section 0 is out of range"):
        check_constant(0, [PROBLEM], "flash", H200)
    # One byte holds no key head: each head is a section.
    small = PROBLEM.with_(batch=1, heads=2, kv_heads=2, seq_q=128)
    assert check_constant(1, [small], "flash", H200).section_bytes == 1


def test_a_setting_that_is_none_of_an_orders() -> None:
    with pytest.raises(InputError, match="setting 'colour' is not known"):
        remap("query", colour=1)
    with pytest.raises(InputError, match=r"setting 'sections_heads' is not known.*section_heads"):
        remap("head", sections_heads=4)


@pytest.mark.parametrize("language", ["triton", "cuda"])
def test_a_line_says_something(language: str) -> None:
    """Nothing is added to a number, and no name is set to itself."""
    for order in Order:
        for section in (0, 2, 8):
            fields = pinned_fields({"order": order, "section_heads": section or None})
            text = code(
                Schedule(**{n: v for n, v in fields.items() if n != "section_bytes"}), language
            )
            assert "+ 0" not in text
            names = [line.strip().removeprefix("int ").split(" = ") for line in text.splitlines()]
            assert all(pair[0] != pair[1].rstrip(";") for pair in names if len(pair) == 2)
