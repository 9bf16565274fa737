"""Predictions beside hardware counters of an H200, for some of the recorded calls: the table of README.md.

    python examples/measured.py [CALL ...]

Calls are numbered in kernels/measurements/h200_library_kernels.csv. Only the problem, the kernel's name and, for a
Triton kernel, its tile are taken from the recording.
"""

from __future__ import annotations

import csv
import sys

import iosim
from iosim.base.data import data_dir

CALLS = ("22", "96", "160", "68", "121", "110", "117")


def problem_of(row: dict[str, str]) -> iosim.AttentionProblem:
    """The problem of a recorded forward call."""
    return iosim.AttentionProblem(
        batch=int(row["batch"]),
        heads=int(row["heads"]),
        kv_heads=int(row["kv_heads"]),
        seq_q=int(row["seq_q"]),
        seq_k=int(row["seq_k"]),
        head_dim=int(row["head_dim"]),
        dtype=row["dtype"],
        mask="causal" if row["causal"] == "1" else "none",
    )


def settings_of(row: dict[str, str]) -> iosim.Overrides | None:
    """The tile of a kernel that a user chose, such as Triton's."""
    if not row["block_q"]:
        return None
    tile = (int(row["block_q"]), int(row["block_k"]))
    return iosim.Overrides(tile=tile, warps=int(row["warps"]), stages=int(row["stages"]))


def main() -> None:
    wanted = sys.argv[1:] or CALLS
    with open(
        data_dir("kernels") / "measurements" / "h200_library_kernels.csv",
        encoding="utf-8",
        newline="",
    ) as file:
        rows = {row["call"]: row for row in csv.DictReader(file) if row["launch"] == "1"}
    print(
        "| call | kernel | heads, tokens, head_dim, mask | read | predicted, MB | measured, MB | ratio |"
    )
    print("| ---: | --- | --- | --- | ---: | ---: | ---: |")
    for call in wanted:
        row = rows[call]
        p = problem_of(row)
        prediction = iosim.predict(p, row["implementation"], "h200", overrides=settings_of(row))
        heads = f"{p.heads}" if p.group == 1 else f"{p.heads}/{p.kv_heads}"
        shape = f"{p.batch} x {heads}, {p.seq_q:,}, {p.head_dim}, {p.mask}"
        for level, name in (("l2", "SM<->L2"), ("hbm", "HBM")):
            measured = int(row[f"{level}_read"])
            predicted = prediction.total(level, "read")
            numbers = f"{predicted / 1e6:,.1f} | {measured / 1e6:,.1f} | {predicted / measured:.4f}"
            print(
                f"| {call} | {prediction.kernel.name} {prediction.kernel.tile} | {shape} | {name} | {numbers} |"
            )


if __name__ == "__main__":
    main()
