"""Launches whose moves were read from their code: how a replay plays them, and at which pace."""

from __future__ import annotations

from itertools import chain as chain_of

import numpy as np
import pytest

from iosim.base.records import replace
from iosim.kernel.launch import (
    SPILL,
    Chain,
    Domain,
    FrameUse,
    Launch,
    Mode,
    Outer,
    Overhead,
    Role,
    Tensor,
    tensors,
)
from iosim.kernel.touched import Touched
from iosim.readers.formula.closed_form import closed_form
from iosim.readers.replay.lowering import lower
from iosim.readers.timing.machine_time import _moves_s
from iosim.readers.timing.warps import Turn

CTAS, TILES = 6, 4


def int32(*values: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def chain(overheads: tuple[Overhead, ...] = ()) -> Chain:
    """Each CTA loads all tiles of x, then stores its own of y: 10 objects in all."""
    moves = [[*range(TILES), (TILES + CTAS) + TILES + cta] for cta in range(CTAS)]
    first = int32(*range(0, CTAS * (TILES + 1), TILES + 1))
    count = int32(*[TILES + 1] * CTAS)
    moved_tensors = (("x", "load", CTAS * TILES * 1024), ("y", "store", CTAS * 512))
    sizes = {"x": int32(*[1024] * TILES), "y": int32(*[512] * CTAS)}
    touched = Touched(sizes, first, count, int32(*chain_of.from_iterable(moves)), moved_tensors)
    launch = Launch(
        "code", Domain(1, 1, CTAS, 1, 1, 1), Outer.QUERY, (), overheads=overheads, touched=touched
    )
    held = tensors(
        [Tensor("x", 1, 1, TILES, 256, 4, Role.INPUT), Tensor("y", 1, 1, CTAS, 128, 4, Role.OUTPUT)]
    )
    return Chain(held, (launch,))


def moves_of(planned: Chain, cta: int) -> list[tuple[int, int]]:
    """(mode, object) of what a CTA's steps do."""
    low = lower(planned, spill_slots=4)
    (launch,) = low.launches
    assert launch.indices is not None
    steps = launch.indices[launch.first[cta] : launch.first[cta] + launch.count[cta]]
    done = []
    for index in steps:
        taken_steps = [
            t
            for t in launch.loop
            if t.skips is not None and t.block is not None and t.skips[index] != t.block[cta]
        ]
        assert len(taken_steps) == 1  # each step is of one mode
        done.append(
            (taken_steps[0].mode, int(taken_steps[0].base[cta] + index % taken_steps[0].turn))
        )
    return done


def test_a_cta_makes_its_moves_in_their_order() -> None:
    assert moves_of(chain(), 2) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, TILES + 2)]
    low = lower(chain(), spill_slots=4)
    assert low.size.tolist() == [1024] * TILES + [512] * CTAS


def test_what_it_moves_is_what_its_code_was_counted_to() -> None:
    spilled = (Overhead(SPILL, Mode.STORE, per_tile=100),)
    by_tensor = {(row.tensor, row.direction): row.bytes for row in closed_form(chain(spilled))}
    assert by_tensor == {
        ("x", "read"): 6 * 4 * 1024,
        ("y", "write"): 6 * 512,
        (SPILL, "write"): 6 * 100,
    }


@pytest.mark.parametrize(("loaded", "loads"), [(0, 0), (400, 1), (800, 1)])
def test_frames_are_stored_as_often_as_they_are_filled_and_loaded_as_often_as_they_miss(
    loaded: int, loads: int
) -> None:
    """A frame of 400 bytes is stored twice, and loaded before the second store: nothing is loaded before it is stored."""
    spilled = (
        Overhead(SPILL, Mode.STORE, per_tile=800, frame=400),
        Overhead(SPILL, Mode.LOAD, per_tile=loaded, frame=400),
    )
    frames = TILES + CTAS
    for cta, frame in ((0, frames), (1, frames + 1), (2, frames + 2), (3, frames + 3), (4, frames)):
        done = moves_of(chain(spilled), cta)
        assert done.count((1, frame)) == 2
        assert done.count((0, frame)) == loads
        assert [move for move in done if move[1] < frames] == moves_of(chain(), cta)
    assert lower(chain(spilled), spill_slots=4).size.tolist()[frames:] == 4 * [400]


def test_words_of_a_frame_are_stored_and_loaded_where_the_code_does() -> None:
    """Of two words the second is stored as a turn begins and loaded for the last time at its end, the first is loaded
    of the turn before; three turns, of which the first has nothing to load it from."""
    uses = (
        FrameUse(1, 0.0, Mode.STORE),
        FrameUse(0, 0.2, Mode.LOAD),
        FrameUse(0, 0.4, Mode.STORE),
        FrameUse(1, 0.9, Mode.LOAD, last=True),
    )
    spilled = (Overhead(SPILL, Mode.STORE, per_tile=3 * 512, frame=512, parts=2, uses=uses),)
    frames = TILES + CTAS
    moves = moves_of(chain(spilled), 0)
    done = [move for move in moves if move[1] >= frames]
    first, second = frames, frames + 1
    turn = [(1, second), (0, first), (1, first), (3, second)]
    assert done == [move for move in turn if move != (0, first)] + 2 * turn
    # So many of the CTA's five other moves come before each: 5/3 in a turn.
    others = [n - k for k, n in enumerate(n for n, m in enumerate(moves) if m[1] >= frames)]
    assert others == [0, 0, 1, 1, 2, 2, 3, 3, 3, 4, 4]
    # Of a word of which L1 serves three loads in four, one turn of four loads it.
    rare = replace(uses[3], share=0.25)
    often = (replace(spilled[0], uses=(*uses[:3], rare), per_tile=40 * 512),)
    assert moves_of(chain(often), 0).count((3, second)) == 10


def test_moves_share_the_time_of_their_cta() -> None:
    (launch,) = chain().launches
    played = {1: Turn(8.0, {}), 3: Turn(10.0, {})}
    # 5 moves a CTA, at a cycle a second: CTAs that have an SM for themselves are no three times as fast.
    assert _moves_s(launch, played.__getitem__, 3, 1.0) == pytest.approx((1.6, 1.8, 2.0))


def test_ctas_that_follow_one_another_ask_together() -> None:
    touched = chain().launches[0].touched
    assert touched is not None
    # Six CTAs load all tiles of x: of four at a time four ask for each, then two.
    assert touched.asked_together(4) == {"x": 3.0}
    assert touched.asked_together(6) == {"x": 6.0}


@pytest.mark.parametrize(
    ("ctas", "together"),
    [
        (1, {"A": 1.0, "B": 1.0}),
        (2, {"A": 6 / 4, "B": 2 / 2}),  # the first two ask for 0, 1, 0, 2, 1: three objects by five
        (3, {"A": 6 / 3, "B": 2 / 1}),
    ],
)
def test_ctas_that_ask_for_the_same_in_a_round(ctas: int, together: dict[str, float]) -> None:
    """Three CTAs of two, five and two moves, whose lists do not lie one behind the other; of four objects 7 is a store."""
    entries = [9, 0, 1, 9, 9, 0, 2, 1, 3, 7, 0, 3]
    lines = np.full(3, 128, dtype=np.int32)
    touched = Touched(
        {"A": lines, "B": lines[:1]},
        np.array([1, 5, 10], dtype=np.int32),
        np.array([2, 5, 2], dtype=np.int32),
        np.array(entries, dtype=np.int32),
        (),
    )
    assert touched.asked_together(ctas) == pytest.approx(together)
