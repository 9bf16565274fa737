"""Continuous batches: sequences with contexts of different lengths, decoded in one launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.units import sizes
from iosim.hardware.profile import HardwareProfile
from iosim.problem.asked import lengths
from iosim.problem.attention import AttentionProblem
from iosim.studies.decode.decode import DecodePoint, ModelShape, sweep

MAX_SEQUENCES = 65_536
MAX_FILE_BYTES = 1_000_000


def read_contexts(text: str, option: str = "`batch_contexts`") -> list[int]:
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


def check_contexts(found: Sequence[int], option: str = "`batch_contexts`") -> list[int]:
    """The lengths, each a whole number of tokens.

    Raises:
        InputError: none, too many, or one below 1.
    """
    found = lengths(found, option.strip("`"))
    if not 1 <= len(found) <= MAX_SEQUENCES:
        raise InputError(f"{option} holds {len(found)} lengths; accepted: 1 to {MAX_SEQUENCES}")
    if min(found) < 1:
        raise InputError(f"{option} {min(found)} is out of range; accepted: 1 or more tokens")
    return found


@dataclass(frozen=True)
class BatchShape(ModelShape):
    """A model whose step has sequences of different contexts, all in one launch."""

    contexts: tuple[int, ...] = ()

    def call(self, batch: int, context: int, new_tokens: int) -> AttentionProblem:
        """One layer's call: `new_tokens` queries of every sequence against its own keys."""
        one = super().call(1, context, new_tokens)
        mask = one.mask if self.window is not None or new_tokens > 1 else "none"
        return one.with_(seq_q=new_tokens * len(self.contexts), seq_k=sum(self.contexts), mask=mask,
                         seq_lens=(new_tokens,) * len(self.contexts), seq_lens_k=self.contexts)  # fmt: skip

    def kept_bytes(self, batch: int, context: int) -> int | None:
        """Bytes of all layers' cache, whole pages of every sequence."""
        one = super().call(1, context, 1)
        width = one.head_dim + (0 if one.latent_kv else one.head_dim_v)
        page = self.page_size or 1
        rows = sum(-(-keys // page) * page for keys in self.contexts)
        return rows * one.kv_heads * width * one.input_type.bytes * self.layers


def sweep_batch(
    shape: ModelShape, contexts: Sequence[int], gpu: str | HardwareProfile, kernel: str, **settings: Any
) -> Iterator[DecodePoint]:
    """A step of sequences with these contexts in one launch; `settings` are keyword arguments of `decode_point`.

    Raises:
        InputError: fewer tokens than new ones in a sequence, tokens that are appended, or as `decode_point`.
    """
    new_tokens = settings.get("new_tokens", 1)
    if min(contexts) < new_tokens:
        raise InputError(
            f"`batch_contexts` {min(contexts)} is less than `new_tokens` {new_tokens}; accepted: as many or more"
        )
    overrides = settings.get("overrides")
    if overrides is not None and overrides.append_kv:
        raise InputError("`append_kv=True` contradicts `batch_contexts`; accepted with it: `context`")
    known = {field.name: getattr(shape, field.name) for field in fields(ModelShape)}
    batch = BatchShape(**known, contexts=tuple(contexts))
    return sweep(batch, [max(contexts)], gpu, kernel, **{**settings, "batch": len(contexts)})
