"""run(): what a request for decoding asks for, and the result that shows itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.units import some
from iosim.base.words import DEFAULT
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.overrides import Overrides
from iosim.kernel.serving import kernel_by_rule
from iosim.problem.asked import lengths
from iosim.show.page import Page, Panel
from iosim.show.shown import Part, Shown, panels_of
from iosim.studies.decode import face
from iosim.studies.decode.decode import DecodePoint, ModelShape, Step, read_contexts, sweep, sweep_batch
from iosim.studies.decode.stack import kinds_table, kinds_title, sweep_model
from iosim.studies.models.asked import chosen
from iosim.studies.requests import CONTEXTS, DecodeRequest

NOT_FLAT = ("problem", "notes", "kinds", "sequences")
"""Keys of a point that a row of a table has no place for."""


@dataclass(frozen=True, repr=False)
class Decoding(Shown):
    """Decoding steps over the context's length, for every GPU and kernel asked for."""

    points: tuple[DecodePoint, ...]
    """A point a GPU, kernel and context, in the order of the request."""

    def __iter__(self) -> Iterator[DecodePoint]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def to_dict(self) -> dict[str, Any]:
        """The command line's JSON, but for its answer."""
        return {"schema": 1, "points": [p.to_dict() for p in self.points]}

    def records(self) -> Iterator[dict[str, Any]]:
        """A row a point: bytes, seconds and tokens a second of all layers, per generated token."""
        return ({k: v for k, v in p.to_dict().items() if k not in NOT_FLAT} for p in self.points)

    @property
    def answer(self) -> str:
        """One sentence."""
        return face.answer(self.points)

    def as_page(self, command: str = "iosim decode") -> Page:
        """The whole page. `command` is the command line that makes it again."""
        return face.as_page(self.points, command)

    def to_text(self) -> str:
        return face.as_text(self.points)

    def _line(self) -> str:
        contexts = sorted({p.context for p in self})
        return f"{face.subject(self.points)}; {contexts[0]:,} to {some(contexts[-1], 'token')} of context"

    def _parts(self) -> list[Part]:
        kinds, work = kinds_table(self.points), face.work(self.points)
        by_kind: list[Part] = [] if kinds is None else [kinds_title(self.points), kinds]
        by_sequence: list[Part] = [] if work is None else [face.WORK, work]
        return [self.answer, face.table(self.points), *by_kind, *by_sequence, face.notes(self.points)]

    def _panels(self) -> tuple[Panel, ...]:
        return panels_of(self.as_page())


def run(request: DecodeRequest, progress: Progress = silent) -> Decoding:
    """A point for every GPU, kernel and context asked for. Raises InputError: values that make no sense or contradict
    each other, or a kernel that cannot run the shape on a GPU."""
    return Decoding(tuple(progress(_points(request))))


def _points(r: DecodeRequest) -> Iterator[DecodePoint]:
    overrides = Overrides(splits=r.splits, append_kv=r.append_kv)
    step: Step = {"overrides": overrides, "launched": r.launched, "new_tokens": r.new_tokens, "batch": r.batch}
    sizes = {name: getattr(r, name) for name in ("heads", "kv_heads", "head_dim", "head_dim_v", "window")}
    model = chosen(r.model, sizes, r.layers if r.model is not None else None, r.tensor_parallel)
    batch = None if r.batch_contexts is None else read_contexts(r.batch_contexts)
    if batch is not None:
        if model is not None:
            raise InputError("`batch_contexts` contradicts `model`; accepted with it: `batch`, `heads`, `layers`")
        for name, default in (("batch", 1), ("context", CONTEXTS)):
            if (value := getattr(r, name)) != default:
                raise InputError(
                    f"`{name}` {value} contradicts `batch_contexts`, which says the sequences; give one of them"
                )
    contexts = lengths(r.context, "context") if batch is None else batch
    for gpu in r.gpu:
        for kernel, page in chosen_kernels(gpu, r.kernel, r.split_rule, r.page_size, batch is not None):
            if model is not None:
                asked = {"dtype": r.dtype, "page_size": page}
                yield from sweep_model(model, contexts, gpu, kernel, asked=asked, **step)
                continue
            given = {name: value for name, value in (sizes | {"layers": r.layers, "dtype": r.dtype}).items()
                     if value is not None}  # fmt: skip
            usual = {"kv_heads": 1 if r.latent_kv else min(8, r.heads or ModelShape.heads)}
            shape = ModelShape(**usual | given, latent_kv=r.latent_kv, page_size=page)
            if batch is not None:
                yield from sweep_batch(shape, batch, gpu, kernel, **step)
            else:
                yield from sweep(shape, contexts, gpu, kernel, **step)


def chosen_kernels(
    gpu: str | HardwareProfile,
    kernels: Sequence[str] | None,
    rules: Sequence[str] | None,
    page_size: int | None,
    batch: bool = False,
) -> list[tuple[str, int | None]]:
    """The kernels to predict on a GPU, in the order asked for, each with the tokens of a page. Raises InputError:
    kernels and rules, or a rule that is not known or has no kernel on the GPU.

    Args:
        batch: of sequences of different lengths, for which FlashAttention-3 has rules of their own, those that SGLang's
            calls meet.
    """
    if not rules:
        return [(name, page_size) for name in kernels or (DEFAULT,)]
    if kernels:
        raise InputError(f"`split_rule` {', '.join(rules)} contradicts `kernel` {', '.join(kernels)}; give one of them")
    profile = load_profile(gpu) if isinstance(gpu, str) else gpu
    found = [kernel_by_rule(rule, profile, page_size) for rule in rules]
    return [("sglang-fa3" if batch and name == "fa3" else name, page) for name, page in found]
