"""PyTorch's memory-efficient kernel on a T4: what its sm_75 build takes, and its times beside published ones."""

from __future__ import annotations

from statistics import median

import pytest
from strategies import disagreements

from iosim.base.records import replace
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.prediction.predictor import predict
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem

MEASURED_MS = {512: 0.112, 2048: 1.386, 4096: 5.321, 8192: 21.284}
"""2 x 8 heads, head_dim 64, fp16, events in a loop (akashg71/gpu-attention @6584cce, results/benchmarks.md). Nothing
was fitted on them."""
PROFILED_MS, PROFILED_HZ = 1.28, 585e6
"""32 heads, head_dim 80, causal, 1,024 tokens: fmha_cutlassF_f16_aligned_32x128_rf_sm75 under Nsight Compute."""


def call(seq: int, clocks: str = "sustained") -> Prediction:
    problem = AttentionProblem(batch=2, heads=8, seq_q=seq, head_dim=64, dtype="fp16")
    return predict(problem, "cutlass", "t4", l2_start="warm", clocks=clocks, method="capacity")


@pytest.mark.parametrize("clocks", ["boost", "sustained"])
def test_published_times_of_a_t4_are_within_15_percent_and_inside_the_range(clocks: str) -> None:
    calls = {seq: call(seq, clocks) for seq in MEASURED_MS}
    off = [abs(1e3 * calls[seq].time_s / measured - 1) for seq, measured in MEASURED_MS.items()]
    assert median(off) < 0.15
    for seq, measured in MEASURED_MS.items():
        span = calls[seq].time_range
        assert span is not None
        assert span.seconds[0] < measured / 1e3 < span.seconds[1]


def test_a_profiled_call_at_a_known_clock() -> None:
    problem = AttentionProblem(heads=32, seq_q=1024, head_dim=80, dtype="fp16", mask="causal")
    p = predict(problem, "cutlass", "t4", clocks=PROFILED_HZ)
    assert 1e3 * p.time_s == pytest.approx(PROFILED_MS, rel=0.2)
    assert p.call.residencies[0].ctas_per_sm == 2  # 26,112 bytes of 65,536


@pytest.mark.parametrize(
    ("head_dim", "passes", "registers"),
    [(64, "fwd", 155), (128, "fwd", 162), (256, "fwd", 128), (64, "bwd", 211)],
)
def test_builds_for_sm_75_have_their_own_registers(
    head_dim: int, passes: str, registers: int
) -> None:
    problem = AttentionProblem(heads=4, seq_q=512, head_dim=head_dim, dtype="fp16", passes=passes)
    kernel = resolve("cutlass", problem, load_profile("t4"))
    assert (kernel.backward if passes == "bwd" else kernel).registers == registers


@pytest.mark.parametrize(("seq", "faster"), [(1024, 1.95), (2048, 1.99), (16384, 2.07)])
def test_flash_attention_turing_is_as_much_faster_as_its_readme_says(
    seq: int, faster: float
) -> None:
    """4 x 32 heads, head_dim 128, fp16, over PyTorch's memory-efficient kernel (Dao-AILab/flash-attention#1533)."""
    problem = AttentionProblem(batch=4, heads=32, seq_q=seq, head_dim=128, dtype="fp16")
    ours, theirs = (
        predict(problem, name, "t4", l2_start="warm", clocks="sustained", method="capacity").time_s
        for name in ("fa-turing", "cutlass")
    )
    assert theirs / ours == pytest.approx(faster, rel=0.06)


def test_sdpa_on_a_t4_says_that_it_exists() -> None:
    problem = AttentionProblem(heads=4, seq_q=512, head_dim=64, dtype="fp16")
    assert any(
        "kernel fa-turing" in note for note in resolve("sdpa", problem, load_profile("t4")).notes
    )
    assert not any(
        "fa-turing" in note for note in resolve("sdpa", problem, load_profile("v100")).notes
    )


def test_at_head_dim_256_it_names_the_kernel_of_that_width() -> None:
    problem = AttentionProblem(heads=4, seq_q=512, head_dim=256, dtype="fp16", mask="causal")
    (note,) = (n for n in resolve("sdpa", problem, load_profile("t4")).notes if "turing" in n)
    assert "kernel fa-turing-256" in note


@pytest.mark.parametrize(
    ("keys", "seconds"), [(4096, 2.178e-3), (8192, 8.125e-3), (65536, 117.2e-3)]
)
def test_the_kernel_of_256_columns_takes_as_long_as_its_author_says(
    keys: int, seconds: float
) -> None:
    """12 heads over 2 of keys, 8,192 queries at most, on an RTX 2080 Ti at 1,860 to 1,935 MHz (its d256_forward.md)."""
    problem = AttentionProblem(
        heads=12,
        kv_heads=2,
        seq_q=min(keys, 8192),
        seq_k=keys,
        head_dim=256,
        dtype="fp16",
        mask="causal",
    )
    conditions = {"l2_start": "warm", "clocks": "1897", "method": "capacity"}
    result = predict(problem, "fa-turing-256", "rtx-2080-ti", **conditions)
    assert result.time_s == pytest.approx(seconds, rel=0.15)
    assert result.kernel.tile.block_q == 64
    assert result.chain.launches[0].resources.threads == 256


def test_the_backward_of_flash_attention_turing_adds_to_nothing() -> None:
    """Launches of its source: row sums, CTAs that own keys, CTAs that own queries; these read all keys and values once
    for every 64 queries."""
    p = AttentionProblem(heads=2, seq_q=256, head_dim=128, dtype="fp16", mask="none", passes="bwd")
    result = predict(p, "fa-turing", "t4")
    assert [launch.name for launch in result.chain.launches] == ["bwd.dot", "bwd.main", "bwd.dq"]
    matrix_bytes = 2 * 256 * 128 * 2
    assert (
        result.traffic.total("l2", "read", launch="bwd.dq", tensor="K") == matrix_bytes * 256 // 64
    )
    assert result.traffic.total("l2", "write", launch="bwd.dq") == matrix_bytes
    assert (
        disagreements(
            replace(p, seq_q=70, seq_k=70, head_dim=64, head_dim_v=64), result.kernel, seed=1
        )
        == []
    )


def test_turing_moves_half_as_much_a_clock_at_shared_memory() -> None:
    per_clock = {
        gpu: load_profile(gpu).shared_memory_bytes_per_clock_per_sm for gpu in ("t4", "v100", "a10")
    }
    assert per_clock == {"t4": 64, "v100": 128, "a10": 128}


def test_what_is_loaded_passes_through_registers_before_ampere() -> None:
    """Without asynchronous copies a step's keys take the data path of shared memory twice."""
    bytes_a_step = 3 * 64 * 64 * 2
    launch = call(4096).time.launches[0]
    smem_cycles = launch.seconds["smem"] * (launch.clock_hz or 0.0) / (2 * 8 * 64 * 64 / 40)
    assert smem_cycles > bytes_a_step / 64 + 1600
