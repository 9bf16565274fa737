"""UniForm's shared attention matrix: readers agree, what is executed is it, and the savings are the closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counter import count
from effort import examples
from executor import execute, random_arrays, reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refused
from strategies import disagreements

from iosim.base.errors import InputError
from iosim.catalog.algorithms import options_for, options_of, plan
from iosim.catalog.algorithms.registry import reading
from iosim.catalog.algorithms.uniform import UniformOptions
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import memory
from iosim.readers.replay.lowering import lower

GPUS = ("t4", "l4", "a100", "h100")


@st.composite
def cases(draw: st.DrawFn, algorithm: str) -> tuple[AttentionProblem, Kernel]:
    """Value heads in one tile or several, ragged lengths, masks, both layouts."""
    heads = draw(st.sampled_from((1, 2, 3, 4, 6)))
    groups = (
        draw(st.sampled_from([g for g in (1, 2, 3, 4, 6) if heads % g == 0]))
        if algorithm == "uniform"
        else 1
    )
    problem = AttentionProblem(
        batch=draw(st.integers(1, 2)),
        heads=heads,
        seq_q=draw(st.integers(1, 40)),
        seq_k=draw(st.integers(1, 40)),
        head_dim=draw(st.sampled_from((1, 4, 10))),
        head_dim_v=draw(st.sampled_from((1, 3, 8))),
        mask=draw(st.sampled_from(("none", "causal"))),
        layout=draw(st.sampled_from(("bhsd", "bshd"))),
        dtype=draw(st.sampled_from(("fp32", "fp16", "bf16"))),
        passes=draw(st.sampled_from(("fwd", "bwd", "fwd+bwd"))) if groups == 1 else "fwd",
    )
    blocks = -(-problem.seq_k // 16)
    options = {"value_heads_per_tile": heads // groups} if draw(st.booleans()) or groups > 1 else {}
    tile = Tile(draw(st.sampled_from((4, 16, 24))), 16)
    splits = (
        draw(st.integers(1, blocks)) if algorithm == "uniform" and problem.passes == "fwd" else 1
    )
    lse = groups == 1 and draw(st.booleans())
    return problem, Kernel(
        algorithm,
        algorithm,
        tile,
        splits=splits,
        writes_lse=lse,
        options=options_for(algorithm, options),
    )


@pytest.mark.parametrize("algorithm", ["uniform", "uniform_naive"])
@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_count_formula_execution_and_attention_agree(algorithm: str, data: st.DataObject) -> None:
    assert disagreements(*data.draw(cases(algorithm))) == []


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_lowered_bytes_are_the_counted_bytes(data: st.DataObject) -> None:
    problem, kernel = data.draw(cases("uniform"))
    if problem.layout == "bshd":  # rows in whole sectors are counted, objects have their true size
        problem = problem.with_(layout="bhsd")
    chain = plan(problem, kernel)
    lowered = lower(chain, 1)
    counted = count(chain)
    for launch in lowered.launches:
        moved_bytes = 0
        for templates, steps in (
            (launch.prologue, None),
            (launch.loop, launch.count),
            (launch.epilogue, None),
        ):
            for t in templates:
                for n, base in enumerate(t.base):
                    if base < 0:
                        continue
                    for s in range(1) if steps is None else range(int(steps[n])):
                        at = base + t.coef * (int(launch.first[n]) + s if steps is not None else 0)
                        at = (
                            at
                            + np.arange(t.rows)[:, None] * t.row_stride
                            + np.arange(t.span)[None, :]
                        )
                        assert 0 <= at.min() <= at.max() < lowered.size.size
                        if chain.tensors[t.tensor].cols > 1:
                            moved_bytes += int(lowered.size[at].sum())
        vectors = {n for n, t in chain.tensors.items() if t.cols == 1}
        wanted = sum(
            r.bytes for r in counted if r.launch == launch.name and r.tensor not in vectors
        )
        assert moved_bytes == wanted, launch.name


def test_the_reference_shares_one_matrix() -> None:
    """Written out once more: softmax of one head's scores, times each head's values."""
    problem = AttentionProblem(
        batch=2, heads=3, seq_q=7, seq_k=9, head_dim=4, head_dim_v=5, dtype="fp32"
    )
    arrays = random_arrays(problem, 1)
    q = arrays["Q"][:, :1]
    k = arrays["K"][:, :1]
    v = arrays["V"]
    scores = q[:, 0] @ k[:, 0].transpose(0, 2, 1) / 2.0  # 1 / sqrt(4)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    right = np.stack([weights @ v[:, h] for h in range(3)], axis=1)
    expected = reference(problem, {"Q": q, "K": k, "V": v})
    np.testing.assert_allclose(expected["O"], right, rtol=1e-12, atol=1e-12)
    assert expected["LSE"].shape == (2, 1, 7)
    done = execute(problem, Kernel("u", "uniform", Tile(4, 4)), {"Q": q, "K": k, "V": v})
    np.testing.assert_allclose(done.outputs["O"], right, rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_autograd() -> None:
    torch = pytest.importorskip(
        "torch", reason="torch, the oracle of the gradients, is not installed"
    )
    problem = AttentionProblem(
        heads=3,
        seq_q=6,
        seq_k=8,
        head_dim=4,
        head_dim_v=5,
        dtype="fp32",
        passes="fwd+bwd",
        mask="causal",
    )
    arrays = random_arrays(problem, 2)
    arrays |= {n: arrays[n][:, :1] for n in "QK"}
    q, k, v = (torch.tensor(arrays[n], requires_grad=True) for n in "QKV")
    mask = torch.ones(6, 8, dtype=torch.bool).tril(2)
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(~mask, -torch.inf)
    (scores.softmax(-1) @ v).backward(torch.tensor(arrays["dO"]))
    done = execute(problem, Kernel("u", "uniform", Tile(4, 4)), arrays)
    for name, tensor in {"dQ": q.grad, "dK": k.grad, "dV": v.grad}.items():
        np.testing.assert_allclose(
            done.outputs[name], tensor.numpy(), rtol=1e-4, atol=1e-5, err_msg=name
        )


# Bytes, written out.


def _bytes(
    problem: AttentionProblem, per_tile: int, block_q: int = 64
) -> dict[tuple[str, str], int]:
    options = UniformOptions(value_heads_per_tile=per_tile)
    kernel = Kernel("u", "uniform", Tile(block_q, 64), writes_lse=False, options=options)
    return count(plan(problem, kernel)).tensors("l2")


@pytest.mark.parametrize("per_tile", [1, 2, 4, 8])
def test_bytes_of_the_tile_choices(per_tile: int) -> None:
    problem = AttentionProblem(heads=8, seq_q=1024, head_dim=64)
    tensor_bytes = 1024 * 64 * 2  # a head's rows
    groups, blocks = 8 // per_tile, 1024 // 64
    assert _bytes(problem, per_tile) == {
        ("Q", "read"): groups * tensor_bytes,  # again for every group of value heads
        ("K", "read"): groups * blocks * tensor_bytes,
        ("V", "read"): 8 * blocks * tensor_bytes,  # the same whatever the groups
        ("O", "write"): 8 * tensor_bytes,
    }


def test_one_value_head_a_tile_moves_what_multi_head_attention_moves() -> None:
    problem = AttentionProblem(heads=8, seq_q=1024, head_dim=64)
    plain = count(plan(problem, Kernel("f", "flash", Tile(64, 64), writes_lse=False)))
    assert _bytes(problem, 1) == plain.tensors("l2")


def test_through_memory_one_matrix_in_place_of_one_a_head() -> None:
    problem = AttentionProblem(batch=2, heads=8, seq_q=1024, head_dim=64)
    fixed = {"gemm_tile": (2048, 2048)}
    plain, shared = (
        plan(problem, Kernel("n", a, Tile(64, 64), options=options_for(a, fixed)))
        for a in ("naive", "uniform_naive")
    )
    # one head's rows, one head's matrix
    u = 2 * 1024 * 64 * 2
    nn = 2 * 1024 * 1024 * 2
    assert count(plain).total("l2") == 8 * (4 * u + 4 * nn)
    assert (
        count(shared).total("l2") == 2 * u + 8 * 2 * u + 4 * nn
    )  # Q, K; V, O of eight heads; S and P twice each
    assert memory(plain)["workspace"] == 8 * memory(shared)["workspace"] == 8 * 2 * nn


def test_operations_are_those_of_one_matrix() -> None:
    problem = AttentionProblem(heads=12, seq_q=256, head_dim=64)
    prediction = predict(problem, "uniform-naive", "t4", method="bounds")
    assert prediction.flops == 256 * 256 * 2 * (64 + 12 * 64)
    assert prediction.to_dict()["flops"] == prediction.flops
    assert prediction.to_dict()["exps"] == 256 * 256
    assert predict(problem, "flash", "t4", method="bounds").flops == 12 * 256 * 256 * 2 * 128


# The catalog.


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(
    ("heads", "width"), [(1, 16), (3, 64), (4, 96), (12, 64), (16, 128), (8, 512), (7, 1000)]
)
@pytest.mark.parametrize("passes", ["fwd", "fwd+bwd"])
def test_the_tile_fits_and_takes_a_divisor_of_the_heads(
    gpu: str, heads: int, width: int, passes: str
) -> None:
    problem = AttentionProblem(
        heads=heads, seq_q=512, head_dim=min(width, 64), head_dim_v=width, passes=passes
    )
    profile = load_profile(gpu)
    kernel = resolve("uniform", problem, profile)
    per_tile = options_of(kernel, UniformOptions).value_heads_per_tile
    assert heads % per_tile == 0
    if passes != "fwd":
        assert per_tile == heads
    if heads * width <= 384:
        prediction = predict(problem, kernel, profile, method="bounds")
        assert prediction.time.total_s > 0


@pytest.mark.parametrize("gpu", ["t4", "l4", "a100"])
def test_replay_reads_q_and_k_once(gpu: str) -> None:
    """All of it fits in L2: HBM reads are the compulsory ones, and those have Q and K of one head."""
    problem = AttentionProblem(batch=4, heads=4, seq_q=256, head_dim=64)
    prediction = predict(problem, "uniform", gpu, method="replay")
    assert prediction.hbm_bounds.compulsory_read == 4 * 256 * 64 * 2 * (1 + 1 + 4)
    assert prediction.hbm_payload.read == pytest.approx(
        prediction.hbm_bounds.compulsory_read, rel=0.01
    )


@pytest.mark.parametrize("gpu", ["t4", "l4", "a100"])
def test_sharing_saves_traffic_memory_and_time(gpu: str) -> None:
    problem = AttentionProblem(batch=8, heads=12, seq_q=1024, head_dim=64)
    for plain, shared in (("flash", "uniform"), ("naive", "uniform-naive")):
        before, after = (predict(problem, k, gpu, method="capacity") for k in (plain, shared))
        assert after.total("l2") < before.total("l2")
        assert after.total("hbm") < before.total("hbm")
        assert after.memory_bytes["peak"] < before.memory_bytes["peak"]
        assert after.time.total_s < before.time.total_s


def test_the_reading_leaves_the_problem_alone() -> None:
    problem = AttentionProblem(heads=12, seq_q=64, head_dim=64)
    read = reading(
        problem,
        Kernel("u", "uniform", Tile(64, 64), options=UniformOptions(value_heads_per_tile=4)),
    )
    assert (read.heads, read.kv_heads, read.head_dim, read.head_dim_v) == (3, 3, 64, 256)
    assert (problem.heads, problem.head_dim_v) == (12, 64)
    assert reading(problem, Kernel("f", "flash", Tile(64, 64))) is problem


@pytest.mark.parametrize(
    ("algorithm", "changes", "options", "message"),
    [
        ("uniform", {"kv_heads": 2}, {}, "kv_heads 2 .* accepted: 4"),
        ("uniform", {"dropout": 0.1}, {}, "dropout 0.1 .* it has none"),
        ("uniform", {}, {"value_heads_per_tile": 3}, "value_heads_per_tile 3 .* divisors of 4"),
        ("uniform", {}, {"value_heads_per_tile": 2}, "writes_lse True .* accepted: False"),
        (
            "uniform",
            {"passes": "fwd+bwd"},
            {"value_heads_per_tile": 2},
            r"passes 'fwd\+bwd' .* accepted: fwd",
        ),
        ("uniform_naive", {}, {"value_heads_per_tile": 2}, "one product takes all; accepted: 4"),
        ("uniform", {"bias": "full"}, {}, "bias=full"),
    ],
)
def test_what_it_cannot_do_is_refused(
    algorithm: str, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    problem = AttentionProblem(**({"heads": 4, "seq_q": 64, "head_dim": 16} | changes))
    with pytest.raises(InputError, match=message):
        plan(problem, Kernel("u", algorithm, Tile(16, 16), options=options_for(algorithm, options)))


def test_bad_input_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ("--kv-heads", "2", "--heads", "4"),
        ("--dropout", "0.1"),
        ("--splits", "2"),
        ("--dtype", "fp8"),
    ):
        line = refused(capsys, ["predict", "--kernel", "uniform", *arguments])
        assert arguments[0] in line or arguments[0][2:].replace("-", "_") in line
