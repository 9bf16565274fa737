"""A model's answer in one sentence: the time, the bytes and the key/value cache of all its layers' attention."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import bytes_text, seconds_text, some
from iosim.prediction.answer import against, left_in_l2, trust
from iosim.studies.models.prediction import ModelPrediction

MOST_NAMED = 6
"""Results that a sentence names."""


def answer(results: Sequence[ModelPrediction]) -> str:
    """One sentence on a model, on each GPU and with each kernel, at the longest length."""
    longest = max((one.keys, one.queries) for one in results)
    taken = [one for one in results if (one.keys, one.queries) == longest]
    first = taken[0]
    batches = len({one.batch for one in taken}) > 1
    clauses = [_clause(one) + (f" at batch {one.batch:,}" if batches else "") for one in taken[:MOST_NAMED]]
    more = [f"and {len(taken) - MOST_NAMED} more"] if len(taken) > MOST_NAMED else []
    largest = max(one.cache_bytes for one in taken)
    kept = largest > 0 and first.predictions[0].problem.passes == "fwd"
    cache = f"; the key/value cache then takes {'up to ' * batches}{bytes_text(largest)}" if kept else ""
    basis = trust([p for one in taken for p in one.predictions])
    return f"{_subject(first, batches)} {'; '.join((*clauses, *more))}{cache}; {basis}."


def _subject(one: ModelPrediction, batches: bool) -> str:
    layers = f"the {some(one.model.layers, 'layer')}" if one.model.layers > 1 else "the one layer"
    sequences = "" if one.batch == 1 or batches else f"{some(one.batch, 'sequence')} of "
    if one.keys == one.queries:
        at = f"over {sequences}{some(one.keys, 'token')}"
    else:
        news = "one new token" if one.queries == 1 else some(one.queries, "new token")
        at = f"of {news} over {sequences}{one.keys:,}"
    gpus = f" (each of {one.model.tensor_parallel} GPUs)" if one.model.tensor_parallel > 1 else ""
    passes = {"bwd": " backward", "fwd+bwd": " forward and backward"}.get(one.predictions[0].problem.passes, "")
    return f"Attention{passes} of {layers} of {one.model.title}{gpus} {at} takes"


def _clause(one: ModelPrediction) -> str:
    text = f"{seconds_text(one.time_s)} on {one.profile.name} with {one.kernels}"
    if one.hbm_known:
        read, least = one.hbm.read, one.compulsory.read
        how = against(read, least)
        if left_in_l2(read, least, one.predictions[0].l2_start):
            how = f"each layer finds of the compulsory {bytes_text(least)} what its own call before left in the L2"
        text += f", reading {bytes_text(read)} from HBM ({how}) and {bytes_text(one.l2.read)} from L2"
    return text
