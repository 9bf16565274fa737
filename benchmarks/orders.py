"""Which lines of a set stay, on the GPU and in the replay's model: `python benchmarks/orders.py [--gpu h100]`.

experiments/sets.py loaded and stored lines of one set in some orders, and asked where a line was after so many loads of
others. Here the model does the same in a single set. Prints a Markdown table: after how many loads a line was last
found on the SM's side, and where it was then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from recorders import asked_gpu, measurements, recorder

from iosim import load_profile
from iosim.readers.replay.engine import L2
from iosim.readers.replay.l2 import L2Model, model

PLACES = ("near", "far", "memory")
DIRTY_WAYS = 8
"""Dirty lines of a set at which it writes the oldest back before it takes another: what the profile comes to."""
LINES = 512
"""Of a page: half of them are near."""
SEED = 1
KERNEL = recorder("sets")


def recorded(gpu: str = "h200") -> pd.DataFrame:
    """The recorded rows; `sets` are those that were asked, `found` is where most of them had the line."""
    table = pd.read_csv(measurements(f"{gpu}_l2_orders.csv"))
    counts = table[list(PLACES)]
    return table.assign(sets=counts.sum(axis=1), found=counts.idxmax(axis=1))


def one_set(dirty_ways: float = DIRTY_WAYS) -> L2Model:
    """The H200's L2 with one set a side, which may hold so many dirty lines."""
    return replace(model(load_profile("h200-sxm")), sets=1, dirty_ways=dirty_ways)


def place(model: L2Model, order: str, then: int, line: str) -> str:
    """Where the model has the line that is asked for."""
    l2 = L2(
        model, np.full(LINES, model.line_bytes, dtype=np.int32), np.zeros(LINES, dtype=np.uint8)
    )
    home = l2.samples.home
    sides: Any = KERNEL.Sides(np.flatnonzero(home == 0), np.flatnonzero(home == 1), 0.0, 0.0)
    lines, steps = (np.array(n) for n in sides.test(order, then, line, np.random.default_rng(SEED)))
    mode = (steps == KERNEL.STEPS["store"]).astype(np.uint8)
    side = np.zeros(lines.size, dtype=np.uint8)
    l2.access(mode[:-1], lines[:-1], side[:-1])
    read = sum(l2.counts()[0])
    crossed = int(l2.state.fabric)
    l2.access(mode[-1:], lines[-1:], side[-1:])
    if sum(l2.counts()[0]) > read:
        return "memory"
    return "far" if int(l2.state.fabric) > crossed else "near"


def played(rows: pd.DataFrame, model: L2Model) -> pd.DataFrame:
    """The rows with `model`: where it has the line."""
    cases = zip(rows.order, rows.then, rows.asked, strict=True)
    return rows.assign(model=[place(model, order, int(then), line) for order, then, line in cases])


def table(rows: pd.DataFrame) -> str:
    """Markdown: a line a question."""
    lines = [
        "| loads and stores | line | last found near after, GPU | model | after that, GPU | model |",
        "| --- | --- | ---: | ---: | --- | --- |",
    ]
    for (order, line), several in rows.groupby(["order", "asked"], sort=False):
        near = [several.then[several[by] == "near"] for by in ("found", "model")]
        last = [str(n.max()) if len(n) else "never" for n in near]
        end = several.sort_values("then").iloc[-1]
        lines.append(f"| {order} | {line} | {last[0]} | {last[1]} | {end.found} | {end.model} |")
    return "\n".join(lines)


def main() -> None:
    rows = played(recorded(asked_gpu(__doc__)), one_set())
    print(table(rows))
    same = rows[list(PLACES)].max(axis=1) == rows.sets
    agreed = rows.found == rows.model
    print(
        f"\n{len(rows)} questions to {rows.sets.max()} sets; {same.mean():.1%} were answered alike by all of them, "
        f"{agreed.mean():.1%} as by the model."
    )


if __name__ == "__main__":
    main()
