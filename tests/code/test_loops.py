"""Loops, runs and counts of machine code, on listings that need no tool."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from iosim.code.counts import count, key_loop, turn_of
from iosim.code.frame_addresses import FrameRegisters
from iosim.code.kernel_facts import kernel_facts
from iosim.code.local import local_traffic
from iosim.code.loops import Flow
from iosim.code.module import Function, read_module
from iosim.code.opcodes import lane_bytes, least_wavefronts, operation, operations_table, product
from iosim.code.runs import runs_of_lines, runs_of_trips
from iosim.hardware.profile import load_profile
from iosim.readers.timing.warps import SmPace, placed_warps, regions_turn

PACE = SmPace(l2_latency=300, tensor_flops=1024, l2_bytes=64, stored_bytes=32)
HEAD = "// function f cc=90 registers=32 frame=16 shared=0 threads=128\n"
NESTED = """
/*0000*/ MOV R1, RZ ;
.L_x_10:
/*0010*/ LDG.E.128 R4, desc[UR8][R2.64] ;  // c=0x742 p=20
.L_x_20:
/*0020*/ HMMA.16816.F32.BF16 R8, R4, R6, R8 ;  // c=0x27e4 p=30
/*0030*/ MUFU.EX2 R9, R8 ;  // c=0x7e4 p=31
/*0040*/ @P0 BRA `(.L_x_20) ;
/*0050*/ STL [R1+0x8], R9 ;
/*0060*/ LDL.64 R10, [R1+0x8] ;
/*0070*/ @!P1 BRA `(.L_x_10) ;
/*0080*/ STG.E desc[UR8][R2.64], R10 ;  // c=0x7e4 p=40
/*0090*/ EXIT ;
/*00a0*/ BRA `(.L_x_a0) ;
"""
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


def function(text: str, folder: Path) -> Function:
    file = folder / "f.sass"
    file.write_text(HEAD + text, encoding="utf-8")
    return read_module(file).function()


def test_natural_loops_lie_in_one_another(tmp_path: Path) -> None:
    flow = Flow(function(NESTED, tmp_path))
    outer, inner = flow.loops  # the endless branch behind the exit is none
    assert [
        flow.instructions[flow.blocks[loop.header].first].address for loop in (outer, inner)
    ] == [0x10, 0x20]
    assert (outer.parent, inner.parent) == (None, outer.header)
    assert [flow.instructions[n].address for n in flow.own_numbers(outer)] == [
        0x10,
        0x50,
        0x60,
        0x70,
    ]
    assert key_loop(flow) == outer


def test_turns_multiply(tmp_path: Path) -> None:
    flow = Flow(function(NESTED, tmp_path))
    runs = runs_of_trips(flow, {0x10: 5, 0x20: 3})
    assert runs.times[:9] == (1, 5, 15, 15, 15, 5, 5, 5, 1)
    assert runs.assumed == ()
    assert "turns of the loops at 0x20 are not known" in runs_of_trips(flow, {0x10: 5}).assumed[0]


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


def test_of_two_ways_the_shorter_is_taken_and_said(tmp_path: Path) -> None:
    flow = Flow(function(TWO_WAYS, tmp_path))
    runs = runs_of_trips(flow, {0x0: 10})
    assert [runs.times[n] for n in (2, 3, 5, 6)] == [0, 0, 10, 10]
    assert "0x10 are taken to go the way that does the loop's work" in runs.assumed[0]
    known = runs_of_lines(flow, {5: 9.0, 7: 1.0, 8: 1.0, 9: 10.0})
    assert [known.times[n] for n in (2, 3, 5, 6)] == [1, 1, 9, 10]


def test_a_call_that_never_returns_is_a_far_branch(tmp_path: Path) -> None:
    text = (
        ".L_x_0:\n/*0000*/ LDG.E R4, desc[UR8][R2.64] ;\n/*0010*/ @P0 CALL.REL.NOINC `(.L_x_30) ;\n"
        "/*0020*/ BRA `(.L_x_0) ;\n.L_x_30:\n/*0030*/ STG.E desc[UR8][R2.64], R4 ;\n/*0040*/ EXIT ;\n"
    )
    flow = Flow(function(text, tmp_path))
    (loop,) = flow.loops
    assert [flow.instructions[n].address for n in flow.numbers(loop)] == [0, 0x10, 0x20]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    flow = Flow(
        function("/*0000*/ BRX R4 -0x10 ;\n/*0010*/ FROBNICATE R3 ;\n/*0020*/ EXIT ;\n", tmp_path)
    )
    assert flow.unread == (
        "where BRX go is worked out at run time, and not followed",
        "opcodes that are not known, counted as an issue slot: FROBNICATE",
    )


@pytest.mark.parametrize(
    ("text", "unit", "cycles"),
    [("FFMA R1, R2, R3, R4", "fma", {75: 2, 80: 2, 86: 1, 90: 1}), ("IMAD R1, R2, R3, R4", "fmaheavy", {75: 2, 90: 2}),
     ("MUFU.EX2 R1, R2", "xu", {75: 8, 90: 8}), ("UIADD3 UR4, UR5, 0x1, URZ", "uniform", {90: 2})],
)  # fmt: skip
def test_opcodes_are_data(tmp_path: Path, text: str, unit: str, cycles: dict[int, int]) -> None:
    one = function(f"/*0000*/ {text} ;\n", tmp_path).instructions[0]
    assert operation(one, 90).unit == unit
    assert {cc: operation(one, cc).cycles for cc in cycles} == cycles
    assert operation(one, 89) == operation(one, 86)


def test_the_table_of_opcodes_holds_a_class_and_a_unit_each() -> None:
    for opcode, by_cc in operations_table().items():
        for what in by_cc.values():
            assert what.group, opcode
            assert what.unit, opcode


@pytest.mark.parametrize(
    ("text", "width", "wavefronts"),
    [("LDS.128 R4, [R2]", 16, 4), ("LDS.U16 R4, [R2]", 2, 1), ("LDSM.16.M88.4 R4, [R2]", 16, 4),
     ("LDSM.16.MT88.2 R4, [R2]", 8, 2), ("LDG.E.LTC128B.64 R4, desc[UR8][R2.64]", 8, 2), ("STS [R2], R4", 4, 1)],
)  # fmt: skip
def test_widths_stand_in_the_opcode(tmp_path: Path, text: str, width: int, wavefronts: int) -> None:
    one = function(f"/*0000*/ {text} ;\n", tmp_path).instructions[0]
    assert (lane_bytes(one), least_wavefronts(one)) == (width, wavefronts)


@pytest.mark.parametrize(
    ("text", "shape"),
    [("HMMA.16816.F32.BF16 R8, R4, R6, R8", (16, 8, 16, "bf16")),
     ("HMMA.1688.F32.TF32 R8, R4, R6, R8", (16, 8, 8, "tf32")),
     ("HGMMA.64x128x16.F32.BF16 R8, gdesc[UR4], R8, gsb0", (64, 128, 16, "bf16")),
     ("IMMA.16832.S8.S8 R8, R4, R6, R8", (16, 8, 32, "int8")),
     ("HMMA.1688.F32 R8, R4, R6, R8", (16, 8, 8, "fp16"))],
)  # fmt: skip
def test_products_stand_in_the_opcode(
    tmp_path: Path, text: str, shape: tuple[int, int, int, str]
) -> None:
    made = product(function(f"/*0000*/ {text} ;\n", tmp_path).instructions[0])
    assert made is not None
    assert (made.rows, made.columns, made.depth, made.dtype) == shape


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
        found = local_traffic(turn, 90, warps=8, l1_bytes=200_000)  # 16 words x 128 bytes x 8 warps
        assert (found.loaded, found.stored, found.touched) == (16 * 4, 16 * 4, 64)
        assert found.hit_share > 0.99

    def test_what_does_not_fit_comes_from_the_l2(self, tmp_path: Path) -> None:
        turn = self.turn(300, tmp_path).instructions
        found = local_traffic(
            turn, 90, warps=8, l1_bytes=100_000
        )  # 307,200 bytes go by before a word is loaded
        assert found.hit_share < 0.01
        assert found.stored == 300 * 4  # stores are written through, whatever L1 holds

    def test_an_address_worked_out_at_run_time_is_counted_as_such(self, tmp_path: Path) -> None:
        one = function("/*0000*/ LDL R4, [R2+UR5] ;\n", tmp_path).instructions
        assert local_traffic(one, 90, warps=4, l1_bytes=100_000).unknown == 1

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
        found = local_traffic(turn, 90, warps=8, l1_bytes=200_000, before=[first])
        assert (found.unknown, found.touched) == (0, 2 * 4 * 4)  # two trips of four words
        assert found.hit_share > 0.99
        assert local_traffic(turn, 90, warps=8, l1_bytes=200_000).unknown == 16  # UR10 is not known


@pytest.mark.parametrize(
    ("line", "offset"),
    [
        ("MOV R2, R1", 0),
        ("VIADD R2, R1, 0x40", 0x40),
        ("IADD3 R2, P0, R1, 0x10, R3", 0x1C),
        ("IMAD R2, R3, 0x8, R1", 0x60),
        ("LEA R2, R3, R1, 0x2", 0x30),
        ("LOP3.LUT R2, R3, 0x8, RZ, 0xc0, !PT", None),  # 8: a number, not a place in the frame
        ("IADD3.X R2, R1, 0x10, RZ, P0, !PT", None),
        ("@P0 MOV R2, R1", None),  # it may keep what it was
        ("LDC R2, c[0x0][0x28]", None),
    ],
)
def test_places_in_a_frame(line: str, offset: int | None, tmp_path: Path) -> None:
    lines = ["MOV R3, 0xc", line, "LDL R4, [R2]"]
    text = "".join(f"/*{16 * n:04x}*/ {one} ;\n" for n, one in enumerate(lines))
    *before, load = function(text, tmp_path).instructions
    registers = FrameRegisters()
    registers.run(before)
    assert registers.place(load) == offset


def test_a_kernel_of_5000_instructions_is_read_in_time(tmp_path: Path) -> None:
    """Listing, loops, runs, local memory and its play by eight warps: 5 s at most, a second on one core."""
    kinds = ("FFMA R4, R5, R6, R4", "STL [R1+0x{:x}], R4", "LDL R5, [R1+0x{:x}]", "MUFU.EX2 R6, R4")
    body = "".join(
        f"/*{16 * n:04x}*/ {kinds[n % 4].format(4 * (n % 150))} ;\n" for n in range(5000)
    )
    text = f".L_x_0:\n{body}/*{16 * 5000:04x}*/ @P0 BRA `(.L_x_0) ;\n/*{16 * 5001:04x}*/ EXIT ;\n"
    begin = time.process_time()
    facts = kernel_facts(function(text, tmp_path), load_profile("h100"), threads=128)
    regions_turn(facts.machine.step + facts.machine.tile, placed_warps(128, 2), PACE)
    assert time.process_time() - begin < 5
    assert facts.counts.instructions == 5001
