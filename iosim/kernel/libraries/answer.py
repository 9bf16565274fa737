"""What a catalog entry says of its kernel, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TILE_TABLES = ("tile", "split_tile", "backward_tile")


def answer(data: Mapping[str, Any]) -> str:
    """Algorithm, where it runs, its tiles, and how much of it is inferred."""
    requires = data["requires"]
    tiles = [f"{row['block_q']}x{row['block_k']}" for name in TILE_TABLES for row in data.get(name, ())]
    distinct = list(dict.fromkeys(tiles))
    parts = [f"{data['name']} runs the {data['algorithm']} algorithm on {_gpus(requires)}, in "
             f"{', '.join(requires['dtypes'])}"]  # fmt: skip
    if distinct:
        which = " by head_dim, pass and GPU" if len(distinct) > 1 else ""
        parts.append(f"tile{'s' * (len(distinct) > 1)} {', '.join(distinct)}{which}")
    inferred = [key for key in ("inferred", "assumed") if data.get(key)]
    parts.append(
        f"part of it is {' or '.join(inferred)}, as listed below" if inferred else "all of it is from its source"
    )
    return f"{'; '.join(parts)}."


def _gpus(requires: Mapping[str, Any]) -> str:
    low, high = requires.get("min_cc"), requires.get("max_cc")
    if low is None and high is None:
        return "any GPU"
    if low is not None and low == high:
        return f"cc {_cc(low)} alone"
    first = "" if low is None else f"cc {_cc(low)} and later"
    return f"{first}{'' if high is None else f' up to cc {_cc(high)}'}".strip()


def _cc(number: int) -> str:
    return f"{number // 10}.{number % 10}"
