"""Values that meta and fake tensors do not have, and programs ask for all the same: of masks, positions and routing.

As PyTorch's tracers carry known constants along, a storage whose values follow from constants (arange, full, what is
computed of them) has a copy here, and each operator works on the copies as it works on the tensors. Values that follow
from nothing are assumed where a rule below says how; a note says so once a program asks for what rests on them.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.integrations.torch.formulas import named_arguments, overwritten, tensors_in
from iosim.integrations.torch.recorder import Known, Recorder, is_real

aten = torch.ops.aten
CPU = torch.device("cpu")
OWN = __package__ or ""
ASKING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
READS = (aten._local_scalar_dense.default, aten._to_copy.default)
"""Operators that hand a tensor's values to the host."""

MOST_BYTES, MOST_FLOAT_BYTES = 1 << 28, 1 << 20
"""Most bytes of a storage that is followed, and of one of floating point."""
INPUTS = "values are asked of integers that have none, an input's: they are taken to be 1, as a mask without padding is"
TOKENS = (
    "values are asked of integers that have none, an input's: they are taken to be tokens, none of which is one that "
    "the program looks for, such as padding"
)
ROUTING = "values are asked of what a topk, sort or argmax picks: rows are taken to spread evenly, as over experts"
CHECKS = "a check asks for values that do not exist: it is taken to find nothing, as with no infinities and no overflow"
RANDOM = "values are asked of random numbers that are not drawn: they are taken to be 1/2"
READ = "values are read that do not exist, as of a loss: they are NaN"
PICKS = {"topk": 1, "sort": 1, "max": 1, "min": 1, "multinomial": 0, "argmax": 0, "argmin": 0}
"""Operators that pick along an axis, and which of their results holds the places."""
LOOKED_FOR = {"eq": False, "ne": True, "isin": False}
"""What a comparison of tokens with anything else finds."""
SAME_TOKENS = frozenset(
    (
        "_to_copy",
        "clone",
        "cat",
        "stack",
        "repeat",
        "index",
        "index_select",
        "gather",
        "roll",
        "flip",
    )
)
"""Operators whose result holds tokens where one of their arguments does."""
MASK_NAME = re.compile(r"(?:^|_)masks?(?:_|\d|$)", re.IGNORECASE)
FOUND = {"any": False, "all": True, "isnan": False, "isinf": False, "isfinite": True}
"""What a check gives that finds nothing."""


def asks(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True where an operator's result, or its size, hangs on values that its arguments do not have."""
    if function is aten.index.Tensor or kwargs.get("output_size") is not None:
        return False
    if function is aten._to_copy.default:  # off the meta device
        return bool(
            args[0].is_meta and not isinstance(args[0], FakeTensor) and kwargs.get("device") == CPU
        )
    hangs = not ASKING.isdisjoint(function.tags)
    return hangs and any(not is_real(t) for t in tensors_in((args, kwargs)))


def computed_on_values(
    recorder: Recorder, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The result of an operator that hangs on its arguments' values, on their device; what is copied off the meta
    device is real. Raises InputError: the values are not known."""
    with _disable_current_modes():
        copies, assumed = _copies(recorder, (args, kwargs))
        if copies is None and function in READS and args[0].is_floating_point():
            nothing = torch.full(args[0].shape, math.nan, dtype=args[0].dtype, device=CPU)
            copies, assumed = ((nothing, *args[1:]), kwargs), frozenset((READ,))
        if copies is None:
            hint = "accepted: what follows from constants made inside the mode, or CPU tensors"
            raise InputError(
                f"operator '{function}' hangs on values, which fake and meta tensors do not have; {hint}"
            )
        recorder.notes |= dict.fromkeys(sorted(assumed))
        result = function(*copies[0], **copies[1])
    if "device" in kwargs:
        return result
    # The result gets the device of what was asked: sizes and strides of the values, but none of them.
    like = next(t for t in tensors_in((args, kwargs)) if not is_real(t))
    with recorder.pause():
        return tree_map(
            lambda t: (
                like.new_empty_strided(t.shape, t.stride(), dtype=t.dtype)
                if isinstance(t, Tensor)
                else t
            ),
            result,
        )


def is_known(recorder: Recorder, tensor: Tensor) -> bool:
    return not is_real(tensor) and recorder.storage(tensor, made_by=None) in recorder.known


def known_values(recorder: Recorder, tensor: Tensor) -> Tensor | None:
    """A copy with the values of a tensor that has none, where they follow from constants."""
    if not is_known(recorder, tensor):
        return None
    with _disable_current_modes():
        return _view(recorder.known[recorder.storage(tensor, made_by=None)].storage, tensor)


def learn(
    recorder: Recorder,
    tensor: Tensor,
    values: Any,
    assumed: frozenset[str] = frozenset(),
    tokens: bool = False,
) -> None:
    if is_real(tensor):
        return
    with (
        _disable_current_modes(),
        suppress(RuntimeError),
    ):  # of sizes that are others, or elements in one place
        # Values are held as bytes of the whole storage, so that every view of it sees them.
        storage = torch.empty(
            tensor.untyped_storage().nbytes(), dtype=torch.uint8, device=CPU
        ).untyped_storage()
        _view(storage, tensor).copy_(torch.as_tensor(values, device=CPU))
        recorder.known[recorder.storage(tensor, made_by=None)] = Known(storage, assumed, tokens)


def follow(
    recorder: Recorder, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
) -> None:
    """What an operator that has run does to the values of what it made and wrote."""
    inputs = {t.untyped_storage()._cdata for t in tensors_in((args, kwargs))}
    results = list(tensors_in(out))
    is_new = [t.untyped_storage()._cdata not in inputs for t in results]
    written = list(overwritten(function, args, dict(kwargs)))
    changed = [*written, *(t for t, new in zip(results, is_new, strict=True) if new)]
    if all(is_real(t) for t in changed):
        return
    with _disable_current_modes():
        values, assumed = _result(recorder, function, args, kwargs, changed)
        for tensor in changed if values is None else written:
            number = recorder.storage(tensor, made_by=None)
            if values is None:
                recorder.known.pop(number, None)
            elif number in recorder.known:
                before = recorder.known[number]
                recorder.known[number] = replace(before, assumed=before.assumed | assumed)
        tokens = function._schema.name.removeprefix("aten::") in SAME_TOKENS and any(
            _tokens(recorder, args)
        )
        for tensor, new, value in zip(results, is_new, values or (), strict=False):
            if new and value is not None:
                learn(recorder, tensor, value, assumed, tokens)


def _result(
    recorder: Recorder,
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    changed: Sequence[Tensor],
) -> tuple[list[Tensor | None] | None, frozenset[str]]:
    """(values of an operator's results, what they rest on); None where they are not known or not worth following."""
    library, name = function._schema.name.split("::")
    # Only PyTorch's own operators are computed, and of results that are small enough to be held.
    if library != "aten" or not all(
        _followed(t) and (_counts(t) or not name.startswith("empty")) for t in changed
    ):
        return None, frozenset()
    if name in ("rand", "rand_like"):
        return [torch.full(t.shape, 0.5, device=CPU) for t in changed], frozenset((RANDOM,))
    if torch.Tag.nondeterministic_seeded in function.tags and name not in PICKS:
        return None, frozenset()
    # Only the shape and type of such an argument matter: zeros stand for it.
    if name.startswith("new_") or name.endswith("_like"):  # whose argument's values do not matter
        args = (torch.zeros((), dtype=args[0].dtype, device=CPU).expand(args[0].shape), *args[1:])
    copies, assumed = _copies(recorder, (args, kwargs))
    if copies is None:
        return _taken(function, name, args, kwargs, changed)
    # A comparison of tokens with one thing that a program looks for finds nothing.
    if name in LOOKED_FOR and sum(_tokens(recorder, args[:2])) == 1:
        return [torch.full(t.shape, LOOKED_FOR[name], device=CPU) for t in changed], assumed
    if name == "histc":  # which the CPU has of floating point alone
        copies = tree_map(lambda leaf: leaf.double() if isinstance(leaf, Tensor) else leaf, copies)
    try:
        return list(tensors_in(function(*copies[0], **copies[1]))), assumed
    except (
        RuntimeError,
        IndexError,
        TypeError,
        ValueError,
    ):  # no kernel for the CPU, or an assumed place out of range
        return None, frozenset()


def _taken(
    function: Any,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    results: Sequence[Tensor],
) -> tuple[list[Tensor | None] | None, frozenset[str]]:
    """Values that are assumed of what an operator makes of unknown ones."""
    if name in FOUND and results:
        return [torch.full(results[0].shape, FOUND[name], device=CPU)], frozenset((CHECKS,))
    if name not in PICKS or PICKS[name] >= len(results):
        return None, frozenset()
    places = results[PICKS[name]]
    # Along which axis rows are picked, and whether the result has that axis, too.
    named = named_arguments(function, args, dict(kwargs))
    along = named.get("dim", -1)
    rows = args[0].shape[along] if along is not None and args[0].dim() else args[0].numel()
    keeps = places.dim() == args[0].dim() and places.dim() > 0 and along is not None
    # Picks go round the rows in turn, so that each is picked equally often along the axis.
    spread = torch.arange(places.numel(), device=CPU) % max(1, rows)
    if keeps:
        spread = spread.view(places.movedim(along, -1).shape).movedim(-1, along)
    values: list[Tensor | None] = [None] * len(results)
    values[PICKS[name]] = spread.reshape(places.shape)
    return values, frozenset((ROUTING,))


def _copies(recorder: Recorder, arguments: Any) -> tuple[Any, frozenset[str]]:
    """An operator's arguments with tensors that have values; None where one of them is not known."""
    known: dict[int, Known] = {}
    for tensor in tensors_in(arguments):
        if not is_real(tensor):
            values = _known(recorder, tensor)
            if values is None:  # of most operators: nothing more is looked at
                return None, frozenset()
            known[id(tensor)] = values

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return CPU
        values = known.get(id(leaf)) if isinstance(leaf, Tensor) else None
        return leaf if values is None else _view(values.storage, leaf)

    assumed = frozenset().union(*(values.assumed for values in known.values()))
    return tree_map(copied, arguments), assumed


def _known(recorder: Recorder, tensor: Tensor) -> Known | None:
    number = recorder.storage(tensor, made_by=None)
    if (
        number not in recorder.known
        and recorder.was_there(number)
        and _counts(tensor)
        and _followed(tensor)
    ):
        ones = torch.ones(
            tensor.untyped_storage().nbytes() // tensor.element_size(),
            dtype=tensor.dtype,
            device=CPU,
        )
        # Whole numbers count as tokens, unless some name in the program calls them a mask.
        tokens = tensor.dtype != torch.bool and not any(map(MASK_NAME.search, _names(tensor)))
        recorder.known[number] = Known(
            ones.untyped_storage(), frozenset((TOKENS if tokens else INPUTS,)), tokens
        )
    return recorder.known.get(number)


def _tokens(recorder: Recorder, arguments: Any) -> list[bool]:
    """For each tensor in an operator's arguments, True where it holds numbers of tokens."""
    without = [t for t in tensors_in(arguments) if not is_real(t)]
    known = [recorder.known.get(recorder.storage(t, made_by=None)) for t in without]
    return [values is not None and values.tokens for values in known]


def _names(tensor: Tensor) -> Iterator[str]:
    """What the program that runs calls a tensor, in all its functions that are on their way."""
    frame: FrameType | None = sys._getframe()
    storage = tensor.untyped_storage()._cdata
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(OWN):
            for name, value in list(frame.f_locals.items()):
                with suppress(RuntimeError):  # of a tensor without a storage
                    if isinstance(value, Tensor) and value.untyped_storage()._cdata == storage:
                        yield name
        frame = frame.f_back


def _counts(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _followed(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() <= (
        MOST_BYTES if _counts(tensor) else MOST_FLOAT_BYTES
    )


def _view(storage: torch.UntypedStorage, tensor: Tensor) -> Tensor:
    whole = torch.empty(0, dtype=tensor.dtype, device=CPU)
    return whole.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
