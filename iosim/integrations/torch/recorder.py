"""Records a program: storages as they come and go, and operators as they run, each at its place in the module tree."""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.module_tracker import ModuleTracker

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.hardware.profile import HardwareProfile
from iosim.integrations.torch.formulas import Part, Pass, Piece, Place, Product
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.studies.program import launches
from iosim.studies.program.operators import (
    Operator,
    Program,
    Scratch,
    Storage,
    View,
    product,
    streaming,
    with_scratch,
)

FORWARD, BACKWARD = "forward", "backward"
DTYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}
ROOT = "Global"


@dataclass(frozen=True)
class Known:
    """Values of a storage that has none itself, and the assumptions that they rest on. `tokens`: they stand for numbers
    of tokens, which equal nothing that a program looks for."""

    storage: torch.UntypedStorage
    assumed: frozenset[str]
    tokens: bool = False


class Recorder:
    """What a mode has seen so far.

    Attributes:
        paused: what runs now is the mode's own doing, or a stand-in for a GPU's kernel.
    """

    def __init__(self, profile: HardwareProfile) -> None:
        self.profile = profile
        self.modules = ModuleTracker()
        self.paused = False
        self.ended = False
        """Nothing is recorded any more: a backward may run after its mode has ended."""
        self.decomposes_attention = False
        """True where attention is being recorded as the operators it is made of."""
        self.notes: dict[str, None] = {}
        self.launched = 0
        """Launches of kernels that are known by their code."""
        self.known: dict[int, Known] = {}
        """By number of a storage, as long as that lives."""
        self._operators: list[Operator] = []
        self._storages: list[Storage] = []
        self._number: dict[int, int] = {}
        self._alive: dict[int, int] = {}
        """Number of each storage that lives, by its address."""
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._dead: list[tuple[int, int]] = []
        """(address, number) of storages that have gone since the last operator: their references say so themselves, so
        that no operator looks through all that live."""
        self._nodes: list[int] = []
        self._places: list[tuple[tuple[str, ...], bool]] = []

    @property
    def program(self) -> Program:
        return Program(tuple(self._storages), tuple(self._operators))

    @contextmanager
    def pause(self) -> Iterator[None]:
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    # ---- places ----

    def module(self) -> tuple[str, ...]:
        """The path of the module that runs now, the root first. In a backward it is the module whose forward made the
        node of autograd."""
        return self._place_in_tree()[0]

    def _place_in_tree(self) -> tuple[tuple[str, ...], bool]:
        """The path of the module that runs now, and whether attention is being decomposed there."""
        node = torch._C._current_autograd_node()
        if node is None:
            place = self._forward_path(), self.decomposes_attention
            number = torch.autograd._get_sequence_nr()
            if not self._nodes or number > self._nodes[-1]:
                self._nodes.append(number)
                self._places.append(place)
            return place
        # Autograd numbers its nodes as the forward makes them: the first recorded place behind this
        # node's number is the module that made it.
        at = bisect_left(self._nodes, node._sequence_nr() + 1)
        return self._places[at] if at < len(self._places) else ((), False)

    def _forward_path(self) -> tuple[str, ...]:
        # Modules nest, so the deepest of those that run has the longest path.
        names = [name for name in self.modules.parents if name != ROOT]
        deepest = max(names, key=lambda name: name.count("."), default="")
        return tuple(deepest.split(".")) if deepest else ()

    def phase(self) -> str:
        return BACKWARD if torch._C._current_graph_task_id() != -1 else FORWARD

    # ---- storages ----

    def view(self, tensor: torch.Tensor) -> View:
        storage, offset = self.storage(tensor, made_by=None), int(tensor.storage_offset())
        sizes, strides = (tuple(map(int, axes)) for axes in (tensor.shape, tensor.stride()))
        return View(storage, offset, sizes, strides, tensor.element_size())

    def storage(self, tensor: torch.Tensor, made_by: int | None) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        # Addresses are used again: what lies there now may be another storage than the one recorded.
        if key in self._alive and self._references[key]() is None:
            self._forget()  # another storage lies at its address now
        if key not in self._alive:
            number = self._alive[key] = len(self._storages)
            self._references[key] = weakref.ref(storage, lambda _: self._dead.append((key, number)))
            self._storages.append(Storage(int(storage.nbytes()), made_by))
        return self._alive[key]

    def was_there(self, number: int) -> bool:
        return self._storages[number].made is None

    def _forget(self) -> None:
        for key, number in self._dead:
            del self._alive[key], self._references[key]
            self.known.pop(number, None)
            self._storages[number] = replace(self._storages[number], freed=len(self._operators))
        self._dead.clear()

    # ---- operators ----

    def seen(self, inputs: Iterable[torch.Tensor], outputs: Iterable[torch.Tensor]) -> None:
        if self.ended:
            return
        self._forget()
        for tensor in inputs:
            self.storage(tensor, made_by=None)
        for tensor in outputs:
            self.storage(tensor, made_by=len(self._operators))

    def pieces(self, name: str, pieces: Iterable[Piece], known: bool = True) -> None:
        if self.ended:
            return
        module, attention = self._place_in_tree()
        phase = self.phase()
        for piece in pieces:
            # Memory that no operator's arguments or results hold is made for this launch, as a workspace is.
            outputs = piece.writes if isinstance(piece, Pass) else (piece.c,)
            self.seen((), (place for place in outputs if isinstance(place, torch.Tensor)))
            called = launches.called(name, piece.name)
            flops = piece.flops if isinstance(piece, Product) else 0
            if isinstance(piece, Pass):
                chain, views, dtype = self._pass(called, piece)
            elif flops:
                chain, views, dtype = self._product(called, piece)
            else:
                continue
            # PyTorch launches nothing for empty tensors.
            if all(t.elements == 0 for t in chain.tensors.values()):
                continue
            kind = {
                "is_kernel": isinstance(piece, Product),
                "is_attention": attention,
                "known": known,
            }
            self._operators.append(
                Operator.plain(
                    called, module, phase, dtype, chain, views, product_flops=flops, **kind
                )
            )

    def _pass(self, name: str, piece: Pass[Place]) -> tuple[Chain, dict[str, View], str]:
        reads, writes = (
            [self._place(place) for place in places] for places in (piece.reads, piece.writes)
        )
        again = [(self.view(t), often) for t, often in piece.again if isinstance(t, torch.Tensor)]
        # Tensors become views, that later launches find by their storage.
        apart = [self.view(t) for t in piece.apart if isinstance(t, torch.Tensor)]
        return *streaming(name, reads, writes, piece.rows, again, apart), dtype_of(
            [*piece.writes, *piece.reads]
        )

    def _place(self, place: Place) -> View | Scratch:
        if isinstance(place, Scratch):
            return place
        if isinstance(place, Part):
            whole = self.view(place.tensor)
            return View(whole.storage, whole.offset, (place.elements,), (1,), whole.element_bytes)
        return self.view(place)

    def _product(self, name: str, piece: Product) -> tuple[Chain, dict[str, View], str]:
        # Where the operands and the result lie. A bias that is the result itself is added in place, and
        # counts as the result's own read.
        views = {"A": self.view(piece.a), "B": self.view(piece.b), "C": self.view(piece.c)}
        bias = None
        if piece.bias is not None and piece.bias is not piece.c:
            views["bias"], bias = (
                self.view(piece.bias),
                (piece.bias.numel(), piece.bias.element_size()),
            )
        size, output = piece.a.element_size(), piece.c.element_size()
        chain = product(
            name, piece.extent, size, self.profile.sm_count, bias=bias, output_bytes=output
        )
        dtype = dtype_of([piece.a])
        if dtype == "fp32" and torch.backends.cuda.matmul.allow_tf32:
            dtype = "tf32"
        return chain, views, dtype

    def kernel(
        self,
        name: str,
        problem: AttentionProblem,
        kernel: Kernel,
        chain: Chain,
        bound: Mapping[str, torch.Tensor],
        notes: tuple[str, ...] = (),
    ) -> None:
        """An attention kernel's launches, with the chain's tensors bound to PyTorch's where they are given."""
        if self.ended:
            return
        views = {n: self.view(t) for n, t in bound.items() if n in chain.tensors}
        self._operators.append(
            Operator(
                name,
                self.module(),
                self.phase(),
                problem,
                kernel,
                with_scratch(chain, views),
                views,
                is_kernel=True,
                is_attention=True,
                notes=notes,
            )
        )

    def code(
        self, name: str, call: Call, bound: Mapping[str, torch.Tensor], notes: tuple[str, ...]
    ) -> None:
        """A launch of a kernel that is known by its code, its tensors bound to PyTorch's."""
        if self.ended:
            return
        self.launched += 1
        self._forget()
        for tensor in bound.values():  # what was not seen before was made for the kernel
            self.storage(tensor, made_by=len(self._operators))
        views = {n: self.view(t) for n, t in bound.items() if n in call.chain.tensors}
        self._operators.append(
            Operator(
                name,
                self.module(),
                self.phase(),
                call.problem,
                call.kernel,
                call.chain,
                views,
                is_kernel=True,
                notes=notes,
            )
        )


def dtype_of(places: Iterable[Any]) -> str:
    for place in places:
        tensor = place.tensor if isinstance(place, Part) else place
        if isinstance(tensor, torch.Tensor) and tensor.dtype in DTYPES:
            return DTYPES[tensor.dtype]
    return "fp32"


def dtype_name(tensor: torch.Tensor) -> str:
    if tensor.dtype not in DTYPES:
        accepted = ", ".join(str(t).removeprefix("torch.") for t in DTYPES)
        raise InputError(
            f"attention of dtype {str(tensor.dtype).removeprefix('torch.')}; accepted: {accepted}"
        )
    return DTYPES[tensor.dtype]


def is_real(tensor: torch.Tensor) -> bool:
    return not (tensor.is_meta or isinstance(tensor, FakeTensor))
