"""How often copies of a loop run: trips of the PTX and of what was unrolled."""

from __future__ import annotations

from pathlib import Path

from listings import NESTED, function

from iosim.code.loops import Flow
from iosim.code.runs import runs_of_lines


def test_runs_of_the_ptx_reach_its_copies(tmp_path: Path) -> None:
    flow = Flow(function(NESTED, tmp_path))
    runs = runs_of_lines(flow, {20: 8.0, 30: 24.0, 31: 24.0, 40: 1.0})
    assert runs.known
    assert runs.times[1:9] == (8, 24, 24, 24, 8, 8, 8, 1)


def test_an_unrolled_loop_takes_whole_turns_and_what_stands_behind_it_the_rest(
    tmp_path: Path,
) -> None:
    """A line that runs 11 times, four of its copies in a loop and one behind it."""
    copies = "".join(f"/*00{n}0*/ LDG.E R4, desc[UR8][R2.64] ;  // c=0x742 p=3\n" for n in range(4))
    text = f".L_x_0:\n{copies}/*0040*/ @P0 BRA `(.L_x_0) ;\n.L_x_50:\n"
    text += "/*0050*/ LDG.E R4, desc[UR8][R2.64] ;  // c=0x742 p=3\n/*0060*/ @P1 BRA `(.L_x_50) ;\n/*0070*/ EXIT ;\n"
    runs = runs_of_lines(Flow(function(text, tmp_path)), {3: 11.0})
    assert runs.times[:4] == (2, 2, 2, 2)  # 11 // 4
    assert runs.times[5] == 3  # 11 - 4 * 2
