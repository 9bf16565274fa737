"""How exact bytes are.

HBM bytes that are estimates carry a mark in tables, and one line below says what the marks mean. SM<->L2 bytes are a
count, which recorded counters confirm within 0.1 %, but for exceptions that follow from the description of the
launches, never from a kernel's name (docs/validation.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from iosim.base.units import bytes_text
from iosim.kernel.algorithms import algorithm_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain, Mode, Per
from iosim.kernel.traffic import Traffic
from iosim.problem.attention import AttentionProblem
from iosim.show.tables import Marked

if TYPE_CHECKING:
    from iosim.prediction.result import Prediction

MARKS = {"sampled": "~", "capacity": "*"}
"""Method -> the mark of what it gives."""
MEANINGS = {
    "sampled": "replayed in part, off by some percent",
    "capacity": "by the capacity rule, which knows no order of CTAs and may be off by many times",
}
CONFIRMED = "counted, within 0.1 % of an H200's counters where library kernels were recorded"
SPILL = "spill"


def mark_of(method: str) -> str:
    """The mark of a method's HBM bytes; empty for a replay of all."""
    return MARKS.get(method, "")


def marked(value: float | None, *predictions: Prediction) -> float | None:
    """A number that follows from the HBM bytes of predictions, with the marks of those that estimate them."""
    marks = "".join(dict.fromkeys(mark_of(p.method) for p in predictions))
    return value if value is None or not marks else Marked.of(value, marks)


def legend(predictions: Iterable[Prediction]) -> str | None:
    """One line with the marks that these predictions carry; None where they carry none."""
    return legend_of(p.method for p in predictions)


def legend_of(methods: Iterable[str]) -> str | None:
    """As `legend`, of predictions by these methods."""
    used = set(methods)
    meanings = [f"{mark} {MEANINGS[method]}" for method, mark in MARKS.items() if method in used]
    return f"HBM bytes: {'; '.join(meanings)}" if meanings else None


def method_of(methods: Iterable[str]) -> str:
    """The method of a sum: the least exact of its parts'."""
    used = set(methods)
    return next((method for method in ("bounds", "capacity", "sampled") if method in used), "replay")


def exactness(problem: AttentionProblem, kernel: Kernel, chain: Chain, traffic: Traffic) -> str:
    """In a few words: that SM<->L2 bytes are counted, and which of them counters do not confirm to 0.1 %."""
    exceptions = []
    spilled = sum(int(r.bytes) for r in traffic if r.level == "l2" and r.tensor == SPILL)
    if spilled:
        exceptions.append(f"the {bytes_text(spilled)} of spilled registers, counted at a few lengths")
    if problem.backward and _inferred_stores(chain):
        exceptions.append("the backward's writes, whose packets are inferred (up to 7 % off)")
    if algorithm_of(kernel.algorithm).standard and _fp32_products(chain):
        exceptions.append("reads of fp32 products that find data in L1, which is not modelled (up to 21 % too many)")
    return f"{CONFIRMED}{' but for ' * bool(exceptions)}{' and '.join(exceptions)}"


def _inferred_stores(chain: Chain) -> bool:
    overheads = (o for launch in chain.launches for o in launch.overheads)
    return any(o.inferred_from and o.mode is Mode.STORE and o.name != SPILL for o in overheads)


def _fp32_products(chain: Chain) -> bool:
    """Whether a launch multiplies operands of four bytes."""
    return any(
        launch.flops_per_pair and any(a.per is Per.PAIR and a.mode is Mode.LOAD
                                      and chain.tensors[a.tensor].element_bytes == 4 for a in launch.accesses)
        for launch in chain.launches
    )  # fmt: skip
