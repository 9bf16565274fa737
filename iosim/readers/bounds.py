"""What HBM traffic can be at least, and would be with no L2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from iosim.kernel.launch import Chain, Tensor
from iosim.kernel.traffic import Traffic
from iosim.problem.attention import AttentionProblem


@dataclass(frozen=True)
class HbmBounds:
    """`compulsory`: every input read once, every output written once. `no_l2`: every SM access goes to HBM."""

    compulsory_read: int
    compulsory_write: int
    no_l2_read: int
    no_l2_write: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "compulsory": {"read": self.compulsory_read, "write": self.compulsory_write},
            "no_l2": {"read": self.no_l2_read, "write": self.no_l2_write},
        }


def kept_keys(problem: AttentionProblem) -> int:
    """Key rows of one head that some query's mask keeps: a window that starts late needs no earlier keys."""
    return problem.pair_mask.kept_keys(problem.seq_q, problem.seq_k)


def _needed(problem: AttentionProblem, tensor: Tensor) -> int:
    if tensor.role == "input" and tensor.name in ("K", "V"):
        return tensor.bytes // max(1, tensor.rows) * kept_keys(problem)
    if tensor.role == "input" and tensor.name == "bias" and problem.mask_storage == "implicit":
        kept = problem.pair_mask.kept_pairs(problem.seq_q, problem.seq_k)
        return tensor.batch * tensor.heads * kept * tensor.element_bytes
    return tensor.bytes


def bounds(problem: AttentionProblem, chain: Chain, counted: Traffic) -> HbmBounds:
    """Bounds of a chain's HBM traffic, from a cold L2 and with every output written back in the end.

    Args:
        counted: what the chain moves between SMs and L2.
    """
    return HbmBounds(
        compulsory_read=sum(_needed(problem, t) for t in chain.role("input")),
        compulsory_write=sum(t.bytes for t in chain.role("output")),
        no_l2_read=counted.total("l2", "read"),
        no_l2_write=counted.total("l2", "write"),
    )


def memory(chain: Chain) -> dict[str, int]:
    """`workspace`: bytes of the tensors made inside the chain that live at once, at most; `peak`: those and all inputs
    and outputs."""
    fixed = sum(t.allocated_bytes for t in chain.tensors.values() if t.role != "temp")
    lifetimes = [(t, chain.life(t.name)) for t in chain.role("temp")]
    live = [
        sum(t.bytes for t, used in lifetimes if used and used[0] <= n <= used[-1]) for n in range(len(chain.launches))
    ]
    workspace = max(live, default=0)
    return {"workspace": workspace, "peak": fixed + workspace}
