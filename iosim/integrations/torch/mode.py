"""TrafficMode: what a module would move on a GPU, recorded while it runs on fake, meta or CPU tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Generic, TypeVar

import torch
import torch.nn.attention.flex_attention as flex_module
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from iosim.base.errors import InputError
from iosim.base.records import cached_property
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.integrations.torch import attention, formulas, values
from iosim.integrations.torch.formulas import REGISTRY, Pass
from iosim.integrations.torch.recorder import Recorder, is_real
from iosim.integrations.torch.triton_kernels import triton_recorded
from iosim.studies.program.operators import Scratch
from iosim.studies.program.result import OperatorTraffic, ProgramTraffic, traffic_of

__all__ = ["OperatorTraffic", "ProgramTraffic", "Scratch", "TrafficMode"]

R = TypeVar("R")
aten = torch.ops.aten
UNKNOWN = "operator '{}' is not known: its inputs and outputs are counted once"
GROUPS = "a product's groups, such as experts, are taken to have equally many rows"
INDEXED = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
FROM_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)
"""Functions that make a tensor of a program's own numbers."""
DEVICE_OF = getattr(Tensor.device, "__get__")  # noqa: B009


class _OfResult(Generic[R]):
    """An attribute of a mode's result, as an attribute of the mode itself."""

    def __init__(self, read: Callable[[ProgramTraffic], R]) -> None:
        self.read = read

    def __set_name__(self, owner: type, name: str) -> None:
        self.__doc__ = getattr(ProgramTraffic, name).__doc__

    def __get__(self, mode: TrafficMode | None, owner: type) -> R:
        if mode is None:
            return self  # type: ignore[return-value]  # for `help`, which reads its docstring
        return self.read(mode.result)


class TrafficMode:
    """Counts what runs inside, as torch.utils.flop_counter.FlopCounterMode does, on a GPU that need not be there.

        with TrafficMode(gpu="h100") as t:
            model(x).sum().backward()
        print(t.table(depth=2))

    Args:
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        cudnn: the version of cuDNN there, such as "9.19.0"; by default that of PyTorch's own wheels. "none": PyTorch
            was built without.
        display: print the result at the end.

    Raises:
        InputError: the GPU is not known, or the version is none.
    """

    def __init__(
        self,
        gpu: str | HardwareProfile = "h100",
        *,
        cudnn: str | None = None,
        display: bool = False,
    ) -> None:
        self.profile = load_profile(gpu)
        self.cudnn = attention.default_cudnn() if cudnn is None else _version(cudnn)
        self.display = display
        self._recorder = Recorder(self.profile)
        self._stack: ExitStack | None = None

    def __enter__(self) -> TrafficMode:
        if self._stack is not None:
            raise InputError(
                "this TrafficMode runs already; accepted: a second one, or this one after its end"
            )
        self._recorder = Recorder(self.profile)
        self.__dict__.pop("result", None)
        with ExitStack() as stack:
            # What catches functions is entered before what catches operators: attention is seen whole first.
            if "torch._dynamo" in sys.modules:  # what is compiled runs as it was written
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(self._recorder.modules)
            stack.enter_context(_replaced(torch, autocast=_Autocast))
            stack.enter_context(_flex_recorded(self._recorder))
            if (
                "transformers.utils.import_utils" in sys.modules
            ):  # what it leaves out of a trace, a GPU runs
                module = sys.modules["transformers.utils.import_utils"]
                stack.enter_context(_replaced(module, is_fake_tensor=lambda _: False))
            stack.enter_context(_attention_recorded(self._recorder, self.cudnn))
            stack.enter_context(triton_recorded(self._recorder))
            stack.enter_context(_Functions(self._recorder, self.cudnn))
            stack.enter_context(_Operators(self._recorder))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._stack is not None
        stack, self._stack = self._stack, None
        self._recorder.ended = True
        stack.__exit__(*error)  # type: ignore[arg-type]
        if self.display and error[0] is None:
            print(self.result)

    @cached_property
    def result(self) -> ProgramTraffic:
        """What has run, on the GPU. Raises InputError: the mode runs on, or an operator cannot run on that GPU."""
        if self._stack is not None:
            raise InputError(
                "the traffic is known once the mode has ended; accepted: after the `with` block"
            )
        return traffic_of(self._recorder.program, self.profile, tuple(self._recorder.notes))

    hbm = _OfResult(lambda result: result.hbm)
    l2 = _OfResult(lambda result: result.l2)
    time_s = _OfResult(lambda result: result.time_s)
    table = _OfResult(lambda result: result.table)
    to_pandas = _OfResult(lambda result: result.to_pandas)
    export_chrome_trace = _OfResult(lambda result: result.export_chrome_trace)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers should know."""
        return self.result.notes

    def __str__(self) -> str:
        return str(self.result)

    def _repr_html_(self) -> str:
        return self.result._repr_html_()


def _version(text: str) -> int | None:
    """cuDNN's version as its library counts: 10000 x major + 100 x minor + patch."""
    if text == "none":
        return None
    parts = text.split(".")
    if not 2 <= len(parts) <= 4 or not all(part.isdecimal() for part in parts):
        raise InputError(f"`cudnn` '{text}' is no version; accepted: none, or such as 9.19.0")
    # A version without a patch counts as its first.
    major, minor, patch = (int(part) for part in [*parts, "0"][:3])
    return 10000 * major + 100 * minor + patch


class _Functions(TorchFunctionMode):
    def __init__(self, recorder: Recorder, cudnn: int | None) -> None:
        super().__init__()
        self.recorder, self.cudnn = recorder, cudnn

    def __torch_function__(
        self,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.recorder.paused:
            return function(*args, **kwargs)
        # What CPUs and the meta device decompose, and GPUs run as a kernel, is caught before PyTorch
        # chooses: attention, dropout with its mask, RMS norm.
        if function is torch._C._nn.scaled_dot_product_attention:
            return attention.attend(self.recorder, self.cudnn, *args, **kwargs)
        if function is torch.nn.functional.dropout:
            return _dropout(*args, **kwargs)
        if function in (torch.rms_norm, torch.nn.functional.rms_norm):
            return rms_norm(self.recorder, *args, **kwargs)
        if function == DEVICE_OF and sys._getframe(1).f_code is flex_module.flex_attention.__code__:
            return (
                sys._getframe(1).f_locals["query"].device
            )  # a mask's lists may lie on the CPU, whatever the queries
        if (
            function is Tensor.__format__
            and args[0].dim() == 0
            and values.is_known(self.recorder, args[0])
        ):
            return format(args[0].item(), args[1])
        out = function(*args, **kwargs)
        if function in FROM_NUMBERS and out.is_meta:
            numbers = [*args, *kwargs.values()][1 if function is Tensor.new_tensor else 0]
            if not list(formulas.tensors_in(numbers)):
                values.learn(self.recorder, out, numbers)
        return out


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout as GPUs do it: one launch that keeps its mask."""
    if inplace or not training or p == 0:
        return torch.dropout_(input, p, training) if inplace else torch.dropout(input, p, training)
    return torch.native_dropout(input, p, True)[0]


class _Autocast(torch.autocast):
    """torch.autocast that may be called for the meta device, on which nothing is cast."""

    def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
        super().__init__("cpu" if device_type == "meta" else device_type, *args, **kwargs)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """True where torch.compile is kept out of the method below: to ask for that imports it, which takes seconds."""
        return False

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.recorder.paused:
            return function(*args, **kwargs)
        _refuse_layouts((args, kwargs))
        if isinstance(function, torch._ops.HigherOrderOperator):
            out = function(*args, **kwargs)
            self._record(function, args, kwargs, out, higher=True)
            return out
        launched = self.recorder.launched
        if (
            # Storages of a custom operator are noted before its own kernels write to them.
            function.namespace != "aten"
        ):  # its kernels may be Triton's, which are recorded as they come
            self.recorder.seen(formulas.tensors_in((args, kwargs)), ())
        function, args = self._without_masks(function, args)
        if values.asks(function, args, kwargs):
            out = values.computed_on_values(self.recorder, function, args, kwargs)
        else:
            out = formulas.with_cudnns_layout(function, args, function(*args, **kwargs))
        # An operator whose kernels were recorded as they were launched is not recorded twice.
        if self.recorder.launched == launched:
            self._record(function, args, kwargs, out, higher=False)
        values.follow(self.recorder, function, args, kwargs, out)
        return out

    def _without_masks(self, function: Any, args: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """Rows that a mask picks, by their places: PyTorch on a GPU looks those up first (nonzero)."""
        if function is aten.masked_select.default:
            x, mask = torch.broadcast_tensors(*args)  # type: ignore[no-untyped-call]
            function, args = aten.index.Tensor, (x, [mask])
        if function.overloadpacket in INDEXED and any(map(_is_mask, args[1])):
            # Each mask gives way to the coordinates of its true elements, an index per axis.
            places: list[Any] = []
            for index in args[1]:
                coordinates = (
                    self.__torch_dispatch__(aten.nonzero.default, (), (index,))
                    if _is_mask(index)
                    else None
                )
                places += [index] if coordinates is None else coordinates.unbind(1)
            args = (args[0], places, *args[2:])
        return function, args

    def _record(
        self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any, higher: bool
    ) -> None:
        recorder = self.recorder
        _refuse_layouts(out)
        inputs = list(formulas.tensors_in((args, kwargs)))
        # A result in an argument's storage is no new memory: a view, or written in place.
        before = {t.untyped_storage()._cdata for t in inputs}
        results = list(formulas.tensors_in(out))
        recorder.seen(inputs, [t for t in results if t.untyped_storage()._cdata not in before])
        if higher:
            recorder.notes[UNKNOWN.format(function.name())] = None
            recorder.pieces(function.name(), [Pass(inputs, results)], known=False)
            return
        name = function._schema.name.removeprefix("aten::")
        formula = REGISTRY.get(function.overloadpacket)
        # Copies that PyTorch makes before the operator are launches of their own.
        copies, args, kwargs = formulas.with_contiguous(function, args, kwargs)
        recorder.pieces(name, copies)
        if formula is None and name in attention.FUSED:
            attention.fused(recorder, name, formulas.named_arguments(function, args, kwargs), out)
        elif formula is not None:
            recorder.pieces(name, formula(*args, **kwargs, out=out))
            if formula is formulas.grouped_products:
                recorder.notes[GROUPS] = None
        elif formulas.is_free(function) or _is_view(function, args, kwargs, results, before):
            recorder.module()  # its node of autograd belongs to the module that runs
        elif formulas.is_one_pass(function):
            recorder.pieces(name, formulas.one_pass(function, args, kwargs, out))
        else:
            recorder.notes[UNKNOWN.format(function)] = None
            recorder.pieces(name, formulas.one_pass(function, args, kwargs, out), known=False)


def _is_view(
    function: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    results: Sequence[Tensor],
    before: set[int],
) -> bool:
    """True where all that an operator gives lies in what it was given, and is not written."""
    # Writing in place gives no new storage, either, but is a launch.
    writes = any(True for _ in formulas.overwritten(function, args, kwargs))
    return not writes and all(t.untyped_storage()._cdata in before for t in results)


def _refuse_layouts(tensors: Any) -> None:
    """Raises InputError: a tensor without one storage, such as a sparse or a nested one, whose launches no formula
    describes."""
    for tensor in formulas.tensors_in(tensors):
        if tensor.layout is not torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else str(tensor.layout)
            raise InputError(
                f"a {kind} tensor among the program's, whose traffic is not described; accepted: dense tensors "
                "(torch.strided)"
            )


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


@contextmanager
def _replaced(module: Any, **names: Any) -> Iterator[None]:
    """Names of a module replaced for a while, those of them that it has."""
    before = {name: getattr(module, name) for name in names if hasattr(module, name)}
    for name in before:
        setattr(module, name, names[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def _attention_recorded(recorder: Recorder, cudnn: int | None) -> AbstractContextManager[None]:
    """torch.nn.functional's attention replaced: what calls it there (multi_head_attention_forward) has been caught as a
    function itself, and inside of one nothing is caught."""
    function: Callable[..., Tensor] = torch.nn.functional.scaled_dot_product_attention

    def recorded(*args: Any, **kwargs: Any) -> Tensor:
        if recorder.paused:
            return function(*args, **kwargs)
        return attention.attend(recorder, cudnn, *args, **kwargs)

    return _replaced(torch.nn.functional, scaled_dot_product_attention=recorded)


def _flex_recorded(recorder: Recorder) -> AbstractContextManager[None]:
    """flex_attention's operator replaced: PyTorch runs it by torch.compile, which leaves nothing to record."""
    operator: Callable[..., Any] = getattr(flex_module, "flex_attention_hop")  # noqa: B009

    def recorded(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Any,
        block_mask: Any,
        scale: float,
        kernel_options: Any,
        *others: Any,
    ) -> Any:
        def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            result: Tensor = operator(
                q, k, v, score_mod, block_mask, scale, kernel_options, *others
            )[0]
            return result

        out = attention.flex(recorder, query, key, value, block_mask, compute)
        with recorder.pause():
            row = query.new_empty(query.shape[:-1], dtype=torch.float32)
        return out, row, row

    return _replaced(
        flex_module,
        flex_attention_hop=recorded,
        _FLEX_ATTENTION_DISABLE_COMPILE_DEBUG=True,
        _validate_device=lambda *_: None,
    )


def rms_norm(
    recorder: Recorder,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """torch.rms_norm, recorded as the GPU's kernel; with a weight of another type PyTorch has none (layer_norm.cpp)."""
    if weight is not None and weight.dtype != input.dtype:
        return torch.rms_norm(input, list(normalized_shape), weight, eps)
    return _RmsNorm.apply(recorder, input, tuple(normalized_shape), weight, eps)  # type: ignore[no-any-return, no-untyped-call]


class _RmsNorm(torch.autograd.Function):
    """What stands in for the GPU's kernels, one forward and two backward, where a CPU makes it of powers and means."""

    @staticmethod
    def forward(
        ctx: Any,
        recorder: Recorder,
        x: Tensor,
        shape: tuple[int, ...],
        weight: Tensor | None,
        eps: float | None,
    ) -> Tensor:
        with recorder.pause():
            out = torch.rms_norm(x, list(shape), weight, eps) if is_real(x) else torch.empty_like(x)
            rows = x.shape[: x.dim() - len(shape)]
            rstd = x.new_empty((*rows, *(1 for _ in shape)), dtype=torch.float32)
        scale = [] if weight is None else [weight]
        recorder.seen([x, *scale], [out, rstd])
        recorder.pieces("_fused_rms_norm", [Pass([x, *scale], [out, rstd], apart=[rstd])])
        ctx.call = recorder, shape, eps
        ctx.save_for_backward(x, weight, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, *grads_out: Tensor) -> Any:
        (grad,) = grads_out
        recorder, shape, eps = ctx.call
        x, weight, rstd = ctx.saved_tensors
        with recorder.pause():
            # Real tensors get real gradients, by PyTorch's formula on the CPU; others only their shapes.
            leaves = [t for t in (x, weight) if t is not None]
            if is_real(x):
                detached = [t.detach().requires_grad_() for t in leaves]
                with torch.enable_grad():
                    result = torch.rms_norm(
                        detached[0], list(shape), detached[1] if weight is not None else None, eps
                    )
                grads = torch.autograd.grad(result, detached, grad)
            else:
                grads = tuple(torch.empty_like(t) for t in leaves)
        recorder.seen([grad, x, rstd], grads)
        of_weight = grads[1] if weight is not None else None
        pieces = REGISTRY[aten._fused_rms_norm_backward](
            grad, x, None, rstd, weight, out=[grads[0], of_weight]
        )
        recorder.pieces("_fused_rms_norm_backward", pieces)
        return None, grads[0], None, of_weight, None
