"""Loops, runs and counts of machine code, on listings that need no tool."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from listings import NESTED, function

from iosim.code.counts import key_loop
from iosim.code.kernel_facts import kernel_facts
from iosim.code.loops import Flow
from iosim.code.runs import runs_of_trips
from iosim.code.trace import TAKEN_BRANCH_CYCLES, trace
from iosim.hardware.profile import load_profile
from iosim.readers.timing.warps import SmPace, placed_warps, regions_turn

PACE = SmPace(l2_latency=300, tensor_flops=1024, l2_bytes=64, stored_bytes=32)


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


def test_a_cta_of_unknown_threads_is_taken_to_have_128(tmp_path: Path) -> None:
    """Four warps, as 128 is a whole number of them; a thread more would be a fifth warp."""
    code = replace(function(NESTED, tmp_path), threads=None)
    h100 = load_profile("h100")
    resident = kernel_facts(code, h100).resident
    assert resident == kernel_facts(code, h100, threads=128).resident
    assert resident != kernel_facts(code, h100, threads=129).resident


def test_a_branch_that_is_taken_waits(tmp_path: Path) -> None:
    flow = Flow(function(NESTED, tmp_path))
    way = [flow.instructions[n] for n in (0, 1)]
    back = next(instruction for instruction in flow.instructions if instruction.target is not None)
    target = next(
        instruction for instruction in flow.instructions if instruction.address == back.target
    )
    taken = trace([back, target], 90)
    falls = trace([back, way[0]], 90)
    assert taken[0].stall - falls[0].stall == (TAKEN_BRANCH_CYCLES if way[0] != target else 0)
    alone = trace([target, back], 90)  # a loop's last branch goes back to its first instruction
    assert alone[-1].stall == taken[0].stall
