"""One attention matrix for all heads (UniForm) against multi-head attention: bytes, memory and time on small GPUs.

python examples/shared_attention.py
"""

from __future__ import annotations

from iosim import AttentionProblem, Kernel, Tile, load_profile, predict
from iosim.catalog.algorithms import plan
from iosim.catalog.algorithms.uniform import UniformOptions
from iosim.readers.formula.closed_form import closed_form

PAIRS = (("flash", "uniform"), ("naive", "uniform-naive"))


def main() -> None:
    problem = AttentionProblem(batch=8, heads=12, seq_q=1024, head_dim=64)
    print("batch 8, 12 heads of 64, 1,024 tokens, fp16, forward; shared: one Q and K, twelve V\n")
    print(
        f"{'GPU':<6}{'kernel':<15}{'SM<->L2, MB':>12}{'HBM, MB':>10}{'memory, MB':>12}{'GFLOP':>8}{'time, us':>10}"
        f"{'saved':>8}"
    )
    for gpu in ("t4", "l4", "a100"):
        for pair in PAIRS:
            predictions = [
                predict(problem, kernel, load_profile(gpu), method="capacity") for kernel in pair
            ]
            for p in predictions:
                saved = (
                    "-"
                    if p is predictions[0]
                    else f"{predictions[0].time.total_s / p.time.total_s:.2f}x"
                )
                print(
                    f"{gpu:<6}{p.kernel.name:<15}{p.total('l2') / 1e6:>12.1f}{p.total('hbm') / 1e6:>10.1f}"
                    f"{p.memory_bytes['peak'] / 1e6:>12.1f}{p.flops / 1e9:>8.1f}{1e6 * p.time.total_s:>10.0f}"
                    f"{saved:>8}"
                )

    print("\nValue heads a tile: what is on chip, and what is read again (tiles of 64 x 64)\n")
    print(f"{'heads':<7}{'accumulators':>14}{'Q, MB':>8}{'K, MB':>8}{'V, MB':>8}{'all, MB':>9}")
    for per_tile in (1, 2, 4, 12):
        options = UniformOptions(value_heads_per_tile=per_tile)
        kernel = Kernel("uniform", "uniform", Tile(64, 64), writes_lse=False, options=options)
        traffic = closed_form(plan(problem, kernel))
        q, k, v = (traffic.total("l2", tensor=n) / 1e6 for n in "QKV")
        width = f"64 x {per_tile * 64}"
        print(
            f"{per_tile:<7}{width:>14}{q:>8.1f}{k:>8.1f}{v:>8.1f}{traffic.total('l2') / 1e6:>9.1f}"
        )


if __name__ == "__main__":
    main()
