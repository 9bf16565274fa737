"""One operator's traffic, as it ran."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class OperatorTraffic:
    """One operator as it ran: `hbm_*` are what moves while it runs, dirty lines of others among the written ones."""

    module: tuple[str, ...]
    """Where it stands in the module tree, the root first."""
    operator: str
    """Its name."""
    phase: str
    """forward or backward."""
    kernel: str
    """The attention kernel; empty for others."""
    launches: int
    """Kernel launches."""
    hbm_read: int
    """Bytes read from HBM."""
    hbm_write: int
    """Bytes written to HBM."""
    l2_read: int
    """Bytes read between SMs and L2."""
    l2_write: int
    """Bytes written between SMs and L2."""
    compulsory: int
    """Bytes of its inputs and outputs, each once."""
    flops: int
    """Operations of matrix products."""
    time_s: float
    """Seconds on the GPU."""
    known: bool = True
    """Whether there is a rule for it; else inputs and outputs are counted once."""
    is_attention: bool = False
    """Whether it is attention."""

    @property
    def hbm(self) -> int:
        """Bytes read and written at HBM."""
        return self.hbm_read + self.hbm_write

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "module": ".".join(self.module)}
