"""Gated delta rule, Kimi delta attention and Mamba-2: the launches compute the recurrence, and the readers agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counter import count
from effort import examples
from executor import execute
from executor.arrays import gated
from executor.body import Array
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered import moved, wrong_bytes
from strategies import table

from iosim import predict
from iosim.base.errors import InputError
from iosim.catalog.algorithms import options_for, plan
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain
from iosim.problem.attention import AttentionProblem
from iosim.readers.formula.closed_form import closed_form
from iosim.readers.replay.lowering import lower

TOLERANCE = 3e-2
"""Of bf16: w, u, v_new and h pass memory."""


def unit(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6))


def recurrence(
    problem: AttentionProblem, kernel: Kernel, arrays: dict[str, Array], chain: Chain
) -> dict[str, Array]:
    """O and the last state, one token after the other, for all heads at once."""
    options: Any = kernel.options
    q, k = (np.repeat(arrays[n], problem.group, axis=1) for n in "QK")
    if kernel.algorithm == "delta_rule" and options.norm:
        q, k = unit(q), unit(k)
    shape = (problem.batch, problem.heads, problem.head_dim, problem.head_dim_v)
    state = arrays["state_before"] if "state_before" in chain.tensors else np.zeros(shape)
    rows = []
    for t in range(problem.seq_q):
        if kernel.algorithm == "ssd":
            dt = arrays["dt"][:, :, t, :, None]
            state = (
                np.exp(arrays["A"] * dt) * state
                + dt * k[:, :, t, :, None] * arrays["V"][:, :, t, None, :]
            )
        else:
            state = np.exp(arrays["g"][:, :, t])[..., None] * state
            held = np.einsum("bhk,bhkv->bhv", k[:, :, t], state)
            new = arrays["beta"][:, :, t] * (arrays["V"][:, :, t] - held)
            state = state + k[:, :, t, :, None] * new[:, :, None, :]
        rows.append(np.einsum("bhk,bhkv->bhv", q[:, :, t], state))
    scale = 1.0 if kernel.algorithm == "ssd" else problem.head_dim**-0.5
    return {"O": scale * np.stack(rows, axis=2), "state_after": state}


@st.composite
def calls(draw: st.DrawFn) -> tuple[AttentionProblem, Kernel]:
    """Every option, ragged chunks, grouped heads, states before and after, both layouts, decoding."""
    algorithm = draw(st.sampled_from(("delta_rule", "ssd")))
    options: dict[str, Any] = {
        "step_tokens": draw(st.sampled_from((0, 1))),
        "step_columns": draw(st.sampled_from((5, 32))),
        "reads_state": draw(st.sampled_from((None, True, False))),
        "writes_state": draw(st.booleans()),
    }
    if algorithm == "delta_rule":
        options |= {
            "gate": draw(st.sampled_from(("head", "column"))),
            "norm": draw(st.booleans()),
            "sub_chunk": 4,
            "separate_solve": draw(st.booleans()),
            "output_columns": draw(st.sampled_from((7, 64))),
        }
    else:
        options |= {
            "scan_rows": draw(st.sampled_from((3, 8))),
            "pass_numbers": draw(st.sampled_from((20, 1024))),
        }
    kv_heads = draw(st.integers(1, 2))
    new = draw(st.sampled_from((1, 2, 8, 13, 24)))
    group = 1 if options.get("gate") == "column" else draw(st.integers(1, 3))
    problem = AttentionProblem(
        batch=draw(st.integers(1, 2)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        seq_q=new,
        seq_k=new + draw(st.sampled_from((0, 5))),
        head_dim=draw(st.sampled_from((4, 10))),
        head_dim_v=draw(st.sampled_from((3, 8))),
        dtype="bf16",
        mask="causal",
        layout=draw(st.sampled_from(("bhsd", "bshd"))),
    )
    tile = Tile(draw(st.sampled_from((2, 8))), 8)
    return problem, Kernel(algorithm, algorithm, tile, options=options_for(algorithm, options))


@settings(max_examples=examples(150), deadline=None)
@given(call=calls(), seed=st.integers(0, 3))
def test_the_launches_compute_the_recurrence_and_the_readers_agree(
    call: tuple[AttentionProblem, Kernel], seed: int
) -> None:
    problem, kernel = call
    chain = plan(problem, kernel)
    arrays = gated(chain, seed)
    done = execute(problem, kernel, arrays, chain=chain)
    assert table(count(chain)) == table(closed_form(chain)) == table(done.traffic)
    right = recurrence(problem, kernel, arrays, chain)
    for name, got in done.outputs.items():
        limit = TOLERANCE * max(1.0, np.abs(right[name]).max())
        assert np.abs(got - right[name]).max() <= limit, name


def test_bytes_of_a_prefill_by_hand() -> None:
    """Qwen3-Next's layer: the state before each of 512 chunks of 32 heads, 128 x 128 numbers of two bytes."""
    problem = AttentionProblem(
        heads=32, kv_heads=16, seq_q=32768, head_dim=128, dtype="bf16", mask="causal", layout="bshd"
    )
    traffic = predict(problem, "gdn", "h200-sxm").traffic
    assert traffic.total("l2", "write", tensor="h") == 512 * 32 * 128 * 128 * 2
    rows = 32768 * 32  # of a token and head
    assert (
        traffic.total("l2", "read", launch="state", tensor="w") == rows * 256 * 4
    )  # each CTA of 32 columns reads w
    assert traffic.total("l2", "read", launch="state", tensor="u") == rows * 256
    assert (
        traffic.total("l2", "read", launch="kkt_solve", tensor="g_sum") == rows * 32
    )  # heads lie between: a sector
    assert traffic.total("l2", "read", launch="output", tensor="K_norm") == rows * 256 * 2


def test_each_chunk_has_a_state_of_its_own_in_memory() -> None:
    """The walk writes all states to HBM and the output reads them back; one state over and over would stay in L2."""
    problem = AttentionProblem(
        heads=32, kv_heads=16, seq_q=32768, head_dim=128, dtype="bf16", mask="causal", layout="bshd"
    )
    traffic = predict(problem, "gdn", "h200-sxm", method="replay").traffic
    states = 512 * 32 * 128 * 128 * 2
    assert traffic.total("hbm", "write", tensor="h") > 0.9 * states
    assert traffic.total("hbm", "read", tensor="h") > 0.9 * states


@pytest.mark.parametrize("kernel", ["gdn", "trtllm-gdn", "kda", "ssd"])
@pytest.mark.parametrize("new", [1, 200, 512])
def test_a_replay_moves_what_is_counted(kernel: str, new: int) -> None:
    """Object by object; each chunk's state is another."""
    fields: dict[str, Any] = {
        "batch": 2,
        "heads": 4,
        "head_dim": 64,
        "dtype": "bf16",
        "mask": "causal",
    }
    chain = predict(AttentionProblem(seq_q=new, seq_k=600, **fields), kernel, "h200-sxm").chain
    lowered = lower(chain, 8)
    assert wrong_bytes(chain, lowered) == []
    for launch, low in zip(chain.launches, lowered.launches, strict=True):
        for template, objects in moved(low):
            if chain.tensors[template.tensor].copies > 1 and template.mode == 1:
                assert len(np.unique(objects)) == objects.size, launch.name


def test_the_sequence_of_dependent_steps_bounds_a_long_prompt() -> None:
    problem = AttentionProblem(
        heads=32, kv_heads=16, seq_q=16384, head_dim=128, dtype="bf16", mask="causal"
    )
    prediction = predict(problem, "gdn", "h200-sxm")
    walk = next(t for t in prediction.time.launches if t.name == "state")
    assert walk.bound_by == "sequence"
    again = predict(problem.with_(seq_q=32768, seq_k=32768), "gdn", "h200-sxm").time
    assert next(t for t in again.launches if t.name == "state").total_s == pytest.approx(
        2 * walk.total_s, rel=0.05
    )
    wide = predict(problem.with_(batch=16), "gdn", "h200-sxm").time
    assert (
        next(t for t in wide.launches if t.name == "state").total_s < 12 * walk.total_s
    )  # CTAs side by side


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"mask": "none"},
            r"mask none: in kernel 'gdn' a token changes the state .*; accepted: causal",
        ),
        ({"mask": "window", "window": 64}, r"mask window: in kernel 'gdn' a token changes"),
        ({"seq_k": 100}, r"seq_len 512 with 100 keys: new tokens are keys, too"),
        ({"passes": "bwd"}, r"passes bwd: kernel gdn has no model of it; accepted: fwd"),
        ({"dropout": 0.1}, r"dropout 0.1: kernel gdn has none"),
        ({"dtype": "fp32"}, r"dtype fp32: not supported by kernel gdn"),
    ],
)
def test_what_a_state_cannot_do_is_refused(changes: dict[str, Any], message: str) -> None:
    fields = {
        "heads": 4,
        "seq_q": 512,
        "head_dim": 128,
        "dtype": "bf16",
        "mask": "causal",
    } | changes
    with pytest.raises(InputError, match=message):
        predict(AttentionProblem(**fields), "gdn", "h200-sxm")


def test_kda_has_no_grouped_heads_and_whole_parts() -> None:
    problem = AttentionProblem(
        heads=4, kv_heads=2, seq_q=512, head_dim=128, dtype="bf16", mask="causal"
    )
    with pytest.raises(
        InputError, match=r"kv_heads 2: each head of kernel 'kda' has a Q and a K of its own"
    ):
        predict(problem, "kda", "h200-sxm")
    odd = Kernel(
        "kda", "delta_rule", Tile(32, 24), options=options_for("delta_rule", {"gate": "column"})
    )
    with pytest.raises(InputError, match=r"chunks of 24 tokens are no whole number of parts of 16"):
        plan(problem.with_(kv_heads=4), odd)


def test_a_step_of_decoding_moves_the_state_alone() -> None:
    """The length of the context changes nothing: no cache grows."""
    step = AttentionProblem(
        batch=8, heads=32, kv_heads=16, seq_q=1, seq_k=4096, head_dim=128, dtype="bf16"
    )
    prediction = predict(step, "gdn", "h200-sxm")
    assert [launch.name for launch in prediction.chain.launches] == ["step"]
    assert prediction.traffic.total("l2", "read", tensor="state_before") == 8 * 32 * 128 * 128 * 4
    assert prediction.traffic.total("l2", "write", tensor="state_after") == 8 * 32 * 128 * 128 * 4
    longer = predict(step.with_(seq_k=1 << 20), "gdn", "h200-sxm")
    assert longer.traffic.total("l2") == prediction.traffic.total("l2")
    assert longer.time_s == prediction.time_s
