"""What the lanes of an evaluated launch touch, written out one by one, and what is counted of it one by one."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from iosim.code.addresses import Evaluated

Touched = Counter[tuple[int, int, int]]
"""(instruction, CTA, address) -> how often."""
WARP, SECTOR, LINE, BANKS = 32, 32, 128, 32


def executions(evaluated: Evaluated) -> Iterator[tuple[int, int, dict[int, int], int]]:
    """(site, CTA, lane -> address, bytes a lane) of each time that an access is made: folds are written out."""
    before = 0
    for trace in evaluated.traces:
        for access, folds in trace.walk():
            assert access.pattern is not None
            pattern = trace.patterns[access.pattern]
            lanes = np.flatnonzero(pattern.active)
            for n, cta in enumerate(access.ctas):
                counts = [range(int(fold.count[cta])) for fold in folds]
                for trips in itertools.product(*counts):
                    base = access.base[n] + sum(
                        t * s[n] for t, s in zip(trips, access.strides, strict=True)
                    )
                    places = {int(lane): int(base + pattern.offset[lane]) for lane in lanes}
                    yield access.site, before + int(cta), places, pattern.width
        before += trace.ctas


def touched(evaluated: Evaluated) -> Touched:
    """What lanes touch, of the folded trace written out."""
    touches: Touched = Counter()
    for site, cta, places, _ in executions(evaluated):
        for address in places.values():
            touches[site // 2, cta, address] += 1
    return touches


@dataclass
class Counted:
    """A site's sums, byte by byte and bank by bank."""

    requests: int = 0
    sectors: int = 0
    lines: int = 0
    wavefronts: int = 0
    bytes: int = 0
    distinct_bytes: int = 0
    width: int = 0
    last: int = field(default=0)
    """The end of the last byte, from where the first tensor begins."""


def counted(evaluated: Evaluated) -> dict[int, Counted]:
    """The sums of each site of the launch."""
    by_site: dict[int, Counted] = defaultdict(Counted)
    for site, _, places, width in executions(evaluated):
        s = by_site[site]
        by_warp: dict[int, dict[int, int]] = defaultdict(dict)
        for lane, address in places.items():
            by_warp[lane // WARP][lane % WARP] = address
        for lanes in by_warp.values():
            bytes_asked = {byte for at in lanes.values() for byte in range(at, at + width)}
            s.requests += 1
            s.sectors += len({byte // SECTOR for byte in bytes_asked})
            s.lines += len({byte // LINE for byte in bytes_asked})
            s.bytes += len(lanes) * width
            s.distinct_bytes += len(bytes_asked)
            s.wavefronts += _wavefronts(lanes, width)
        s.width = max(s.width, width)
        s.last = max(s.last, max(places.values()) + width)
    return by_site


def _wavefronts(lanes: dict[int, int], width: int) -> int:
    """As many lanes as ask for 128 bytes go together; the bank that is asked for most words decides."""
    together = min(WARP, LINE // width)
    total = 0
    for _, group in itertools.groupby(sorted(lanes), key=lambda lane: lane // together):
        words = {
            word
            for lane in group
            for word in range(lanes[lane] // 4, (lanes[lane] + max(width, 4)) // 4)
        }
        total += max(Counter(word % BANKS for word in words).values())
    return total
