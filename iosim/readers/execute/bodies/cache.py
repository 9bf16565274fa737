"""Body of the launch that appends new tokens to the key/value cache."""

from __future__ import annotations

from iosim.readers.execute.place import Place
from iosim.readers.execute.registry import ExecutionError, body


@body("flash", "append")
def append(at: Place) -> None:
    """The rows of the new tokens; with pages, after their slots have been read (they follow each other here)."""
    p = at.problem
    if p.page_size is not None:
        wanted = [p.n_seq_k - p.seq_q + int(i) for i in at.q]
        if list(at["slot_mapping"][:, 0]) != wanted:
            raise ExecutionError("launch append reads the slots of other tokens")
    for name in ("K",) if p.latent_kv else ("K", "V"):
        at.put(f"{name}_cache", at[f"{name}_new"])
