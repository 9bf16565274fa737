"""What a turn of a loop counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from listings import NESTED, function

from iosim.code import counts
from iosim.code.counts import count, turn_of
from iosim.code.loops import Flow
from iosim.code.runs import runs_of_lines, runs_of_trips

TWO_WAYS = """
.L_x_0:
/*0000*/ ISETP.GE.AND P0, PT, R3, UR7, PT ;
/*0010*/ @P0 BRA `(.L_x_50) ;
/*0020*/ LDG.E R4, desc[UR8][R2.64] ;  // c=0x742 p=7
/*0030*/ LDG.E R5, desc[UR8][R2.64+0x4] ;  // c=0x742 p=8
/*0040*/ BRA `(.L_x_60) ;
.L_x_50:
/*0050*/ LDG.E R4, desc[UR8][R2.64] ;  // c=0x742 p=5
.L_x_60:
/*0060*/ HMMA.16816.F32 R8, R4, R6, R8 ;  // c=0x27e4 p=9
/*0070*/ @!P1 BRA `(.L_x_0) ;
/*0080*/ EXIT ;
"""


def test_a_turn_is_counted(tmp_path: Path) -> None:
    flow = Flow(function(NESTED, tmp_path))
    outer = flow.loops[0]
    counts = count(turn_of(flow, outer, runs_of_trips(flow, {0x10: 5, 0x20: 3})), 90)
    assert counts.instructions == 4 + 3 * 3
    assert counts.products == {"HMMA 16x8x16": 3}
    assert counts.flops == 3 * 2 * 16 * 8 * 16
    assert counts.special == {"EX2": 3}
    assert (counts.local_store_bytes, counts.local_load_bytes) == (4, 8)
    assert counts.global_loads == {"synchronous": 16}


def test_of_two_ways_the_shorter_is_taken_and_said(tmp_path: Path) -> None:
    flow = Flow(function(TWO_WAYS, tmp_path))
    runs = runs_of_trips(flow, {0x0: 10})
    assert [runs.times[n] for n in (2, 3, 5, 6)] == [0, 0, 10, 10]
    assert "0x10 are taken to go the way that does the loop's work" in runs.assumed[0]
    known = runs_of_lines(flow, {5: 9.0, 7: 1.0, 8: 1.0, 9: 10.0})
    assert [known.times[n] for n in (2, 3, 5, 6)] == [1, 1, 9, 10]


def test_shared_memory_is_counted_by_width(tmp_path: Path) -> None:
    lines = (
        "LDS.128 R4, [R2]",
        "LDS.128 R8, [R2+0x10]",
        "LDSM.16.M88.4 R4, [R2]",
        "STS [R2], R4",
        "STS.64 [R2], R4",
    )
    text = "".join(f"/*{16 * n:04x}*/ {line} ;\n" for n, line in enumerate(lines))
    counts = count(function(text, tmp_path).instructions, 90)
    assert counts.shared_loads == {16: 3}
    assert counts.shared_stores == {4: 1, 8: 1}


def test_how_long_a_load_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of instructions as (group, stall, barrier that it sets, barriers that it waits for); a turn of the loop takes the
    sum of the stalls, and each at least a cycle."""

    def ahead(*rows: tuple[str, int, int | None, int]) -> float | None:
        turn = [
            SimpleNamespace(group=g, control=SimpleNamespace(stall=s, sets=b, waits=w))
            for g, s, b, w in rows
        ]
        monkeypatch.setattr(counts, "operation", lambda instruction, cc: instruction)
        return counts._ahead(turn, 90)

    load, other = "global-load", "alu"
    # Set at cycle 0 and waited for at 4 + 1: what stalls for no cycle takes one.
    assert ahead((load, 4, 0, 0), (other, 0, None, 0), (other, 2, None, 1)) == 5
    # Waited for in the next turn, by its first instruction: the seven cycles of a turn less the four before the load.
    assert ahead((other, 4, None, 2), (load, 3, 1, 0)) == 3
    # Two loads: 5 and 3 cycles ahead of one instruction.
    assert ahead((load, 2, 0, 0), (load, 3, 0, 0), (other, 1, None, 1)) == 4
    # Nobody waits for it in the loop, or it sets no barrier.
    assert ahead((load, 4, 3, 0), (other, 2, None, 1)) is None
    assert ahead((load, 4, None, 0), (other, 2, None, 1)) is None
