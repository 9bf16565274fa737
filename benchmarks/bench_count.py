"""Time to count the SM<->L2 bytes of long problems: `python benchmarks/bench_count.py`.

Closed forms, so the cost does not grow with the length; a count over all pairs would grow fourfold with each doubling.
Planning the launches is part of the time; resolving the kernel's name is not.
"""

from __future__ import annotations

import statistics
import time

from iosim import AttentionProblem, load_profile, resolve
from iosim.catalog.algorithms import plan
from iosim.readers.formula.closed_form import closed_form

RUNS = 9
LENGTHS = (1 << 17, 1 << 18, 1 << 19, 1 << 20)
CASES = (
    ("fa2", "none", "fwd"),
    ("fa2", "causal", "fwd"),
    ("fa2", "causal", "fwd+bwd"),
    ("fa2", "window", "fwd"),
    ("flash1", "none", "fwd+bwd"),
    ("naive", "none", "fwd+bwd"),
)


def milliseconds(kernel: str, mask: str, passes: str, tokens: int) -> float:
    """Median time of a count."""
    problem = AttentionProblem(
        heads=32,
        kv_heads=8,
        seq_q=tokens,
        head_dim=128,
        mask=mask,
        window=4096 if mask == "window" else None,
        passes=passes,
    )
    chosen = resolve(kernel, problem, load_profile("a100"))
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        closed_form(plan(problem, chosen))
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    heads = " | ".join(f"{n >> 10}k tokens, ms" for n in LENGTHS)
    print(f"| count (median of {RUNS}) | mask | {heads} |")
    print("| --- | --- |" + " ---: |" * len(LENGTHS))
    for kernel, mask, passes in CASES:
        cells = " | ".join(f"{milliseconds(kernel, mask, passes, n):.2f}" for n in LENGTHS)
        print(f"| {kernel} {passes} | {mask} | {cells} |")


if __name__ == "__main__":
    main()
