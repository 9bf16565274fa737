"""Where a program's storages lie, as PyTorch's caching allocator hands memory out, and the pieces that its L2 is
followed in.

A view of part of every row (Q of a fused projection) is taken to lie in one piece: the storage's columns one band after
the other, in place of row by row. Which set of the L2 a line falls into is a hash, so that bytes stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from iosim.kernel.launch import Role, Tensor
from iosim.readers.replay.caching_allocator import Block, CachingAllocator
from iosim.studies.program.operators import Operator, Program, View

PIECE_BYTES = 32768
"""Bytes of a piece at most: pieces end where storages and bands end, too."""

Int64 = npt.NDArray[np.int64]
Range = tuple[int, int]


@dataclass(frozen=True)
class Addresses:
    """First byte of each storage, and of each operator's own temporaries by name."""

    storages: tuple[int, ...]
    temporaries: tuple[dict[str, int], ...]
    reserved: int


def addresses(program: Program) -> Addresses:
    """Where everything lies in a program that has run before: PyTorch keeps the memory of the run before, and cuts it
    up anew."""
    allocator = CachingAllocator()
    there = {n: allocator.allocate(s.bytes) for n, s in enumerate(program.storages) if s.made is None}
    made, freed = _by_turn(program)
    at: dict[int, int] = {n: block.address for n, block in there.items()}
    temporaries: list[dict[str, int]] = []
    for _ in range(2):
        live, temporaries = dict(there), []
        for turn, operator in enumerate((*program.operators, None)):
            for n in freed.get(turn, ()):
                if n not in there:
                    allocator.release(live.pop(n))
            if operator is None:
                break
            for n in made.get(turn, ()):
                live[n] = allocator.allocate(program.storages[n].bytes)
                at[n] = live[n].address
            own = {t.name: allocator.allocate(t.bytes) for t in _temporaries(operator)}
            temporaries.append({name: block.address for name, block in own.items()})
            _release(allocator, own.values())
        _release(allocator, (block for n, block in live.items() if n not in there))
    return Addresses(tuple(at.get(n, 0) for n in range(len(program.storages))), tuple(temporaries), allocator.reserved)


def _by_turn(program: Program) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Storages by the operator that makes them, and by the one before which they are gone."""
    made: dict[int, list[int]] = {}
    freed: dict[int, list[int]] = {}
    for n, storage in enumerate(program.storages):
        if storage.made is None:
            continue
        made.setdefault(storage.made, []).append(n)
        if storage.freed is not None:
            freed.setdefault(max(storage.freed, storage.made + 1), []).append(n)
    return made, freed


def _temporaries(operator: Operator) -> list[Tensor]:
    return [t for t in operator.chain.tensors.values() if t.name not in operator.views and t.role is Role.TEMP]


def _release(allocator: CachingAllocator, blocks: Iterable[Block]) -> None:
    for block in blocks:
        allocator.release(block)


class Memory:
    """A program's memory in pieces: which ones a view or a temporary is made of."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.addresses = addresses(program)
        self._bands = _bands(program)
        ranges = {self._range(view) for operator in program.operators for view in operator.views.values()}
        for operator, own in zip(program.operators, self.addresses.temporaries, strict=True):
            ranges |= {(own[t.name], own[t.name] + t.bytes) for t in _temporaries(operator)}
        grid = np.arange(0, self.addresses.reserved + PIECE_BYTES, PIECE_BYTES, dtype=np.int64)
        ends = np.array([end for both in ranges for end in both], dtype=np.int64)
        self._cuts = np.unique(np.concatenate([grid, ends]))
        self._pieces: dict[tuple[Range, int], Int64] = {}

    @property
    def sizes(self) -> npt.NDArray[np.int32]:
        """Bytes of each piece."""
        return np.diff(self._cuts).astype(np.int32)

    def of_view(self, view: View, *, by_rows: bool = True) -> Int64:
        """Pieces of a view, in the order in which an operator walks them: rows of all bands together, or band by
        band."""
        piece, row, _ = view.band
        bands = self._bands.get(view.storage, 1) if by_rows and piece == row else 1
        return self._of(self._range(view), bands)

    def of_temporary(self, operator: int, tensor: Tensor) -> Int64:
        """Pieces of a tensor made inside an operator."""
        first = self.addresses.temporaries[operator][tensor.name]
        return self._of((first, first + tensor.bytes), 1)

    def _of(self, span: Range, bands: int) -> Int64:
        key = (span, bands)
        if key not in self._pieces:
            first, last = np.searchsorted(self._cuts, span)
            pieces = np.arange(first, last, dtype=np.int64)
            if bands > 1:
                pieces = pieces[np.argsort(np.arange(pieces.size) * bands / max(1, pieces.size) % 1.0, kind="stable")]
            self._pieces[key] = pieces
        return self._pieces[key]

    def _range(self, view: View) -> Range:
        """First and last byte of a view, its band taken to lie in one piece."""
        piece, row, before = view.band
        base, size = self.addresses.storages[view.storage], self.program.storages[view.storage].bytes
        start = view.offset * view.element_bytes
        if piece < row:
            start = size * before // row + (view.offset - before) * view.element_bytes * piece // row
        start = max(0, min(start, size - view.bytes))
        return base + start, base + min(size, start + view.bytes)


def _bands(program: Program) -> dict[int, int]:
    """Storages of which some view takes a piece of every row: into how many pieces a row is cut."""
    bands: dict[int, int] = {}
    for operator in program.operators:
        for view in operator.views.values():
            piece, row, _ = view.band
            if piece < row:
                bands[view.storage] = max(bands.get(view.storage, 1), min(8, round(row / piece)))
    return bands
