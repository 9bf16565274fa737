"""Spilled registers of a launch that is known by its code: what passes to the L2, and their moves in a replay."""

from __future__ import annotations

import numpy as np
import pytest
from user_kernels import cases, function_of

from iosim.code.frames import with_frames
from iosim.code.local import NO_LOCAL, LocalTraffic
from iosim.code.module import Module
from iosim.kernel.launch import SPILL, Chain, Domain, Launch, Outer, Role, Tensor, tensors
from iosim.kernel.touched import TOUCHED_MODES, Touched
from iosim.studies.code import run
from iosim.studies.requests import CodeRequest

WARPS, TURNS = 4, 10


def chain() -> Chain:
    """Six CTAs that each load two objects of `x`."""
    first, count = np.arange(0, 12, 2, dtype=np.int32), np.full(6, 2, dtype=np.int32)
    entries = np.tile(np.array([0, 1], dtype=np.int32), 6)
    touched = Touched({"x": np.array([64, 64])}, first, count, entries, (("x", "load", 6 * 128),))
    launch = Launch("f", Domain(1, 1, 6, 1, 1, 1), Outer.QUERY, (), touched=touched)
    return Chain(tensors((Tensor("x", 1, 1, 2, 16, 4, Role.INPUT),)), (launch,))


def test_every_turn_stores_and_loads_its_frame() -> None:
    local = LocalTraffic(loaded=TURNS * 32, hits_l1=0, stored=TURNS * 32, touched=32)  # 8 words a thread and turn
    made = with_frames(chain(), local, 32, TURNS, WARPS, slots=4)
    touched = made.launches[0].touched
    assert touched is not None
    each = TURNS * 32 * 32 * WARPS  # sectors of 32 bytes of four warps
    assert touched.moved == (("x", "load", 768), (SPILL, "store", 6 * each), (SPILL, "load", 6 * each))
    assert touched.count.tolist() == [2 + 2 * TURNS] * 6
    modes, objects = np.divmod(touched.entries, touched.total)
    frames = objects >= 2
    assert (modes[frames] == TOUCHED_MODES.index("store")).sum() == 6 * TURNS
    assert set(objects[touched.first[4] : touched.first[4] + touched.count[4]]) == {0, 1, 2}  # CTA 4 has 0's place
    assert made.tensors[SPILL].bytes == 4 * 32 * 32 * WARPS


def test_what_l1_serves_is_not_loaded() -> None:
    local = LocalTraffic(loaded=TURNS * 32, hits_l1=TURNS * 32, stored=TURNS * 16, touched=32)
    touched = with_frames(chain(), local, 32, TURNS, WARPS, slots=4).launches[0].touched
    assert touched is not None
    assert touched.count.tolist() == [2 + TURNS // 2] * 6  # half of the frame is stored in a turn: all of it in two
    assert [mode for _, mode, _ in touched.moved] == ["load", "store"]


def test_a_launch_that_spills_nothing_stays_as_it_is() -> None:
    whole = chain()
    assert with_frames(whole, NO_LOCAL, 0, 1, WARPS, slots=4) is whole


@pytest.mark.slow
def test_a_tile_that_spills_writes_its_frames_into_the_l2(tmp_path: object) -> None:
    case, function = cases()["attention-spilling"], function_of("attention-spilling", tmp_path)  # type: ignore[arg-type]
    given = {
        n: f"TENSOR({value.split()[1]},{value.split()[0]})" if isinstance(value, str) else value
        for n, value in case["arguments"].items()
    }
    module = Module("spilling", (function,), (function.ptx,))
    found = run(CodeRequest(code=module, gpu="h100", grid=case["grid"], arg=given))
    spilled = found.traffic.total("l2", "write", tensor=SPILL)
    assert spilled > 20 * found.traffic.total("l2", "write", tensor="out")
