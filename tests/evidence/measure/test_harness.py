"""What a measured call is held against: attention in float64; and one call from end to end on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.evidence.cuda.launch import Shape
from iosim.evidence.cuda.spec import BwdSpec, FwdSpec, MinimalSpec
from iosim.evidence.measure.case import Case
from iosim.evidence.measure.table import COLUMNS, read_table

SMALL = Case(FwdSpec(64, 64, 64, 4, 2), Shape(1, 8, 8, 512, 512, 64))


def test_the_reference_is_attention() -> None:
    torch = pytest.importorskip("torch")
    from iosim.evidence.measure import harness

    g = torch.Generator().manual_seed(3)
    shape = Shape(2, 4, 2, 33, 41, 64)
    case = Case(BwdSpec(64, 64, 64, 4, "causal"), shape, causal=True)
    sizes = {"q": (4, 33), "k": (2, 41), "v": (2, 41), "d_o": (4, 33)}
    t = {n: torch.randn(2, heads, seq, 64, generator=g) for n, (heads, seq) in sizes.items()}
    q = t["q"].double().requires_grad_()
    k, v = (t[n].double().requires_grad_() for n in "kv")
    mask = torch.ones(33, 41, dtype=torch.bool).tril(diagonal=41 - 33)
    k4, v4 = (x.repeat_interleave(2, dim=1) for x in (k, v))
    want = torch.nn.functional.scaled_dot_product_attention(q, k4, v4, attn_mask=mask)
    o, lse = harness.reference(case, t, torch.arange(33))
    assert harness.relative(o, want.detach()) < 1e-12
    scores = (q @ k4.transpose(-1, -2) / 8).masked_fill(~mask, float("-inf"))
    assert harness.relative(lse, torch.logsumexp(scores, -1).detach()) < 1e-12
    want.backward(t["d_o"].double())
    if torch.cuda.is_available():
        pytest.skip("gradients() makes its rows on the GPU")
    gradients = harness.gradients(case, t)
    for name, leaf in (("dq", q), ("dk", k), ("dv", v)):
        assert harness.relative(gradients[name], leaf.grad) < 1e-12


def test_a_wrong_output_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from iosim.evidence.measure import harness

    monkeypatch.setattr(harness, "check", lambda case, seed, **more: {"o": 1e-3, "lse": 1e-3})
    assert harness.trusted(SMALL, 0)[0]
    monkeypatch.setattr(harness, "check", lambda case, seed, **more: {"o": 2e-2, "lse": 1e-3})
    assert not harness.trusted(SMALL, 0)[0]
    monkeypatch.setattr(harness, "check", lambda case, seed, **more: {"o": float("inf")})
    assert not harness.trusted(Case(MinimalSpec(64), SMALL.shape), 0)[0]


@pytest.mark.gpu
def test_one_call_from_end_to_end(tmp_path: Path) -> None:
    from iosim.evidence.measure.machine import require

    try:
        require(profiler=True)
    except InputError as reason:
        pytest.skip(str(reason))
    out = tmp_path / "rows.csv"
    argv = ["measure", "--seq-len", "512", "--heads", "8", "--head-dim", "64", "-o", str(out)]
    assert main(argv) == 0
    assert main(argv) == 0
    (row,) = read_table(out, COLUMNS)
    # 8 heads x 4 tiles of 128 rows: Q once, 512 rows of K and of V each; 128 bytes a row
    assert int(row["l2_read"]) == pytest.approx(8 * 4 * (128 + 2 * 512) * 128, rel=1e-3)
