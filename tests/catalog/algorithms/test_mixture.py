"""Mixture of block attention: each query attends to its own block and to those before it that it picks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counter import count
from effort import examples
from executor import execute, round_to
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered import wrong_bytes
from strategies import TOLERANCE, bytes_apart

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.algorithms import options_for, plan
from iosim.catalog.algorithms.mixture import MobaOptions, levels
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Role
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.formula.symbolic import derive
from iosim.readers.replay.lowering import lower

Arrays = dict[str, np.ndarray[Any, Any]]


def moba(block: int, top_k: int, tile: tuple[int, int] = (4, 3)) -> Kernel:
    options = options_for("moba", {"block": block, "top_k": top_k, "own_tile": (2, 5)})
    return Kernel("mixture", "moba", Tile(*tile), options=options)


def picks_of(p: AttentionProblem, block: int, picks: int) -> list[list[int]]:
    """The blocks that each token picks, by turns."""
    picked = []
    for token in range(p.seq_q):
        own_block, at = divmod(token, block)
        count_picked = min(picks, own_block)
        picked.append(
            [own_block - 1 - (at * count_picked + n) % own_block for n in range(count_picked)]
        )
    return picked


def attend(q: Any, k: Any, v: Any, scale: float) -> tuple[Any, Any]:
    """(output, log-sum-exp) of rows of queries over the same keys."""
    scores = q @ k.T * scale
    lse = np.log(np.exp(scores).sum(axis=1))
    return np.exp(scores - lse[:, None]) @ v, lse


def arrays_of(p: AttentionProblem, block: int, picks: int, seed: int) -> tuple[Arrays, Arrays]:
    """Inputs whose gates make the picks of `picks_of`, with the views that no launch makes, and the right results."""
    rng = np.random.default_rng(seed)
    scale = p.head_dim**-0.5
    chosen = picks_of(p, block, picks)
    shape = (1, p.heads, p.seq_q, p.head_dim)
    arrays = {name: 0.1 * rng.standard_normal(shape) for name in ("Q", "K")} | {
        "V": rng.standard_normal(shape)
    }
    for token, blocks in enumerate(chosen):
        arrays["K"][:, :, token, token // block % p.head_dim] += 1.0
        for n, picked_block in enumerate(blocks):
            arrays["Q"][:, :, token, picked_block] += 4.0 - 0.5 * n
    arrays = {name: round_to(array, p.dtype) for name, array in arrays.items()}
    before = -(-p.seq_k // block) - 1
    rows = [[t for t, blocks in enumerate(chosen) if m in blocks] for m in range(before)]
    right = {
        name: np.zeros((1, p.heads, sum(map(len, rows)), cols))
        for name, cols in (("Q_sorted", p.head_dim), ("O_sorted", p.head_dim_v), ("LSE_sorted", 1))
    }
    views = {
        "O_picked": np.zeros((picks, p.heads, p.seq_q, p.head_dim_v)),
        "LSE_picked": np.zeros((picks, p.heads, p.seq_q, 1)),
    }
    right["O"] = np.zeros((1, p.heads, p.seq_q, p.head_dim_v))
    for h in range(p.heads):
        q, k, v = (arrays[name][0, h] for name in "QKV")
        begin = 0
        for m, tokens in enumerate(rows):
            here = slice(begin, begin + len(tokens))
            keys = slice(m * block, (m + 1) * block)
            output, lse = attend(q[tokens], k[keys], v[keys], scale)
            for name, value in (
                ("Q_sorted", q[tokens]),
                ("O_sorted", output),
                ("LSE_sorted", lse[:, None]),
            ):
                right[name][0, h, here] = value
            for token, o, picked_block in zip(tokens, output, lse, strict=True):
                number = chosen[token].index(m)
                views["O_picked"][number, h, token], views["LSE_picked"][number, h, token] = (
                    o,
                    picked_block,
                )
            begin += len(tokens)
        for token, blocks in enumerate(chosen):
            spans = [
                *((m * block, (m + 1) * block) for m in blocks),
                (token // block * block, token + 1),
            ]
            seen = np.concatenate([np.arange(*span) for span in spans])
            right["O"][0, h, token] = attend(q[token : token + 1], k[seen], v[seen], scale)[0][0]
    first = {f"{name}_first": arrays[name][:, :, : before * block] for name in "KV"}
    return arrays | {"Q_sorted": right["Q_sorted"]} | first | views, right


def disagreement(p: AttentionProblem, chosen: Kernel, seed: int = 0) -> list[str]:
    chain, options = plan(p, chosen), chosen.options
    assert isinstance(options, MobaOptions)
    before = -(-p.seq_k // options.block) - 1
    arrays, right = arrays_of(p, options.block, min(options.top_k - 1, before), seed)
    tensors = {
        n: replace(t, role=Role.OUTPUT if n in right and n != "Q_sorted" else t.role)
        for n, t in chain.tensors.items()
    }
    done = execute(
        p,
        chosen,
        {n: a for n, a in arrays.items() if n in chain.tensors},
        chain=replace(chain, tensors=tensors),
    )
    faults = bytes_apart(chain, done.traffic) + wrong_bytes(chain, lower(chain, spill_slots=8))
    for name, array in done.outputs.items():
        if name in right and not np.allclose(
            array.reshape(right[name].shape), right[name], atol=TOLERANCE[p.dtype] * 4
        ):
            faults.append(
                f"{name} is off by {np.abs(array.reshape(right[name].shape) - right[name]).max()}"
            )
    return faults


@settings(max_examples=examples(30), deadline=None)
@given(
    st.integers(1, 2),
    st.integers(2, 5),
    st.integers(4, 9),
    st.integers(2, 4),
    st.integers(0, 3),
    st.sampled_from(("fp16", "bf16")),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_readers_agree_and_compute_mixture_of_block_attention(
    heads: int, blocks: int, block: int, top_k: int, missing: int, dtype: str, rows: int, keys: int
) -> None:
    tokens = blocks * block - missing
    p = AttentionProblem(heads=heads, seq_q=tokens, head_dim=8, mask="causal", dtype=dtype)
    assert disagreement(p, moba(block, top_k, (rows, keys))) == []


def test_without_a_block_before_it_is_one_call() -> None:
    chain = plan(AttentionProblem(heads=2, seq_q=4, head_dim=8, mask="causal"), moba(8, 3))
    assert [launch.name for launch in chain.launches] == ["main"]


LONG = AttentionProblem(heads=16, seq_q=32768, head_dim=128, mask="causal", dtype="bf16")


def test_bytes_of_mixture_of_block_attention() -> None:
    kernel = resolve("moba", LONG, load_profile("h200"))
    own_part, picked = levels(LONG, kernel.options)  # type: ignore[arg-type]
    assert own_part.seq_lens == (4096,) * 8
    assert picked is not None
    # fewer than eleven blocks before the last: every query has all before its own
    assert picked.seq_lens == tuple(4096 * n for n in range(7, 0, -1))
    traffic = count(plan(LONG, kernel))
    row = 256
    picks = 4096 * 28
    assert traffic.total("l2", "write", launch="pick") == 16 * picks * row
    assert (
        traffic.total("l2", "read", launch="picked", tensor="K_block")
        == 16 * picks // 128 * 4096 * row
    )
    assert traffic.total("l2", "write", launch="add_picked") == 16 * picks * 2 * row


@pytest.mark.parametrize("method", ["replay", "capacity"])
def test_hbm_reads_are_more_than_the_compulsory_ones(method: Any) -> None:
    prediction = predict(LONG.with_(heads=2, kv_heads=2), "moba", "h200", method=method)
    read = prediction.traffic.total("hbm", "read")
    assert (
        prediction.hbm_bounds.compulsory_read
        == 3 * 2 * 32768 * 256
        < read
        < prediction.hbm_bounds.no_l2_read
    )
    longer = LONG.with_(heads=2, kv_heads=2, seq_q=131072, seq_k=131072)
    assert (
        4 * prediction.flops
        < predict(longer, "moba", "h200", method="bounds").flops
        < 10 * prediction.flops
    )


def test_it_says_what_it_does_not_take() -> None:
    for changes, says in (
        ({"passes": "bwd"}, "passes"),
        ({"mask": "none"}, "mask"),
        ({"batch": 2}, "batch"),
        ({"kv_heads": 4}, "kv_heads"),
        ({"seq_q": 1}, "seq_q"),
        ({"dropout": 0.1}, "dropout"),
        ({"head_dim": 512}, "head_dim"),
        ({"offset": 3}, "offset"),
    ):
        problem = LONG.with_(**changes)
        with pytest.raises(InputError, match=says):
            plan(problem, resolve("moba", problem, load_profile("h200")))


def test_it_has_no_formula_in_symbols() -> None:
    with pytest.raises(InputError, match="which no formula has"):
        derive(LONG, moba(4096, 12))
