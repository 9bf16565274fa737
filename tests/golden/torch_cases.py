"""What PyTorch calls are recorded as on a GPU that is not there: their operators, where each of their tensors lies, what
is said of them, and the launches, each as eight hexadecimal digits of its text.

Made with the PyTorch that is installed: another version may run other operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from launch_cases import digits
from torch import Tensor, nn
from torch._higher_order_ops.out_dtype import out_dtype
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from iosim.base.errors import InputError
from iosim.integrations.torch.attention import backends_now, default_cudnn
from iosim.integrations.torch.mode import _version
from iosim.studies.program.operators import Operator, Scratch, View
from iosim.torch import TrafficMode

aten = torch.ops.aten
HALF, FULL = torch.bfloat16, torch.float32
ERRORS = (InputError, RuntimeError, TypeError, ValueError, IndexError)


def meta(*shape: int, dtype: torch.dtype = HALF, grad: bool = False) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def integers(*shape: int) -> Tensor:
    return meta(*shape, dtype=torch.int64)


def channels_last(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    return torch.empty(shape, dtype=dtype, device="meta").to(memory_format=layout)


def sdpa(*args: Any, **kwargs: Any) -> Tensor:
    return functional.scaled_dot_product_attention(*args, **kwargs)


def attention_of(
    q: tuple[int, ...] = (2, 4, 128, 64),
    k: tuple[int, ...] | None = None,
    v: tuple[int, ...] | None = None,
    *,
    dtype: torch.dtype = HALF,
    grads: tuple[bool, bool, bool] = (False, False, False),
    backward: bool = False,
    **named: Any,
) -> Callable[[], None]:
    """Attention over tensors of these shapes, of which some want gradients."""

    def call() -> None:
        shapes = (q, k or q, v or k or q)
        tensors = [meta(*s, dtype=dtype, grad=g) for s, g in zip(shapes, grads, strict=True)]
        out = sdpa(*tensors, **named)
        if backward:
            out.sum().backward()

    return call


def part_trained(gradient: Any, images: Any, parts: list[bool]) -> Any:
    """The backward of a convolution with 24 filters of 3 x 3, of its input, its weight, its bias alone."""
    sides, none = [1, 1], [0, 0]
    weight = meta(24, 3, 3, 3)
    return aten.convolution_backward(
        gradient, images, weight, [24], sides, none, sides, False, none, 1, parts
    )


def convolved(
    x: Tensor, weight: Tensor, *, bias: bool = False, backward: bool = False, **named: Any
) -> Callable[[], None]:
    function = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}[x.dim()]

    def call() -> None:
        if backward:
            x.requires_grad_(), weight.requires_grad_()
        out = function(x, weight, meta(weight.shape[0], grad=backward) if bias else None, **named)
        if backward:
            out.backward(torch.empty_like(out))

    return call


def with_gradient(
    call: Callable[..., Tensor], *shapes: tuple[int, ...], of: str = ""
) -> Callable[[], None]:
    """A call and its backward; `of` says by a letter each which of its tensors want gradients."""

    def both() -> None:
        tensors = [meta(*s, grad=not of or of[n] == "g") for n, s in enumerate(shapes)]
        out = call(*tensors)
        out.backward(torch.empty_like(out))

    return both


def flex(
    shape: tuple[int, ...], mask: Callable[[], Any] | None = None, **named: Any
) -> Callable[[], None]:
    def call() -> None:
        q, k, v = (meta(*shape) for _ in range(3))
        flex_attention(q, k, v, block_mask=None if mask is None else mask(), **named)

    return call


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def block_mask(
    device: str, batch: int | None = None, heads: int | None = None, function: Any = causal
) -> Callable[[], BlockMask]:
    return lambda: create_block_mask(function, batch, heads, 512, 512, device=device)


def inference(call: Callable[[], Any]) -> Callable[[], None]:
    def within() -> None:
        with torch.inference_mode():
            call()

    return within


def fake(call: Callable[[], Any]) -> Callable[[], None]:
    def within() -> None:
        with FakeTensorMode():
            call()

    return within


def in_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        meta(24, 16, dtype=FULL) @ meta(16, 40, dtype=FULL)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


class Together(nn.Module):
    """Modules in modules, one of which runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32))
        self.second = nn.Linear(32, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.second(self.first(x)) + x)


def module_trained() -> None:
    model = Together().to("meta").to(HALF)
    model(meta(4, 32)).sum().backward()


def fused_call(name: str, *, bias: Tensor | None = None, backward: bool = False) -> None:
    """One backend's operator, called by a program itself."""
    q, k, v = (meta(2, 4, 128, 64) for _ in range(3))
    named: dict[str, Any] = {"dropout_p": 0.0, "is_causal": True}
    if name == "flash":
        out = aten._scaled_dot_product_flash_attention(q, k, v, 0.1, True)
        if backward:
            aten._scaled_dot_product_flash_attention_backward(
                out[0], q, k, v, *out[:6], 0.1, True, out[6], out[7]
            )
    elif name == "efficient":
        out = aten._scaled_dot_product_efficient_attention(q, k, v, bias, backward, **named)
        if backward:
            aten._scaled_dot_product_efficient_attention_backward(
                out[0], q, k, v, bias, *out[:4], 0.0, [True] * 4, True
            )
    else:
        aten._scaled_dot_product_cudnn_attention(q, k, v, bias, backward, **named)


def routed(
    pick: Callable[[Tensor], Tensor], shape: tuple[int, ...], where: Any = 1
) -> Callable[[], None]:
    """Places that an operator picks of scores, and the rows of those that are `where`."""

    def call() -> None:
        places = pick(meta(*shape))
        torch.nonzero(places == where)
        places.reshape(-1).tolist()

    return call


def asking(
    asked_of: Tensor | Callable[[], Tensor], ask: Callable[[Tensor], Any]
) -> Callable[[], None]:
    """A program that asks for values of a tensor which has none: of an input, or of what it makes itself."""

    def call() -> None:
        tensor = asked_of if isinstance(asked_of, Tensor) else asked_of()
        torch.empty(max(0, int(ask(tensor))), device="meta").add_(1)

    return call


def masked(x: Tensor) -> Callable[[], None]:
    mask = integers(*x.shape)

    def call() -> None:
        x[mask.bool()]

    return call


INPUT = integers(6)
PROGRAMS: Mapping[str, Callable[[], Any]] = {
    # --- products ---
    "a matrix by a matrix": lambda: meta(24, 16) @ meta(16, 40),
    "a vector by a matrix": lambda: meta(16) @ meta(16, 40),
    "a matrix by a vector": lambda: meta(24, 16) @ meta(16),
    "a vector by a vector": lambda: meta(16) @ meta(16),
    "batches": lambda: torch.bmm(meta(3, 24, 16), meta(3, 16, 40)),
    "in fp32": lambda: meta(24, 16, dtype=FULL) @ meta(16, 40, dtype=FULL),
    "of nothing": lambda: meta(0, 16) @ meta(16, 40),
    "over nothing": lambda: meta(24, 0) @ meta(0, 40),
    "with a bias of a row": lambda: torch.addmm(meta(40), meta(24, 16), meta(16, 40)),
    "with a bias of all": lambda: torch.addmm(meta(24, 40), meta(24, 16), meta(16, 40)),
    "with a bias of a number": lambda: torch.addmm(meta(), meta(24, 16), meta(16, 40)),
    "batches with a bias": lambda: torch.baddbmm(meta(3, 24, 40), meta(3, 24, 16), meta(3, 16, 40)),
    "batches added up": lambda: torch.addbmm(meta(24, 40), meta(3, 24, 16), meta(3, 16, 40)),
    "a linear layer": lambda: functional.linear(meta(3, 5, 16), meta(40, 16), meta(40)),
    "a linear layer of nothing": lambda: functional.linear(meta(3, 0, 16), meta(40, 16)),
    "groups along rows": lambda: aten._grouped_mm(
        meta(100, 16), meta(3, 16, 40), meta(3, dtype=torch.int32)
    ),
    "groups along columns": lambda: aten._grouped_mm(
        meta(3, 24, 16), meta(16, 104), meta(3, dtype=torch.int32)
    ),
    "groups along what is summed": lambda: aten._grouped_mm(
        meta(24, 104), meta(104, 40), meta(3, dtype=torch.int32)
    ),
    "groups beside each other": lambda: aten._grouped_mm(meta(3, 24, 16), meta(3, 16, 40)),
    "a linear layer in inference": inference(
        lambda: functional.linear(meta(3, 5, 16), meta(40, 16), meta(40))
    ),
    "a linear layer over nothing": inference(lambda: functional.linear(meta(3, 5, 0), meta(40, 0))),
    "a linear layer over one": inference(lambda: functional.linear(meta(3, 5, 1), meta(40, 1))),
    "in tf32": in_tf32,
    "with another type of result": lambda: out_dtype(
        aten.mm.default, torch.int32, meta(24, 16, dtype=torch.int8), meta(16, 40, dtype=torch.int8)
    ),
    # --- convolutions ---
    "a convolution": convolved(meta(2, 16, 8, 8), meta(24, 16, 3, 3)),
    "a convolution of 3 channels": convolved(meta(2, 3, 8, 8), meta(24, 3, 3, 3), bias=True),
    "a convolution, channels last": convolved(channels_last(2, 16, 8, 8), meta(24, 16, 3, 3)),
    "a convolution, both last": convolved(channels_last(2, 16, 8, 8), channels_last(24, 16, 3, 3)),
    "a convolution, weight last": convolved(meta(2, 16, 8, 8), channels_last(24, 16, 3, 3)),
    "a convolution in fp32": convolved(
        meta(2, 16, 8, 8, dtype=FULL), meta(24, 16, 3, 3, dtype=FULL)
    ),
    "a convolution of groups": convolved(meta(2, 16, 8, 8), meta(24, 4, 3, 3), groups=4),
    "a convolution by channels": convolved(meta(2, 16, 8, 8), meta(16, 1, 3, 3), groups=16),
    "by channels, last": convolved(
        channels_last(2, 16, 8, 8), meta(16, 1, 3, 3), groups=16, padding=1
    ),
    "by many channels, last": convolved(
        channels_last(1, 256, 8, 8), meta(256, 1, 3, 3), groups=256, padding=1
    ),
    "by channels, last, smaller": convolved(
        channels_last(2, 16, 8, 8), meta(16, 1, 3, 3), groups=16
    ),
    "by channels, last, fp32": convolved(
        channels_last(2, 16, 8, 8, dtype=FULL), meta(16, 1, 3, 3, dtype=FULL), groups=16, padding=1
    ),
    "by channels, last, wider": convolved(
        channels_last(2, 16, 8, 8), meta(16, 1, 5, 5), groups=16, padding=2
    ),
    "along one axis": convolved(meta(2, 16, 40), meta(24, 16, 3)),
    "over three axes": convolved(meta(1, 5, 4, 4, 4), meta(8, 5, 3, 3, 3)),
    "over three axes, last": convolved(channels_last(1, 5, 4, 4, 4), meta(8, 5, 3, 3, 3)),
    "a convolution trained": convolved(
        meta(2, 3, 8, 8), meta(24, 3, 3, 3), bias=True, backward=True
    ),
    "channels last, trained": convolved(
        channels_last(2, 16, 8, 8), meta(24, 16, 3, 3), backward=True
    ),
    "with steps, trained": convolved(meta(2, 5, 9, 9), meta(24, 5, 3, 3), stride=2, backward=True),
    "groups trained": convolved(meta(2, 16, 8, 8), meta(24, 4, 3, 3), groups=4, backward=True),
    "by channels, trained": convolved(
        channels_last(2, 16, 8, 8), meta(16, 1, 3, 3), groups=16, padding=1, backward=True
    ),
    "a weight alone trained": lambda: part_trained(
        meta(2, 24, 6, 6), meta(2, 3, 8, 8), [False, True, False]
    ),
    "an input alone trained": lambda: part_trained(
        meta(2, 24, 6, 6), meta(2, 3, 8, 8), [True, False, False]
    ),
    "a weight alone trained, last": lambda: part_trained(
        channels_last(2, 24, 6, 6), channels_last(2, 3, 8, 8), [False, True, False]
    ),
    "a convolution of fake tensors": fake(
        lambda: functional.conv2d(
            torch.empty(2, 16, 8, 8, dtype=HALF).to(memory_format=torch.channels_last),
            torch.empty(24, 16, 3, 3, dtype=HALF),
        )
    ),
    # --- norms and softmax ---
    "a layer norm": with_gradient(
        lambda x, w, b: functional.layer_norm(x, (32,), w, b), (4, 32), (32,), (32,)
    ),
    "a layer norm without weight": with_gradient(
        lambda x: functional.layer_norm(x, (32,)), (4, 32)
    ),
    "a layer norm, weight alone": with_gradient(
        lambda x, w: functional.layer_norm(x, (32,), w), (4, 32), (32,), of=".g"
    ),
    "a layer norm, input alone": with_gradient(
        lambda x, w: functional.layer_norm(x, (32,), w), (4, 32), (32,), of="g."
    ),
    "an RMS norm": with_gradient(lambda x, w: functional.rms_norm(x, (32,), w), (4, 32), (32,)),
    "an RMS norm without weight": with_gradient(lambda x: functional.rms_norm(x, (32,)), (4, 32)),
    "an RMS norm over two axes": lambda: functional.rms_norm(meta(3, 4, 32), (4, 32), meta(4, 32)),
    "an RMS norm, weight in fp32": lambda: functional.rms_norm(
        meta(4, 32), (32,), meta(32, dtype=FULL)
    ),
    "a softmax": with_gradient(lambda x: x.softmax(-1), (4, 32)),
    "a softmax of long rows": with_gradient(lambda x: x.softmax(1), (2, 40000)),
    "a softmax of columns": with_gradient(lambda x: x.softmax(0), (4, 32)),
    "a softmax of a number": lambda: meta().softmax(0),
    "a softmax of nothing": lambda: meta(4, 0).softmax(1),
    "logarithms of a softmax": with_gradient(lambda x: x.log_softmax(-1), (4, 32)),
    # --- passes ---
    "sums": lambda: meta(4, 32).sum(1),
    "views": lambda: meta(4, 32).t().reshape(4, 32)[1:].unsqueeze_(0),
    "in place": lambda: meta(4, 32).add_(meta(4, 32)).zero_().copy_(meta(4, 32)),
    "dropout": lambda: functional.dropout(meta(4, 32), 0.1),
    "dropout in place": lambda: functional.dropout(meta(4, 32), 0.1, True, True),
    "dropout off": lambda: functional.dropout(meta(4, 32), 0.1, False),
    "dropout of nothing": lambda: functional.dropout(meta(4, 32), 0.0),
    "an empty tensor beside another": lambda: torch.cat([meta(0, 32), meta(4, 32)]),
    "empty tensors": lambda: meta(0, 32) + meta(0, 32),
    "places that are true": lambda: torch.nonzero(torch.ones(3, 5, device="meta")),
    "places on one axis": lambda: torch.nonzero(torch.ones(5, device="meta")),
    "rows by a mask": lambda: meta(3, 4)[torch.ones(3, dtype=torch.bool, device="meta")],
    "rows by a mask and places": lambda: meta(3, 4)[
        torch.ones(3, dtype=torch.bool, device="meta"),
        torch.zeros(3, dtype=torch.int64, device="meta"),
    ],
    "rows by places": lambda: meta(3, 4)[torch.zeros(5, dtype=torch.int64, device="meta")],
    "elements by a mask": lambda: torch.masked_select(
        meta(3, 4), torch.ones(4, dtype=torch.bool, device="meta")
    ),
    "written by a mask": lambda: meta(3, 4).index_put_(
        (torch.ones(3, dtype=torch.bool, device="meta"),), meta(4)
    ),
    "an operator that is not known": lambda: torch.special.bessel_j0(meta(4, 4, dtype=FULL)),
    "a table": lambda: functional.embedding(integers(7), meta(100, 32)),
    "modules trained": module_trained,
    "a formatted number": lambda: f"{torch.tensor(3, device='meta'):d}",
    "a formatted number of none": lambda: f"{meta():}"[:5],
    "a formatted list": lambda: f"{torch.tensor([3, 4], device='meta')}",
    "fake tensors": fake(lambda: torch.empty(4, 32) @ torch.empty(32, 8)),
    "fake tensors off the device": fake(lambda: torch.empty(3, device="meta").to("cpu")),
    # --- attention ---
    "attention": attention_of(),
    "attention, causal": attention_of(is_causal=True),
    "attention, causal, more keys": attention_of(k=(2, 4, 256, 64), is_causal=True),
    "attention, fewer key heads": attention_of(k=(2, 2, 128, 64), enable_gqa=True),
    "attention, wider values": attention_of(v=(2, 4, 128, 32)),
    "attention of three axes": attention_of((4, 128, 64)),
    "attention, keys of three axes": attention_of(k=(4, 128, 64)),
    "attention, keys of more sequences": attention_of((1, 4, 128, 64), k=(2, 4, 128, 64)),
    "attention in fp64": attention_of(dtype=torch.float64),
    "attention by its own operator": lambda: torch._C._nn.scaled_dot_product_attention(
        *(meta(2, 4, 128, 64) for _ in range(3))
    ),
    "attention, keys for all": attention_of(k=(1, 4, 128, 64)),
    "attention, heads that do not divide": attention_of((2, 3, 128, 64), k=(2, 2, 128, 64)),
    "attention in fp32": attention_of(dtype=FULL),
    "attention, dropout": attention_of(dropout_p=0.1),
    **{
        f"attention, gradients of {of}": attention_of(
            grads=(of[0] == "g", of[1] == "g", of[2] == "g"), backward=True
        )
        for of in ("ggg", "g..", ".g.", "..g")
    },
    **{
        f"attention, mask of {shape}": attention_of(attn_mask=meta(*shape))
        for shape in (
            (128, 128),
            (1, 1, 128, 128),
            (2, 1, 128, 128),
            (1, 4, 128, 128),
            (2, 4, 128, 128),
        )
    },
    "attention, mask of booleans": attention_of(attn_mask=meta(128, 128, dtype=torch.bool)),
    "attention, a strided query": lambda: sdpa(
        meta(2, 4, 64, 128).transpose(2, 3), *(meta(2, 4, 128, 64) for _ in range(2))
    ),
    "attention, a strided mask": attention_of(attn_mask=meta(128, 128).t()),
    "attention, a column of a mask": attention_of(attn_mask=meta(128, 1)),
    "attention, heads behind tokens": lambda: sdpa(
        *(meta(2, 128, 4, 64).transpose(1, 2) for _ in range(3))
    ),
    "attention, one head": lambda: sdpa(*(meta(2, 128, 1, 64).transpose(1, 2) for _ in range(3))),
    **{
        f"{name}'s operator": lambda name=name: fused_call(name)
        for name in ("flash", "efficient", "cudnn")
    },
    **{
        f"{name}'s operator, biased": lambda name=name: fused_call(name, bias=meta(2, 1, 128, 128))
        for name in ("efficient", "cudnn")
    },
    "an operator with an empty bias": lambda: fused_call("efficient", bias=meta(0)),
    **{
        f"{name}'s operator, trained": lambda name=name: fused_call(name, backward=True)
        for name in ("flash", "efficient", "cudnn")
    },
    "flex": flex((1, 2, 512, 64)),
    "flex, a mask of its function": flex((1, 2, 512, 64), block_mask("cpu")),
    "flex, a mask on the meta device": flex((1, 2, 512, 64), block_mask("meta")),
    "flex, masks by head": flex((1, 2, 512, 64), block_mask("cpu", heads=2)),
    "flex, masks by sequence": flex((2, 2, 512, 64), block_mask("cpu", batch=2)),
    # --- values ---
    "topk's places": routed(lambda x: x.topk(2, dim=-1).indices, (6, 4)),
    "topk's places along columns": routed(lambda x: x.topk(2, dim=0).indices, (6, 4)),
    "sort's places": routed(lambda x: x.sort(dim=-1).indices, (6, 4)),
    "max's places": routed(lambda x: x.max(dim=1).indices, (6, 4)),
    "max's places, kept": routed(lambda x: x.max(dim=1, keepdim=True).indices, (6, 4)),
    "argmax's places": routed(lambda x: x.argmax(dim=-1), (6, 4)),
    "argmax's place of all": routed(lambda x: x.argmax(), (6, 4), 0),
    "argmax of a number": routed(lambda x: x.argmax(), (), 0),
    "argmax of a number along its axis": routed(lambda x: x.argmax(dim=0), (), 0),
    "argmin's places": routed(lambda x: x.argmin(dim=0), (6, 4)),
    "the largest": asking(meta(6), lambda x: x.max()),
    "any": asking(meta(6), lambda x: torch.isnan(x).any()),
    "all finite": asking(meta(6), lambda x: torch.isfinite(x).all()),
    "tokens that are padding": asking(integers(6), lambda x: (x == 0).sum()),
    "tokens that are none": asking(integers(6), lambda x: (x != 0).sum()),
    "tokens of tokens": asking(integers(6), lambda x: (x == x).sum()),
    "tokens cut": asking(integers(6), lambda x: (x.clone()[1:] == 5).sum()),
    "whole numbers added up": asking(integers(6), lambda x: x.sum()),
    "numbers of a list": asking(lambda: torch.tensor([3, 4], device="meta"), lambda x: x.sum()),
    "numbers like another's": asking(lambda: integers(1).new_tensor([3, 4]), lambda x: x.sum()),
    "numbers in a range": asking(lambda: torch.arange(5, device="meta"), lambda x: x.max()),
    "numbers counted": asking(
        lambda: torch.arange(5, device="meta"), lambda x: torch.histc(x, 5, 0, 5).sum()
    ),
    "numbers in bins": asking(
        lambda: torch.arange(5, device="meta"), lambda x: torch.bincount(x)[1]
    ),
    "numbers written over": asking(
        lambda: torch.arange(5, device="meta").add_(1), lambda x: x.max()
    ),
    "numbers an input is added to": asking(
        lambda: torch.arange(6, device="meta").add_(INPUT), lambda x: x.max()
    ),
    "numbers of a tensor": asking(lambda: torch.as_tensor(INPUT), lambda x: x.max()),
    "too many numbers": asking(integers(1 << 26), lambda x: x.sum()),
    "numbers not known": asking(lambda: integers(5).copy_(meta(5)), lambda x: x.max()),
    "drawn numbers": asking(lambda: torch.rand(8, device="meta"), lambda x: (x < 0.6).sum()),
    "drawn places": asking(lambda: torch.multinomial(meta(8, dtype=FULL), 2), lambda x: x.sum()),
    "drawn whole numbers": asking(lambda: torch.randint(9, (8,), device="meta"), lambda x: x.sum()),
    "repeats": lambda: torch.repeat_interleave(
        meta(3), torch.tensor([1, 2, 3], device="meta"), output_size=6
    ),
    "repeats of known numbers": lambda: torch.repeat_interleave(
        meta(3), torch.tensor([1, 2, 3], device="meta")
    ),
    "off the device": lambda: integers(3).to("cpu").sum().item(),
    "numbers off the device": lambda: meta(3).to("cpu").sum().item(),
    "rows of an input's mask": masked(meta(3, 4)),
    "complex numbers": asking(
        lambda: torch.zeros(3, dtype=torch.complex64, device="meta"), lambda x: x.real.sum()
    ),
}
"""What is called inside the mode."""
CUDNN_TEXTS = (
    "none",
    "9",
    "9.1",
    "9.19.2",
    "9.19.0.56",
    "9.19.0.56.1",
    "9.x",
    "x.1",
    "",
    "9.",
    "9.1.x",
)
BACKENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH", "CUDNN_ATTENTION")


def view_text(view: View | Scratch) -> str:
    if isinstance(view, Scratch):
        return f"scratch {view.bytes}"
    return f"{view.storage}+{view.offset} {list(view.sizes)} {list(view.strides)} x{view.element_bytes}"


def operator_text(operator: Operator) -> list[str]:
    marks = ("is_kernel", "is_attention", "known")
    head = [
        operator.name,
        ".".join(operator.module),
        operator.phase,
        operator.problem.dtype,
        operator.kernel.name,
        str(operator.flops),
        *(mark for mark in marks if getattr(operator, mark)),
        f"problem {digits(operator.problem)}",
        f"launches {digits(operator.chain)}",
    ]
    views = [f"{name} {view_text(view)}" for name, view in operator.views.items()]
    return [" ".join(filter(None, head)), *views, *operator.notes]


def recorded_as(call: Callable[[], Any]) -> dict[str, Any]:
    """Operators and notes of a call; or the error that it ends in."""
    error = ""
    mode = TrafficMode("h200", cudnn="9.19.0")
    try:
        with mode:
            call()
    except ERRORS as raised:
        error = f"{type(raised).__name__}: {str(raised).splitlines()[0][:160]}"
    program = mode._recorder.program
    record: dict[str, Any] = {
        "operators": [operator_text(operator) for operator in program.operators]
    }
    record["storages"] = [
        f"{storage.bytes} {storage.made} {storage.freed}" for storage in program.storages
    ]
    if mode._recorder.notes:
        record["notes"] = list(mode._recorder.notes)
    return record | ({"error": error} if error else {})


def version_of(text: str) -> Any:
    try:
        return _version(text)
    except InputError as error:
        return str(error)


def cases() -> Iterator[tuple[str, Any]]:
    yield "PyTorch", torch.__version__.partition("+")[0]
    torch.manual_seed(0)
    for name, call in PROGRAMS.items():
        yield name, recorded_as(call)
    for text in CUDNN_TEXTS:
        yield f"cuDNN '{text}'", version_of(text)
    yield "cuDNN of this PyTorch", default_cudnn()
    profile = TrafficMode("h200").profile
    for name in BACKENDS:
        with sdpa_kernel([getattr(SDPBackend, name)]):
            yield f"{name} alone", list(backends_now(profile, 91900))
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        yield "math first", list(backends_now(profile, 91900))
