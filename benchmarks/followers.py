"""Recorded reads and writes of groups in step through the replay's L2: `python benchmarks/followers.py`.

experiments/followers.py had groups of CTAs read and write what a table tells them, step by step, under the profiler.
Here the same tables go through the model of the L2, in the order of their steps, so that the model alone is on trial
and times play no part. Prints three Markdown tables: HBM reads of the cases that only load, HBM writes of those that
store, and what was measured at the edge. An error is the model's bytes less the measured ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from recorders import measurements, recorder

from iosim import load_profile
from iosim.readers.replay.engine import L2
from iosim.readers.replay.l2 import L2Model, model
from iosim.readers.replay.replay import FOREIGN_OBJECT_BYTES

MIB = 1 << 20
PIECE_KIB = 16
"""What one CTA takes of a chunk at a time: 1,024 threads, 16 bytes each; or one bulk copy."""
DENSE_GROUPS = 16
FEW_MIB = 26.25
"""What stays behind long fills."""
TENSORS = {"data": 0, "foreign": 1}
Steps = npt.NDArray[np.int_]
KERNEL = recorder("followers")


def recorded() -> pd.DataFrame:
    """The recorded rows, with the Case of each."""
    table = pd.read_csv(measurements("h200_iosim_followers.csv"))
    names = list(KERNEL.Case.__dataclass_fields__)
    table["case"] = [KERNEL.Case(**row) for row in table[names].to_dict("records")]
    return table


def accesses(case: Any) -> tuple[Steps, Steps, Steps]:
    """(mode, piece of the buffer, side of the L2) of all accesses of a case, in their order.

    Within a step the groups go on side by side, a piece of PIECE_KIB each in turn. Where CTAs share a chunk out, each
    takes every so manyth piece, the sides in turn; where each of them takes all of it, the first of either side stands
    for the others.
    """
    ops, table = KERNEL.OPS, case.table()
    pieces = case.chunk // PIECE_KIB
    shape = (table.shape[0], pieces, table.shape[1], 2)
    piece, group, side = np.ogrid[:pieces, : table.shape[1], :2]
    entry = table[:, None, :, None]
    if case.sides == "both":
        takes = side >= 0 if case.shared else side == piece % 2
    else:
        takes = side == (group % 2 if case.sides == "apart" else 0)
    touched = np.broadcast_to((entry >= 0) & takes, shape)
    mode = np.where(entry & ops["store"], 1, np.where(entry & ops["reduce"], 2, 0))
    number = (entry & (ops["reduce"] - 1)) * pieces + piece
    mode, number, side = (
        np.broadcast_to(side_array, shape)[touched] for side_array in (mode, number, side)
    )
    return mode, number, side


def play(case: Any, model: L2Model) -> tuple[int, int]:
    """(HBM bytes read, written) of a case from a flushed L2, as the model of the L2 has them."""
    mode, number, side = accesses(case)
    objects = int(number.max()) + 1
    foreign = model.foreign_dirty_bytes // FOREIGN_OBJECT_BYTES
    size = np.repeat([PIECE_KIB * 1024, FOREIGN_OBJECT_BYTES], [objects, foreign]).astype(np.int32)
    owner = np.repeat([TENSORS["data"], TENSORS["foreign"]], [objects, foreign]).astype(np.uint8)
    l2 = L2(model, size, owner)
    l2.place(range(objects, objects + foreign), dirty=True)
    l2.access(mode, number, side % model.partitions)
    read, written = l2.counts()
    return sum(read) + model.launch_fetch_bytes, sum(written)


def kind(case: Any) -> str:
    """What a case is counted under."""
    if case.place > 0:
        return "scattered pages"
    if case.pattern == "follow":
        return "dense" if case.groups >= DENSE_GROUPS else "follow"
    if case.pattern == "hot":
        does = {"load": "reads", "store": "writes", "reduce": "adds to"}
        return f"hot: {does[case.stream_op]} a stream, {does[case.hot_op]} the hot set"
    if case.pattern == "write":
        return f"write {'up to' if case.distance <= FEW_MIB else 'more than'} {FEW_MIB} MiB"
    return str(case.pattern)


def stores(case: Any) -> bool:
    return case.pattern in ("write", "beside") or {case.stream_op, case.hot_op} != {"load"}


def played(rows: pd.DataFrame, model: L2Model) -> pd.DataFrame:
    """The rows with `kind`, and with `model_read` and `model_write` of the model."""
    bytes_by_case = [play(case, model) for case in rows.case]
    return rows.assign(
        kind=[kind(case) for case in rows.case],
        model_read=[read for read, _ in bytes_by_case],
        model_write=[written for _, written in bytes_by_case],
    )


def reads(rows: pd.DataFrame) -> str:
    """Markdown: HBM reads by kind, errors as shares of what was measured."""
    lines = [
        "| HBM reads | rows | mean absolute error | mean signed error |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, several in rows.groupby("kind", sort=False):
        error = several.model_read / several.hbm_read - 1
        lines.append(
            f"| {name} | {len(several)} | {error.abs().mean():.1%} | {error.mean():+.1%} |"
        )
    return "\n".join(lines)


def writes(rows: pd.DataFrame) -> str:
    """Markdown: HBM writes by kind, means in MB; many a case writes next to nothing."""
    lines = [
        "| HBM writes, MB | rows | measured | model | mean absolute error | mean signed error |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, several in rows.groupby("kind", sort=False):
        real, predicted = several.hbm_write / 1e6, several.model_write / 1e6
        lines.append(
            f"| {name} | {len(several)} | {real.mean():.1f} | {predicted.mean():.1f} | "
            f"{(predicted - real).abs().mean():.1f} | {(predicted - real).mean():+.1f} |"
        )
    return "\n".join(lines)


def edge(rows: pd.DataFrame) -> str:
    """Measured shares of misses beyond the first reads, by MiB in use.

    Of 64 groups that follow one another and of scans by all CTAs, on contiguous pages and on pages drawn at random.
    """
    both = rows[(rows.sides == "both") & rows.shared & (rows.load == "ld") & (rows.apart == 0)]
    dense = both[(both.pattern == "follow") & (both.groups == 64)]
    scans = both[both.pattern == "scan"]
    parts = {
        "64 groups": (dense, dense.distance * 64, (dense.hbm_read / (dense.stream * MIB) - 1) / 63),
        "scan": (scans, scans.distance, (scans.hbm_read / (scans.distance * MIB) - 1) / 3),
    }
    lines = [
        "| MiB in use | "
        + " | ".join(f"{n}, {w}" for n in parts for w in ("contiguous", "scattered"))
        + " |",
        "| ---: |" + " ---: |" * 4,
    ]
    for size in (24, 26, 28, 30, 32, 36):
        cells = []
        for table, used, missed in parts.values():
            for scattered in (False, True):
                shares = missed[(used == size) & ((table.place > 0) == scattered)]
                cells.append(f"{shares.min():.0%} to {shares.max():.0%}" if len(shares) else "")
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    fills = rows[(rows.pattern == "write") & (rows.distance >= 36)]
    behind = fills.distance - fills.hbm_write / MIB
    lines.append(
        f"\nFills of 36 MiB and more leave {behind.min():.1f} to {behind.max():.1f} MiB behind."
    )
    return "\n".join(lines)


def main() -> None:
    rows = played(recorded(), model(load_profile("h200-sxm")))
    storing = np.array([stores(case) for case in rows.case])
    print(reads(rows[~storing]))
    print()
    print(writes(rows[storing]))
    print()
    print(edge(rows))


if __name__ == "__main__":
    main()
