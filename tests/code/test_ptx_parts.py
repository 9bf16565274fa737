"""Parts of the PTX's evaluation by themselves: numbers at the ends of a register, spells of trips held against each
other, and what may be folded of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iosim.base.errors import InputError
from iosim.code.ptx import Entry, Instruction, Parameter, decides, entries, reads, writes
from iosim.code.ptx_fold import Bent, Compared, Recorded, Snapshot, advanced, repeats, steps
from iosim.code.ptx_operations import Kind, kind_of, maximum, minimum
from iosim.code.ptx_trace import Access, Fold, Node, Visit, shifts
from iosim.code.ptx_values import Split, Value, fitted, lanes_of, number, whole
from iosim.code.ptx_words import literal, width_of

ROW = np.array([[0, 1, 2]])
COLUMN = np.array([[0], [10]])
ALL = np.ones((1, 1), dtype=bool)


# ---- numbers ----


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("over", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_stay_apart_up_to_the_ends_of_a_register(bits: int, over: int, sign: int) -> None:
    """The largest sum is 2^(bits-1) - 1, the least -2^(bits-1): beyond it numbers wrap, and are a table."""
    half = 1 << bits - 1
    end = half - 1 + over if sign > 0 else -half + over
    lane = sign * np.array([[0, 1, 2]])
    cta = np.array([[0], [end - 2 * sign]])
    result = fitted(Split(cta, lane), bits)
    wraps = end > half - 1 or end < -half
    assert isinstance(result, Split) == (not wraps)
    assert (whole(result) == (cta + lane + half) % (1 << bits) - half).all()


def test_another_lanes_number_by_cta_is_its_own() -> None:
    index = np.array([2, 1, 0])
    assert (whole(lanes_of(ROW, index)) == [[2, 1, 0]]).all()
    assert (whole(lanes_of(COLUMN, index)) == COLUMN).all()
    assert (whole(lanes_of(Split(COLUMN, ROW), index)) == np.array([[2, 1, 0], [12, 11, 10]])).all()
    assert isinstance(lanes_of(Split(COLUMN, ROW), index), Split)


@pytest.mark.parametrize(
    ("kind", "least"),
    [("s32", -5), ("u32", 3), ("s64", -5), ("u64", 3)],
)
def test_the_least_and_the_most_as_a_type_orders_them(kind: str, least: int) -> None:
    """Without a sign -5 is the largest but four; of two equal numbers either is right."""
    of = Kind(kind[0], int(kind[1:]))
    pairs = [(-5, 3), (3, -5), (0, 0), (7, 7), (-5, -5), (0, 7)]
    a, b = (np.array([column]) for column in zip(*pairs, strict=True))
    largest = -5 if least == 3 else 3
    assert minimum(a, b, of).tolist() == [[least, least, 0, 7, -5, 0]]  # type: ignore[union-attr]
    assert maximum(a, b, of).tolist() == [[largest, largest, 0, 7, -5, 7]]  # type: ignore[union-attr]


def test_the_type_that_an_instruction_reads() -> None:
    words = {"add.s32": "s32", "mul.wide.u16": "u16", "cvt.s64.s32": "s32", "mov.pred": "b32"}
    for text, kind in words.items():
        assert kind_of(tuple(text.split("."))) == Kind(kind[0], int(kind[1:]))
    assert kind_of(("cvt", "rzi", "s32", "f32")) == Kind("s", 32)  # floats are not read here


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-12", -12),
        ("0x1F", 31),
        ("31U", 31),
        ("0b101", 5),
        ("true", 1),
        ("false", 0),
        ("0f3F800000", None),
        ("0d3FF0000000000000", None),
        ("0F3F800000", None),
        ("0D3FF0000000000000", None),
        ("%r1", None),
    ],
)
def test_numbers_in_the_text(text: str, value: int | None) -> None:
    assert literal(text) == value


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("ld.global.u8", 1),
        ("ld.global.s16", 2),
        ("ld.global.b16x2", 4),
        ("ld.global.f32", 4),
        ("st.global.f64", 8),
        ("ld.global.b128", 16),
        ("ld.global.v2.f32", 8),
        ("ld.global.v4.b32", 16),
        ("ld.global.v8.b32", 32),
        ("ld.global.v4.u64", 32),
        ("red.global.add.noftz.f16x2", 4),
        ("red.global.add.noftz.bf16x2", 4),
        ("ld.global.L2::128B.v4.u32".replace("::", "_"), 16),
        ("ld.global.nc.L1_no_allocate.L2_256B.v2.b64", 16),
        ("st.async.v4.e4m3", 16),  # a type that is not known: words
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 16),
        ("stmatrix.sync.aligned.m8n8.x1.shared.b16", 16),
    ],
)
def test_bytes_that_a_lane_moves(text: str, width: int) -> None:
    assert width_of(Instruction(tuple(text.split(".")), ())) == width


# ---- spells of trips ----


def snapshot(**registers: Value) -> Snapshot:
    return Snapshot(0, 0, registers, np.array([[True, True, False]]))


def test_a_register_that_moves_evenly_has_a_step() -> None:
    """The third lane has left the loop: how far it moves is nobody's business."""
    spells = [np.array([[n, 5 + n, 100 * n * n]]) for n in (0, 2, 4)]
    by_register = steps(*(snapshot(a=value) for value in spells))
    assert by_register is not None
    assert whole(by_register["a"])[0, :2].tolist() == [2, 2]
    assert steps(snapshot(a=spells[0]), snapshot(a=spells[1]), snapshot(a=spells[1])) is None


def test_sums_of_columns_move_by_a_number_a_cta() -> None:
    by_register = steps(*(snapshot(a=Split(COLUMN * n, ROW)) for n in (1, 2, 3)))
    assert by_register is not None
    assert whole(by_register["a"]).tolist() == COLUMN.tolist()
    # Of other rows the difference is by lane, too.
    rows = [Split(COLUMN, ROW * n) for n in (1, 2, 3)]
    by_register = steps(*(snapshot(a=value) for value in rows))
    assert by_register is not None
    assert (whole(by_register["a"]) == ROW).all()
    mixed = [ROW, Split(COLUMN, ROW), Split(2 * COLUMN, ROW)]
    by_register = steps(*(snapshot(a=value) for value in mixed))
    assert by_register is not None
    assert (whole(by_register["a"]) == COLUMN).all()


@pytest.mark.parametrize(
    ("old", "middle", "new", "is_even"),
    [
        (None, None, None, True),  # never known: nothing hangs on it
        (number(1), None, None, True),
        (None, number(1), number(1), False),
        (number(1), None, number(1), False),
        (number(1), number(1), None, False),
        (None, None, number(1), False),
    ],
)
def test_what_was_not_known_in_one_of_the_spells(
    old: Value, middle: Value, new: Value, is_even: bool
) -> None:
    by_register = steps(snapshot(a=old), snapshot(a=middle), snapshot(a=new))
    assert by_register == ({} if is_even else None)


@pytest.mark.parametrize("turned", [None, 0, 1, 2])
def test_a_predicate_must_be_what_it_was(turned: int | None) -> None:
    """In lanes that are in the loop: the third has left it."""
    for place in range(3):
        spells = [np.array([[True, False, True]]) for _ in range(3)]
        if turned is not None:
            spells[place][0, turned] ^= True
        by_register = steps(*(snapshot(p=flags) for flags in spells))
        assert by_register == (None if turned in (0, 1) else {})


def compared(site: int, *difference: int, word: str = "lt") -> Compared:
    return Compared(site, word, np.array([difference]), ALL)


def bent(site: int, *operands: int, name: str = "and") -> Bent:
    return Bent(site, name, tuple(number(n) for n in operands), ALL)


@pytest.mark.parametrize(
    ("before", "after", "spells"),
    [
        ([], [], 1 << 40),
        ([compared(1, -9)], [compared(1, -7)], 3),  # -5, -3, -1, then it turns
        ([compared(1, -9), compared(2, -9)], [compared(1, -7), compared(2, -5)], 1),
        ([compared(1, -9, -9)], [compared(1, -8, -5)], 1),  # the lane that is there first
        ([compared(1, -9)], [compared(2, -7)], None),  # another comparison
        ([compared(1, -9)], [], None),
        ([], [compared(1, -9)], None),
        ([compared(1, -1)], [compared(1, 1)], None),  # turned between the two
        ([compared(1, -9)], [bent(1, 3, 7)], None),
        ([bent(1, 3, 7)], [compared(1, -9)], None),
        ([bent(1, 3, 7)], [bent(2, 3, 7)], None),
        ([bent(1, 3, 7)], [bent(1, 11, 7)], 1 << 40),  # moves by 8: the low three bits stand
        ([bent(1, 3, 7)], [bent(1, 12, 7)], None),
        ([bent(1, 7, 3)], [bent(1, 7, 3)], 1 << 40),
        ([compared(1, -9), bent(2, 3, 7)], [compared(1, -7), bent(2, 11, 7)], 3),
    ],
)
def test_spells_through_which_no_comparison_turns(
    before: list[Recorded], after: list[Recorded], spells: int | None
) -> None:
    folds = repeats(before, after, ALL, 1)
    assert (None if folds is None else int(folds.min())) == spells


@pytest.mark.parametrize("bits", [62, 63])
def test_a_shift_by_62_is_the_last_that_moves_evenly(bits: int) -> None:
    """2^63 is no number of 64 bits with a sign."""
    before, after = (bent(1, n, bits, name="shr") for n in (0, 1 << 62))
    folds = repeats([before], [after], ALL, 1)
    assert (folds is None) == (bits == 63)


def test_a_shift_that_lanes_do_not_share_is_not_even() -> None:
    shares = np.array([[1, 2]])
    before, after = (Bent(1, "shr", (number(n), shares), ALL) for n in (0, 8))
    assert repeats([before], [after], ALL, 1) is None


def test_registers_after_further_spells() -> None:
    spells = np.array([[3], [0]])
    assert (whole(advanced(ROW, number(4), spells)) == np.array([[12, 13, 14], [0, 1, 2]])).all()
    assert advanced(None, number(4), spells) is None
    assert advanced(ROW, None, spells) is ROW
    assert advanced(None, None, spells) is None


# ---- what is folded ----

GOING = np.array([True, True, False])


def access(
    site: int, base: list[int], pattern: int | None = 0, ctas: list[int] | None = None, **more: Any
) -> Access:
    numbers = list(range(len(base))) if ctas is None else ctas
    return Access(site, np.array(numbers), np.array(base), pattern, **more)


def visit(start: int, *warps: int) -> Visit:
    return Visit(start, np.array(warps))


def fold(head: int, body: tuple[Node, ...], *count: int) -> Fold:
    return Fold(head, body, np.array(count))


def text(nodes: Any) -> Any:
    """Nodes as plain values."""
    if nodes is None:
        return None
    return [
        ("fold", n.head, text(n.body), n.count.tolist())
        if isinstance(n, Fold)
        else ("visit", n.start, n.warps.tolist())
        if isinstance(n, Visit)
        else (n.site, n.ctas.tolist(), n.base.tolist(), n.pattern, [s.tolist() for s in n.strides])
        for n in nodes
    ]


STRIDE = {"strides": (np.array([8, 8]),)}
ALIKE: dict[str, tuple[list[Node], list[Node], Any]] = {
    "nothing": ([], [], []),
    "an access that moves": (
        [access(1, [0, 100])],
        [access(1, [10, 130])],
        [(1, [0, 1], [20, 160], 0, [[10, 30]])],
    ),
    "of a CTA that has left the loop nothing is kept": (
        [access(1, [0, 100, 7])],
        [access(1, [10, 130, 900])],
        [(1, [0, 1], [20, 160], 0, [[10, 30]])],
    ),
    "what only a CTA does that has left the loop": (
        [access(1, [0], ctas=[2]), access(2, [0, 0])],
        [access(2, [1, 1])],
        [(2, [0, 1], [2, 2], 0, [[1, 1]])],
    ),
    "other instructions": ([access(1, [0, 0])], [access(2, [0, 0])], None),
    "other lanes": ([access(1, [0, 0])], [access(1, [0, 0], 1)], None),
    "other CTAs": ([access(1, [0, 0])], [access(1, [0], ctas=[1])], None),
    "other CTAs, as many": ([access(1, [0], ctas=[0])], [access(1, [0], ctas=[1])], None),
    "an access more": ([access(1, [0, 0])], [access(1, [0, 0]), access(2, [0, 0])], None),
    "an access less": ([access(1, [0, 0]), access(2, [0, 0])], [access(1, [0, 0])], None),
    "steps of a fold inside": (
        [access(1, [0, 0], **STRIDE)],
        [access(1, [4, 4], **STRIDE)],
        [(1, [0, 1], [8, 8], 0, [[4, 4], [8, 8]])],
    ),
    "other steps inside": (
        [access(1, [0, 0], **STRIDE)],
        [access(1, [4, 4], strides=(np.array([8, 9]),))],
        None,
    ),
    "steps beside none": ([access(1, [0, 0], **STRIDE)], [access(1, [4, 4])], None),
    "visits": ([visit(3, 2, 1, 9)], [visit(3, 2, 1, 4)], [("visit", 3, [2, 1, 0])]),
    "visits of other blocks": ([visit(3, 2, 1, 0)], [visit(4, 2, 1, 0)], None),
    "visits of other warps": ([visit(3, 2, 1, 0)], [visit(3, 1, 1, 0)], None),
    "a visit of a CTA that has left": (
        [visit(3, 0, 0, 1), visit(4, 1, 1, 1)],
        [visit(4, 1, 1, 1)],
        [("visit", 4, [1, 1, 0])],
    ),
    "a visit for an access": ([visit(1, 1, 1, 1)], [access(1, [0, 0])], None),
    "an access for a visit": ([access(1, [0, 0])], [visit(1, 1, 1, 1)], None),
    "a fold": (
        [fold(5, (access(1, [0, 0], **STRIDE),), 3, 4, 0)],
        [fold(5, (access(1, [1, 2], **STRIDE),), 3, 4, 9)],
        [("fold", 5, [(1, [0, 1], [2, 4], 0, [[1, 2], [8, 8]])], [3, 4, 0])],
    ),
    "a fold that turns more often": (
        [fold(5, (visit(5, 1, 1, 1),), 3, 4, 0)],
        [fold(5, (visit(5, 1, 1, 1),), 3, 5, 0)],
        None,
    ),
    "a fold of another loop": (
        [fold(5, (visit(5, 1, 1, 1),), 3, 4, 0)],
        [fold(6, (visit(5, 1, 1, 1),), 3, 4, 0)],
        None,
    ),
    "folds that do not do alike": (
        [fold(5, (visit(5, 1, 1, 1),), 3, 4, 0)],
        [fold(5, (visit(6, 1, 1, 1),), 3, 4, 0)],
        None,
    ),
    "a fold of a CTA that has left": (
        [fold(5, (visit(5, 1, 1, 1),), 0, 0, 7), visit(9, 1, 1, 1)],
        [visit(9, 1, 1, 1)],
        [("visit", 9, [1, 1, 0])],
    ),
    "a fold for a visit": ([fold(5, (), 1, 1, 1)], [visit(5, 1, 1, 1)], None),
    "a visit for a fold": ([visit(5, 1, 1, 1)], [fold(5, (), 1, 1, 1)], None),
    "an access for a fold": ([access(5, [0, 0])], [fold(5, (), 1, 1, 1)], None),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_two_trips_do_alike(name: str) -> None:
    """CTAs 0 and 1 go on, CTA 2 has left the loop: the body is the first trip that is not played."""
    before, after, body = ALIKE[name]
    assert text(shifts(before, after, GOING)) == body


# ---- the text ----


def only(body: str, parameters: str = "", head: str = "") -> Entry:
    (entry,) = entries(f"{head}\n.visible .entry kernel({parameters}) {{\n{body}\n}}").values()
    return entry


def test_labels_of_inline_assembly_are_its_own() -> None:
    entry = only("""
    L: add.s32 %r1, %r1, 1;
    {
        .reg .pred p;
        L: add.s32 %r2, %r2, 1;
        { bra L; }
        bra OUT;
    }
    bra L;
    OUT: ret;
""")
    names = [(i.name, i.target) for i in entry.instructions]
    assert names == [("add", -1), ("add", -1), ("bra", 1), ("bra", 5), ("bra", 0), ("ret", -1)]


@pytest.mark.parametrize("body", ["bra NOWHERE;", "{ L: ret; } bra L;"])
def test_a_label_that_is_not_there(body: str) -> None:
    with pytest.raises(InputError, match="which it does not have"):
        only(body)


@pytest.mark.parametrize(
    ("body", "loops"),
    [
        ("L: ld.global.u32 %r1, [%rd1]; bra L; ret;", {0: 1}),
        ("L: bra L; ret;", {0: 0}),
        ("bra L; ret; L: ret;", {}),
        ("ret; L: mov.u32 %r1, 1; @%p1 bra L; mov.u32 %r1, 2; @%p2 bra L; ret;", {1: 4}),
        ("L: mov.u32 %r1, 1; M: mov.u32 %r2, 1; @%p1 bra M; @%p2 bra L; ret;", {0: 3, 1: 2}),
    ],
)
def test_loops_begin_where_a_branch_goes_back_to(body: str, loops: dict[int, int]) -> None:
    assert only(body).flow.loops == loops


def test_blocks_begin_behind_branches_and_at_their_targets() -> None:
    flow = only("mov.u32 %r1, 1; L: mov.u32 %r2, 1; @%p1 bra L; @%p2 ret; trap; exit; ret;").flow
    assert flow.starts == [0, 1, 3, 4, 5, 6, 7]
    assert only("L: mov.u32 %r1, 1; @%p1 bra L; ret;").flow.starts == [0, 2, 3]


def test_what_is_live_where_a_block_begins() -> None:
    """%r1 is read at the entry; %r2 is written under a guard alone, so that its old value lives on."""
    flow = only("""
    L: add.s32 %r3, %r1, 1;
    @%p1 mov.u32 %r2, %r3;
    mov.u32 %r4, 1;
    setp.lt.s32 %p2, %r4, %r2;
    @%p2 bra L;
    st.global.u32 [%rd1], %r4;
    ret;
""").flow
    registers = {at: {n for n in names if n[0] == "%"} for at, names in flow.live.items()}
    assert registers == {
        0: {"%r1", "%r2", "%p1", "%rd1"},
        5: {"%rd1", "%r4"},
        7: set(),
    }


WORDS_OF = """
add.s32 %r1, %r2, %r3 | %r1 | %r2 %r3 |
@%p1 add.s32 %r1, %r2, 3 | %r1 | %p1 %r2 %r1 |
setp.lt.s32 %p1|%p2, %r2, %r3 | %p1 %p2 | %r2 %r3 |
mov.b64 {%r1, %r2}, %rd1 | %r1 %r2 | %rd1 |
ld.global.u32 %r1, [%rd1+4] | %r1 | %rd1 | %rd1
@!%p1 ld.global.v2.u32 {%r1, %r2}, [%rd1] | %r1 %r2 | %p1 %r1 %r2 %rd1 | %rd1 %p1
st.global.u32 [%rd1], %r1 | | %rd1 %r1 | %rd1
red.global.add.u32 [%rd1], %r1 | | %rd1 %r1 | %rd1
cp.async.cg.shared.global [%r1], [%rd1], 16, %r2 | | %r1 %rd1 %r2 | %r1 %rd1 %r2
mbarrier.arrive.shared.b64 %rd9, [%r1] | %rd9 | %r1 |
mbarrier.init.shared.b64 [%r1], %r2 | | %r1 %r2 |
mbarrier.inval.shared.b64 [%r1] | | %r1 |
bar.sync 0 | | |
barrier.sync %r1 | | %r1 |
@%p1 bra L | | %p1 | %p1
@%p1 ret | | %p1 | %p1
@%p1 exit | | %p1 | %p1
ret | | |
"""
"""Instructions with the registers that they write, read and go by: which memory, which lanes, where to."""


@pytest.mark.parametrize("line", WORDS_OF.strip().splitlines())
def test_what_an_instruction_writes_reads_and_decides_by(line: str) -> None:
    words, written, read, decide = line.rsplit("|", 3)
    instruction = only(f"L: {words};").instructions[0]
    registers = [
        {name for name in names if name[0] == "%"}
        for names in (writes(instruction), reads(instruction), decides(instruction))
    ]
    assert registers == [set(names.split()) for names in (written, read, decide)]


@pytest.mark.parametrize(
    ("declared", "shared", "size"),
    [
        (
            ".shared .align 16 .b8 a[100]; .shared .b32 b[4]; .shared .u64 c;",
            {"a": 0, "b": 128, "c": 256},
            264,
        ),
        (".shared .align 4 .b8 a[128]; .shared .b8 b[1];", {"a": 0, "b": 128}, 129),
        # What is given at the launch lies behind the others.
        (".extern .shared .align 16 .b8 a[]; .shared .b8 b[130];", {"b": 0, "a": 256}, 256),
        (".shared .b8 a[64]; .shared .b8 unused[64];", {"a": 0}, 64),
        (".shared .b8 a[258]; .shared .b8 b[8];", {"a": 0, "b": 384}, 392),
    ],
)
def test_where_shared_variables_lie(declared: str, shared: dict[str, int], size: int) -> None:
    """Each begins at a multiple of 128 bytes; those that a kernel does not name are not its."""
    used = " ".join(f"mov.u64 %rd1, {name};" for name in shared)
    entry = only(f"{used} ret;", head=declared)
    assert (entry.shared, entry.shared_bytes) == (shared, size)


@pytest.mark.parametrize(
    ("parameters", "sizes"),
    [
        ("", []),
        (".param .u64 a, .param .align 8 .b8 b[24], .param .f32 c", [8, 24, 4]),
        (".param .u64 .ptr .global .align 16 a, .param .u8 b, .param .pred c", [8, 1, 1]),
    ],
)
def test_bytes_of_parameters(parameters: str, sizes: list[int]) -> None:
    assert [p.size for p in only("ret;", parameters).parameters] == sizes


def test_a_parameter_that_cannot_be_read() -> None:
    with pytest.raises(InputError, match=r"the parameter '.param a' of kernel kernel"):
        only("ret;", ".param a")


@pytest.mark.parametrize(
    ("stated", "threads"),
    [
        ("", ()),
        (".reqntid 128", (128,)),
        (".maxntid 32, 4, 2", (32, 4, 2)),
        (".minnctapersm 2 .reqntid 16, 8", (16, 8)),
    ],
)
def test_threads_that_the_code_states(stated: str, threads: tuple[int, ...]) -> None:
    (entry,) = entries(f".visible .entry kernel()\n{stated}\n{{ ret; }}").values()
    assert entry.threads == threads


def test_a_kernel_without_a_list_of_parameters() -> None:
    (entry,) = entries(".visible .entry kernel { ret; }").values()
    assert (entry.parameters, [i.name for i in entry.instructions]) == ((), ["ret"])


def test_lines_and_rows() -> None:
    entry = only(
        """    .loc 1 7 3
    mov.u32 %r1, 1; // a note; with a mark
    /* two
       lines */ mov.u32 %r2, 2;
    .pragma "nounroll";
    .loc 2 9
    ret;""",
        head='.file 1 "/folder/one.cu"\n',
    )
    assert [(i.row, i.line) for i in entry.instructions] == [
        (5, "one.cu:7"),
        (7, "one.cu:7"),
        (10, "2:9"),
    ]


def test_an_entry_as_it_is_read() -> None:
    read = entries(
        ".visible .entry first(.param .u64 x, .param .f32 y)\n.reqntid 32\n{ .reg .b32 %r<5>; .reg .pred %p<2>, %q; "
        "@!%p1 mov.b64 %rd1, {%r1, %r2}; ret; }\n.visible .entry second() { ret; }"
    )
    assert list(read) == ["first", "second"]
    entry = read["first"]
    assert entry.parameters == (Parameter("x", "u64", 8), Parameter("y", "f32", 4))
    assert entry.registers == {"%r", "%p", "%q"}
    assert entry.instructions == (
        Instruction(("mov", "b64"), ("%rd1", ("%r1", "%r2")), "%p1", True, "", -1, 3),
        Instruction(("ret",), (), row=3),
    )
    assert (entry.name, entry.threads, entry.shared, entry.shared_bytes) == ("first", (32,), {}, 0)
    assert read["second"] == Entry("second", (), (Instruction(("ret",), (), row=4),))
