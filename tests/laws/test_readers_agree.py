"""Count, formula and execution agree to the byte on random problems, and what is executed is attention."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from executor import random_arrays, reference
from executor.reference import dense_mask, dropout_factor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import ALGORITHMS, FORWARD_ONLY, cases, disagreements, problems

from iosim.catalog.algorithms import options_of
from iosim.catalog.algorithms.flash_options import SplitOptions
from iosim.kernel.kernel import Kernel
from iosim.problem.attention import AttentionProblem

PAIRS = [
    (a, p)
    for a in ALGORITHMS
    for p in ("fwd", "bwd", "fwd+bwd")
    if p == "fwd" or a not in FORWARD_ONLY
]


@pytest.mark.parametrize(("algorithm", "passes"), PAIRS)
@settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_count_formula_execution_and_attention_agree(
    algorithm: str, passes: str, data: st.DataObject
) -> None:
    problem, kernel = data.draw(cases(algorithm, passes))
    assert disagreements(problem, kernel, seed=data.draw(st.integers(0, 3))) == []


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems("flash", "fwd+bwd"), seed=st.integers(0, 9))
def test_reference_is_what_autograd_says(problem: AttentionProblem, seed: int) -> None:
    torch = pytest.importorskip(
        "torch", reason="torch, the oracle of the gradients, is not installed"
    )
    arrays = random_arrays(problem, seed)
    q, k, v = (torch.tensor(arrays[n], dtype=torch.float64, requires_grad=True) for n in "QKV")
    kept_pairs = torch.tensor(dense_mask(problem))
    factor = torch.tensor(dropout_factor(problem, seed)) if problem.dropout else 1.0
    keys, values = (x.repeat_interleave(problem.group, dim=1) for x in (k, v))
    scores = (q @ keys.transpose(-1, -2) / problem.head_dim**0.5).masked_fill(~kept_pairs, -1e300)
    weights = scores.softmax(-1).masked_fill(~kept_pairs, 0.0)  # a row that keeps no key: zero
    output = (weights * factor) @ values
    output.backward(torch.tensor(arrays["dO"]))
    right = reference(problem, arrays, seed)
    for name, tensor in {"O": output.detach(), "dQ": q.grad, "dK": k.grad, "dV": v.grad}.items():
        np.testing.assert_allclose(
            right[name], tensor.numpy(), rtol=1e-10, atol=1e-10, err_msg=name
        )
    lse = scores.detach().masked_fill(~kept_pairs, -np.inf).logsumexp(-1).numpy()
    np.testing.assert_allclose(right["LSE"], lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_reference_is_torch_attention(seed: int) -> None:
    torch = pytest.importorskip("torch", reason="torch, the oracle of attention, is not installed")
    problem = AttentionProblem(
        batch=2, heads=3, seq_q=17, head_dim=8, head_dim_v=5, mask="causal", dtype="fp32"
    )
    arrays = random_arrays(problem, seed)
    q, k, v = (torch.tensor(arrays[n], dtype=torch.float64) for n in "QKV")
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).numpy()
    np.testing.assert_allclose(reference(problem, arrays)["O"], right, rtol=1e-12, atol=1e-12)


def test_kernels_of_the_strategies_reach_every_corner() -> None:
    """The strategies draw what they promise: a property over a space that is never entered would hold."""
    wanted = {
        "split",
        "two statistics",
        "packed",
        "rereads",
        "needed",
        "window",
        "grouped",
        "fp8",
        "dropout",
        "empty rows",
        "queries 1",
        "keys 1",
        "strided",
    }
    seen: set[str] = set()

    @settings(max_examples=400, deadline=None, database=None, derandomize=True)
    @given(case=cases("flash", "fwd"))
    def look(case: tuple[AttentionProblem, Kernel]) -> None:
        p, k = case
        marks = {
            "split": k.splits > 1,
            "two statistics": k.splits > 1 and options_of(k, SplitOptions).statistics_per_row == 2,
            "packed": k.packs_group and p.seq_q == 1 and p.group > 1,
            "rereads": k.rereads_q,
            "needed": k.edge_k == "needed",
            "window": p.mask == "window",
            "grouped": p.group > 1,
            "fp8": p.dtype == "fp8",
            "dropout": p.dropout > 0,
            "empty rows": not dense_mask(p).any(axis=1).all(),
            "queries 1": p.seq_q == 1,
            "keys 1": p.seq_k == 1,
            "strided": p.layout == "bshd",
        }
        seen.update(name for name, marked in marks.items() if marked)

    look()
    assert seen == wanted
