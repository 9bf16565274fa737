"""What a call in a serving stack is where its options leave it open: causal, or a batch of contexts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.studies.decode.batches import check_contexts, read_contexts

MASKED = ("mask", "causal", "window", "window_right", "mask_file", "mask_blocks")
LENGTHS = ("batch", "seq_len", "seq_q", "seq_len_k", "seq_k", "seq_lens", "seq_lens_k", "prefix")


def as_served(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a problem with a causal mask where they name none."""
    masked = any(asked.get(name) not in (None, False) for name in MASKED)
    return {**asked, **({} if masked else {"causal": True})}


def of_contexts(contexts: str | Sequence[int], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a decoding step of sequences with these contexts, one new token each.

    Raises:
        InputError: other lengths beside them.
    """
    for name in LENGTHS:
        if asked.get(name) not in (None, 1):
            raise InputError(
                f"`{name}` {asked[name]} contradicts `batch_contexts`, which says the sequences; give one of them"
            )
    keys = read_contexts(contexts) if isinstance(contexts, str) else check_contexts(contexts)
    rest = {name: value for name, value in asked.items() if name not in LENGTHS}
    return {**rest, "mask": "none", "seq_lens": (1,) * len(keys), "seq_lens_k": tuple(keys)}
