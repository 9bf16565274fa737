"""SageAttention: the passes before its main launch, operands of several types, and what both cost."""

from __future__ import annotations

from typing import Any

import pytest
from counter import count
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import disagreements

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.algorithms.fp8 import Fp8Options, Smooth, Transpose
from iosim.catalog.libraries import resolve
from iosim.evidence.reproduce.paper import sections
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain
from iosim.kernel.unit import UNITS, MatrixUnit
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.rates import Rates

TENSOR = 2 * 1024 * 128
"""Elements of an operand of two heads, 1,024 tokens, head_dim 128."""


def problem(**values: Any) -> AttentionProblem:
    return AttentionProblem(
        **({"heads": 2, "seq_q": 1024, "head_dim": 128, "dtype": "fp16"} | values)
    )


def chain(gpu: str, case: AttentionProblem) -> Chain:
    return plan(case, resolve("sage", case, load_profile(gpu)))


def moved(gpu: str, case: AttentionProblem) -> dict[str, tuple[int, int]]:
    """Bytes that each launch reads and writes, scales and means left out."""
    planned = chain(gpu, case)
    rows = [r for r in count(planned) if not r.tensor.endswith(("_scale", "_mean"))]
    return {
        launch.name: tuple(
            sum(int(r.bytes) for r in rows if (r.launch, r.direction) == (launch.name, way))
            for way in ("read", "write")
        )  # type: ignore[misc]
        for launch in planned.launches
    }


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_readers_agree_and_the_output_is_attention(data: st.DataObject) -> None:
    heads = data.draw(st.sampled_from([(1, 1), (4, 2)]))
    attention = AttentionProblem(
        heads=heads[0],
        kv_heads=heads[1],
        seq_q=data.draw(st.integers(1, 30)),
        seq_k=data.draw(st.integers(1, 30)),
        head_dim=data.draw(st.sampled_from([4, 8])),
        dtype="fp8",  # whose tolerance is that of copies of a byte
        mask=data.draw(st.sampled_from(["none", "causal"])),
    )
    options = Fp8Options(
        transpose_v=data.draw(st.sampled_from(Transpose)),
        narrow=("int8", "int8", data.draw(st.sampled_from(["fp16", "fp8"]))),
        products="int8+fp8",
        scale_rows=data.draw(st.sampled_from([(), (2, 3)])),
        smooth_k=data.draw(st.sampled_from(Smooth)),
    )
    assert disagreements(attention, Kernel("sage", "flash_fp8", Tile(8, 6), options=options)) == []


def test_passes_on_an_a100_leave_v_in_16_bits() -> None:
    two = TENSOR * 2
    assert moved("a100", problem()) == {
        "mean_K": (two, 0),
        "smooth_K": (two, two),
        "quantise_Q": (two, TENSOR),
        "quantise_K": (two, TENSOR),
        "main": (TENSOR + 8 * (TENSOR + two), two),  # Q once; K and V for each of 8 query blocks
    }
    assert moved("a100", problem(dtype="bf16"))["cast_V"] == (two, two)


def test_passes_where_v_becomes_fp8_transpose_it_first_and_read_its_columns_twice() -> None:
    two = TENSOR * 2
    for gpu, blocks in (("l40s", 8), ("h100", 16)):  # of 128 and of 64 query rows
        moved_bytes = moved(gpu, problem())
        assert list(moved_bytes)[2:] == [
            "quantise_Q",
            "quantise_K",
            "transpose_V",
            "quantise_V",
            "main",
        ]
        assert moved_bytes["transpose_V"] == (two, two)
        assert moved_bytes["quantise_V"] == (2 * two, TENSOR)
        assert moved_bytes["main"] == (TENSOR + blocks * 2 * TENSOR, two)
    assert "smooth_K" not in moved(
        "rtx-5090", problem()
    )  # its quantisation of K subtracts the mean


@pytest.mark.parametrize(
    ("gpu", "q", "k"),
    [("a100", 256, 64), ("rtx-3090", 8, 16), ("h100", 512, 32), ("rtx-5090", 32, 16)],
)
def test_a_scale_belongs_to_the_rows_of_a_thread_a_warp_or_a_block(
    gpu: str, q: int, k: int
) -> None:
    """Of a head: programs that quantise, a scale each, a sector each; the main launch reads those of its tile."""
    counts = count(chain(gpu, problem()))
    assert counts.total("l2", "write", launch="quantise_Q", tensor="Q_scale") == 2 * q * 32
    assert counts.total("l2", "write", launch="quantise_K", tensor="K_scale") == 2 * k * 32
    rows = 64 if gpu == "h100" else 128
    tiles = 1024 // rows
    read = max(32, q // tiles * 4)
    assert counts.total("l2", "read", launch="main", tensor="Q_scale") == 2 * tiles * read
    if gpu in ("h100", "rtx-5090"):
        assert (
            counts.total("l2", "read", launch="main", tensor="V_scale") == 2 * tiles * 128 * 4
        )  # a column each


def test_products_of_two_types_take_the_mean_of_their_times() -> None:
    rates = Rates(load_profile("a100"), measured=False)
    unit = UNITS[MatrixUnit.WGMMA]
    assert rates.tensor("int8+fp16", unit) == pytest.approx(2 / (1 / 624e12 + 1 / 312e12))
    assert rates.tensor("int8", unit) == 624e12


def test_power_limits_products_by_their_own_type() -> None:
    """An RTX 4090's int8 products run four times as fast as its fp16 ones, whose rate says nothing of their clock."""
    case = problem(heads=32, seq_q=8192)
    main = predict(case, "sage", "rtx-4090", method="bounds").time.launches[-1]
    fp16 = load_profile("rtx-4090").tensor_flops("fp16")
    assert case.matmul_flops() / main.total_s > 2 * fp16


def test_passes_cost_most_of_what_they_save_at_short_lengths() -> None:
    for gpu in ("a100", "h100"):
        ratio = {}
        for tokens in (512, 16384):
            case = problem(heads=32, seq_q=tokens)
            fa2, sage = (
                predict(case, k, gpu, method="bounds").time.total_s for k in ("fa2", "sage")
            )
            ratio[tokens] = fa2 / sage
        assert ratio[512] < 1 < ratio[16384]


@pytest.mark.parametrize(
    ("gpu", "changes", "words"),
    [
        ("b200", {}, "it has no tile for b200; accepted: cc 8.0, 8.6, 8.9, 9.0, 12.0"),
        ("a100", {"mask": "window", "window": 64}, "has no such mask"),
        ("a100", {"passes": "bwd"}, "passes bwd"),
        ("v100", {}, "sage"),
    ],
)
def test_what_it_does_not_run_is_refused(gpu: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        chain(gpu, problem(**changes))


@pytest.mark.slow
def test_published_speeds_of_the_main_launch() -> None:
    """Nothing is fitted on them: 4 to 12 % fast, but for the one that its own mask contradicts."""
    rows = [
        r
        for section in sections()
        if section.letter == "D"
        for r in section.rows()
        if "Sage" in r.claim
    ]
    assert len(rows) == 12
    assert all(1.03 < r.ratio < 1.12 for r in rows if not r.note)
