"""Prompts that sequences share, in every kernel that reads keys through pages: the same pages are the same lines."""

from __future__ import annotations

import pytest

from iosim.base.errors import InputError
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.prediction.call import Call
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem

KERNELS = (
    ("vllm-fa3", "h100", 16),
    ("vllm-triton", "l4", 16),
    ("fa2", "a100", 256),
    ("fa3", "h100", 16),
    ("flashinfer", "rtx-5060-ti", 16),
    ("flash", "a100", 16),
    ("xqa", "b200", 64),
)
COUNTED = {(8, 1024): 87.0, (12, 1024): 91.3, (4, 4096): 74.8, (32, 8192): 96.7}
"""(sequences, keys): percent of the L2's sectors that hit, one token each over the same pages; FlashInfer's decode on
an RTX 5060 Ti, cold (StevenWang-CY/sglang-attention-reproducibility @52e58e9)."""


def decoding(sequences: int, keys: int, page: int, shared: int | None) -> AttentionProblem:
    sizes = {
        "batch": sequences,
        "heads": 16,
        "kv_heads": 8,
        "seq_q": 1,
        "seq_k": keys,
        "head_dim": 128,
    }
    return AttentionProblem(dtype="bf16", page_size=page, shared_prefix=shared, **sizes)


@pytest.mark.parametrize(("kernel", "gpu", "page"), KERNELS)
def test_sequences_over_the_same_pages_read_them_once(kernel: str, gpu: str, page: int) -> None:
    """R sequences hit (R - 1) / R of what they ask for, and the SMs ask for as much as ever."""
    alone, same = (
        predict(decoding(8, 4096, page, shared), kernel, gpu, ecc="off") for shared in (None, 4096)
    )
    assert same.l2 == alone.l2
    missed = 1 - (alone.l2_hit_rate or 0.0)
    assert 1 - (same.l2_hit_rate or 0.0) == pytest.approx(missed / 8, abs=0.01)
    once = 2 * 8 * 4096 * 256
    assert same.hbm.read == pytest.approx(once, rel=0.08)
    assert alone.hbm.read == pytest.approx(8 * once, rel=0.03)
    assert same.hbm_bounds.compulsory_read == pytest.approx(once, rel=0.01)
    assert same.call.capacity().total("hbm", "read") == pytest.approx(once, rel=0.08)
    assert same.memory_bytes["peak"] < alone.memory_bytes["peak"] - 6 * once


@pytest.mark.parametrize(("kernel", "gpu", "page"), KERNELS)
def test_what_follows_the_prefix_is_each_sequences_own(kernel: str, gpu: str, page: int) -> None:
    part = predict(decoding(8, 4096, page, 2048), kernel, gpu, ecc="off")
    expected = 2 * 8 * 256 * (2048 + 8 * 2048)
    assert part.hbm.read == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("sequences", "keys"), COUNTED)
def test_hits_are_those_that_were_counted(sequences: int, keys: int) -> None:
    p = predict(decoding(sequences, keys, 128, keys), "flashinfer-decode", "rtx-5060-ti")
    assert 100 * (p.l2_hit_rate or 0) == pytest.approx(COUNTED[sequences, keys], abs=0.7)


def test_packed_sequences_share_too() -> None:
    lengths = (3072, 4096, 3584, 4096)
    packed = AttentionProblem(
        heads=16,
        kv_heads=8,
        head_dim=128,
        dtype="bf16",
        page_size=16,
        shared_prefix=2048,
        seq_lens=(1,) * 4,
        seq_lens_k=lengths,
    )
    p = predict(packed, "vllm-fa3", "h100")
    assert p.hbm.read == pytest.approx(2 * 8 * 256 * (sum(lengths) - 3 * 2048), rel=0.08)


def test_whole_pages_are_shared_and_no_keys_without_pages() -> None:
    p = decoding(4, 4096, 256, 1000)
    call = Call.of(p, resolve("fa2", p, load_profile("a100")), load_profile("a100"))
    assert call.chain.tensors["K"].shared_rows == 768
    with pytest.raises(InputError, match="without page_size: keys are shared through the pages"):
        predict(p.with_(page_size=None), "fa2", "a100")
