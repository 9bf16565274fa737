"""Cycles of a step that waits for what it computes itself: the sequence of dependent steps that bounds a state's walk.

Loads, products and sums stand one behind the other (`iosim.kernel.work.Dependent`); other CTAs of the SM run beside.
Fitted on every other row of published_linear_attention.csv by `python benchmarks/linear_times.py --fit`.
"""

from __future__ import annotations

from iosim.kernel.work import Dependent

PRODUCT_CYCLES = 900.0
"""Of a product that waits for the one before and hands its result on through shared memory, beside its operations, as
Triton compiles it. Fitted on an L40S, an H100 and an H200."""
TCGEN05_PRODUCT_CYCLES = 1300.0
"""The same on cc 10, where results lie in tensor memory. Fitted on four GPUs."""
SOLVED_ROW_CYCLES = 600.0
"""Of a row of a triangular system: picked out of registers, laid out anew and multiplied, each time a sum over the
CTA's threads. Fitted on all of these."""
TCGEN05_CC = range(100, 120)


def waiting_cycles(dependent: Dependent, tokens: int, load_cycles: float, cc: int) -> float:
    """SM cycles in which a step of a CTA waits for its own loads, products and rows, of which it has as many as the
    launch has `tokens` at most."""
    product = TCGEN05_PRODUCT_CYCLES if cc in TCGEN05_CC else PRODUCT_CYCLES
    waits = dependent.loads * load_cycles + dependent.products * product
    return waits + min(dependent.rows, tokens) * SOLVED_ROW_CYCLES
