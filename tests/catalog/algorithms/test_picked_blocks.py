"""Attention over blocks of keys that each query picks: native sparse attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counter import count
from effort import examples
from executor import ExecutionError, execute, random_arrays, round_to
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered import wrong_bytes
from strategies import GRADIENT_FACTOR, TOLERANCE, altered, bytes_apart

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.algorithms import options_for, plan
from iosim.catalog.algorithms.indexer import LISTS
from iosim.catalog.libraries import resolve
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Mode, Role
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.picked import BlockPicks
from iosim.readers.replay.lowering import lower

Arrays = dict[str, np.ndarray[Any, Any]]


def nsa(blocks: int = 2, window: int = 5, tile: tuple[int, int] = (3, 4)) -> Kernel:
    return Kernel(
        "sparse",
        "nsa",
        Tile(*tile),
        options=options_for("nsa", {"blocks": blocks, "window": window}),
    )


def arrays_of(p: AttentionProblem, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed + 100)
    arrays = random_arrays(p, seed)
    gates = {
        f"g_{n}": round_to(rng.random((p.batch, p.heads, p.seq_q)), p.dtype)
        for n in ("slc", "cmp", "swa")
    }
    return {name: np.asarray(array, dtype=np.float64) for name, array in (arrays | gates).items()}


def softmax(scores: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[rows, columns]: zeros where no key is seen."""
    if scores.shape[1] == 0:
        return np.zeros((scores.shape[0], values.shape[1]))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (weights / weights.sum(axis=1, keepdims=True)) @ values


def attended(
    p: AttentionProblem, chosen: Kernel, a: Arrays, lists: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """O by dense softmax over what each query sees, with the picks that the launches made."""
    block, window = chosen.tile.block_k, chosen.options.window  # type: ignore[union-attr]
    out = np.zeros((p.batch, p.heads, p.seq_q, p.head_dim_v))
    for b, h, t in np.ndindex(p.batch, p.kv_heads, p.seq_q):
        rows = slice(h * p.group, (h + 1) * p.group)
        q = a["Q"][b, rows, t] / p.head_dim**0.5
        k = a["K"][b, h]
        v = a["V"][b, h]
        means = [
            round_to(x.reshape(-1, block, x.shape[1]).mean(axis=1), p.dtype)[: (t + 1) // block]
            for x in (k, v)
        ]
        picks = lists[b, h, t][lists[b, h, t] >= 0].astype(int)
        assert len(picks) == min(lists.shape[3], t // block + 1)
        assert t // block in picks
        keys = np.concatenate([np.arange(n * block, (n + 1) * block) for n in picks])
        parts = {"slc": keys[keys <= t]} | (
            {"swa": np.arange(max(0, t + 1 - window), t + 1)} if window else {}
        )
        summed = a["g_cmp"][b, rows, t, None] * softmax(q @ means[0].T, means[1])
        for name, seen in parts.items():
            summed += a[f"g_{name}"][b, rows, t, None] * softmax(q @ k[seen].T, v[seen])
        out[b, rows, t] = summed
    return out


def best(p: AttentionProblem, chosen: Kernel, a: Arrays, b: int, h: int, t: int) -> list[int]:
    """The blocks with the largest shares of the softmax over means, summed over a group, and the query's own."""
    block = chosen.tile.block_k
    own_block = t // chosen.tile.block_k
    means = round_to(a["K"][b, h].reshape(-1, block, p.head_dim).mean(axis=1), p.dtype)
    scores = a["Q"][b, h * p.group : (h + 1) * p.group, t] @ means.T / p.head_dim**0.5
    whole = scores[:, : (t + 1) // block]
    lse = (
        np.log(np.exp(whole).sum(axis=1, keepdims=True))
        if whole.shape[1]
        else np.zeros((p.group, 1))
    )
    shares = np.exp(scores[:, :own_block] - lse).sum(axis=0)
    rest = chosen.options.blocks - 1  # type: ignore[union-attr]
    return sorted([*np.argsort(-shares, kind="stable")[:rest].tolist(), own_block])


def disagreement(
    p: AttentionProblem, chosen: Kernel, seed: int = 0, chain: Any = None
) -> list[str]:
    chain = plan(p, chosen) if chain is None else chain
    arrays = {n: a for n, a in arrays_of(p, seed).items() if n in chain.tensors}
    planned = replace(
        chain,
        tensors={**chain.tensors, "indices": replace(chain.tensors["indices"], role=Role.OUTPUT)},
    )
    done = execute(p, chosen, arrays, chain=planned)
    faults = bytes_apart(chain, done.traffic)
    lists = done.outputs["indices"]
    for b, h, t in np.ndindex(p.batch, p.kv_heads, p.seq_q):
        if sorted(n for n in lists[b, h, t].tolist() if n >= 0) != best(p, chosen, arrays, b, h, t):
            faults.append(f"token {t} picks {lists[b, h, t]}")
    worst = np.abs(done.outputs["O"] - attended(p, chosen, arrays, lists)).max()
    return faults if worst <= TOLERANCE[p.dtype] * 4 else [*faults, f"O is off by {worst}"]


SMALL = AttentionProblem(
    heads=16, kv_heads=1, seq_q=20, head_dim=8, head_dim_v=4, mask="causal", dtype="bf16"
)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 7),
    st.sampled_from((2, 3, 4)),
    st.integers(1, 4),
    st.sampled_from((0, 1, 5, 9)),
    st.integers(1, 5),
    st.sampled_from(("fp16", "bf16")),
    st.integers(0, 3),
)
def test_readers_agree_and_compute_native_sparse_attention(
    batch: int,
    kv_heads: int,
    block_count: int,
    block: int,
    blocks: int,
    window: int,
    rows: int,
    dtype: str,
    seed: int,
) -> None:
    problem = SMALL.with_(
        batch=batch,
        heads=16 * kv_heads,
        kv_heads=kv_heads,
        seq_q=block_count * block,
        seq_k=block_count * block,
        dtype=dtype,
        output=dtype,
    )
    assert disagreement(problem, nsa(blocks, window, (rows, block)), seed) == []


def differentiated(p: AttentionProblem, chosen: Kernel, seed: int) -> tuple[Arrays, Arrays]:
    """(what a backward reads, its gradients) by dense derivatives, with picks as the description spreads them."""
    block, window, a = chosen.tile.block_k, chosen.options.window, arrays_of(p, seed)  # type: ignore[union-attr]
    token = np.arange(p.seq_q)[:, None]
    key = np.arange(p.seq_k)[None, :]
    picked = BlockPicks(None, 0, 0, block=block).pairs(p.seq_q, chosen.options.blocks)  # type: ignore[union-attr]
    lists = np.full((p.seq_q, chosen.options.blocks), -1)  # type: ignore[union-attr]
    for t in range(p.seq_q):
        lists[t, : np.diff(picked.indptr)[t]] = picked.indices[
            picked.indptr[t] : picked.indptr[t + 1]
        ]
    mask = np.zeros((p.seq_q, p.seq_k // block))
    mask[picked.rows, picked.indices] = 1
    whole = (np.arange(p.seq_k // block)[None, :] + 1) * block <= token + 1
    seen = {
        "slc": picked.keeps(token, key) & (key <= token),
        "cmp": whole,
        "swa": (key <= token) & (key > token - window),
    }
    every = (p.batch, p.kv_heads)
    columns = np.broadcast_to(mask.T[:, None, None], (mask.shape[1], *every, p.seq_q))
    saved: Arrays = {
        "indices": np.broadcast_to(lists, (*every, *lists.shape)),
        "mask_columns": columns,
    }
    right: Arrays = {name: np.zeros(a[name[1]].shape) for name in ("dQ", "dK", "dV")}
    for name, kept_pairs in seen.items() if window else list(seen.items())[:2]:
        k, v = a["K"], a["V"]
        if name == "cmp":
            k, v = (
                round_to(x.reshape(*every, -1, block, x.shape[3]).mean(axis=3), p.dtype)
                for x in (k, v)
            )
            saved |= {"K_cmp": k, "V_cmp": v}
        k, v = (np.repeat(x, p.group, axis=1) for x in (k, v))
        scores = np.where(
            kept_pairs, np.einsum("bhid,bhjd->bhij", a["Q"], k) / p.head_dim**0.5, -np.inf
        )
        lse = np.logaddexp.reduce(scores, axis=-1)
        shares = np.exp(scores - np.where(np.isneginf(lse), 0.0, lse)[..., None])
        o = shares @ v
        d_o = round_to(a["dO"] * a[f"g_{name}"][..., None], p.dtype)
        saved |= {f"O_{name}": round_to(o, p.dtype), f"LSE_{name}": lse}
        ds = (
            shares
            * (d_o @ v.swapaxes(2, 3) - (d_o * o).sum(axis=-1, keepdims=True))
            / p.head_dim**0.5
        )
        right[f"dg_{name}"] = (a["dO"] * o).sum(axis=-1)
        right["dQ"] += ds @ k
        for to, of_heads in (
            ("dK", ds.swapaxes(2, 3) @ a["Q"]),
            ("dV", shares.swapaxes(2, 3) @ d_o),
        ):
            of_keys = of_heads.reshape(*every, p.group, *of_heads.shape[2:]).sum(axis=2)
            right[to] += np.repeat(of_keys / block, block, axis=2) if name == "cmp" else of_keys
    return a | saved, right


def wrong_gradients(p: AttentionProblem, chosen: Kernel, seed: int = 0) -> list[str]:
    p = p.with_(passes="bwd")
    chain, (arrays, right) = plan(p, chosen), differentiated(p, chosen, seed)
    done = execute(p, chosen, {n: a for n, a in arrays.items() if n in chain.tensors}, chain=chain)
    faults = bytes_apart(chain, done.traffic)
    faults += [
        wrong_byte
        for wrong_byte in wrong_bytes(chain, lower(chain, spill_slots=8))
        if LISTS not in wrong_byte
    ]  # an entry a step
    assert {t.name for t in chain.role(Role.OUTPUT)} == right.keys()
    for name, array in right.items():
        error = np.abs(done.outputs[name].reshape(array.shape) - array).max() / max(
            1.0, np.abs(array).max()
        )
        faults += (
            [f"{name} is off by {error}"] if error > TOLERANCE[p.dtype] * GRADIENT_FACTOR else []
        )
    return faults


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 6),
    st.sampled_from((2, 3, 4)),
    st.integers(1, 4),
    st.sampled_from((0, 1, 5, 9)),
    st.integers(1, 5),
    st.sampled_from(("fp16", "bf16")),
    st.integers(0, 3),
)
def test_readers_agree_on_the_backward_and_it_computes_gradients(
    batch: int,
    kv_heads: int,
    block_count: int,
    block: int,
    blocks: int,
    window: int,
    rows: int,
    dtype: str,
    seed: int,
) -> None:
    tokens = {
        "seq_q": block_count * block,
        "seq_k": block_count * block,
        "dtype": dtype,
        "output": dtype,
    }
    problem = SMALL.with_(batch=batch, heads=16 * kv_heads, kv_heads=kv_heads, **tokens)
    assert wrong_gradients(problem, nsa(blocks, window, (rows, block)), seed) == []


@pytest.mark.slow
@pytest.mark.parametrize("passes", ["fwd", "bwd"])
def test_a_launch_without_one_of_its_loads_computes_nothing(passes: str) -> None:
    problem = SMALL.with_(passes=passes)
    chain = plan(problem, nsa())
    arrays = arrays_of(SMALL) if passes == "fwd" else differentiated(problem, nsa(), 0)[0]
    arrays = {n: a for n, a in arrays.items() if n in chain.tensors}
    for launch in chain.launches:
        for access in launch.accesses:
            if access.mode is Mode.LOAD:
                fewer = tuple(a for a in launch.accesses if a is not access)
                with pytest.raises(
                    ExecutionError,
                    match=f"{access.tensor.removesuffix('_swa')}|StopIteration|of range",
                ):
                    execute(
                        problem, nsa(), arrays, chain=altered(chain, launch.name, accesses=fewer)
                    )


LONG = AttentionProblem(heads=64, kv_heads=4, seq_q=8192, head_dim=128, mask="causal", dtype="bf16")


def test_bytes_of_native_sparse_attention() -> None:
    chain = plan(LONG, resolve("nsa", LONG, load_profile("h200")))
    names = "pool_k pool_v compress top_k selected window gate_slc gate_cmp gate_swa"
    assert [launch.name for launch in chain.launches] == names.split()
    traffic = count(chain)
    row, heads = 128 * 2, 4
    assert traffic.total("l2", "write", launch="pool_k") == heads * 8192 // 64 * row
    assert traffic.total("l2", "write", launch="top_k") == heads * 8192 * 16 * 4
    # token t has t // 64 + 1 blocks, up to 16, and reads each whole: once a key/value head
    blocks = sum(min(t // 64 + 1, 16) for t in range(8192))
    assert traffic.total("l2", "read", launch="selected", tensor="K") == heads * blocks * 64 * row


def test_bytes_of_its_backward() -> None:
    problem = LONG.with_(passes="bwd")
    chain = plan(problem, resolve("nsa", problem, load_profile("h200")))
    traffic, row, heads, blocks = count(chain), 128 * 2, 4, 8192 // 64
    picks = sum(min(t // 64 + 1, 16) for t in range(8192))
    # a token's 16 rows of Q and of dO, by the CTA of each block that it picked
    assert traffic.total("l2", "read", launch="bwd.dkv_slc", tensor="Q") == heads * picks * 16 * row
    assert (
        traffic.total("l2", "read", launch="bwd.dkv_slc", tensor="dO_slc")
        == heads * picks * 16 * row
    )
    # a sector for each token from a block's first one on, half of all in the mean
    assert (
        traffic.total("l2", "read", launch="bwd.dkv_slc", tensor="mask_columns")
        == heads * blocks * 8192 * 32 // 2
    )
    # 64 means a CTA: two CTAs a head, the second of which begins at token 4,096
    assert (
        traffic.total("l2", "read", launch="bwd.dkv_cmp", tensor="Q")
        == heads * (8192 + 4096) * 16 * row
    )
    assert traffic.total("l2", "write", launch="bwd.swa_main", tensor="dK_swa_heads") == 0
    both = plan(
        LONG.with_(passes="fwd+bwd"),
        resolve("nsa", LONG.with_(passes="fwd+bwd"), load_profile("h200")),
    )
    assert both.tensors["O_slc"].role is Role.TEMP
    assert len(both.launches) == 9 + len(chain.launches)


def test_operations_are_those_of_pairs_that_are_kept() -> None:
    """Means, picked blocks and a window of 512 are a third of the pairs that causal attention keeps of 8,192 tokens."""
    prediction = predict(LONG, "nsa", "h200", method="bounds")
    causal = LONG.matmul_flops()
    assert 0.3 * causal < prediction.flops < 0.4 * causal


@pytest.mark.parametrize("method", ["replay", "capacity"])
def test_hbm_reads_lie_between_the_bounds(method: Any) -> None:
    prediction = predict(LONG.with_(seq_q=1024, seq_k=1024), "nsa", "h200", method=method)
    read = prediction.traffic.total("hbm", "read")
    keys = 4 * 1024 * 128 * 2
    assert prediction.hbm_bounds.compulsory_read <= read * 1.01
    assert keys <= prediction.traffic.total("hbm", "read", tensor="K") <= 2 * keys


def test_it_says_what_it_does_not_take() -> None:
    h200 = load_profile("h200")
    for changes, says in (
        ({"mask": "none"}, "mask"),
        ({"seq_q": 8193, "seq_k": 8193}, "multiples of 64"),
        ({"seq_q": 64}, "no cache"),
        ({"kv_heads": 8}, "accepted: 4"),
        ({"dropout": 0.1}, "dropout"),
        ({"head_dim": 256}, "head_dim"),
        ({"page_size": 64}, "page_size"),
    ):
        problem = LONG.with_(**changes)
        with pytest.raises(InputError, match=says):
            plan(problem, resolve("nsa", problem, h200))


def test_it_is_compared_beside_a_kernel_that_takes_any_heads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = "compare --gpu h200 --kernel fa3,nsa --heads 32 --kv-heads 2 --seq-len 1k --head-dim 64 --causal"
    assert main([*command.split(), "--dtype", "bf16", "--method", "bounds"]) == 0
    assert "nsa" in capsys.readouterr().out
