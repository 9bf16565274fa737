"""What an attention call takes inside a serving stack, in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from iosim.api.asked import names, problems_of
from iosim.api.calls import GPU
from iosim.api.keywords import PROBLEM, SHORT, public
from iosim.api.with_model import model_of, values_of
from iosim.base.errors import InputError

if TYPE_CHECKING:
    from iosim.api.typed import ProblemKeywords
    from iosim.api.with_model import ModelLike
    from iosim.hardware.profile import HardwareProfile
    from iosim.problem.attention import AttentionProblem
    from iosim.studies.latency import Latencies
    from iosim.studies.models.layers import Layers, Model


@public(PROBLEM, SHORT)
def latency(
    problem: AttentionProblem | Sequence[AttentionProblem] | None = None,
    stack: str | Sequence[str] = "vllm",
    gpu: str | HardwareProfile | Sequence[str | HardwareProfile] = GPU,
    *,
    model: ModelLike | None = None,
    layers: int | None = None,
    tensor_parallel: int | None = None,
    batch_contexts: str | Sequence[int] | None = None,
    cache_write: bool = True,
    calibration: str | None = None,
    l2: str = "warm",
    clocks: str | float = "boost",
    launched: str = "graph",
    method: str | None = None,
    **asked: Unpack[ProblemKeywords],
) -> Latencies:
    """What an attention call takes inside serving stacks, part by part: kernel, combine, cache write, gap.

        >>> iosim.latency(stack=["vllm", "sglang"], gpu="h100", batch=16, kv_heads=8, seq_len=1, seq_len_k="8k")
        >>> iosim.latency(stack="vllm", gpu="a100", batch_contexts=[1024, 4096, 65536], kv_heads=8).points[0].total_s

    The mask is causal where none is named.

    Args:
        problem: what is computed, as one AttentionProblem or several; by default what the keywords say.
        stack: vllm, sglang, flashinfer, as a list or a text.
        gpu: GPUs' names or paths to profile files, as a list or "a100,h100".
        model: a model's name, a path to a config.json or its directory, or what such a file holds: a point for each
            kind of its layers, and all of them in `l.models`.
        layers: the model's first layers; by default all.
        tensor_parallel: GPUs that share the heads of the model's layers; numbers are of each.
        batch_contexts: decode one token a sequence over these many keys, all in one launch: a list, or "1k,4k,32k",
            or the path of a file.
        cache_write: whether the call first writes the new K and V to the cache, where the stack does.
        calibration: path of constants that `iosim calibrate --times` fitted, of the one stack on the one GPU.
        l2: the L2 at the start: "warm", as the call before left it, or "cold".
        clocks: "boost", "sustained" or the SMs' clock in hertz.
        launched: "graph" (call after call from a CUDA graph), or "alone" (launches as a profiler times them).
        method: how bytes at HBM are found, as in `predict`.
        **asked: the fields of a problem.

    Returns:
        A Latencies: `l.points`, `l.points[0].total_s`, `l.points[0].parts`, `l.to_pandas()`.

    Raises:
        InputError: an unknown stack, a GPU that it has no kernel for, or a problem that the kernel cannot run.
    """
    from iosim.hardware.profile import load_profile
    from iosim.studies.latency import latencies, read_calibration

    stacks, gpus = names(stack, "stack"), names(gpu, "gpu")
    constants = None
    if calibration is not None:
        if len(stacks) != 1 or len(gpus) != 1:
            raise InputError("`calibration` is of one stack on one GPU; accepted with it: one `stack` and one `gpu`")
        profile = load_profile(gpus[0]) if isinstance(gpus[0], str) else gpus[0]
        constants = read_calibration(calibration, stacks[0], profile.name)
    if model is not None and batch_contexts is not None:
        raise InputError("`batch_contexts` contradicts `model`; accepted with it: `batch`, `seq_len` and `seq_len_k`")
    chosen = model_of(model, problem, asked, layers, tensor_parallel)
    which, problems = (
        _of_model(chosen, asked) if chosen is not None else (None, _problems(problem, batch_contexts, {**asked}))
    )
    return latencies(
        problems, stacks, gpus, write=None if cache_write else False, l2_start=l2,
        clocks=clocks, launched=launched, method=method, calibration=constants, layers=which,
    )  # fmt: skip


def _of_model(model: Model, asked: Mapping[str, Any]) -> tuple[list[Layers | None], list[AttentionProblem]]:
    from iosim.studies.models.asked import calls_of
    from iosim.studies.models.layers import Layers

    calls = [call for one_length in calls_of(model, values_of(asked)) for call in one_length]
    return [Layers(c.kind.name, c.kind.count, model.title) for c in calls], [c.problem for c in calls]


def _problems(problem: object, contexts: str | Sequence[int] | None, asked: dict[str, Any]) -> list[AttentionProblem]:
    from iosim.studies.latency.asked import as_served, of_contexts

    return problems_of(problem, asked) if problem is not None else problems_of(None, as_served(
        asked if contexts is None else of_contexts(contexts, asked)
    ))  # fmt: skip
