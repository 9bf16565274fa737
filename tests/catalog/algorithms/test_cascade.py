"""FlashInfer's cascade: keys that all sequences share are read once for all of them, and results merged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from counter import count
from effort import examples
from executor import ExecutionError, execute, round_to
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered import wrong_bytes
from strategies import TOLERANCE, altered, bytes_apart

import iosim
from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.algorithms import options_for, plan
from iosim.catalog.libraries import default_kernel, resolve
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Mode
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.lowering import lower

Arrays = dict[str, np.ndarray[Any, Any]]
SMALL = AttentionProblem(
    batch=3,
    heads=4,
    kv_heads=2,
    seq_q=2,
    seq_k=11,
    head_dim=8,
    mask="causal",
    dtype="bf16",
    shared_prefix=6,
)


def cascade(tile: tuple[int, int] = (4, 3), splits: int = 1, **options: Any) -> Kernel:
    chosen = options_for("cascade", {"shared_tile": (8, 4), **options})
    return Kernel("shared", "cascade", Tile(*tile), splits=splits, packs_group=True, options=chosen)


def attended(p: AttentionProblem, arrays: Arrays) -> np.ndarray[Any, Any]:
    """O by a dense softmax over the shared keys and each sequence's own."""
    shared, begin, first, out = p.shared_prefix or 0, 0, 0, []
    for queries, keys in p.sequences:
        own_keys = keys - shared
        k, v = (
            np.concatenate(
                [arrays[f"{n}_shared"][0], arrays[n][0, :, begin : begin + own_keys]], axis=1
            ).repeat(p.group, 0)
            for n in "KV"
        )
        scores = arrays["Q"][0, :, first : first + queries] @ k.transpose(0, 2, 1) / p.head_dim**0.5
        if p.mask == "causal":
            ahead = np.arange(keys)[None, :] > np.arange(queries)[:, None] + keys - queries
            scores = np.where(ahead[None], -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        out.append(weights / weights.sum(axis=2, keepdims=True) @ v)
        begin, first = begin + own_keys, first + queries
    return np.concatenate(out, axis=1)


def arrays_of(chain: Any, dtype: str, seed: int = 0) -> Arrays:
    rng, arrays = np.random.default_rng(seed), {}
    for name in ("Q", "K", "V", "K_shared", "V_shared"):
        t = chain.tensors[name]
        arrays[name] = round_to(rng.standard_normal((t.batch, t.heads, t.rows, t.cols)), dtype)
    return arrays | {"Q_shared": arrays["Q"]}


def disagreement(p: AttentionProblem, chosen: Kernel, seed: int = 0) -> list[str]:
    chain = plan(p, chosen)
    arrays = arrays_of(chain, p.dtype, seed)
    done = execute(p, chosen, arrays, chain=chain)
    faults = bytes_apart(chain, done.traffic) + wrong_bytes(chain, lower(chain, spill_slots=8))
    worst = np.abs(done.outputs["O"] - attended(p, arrays)).max()
    return faults if worst <= TOLERANCE[p.dtype] * 4 else [*faults, f"O is off by {worst}"]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_readers_agree_and_compute_attention(data: st.DataObject) -> None:
    draw = data.draw
    dtype, kv_heads, group = (
        draw(st.sampled_from(("fp16", "bf16"))),
        draw(st.integers(1, 2)),
        draw(st.integers(1, 3)),
    )
    shared = draw(st.integers(1, 12))
    mask = draw(st.sampled_from(("none", "causal")))
    sizes = {
        "heads": kv_heads * group,
        "kv_heads": kv_heads,
        "head_dim": 8,
        "dtype": dtype,
        "mask": mask,
    }
    if draw(st.booleans()):
        queries = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
        own_lengths = [q + draw(st.integers(0, 7)) for q in queries]
        lengths = {"seq_lens": tuple(queries), "seq_lens_k": tuple(shared + n for n in own_lengths)}
    else:
        length = draw(st.integers(1, 5))
        own_lengths = [length + draw(st.integers(0, 7))]
        lengths = {
            "batch": draw(st.integers(1, 4)),
            "seq_q": length,
            "seq_k": shared + own_lengths[0],
        }
    p = AttentionProblem(**sizes, **lengths, shared_prefix=shared)
    chosen = cascade(
        (draw(st.sampled_from((2, 4, 6))), draw(st.integers(1, 5))),
        draw(st.integers(1, 2)) if max(own_lengths) > 5 else 1,
        shared_splits=draw(st.integers(1, -(-shared // 4))),
    )
    assert disagreement(p, chosen) == []


def test_a_launch_without_one_of_its_loads_computes_nothing() -> None:
    chosen = cascade(splits=2, shared_splits=2)
    chain = plan(SMALL, chosen)
    assert [x.name for x in chain.launches] == [
        "main",
        "combine",
        "shared.main",
        "shared.combine",
        "merge",
    ]
    for launch in chain.launches:
        for access in launch.accesses:
            if access.mode is Mode.LOAD:
                fewer = tuple(a for a in launch.accesses if a is not access)
                with pytest.raises(ExecutionError, match=access.tensor):
                    execute(
                        SMALL,
                        chosen,
                        arrays_of(chain, "bf16"),
                        chain=altered(chain, launch.name, accesses=fewer),
                    )


LONG = AttentionProblem(
    batch=64,
    heads=32,
    kv_heads=8,
    seq_q=1,
    seq_k=9216,
    head_dim=128,
    dtype="bf16",
    shared_prefix=8192,
)


def test_bytes_of_a_cascade() -> None:
    chain = plan(LONG, resolve("flashinfer-cascade", LONG, load_profile("h100")))
    traffic, row, tokens, heads = count(chain), 128 * 2, 64, 32
    assert traffic.total("l2", "read", launch="main", tensor="K") == tokens * 8 * 1024 * row
    merged = tokens * heads
    assert traffic.total("l2", "read", launch="merge") == 2 * merged * (
        row + 4
    )  # two outputs and log-sum-exps
    assert traffic.total("l2", "write", launch="merge") == merged * (row + 4)
    # two tiles of 128 rows hold the queries of all sequences, 256 rows a key/value head
    assert (
        traffic.total("l2", "read", launch="shared.main", tensor="K_shared") == 2 * 8 * 8192 * row
    )


def test_both_levels_are_flashinfers_calls() -> None:
    kernel = resolve("flashinfer-cascade", LONG, load_profile("h100"))
    alone = resolve("flashinfer", LONG.with_(shared_prefix=None, seq_k=1024), load_profile("h100"))
    prompt = AttentionProblem(
        heads=32, kv_heads=8, seq_q=64, seq_k=8192, head_dim=128, dtype="bf16"
    )
    shared = resolve("flashinfer", prompt, load_profile("h100"))
    assert (kernel.tile, kernel.splits, kernel.loop) == (alone.tile, alone.splits, alone.loop)
    options: Any = kernel.options
    assert (options.shared_tile, options.shared_splits) == (
        (shared.tile.block_q, shared.tile.block_k),
        shared.splits,
    )
    assert (
        plan(
            LONG.with_(shared_prefix=None),
            resolve("flashinfer-cascade", LONG.with_(shared_prefix=None), load_profile("h100")),
        )
        .launches[0]
        .name
        == "main"
    )


@pytest.mark.parametrize("method", ["replay", "capacity"])
def test_hbm_reads_are_those_of_the_keys_once(method: Any) -> None:
    prediction = predict(LONG, "flashinfer-cascade", "h100", method=method)
    assert prediction.hbm_bounds.compulsory_read == 64 * 32 * 256 + 2 * 8 * 256 * (8192 + 64 * 1024)
    assert (
        prediction.hbm_bounds.compulsory_read
        <= prediction.traffic.total("hbm", "read")
        <= 1.02 * prediction.hbm_bounds.compulsory_read
    )


def test_it_is_the_default_where_keys_are_shared(capsys: pytest.CaptureFixture[str]) -> None:
    assert default_kernel(LONG, load_profile("b200")) == "flashinfer-cascade"
    command = (
        "decode --gpu h100 --batch 64 --context 9k --shared-prefix 8k --layers 1 --format json"
    )
    assert main(command.split()) == 0
    point = json.loads(capsys.readouterr().out)["points"][0]
    keys = 8192 + 64 * 1024
    assert point["cache_bytes"] == keys * 8 * 2 * 256
    assert point["packed"] == 4
    assert point["sequences"][0]["context"] == 1024
    with_model = iosim.decode(
        model="llama-3-8b", gpu="h100", batch=64, context="9k", shared_prefix=8192, layers=1
    )
    assert with_model.points[0].cache_bytes == point["cache_bytes"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shared_prefix": 9217}, "up to 9216"),
        ({"mask": "window", "window": 9}, "mask"),
        ({"mask": "causal", "offset": 3}, "offset"),
        ({"passes": "bwd"}, "passes"),
    ],
)
def test_it_says_what_it_does_not_take(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        LONG.with_(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shared_prefix": 9216}, "up to 9215"),
        ({"seq_q": 1025, "mask": "causal"}, "up to 8191"),
    ],
)
def test_two_calls_need_keys_of_a_sequences_own(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        predict(LONG.with_(**changes), "flashinfer-cascade", "h100", method="bounds")


def test_others_share_through_pages_alone() -> None:
    for kernel in ("flashinfer", "fa2"):
        with pytest.raises(InputError, match="without page_size"):
            predict(LONG, kernel, "a100", method="bounds")
    with pytest.raises(InputError, match="shared_prefix"):
        predict(LONG, "cutlass", "a100", method="bounds")
    assert AttentionProblem.from_dict(LONG.to_dict()) == LONG
    assert replace(LONG, page_size=16).keys_in_memory == 8192 + 64 * 1024
