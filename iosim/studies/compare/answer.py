"""A comparison's answer: a verdict a GPU, and what grouped key/value heads change and what not."""

from __future__ import annotations

from iosim.base.units import bytes_text
from iosim.prediction.predictor import planned, predict
from iosim.prediction.replays import tile_accesses
from iosim.prediction.result import Prediction
from iosim.studies.compare.study import Comparison
from iosim.studies.report.answer import of_points

QUICK_ACCESSES = 5_000_000
"""Tile accesses up to which the same problem with as many key/value heads as query heads is replayed: a quarter of a
second."""
SAME = 1e-3
"""Bytes between SMs and L2 that differ by less are said to be the same."""


def answer(comparison: Comparison) -> str:
    """A sentence a GPU, and one on grouped heads where the problem has them."""
    sentences = [v.sentence for v in of_points(comparison.points, comparison.baseline.kernel)]
    longest = max(p.seq_len for p in comparison.points)
    tiled = [p for p in comparison.points if p.seq_len == longest and p.kernel != comparison.baseline.kernel]
    shown = (tiled or [p for p in comparison.points if p.seq_len == longest])[0].prediction
    return " ".join([*sentences, *([grouped(shown)] if shown.problem.group > 1 else [])])


def grouped(p: Prediction) -> str:
    """What its key/value heads save against one a query head, between SMs and L2 and at HBM."""
    problem = p.problem.with_(kv_heads=p.problem.heads)
    call = planned(problem, p.kernel.name, p.profile)
    ratio = f"GQA {p.problem.group}:1" if p.problem.kv_heads > 1 else f"MQA {p.problem.group}:1"
    moved, alone = p.total("l2"), int(call.counted.total("l2"))
    if abs(alone - moved) <= SAME * moved:
        l2 = (f"{ratio} does not change the SM<->L2 bytes of {p.kernel.name}: each query head reads K and V again "
              f"({bytes_text(moved)} in all)")  # fmt: skip
    elif moved < alone:
        l2 = (f"{ratio} lowers the SM<->L2 bytes of {p.kernel.name} from {bytes_text(alone)} to {bytes_text(moved)}: "
              "query heads of a group share what is read")  # fmt: skip
    else:
        l2 = f"{ratio} raises the SM<->L2 bytes of {p.kernel.name} from {bytes_text(alone)} to {bytes_text(moved)}"
    if not p.hbm_known or tile_accesses(call.chain) > QUICK_ACCESSES:
        each = p.chain.tensors["K"].bytes
        return f"{l2}; K itself has {bytes_text(each)} in place of {bytes_text(call.chain.tensors['K'].bytes)}."
    ungrouped = predict(problem, p.kernel.name, p.profile, l2_start=p.l2_start, method=p.method)
    before, after = (int(one.traffic.total("hbm", "read", tensor="K")) for one in (ungrouped, p))
    verb = "falls" if after < before else "goes"
    return f"{l2}; what HBM reads of K {verb} from {bytes_text(before)} to {bytes_text(after)}."


__all__ = ["answer", "grouped"]
