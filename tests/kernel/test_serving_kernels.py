"""Serving kernels: what each rule book decides, by hand-worked cases; readers that agree; caches in fp8."""

from __future__ import annotations

from typing import Any

import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import disagreements

from iosim.base.errors import InputError
from iosim.hardware.profile import load_profile
from iosim.kernel.algorithms import options_of, plan
from iosim.kernel.algorithms.flash import FlashOptions
from iosim.kernel.kernel import Kernel
from iosim.kernel.libraries import Overrides, resolve
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.count import count

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


def asked(**values: Any) -> AttentionProblem:
    shape: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bf16", "mask": "causal"}
    return AttentionProblem(**(shape | {"page_size": 64} | values))


def kernel(name: str, gpu: str, problem: AttentionProblem) -> Kernel:
    return resolve(name, problem, load_profile(gpu))


@pytest.mark.parametrize(
    ("values", "tile", "splits", "packs"),
    [
        ({"seq_q": 4096}, "16x32", 1, True),
        ({"seq_q": 4096, "kv_heads": 32}, "16x32", 1, False),
        ({"seq_q": 4096, "heads": 24}, "15x32", 1, True),  # groups of 3: 5 tokens of the 16 rows
        ({"seq_q": 4096, "heads": 192}, "24x32", 1, True),  # groups of 24: the next power of two, one token
        ({"seq_q": 4096, "heads": 512}, "64x32", 1, True),
        ({"seq_k": 8192}, "16x16", 16, True),
        ({"seq_k": 8192, "batch": 16}, "16x16", 16, True),  # 16 sequences x 8 heads are 128
        ({"seq_k": 8192, "batch": 17}, "16x32", 1, True),
        ({"seq_k": 8192, "seq_q": 2}, "16x32", 1, True),
        ({"seq_k": 272}, "16x16", 9, True),  # 17 blocks in 16 segments: two each, so that nine have keys
        ({"seq_k": 8192, "mask": "window", "window": 1023}, "16x32", 16, True),  # Gemma 3's
        ({"seq_k": 8192, "mask": "window", "window": 1024}, "16x16", 16, True),
    ],
)
def test_unified_attention_in_triton(values: dict[str, Any], tile: str, splits: int, packs: bool) -> None:
    made = kernel("vllm-triton", "l40s", asked(**values))
    assert (str(made.tile), made.splits, made.packs_group) == (tile, splits, packs)


def test_prefill_in_tiles_of_16_rows_reads_keys_eight_times_as_often_as_in_tiles_of_128() -> None:
    problem = asked(seq_q=4096, kv_heads=32, page_size=None, mask="none")
    unified, fa2 = (count(plan(problem, kernel(name, "a100", problem))) for name in ("vllm-triton", "fa2"))
    keys = 32 * 4096 * 128 * 2
    assert unified.total("l2", "read", tensor="K") == 4096 // 16 * keys
    assert unified.total("l2", "read", tensor="K") == 8 * fa2.total("l2", "read", tensor="K")


def test_shared_memory_of_unified_attention_is_what_triton_allocates() -> None:
    """What Triton 3.6 allocates for a kernel of the same steps, less the block table's entries of a step."""
    for values, compiled, table in (
        ({"seq_q": 4096}, 21_760, 256),
        ({"seq_k": 8192}, 12_928, 128),
        ({"seq_q": 4096, "head_dim": 192, "cache_dtype": "fp8"}, 57_600, 256),
        ({"seq_k": 8192, "head_dim": 192, "cache_dtype": "fp8"}, 32_896, 128),
    ):
        shared = kernel("vllm-triton", "h100", asked(**values)).shared_memory_bytes
        assert shared == pytest.approx(compiled - table, rel=0.02)


def test_the_combine_looks_for_its_sequence() -> None:
    few, many = (kernel("vllm-triton", "h100", asked(seq_k=8192, batch=n)) for n in (1, 16))
    waits = [options_of(one, FlashOptions).combine_waits for one in (few, many)]
    assert waits == [2, 6]  # a search over 1 or 16 sequences, then the length of one


# Caches in fp8.


@st.composite
def small_calls(draw: st.DrawFn) -> AttentionProblem:
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 5))
    seq_q = draw(st.sampled_from((1, 1, 5, 40)))
    mask = draw(st.sampled_from(("none", "causal", "window")))
    return AttentionProblem(
        batch=draw(st.integers(1, 2)), heads=kv_heads * group, kv_heads=kv_heads, seq_q=seq_q,
        seq_k=seq_q + draw(st.integers(0, 90)), head_dim=draw(st.sampled_from((16, 32))), dtype="bf16", mask=mask,
        window=draw(st.integers(0, 60)) if mask == "window" else None, page_size=16,
        cache_dtype=draw(st.sampled_from((None, "fp8"))),
    )  # fmt: skip


@settings(max_examples=examples(40), deadline=None, suppress_health_check=QUIET)
@given(problem=small_calls(), seed=st.integers(0, 3), appends=st.booleans())
@pytest.mark.parametrize("name", ["vllm-triton"])
def test_readers_agree_on_what_the_catalog_makes(
    name: str, problem: AttentionProblem, seed: int, appends: bool
) -> None:
    made = resolve(name, problem, load_profile("a100"), Overrides(append_kv=appends))
    assert disagreements(problem, made, seed=seed) == []


def test_a_cache_in_fp8_moves_half_the_bytes_and_costs_instructions() -> None:
    wide, narrow = (asked(seq_k=8192, cache_dtype=dtype) for dtype in (None, "fp8"))
    profile = load_profile("l40s")
    made = [resolve("vllm-triton", p, profile, Overrides(append_kv=True)) for p in (wide, narrow)]
    calls = [Call.of(p, k, profile) for p, k in zip((wide, narrow), made, strict=True)]
    for tensor in ("K", "V"):
        whole, half = (call.counted.total("l2", "read", tensor=tensor) for call in calls)
        assert whole == 2 * half == 8 * 8192 * 128 * 2
    whole, half = (call.counted.total("l2", "write", tensor="K_cache") for call in calls)
    assert whole == 2 * half == 8 * 128 * 2
    assert calls[1].counted.total("l2", "read", tensor="K_new") == whole  # it comes as it was computed
    loops = [call.chain.launches[1].work.loop.score_operations for call in calls]
    # 4 instructions a value of K and V, for 16 rows: warps divide the keys
    assert loops == [3, 3 + 4 * 256 / 16]


def test_a_cache_in_fp8_is_refused_where_none_can_be() -> None:
    with pytest.raises(InputError, match="cache_dtype fp8 contradicts dtype 'fp32'; accepted with it: fp16, bf16"):
        asked(dtype="fp32", cache_dtype="fp8")
    with pytest.raises(InputError, match="cache_dtype=fp8 contradicts passes 'bwd'"):
        asked(cache_dtype="fp8", page_size=None, passes="bwd")
    with pytest.raises(InputError, match=r"cache_dtype=fp8: kernel fa2 does not take it; accepted by: .*vllm-triton"):
        kernel("fa2", "a100", asked(cache_dtype="fp8", page_size=256))
