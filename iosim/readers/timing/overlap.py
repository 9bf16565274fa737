"""Work of several kinds that overlaps in part: computing and streaming of a launch."""

from __future__ import annotations

import math

OVERLAP_NORM = 2.4
"""Computing and streaming of a launch overlap in time t with t^n = a^n + b^n: 1 is one after the other, infinity the
longer alone. Fitted on FlashAttention-3's published forward speeds at 512, 2k and 8k tokens
(`python benchmarks/utilisation_error.py --fit`), when it held for the L2, too. They now ask for 3.8, drawn calls for
2.4 still."""
SPLIT_OVERLAP_NORM = 4.5
"""The same of launches that use each byte once, as split decoding, whose bytes flow evenly. Fitted."""
L2_OVERLAP_NORM = 3.2
"""The same of an SM's computing and its bytes at the L2. Fitted on the odd calls of the draws of library calls, and on
the odd rows that other constants were fitted on."""


def norm_of(reuses: bool) -> float:
    """Of computing and streaming, where several tiles reuse what they stream, or each byte is used once."""
    return (SPLIT_OVERLAP_NORM, OVERLAP_NORM)[reuses]


def beside(*seconds: float, norm: float | None = None) -> float:
    """Seconds of work of several kinds that overlap in part: their norm, the OVERLAP_NORM-norm by default.

    CTAs of a round start together, so their first loads come in a burst and the units wait; the burst spreads as tiles
    grow longer. With one kind of work far longer than the others, the rest is hidden.
    """
    longest = max(seconds, default=0.0)
    if longest <= 0.0:
        return 0.0
    n = norm or OVERLAP_NORM
    return float(longest * math.fsum((s / longest) ** n for s in seconds) ** (1 / n))
