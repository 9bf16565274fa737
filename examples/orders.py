"""In which order should the tiles of FlashAttention start? Orders ranked, their code, one order for several lengths.

python examples/orders.py
"""

from __future__ import annotations

import iosim
import iosim.triton


def main() -> None:
    ranking = iosim.orders(
        gpu="h200", kernel="flash-sm90", heads=8, seq_len="8k", causal=True, dtype="bf16"
    )
    for entry in (ranking.best, ranking.own):
        print(
            f"{entry.choice.words}: {entry.hbm_bytes / 1e6:.0f} MB at HBM, {entry.time_s * 1e6:.0f} us"
        )

    print("\nThe best in both, bytes and time:")
    for entry in ranking.pareto:
        print(f"  {entry.choice.words}: {entry.times_compulsory:.2f} times the compulsory bytes")

    print("\nAs lines of a Triton kernel:")
    print(iosim.triton.remap(ranking.best))

    lengths = iosim.orders(
        gpu="h200",
        kernel="flash-sm90",
        heads=16,
        seq_len="2k,4k",
        causal=True,
        dtype="bf16",
        weights=[4, 1],
        scheduler="dynamic",
        direction="ascending",
    )
    print(f"Four calls of 2k tokens for one of 4k: {lengths.best.choice.words}")


if __name__ == "__main__":
    main()
