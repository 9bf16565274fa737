"""Warps that play machine code on the units of an SM: what bounds a turn, and what hides what."""

from __future__ import annotations

import pytest

from iosim.base.records import replace
from iosim.kernel.machine import MemoryUse, Region, Slot
from iosim.readers.timing.warps import (
    LATENCIES,
    SmPace,
    ctas_in_turn,
    missed_latency,
    one_part,
    placed_warps,
    play,
    regions_turn,
)

PACE = SmPace(l2_latency=300, tensor_flops=1024, l2_bytes=64, stored_bytes=32)
ADD = Slot("fp32", "fma", 1, 1, None, None, 0)
WORD = MemoryUse(sectors=4, lines=1, wavefronts=0)
FOUR_WARPS = placed_warps(128, 1)


def load(sets: int, use: MemoryUse = WORD) -> Slot:
    return Slot("global-load", "lsu", 0, 1, sets, None, 0, use)


def waits(barrier: int) -> Slot:
    return replace(ADD, waits=1 << barrier)


def cycles(slots: list[Slot], warps: list[tuple[int, int]], turns: int = 3) -> float:
    return play(slots, warps, PACE, turns).cycles


def test_an_instruction_a_cycle_is_issued_by_each_part() -> None:
    assert cycles([ADD] * 100, FOUR_WARPS) == 100
    assert cycles([ADD] * 100, placed_warps(128, 4)) == 400


def test_a_unit_of_half_rate_takes_two() -> None:
    slow = replace(ADD, unit="alu", cycles=2)
    assert cycles([slow] * 100, FOUR_WARPS) == pytest.approx(200, abs=2)


def test_what_runs_on_two_units_runs_side_by_side() -> None:
    slow = replace(ADD, unit="alu", cycles=2)
    assert cycles([slow, ADD] * 50, placed_warps(128, 2)) == pytest.approx(
        200, abs=4
    )  # 100 slow ones take all of it


def test_stalls_of_one_warp_are_others_time() -> None:
    waiting = replace(ADD, stall=4)
    assert cycles([waiting] * 50, FOUR_WARPS) == 200
    assert cycles([waiting] * 50, placed_warps(128, 4)) == pytest.approx(200, abs=4)


def test_a_load_that_nothing_is_ahead_of_shows_its_latency() -> None:
    exposed = cycles([load(0), waits(0), *[ADD] * 50], FOUR_WARPS)
    ahead = cycles([load(0), *[ADD] * 50, waits(0)], FOUR_WARPS)
    assert exposed == pytest.approx(300 + 50, abs=20)
    assert ahead == pytest.approx(300, abs=20)
    hidden = [load(0), *[ADD] * 400, waits(0)]
    assert cycles(hidden, FOUR_WARPS) == pytest.approx(402, abs=4)


def test_other_warps_hide_a_latency() -> None:
    slots = [load(0), waits(0), *[ADD] * 50]
    assert cycles(slots, FOUR_WARPS) == pytest.approx(350, abs=10)
    assert (
        cycles(slots, placed_warps(128, 8)) < 2 * 350
    )  # eight warps a part in less than the time of two


def test_a_hit_in_l1_takes_its_latency() -> None:
    near = replace(WORD, hits_l1=1.0)
    assert cycles([load(0, near), waits(0)], FOUR_WARPS) == pytest.approx(LATENCIES["l1"], abs=8)


def test_a_bank_conflict_takes_its_wavefronts_from_all_parts() -> None:
    conflict = Slot("shared-load", "lsu", 0, 1, 0, None, 0, MemoryUse(0, 0, wavefronts=32))
    turn = [replace(conflict, sets=n % 5) for n in range(20)]
    assert cycles(turn, placed_warps(128, 2)) == pytest.approx(
        20 * 32 * 8, rel=0.05
    )  # 8 warps, one path


def test_a_warps_conflicts_take_two_cycles_a_way_between_which_others_go() -> None:
    conflict = Slot("shared-load", "lsu", 0, 1, 0, None, 0, MemoryUse(0, 0, 32), conflicts=31)
    turn = [replace(conflict, sets=n % 5) for n in range(20)] + [waits(4)]
    alone = cycles(turn, placed_warps(32, 1))
    assert alone == pytest.approx(20 * (32 + 31), rel=0.05)
    assert cycles(turn, placed_warps(32, 2)) == pytest.approx(alone, rel=0.1)
    # The banks give a word a cycle to all of them together.
    assert cycles(turn, placed_warps(32, 4)) == pytest.approx(4 * 20 * 32, rel=0.05)


def test_spilled_stores_are_bound_by_the_way_to_the_l2() -> None:
    store = Slot("local-store", "lsu", 0, 1, None, None, 0, WORD)
    assert cycles([store] * 100, FOUR_WARPS) == pytest.approx(400 * 128 / 32, rel=0.05)


def test_products_run_beside_what_their_warp_does_next() -> None:
    product = Slot(
        "product",
        "tensor",
        0,
        1,
        None,
        None,
        0,
        None,
        2.0 * 64 * 64 * 16 / 4,
        "bf16",
        True,
        None,
        True,
    )
    wait = Slot("product-wait", "control", 1, 1, None, None, 0, None, leaves=0)
    product_cycles = product.flops / PACE.tensor_flops
    beside = cycles([product, *[ADD] * 20, wait], FOUR_WARPS)
    assert beside == pytest.approx(product_cycles + LATENCIES["product"], abs=4)


def test_copies_are_waited_for_in_groups() -> None:
    """With one group left under way a turn waits for the copies of the turn before."""
    copy = Slot("global-copy", "lsu", 0, 1, None, None, 0, WORD)
    commit = Slot("commit", "control", 1, 1, None, None, 0)

    def turn(at: int) -> list[Slot]:
        return [
            copy,
            commit,
            *[ADD] * 200,
            Slot("wait", "control", 1, 1, None, None, 0, None, leaves=at),
        ]

    assert cycles(turn(0), FOUR_WARPS) == pytest.approx(300, abs=15)
    assert cycles(turn(1), FOUR_WARPS) == pytest.approx(203, abs=4)


def test_warps_of_a_cta_meet_at_a_barrier() -> None:
    barrier = Slot("barrier", "control", 1, 1, None, None, 0)
    alone = cycles([load(0), waits(0), barrier, *[ADD] * 100], placed_warps(512, 1))
    assert alone == pytest.approx(300 + 4 * 103, abs=30)  # all wait for the load, and then all add


def test_one_part_stands_for_all() -> None:
    slots = tuple([load(0), *[ADD] * 30, waits(0)] * 20)
    warps = placed_warps(256, 2)
    mine, parts = one_part(warps)
    assert (len(mine), parts) == (4, 4.0)
    together = play(slots, warps, PACE, 3).cycles
    assert play(slots, mine, replace(PACE, share=parts), 3).cycles == pytest.approx(
        together, rel=0.1
    )


def test_regions_add_up() -> None:
    once = Region((ADD,) * 30)
    loop = Region((ADD,) * 10, turns=100, repeats=True)
    assert regions_turn((once, loop), FOUR_WARPS, PACE).cycles == pytest.approx(30 + 1000, abs=2)


def test_half_written_sectors_take_the_l2_longer() -> None:
    whole = Slot("global-store", "lsu", 0, 1, None, None, 0, MemoryUse(32, 32, 0))
    parts = replace(whole, use=MemoryUse(32, 32, 0, in_part=1.0))
    of_whole = cycles([whole] * 20, FOUR_WARPS)
    assert of_whole == pytest.approx(4 * 20 * 32, rel=0.02)  # 32 bytes a cycle
    assert cycles([parts] * 20, FOUR_WARPS) == pytest.approx(2.4 * of_whole, rel=0.02)


def test_ctas_that_follow_one_another_load_while_others_compute() -> None:
    """Two CTAs of 16 warps, each 300 cycles of waiting and then 60 of adding a warp, four warps to a part: in turn they
    come nearer to the 480 cycles of adding than the 796 that they take when all wait at once."""
    warps = placed_warps(512, 2)
    whole = (Region((load(0), waits(0), *[ADD] * 60)),)
    together = regions_turn(whole, warps, PACE)
    assert together.cycles > 300 + 8 * 60
    added = ctas_in_turn(whole, warps, PACE, together)
    assert 8 * 60 <= added < 0.85 * together.cycles
    alone = placed_warps(512, 1)
    regions = regions_turn(whole, alone, PACE)
    assert ctas_in_turn(whole, alone, PACE, regions) == regions.cycles  # nobody is beside it


def test_a_few_warps_leave_parts_without_work() -> None:
    assert placed_warps(32, 2) == [(0, 0), (1, 1)]
    assert placed_warps(256, 1) == [(0, n % 4) for n in range(8)]


def test_a_copys_registers_are_free_before_its_bytes_are_there() -> None:
    copies = [replace(load(0), group="global-copy", frees=1, sets=None)] * 8
    many = MemoryUse(sectors=64, lines=4, wavefronts=4)
    copies = [replace(copy, use=many) for copy in copies]
    # 8 copies of 2,048 bytes take the path to L1 for 4 cycles each, and 32 cycles of the L2's.
    assert cycles([*copies, waits(1)], FOUR_WARPS, turns=1) < 8 * 4 * 4 + 100 + 8 * 4 * 32
    waiting = play([*copies, waits(1), *[ADD] * 2000], FOUR_WARPS, PACE)
    assert waiting.cycles == pytest.approx(2000 + 8 * 4 * 4, abs=40)


def test_products_beside_their_warp_are_queued() -> None:
    product = replace(ADD, group="product", unit="tensor", cycles=0, flops=128 * 1024)
    product = replace(product, runs_beside=True, dtype="bf16")
    # Four products of 128 cycles: the warp goes on at once, and its instructions run meanwhile.
    assert cycles([*[product] * 4, *[ADD] * 500], FOUR_WARPS) == pytest.approx(512, abs=12)


def test_loads_come_at_the_sms_share_of_the_l2() -> None:
    """Four warps ask for 128 bytes each, of which 16 come in a cycle: the last has them 4 x 8 cycles later."""
    shared = replace(PACE, l2_bytes=16.0)
    once = play([load(0), waits(0)], FOUR_WARPS, shared)
    assert once.cycles == pytest.approx(300 + 4 * 128 / 16, abs=8)
    assert once.busy["from-l2"] == pytest.approx(4 * 128 / 16)
    turns = play([load(0), *[ADD] * 4], FOUR_WARPS, shared, turns=20)
    assert turns.cycles == pytest.approx(4 * 128 / 16, rel=0.1)


def test_a_special_functions_latency_has_its_unit_in_it() -> None:
    special = replace(ADD, group="special", unit="xu", cycles=8, sets=0)
    one_warp = placed_warps(32, 1)
    assert cycles([special, waits(0)] * 10, one_warp) == pytest.approx(10 * 19, abs=12)


@pytest.mark.parametrize(
    ("missed", "sectors", "share"),
    [
        (0.0, 4, 0.0),
        (1.0, 1, 1.0),
        (0.5, 2, 0.75),  # both of two are there in a quarter of the requests
        (0.5, 0.25, 0.5),  # less than a sector is one
        (1.2, 2, 1.0),  # sectors that are asked for twice
    ],
)
def test_a_request_waits_for_the_l2_where_one_of_its_sectors_does(
    missed: float, sectors: float, share: float
) -> None:
    l1 = LATENCIES["l1"]
    assert missed_latency(missed, sectors, l1 + 200) == pytest.approx(l1 + 200 * share)
