"""What PTX's integer and predicate instructions do to known values; all others give what is not known.

Sources: PTX ISA 9.0, chapter 9.7 (integer arithmetic, comparison, logic and shift, data movement).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from iosim.base.records import dataclass
from iosim.code.ptx_values import (
    Array,
    Known,
    Split,
    Value,
    bounds,
    disjoint,
    fitted,
    is_one,
    number,
    plus,
    shrunk,
    signed,
    times,
    unsigned,
    whole,
)

KIND = re.compile(r"(b|s|u|f|bf|tf|e4m3|e5m2)(\d+)(x2|x4)?")
FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64", "tf32")


@dataclass(frozen=True)
class Kind:
    """The type of an instruction: its letter and bits."""

    letter: str
    bits: int


def kind_of(opcode: tuple[str, ...]) -> Kind:
    """The last integer type of an opcode; of 32 untyped bits where there is none."""
    for part in reversed(opcode[1:]):
        match = KIND.fullmatch(part)
        if match is not None and match[1] in "bsu":
            return Kind(match[1], int(match[2]))
    return Kind("b", 32)


def is_float(opcode: tuple[str, ...]) -> bool:
    """True where an instruction computes with floating point."""
    return any(part in FLOATS for part in opcode[1:])


def _read(value: Known, kind: Kind) -> Array:
    """Numbers as an instruction of this type reads them."""
    dense = whole(value)
    return signed(dense, kind.bits) if kind.letter == "s" else unsigned(dense, kind.bits)


def _in_range(value: Known, kind: Kind) -> bool:
    """True where the numbers of a register are what an instruction of this type reads."""
    low, high = bounds(value)
    if kind.letter == "s":
        return -(1 << (kind.bits - 1)) <= low and high < 1 << (kind.bits - 1)
    return low >= 0 and (kind.bits >= 64 or high < 1 << kind.bits)


def _source(value: Known, kind: Kind) -> Known:
    return value if _in_range(value, kind) else _read(value, kind)


def add(a: Known, b: Known, kind: Kind) -> Known:
    return fitted(plus(a, b), kind.bits)


def sub(a: Known, b: Known, kind: Kind) -> Known:
    return fitted(plus(a, b, -1), kind.bits)


def mul_lo(a: Known, b: Known, kind: Kind) -> Known:
    return fitted(times(a, b), kind.bits)


def mul_wide(a: Known, b: Known, kind: Kind) -> Known:
    return times(_source(a, kind), _source(b, kind))


def mul_hi(a: Known, b: Known, kind: Kind) -> Known:
    if kind.bits >= 64:
        x, y = (np.asarray(_read(v, kind), dtype=object) for v in (a, b))
        if kind.letter != "s":
            x, y = x % (1 << 64), y % (1 << 64)
        # NumPy has no product of 128 bits: Python's whole numbers are taken, and cut to the high half.
        high = (x * y) >> 64
        return np.asarray(((high + (1 << 63)) % (1 << 64)) - (1 << 63), dtype=np.int64)
    return signed((_read(a, kind) * _read(b, kind)) >> kind.bits, kind.bits)


def shl(a: Known, b: Known, kind: Kind) -> Known:
    if is_one(b):
        # A shift by one number is a product, which keeps sums of a row and a column apart.
        count = int(whole(b).item())
        return number(0) if not 0 <= count < kind.bits else mul_lo(a, number(1 << count), kind)
    count_of = whole(b)
    shifted: Array = np.where(
        count_of < kind.bits, whole(a) << np.minimum(count_of, kind.bits - 1), 0
    )
    return signed(shifted, kind.bits)


def shr(a: Known, b: Known, kind: Kind) -> Known:
    count = unsigned(whole(b), 32)
    # NumPy shifts by 63 at most: what is shifted out whole is 0, or all sign.
    within = np.minimum(count, 63)
    if kind.letter != "s" and kind.bits >= 64:
        shifted = (whole(a).view(np.uint64) >> within.astype(np.uint64)).view(np.int64)
        return np.where(count < kind.bits, shifted, 0)
    return signed(_read(a, kind) >> within, kind.bits)


def and_(a: Known, b: Known, kind: Kind) -> Known:
    return signed(whole(a) & whole(b), kind.bits)


def or_(a: Known, b: Known, kind: Kind) -> Known:
    return add(a, b, kind) if disjoint(a, b) else signed(whole(a) | whole(b), kind.bits)


def xor(a: Known, b: Known, kind: Kind) -> Known:
    return add(a, b, kind) if disjoint(a, b) else signed(whole(a) ^ whole(b), kind.bits)


def _quotient(a: Known, b: Known, kind: Kind) -> tuple[Array, Array, Array]:
    """(dividend, divisor, quotient toward zero); a division by 0 gives all bits."""
    x, y = _read(a, kind), _read(b, kind)
    safe = np.where(y == 0, 1, y)
    if kind.letter != "s" and kind.bits >= 64:
        quotient = (x.view(np.uint64) // safe.view(np.uint64)).view(np.int64)
    else:
        # NumPy's quotient is floored: one less than the truncated one where signs differ and a rest is left.
        floored = x // safe
        quotient = floored + ((floored * safe != x) & ((x < 0) != (safe < 0)))
    return x, y, np.where(y == 0, -1, quotient)


def div(a: Known, b: Known, kind: Kind) -> Known:
    return signed(_quotient(a, b, kind)[2], kind.bits)


def rem(a: Known, b: Known, kind: Kind) -> Known:
    x, y, quotient = _quotient(a, b, kind)
    return signed(np.where(y == 0, x, x - quotient * y), kind.bits)


def _pick(a: Known, b: Known, kind: Kind, least: bool) -> Known:
    x, y = _ordered(a, kind), _ordered(b, kind)
    return np.where((x < y) == least, whole(a), whole(b))


def _ordered(value: Known, kind: Kind) -> Array:
    """Numbers that compare as those of this type do."""
    dense = _read(value, kind)
    if kind.letter != "s" and kind.bits >= 64 and bounds(dense)[0] < 0:
        return dense.view(np.uint64)
    return dense


def minimum(a: Known, b: Known, kind: Kind) -> Known:
    return _pick(a, b, kind, True)


def maximum(a: Known, b: Known, kind: Kind) -> Known:
    return _pick(a, b, kind, False)


TWO: dict[str, Callable[[Known, Known, Kind], Known]] = {
    "add": add,
    "sub": sub,
    "shl": shl,
    "shr": shr,
    "and": and_,
    "or": or_,
    "xor": xor,
    "div": div,
    "rem": rem,
    "min": minimum,
    "max": maximum,
}


def multiply(opcode: tuple[str, ...], a: Known, b: Known) -> Known:
    kind = kind_of(opcode)
    if "wide" in opcode:
        return mul_wide(a, b, kind)
    if opcode[0].endswith("24"):
        narrow = Kind(kind.letter, 24)
        # mul24 takes the low 24 bits of both and gives the low or the high 32 of 48.
        product = times(_source(a, narrow), _source(b, narrow))  # of 48 bits
        return signed(whole(product) >> 16, 32) if "hi" in opcode else fitted(product, 32)
    if "hi" in opcode:
        return mul_hi(a, b, kind)
    return mul_lo(a, b, kind)


COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
ORDERS = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def compare(word: str, a: Known, b: Known, kind: Kind) -> Array:
    """Predicates of a comparison, in as few numbers as they take."""
    x, y = _source(a, kind), _source(b, kind)
    shared = _compare_ends(word, x, y)
    if shared is not None:
        return shrunk(shared)
    return shrunk(COMPARISONS[word](_ordered(x, kind), _ordered(y, kind)))


def _compare_ends(word: str, a: Known, b: Known) -> Array | None:
    """A predicate a CTA, where the least and the most of its lanes agree; None where they do not, or need not."""
    if word in ("eq", "ne") or not isinstance(difference := plus(a, b, -1), Split):
        return None
    # A CTA's lanes lie between its least and its largest difference: where both ends agree, all do.
    of = COMPARISONS[word]
    zero = np.zeros(1, dtype=np.int64)
    low, high = (
        of(difference.cta + end, zero) for end in (difference.lane.min(), difference.lane.max())
    )
    return low if np.array_equal(low, high) else None


def _low_bits(count: Array) -> Array:
    """Masks of so many low bits, of 64 all."""
    ones = np.uint64(0xFFFFFFFFFFFFFFFF)
    mask = np.where(count > 0, ones >> (64 - np.clip(count, 1, 64)).astype(np.uint64), np.uint64(0))
    return mask.view(np.int64)


def bit_field(a: Known, start: Known, length: Known, kind: Kind) -> Known:
    """bfe: a field of bits, of signed types with its sign, which also stands for bits beyond the number's own."""
    at, count = whole(start) & 255, whole(length) & 255
    if kind.letter != "s":
        return and_(shr(a, at, kind), _low_bits(count), kind)
    # Shifted right with its sign, a number has copies of its sign beyond its bits; the field's sign is
    # its last bit, or the number's where the field reaches past it.
    shifted = whole(shr(a, at, kind))
    sign = shifted >> np.clip(count - 1, 0, kind.bits - 1) & 1
    field = (shifted & _low_bits(count)) | np.where(sign == 1, ~_low_bits(count), 0)
    return signed(np.where(count > 0, field, 0), kind.bits)


def insert(value: Known, into: Known, start: Known, length: Known, kind: Kind) -> Known:
    """bfi: low bits of one number in the place of a field of another."""
    at, count = whole(start) & 255, whole(length) & 255
    within = np.minimum(at, 63)
    mask = np.where(at < kind.bits, _low_bits(count) << within, 0)
    return signed((whole(into) & ~mask) | ((whole(value) << within) & mask), kind.bits)


def logic(a: Known, b: Known, c: Known, table: int) -> Known:
    """lop3: a function of three bits, by its table."""
    x, y, z = (whole(v) for v in (a, b, c))
    # Each set bit of the table is one combination of the three bits that gives 1 (PTX ISA, lop3).
    result = np.zeros(np.broadcast_shapes(x.shape, y.shape, z.shape), dtype=np.int64)
    for row in range(8):
        if table >> row & 1:
            result = result | (
                (x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z)
            )
    return signed(result, 32)


def permute(a: Known, b: Known, selector: Known) -> Value:
    """prmt in its plain mode: bytes of two words, picked."""
    if not is_one(selector):
        return None
    picks, both = int(whole(selector).item()), unsigned(whole(a), 32) | unsigned(whole(b), 32) << 32
    result = np.zeros(both.shape, dtype=np.int64)
    for place in range(4):
        # Four bits a byte of the result: three name one of eight bytes, the fourth takes its sign alone.
        pick = picks >> (4 * place) & 15
        byte = both >> (8 * (pick & 7)) & 255
        if pick & 8:
            byte = np.where(byte & 128, 255, 0)
        result = result | byte << (8 * place)
    return signed(result, 32)


def convert(opcode: tuple[str, ...], value: Known) -> Value:
    """cvt between whole numbers: the source's low bits, cut to the destination's."""
    kinds = [KIND.fullmatch(part) for part in opcode[1:]]
    named = [match for match in kinds if match is not None]
    if len(named) != 2 or any(match[1] not in "bsu" for match in named):
        return None
    to, source = (Kind(match[1], int(match[2])) for match in named)
    read = _source(value, source)
    if "sat" in opcode:
        return None
    return fitted(read, to.bits) if to.bits < 64 else read


def funnel(opcode: tuple[str, ...], a: Known, b: Known, c: Known) -> Known:
    """shf: two words shifted together."""
    both = unsigned(whole(a), 32) | whole(b) << 32
    by = unsigned(whole(c), 32)
    # The register pair is one number of 64 bits; a shift left by n is one right by 32 - n.
    by = np.minimum(by, 32) if "clamp" in opcode else by & 31
    if "l" in opcode:
        return signed((both.view(np.uint64) >> (32 - by).astype(np.uint64)).view(np.int64), 32)
    return signed((both.view(np.uint64) >> by.astype(np.uint64)).view(np.int64), 32)


def _each_of(a: Known, kind: Kind, count: Callable[[int], int]) -> Array:
    """A number of each register's bits, which are read without a sign."""
    of_bits = np.vectorize(lambda n: count(int(n) % (1 << kind.bits)), otypes=[np.int64])
    return np.asarray(of_bits(whole(a)), dtype=np.int64)


def count_bits(a: Known, kind: Kind) -> Known:
    return _each_of(a, kind, int.bit_count)


def leading_zeros(a: Known, kind: Kind) -> Known:
    return _each_of(a, kind, lambda n: kind.bits - n.bit_length())


def absolute(a: Known, kind: Kind) -> Known:
    return signed(np.abs(_read(a, kind)), kind.bits)
