"""Resident CTAs, slots and waves of a launch, and the estimate of its registers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosim.catalog.algorithms import plan
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, PassSettings, Schedule, Scheduler, Tile
from iosim.kernel.launch import Launch
from iosim.kernel.residency import estimated_registers, needed_registers, residency
from iosim.problem.attention import AttentionProblem


def main(tile: Tile, head_dim: int = 128, passes: str = "fwd", **settings: object) -> Launch:
    problem = AttentionProblem(heads=32, seq_q=4096, head_dim=head_dim, dtype="bf16", passes=passes)
    kernel = Kernel("flash", "flash", tile, backward=PassSettings(tile), **settings)  # type: ignore[arg-type]
    return next(n for n in plan(problem, kernel).launches if n.name in ("main", "bwd.main"))


def test_registers_are_accumulators_and_a_fixed_part() -> None:
    # 128x64, head_dim 128, 128 threads: (128 * 64 + 128 * 128) / 128 = 192 accumulators, and 56
    assert needed_registers(main(Tile(128, 64, 4))) == 192 + 56


def test_registers_of_the_backward_count_dk_and_dv_by_key_rows() -> None:
    # 64x128 at head_dim 64, 256 threads: S 64 * 128; output tile 128 rows x (3 * 64 + 2 * 64) / 2 columns = 160
    assert needed_registers(main(Tile(64, 128, 8), 64, "bwd")) == (64 * 128 + 128 * 160) // 256 + 56


def test_estimate_stops_at_the_hardware_limit() -> None:
    launch = main(Tile(256, 128, 4))  # (256 * 128 + 256 * 128) / 128 + 56 = 568
    assert needed_registers(launch) == 568
    assert estimated_registers(launch, load_profile("a100")) == 255


def test_two_ctas_of_255_registers_fill_an_sm() -> None:
    # 255 rounds up to 256 a thread, 128 threads: 32,768 of 65,536 registers; grid 32 heads x 32 blocks on 2 x 132 slots
    resident = residency(main(Tile(128, 64, 4), registers=255), load_profile("h200"))
    assert (resident.ctas_per_sm, resident.slots, resident.registers_estimated) == (2, 264, False)
    assert resident.waves == 1024 / 264


def test_shared_memory_limits_where_registers_do_not() -> None:
    # Q 128 x 128 and two buffers of K and V of 128 x 128: 32,768 * (1 + 2 * 2) = 163,840 bytes; 228 KiB holds one
    resident = residency(main(Tile(128, 128, 8, 2), registers=128), load_profile("h200"))
    assert resident.ctas_per_sm == 1
    assert resident.occupancy.limited_by == ("shared_memory",)


def test_persistent_launch_has_as_many_slots_as_ctas() -> None:
    schedule = Schedule(scheduler=Scheduler.PERSISTENT)
    resident = residency(
        main(Tile(128, 64, 4), schedule=schedule, persistent_ctas=132), load_profile("h200")
    )
    assert resident.slots == 132
    assert resident.waves == 1024 / 132


def test_what_fits_nowhere_says_why() -> None:
    launch = main(Tile(128, 128, 8, 2))  # 163,840 bytes
    resident = residency(launch, load_profile("l4"))
    assert resident.occupancy.ctas_per_sm == 0
    assert resident.occupancy.reason == "needs 163,840 bytes of shared memory, sm_89 allows 101,376"


@given(
    st.sampled_from([16, 32, 64, 128]),
    st.sampled_from([16, 32, 64, 128]),
    st.sampled_from([1, 2, 4, 8]),
)
def test_more_warps_need_no_more_registers_each(block_q: int, block_k: int, warps: int) -> None:
    few = needed_registers(main(Tile(block_q, block_k, warps)))
    many = needed_registers(main(Tile(block_q, block_k, 2 * warps)))
    assert 56 <= many <= few


@pytest.mark.parametrize("gpu", ["t4", "l4", "a100", "h200", "b200"])
def test_slots_are_whole_sms(gpu: str) -> None:
    profile = load_profile(gpu)
    resident = residency(main(Tile(64, 32, 4), 64), profile)
    assert resident.slots == resident.ctas_per_sm * profile.sm_count
