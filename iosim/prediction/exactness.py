"""How exact the bytes between SMs and L2 are: a count, which recorded counters confirm within 0.1 %, and exceptions.

The exceptions follow from the description of the launches, never from a kernel's name. docs/validation.md has the rows.
"""

from __future__ import annotations

from iosim.base.units import bytes_text
from iosim.kernel.algorithms import algorithm_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain, Mode, Per
from iosim.kernel.traffic import Traffic
from iosim.problem.attention import AttentionProblem

CONFIRMED = "counted, within 0.1 % of an H200's counters where library kernels were recorded"
SPILL = "spill"


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
