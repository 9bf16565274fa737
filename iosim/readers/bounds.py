"""What HBM traffic can be at least, and would be with no L2."""

from __future__ import annotations

from typing import Any

from iosim.base.records import dataclass
from iosim.kernel.launch import Chain, Role, Rows, Tensor
from iosim.kernel.traffic import Traffic
from iosim.problem.attention import AttentionProblem


@dataclass(frozen=True)
class HbmBounds:
    """`compulsory`: what the mask needs of every input read once, every output written once. `no_l2`: every SM access
    goes to HBM, an atomic add as a read and a write."""

    compulsory_read: int
    """Bytes that have to be read at least."""
    compulsory_write: int
    """Bytes that have to be written at least."""
    no_l2_read: int
    """Bytes read if the L2 kept nothing."""
    no_l2_write: int
    """Bytes written if the L2 kept nothing."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "compulsory": {"read": self.compulsory_read, "write": self.compulsory_write},
            "no_l2": {"read": self.no_l2_read, "write": self.no_l2_write},
        }


def needed_bytes(problem: AttentionProblem, tensor: Tensor) -> int:
    """Bytes of an input that have to be read at least: of the rows and pairs that the mask keeps."""
    mask, lengths = problem.pair_mask, (problem.seq_q, problem.seq_k)
    # A block table: an entry for every page with a key that is kept.
    if tensor.keys_per_row and tensor.along is not Rows.QUERY:
        return (
            tensor.batch
            * -(-mask.kept_keys(*lengths) // tensor.keys_per_row)
            * tensor.element_bytes
        )
    if tensor.along in (Rows.KEY, Rows.QUERY):
        rows = mask.kept_keys(*lengths) if tensor.along is Rows.KEY else mask.kept_queries(*lengths)
        if tensor.picked_by:  # all queries may pick the same keys
            rows = min(rows, problem.attended_keys)
        return tensor.bytes // max(1, tensor.rows) * rows - tensor.saved_bytes
    if tensor.along is Rows.PAIR and problem.mask_storage == "implicit":
        return tensor.batch * tensor.heads * mask.kept_pairs(*lengths) * tensor.element_bytes
    return tensor.bytes


def bounds(
    problem: AttentionProblem, chain: Chain, counted: Traffic, added_bytes: int
) -> HbmBounds:
    """Bounds of a chain's HBM traffic, from a cold L2 and with every output written back in the end. NB: counters stop
    with the kernel, and so does a replay: what is dirty in the L2 then is not among the bytes written, so that these
    can be fewer than the compulsory ones. Written and dirty bytes together are not. `counted`: what the chain moves
    between SMs and L2. `added_bytes`: what it adds atomically; each add reads what it adds to."""
    return HbmBounds(
        compulsory_read=sum(
            needed_bytes(problem, t) for t in chain.role(Role.INPUT) if not t.view_of
        ),
        compulsory_write=sum(t.bytes for t in chain.role(Role.OUTPUT)),
        no_l2_read=counted.total("l2", "read") + added_bytes,
        no_l2_write=counted.total("l2", "write"),
    )


def memory(chain: Chain) -> dict[str, int]:
    """`workspace`: bytes of the tensors made inside the chain that live at once, at most; `peak`: those and all inputs
    and outputs."""
    fixed = sum(
        t.allocated_bytes
        for t in chain.tensors.values()
        if t.role is not Role.TEMP and not t.view_of
    )
    # A temporary lives from its first launch to its last; the peak is over launches.
    lifetimes = [(t, chain.life(t.name)) for t in chain.role(Role.TEMP) if not t.view_of]
    live = [
        sum(t.bytes for t, used in lifetimes if used and used[0] <= n <= used[-1])
        for n in range(len(chain.launches))
    ]
    workspace = max(live, default=0)
    return {"workspace": workspace, "peak": fixed + workspace}
