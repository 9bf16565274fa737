"""The papers' bounds at both levels of a GPU: the arithmetic, the crossovers, and what the command says of them."""

from __future__ import annotations

import json
import math

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.hardware.profile import list_profiles, load_profile
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.formula.theory import FLASH_CONSTANT, LevelBound, fast_memories, level_bounds

KIB, MIB = 1 << 10, 1 << 20


def bounds_of(problem: AttentionProblem, gpu: str = "a100") -> tuple[LevelBound, ...]:
    prediction = predict(problem, "flash", gpu, method="bounds")
    compulsory = prediction.hbm_bounds.compulsory_read + prediction.hbm_bounds.compulsory_write
    return level_bounds(
        problem, prediction.profile, compulsory, {"l2": prediction.total("l2"), "hbm": None}
    )


def test_fast_memories_of_an_a100() -> None:
    memories = fast_memories(load_profile("a100"))
    assert memories["l2"][1] == 164 * KIB + 256 * KIB  # shared memory and registers of an SM
    assert memories["hbm"][1] == 40 * MIB


def test_forward_in_numbers() -> None:
    """A100, one head of 4,096 tokens, d = 128, fp16: M = 420 KiB / 2 = 215,040 elements, and 40 MiB / 2."""
    sm, l2 = bounds_of(AttentionProblem(heads=1, seq_q=4096, head_dim=128))
    assert (sm.fast_elements, l2.fast_elements) == (215_040, 20_971_520)
    assert sm.term_bytes == pytest.approx(2 * 4096**2 * 128**2 / 215_040)  # 2.56 MB
    assert l2.term_bytes == pytest.approx(2 * 4096**2 * 128**2 / 20_971_520)  # 26 kB
    once = 4 * 4096 * 128 * 2 + 4096 * 4  # Q, K, V, O and an fp32 LSE a row: 4.21 MB
    assert sm.compulsory_bytes == l2.compulsory_bytes == once
    assert sm.bound_bytes == l2.bound_bytes == once
    assert sm.decided_by == l2.decided_by == "compulsory"
    # 2 N^2 d^2 / M = (8 d + 4) N bytes at N = (8 d + 4) M / (2 d^2) = 1,028 x 215,040 / 32,768 = 6,746.25
    assert sm.crossover_tokens == 6747
    assert l2.crossover_tokens == math.ceil(1028 * 20_971_520 / 32_768) == 657_920
    assert sm.crossover_head_dim == math.isqrt(215_040) == 463
    # Long enough, the term decides at the SMs, and only there.
    sm, l2 = bounds_of(AttentionProblem(heads=1, seq_q=65_536, head_dim=128))
    assert (sm.decided_by, l2.decided_by) == ("term", "compulsory")


def test_backward_in_numbers() -> None:
    """arXiv 2410.09397v2: (N^2 d^2 + N d^3) / M where M >= d^2."""
    sm, _ = bounds_of(AttentionProblem(heads=1, seq_q=4096, head_dim=128, passes="bwd"))
    assert sm.term_bytes == pytest.approx(2 * (4096**2 * 128**2 + 4096 * 128**3) / 215_040)
    both, _ = bounds_of(AttentionProblem(heads=1, seq_q=4096, head_dim=128, passes="fwd+bwd"))
    forward, _ = bounds_of(AttentionProblem(heads=1, seq_q=4096, head_dim=128))
    assert both.term_bytes == pytest.approx(forward.term_bytes + sm.term_bytes)
    assert "2402.07443" in both.source
    assert "2410.09397" in both.source


def test_where_m_is_less_than_d_squared() -> None:
    """Wide heads leave FlashAttention's regime at the SMs (M = 163,840 on a T4: d above 404), not at the L2."""
    wide = AttentionProblem(heads=1, seq_q=2048, head_dim=1024)
    profile = load_profile("t4")
    sm, l2 = level_bounds(wide, profile, 4 * 2048 * 1024 * 2, {})
    assert (sm.fast_elements, l2.fast_elements) == ((64 + 256) * KIB // 2, 4 * MIB // 2)
    assert not sm.large
    assert l2.large
    assert sm.term_bytes == pytest.approx(2 * 2048**2 * 1024 / math.sqrt(163_840))
    assert sm.term_bytes < 2 * 2048**2 * 1024**2 / 163_840  # what FlashAttention's term would be
    assert l2.term_bytes == pytest.approx(2 * 2048**2 * 1024**2 / 2_097_152)
    backward, _ = level_bounds(wide.with_(passes="bwd"), profile, 1, {})
    assert backward.term_bytes == pytest.approx(
        2 * (2048**2 * 1024 + 2048 * 1024**2) / math.sqrt(163_840)
    )


def test_masks_count_the_pairs_they_keep() -> None:
    base = AttentionProblem(heads=8, seq_q=4096, head_dim=64)
    full, _ = bounds_of(base)
    causal, _ = bounds_of(base.with_(mask="causal"))
    window, _ = bounds_of(base.with_(mask="window", window=127))
    assert causal.term_bytes / full.term_bytes == pytest.approx(
        (4096 + 1) / (2 * 4096)
    )  # N (N + 1) / 2 of N^2 pairs
    assert window.term_bytes / full.term_bytes == pytest.approx(128 / 4096, rel=0.02)
    assert window.crossover_tokens is None  # its pairs grow as the tokens do
    assert causal.crossover_tokens == pytest.approx(2 * (full.crossover_tokens or 0), rel=0.01)


@settings(deadline=None, max_examples=examples(40))
@given(
    gpu=st.sampled_from(list_profiles()),
    seq=st.integers(64, 4096),
    heads=st.integers(1, 8),
    group=st.sampled_from((1, 4)),
    head_dim=st.sampled_from([32, 64, 128, 256]),
    passes=st.sampled_from(["fwd", "bwd", "fwd+bwd"]),
    mask=st.sampled_from(["none", "causal"]),
    kernel=st.sampled_from(["flash", "naive"]),
)
def test_no_kernel_moves_less_between_sms_and_l2(
    gpu: str, seq: int, heads: int, group: int, head_dim: int, passes: str, mask: str, kernel: str
) -> None:
    problem = AttentionProblem(
        heads=heads * group, kv_heads=heads, seq_q=seq, head_dim=head_dim, passes=passes, mask=mask
    )
    try:
        prediction = predict(problem, kernel, gpu, method="bounds")
    except InputError:
        return  # tiles that do not fit there
    compulsory = prediction.hbm_bounds.compulsory_read + prediction.hbm_bounds.compulsory_write
    sm, l2 = level_bounds(
        problem, prediction.profile, compulsory, {"l2": prediction.total("l2"), "hbm": None}
    )
    assert (sm.times_above or 0) >= 1
    assert l2.bound_bytes <= sm.bound_bytes  # a larger fast memory needs no more
    assert l2.times_above is None


def test_a_tile_that_fills_the_memory_reaches_four_times_the_term() -> None:
    """Q and O of B rows fill M = 2 d B: K and V pass N / B times, 2 N^2 d / B = 4 N^2 d^2 / M elements."""
    n, d, m = 1 << 16, 64, 1 << 14
    b = m // (2 * d)
    assert 2 * n * n * d / b == FLASH_CONSTANT * n * n * d * d / m


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "formula",
        "fa2",
        "--bound",
        "--gpu",
        "a100",
        "--heads",
        "2",
        "--seq-len",
        "1k",
        "--head-dim",
        "128",
    ]
    assert main([*words, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    sm, l2 = data["bounds"]["levels"]
    assert (sm["level"], l2["level"]) == ("l2", "hbm")
    predicted = predict(AttentionProblem(heads=2, seq_q=1024, head_dim=128), "fa2", "a100")
    assert sm["moved_bytes"] == predicted.total("l2")
    assert l2["moved_bytes"] == predicted.total("hbm")
    assert sm["times_above"] == sm["moved_bytes"] / sm["bound_bytes"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert data["answer"] in out
    assert "times above" in out
    assert f"{l2['crossover_tokens']:,}" in out
    assert main([*words, "--format", "csv"]) == 0
    assert capsys.readouterr().out.count("\n") == 3  # a head and two levels
    assert main([*words, "--format", "md", "--pass", "bwd"]) == 0
    assert "|" in capsys.readouterr().out
    refused(capsys, ["formula", "fa2", "--bound", "--gpu", "t4"], "fa2")
