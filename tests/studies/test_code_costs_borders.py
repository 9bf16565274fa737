"""What a kernel's costs say at their borders: savings that are just named, loops that take no time, lines of no file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iosim.code.listing import read_listing
from iosim.code.loops import Flow
from iosim.code.module import Function
from iosim.hardware.profile import load_profile
from iosim.kernel.machine import Machine, MemoryUse, Region, Slot
from iosim.studies import code_costs
from iosim.studies.code_costs import Cost, LoopCost
from iosim.studies.code_costs_face import costs_answer, loop_table

LOOP = "/*0000*/ LDG.E R4, [R2] ;  // c=0x7e1{}\n/*0010*/ @P0 BRA 0x0 ;  // c=0x7e1{}\n/*0020*/ EXIT ;\n"
SLOT = Slot("fp32", "fma", 1.0, 4, None, None, 0)
NONE: Any = None


def function(first: str = "", second: str = "") -> Function:
    return Function("k", 90, 32, 16, 0, 64, read_listing(LOOP.format(first, second)))


def costs(*saved: float) -> Any:
    named = tuple(
        Cost(f"cost {n}", f"a.cu:{n}", "", 1e-3 * (1 - s), s) for n, s in enumerate(saved, 1)
    )
    prediction = SimpleNamespace(profile=load_profile("h100"), time_s=1e-3, bound_by="l2")
    return SimpleNamespace(function=function(), prediction=prediction, costs=named, loops=())


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ((), "Nothing costs more than it need."),
        ((0.004,), "Cost 1 at a.cu:1 cost no time."),
        ((0.004, 0.0), "Cost 1 at a.cu:1 and cost 2 at a.cu:2 cost no time."),
        ((0.005,), "Without cost 1 (a.cu:1) 995 us, 0% less."),  # half a percent is named
        (
            (0.3, 0.0049, 0.1),
            "Without cost 1 (a.cu:1) 700 us, 30% less; without cost 3 (a.cu:3) 900 us, 10% less.",
        ),
    ],
)
def test_costs_that_are_named(saved: tuple[float, ...], words: str) -> None:
    answer = costs_answer(costs(*saved))
    start = "k on h100-sxm takes 1 ms, bound by l2. "
    assert answer.lower() == (start + words).lower()


def test_cycles_are_whole_numbers() -> None:
    """Rounded, and a unit that no loop uses has no column."""
    loop = LoopCost("loop", "", 2.25, 7, 10.6, {"lsu": 3.7, "fma": 0.0}, 6.9, 0.5)
    table = loop_table(SimpleNamespace(loops=(loop,)))  # type: ignore[arg-type]
    assert table.rows == (("loop", "", 0.5, 2.2, 7, 11, 4, 7),)
    assert [column.key for column in table.columns][-2:] == ["lsu", "exposed"]


def test_loops_that_take_no_time_and_regions_without_code(monkeypatch: pytest.MonkeyPatch) -> None:
    regions = (Region(()), Region((SLOT,), 3.0, at=0))
    work: Any = SimpleNamespace(on_sm=SimpleNamespace(machine=Machine(tile=regions)))
    for cycles, share in ((0.0, 0.0), (4.0, 12.0 / 16.0)):
        monkeypatch.setattr(code_costs, "_turn", lambda *_, c=cycles: (c, {"fma": 1.0}))
        (loop,) = code_costs._loops(NONE, function(), work)
        assert (loop.name, loop.share, loop.turns) == ("loop at 0x0", share, 3.0)
        assert loop.exposed == max(0.0, cycles - 1.0)


@pytest.mark.parametrize(
    ("sources", "lines"),
    [
        (("", ""), ""),
        ((" a.cu:7", ""), "a.cu:7-7"),
        ((" a.cu:7", " a.cu:3"), "a.cu:3-7"),
        ((" /deep/a.cu:7", " b.h:3"), "a.cu:7-7"),  # of as many lines the first file
    ],
)
def test_lines_of_a_loop(sources: tuple[str, str], lines: str) -> None:
    flow = Flow(function(*sources))
    assert code_costs._lines(flow, Region((), at=0)) == lines
    assert code_costs._lines(flow, Region(())) == ""


def test_a_place_is_a_line_or_an_instruction() -> None:
    assert code_costs._place(function(" /x/a.cu:7").instructions[0]) == "a.cu:7"
    assert code_costs._place(function().instructions[0]) == "0x0 LDG.E"


def test_code_that_takes_no_time_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    work = SimpleNamespace(on_sm=SimpleNamespace(machine=Machine()))
    monkeypatch.setattr(code_costs, "with_work", lambda *_: work)
    monkeypatch.setattr(code_costs, "_whole_cycles", lambda *_: 0.0)
    launch: Any = SimpleNamespace(launch=None, profile=None)
    assert list(code_costs._costs(launch, function())) == []


def working(*runs: float, loaded: float = 0.0, stored: float = 0.0) -> Any:
    local = SimpleNamespace(loaded=loaded, stored=stored, hit_share=0.5)
    region = Region((SLOT, Slot("global-load", "lsu", 0.0, 1, 2, None, 0)))
    on_sm = SimpleNamespace(local_tile=local, machine=Machine(tile=(region,)))
    return SimpleNamespace(on_sm=on_sm, runs=SimpleNamespace(times=runs))


@pytest.mark.parametrize(("without", "is_named"), [(99.0, True), (99.1, False), (50.0, True)])
def test_waits_for_loads_that_show(
    without: float, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a hundredth of the time on."""
    monkeypatch.setattr(code_costs, "_whole_cycles", lambda *_: without)
    prediction: Any = SimpleNamespace(time_s=1.0)
    cost = code_costs._waits(prediction, function(), working(1, 1, 1), NONE, 100.0)
    assert (cost is not None) == is_named
    if cost is not None:
        assert cost.saved == pytest.approx(1 - without / 100)
    assert code_costs._waits(prediction, function(), working(0, 1, 1), NONE, 100.0) is None


@pytest.mark.parametrize(
    ("loaded", "stored", "is_named"), [(0, 0, False), (8, 0, True), (0, 8, True), (8, 8, True)]
)
def test_spills_that_are_loaded_or_stored(
    loaded: float, stored: float, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_costs, "_whole_cycles", lambda *_: 80.0)
    prediction: Any = SimpleNamespace(time_s=1.0)
    work = working(1, 1, 1, loaded=loaded, stored=stored)
    cost = code_costs._spills(prediction, function(), work, NONE, 100.0)
    assert (cost is not None) == is_named
    if cost is not None:
        assert cost.detail.startswith(
            f"16 bytes of a thread's frame: {stored:g} bytes stored and {loaded:g}"
        )


@pytest.mark.parametrize(
    ("sectors", "is_named"), [(4.0, False), (5.9, False), (6.0, True), (32.0, True)]
)
def test_loads_that_touch_more_sectors_than_they_need(
    sectors: float, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four sectors hold a word of 32 lanes: half as many again are named."""
    monkeypatch.setattr(code_costs, "_whole_cycles", lambda *_: 80.0)
    changed: list[MemoryUse | None] = []

    def with_work(launch: Any, code: Function, profile: Any, uses: Any) -> Any:
        changed.extend(uses(use_of)(instruction) for instruction in code.instructions)
        return working(1, 1, 1)

    def use_of(instruction: Any) -> MemoryUse | None:
        return MemoryUse(sectors, 32.0, 0.0) if instruction.kind == "LDG" else None

    monkeypatch.setattr(code_costs, "with_work", with_work)
    prediction: Any = SimpleNamespace(time_s=1.0, launch=None, profile=None)
    cost = code_costs._uncoalesced(prediction, function(), working(1, 1, 1), use_of, 100.0)
    assert (cost is not None) == is_named
    if cost is not None:
        assert changed == [MemoryUse(min(sectors, 4.0), 1.0, 0.0), None, None]
        assert cost.detail.startswith("LDG.E loads 128 bytes in")
    # Of instructions that never run nothing is said, nor where nothing is known of their addresses.
    assert code_costs._uncoalesced(prediction, function(), working(0, 1, 1), use_of, 100.0) is None
    assert (
        code_costs._uncoalesced(prediction, function(), working(1, 1, 1), lambda _: None, 100.0)
        is None
    )


def test_the_line_with_most_accesses() -> None:
    """By how often each runs: the second line's one access runs twice."""
    code = function(" a.cu:1", " a.cu:2")
    groups = ("global-load", "branch")
    for runs, place in (((1, 2, 0), "a.cu:2"), ((3, 2, 0), "a.cu:1"), ((0, 0, 9), "")):
        assert code_costs._most(code, working(*runs), groups, lambda _: 1.0) == place
