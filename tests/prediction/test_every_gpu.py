"""Every kernel of the catalog on every shipped GPU: a prediction, or one clear line of why there is none."""

from __future__ import annotations

import itertools

import pytest
from effort import quick_every

from iosim.base.errors import InputError
from iosim.catalog.libraries import choice_names, entry_names
from iosim.hardware.profile import list_profiles, load_profile
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem

KERNELS = [*entry_names(), *choice_names()]
ANYWHERE = ("naive", "eager", "flash", "math", "sdpa", "uniform")
"""Kernels that no GPU here is too old, too new or too small for."""


def own_dtype(kernel: str, cc: int) -> str:
    """The type that a kernel is for where it is for one alone, else the GPU's half precision."""
    alone = {"minimal": "fp32", "fa3-fp8": "fp8", "fa3-fp8-transposed": "fp8"}
    return alone.get(kernel, "bf16" if cc >= 80 else "fp16")


@pytest.mark.parametrize("gpu", quick_every(list_profiles(), 9))
def test_every_kernel_is_predicted_or_refused_in_a_line(gpu: str) -> None:
    cc = load_profile(gpu).cc
    predicted = set()
    for kernel, passes, head_dim in itertools.product(KERNELS, ("fwd", "bwd"), (64, 128)):
        dtype = own_dtype(kernel, cc)
        problem = AttentionProblem(
            seq_q=512, heads=4, head_dim=head_dim, dtype=dtype, passes=passes
        )
        try:
            prediction = predict(problem, kernel, gpu, method="bounds")
        except InputError as error:
            line = str(error)
            assert "\n" not in line
            assert len(line) < 320, line
            assert any(word in line for word in (kernel, "tile", passes)), line
            continue
        predicted.add(kernel)
        assert prediction.total("l2", "read") >= prediction.hbm_bounds.compulsory_read > 0, kernel
    amd = load_profile(gpu).is_amd
    assert predicted.issuperset({"flash", "naive", "uniform"} if amd else ANYWHERE), gpu


@pytest.mark.parametrize(
    "gpu", ["a30", "a40", "gb200", "h20", "h800", "l40", "rtx-5090", "rtx-a6000"]
)
def test_a_replay_on_every_new_gpu_stands_between_its_bounds(gpu: str) -> None:
    prediction = predict(
        AttentionProblem(seq_q=1024, heads=4, head_dim=128, dtype="bf16"),
        "fa2",
        gpu,
        method="replay",
    )
    bounds = prediction.hbm_bounds
    assert bounds.compulsory_read <= prediction.total("hbm", "read") <= 1.02 * bounds.no_l2_read
    assert prediction.time.total_s > 0
