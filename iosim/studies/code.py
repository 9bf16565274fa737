"""A launch of a kernel that is known by its code, as `iosim predict --code` and `iosim.predict_code` ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import fields
from iosim.code.arguments import TensorArgument, dtype_named, read_argument
from iosim.code.module import Module, read_module
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.conditions import Conditions
from iosim.prediction.code import CodeCall, CodePrediction, entry_of, predict_call
from iosim.studies.requests import CodeRequest


def run_code(request: CodeRequest) -> CodePrediction:
    """The prediction. Raises InputError: as `predict_call` does, or something that is asked for is missing."""
    profile = load_profile(request.gpu)
    conditions = Conditions(
        **{condition.name: getattr(request, condition.name) for condition in fields(Conditions)}
    )
    return predict_call(call_of(request, profile), profile, conditions)


def call_of(request: CodeRequest, profile: HardwareProfile) -> CodeCall:
    """The launch that is asked for. Raises InputError: code that cannot be read, or something is missing."""
    module = module_of(request.code, profile.cc)
    entry, function = entry_of(module, request.entry, profile.cc)
    if request.grid is None:
        raise InputError("`grid` is missing: how many CTAs are launched; accepted: such as 64,32,1")
    return CodeCall(
        entry,
        sides("grid", request.grid),
        arguments(request.arg),
        None if request.block is None else sides("block", request.block),
        function,
        request.shared_bytes or 0,
    )


def module_of(source: Any, cc: int) -> Module:
    """Code that is read already, the text of PTX, or what `read_module` takes."""
    if isinstance(source, Module):
        return source
    # The text of PTX declares an entry; a path does not.
    if isinstance(source, str) and ".entry" in source:
        return Module("PTX", ptx=(source,))
    return read_module(source, cc)


def sides(name: str, value: str | Sequence[int]) -> tuple[int, ...]:
    """One to three whole numbers from 1. Raises InputError: they are none."""
    parts = (
        value.replace("x", ",").split(",")
        if isinstance(value, str)
        else [str(side) for side in value]
    )
    if not 1 <= len(parts) <= 3 or not all(
        part.strip().isdecimal() and int(part) > 0 for part in parts
    ):
        text = value if isinstance(value, str) else ",".join(map(str, value))
        raise InputError(
            f"`{name}` {text}: accepted: one to three whole numbers from 1, such as 64,32,1"
        )
    return tuple(int(part) for part in parts)


def arguments(argument: Mapping[str, Any] | Iterable[str] | None) -> dict[str, Any]:
    """Arguments by name, of texts NAME=VALUE or of values. Raises InputError: a name that stands twice, or a value that
    makes no sense."""
    if argument is None:
        return {}
    if isinstance(argument, Mapping):
        return {name: _value(name, value) for name, value in argument.items()}
    by_name: dict[str, Any] = {}
    for text in whole_texts(argument):
        name, value = read_argument(text)
        if name in by_name:
            raise InputError(f"`arg` {name} is given twice; accepted: once")
        by_name[name] = value
    return by_name


def whole_texts(parts: Iterable[str]) -> list[str]:
    """Texts that were parted at commas, those inside brackets put together again."""
    texts: list[str] = []
    for part in parts:
        # "A=TENSOR(8x64,bf16)" was parted inside its brackets: open brackets call for the next part.
        if texts and texts[-1].count("(") > texts[-1].count(")"):
            texts[-1] += f",{part}"
        else:
            texts.append(part)
    return texts


def _value(name: str, value: Any) -> Any:
    """An argument that Python gives: a number, a text as the command line has it, or anything with a shape and a dtype,
    whose numbers are read where they are whole and few."""
    if isinstance(value, TensorArgument | bool | int | float):
        return int(value) if isinstance(value, bool) else value
    if isinstance(value, str):
        return read_argument(f"{name}={value}")[1]
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = dtype_named(str(value.dtype).removeprefix("torch."))
        return TensorArgument(name, tuple(int(side) for side in value.shape) or (1,), dtype)
    raise InputError(f"`arg` {name} {type(value).__name__} is no number and no tensor")
