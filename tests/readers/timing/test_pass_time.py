"""Launches without an attention loop, term by term, on a GPU of four SMs whose numbers are round."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from iosim.kernel.launch import Domain, Launch, Outer
from iosim.kernel.work import Dependent, Work
from iosim.readers.timing.pass_time import (
    PRODUCT_CYCLES,
    dependent_load_cycles,
    dependent_product_cycles,
    exponential_seconds,
    issue_cycles,
    issued_seconds,
    l2_seconds,
    pass_computing,
    pass_instruction_seconds,
    product_issue_seconds,
    product_issue_share,
    product_seconds,
    product_store_seconds,
    product_values,
    shared_seconds,
    solved_row_cycles,
    turn_load_seconds,
)

SMS, CLOCK, L2_RATE, PRODUCT_RATE = 4, 1000.0, 2000.0, 1e6
PAIRS = 2 * 2 * 64 * 32 * 2
"""Two blocks of 64 queries meet two of 32 keys, in each of two heads."""
DOMAIN = Domain(1, 2, 128, 64, 64, 32)


def running(work: Work | None = None, outer: Outer = Outer.PAIR, **more: Any) -> Any:
    """A launch of eight tiles on eight places."""
    gpu = {
        "sm_count": SMS,
        "cc": 90,
        "is_amd": False,
        "exp_per_clock_per_sm": 16.0,
        "shared_memory_bytes_per_clock_per_sm": 128.0,
    } | more.pop("gpu", {})
    needs = {"l2_write_fraction": 0.5, "step_sync_cycles": 100.0}
    bytes_of = {("l2", "read", None): 4000, ("l2", "read", "X"): 3000, ("hbm", "read", None): 1000}
    bytes_of |= more.pop("moved", {})
    lanes = more.pop("lanes", 128.0 * SMS)
    rates = SimpleNamespace(
        profile=SimpleNamespace(**gpu, need=needs.__getitem__),
        clock_hz=CLOCK,
        tensor=lambda dtype, unit: PRODUCT_RATE,
        l2=lambda: L2_RATE,
        fp32_lanes=lambda: lanes,
        load_latency_s=lambda from_dram: 0.6 if from_dram else 0.2,
        load_cycles=lambda from_dram: 600.0 if from_dram else 300.0,
    )
    usual = {
        "steps": 16,
        "ctas_per_sm": 2,
        "finds_in_l2": True,
        "dtype": "bf16",
        "element_bytes": 2.0,
        "tensor_cores": True,
        "slots": 8,
        "work_tiles": 8,
    } | more
    return SimpleNamespace(
        rates=rates,
        launch=SimpleNamespace(
            domain=DOMAIN,
            outer=outer,
            work=work or Work(),
            work_tiles=usual["work_tiles"],
            accesses=(SimpleNamespace(tensor="X"),),
        ),
        chain=SimpleNamespace(tensors={"X": SimpleNamespace(element_bytes=4)}),
        resident=SimpleNamespace(slots=usual["slots"], waves=1.0),
        unit=SimpleNamespace(tensor_cores=usual["tensor_cores"]),
        moved=lambda level, way=None, tensor=None: bytes_of.get((level, way, tensor), 0),
        stored=lambda: 700.0,
        l2_loads=lambda: 5000.0,
        **{n: usual[n] for n in ("steps", "ctas_per_sm", "finds_in_l2", "dtype", "element_bytes")},
    )


def test_products_of_whole_tiles() -> None:
    assert product_seconds(running(Work(10))) == pytest.approx(PAIRS * 10 / PRODUCT_RATE)
    # columns that are multiplied and not stored
    assert product_seconds(running(Work(10, product_columns=8))) == pytest.approx(
        PAIRS * 16 / PRODUCT_RATE
    )
    assert product_seconds(running(Work(0, product_columns=8))) == 0.0


@pytest.mark.parametrize(
    ("work", "outer", "values"),
    [
        (Work(10), Outer.PAIR, 64 * 32),
        (Work(10), Outer.QUERY, 64 * 5),
        (Work(10), Outer.KEY, 32 * 5),
        (Work(10, product_columns=8), Outer.QUERY, 64 * 8),
        (Work(10, product_ctas=2), Outer.QUERY, 64 * 5 / 2),
        (Work(2, product_ctas=1000), Outer.KEY, 1),
    ],
)
def test_values_of_a_products_cta(work: Work, outer: Outer, values: float) -> None:
    assert product_values(running(work, outer)) == values


@pytest.mark.parametrize(
    ("ctas", "lanes", "share"),
    [
        # 2,048 values on 128 threads are 4 x 4 each: 1.5 issues of each of 8 operands for 16 multiply-adds
        (5, 128.0 * SMS, 1.75),  # two CTAs on an SM, eight warps
        (4, 128.0 * SMS, 1.75 * 1.7),  # a warp a scheduler
        (5, 64.0 * SMS, 1.0),  # half as many lanes: loads are issued between the multiply-adds
        (4, 64.0 * SMS, 1.75 * 1.7 / 2),
        (4, math.inf, 1.0),
    ],
)
def test_what_is_issued_beside_multiply_adds(ctas: int, lanes: float, share: float) -> None:
    assert product_issue_share(running(Work(10), lanes=lanes), ctas) == pytest.approx(share)


def test_products_on_the_fp32_units_take_longer() -> None:
    work = Work(10)
    own = product_seconds(running(work))
    assert product_issue_seconds(running(work, tensor_cores=False)) == pytest.approx(0.75 * own)
    assert product_issue_seconds(running(work)) == 0.0
    waits = Work(10, dependent=Dependent(loads=1))
    assert product_issue_seconds(running(waits, tensor_cores=False)) == 0.0


@pytest.mark.parametrize(
    ("work", "more", "seconds"),
    [
        (Work(10), {}, 0.0),  # its CTAs stay
        (Work(10), {"gpu": {"cc": 89}}, 700 / 0.5 / L2_RATE),
        (Work(10), {"gpu": {"cc": 80, "is_amd": True}}, 0.0),
        (Work(10), {"tensor_cores": False}, 700 / 0.5 / L2_RATE),
        (Work(0), {"gpu": {"cc": 89}}, 0.0),
        (Work(10, dependent=Dependent()), {"gpu": {"cc": 89}}, 0.0),
    ],
)
def test_stores_of_a_products_tiles(work: Work, more: dict[str, Any], seconds: float) -> None:
    assert product_store_seconds(running(work, **more)) == pytest.approx(seconds)


def test_bytes_exponentials_and_instructions() -> None:
    assert l2_seconds(running()) == 5000 / L2_RATE
    assert exponential_seconds(running(Work(exps_per_pair=3))) == pytest.approx(
        PAIRS * 3 / (16 * CLOCK * SMS)
    )
    assert (
        exponential_seconds(running(Work(exps_per_pair=3), gpu={"exp_per_clock_per_sm": None}))
        == 0.0
    )
    # eight CTAs on four SMs are two on the busiest, a quarter of the pairs; of nine tiles it has three of nine
    shared = Work(shared_bytes_per_pair=6)
    assert shared_seconds(running(shared)) == pytest.approx(PAIRS / 4 * 6 / (128 * CLOCK))
    assert shared_seconds(running(shared, work_tiles=9)) == pytest.approx(
        PAIRS / 3 * 6 / (128 * CLOCK)
    )
    assert (
        shared_seconds(running(shared, gpu={"shared_memory_bytes_per_clock_per_sm": None})) == 0.0
    )
    # 4,000 bytes of two each, by all lanes
    assert pass_instruction_seconds(running(Work(operations_per_value=5))) == pytest.approx(
        2000 * 5 / (512 * CLOCK)
    )
    # 3,000 bytes of X, of four each
    issued = Work(issued_per_value=7.0)
    assert issued_seconds(running(issued)) == pytest.approx(750 * 7 / (128 * SMS * CLOCK))
    assert issued_seconds(running(issued, gpu={"is_amd": True})) == issued_seconds(running()) == 0.0


def test_what_dependent_steps_wait_for() -> None:
    waits = Dependent(loads=3, products=2, rows=100, instructions=48)
    assert dependent_load_cycles(running(), waits) == pytest.approx(3 * 0.2 * CLOCK)
    assert dependent_load_cycles(running(finds_in_l2=False), waits) == pytest.approx(
        3 * 0.6 * CLOCK
    )
    by_cc = {
        cc: dependent_product_cycles(running(gpu={"cc": cc}), waits)
        for cc in (90, 99, 100, 119, 120)
    }
    later = 2 * (PRODUCT_CYCLES + 100)
    plain = 2 * PRODUCT_CYCLES
    assert by_cc == {90: plain, 99: plain, 100: later, 119: later, 120: plain}
    assert solved_row_cycles(running(), waits) == 100 * 300
    assert solved_row_cycles(running(), Dependent(rows=500)) == 128 * 300  # no more than tokens
    assert issue_cycles(waits) == 12


@pytest.mark.parametrize(
    ("work", "hbm", "latency"),
    [
        (Work(), 1999, 0.2),  # less than half comes from HBM
        (Work(), 2000, 0.6),
        (Work(10, product_ctas=4), 499, 0.2),  # of a product's tile four read the same
        (Work(10, product_ctas=4), 500, 0.6),
        (Work(0, product_ctas=4), 500, 0.2),
    ],
)
def test_loads_of_a_step_that_is_issued_in_turn(work: Work, hbm: int, latency: float) -> None:
    of = running(work, moved={("hbm", "read", None): hbm})
    assert turn_load_seconds(of, Dependent(loads=3)) == pytest.approx(3 * latency)


def test_a_products_rounds_are_filled_up() -> None:
    """Nine tiles on eight places take as long as sixteen; on the fp32 units as four a round, twelve."""
    own = PAIRS * 10 / PRODUCT_RATE
    made = pass_computing(running(Work(10), work_tiles=9))
    assert made.seconds["tensor"] == pytest.approx(own * 16 / 9)
    assert made.total_s == pytest.approx(own * 16 / 9)
    on_lanes = pass_computing(running(Work(10), work_tiles=9, tensor_cores=False))
    assert on_lanes.seconds["tensor"] == pytest.approx(1.75 * own * 12 / 9)
    assert on_lanes.total_s == pytest.approx(1.75 * own * 12 / 9 + 700 / 0.5 / L2_RATE)
    assert "exp" not in made.seconds
    assert "l2" in made.seconds
    # 16 steps of nine tiles: the busiest SM has two rounds of two CTAs, 64 / 9 steps
    longest = max(own * 16 / 9, 5000 / L2_RATE)
    assert made.step_s == pytest.approx(tuple(n * longest / (64 / 9) for n in (1, 2)))
    flat = pass_computing(running(Work(operations_per_value=500), outer=Outer.FLAT))
    assert flat.total_s == pytest.approx(2000 * 500 / (512 * CLOCK))
    assert flat.step_s == (0.0, 0.0)


def test_instructions_in_turn_overlap_waits_in_part() -> None:
    """Nine CTAs on eight places, two on an SM: a full round, and one CTA more. Waits and what others issue are a root
    of squares."""
    work = Work(10, shared_bytes_per_pair=6, dependent=Dependent(loads=3, instructions=4000))
    made = pass_computing(running(work, work_tiles=9))
    steps, own = 16 / 9, PAIRS * 10 / PRODUCT_RATE * 16 / 9
    alone = own * SMS / 16 + PAIRS / 3 * 6 / (128 * CLOCK) / 3 + steps * 3 * 0.2
    issued = steps * 1000 / CLOCK
    assert made.seconds["issue"] == pytest.approx(3 * issued)
    assert made.total_s == pytest.approx(math.hypot(alone, 2 * issued) + math.hypot(alone, issued))


def test_steps_that_wait_for_one_another() -> None:
    """A CTA's steps one after the other; each CTA beside it on its SM adds what the busiest unit takes of a step. Four
    tiles of two steps are an SM's each."""
    work = Work(10, dependent=Dependent(loads=1, products=1))
    of = running(work, steps=8)
    of.launch = Launch("walk", DOMAIN, Outer.QUERY, (), work=work)
    made = pass_computing(of)
    own = PAIRS * 10 / PRODUCT_RATE
    per_step = SMS / 8  # of an SM, for a second of the whole GPU
    alone = own * per_step + 0.2 + PRODUCT_CYCLES / CLOCK
    more = max(own, 5000 / L2_RATE) * per_step
    assert made.step_s == pytest.approx((alone, alone + more))
    assert made.seconds["tensor"] == pytest.approx(own)
    assert made.seconds["sequence"] == pytest.approx(2 * alone)
    assert made.total_s == pytest.approx(2 * alone)
    none = pass_computing(running(work, steps=0))
    assert (none.total_s, "tensor" in none.seconds) == (0.0, False)
