"""The latency of one attention call inside a serving stack, as a list of parts.

A stack (`iosim.catalog.serving`) says which kernel a GPU runs, in which pages the cache lies, whether the call writes
to it first, and what else it launches. The launches are predicted as anywhere else, from a CUDA graph and with what the
same call left in the L2; what none of them explains is the gap between calls, a constant of the stack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, plain, replace
from iosim.base.units import length_text, seconds_text, some
from iosim.base.words import sentences
from iosim.catalog.algorithms.common import load, store
from iosim.catalog.libraries import resolve, with_sinks
from iosim.catalog.serving import Stack, read_stack, stack_names
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.conditions import CONDITIONS, Conditions
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain, Domain, Launch, LaunchRole, Outer, Per, Role, Rows, Tensor
from iosim.kernel.overrides import Overrides
from iosim.kernel.work import Work
from iosim.prediction.call import Call
from iosim.prediction.confidence import basis, confidence, in_dtype
from iosim.prediction.many import Request, predict_many
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.show.page import Page, Panel, Section, listed
from iosim.show.parts import colours_of, legend_of, part_bars
from iosim.show.shown import Part as ShownPart
from iosim.show.shown import Several
from iosim.show.tables import Column, Table
from iosim.studies.decode.decode import read_contexts
from iosim.studies.latency.calibration import Calibration, read_calibration
from iosim.studies.models.asked import chosen, layer_problems
from iosim.studies.models.layers import Layers
from iosim.studies.requests import LatencyRequest

ROWS_A_CTA = 128
MOST_LINES = 4
"""Lines of the answer that stand above the figure of its page."""
REORDER_WAITS = 8
"""Loads that a thread of a copy to other places waits for, one behind the other: its four values, and what says where
they go. Fitted on open rows of published_stacks.csv, FlashAttention-2."""
REORDERING = Work(operations_per_value=79, thread_loads=REORDER_WAITS)
"""Work of such a copy, with the instructions of FlashAttention-2's own (fa2.toml)."""


@dataclass(frozen=True)
class Part:
    name: str
    kind: str
    """attention, combine, write, extra or gap."""
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class Latency:
    """One call in one stack on one GPU."""

    stack: Stack
    prediction: Prediction
    parts: tuple[Part, ...]
    calibration: Calibration | None = None
    layers: Layers | None = None
    """The layers of a model that make such a call, where a model was asked for."""

    @property
    def total_s(self) -> float:
        return math.fsum(part.seconds for part in self.parts)

    @property
    def title(self) -> str:
        """Stack, GPU and sizes in two lines, for a figure."""
        problem = self.prediction.problem
        layers = "" if self.layers is None else f", {self.layers.name}"
        sizes = f"{problem.batch} x {length_text(problem.longest_k)}"
        return f"{self.stack.name}, {self.prediction.profile.name}<br>{sizes}{layers}"

    @property
    def launches(self) -> int:
        """Launches of the call."""
        return sum(part.kind != "gap" for part in self.parts)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the time rests on, a sentence each."""
        p, problem = self.prediction, self.prediction.problem
        kinds = {part.kind for part in self.parts}
        how = "from a CUDA graph" if "gap" in kinds else "one by one, without the host"
        written = "first writes the new tokens' K and V" if "write" in kinds else "writes nothing"
        pages, splits = some(problem.page_size or 0, "token"), some(p.kernel.splits, "split")
        sentences = [
            f"{self.stack.title}, {self.stack.version}: kernel {p.kernel.name}, pages of {pages}, {splits}; a call "
            f"{written} to the cache",
            f"launched {how}, the L2 {p.l2_start}",
            *self.stack.assumed_of(problem, p.kernel),
        ]
        if problem.seq_lens is not None:
            sentences.append(
                "splits of different lengths are as long as the longest sequence's; the block table is not counted"
            )
        return tuple(sentences)

    @property
    def row(self) -> dict[str, Any]:
        """Which call it is, and where."""
        p = self.prediction
        return (
            of_layers(self.layers)
            | {"stack": self.stack.name}
            | plain(gpu=p.profile.name, kernel=p.kernel.name, splits=p.kernel.splits)
            | sizes_of(p.problem)
        )

    def to_dict(self) -> dict[str, Any]:
        p = self.prediction
        head = {"stack": self.stack.name} | plain(
            profile=p.profile.name, kernel=p.kernel.name, splits=p.kernel.splits
        )
        took = {
            "time_s": self.total_s,
            "bound_by": p.time.bound_by,
            "calibrated": self.calibration is not None,
        }
        took |= {
            "parts": [
                plain(name=part.name, kind=part.kind, time_s=part.seconds, why=part.why)
                for part in self.parts
            ]
        }
        rest = plain(l2_start=p.l2_start, method=p.method, problem=p.problem) | {
            "assumes": list(self.assumes),
            "notes": list(p.notes),
        }
        return of_layers(self.layers) | head | took | rest


@dataclass(frozen=True)
class AllLayers:
    """A call of each kind of a model's layers."""

    calls: tuple[tuple[Latency, Layers], ...]

    @property
    def total_s(self) -> float:
        return math.fsum(p.total_s * layers.count for p, layers in self.calls)

    @property
    def count(self) -> int:
        return sum(layers.count for _, layers in self.calls)

    def to_dict(self) -> dict[str, Any]:
        (first, of), sizes = self.calls[0], [sizes_of(p.prediction.problem) for p, _ in self.calls]
        document = {"model": of.title} | plain(
            stack=first.stack.name, profile=first.prediction.profile.name
        )
        document |= {"layers": self.count, "batch": sizes[0]["batch"], "seq_q": sizes[0]["seq_q"]}
        return document | {"seq_k": max(size["seq_k"] for size in sizes), "time_s": self.total_s}


def of_layers(layers: Layers | None) -> dict[str, Any]:
    return (
        {}
        if layers is None
        else {"model": layers.title, "layer": layers.name, "count": layers.count}
    )


def sizes_of(problem: AttentionProblem) -> dict[str, Any]:
    sequences = problem.sequences
    return {
        "batch": len(sequences),
        "heads": problem.heads,
        "kv_heads": problem.kv_heads,
        "seq_q": problem.longest_q,
        "seq_k": max(k for _, k in sequences),
        "head_dim": problem.head_dim,
    }


def latencies(
    problems: Sequence[tuple[Layers | None, AttentionProblem]],
    request: LatencyRequest,
    calibration: Calibration | None = None,
) -> tuple[Latency, ...]:
    """Every problem, with the layers of a model that it is of, in every stack on every GPU of a request, under its
    conditions; a `calibration` of that stack and GPU stands in place of the shipped constants. Raises InputError: an
    unknown stack, a GPU that it has no kernel for, or a problem that the kernel cannot run."""
    r = request
    profiles = list(map(load_profile, r.gpu))
    calls = [
        (read_stack(name), profile, *item)
        for name in r.stack
        for profile in profiles
        for item in problems
    ]
    how: dict[str, Any] = {name: getattr(r, name) for name in CONDITIONS}
    requests = []
    for stack, profile, layers, stated in calls:
        # The stack decides pages, kernel and whether the kernel writes to the cache by itself. A batch of
        # different lengths is written by a launch of its own, added in `latency_of`.
        problem = in_pages(stated, stack)
        if layers is not None and layers.sinks:
            problem = with_sinks(problem, stack.kernel(profile))
        writes = (
            r.cache_write
            and stack.append_kv
            and problem.seq_lens is None
            and _has_new_keys(problem)
        )
        requests.append(
            Request(problem, stack.kernel(profile), profile, Overrides(append_kv=writes), **how)
        )
    outcomes = zip(calls, predict_many(requests), strict=True)
    return tuple(
        replace(
            latency_of(stack, item, r.cache_write and stack.append_kv, r.launched, calibration),
            layers=layers,
        )
        for (stack, _, layers, _), item in outcomes
    )


def in_pages(problem: AttentionProblem, stack: Stack) -> AttentionProblem:
    """The problem with the stack's pages, where it names none. Raises InputError: a backward pass."""
    if problem.passes != "fwd":
        raise InputError(
            f"`passes` {problem.passes}: a serving stack runs no backward; accepted: fwd"
        )
    return problem if problem.page_size is not None else problem.with_(page_size=stack.page_size)


def _has_new_keys(problem: AttentionProblem) -> bool:
    return all(q <= k for q, k in problem.sequences)


def latency_of(
    stack: Stack,
    prediction: Prediction,
    write: bool = True,
    launched: str = "graph",
    calibration: Calibration | None = None,
) -> Latency:
    """What a serving stack's attention call takes, part by part, in seconds: the write of new keys and values to the
    cache, attention and the combination of its splits, the stack's other launches, and the gap between calls.

    Args:
        write: the call writes new keys and values to the cache.
        launched: "graph" or "stream", as a prediction's `launched`.
        calibration: constants fitted to times of the user's own; by default those fitted to published times.
    """
    problem, kernel, profile = prediction.problem, prediction.kernel, prediction.profile
    constants = calibration or Calibration(stack.call_gap_s)
    decodes = problem.longest_q == 1
    main, appends = prediction.times_of(LaunchRole.MAIN), prediction.times_of(LaunchRole.APPEND)
    writes_s = [launch.total_s for launch in appends]
    # Predicted as a write of as many sequences of one token: the kernel's own append takes no packed lengths.
    if write and problem.seq_lens is not None and _has_new_keys(problem):
        writes_s.insert(0, _written_s(problem, kernel, profile, launched))
    new_tokens = some(sum(q for q, _ in problem.sequences), "new token")
    parts = [
        Part("write to the cache", "write", seconds * constants.write_factor, new_tokens)
        for seconds in writes_s
    ]
    # Launches in their order: the attention itself, or what combines its splits. Appends are among the writes above.
    for launch in prediction.time.launches:
        if launch in main:
            seconds = constants.attention_s(launch.total_s, launch.seconds.get("hbm", 0.0), decodes)
            parts.append(Part("attention", "attention", seconds, f"bound by {launch.bound_by}"))
        elif launch not in appends:
            seconds = constants.attention_s(launch.total_s, 0.0, decodes)
            parts.append(
                Part(f"{launch.name} of {some(kernel.splits, 'split')}", "combine", seconds)
            )
    for extra in stack.extras:
        if extra.is_launched(problem, kernel, profile):
            work = REORDERING if extra.reorders(problem) else Work()
            seconds = _extra_s(extra.bytes_moved(problem), work, prediction, launched)
            parts.append(Part(extra.name, "extra", seconds, extra.source))
    # Between calls of a CUDA graph the GPU waits; one by one the host's waits are not predicted.
    if launched == "graph":
        parts.append(
            Part(
                "gap between calls",
                "gap",
                constants.call_gap_s,
                "calibrated" if calibration else "fitted",
            )
        )
    return Latency(stack, prediction, tuple(parts), calibration)


def _written_s(
    problem: AttentionProblem, kernel: Kernel, profile: HardwareProfile, launched: str
) -> float:
    """Seconds of the write of a batch of different lengths: as of as many sequences of one new token."""
    tokens = sum(q for q, _ in problem.sequences)
    single_tokens = problem.with_(
        seq_lens=None, seq_lens_k=None, batch=tokens, seq_q=1, seq_k=1, mask="none"
    )
    writer = resolve(kernel.name, single_tokens, profile, Overrides(append_kv=True))
    call = Call.of(single_tokens, writer, profile)
    first = next(
        n for n, launch in enumerate(call.chain.launches) if launch.role is LaunchRole.APPEND
    )
    warm = Conditions(l2_start="warm", launched=launched)
    return call.time(call.counted + call.capacity("warm"), warm).launches[first].total_s


def _extra_s(moved_bytes: int, work: Work, prediction: Prediction, launched: str) -> float:
    """Seconds of a small launch that reads and writes half of `moved` bytes each, which the L2 has."""
    problem, kernel, profile = prediction.problem, prediction.kernel, prediction.profile
    rows = max(1, moved_bytes // 2 // (problem.head_dim_v * problem.output_type.bytes))
    # A pass over the rows of the output, in the L2 from the launch before: nothing reaches HBM.
    accesses = (
        (load("O_rows", Rows.QUERY, Per.QUERY), store("O", Rows.QUERY, Per.QUERY))
        if moved_bytes
        else ()
    )
    sizes = (1, 1, rows, problem.head_dim_v, problem.output_type.bytes, Role.TEMP)
    tensors = {access.tensor: Tensor(access.tensor, *sizes) for access in accesses}
    # Twice in a chain, the second one timed: the first pays what only the first launch pays.
    launch = Launch("extra", Domain(1, 1, rows, 1, ROWS_A_CTA, 1), Outer.FLAT, accesses, work=work)
    call = Call.of(problem, kernel, profile, Chain(tensors, (launch, launch), ()))
    return (
        call.time(call.counted, Conditions(l2_start="warm", launched=launched)).launches[1].total_s
    )


def _in_lines(start: str, clauses: Sequence[str], sure: str) -> str:
    """One sentence of one clause, else a line for each."""
    if len(clauses) == 1:
        return sentences([f"{start} {clauses[0]}", sure])
    return "\n".join([f"{start}:", *(f"{clause}." for clause in clauses), f"{sure}."])


MASKED = ("mask", "causal", "window", "window_right", "mask_file", "mask_blocks")
LENGTHS = ("batch", "seq_q", "seq_k", "seq_lens", "seq_lens_k", "prefix")
COLUMNS = (
    Column("stack"),
    Column("gpu"),
    Column("kernel"),
    Column("batch", kind="count"),
    Column("seq_q", "new tokens", kind="count"),
    Column("seq_k", "keys", kind="count"),
    Column("part"),
    Column("time_s", "time"),
    Column("share"),
)
MODEL_COLUMNS = (
    Column("stack"),
    Column("gpu"),
    Column("layer"),
    Column("layers", kind="count"),
    Column("time_s", "time of a step"),
    Column("share"),
)


@dataclass(frozen=True, repr=False)
class Latencies(Several[Latency]):
    """Calls in serving stacks, for every stack, GPU and problem asked for."""

    points: tuple[Latency, ...]
    """A point per stack, GPU and problem, in the order of the request."""

    @property
    def _members(self) -> tuple[Latency, ...]:
        return self.points

    @property
    def models(self) -> tuple[AllLayers, ...]:
        """All layers of a model together, for every stack, GPU and length; none without a model."""
        steps: list[list[tuple[Latency, Layers]]] = []
        for p, layers in [(p, p.layers) for p in self.points if p.layers is not None]:
            # Points come kind by kind: a kind that is there already begins the next step.
            if not steps or layers.name in {before.name for _, before in steps[-1]}:
                steps.append([])
            steps[-1].append((p, layers))
        return tuple(AllLayers(tuple(step)) for step in steps)

    @property
    def answer(self) -> str:
        """What a call takes by stack, GPU and problem; of many, the longest call alone, or of all layers of a model at
        the length that takes longest."""
        if self.models:
            longest_step = max(self.models, key=lambda step: step.total_s)
            size = {key: longest_step.to_dict()[key] for key in ("seq_k", "batch")}
            alike = [m for m in self.models if size.items() <= m.to_dict().items()]
            clauses_of_models = (
                f"{seconds_text(m.total_s)} in {m.calls[0][0].stack.name} on {m.to_dict()['profile']}"
                for m in alike
            )
            dtype = in_dtype(longest_step.calls[0][0].prediction.problem)
            of = f"all {some(longest_step.count, 'layer')} of {longest_step.calls[0][1].title}{dtype}"
            sure = confidence([p.prediction for m in alike for p, _ in m.calls])
            return _in_lines(f"The attention of {of} takes", list(clauses_of_models), sure)
        longest = max(self, key=lambda p: p.total_s).prediction.problem
        here = [p for p in self if p.prediction.problem.sequences == longest.sequences]
        clauses = []
        for p in here:
            longest_part = max(p.parts, key=lambda part: part.seconds)
            share = f"{100 * longest_part.seconds / p.total_s:.0f} % {longest_part.name}"
            clauses.append(
                f"{seconds_text(p.total_s)} in {p.stack.name} on {p.prediction.profile.name} ({share})"
            )
        return _in_lines(
            f"An attention call{in_dtype(longest)} takes",
            clauses,
            confidence([p.prediction for p in here]),
        )

    def to_dict(self) -> dict[str, Any]:
        together = {"models": [step.to_dict() for step in self.models]} if self.models else {}
        return {"schema": 1, "latencies": [p.to_dict() for p in self.points]} | together

    def records(self) -> list[dict[str, Any]]:
        """A row per part of a call: its seconds, and those of the call."""
        of_parts = ((p, part) for p in self.points for part in p.parts)
        return [
            p.row | {"part": part.name, "time_s": part.seconds, "call_s": p.total_s}
            for p, part in of_parts
        ]

    def to_text(self) -> str:
        below = "".join(f"note: {n}\n" for n in notes(self.points))
        together = f"\nBy kind of layer\n{of_models(self.models).text()}\n" if self.models else ""
        return f"{self.answer}\n\n{parts_table(self.points).text()}{together}{below}"

    def as_page(self, command: str = "iosim latency") -> Page:
        """The page: bars of the calls' parts, and the table."""
        names = list(self._colours())
        caption = "Seconds of a call, from the first launch to the end of the last."
        legend, lines = legend_of(self._colours(), names), self.answer.split("\n")
        problems = dict.fromkeys(p.prediction.problem.line for p in self)
        return Page(
            "How long does an attention call take while serving?",
            f"{'; '.join(problems)}.",
            (
                Section("calls", "What a call is made of", (caption,), legend, self._panels()),
                Section("parts", "Parts", table=parts_table(self.points), folded=True),
                *listed("notes", "Notes", notes(self.points), folded=True),
            ),
            command=command,
            answer=tuple(lines),
            verdict=(" ".join(lines[:MOST_LINES]),),
        )

    def _colours(self) -> dict[str, str]:
        return colours_of(part.name for p in self for part in p.parts)

    def _panels(self) -> tuple[Panel, ...]:
        calls: dict[str, dict[str, float]] = {}
        for p in self:
            call = calls.setdefault(p.title, {})
            for part in p.parts:
                call[part.name] = call.get(part.name, 0.0) + part.seconds
        return (part_bars("calls", "Time of a call by part", calls, self._colours(), seconds_text),)

    def _line(self) -> str:
        names = ", ".join(dict.fromkeys(p.stack.name for p in self))
        return (
            f"{names}; {some(len(self), 'call')} up to {seconds_text(max(p.total_s for p in self))}"
        )

    def _parts(self) -> list[ShownPart]:
        together = [of_models(self.models)] if self.models else []
        return [*self.answer.split("\n"), parts_table(self.points), *together, notes(self.points)]


def run_latency(request: LatencyRequest) -> Latencies:
    """Every problem, of a model one for each kind of its layers, in every stack on every GPU."""
    r, constants = request, None
    if r.calibration is not None:
        if len(r.stack) != 1 or len(r.gpu) != 1:
            raise InputError(
                "`calibration` is of one stack on one GPU; accepted with it: one `stack` and one `gpu`"
            )
        constants = read_calibration(r.calibration, r.stack[0], load_profile(r.gpu[0]).name)
    return Latencies(latencies(asked_problems(r), r, constants))


def asked_problems(r: LatencyRequest) -> list[tuple[Layers | None, AttentionProblem]]:
    """The problems of a request, each with the layers of a model that make it: causal where no mask is named;
    `batch_contexts` makes one of a step of all its sequences. Raises InputError: other lengths or a model beside
    `batch_contexts`, or values that make no sense."""
    if r.problems is not None:
        return [(None, problem) for problem in r.problems]
    if r.model is not None and r.batch_contexts is not None:
        raise InputError(
            "`batch_contexts` contradicts `model`; accepted with it: `batch`, `seq_q` and `seq_k`"
        )
    model = chosen(r.model, r.values, r.layers, r.tensor_parallel)
    values = dict(r.values)
    if r.batch_contexts is not None:
        lengths = {name: values.pop(name, None) for name in LENGTHS}
        beside = {name: value for name, value in lengths.items() if value not in (None, 1, [1])}
        keys = read_contexts(r.batch_contexts, beside)
        # One query token per sequence sees its whole cache: no mask is needed.
        values |= {"mask": "none", "seq_lens": (1,) * len(keys), "seq_lens_k": tuple(keys)}
    if model is None and all(values.get(name) in (None, False) for name in MASKED):
        values["causal"] = True
    return layer_problems(model, values)


def stack_rows() -> list[dict[str, Any]]:
    """A row per stack: its kernels by compute capability, pages, and what else a call launches."""
    rows = []
    for stack in map(read_stack, stack_names()):
        kernels = [
            f"{name} ({', '.join(f'{cc / 10:.1f}' for cc in ccs)})" for name, ccs in stack.kernels
        ]
        more = {"kernels": kernels, "extras": [extra.name for extra in stack.extras]}
        rows.append(
            plain(
                name=stack.name, title=stack.title, version=stack.version, page_size=stack.page_size
            )
            | more
            | plain(call_gap_s=stack.call_gap_s, source=stack.source)
        )
    return rows


def parts_table(points: Sequence[Latency]) -> Table:
    """A row per part, and one per call."""
    rows = []
    for p in points:
        for name, seconds in (
            *((part.name, part.seconds) for part in p.parts),
            ("whole call", p.total_s),
        ):
            rows.append(
                p.row
                | {"part": name, "time_s": seconds, "share": f"{100 * seconds / p.total_s:.0f} %"}
            )
    return Table.of(rows, COLUMNS)


def of_models(models: Sequence[AllLayers]) -> Table:
    """A row for each kind of a model's layers, and one for all of them."""
    rows = []
    for step in models:
        for p, layers in step.calls:
            head = (p.stack.name, p.prediction.profile.name)
            seconds = p.total_s * layers.count
            rows.append(
                (*head, layers.name, layers.count, seconds, f"{100 * seconds / step.total_s:.0f} %")
            )
        rows.append((*head, "all", step.count, step.total_s, "100 %"))
    return Table(MODEL_COLUMNS, tuple(rows))


def notes(points: Sequence[Latency]) -> tuple[str, ...]:
    lines = dict.fromkeys(f"assumed: {sentence}" for p in points for sentence in p.assumes)
    if any(p.layers is not None and p.prediction.l2_start == "warm" for p in points):
        lines[
            "each layer finds in the L2 what its own call left there; --l2 cold: nothing of it is left"
        ] = None
    of_kernels = dict.fromkeys(note for p in points for note in p.prediction.kernel.notes)
    missing = dict.fromkeys(note for p in points for note in p.prediction.time.missing)
    return (*lines, *of_kernels, *missing, *basis([p.prediction for p in points]))
