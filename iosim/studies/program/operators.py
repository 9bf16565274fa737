"""A program: storages that come and go, operators that run in between, and the launches of those that are no attention:
passes that stream their tensors, and matrix products.

A product's CTAs take tiles of the result along the tile's shorter side, eight of its longer side next to each other: so
the bytes of a GPT-2's kernels say of cuBLAS (experiments/measurements/h200_torch_kernels.csv). Its activations are read
again where a product has more columns than eight tiles of 256, and its head goes through 77 MB of weights for every 8 x
192 tokens. NB: which tile, order or split a library takes is not published.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from iosim.base.errors import InputError
from iosim.base.records import cached_property, dataclass, field, replace
from iosim.catalog.algorithms import plan
from iosim.catalog.algorithms.common import load, store
from iosim.catalog.algorithms.matrix_tiles import UNALIGNED_TILE, fp32_tile, wave_tile
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import (
    Chain,
    Domain,
    Launch,
    Mode,
    Outer,
    Overhead,
    Per,
    Resources,
    Role,
    Rows,
    Tensor,
    tensors,
)
from iosim.kernel.schedule import Schedule
from iosim.kernel.work import Work
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import needed_bytes
from iosim.studies.program.launches import SECTOR_BYTES

CTA_THREADS = 256
RASTER_TILES = 8
INNER_ROWS = 128
"""Rows of the axis that a product sums over which a CTA takes per step."""
ROW_THREADS = 1024
TMA_BYTES = 16
"""Bytes to whose multiples rows of a tensor begin that TMA moves (CUDA's driver API, cuTensorMapEncodeTiled)."""
STAND_INS = ("fa2", "cutlass", "flash")
"""Attention kernels that stand in, in this order, where the catalog has no model of the chosen one for a problem."""
PASS_THREADS, PASS_VALUES = 128, 8
"""Threads of a CTA of an elementwise pass, and values that each takes (PyTorch's vectorized_elementwise_kernel)."""
CAST_VALUES, LOOPED_VALUES = 4, 1
"""Values that a thread loads before it stores: where a type is widened (unrolled_elementwise_kernel), and where layouts
differ or an operand is broadcast (elementwise_kernel, whose loop loads and stores one after the other)."""
STRIDED_ELEMENTS = 512
"""Elements in a row that a CTA of an elementwise pass takes where layouts differ (elementwise_kernel<128, 4>)."""
REST_OF_SECTORS = "rest of sectors"
"""What bytes stand under that share a sector with an element which a CTA wants, where others have a tensor."""
SAMPLED_CTAS = 16
"""CTAs of such a pass whose sectors are listed, at most."""


@dataclass(frozen=True)
class View:
    """Elements of a storage: `offset` and `strides` in elements, as PyTorch counts them."""

    storage: int
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    element_bytes: int

    @cached_property
    def bytes(self) -> int:
        """Bytes of the elements, each once: an expanded axis costs nothing, and windows that overlap no more than what
        they span."""
        # Two upper bounds: the product of all axes with a stride, and the distance from first to last.
        distinct, span = 1, 1
        for size, stride in zip(self.sizes, self.strides, strict=True):
            if size == 0:
                return 0
            if stride:
                distinct *= size
                span += (size - 1) * abs(stride)
        return min(distinct, span) * self.element_bytes

    @cached_property
    def band(self) -> tuple[int, int, int]:
        """(elements of a row's piece, elements of a row, elements before the piece in its row) where the view takes one
        piece of every row of a wider matrix, as Q does of a fused projection; else the piece is the whole row."""
        dense = 1
        axes = sorted(
            (stride, size)
            for size, stride in zip(self.sizes, self.strides, strict=True)
            if stride and size > 1
        )
        # Axes from the innermost out: the first gap says how wide the piece and how wide the row is.
        for stride, size in axes:
            if stride > dense:
                return dense, stride, self.offset % stride
            dense *= size
        return dense, dense, 0


@dataclass(frozen=True)
class Scratch:
    bytes: int


@dataclass(frozen=True)
class Operator:
    """One operator as it runs: `chain` holds its launches, `views` says where tensors of the chain lie; the others are
    made inside it. `is_kernel`: its launches loop over tiles, so that what it reads again is found by a replay of its
    own. `known`: there is a rule for it, rather than its inputs read and its outputs written once. `product_flops`:
    operations of a matrix product, whose tiles may reach over its edges."""

    name: str
    module: tuple[str, ...]
    phase: str
    problem: AttentionProblem
    kernel: Kernel
    chain: Chain
    views: Mapping[str, View] = field(hash=False)
    is_kernel: bool = False
    is_attention: bool = False
    known: bool = True
    product_flops: int = 0
    notes: tuple[str, ...] = ()

    @classmethod
    def plain(
        cls,
        name: str,
        module: tuple[str, ...],
        phase: str,
        dtype: str,
        chain: Chain,
        views: Mapping[str, View],
        **more: Any,
    ) -> Operator:
        """One that is no attention, of numbers of one type."""
        return cls(name, module, phase, _problem_of(dtype), _kernel_of(name), chain, views, **more)

    @property
    def flops(self) -> int:
        """Operations of its matrix products; of attention those over kept pairs."""
        return self.product_flops or (self.problem.matmul_flops() if self.is_kernel else 0)

    @property
    def compulsory_bytes(self) -> int:
        """Bytes of its inputs and outputs, each once; of rows that queries pick, as many as have to be."""
        tensors = self.chain.tensors
        return sum(
            needed_bytes(self.problem, tensors[name])
            if name in tensors and tensors[name].picked_by
            else view.bytes
            for name, view in self.views.items()
        )


def with_scratch(chain: Chain, views: Mapping[str, View]) -> Chain:
    """A chain whose tensors that lie nowhere in the program are scratch, made and dropped inside the operator."""
    return replace(
        chain,
        tensors={
            name: tensor if name in views else replace(tensor, role=Role.TEMP)
            for name, tensor in chain.tensors.items()
        },
    )


@cache
def _problem_of(dtype: str) -> AttentionProblem:
    """What stands for the problem of an operator that is no attention."""
    return AttentionProblem(dtype=dtype)


@cache
def _kernel_of(name: str) -> Kernel:
    return Kernel(name, "naive", Tile(128, 128))


@dataclass(frozen=True)
class Storage:
    """A piece of memory: `made` and `freed` are the numbers of operators that had run by then; None for what was there
    before the first and for what stays."""

    bytes: int
    made: int | None = None
    freed: int | None = None


@dataclass(frozen=True)
class Program:
    """Operators in order, and the storages by number."""

    storages: tuple[Storage, ...]
    operators: tuple[Operator, ...]

    @classmethod
    def of_one(cls, operator: Operator) -> Program:
        """A program of one operator from a cold L2. Windows that overlap, as a convolution's, lie apart there: so its
        own replay has them, and what the two differ by is what tiles read again."""
        operator = replace(operator, views=_apart(operator))
        ends: dict[int, int] = {}
        for view in operator.views.values():
            # A storage as large as the furthest element of any view of it.
            last = view.offset + sum(
                (n - 1) * s for n, s in zip(view.sizes, view.strides, strict=True) if n
            )
            ends[view.storage] = max(ends.get(view.storage, 0), (last + 1) * view.element_bytes)
        count = max(ends, default=-1) + 1
        return cls(tuple(Storage(ends.get(n, 0)) for n in range(count)), (operator,))


def _apart(operator: Operator) -> dict[str, View]:
    """The views of an operator, those that are smaller than the chain's tensors as large as these, each in a storage of
    its own."""
    tensors, apart = operator.chain.tensors, dict[str, View]()
    for number, (name, view) in enumerate(operator.views.items()):
        elements = tensors[name].bytes // view.element_bytes if name in tensors else 0
        if operator.product_flops and elements * view.element_bytes > view.bytes:
            view = View(-1 - number, 0, (elements,), (1,), view.element_bytes)
        apart[name] = view
    numbers = {storage: n for n, storage in enumerate(sorted({v.storage for v in apart.values()}))}
    return {name: replace(view, storage=numbers[view.storage]) for name, view in apart.items()}


Places = Sequence[View | Scratch]
Again = Sequence[tuple[View, int]]
"""What is gone through more than once, and how often."""


def streaming(
    name: str,
    reads: Places,
    writes: Places,
    rows: int | None = None,
    again: Again = (),
    apart: Sequence[View] = (),
) -> tuple[Chain, dict[str, View]]:
    """A pass that reads and writes places in memory once each: (its launch, where its tensors lie). `rows`: CTAs of
    `ROW_THREADS` threads take a row each, in place of a piece of all elements. `again`: how often a CTA goes through
    its row of what it reads, where that is more than once. `apart`: places of which each element is moved by a CTA of
    its own, and takes a sector between SMs and L2."""
    named = _flat_tensors(reads, writes)
    times: dict[View | Scratch, int] = dict(again)
    loads = (
        load(named[p].name, Rows.OWN, Per.LAUNCH, times=times.get(p, 1))
        for p in reads
        if p in named
    )
    stores = (store(named[p].name, Rows.OWN, Per.LAUNCH) for p in writes if p in named)
    elements = max((t.elements for t in named.values()), default=1)
    if rows is None:
        # Elementwise: CTAs of so many threads, which take so many values each.
        ctas = max(1, -(-elements // (PASS_THREADS * PASS_VALUES)))
        threads = PASS_THREADS
        held = _held_values(reads, writes, again, apart)
        strided_bytes = _strided_bytes(reads, writes)
    else:
        ctas = max(1, rows)
        threads = ROW_THREADS
        held = elements / (ctas * threads)
        strided_bytes = 0
    # Bytes of sectors that are fetched or stored beside the elements.
    beside = {
        Mode.LOAD: strided_bytes + _rest_of_sectors(p for p in apart if p in reads),
        Mode.STORE: _rest_of_sectors(p for p in apart if p in writes),
    }
    launch = Launch(
        name,
        Domain(1, 1, ctas, 1, 1, 1),
        Outer.FLAT,
        tuple(dict.fromkeys((*loads, *stores))),
        overheads=tuple(
            Overhead(REST_OF_SECTORS, mode, per_cta=-(-beside_bytes // ctas))
            for mode, beside_bytes in beside.items()
            if beside_bytes
        ),
        resources=Resources(threads),
        values_per_thread=max(1, round(held)),
    )
    views = {t.name: place for place, t in named.items() if isinstance(place, View)}
    return Chain(tensors(named.values()), (launch,)), views


def _flat_tensors(reads: Places, writes: Places) -> dict[View | Scratch, Tensor]:
    """A flat tensor for each place that is not empty, named t0, t1, ... A place that is read and written is one tensor,
    an input: PyTorch's in-place operators."""
    roles = dict.fromkeys(reads, Role.INPUT)
    for write in writes:
        roles.setdefault(write, Role.OUTPUT)
    named: dict[View | Scratch, Tensor] = {}
    for place, role in roles.items():
        if not place.bytes:
            continue
        name = f"t{len(named)}"
        if isinstance(place, Scratch):
            named[place] = flat(name, place.bytes, 1, Role.TEMP)
        else:
            named[place] = flat(name, place.bytes // place.element_bytes, place.element_bytes, role)
    return named


def _rest_of_sectors(places: Iterable[View]) -> int:
    """Bytes beside single elements in their sectors."""
    return sum(p.bytes // p.element_bytes * (SECTOR_BYTES - p.element_bytes) for p in places)


def _held_values(reads: Places, writes: Places, again: Again, apart: Sequence[View]) -> float:
    """Values that a thread of an elementwise pass loads before it stores them (PyTorch's CUDALoops.cuh)."""
    stored = [place for place in writes if isinstance(place, View) and place not in apart]
    if len(stored) != 1 or again:
        return PASS_VALUES
    result = stored[0]
    elements = math.prod(result.sizes)
    if apart:
        # A CTA holds a row, and stores one element of these.
        return elements / max(1, math.prod(apart[0].sizes)) / PASS_THREADS
    # One piece of memory each, gone through in the same order.
    operands = [result, *(place for place in reads if isinstance(place, View))]
    alike = all(
        view.band[0] == elements and _order(view) == _order(result)
        for view in operands
        if math.prod(view.sizes) > 1
    )
    if not alike:
        return LOOPED_VALUES
    widened = any(1 < view.element_bytes < result.element_bytes for view in operands)
    return CAST_VALUES if widened else PASS_VALUES


def _order(view: View) -> tuple[tuple[int, int], ...]:
    """Axes with more than one element, size and stride."""
    return tuple(axis for axis in zip(view.sizes, view.strides, strict=True) if axis[0] > 1)


def _strided_bytes(reads: Places, writes: Places) -> int:
    """Bytes of sectors that an elementwise pass loads beyond its elements, where what it reads lies in another order
    than what it writes: a transposed tensor, of which CTAs of other SMs take the rest of a sector each.

    Elements are gone through in the order of the result (TensorIterator's reorder_dimensions). An L1 keeps a sector as
    long as one CTA runs: 18 such passes of a Whisper's encoder, counted with the whole model on an H200, load 16 times
    their elements.
    """
    result = next((place for place in writes if isinstance(place, View)), None)
    if result is None:
        return 0
    return sum(
        _sector_bytes(place, result.strides) - place.bytes
        for place in dict.fromkeys(reads)
        if isinstance(place, View)
        and place.sizes == result.sizes
        and place.strides != result.strides
        and place.bytes
    )


@cache
def _sector_bytes(view: View, order: tuple[int, ...]) -> int:
    """Bytes of the sectors that CTAs touch, each CTA's once, of a view gone through in the order of these strides; at
    least its bytes."""
    # Axes from the fastest of the result out.
    axes = sorted(range(len(order)), key=lambda axis: (order[axis], view.sizes[axis]))
    elements = math.prod(view.sizes)
    ctas = -(-elements // STRIDED_ELEMENTS)
    # Some CTAs stand for all: evenly apart, each with the elements that it takes.
    sampled = np.unique(np.linspace(0, ctas - 1, min(ctas, SAMPLED_CTAS)).astype(np.int64))
    rest = sampled[:, None] * STRIDED_ELEMENTS + np.arange(STRIDED_ELEMENTS)
    inside = rest < elements
    # The place of each element in memory, axis by axis; those past the end repeat the last.
    rest = np.minimum(rest, elements - 1)
    place = np.full(rest.shape, view.offset, dtype=np.int64)
    for axis in axes:
        rest, at = np.divmod(rest, view.sizes[axis])
        place += at * view.strides[axis]
    sectors = np.sort(place * view.element_bytes // SECTOR_BYTES, axis=1)
    touched = sampled.size + int(np.count_nonzero(np.diff(sectors, axis=1)))
    share = elements / int(np.count_nonzero(inside))
    return max(view.bytes, round(touched * share) * SECTOR_BYTES)


def flat(name: str, elements: int, element_bytes: int, role: Role) -> Tensor:
    return Tensor(name, 1, 1, 1, max(1, elements), element_bytes, role)


def product(
    name: str,
    sizes: tuple[int, int, int, int],
    element_bytes: int,
    sm_count: int,
    *,
    bias: tuple[int, int] | None = None,
    output_bytes: int | None = None,
) -> Chain:
    """C [batch, rows, cols] = A [batch, rows, inner] B [batch, inner, cols], of sizes (batch, rows, cols, inner). A CTA
    takes a tile of C and walks `inner`. Tiles side by side are the launch's heads, which share the other side's
    operand. `bias`: elements, and bytes of each, of what the epilogue reads."""
    batch, rows, cols, inner = sizes
    size = output_bytes or element_bytes
    half = element_bytes <= 2
    # Rows of the result that begin at odd places cannot be stored by TMA.
    unaligned = half and batch == 1 and cols * size % TMA_BYTES > 0
    beside = () if bias is None else (flat("bias", *bias, Role.INPUT),)
    # The library's choice of tile, as the counted kernels show it: by waves for 16-bit types.
    if unaligned:
        taken = UNALIGNED_TILE
    elif half:
        taken = wave_tile(rows, cols, batch, sm_count)
    else:
        taken = fp32_tile(rows, cols, batch, narrow=False)
    # The tile's longer side goes across (the launch's heads), its shorter side along (its query rows); of older kernels
    # the columns.
    sides = [("A", rows, taken.rows), ("B", cols, taken.cols)]
    if unaligned:
        sides.reverse()
    else:
        sides.sort(key=lambda side: (-side[2], side[1]))
    (across, across_rows, width), (along, along_rows, block) = sides
    # A product dressed as attention without softmax: A's rows are queries, `inner` the keys that a CTA
    # loops over, column tiles the heads.
    heads = -(-across_rows // width)
    launch = Launch(
        name,
        Domain(batch, heads, along_rows, inner, block, INNER_ROWS),
        Outer.QUERY,
        (
            load(along, Rows.PAIR, Per.PAIR),
            load(across, Rows.KEY, Per.PAIR),
            *(load(t.name, Rows.OWN, Per.LAUNCH) for t in beside),
            store("C", Rows.QUERY, Per.QUERY),
        ),
        schedule=Schedule(section_heads=RASTER_TILES),
        resources=Resources(CTA_THREADS),
        work=Work(2 * width, stages=3),
    )
    operands = (
        Tensor(along, batch, 1, along_rows, inner, element_bytes, Role.INPUT),
        Tensor(across, batch, heads, inner, width, element_bytes, Role.INPUT),
        Tensor("C", batch, heads, along_rows, width, size, Role.OUTPUT),
    )
    return Chain(tensors((*operands, *beside)), (launch,))


def attending(
    problem: AttentionProblem, kernel: str, profile: HardwareProfile, *, wants_lse: bool
) -> tuple[Kernel, str]:
    """(kernel, note) of one pass: the chosen kernel, or one that stands in for it."""
    refusal: InputError | None = None
    # The first refusal is the one that is told: it is that of the kernel asked for.
    for name in dict.fromkeys((kernel, *STAND_INS)):
        try:
            chosen = resolve(name, problem, profile)
            plan(problem, chosen)
        except InputError as error:
            refusal = refusal or error
            continue
        note = (
            "" if name == kernel else f"{name} stands in for {kernel}, {problem.passes}: {refusal}"
        )
        return chosen.with_(writes_lse=chosen.writes_lse or wants_lse), note
    assert refusal is not None
    raise refusal
