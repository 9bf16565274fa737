"""Local memory of a thread: what spills, and where it lies in the frame."""

from __future__ import annotations

from pathlib import Path

from listings import function

from iosim.code.local import FRAME_PARTS, local_traffic
from iosim.code.module import Function
from iosim.kernel.launch import Mode


class TestLocalMemory:
    def turn(self, words: int, folder: Path) -> Function:
        """Stores so many words of the frame, then loads them."""
        lines = [f"STL [R1+0x{4 * n:x}], R4" for n in range(words)] + [
            f"LDL R4, [R1+0x{4 * n:x}]" for n in range(words)
        ]
        return function(
            "".join(f"/*{16 * n:04x}*/ {text} ;\n" for n, text in enumerate(lines)), folder
        )

    def test_what_fits_is_found_in_l1(self, tmp_path: Path) -> None:
        turn = self.turn(16, tmp_path).instructions
        traffic = local_traffic(
            turn, 90, warps=8, l1_bytes=200_000
        )  # 16 words x 128 bytes x 8 warps
        assert (traffic.loaded, traffic.stored, traffic.touched) == (16 * 4, 16 * 4, 64)
        assert traffic.hit_share > 0.99

    def test_what_does_not_fit_comes_from_the_l2(self, tmp_path: Path) -> None:
        turn = self.turn(300, tmp_path).instructions
        traffic = local_traffic(
            turn, 90, warps=8, l1_bytes=100_000
        )  # 307,200 bytes go by before a word is loaded
        assert traffic.hit_share < 0.01
        assert traffic.stored == 300 * 4  # stores are written through, whatever L1 holds

    def test_an_address_worked_out_at_run_time_is_counted_as_such(self, tmp_path: Path) -> None:
        instruction = function("/*0000*/ LDL R4, [R2+UR5] ;\n", tmp_path).instructions
        assert local_traffic(instruction, 90, warps=4, l1_bytes=100_000).unknown == 1

    def test_an_array_in_a_loop_is_found_by_its_counter(self, tmp_path: Path) -> None:
        """Two trips of a loop over an array of 128 bytes each, stored and loaded: every word is the one stored."""
        lines = ["UIADD3 UR6, UR10, 0x20, URZ", "UMOV UR5, URZ"]
        trip = [
            "ULEA UR7, UR5, UR6, 0x7",
            *(f"STL [UR7+0x{4 * n:x}], R4" for n in range(4)),
            *(f"LDL R4, [UR7+0x{4 * n:x}]" for n in range(4)),
            "UIADD3 UR5, UR5, 0x1, URZ",
        ]
        text = "".join(
            f"/*{16 * n:04x}*/ {line} ;\n"
            for n, line in enumerate(["R2UR UR10, R1", *lines, *trip, *trip])
        )
        first, *turn = function(text, tmp_path).instructions
        traffic = local_traffic(turn, 90, warps=8, l1_bytes=200_000, before=[first])
        assert (traffic.unknown, traffic.touched) == (0, 2 * 4 * 4)  # two trips of four words
        assert traffic.hit_share > 0.99
        assert local_traffic(turn, 90, warps=8, l1_bytes=200_000).unknown == 16  # UR10 is not known


def test_words_are_used_where_the_code_uses_them(tmp_path: Path) -> None:
    """A word is stored at once and loaded for the last time half a turn later; one that L1 holds is not missed."""
    lines = ["STL [R1], R4", "STL [R1+0x4], R4", "LDL.LU R4, [R1]", "LDL R4, [R1+0x4]"]
    text = "".join(f"/*{16 * n:04x}*/ {line} ;\n" for n, line in enumerate(lines))
    turn = function(text, tmp_path).instructions
    far = local_traffic(turn, 90, warps=8, l1_bytes=100)
    assert [(u.part, u.at, u.mode, u.last) for u in far.uses] == [
        (0, 0.0, Mode.STORE, False),
        (1, 0.25, Mode.STORE, False),
        (0, 0.5, Mode.LOAD, True),
        (1, 0.75, Mode.LOAD, False),
    ]
    assert far.parts == 2
    assert far.uses[2].share > 0.99
    near = local_traffic(turn, 90, warps=8, l1_bytes=200_000)
    assert near.uses[2].share < 0.01
    assert (
        local_traffic(TestLocalMemory().turn(64, tmp_path).instructions, 90, 8, 100).parts
        == FRAME_PARTS
    )
