"""Launches in which every SM holds one CTA of a library's kernel, two, ...: `python benchmarks/steps.py`.

Prints a Markdown table of experiments/measurements/h100_cta_steps.csv, whose tiles a watcher saw end
(experiments/ends.py --steps): a head's tiles, as many as the SMs hold, over 16,384 keys that the L2 keeps. Nothing was
fitted to these launches. What the oldest CTA gets more than the youngest is left out: the last tiles count.
"""

from __future__ import annotations

import csv

from recorders import measurements

from iosim import AttentionProblem, load_profile, resolve
from iosim.prediction.call import Call

NAMES = {"flash": "fa2", "efficient": "cutlass"}
FEWER = {"ragged": 8}
"""Keys of a build for ragged lengths under whole tiles."""
GPU = load_profile("h100-sxm")


def predicted_us(row: dict[str, str]) -> float:
    """Microseconds of the launch that a row measured."""
    d = int(row["head_dim"])
    keys = int(row["keys"]) - FEWER.get(row["build"], 0)
    attention = AttentionProblem(heads=1, seq_q=1 << 20, seq_k=keys, head_dim=d, dtype=row["dtype"])
    rows = (
        resolve(NAMES[row["kernel"]], attention, GPU).tile.block_q * GPU.sm_count * int(row["ctas"])
    )
    problem = attention.with_(seq_q=rows)
    call = Call.of(problem, resolve(NAMES[row["kernel"]], problem, GPU), GPU)
    return call.time(call.counted + call.capacity("cold")).total_s * 1e6


def main() -> None:
    print(
        "| kernel | head_dim | build | type | CTAs an SM | measured, us | predicted |\n| --- "
        + "| ---: " * 6
        + "|"
    )
    with measurements("h100_cta_steps.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            off = predicted_us(row) / float(row["last_us"]) - 1
            cells = (
                row[name] for name in ("kernel", "head_dim", "build", "dtype", "ctas", "last_us")
            )
            print(f"| {' | '.join(cells)} | {off:+.0%} |")


if __name__ == "__main__":
    main()
