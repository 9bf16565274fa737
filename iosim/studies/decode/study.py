"""run(): what a request for decoding asks for, and its result: points, an answer, text and a page."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass
from iosim.base.units import seconds_text, some
from iosim.base.words import DEFAULT, sentences
from iosim.catalog.serving import kernel_by_rule
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.conditions import Conditions
from iosim.kernel.overrides import Overrides
from iosim.prediction.confidence import basis, confidence
from iosim.problem.asked import lengths
from iosim.show.page import Page, Panel, Section, listed
from iosim.show.shown import Part as ShownPart
from iosim.show.shown import Several, panels_of
from iosim.show.tables import Table
from iosim.studies.decode.decode import (
    DecodePoint,
    ModelShape,
    in_one_launch,
    kind_shapes,
    read_contexts,
    sweep,
)
from iosim.studies.decode.face import (
    HOLLOW,
    LINES,
    MOST_OPEN,
    MOST_SAID,
    TITLE,
    TOKENS_ARE,
    WORK,
    headline,
    kinds_table,
    kinds_title,
    more_section,
    notes,
    points_table,
    reads,
    short_table,
    step_text,
    subject,
    token_bars,
    token_curves,
    where_text,
    work,
)
from iosim.studies.decode.picking import pays_from, picks
from iosim.studies.models.asked import chosen
from iosim.studies.models.layers import Model
from iosim.studies.requests import CONTEXTS, DecodeRequest

NOT_FLAT = ("profile", "problem", "notes", "kinds", "sequences", "picking")
"""Keys of a point that a row of a table has no place for."""


@dataclass(frozen=True, repr=False)
class Decoding(Several[DecodePoint]):
    """Decoding steps over the context's length, for every GPU and kernel asked for."""

    points: tuple[DecodePoint, ...]
    """A point per GPU, kernel and context, in the order of the request."""

    @property
    def _members(self) -> tuple[DecodePoint, ...]:
        return self.points

    def to_dict(self) -> dict[str, Any]:
        return {"schema": 1, "points": [p.to_dict() for p in self.points]}

    def records(self) -> Iterator[dict[str, Any]]:
        """A row per point: bytes, seconds and tokens per second of all layers, per generated token."""
        return (
            {"gpu": p.prediction.profile.name}
            | {k: v for k, v in p.to_dict().items() if k not in NOT_FLAT}
            for p in self.points
        )

    @property
    def answer(self) -> str:
        """At the longest context that fits and that the model has, what one step takes on each GPU with each kernel: a
        line each."""
        longest = headline(self.points)
        here = [p for p in self if p.context == longest]
        first, of = here[0], ""
        if first.model is not None:
            gpus = (
                f" on each of {first.model.tensor_parallel} GPUs"
                if first.model.tensor_parallel > 1
                else ""
            )
            of = f" {first.model.title}{gpus}:"
        sure = confidence([prediction for p in here for prediction in p.predictions])
        if len(here) == 1:
            return sentences([f"{where_text(first)}{of} {step_text(first)}", sure])
        lines = [
            f"{where_text(first)}{of.rstrip(':')}:",
            *(f"{step_text(p)}." for p in here),
            f"{sure}.",
        ]
        return "\n".join(lines)

    @property
    def beneath(self) -> tuple[str, ...]:
        """What stands under the table: what each step reads, what its indexer takes, and what that rests on."""
        longest = headline(self.points)
        here = [p for p in self if p.context == longest]
        several = len({p.batch for p in here}) > 1
        read = (part for p in here for part in reads(p, several))
        return (
            *read,
            *(
                f"basis: {sentence}"
                for sentence in basis([prediction for p in here for prediction in p.predictions])
            ),
        )

    def as_page(self, command: str = "iosim decode") -> Page:
        points = self.points
        several = len({p.context for p in points}) > 1
        drawn, means = (
            token_curves(points) if several else token_bars(points),
            TOKENS_ARE[: 1 + several],
        )
        means += (HOLLOW,) if several and any(p.fits is False for p in points) else ()
        title = "Tokens per second against the context" if several else "Tokens per second"
        sections = (
            *((Section("tokens", title, means, LINES if several else (), drawn),) if drawn else ()),
            Section(
                "numbers",
                "Numbers",
                () if drawn else means,
                table=points_table(points),
                brief=short_table(points),
                folded=len(points) > MOST_OPEN,
            ),
            *(
                (Section("kinds", kinds_title(points), table=kinds_table(points)),)
                if kinds_table(points)
                else ()
            ),
            *((more_section(points),) if several else ()),
            *listed("notes", "Notes", notes(points), folded=True),
        )
        sentences, verdict = self._verdict(points)
        return Page(
            TITLE,
            f"{subject(points)}.",
            sections,
            command=command,
            answer=sentences,
            verdict=(verdict,),
        )

    def _verdict(self, points: tuple[DecodePoint, ...]) -> tuple[tuple[str, ...], str]:
        """The time of one step, in one sentence: above the figure only the fastest and the slowest, else one phrase each."""
        longest = [p for p in points if p.context == headline(points)]
        # Above the figure only the fastest and the slowest, else one phrase each.
        if many := len(longest) > MOST_SAID:
            by_time = sorted(longest, key=lambda p: p.step_s)
            longest = [by_time[0], by_time[-1]]
        with_batch = len({p.batch for p in points}) > 1
        steps = [
            f"**{seconds_text(p.step_s)}** with {p.kernel_name} on {p.prediction.profile.name}"
            + (f" at batch {p.batch}" if with_batch else "")
            for p in longest
        ]
        sentences = (*self.answer.split("\n"), *self.beneath)
        verdict = (
            f"{where_text(longest[0])} one step takes {(' to ' if many else ', ').join(steps)}."
        )
        return sentences, verdict

    def to_text(self) -> str:
        more = "".join(f"\n{title}\n{rows.text()}\n" for title, rows in self._more())
        lines = (*(f"note: {n}" for n in notes(self.points)), *self.beneath)
        return f"{self.answer}\n\n{points_table(self.points).text()}{more}" + "".join(
            f"{line}\n" for line in lines
        )

    def _more(self) -> list[tuple[str, Table]]:
        tables = [(kinds_title(self.points), kinds_table(self.points)), (WORK, work(self.points))]
        return [(title, rows) for title, rows in tables if rows is not None]

    def _line(self) -> str:
        contexts = sorted({p.context for p in self})
        return (
            f"{subject(self.points)}; {contexts[0]:,} to {some(contexts[-1], 'token')} of context"
        )

    def _parts(self) -> list[ShownPart]:
        more = (part for both in self._more() for part in both)
        return [*self.answer.split("\n"), points_table(self.points), *more, notes(self.points)]

    def _panels(self) -> tuple[Panel, ...]:
        return panels_of(self.as_page())


def run_decoding(request: DecodeRequest, progress: Progress = silent) -> Decoding:
    """A point for every GPU, kernel and context asked for. Raises InputError: values that make no sense or contradict
    each other, or a kernel that cannot run the shape on a GPU."""
    return Decoding(tuple(progress(_points(request))))


def _points(r: DecodeRequest) -> Iterator[DecodePoint]:
    overrides = Overrides(splits=r.splits, append_kv=r.append_kv)
    step: dict[str, Any] = {"overrides": overrides, "new_tokens": r.new_tokens}
    step |= {"conditions": Conditions(launched=r.launched)}
    sizes = {
        name: getattr(r, name) for name in ("heads", "kv_heads", "head_dim", "head_dim_v", "window")
    }
    model = chosen(r.model, sizes, r.layers if r.model is not None else None, r.tensor_parallel)
    if r.weights is not None and model is None:
        raise InputError(f"`weights` {r.weights} needs `model`; accepted: both")
    model = None if model is None else model.quantised(r.weights)
    batch = _one_launch_of(model, r)
    contexts = lengths(r.context, "context") if batch is None else batch
    # Default contexts end where the model's positions do; contexts that were asked for stay.
    if model is not None and r.context == CONTEXTS and model.most_tokens is not None:
        contexts = [n for n in contexts if n <= model.most_tokens] or [model.most_tokens]
    cache = {
        n: getattr(r, n) for n in ("cache_dtype", "shared_prefix") if getattr(r, n) is not None
    }
    batches = lengths(r.batch, "batch") if batch is None else [len(batch)]
    for gpu in r.gpu:
        for (kernel, page), step["batch"] in product(chosen_kernels(gpu, r), batches):
            if model is not None:
                # A list of points per kind of layer, turned into one point per context with all kinds.
                shapes = kind_shapes(model, r.dtype, page, cache)
                kinds = [
                    list(sweep(shape_of_kind, contexts, gpu, kernel, **step))
                    for shape_of_kind in shapes
                ]
                indexed = next(
                    (points[0].prediction for points in kinds if picks(points[0].prediction)), None
                )
                pays = None if indexed is None else pays_from(indexed)
                yield from (
                    DecodePoint.of(model, parts, pays) for parts in zip(*kinds, strict=True)
                )
                continue
            requested = sizes | {"layers": r.layers, "dtype": r.dtype}
            fields: dict[str, Any] = {
                "kv_heads": 1 if r.latent_kv else min(8, r.heads or ModelShape.heads)
            }
            # What was not given keeps the shape's own default (Llama-3-8B's).
            fields |= {name: value for name, value in requested.items() if value is not None}
            shape = ModelShape(
                **fields, latent_kv=r.latent_kv, page_size=page, fields=tuple(cache.items())
            )
            if batch is not None:
                # One launch for all sequences: one point, named by its longest context.
                shape, contexts = in_one_launch(shape, batch, r.new_tokens, overrides), [max(batch)]
            yield from sweep(shape, contexts, gpu, kernel, **step)


def _one_launch_of(model: Model | None, r: DecodeRequest) -> list[int] | None:
    """The contexts of sequences that decode in one launch; None where they are all alike."""
    batch = None
    if r.batch_contexts is not None:
        if model is not None:
            raise InputError(
                "`batch_contexts` contradicts `model`; accepted with it: `batch`, `heads`, `layers`"
            )
        defaults = {"batch": 1, "context": CONTEXTS}
        beside = {
            name: value
            for name, default in defaults.items()
            if (value := getattr(r, name)) != default
        }
        batch = read_contexts(r.batch_contexts, beside)
    return batch


def chosen_kernels(gpu: str | HardwareProfile, r: DecodeRequest) -> list[tuple[str, int | None]]:
    """The kernels to predict on a GPU, in the order asked for, each with the tokens of a page. Raises InputError:
    kernels and rules, or a rule that is not known or has no kernel on the GPU. For sequences of different lengths
    FlashAttention-3 has rules of their own, those that SGLang's calls meet."""
    if not r.split_rule:
        return [(name, r.page_size) for name in r.kernel or (DEFAULT,)]
    if r.kernel:
        both = f"`split_rule` {', '.join(r.split_rule)} contradicts `kernel` {', '.join(r.kernel)}"
        raise InputError(f"{both}; give one of them")
    profile, batch = load_profile(gpu), r.batch_contexts is not None
    by_rule = [kernel_by_rule(rule, profile, r.page_size) for rule in r.split_rule]
    return [("sglang-fa3" if batch and name == "fa3" else name, page) for name, page in by_rule]
