"""Block-sparse attention on an H200: bytes and time against the share of blocks that three patterns keep.

python examples/block_sparse.py
"""

from __future__ import annotations

from iosim import AttentionProblem, predict
from iosim.prediction.result import Prediction
from iosim.problem.masks import BlockMask
from iosim.readers.formula.theory import beside
from iosim.studies.report.figures import without_mask

PATTERNS = {
    "butterfly": {"mask": "butterfly"},
    "window+global": {"mask": "window+global", "window": 1024, "global_tokens": 256},
    "strided": {"mask": "strided"},
}


HEAD = "".join(
    f"{title:>{wide}}"
    for title, wide in (
        ("kept", 9),
        ("L2, GB", 10),
        ("of dense", 9),
        ("HBM, GB", 10),
        ("of dense", 9),
        ("ms", 10),
        ("speed-up", 10),
    )
)
"""Blocks kept; bytes between SMs and L2, and L2 and HBM, beside those of dense attention; time."""


def line(name: str, prediction: Prediction, dense: Prediction) -> str:
    mask = prediction.problem.pair_mask
    kept_fraction = mask.kept_fraction if isinstance(mask, BlockMask) else 1.0
    gigabytes = [prediction.total(level) / 1e9 for level in ("l2", "hbm")]
    shares = [prediction.total(level) / dense.total(level) for level in ("l2", "hbm")]
    return (
        f"{name:<15}{kept_fraction:>9.2%}{gigabytes[0]:>10.3f}{shares[0]:>9.2%}{gigabytes[1]:>10.3f}{shares[1]:>9.2%}"
        f"{1e3 * prediction.time.total_s:>10.3f}{dense.time.total_s / prediction.time.total_s:>10.1f}"
    )


def main() -> None:
    print(
        "FlexAttention, 8 heads, head_dim 128, bf16, blocks of 128, forward on an H200; HBM by replay\n"
    )
    for tokens in (16384, 32768, 65536):
        shape = AttentionProblem(heads=8, seq_q=tokens, head_dim=128, dtype="bf16")
        dense = predict(shape, "flex", "h200", method="replay")
        print(f"{f'{tokens:,} tokens':<15}{HEAD}")
        print(line("dense", dense, dense))
        for name, words in PATTERNS.items():
            print(line(name, predict(shape.with_(**words), "flex", "h200", method="replay"), dense))
        print()

    print(
        "Backward at 32,768 tokens: the lists are transposed, each key block walks the query blocks that visit it\n"
    )
    print(f"{'flash':<15}{HEAD}")
    for name, words in PATTERNS.items():
        problem = AttentionProblem(
            heads=8, seq_q=32768, head_dim=128, dtype="bf16", passes="bwd", **words
        )
        prediction, dense = (
            predict(p, "flash", "h200", method="replay") for p in (problem, without_mask(problem))
        )
        print(line(name, prediction, dense))

    print(
        "\nN d + N^2 d^2 s / M of one head (FlashAttention, Proposition 4) beside the exact count, forward\n"
    )
    for tokens in (16384, 65536):
        for name, words in PATTERNS.items():
            problem = AttentionProblem(heads=8, seq_q=tokens, head_dim=128, dtype="bf16", **words)
            prediction = predict(problem, "flash", "h200", method="bounds")
            term = beside(problem, prediction.kernel, prediction.total("l2"))
            print(
                f"{tokens:>6}  {name:<15} s = {term['kept_fraction']:.4f}  term {term['theta_elements']:>13,.0f} "
                f"elements  exact {term['times_above']:.2f} times"
            )


if __name__ == "__main__":
    main()
