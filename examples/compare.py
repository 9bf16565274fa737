"""What a bias, a mask and dropout cost: naive attention beside kernels that keep them off the N x N path.

Run it as `python examples/compare.py`; examples/output/compare.txt holds what it prints. The same on the command line:
`iosim compare --kernel naive,cutlass,fa2 --seq-len 2048 --bias full --dropout 0.1 --pass fwd+bwd`.
"""

from iosim import AttentionProblem
from iosim.base.units import bytes_text
from iosim.studies.compare import as_text, by_group, compare

KERNELS = ("naive", "cutlass", "fa2")
TERMS = {
    "nothing": {},
    "ALiBi": {"bias": "alibi"},
    "a bias of every head": {"bias": "full"},
    "a bias that heads share": {"bias": "full", "bias_shared": "both"},
    "a causal mask by indices": {"mask": "causal"},
    "the same as a tensor of bytes": {"mask": "causal", "mask_storage": "bool"},
    "a key-padding mask": {"key_padding": True},
    "dropout": {"dropout": 0.1},
}


def added_bytes() -> None:
    """Each term alone, forward and backward, on one GPU: bytes that it adds, time and memory."""
    plain = AttentionProblem(heads=32, seq_q=2048, head_dim=128, passes="fwd+bwd")
    print("2,048 tokens, 32 heads, head_dim 128, fp16, forward and backward, A100")
    print(f"{'added':<30} {'kernel':<8} {'HBM, GB':>8} {'its part':>9} {'time':>9} {'peak':>9}")
    for name, changes in TERMS.items():
        comparison = compare([plain.with_(**changes)], KERNELS, ["a100"], method="replay")
        for entry in comparison.entries:
            if entry.point is None:
                print(f"{name:<30} {entry.kernel:<8} {'cannot':>8}")
                continue
            parts = by_group(entry.point.prediction, "hbm")
            own_bytes = sum(parts.get(group, 0) for group in ("bias", "masks", "dropout"))
            print(
                f"{name:<30} {entry.kernel:<8} {(entry.point.hbm or 0) / 1e9:>8.2f} {own_bytes / 1e9:>9.2f} "
                f"{1e3 * entry.point.time_s:>6.2f} ms "
                f"{bytes_text(entry.point.prediction.memory_bytes['peak']):>9}"
            )


def generations() -> None:
    """One kernel of each generation, everything held against naive attention on an A100."""
    problem = AttentionProblem(heads=32, seq_q=8192, head_dim=128, dtype="bf16", mask="causal")
    comparison = compare(
        [problem], ["naive", "fa2", "fa3"], ["a100", "h100"], baseline="naive@a100"
    )
    print()
    print(as_text(comparison), end="")


if __name__ == "__main__":
    added_bytes()
    generations()
