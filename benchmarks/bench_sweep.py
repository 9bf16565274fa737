"""Speed of closed-form sweeps: prints a Markdown table, one row a kernel and mask.

Run with `python benchmarks/bench_sweep.py [combinations]`. Every combination has a query length, a key length, a
head_dim, a block_q and a block_k of its own, drawn at random ("random"), or powers of two and multiples of 16
("usual").
One core: NumPy's elementwise loops use one.
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

from iosim.kernel.kernel import Kernel, Tile
from iosim.problem.attention import AttentionProblem
from iosim.readers.formula.sweeps import sweep

REPEATS = 3


def sizes(n: int, usual: bool) -> dict[str, np.ndarray]:
    """n combinations."""
    rng = np.random.default_rng(0)
    if usual:
        return {
            "seq_q": 1 << rng.integers(7, 21, n), "seq_k": 1 << rng.integers(7, 21, n),
            "head_dim": rng.choice([64, 96, 128, 256], n), "block_q": 16 * rng.integers(1, 17, n),
            "block_k": 16 * rng.integers(1, 17, n),
        }  # fmt: skip
    return {
        "seq_q": rng.integers(1, 1 << 20, n), "seq_k": rng.integers(1, 1 << 20, n),
        "head_dim": rng.integers(8, 257, n), "block_q": rng.integers(1, 257, n), "block_k": rng.integers(1, 257, n),
    }  # fmt: skip


def rate(algorithm: str, mask: str, passes: str, values: dict[str, np.ndarray]) -> float:
    """Combinations per second, the best of a few runs."""
    problem = AttentionProblem(
        heads=32, kv_heads=8, mask=mask, window=1024 if mask == "window" else None, passes=passes
    )
    kernel = Kernel(algorithm, algorithm, Tile(64, 64))
    took = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        sweep(problem, kernel, **values)
        took.append(time.perf_counter() - start)
    return len(values["seq_q"]) / min(took)


def start_up() -> float:
    """Seconds from starting Python to the end of a sweep of one combination."""
    code = (
        "from iosim.readers.formula.sweeps import sweep; from iosim.problem.attention import AttentionProblem as P; "
        "from iosim.kernel.kernel import Kernel, Tile; sweep(P(), Kernel('k', 'flash', Tile(64, 64)), seq_q=[4096])"
    )
    took = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        took.append(time.perf_counter() - start)
    return min(took)


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 20
    print("| closed-form sweep | mask | usual sizes, M/s | random sizes, M/s |")
    print("| --- | --- | ---: | ---: |")
    usual, random = sizes(n, True), sizes(n, False)
    for algorithm, passes in (("flash", "fwd"), ("flash", "bwd"), ("flash1", "fwd"), ("naive", "fwd")):
        for mask in ("none", "causal", "window"):
            rates = [rate(algorithm, mask, passes, values) / 1e6 for values in (usual, random)]
            print(f"| {algorithm} {passes} | {mask} | {rates[0]:.1f} | {rates[1]:.1f} |")
    print(f"\nStart-up, Python and NumPy included: {start_up():.2f} s; {n:,} combinations a run.")


if __name__ == "__main__":
    main()
