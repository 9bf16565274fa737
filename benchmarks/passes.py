"""Recorded passes over tensors through the replay's L2: `python benchmarks/passes.py`.

experiments/passes.py counted what fills, copies, softmax and sums read from HBM and write to it, one after the other.
Here the model of the L2 makes the same passes, with loads ahead of stores by what the threads of a pass hold, and
beside it in step. Prints two Markdown tables: some sizes, and mean errors by chain. A copy is taken for an elementwise
pass. In the recording process a flush left no dirty lines of others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from recorders import measurements, recorder

from iosim import HardwareProfile, load_profile
from iosim.readers.replay.engine import L2
from iosim.readers.replay.l2 import L2Model, model, sm_partitions
from iosim.readers.replay.replay import LEAST_REGISTERS, PASS_REGISTERS

NAME = "h200_passes.csv"
MIB = 1 << 20
PIECE_BYTES = 4096
"""What a CTA of an elementwise pass takes: 128 threads, 8 values of 4 bytes each."""
ELEMENT_BYTES, WARP = 4, 32
SHOWN = (24, 32, 48)
"""MiB of a tensor."""
Steps = npt.NDArray[np.int64]
KERNEL = recorder("passes")


def recorded() -> pd.DataFrame:
    return pd.read_csv(measurements(NAME))


def ahead_bytes(access: str, profile: HardwareProfile) -> int:
    """How far a pass' loads run ahead of its stores: what the threads on all SMs hold, a row a warp in softmax."""
    values = KERNEL.COLUMNS // WARP if access == "softmax" else PIECE_BYTES // (128 * ELEMENT_BYTES)
    registers = max(LEAST_REGISTERS, values + PASS_REGISTERS)
    threads = min(
        int(profile.need("max_threads_per_sm")), int(profile.need("registers_per_sm")) // registers
    )
    return threads * values * ELEMENT_BYTES * profile.sm_count


def accesses(step: str, pieces: int, ahead: int) -> tuple[Steps, Steps]:
    """(mode, piece) of all accesses of a pass in their order; pieces of tensor b come after those of a.

    Loads go `ahead` pieces before stores.
    """
    action, *named = step.replace("to ", "").split()
    piece = np.arange(pieces)
    loads = piece + pieces * "ab".index(named[0])
    stores = piece + pieces * "ab".index(named[-1])
    if action == "fill":
        return np.ones(pieces, dtype=np.int64), stores
    if action == "sum":
        return np.zeros(pieces, dtype=np.int64), loads
    order = np.argsort(np.concatenate([piece, piece + ahead]), kind="stable")
    return np.repeat([0, 1], pieces)[order], np.concatenate([loads, stores])[order]


def play(
    chain: str, mib: int, model: L2Model, profile: HardwareProfile, window: bool
) -> list[tuple[int, int]]:
    """(HBM bytes read, written) by the end of each pass of a chain, from an empty L2."""
    pieces = mib * MIB // PIECE_BYTES
    l2 = L2(
        model,
        np.full(2 * pieces, PIECE_BYTES, dtype=np.int32),
        np.zeros(2 * pieces, dtype=np.uint8),
    )
    sides = sm_partitions(profile.sm_count, model.partitions, model.side_ends)
    results = []
    for n, step in enumerate(chain.split(", "), start=1):
        ahead = ahead_bytes(step.split()[0], profile) // PIECE_BYTES if window else 0
        mode, number = accesses(step, pieces, ahead)
        l2.access(mode, number, sides[number % pieces % sides.size])
        read, written = l2.counts()
        results.append((sum(read) + n * model.launch_fetch_bytes, sum(written)))
    return results


def played(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `model_read`, `model_write`, and `step_read`, `step_write` of loads and stores in step."""
    profile = load_profile("h200-sxm")
    l2_model = model(profile)
    chains = {
        (chain, mib, window): play(chain, mib, l2_model, profile, window)
        for chain, mib in zip(rows.chain, rows.mib, strict=True)
        for window in (True, False)
    }
    for name, window in (("model", True), ("step", False)):
        results = [
            chains[chain, mib, window][n - 1]
            for chain, mib, n in rows[["chain", "mib", "launches"]].to_numpy()
        ]
        rows = rows.assign(
            **{f"{name}_read": [r for r, _ in results], f"{name}_write": [w for _, w in results]}
        )
    return rows


def error(rows: pd.DataFrame, name: str) -> float:
    """Mean absolute error of reads and writes alike, MB."""
    errors = [
        (rows[f"{name}_{direction}"] - rows[f"hbm_{direction}"]).abs()
        for direction in ("read", "write")
    ]
    return float(np.mean(errors)) / 1e6


def sizes(rows: pd.DataFrame) -> str:
    """Markdown: whole chains of the sizes SHOWN, MB."""
    lines = [
        "| chain | MiB | HBM reads, MB | model | in step | HBM writes, MB | model | in step |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    whole = rows[rows.launches == rows.chain.str.count(",") + 1]
    for row in whole[whole.mib.isin(SHOWN)].to_dict("records"):
        counts = [
            row[f"{name}_{direction}"] / 1e6
            for direction in ("read", "write")
            for name in ("hbm", "model", "step")
        ]
        lines.append(
            f"| {row['chain']} | {row['mib']} | {' | '.join(f'{n:.1f}' for n in counts)} |"
        )
    return "\n".join(lines)


def errors(rows: pd.DataFrame) -> str:
    """Markdown: by chain, MB."""
    lines = [
        "| chain | ranges | mean absolute error, MB | in step |",
        "| --- | ---: | ---: | ---: |",
    ]
    for chain, several in (*rows.groupby("chain", sort=False), ("all", rows)):
        lines.append(
            f"| {chain} | {len(several)} | {error(several, 'model'):.2f} | {error(several, 'step'):.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    rows = played(recorded())
    print(sizes(rows))
    print()
    print(errors(rows))


if __name__ == "__main__":
    main()
