"""A stand-in for Triton in which a `triton.jit` function runs in NumPy, a program at a time.

It knows the few words of `triton.language` that iosim's own forward takes. An address outside of its tensor is an error,
and so is a start that is no multiple of what the kernel says of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np


class Numbers(np.ndarray):
    """An array with Triton's way of changing its type."""

    def to(self, dtype: Any) -> Any:
        return self.astype(dtype)


class Whole(int):
    """A number that all of a program's lanes share."""

    def to(self, _: Any) -> int:
        return int(self)


class Pointers:
    """Places in a tensor, counted in its elements."""

    def __init__(self, tensor: np.ndarray, at: Any = 0) -> None:
        self.tensor, self.at = tensor, at
        self.type = SimpleNamespace(element_ty=tensor.dtype)

    def __add__(self, elements: Any) -> Pointers:
        return Pointers(self.tensor, self.at + elements)

    def __sub__(self, elements: Any) -> Pointers:
        return Pointers(self.tensor, self.at - elements)

    def inside(self) -> Any:
        at = np.asarray(self.at)
        assert at.min() >= 0, "an address before its tensor"
        assert at.max() < self.tensor.size, "an address behind its tensor"
        return at


def _numbers(values: Any) -> Any:
    return np.asarray(values).view(Numbers)


def _load(pointers: Pointers) -> Any:
    return _numbers(pointers.tensor.reshape(-1)[pointers.inside()])


def _store(pointers: Pointers, values: Any) -> None:
    pointers.tensor.reshape(-1)[pointers.inside()] = values


def _dot(a: Any, b: Any, sums: Any = 0) -> Any:
    return _numbers(np.asarray(a, dtype=np.float64) @ np.asarray(b, dtype=np.float64) + sums)


def _power(exponents: Any) -> Any:
    assert np.max(exponents) <= 0, "a softmax's exponents are taken from the row's largest"
    return _numbers(np.exp2(exponents))


def _multiple(value: int, of: int) -> int:
    assert value % of == 0, "no multiple of what is said of it"
    return value


def _language(program: list[int]) -> ModuleType:
    """triton.language; `program` holds the numbers of the program that runs."""
    tl: Any = ModuleType("triton.language")
    tl.constexpr, tl.float32, tl.int64 = object, np.float64, np.int64
    tl.program_id = lambda axis: Whole(program[axis])
    tl.arange = lambda first, end: _numbers(np.arange(first, end))
    tl.load, tl.store, tl.dot, tl.where = _load, _store, _dot, np.where
    tl.zeros = lambda shape, dtype: _numbers(np.zeros(shape, dtype))
    tl.full = lambda shape, value, dtype: _numbers(np.full(shape, value, dtype))
    tl.maximum, tl.multiple_of = np.maximum, _multiple
    tl.max = lambda values, axis: _numbers(np.max(values, axis))
    tl.sum = lambda values, axis: _numbers(np.sum(values, axis))
    tl.math = SimpleNamespace(exp2=_power, log2=np.log2)
    return tl  # type: ignore[no-any-return]


@contextmanager
def triton_in_numpy() -> Iterator[list[int]]:
    """Inside, `import triton` gives the stand-in. Yields the list that holds the numbers of the program that runs."""
    program = [0, 0, 0]
    triton: Any = ModuleType("triton")
    triton.jit, triton.language = lambda fn: fn, _language(program)
    with patch.dict("sys.modules", {"triton": triton, "triton.language": triton.language}):
        yield program


def run(fn: Any, program: list[int], grid: Sequence[int], *arguments: Any) -> None:
    """All programs of a grid of two axes, one after the other."""
    for program[1] in range(grid[1]):
        for program[0] in range(grid[0]):
            fn(*arguments)
