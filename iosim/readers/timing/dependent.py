"""Cycles of a step that waits for what it computes itself: the sequence of dependent steps that bounds a state's walk.

Loads, products and sums stand one behind the other (`iosim.kernel.work.Dependent`); other CTAs of the SM run beside.
Fitted on every other row of published_linear_attention.csv by `python benchmarks/linear_times.py --fit`.
"""

from __future__ import annotations

from iosim.kernel.work import Dependent

MMA_SYNC_PRODUCT_CYCLES = 600.0
"""Of a product that waits for the one before and hands its result on through shared memory, beside its operations: what
Triton makes of it with mma.sync. Fitted on an L40S."""
WGMMA_PRODUCT_CYCLES = 700.0
"""The same on cc 9.0. Fitted on an H100 and an H200."""
TCGEN05_PRODUCT_CYCLES = 1000.0
"""The same on cc 10, whose results lie in tensor memory. Fitted on Blackwell's four."""
DEPENDENT_SUM_CYCLES = 200.0
"""Of a sum over a CTA's threads that waits for the one before. Fitted on all of these."""
WGMMA_CC, TCGEN05_CC, LATER_CC = 90, 100, 120


def waiting_cycles(dependent: Dependent, rows: int, load_cycles: float, cc: int) -> float:
    """SM cycles in which a step of a CTA waits for its own loads, products and sums, with a block of so many rows."""
    product = MMA_SYNC_PRODUCT_CYCLES
    if WGMMA_CC <= cc < LATER_CC:
        product = WGMMA_PRODUCT_CYCLES if cc < TCGEN05_CC else TCGEN05_PRODUCT_CYCLES
    waits = dependent.loads * load_cycles + dependent.products * product
    return waits + dependent.reductions * rows * DEPENDENT_SUM_CYCLES
