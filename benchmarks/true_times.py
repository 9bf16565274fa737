"""CTAs' true times through the replay's L2: `python benchmarks/true_times.py`. Prints a Markdown table.

experiments/timeline.py --steps recorded when every CTA of five launches was where, on which side of the L2, and the
profiler counted what the same launches read from HBM. Replayed at these times the L2 alone is on trial. The last
columns have the replay's own times: with even shares of an SM for its CTAs, and with the share that these launches
show.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from typing import Any

import numpy as np
from recorders import measurements

from iosim import AttentionProblem, Kernel, Overrides, load_profile, resolve
from iosim.catalog.algorithms import plan
from iosim.prediction.call import Call
from iosim.readers.replay.engine import L2
from iosim.readers.replay.l2 import model
from iosim.readers.replay.lowering import lower

EVERY = 64
TENTH_US_PS = 100_000
GPU = load_profile("h200-sxm")
SHARES = {"none": 0.228, "causal": 0.0}
"""The share of these very binaries, whose loop holds a mark: 37.6 and 47.2 us for 16 steps of the older and the younger
CTA not causal; the same for both causal."""
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "heads fastest": ("none", 4, {"order": "head"}),
    "heads fastest, alternating": ("none", 4, {"order": "head", "direction": "alternating"}),
    "queries fastest": ("none", 4, {"order": "query"}),
    "causal, heads fastest, heavy first": ("causal", 8, {"order": "head", "heavy_first": True}),
    "causal, queries fastest, descending": (
        "causal",
        8,
        {"order": "query", "direction": "descending"},
    ),
}


def launch(name: str) -> tuple[AttentionProblem, Kernel]:
    mask, heads, settings = CASES[name]
    problem = AttentionProblem(heads=heads, seq_q=65536, head_dim=128, dtype="bf16", mask=mask)
    over = Overrides(
        tile=(128, 64), warps=4, stages=2, registers=255, shared_memory_bytes=98304, **settings
    )
    return problem, resolve("flash", problem, GPU, over)


def at_recorded_times(name: str) -> int:
    """HBM bytes read where CTAs run when and where they did."""
    l2_model = model(GPU)
    recorded = np.load(measurements("h200_iosim_steps.npz"))
    low = lower(plan(*launch(name)), spill_slots=1)
    l2 = L2(l2_model, low.size, low.owner)
    l2.replay_recorded(
        low.launches[0],
        recorded[f"{name}: at"].astype(np.int64) * TENTH_US_PS,
        recorded[f"{name}: end"].astype(np.int64) * TENTH_US_PS,
        EVERY,
        recorded[f"{name}: side"],
    )
    return sum(l2.counts()[0])


def at_own_times(name: str, share: float) -> int:
    """HBM bytes read at the replay's own times, where the older CTA of an SM is faster than the younger by `share`."""
    problem, kernel = launch(name)
    chain = plan(problem, kernel)
    return (
        Call.of(problem, kernel.with_(age_share=share), GPU, chain)
        .replay()
        .traffic.total("hbm", "read")
    )


def counted() -> dict[str, int]:
    with open(measurements("h200_iosim_steps.csv"), encoding="utf-8", newline="") as file:
        return {row["case"]: int(row["hbm_read"]) for row in csv.DictReader(file)}


COLUMNS: dict[str, Callable[[str], int]] = {
    "true times": at_recorded_times,
    "own times, even shares": lambda name: at_own_times(name, 0.0),
    "own times, true share": lambda name: at_own_times(name, SHARES[CASES[name][0]]),
}


def main() -> None:
    print("| flash_fwd 128x64, 65,536 tokens | counted, GB | " + " | ".join(COLUMNS) + " |")
    print("| --- |" + " ---: |" * (1 + len(COLUMNS)))
    for name, real in counted().items():
        print(
            f"| {name} | {real / 1e9:.2f} | "
            + " | ".join(f"{f(name) / 1e9:.2f}" for f in COLUMNS.values())
            + " |"
        )


if __name__ == "__main__":
    main()
