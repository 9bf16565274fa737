"""The instantiations of the Hopper kernels that benches and tests go through."""

from __future__ import annotations

import itertools
from dataclasses import replace

from sm90 import ACCEPTED, CC, PIPELINES, SCHEDULES, TURNS, Sm90Spec, fastest
from sm90_bwd import OVERLAPS, SUMS, Sm90BwdSpec, fastest_backward

from iosim import InputError
from iosim.evidence.cuda.spec import Spec


def variants(head_dim: int, mask: str = "none", dtype: str = "bf16") -> list[Sm90Spec]:
    """The fastest instantiation and others that differ from it in a knob or two; every knob takes all of its values."""
    first = fastest(head_dim, mask, dtype)
    several = [first]
    several += [replace(first, pipeline=p, turns=t) for p, t in itertools.product(PIPELINES, TURNS)]
    several += [
        replace(first, schedule=s, cluster=c) for s, c in itertools.product(SCHEDULES, (1, 2))
    ]
    several += [replace(first, stages=s) for s in (2, 3, 4)]
    several += [replace(first, q_stages=q, schedule=s) for q in (1, 2) for s in SCHEDULES]
    several += [replace(first, poly=p) for p in (1, 2, 4, 8)]
    several += [replace(first, pack=n) for n in (2, 4, 8, 16)]
    for consumers, block_k in itertools.product(ACCEPTED["consumers"], ACCEPTED["block_k"]):
        for pipeline, turns in (
            ("sequential", "free"),
            ("overlapped", "free"),
            ("eager", "products"),
        ):
            tile = replace(first, consumers=consumers, block_k=block_k, stages=2, q_stages=1)  # type: ignore[arg-type]
            several.append(replace(tile, pipeline=pipeline, turns=turns))
    return [spec for spec in dict.fromkeys(several) if exists(spec)]


def exists(spec: Spec) -> bool:
    """Whether an instantiation can be built."""
    try:
        spec.check(CC)
    except InputError:
        return False
    return True


def backward_variants(head_dim: int, mask: str = "none", dtype: str = "bf16") -> list[Sm90BwdSpec]:
    """Every instantiation that exists."""
    knobs = itertools.product((1, 2, 3), (1, 2), SUMS, OVERLAPS)
    first = fastest_backward(head_dim, mask, dtype)
    several = [
        replace(first, stages=n, score_stages=s, sums=sums, overlap=o) for n, s, sums, o in knobs
    ]
    return [spec for spec in several if exists(spec)]
