"""Small kernels in PTX beside what each lane touches, written down in Python: packed registers, predicates, ways that
part and meet again, loops whose lanes leave one after the other, loops that are folded and loops that must not be."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ptx_touched import counted, touched

from iosim.base.errors import InputError
from iosim.code.addresses import LOCAL, SHARED, Evaluated, evaluate
from iosim.code.arguments import TensorArgument, place
from iosim.code.ptx import entries
from iosim.code.ptx_trace import Fold
from iosim.kernel.launch import Mode

LANES, GRID = 40, (3, 2)
"""A warp and a quarter; CTAs along two axes."""
Lane = Callable[[int, int, int], Iterator[int]]
"""The numbers of the words that a lane stores to, by its number and its CTA's place."""
HEAD = """
.visible .entry kernel(.param .u64 x, .param .u64 v, .param .u32 n)
{
    .shared .align 4 .b8 tile[4096];
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [v];
    ld.param.u32 %r9, [n];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ctaid.y;
"""
STORE = re.compile(r"(@!?%\w+ )?store (%\w+);")
VALUES = (7, 3, 11, 0)
BITS = 0xFFFFFFFF


def text(body: str) -> str:
    """The kernel with this body, in which `store %r;` stores to the word of that number."""
    stores = STORE.sub(r"mad.wide.s32 %rd90, \2, 4, %rd1; \1st.global.u32 [%rd90], %r1;", body)
    return f"{HEAD}{stores}\n    ret;\n}}\n"


def run(body: str, lanes: int = LANES, grid: tuple[int, ...] = GRID, n: int = 20) -> Evaluated:
    (entry,) = entries(text(body)).values()
    parameters = {
        "x": TensorArgument("x", (4096,), "fp32"),
        "v": TensorArgument("v", (len(VALUES),), "int32", VALUES),
        "n": n,
    }
    return evaluate(entry, grid, parameters, (lanes,))


def words_of(evaluated: Evaluated) -> Counter[tuple[int, int]]:
    """(CTA, word) of all stores to x, with how often."""
    words: Counter[tuple[int, int]] = Counter()
    code = evaluated.entry.instructions
    for (at, cta, address), often in touched(evaluated).items():
        if code[at].name == "st":
            words[cta, (address - place(0)) // 4] += often
    return words


def right(lane: Lane, lanes: int = LANES, grid: tuple[int, int] = GRID) -> Counter[tuple[int, int]]:
    words: Counter[tuple[int, int]] = Counter()
    for y in range(grid[1]):
        for x in range(grid[0]):
            for t in range(lanes):
                words.update((x + grid[0] * y, word) for word in lane(t, x, y))
    return words


def signed(n: int, bits: int = 32) -> int:
    return (n + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def one(value: Callable[[int, int, int], int]) -> Lane:
    """Each lane stores once."""

    def lane(t: int, x: int, y: int) -> Iterator[int]:
        yield value(t, x, y)

    return lane


VALUES_OF: dict[str, tuple[str, Callable[[int, int, int], int]]] = {
    "two registers in one of 64 bits": (
        "mov.b64 %rd9, {%r1, %r2}; shr.u64 %rd9, %rd9, 30; cvt.u32.u64 %r4, %rd9;",
        lambda t, x, y: (t | x << 32) >> 30,
    ),
    "a register of 64 bits in two": (
        "add.s32 %r5, %r1, 3; mul.wide.u32 %rd9, %r5, 0x30000000; add.s64 %rd9, %rd9, 5; "
        "mov.b64 {%r5, %r6}, %rd9; shr.u32 %r5, %r5, 28; mad.lo.s32 %r4, %r6, 100, %r5;",
        lambda t, x, y: (
            ((t + 3) * 0x30000000 + 5 >> 32) * 100 + (((t + 3) * 0x30000000 + 5 & BITS) >> 28)
        ),
    ),
    "four registers in one of 64 bits": (
        "cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2; cvt.u16.u32 %h3, %r3; mov.u16 %h4, 0; "
        "mov.b64 %rd9, {%h1, %h2, %h3, %h4}; shr.u64 %rd9, %rd9, 12; cvt.u32.u64 %r4, %rd9;",
        lambda t, x, y: (t | x << 16 | y << 32) >> 12,
    ),
    "a register of 32 bits in two halves": (
        "mad.lo.s32 %r5, %r1, 0x30001, 9; mov.b32 {%h1, %h2}, %r5; cvt.u32.u16 %r6, %h1; "
        "cvt.u32.u16 %r7, %h2; mad.lo.s32 %r4, %r7, 200, %r6;",
        lambda t, x, y: (t * 0x30001 + 9 >> 16) * 200 + (t * 0x30001 + 9 & 0xFFFF),
    ),
    "products of halves are words": (
        "cvt.u16.u32 %h1, %r1; add.u16 %h1, %h1, 1000; mov.u16 %h2, 900; mad.wide.u16 %r4, %h1, %h2, %r2; "
        "shr.u32 %r4, %r4, 8;",
        lambda t, x, y: ((t + 1000) * 900 + x) >> 8,
    ),
    "sums of words wrap": (
        "mad.lo.s32 %r4, %r1, 0x10000001, %r2; shr.s32 %r4, %r4, 20;",
        lambda t, x, y: signed(t * 0x10000001 + x) >> 20,
    ),
    "wide sums of words do not": (
        "mul.wide.s32 %rd8, %r2, 0x40000000; mad.wide.s32 %rd9, %r1, 0x10000001, %rd8; shr.s64 %rd9, %rd9, 20; "
        "cvt.u32.u64 %r4, %rd9;",
        lambda t, x, y: (t * 0x10000001 + x * 0x40000000) >> 20,
    ),
    "a column and a row that overflow": (
        "shl.b32 %r5, %r2, 30; mad.lo.s32 %r4, %r1, 0x1000000, %r5; shr.s32 %r4, %r4, 22;",
        lambda t, x, y: signed(t * 0x1000000 + (x << 30)) >> 22,
    ),
    "a column less a row": ("sub.s32 %r4, %r2, %r1;", lambda t, x, y: x - t),
    "a number less a row": ("sub.s32 %r4, 5, %r1;", lambda t, x, y: 5 - t),
    "a row and a number by CTA and lane": (
        "mad.lo.s32 %r5, %r2, 7, %r1; mul.lo.s32 %r6, %r5, %r1; sub.s32 %r6, %r6, %r5; add.s32 %r4, %r6, %r2;",
        lambda t, x, y: (x * 7 + t) * t - (x * 7 + t) + x,
    ),
    "squares of sums of column and row": (
        "mad.lo.s32 %r5, %r2, 9, %r1; mul.lo.s32 %r4, %r5, %r5;",
        lambda t, x, y: (x * 9 + t) ** 2,
    ),
    "sums of column and row at the ends of a word": (
        # the largest is 2^31 + 39 - 40, the least -2^31 + 0
        "mad.lo.s32 %r5, %r2, 0x40000000, %r1; sub.s32 %r5, %r5, 40; shr.s32 %r6, %r5, 20; "
        "neg.s32 %r7, %r5; sub.s32 %r7, %r7, 1; shr.s32 %r7, %r7, 20; add.s32 %r4, %r6, %r7;",
        lambda t, x, y: (
            (signed(x * 0x40000000 + t - 40) >> 20) + (signed(-(x * 0x40000000 + t - 40) - 1) >> 20)
        ),
    ),
    "bits of a sum of column and row": (
        "mad.lo.s32 %r5, %r2, 16, %r1; or.b32 %r4, %r5, 5;",
        lambda t, x, y: (x * 16 + t) | 5,
    ),
    "bits of a sum whose row is negative": (
        "sub.s32 %r5, %r1, 8; mad.lo.s32 %r5, %r2, 16, %r5; add.s32 %r5, %r5, 8; xor.b32 %r4, %r5, 96;",
        lambda t, x, y: (x * 16 + t) ^ 96,
    ),
    "bits beside a sum of two that carry": (
        "mad.lo.s32 %r5, %r2, 24, %r1; xor.b32 %r4, %r5, 64;",
        lambda t, x, y: (x * 24 + t) ^ 64,
    ),
    "a comparison of words with a sign, as a number": (
        "sub.s32 %r5, %r1, 4; set.lt.u32.s32 %r6, %r5, %r2; and.b32 %r6, %r6, 24; add.s32 %r4, %r6, %r3;",
        lambda t, x, y: (24 if t - 4 < x else 0) + y,
    ),
    "a comparison of words without a sign": (
        "sub.s32 %r5, %r1, 4; setp.lt.u32 %p1, %r5, 9; selp.b32 %r4, 3, 8, %p1;",
        lambda t, x, y: 3 if 0 <= t - 4 < 9 else 8,
    ),
    "both answers of a comparison, with another's": (
        "setp.lt.s32 %p1, %r1, 30; setp.ge.and.s32 %p2|%p3, %r1, 10, %p1; selp.b32 %r5, 1, 0, %p2; "
        "selp.b32 %r6, 2, 0, %p3; add.s32 %r4, %r5, %r6;",
        # p3 is (not t >= 10) and p1: the second answer is joined as well
        lambda t, x, y: int(10 <= t < 30) + (2 if t < 10 else 0),
    ),
    "a comparison or not another's": (
        "setp.lt.s32 %p1, %r1, 30; setp.eq.or.s32 %p2, %r1, 10, !%p1; selp.b32 %r4, 1, 0, %p2;",
        lambda t, x, y: int(t == 10 or t >= 30),
    ),
    "either of two comparisons, not both": (
        "setp.lt.s32 %p1, %r1, 30; setp.ge.xor.s32 %p2, %r1, %r2, %p1; selp.b32 %r4, 1, 0, %p2;",
        lambda t, x, y: int((t >= x) != (t < 30)),
    ),
    "logic of predicates": (
        "setp.lt.s32 %p1, %r1, 30; setp.eq.s32 %p2, %r2, 1; not.pred %p3, %p1; and.pred %p4, %p3, %p2; "
        "or.pred %p5, %p1, %p2; xor.pred %p6, %p4, %p5; mov.pred %p7, %p6; selp.b32 %r4, 4, 9, %p7;",
        lambda t, x, y: 4 if (t >= 30 and x == 1) != (t < 30 or x == 1) else 9,
    ),
    "a choice that all lanes make alike": (
        "setp.ge.s32 %p1, %r1, 0; selp.b32 %r5, %r2, %r1, %p1; setp.lt.s32 %p2, %r1, 0; "
        "selp.b32 %r6, 77, %r5, %p2; add.s32 %r4, %r6, 1;",
        lambda t, x, y: x + 1,
    ),
    "numbers kept under a guard": (
        "mad.lo.s32 %r4, %r2, 50, %r1; setp.eq.s32 %p1, %r3, 1; @%p1 mad.lo.s32 %r4, %r2, 60, %r1; "
        "setp.lt.s32 %p2, %r1, 6; @!%p2 add.s32 %r4, %r4, 1000;",
        lambda t, x, y: x * (60 if y == 1 else 50) + t + (1000 if t >= 6 else 0),
    ),
    "numbers of CTAs kept under a guard by CTA": (
        "mad.lo.s32 %r4, %r2, 50, %r1; setp.eq.s32 %p1, %r2, 1; @%p1 mad.lo.s32 %r4, %r3, 7, %r1;",
        lambda t, x, y: (y * 7 if x == 1 else x * 50) + t,
    ),
    "a guard by lane of numbers by CTA": (
        "mul.lo.s32 %r4, %r2, 50; setp.lt.s32 %p1, %r1, 20; @%p1 mul.lo.s32 %r4, %r3, 7;",
        lambda t, x, y: y * 7 if t < 20 else x * 50,
    ),
    "a guard by lane of two sums of column and row": (
        "mad.lo.s32 %r4, %r2, 50, %r1; setp.lt.s32 %p1, %r1, 20; @%p1 mad.lo.s32 %r4, %r3, 7, %r1;",
        lambda t, x, y: (y * 7 if t < 20 else x * 50) + t,
    ),
    "a guard by CTA of sums of other rows": (
        "mad.lo.s32 %r4, %r2, 50, %r1; shl.b32 %r5, %r1, 1; setp.eq.s32 %p1, %r2, 1; @%p1 add.s32 %r4, %r5, %r3;",
        lambda t, x, y: 2 * t + y if x == 1 else x * 50 + t,
    ),
    "another lane's sum of column and row": (
        "mad.lo.s32 %r5, %r2, 50, %r1; shfl.sync.bfly.b32 %r4, %r5, 1, 31, -1;",
        # The last warp's lanes end at 40: they are as many as its partners.
        lambda t, x, y: x * 50 + (t ^ 1),
    ),
    "another lane's number by CTA": (
        "shl.b32 %r5, %r2, 4; shfl.sync.idx.b32 %r4, %r5, 3, 31, -1;",
        lambda t, x, y: x << 4,
    ),
    "the lanes that are active": (
        "activemask.b32 %r5; and.b32 %r5, %r5, 8; add.s32 %r4, %r5, %r1;",
        lambda t, x, y: 8 + t,
    ),
    "numbers that lie in memory": (
        "and.b32 %r5, %r1, 3; mad.wide.u32 %rd3, %r5, 4, %rd2; ld.global.u32 %r6, [%rd3]; add.s32 %r4, %r6, %r1;",
        lambda t, x, y: VALUES[t & 3] + t,
    ),
    "numbers behind an address": (
        "ld.global.u32 %r6, [%rd2+8]; ld.global.u32 {%r7}, [ %rd2 + 4 ]; sub.s32 %r4, %r6, %r7;",
        lambda t, x, y: VALUES[2] - VALUES[1],
    ),
    "quotients of negative numbers": (
        "sub.s32 %r5, %r1, 20; div.s32 %r6, %r5, 7; rem.s32 %r7, %r5, 7; mad.lo.s32 %r4, %r6, 20, %r7;",
        lambda t, x, y: (abs(t - 20) // 7 * 20 + abs(t - 20) % 7) * (1 if t >= 20 else -1),
    ),
}


@pytest.mark.parametrize("name", VALUES_OF)
def test_numbers_of_all_lanes_and_ctas(name: str) -> None:
    body, value = VALUES_OF[name]
    read = run(f"{body} store %r4;")
    assert words_of(read) == right(one(value))
    assert read.notes == ()


UNKNOWN = {
    "a table picked by lane": "prmt.b32 %r4, %r1, %r2, %r1;",
    "a conversion that saturates": "cvt.sat.u8.s32 %r4, %r1;",
    "a conversion of a float": "cvt.rn.f32.s32 %r4, %r1;",
    "a conversion to a whole number": "cvt.rzi.s32.f32 %r4, %r1;",
    "an instruction that is not known": "dp9a.b32 %r4, %r1, {%r2, %r3};",
    "a comparison that is not known": "setp.around.s32 %p1, %r1, 5; selp.b32 %r4, 1, 2, %p1;",
    "a comparison with what is not known": "setp.lt.and.s32 %p1, %r1, 5, %p9; selp.b32 %r4, 1, 2, %p1;",
    "one of two of which one is not known": "setp.lt.s32 %p1, %r1, 5; selp.b32 %r4, 1, %r88, %p1;",
    "another lane of which the number is not known": "shfl.sync.idx.b32 %r4, %r1, %r88, 31, -1;",
    "another lane's number that is not known": "shfl.sync.idx.b32 %r4, %r88, 3, 31, -1;",
    "another lane by CTA": "shfl.sync.idx.b32 %r4, %r1, %r2, 31, -1;",
    "another lane in a way that is not known": "shfl.sync.turn.b32 %r4, %r1, 3, 31, -1;",
    "half of what is not known": "mov.b32 {%h1, %h2}, %r88; cvt.u32.u16 %r4, %h1;",
    "a pair of which half is not known": "mov.b64 %rd9, {%r1, %r88}; cvt.u32.u64 %r4, %rd9;",
    "numbers some of which lie behind those given": (
        "mad.wide.u32 %rd3, %r1, 4, %rd2; setp.lt.s32 %p1, %r1, 5; @%p1 ld.global.u32 %r4, [%rd3];"
    ),
    "a number under a guard, where it is not known": (
        "mov.u32 %r4, 5; setp.lt.s32 %p1, %r1, 9; @%p1 mov.u32 %r4, %r88;"
    ),
    "an address of two registers": "ld.global.u32 %r4, [{%rd1, %rd2}];",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_said(name: str) -> None:
    read = run(f"{UNKNOWN[name]} store %r4;")
    assert any("of which no values are given (st.global.u32)" in note for note in read.notes)


def test_numbers_up_to_the_last_one_given_are_known() -> None:
    body = "mad.wide.u32 %rd3, %r1, 4, %rd2; setp.lt.s32 %p1, %r1, 4; @%p1 ld.global.u32 %r4, [%rd3]; @%p1 store %r4;"
    read = run(body)
    assert read.notes == ()
    assert {word for _, word in words_of(read)} == set(VALUES)


# ---- ways that part, loops ----


def _two_ways(t: int, x: int, y: int) -> Iterator[int]:
    if t < 8 * x:
        yield t
    else:
        yield 500 + t
        if y == 1:
            yield 900 + t
    yield 1000 + t


def _leaving(t: int, x: int, y: int) -> Iterator[int]:
    """A loop that lanes leave one after the other, by two doors."""
    for i in range(20):
        if i == t % 7 + 2 * x:
            yield 2000 + i
            return
        yield i * 50 + t
        if i * 3 > t + y:
            break
    yield 3000 + t


def _skipping(t: int, x: int, y: int) -> Iterator[int]:
    """Trips whose middle some lanes leave out; the number of trips differs by CTA."""
    for i in range(12 + 5 * x):
        if (i + t) % 3 == 0:
            yield i * 50 + t
        yield 1000 + i * 50 + t


def _inner(t: int, x: int, y: int) -> Iterator[int]:
    """An inner loop that grows with the outer one's trips, and an outer one by CTA."""
    for i in range(3 + 4 * x):
        for j in range(i + 1 + y):
            yield i * 60 + j
        yield 1000 + i


def _counted_down(t: int, x: int, y: int) -> Iterator[int]:
    i = 19 + x
    while i >= 0:
        yield i * 45 + t
        i -= 2 + y


def _by_lane(t: int, x: int, y: int) -> Iterator[int]:
    for i in range(t // 8 + 9):
        yield i * 41 + t


def _not_equal(t: int, x: int, y: int) -> Iterator[int]:
    i = 0
    while True:
        yield i + t
        i += 3
        if i == 60 + 3 * x:
            return


def _ended(t: int, x: int, y: int) -> Iterator[int]:
    if t >= 33 or (x == 2 and t < 4):
        return
    for i in range(10):
        if i == 6 and y == 1:
            return
        yield i * 40 + t


WAYS: dict[str, tuple[str, Lane]] = {
    "two ways that meet again": (
        """
    shl.b32 %r5, %r2, 3;
    setp.lt.s32 %p1, %r1, %r5;
    @!%p1 bra ELSE;
    store %r1;
    bra.uni JOIN;
ELSE:
    add.s32 %r6, %r1, 500;
    store %r6;
    setp.ne.s32 %p2, %r3, 1;
    @%p2 bra JOIN;
    add.s32 %r6, %r6, 400;
    store %r6;
JOIN:
    add.s32 %r6, %r1, 1000;
    store %r6;
""",
        _two_ways,
    ),
    "a loop with two doors": (
        """
    rem.u32 %r5, %r1, 7;
    mad.lo.s32 %r5, %r2, 2, %r5;
    add.s32 %r8, %r1, %r3;
    mov.u32 %r6, 0;
LOOP:
    setp.eq.s32 %p1, %r6, %r5;
    @%p1 bra FOUND;
    mad.lo.s32 %r7, %r6, 50, %r1;
    store %r7;
    mul.lo.s32 %r7, %r6, 3;
    setp.gt.s32 %p2, %r7, %r8;
    @%p2 bra DONE;
    add.s32 %r6, %r6, 1;
    setp.lt.s32 %p3, %r6, 20;
    @%p3 bra LOOP;
DONE:
    add.s32 %r7, %r1, 3000;
    store %r7;
    ret;
FOUND:
    add.s32 %r7, %r6, 2000;
    store %r7;
""",
        _leaving,
    ),
    "trips whose middle some lanes leave out": (
        """
    mad.lo.s32 %r5, %r2, 5, 12;
    mov.u32 %r6, 0;
LOOP:
    add.s32 %r7, %r6, %r1;
    rem.u32 %r7, %r7, 3;
    setp.ne.s32 %p1, %r7, 0;
    mad.lo.s32 %r7, %r6, 50, %r1;
    @%p1 bra SKIP;
    store %r7;
SKIP:
    add.s32 %r7, %r7, 1000;
    store %r7;
    add.s32 %r6, %r6, 1;
    setp.lt.s32 %p2, %r6, %r5;
    @%p2 bra LOOP;
""",
        _skipping,
    ),
    "loops in loops": (
        """
    mad.lo.s32 %r5, %r2, 4, 3;
    mov.u32 %r6, 0;
OUTER:
    mov.u32 %r7, 0;
    add.s32 %r10, %r6, %r3;
INNER:
    mad.lo.s32 %r8, %r6, 60, %r7;
    store %r8;
    add.s32 %r7, %r7, 1;
    setp.le.s32 %p1, %r7, %r10;
    @%p1 bra INNER;
    add.s32 %r8, %r6, 1000;
    store %r8;
    add.s32 %r6, %r6, 1;
    setp.lt.s32 %p2, %r6, %r5;
    @%p2 bra OUTER;
""",
        _inner,
    ),
    "a loop that counts down": (
        """
    add.s32 %r6, %r2, 19;
    add.s32 %r5, %r3, 2;
LOOP:
    mad.lo.s32 %r7, %r6, 45, %r1;
    store %r7;
    sub.s32 %r6, %r6, %r5;
    setp.ge.s32 %p1, %r6, 0;
    @%p1 bra LOOP;
""",
        _counted_down,
    ),
    "trips by lane": (
        """
    shr.u32 %r5, %r1, 3;
    add.s32 %r5, %r5, 9;
    mov.u32 %r6, 0;
LOOP:
    mad.lo.s32 %r7, %r6, 41, %r1;
    store %r7;
    add.s32 %r6, %r6, 1;
    setp.ge.s32 %p1, %r6, %r5;
    @!%p1 bra LOOP;
""",
        _by_lane,
    ),
    "a loop until two numbers are equal": (
        """
    mad.lo.s32 %r5, %r2, 3, 60;
    mov.u32 %r6, 0;
LOOP:
    add.s32 %r7, %r6, %r1;
    store %r7;
    add.s32 %r6, %r6, 3;
    setp.ne.s32 %p1, %r6, %r5;
    @%p1 bra LOOP;
""",
        _not_equal,
    ),
    "lanes that end": (
        """
    setp.ge.s32 %p1, %r1, 33;
    @%p1 ret;
    setp.eq.s32 %p2, %r2, 2;
    setp.lt.and.s32 %p3, %r1, 4, %p2;
    @%p3 exit;
    setp.eq.s32 %p4, %r3, 1;
    mov.u32 %r6, 0;
LOOP:
    setp.eq.and.s32 %p5, %r6, 6, %p4;
    @%p5 ret;
    mad.lo.s32 %r7, %r6, 40, %r1;
    store %r7;
    add.s32 %r6, %r6, 1;
    setp.lt.s32 %p6, %r6, 10;
    @%p6 bra LOOP;
""",
        _ended,
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_ways_that_part_and_loops(name: str) -> None:
    body, lane = WAYS[name]
    read = run(body)
    assert words_of(read) == right(lane)
    assert read.notes == ()
    # What is summed up of each instruction is what is counted one by one.
    by_site = counted(read)
    for site in read.sites:
        one_by_one = by_site[site.number]
        names = ("requests", "sectors", "lines", "bytes", "distinct_bytes", "width")
        assert [getattr(site, n) for n in names] == [getattr(one_by_one, n) for n in names], site


def test_lines_run_as_often_as_their_warps() -> None:
    """Runs of each line, a warp's in the mean: a warp runs a line where any of its lanes does."""
    read = run(WAYS["two ways that meet again"][0])
    ways = [
        (lane // 32, x + 3 * y, [word // 500 for word in _two_ways(lane, x, y)])
        for y in range(2)
        for x in range(3)
        for lane in range(LANES)
    ]
    stores = [i.row for i in read.entry.instructions if i.name == "st"]
    # The third store, of words from 900 on, is half of the second one's: of CTAs of the second row.
    for row, number in zip(stores, (0, 1, 1, 2), strict=True):
        row_of_ctas = (lambda cta: cta >= 3) if row == stores[2] else (lambda cta: True)
        warps = {(c, w) for w, c, numbers in ways if number in numbers and row_of_ctas(c)}
        in_row = sum(i.row == row for i in read.entry.instructions)  # beside its address
        assert read.runs[row] == pytest.approx(in_row * len(warps) / 12)
    assert read.shares.mean() == pytest.approx(1)


# ---- folds ----

FOLDED = """
    mov.u32 %r6, {first};
    mov.u32 %r5, {other};
LOOP:
    {bend}
    store %r7;
    add.s32 %r6, %r6, {step};
    setp.lt.s32 %p1, %r6, %r9;
    @%p1 bra LOOP;
"""
Number = Callable[[int, int], int]
BENDS: dict[str, tuple[str, Number, int, int]] = {
    # instruction: (its text, what it gives of the loop's number and %r5, %r5, what the number has to move by a multiple
    # of so that the result moves evenly; 0: by nothing)
    "and a mask": ("and.b32 %r7, %r6, %r5;", lambda i, c: i & c, 12, 16),
    "a mask and": ("and.b32 %r7, %r5, %r6;", lambda i, c: i & c, 12, 16),
    "and a mask of high bits": ("and.b32 %r7, %r6, %r5;", lambda i, c: i & c, -8, 8),
    "and a negative number that is no mask": ("and.b32 %r7, %r6, %r5;", lambda i, c: i & c, -6, 0),
    "or": ("or.b32 %r7, %r6, %r5;", lambda i, c: i | c, 5, 8),
    "or with nothing": ("or.b32 %r7, %r6, %r5;", lambda i, c: i | c, 0, 1),
    "or a negative number": ("or.b32 %r7, %r6, %r5;", lambda i, c: i | c, -4, 0),
    "exclusive or": ("xor.b32 %r7, %r5, %r6;", lambda i, c: i ^ c, 3, 4),
    "shift to the right": ("shr.u32 %r7, %r6, %r5;", lambda i, c: i >> c, 2, 4),
    "shift to the right by nothing": ("shr.u32 %r7, %r6, %r5;", lambda i, c: i >> c, 0, 1),
    "a number shifted by": ("shr.u32 %r7, %r5, %r6;", lambda i, c: c >> min(i, 32), 4000, 0),
    "quotient": ("div.u32 %r7, %r6, %r5;", lambda i, c: i // c, 6, 6),
    "rest": ("rem.u32 %r7, %r6, %r5;", lambda i, c: i % c, 6, 6),
    "rest of": ("add.s32 %r8, %r6, 1; rem.u32 %r7, %r5, %r8;", lambda i, c: c % (i + 1), 999, 0),
    "product": ("mul.lo.s32 %r7, %r6, %r5;", lambda i, c: i * c, 6, 1),
    "square": ("mul.lo.s32 %r7, %r6, %r6;", lambda i, c: i * i, 6, 0),
    "shift to the left": ("shl.b32 %r7, %r6, %r5;", lambda i, c: i << c, 2, 1),
    "shifted to the left by": (
        "and.b32 %r8, %r6, 7; shl.b32 %r7, %r5, %r8;",
        lambda i, c: c << (i & 7),
        3,
        8,
    ),
    "bits counted": ("popc.b32 %r7, %r6;", lambda i, c: i.bit_count(), 0, 0),
    "a number that stands": ("popc.b32 %r8, %r5; add.s32 %r7, %r8, %r6;", lambda i, c: i + 2, 5, 1),
}


@pytest.mark.parametrize("step", [1, 3, 4, 6, 16])
@pytest.mark.parametrize("name", BENDS)
def test_trips_are_folded_where_their_results_move_evenly(name: str, step: int) -> None:
    """Whether folded or not, words are the right ones. Trips repeat, maybe several of them together, where the loop's
    number moves by a multiple of what the operation bends at: then three times the trips are executed no longer."""
    bend, number, other, grain = BENDS[name]
    body = FOLDED.format(first=0, other=other, bend=bend, step=step)
    trips = 24
    read = run(body, lanes=1, grid=(1,), n=trips * step)
    assert words_of(read) == Counter((0, number(step * i, other)) for i in range(trips))
    period = next((p for p in range(1, 9) if grain and p * step % grain == 0), None)
    long = run(body, lanes=1, grid=(1,), n=3 * trips * step)
    is_folded = long.traces[0].executed == read.traces[0].executed
    evens = {number(step * (i + 1), other) - number(step * i, other) for i in range(3 * trips)}
    if period is not None:
        assert is_folded
    elif len(evens) > 1:
        assert not is_folded


@pytest.mark.parametrize("period", [1, 2, 3, 7, 8, 9, 11])
@pytest.mark.parametrize("way", ["rest", "counter"])
def test_trips_that_repeat_after_several_others(way: str, period: int) -> None:
    """A buffer whose parts take turns: up to eight of them repeat together. A counter that is set back is followed as
    well, if not always folded."""
    next_part = {
        "rest": f"rem.u32 %r5, %r6, {period};",
        "counter": f"setp.eq.s32 %p2, %r5, {period}; selp.b32 %r5, 0, %r5, %p2;",
    }[way]
    body = f"""
    mov.u32 %r6, 0;
    mov.u32 %r5, 0;
LOOP:
    mad.lo.s32 %r7, %r5, 100, %r6;
    store %r7;
    add.s32 %r5, %r5, 1;
    add.s32 %r6, %r6, 1;
    {next_part}
    setp.lt.s32 %p1, %r6, %r9;
    @%p1 bra LOOP;
"""
    read, long = (run(body, lanes=1, grid=(1,), n=n) for n in (60, 60 + 20 * period))
    assert words_of(read) == Counter((0, i % period * 100 + i) for i in range(60))
    if way == "rest":
        is_folded = long.traces[0].executed == read.traces[0].executed
        assert is_folded == (period <= 8)


def test_a_loop_in_which_nothing_is_touched_leaves_no_fold() -> None:
    body = "mov.u32 %r6, 0; LOOP: add.s32 %r6, %r6, 1; setp.lt.s32 %p1, %r6, %r9; @%p1 bra LOOP; store %r6;"
    read = run(body, n=500)
    assert words_of(read) == right(one(lambda *_: 500))
    assert [type(node).__name__ for node in read.traces[0].nodes].count("Fold") == 1
    assert any(isinstance(node, Fold) for node in read.traces[0].nodes)


def test_a_loop_without_an_end_is_named() -> None:
    body = "mov.u32 %r6, 0; LOOP: store %r1; setp.ge.s32 %p1, %r6, 0; @%p1 bra LOOP;"
    with pytest.raises(InputError, match="has a loop without an end"):
        run(body)


# ---- where it lies, and what it does ----


def test_generic_addresses_of_shared_and_local_memory() -> None:
    body = """
    mov.u64 %rd10, __local_depot0;
    cvta.local.u64 %rd11, %rd10;
    mad.wide.u32 %rd12, %r1, 4, %rd11;
    st.u32 [%rd12], %r1;
    ld.local.u32 %r50, [%rd10+4];
    mov.u64 %rd20, tile;
    cvta.shared.u64 %rd21, %rd20;
    st.u32 [%rd21], %r1;
    mad.wide.u32 %rd22, %r1, 8, %rd21;
    st.u32 [%rd22+8], %r1;
    cvta.to.shared.u64 %rd23, %rd22;
    ld.shared.u32 %r51, [%rd23];
    cvta.shared::cta.u64 %rd26, %rd20;
    ld.u32 %r51, [%rd26+12];
    cvta.to.global.u64 %rd24, %rd1;
    cvta.global.u64 %rd25, %rd24;
    ld.u32 %r52, [%rd25];
    ld.const.u32 %r53, [%rd25];
"""
    read = run(body)
    assert [(site.space, site.mode) for site in read.sites] == [
        (LOCAL, Mode.STORE),
        (LOCAL, Mode.LOAD),
        (SHARED, Mode.STORE),
        (SHARED, Mode.STORE),
        (SHARED, Mode.LOAD),
        (SHARED, Mode.LOAD),
        ("global", Mode.LOAD),
        ("const", Mode.LOAD),
    ]
    # 40 lanes that are 8 bytes apart: of a full warp two lanes ask each second bank, the other warp has 8 lanes.
    assert [site.wavefronts / 6 for site in read.sites if site.space == SHARED] == [2, 3, 3, 2]
    assert read.notes == ()


COPIES: dict[str, tuple[str, list[tuple[Mode, int]], str]] = {
    # instruction: (its text, (way, bytes asked for by a CTA) of the accesses it makes to global memory, what is said)
    "16 bytes a lane": (
        "cp.async.cg.shared.global [%r90], [%rd3], 16;",
        [(Mode.LOAD, 16 * LANES)],
        "",
    ),
    "4 bytes a lane": (
        "cp.async.ca.shared.global [%r90], [%rd3], 4;",
        [(Mode.LOAD, 4 * LANES)],
        "",
    ),
    "some lanes fill with zeros": (
        "setp.lt.s32 %p1, %r1, 10; selp.b32 %r5, 16, 0, %p1; cp.async.cg.shared.global [%r90], [%rd3], 16, %r5;",
        [(Mode.LOAD, 16 * 10)],
        "",
    ),
    "all lanes fill with zeros": (
        "mov.u32 %r5, 0; cp.async.cg.shared.global [%r90], [%rd3], 16, %r5;",
        [],
        "",
    ),
    "nobody knows which lanes fill with zeros": (
        "cp.async.cg.shared.global [%r90], [%rd3], 16, %r88;",
        [(Mode.LOAD, 16 * LANES)],
        "",
    ),
    "a size that is not known is 16": (
        "cp.async.cg.shared.global [%r90], [%rd3], %r88;",
        [(Mode.LOAD, 16 * LANES)],
        "",
    ),
    "a group is closed": ("cp.async.commit_group; cp.async.wait_group 0;", [], ""),
    "a bulk load": (
        "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r90], [%rd1], 2048, [%r91];",
        [(Mode.LOAD, 2048)],
        "",
    ),
    "a bulk store": (
        "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r90], 1024;",
        [(Mode.STORE, 1024)],
        "",
    ),
    "a bulk sum": (
        "@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r90], 512;",
        [(Mode.REDUCE, 512)],
        "",
    ),
    "a bulk load between CTAs": (
        "@%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r90], [%r91], 2048, [%r92];",
        [],
        "",
    ),
    "a bulk group is closed": ("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;", [], ""),
    "a bulk prefetch": ("@%p0 cp.async.bulk.prefetch.L2.global [%rd1], 2048;", [], ""),
    "a bulk load of a size that is not known": (
        "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r90], [%rd1], %r88, [%r91];",
        [],
        "a bulk copy of a size that was loaded",
    ),
    "a tensor's map": (
        "@%p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r90], [%rd1, {%r1, %r2}], [%r91];",
        [],
        "copies by tensor maps (TMA) are not counted",
    ),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_into_and_out_of_shared_memory(name: str) -> None:
    copy, accesses, note = COPIES[name]
    ready = (
        "mov.u32 %r90, tile; mov.u32 %r91, tile; mov.u32 %r92, tile; mad.wide.u32 %rd3, %r1, 16, %rd1; "
        "setp.eq.s32 %p0, %r1, 0; "
    )
    read = run(ready + copy)
    to_global = [(s.mode, s.bytes // read.ctas) for s in read.sites if s.space == "global"]
    assert to_global == accesses
    assert [sentence.startswith(note) for sentence in read.notes] == ([True] if note else [])


def test_parameters_of_a_call_are_no_memory() -> None:
    body = "{ .param .b32 param0; st.param.b32 [param0+0], %r1; ld.param.b32 %r4, [param0+0]; }"
    read = run(body)
    assert (read.sites, read.notes) == ((), ())


def test_bytes_that_lanes_share_are_counted_once() -> None:
    """Words two bytes apart overlap: of two lanes' 8 bytes six are distinct."""
    body = "and.b32 %r4, %r1, 1; mad.wide.u32 %rd5, %r4, 2, %rd1; ld.global.u32 %r5, [%rd5];"
    (site,) = run(body, lanes=2, grid=(1,)).sites
    assert (site.bytes, site.distinct_bytes) == (8, 6)


@pytest.mark.parametrize(("lanes", "is_taken"), [(1024, True), (1025, False)])
def test_threads_of_a_cta(lanes: int, is_taken: bool) -> None:
    if is_taken:
        assert run("store %r1;", lanes=lanes, grid=(1,)).sites[0].requests == 32
        return
    with pytest.raises(InputError, match="has 1025 threads"):
        run("store %r1;", lanes=lanes)


@pytest.mark.parametrize("grid", [(), (0,), (1, 1, 0), (1, 1, 1, 1)])
def test_grids_that_are_none(grid: Any) -> None:
    with pytest.raises(InputError, match="accepted: one to three whole numbers from 1"):
        run("store %r1;", grid=grid)


def test_atomics_and_reductions_pass_l1_by() -> None:
    body = """
    atom.global.add.u32 %r4, [%rd1], 1;
    red.global.add.u32 [%rd1], 1;
    ld.global.u32 %r5, [%rd1];
    ld.global.cg.u32 %r5, [%rd1];
    ld.volatile.global.u32 %r5, [%rd1];
    cp.async.ca.shared.global [%r90], [%rd1], 4;
    cp.async.cg.shared.global [%r90], [%rd1], 16;
    st.global.u32 [%rd1], %r5;
"""
    read = run("mov.u32 %r90, tile;" + body)
    to_global = [(s.mode, s.through_l1) for s in read.sites if s.space == "global"]
    assert to_global == [
        (Mode.REDUCE, False),
        (Mode.REDUCE, False),
        (Mode.LOAD, True),
        (Mode.LOAD, False),
        (Mode.LOAD, False),
        (Mode.LOAD, True),
        (Mode.LOAD, False),
        (Mode.STORE, False),
    ]
