"""Sparse attention over a latent cache: lists of picked keys, the indexer that makes them, the cache in fp8."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from counter import count
from effort import examples
from executor import ExecutionError, execute, random_arrays, round_to
from executor.reference import dense_mask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import TOLERANCE, altered, bytes_apart, on_arrays

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.algorithms import options_for, plan
from iosim.catalog.algorithms.indexer import INDEX_KEYS, _even_splits, scored_chain
from iosim.catalog.libraries import Overrides, resolve
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Mode
from iosim.kernel.schedule import Schedule
from iosim.prediction.predictor import Request, predict
from iosim.prediction.replays import Replays, tile_accesses
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.picked import PickedMask
from iosim.readers.timing.terms import recorded

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
Arrays = dict[str, np.ndarray[Any, Any]]


def kernel(tile: tuple[int, int] = (2, 4), **changes: Any) -> Kernel:
    options = options_for("mla", {"index_rows": 8, "index_ctas": 3})
    return Kernel("sparse", "mla", Tile(*tile), options=options, **changes)


def arrays_of(problem: AttentionProblem, seed: int = 0) -> Arrays:
    """Inputs of a call, and "K_plain": the cache before it was packed."""
    p = problem
    rng = np.random.default_rng(seed + 100)
    arrays: Arrays = random_arrays(p, seed)

    def draw(kind: str, *shape: int) -> np.ndarray[Any, Any]:
        return round_to(rng.standard_normal(shape), kind)

    rows = p.seq_k
    if p.compress_ratio is not None:  # compressed keys, and the tokens of all windows
        rows = p.scored_keys + min(p.seq_k, p.seq_q - 1 + min(p.seq_k, p.window + 1))
        arrays["K"] = draw(p.dtype, p.batch, 1, rows, p.head_dim)
    arrays["K_plain"] = arrays["K"]
    if p.cache_dtype is not None and p.compress_ratio is not None:
        arrays["K_plain"] = round_to(arrays["K"], "fp8")
        blank = np.zeros((p.batch, 1, rows, p.latent_row_bytes - p.head_dim))
        arrays["K"] = np.concatenate((arrays["K_plain"], blank), axis=-1)
    elif p.cache_dtype is not None:
        arrays["K_plain"] = round_to(arrays["K"], "fp8")
        v = arrays["K_plain"][..., : p.head_dim_v]
        rest = arrays["K_plain"][..., p.head_dim_v :]
        blank = np.zeros((*v.shape[:-1], p.latent_row_bytes - p.head_dim - rest.shape[-1]))
        arrays["K"] = np.concatenate((v, blank, rest, np.zeros_like(rest)), axis=-1)
    heads = p.index_heads or 1
    arrays["index_Q"] = draw("fp8", p.batch, 1, p.seq_q, heads * p.index_dim)
    arrays["index_K"] = draw("fp8", p.batch, 1, p.scored_keys, p.index_dim)
    arrays["index_weights"] = draw("fp32", p.batch, 1, p.seq_q, heads)
    arrays["index_scale"] = np.abs(draw("fp32", p.batch, 1, p.scored_keys, 1)) + 0.1
    return arrays


def best_keys(p: AttentionProblem, arrays: Arrays) -> np.ndarray[Any, Any]:
    """[batch, queries, entries]: the keys of the largest scores that a query sees, -1 where there are fewer."""
    if p.compress_ratio is not None:
        return compressed_lists(p, arrays)
    kept_pairs = dense_mask(p)
    lists = np.full((p.batch, p.seq_q, p.top_k or 0), -1)
    for b, i in np.ndindex(p.batch, p.seq_q):
        q = arrays["index_Q"][b, 0, i].reshape(p.index_heads or 1, -1)
        scores = np.maximum(arrays["index_K"][b, 0] @ q.T, 0) @ arrays["index_weights"][b, 0, i]
        scores = round_to(scores * arrays["index_scale"][b, 0, :, 0], "fp32")
        seen = np.flatnonzero(kept_pairs[i])
        best = seen[np.argsort(-scores[seen], kind="stable")[: p.top_k]]
        lists[b, i, : best.size] = np.sort(best)
    return lists


def compressed_lists(p: AttentionProblem, arrays: Arrays) -> np.ndarray[Any, Any]:
    """The rows of each query's window, and of the compressed keys whose tokens have all been: the best, or all."""
    ratio = p.compress_ratio or 0
    offset = p.seq_k - p.seq_q
    keys = p.seq_k // ratio if ratio else 0
    window = min(p.seq_k, p.window + 1)
    picks = keys if p.top_k is None else min(keys, p.top_k)
    first = max(0, offset - window + 1)
    lists = np.full((p.batch, p.seq_q, window + picks), -1)
    for b, i in np.ndindex(p.batch, p.seq_q):
        tokens = np.arange(max(0, offset + i - window + 1), offset + i + 1)
        lists[b, i, window - tokens.size : window] = keys + tokens - first
        seen = [key for key in range(keys) if (key + 1) * ratio <= offset + i + 1]
        best = seen
        if p.index_heads is not None and len(seen) > picks:
            q = arrays["index_Q"][b, 0, i].reshape(p.index_heads, -1)
            scores = np.maximum(arrays["index_K"][b, 0] @ q.T, 0) @ arrays["index_weights"][b, 0, i]
            scores = round_to(scores * arrays["index_scale"][b, 0, :, 0], "fp32")
            best = sorted(sorted(seen, key=lambda key: -scores[key])[:picks])
        lists[b, i, window : window + min(picks, len(best))] = best[:picks]
    return lists


def attended(
    p: AttentionProblem, arrays: Arrays, lists: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """[batch, heads, queries, head_dim_v]: softmax attention over the keys of the lists."""
    out = np.zeros((p.batch, p.heads, p.seq_q, p.head_dim_v))
    for b, h, i in np.ndindex(p.batch, p.heads, p.seq_q):
        picked = lists[b, i][lists[b, i] >= 0]
        keys = arrays["K_plain"][b, h // p.group, picked]
        scores = keys @ arrays["Q"][b, h, i] / p.head_dim**0.5
        weights = np.exp(scores - scores.max(initial=-np.inf))
        out[b, h, i] = weights @ keys[:, : p.head_dim_v] / weights.sum()
    return out


def disagreement(
    problem: AttentionProblem, chosen: Kernel, seed: int = 0, chain: Any = None
) -> list[str]:
    chain = plan(problem, chosen) if chain is None else chain
    arrays = arrays_of(problem, seed)
    lists = best_keys(problem, arrays)
    given_lists = {} if problem.index_heads else {"indices": lists[:, None].astype(float)}
    try:
        done = execute(
            problem,
            chosen,
            {n: a for n, a in arrays.items() if n != "K_plain"} | given_lists,
            chain=chain,
        )
    except ExecutionError as error:
        return [str(error)]
    faults = bytes_apart(chain, done.traffic)
    worst = np.abs(done.outputs["O"] - attended(problem, arrays, lists)).max()
    return faults if worst <= TOLERANCE[problem.dtype] * 4 else [*faults, f"O is off by {worst}"]


@st.composite
def sparse_cases(draw: st.DrawFn, indexed: bool) -> tuple[AttentionProblem, Kernel]:
    """Fewer keys than picks and more, one query and many, clusters, splits, pages, both caches, ragged everything."""
    block_q = draw(st.sampled_from((1, 2, 3)))
    cluster = draw(st.sampled_from((1, 2)))
    seq_q = draw(st.integers(1, 9))
    seq_k = draw(st.integers(seq_q, 60))
    top_k = draw(st.sampled_from((1, 4, 7, 16)))
    block_k = draw(st.sampled_from((2, 4, 5)))
    head_dim = draw(st.sampled_from((4, 9, 18)))
    problem = AttentionProblem(
        batch=draw(st.integers(1, 2)),
        heads=block_q * cluster * draw(st.integers(1, 2)),
        kv_heads=1,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=head_dim,
        head_dim_v=draw(st.integers(1, head_dim)),
        latent_kv=True,
        top_k=top_k,
        mask=draw(st.sampled_from(("none", "causal"))),
        index_heads=draw(st.sampled_from((1, 2, 4))),
        index_dim=draw(st.sampled_from((4, 8))),
        page_size=draw(st.sampled_from((None, 4, 6))),
        cache_dtype=draw(st.sampled_from((None, "fp8"))),
        dtype=draw(st.sampled_from(("fp16", "bf16"))),
    )
    if not indexed:
        problem = problem.with_(index_heads=None)
    return problem, kernel(
        (block_q, block_k),
        schedule=Schedule(cluster=cluster),
        writes_lse=draw(st.booleans()),
        splits=draw(st.integers(1, min(3, -(-top_k // block_k)))),
    )


@st.composite
def compressed_cases(draw: st.DrawFn) -> tuple[AttentionProblem, Kernel]:
    """DeepSeek-V4's: windows and ratios of all kinds, with an indexer over the compressed keys or all of them."""
    problem, chosen = draw(sparse_cases(indexed=draw(st.booleans())))
    head_dim = draw(st.sampled_from((8, 16, 24)))
    ratio = draw(st.sampled_from((0, 1, 2, 4, 7)))
    problem = problem.with_(
        head_dim=head_dim,
        head_dim_v=head_dim,
        mask="window",
        window=draw(st.integers(0, 9)),
        compress_ratio=ratio,
    )
    if problem.index_heads is None:
        problem = problem.with_(top_k=draw(st.sampled_from((None, problem.top_k))))
    blocks = -(-problem.attended_keys // chosen.tile.block_k)
    return problem, replace(chosen, splits=min(chosen.splits, blocks))


@settings(max_examples=examples(120), deadline=None, suppress_health_check=QUIET)
@given(data=st.data())
def test_readers_agree_and_compute_compressed_attention(data: st.DataObject) -> None:
    problem, chosen = data.draw(compressed_cases())
    assert disagreement(problem, chosen, seed=data.draw(st.integers(0, 3))) == []


@pytest.mark.parametrize("indexed", [True, False])
@settings(max_examples=examples(120), deadline=None, suppress_health_check=QUIET)
@given(data=st.data())
def test_readers_agree_and_compute_sparse_attention(indexed: bool, data: st.DataObject) -> None:
    problem, chosen = data.draw(sparse_cases(indexed))
    assert disagreement(problem, chosen, seed=data.draw(st.integers(0, 3))) == []


V32 = AttentionProblem(
    batch=1,
    heads=128,
    kv_heads=1,
    seq_q=1,
    seq_k=131072,
    head_dim=576,
    head_dim_v=512,
    dtype="bf16",
    mask="causal",
    latent_kv=True,
    top_k=2048,
    index_heads=64,
)
"""A step of DeepSeek-V3.2 at 131,072 tokens of context."""
CASE = AttentionProblem(
    batch=2,
    heads=4,
    kv_heads=1,
    seq_q=3,
    seq_k=40,
    head_dim=18,
    head_dim_v=16,
    mask="causal",
    latent_kv=True,
    top_k=16,
    index_heads=2,
    index_dim=8,
)


def test_bytes_of_a_step() -> None:
    chain = plan(V32, resolve("dsa", V32, load_profile("h200")))
    assert [launch.name for launch in chain.launches] == ["logits", "top_k", "main"]
    l2 = count(chain).tensors("l2")
    assert l2["index_K", "read"] == 131072 * 128
    assert l2["index_scale", "read"] == 131072 * 4
    assert (
        l2["logits", "write"] == 2 * 131072 * 4
    )  # a tile has 128 / 64 = 2 queries, both are written
    assert l2["logits", "read"] == 2 * 131072 * 4  # two walks
    assert l2["indices", "write"] == 2048 * 4
    assert l2["K", "read"] == 2 * 2048 * 576 * 2  # two CTAs of 64 heads, each with all picked rows
    small = V32.with_(cache_dtype="fp8", page_size=64)
    chosen = resolve("dsa", small, load_profile("h200"))
    assert (small.latent_row_bytes, chosen.schedule.cluster) == (512 + 4 * 4 + 64 * 2, 2)
    l2 = count(plan(small, chosen)).tensors("l2")
    # one fetch for both CTAs of a cluster; rows of 20.5 sectors, none of which two rows share
    assert l2["K", "read"] == 2048 * 21 * 32
    assert l2["logits", "write"] == 131072 * 4
    assert l2["page_table", "read"] == 2048 * 32


V4 = AttentionProblem(
    heads=64,
    seq_q=1,
    seq_k=131072,
    head_dim=512,
    dtype="bf16",
    latent_kv=True,
    mask="window",
    window=127,
    compress_ratio=4,
    top_k=512,
    index_heads=64,
    page_size=64,
    cache_dtype="fp8",
)
"""A step of DeepSeek-V4-Flash at 131,072 tokens of context, in a layer with an indexer."""


def test_bytes_of_a_step_over_compressed_keys() -> None:
    chosen = resolve("dsv4", V4, load_profile("h200"))
    l2 = count(plan(V4, chosen)).tensors("l2")
    assert l2["index_K", "read"] == 32768 * 128
    assert l2["logits", "write"] == 32768 * 4
    assert l2["K", "read"] == (128 + 512) * (576 + 32)  # a row's scales are a sector of their own
    assert l2["indices", "write"] == (128 + 512) * 4
    assert chosen.splits == 2
    for ratio, keys in ((128, 1024), (0, 0)):
        other = V4.with_(compress_ratio=ratio, top_k=None, index_heads=None)
        chain = plan(other, resolve("dsv4", other, load_profile("h200")))
        assert [launch.name for launch in chain.launches][:1] == ["main"]
        assert count(chain).total("l2", "read", tensor="K") == (128 + keys) * 608
    assert V4.matmul_flops() == 2 * 64 * (32768 * 128 + 640 * 1024)


def test_a_key_of_deepseek_v4_1_is_528_bytes() -> None:
    """512 columns in fp8 and behind them 16 bytes of scales, so that a row takes 17 sectors (deepseek-ai/FlashMLA
    @ddedb079, README.md); no GPU before cc 10.0 has a kernel that reads it."""
    step = V4.with_(cache_dtype="mxfp8")
    assert (V4.latent_row_bytes, step.latent_row_bytes) == (584, 528)
    read = count(plan(step, resolve("dsv4", step, load_profile("b200")))).tensors("l2")["K", "read"]
    assert read == (128 + 512) * 17 * 32
    with pytest.raises(
        InputError, match=r"cache_dtype mxfp8: FlashMLA reads it on cc 10\.0 and later"
    ):
        resolve("dsv4", step, load_profile("h200"))
    with pytest.raises(InputError, match="cache_dtype mxfp8 needs compress_ratio"):
        V32.with_(cache_dtype="mxfp8")


def test_a_key_in_fp4_is_refused_with_its_bytes_and_what_to_ask_for() -> None:
    """512 values of half a byte and a byte of scale for every 16 of them, beside tokens of 528 bytes (FlashMLA
    @ddedb079, README.md)."""
    key, token = 512 // 2 + 512 // 16, V4.with_(cache_dtype="mxfp8").latent_row_bytes
    sectors = [-(-row // 32) for row in (key, token)]
    assert (key, token, sectors) == (288, 528, [9, 17])
    for name in ("fp4", "nvfp4", "e2m1"):
        with pytest.raises(InputError) as refusal:
            V4.with_(cache_dtype=name)
        message = str(refusal.value)
        assert f"keys of {key} bytes (9 sectors)" in message
        assert f"tokens of {token} (17)" in message
        assert "ask for mxfp8" in message
        assert "\n" not in message


@pytest.mark.parametrize("method", ["replay", "capacity"])
def test_neighbouring_windows_are_read_once(method: Any) -> None:
    problem = V4.with_(seq_q=64, seq_k=65536, compress_ratio=128, top_k=None, index_heads=None)
    prediction = predict(problem, "dsv4", "h200", method=method)
    read = prediction.traffic.total("hbm", "read", tensor="K")
    rows = 65536 // 128 + 64 + 127
    assert rows * 584 <= read < 2.4 * rows * 608
    assert prediction.hbm_bounds.compulsory_read <= prediction.traffic.total("hbm", "read") * 1.01


def test_a_window_s_list_names_the_tokens_before_its_query() -> None:
    """The cache holds 6 compressed keys, then tokens 16 to 26."""
    mask = V4.with_(seq_q=8, seq_k=27, window=3, top_k=2).pair_mask
    rows = mask.picks(np.arange(8)[:, None], np.arange(6)[None, :], 6)
    assert rows[0].tolist()[:4] == [6, 7, 8, 9]
    assert rows[7].tolist()[:4] == [13, 14, 15, 16]
    assert all(0 <= a < b < (20 + t) // 4 for t, (a, b) in enumerate(rows[:, 4:].tolist()))


@pytest.mark.parametrize(("name", "changes"), [("dsa", {}), ("flashmla", {"index_heads": None})])
def test_the_sparse_kernels_of_hopper_and_of_blackwell(name: str, changes: dict[str, Any]) -> None:
    """Of 128 heads. With a cache in fp8 Hopper's two CTAs share what they gather, and Blackwell's are of launches over
    64 heads each; in 16 bits Hopper's go alone, and Blackwell's are a pair."""
    rows = {None: 2048 * 576 * 2, "fp8": 2048 * 21 * 32}
    for gpu, cache, ctas, tile, fetches in (
        ("h200", "fp8", 2, "64x64", 1),
        ("b200", "fp8", 1, "64x64", 2),
        ("h200", None, 1, "64x64", 2),
        ("b200", None, 2, "64x128", 1),
    ):
        problem = V32.with_(cache_dtype=cache, page_size=64, **changes)
        chosen = resolve(name, problem, load_profile(gpu))
        assert (chosen.schedule.cluster, str(chosen.tile)) == (ctas, tile)
        assert count(plan(problem, chosen)).total("l2", "read", tensor="K") == fetches * rows[cache]
    dense = V32.with_(top_k=None, index_heads=None, page_size=64)
    with pytest.raises(InputError, match="dense decoding is built for cc"):
        resolve("flashmla", dense, load_profile("b200"))


def test_no_more_keys_than_picks_are_all_listed() -> None:
    short = V32.with_(seq_q=2000, seq_k=2000)
    h200 = load_profile("h200")
    chain = plan(short, resolve("dsa", short, h200))
    assert [launch.name for launch in chain.launches] == ["lists", "main"]
    # query i has i + 1 keys, and its CTAs walk all 32 blocks of its list; two CTAs of 64 heads
    assert count(chain).total("l2", "read", tensor="K") == 2 * sum(range(1, 2001)) * 576 * 2
    assert set(chain.launches[1].domain.visited.count.tolist()) == {2048 // 64}
    longer = predict(short.with_(seq_q=64, seq_k=4096), "dsa", h200, method="capacity").time
    main = {time.name: time.total_s for time in longer.launches}["main"]
    few = (
        predict(short.with_(seq_q=64, seq_k=64), "dsa", h200, method="capacity")
        .time.launches[-1]
        .total_s
    )
    assert 0.7 * main < few < main  # idle entries are computed, and only not gathered


def test_a_list_names_each_key_once() -> None:
    mask = attention_mask(CASE.with_(seq_q=40))
    tokens = np.arange(40)[:, None]
    entries = np.arange(16)[None, :]
    picks = mask.picks(tokens, entries, 16)
    for token, row in enumerate(picks.tolist()):
        keys = row[: min(16, token + 1)]
        assert keys == sorted(set(keys))
        assert max(keys) <= token


def attention_mask(problem: AttentionProblem) -> PickedMask:
    return PickedMask.of(problem.interval_mask, problem.seq_k)


@pytest.mark.parametrize("cache_dtype", [None, "fp8"])
@pytest.mark.parametrize("method", ["replay", "capacity"])
def test_hbm_reads_lie_between_the_bounds(method: Any, cache_dtype: Any) -> None:
    problem = V32.with_(batch=2, seq_q=2, seq_k=20_000, cache_dtype=cache_dtype, page_size=64)
    prediction = predict(problem, "dsa", "h200", method=method)
    read = prediction.traffic.total("hbm", "read", tensor="K")
    rows = problem.batch * 2048 * problem.latent_row_bytes
    # each query picks its own: more than one list's rows, no more than both lists' and what two partitions keep
    assert rows < read < 2.2 * rows
    assert prediction.traffic.total("hbm", "read", tensor="index_K") == pytest.approx(
        2 * 20_000 * 128, rel=0.02
    )
    assert prediction.hbm_bounds.compulsory_read <= prediction.traffic.total("hbm", "read") * 1.01


def test_the_capacity_rule_reads_a_cache_that_fits_once() -> None:
    problem = V32.with_(seq_q=1024, seq_k=8192, heads=64)
    read = predict(problem, "dsa", "h200", method="capacity").traffic.total(
        "hbm", "read", tensor="K"
    )
    assert read == 8192 * 576 * 2


def test_formulas_hold_over_arrays() -> None:
    chosen = kernel((4, 4))
    heads = np.array([4, 8, 16])
    read, write, holds = on_arrays(CASE, chosen, heads=heads, seq_k=np.array([40, 90, 201]))
    for n, (h, keys) in enumerate(zip(heads.tolist(), (40, 90, 201), strict=True)):
        traffic = count(plan(CASE.with_(heads=h, seq_k=keys), chosen))
        if holds[n]:
            assert (read[n], write[n]) == (
                traffic.total("l2", "read"),
                traffic.total("l2", "write"),
            )
    assert holds.any()


@pytest.mark.parametrize(
    ("launch", "tensor", "says"),
    [
        ("main", "indices", "indices"),
        ("logits", "index_scale", "index_scale"),
        ("top_k", "logits", "logits"),
        ("main", "K", "K"),
    ],
)
def test_a_launch_without_one_of_its_loads_computes_nothing(
    launch: str, tensor: str, says: str
) -> None:
    chosen = kernel((4, 4))
    chain = plan(CASE, chosen)
    target = next(x for x in chain.launches if x.name == launch)
    fewer = tuple(a for a in target.accesses if a.tensor != tensor or a.mode is not Mode.LOAD)
    assert any(
        says in text
        for text in disagreement(CASE, chosen, chain=altered(chain, launch, accesses=fewer))
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"latent_kv": False, "kv_heads": 128}, "top_k 2048 needs latent_kv"),
        ({"top_k": None}, "index_heads 64 needs top_k"),
        ({"top_k": None, "index_heads": None, "cache_dtype": "fp8"}, "cache_dtype fp8 needs top_k"),
        ({"mask": "window", "window": 64}, "contradicts mask window"),
        ({"cache_dtype": "fp4"}, "cache_dtype"),
        ({"passes": "bwd"}, "a cache serves inference"),
        ({"compress_ratio": 4}, "contradicts mask causal"),
        (
            {"compress_ratio": 4, "mask": "window", "window": 9, "window_right": 2},
            "contradicts window_right 2",
        ),
        (
            {"compress_ratio": 4, "mask": "window", "window": 9, "seq_q": 9, "seq_k": 8},
            "seq_q up to 8",
        ),
        ({"compress_ratio": 4, "mask": "window", "window": 9, "offset": 3}, "no offset"),
        (
            {"top_k": None, "index_heads": None, "latent_kv": False, "compress_ratio": 4},
            "needs latent_kv",
        ),
    ],
)
def test_problems_that_make_no_sense_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        V32.with_(**changes)


def test_kernels_say_what_they_do_not_take() -> None:
    h200 = load_profile("h200")
    dense = V32.with_(top_k=None, index_heads=None)
    for problem, name, gpu, says in (
        (dense, "dsa", h200, "accepted with it: top_k"),
        (V32.with_(index_heads=None), "dsa", h200, "accepted with it: index_heads"),
        (V32, "flashmla", h200, "accepted by: dsa, dsv4, mla"),
        (V32.with_(index_heads=None), "fa3", h200, "does not take it"),
        (V32, "dsa", load_profile("a100"), "needs cc 9.0"),
        (V32.with_(heads=96), "dsa", h200, "block_q that divides them"),
        (V4, "dsa", h200, "compress_ratio=4: kernel dsa does not take it; accepted by: dsv4, mla"),
        (
            V4.with_(compress_ratio=None, mask="causal", window=None),
            "dsv4",
            h200,
            "accepted with it: compress_ratio",
        ),
    ):
        with pytest.raises(InputError, match=says):
            plan(problem, resolve(name, problem, gpu))
    with pytest.raises(InputError, match="contradicts top_k"):
        plan(V32, resolve("dsa", V32, h200, Overrides(append_kv=True)))


def test_heads_that_fill_part_of_a_tile_take_its_time() -> None:
    """SGLang pads 16 heads of a GPU of eight to 64: the same time, a quarter of the queries' bytes."""
    h200, few, many = (
        load_profile("h200"),
        V32.with_(heads=16, seq_q=256),
        V32.with_(heads=64, seq_q=256),
    )
    times, reads = [], []
    for problem in (few, many):
        prediction = predict(problem, "dsa", h200, method="capacity")
        times.append(prediction.time.launches[-1].total_s)
        reads.append(prediction.traffic.total("l2", "read", tensor="Q"))
    assert times[0] == pytest.approx(times[1], rel=0.1)
    assert 4 * reads[0] == reads[1]


def test_a_list_of_more_entries_than_keys() -> None:
    for mask in ("none", "causal"):
        assert disagreement(CASE.with_(mask=mask, seq_k=5), kernel((4, 4))) == []
        assert disagreement(CASE.with_(mask=mask, seq_k=5, index_heads=None), kernel((4, 4))) == []


def test_the_top_k_walks_twice_over_more_logits_than_the_l2_holds() -> None:
    """264 rows of 131,072 logits, those of as many CTAs at once: 138 MB."""
    prediction = predict(V32.with_(seq_q=264), "dsa", "h200", method="replay")
    logits = 4 * sum(range(131_072 - 263, 131_073))
    traffic = {
        (row.launch, row.direction): row.bytes
        for row in prediction.traffic
        if row.level == "hbm" and row.tensor == "logits"
    }
    assert 1.3 * logits < traffic["top_k", "read"] <= 2 * logits
    assert prediction.replay is not None
    played = {launch.name: launch.end_s - launch.begin_s for launch in prediction.replay.launches}
    for launch in prediction.time.launches[:2]:
        assert played[launch.name] == pytest.approx(launch.total_s, rel=0.4)


def test_operations_are_of_the_picked_pairs_and_of_the_indexer() -> None:
    few = V32.with_(seq_k=2048)
    assert few.matmul_flops() == 2 * 128 * 2048 * (576 + 512)
    assert V32.matmul_flops() == few.matmul_flops() + 2 * 64 * 131_072 * 128
    assert V32.exp_count() == 128 * 2048


@pytest.mark.parametrize(("batch", "tiles"), [(132, 1), (1320, 10)])
def test_paged_logits_wait_for_the_places_of_each_tiles_pages(batch: int, tiles: int) -> None:
    """A CTA's tiles each look their pages up, and the first the length of its sequence, one load behind the other: 482
    cycles of an H200 each, (287 + 287 x 476 / 265) / 2 + 80, where the clock is its highest."""
    profile = load_profile("h200")
    problem = AttentionProblem(
        batch=batch,
        heads=64,
        seq_q=1,
        seq_k=200,
        head_dim=576,
        head_dim_v=512,
        dtype="bf16",
        mask="causal",
        latent_kv=True,
        page_size=64,
        top_k=2048,
        index_heads=64,
    )
    dsa = resolve("dsa", problem, profile)
    chain = scored_chain(problem, dsa)
    logits = replace(chain, launches=chain.launches[:1])
    with recorded() as terms:
        Request(
            problem,
            dsa,
            profile,
            chain=logits,
            method="capacity",
            clocks=profile.need("boost_clock_hz"),
        ).predict(Replays())
    cycles = (287 + 287 * 476 / 265) / 2 + 80
    waited = terms["loads of a tile, one behind the other"]
    assert tiles * waited == pytest.approx((tiles + 1) * cycles)


def test_each_picked_row_is_an_access_of_the_replay() -> None:
    chain = plan(V32, resolve("dsa", V32, load_profile("h200")))
    steps = {
        launch.name: launch.domain.visited.count.sum() * launch.domain.grid_heads
        for launch in chain.launches
    }
    # logits: K, scales and what is stored; the top-k: two walks; two tiles that gather 2,048 rows each, and a list
    highest = 3 * steps["logits"] + 2 * steps["top_k"] + 2 * 2048 * 1 + steps["main"] * 1
    assert 2 * 2048 < tile_accesses(chain) <= 2 * highest


def test_a_layer_of_a_model_takes_what_it_needs_once(capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            "model",
            "deepseek-v3.2",
            "--gpu",
            "h200",
            "--layers",
            "1",
            "--seq-len",
            "1k",
            "--context",
            "64k",
            "--format",
            "json",
        ]
    )
    run = json.loads(capsys.readouterr().out)["runs"][-1]
    (part,) = [part for part in run["parts"] if part["part"] == "attention"]
    needed = 65_536 * 132 + 2048 * 1152
    assert needed < part["compulsory_bytes"] < 1.1 * needed


@pytest.mark.parametrize(
    ("ctas", "splits"),
    [
        # 2 sequences of 1,024 keys in steps of INDEX_KEYS
        (None, 1),  # nothing is known that would share them
        (1, 1),
        (3, 2),
        (2 * 1024, 1024 // INDEX_KEYS),  # a step each
    ],
)
def test_keys_are_split_as_evenly_as_ctas_take_steps(ctas: int | None, splits: int) -> None:
    problem = AttentionProblem(
        batch=2,
        heads=4,
        kv_heads=1,
        seq_q=1,
        seq_k=1024,
        head_dim=64,
        head_dim_v=32,
        latent_kv=True,
        top_k=128,
        index_heads=4,
    )
    assert _even_splits(problem, 8, ctas) == splits
