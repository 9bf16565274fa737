"""Which launches an operator makes, said once for PyTorch's tensors as they run and for the places of a program that is
written down: a place is whatever a reader has, and `Measure` says how large it is.

Most operators are rules, text in `launches.toml`. Those whose launches go by the size of a row are functions here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from iosim.base.records import dataclass

T = TypeVar("T")

SECTOR_BYTES = 32
ROW_BYTES = 49152
"""Bytes of a row that a CTA of a softmax keeps in shared memory at most."""
SOFTMAX_READS, SOFTMAX_BACKWARD_READS = 3, 2
"""How often a longer row is read: for its maximum, its sum and the result; backward for the gradient's sum and the
result (SoftMax.cu)."""


@dataclass(frozen=True)
class Pass(Generic[T]):
    """One kernel launch that reads each of `reads` and writes each of `writes` once. `rows`: a CTA takes one of so many
    rows; it goes through those of `again` so often. `apart`: those of which each element is moved by a CTA of its own,
    and so a sector between SMs and L2."""

    reads: Sequence[T]
    writes: Sequence[T]
    name: str = ""
    rows: int | None = None
    again: Sequence[tuple[T, int]] = ()
    apart: Sequence[T] = ()


def called(operator: str, launch: str) -> str:
    """The name of a launch, `launch` being what it is called among those of its operator, if anything."""
    return f"{operator}.{launch}" if launch else operator


class Measure(Protocol[T]):
    """How large places of a kind are, and how a part of one is had."""

    def elements(self, place: T) -> int: ...
    def element_bytes(self, place: T) -> int: ...
    def part(self, place: T, elements: int) -> T: ...
    def scratch(self, size: int) -> T: ...


@cache
def rules() -> dict[str, list[str]]:
    """The rules of each operator of `launches.toml`, by its name without a namespace."""
    text = Path(__file__).with_name("launches.toml").read_text(encoding="utf-8")
    listed: dict[str, list[str]] = tomllib.loads(text)["launches"]
    return {operator: lines for names, lines in listed.items() for operator in names.split()}


def by_rules(
    lines: Sequence[str], places_of: Callable[[str], Sequence[T]], measure: Measure[T]
) -> list[Pass[T]]:
    """The launches that rules say, `places_of` the name of an argument or a result."""

    def places(words: str) -> Iterator[T]:
        for word in words.split():
            bytes_each, _, counted = word.partition("*")
            if bytes_each.isdigit():
                elements = sum(measure.elements(place) for place in places_of(counted))
                yield measure.scratch(int(bytes_each) * elements)
                continue
            # `a[b]` is as many elements of a as the largest of b has; `a[b:sector]` a sector for each of them.
            name, _, size = word.rstrip("]").partition("[")
            like, _, by_sector = size.partition(":")
            for place in places_of(name):
                if not size:
                    yield place
                    continue
                per_element = SECTOR_BYTES // measure.element_bytes(place) if by_sector else 1
                most = max((measure.elements(p) * per_element for p in places_of(like)), default=0)
                yield measure.part(place, min(measure.elements(place), most))

    passes: list[Pass[T]] = []
    for line in lines:
        # A launch that writes nothing is left out, but for one marked `->!`: a sum that another reads.
        called, _, rest = line.rpartition(": ")
        reads, writes = (list(places(words.lstrip("!"))) for words in rest.split("->"))
        if writes or "->!" in rest:
            passes.append(Pass(reads, writes, called))
    return passes


def norm(reads: Sequence[T], out: T, statistics: Sequence[T]) -> Pass[T]:
    """A norm over rows: a CTA takes a row, and stores its mean and rstd (layer_norm_kernel.cu,
    vectorized_layer_norm_kernel)."""
    return Pass(reads, [out, *statistics], apart=statistics)


def norm_backward_input(reads: Sequence[T], gradient: T, statistics: Sequence[T]) -> Pass[T]:
    """The launch of a norm's backward for its input, a CTA a row; another makes those of weight and bias
    (layer_norm_kernel.cu)."""
    return Pass(reads, [gradient], "input", apart=statistics)


def norm_backward_weight(reads: Sequence[T], gradients: Sequence[T]) -> Pass[T]:
    """The launch of a norm's backward for what scales and moves it."""
    return Pass(reads, gradients, "weight")


def softmax(reads: Sequence[T], out: T, rows: int, row_bytes: int, times: int) -> Pass[T]:
    """A softmax over so many rows of the first of `reads`: a CTA takes a row that does not fit in its shared memory, and
    reads it `times` times (SoftMax.cu)."""
    if row_bytes <= ROW_BYTES:
        return Pass(reads, [out])
    return Pass(reads, [out], rows=rows, again=[(reads[0], times)])
