"""Calls of serving stacks that tests ask for."""

from __future__ import annotations

from iosim.catalog.libraries import resolve
from iosim.catalog.serving import read_stack
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel
from iosim.problem.attention import AttentionProblem
from iosim.studies.latency.calibration import Calibration


def decoding(
    context: int, batch: int = 1, heads: int = 32, kv_heads: int = 8, head_dim: int = 128
) -> AttentionProblem:
    return AttentionProblem(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        seq_q=1,
        seq_k=context,
        head_dim=head_dim,
        dtype="bf16",
        page_size=64,
    )


def prompt(
    tokens: int, heads: int = 32, kv_heads: int = 8, head_dim: int = 128
) -> AttentionProblem:
    return AttentionProblem(
        heads=heads,
        kv_heads=kv_heads,
        seq_q=tokens,
        head_dim=head_dim,
        dtype="bf16",
        mask="causal",
        page_size=64,
    )


def kernel(stack: str, problem: AttentionProblem, gpu: str) -> Kernel:
    profile = load_profile(gpu)
    return resolve(read_stack(stack).kernel(profile), problem, profile)


TRUE = Calibration(12e-6, 0.93, 1.05, 0.12, 1.3)
