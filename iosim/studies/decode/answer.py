"""A decoding sweep's answer: tokens a second at the longest context, the bytes behind them, and the bound."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import bytes_text, seconds_text, some, times_of
from iosim.prediction.answer import ONCE, times_text, trust
from iosim.studies.decode.decode import DecodePoint
from iosim.studies.decode.stack import StackPoint


def answer(points: Sequence[DecodePoint]) -> str:
    """One sentence: at the longest context, a clause a GPU and kernel."""
    longest = max(p.context for p in points)
    here = [p for p in points if p.context == longest]
    clauses = [_clause(p) for p in here]
    first = here[0]
    of = ""
    if isinstance(first, StackPoint):
        gpus = f", on each of {first.model.tensor_parallel} GPUs" if first.model.tensor_parallel > 1 else ""
        of = f", in the {some(first.model.layers, 'layer')} of {first.model.title}{gpus},"
    basis = trust([one for p in here for one in p.predictions])
    return f"{_where(first)}{of} {'; '.join((*clauses, basis))}."


def _where(p: DecodePoint) -> str:
    """The context, or the sequences of a batch."""
    if p.prediction.problem.seq_lens is None:
        return f"At a context of {some(p.context, 'token')}"
    keys = [keys for _, keys in p.prediction.problem.sequences]
    return f"With {some(len(keys), 'sequence')} of {min(keys):,} to {max(keys):,} tokens in one launch,"


def _clause(p: DecodePoint) -> str:
    who = f"{p.kernel_name} on {p.prediction.profile.name}"
    each = "one token" if p.tokens == 1 else some(p.tokens, "token")
    text = f"{who} takes {seconds_text(p.step_s)} for a step of {each}, {some(p.tokens_per_s, 'token')} a second"
    text += " with attention alone"
    read = p.per_token("hbm", "read")
    if read is not None:
        times = read * p.tokens / p.cache_bytes
        whole = "the whole cache" if abs(times - 1) <= ONCE - 1 else times_of(times_text(times), "the cache")
        text += f", reading {bytes_text(read * p.tokens)} from HBM a step ({whole} of {bytes_text(p.cache_bytes)})"
    if p.bound_tokens_per_s is not None:
        share = 100 * p.tokens_per_s / p.bound_tokens_per_s
        text += f", {share:.0f} % of what HBM's bandwidth allows"
    if p.fits is False:
        weights = p.weight_bytes
        what = "the cache does" if weights is None else f"the cache and {bytes_text(weights)} of weights do"
        text += f", though {what} not fit in its memory"
    return text
