"""What one decoding launch does for each of its sequences: splits, work tiles, keys of a split."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from iosim.kernel.libraries import split_alike
from iosim.prediction.result import Prediction
from iosim.show.tables import Column, Table

COLUMNS = (
    Column("gpu", "gpu"), Column("kernel", "kernel"), Column("context", "context", "count"),
    Column("sequences", "sequences", "count"), Column("splits", "splits", "count"),
    Column("keys_per_split", "keys a split", "count"), Column("work_tiles", "work tiles", "count"),
)  # fmt: skip


@dataclass(frozen=True)
class SequenceWork:
    """The sequences of one context length, in one launch."""

    context: int
    sequences: int
    splits: int
    keys_per_split: int
    work_tiles: int
    """Of all these sequences, over all heads."""

    def to_dict(self) -> dict[str, Any]:
        return {"context": self.context, "sequences": self.sequences, "splits": self.splits,
                "keys_per_split": self.keys_per_split, "work_tiles": self.work_tiles}  # fmt: skip


def work_of(prediction: Prediction) -> list[SequenceWork]:
    """By context, in ascending order; nothing of kernels whose scores pass through memory.

    FlashAttention-2 gives every sequence as many splits; others' splits have one length, so that a longer sequence
    has more of them.
    """
    domain = next((launch.domain for launch in prediction.chain.launches if launch.name == "main"), None)
    if domain is None:
        return []
    each = Counter(prediction.problem.sequences)
    most_blocks = max(-(-keys // domain.block_k) for _, keys in each)
    blocks_each = -(-most_blocks // domain.splits)
    found = []
    for (queries, keys), sequences in sorted(each.items(), key=lambda one: one[0][1]):
        blocks = -(-keys // domain.block_k)
        per = -(-blocks // domain.splits) if split_alike(prediction.kernel.name) else blocks_each
        splits = -(-blocks // per)
        tiles = sequences * domain.heads * -(-queries * domain.pack // domain.block_q) * splits
        found.append(SequenceWork(keys, sequences, splits, min(keys, per * domain.block_k), tiles))
    return found


def work_table(predictions: list[Prediction]) -> Table:
    """A row a GPU, kernel and context."""
    return Table(COLUMNS, tuple(
        (p.profile.name, p.kernel.name, w.context, w.sequences, w.splits, w.keys_per_split, w.work_tiles)
        for p in predictions for w in work_of(p)
    ))  # fmt: skip
