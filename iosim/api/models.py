"""The functions beyond one attention call: formulas, sweeps, a model that decodes, stacks, many GPUs, a training step.

Each takes the options of the command of its name as keywords, and returns what the command prints, as data.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from iosim.api.calls import GPU
from iosim.api.keywords import (
    KEYWORDS,
    call_of,
    loaded,
    names,
    of_problem,
    public,
    read,
    request,
    single,
)
from iosim.base.words import DEFAULT
from iosim.studies import requests

if TYPE_CHECKING:
    import pandas

    from iosim.api import typed
    from iosim.api.keywords import ModelLike
    from iosim.problem.attention import AttentionProblem
    from iosim.studies.decode import Decoding
    from iosim.studies.distributed.ring import Ring
    from iosim.studies.formulas.study import FormulaStudy
    from iosim.studies.latency import Latencies
    from iosim.studies.models.whole import WholeModels
    from iosim.studies.requests import HardwareProfile, Kernel
    from iosim.studies.training import TrainingPrediction


@public
def formula(
    name: str, gpu: str | HardwareProfile | None = None, **options: Unpack[typed.FormulaKeywords]
) -> FormulaStudy:
    """A kernel's bytes between SMs and L2 in closed form: in symbols, or with the numbers put in that are given.

        >>> iosim.formula("flash", head_dim=128, tile=(128, 64)).formula.total("read")

    Args:
        name: an algorithm (`flash`, `flash1`, `naive`, ...) or a kernel (`fa2`, `cudnn`, ...).
        gpu: the GPU for which a library kernel chooses its tile; by default a100.
        **options: what is known of the problem.

    Returns:
        A FormulaStudy: `f.formula` (SymPy expressions), `f.latex`, `f.to_dict()`, `f.to_pandas()`.

    Raises:
        InputError: an unknown name, or values that make no sense.
    """
    from iosim.studies.formulas.study import describe

    table = KEYWORDS["formula"]
    defaults = {about.name: about.default for about in table.values()}
    values = {
        table[word].name: table[word].check(read(word, table[word], value))
        for word, value in options.items()
    }
    return describe(
        {**defaults, **values, "name": name, "gpu": None if gpu is None else single(gpu, "gpu")}
    )


@public
def decode(
    gpu: str | HardwareProfile | Sequence[str | HardwareProfile] = GPU,
    kernel: str | Sequence[str] | None = None,
    *,
    model: ModelLike | None = None,
    **options: Unpack[typed.DecodeKeywords],
) -> Decoding:
    """Attention of a model that generates text: bytes and seconds per token over the context's length.

        >>> iosim.decode("h100", heads=32, kv_heads=8, layers=32, context=[1024, 8192])
        >>> iosim.decode("h100", model="gemma-3-12b")
        >>> iosim.decode("h100", split_rule="fa3,vllm,flashinfer", batch_contexts=[1024, 4096, 65536])

    The defaults are the sizes of Llama-3-8B; those of a model are its own.

    Args:
        gpu: GPUs' names or paths to profile files, as a list or "a100,h100".
        kernel: kernels, as a list or "fa2,flash"; by default the GPU's own.
        model: a model's name, a path to a Hugging Face config.json or its directory, or what such a file holds. Sizes
            beside it take the place of its own.
        **options: sizes and settings.

    Returns:
        A Decoding: `d.points`, `d.to_pandas()`, `d.figure()`.

    Raises:
        InputError: values that make no sense, or a kernel that cannot run the shape on that GPU.
    """
    from iosim.studies.decode.study import run_decoding

    kernels = None if kernel is None else names(kernel, "kernel")
    return run_decoding(
        request(
            requests.DecodeRequest,
            options,
            gpu=names(gpu, "gpu"),
            kernel=kernels,
            model=loaded(model),
        )
    )


@public
def latency(
    problem: AttentionProblem | Sequence[AttentionProblem] | None = None,
    stack: str | Sequence[str] = "vllm",
    gpu: str | HardwareProfile | Sequence[str | HardwareProfile] = GPU,
    *,
    model: ModelLike | None = None,
    **options: Unpack[typed.LatencyKeywords],
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
        **options: the fields of a problem, and settings.

    Returns:
        A Latencies: `l.points`, `l.points[0].total_s`, `l.points[0].parts`, `l.to_pandas()`.

    Raises:
        InputError: an unknown stack, a GPU that it has no kernel for, or a problem that the kernel cannot run.
    """
    from iosim.studies.latency.latency import run_latency

    both = {"gpu": names(gpu, "gpu"), "stack": names(stack, "stack")}
    return run_latency(of_problem(requests.LatencyRequest, problem, options, model, **both))


@public
def ring(
    problem: AttentionProblem | None = None,
    num_gpus: int | str = 8,
    gpu: str | HardwareProfile = GPU,
    *,
    model: ModelLike | None = None,
    kernel: str | Kernel = DEFAULT,
    **options: Unpack[typed.RingKeywords],
) -> Ring:
    """One attention over several GPUs: chunk schedules, idle time, bytes on the links, time and memory.

        >>> iosim.ring(num_gpus=8, gpu="h100", seq_len="256k", causal=True, schedule="balanced")

    Args:
        problem: what all GPUs compute together; by default what the keywords say.
        num_gpus: number of GPUs.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        model: a model's name, a path to a config.json or its directory, or what such a file holds; its layers must be
            alike. With `tensor_parallel` each GPU has a ring of its own.
        kernel: the kernel of a pair of chunks; by default the GPU's own.
        **options: the fields of a problem, and settings.

    Returns:
        A Ring: `r.results`, `r.to_pandas()`, `r.figure()`.

    Raises:
        InputError: an unknown link or method, or a problem, kernel or number of GPUs that does not go with it.
    """
    from iosim.studies.distributed.ring import run_ring

    of_layers = (
        {} if model is not None else {"layers": None}
    )  # without a model they are those that keep their tensors
    layers, call = call_of(problem, options, model, "a loop", **of_layers)
    of_model = {"model": None, "tensor_parallel": None} | (
        {} if layers is None else {"layers": layers.count}
    )
    number = read("num_gpus", requests.RING["num_gpus"], num_gpus)
    both = {
        "gpu": single(gpu, "gpu"),
        "kernel": single(kernel, "kernel"),
        "num_gpus": number,
        "problems": [call],
    }
    return run_ring(request(requests.RingRequest, options, values={}, **both, **of_model))


@public
def model(
    models: ModelLike | Sequence[ModelLike],
    gpu: str | HardwareProfile | Sequence[str | HardwareProfile] = GPU,
    kernel: str = DEFAULT,
    **options: Unpack[typed.ModelKeywords],
) -> WholeModels:
    """Whole models by part: bytes and seconds of a prefill and a step of decoding, or of training, attention's share.

        >>> iosim.model("llama-3-8b", gpu="h100", seq_len="8k").runs[0].attention_share
        >>> print(iosim.model(["llama-3-8b", "deepseek-v3"], gpu="h200", context="32k", batch=16))

    Args:
        models: a model's name, a path to a Hugging Face config.json or its directory, or what such a file holds; of
            several a list, or names as "a,b". They stand side by side.
        gpu: GPUs' names or paths to profile files, as a list or "a100,h100".
        kernel: the kernel of the attention; by default the GPU's own.
        **options: what the models do, and what of them.

    Returns:
        A WholeModels: `m.runs`, `m.runs[0].parts`, `m.runs[0].attention_share`, `m.to_pandas()`.

    Raises:
        InputError: values that make no sense, a model whose config does not say what its layers hold, or a kernel that
            cannot run its attention on that GPU.
    """
    from iosim.integrations.models import load_model
    from iosim.studies.models.whole import run_whole

    several = models.split(",") if isinstance(models, str) else models
    listed = list(several) if isinstance(several, Sequence) else [several]
    which = {
        "models": [load_model(source) for source in listed],
        "gpu": names(gpu, "gpu"),
        "kernel": single(kernel, "kernel"),
    }
    return run_whole(request(requests.WholeRequest, options, **which))


@public
def train_memory(
    gpu: str | HardwareProfile = GPU,
    kernel: str | None = None,
    *,
    model: ModelLike | None = None,
    **options: Unpack[typed.TrainMemoryKeywords],
) -> TrainingPrediction:
    """Memory and time of a training step on one GPU, and from there the map of what fits.

        >>> iosim.train_memory("l4", seq_len=4096, width=2048, layers=12).fits
        >>> iosim.train_memory("l4").frontier("width", [1024, 2048], "2k:8k:x2").longest

    The defaults are the sizes of GPT-2 small.

    Args:
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        kernel: catalog kernel whose time stands for the attention; by default the attention's own.
        model: a model's name, a path to a config.json or its directory, or what such a file holds; what other keywords
            leave open is the model's.
        **options: what is trained, and how.

    Returns:
        A TrainingPrediction: `t.peak_bytes`, `t.fits`, `t.time`, `t.frontier("width")`, `t.figure()`.

    Raises:
        InputError: values that make no sense, or an attention that cannot run on the GPU.
    """
    from iosim.integrations.models.load import decoder_of
    from iosim.studies.training.prediction import run_training

    which = None if kernel is None else single(kernel, "kernel")
    its = loaded(model)
    of_model = None if its is None else decoder_of(its)
    return run_training(
        request(
            requests.TrainRequest, options, gpu=single(gpu, "gpu"), kernel=which, of_model=of_model
        )
    )


@public
def sweep(
    problems: str | os.PathLike[str] | pandas.DataFrame | None = None,
    *,
    model: ModelLike | None = None,
    **values: Any,
) -> pandas.DataFrame:
    """A prediction for every combination of `values`, a row each: bytes by level, bounds, time, memory.

        >>> iosim.sweep(gpu=["a100", "h100"], kernel="fa2", seq_len=[1024, 4096], heads=[16, 32], method="capacity")
        >>> iosim.sweep(model="gemma-3-12b", gpu="h100", kernel="fa3", seq_len=[1024, 4096], method="capacity")

    A combination that cannot run is a row with its reason in the column `refused`. "bounds" and "capacity" have closed
    forms, a million rows in seconds, and no times.

    Args:
        problems: rows to predict, each with every combination of `values`: a CSV or Parquet file, or a DataFrame.
            Columns are named as fields of `AttentionProblem`, settings of a kernel, or options of the command line;
            `gpu` and `kernel` may be among them. Empty cells are defaults.
        model: a model's name, a path to a config.json or its directory, or what such a file holds: a row for each kind
            of its layers, with the columns `model`, `layer` and `count`.
        **options: of a model and of the sweep. A file `out` is written to in a journal beside it until the last row is
            done; asked for again after an interrupt, the sweep goes on with the rows that are missing.
        values: fields, settings, `gpu` and `kernel`, each one value or several; `seq_len` is `seq_q`, `causal=True` is
            `mask="causal"`, None is the default. What is not given is as `iosim predict` has it.

    Raises:
        InputError: values that make no sense, every row refused, or a file that cannot be written.
    """
    from iosim.studies.sweep.run import run_sweep

    options = {name: values.pop(name) for name in KEYWORDS["sweep"] if name in values}
    return run_sweep(
        request(
            requests.SweepRequest, options, problems=problems, model=loaded(model), values=values
        )
    )
