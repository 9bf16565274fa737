"""PTX's integer instructions against Python's integers, which know no width: each of them on ends of its range and on
numbers drawn at random, lane by lane and for all lanes at once.

Source of what each gives: PTX ISA 9.0, chapters 9.7.1 (integer arithmetic), 9.7.6 (comparison) and 9.7.8 (logic).
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from iosim.code.ptx import entries
from iosim.code.ptx_lanes import ALL, Settings
from iosim.code.ptx_run import Run
from iosim.code.ptx_values import Split, plus, times, whole

DRAWS = 60
Function = Callable[..., int]


def signed(n: int, bits: int) -> int:
    return (n + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def unsigned(n: int, bits: int) -> int:
    return n % (1 << bits)


def read(kind: str, n: int) -> int:
    """A register as an instruction of this type reads it."""
    return (signed if kind[0] == "s" else unsigned)(n, int(kind[1:]))


def toward_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def field(kind: str, a: int, start: int, length: int) -> int:
    """bfe: bits beyond the number's own are copies of the field's sign."""
    bits = int(kind[1:])
    start = start & 255
    length = length & 255
    last = min(start + length - 1, bits - 1)
    sign = 0 if kind[0] == "u" or length == 0 else unsigned(a, bits) >> last & 1
    return sum(
        ((unsigned(a, bits) >> start + n & 1) if start + n < bits else sign) << n
        if n < length
        else sign << n
        for n in range(bits)
    )


def inserted(kind: str, value: int, into: int, start: int, length: int) -> int:
    bits = int(kind[1:])
    start = start & 255
    length = length & 255
    for n in range(length):
        if start + n < bits:
            into = into & ~(1 << start + n) | (value >> n & 1) << start + n
    return into


def bytes_picked(a: int, b: int, picks: int) -> int:
    both = unsigned(a, 32) | unsigned(b, 32) << 32
    picked = 0
    for place in range(4):
        pick = picks >> 4 * place & 15
        byte = both >> 8 * (pick & 7) & 255
        picked |= (
            (255 if byte & 128 else 0 if pick & 8 else byte) << 8 * place
            if pick & 8
            else (byte << 8 * place)
        )
    return picked


def funnel(shifts_left: bool, clamp: bool, a: int, b: int, by: int) -> int:
    by = min(unsigned(by, 32), 32) if clamp else by & 31
    both = unsigned(a, 32) | unsigned(b, 32) << 32
    return both << by >> 32 if shifts_left else both >> by


ARITHMETIC: dict[str, Function] = {
    "add": lambda kind, a, b: a + b,
    "sub": lambda kind, a, b: a - b,
    "mul.lo": lambda kind, a, b: a * b,
    "mul.hi": lambda kind, a, b: read(kind, a) * read(kind, b) >> int(kind[1:]),
    "div": lambda kind, a, b: toward_zero(read(kind, a), read(kind, b) or 1),
    "rem": lambda kind, a, b: (
        read(kind, a) - toward_zero(read(kind, a), read(kind, b) or 1) * (read(kind, b) or 1)
    ),
    "min": lambda kind, a, b: min(read(kind, a), read(kind, b)),
    "max": lambda kind, a, b: max(read(kind, a), read(kind, b)),
}
LOGIC: dict[str, Function] = {
    "and": lambda kind, a, b: a & b,
    "or": lambda kind, a, b: a | b,
    "xor": lambda kind, a, b: a ^ b,
    "not": lambda kind, a: ~a,
    "shl": lambda kind, a, b: a << min(unsigned(b, 32), 64),
}
OTHERS: dict[str, tuple[str, int, Function]] = {
    # instruction: (type of its result, operands, what it gives)
    "neg.s32": ("s32", 1, lambda a: -a),
    "abs.s32": ("s32", 1, abs),
    "abs.s64": ("s64", 1, abs),
    "mad.lo.s32": ("s32", 3, lambda a, b, c: a * b + c),
    "mul.wide.s32": ("s64", 2, lambda a, b: a * b),
    "mul.wide.u32": ("s64", 2, lambda a, b: unsigned(a, 32) * unsigned(b, 32)),
    "mad.wide.s32": ("s64", 3, lambda a, b, c: a * b + c),
    "mul24.lo.s32": ("s32", 2, lambda a, b: signed(a, 24) * signed(b, 24)),
    "mul24.hi.u32": ("u32", 2, lambda a, b: unsigned(a, 24) * unsigned(b, 24) >> 16),
    "mad24.lo.u32": ("u32", 3, lambda a, b, c: unsigned(a, 24) * unsigned(b, 24) + c),
    "cvt.s64.s32": ("s64", 1, lambda a: a),
    "cvt.u64.u32": ("u64", 1, lambda a: unsigned(a, 32)),
    "cvt.s32.s64": ("s32", 1, lambda a: a),
    "cvt.u32.u16": ("u32", 1, lambda a: unsigned(a, 16)),
    "cvt.s32.s8": ("s32", 1, lambda a: signed(a, 8)),
    "popc.b32": ("u32", 1, lambda a: unsigned(a, 32).bit_count()),
    "popc.b64": ("u32", 1, lambda a: unsigned(a, 64).bit_count()),
    "clz.b32": ("u32", 1, lambda a: 32 - unsigned(a, 32).bit_length()),
    "clz.b64": ("u32", 1, lambda a: 64 - unsigned(a, 64).bit_length()),
    "shf.l.wrap.b32": ("b32", 3, lambda a, b, c: funnel(True, False, a, b, c)),
    "shf.l.clamp.b32": ("b32", 3, lambda a, b, c: funnel(True, True, a, b, c)),
    "shf.r.wrap.b32": ("b32", 3, lambda a, b, c: funnel(False, False, a, b, c)),
    "shf.r.clamp.b32": ("b32", 3, lambda a, b, c: funnel(False, True, a, b, c)),
    **{
        f"{name}.{kind}": (kind, 2, lambda *v, f=f, kind=kind: f(kind, *v))
        for name, f in ARITHMETIC.items()
        for kind in ("s32", "u32", "s64", "u64")
    },
    **{
        f"{name}.{kind}": (kind, 1 if name == "not" else 2, lambda *v, f=f, kind=kind: f(kind, *v))
        for name, f in LOGIC.items()
        for kind in ("b32", "b64")
    },
    **{
        f"shr.{kind}": (kind, 2, lambda a, b, kind=kind: read(kind, a) >> min(unsigned(b, 32), 64))
        for kind in ("s32", "u32", "s64", "u64")
    },
    **{
        f"bfe.{kind}": (kind, 3, lambda *v, kind=kind: field(kind, *v))
        for kind in ("s32", "u32", "s64", "u64")
    },
    **{
        f"bfi.{kind}": (kind, 4, lambda *v, kind=kind: inserted(kind, *v))
        for kind in ("b32", "b64")
    },
}
SMALL_LAST = ("shl", "shr", "shf", "bfe", "bfi")
"""Instructions whose last operands are numbers of bits."""


def numbers(name: str, operands: int, bits: int, draw: random.Random) -> list[list[int]]:
    """A list of lanes' numbers for each operand: ends of the range, small numbers, and others."""
    ends = [0, 1, -1, 2, 31, 32, (1 << bits - 1) - 1, -(1 << bits - 1), 0x5A5A, -0x1234]
    columns = [
        [
            draw.choice(ends) if draw.random() < 0.5 else signed(draw.getrandbits(bits), bits)
            for _ in range(DRAWS)
        ]
        for _ in range(operands)
    ]
    if name.startswith(SMALL_LAST):
        few = 2 if name.startswith(("bfe", "bfi")) else 1
        # A field may begin at the last bit and be longer than the number.
        columns[-few:] = [
            [draw.choice((0, 1, 5, 16, bits - 1, bits, bits + 3, 200)) for _ in range(DRAWS)]
            for _ in range(few)
        ]
    if name.startswith(("div", "rem")):  # by 0 nothing is said
        columns[-1] = [n or 3 for n in columns[-1]]
    return columns


def evaluated(name: str, columns: list[list[int]]) -> list[int]:
    """What an instruction gives for each lane."""
    names = [f"%v{n}" for n in range(len(columns))]
    text = f"{name} %out, {', '.join(names)}; st.global.b64 [%out], 0; ret;"
    (entry,) = entries(f".visible .entry kernel(.param .u64 x)\n{{\n{text}\n}}\n").values()
    lanes = len(columns[0])
    run = Run(entry, Settings((1, 1, 1), (lanes, 1, 1), {}), np.zeros((1, 3), dtype=np.int64))
    run.registers |= {n: np.array([c], dtype=np.int64) for n, c in zip(names, columns, strict=True)}
    ((_, value), *_) = run._results(0, entry.instructions[0], ALL)
    assert value is not None, run.trace.notes
    return [int(n) for n in np.broadcast_to(whole(value), (1, lanes)).ravel()]


def source_bits(name: str) -> int:
    """Bits of the registers that an instruction reads: of a conversion its last type."""
    return int(name.rsplit(".", 1)[1][1:])


@pytest.mark.parametrize("name", OTHERS)
def test_instructions_give_what_whole_numbers_do(name: str) -> None:
    kind, operands, function = OTHERS[name]
    columns = numbers(name, operands, max(32, source_bits(name)), random.Random(name))
    bits = int(kind[1:])
    # 64 bits without a sign are held as the signed number of the same bits.
    held = [signed(function(*lane), bits) for lane in zip(*columns, strict=True)]
    for lane, n, m in zip(zip(*columns, strict=True), evaluated(name, columns), held, strict=True):
        assert signed(n, bits) == m, (name, lane)


@pytest.mark.parametrize("name", ["shl.b32", "shl.b64", "shr.u32", "shr.s64", "bfe.u32", "bfe.s32"])
def test_numbers_of_bits_that_all_lanes_share(name: str) -> None:
    kind, operands, function = OTHERS[name]
    bits = int(kind[1:])
    draw = random.Random(name)
    for count in (0, 1, 7, bits - 1, bits, bits + 5):
        shared = [[count]] * (operands - 1)
        (column,) = numbers("mov", 1, bits, draw)
        for n in column:
            (got,) = evaluated(name, [[n], *shared])
            assert signed(got, bits) == signed(function(n, *[count] * (operands - 1)), bits)


@pytest.mark.parametrize("table", [0x96, 0xE8, 0xCA, 0x1B])
def test_tables_of_three_bits(table: int) -> None:
    columns = numbers("lop3", 3, 32, random.Random(table))
    got = evaluated("lop3.b32", [*columns, [table]])
    for n, (a, b, c) in zip(got, zip(*columns, strict=True), strict=True):
        bits = ((a >> k & 1) * 4 + (b >> k & 1) * 2 + (c >> k & 1) for k in range(32))
        assert n == signed(sum((table >> row & 1) << k for k, row in enumerate(bits)), 32)


@pytest.mark.parametrize("picks", [0x3210, 0x7654, 0x0123, 0x5410, 0xBA98, 0x0808])
def test_picked_bytes(picks: int) -> None:
    columns = numbers("prmt", 2, 32, random.Random(picks))
    got = evaluated("prmt.b32", [*columns, [picks]])
    for n, (a, b) in zip(got, zip(*columns, strict=True), strict=True):
        assert n == signed(bytes_picked(a, b, picks), 32)


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("word", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(word: str, kind: str) -> None:
    columns = numbers("setp", 2, int(kind[1:]), random.Random(word + kind))
    columns[1][:5] = columns[0][:5]
    got = evaluated(f"setp.{word}.{kind}", columns)
    right = {
        "eq": int.__eq__,
        "ne": int.__ne__,
        "lt": int.__lt__,
        "le": int.__le__,
        "gt": int.__gt__,
        "ge": int.__ge__,
    }[word]
    for n, (a, b) in zip(got, zip(*columns, strict=True), strict=True):
        assert bool(n) == right(read(kind, a), read(kind, b)), (a, b)


@pytest.mark.parametrize("way", ["idx", "bfly", "up", "down"])
def test_lanes_ask_each_other_inside_their_warp(way: str) -> None:
    """A lane that would reach out of its warp has its number again."""
    for by in (0, 1, 5, 16, 31):
        values = [100 + n for n in range(64)]
        got = evaluated(f"shfl.sync.{way}.b32", [values, [by], [31], [-1]])
        for n in range(64):
            place = n % 32
            lane = {"idx": by, "bfly": place ^ by, "up": place - by, "down": place + by}[way]
            assert got[n] == values[n // 32 * 32 + lane if 0 <= lane < 32 else n], (way, by, n)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("shfl.sync.down.b32 %out|%p, %v, 1, 31, -1;", [True] * 64),
        ("elect.sync %out|%p, -1;", [n % 32 == 0 for n in range(64)]),  # a warp's first lane
    ],
)
def test_a_predicate_beside_a_register_is_written_too(text: str, holds: list[bool]) -> None:
    body = f"{text} st.global.b64 [%out], 0; ret;"
    (entry,) = entries(f".visible .entry kernel(.param .u64 x)\n{{\n{body}\n}}\n").values()
    run = Run(entry, Settings((1, 1, 1), (64, 1, 1), {}), np.zeros((1, 3), dtype=np.int64))
    run.registers |= {"%v": np.arange(64)[None, :]}
    results = run._results(0, entry.instructions[0], ALL)
    assert [name for name, _ in results] == ["%out", "%p"]
    predicate = results[1][1]
    assert predicate is not None
    assert [bool(n) for n in np.broadcast_to(whole(predicate), (1, 64)).ravel()] == holds


def test_sums_of_columns_and_rows_are_what_their_whole_is() -> None:
    draw = random.Random(0)

    def some() -> list[int]:
        return [draw.randrange(-50, 50) for _ in range(3)]

    for _ in range(40):
        cta = np.array([some()]).T
        lane = np.array([some()])
        split = Split(cta, lane)
        other = Split(np.array([some()]).T, np.array([some()]))
        matrix = np.array([[draw.randrange(-9, 9)]])
        assert (whole(plus(split, other, -1)) == split.whole - other.whole).all()
        assert (whole(times(split, matrix)) == split.whole * matrix).all()
        assert (whole(times(matrix, split)) == split.whole * matrix).all()
        assert split.bounds() == (split.whole.min(), split.whole.max())
