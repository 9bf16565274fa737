"""Serving kernels: what each rule book decides, by hand-worked cases; readers that agree; caches in fp8."""

from __future__ import annotations

import csv
from typing import Any

import pytest
from counter import count
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripts import ROOT, measurements
from strategies import disagreements

from iosim import predict
from iosim.base.errors import InputError
from iosim.catalog.algorithms import options_of, plan
from iosim.catalog.algorithms.flash_options import FlashOptions
from iosim.catalog.libraries import Overrides, resolve
from iosim.evidence.validate import compare, read
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel
from iosim.kernel.unit import MatrixUnit
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


def asked(**values: Any) -> AttentionProblem:
    shape: dict[str, Any] = {
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "dtype": "bf16",
        "mask": "causal",
    }
    return AttentionProblem(**(shape | {"page_size": 64} | values))


def kernel(name: str, gpu: str, problem: AttentionProblem) -> Kernel:
    return resolve(name, problem, load_profile(gpu))


@pytest.mark.parametrize(
    ("values", "tile", "splits", "packs"),
    [
        ({"seq_q": 4096}, "16x32", 1, True),
        ({"seq_q": 4096, "kv_heads": 32}, "16x32", 1, False),
        ({"seq_q": 4096, "heads": 24}, "15x32", 1, True),  # groups of 3: 5 tokens of the 16 rows
        (
            {"seq_q": 4096, "heads": 192},
            "24x32",
            1,
            True,
        ),  # groups of 24: the next power of two, one token
        ({"seq_q": 4096, "heads": 512}, "64x32", 1, True),
        ({"seq_k": 8192}, "16x16", 16, True),
        ({"seq_k": 8192, "batch": 16}, "16x16", 16, True),  # 16 sequences x 8 heads are 128
        ({"seq_k": 8192, "batch": 17}, "16x32", 1, True),
        ({"seq_k": 8192, "seq_q": 2}, "16x32", 1, True),
        (
            {"seq_k": 272},
            "16x16",
            9,
            True,
        ),  # 17 blocks in 16 segments: two each, so that nine have keys
        ({"seq_k": 8192, "mask": "window", "window": 1023}, "16x32", 16, True),  # Gemma 3's
        ({"seq_k": 8192, "mask": "window", "window": 1024}, "16x16", 16, True),
    ],
)
def test_unified_attention_in_triton(
    values: dict[str, Any], tile: str, splits: int, packs: bool
) -> None:
    chosen = kernel("vllm-triton", "l40s", asked(**values))
    assert (str(chosen.tile), chosen.splits, chosen.packs_group) == (tile, splits, packs)


def test_prefill_in_tiles_of_16_rows_reads_keys_eight_times_as_often_as_in_tiles_of_128() -> None:
    problem = asked(seq_q=4096, kv_heads=32, page_size=None, mask="none")
    unified, fa2 = (
        count(plan(problem, kernel(name, "a100", problem))) for name in ("vllm-triton", "fa2")
    )
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


def test_segments_are_reduced_where_one_alone_has_keys() -> None:
    """The launch is chosen by the sequences, whatever their length: one block of 16 keys, 16 segments, a reduction."""
    short = asked(seq_k=10)
    many = asked(seq_k=10, batch=17)
    launches = [
        [launch.name for launch in plan(p, kernel("vllm-triton", "l40s", p)).launches]
        for p in (short, many)
    ]
    assert launches == [["main", "combine"], ["main"]]


def test_the_combine_looks_for_its_sequence() -> None:
    few, many = (kernel("vllm-triton", "h100", asked(seq_k=8192, batch=n)) for n in (1, 16))
    waits = [options_of(problem_drawn, FlashOptions).combine_waits for problem_drawn in (few, many)]
    assert waits == [2, 6]  # a search over 1 or 16 sequences, then the length of one


@pytest.mark.parametrize(
    ("values", "gpu", "tile", "splits"),
    [
        # 16 threads a key of 128 columns: 8 keys at once, 4 of them each; 32 KiB a CTA, 3 an SM of 102,400 bytes: 426
        # for 32 heads are 13, chunks of 10 pages of 64.
        ({"kv_heads": 32, "seq_k": 8192}, "l40s", "1x32", 13),
        (
            {"heads": 16, "seq_k": 8192},
            "l40s",
            "2x8",
            64,
        ),  # 12 an SM; 213 a head, but 128 keys a chunk
        (
            {"kv_heads": 32, "seq_k": 8192, "batch": 14},
            "l40s",
            "1x32",
            1,
        ),  # 448 CTAs are there without splits
        (
            {"kv_heads": 32, "seq_k": 8192, "cache_dtype": "fp8"},
            "l40s",
            "1x32",
            22,
        ),  # 8 threads a key, 16 KiB and one that the driver keeps: 5 an SM of 100
    ],
)
def test_flashinfer_decodes_on_cuda_cores(
    values: dict[str, Any], gpu: str, tile: str, splits: int
) -> None:
    chosen = kernel("flashinfer-decode", gpu, asked(**values))
    assert (str(chosen.tile), chosen.splits) == (tile, splits)
    assert chosen.matrix_unit is MatrixUnit.FP32


def test_flashinfer_divides_keys_among_the_warps_of_16_rows() -> None:
    few, many = (kernel("flashinfer", "a100", asked(seq_q=n, seq_k=8192)) for n in (1, 64))
    assert [(chosen.tile.block_q, chosen.loop.key_warps) for chosen in (few, many)] == [
        (16, 4),
        (128, 1),
    ]


@pytest.mark.parametrize(
    ("values", "gpu", "tile", "splits", "shared"),
    [
        # Q 16 x 256 B, K 4 warps x 2 x 64 tokens x 128 B, V 2 groups x 2 x 64 tokens x 256 B, X 4 x 16 x 128 B
        (
            {"seq_k": 8192},
            "a100",
            "16x256",
            23,
            4096 + 65536 + 65536 + 8192,
        ),  # 64 times 128 tokens: sqrt(8 x 64)
        ({"seq_k": 8192}, "l40s", "16x256", 23, 4096 + 32768 + 32768 + 8192),
        ({"seq_k": 8192}, "a40", "16x256", 23, 4096 + 32768 + 32768 + 8192),  # cc 8.6
        ({"seq_k": 8192}, "rtx-5090", "16x256", 23, 4096 + 32768 + 32768 + 8192),  # cc 12.0
        ({"seq_k": 1024}, "a100", "16x256", 8, 143_360),  # 128 tokens each, twice as many as tiles
        (
            {"seq_k": 8192, "batch": 8},
            "a100",
            "16x256",
            13,
            143_360,
        ),  # 64 heads of 23 are 13.6 an SM, for at most 8
        ({"seq_k": 8192, "batch": 256}, "a100", "16x256", 1, 143_360),
        (
            {"heads": 160, "seq_k": 8192},
            "a100",
            "32x256",
            23,
            8192 + 65536 + 65536 + 16384,
        ),  # groups of 20
        (
            {"seq_k": 8192, "cache_dtype": "fp8"},
            "l40s",
            "16x256",
            1,
            4096 + 32768 + 16384 + 8192,
        ),  # as times have it
    ],
)
def test_xqa_divides_a_sequence(
    values: dict[str, Any], gpu: str, tile: str, splits: int, shared: int
) -> None:
    chosen = kernel("xqa", gpu, asked(**values))
    assert (str(chosen.tile), chosen.splits, chosen.shared_memory_bytes) == (tile, splits, shared)


def test_xqa_hands_its_sub_sequences_over_in_16_bits() -> None:
    problem = asked(seq_k=8192)
    counts = count(plan(problem, kernel("xqa", "a100", problem)))
    assert counts.total("l2", "write", tensor="O_partial") == 23 * 32 * 128 * 2
    assert counts.total("l2", "read", tensor="O_partial", launch="combine") == 23 * 32 * 128 * 2


@pytest.mark.parametrize(("width", "at_once", "waits"), [(64, 8, 4), (128, 4, 5), (256, 2, 6)])
def test_wider_heads_leave_xqa_fewer_groups_of_warps_and_more_parts_of_keys(
    width: int, at_once: int, waits: int
) -> None:
    chosen_options = options_of(
        kernel("xqa", "h100", asked(seq_k=8192, head_dim=width)), FlashOptions
    )
    assert (chosen_options.combine_loads_at_once, chosen_options.tile_waits) == (at_once, waits)


@pytest.mark.parametrize(
    ("values", "tile", "splits", "shared"),
    [
        # a byte a value: Q 8 x 128, two tiles of K and of V of 64 x 128, X twice 8 x 64
        ({"seq_k": 8192}, "8x64", 23, 1024 + 4 * 8192 + 1024),
        ({"heads": 96, "seq_k": 8192}, "16x64", 23, 2048 + 4 * 8192 + 2048),  # 12 heads in eights
        ({"seq_k": 256}, "8x64", 2, 34_816),
        (
            {"seq_k": 8192, "mask": "window", "window": 127},
            "8x64",
            2,
            34_816,
        ),  # no more than tiles that the window has
    ],
)
def test_xqa_of_a_cache_in_fp8_on_hopper(
    values: dict[str, Any], tile: str, splits: int, shared: int
) -> None:
    chosen = kernel("xqa-sm90", "h100", asked(**values, dtype="fp8"))
    assert (str(chosen.tile), chosen.splits, chosen.shared_memory_bytes, chosen.cta_threads) == (
        tile,
        splits,
        shared,
        384,
    )


def launch_s(name: str, gpu: str, problem: AttentionProblem, launch: str) -> float:
    call = Call.of(problem, kernel(name, gpu, problem), load_profile(gpu))
    return next(
        launch_time.total_s
        for launch_time in call.time(call.counted).launches
        if launch_time.name == launch
    )


def test_flashinfer_merges_sixteen_splits_at_a_time() -> None:
    """Four stages of four: 256 splits wait for 11 loads more than 80. By FlashAttention's four at a time it were 44,
    and a call of 18.7 us on a GB200 (published_stacks.csv) would take 29."""
    long, short = (
        asked(heads=16, kv_heads=1, seq_k=seq_k, page_size=1, mask="none")
        for seq_k in (128 * 256, 128 * 80)
    )
    assert [kernel("flashinfer", "gb200", case).splits for case in (long, short)] == [256, 80]
    more = launch_s("flashinfer", "gb200", long, "combine") - launch_s(
        "flashinfer", "gb200", short, "combine"
    )
    assert 2.0e-6 < more < 3.5e-6
    assert launch_s("flashinfer", "gb200", long, "combine") < 9e-6


@pytest.mark.parametrize(("width", "hidden"), [(64, True), (256, False)])
def test_a_cta_waits_for_what_vllm_promotes_once(width: int, hidden: bool) -> None:
    """By the tile, from one tile a CTA to sixteen; tiles of several warpgroups wait each time."""

    def a_tile(heads: int) -> float:
        case = asked(heads=heads, kv_heads=heads, head_dim=width, batch=132, seq_k=64, dtype="fp8")
        return launch_s("vllm-fa3", "h100", case, "main") / heads

    def plain(heads: int) -> float:
        case = asked(
            heads=heads,
            kv_heads=heads,
            head_dim=width,
            batch=132,
            seq_k=64,
            dtype="fp8",
            page_size=1,
        )
        return launch_s("sglang-fa3", "h100", case, "main") / heads

    assert (a_tile(16) - plain(16) < 0.3 * (a_tile(1) - plain(1))) is hidden


@pytest.mark.parametrize(
    ("values", "tile", "splits", "packs"),
    [
        ({"seq_k": 8192}, "16x64", 32, True),  # 132 SMs for 8 heads are 16, two CTAs each
        (
            {"seq_k": 8192, "batch": 32},
            "16x64",
            1,
            True,
        ),  # 256 heads: none, and yet what one split leaves is combined
        ({"seq_q": 24, "seq_k": 8192}, "128x64", 32, True),  # 96 rows of a group
        (
            {"seq_q": 33, "seq_k": 8192},
            "128x64",
            1,
            False,
        ),  # 132 rows are more than a block of the mask
        ({"seq_k": 8192, "heads": 24}, "128x64", 1, False),  # groups of 3
        ({"seq_q": 128, "kv_heads": 32, "seq_k": 8192}, "128x64", 1, False),
    ],
)
def test_flex_decodes_short_queries(
    values: dict[str, Any], tile: str, splits: int, packs: bool
) -> None:
    problem = asked(page_size=None, **values)
    chosen = kernel("flex", "h200", problem)
    assert (str(chosen.tile), chosen.splits, chosen.packs_group) == (tile, splits, packs)
    launches = plan(problem, chosen).launches
    after = ["combine"] if splits == 1 else ["statistics", "combine"]
    assert [launch.name for launch in launches] == ["main", *(after if packs else ())]
    assert {o.name for o in launches[0].overheads} <= {"block_mask", "spill"}


@pytest.mark.parametrize(
    ("batch", "splits", "after"),
    [
        (33, 1, ["combine"]),
        (16, 2, ["combine"]),
        (8, 4, ["weights", "sums", "combine"]),
        (5, 6, ["statistics", "combine"]),
    ],
)
def test_flex_reduces_splits_as_inductor_does(batch: int, splits: int, after: list[str]) -> None:
    """The launches of calls drawn at random; splits beyond the one block of keys store zeros, too."""
    asked_of = AttentionProblem(batch=batch, heads=8, seq_q=3, seq_k=50, head_dim=64, dtype="bf16")
    chosen = kernel("flex", "h200", asked_of)
    chain = plan(asked_of, chosen)
    assert [launch.name for launch in chain.launches] == ["fill0", "fill1", "main", *after]
    for writes_lse in (False, True):
        assert disagreements(asked_of.with_(batch=1), chosen.with_(writes_lse=writes_lse)) == []
    counts = count(chain)
    rows = batch * 8 * 3
    assert counts.total("l2", "write", tensor="O_partial") == splits * rows * 64 * 4
    assert counts.total("l2", "read", tensor="O_partial") == splits * rows * 64 * 4
    assert counts.total("l2", "read", tensor="Q", launch="main") == splits * rows * 64 * 2
    assert counts.total("l2", "read", tensor="K") == batch * 8 * 50 * 64 * 2
    assert (
        counts.total("l2", "write", tensor="LSE") == 0
    )  # which nobody asks for, and so Inductor leaves it out
    masked = asked_of.with_(mask="causal")
    assert plan(masked, kernel("flex", "h200", masked)).launches[0].name == "main"


def test_flex_decodes_what_was_counted() -> None:
    """Calls drawn at random with up to 127 queries, but for one whose reductions are six launches. Of 8 splits and more
    Inductor's CTAs have parts of rows, and read statistics again."""
    rows = [
        row
        for gpu in ("h100", "h200")
        for n in (2, 3, 4, 5)
        if (gpu, n) not in (("h100", 3), ("h100", 4))
        for row in read(measurements(f"{gpu}_random_{n}.csv"))
        if row.implementation == "pytorch_flex" and int(row.facts["seq_q"]) < 128
    ]
    comparisons = [
        compare([r for r in rows if r.source.startswith(gpu)], load_profile(gpu))
        for gpu in ("h100", "h200")
    ]
    assert not any(comparison.skipped for comparison in comparisons)
    residuals = [r for comparison in comparisons for r in comparison.residuals]
    far = {
        r.launch
        for r in residuals
        if r.quantity == "l2_read" and abs(r.difference) > max(2e6, 0.05 * r.measured)
    }
    assert far <= {"combine"}
    written = [r for r in residuals if r.quantity == "l2_write" and r.measured > 2e6]
    assert max(r.error or 0 for r in written) < 0.06


def test_flex_splits_long_queries_where_asked() -> None:
    problem = asked(page_size=None, seq_q=4096)
    chosen = resolve("flex", problem, load_profile("h200"), Overrides(splits=3))
    assert (str(chosen.tile), chosen.splits) == ("128x64", 3)


@pytest.mark.parametrize(
    ("name", "gpu", "values", "says"),
    [
        ("xqa", "a100", {"seq_q": 2}, "seq_q 2: kernel xqa takes one query token"),
        ("flashinfer-decode", "a100", {"seq_q": 2}, "seq_q 2: kernel flashinfer-decode takes one"),
        (
            "xqa",
            "h100",
            {"cache_dtype": "fp8"},
            "cache_dtype fp8: h100-sxm has another kernel for it",
        ),
        ("xqa", "a100", {"heads": 520}, "accepted: groups of up to 64"),
    ],
)
def test_decode_kernels_refuse_what_they_are_not_for(
    name: str, gpu: str, values: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        kernel(name, gpu, asked(seq_k=8192, **values))


# Caches in fp8.


@st.composite
def small_calls(draw: st.DrawFn) -> AttentionProblem:
    kv_heads = draw(st.integers(1, 2))
    group = draw(st.integers(1, 5))
    seq_q = draw(st.sampled_from((1, 1, 5, 40)))
    mask = draw(st.sampled_from(("none", "causal", "window")))
    return AttentionProblem(
        batch=draw(st.integers(1, 2)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_q + draw(st.integers(0, 90)),
        head_dim=draw(st.sampled_from((16, 32))),
        dtype="bf16",
        mask=mask,
        window=draw(st.integers(0, 60)) if mask == "window" else None,
        page_size=16,
        cache_dtype=draw(st.sampled_from((None, "fp8"))),
    )


@settings(max_examples=examples(40), deadline=None, suppress_health_check=QUIET)
@given(problem=small_calls(), seed=st.integers(0, 3), appends=st.booleans())
@pytest.mark.parametrize("name", ["vllm-triton", "flashinfer", "flashinfer-decode", "xqa", "flex"])
def test_readers_agree_on_what_the_catalog_makes(
    name: str, problem: AttentionProblem, seed: int, appends: bool
) -> None:
    if name in ("flashinfer-decode", "xqa"):
        problem = problem.with_(seq_q=1)
    if name == "flex":
        problem = problem.with_(page_size=None, cache_dtype=None)
    chosen = resolve(name, problem, load_profile("a100"), Overrides(append_kv=appends))
    assert disagreements(problem, chosen, seed=seed) == []


def test_a_cache_in_fp8_moves_half_the_bytes_and_costs_instructions() -> None:
    wide, narrow = (asked(seq_k=8192, cache_dtype=dtype) for dtype in (None, "fp8"))
    profile = load_profile("l40s")
    kernels = [
        resolve("vllm-triton", p, profile, Overrides(append_kv=True)) for p in (wide, narrow)
    ]
    calls = [Call.of(p, k, profile) for p, k in zip((wide, narrow), kernels, strict=True)]
    for tensor in ("K", "V"):
        whole, half = (call.counted.total("l2", "read", tensor=tensor) for call in calls)
        assert whole == 2 * half == 8 * 8192 * 128 * 2
    whole, half = (call.counted.total("l2", "write", tensor="K_cache") for call in calls)
    assert whole == 2 * half == 8 * 128 * 2
    assert (
        calls[1].counted.total("l2", "read", tensor="K_new") == whole
    )  # it comes as it was computed
    # values of K and V, for 16 rows: warps divide the keys
    assert [call.chain.launches[1].work.loop.widened for call in calls] == [0, 256 / 16]


def test_a_cache_in_fp8_is_refused_where_none_can_be() -> None:
    with pytest.raises(
        InputError, match="cache_dtype fp8 contradicts dtype 'fp32'; accepted with it: fp16, bf16"
    ):
        asked(dtype="fp32", cache_dtype="fp8")
    with pytest.raises(InputError, match="cache_dtype=fp8 contradicts passes 'bwd'"):
        asked(cache_dtype="fp8", page_size=None, passes="bwd")
    with pytest.raises(
        InputError,
        match=r"cache_dtype=fp8: kernel fa2 does not take it; accepted by: .*vllm-triton",
    ):
        kernel("fa2", "a100", asked(cache_dtype="fp8", page_size=256))


def counted() -> list[dict[str, str]]:
    with (ROOT / "experiments/measurements/h100_serving.csv").open(encoding="utf-8") as lines:
        return [row for row in csv.DictReader(lines) if row["kernel"] == "vllm-triton"]


@pytest.mark.parametrize("row", counted(), ids=lambda row: "-".join(list(row.values())[1:7]))
def test_reads_are_the_counted_ones(row: dict[str, str]) -> None:
    """On an H100, of a kernel of the same steps, over shuffled pages: nothing had been counted before."""
    names = ("batch", "kv_heads", "seq_q", "seq_k", "head_dim")
    sizes = {name: int(row[name]) for name in names} | {
        "heads": int(row["kv_heads"]) * int(row["group"])
    }
    problem = asked(**sizes, cache_dtype="fp8" if row["cache"] == "fp8" else None)
    call = Call.of(problem, kernel("vllm-triton", "h100", problem), load_profile("h100"))
    assert call.counted.total("l2", "read", launch="main") == pytest.approx(
        float(row["l2_read"]), rel=0.002
    )
    stored = call.counted.total("l2", "write", launch="main") / float(row["l2_write"])
    assert 0.82 < stored < 1.0001  # partial results of splits lie at other places
    assert call.counted.total("l2", "write", launch="main") > 0


@pytest.mark.parametrize("gpu", ["rtx-5060-ti", "a100", "l4"])
def test_chunks_of_a_decode_run_at_once(gpu: str) -> None:
    """The library asks the driver how many CTAs run (cudaOccupancyMaxActiveBlocksPerMultiprocessor) and makes no more:
    sequences that share their pages stay in step, and read each once."""
    problem = asked(batch=4, heads=16, kv_heads=8, seq_k=16384, shared_prefix=16384, page_size=128)
    call = predict(problem, "flashinfer-decode", gpu).call
    assert call.residencies[0].waves <= 1.0


def test_sequences_that_share_pages_hit_beyond_the_l2() -> None:
    """Counted: 74.9 % of four sequences whose 67 MB are twice the L2."""
    problem = asked(batch=4, heads=16, kv_heads=8, seq_k=16384, shared_prefix=16384, page_size=128)
    p = predict(problem, "flashinfer-decode", "rtx-5060-ti")
    assert (p.l2_hit_rate or 0) > 0.71
