"""What the builds of PyTorch's kernels spill, as recorded in pytorch-builds.csv (experiments/library_builds.py): for cc
9.0 by counters, for cc 7.5 and 8.x in their machine code."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("pytorch-builds.csv")
_EDGES: Mapping[str, Mapping[str, bool]] = {
    "": {},
    "narrow": {"narrow": True},
    "whole": {"whole_tiles": True, "narrow": False},
    "ragged": {"whole_tiles": False, "narrow": False},
    "full": {"narrow": False},
}
EDGES = {**_EDGES, **{f"split {name}": {**row, "split": True} for name, row in _EDGES.items()}}
"""What a build's edges say of the calls that it is for."""


def _build(row: Mapping[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        name: int(row[name]) for name in ("head_dim", "block_q", "block_k", "registers", "frame")
    }
    rates = (
        "write_per_tile",
        "write_per_pair",
        "read_per_pair",
        "accesses_per_tile",
        "accesses_per_pair",
    )
    settings |= {name: float(row[name]) for name in rates}
    # Tiles of one or two key blocks may spill otherwise than the line through longer ones says.
    short = [row["write_of_one"], row["write_of_two"]]
    if any(short):
        line = (settings["write_per_tile"] + n * settings["write_per_pair"] for n in (1, 2))
        settings["write_short"] = tuple(
            float(cell) if cell else full for cell, full in zip(short, line, strict=True)
        )
    settings |= {
        **EDGES[row["edges"]],
        **({"code": tuple(map(int, row["code"].split()))} if row["code"] else {}),
    }
    if row["mask"]:
        settings |= {"causal": row["mask"] != "none", "window": row["mask"] == "window"}
    if row["dropout"]:
        settings["dropout"] = row["dropout"] == "1"
    source = f"{row['known']}: experiments/library_builds.py, PyTorch 2.11"
    return settings | {
        "cc": [int(cc) for cc in row["cc"].split()],
        "dtype": row["dtype"].split(),
        "source": source,
    }


@cache
def _builds() -> Mapping[tuple[str, str], tuple[Mapping[str, Any], ...]]:
    builds: dict[tuple[str, str], tuple[Mapping[str, Any], ...]] = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = row["kernel"], row["pass"]
            builds[key] = (*builds.get(key, ()), _build(row))
    return builds


def build_names() -> tuple[str, ...]:
    return tuple(sorted({name for name, _ in _builds()}))


def spills(data: Mapping[str, Any], backward: bool = False) -> tuple[Mapping[str, Any], ...]:
    """Rows of what a kernel's builds spill, in the order in which they are tried: the file's, then recorded ones."""
    recorded = _builds().get((data.get("builds", ""), "bwd" if backward else "fwd"), ())
    return (*data.get("backward_spill" if backward else "spill", ()), *recorded)
