"""Values that meta and fake tensors do not have: what TrafficMode answers is what the CPU's tensors say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from effort import quick_every

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional  # noqa: E402

from iosim.base.errors import InputError  # noqa: E402
from iosim.integrations.torch import values  # noqa: E402
from iosim.torch import TrafficMode  # noqa: E402


def in_place(device: str) -> Any:
    x = torch.zeros(4, 6, dtype=torch.long, device=device)
    x[1:3, ::2] += torch.arange(3, device=device)
    x.view(-1)[5:9].fill_(7)
    x.t()[0] = torch.tensor([3, 1, 4, 1], device=device)
    return [x.sum().item(), x[2].max().item(), int(x[0, 5]), x.flatten().tolist()]


def routed(device: str) -> Any:
    """Experts as a loop over those that were hit goes through them: rows of each, and where they stand."""
    experts = torch.arange(12, device=device).view(6, 2) * 5 % 4
    mask = functional.one_hot(experts, num_classes=4).permute(2, 1, 0)
    experts_run = []
    for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        slot, row = torch.where(mask[expert].squeeze(0))
        experts_run.append((int(expert), len(slot), row.tolist(), slot.shape))
    return experts_run


ASKED: dict[str, Callable[[str], Any]] = {
    "a comparison of positions": lambda d: bool(
        (torch.arange(8, device=d) >= torch.zeros(1, device=d)).all()
    ),
    "numbers of the program": lambda d: torch.tensor([[2, 3], [5, 7]], device=d)[1].prod().item(),
    "a tensor's text": lambda d: f"{torch.arange(9, device=d)[4]:03d}",
    "a row by a mask": lambda d: torch.arange(9, device=d)[
        torch.arange(9, device=d) % 3 == 1
    ].tolist(),
    "unknown rows by a mask": lambda d: (
        torch.randn(9, 2, device=d)[torch.arange(9, device=d) % 3 == 1].shape
    ),
    "a masked selection": lambda d: (
        torch.randn(3, 4, device=d).masked_select(torch.eye(3, 4, device=d).bool()).shape
    ),
    "repeats": lambda d: (
        torch.arange(4, device=d).repeat_interleave(torch.tensor([0, 2, 1, 3], device=d)).tolist()
    ),
    "distinct ones": lambda d: torch.unique(torch.tensor([3, 1, 3, 2], device=d)).tolist(),
    "a step of floats": lambda d: [round(x.item(), 4) for x in torch.linspace(0, 0.1, 5, device=d)],
    "a program in place": in_place,
    "routing": routed,
    "a copy on the host": lambda d: (torch.arange(6, device=d) * 2).cpu().numpy().tolist(),
    "shaped like the unknown": lambda d: (
        torch.ones_like(torch.randn(3, 3, device=d), dtype=torch.long).sum().item()
    ),
}


@pytest.mark.parametrize("name", quick_every(ASKED, 3))
def test_values_that_follow_from_constants_are_exact(name: str) -> None:
    expected = ASKED[name]("cpu")
    with TrafficMode("h200") as t:
        assert ASKED[name]("meta") == expected
    assert t.notes == ()
    if name != "a copy on the host":  # a fake tensor of the host is not one of its values
        with FakeTensorMode(), TrafficMode("h200") as t:
            assert ASKED[name]("cpu") == expected
        assert t.notes == ()


def test_what_is_unknown_makes_unknown() -> None:
    with TrafficMode("h200"):
        x = torch.arange(8, device="meta")
        assert x.sum().item() == 28
        x[2:4] = torch.randn(2, device="meta").to(torch.long)
        with pytest.raises(InputError, match="hangs on values"):
            x.sum().item()
    with TrafficMode("h200"), pytest.raises(InputError, match="hangs on values"):
        torch.nonzero(torch.empty(8, device="meta"))


def test_assumptions_are_made_where_they_must_be_and_said() -> None:
    mask = torch.empty(2, 4, dtype=torch.long, device="meta")  # an input
    with TrafficMode("h200") as t:
        assert bool(mask.all())
        (mask + 1).sum()
    assert [note[:50] for note in t.notes] == ["values are asked of integers that have none, an in"]
    with TrafficMode("h200") as t:
        picked = torch.randn(64, 8, device="meta").softmax(-1).topk(2).indices
        assert [int((picked == expert).sum()) for expert in range(8)] == [16] * 8
        assert all(len(set(row.tolist())) == 2 for row in picked)
        experts = torch.randn(64, 8, device="meta").argmax(-1)
        assert torch.bincount(experts).tolist() == [8] * 8
    assert [note.split(":")[1] for note in t.notes] == [
        " rows are taken to spread evenly, as over experts"
    ]
    x = torch.empty(8, device="meta")
    with TrafficMode("h200") as t:
        assert not torch.isinf(x).any()
        assert torch.isfinite(x).all()
        assert torch.rand([], device="meta").item() == 0.5
        assert math.isnan(x.mean().item())
        assert math.isnan(float(x.sum().cpu()))
    assert len(t.notes) == 3
    with TrafficMode("h200") as t:
        (mask * 2).float().mean()
    assert t.notes == ()  # nothing was asked


def test_tokens_are_none_that_the_program_looks_for() -> None:
    """Numbers of tokens equal no padding index, whichever it is; a mask of ones is a mask of ones."""
    ids = torch.empty(4, 16, dtype=torch.long, device="meta")
    for padding in (0, 1, 5, torch.tensor(1)):
        with TrafficMode("h200") as t:
            assert not (ids == padding).any()
            assert bool(ids.clone()[:, 1:].to(torch.int32).ne(padding).all())
            assert not torch.isin(ids, torch.tensor([0, 1, 2], device="meta")).any()
            places = (
                torch.cumsum(ids.ne(padding).int(), dim=1) + 1
            )  # as ESM and RoBERTa number their tokens
            assert places[0].tolist() == list(range(2, 18))
        assert sum("taken to be tokens" in note for note in t.notes) == 1
    with TrafficMode("h200"):
        assert bool((ids[:, :, None] == ids[:, None, :]).all())  # as segments are told apart
        assert (ids * 0 + 1).eq(1).all()  # a number that follows from them is one

    def summed(attention_mask: torch.Tensor) -> tuple[bool, bool]:
        taken = attention_mask
        return bool((taken == 1).all()), bool((taken == 0).any())

    seen = torch.empty(4, 16, dtype=torch.long, device="meta")  # an input
    with TrafficMode("h200") as t:
        assert summed(seen) == (True, False)
    assert ["as a mask without padding is" in note for note in t.notes] == [True]


def test_a_routed_loop_moves_an_even_share() -> None:
    """Each expert's product has tokens x picks / experts rows."""
    tokens, picks, experts, width = 96, 2, 4, 64
    x, router = (
        torch.empty(tokens, width, device="meta"),
        torch.empty(width, experts, device="meta"),
    )
    weights = torch.empty(experts, width, width, device="meta")
    with TrafficMode("h200") as t:
        picked = (x @ router).topk(picks).indices
        mask = functional.one_hot(picked, num_classes=experts)
        for expert in range(experts):
            rows, _ = torch.where(mask[..., expert])
            x[rows] @ weights[expert]
    products = [r for r in t.result.rows if r.operator == "mm"][1:]
    assert [r.flops for r in products] == [2 * tokens * picks // experts * width * width] * experts


def test_groups_of_products() -> None:
    """A grouped product has the operations of its groups, forward and for both gradients."""
    tokens, experts, width, hidden = 512, 8, 64, 128
    with torch.device("meta"):
        x = torch.empty(tokens, width, dtype=torch.bfloat16, requires_grad=True)
        w = torch.empty(experts, width, hidden, dtype=torch.bfloat16, requires_grad=True)
        offsets = torch.empty(experts, dtype=torch.int32)
        with TrafficMode("h200") as t:
            out = functional.grouped_mm(x, w, offs=offsets)
            out.backward(torch.empty_like(out))
    products = [r for r in t.result.rows if r.operator == "_grouped_mm"]
    assert [r.flops for r in products] == [2 * tokens * width * hidden] * 3
    assert t.result.unknown == ()


def test_a_fake_mode_inside_is_answered_as_well() -> None:
    with TrafficMode("h200"), FakeTensorMode():
        assert torch.ones(3).sum().item() == 3
        assert nn.init.trunc_normal_(torch.empty(8)).shape == (
            8,
        )  # which asks whether a number fell outside


def test_values_go_with_their_tensors() -> None:
    with TrafficMode("h200") as t:
        for n in range(20):
            (torch.arange(100, device="meta") + n).sum()
        assert len(t._recorder.known) < 8


def test_autocast_may_be_switched_off_for_the_meta_device() -> None:
    with TrafficMode("h200") as t, torch.autocast("meta", enabled=False):
        torch.ones(2, device="meta")
    assert len(t.result.rows) == 1


def test_large_storages_are_not_followed() -> None:
    with TrafficMode("h200"), pytest.raises(InputError, match="hangs on values"):
        torch.zeros(1 << 20, dtype=torch.float64, device="meta").long().sum().item()


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.int32, values.MOST_BYTES), (torch.float32, values.MOST_FLOAT_BYTES)]
)
def test_tensors_are_followed_up_to_a_size(dtype: torch.dtype, limit: int) -> None:
    for more, followed in ((0, True), (1, False)):
        tensor = torch.empty(limit // 4 + more, dtype=dtype, device="meta")
        assert values._followed(tensor) is followed
