"""Work of two kinds that overlaps in part: t^n = a^n + b^n, where n = 1 is one after the other and infinity the longer
alone.

CTAs of a round start together, so their first loads come in a burst and the units wait; the burst spreads as tiles grow
longer. With one kind of work far longer than the other, the rest is hidden. What the norm adds to the longer kind is a
term: switched off, the longer alone counts.
"""

from __future__ import annotations

from iosim.readers.timing.terms import Scope, term

SPECIALISED_NORM = 1.67
"""How a step's products and its softmax overlap where two warpgroups take turns at the softmax, each behind
its own products (NVIDIA/cudnn-frontend, sdpa/sm90/prefill). Fitted, as the best of 1.5 to 1.7 on odd calls of cuDNN's
forward in the draws, in graphs and under the profiler."""
INDEPENDENT_NORM = 2.0
"""How work of two kinds overlaps of which neither waits for the other: a root of squares, taken as it is."""
OVERLAP_NORM = 2.8
"""How computing and bytes overlap, an SM's at the L2 and a launch's at HBM. Fitted on the odd calls of the draws of
library calls, and on the odd rows that other constants were fitted on."""
SPLIT_OVERLAP_NORM = 4.5
"""How computing and streaming overlap in launches that use each byte once, as split decoding. Fitted."""


def norm_of(reuses: bool) -> float:
    """Norm of computing and streaming: several tiles reuse what they stream, or each byte is used once."""
    return OVERLAP_NORM if reuses else SPLIT_OVERLAP_NORM


def beside(first: float, second: float) -> float:
    """Time of a pass's waits and of its bytes."""
    return max(first, second) + _more(first, second, OVERLAP_NORM)


def beside_others(first: float, second: float) -> float:
    """Time of what one CTA waits for and of the instructions of those beside it."""
    return max(first, second) + _more(first, second, INDEPENDENT_NORM)


def _more(first: float, second: float, norm: float) -> float:
    longest = max(first, second)
    if longest <= 0.0:
        return 0.0
    # (longest^n + shorter^n)^(1/n) - longest, with the longest taken out: no power overflows.
    shorter = max(0.0, min(first, second)) / longest
    return float(longest * ((1.0 + shorter**norm) ** (1 / norm) - 1.0))


@term(
    "softmax beside products",
    Scope.STEP,
    "t^n = products^n + softmax^n with n = SPECIALISED_NORM, less the longer",
    zero="units other than two warpgroups that take turns; backwards, where both add up",
    constants=("SPECIALISED_NORM",),
)
def softmax_that_shows(tensor: float, softmax: float) -> float:
    """Cycles of the shorter of products and softmax that the longer does not hide inside a CTA."""
    return _more(tensor, softmax, SPECIALISED_NORM)


@term(
    "L2 beside computing",
    Scope.STEP,
    "t^n = computing^n + L2^n with n = OVERLAP_NORM, less the longer",
    zero="loops of three buffers and more, warps that load ahead",
    constants=("OVERLAP_NORM",),
)
def l2_that_shows(units: float, l2: float) -> float:
    """Cycles of the shorter of an SM's computing and its bytes at the L2 that the longer does not hide."""
    return _more(units, l2, OVERLAP_NORM)


@term(
    "code fetched again",
    Scope.LAUNCH,
    "t^n = computing^n + code^n with n = OVERLAP_NORM, less the longer",
    zero="kernels whose code an SM holds; tiles that all have as many steps; the first round",
    constants=("OVERLAP_NORM",),
)
def code_that_shows(computing: float, code: float) -> float:
    """Seconds of code that later tiles fetch anew which the computing of the SM's other CTAs does not hide."""
    return _more(computing, code, OVERLAP_NORM)


@term(
    "HBM beside computing",
    Scope.LAUNCH,
    "t^n = computing^n + HBM^n, less the longer; n = OVERLAP_NORM where tiles reuse what they stream, else "
    "SPLIT_OVERLAP_NORM",
    zero="launches without products, that only stream",
    constants=("OVERLAP_NORM", "SPLIT_OVERLAP_NORM"),
)
def stream_that_shows(computing: float, streamed: float, norm: float) -> float:
    """Seconds of the shorter of computing and streaming that the longer does not hide in a launch."""
    return _more(computing, streamed, norm)


def products_beside_softmax(tensor: float, softmax: float) -> float:
    """Cycles of products and softmax of two warpgroups that take turns."""
    return max(tensor, softmax) + softmax_that_shows(tensor, softmax)


def step_beside_l2(units: float, l2: float) -> float:
    """Cycles of an SM's computing and its bytes at the L2."""
    return max(units, l2) + l2_that_shows(units, l2)


def computing_beside_stream(computing: float, streamed: float, norm: float) -> float:
    """Seconds of a launch's computing and of what it streams."""
    return max(computing, streamed) + stream_that_shows(computing, streamed, norm)
