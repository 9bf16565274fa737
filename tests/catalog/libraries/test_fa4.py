"""FlashAttention-4: order, tiles by GPU, splits, packed rows, pairs, the backward, exponentials in software."""

from __future__ import annotations

from typing import Any

import pytest
from counter import count
from effort import quick_every
from strategies import disagreements

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.catalog.libraries.fa4 import fa4_splits, software_exps
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel
from iosim.kernel.overrides import Overrides
from iosim.kernel.schedule import Order, Scheduler, Start
from iosim.prediction.call import Call
from iosim.prediction.predictor import check_fits
from iosim.problem.attention import AttentionProblem

GPUS = {"vllm-fa3": "h100", "fa4-sm90": "h100", "fa4-sm80": "a100", "fa4-sm120": "rtx-5090"}


def fa4(
    name: str = "fa4", gpu: str | None = None, over: Overrides | None = None, **problem: Any
) -> tuple[AttentionProblem, Kernel]:
    attention = AttentionProblem(**{"head_dim": 128, "dtype": "bf16", **problem})
    return attention, resolve(name, attention, load_profile(gpu or GPUS.get(name, "b200")), over)


def test_a_dense_grid_strides() -> None:
    _, kernel = fa4(heads=16, seq_q=8192)
    assert (kernel.schedule.scheduler, kernel.schedule.order) == (Scheduler.PERSISTENT, Order.QUERY)
    assert kernel.schedule.section_heads == 0


@pytest.mark.parametrize(
    "problem", [{"seq_lens": (512, 512)}, {"head_dim": 192, "head_dim_v": 128, "seq_q": 512}]
)
def test_a_cta_a_tile_where_it_does_not_stride(problem: dict[str, Any]) -> None:
    assert fa4(heads=16, **problem)[1].schedule.scheduler is Scheduler.STATIC


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tokens", "section"),
    [
        # 50 MiB over K and V of a head, 512 bytes a token, then the power of two below
        (16, 16, 8192, 8),  # 50 / 4 MiB = 12.5
        (16, 16, 65536, 1),  # 50 / 32 MiB = 1.6
        (32, 8, 8192, 8),  # rows of a group are shared: sections count key/value heads
    ],
)
def test_sections_under_a_mask(heads: int, kv_heads: int, tokens: int, section: int) -> None:
    problem, kernel = fa4(heads=heads, kv_heads=kv_heads, seq_q=tokens, mask="causal")
    schedule = kernel.schedule
    assert (schedule.scheduler, schedule.order, schedule.start) == (
        Scheduler.STATIC,
        Order.HEAD,
        Start.HEAVY_FIRST,
    )
    assert schedule.section_heads == section
    assert kernel.packs_group == (heads > kv_heads)
    grid = plan(problem, kernel).launches[0].domain
    assert grid.grid_heads == kv_heads


@pytest.mark.parametrize(
    ("name", "problem", "tile", "threads"),
    [
        ("fa4", {"head_dim": 64}, "256x128", 512),
        ("fa4", {"seq_q": 32, "seq_k": 4096}, "128x128", 384),
        ("fa4-256", {"head_dim": 256}, "128x128", 384),
        ("fa4-sm90", {"head_dim": 64}, "192x128", 512),
        ("fa4-sm90", {"head_dim": 96}, "192x144", 512),
        ("fa4-sm90", {"head_dim": 96, "mask": "causal"}, "192x128", 512),
        ("fa4-sm90", {}, "128x128", 384),
        ("fa4-sm90", {"head_dim": 192}, "128x112", 384),
        ("fa4-sm90", {"head_dim": 192, "head_dim_v": 128}, "128x128", 384),
        (
            "fa4-sm90",
            {"head_dim": 192, "head_dim_v": 128, "mask": "window", "window": 256},
            "128x96",
            384,
        ),
        ("fa4-sm90", {"head_dim": 256}, "128x80", 384),
        ("fa4-sm80", {}, "128x64", 128),
        ("fa4-sm120", {"head_dim": 64}, "128x128", 128),
        ("fa4-sm120", {}, "128x64", 128),
    ],
)
def test_tiles(name: str, problem: dict[str, Any], tile: str, threads: int) -> None:
    """interface.py, _flash_attn_fwd and _tile_size_fwd_sm90; each fits an SM."""
    attention, kernel = fa4(name, **{"seq_q": 4096, **problem})
    assert (str(kernel.tile), kernel.cta_threads) == (tile, threads)
    check_fits(Call.of(attention, kernel, load_profile(GPUS.get(name, "b200"))))


@pytest.mark.parametrize(
    ("name", "problem", "tile"),
    [
        ("fa4", {}, "128x128"),
        ("fa4-sm90", {"head_dim": 64}, "128x128"),
        ("fa4-sm90", {}, "80x128"),
        ("fa4-sm90", {"mask": "causal"}, "64x128"),
        ("fa4-sm90", {"head_dim": 192}, "64x96"),
        ("fa4-sm90", {"head_dim": 256}, "64x64"),
        ("fa4-sm120", {}, "64x64"),
    ],
)
def test_tiles_of_the_backward(name: str, problem: dict[str, Any], tile: str) -> None:
    assert str(fa4(name, **{"seq_q": 4096, "passes": "bwd", **problem})[1].tile_backward) == tile


@pytest.mark.parametrize(
    ("name", "problem", "over"),
    quick_every([
        ("fa4", {"seq_q": 600}, None),
        ("fa4", {"seq_q": 100, "kv_heads": 1, "mask": "causal"}, None),
        ("fa4", {"seq_q": 200, "seq_k": 700}, Overrides(splits=3)),
        ("fa4-splits", {"seq_q": 3, "seq_k": 900, "kv_heads": 1}, None),
        ("fa4", {"seq_lens": (70, 300), "mask": "causal"}, None),
        ("fa4", {"seq_q": 5, "seq_k": 333, "page_size": 128, "mask": "causal"}, None),
        ("fa4", {"seq_q": 140, "head_dim": 192, "head_dim_v": 128}, None),
        ("fa4-256", {"seq_q": 300, "head_dim": 256}, None),
        ("fa4-stealing", {"seq_q": 300, "mask": "causal"}, None),
        ("fa4", {"seq_q": 300, "mask": "causal", "passes": "fwd+bwd", "kv_heads": 1}, None),
        ("fa4", {"seq_q": 300, "passes": "bwd"}, None),
        ("fa4-deterministic", {"seq_q": 300, "seq_k": 200, "passes": "bwd", "kv_heads": 1, "mask": "causal"}, None),
        ("fa4-sm90", {"seq_q": 250, "passes": "fwd+bwd", "kv_heads": 1}, None),
        ("fa4-sm90", {"seq_q": 7, "seq_k": 300, "page_size": 16, "mask": "causal", "head_dim": 72}, None),
        ("fa4-sm80", {"seq_q": 150, "seq_lens": None}, None),
        ("fa4", {"seq_q": 300, "mask": "causal", "sinks": True}, None),
        (
            "fa4",
            {"heads": 4, "kv_heads": 2, "seq_q": 50, "seq_k": 700, "mask": "window", "window": 4, "sinks": True},
            Overrides(splits=3),
        ),
        ("fa4-sm90", {"seq_q": 100, "seq_k": 10, "mask": "causal", "kv_heads": 1, "sinks": True}, None),
        ("vllm-fa3", {"seq_q": 2, "seq_k": 700, "page_size": 16, "mask": "causal", "kv_heads": 1, "sinks": True}, None),
        ("vllm-triton", {"seq_k": 700, "page_size": 16, "mask": "causal", "kv_heads": 2, "sinks": True}, None),
        ("vllm-triton", {"seq_q": 40, "page_size": 16, "mask": "causal", "kv_heads": 2, "sinks": True}, None),
        ("xqa", {"seq_k": 700, "page_size": 16, "kv_heads": 1, "sinks": True}, None),
        ("flash", {"seq_lens": (70, 300), "mask": "causal", "sinks": True}, None),
        ("fa4-sm120", {"seq_q": 150, "passes": "fwd+bwd", "kv_heads": 1, "mask": "window", "window": 40}, None),
    ], 4),
)  # fmt: skip
def test_the_readers_agree(name: str, problem: dict[str, Any], over: Overrides | None) -> None:
    options = {"heads": 2, "head_dim": 64, **problem}
    assert disagreements(*fa4(name, over=over, **options)) == []


def test_a_call_splits_nothing_unless_it_leaves_the_number_open() -> None:
    """148 SMs over one tile a key/value head of 8: 18 splits; never with up to 4 key blocks."""
    decode = {"heads": 32, "kv_heads": 8, "seq_q": 1, "seq_k": 8192}
    assert fa4(**decode)[1].splits == 1
    assert fa4("fa4-splits", **decode)[1].splits == 18
    problem = AttentionProblem(heads=32, kv_heads=8, seq_q=1, seq_k=512, head_dim=128)
    assert fa4_splits(problem, 148, 128, 128) == 1


@pytest.mark.parametrize(
    ("problem", "together"),
    [
        ({}, 2),
        ({"head_dim": 192, "head_dim_v": 128}, 2),
        ({"head_dim": 64}, 1),
        ({"mask": "causal"}, 1),
        ({"seq_q": 256}, 1),  # 256 rows are one CTA's
        ({"seq_lens": (4096,)}, 1),
        ({"kv_heads": 2}, 1),  # groups of 12 do not divide 128 rows
    ],
)
def test_pairs_of_ctas(problem: dict[str, Any], together: int) -> None:
    assert fa4(**{"heads": 24, "seq_q": 4096, **problem})[1].schedule.cluster == together


def test_a_pair_fetches_keys_once_for_both() -> None:
    """4,096 queries are 8 pairs of 512 rows: each reads K and V once, where single CTAs read them 16 times."""
    problem, pairs = fa4(heads=2, seq_q=4096)
    once = 2 * 4096 * 128 * 2  # bytes of K
    single = fa4(heads=2, seq_q=4096, over=Overrides(cluster=1))[1]
    assert count(plan(problem, pairs)).total("l2", "read", tensor="K") == 8 * once
    assert count(plan(problem, single)).total("l2", "read", tensor="K") == 16 * once


def test_a_pair_takes_no_longer_than_its_ctas() -> None:
    """A round of pairs on all SMs is a round of single CTAs: 37 x 2 x 512 rows are 148 tiles of 256."""
    times = {}
    for together in (1, 2):
        problem, kernel = fa4(heads=37, seq_q=1024, over=Overrides(cluster=together))
        times[together] = (
            Call.of(problem, kernel, load_profile("b200"))
            .time(count(plan(problem, kernel)))
            .total_s
        )
    assert times[2] == pytest.approx(times[1], rel=0.05)


@pytest.mark.parametrize(
    ("width", "pairs", "mask", "kv_heads", "share"),
    [
        # fragments 2 and 3 of 4; of 16 pairs of values those at 12, 14, 28 and 30; at 6, 8, 16, 18, 26 and 28
        (64, False, "none", 2, 4 / 16 / 2),
        (128, False, "causal", 2, 4 / 16 / 2),
        (128, True, "none", 2, 6 / 16 / 2),
        (192, False, "causal", 2, 2 / 16 / 2),
        (192, False, "none", 2, 0.0),
        (192, True, "none", 2, 4 / 16 * 3 / 4),  # from the first fragment on
        (128, False, "none", 1, 6 / 16 / 2),  # packed
    ],
)
def test_the_share_of_exponentials_in_software(
    width: int, pairs: bool, mask: str, kv_heads: int, share: float
) -> None:
    problem = AttentionProblem(heads=2, kv_heads=kv_heads, seq_q=4096, head_dim=width, mask=mask)
    assert software_exps(problem, width, pairs, kv_heads == 1) == share


def test_a_b300_computes_all_of_them() -> None:
    assert fa4(seq_q=4096)[1].loop.software_exps > 0
    assert fa4(gpu="b300", seq_q=4096)[1].loop.software_exps == 0


def test_grouped_gradients_are_added_in_fp32() -> None:
    """Each query head adds its dK to the sums of its key head: 4 heads x 256 keys x 64 columns x 4 bytes written; two
    launches make zeros of the sums before, two convert them."""
    problem, kernel = fa4("fa4-sm90", heads=4, kv_heads=1, seq_q=256, head_dim=64, passes="bwd")
    chain = plan(problem, kernel)
    assert [x.name.removeprefix("bwd.") for x in chain.launches] == [
        "fill0",
        "fill1",
        "dot",
        "main",
        "convert",
        "sum_dK",
        "sum_dV",
    ]
    counted = count(chain)
    assert counted.total("l2", "write", launch="bwd.main", tensor="dK_acc") == 4 * 256 * 64 * 4
    assert counted.total("l2", "read", launch="bwd.sum_dK") == 256 * 64 * 4


@pytest.mark.parametrize(
    ("kv_heads", "tensor", "read"), [(8, 8 * 2, 8 * 4 * 32), (2, 8 * 2, 2 * 16 * 32)]
)
def test_sinks_are_a_number_a_head(kv_heads: int, tensor: int, read: int) -> None:
    """8 heads of bf16. 1,024 queries are 4 tiles of 256 a head, or 16 of a group of 4: a sector each."""
    problem, kernel = fa4(heads=8, kv_heads=kv_heads, seq_q=1024, mask="causal", sinks=True)
    chain = plan(problem, kernel)
    assert chain.tensors["sinks"].bytes == tensor
    assert count(chain).total("l2", "read", tensor="sinks") == read
    without = plan(*fa4(heads=8, kv_heads=kv_heads, seq_q=1024, mask="causal"))
    assert count(chain).total("l2") - count(without).total("l2") == read


def test_work_stealing_is_a_queue_without_sections_and_says_what_it_assumes() -> None:
    _, kernel = fa4("fa4-stealing", heads=16, seq_q=8192, mask="causal")
    schedule = kernel.schedule
    assert (schedule.scheduler, schedule.order, schedule.start) == (
        Scheduler.DYNAMIC,
        Order.QUERY,
        Start.HEAVY_FIRST,
    )
    assert schedule.section_heads == 0
    assert any("FA_CLC=1" in note for note in kernel.notes)
    assert fa4("fa4-stealing", heads=16, seq_q=8192)[1].schedule.scheduler is Scheduler.PERSISTENT


def test_a_deterministic_backward_goes_by_sections() -> None:
    """50 MiB over 8,192 x (256 x 2 + 128 x 4) bytes of a head: 6, and the power of two below."""
    schedule = fa4("fa4-deterministic", heads=16, seq_q=8192, mask="causal", passes="bwd")[
        1
    ].backward.schedule
    assert (schedule.order, schedule.section_heads, schedule.start) == (
        Order.HEAD,
        4,
        Start.HEAVY_FIRST,
    )


@pytest.mark.parametrize(
    ("name", "problem", "over", "word"),
    [
        ("fa4", {"head_dim": 192}, None, "up to 128, 192 beside values of 128"),
        ("fa4", {"head_dim": 192, "head_dim_v": 128}, Overrides(splits=2), "splits none"),
        ("fa4-sm90", {}, Overrides(splits=2), "splits none"),
        ("fa4-sm80", {"passes": "bwd"}, None, "no model"),
        ("fa4-sm80", {"page_size": 64}, None, "does not take"),
        ("fa4-256", {"head_dim": 256, "sinks": True}, None, "does not take"),
        ("fa4", {"sinks": True, "passes": "fwd+bwd"}, None, "gradient"),
    ],
)
def test_what_it_does_not_run(
    name: str, problem: dict[str, Any], over: Overrides | None, word: str
) -> None:
    with pytest.raises(InputError, match=word):
        fa4(name, over=over, **{"seq_q": 1024, **problem})


def test_varlen_calls_take_a_cta_a_tile_and_more_operations() -> None:
    """As encoders of images call it: no pairs, no stride over tiles; how much more was fitted by width. Where part of
    the exponentials is software, calls of one length have the same loop."""
    for gpu, head_dim, of_one_length, packed in (
        ("b200", 64, 4.2, 4.2),
        ("b200", 72, 8.4, 8.4),
        ("b200", 128, 0.0, 0.0),
        ("b300", 72, 0.0, 4.2),
    ):
        problem = AttentionProblem(heads=16, seq_q=4096, head_dim=head_dim, dtype="bf16")
        plain, varlen = (
            resolve(name, problem, load_profile(gpu)) for name in ("fa4", "fa4-varlen")
        )
        assert plain.loop.score_operations == of_one_length
        assert varlen.loop.score_operations == packed
        assert (varlen.schedule.scheduler, varlen.schedule.cluster) == (Scheduler.STATIC, 1)


def test_a_gb10_runs_the_build_of_geforce_blackwell() -> None:
    """The source asks for compute capabilities of 12 (interface.py: arch // 10 == 12), 12.1 too."""
    problem = AttentionProblem(heads=16, seq_q=1024, head_dim=128)
    tile, other = (
        resolve("fa4-sm120", problem, load_profile(gpu)).tile for gpu in ("gb10", "rtx-5090")
    )
    assert tile == other
