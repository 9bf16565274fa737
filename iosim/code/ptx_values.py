"""What a register holds for the lanes of many CTAs at once, in as few numbers as that takes.

A value is an int64 array of shape [CTAs or 1, lanes or 1]: what all lanes of a CTA share is a column, what all CTAs
share a row. An address is most often the sum of a column and a row: `Split` keeps the two apart, so that 4,096 CTAs of
128 lanes cost 4,224 numbers in place of half a million. A register of 32 bits holds them as signed. `None` stands for
what is not known here: floating point, and what is loaded from memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
LIMIT = 1 << 31


class Split:
    """The sum of a column, a number a CTA, and a row, a number a lane."""

    __slots__ = ("cta", "lane")

    def __init__(self, cta: Array, lane: Array) -> None:
        self.cta, self.lane = cta, lane

    @property
    def whole(self) -> Array:
        """The sums themselves, [CTAs, lanes]."""
        total: Array = self.cta + self.lane
        return total

    def bounds(self) -> tuple[int, int]:
        """The least and the most that it holds."""
        return int(self.cta.min()) + int(self.lane.min()), int(self.cta.max()) + int(
            self.lane.max()
        )


Value = Array | Split | None
Known = Array | Split


def number(value: int) -> Array:
    """A number that all lanes share."""
    return np.array([[wrapped(value, 64)]], dtype=np.int64)


def wrapped(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (1 << bits) - half


def whole(value: Known) -> Array:
    return value.whole if isinstance(value, Split) else value


def is_one(value: Known) -> bool:
    """True where all lanes of all CTAs share a value."""
    return not isinstance(value, Split) and value.size == 1


def bounds(value: Known) -> tuple[int, int]:
    if isinstance(value, Split):
        return value.bounds()
    return int(value.min()), int(value.max())


def signed(value: Array, bits: int) -> Array:
    """The low bits of each number, as signed."""
    if bits >= 64:
        return value
    half = 1 << (bits - 1)
    # Two's complement: shifted by half the range, cut, and shifted back.
    result: Array = ((value + half) & ((1 << bits) - 1)) - half
    return result


def unsigned(value: Array, bits: int) -> Array:
    """The low bits of each number, as unsigned; of 64 bits as they are."""
    result: Array = value & ((1 << bits) - 1) if bits < 64 else value
    return result


def fitted(value: Known, bits: int) -> Known:
    """A result in a register of so many bits: sums stay apart where none of them overflows."""
    if bits >= 64:
        return value
    if isinstance(value, Split):
        low, high = value.bounds()
        half = 1 << (bits - 1)
        if -half <= low and high < half:
            return value
        value = value.whole
    return signed(value, bits)


def _parts(value: Known) -> tuple[Array | int, Array | int] | None:
    """A value as a column and a row; None where it is neither, nor their sum."""
    if isinstance(value, Split):
        return value.cta, value.lane
    if value.shape[1] == 1:
        return value, 0
    if value.shape[0] == 1:
        return 0, value
    return None


def _joined(cta: Array | int, lane: Array | int) -> Known:
    if isinstance(lane, int):  # there is none
        assert not isinstance(cta, int)
        return cta
    if isinstance(cta, int):
        return lane
    if cta.size == 1:
        joined: Array = lane + cta
        return joined
    return Split(cta, lane)


def plus(a: Known, b: Known, sign: int = 1) -> Known:
    """a + b, or a - b."""
    x, y = _parts(a), _parts(b)
    if x is None or y is None:
        total: Array = whole(a) + sign * whole(b)
        return total
    return _joined(x[0] + sign * y[0], x[1] + sign * y[1])


def times(a: Known, b: Known) -> Known:
    """a b."""
    for x, y in ((a, b), (b, a)):
        # A sum times one number stays a sum; a product of row and column is a table.
        if isinstance(x, Split) and not isinstance(y, Split) and y.size == 1:
            return _joined(x.cta * y, x.lane * y)
    product: Array = whole(a) * whole(b)
    return product


def disjoint(a: Known, b: Known) -> bool:
    """True where no bit is set in both, so that "or" and "xor" add."""
    if bounds(a)[0] < 0 or bounds(b)[0] < 0:
        return False
    return not _bits(a) & _bits(b)


def _bits(value: Known) -> int:
    """The bits that may be set in some lane of a value from 0."""
    if isinstance(value, Split):
        # Where no bit is set both in a column and in a row their sum sets each of these and no other.
        cta, lane = int(value.cta.min()), int(value.lane.min())
        if cta >= 0 and lane >= 0:
            a, b = (int(np.bitwise_or.reduce(part, axis=None)) for part in (value.cta, value.lane))
            if not a & b:
                return a | b
        return (1 << value.bounds()[1].bit_length()) - 1
    return int(np.bitwise_or.reduce(value, axis=None))


def merged(mask: Array, new: Value, old: Value) -> Value:
    """`new` where the mask holds, else `old`; what is not known counts as new, for no lane reads it."""
    if old is None or new is None or mask.all():
        return new
    if old is new:
        return new
    # Values that differ by CTA alone stay a sum where the mask is by CTA, too.
    apart = isinstance(new, Split) and isinstance(old, Split) and np.array_equal(old.lane, new.lane)
    if apart and mask.shape[1] == 1 and isinstance(new, Split) and isinstance(old, Split):
        return Split(np.where(mask, new.cta, old.cta), new.lane)
    return np.where(mask, whole(new), whole(old))


def shrunk(flags: Array) -> Array:
    """Predicates, or numbers, in as few as they take."""
    if flags.size == 1:
        return flags
    # A table with equal columns is a column, one with equal rows a row.
    if flags.shape[1] > 1 and bool((flags == flags[:, :1]).all()):
        flags = flags[:, :1]
    if flags.shape[0] > 1 and bool((flags == flags[:1]).all()):
        flags = flags[:1]
    return flags


def lanes_of(value: Known, index: Array) -> Known:
    """The value that each lane finds in another lane."""
    if isinstance(value, Split):
        return _joined(value.cta, value.lane[:, index] if value.lane.shape[1] > 1 else value.lane)
    return value[:, index] if value.shape[1] > 1 else value
