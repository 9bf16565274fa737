"""What is measured: calls of the project's kernels as data, in groups that can be run apart.

`plan.toml` lists them: `quick` is a small group that touches every kernel; `full` is all the others.
`iosim measure --dry-run` prints them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import fields, replace
from iosim.base.schema import read_toml
from iosim.evidence.crossed import crossed
from iosim.evidence.cuda.launch import Order, Shape
from iosim.evidence.cuda.resources import LIVE_LIMIT, live_registers, tuned
from iosim.evidence.cuda.spec import BwdSpec, FwdSpec, MinimalSpec, NaiveSpec, Spec
from iosim.evidence.measure.case import KINDS, Case

TILES = {
    64: FwdSpec(64, 128, 128, 4, 2, min_ctas=2),
    96: FwdSpec(96, 128, 64, 4, 2, min_ctas=2),
    128: FwdSpec(128, 128, 64, 4, 2, min_ctas=2),
    256: FwdSpec(256, 128, 64, 8, 1),
}
DECODE_TILES = {
    64: FwdSpec(64, 64, 64, 4, 2, split=True, min_ctas=3),
    128: FwdSpec(128, 64, 64, 4, 2, split=True, min_ctas=2),
}
BWD_TILES = {64: BwdSpec(64, 128, 128, 8), 128: BwdSpec(128, 64, 128, 8)}
HEAVY = Order("head", heavy_first=True)
QUICK, SWEEP = "quick", "sweep"


@cache
def groups() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return read_toml(Path(__file__).with_suffix(".toml"))


def parts() -> tuple[str, ...]:
    return tuple(group for group in groups() if group != QUICK)


def calls(group: str) -> list[Case]:
    found = (_call({**table, **point}) for table in groups()[group] for point in crossed(table.get("each", ())))
    return [case for case in found if case is not None]


def _call(row: Mapping[str, Any]) -> Case | None:
    """The call of a row; None for a tile of a sweep that is not worth building."""
    causal, window, heads = row.get("causal", False), row.get("window"), row["heads"]
    seq_q, seq_k = (row[name] if name in row else row["seq"] for name in ("seq_q", "seq_k"))
    shape = Shape(row.get("batch", 1), heads, row.get("kv_heads", heads), seq_q, seq_k, row["head_dim"], window)
    kernel = row.get("kernel", "flash_fwd")
    order = Order(**{f.name: row[f.name] for f in fields(Order) if f.name in row})
    if kernel == "flash_fwd" and causal and "order" not in row:
        order = HEAVY
    spec = _spec(kernel, row, "window" if window is not None else "causal" if causal else "none")
    if row.get("note") == SWEEP:
        assert isinstance(spec, FwdSpec)
        fits = spec.block_q % (16 * spec.warps) == 0 and spec.dynamic_shared_bytes <= 232_000
        if not fits or live_registers(spec) > LIVE_LIMIT or (spec.stages == 3 and spec.block_k > 64):
            return None
        spec = tuned(spec, "9.0")
    return Case(spec, shape, order, causal, row.get("note", ""))


def _spec(kernel: str, row: Mapping[str, Any], mask: str) -> Spec:
    d, kind = row["head_dim"], KINDS[kernel]
    if kind in (NaiveSpec, MinimalSpec):
        return kind(d)
    if "block_q" in row:
        return FwdSpec(d, row["block_q"], row["block_k"], row["warps"], row["stages"], mask)
    base: FwdSpec | BwdSpec = BWD_TILES[d] if kind is BwdSpec else (DECODE_TILES if "splits" in row else TILES)[d]
    changes = {name: row[name] for name in ("dtype", "persistent", "deterministic") if name in row}
    return replace(base, mask=mask, **changes)


def named(words: Sequence[str]) -> list[Case]:
    """The calls of plans and groups: `quick`, `full`, or names of groups. Raises InputError where a name is none of
    these."""
    plans = {QUICK: (QUICK,), "full": parts(), **{group: (group,) for group in parts()}}
    for word in words:
        if word not in plans:
            raise InputError(f"`plan` '{word}' is not known; accepted: {', '.join(plans)}")
    return [case for word in words for group in plans[word] for case in calls(group)]
