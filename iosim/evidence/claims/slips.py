"""Problems that a claim may be of in place of the one that is meant, and factors that it may be off by."""

from __future__ import annotations

from collections.abc import Iterator

from iosim.base.errors import InputError
from iosim.evidence.claims.amount import BYTES, OTHER_UNIT, Amount
from iosim.evidence.claims.readings import Reading
from iosim.problem.attention import AttentionProblem


def other_problems(p: AttentionProblem) -> Iterator[tuple[str, AttentionProblem]]:
    """The slip in words, and the problem with it."""
    for words, values in _changes(p):
        try:
            yield words, p.with_(**values)
        except InputError:
            continue


def _changes(p: AttentionProblem) -> Iterator[tuple[str, dict[str, object]]]:
    if p.input_type.bytes == 2:
        yield f"fp32 in place of {p.dtype}", {"dtype": "fp32", "output": "fp32"}
    elif p.dtype == "fp32":
        yield "fp16 in place of fp32", {"dtype": "fp16", "output": "fp16"}
    if p.mask == "causal":
        yield "without the causal mask", {"mask": "none"}
    elif p.mask == "none" and p.seq_lens is None:
        yield "with a causal mask", {"mask": "causal"}
    for passes, words in (("fwd", "forward alone"), ("bwd", "backward alone"), ("fwd+bwd", "forward and backward")):
        if passes != p.passes:
            yield words, {"passes": passes}
    if p.group > 1:
        yield f"with {p.heads} key/value heads in place of {p.kv_heads}", {"kv_heads": p.heads}


def factors(p: AttentionProblem, claim: Amount, layers: int | None) -> Iterator[tuple[str, float]]:
    """The slip in words, and what it multiplies a number by."""
    if p.heads > 1:
        yield "of one head", 1 / p.heads
    if p.batch > 1:
        yield "of one sequence", 1 / p.batch
    if layers is not None and layers > 1:
        yield f"of all {layers} layers", float(layers)
    if claim.unit in BYTES:
        if p.input_type.bytes > 1:
            yield "elements in place of bytes", 1 / p.input_type.bytes
        if claim.unit in OTHER_UNIT:
            meant = OTHER_UNIT[claim.unit]
            yield f"{meant} written as {claim.unit}", BYTES[claim.unit] / BYTES[meant]


def with_factors(reading: Reading, p: AttentionProblem, claim: Amount, layers: int | None) -> Iterator[Reading]:
    """A reading, and the same with each factor."""
    yield reading
    for words, factor in factors(p, claim, layers):
        yield reading.slipped(words, factor)
