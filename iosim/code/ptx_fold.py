"""Trips of a loop that repeat: how many more a CTA makes before anything in it turns out otherwise.

Two spells of trips, of `period` trips each, are held against each other: what registers they hand on, which way each
comparison went, how far its sides were apart. Where all of it moves evenly, so do the trips that follow, up to the
first that would turn a comparison: an exit, a ragged edge, a buffer's wrap. Each CTA has its own number of them.
"""

from __future__ import annotations

import numpy as np

from iosim.base.records import dataclass
from iosim.code.ptx_values import Array, Known, Split, Value, bounds, plus, shrunk, times, whole

ENDLESS = 1 << 40
ABOVE, BELOW, EQUAL = "gt", "lt", "eq"
TURNS = {
    "lt": BELOW,
    "ge": BELOW,
    "lo": BELOW,
    "hs": BELOW,
    "gt": ABOVE,
    "le": ABOVE,
    "hi": ABOVE,
    "ls": ABOVE,
    "eq": EQUAL,
    "ne": EQUAL,
}
"""The comparison whose answer turns where that of another does."""


@dataclass(frozen=True)
class Compared:
    """A comparison as it was made: the difference of its sides and the lanes that made it."""

    site: int
    word: str
    difference: Known
    mask: Array


@dataclass(frozen=True)
class Bent:
    """An operation that is even in no two operands, or bends (`and`, a shift, a quotient), as it was done: a product's
    two factors, else all its operands."""

    site: int
    name: str
    operands: tuple[Known, ...]
    mask: Array


Recorded = Compared | Bent


@dataclass(frozen=True)
class Snapshot:
    """A loop's state as a trip begins: where the trace and the record are, registers, lanes."""

    trace: int
    record: int
    registers: dict[str, Value]
    mask: Array


def steps(old: Snapshot, middle: Snapshot, new: Snapshot) -> dict[str, Known] | None:
    """How far each register moves from spell to spell in lanes that are in the loop still; None where one does not
    move evenly."""
    by_register: dict[str, Known] = {}
    for name, x in new.registers.items():
        # Even movement: the last two differences agree in every lane that is in the loop still. A
        # predicate has no difference, and must be what it was.
        y, z = middle.registers.get(name), old.registers.get(name)
        if x is None or y is None or z is None:
            if x is None and y is None:
                continue
            return None
        if not isinstance(x, Split) and x.dtype == bool:
            if not (_agree(whole(x), whole(y), new.mask) and _agree(whole(y), whole(z), new.mask)):
                return None
            continue
        step = _less(x, y)
        if not _agree(whole(step), whole(_less(y, z)), new.mask):
            return None
        by_register[name] = step
    return by_register


def _less(a: Known, b: Known) -> Known:
    """a - b, in as few numbers as it takes: most often all lanes move alike, and all CTAs."""
    if isinstance(a, Split) and isinstance(b, Split) and np.array_equal(a.lane, b.lane):
        return shrunk(a.cta - b.cta)
    difference = plus(a, b, -1)
    return difference if isinstance(difference, Split) else shrunk(difference)


def _agree(a: Array, b: Array, mask: Array) -> bool:
    return bool(((a == b) | ~mask).all())


def repeats(
    before: list[Recorded], after: list[Recorded], inside: Array, ctas: int
) -> Array | None:
    """Further spells of each CTA, [CTAs, 1], through which no comparison turns; None where the two spells differ, or
    something in them does not move evenly. `inside` are the lanes that are in the loop still."""
    if len(before) != len(after):
        return None
    # Both spells have recorded the same comparisons and operations in the same order, or they were no
    # repetition. The first comparison to turn in any lane of a CTA ends its fold.
    remaining = np.full((ctas, 1), ENDLESS, dtype=np.int64)
    for a, b in zip(before, after, strict=True):
        if a.site != b.site or type(a) is not type(b):
            return None
        if isinstance(a, Compared) and isinstance(b, Compared):
            more = _turns(a, b, inside)
            if more is None:
                return None
            remaining = np.minimum(remaining, more)
        elif isinstance(a, Bent) and isinstance(b, Bent) and not _even(a, b, inside):
            return None
    return remaining


def _turns(a: Compared, b: Compared, inside: Array) -> Array | None:
    """Spells until a comparison turns, by CTA; None where it turned between the two."""
    word, x, y = TURNS[a.word], a.difference, b.difference
    per_turn = _less(y, x)
    mask = b.mask & inside
    # Where all lanes move alike, those with the least and the largest difference turn first: two
    # columns of CTAs are looked at in place of a table of all lanes.
    together = isinstance(per_turn, Split) or per_turn.shape[1] > 1 or mask.shape[1] > 1
    if word is not EQUAL and isinstance(y, Split) and not together:
        least, largest = (y.cta + end for end in (y.lane.min(), y.lane.max()))
        step = whole(per_turn)
        sides = [
            _side(word, difference) for difference in (least, largest, least - step, largest - step)
        ]
        if all(
            _agree(sides[0], side, mask) for side in sides[1:]
        ):  # and so do all lanes between these two
            until = np.minimum(_until(word, least, step), _until(word, largest, step))
            return _fewest(np.where(mask, until, ENDLESS))
    now, then = whole(y), whole(x)
    if not _agree(_side(word, now), _side(word, then), mask):
        return None
    return _fewest(np.where(mask, _until(word, now, whole(per_turn)), ENDLESS))


def _fewest(spells: Array) -> Array:
    """The least of each CTA's lanes, [CTAs, 1]."""
    fewest: Array = spells.min(axis=1, keepdims=True)
    return fewest


def _side(word: str, difference: Array) -> Array:
    sides: Array = (
        difference == 0 if word is EQUAL else difference < 0 if word is BELOW else difference > 0
    )
    return sides


def _until(word: str, difference: Array, step: Array) -> Array:
    """Steps that a difference takes on its side of 0, beyond the present one."""
    difference, step = np.broadcast_arrays(difference, step)
    if word is EQUAL:
        # An equality turns where steps bring the difference to 0 exactly; what is equal turns at once
        # unless it stands still.
        safe = np.where(step == 0, 1, step)
        meets = (difference % safe == 0) & (-difference // safe > 0)
        hits = np.where(meets, -difference // safe - 1, ENDLESS)
        moving = np.where(difference == 0, 0, hits)
        return np.where(step == 0, ENDLESS, moving)
    if word is ABOVE:
        difference, step = -difference, -step
    # Below 0 a difference turns when steps bring it to 0, from 0 up when they bring it below.
    rising = np.where(step > 0, (-difference - 1) // np.where(step > 0, step, 1), ENDLESS)
    falling = np.where(step < 0, difference // np.where(step < 0, -step, 1), ENDLESS)
    return np.where(difference < 0, rising, falling)


def _even(a: Bent, b: Bent, inside: Array) -> bool:
    """True where what an operation gives moves evenly from spell to spell."""
    moves = [whole(_less(new, old)) for new, old in zip(b.operands, a.operands, strict=True)]
    mask = b.mask & inside
    # An operation whose operands stand still gives the same again, whatever it does.
    still = [bool(((step == 0) | ~mask).all()) for step in moves]
    if all(still):
        return True
    if len(moves) != 2:  # of a count of bits, a field or a table of bits nothing more is known
        return False
    of_a, of_b = moves
    if b.name == "mul":
        return any(still)
    if b.name == "shl":
        return still[1]
    if b.name in ("and", "or", "xor") and still[0]:  # they care for no order
        of_a, fixed = of_b, b.operands[0]
    elif still[1]:
        fixed = b.operands[1]
    else:
        return False
    grain = _grain(b.name, fixed)
    return grain > 0 and bool(((of_a % grain == 0) | ~mask).all())


def _grain(name: str, fixed: Known) -> int:
    """What one operand has to move by a multiple of, where the other stays, so that the result moves evenly; 0: by
    nothing."""
    # A bit mask, a shift or a division moves evenly where its input moves by whole multiples of what
    # it cuts off: of 2^bits of a mask from 0, of the lowest bit of a mask such as -16, of a divisor.
    low, high = bounds(fixed)
    if name in ("or", "xor"):
        return 1 << high.bit_length() if low >= 0 else 0
    if name == "and":
        if low >= 0:
            return 1 << high.bit_length()
        return low & -low if low == high and (low & -low) == -low else 0
    if low != high:
        return 0
    if name == "shr":
        return 1 << low if 0 <= low < 63 else 0
    return abs(low) if name in ("div", "rem") else 0


def advanced(value: Value, step: Known | None, spells: Array) -> Value:
    """A register after so many further spells."""
    if value is None or step is None:
        return value
    return plus(value, times(shrunk(spells), step))
