"""Writes a program down operator by operator, as PyTorch would run it eagerly, and its backward after it.

A value is a matrix in memory. What an operator does backward is put aside while the forward is written, as autograd
does; the launches are those that `iosim.torch.TrafficMode` records of the same operators, and the backward of each is
its rows of `derivatives.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.launch import Role
from iosim.problem.attention import AttentionProblem
from iosim.problem.dtypes import dtype
from iosim.studies.program import launches
from iosim.studies.program.derivatives import GRAD, OUT, Step, derivatives
from iosim.studies.program.launches import Pass
from iosim.studies.program.operators import (
    Operator,
    Program,
    Storage,
    View,
    attending,
    product,
    streaming,
    with_scratch,
)

INDEX_BYTES, FLOAT_BYTES = 8, 4
FP8 = "fp8"
Gradients = Iterable[tuple[View, View]]
"""Values with what is added to their gradients."""
Backward = Callable[..., Gradients]
BackwardLaunch = Callable[[Step, Sequence[View], Sequence[View]], Sequence[View]]
"""Writes a launch of a backward: of what it reads, and whose gradients it gives, these gradients."""


@dataclass(frozen=True)
class Weight:
    """A matrix that is trained, or several below each other. `number`: bytes of a number, of several that share a scale
    their mean."""

    view: View
    number: float


class _ViewMeasure:
    """How `launches` measures a matrix in memory."""

    def elements(self, place: View) -> int:
        return math.prod(place.sizes)

    def element_bytes(self, place: View) -> int:
        return place.element_bytes

    def part(self, place: View, elements: int) -> View:
        return replace(place, sizes=(elements,), strides=(1,))

    def scratch(self, size: int) -> View:
        raise TypeError("a tape writes no scratch")


MEASURE = _ViewMeasure()


class Tape:
    """A program that is being written.

    Attributes:
        part: the part of the model that runs now.
        times: how often what is written now runs in the whole model.
        counts: the same of every operator.
        parameters: of each trained matrix how often there is one like it, its place and its gradient's.
    """

    def __init__(self, profile: HardwareProfile, kind: str, *, trained: bool) -> None:
        self.profile, self.kind, self.trained = profile, kind, trained
        self.size = dtype(kind).bytes
        self.part, self.times = "", 1
        self.counts: list[int] = []
        self.parameters: list[tuple[int, View, View]] = []
        self._phase = "forward"
        self._operators: list[Operator] = []
        self._storages: list[Storage] = []
        self._last_use: dict[int, int] = {}
        self._kept: set[int] = set()
        self._backward: list[tuple[str, int, tuple[View, ...], Backward]] = []
        self._gradients: dict[View, View] = {}
        self._in_fp8: dict[View, View] = {}

    @property
    def program(self) -> Program:
        """What has been written. A matrix is gone after its last use; parameters, gradients and results stay."""
        storages = (
            s
            # Freed one operator after the last use: a caching allocator can give its memory to the next.
            if s.made is None or n in self._kept
            else replace(s, freed=self._last_use.get(n, s.made) + 1)
            for n, s in enumerate(self._storages)
        )
        return Program(tuple(storages), tuple(self._operators))

    @property
    def given_bytes(self) -> int:
        return sum(storage.bytes for storage in self._storages if storage.made is None)

    def learn(self) -> None:
        """Write the backward of all that was written, the last first."""
        self._phase = "backward"
        # As autograd: the last operator first. A value that several operators read gets a sum of
        # gradients, one launch for each addition beyond the first.
        for part, times, outs, backward in reversed(self._backward):
            self.part, self.times = part, times
            grads = [self._gradients.pop(out, None) for out in outs]
            # An output whose gradient nobody asked for has no backward.
            if None not in grads:
                for value, gradient in backward(*grads):
                    before = self._gradients.get(value)
                    total = (
                        gradient if before is None else self.new("add", [before, gradient], value)
                    )
                    self._gradients[value] = total

    # ---- places in memory ----

    def given(
        self, rows: int, cols: int, size: int | None = None, maker: int | None = None
    ) -> View:
        """A matrix that was there before the program; or that the operator of number `made` makes."""
        element_bytes = self.size if size is None else size
        self._storages.append(Storage(rows * cols * element_bytes, maker))
        return View(len(self._storages) - 1, 0, (rows, cols), (cols, 1), element_bytes)

    def made(self, rows: int, cols: int, size: int | None = None) -> View:
        """A matrix that the next operator makes."""
        return self.given(rows, cols, size, len(self._operators))

    def like(self, value: View) -> View:
        """As `made`, of the same size."""
        return self.made(value.sizes[0], value.sizes[1], value.element_bytes)

    def weight(self, rows: int, cols: int, number: float | None = None) -> Weight:
        """A trained matrix; `number` as in `Weight`, by default that of the type."""
        if number is None or number == self.size:
            return Weight(self.given(rows, cols), self.size)
        # Numbers of fewer bytes (fp8, 4 bits with scales) are stored as bytes: so many columns of one.
        return Weight(self.given(rows, max(1, round(cols * number)), 1), number)

    def keep(self, value: View) -> None:
        """A result: its memory is not given back."""
        self._kept.add(value.storage)

    def hold(self, *values: View | None) -> None:
        """Values that a function still has a name for: their memory is not given back before now."""
        self._last_use |= {
            value.storage: len(self._operators) - 1 for value in values if value is not None
        }

    # ---- launches ----

    def passes(self, name: str, reads: Sequence[View], writes: Sequence[View]) -> None:
        """One launch that reads and writes matrices once."""
        self.run(name, Pass(reads, writes))

    def run(self, operator: str, *passes: Pass[View]) -> None:
        """The launches of an operator."""
        for piece in passes:
            name = launches.called(operator, piece.name)
            chain, views = streaming(
                name, piece.reads, piece.writes, piece.rows, piece.again, piece.apart
            )
            self._add(Operator.plain(name, (self.part,), self._phase, self.kind, chain, views))

    def ruled(self, operator: str, name: str = "", /, **places: Sequence[View]) -> None:
        """The launches of an operator that `launches.toml` has, its arguments and `out` by name; under another `name`
        where it does the same."""
        lines = launches.rules()[operator]
        bound = {**places, "*": [v for n, of in places.items() if n != "out" for v in of][1:]}
        self.run(name or operator, *launches.by_rules(lines, lambda a: bound.get(a, ()), MEASURE))

    def new(self, name: str, reads: Sequence[View], like: View) -> View:
        """What one launch makes of `reads`, as large as `like`."""
        out = self.like(like)
        self.passes(name, reads, [out])
        return out

    def _new_each(self, step: Step, reads: Sequence[View], gives: Sequence[View]) -> Sequence[View]:
        """One launch of a backward that reads and writes matrices once."""
        gradients = [self.like(place) for place in gives]
        self.passes(step.launch, reads, gradients)
        return gradients

    def _scattered(
        self, step: Step, reads: Sequence[View], gives: Sequence[View]
    ) -> Sequence[View]:
        """Zeros, and rows of a gradient put where they belong, in two launches."""
        (grad, numbers), out = reads, self.like(gives[0])
        rule = "embedding_dense_backward"
        self.ruled(rule, step.launch, grad_output=[grad], indices=[numbers], out=[out])
        return [out]

    def multiplies(
        self,
        a: View,
        b: View,
        c: View,
        sizes: tuple[int, int, int, int],
        number: float | None = None,
    ) -> View:
        """c = a b, of sizes (batch, rows, cols, inner). Where numbers of b take less memory than those of a, the kernel
        unpacks them, unless the GPU multiplies fp8: then a is rounded to that, once."""
        # fp8 weights: on a GPU that multiplies fp8 the activations are converted, once for all products
        # that read them; elsewhere the weights are unpacked inside the kernel.
        name, kind, size = "mm" if sizes[0] == 1 else "bmm", self.kind, self.size
        if number == 1 and size > 1 and FP8 in self.profile.tensor_flops_per_s:
            if a not in self._in_fp8:
                copy = self._in_fp8[a] = self.made(a.sizes[0], a.sizes[1], 1)
                self.passes("_to_copy", [a], [copy])
            a, kind, size = self._in_fp8[a], FP8, 1
        chain = product(name, sizes, size, self.profile.sm_count, output_bytes=c.element_bytes)
        # Weights as they lie in memory: fewer columns of the activations' type.
        whole = chain.tensors["B"]
        packed = replace(whole, cols=max(1, round(whole.cols * (number or size) / size)))
        chain = replace(chain, tensors={**chain.tensors, "B": packed})
        views, flops = {"A": a, "B": b, "C": c}, 2 * math.prod(sizes)
        place = (self.part,), self._phase
        self._add(
            Operator.plain(name, *place, kind, chain, views, is_kernel=True, product_flops=flops)
        )
        return c

    def _add(self, operator: Operator) -> None:
        self._last_use |= {view.storage: len(self._operators) for view in operator.views.values()}
        self._operators.append(operator)
        self.counts.append(self.times)

    # ---- gradients ----

    def backward(self, run: Backward, *outs: View) -> None:
        """What the operator that was just written does with the gradients of its results."""
        if self.trained:
            self._backward.append((self.part, self.times, outs, run))

    def derived(
        self,
        operator: str,
        operands: Mapping[str, View],
        out: View,
        launch: BackwardLaunch | None = None,
        *,
        parameters: Container[str] = (),
    ) -> View:
        """Put aside what an operator of `derivatives.toml` does with the gradient of `out`, its operands by name; those
        of `parameters` are trained. `launch` writes its launches where they are no passes."""

        def back(grad: View) -> Gradients:
            places, gradients = {**operands, OUT: out, GRAD: grad}, list[tuple[View, View]]()
            for step in derivatives()[operator]:
                reads = [places[name] for name in step.reads if name in places]
                names = [name for name in step.gives if name in operands]
                gives = [operands[name] for name in names]
                made = (launch or self._new_each)(step, reads, gives) if step.launch else [grad]
                for name, gradient in zip(names, made, strict=True):
                    if name in parameters:
                        self.trains(operands[name], gradient)
                    else:
                        gradients.append((operands[name], gradient))
            return gradients

        self.backward(back, out)
        return out

    def trains(self, parameter: View, gradient: View) -> None:
        """A parameter's gradient has been written; of one that is used twice they are added up."""
        before = next((grad for _, place, grad in self.parameters if place == parameter), None)
        if before is not None:
            self.passes("add_", [before, gradient], [before])
            return
        self.keep(gradient)
        self.parameters.append((self.times, parameter, gradient))

    # ---- operators ----

    def linear(self, x: View, weight: Weight, cols: int, groups: int = 1) -> View:
        (rows, inner), place = x.sizes, weight.view
        group_rows = -(-rows // groups)
        out = self.made(rows, cols)
        self.multiplies(x, place, out, (groups, group_rows, cols, inner), weight.number)

        def launch(step: Step, reads: Sequence[View], gives: Sequence[View]) -> Sequence[View]:
            # The weight's gradient sums over the rows, the input's over the columns.
            (gradient_of,) = gives
            weights = gradient_of is place
            sizes = (cols, inner, group_rows) if weights else (group_rows, inner, cols)
            grad, other = reads
            return [self.multiplies(grad, other, self.like(gradient_of), (groups, *sizes))]

        return self.derived("mm", {"x": x, "weight": place}, out, launch, parameters=("weight",))

    def norm(self, x: View) -> View:
        scale, out, root = (
            self.given(1, x.sizes[1]),
            self.like(x),
            self.made(x.sizes[0], 1, FLOAT_BYTES),
        )

        def launch(step: Step, reads: Sequence[View], gives: Sequence[View]) -> Sequence[View]:
            gradient = self.like(gives[0])
            made = (
                launches.norm_backward_input(reads, gradient, [root])
                if step.launch == "input"
                else launches.norm_backward_weight(reads, [gradient])
            )
            self.run("_fused_rms_norm_backward", made)
            return [gradient]

        self.run("_fused_rms_norm", launches.norm([x, scale], out, [root]))
        operands = {"x": x, "rstd": root, "scale": scale}
        return self.derived("norm", operands, out, launch, parameters=("scale",))

    def add(self, x: View, y: View) -> View:
        return self.derived("add", {"x": x, "other": y}, self.new("add", [x, y], x))

    def multiply(self, x: View, y: View, *, constant: bool = False) -> View:
        """x times y, which is a table that is not trained where it is `constant`."""
        operator = "scale" if constant else "mul"
        return self.derived(operator, {"x": x, "other": y}, self.new("mul", [x, y], x))

    def pointwise(self, operator: str, x: View) -> View:
        """An operator of one operand: an activation, a sign."""
        return self.derived(operator, {"x": x}, self.new(operator, [x], x))

    def turn(self, x: View, cosine: View, sine: View) -> View:
        """Rotary positions over the columns of x: x cos + turned(x) sin, written out."""
        straight = self.multiply(x, cosine, constant=True)
        # rotate_half of transformers: (-x2, x1), in four launches beside the two products and the sum.
        first, second = self.split(x, (x.sizes[1] // 2, x.sizes[1] - x.sizes[1] // 2))
        negative = self.pointwise("neg", second)
        return self.add(straight, self.multiply(self.join(negative, first), sine, constant=True))

    def split(self, x: View, widths: Sequence[int]) -> list[View]:
        """Views of x's columns, side by side; their gradients are put together in a launch."""
        starts = (sum(widths[:n]) for n in range(len(widths)))
        parts = [_columns(x, start, width) for start, width in zip(starts, widths, strict=True)]
        self.backward(lambda *grads: [(x, self.new("cat", grads, x))], *parts)
        return parts

    def join(self, x: View, y: View) -> View:
        """x and y side by side; y's rows, where they are fewer, stand beside several of x's."""

        def back(grad: View) -> Gradients:
            first, second = _columns(grad, 0, x.sizes[1]), _columns(grad, x.sizes[1], y.sizes[1])
            return [
                (x, first),
                # A row of y that stood beside several of x gets the sum of their gradients.
                (y, second if y.sizes[0] == x.sizes[0] else self.new("sum", [second], y)),
            ]

        out = self.made(x.sizes[0], x.sizes[1] + y.sizes[1])
        self.passes("cat", [x, y], [out])
        self.backward(back, out)
        return out

    def reshape(self, x: View, rows: int, *, copied: bool = False) -> View:
        """A matrix that lies in one piece, as so many rows; its gradient is `copied` where it lies otherwise."""
        cols = math.prod(x.sizes) // rows
        out = replace(x, sizes=(rows, cols), strides=(cols, 1))
        shape = {"sizes": x.sizes, "strides": (x.sizes[1], 1)}
        if out != x:
            self.backward(
                lambda grad: [
                    (x, self.new("clone", [grad], x) if copied else replace(grad, **shape))
                ],
                out,
            )
        return out

    def gather(self, x: View, rows: int) -> View:
        """So many rows of x, by their numbers."""
        numbers, out = self.given(rows, 1, INDEX_BYTES), self.made(rows, x.sizes[1])
        self.ruled("index", self=[x], indices=[numbers], out=[out])
        return self.derived("index", {"x": x, "indices": numbers}, out, self._scattered)

    def pick(self, x: View, count: int) -> View:
        """The largest `count` numbers of every row."""
        out, numbers = self.made(x.sizes[0], count), self.made(x.sizes[0], count, INDEX_BYTES)
        self.ruled("topk", self=[x], out=[out, numbers])
        return self.derived("topk", {"x": x, "indices": numbers}, out, self._scattered)

    def add_up(self, x: View, rows: int) -> View:
        out = self.made(rows, x.sizes[1])
        self.passes("sum", [x], [out])
        return self.derived("sum", {"x": x}, out)

    def embedding(self, table: Weight, tokens: int) -> View:
        place, numbers = table.view, self.given(tokens, 1, INDEX_BYTES)
        out = self.made(tokens, place.sizes[1])
        self.ruled("embedding", weight=[place], indices=[numbers], out=[out])
        operands = {"weight": place, "indices": numbers}
        return self.derived("embedding", operands, out, self._scattered, parameters=("weight",))

    def attention(
        self, problem: AttentionProblem, kernel: str, q: View, k: View, v: View | None
    ) -> View:
        """One call, its inputs where they lie. Raises InputError: the kernel cannot run it on the GPU."""
        out = self.made(problem.batch * problem.seq_q, problem.heads * problem.head_dim_v)
        rows = self.made(problem.batch * problem.heads, problem.seq_q, FLOAT_BYTES)
        bound = {"Q": q, "K": k, "O": out, "LSE": rows} | ({} if v is None else {"V": v})
        self._attends("attention", problem, kernel, bound)

        def launch(step: Step, reads: Sequence[View], gives: Sequence[View]) -> Sequence[View]:
            gradients = [self.like(place) for place in gives]
            of = {"dO": reads[0]} | {f"d{n}": g for n, g in zip("QKV", gradients, strict=True)}
            self._attends(step.launch, problem.with_(passes="bwd"), kernel, {**bound, **of})
            return gradients

        # What its launches read is said by the kernel's chain.
        operands = {n.lower(): bound[n] for n in "QKV" if n in bound}
        return self.derived("attention", operands, out, launch)

    def _attends(
        self, name: str, problem: AttentionProblem, kernel: str, bound: dict[str, View]
    ) -> None:
        note = ""
        # Forward the chosen kernel must run; for a backward without a model another kernel stands in.
        if problem.passes == "fwd":
            chosen = resolve(kernel, problem, self.profile)
            chosen = chosen.with_(writes_lse=chosen.writes_lse or self.trained)
        else:
            chosen, note = attending(problem, kernel, self.profile, wants_lse=False)
        chain = plan(problem, chosen)
        views = {n: view for n, view in bound.items() if n in chain.tensors}
        views |= {
            n: self.given(t.batch * t.heads * t.rows, t.cols, t.element_bytes)
            for n, t in chain.tensors.items()
            if t.role is Role.INPUT and n not in views
        }
        self._add(
            Operator(
                name,
                (self.part,),
                self._phase,
                problem,
                chosen,
                with_scratch(chain, views),
                views,
                is_kernel=True,
                is_attention=True,
                notes=(note,) if note else (),
            )
        )

    def cross_entropy(self, scores: View) -> None:
        """The loss of scores, a row per token, in their own type."""
        rows, row_bytes = scores.sizes[0], scores.sizes[1] * scores.element_bytes
        target, chances = self.given(rows, 1, INDEX_BYTES), self.like(scores)
        reads = launches.SOFTMAX_READS
        self.run("_log_softmax", launches.softmax([scores], chances, rows, row_bytes, reads))
        loss, weight = self.made(1, 1), self.made(1, 1)
        self.ruled("nll_loss_forward", self=[chances], target=[target], out=[loss, weight])

        def launch(step: Step, reads: Sequence[View], gives: Sequence[View]) -> Sequence[View]:
            gradient = self.like(gives[0])
            if step.launch == "nll_loss_backward":
                self.ruled(step.launch, grad_output=[reads[0]], target=[reads[1]], out=[gradient])
            else:
                times = launches.SOFTMAX_BACKWARD_READS
                self.run(step.launch, launches.softmax(reads, gradient, rows, row_bytes, times))
            return [gradient]

        self.derived("_log_softmax", {"x": scores}, chances, launch)
        self.derived("nll_loss", {"x": chances, "target": target}, loss, launch)
        # The loss's own gradient is a number as it is.
        self._gradients[loss] = loss

    def step(self) -> None:
        self.part = "optimizer"
        # One fused launch for all parameters that occur equally often in the model.
        for times in dict.fromkeys(times for times, *_ in self.parameters):
            self.times = times
            both = [(place, grad) for n, place, grad in self.parameters if n == times]
            states = [self.given(*place.sizes) for place, _ in both for _ in range(2)]
            places = [place for place, _ in both]
            self.passes(
                "_fused_adamw_", [*places, *(grad for _, grad in both), *states], [*places, *states]
            )


def every(x: View, step: int) -> View:
    """The last of every `step` rows of a matrix."""
    (rows, cols), (stride, _) = x.sizes, x.strides
    return View(
        x.storage,
        x.offset + (step - 1) * stride,
        (rows // step, cols),
        (step * stride, 1),
        x.element_bytes,
    )


def _columns(x: View, start: int, width: int) -> View:
    return replace(x, offset=x.offset + start, sizes=(x.sizes[0], width))
