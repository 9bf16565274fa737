"""Reading of machine code and of addresses at its borders: the last block, a loop at the first instruction, addresses in
no tensor, caches that just hold a line, fractions of instructions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iosim.base.errors import InputError, TooLargeError
from iosim.code import addresses_l1, addresses_objects, module
from iosim.code.addresses import SHARED, Evaluated, evaluate
from iosim.code.addresses_l1 import WAYS, _Cache, missed_shares
from iosim.code.addresses_moves import Shapes, all_moves
from iosim.code.addresses_objects import cut, key_of, listed
from iosim.code.arguments import TensorArgument, place
from iosim.code.launch_work import LaunchWork, _wavefronts
from iosim.code.listing import read_listing
from iosim.code.local import MOST_LINES, LocalTraffic, _stays
from iosim.code.module import Function, read_module
from iosim.code.ptx import entries
from iosim.code.uses import uses_of
from iosim.kernel.machine import MemoryUse

X = TensorArgument("x", (1024,), "fp32")


def run(
    body: str, x: Any = X, lanes: int = 32, grid: tuple[int, ...] = (1,), **more: Any
) -> Evaluated:
    """A kernel whose first argument is a pointer, or a number."""
    text = f".visible .entry kernel(.param .u64 x, .param .u32 n)\n{{\n{body}\n}}\n"
    (entry,) = entries(text).values()
    return evaluate(entry, grid, {"x": x, "n": 20} | more, (lanes,))


READY = (
    "ld.param.u64 %rd1, [x]; ld.param.u32 %r9, [n]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; "
)


WALK = """
L:
    mad.wide.s32 %rd3, %r6, 4, %rd1;
    {access};
    add.s32 %r6, %r6, 1;
    setp.lt.s32 %p1, %r6, {end};
    @%p1 bra L;
    ret;
"""
"""A loop over words of x, one a trip."""


# ---- addresses ----


def test_a_kernel_may_end_without_saying_so() -> None:
    """Its last block has no return behind it, and runs as often as the others."""
    read = run(f"{READY}\nst.global.u32 [%rd1], %r1;")
    assert set(read.runs.values()) == {4.0, 1.0}  # four instructions stand in the first row
    assert read.shares.tolist() == [1.0]


def test_a_loop_may_begin_with_the_first_instruction() -> None:
    """What it counts in is set by nobody, so that nobody knows how often it turns: once, as is said."""
    read = run(
        "L: ld.param.u64 %rd1, [x]; st.global.u32 [%rd1], 1; add.s32 %r6, %r6, 1; setp.lt.s32 %p1, %r6, 20; @%p1 bra L; ret;"
    )
    assert read.entry.flow.loops == {0: 4}
    assert [site.requests for site in read.sites] == [1]
    assert any("is taken not to part" in note for note in read.notes)


def test_strides_of_a_loop_at_the_beginning() -> None:
    """Trips of a loop whose body begins the kernel: the pointer is a register that moves by 4 bytes."""
    body = f"{READY} mov.u32 %r6, 0; {WALK.format(access='st.global.u32 [%rd3], %r1', end='%r9')}"
    (site,) = run(body, lanes=1).sites
    assert site.strides == (4,)
    assert site.moves_with_loop
    assert site.loop == "instruction 5"


@pytest.mark.parametrize(
    ("offset", "name"),
    [(0, "x"), (4092, "x"), (place(1) - place(0), "?"), (-place(0), "?")],
    ids=["first", "last", "behind all", "before all"],
)
def test_addresses_that_lie_in_no_tensor(offset: int, name: str) -> None:
    read = run(f"{READY} add.s64 %rd2, %rd1, {offset}; st.global.u32 [%rd2], %r1; ret;")
    (site,) = read.sites
    assert (site.tensor, site.past_end) == (name, 0)
    moves, _ = all_moves(read)
    assert [move.tensor == 0 for move in moves] == [name == "x"]


def test_a_number_in_place_of_a_tensor() -> None:
    (site,) = run(f"{READY} st.global.u32 [%rd1], %r1; ret;", x=4096).sites
    assert (site.tensor, site.sectors, site.past_end) == ("?", 1, 0)


@pytest.mark.parametrize(("words", "past"), [(1024, 0), (1023, 4), (1000, 96)])
def test_bytes_asked_for_beyond_a_tensors_end(words: int, past: int) -> None:
    body = f"{READY} mad.wide.s32 %rd2, %r1, 4, %rd1; ld.global.u32 %r5, [%rd2+3968]; ret;"
    (site,) = run(body, TensorArgument("x", (words,), "fp32")).sites
    assert site.past_end == past


def test_trips_that_a_cta_does_not_make_lie_beyond_no_end() -> None:
    """CTA 0 makes 30 trips, CTA 1 three, the last of which ends with the tensor."""
    body = f"""{READY}
    setp.eq.s32 %p2, %r2, 0;
    selp.b32 %r5, 30, 3, %p2;
    selp.b32 %r7, 0, 1021, %p2;
    mov.u32 %r6, 0;
L:
    add.s32 %r8, %r7, %r6;
    mad.wide.s32 %rd3, %r8, 4, %rd1;
    st.global.u32 [%rd3], %r1;
    add.s32 %r6, %r6, 1;
    setp.lt.s32 %p1, %r6, %r5;
    @%p1 bra L;
    ret;"""
    (site,) = run(body, lanes=1, grid=(2,)).sites
    assert (site.requests, site.past_end) == (33, 0)


@pytest.mark.parametrize(("matrices", "rows"), [("x1", 8), ("x2", 16), ("x4", 32)])
def test_lanes_whose_addresses_a_matrix_load_takes(matrices: str, rows: int) -> None:
    """Eight rows of 16 bytes a matrix; the other lanes' addresses count for nothing."""
    body = (
        f".shared .align 16 .b8 tile[1024]; {READY} mov.u32 %r4, tile; mad.lo.s32 %r5, %r1, 16, %r4; "
        f"ldmatrix.sync.aligned.m8n8.{matrices}.shared.b16 {{%r10, %r11}}, [%r5]; ret;"
    )
    (site,) = run(body).sites
    assert (site.space, site.distinct_bytes) == (SHARED, 16 * rows)
    assert site.wavefronts == rows // 8  # eight lanes of 16 bytes have 128


def test_no_more_moves_are_listed_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    read = run(
        f"{READY} mad.wide.s32 %rd2, %r2, 4, %rd1; st.global.u32 [%rd2], %r1; ret;", grid=(6,)
    )
    moves, shapes = all_moves(read)
    monkeypatch.setattr(addresses_objects, "MOST_MOVES", 6)
    assert listed(moves, shapes, read.ctas).count.tolist() == [1] * 6
    monkeypatch.setattr(addresses_objects, "MOST_MOVES", 5)
    with pytest.raises(TooLargeError, match="6 moves of CTAs"):
        listed(moves, shapes, read.ctas)


def test_a_launch_that_touches_nothing_lists_nothing() -> None:
    read = run(f"{READY} ret;", grid=(3,))
    nothing = listed(*all_moves(read), read.ctas)
    assert (nothing.sizes, nothing.count.tolist(), nothing.entries.size) == ({}, [0, 0, 0], 0)


def test_objects_that_do_not_begin_with_the_first_line() -> None:
    """Lines are counted from the first one that is touched, wherever it lies."""
    shapes = Shapes()
    pair = shapes.number(np.array([0, 1]))
    for first in (0, 1 << 20):
        keys = np.unique(key_of(np.array([first, first + 256]), np.array([pair, pair])))
        objects = cut(keys, shapes)
        assert (objects.sizes.tolist(), objects.used) == ([128, 128], 0.5)


# ---- the L1 ----


def test_a_line_stays_where_fewer_than_its_sets_ways_came() -> None:
    """64 lines of 4 ways, by chance: after as many lines as it has, 4 are expected in a line's set."""
    cache = _Cache(64.0)
    sectors = np.array([0, 1])
    assert cache.load(sectors) == 2
    assert cache.load(sectors) == 0  # nothing came since
    cache.clock += 64.0
    chance = math.exp(-WAYS) * sum(WAYS**k / math.factorial(k) for k in range(WAYS))
    assert cache.load(sectors) == pytest.approx(2 * (1 - chance))


def test_what_is_left_of_a_line_that_is_more_likely_gone() -> None:
    """Its other sectors are forgotten; of one that is more likely there they stay."""
    for since, stays in ((1.0, True), (1e6, False)):
        cache = _Cache(64.0)
        cache.load(np.array([0, 1]))
        cache.clock += since
        cache.load(np.array([2]))
        assert cache.present[0] == (7 if stays else 4)


def test_an_sm_that_touches_too_much_is_played_by_fewer_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loads that are made twice miss once, however little of the launch is played."""
    body = f"""{READY} mad.lo.s32 %r3, %r2, 32, %r1; mad.wide.s32 %rd2, %r3, 4, %rd1;
    ld.global.u32 %r5, [%rd2];
    ld.global.u32 %r6, [%rd2];
    ret;"""
    read = run(body, grid=(32,))
    first, again = (site.number for site in read.sites)
    for budget in (1 << 20, 24, 23, 8, 7, 1):
        monkeypatch.setattr(addresses_l1, "MOST_SECTORS", budget)
        shares = missed_shares(read, 1e5, 1, 4)
        assert shares == pytest.approx({first: 1.0, again: 0.0})


def test_long_loops_are_played_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is walked once misses each sector, whether all of its trips are played or some."""
    body = f"{READY} mov.u32 %r6, 0; {WALK.format(access='ld.global.u32 %r5, [%rd3]', end=960)}"
    read = run(body, lanes=1)
    (site,) = read.sites
    for budget in (10_000, 957, 956, 10):
        monkeypatch.setattr(addresses_l1, "MOST_LANES", budget)
        assert missed_shares(read, 1e5, 1, 1)[site.number] == pytest.approx(1 / 8, rel=0.02)


# ---- local memory ----


@pytest.mark.parametrize(
    ("since", "stays"), [(0.0, True), (MOST_LINES / 4, True), (MOST_LINES / 4 + 1, False)]
)
def test_a_word_leaves_a_cache_of_four_ways(since: float, stays: bool) -> None:
    """A cache of one byte, so that four times the bytes since then are lines of the word's set."""
    assert (_stays(since, 1.0) > 0.0) == stays
    assert _stays(0.0, 1.0) == 1.0


# ---- a launch's work ----


def test_counters_are_whole_numbers() -> None:
    """Halves of instructions and sectors that are means over warps, rounded."""
    local = LocalTraffic(2.3, 1.2, 0.9)
    work: Any = SimpleNamespace(
        on_sm=SimpleNamespace(local_tile=local),
        warps=2,
        instructions=10.75,
        xu_instructions=3.6,
        wavefronts={"shared_load": 7.8, "shared-store": 1.2},
    )
    assert LaunchWork.counters.fget(work) == {  # type: ignore[attr-defined]
        "shared_load_wavefronts": 8,
        "shared_store_wavefronts": 1,
        "instructions": 11,
        "xu_instructions": 4,
        "local_load_sectors": 5,
        "local_load_sectors_hit_l1": 2,
        "local_store_sectors": 2,
    }


TILE = f".shared .align 16 .b8 tile[4096]; {READY} mov.u32 %r4, tile; "
LOADS = f"""{TILE} mad.lo.s32 %r5, %r1, 4, %r4; mad.lo.s32 %r6, %r1, 16, %r4;
ld.shared.u32 %r10, [%r5];
ld.shared.u32 %r11, [%r5+4];
ld.shared.v2.u32 {{%r12, %r13}}, [%r5];
ld.shared.v4.u32 {{%r14, %r15, %r16, %r17}}, [%r6];
st.shared.u32 [%r5], %r10;
ret;"""


@pytest.mark.parametrize(
    ("code", "loads"),
    [
        # Each access has its instruction: a word a lane takes one wavefront, two take two, four take four.
        ("LDS R1 | 4, LDS R2 | 5, LDS.64 R4 | 6, LDS.128 R8 | 7, STS R1 | 8", 1 + 1 + 2 + 4),
        # Two loads of a word are merged into one of two, which names the line of the first: the other's is gone.
        ("LDS.64 R1 | 4, LDS.64 R4 | 6, LDS.128 R8 | 7, STS R1 | 8", 1 + 2 + 4),
        # Loads of more than 8 bytes a lane are never merged away; four words take two wavefronts at least.
        ("LDS.64 R1 | 4, STS R1 | 8", 1 + 4),
        ("LDS.128 R1 | 4, STS R1 | 8", 2 + 4),
        # Stores are merged by themselves; loads of device memory, and those without a line, say nothing.
        ("LDS R1 | 4, LDS R2 | 5, LDS.64 R4 | 6, LDS.128 R8 | 7, LDG.128 R1 | 5", 1 + 1 + 2 + 4),
        ("LDS.128 R1, STS R1 | 8", 1 + 1 + 2 + 4),
    ],
)
def test_wavefronts_of_merged_accesses(code: str, loads: int) -> None:
    read = run(LOADS)
    assert [site.wavefronts for site in read.sites] == [1, 1, 2, 4, 1]
    text = ""
    for n, line in enumerate(code.split(", ")):
        instruction, _, row = line.partition(" | ")
        text += f"/*{16 * n:04x}*/ {instruction}, [R2] ;  // c=0x7e1{f' p={row}' if row else ''}\n"
    machine_code: Any = SimpleNamespace(instructions=read_listing(text))
    assert _wavefronts(read, machine_code) == {"shared_load": loads, "shared_store": 1}


def test_what_a_line_asks_for() -> None:
    """Of two widths under one line the larger is what a merged load is held against; copies have wavefronts of their
    own, those of whole words where shared memory's side is not known."""
    body = f"""{TILE} mad.wide.s32 %rd2, %r1, 4, %rd1; mad.lo.s32 %r6, %r1, 128, %r4;
ld.shared.u32 %r10, [%r6]; ld.shared.v2.u32 {{%r11, %r12}}, [%r6];
cp.async.ca.shared.global [%r6], [%rd2], 4;
ld.global.u32 %r13, [%rd2];
ret;"""
    read = run(body)
    use_of = uses_of(read, {}, 90)

    def use(code: str, row: int | None) -> MemoryUse | None:
        note = "" if row is None else f" p={row}"
        (instruction,) = read_listing(f"/*0000*/ {code} ;  // c=0x7e1{note}")
        return use_of(instruction)

    loads = use("LDS.64 R10, [R6]", 4)
    assert loads is not None
    assert loads.wavefronts == 32  # all lanes in one bank, not merged further: of 8 bytes at most
    copied = use("LDGSTS.E [R6], desc[UR8][R2.64]", 5)
    assert copied == MemoryUse(4.0, 1.0, 32.0, 0.0)
    plain = use("LDG.E R13, desc[UR8][R2.64]", 6)
    assert plain == MemoryUse(4.0, 1.0, 0.0, 0.0)
    assert use("LDGSTS.E [R6], desc[UR8][R2.64]", 6) == MemoryUse(4.0, 1.0, 1.0, 0.0)
    assert use("LDG.E R13, desc[UR8][R2.64]", None) is None
    assert use("LDG.E R13, desc[UR8][R2.64]", 99) is None
    assert use("FADD R1, R2, R3", 6) is None


# ---- listings and modules ----


def test_control_words_of_a_listing_that_has_more_instructions() -> None:
    """A word an instruction; where there is none a cycle is taken."""
    text = "".join(f"/*{16 * n:04x}*/ MOV R{n}, RZ ;\n" for n in range(3))
    words = [0x7E4, 0x7E8]
    stalls = [i.control.stall for i in read_listing(text, words)]
    assert stalls == [4, 8, 1]
    assert [i.control.stall for i in read_listing(text, [])] == [1, 1, 1]
    assert [i.control.stall for i in read_listing(text)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("code", "target"),
    [
        ("BRA `(.L_x_1)", 16),
        ("BRA `(.L_x_9)", None),
        ("BRA 0x20", 32),
        ("BRX R4", None),
        ("BRA R4", None),
        ("MOV R1, 0x20", None),
        ("CALL.REL.NOINC `(.L_x_1)", 16),
    ],
)
def test_where_a_branch_goes(code: str, target: int | None) -> None:
    first, _ = read_listing(f"/*0000*/ {code} ;\n.L_x_1:\n/*0010*/ EXIT ;\n")
    assert first.target == target


def function(name: str, cc: int = 90, instructions: tuple[Any, ...] = ("one",)) -> Function:
    return Function(name, cc, 32, 0, 0, None, instructions, ptx=f"ptx of {name}")


@pytest.mark.parametrize(
    ("facts", "threads"),
    [
        ('{"num_warps": 4}', 128),
        ("[1]", None),  # no table
        ("{", None),
        (None, None),
    ],
)
def test_facts_beside_a_cubin(
    facts: str | None, threads: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_cubin", lambda _: True)
    monkeypatch.setattr(module, "_functions", lambda *_: iter([function("k")]))
    file = tmp_path / "k.cubin"
    file.write_bytes(b"cubin")
    if facts is not None:
        file.with_suffix(".json").write_text(facts, encoding="utf-8")
    read = read_module(file)
    assert (read.function().threads, read.ptx) == (threads, ("ptx of k",))
    file.with_suffix(".ptx").write_text("its own", encoding="utf-8")
    assert read_module(file).ptx == ("its own",)
    # A folder holds all of its cubins.
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.cubin").write_bytes(b"cubin")
    both = read_module(tmp_path)
    assert (len(both.functions), both.ptx) == (2, ("its own", "ptx of k"))


def test_kernels_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stands there twice is taken once, one without code never."""
    file = tmp_path / "lib.so"
    file.write_bytes(b"\x7fELF" + bytes(64))
    cubins = {
        "a": [function("k"), function("k", 80)],
        "b": [function("k"), function("empty", 90, ())],
    }
    texts: list[str] = []
    monkeypatch.setattr(module, "embedded", lambda *_: iter(cubins.items()))
    monkeypatch.setattr(module, "embedded_ptx", lambda *_: iter(texts))
    monkeypatch.setattr(module, "_functions", lambda cubin, *_: iter(cubin))
    assert [(f.name, f.cc) for f in read_module(file).functions] == [("k", 90), ("k", 80)]
    cubins.clear()
    with pytest.raises(InputError, match="holds no machine code of NVIDIA's GPUs"):
        read_module(file)
    texts.append(".entry k")
    assert read_module(file).names == ("k",)


def test_kernels_of_a_cubin_that_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    report = SimpleNamespace(
        cc=90, registers=8, frame_bytes=0, shared_memory_bytes=0, threads=None, code=b""
    )

    def functions_of(_: str) -> Iterator[tuple[str, str, str]]:
        yield "one", "", "/*0000*/ EXIT ;"

    monkeypatch.setattr(module, "read_cubin", lambda _: {"one": report, "other": report})
    monkeypatch.setattr(module, "disassembled", lambda _: "")
    monkeypatch.setattr(module, "functions_of", functions_of)
    monkeypatch.setattr(module, "embedded_text", lambda _: "inside")
    (read,) = read_module(b"cubin").functions
    assert (read.name, read.ptx, len(read.instructions)) == ("one", "inside", 1)


def test_a_compiled_kernel_without_machine_code() -> None:
    compiled = SimpleNamespace(asm={"ptx": ""}, metadata=SimpleNamespace(name="mine"))
    with pytest.raises(InputError, match="the compiled kernel mine holds no cubin"):
        read_module(compiled)
