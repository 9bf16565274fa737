"""Continuous batches: sequences with contexts of different lengths, decoded in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.units import sizes
from iosim.problem.attention import AttentionProblem

MAX_SEQUENCES = 65_536
MAX_FILE_BYTES = 1_000_000


def read_contexts(text: str, option: str = "`contexts`") -> list[int]:
    """Context lengths from a text such as 1k,4k,32k, or from a file with a number or more a line.

    Raises:
        InputError: no such file, no numbers, or too many.
    """
    words = text
    if "/" in text or text.lower().endswith((".txt", ".csv")):
        try:
            with open(Path(text), encoding="utf-8") as file:
                words = ",".join(file.read(MAX_FILE_BYTES).replace(",", " ").split())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "no text"
            raise InputError(f"{option} '{text}' cannot be read: {reason}; accepted: lengths such as 1k,4k, or a file "
                             "of them") from None  # fmt: skip
    return check_contexts(sizes(words, option), option)


def check_contexts(found: Sequence[int], option: str = "`contexts`") -> list[int]:
    """The lengths, each a whole number of tokens.

    Raises:
        InputError: none, too many, or one below 1.
    """
    if not 1 <= len(found) <= MAX_SEQUENCES:
        raise InputError(f"{option} holds {len(found)} lengths; accepted: 1 to {MAX_SEQUENCES}")
    if min(found) < 1:
        raise InputError(f"{option} {min(found)} is out of range; accepted: 1 or more tokens")
    return list(found)


@dataclass(frozen=True)
class SequenceWork:
    """What one launch does for the sequences of one length."""

    context: int
    sequences: int
    splits: int
    work_tiles: int
    keys_per_split: int

    def to_dict(self) -> dict[str, Any]:
        return {"context": self.context, "sequences": self.sequences, "splits": self.splits,
                "work_tiles": self.work_tiles, "keys_per_split": self.keys_per_split}  # fmt: skip


def batch_problem(shape_problem: AttentionProblem, contexts: Sequence[int]) -> AttentionProblem:
    """A decoding step of sequences with these contexts, from the same of one sequence."""
    one = shape_problem
    return one.with_(batch=1, seq_q=len(contexts), seq_k=sum(contexts), seq_lens=(one.seq_q,) * len(contexts),
                     seq_lens_k=tuple(contexts), mask="none")  # fmt: skip
