"""What listings of machine code say: blocks and loops, how often each instruction runs, what a turn counts, the regions
that a warp runs, spills.

The listings are written by hand, a few lines each, for what compilers write seldom: ways that part inside loops, loops
beside and inside one another, two doors of a loop, what no way leads to, branches with their condition among the
operands, frames of which some is not known, copies and products that are waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from iosim.code.counts import count, key_loop, turn_of
from iosim.code.frame_addresses import FrameRegisters
from iosim.code.kernel_facts import kernel_facts
from iosim.code.listing import read_listing, write_listing
from iosim.code.loops import Flow
from iosim.code.module import Function
from iosim.code.on_sm import code_on_sm
from iosim.code.opcodes import operation, product
from iosim.code.runs import Runs, runs_of_lines, runs_of_trips
from iosim.code.trace import trace
from iosim.hardware.profile import load_profile
from iosim.kernel.machine import MemoryUse, Region

LISTINGS = {
    # A colon ends a label; behind | stand the control word in hexadecimal and the line of the PTX.
    "straight": """
        MOV R1, c[0x0][0x28]
        @!P0 EXIT
        LDG.E R4, desc[UR8][R2.64] | 742 5
        STG.E desc[UR8][R2.64], R4 | 7e4 6
        EXIT
    """,
    "keys with an inner loop, spills around and inside": """
        MOV R1, c[0x0][0x28] | 7e2
        IADD3 R1, R1, -0x40, RZ
        STL.64 [R1+0x10], R4 | 7e2 3
        LDG.E.128 R4, desc[UR8][R2.64] | 742 4
    keys:
        LDGSTS.E.BYPASS.128 [R7], desc[UR8][R2.64] | 7e1 10
        LDGDEPBAR | 7e1
        DEPBAR.LE SB0, 0x1 | 7e2
        DEPBAR.LE SB0, 0x0 | 7e2
        BAR.SYNC.DEFER_BLOCKING 0x0 | 7e1 11
        LDL.64 R10, [R1+0x10] | 712 12
    inner:
        LDSM.16.M88.4 R12, [R7] | 722 20
        HMMA.16816.F32.BF16 R8, R12, R6, R8 | 27e4 21
        @P0 BRA inner | 7ea
        MUFU.EX2 R9, R8 | 7e4 22
        FFMA R9, R9, R8, R8 | 7e4 23
        F2FP.BF16.F32.PACK_AB R9, R9, R8 | 7e4 23
        STL [R1+0x20], R9 | 7e2 24
        LDL R11, [R1+0x20] | 732 25
        STS.64 [R7], R9 | 7e2 26
        @!P1 BRA keys | 7ea
        LDL R13, [R1+0x20] | 732 30
        LDL.LU.64 R14, [R1+0x10] | 732 31
        STG.E.128 desc[UR8][R2.64], R8 | 7e4 32
        EXIT
    """,
    "two ways in a turn, one with a loop": """
        MOV R3, RZ
    turns:
        ISETP.GE.AND P0, PT, R3, UR7, PT | 7e2
        @P0 BRA short | 7ea
    rows:
        LDG.E R4, desc[UR8][R2.64] | 742 7
        FADD R5, R4, R5 | 7e4 8
        @P2 BRA rows | 7ea
        BRA meet | 7ea
    short:
        FADD R5, R5, R5 | 7e4 9
        FADD R6, R6, R6 | 7e4 9
        FADD R7, R7, R7 | 7e4 9
    meet:
        MUFU.EX2 R9, R8 | 7e4 11
        @!P1 BRA turns | 7ea
        EXIT
    """,
    "two ways outside of loops": """
        @P0 BRA long
        FADD R5, R5, R5 | 7e4 2
        BRA done
    long:
        FADD R5, R5, R5 | 7e4 4
        FMUL R5, R5, R5 | 7e4 5
        FADD R6, R5, R5 | 7e4 6
    done:
        STG.E desc[UR8][R2.64], R5 | 7e4 7
        EXIT
    """,
    "a way with products and one that is shorter": """
    turns:
        @P0 BRA light
        HMMA.16816.F32 R8, R12, R6, R8 | 27e4 3
        HMMA.16816.F32 R8, R12, R6, R8 | 27e4 3
        BRA next
    light:
        FADD R5, R5, R5 | 7e4 5
    next:
        MUFU.EX2 R9, R8 | 7e4 6
        @P1 BRA turns
        EXIT
    """,
    "loops one behind the other": """
    first:
        MUFU.EX2 R9, R8 | 7e4 2
        @P0 BRA first
    second:
        MUFU.EX2 R9, R8 | 7e4 5
        MUFU.RCP R9, R8 | 7e4 5
        FADD R5, R5, R5 | 7e4 6
        @P0 BRA second
    third:
        MUFU.RCP R9, R8 | 7e4 8
        FADD R5, R5, R5 | 7e4 8
        FADD R5, R5, R5 | 7e4 8
        FADD R5, R5, R5 | 7e4 8
        FADD R5, R5, R5 | 7e4 8
        @P0 BRA third
        EXIT
    """,
    "three loops in one another": """
        MOV R1, RZ
    outer:
        LDG.E R4, desc[UR8][R2.64] | 742 3
    middle:
        LDS R5, [R4] | 722 5
    inner:
        FFMA R6, R5, R5, R6 | 7e4 7
        @P0 BRA inner
        FADD R7, R6, R7 | 7e4 9
        @P1 BRA middle
    beside:
        FMUL R7, R7, R7 | 7e4 11
        @P2 BRA beside
        STG.E desc[UR8][R2.64], R7 | 7e4 13
        @P3 BRA outer
        EXIT
    """,
    "a loop with two doors and two ways back": """
    head:
        FADD R5, R5, R5 | 7e4 1
        @P0 BRA away
        FMUL R5, R5, R5 | 7e4 3
        @P1 BRA head
        LDG.E R4, desc[UR8][R2.64] | 742 5
        @P2 BRA head
        STG.E desc[UR8][R2.64], R4 | 7e4 7
        EXIT
    away:
        FADD R6, R6, R6 | 7e4 9
        EXIT
    """,
    "a loop that is entered at two places": """
        @P0 BRA second
    first:
        FADD R5, R5, R5 | 7e4 2
    second:
        FMUL R5, R5, R5 | 7e4 3
        @P1 BRA first
        EXIT
    """,
    "what no way leads to": """
        BRA end
    lost:
        FADD R5, R5, R5 | 7e4 2
        @P0 BRA lost
    end:
        FMUL R5, R5, R5 | 7e4 4
        EXIT
    spin:
        BRA spin
    """,
    "conditions among the operands": """
    head:
        FADD R5, R5, R5 | 7e4 1
        BRA P0, head
        FADD R5, R5, R5 | 7e4 3
        BRA !UP1, head
        FADD R5, R5, R5 | 7e4 5
        BRA.DIV UR4, slow
        FADD R5, R5, R5 | 7e4 7
        BRA.CONV UR5, slow
        BRA PT, done
    slow:
        FMUL R5, R5, R5 | 7e4 10
    done:
        @!PT BRA head
        EXIT
    """,
    "calls that return and one that does not": """
    head:
        FADD R5, R5, R5 | 7e4 1
        CALL.REL.NOINC divide
        @P0 CALL.REL.NOINC away
        @P1 BRA head
        EXIT
    divide:
        MUFU.RCP R9, R8 | 7e4 7
        RET.REL.NODEC R2
    away:
        STG.E desc[UR8][R2.64], R5 | 7e4 9
        EXIT
    """,
    "an endless loop behind the last exit": """
        FADD R5, R5, R5 | 7e4 1
        EXIT
    head:
        BRA head
        NOP
        NOP
    """,
    "unrolled four times, with a rest": """
        MOV R3, RZ
    four:
        LDG.E R4, desc[UR8][R2.64] | 742 5
        LDG.E R5, desc[UR8][R2.64] | 742 5
        LDG.E R6, desc[UR8][R2.64] | 742 5
        LDG.E R7, desc[UR8][R2.64] | 742 5
        FADD R8, R8, R4 | 57e4 6
        @P0 BRA four
    rest:
        LDG.E R4, desc[UR8][R2.64] | 742 5
        FADD R8, R8, R4 | 57e4 6
        @P1 BRA rest
        @!PT LDG.E R9, desc[UR8][R2.64] | 742 9
        STG.E desc[UR8][R2.64], R8 | 7e4 9
        EXIT
    """,
    "loads that are waited for late, in the next turn and never": """
    head:
        MOV R9, RZ
        FADD R8, R8, R4 | 27e4 3
        LDG.E R4, desc[UR8][R2.64] | 742 4
        LDG.E R5, desc[UR8][R2.64+0x10] | 762 4
        FMUL R8, R8, R8 | 7e8 5
        FADD R8, R8, R5 | 47e4 6
        LDG.E R6, desc[UR8][R2.64+0x20] | 7a1 7
        LDG.E R7, desc[UR8][R2.64+0x30] | 7e1 7
        FADD R8, R8, R4 | 7e4 8
        MUFU.EX2 R8, R8 | 7e4 8
        @P0 BRA head | 7ea
        EXIT
    """,
    "frames of which some is worked out at run time": """
        MOV R2, c[0x0][0x28]
        IADD3 R3, R1, 0x8, RZ
    head:
        STL [R3+0x4], R8 | 7e2 3
        STL.128 [R1+0x20], R8 | 7e2 4
        IMAD R5, R6, 0x4, R1
        STL [R5], R9 | 7e2 5
        LDG.E.128 R12, desc[UR8][R2.64] | 742 6
        LDL.64 R10, [R1+0x28] | 732 7
        LDL R11, [R5] | 732 8
        LDL R11, [R1+0xc] | 732 9
        FADD R8, R8, R11 | 7e4 10
        @P0 BRA head
        EXIT
    """,
    "stores of the frame alone": """
    head:
        STL.64 [R1], R8 | 7e2 3
        MUFU.EX2 R8, R8 | 7e4 4
        @P0 BRA head
        EXIT
    """,
    "loads of the frame alone": """
    head:
        LDL.64 R8, [R1] | 7e2 3
        MUFU.EX2 R8, R8 | 7e4 4
        @P0 BRA head
        EXIT
    """,
    "loads of the frame around a loop alone": """
        LDL.64 R8, [R1] | 7e2 1
    head:
        MUFU.EX2 R8, R8 | 7e4 4
        @P0 BRA head
        EXIT
    """,
    "stores of the frame around a loop alone": """
        STL.64 [R1], R8 | 7e2 1
    head:
        MUFU.EX2 R8, R8 | 7e4 4
        @P0 BRA head
        EXIT
    """,
    "products of warpgroups": """
        WARPGROUP.ARRIVE
    head:
        UTMALDG.2D [UR8], [UR4] | 7e1 2
        SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR6], R3 | 7e1 3
        HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 | 7e1 4
        HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 | 7e1 4
        WARPGROUP.DEPBAR.LE gsb0, 0x1 | 7e1 5
        MUFU.EX2 R8, R8 | 7e4 6
        DEPBAR.LE SB0, 0x2 | 7e4 6
        DEPBAR.LE SB0
        DEPBAR {5,4,3}
        ELECT P0, URZ, PT
        @P0 BRA head
        EXIT
    """,
    "products of other types": """
        DMMA.884 R4, R4, R6, R8
        IMMA.16832.S8.S8 R8, R4, R6, R8
        HMMA.1688.F32.TF32 R8, R4, R6, R8
        QGMMA.64x64x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24
        HMMA.UNSHAPED R8, R4, R6, R8
        UFMUL R3, R4, R5
        UMADNESS R3, R4
        LDG.E.U16.CONSTANT R4, desc[UR8][R2.64]
        LDG.E.LTC128B.128 R4, desc[UR8][R2.64]
        LDSM.16.M88 R4, [R2]
        LDSM.16.M88.2 R4, [R2]
        SHFL.BFLY PT, R4, R5, 0x1, 0x1f
        ATOMG.E.ADD.64 R4, desc[UR8][R2.64], R6
        I2F R3, R4
        BAR.SYNC 0x0
        EXIT
    """,
}
TRIPS = {
    "keys": 9.0,
    "inner": 4.0,
    "turns": 6.0,
    "rows": 2.6,
    "outer": 5.0,
    "middle": 3.0,
    "head": 7.0,
    "four": 2.0,
}
"""Turns of loops by their label; of others nothing is known."""
LINES = {
    3: 1.0,
    4: 8.0,
    5: 11.0,
    6: 11.0,
    7: 5.0,
    8: 5.0,
    9: 1.0,
    10: 9.0,
    12: 9.0,
    21: 36.0,
    22: 9.0,
    32: 1.0,
}
"""Runs of lines of the PTX, of which not all are known."""


def written(name: str) -> tuple[str, dict[str, int]]:
    """A listing as iosim writes it, and where its labels are."""
    text, places, labels, at = [], dict[str, int](), list[str](), 0
    for line in LISTINGS[name].strip().splitlines():
        line, _, more = line.partition("|")
        line = line.strip()
        if line.endswith(":"):
            labels.append(line[:-1])
            continue
        places |= dict.fromkeys(labels, at)
        text += [f".L_x_{label}:" for label in labels]
        labels = []
        control, _, row = more.strip().partition(" ")
        *front, last = line.split(" ")
        if front and last in LISTINGS[name] and f"{last}:" in LISTINGS[name]:
            line = " ".join([*front, f"`(.L_x_{last})"])
        note = f"c=0x{control or '7e1'}" + (f" p={row}" if row else "")
        text.append(f"/*{at:04x}*/ {line} ;  // {note}")
        at += 16
    return "\n".join(text), places


def function(name: str, cc: int = 90, **more: Any) -> tuple[Function, dict[str, int]]:
    text, places = written(name)
    parameters = {
        "registers": 64,
        "frame_bytes": 64,
        "shared_memory_bytes": 4096,
        "threads": 128,
    } | more
    return Function(name, cc, instructions=read_listing(text), **parameters), places


def said(value: Any) -> dict[str, Any]:
    """The fields of a record that are not their defaults."""
    return {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name)}


def region(part: Region) -> list[Any]:
    slots = part.slots
    uses = [slot.use for slot in slots if slot.use is not None]
    return [
        round(part.turns, 9),
        part.repeats,
        part.at,
        len(slots),
        sum(slot.stall for slot in slots),
        sum(slot.flops for slot in slots),
        sum(slot.cycles for slot in slots),
        sum(use.sectors for use in uses),
        sum(use.wavefronts for use in uses),
        round(sum(use.hits_l1 for use in uses), 9),
        [slot.leaves for slot in slots if slot.leaves is not None],
        sum(slot.closes for slot in slots),
        sum(slot.runs_beside for slot in slots),
    ]


def flow_said(flow: Flow) -> dict[str, Any]:
    return {
        "blocks": [[b.first, b.end, *b.follows] for b in flow.blocks],
        "dominators": flow.dominators,
        "loops": [[loop.header, sorted(loop.blocks), loop.parent] for loop in flow.loops],
        "own": [flow.own_numbers(loop) for loop in flow.loops],
        "loop of": sorted(flow.loop_of.items()),
        "unread": flow.unread,
    }


def runs_said(flow: Flow, runs: Runs) -> dict[str, Any]:
    keys = key_loop(flow, runs)
    return {
        "times": runs.times,
        "assumed": runs.assumed,
        "instructions": runs.instructions,
        "keys": keys.header if keys else None,
        "turns": [
            [flow.instructions.index(i) for i in turn_of(flow, loop, runs, 60)]
            for loop in flow.loops
        ],
        "counts": said(count(flow.instructions, flow.function.cc, runs.times)),
    }


def facts_said(facts: Any) -> dict[str, Any]:
    on_sm = facts.on_sm
    return {
        "counts": said(facts.counts),
        "step": [region(part) for part in on_sm.machine.step],
        "tile": [region(part) for part in on_sm.machine.tile],
        "local": said(on_sm.local),
        "local of a tile": said(on_sm.local_tile),
        "spill": said(facts.spill) if facts.spill else None,
        "ctas": facts.resident.ctas_per_sm,
        "notes": facts.notes,
    }


def of_listing(name: str) -> dict[str, Any]:
    read, places = function(name)
    flow = Flow(read)
    trips: Mapping[int, float] = {places[label]: n for label, n in TRIPS.items() if label in places}
    gpu = load_profile("h100")
    by_trips = runs_of_trips(flow, trips)
    twice = [
        code_on_sm(flow, by_trips, 8, 1e5, keys=loop, steps_per_turn=2.0) for loop in flow.loops
    ]
    return {
        "flow": flow_said(flow),
        "by trips": runs_said(flow, by_trips),
        "by lines": runs_said(flow, runs_of_lines(flow, LINES)),
        "turns": [said(count(turn_of(flow, loop, by_trips), 90)) for loop in flow.loops],
        "two steps a turn": [
            [
                [region(part) for part in of_loop.machine.step],
                said(of_loop.local),
                said(of_loop.local_tile),
            ]
            for of_loop in twice
        ],
        "facts": facts_said(kernel_facts(read, gpu, trips=trips)),
        # Half of a CTA's warps by what the caller says, shared memory of the launch, and a small L1.
        "facts of a launch": facts_said(
            kernel_facts(read, gpu, threads=200, shared_memory_bytes=100_000, trips=trips)
        ),
        "written": write_listing(name, read.head, read.instructions).splitlines()[:3],
    }


def long_turns() -> Iterator[tuple[str, Any]]:
    """Inner loops that turn so often that a turn with them is not played as a whole."""
    name = "three loops in one another"
    read, places = function(name)
    flow = Flow(read)
    # 8 instructions and 2 of each turn of the inner loop: 8,000 are played as a whole.
    for inner in (200.0, 3996.0, 3997.0):
        trips = {places["outer"]: 5.0, places["middle"]: 1.0, places["inner"]: inner}
        runs = runs_of_trips(flow, trips)
        outer = flow.loops[0]
        on_sm = code_on_sm(flow, runs, 8, 1e5, keys=outer)
        yield (
            f"inner loop of {inner:g} turns",
            {
                "step": [region(part) for part in on_sm.machine.step],
                "listed": len(turn_of(flow, outer, runs)),
            },
        )
    # Of each block its runs: of the inner loop so many that it is played by itself, of the last block half of the
    # turns, of the loop beside none; and a function of which nothing runs.
    for name, of_blocks in (
        ("some blocks run seldom", (1.0, 1.0, 1.0, 5000.0, 1.0, 0.0, 0.5, 1.0)),
        ("nothing runs", (0.0,) * 8),
    ):
        often = [of_blocks[flow.block_of(n)] for n in range(len(read.instructions))]
        runs = Runs(tuple(often), False)
        on_sm = code_on_sm(flow, runs, 8, 1e5, keys=flow.loops[0])
        yield (
            name,
            [
                [region(part) for part in on_sm.machine.step],
                [region(part) for part in on_sm.machine.tile],
                [len(turn_of(flow, loop, runs)) for loop in flow.loops],
            ],
        )


def of_instructions(cc: int) -> dict[str, Any]:
    """Instructions by themselves, as a GPU has them."""
    rows: dict[str, Any] = {}
    for name in ("products of warpgroups", "products of other types"):
        for instruction in function(name)[0].instructions:
            kind, shape = operation(instruction, cc), product(instruction)
            (slot,) = trace([instruction], cc, lambda _: MemoryUse(3, 2, 5, 0.5))
            rows[instruction.text] = [
                kind.group,
                kind.unit,
                kind.cycles,
                kind.known,
                [shape.rows, shape.columns, shape.depth, shape.dtype] if shape else None,
                slot.flops,
                slot.conflicts,
            ]
    return rows


FRAMES = """
    IADD3 R2, R1, 0x10, RZ | [R2]
    IADD3 R2, R1, -R3, RZ | [R2]
    MOV R4, 0x20 | [R1+R4]
    IMAD R5, R4, 0x2, R1 | [R5+-0x8]
    LEA R6, R4, R1, 0x2 | [R6]
    SHF.L.U32 R7, R4, 0x1, RZ | [R1+R7]
    SHF.L.U32 R7, R4, 0x1, R4 | [R1+R7]
    LOP3.LUT R8, R4, 0x30, RZ, 0xc0, !PT | [R1+R8]
    LOP3.LUT R8, R4, 0x13, RZ, 0xfc, !PT | [R1+R8]
    LOP3.LUT R8, R4, 0x13, 0x7, 0x96, !PT | [R1+R8+0x4]
    IMAD.WIDE R4, R4, 0x2, R1 | [R1+R4]
    MOV R4, 0x20 | [R1+-0x20]
    @P0 MOV R4, 0x24 | [R1+R4]
    MOV R4, 0x7ffff | [R1+R4]
    MOV R4, 0x80000 | [R1+R4]
    MOV R4, 0x7fffffff | [R1+R4]
    LDG.E.128 R4, desc[UR8][R2.64] | [R1+R7]
    UMOV UR4, 0x8 | [R1+UR4]
    MOV R9, c[0x0][0x28] | [R9]
    LEA R9, R4 | [R9]
    MOV R1, 0x5 | [R1]
    NOP | [RZ]
    NOP | R1
"""


def frames() -> list[Any]:
    """Where in the frame an address lies behind each instruction; None where that is not known."""
    registers, places = FrameRegisters(), []
    for line in FRAMES.strip().splitlines():
        code, _, address = (part.strip() for part in line.partition("|"))
        (first, load) = read_listing(f"/*0000*/ {code} ;\n/*0010*/ LDL R20, {address} ;")
        registers.step(first)
        places.append(registers.place(load))
    return places


def cases() -> Iterator[tuple[str, Any]]:
    for name in LISTINGS:
        yield name, of_listing(name)
    yield from long_turns()
    for cc in (75, 80, 90, 100):
        yield f"instructions at {cc}", of_instructions(cc)
    yield "frames", frames()
