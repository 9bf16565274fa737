"""Configurations and arguments that Triton's autotuner would hand over."""

from __future__ import annotations

from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem

H200 = load_profile("h200")


RECORDED = AttentionProblem(heads=32, seq_q=4096, head_dim=64, dtype="bf16")
