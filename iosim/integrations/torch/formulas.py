"""Which launches PyTorch's operators make on a GPU, over its tensors.

Elementwise operators, reductions, copies and the like are one pass: inputs read once, outputs written once. Those that
are not stand below with what their CUDA code does (pytorch/pytorch, aten/src/ATen/native/cuda; file names beside them).
Views cost nothing.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.base.registry import Registry
from iosim.studies.program import launches
from iosim.studies.program.launches import Pass as Pass
from iosim.studies.program.operators import Scratch

aten = torch.ops.aten
Results = Sequence[Tensor | None]

CHANNELS = 8
"""Channels to whose multiples cuDNN's copies with the channels last are padded: 16 bytes of half precision."""
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
CONVOLUTIONS = {
    aten.convolution.default: slice(0, 2),
    aten.convolution_backward.default: slice(1, 3),
}
"""Which arguments are the input and the weight."""
DEPTHWISE_CHANNELS = 128
DEPTHWISE_PLACES = {"": (3, 16), "input": (2, 4)}
"""Rows and columns of a CTA of cuDNN's depthwise kernels, and channels: of conv2d_c1_k1_nhwc_specialized as its grids tell
(2,752 CTAs for 8 images of 128 x 128 x 128, 880 for 32 x 32 x 640), of dgrad2d_c1_k1_nhwc_specialized 8 places as its
grids tell, in the shape whose rim is what an H200 counted (h200_transformers_kernels.csv)."""
GROUPS = 5
"""Place among a convolution's settings: stride, padding, dilation, transposed, output_padding, groups."""

_OPERATORS: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("operators.toml").read_text(encoding="utf-8")
)
ONE_PASS, WRITES_ONLY, FREE = (
    frozenset(_OPERATORS[kind]) for kind in ("one_pass", "writes_only", "free")
)
"""Operators of one launch; those in place that do not read what they overwrite; those without a launch."""
CONTIGUOUS: dict[str, frozenset[str]] = {
    operator: frozenset(arguments.split())
    for names, arguments in _OPERATORS["contiguous"].items()
    for operator in names.split()
}
"""Arguments that an operator's kernels want contiguous: PyTorch copies others first."""


@dataclass(frozen=True)
class Part:
    """`elements` of a tensor, where an operator does not touch all of it: the rows that are looked up in a table."""

    tensor: Tensor
    elements: int


PLAIN = frozenset(
    (
        int,
        float,
        bool,
        str,
        type(None),
        torch.dtype,
        torch.device,
        torch.memory_format,
        torch.layout,
    )
)
"""Types of arguments that hold no tensor."""
Place = Tensor | Part | Scratch


@dataclass(frozen=True)
class Product:
    """One matrix product, c = a b: [batch, rows, inner] by [batch, inner, cols]; `bias` is read by its epilogue."""

    a: Tensor
    b: Tensor
    c: Tensor
    bias: Tensor | None = None
    name: str = ""
    sizes: tuple[int, int, int, int] | None = None
    """(batch, rows, cols, inner) where the tensors' shapes do not say it: a convolution's."""
    useful: int | None = None
    """Multiplications, where those of the extent have some of padding among them."""

    @property
    def flops(self) -> int:
        return 2 * (math.prod(self.extent) if self.useful is None else self.useful)

    @property
    def extent(self) -> tuple[int, int, int, int]:
        """(batch, rows, cols, inner); a vector counts as one row or column."""
        if self.sizes is not None:
            return self.sizes
        a, b = tuple(self.a.shape), tuple(self.b.shape)
        rows = a[-2] if len(a) > 1 else 1
        cols = b[-1] if len(b) > 1 else 1
        return max(math.prod(a[:-2]), math.prod(b[:-2])), rows, cols, a[-1]


Piece = Pass[Place] | Product
Formula = Callable[..., Iterable[Piece]]
"""Called with the operator's arguments and, as the keyword `out`, with what it gave."""

REGISTRY: Registry[Any, Formula] = Registry("operator")


def register_traffic_formula(
    operator: Any, *more: Any, override: bool = False
) -> Callable[[Formula], Formula]:
    """Say what launches an operator makes.

        @register_traffic_formula(torch.ops.mylib.scale_rows)
        def scale_rows(x, scales, *, out):
            return [Pass(reads=[x, scales], writes=[out])]

    Args:
        operator: an operator of torch.ops, with or without its overload; `more` of them share the formula.
        override: replace a formula that there is.

    Raises:
        InputError: what is no operator, or has a formula already.
    """
    packets = [_packet(op) for op in (operator, *more)]

    def register(formula: Formula) -> Formula:
        for packet in packets:
            REGISTRY.put(packet, formula, override)
        return formula

    return register


def _packet(operator: Any) -> Any:
    if isinstance(operator, torch._ops.OpOverload):
        return operator.overloadpacket
    if isinstance(operator, torch._ops.OpOverloadPacket):
        return operator
    custom = getattr(operator, "_opoverload", None)  # of torch.library.custom_op
    if custom is not None:
        return custom.overloadpacket
    raise InputError(
        f"operator {operator!r} is no operator of PyTorch; accepted: torch.ops.LIBRARY.NAME"
    )


def tensors_in(values: Any) -> Iterator[Tensor]:
    """All tensors in arguments, nested lists among them, each once."""
    seen: set[int] = set()
    for leaf in _leaves(values):
        if id(leaf) not in seen:
            seen.add(id(leaf))
            yield leaf


def _leaves(values: Any) -> Iterator[Tensor]:
    """Tensors in tuples, lists and dictionaries, which nearly all arguments are; in other trees as PyTorch finds
    them."""
    if isinstance(values, Tensor):
        yield values
    elif type(values) in (tuple, list):
        for value in values:
            yield from _leaves(value)
    elif type(values) is dict:
        yield from _leaves(list(values.values()))
    elif type(values) not in PLAIN:
        yield from (
            leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, Tensor)
        )


class _TensorMeasure:
    """How `launches` measures what an operator of PyTorch is called with."""

    def elements(self, place: Place) -> int:
        assert isinstance(place, Tensor)
        return place.numel()

    def element_bytes(self, place: Place) -> int:
        assert isinstance(place, Tensor)
        return place.element_size()

    def part(self, place: Place, elements: int) -> Place:
        assert isinstance(place, Tensor)
        return Part(place, elements)

    def scratch(self, size: int) -> Place:
        return Scratch(size)


MEASURE = _TensorMeasure()


def _by_rules(rules: Sequence[str], packet: Any) -> Formula:
    """The formula of rules of `launches.toml`, for operators whose arguments are called as those of `packet`."""
    names = [argument.name for argument in getattr(packet, packet.overloads()[0])._schema.arguments]

    def formula(*args: Any, out: Any, **kwargs: Any) -> list[Piece]:
        results = [out] if isinstance(out, Tensor) else list(out)
        bound = {"*": args[1:], "out": results} | {
            f"out.{n}": result for n, result in enumerate(results)
        }
        bound |= dict(zip(names, args, strict=False)) | kwargs
        places: Callable[[str], list[Place]] = lambda name: list(tensors_in(bound.get(name)))  # noqa: E731
        return list(launches.by_rules(rules, places, MEASURE))

    return formula


for _name, _rules in launches.rules().items():
    register_traffic_formula(getattr(aten, _name))(_by_rules(_rules, getattr(aten, _name)))


@register_traffic_formula(aten.mm, aten.bmm, aten._int_mm, aten._scaled_mm)
def products(a: Tensor, b: Tensor, *_: Any, out: Tensor, **__: Any) -> list[Piece]:
    return [Product(a, b, out)]


@register_traffic_formula(aten.addmm, aten.baddbmm, aten.addbmm)
def products_with_bias(
    bias: Tensor, a: Tensor, b: Tensor, *_: Any, out: Tensor, **__: Any
) -> list[Piece]:
    """A bias of one row is the epilogue's (Blas.cpp, cublasLt); another is copied into the result first."""
    if bias.dim() <= 1:
        return [Product(a, b, out, bias)]
    return [Pass([bias], [out], "copy"), Product(a, b, out, out)]


@register_traffic_formula(aten._grouped_mm)
def grouped_products(
    a: Tensor, b: Tensor, offs: Tensor | None = None, *_: Any, out: Tensor, **__: Any
) -> list[Piece]:
    """Groups of equal size along an operand's rows, its columns, or the axis that is summed over."""
    groups = (
        b.shape[0]
        if b.dim() == 3
        else a.shape[0]
        if a.dim() == 3
        else offs.numel()
        if offs is not None
        else 1
    )
    rows, cols, inner = a.shape[-2], b.shape[-1], a.shape[-1]
    if a.dim() == b.dim() == 2:
        # Rows are split over the groups: by what the offsets cut, one of the three sizes shrinks.
        inner = -(-inner // groups)
    elif a.dim() == 2:
        rows = -(-rows // groups)
    elif b.dim() == 2:
        cols = -(-cols // groups)
    return [Product(a, b, out, sizes=(groups, rows, cols, inner))]


@register_traffic_formula(aten.linear)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor) -> list[Piece]:
    sizes = (1, x.numel() // max(1, x.shape[-1]), weight.shape[0], x.shape[-1])
    return [Product(x, weight, out, bias, sizes=sizes)]


def with_cudnns_layout(function: Any, args: Sequence[Any], out: Any) -> Any:
    """The results of a convolution on the meta device, laid out as cuDNN's: channels last where the input or the weight
    has them last (cudnn_conv_suggest_memory_format), which is so of depthwise convolutions, too: an H100 runs a
    SegFormer's as conv2d_c1_k1_nhwc_specialized, and no copy follows. PyTorch's rule for that device leaves them first.
    """
    if function not in CONVOLUTIONS or not args[0].is_meta or isinstance(args[0], FakeTensor):
        return out
    # The first of input and weight that lies with its channels last decides for both.
    layouts = (suggest_memory_format(t) for t in args[CONVOLUTIONS[function]])
    layout = next((form for form in layouts if form is not torch.contiguous_format), None)
    if layout is None:
        return out
    results = [out] if isinstance(out, Tensor) else out
    laid = [
        torch.empty_like(t, memory_format=layout) if _may_have(t, layout) else t for t in results
    ]
    return laid[0] if isinstance(out, Tensor) else tuple(laid)


def _may_have(tensor: Tensor | None, layout: torch.memory_format) -> bool:
    return tensor is not None and LAST.get(tensor.dim()) is layout


def _convolved(
    inputs: Sequence[Tensor], groups: int, by_channel: bool, product: Product
) -> list[Piece]:
    """A convolution is an implicit matrix product, or one for each group of channels. cuDNN's kernels of half precision
    want the channels last: others are copied first, and the result at the end where it is to have them first
    (nchwToNhwcKernel and back). Copies have whole `CHANNELS` of them: that of 8 images of 3 channels, 12.6 MB, wrote 31
    of its 33.6 MB to an H100's HBM. Where each channel is by itself there is no product: a pass."""
    if by_channel:
        windows = _windows(product)
        again = [(product.a, windows)] if windows > 1 else []
        name = product.name or "depthwise"
        return [Pass([product.a, product.b], [product.c], name, again=again)]
    # Only half precision has tensor-core kernels that ask for this; grouped ones take what is there.
    half = groups == 1 and product.c.element_size() == 2
    copied = [t for t in inputs if half and not _has_channels_last(t)]
    # The product reads the copies, which lie in cuDNN's workspace and are gone after it. Its result goes there as well
    # where another copy puts the channels first.
    copies = {id(t): _padded(t) for t in copied}
    a, b = (copies.get(id(t), t) for t in (product.a, product.b))
    product = _with_padding(product, copied, copies)
    last: list[Piece] = [Pass([t], [copies[id(t)]], "channels_last") for t in copied]
    if not copied or _has_channels_last(product.c):
        return [*last, replace(product, a=a, b=b)]
    result = torch.empty_like(product.c, device="meta")
    return [
        *last,
        replace(product, a=a, b=b, c=result),
        Pass([result], [product.c], "channels_first"),
    ]


def _windows(product: Product) -> int:
    """How often cuDNN's depthwise kernels of 3 x 3 taps in half precision load what they go through: a CTA loads a rim
    around its places and, where there are several blocks of channels, the taps of its own."""
    sides = DEPTHWISE_PLACES.get(product.name or "")
    same = product.a.shape == product.c.shape and product.a.element_size() == 2
    same &= _has_channels_last(product.a)
    if sides is None or not same or tuple(product.b.shape[1:]) != (1, 3, 3):
        return 1
    places = math.prod(sides)
    taps = math.prod(product.b.shape[2:]) if product.b.shape[0] > DEPTHWISE_CHANNELS else 0
    return round((math.prod(side + 2 for side in sides) + taps) / places)


def _padded(tensor: Tensor) -> Tensor:
    """Memory for a copy with the channels last, which are padded to 16 bytes of them."""
    n, channels, *rest = tensor.shape
    channels = -(-channels // CHANNELS) * CHANNELS
    return torch.empty((n, channels, *rest), dtype=tensor.dtype, device="meta")


def _with_padding(product: Product, copied: Sequence[Tensor], copies: dict[int, Tensor]) -> Product:
    """A product that goes through channels of padding with the others: along the columns of a weight's gradient, else
    along the axis that it sums over."""
    of_weight = product.name == "weight"
    tensor = next((t for t in copied if t is product.b), None)
    if tensor is None or product.name == "input":
        return product
    groups, rows, cols, inner = product.extent
    # An axis of channels times taps grows with the channels.
    wide, narrow = copies[id(tensor)].shape[1], tensor.shape[1]
    sizes = (
        (groups, rows, cols * wide // narrow, inner)
        if of_weight
        else (groups, rows, cols, inner * wide // narrow)
    )
    useful = product.flops // 2
    return replace(product, sizes=sizes, useful=useful)


def _has_channels_last(tensor: Tensor) -> bool:
    return tensor.dim() in LAST and tensor.is_contiguous(memory_format=LAST[tensor.dim()])


def _by_channel(weight: Tensor, groups: int) -> bool:
    """True where each channel of the input is by itself, as in a depthwise convolution."""
    return groups > 1 and weight.shape[1] == 1


@register_traffic_formula(aten.convolution, aten._convolution)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *settings: Any,
    out: Tensor,
    **__: Any,
) -> list[Piece]:
    """The bias is added in a pass of its own (Convolution.cpp)."""
    groups = settings[GROUPS]
    inner = weight.numel() // weight.shape[0]
    sizes = (groups, out.numel() // out.shape[1], out.shape[1] // groups, inner)
    pieces = _convolved(
        [x, weight], groups, _by_channel(weight, groups), Product(x, weight, out, sizes=sizes)
    )
    return pieces if bias is None else [*pieces, Pass([out, bias], [out], "bias")]


@register_traffic_formula(aten.convolution_backward)
def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    *settings: Any,
    out: Results,
    **__: Any,
) -> list[Piece]:
    groups = settings[GROUPS]
    inner, rows, cols = (
        weight.numel() // weight.shape[0],
        grad.numel() // grad.shape[1],
        grad.shape[1] // groups,
    )
    pieces: list[Piece] = []
    if out[0] is not None:
        # A value of the input's gradient sums over those of the result that it is in: as many multiplications as the
        # forward has, shared out.
        useful = groups * rows * inner * cols
        # Groups are products beside each other, each with its share of the channels.
        pixels, channels = x.numel() // x.shape[1], x.shape[1] // groups
        sizes = (groups, pixels, channels, -(-useful // (groups * pixels * channels)))
        product = Product(grad, weight, out[0], sizes=sizes, name="input", useful=useful)
        pieces += _convolved([grad, weight], groups, _by_channel(weight, groups), product)
    if out[1] is not None:
        product = Product(grad, x, out[1], sizes=(groups, cols, inner, rows), name="weight")
        pieces += _convolved([grad, x], groups, _by_channel(weight, groups), product)
    if out[2] is not None:
        pieces.append(Pass([grad], [out[2]], "bias"))
    return pieces


@register_traffic_formula(aten.native_layer_norm, aten._fused_rms_norm)
def norm(*args: Any, out: Results, **kwargs: Any) -> list[Piece]:
    """One launch, a CTA a row."""
    results = list(tensors_in(out))
    return [launches.norm(list(tensors_in((args, kwargs))), results[0], results[1:])]


@register_traffic_formula(aten.native_layer_norm_backward)
def layer_norm_backward(*args: Any, out: Results) -> list[Piece]:
    """One launch makes the input's gradient, a CTA a row, another those of weight and bias (layer_norm_kernel.cu)."""
    grad, x, _, mean, rstd, weight = args[:6]
    return _norm_backward([grad, x, mean, rstd], weight, out, [mean, rstd])


@register_traffic_formula(aten._fused_rms_norm_backward)
def rms_norm_backward(*args: Any, out: Results) -> list[Piece]:
    """As a layer norm's, without means."""
    grad, x, _, rstd, weight = args[:5]
    return _norm_backward([grad, x, rstd], weight, out, [rstd])


def _norm_backward(
    reads: list[Tensor], weight: Tensor | None, out: Results, by_row: list[Tensor]
) -> list[Piece]:
    pieces: list[Piece] = []
    if out[0] is not None:
        scale = [] if weight is None else [weight]
        pieces.append(launches.norm_backward_input([*reads, *scale], out[0], by_row))
    if gradients := list(tensors_in(out[1:])):
        pieces.append(launches.norm_backward_weight(reads, gradients))
    return pieces


def _softmax(x: Tensor, dim: int, out: Tensor, times: int, *more: Tensor) -> list[Piece]:
    """One launch, which reads a long row `times` times; along another axis than the last, elements one by one."""
    width = x.shape[dim] if x.dim() else 1
    if dim % max(1, x.dim()) != x.dim() - 1:
        return [Pass([x, *more], [out])]
    rows, row_bytes = x.numel() // max(1, width), width * x.element_size()
    return [launches.softmax([x, *more], out, rows, row_bytes, times)]


@register_traffic_formula(aten._softmax, aten._log_softmax)
def softmax(x: Tensor, dim: int, *_: Any, out: Tensor, **__: Any) -> list[Piece]:
    return _softmax(x, dim, out, launches.SOFTMAX_READS)


@register_traffic_formula(aten._softmax_backward_data)
def softmax_backward(
    grad: Tensor, result: Tensor, dim: int, *_: Any, out: Tensor, **__: Any
) -> list[Piece]:
    """grad x result is written by a launch of its own; the next sums it over a row and subtracts (SoftMax.cu,
    softmax_backward_cuda_out)."""
    # Memory that the two launches share and nobody else sees.
    weighted = torch.empty_like(result, device="meta")
    return [
        Pass([grad, result], [weighted], "product"),
        *_softmax(weighted, dim, out, launches.SOFTMAX_BACKWARD_READS, result),
    ]


@register_traffic_formula(aten._log_softmax_backward_data)
def log_softmax_backward(
    grad: Tensor, result: Tensor, dim: int, *_: Any, out: Tensor, **__: Any
) -> list[Piece]:
    """The gradient's sum, then the result."""
    return _softmax(grad, dim, out, launches.SOFTMAX_BACKWARD_READS, result)


@register_traffic_formula(aten.nonzero)
def nonzero(x: Tensor, *, out: Tensor) -> list[Piece]:
    """They are counted, then their places written, first as one number and then by axis (Nonzero.cu)."""
    pieces: list[Piece] = [Pass([x], [], "count"), Pass([x], [out], "select")]
    return [*pieces, Pass([out], [out], "axes")] if x.dim() > 1 else pieces


def is_free(function: Any) -> bool:
    return function._schema.name.split("::")[1] in FREE or torch.Tag.inplace_view in function.tags


def is_one_pass(function: Any) -> bool:
    name = function._schema.name.split("::")[1]
    return name in ONE_PASS or name.startswith("_foreach_") or torch.Tag.pointwise in function.tags


def one_pass(function: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> list[Piece]:
    """All inputs read and all outputs written, each once; what an operator overwrites it reads only where it adds to
    it."""
    name = function._schema.name.split("::")[1]
    written = list(overwritten(function, args, kwargs))
    # What is overwritten whole is not loaded first; what is added to is.
    unread = {id(t) for t in written} if name in WRITES_ONLY or "out" in kwargs else set()
    reads = [t for t in tensors_in((args, kwargs)) if id(t) not in unread]
    results = list(tensors_in((written, out)))
    return [Pass(reads, list({_key(t): t for t in results}.values()))]


def with_contiguous(
    function: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Piece], Sequence[Any], dict[str, Any]]:
    """(copies, arguments) of an operator some of whose arguments are copied first, since its kernels want them
    contiguous (`CONTIGUOUS`)."""
    wanted = CONTIGUOUS.get(function._schema.name.removeprefix("aten::"))
    if wanted is None:
        return [], args, kwargs
    pieces: list[Piece] = []
    names = [argument.name for argument in function._schema.arguments]
    # Positional arguments by name, so that the table need not know their order.
    bound = dict(zip(names, args, strict=False)) | kwargs
    for name in wanted & bound.keys():
        tensor = bound[name]
        if isinstance(tensor, Tensor) and not tensor.is_contiguous():
            bound[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            pieces.append(Pass([tensor], [bound[name]], "copy"))
    return pieces, [bound[name] for name in names[: len(args)]], {n: bound[n] for n in kwargs}


def named_arguments(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in function._schema.arguments]
    # What a caller left out has the schema's default; what it gave goes before that.
    defaults = {
        a.name: a.default_value for a in function._schema.arguments if a.has_default_value()
    }
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


def overwritten(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    for n, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[n] if n < len(args) else kwargs.get(argument.name)
            yield from tensors_in(value)


def _key(tensor: Tensor) -> tuple[int, int, tuple[int, ...]]:
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tuple(tensor.shape)
