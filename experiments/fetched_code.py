"""What a kernel's code costs it where other kernels ran before:
`python experiments/fetched_code.py --out FILE.csv`, on a GPU with PyTorch.

A call of FlashAttention-2 of one round of tiles is replayed in a graph behind itself, and behind one to six other
builds of the same kernel. A row is a call: its seconds behind itself, and what it adds to the others behind which it
stands. The code of a build that ran just before lies in the SMs; that of one before several others does not.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pandas as pd
from experiment import record, replayed, run_script

HEADS = 132
LENGTHS = (64, 120, 128, 250, 256)
HEAD_DIMS = (64, 128, 256)
BETWEEN = (32, 96, 160, 192, 72, 40)
"""head_dims of the builds that stand between, of which the first few are taken."""
COUNTS = (1, 2, 3, 6)
ROUNDS, REPLAYS = 20, 30


def call(tokens: int, head_dim: int, causal: bool) -> Callable[[], Any]:
    """A function that makes the call."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = (
        torch.randn(1, HEADS, tokens, head_dim, device="cuda", dtype=torch.bfloat16)
        for _ in range(3)
    )
    return lambda: scaled_dot_product_attention(q, k, v, is_causal=causal)


def seconds(calls: Sequence[Callable[[], Any]]) -> float:
    """Of the calls one behind the other, in a graph of `ROUNDS` of them."""

    def run() -> None:
        for launch in list(calls) * ROUNDS:
            launch()

    return replayed(run, REPLAYS) / ROUNDS


def measure(_: Path) -> pd.DataFrame:
    """A row a call."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    rows = []
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        others = [call(64, head_dim, False) for head_dim in BETWEEN]
        alone = [seconds(others[:count]) for count in COUNTS]
        for head_dim, tokens, causal in itertools.product(HEAD_DIMS, LENGTHS, (False, True)):
            launch = call(tokens, head_dim, causal)
            added = [
                seconds([launch, *others[:n]]) - before
                for n, before in zip(COUNTS, alone, strict=True)
            ]
            times = [f"{taken:.9f}" for taken in (seconds([launch]), *added)]
            rows.append((HEADS, tokens, head_dim, int(causal), *times))
    names = [
        "heads",
        "tokens",
        "head_dim",
        "causal",
        "seconds",
        *(f"behind_{count}" for count in COUNTS),
    ]
    return pd.DataFrame(rows, columns=names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    record(out, measure, f"python experiments/fetched_code.py --out {out.name}", ())


if __name__ == "__main__":
    run_script(main)
