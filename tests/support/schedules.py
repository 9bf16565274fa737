"""Schedules of attention over several GPUs that tests ask for."""

from __future__ import annotations

import chunk_ranks as reader
import numpy as np
from executor import ExecutionError, random_arrays, reference
from hypothesis import strategies as st

from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed import (
    SCHEDULES,
    ChunkSchedule,
    build,
    link_bytes,
    schedules,
)

H100 = load_profile("h100")


@st.composite
def cases(draw: st.DrawFn) -> tuple[AttentionProblem, ChunkSchedule]:
    """Any schedule, ragged chunks, grouped heads, two widths, forward or backward."""
    causal = draw(st.booleans())
    name = draw(st.sampled_from(schedules(causal)))
    gpus = draw(st.integers(1, 9))
    kv_heads = draw(st.integers(1, 2))
    least = gpus * SCHEDULES[name].chunks_per_gpu
    problem = AttentionProblem(
        batch=draw(st.integers(1, 2)),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        seq_q=draw(st.integers(least, least + 40)),
        head_dim=draw(st.sampled_from((1, 4, 8))),
        head_dim_v=draw(st.sampled_from((None, 3))),
        mask="causal" if causal else "none",
        dtype=draw(st.sampled_from(("fp16", "fp32", "fp8"))),
    )
    return problem, build(name, problem, gpus, backward=draw(st.booleans()))


def errors(problem: AttentionProblem, schedule: ChunkSchedule, seed: int = 0) -> list[str]:
    """What the executing reader, the counter and dense attention do not agree on."""
    whole = problem.with_(passes="fwd+bwd")
    arrays = random_arrays(whole, seed)
    right = reference(whole, arrays)
    try:
        done = reader.execute(schedule, problem, arrays)
    except ExecutionError as error:
        return [str(error)]
    faults = [
        n for n, a in done.outputs.items() if not np.allclose(a, right[n], rtol=1e-9, atol=1e-9)
    ]
    counted = link_bytes(schedule, problem)
    if counted.received != done.received or counted.tensors != done.tensors:
        faults.append("bytes")
    return faults
