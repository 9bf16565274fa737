"""Whole models: what every part of a prefill, a step of decoding or of training moves at HBM and takes, and attention's
share of both. Several models stand side by side.

`decoder` writes what a model runs, `iosim.studies.program` plays it, as it plays what TrafficMode records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.fields import whole as within
from iosim.base.progress import Progress, silent
from iosim.base.records import asdict, cached_property, dataclass, plain, replace
from iosim.base.units import bytes_text, digits_text, seconds_text, some
from iosim.catalog.libraries import in_model
from iosim.hardware.profile import load_profile
from iosim.problem.asked import found_to_fit, lengths
from iosim.problem.fields import MAX_TOKENS
from iosim.show.page import Page, Panel, Section, listed
from iosim.show.parts import colours_of, legend_of, part_bars
from iosim.show.shown import Part, Several, panels_of
from iosim.show.tables import Cell, Column, Marked, Table, grouped
from iosim.studies.models.asked import changed
from iosim.studies.models.budget import longest_context, prices_of
from iosim.studies.models.decoder import Touched, Work, Writer, touched, weights_of
from iosim.studies.models.layers import Model
from iosim.studies.program.result import SUMMED, OperatorTraffic, ProgramTraffic, traffic_of
from iosim.studies.requests import WholeRequest

PREFILL, DECODE, TRAINING = "prefill", "decode", "training"
SUBJECTS = {PREFILL: "A prefill", DECODE: "A step of decoding", TRAINING: "A step of training"}
HELD = {
    "measured": "whole models were counted on that GPU",
    "public counters": "backed by public counters",
    "public times": "backed by public times",
    "nothing": "backed by nothing",
}
"""What a GPU is backed by, in a few words."""
USUAL = 4096
"""Tokens where nothing else is asked for."""
TYPES = ("bf16", "fp16", "fp32")
PARTS = (
    "embedding",
    "norms",
    "projections",
    "positions",
    "cache",
    "attention",
    "residual",
    "MLP",
    "router",
    "experts",
    "shared experts",
    "head",
    "loss",
    "optimizer",
)
NOTES = (
    "operators as eager PyTorch runs them and iosim.torch.TrafficMode counts them: each reads its inputs and writes "
    "its outputs, through one L2 that begins empty; RMSNorm is one launch",
    "positions, the MLP's activation, and the sum before a norm are one launch each, as in serving stacks; each launch "
    "reads its inputs and writes its outputs, through one L2 that begins empty",
)
OF_TIMES = (
    "time is the sum of the kernels'; waits for the host are no part of it. Biases are not counted. Of layers that are "
    "alike the first few are played, and the last of them stands for the others"
)
OF_PHASES = {
    PREFILL: "the head of a prefill makes the scores of each sequence's last token alone",
    TRAINING: "training: gradients and two states of AdamW in the weights' type, a fused step; nothing is recomputed",
}
WHOLE = "whole model"
BESIDE = (
    Column("hbm_bytes", "HBM"),
    *(column for column in SUMMED if column.key in ("hbm_share", "time_s", "time_share")),
)
DRAWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("time_s", "Time by part", seconds_text),
    ("hbm_bytes", "Bytes at HBM by part", bytes_text),
)
TITLE = "What does a whole model move, and what part of it is attention?"


SECONDS_AN_HOUR = 3600


@dataclass(frozen=True)
class WholeRun:
    """One model that does one thing on one GPU."""

    model: Model
    """The model."""
    phase: str
    """prefill, decode or training."""
    work: Work
    """Its tokens, and how they run."""
    dtype: str
    """Type of the activations."""
    weight_bytes: int
    """Bytes of the weights, of one GPU's share."""
    traffic: ProgramTraffic
    """A row an operator, of all layers."""
    touched: Touched | None
    """Experts of a layer that tokens pass; None where there are none."""
    expert_bytes: int
    """Bytes of the weights of one expert of every layer that has some."""
    price_per_hour: float | None = None
    """Dollars per hour of one GPU; None where nobody gave them."""

    @property
    def dollars_per_million_tokens(self) -> float | None:
        """What a million tokens cost: those of the prompt, those that are trained on, or new ones of a step."""
        if self.price_per_hour is None:
            return None
        # A step of decoding makes one token per sequence; a prompt is paid for by all its tokens.
        tokens = self.work.batch * (1 if self.phase == DECODE else self.work.keys)
        seconds = self.traffic.time_s * self.model.tensor_parallel
        return self.price_per_hour * seconds / SECONDS_AN_HOUR * 1e6 / tokens

    @property
    def longest_context(self) -> int | None:
        """Tokens of context whose cache fits in the GPU's memory beside the weights; 0 for none, None where the
        memory's size is not known or nothing is decoded."""
        memory = self.traffic.profile.usable_memory_bytes
        if memory is None or self.phase != DECODE:
            return None
        return longest_context(self.model, self.work.batch, self.dtype, memory - self.weight_bytes)

    @property
    def title(self) -> str:
        """The phase and its sizes."""
        tokens = some(self.work.keys, "token")
        return f"{self.phase}, batch {self.work.batch}, {'one new token of ' if self.phase == DECODE else ''}{tokens}"

    @cached_property
    def parts(self) -> dict[str, list[OperatorTraffic]]:
        """The operators by part of the model."""
        by_part = grouped(self.traffic.rows, lambda row: row.module[0])
        return {part: by_part[part] for part in PARTS if part in by_part}

    @cached_property
    def sums(self) -> dict[str, dict[str, Any]]:
        """Part of the model, and the whole -> sums over its operators."""
        return {
            part: self.traffic.sums(rows)
            for part, rows in ({WHOLE: self.traffic.rows} | self.parts).items()
        }

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels of its attention."""
        return tuple(dict.fromkeys(row.kernel for row in self.traffic.attention.rows))

    @property
    def attention_share(self) -> tuple[float, float]:
        """Attention's share of the bytes at HBM, and of the time."""
        attention = self.sums["attention"]
        return attention["hbm_share"], attention["time_share"]

    @property
    def random(self) -> Touched | None:
        """The experts, where how many are touched hangs on what tokens pick."""
        return (
            self.touched
            if self.touched is not None and self.touched.least < self.touched.most
            else None
        )

    def cell(self, part: str, key: str) -> Cell:
        """A number of a part, with a mark where it rests on a guess; None for a part that the model has not."""
        if part not in self.sums:
            return None
        if key == "gflop":
            return float(self.sums[part]["flops"] / 1e9)
        value: int | float = self.sums[part][key]
        # Experts are picked at random: their bytes are marked, times are not.
        guessed = part in ("experts", WHOLE) and key.endswith("_bytes") and self.random is not None
        return Marked.of(value, "~") if guessed else value

    def to_dict(self) -> dict[str, Any]:
        whole = self.traffic
        head = plain(
            model=self.model.name,
            profile=self.traffic.profile.name,
            phase=self.phase,
            batch=self.work.batch,
            seq_q=self.work.queries,
            seq_k=self.work.keys,
            dtype=self.dtype,
            fused=self.work.fused,
            layers=self.model.layers,
        )
        head |= plain(
            tensor_parallel=self.model.tensor_parallel,
            weight_bytes=self.weight_bytes,
            kernels=self.kernels,
        )
        totals = {"totals": {"hbm": asdict(whole.hbm), "l2": asdict(whole.l2)}} | plain(
            flops=whole.flops, time_s=whole.time_s
        )
        totals |= {"attention_share": dict(zip(("hbm", "time"), self.attention_share, strict=True))}
        totals |= {"experts_touched": None if self.touched is None else asdict(self.touched)}
        parts = [{"part": part} | self.sums[part] for part in self.parts]
        return head | totals | {"parts": parts, "notes": list(whole.notes)}


@dataclass(frozen=True, repr=False)
class WholeModels(Several[WholeRun]):
    """Whole models by part: bytes at HBM, between SMs and L2, operations and time."""

    runs: tuple[WholeRun, ...]
    """A run a GPU, phase, length and model."""

    @property
    def _members(self) -> tuple[WholeRun, ...]:
        return self.runs

    def to_dict(self) -> dict[str, Any]:
        return {"schema": 1, "runs": [run.to_dict() for run in self]}

    def records(self) -> Iterator[dict[str, Any]]:
        for run in self:
            head = {
                "model": run.model.name,
                "gpu": run.traffic.profile.name,
                "phase": run.phase,
                "batch": run.work.batch,
                "seq_q": run.work.queries,
                "seq_k": run.work.keys,
            }
            yield from (head | {"part": part} | run.sums[part] for part in run.parts)

    @property
    def answer(self) -> str:
        """A line for each run."""
        sentences = []
        for run in self:
            of_bytes, of_time = run.attention_share
            whole, gpus = run.traffic, run.model.tensor_parallel
            shared = f" (each of {gpus} GPUs)" if gpus > 1 else ""
            units = " on fp32 units" if whole.profile.computes_in_fp32(run.dtype) else ""
            of = f"{run.model.title}{shared} in {run.dtype}{units} on {whole.profile.name}"
            over = "over" if run.phase == DECODE else "of"
            tokens = some(run.work.keys, "token")
            if run.work.batch > 1:
                tokens = f"{some(run.work.batch, 'sequence')} of {tokens}"
            kernels = ", ".join(run.kernels)
            share = f"attention ({kernels}) is {_percent(of_time)} of the time, {_percent(of_bytes)} of the bytes"
            memory, fits = whole.profile.usable_memory_bytes, ""
            if memory is not None and run.weight_bytes > memory:
                fits = f"; its {bytes_text(run.weight_bytes)} of weights do not fit in memory"
            elif run.longest_context is not None and run.longest_context < run.work.keys:
                fits = ", over its memory"  # with the cache of so many tokens
            if run.model.most_tokens is not None and run.work.keys > run.model.most_tokens:
                fits += f", past its {run.model.most_tokens:,} positions"
            sentences.append(
                f"{SUBJECTS[run.phase]} {over} {tokens} with {of} takes {seconds_text(whole.time_s)} and moves "
                f"{bytes_text(whole.hbm.total)} at HBM; {share}{fits}."
            )
        words = dict.fromkeys(HELD[run.traffic.profile.backed_by] for run in self)
        last = f"Counted per operator; {' and '.join(words)}."
        return "\n".join([*dict.fromkeys(sentences), *self._costs(), last])

    def _costs(self) -> Iterator[str]:
        """What a million tokens cost, a line for each model and GPU that has a price."""
        priced = [run for run in self if run.dollars_per_million_tokens is not None]
        for (title, gpu), runs in grouped(
            priced, lambda run: (run.model.title, run.traffic.profile.name)
        ).items():
            costs = [
                f"{digits_text(run.dollars_per_million_tokens or 0)} ({run.phase}, {some(run.work.keys, 'token')})"
                for run in runs
            ]
            yield f"A million tokens of {title} on {gpu} cost, in dollars: {', '.join(costs)}."

    @property
    def groups(self) -> dict[str, list[WholeRun]]:
        """Runs that stand side by side, by what is said above them."""
        return grouped(self, lambda run: f"{run.traffic.profile.name}: {run.title}")

    @property
    def notes(self) -> tuple[str, ...]:
        """What the numbers rest on."""
        phases = dict.fromkeys(run.phase for run in self)
        fused = {run.work.fused for run in self}
        experts = (_of_experts(run) for run in self if run.random is not None)
        of_runs = (note for run in self for note in run.traffic.notes)
        costs = (
            f"cost of {run.title} with {run.model.title} on {run.traffic.profile.name}: {digits_text(cost)} dollars per "
            f"million tokens, at {run.price_per_hour:g} dollars per hour of a GPU"
            for run in self
            if (cost := run.dollars_per_million_tokens) is not None
        )
        longest = (
            f"longest context that fits on {run.traffic.profile.name} at batch {run.work.batch} with "
            f"{run.model.title}: {found_to_fit(run.longest_context)}"
            for run in self
            if run.longest_context is not None
        )
        past = (
            f"{run.model.title} has positions for {some(run.model.most_tokens, 'token')}: longer contexts are none of it"
            for run in self
            if run.model.most_tokens is not None and run.work.keys > run.model.most_tokens
        )
        of_gpus = (
            f"evidence for {run.traffic.profile.name}: {run.traffic.evidence}" for run in self
        )
        of_models = (note for run in self for note in run.model.all_notes)
        of_phases = (OF_PHASES[phase] for phase in phases if phase in OF_PHASES)
        beside = (note for run in self for note in _unplayed(run))
        lines = (
            NOTES[max(fused)],
            OF_TIMES,
            *costs,
            *longest,
            *past,
            *of_phases,
            *beside,
            *experts,
            *of_models,
            *of_runs,
            *of_gpus,
        )
        return tuple(dict.fromkeys(lines))

    def to_text(self) -> str:
        tables = "".join(
            f"{title}\n{runs_table(runs).text()}\n" for title, runs in self.groups.items()
        )
        return f"{self.answer}\n\n{tables}" + "".join(f"note: {note}\n" for note in self.notes)

    def as_page(self, command: str = "iosim model") -> Page:
        colours = colours_of(part for run in self for part in run.parts)
        sections = [
            Section(
                f"part-{n}",
                title,
                legend=legend_of(colours, (part for run in runs for part in run.parts)),
                panels=_bars(f"part-{n}", runs, colours),
                table=runs_table(runs),
                fold_table=True,
            )
            for n, (title, runs) in enumerate(self.groups.items(), 1)
        ]
        lines = dict.fromkeys(run.model.line for run in self)
        return Page(
            TITLE,
            f"{'; '.join(lines)}.",
            (*sections, *listed("notes", "Notes", self.notes, folded=True)),
            command=command,
            answer=tuple(self.answer.split("\n")),
        )

    def _line(self) -> str:
        names = dict.fromkeys(run.model.title for run in self)
        return f"{', '.join(names)}: {', '.join(dict.fromkeys(run.title for run in self))}"

    def _parts(self) -> list[Part]:
        tables = [part for title, runs in self.groups.items() for part in (title, runs_table(runs))]
        return [*self.answer.split("\n"), *tables, self.notes]

    def _panels(self) -> tuple[Panel, ...]:
        return panels_of(self.as_page())


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.01 else 2}f} %"


def _unplayed(run: WholeRun) -> list[str]:
    """A note on weights that are counted in memory and whose operators are not played."""
    weights = run.model.weights
    beside = 0 if weights is None else sum(weights.more[: len(run.model.order)])
    if not beside or weights is None:
        return []
    size = bytes_text(round(beside * weights.attention_number))
    return [
        f"gates and other matrices beside attention and MLPs of {run.model.name}, {size}, are not played"
    ]


def _of_experts(run: WholeRun) -> str:
    experts = run.touched
    assert experts is not None
    least_bytes, most_bytes = (
        bytes_text(run.expert_bytes * n) for n in (experts.least, experts.most)
    )
    return (
        f"~ {run.title}: tokens of {run.model.name} pass {experts.least} to {experts.most} of a "
        f"layer's {experts.experts} experts, whose weights are {least_bytes} to {most_bytes}; counted "
        f"are {experts.counted}, as if every token picked its own at random, all with as many tokens"
    )


def _bars(name: str, runs: Sequence[WholeRun], colours: Mapping[str, str]) -> tuple[Panel, ...]:
    """A bar for each model, of its parts' seconds, and one of their bytes at HBM."""
    panels = []
    for key, title, text in DRAWN:
        wholes = {
            run.model.title: {part: float(run.sums[part][key]) for part in run.parts}
            for run in runs
        }
        panels.append(part_bars(f"{name}-{key}", title, wholes, colours, text))
    return tuple(panels)


def runs_table(runs: Sequence[WholeRun]) -> Table:
    """A row per part: of one run all that is known, of several the bytes at HBM and the time side by side."""
    summed_columns = SUMMED if len(runs) == 1 else BESIDE
    columns = [
        replace(column, title=f"{run.model.name}: {column.title}")
        if len(runs) > 1 and n == 0
        else column
        for run in runs
        for n, column in enumerate(summed_columns)
    ]
    parts = (part for part in (WHOLE, *PARTS) if any(part in run.sums for run in runs))
    rows = (
        (part, *(run.cell(part, column.key) for run in runs for column in summed_columns))
        for part in parts
    )
    return Table((Column("part"), *columns), tuple(rows))


def run_whole(request: WholeRequest, progress: Progress = silent) -> WholeModels:
    """A run for every GPU, phase, length and model."""
    if request.dtype not in (None, *TYPES):
        raise InputError(
            f"`dtype` {request.dtype}: activations have 16 or 32 bits; accepted: {', '.join(TYPES)}"
        )
    jobs = [(gpu, phase, length) for gpu in request.gpu for phase, length in _phases(request)]
    models = [
        changed(item, {}, layers=request.layers, tensor_parallel=request.tensor_parallel)
        for item in request.models
    ]
    todo = ((model, *job) for job in jobs for model in models)
    return WholeModels(tuple(_run(request, *item) for item in progress(list(todo))))


def _tokens(request: WholeRequest, name: str, least: int) -> list[int]:
    requested = getattr(request, name)
    return (
        []
        if requested is None
        else [within(name, n, least, MAX_TOKENS) for n in lengths(requested, name)]
    )


def _phases(request: WholeRequest) -> list[tuple[str, int]]:
    """What is asked for, and how many tokens each is of. Raises InputError: lengths or choices that make no sense."""
    prompts, contexts = _tokens(request, "seq_len", 1), _tokens(request, "context", 0)
    default_length = min(model.usual_tokens(USUAL) for model in request.models)
    if request.training:
        for name in ("context", "fused", "weights", "cache_dtype"):
            if getattr(request, name):
                more = "which runs eager operators over `seq_len`; accepted: one of them"
                raise InputError(f"`{name}` contradicts `training=True`, {more}")
        return [(TRAINING, length) for length in prompts or (default_length,)]
    if not any(contexts):
        prompts = prompts or [default_length]
    # A context of one token has nothing in the cache; 0 asks for no step at all.
    decodes = [length for length in contexts or prompts if length > 1]
    return [(PREFILL, length) for length in prompts] + [(DECODE, length) for length in decodes]


def _run(request: WholeRequest, model: Model, gpu: Any, phase: str, length: int) -> WholeRun:
    if not model.causal:
        raise InputError(
            f"`model` '{model.name}' generates nothing: its tokens see all others; accepted: a decoder"
        )
    profile = load_profile(gpu)
    # The type of the activations: asked for, the config's, or the weights' where they are wide.
    stated = weights_of(model, request.dtype)
    kind = request.dtype or model.dtype or ("fp32" if stated.number > 2 else "bf16")
    weights = stated.in_one(kind) if phase == TRAINING else stated
    if request.weights is not None:
        model = model.quantised(request.weights)
        weights = weights.quantised(request.weights)
    queries = 1 if phase == DECODE else length
    work = Work(
        request.batch,
        queries,
        length,
        in_model(request.kernel),
        phase == TRAINING,
        request.fused,
        request.cache_dtype,
    )
    tape = Writer(model, weights, work, profile, kind).written()
    traffic = traffic_of(tape.program, profile)
    rows = tuple(
        # A layer that stands for others has its rows as often as there are such layers.
        row
        for row, times in zip(traffic.rows, tape.counts, strict=True)
        for _ in range(times)
    )
    sparse = [mlp for mlp in weights.mlps[: len(model.order)] if mlp.experts]
    # Bytes of one expert in every layer that has experts, on one GPU.
    expert = (
        sum(m.matrices * weights.width * m.wide for m in sparse)
        * weights.expert_number
        / model.tensor_parallel
    )
    return WholeRun(
        model,
        phase,
        work,
        kind,
        replace(model, weights=weights).weight_bytes or 0,
        replace(traffic, rows=rows),
        touched(sparse[0], work.tokens) if sparse else None,
        round(expert),
        prices_of(request).get(profile.name),
    )
