"""The backward of every operator beside PyTorch's: what autograd keeps, which launches run, in which order, on what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from iosim.studies.program.derivatives import GRAD, OUT, derivatives, kept  # noqa: E402

aten = torch.ops.aten
ROWS, COLS = 6, 4


def matrix(rows: int = ROWS, cols: int = COLS) -> Tensor:
    return torch.rand(rows, cols) + 0.5


def numbers(*values: int) -> Tensor:
    return torch.tensor(values)


Operands = dict[str, Tensor]
CALLS: dict[str, tuple[Callable[..., Any], Operands]] = {
    "mm": (lambda x, weight: x @ weight.t(), {"x": matrix(), "weight": matrix(5)}),
    "addmm": (
        lambda x, weight, bias: functional.linear(x, weight, bias),
        {"x": matrix(), "weight": matrix(5), "bias": torch.rand(5)},
    ),
    "bmm": (torch.bmm, {"x": torch.rand(2, 3, 4), "other": torch.rand(2, 4, 5)}),
    "add": (torch.add, {"x": matrix(), "other": matrix()}),
    "mul": (torch.mul, {"x": matrix(), "other": matrix()}),
    "scale": (torch.mul, {"x": matrix(), "other": matrix()}),
    "neg": (torch.neg, {"x": matrix()}),
    "gelu": (functional.gelu, {"x": matrix()}),
    "silu": (functional.silu, {"x": matrix()}),
    "relu": (functional.relu, {"x": matrix()}),
    "sigmoid": (torch.sigmoid, {"x": matrix()}),
    "masked_fill": (
        lambda x, mask: x.masked_fill(mask, 0.0),
        {"x": matrix(), "mask": matrix() > 1},
    ),
    "_to_copy": (lambda x: x.to(torch.bfloat16), {"x": matrix()}),
    "clone": (torch.clone, {"x": matrix()}),
    "expand": (lambda x: x.expand(ROWS, COLS), {"x": matrix(1)}),
    "sum": (lambda x: x.sum(0, keepdim=True), {"x": matrix()}),
    "norm": (
        lambda x, scale, shift: functional.layer_norm(x, (COLS,), scale, shift),
        {"x": matrix(), "scale": torch.rand(COLS), "shift": torch.rand(COLS)},
    ),
    "_softmax": (lambda x: x.softmax(-1), {"x": matrix()}),
    "_log_softmax": (lambda x: x.log_softmax(-1), {"x": matrix()}),
    "nll_loss": (functional.nll_loss, {"x": matrix(), "target": numbers(0, 3, 1, 2, 1, 0)}),
    "embedding": (
        lambda weight, indices: functional.embedding(indices, weight),
        {"weight": matrix(9), "indices": numbers(8, 3, 3)},
    ),
    "index": (lambda x, indices: x[indices], {"x": matrix(), "indices": numbers(5, 2, 2)}),
    "topk": (lambda x: x.topk(2), {"x": matrix()}),
    "attention": (
        functional.scaled_dot_product_attention,
        {name: torch.rand(1, 2, 8, 16) for name in "qkv"},
    ),
}
"""Each operator as a function of its operands, on the CPU."""
COMPOSED = {"norm_of_parts"}
"""Compared with PyTorch as a whole, in tests/studies/training/test_graph.py."""
MADE_BESIDE = {
    "norm": ("mean", "rstd"),
    "nll_loss": ("total_weight",),
    "topk": ("indices",),
    "attention": ("lse", "seed", "offset"),
}
"""What an operator makes for its backward beside its result."""
LAUNCHES = {
    "input": "native_layer_norm_backward",
    "weight": "native_layer_norm_backward",
    "index_backward": "index_put",
    "topk_backward": "scatter",
    "attention_backward": "_scaled_dot_product_flash_attention_for_cpu_backward",
}
"""PyTorch's operator where a launch has another name."""


def address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


class Launches(TorchDispatchMode):
    """The operators that run, each with the storages of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[str, set[int]]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        inputs = {address(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        self.ran.append((function._schema.name.removeprefix("aten::"), inputs))
        return out


def wanted_sets(operator: str) -> Iterator[tuple[str, ...]]:
    """The operands with a gradient: all of them, and for some operators only some."""
    of = [name for step in derivatives()[operator] for name in step.gives]
    # A norm keeps all for its one operator of the backward.
    for count in range(len(of) if operator == "norm" else 1, len(of) + 1):
        yield from combinations(of, count)


@pytest.mark.parametrize("operator", CALLS)
def test_pytorch_keeps_what_the_backwards_launches_read(operator: str) -> None:
    function, operands = CALLS[operator]
    for wanting in wanted_sets(operator):
        call = {name: t.detach().clone() for name, t in operands.items()}
        for name in wanting:
            call[name].requires_grad_()
        saved: set[int] = set()

        def pack(tensor: Tensor, saved: set[int] = saved) -> Tensor:
            saved.add(address(tensor))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            results = function(*call.values())
        out = results if isinstance(results, Tensor) else results[0]
        places = {**call, OUT: out}
        predicted = set(kept(operator, wanting))
        of_operands = {name for name in places if address(places[name]) in saved}
        assert of_operands == predicted & places.keys(), wanting
        others = saved - {address(t) for t in places.values()}
        assert bool(others) == bool(predicted & {*MADE_BESIDE.get(operator, ())}), wanting


@pytest.mark.parametrize("operator", CALLS)
def test_pytorch_runs_the_same_launches_in_the_same_order(operator: str) -> None:
    function, operands = CALLS[operator]
    gives = {name for step in derivatives()[operator] for name in step.gives}
    call = {n: t.clone().requires_grad_(n in gives) for n, t in operands.items()}
    results = function(*call.values())
    out = results if isinstance(results, Tensor) else results[0]
    grad = torch.ones_like(out)
    with Launches() as launches:
        torch.autograd.backward(out, grad)
    places = {**call, OUT: out, GRAD: grad}
    ran = [
        (name, {n for n, t in places.items() if address(t) in inputs})
        for name, inputs in launches.ran
    ]
    expected: list[tuple[str, set[str]]] = []
    for step in (step for step in derivatives()[operator] if step.launch):
        name = LAUNCHES.get(step.launch, step.launch)
        reads = {*step.reads, *step.holds} & places.keys()
        # Both launches of a norm's backward are one operator.
        if operator == "norm" and expected:
            reads |= expected.pop()[1]
        expected.append((name, reads))
    named = {name for name, _ in expected}
    assert [(name, reads) for name, reads in ran if name in named] == expected


def test_every_operator_is_compared() -> None:
    assert derivatives().keys() == CALLS.keys() | COMPOSED


def test_a_product_keeps_each_operand_for_the_others_gradient() -> None:
    assert kept("mul", ("x",)) == ("other",)
    assert kept("mul", ("other",)) == ("x",)
    assert kept("mul", ("x", "other")) == ("x", "other")
    assert kept("add", ("x", "other")) == ()
    assert kept("relu", ()) == ()
