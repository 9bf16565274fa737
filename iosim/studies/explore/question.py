"""The whole question that the explorer's page asks of a model on a GPU, in four parts that it shows as they arrive: what
fits, a step of decoding, the first token, and the kernels.

Each part is the study behind a command (`iosim decode`, `iosim model`), and says the command line that prints its
numbers. Nothing here computes a number of its own, but for what HBM and the matrix units alone would take of a time.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import cached_property, dataclass, plain
from iosim.base.words import DEFAULT
from iosim.catalog.libraries import entry, entry_names, in_model
from iosim.catalog.libraries.loader import checked
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.hardware.roofs import ceilings
from iosim.hardware.trust import evidence
from iosim.kernel.kernel import Kernel
from iosim.prediction.predictor import planned
from iosim.problem.fields import length_options, problem_options
from iosim.studies.decode.decode import DecodePoint
from iosim.studies.decode.study import run_decoding
from iosim.studies.models.asked import LayerCall, calls_of
from iosim.studies.models.layers import Model
from iosim.studies.models.whole import DECODE, PREFILL, WholeRun, run_whole
from iosim.studies.requests import DecodeRequest, WholeRequest

CHECKED = Path(__file__).with_name("checked.toml")
"""What was checked on which GPU, as README.md tells it."""
FIRST_WITH_BF16 = 80
"""The compute capability from which on NVIDIA's tensor cores take bf16."""
LEAST_SHARE = 0.5
"""Share of a step's time from which on a unit that alone would take it is said to bound it."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One model on one GPU, at one context and batch."""

    model: Model
    name: str
    """The model as a command line names it: a preset, or a config's file."""
    gpu: str
    kernel: str = DEFAULT
    weights: str | None = None
    """Form of the layers' matrices; None as the config says."""
    cache_dtype: str | None = None
    """Type of the key/value cache; None for that of the activations."""
    asked_dtype: str | None = None
    """Type of the activations; None for the config's, or fp16 on a GPU that has no bf16."""
    context: int = 4096
    batch: int = 1
    price: float | None = None
    """Dollars an hour of the GPU."""

    @cached_property
    def dtype(self) -> str | None:
        """Type of the activations that is handed to a command; None for the config's."""
        profile = load_profile(self.gpu)
        of_config = self.model.dtype or "bf16"
        lacks = of_config == "bf16" and profile.cc < FIRST_WITH_BF16 and not profile.is_amd
        return self.asked_dtype or ("fp16" if lacks else None)

    @property
    def sizes(self) -> dict[str, Any]:
        """What `iosim decode` and `iosim model` both take."""
        return {
            "gpu": (self.gpu,),
            "batch": self.batch,
            "dtype": self.dtype,
            "weights": self.weights,
            "cache_dtype": self.cache_dtype,
        }

    def command(self, name: str, **more: Any) -> str:
        """The command line that prints the same numbers."""
        kernel = None if self.kernel == DEFAULT else self.kernel
        options: dict[str, Any] = {"model": self.name, "gpu": self.gpu, "kernel": kernel}
        options |= {"batch": None if self.batch == 1 else self.batch}
        options |= {"dtype": self.dtype, "weights": self.weights, "cache_dtype": self.cache_dtype}
        words = (
            f"--{option.replace('_', '-')} {shlex.quote(str(value))}"
            for option, value in (options | more).items()
            if value is not None
        )
        return " ".join((f"iosim {name}", *words))

    def calls(self, *, prompt: bool = False) -> tuple[LayerCall, ...]:
        """One layer's call of each kind that attends: of a prompt of the whole context, or of its next token."""
        values: dict[str, Any] = {
            "dtype": self.dtype,
            "batch": self.batch,
            "seq_q": self.context if prompt else 1,
        }
        values |= {} if prompt else {"seq_k": self.context, "cache_dtype": self.cache_dtype}
        return calls_of(self.model, {n: v for n, v in values.items() if v is not None})[0]


def _planned(call: LayerCall, kernel: str, gpu: str) -> Kernel:
    request = call.request(kernel, gpu, None)
    return planned(request.problem, request.kernel, gpu, request.overrides).kernel


def memory(question: Question) -> dict[str, Any]:
    """What fits: bytes of weights and cache beside the GPU's memory, the longest context, and the attention of a step."""
    request = DecodeRequest(
        model=question.model,
        kernel=(question.kernel,),
        context=question.context,
        **question.sizes,
    )
    (point,) = run_decoding(request).points
    profile = point.prediction.profile
    return plain(
        fits=point.fits,
        memory_bytes=profile.usable_memory_bytes,
        weight_bytes=point.weight_bytes,
        cache_bytes=point.cache_bytes,
        longest_context=point.longest_context,
    ) | {
        "attention": _attention(point),
        "dtype": point.prediction.problem.dtype,
        "gpu": profile.name,
        "backed_by": profile.backed_by,
        "evidence": str(evidence(profile)),
        "command": question.command("decode", context=question.context),
    }


def _attention(point: DecodePoint) -> dict[str, Any]:
    return plain(step_s=point.step_s, tokens_per_s=point.tokens_per_s) | {
        "kernel": point.kernel_name,
        "bound_by": point.prediction.time.bound_by,
    }


def step(question: Question) -> dict[str, Any]:
    """One step of decoding of the whole model: a token of every sequence."""
    run = _run(question, DECODE)
    tokens = question.batch / run.traffic.time_s
    return _told(run) | {
        "tokens_per_s": tokens,
        "command": question.command("model", context=question.context, price=_price(question)),
    }


def prompt(question: Question) -> dict[str, Any]:
    """The prefill of a prompt of the whole context, which the first token waits for."""
    return _told(_run(question, PREFILL)) | {
        "command": question.command(
            "model", seq_len=question.context, context=0, price=_price(question)
        )
    }


def _price(question: Question) -> str | None:
    return None if question.price is None else f"{question.gpu}={question.price:g}"


def _run(question: Question, phase: str) -> WholeRun:
    price = _price(question)
    lengths: dict[str, Any] = {"context": question.context}
    if phase == PREFILL:
        lengths = {"seq_len": question.context, "context": 0}
    request = WholeRequest(
        models=(question.model,),
        kernel=question.kernel,
        price=None if price is None else (price,),
        **lengths,
        **question.sizes,
    )
    (run,) = run_whole(request)
    return run


def _told(run: WholeRun) -> dict[str, Any]:
    """Time, bytes by level, what bounds it, its parts and what it costs."""
    traffic = run.traffic
    parts = [
        {"part": part, "time_s": sums["time_s"], "share": sums["time_share"]}
        | {"hbm_bytes": sums["hbm_bytes"], "l2_bytes": sums["l2_bytes"]}
        for part in run.parts
        for sums in (run.sums[part],)
    ]
    return plain(time_s=traffic.time_s, flops=traffic.flops) | {
        "hbm_read": traffic.hbm.read,
        "hbm_write": traffic.hbm.write,
        "l2_bytes": traffic.l2.total,
        "dollars_per_million": run.dollars_per_million_tokens,
        "bound": bound(run),
        "parts": parts,
        "notes": list(traffic.notes),
    }


def bound(run: WholeRun) -> dict[str, Any]:
    """What bounds a phase: HBM or the matrix units, where either alone, at its own rate, would take half of the time or
    more; None where neither would. With the share of the time that each would take."""
    traffic, profile = run.traffic, run.traffic.profile
    rates = profile.hbm_seconds_per_byte()
    peaks = ceilings(profile, run.dtype, "hbm").get("specification")
    shares = {}
    if rates is not None:
        alone_s = traffic.hbm.read * rates[0] + traffic.hbm.write * rates[1]
        shares["hbm"] = alone_s / traffic.time_s
    if peaks is not None:
        shares["tensor"] = traffic.flops / peaks[1] / traffic.time_s
    units = [unit for unit, share in shares.items() if share >= LEAST_SHARE]
    return {"by": max(units, key=lambda unit: shares[unit], default=None), "shares": shares}


def kernels(question: Question) -> dict[str, Any]:
    """The kernel behind each phase with its tile and order, for every kind of layer; and all kernels of the catalog: the
    tile that each would take, or why it cannot run."""
    plans, why = [], None
    try:
        plans = _plans(question)
    except InputError as error:
        why = str(error)
    tried = [_tried(name, question) for name in entry_names()]
    return {"plans": plans, "why": why, "kernels": tried}


def _plans(question: Question) -> list[dict[str, Any]]:
    phases = {PREFILL: question.calls(prompt=True), DECODE: question.calls()}
    return [
        {"phase": phase, "layer": call.kind.name, "layers": call.kind.count}
        | {"options": _options(call, question.kernel)}
        | _described(_planned(call, question.kernel, question.gpu))
        for phase, calls in phases.items()
        for call in calls
    ]


def _options(call: LayerCall, kernel: str) -> str:
    """The call as options of `iosim predict`, its key/value heads among them even where they are all heads."""
    problem = call.on(kernel)
    words = [*length_options(problem), *problem_options(problem)]
    if "--kv-heads" not in words:
        words += ["--kv-heads", str(problem.kv_heads)]
    return shlex.join(words)


def _tried(name: str, question: Question) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "title": entry(name)["title"], "checked": checked(name)[0]}
    try:
        first: Kernel | None = None
        for call in (*question.calls(), *question.calls(prompt=True)):
            kernel = _planned(call, in_model(name), question.gpu)
            first = first or kernel
    except InputError as error:
        return row | {"runs": False, "why": str(error)}
    assert first is not None
    return row | {"runs": True} | _described(first)


def _described(kernel: Kernel) -> dict[str, Any]:
    schedule = kernel.schedule
    return {
        "kernel": kernel.name,
        "tile": str(kernel.tile),
        "order": str(schedule.order),
        "direction": str(schedule.direction),
        "scheduler": str(schedule.scheduler),
        "splits": kernel.splits,
    }


PARTS: Mapping[str, Callable[[Question], dict[str, Any]]] = {
    "memory": memory,
    "step": step,
    "prompt": prompt,
    "kernels": kernels,
}
"""The parts of an answer, in the order in which the page asks for them."""


@cache
def checked_rows() -> tuple[dict[str, Any], ...]:
    """What was checked on which GPU, with its error."""
    return tuple(tomllib.loads(CHECKED.read_text(encoding="utf-8"))["row"])


def gpu_rows(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """What the page says of each GPU that it offers."""
    return [_gpu_row(load_profile(name)) for name in names]


def _gpu_row(profile: HardwareProfile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "title": profile.title,
        "amd": profile.is_amd,
        "memory_bytes": profile.usable_memory_bytes,
        "backed_by": profile.backed_by,
        "replays": len(profile.levels) == 1,
    }
