"""cuDNN on an A100: its own kernels and cudnn-frontend's open ones beside NVIDIA's times."""

from __future__ import annotations

from statistics import median

import pytest

from iosim.base.errors import InputError
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.schedule import Order, Start
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem

ROWS = (
    ("cudnn", 1, 16384, 16384, 64, 23.865443), ("cudnn", 1, 512, 65536, 64, 7.084582),
    ("cudnn", 1, 256, 65536, 64, 4.730223), ("cudnn", 1, 2048, 8192, 32, 1.400761),
    ("cudnn", 128, 1, 2048, 64, 0.647101), ("cudnn", 32, 8, 8192, 64, 2.76025),
    ("cudnn", 128, 16, 8192, 64, 11.153144), ("cudnn_oss", 1, 16384, 16384, 32, 12.26057),
    ("cudnn_oss", 1, 2048, 32768, 64, 12.311015), ("cudnn_oss", 1, 256, 32768, 32, 1.277475),
    ("cudnn_oss", 32, 8, 8192, 64, 6.40166),
)  # fmt: skip
"""(kernel, batch, queries, keys, heads, ms) of an A100 80GB PCIe, a key/value head for 8 heads, head_dim 128, bf16
(NVIDIA/cudnn-frontend, benchmark/attention_inference/results, cuDNN 9.27)."""


def problem_of(batch: int, queries: int, keys: int, heads: int) -> AttentionProblem:
    mask = "causal" if queries > 1 else "none"
    sizes = {
        "batch": batch,
        "heads": heads,
        "kv_heads": heads // 8,
        "seq_q": queries,
        "seq_k": keys,
    }
    return AttentionProblem(head_dim=128, dtype="bf16", mask=mask, **sizes)


@pytest.mark.parametrize("clocks", ["boost", "sustained"])
def test_nvidias_times_are_met(clocks: str) -> None:
    off = []
    for kernel, *sizes, ms in ROWS:
        problem = problem_of(*sizes)
        p = predict(
            problem, kernel, "a100-pcie-80gb", l2_start="warm", clocks=clocks, method="capacity"
        )
        off.append(1e3 * p.time_s / ms - 1)
        span = p.time_range
        assert span is not None
        assert span.seconds[0] < ms / 1e3 < span.seconds[1], (kernel, sizes)
    assert median(map(abs, off)) < 0.08


def test_few_tokens_take_whole_tiles_and_pack_no_group() -> None:
    """Decoding 8 tokens moves keys at 0.4 TB/s: 8 heads each fetch them again, and multiply tiles of 64 rows."""
    a100 = load_profile("a100")
    few, eight, many = (resolve("cudnn", problem_of(32, n, 8192, 64), a100) for n in (1, 8, 2048))
    assert few.packs_group
    assert not eight.packs_group
    assert (eight.tile.block_q, many.tile.block_q) == (64, 128)


def test_the_name_stands_for_the_kernels_of_the_gpu() -> None:
    problem = problem_of(1, 1024, 1024, 16)
    names = {
        gpu: resolve("cudnn", problem, load_profile(gpu)).name
        for gpu in ("a100", "rtx-a6000", "l4", "h100")
    }
    assert names == {
        "a100": "cudnn-sm80",
        "rtx-a6000": "cudnn-sm80",
        "l4": "cudnn-sm80",
        "h100": "cudnn",
    }
    for gpu, words in (("b200", "cc 10.0 is not known"), ("rtx-5090", "cc 12.0 is not known")):
        with pytest.raises(InputError, match=words):
            resolve("cudnn", problem, load_profile(gpu))


def test_open_kernels_start_heads_that_fit_16_mib_together() -> None:
    causal = problem_of(1, 8192, 8192, 64)  # K and V of a head: 4 MiB
    schedule = resolve("cudnn_oss", causal, load_profile("a100")).schedule
    assert (schedule.order, schedule.start, schedule.section_heads) == (
        Order.HEAD,
        Start.HEAVY_FIRST,
        4 * 8,
    )
    dense = resolve("cudnn_oss", causal.with_(mask="none"), load_profile("a100")).schedule
    assert dense.order is Order.QUERY


def backward(head_dim: int, mask: str = "none", **more: int) -> AttentionProblem:
    sizes = {"batch": 2, "heads": 16, "seq_q": 4096, **more}
    return AttentionProblem(head_dim=head_dim, dtype="fp16", mask=mask, passes="bwd", **sizes)


def test_open_kernels_stand_in_where_cudnns_own_are_not_described() -> None:
    a100, l4 = load_profile("a100"), load_profile("l4")
    wide = AttentionProblem(heads=16, seq_q=1024, head_dim=256, dtype="fp16")
    for problem, why in ((wide, "is compiled for 64, 128"), (backward(128), "no model of it")):
        kernel = resolve("cudnn", problem, a100)
        assert kernel.name == "cudnn-oss-sm80"
        assert any("stands in" in note and why in note for note in kernel.notes)
        with pytest.raises(InputError, match=why):  # they need cc 8.0
            resolve("cudnn", problem, l4)
    both = resolve("cudnn", backward(128).with_(passes="fwd+bwd"), a100)
    assert both.name == "cudnn-oss-sm80"
    with pytest.raises(InputError, match=r"accepted there: .*\bfa2\b"):
        resolve("cudnn", wide, l4)
    with pytest.raises(InputError, match="copies pad other widths"):
        resolve("cudnn", backward(96), a100)


def test_the_open_backward_moves_what_its_source_says() -> None:
    """A CTA owns 64 keys (128 at 64 columns) and walks all queries: Q and dO of every head once for each of them, and
    an addition of fp32 to dQ."""
    for head_dim, keys in ((64, 128), (128, 64), (256, 64)):
        p = predict(backward(head_dim), "cudnn", "a100", method="capacity")
        (main,) = (launch for launch in p.chain.launches if launch.name == "bwd.main")
        matrix = 2 * 16 * 4096 * head_dim * 2
        moved = {
            (r.tensor, r.direction): r.bytes
            for r in p.traffic
            if r.level == "l2" and r.launch == "bwd.main"
        }
        blocks = 4096 // keys
        assert main.work_tiles == 2 * 16 * blocks
        assert moved["Q", "read"] == moved["dO", "read"] == blocks * matrix
        assert moved["dQ_acc", "write"] == blocks * 2 * matrix
        assert moved["dK", "write"] == moved["dV", "write"] == matrix


def test_a_causal_backward_starts_the_first_keys_of_several_heads() -> None:
    a100 = load_profile("a100")
    causal, plain = (resolve("cudnn", backward(128, mask), a100) for mask in ("causal", "none"))
    # Q, dO and fp32 dQ of a head: 4096 x (256 + 256 + 512) x ... bytes; 32 MiB hold eight.
    assert 4096 * (2 * 128 * 2 + 128 * 4) * 8 == 32 << 20
    assert (causal.backward.schedule.order, causal.backward.schedule.section_heads) == (
        Order.HEAD,
        8,
    )
    assert plain.backward.schedule.order is Order.QUERY


def test_a_speed_that_the_source_states_lies_in_the_range() -> None:
    """bprop_f16_sm80.py: 89 TFLOP/s at 2 x 16 heads of 4,096 tokens, head_dim 128, on an A100."""
    p = predict(backward(128), "cudnn", "a100", method="capacity")
    span = p.time_range
    assert span is not None
    assert span.untimed
    assert span.seconds[0] < 2.5 * 4 * 32 * 4096**2 * 128 / 89e12 < span.seconds[1]
