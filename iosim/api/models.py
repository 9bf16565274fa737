"""The functions beyond one attention call: formulas, a model that decodes, many GPUs, a training step.

Each takes the options of the command of its name as keywords, and returns what the command prints, as data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from iosim.api.asked import names, one, read
from iosim.api.keywords import FORMULA, PROBLEM, SHORT, public
from iosim.api.with_model import model_of, one_problem
from iosim.base.errors import InputError
from iosim.base.words import DEFAULT

if TYPE_CHECKING:
    from iosim.api.typed import FormulaKeywords, ProblemKeywords
    from iosim.api.with_model import ModelLike
    from iosim.hardware.profile import HardwareProfile
    from iosim.kernel.kernel import Kernel
    from iosim.problem.attention import AttentionProblem
    from iosim.studies.decode import DecodePoint, Decoding
    from iosim.studies.distributed.ring import Ring
    from iosim.studies.formulas.face import FormulaStudy
    from iosim.studies.training import TrainingPrediction

GPU = "a100"
"""Where nothing else is said, here and on the command line."""
CONTEXTS = "1k:128k:x2"


@public(FORMULA)
def formula(name: str, gpu: str | HardwareProfile | None = None, **asked: Unpack[FormulaKeywords]) -> FormulaStudy:
    """A kernel's bytes between SMs and L2 in closed form: in symbols, or with the numbers put in that are given.

        >>> iosim.formula("flash", head_dim=128, tile=(128, 64)).formula.total("read")

    Args:
        name: an algorithm (`flash`, `flash1`, `naive`, ...) or a kernel (`fa2`, `cudnn`, ...).
        gpu: the GPU for which a library kernel chooses its tile; by default a100.
        **asked: what is known of the problem.

    Returns:
        A FormulaStudy: `f.formula` (SymPy expressions), `f.latex`, `f.to_dict()`, `f.to_pandas()`.

    Raises:
        InputError: an unknown name, or values that make no sense.
    """
    from iosim.studies.formulas.study import describe

    values = {
        FORMULA[keyword].name: FORMULA[keyword].check(read(keyword, FORMULA[keyword], value))
        for keyword, value in asked.items()
    }
    usual = {about.name: about.default for about in FORMULA.values()}
    return describe({**usual, **values, "name": name, "gpu": None if gpu is None else one(gpu, "gpu")})


@public()
def decode(
    gpu: str | HardwareProfile | Sequence[str | HardwareProfile] = GPU,
    kernel: str | Sequence[str] | None = None,
    *,
    model: ModelLike | None = None,
    tensor_parallel: int | None = None,
    split_rule: str | Sequence[str] | None = None,
    context: int | str | Sequence[int | str] = CONTEXTS,
    batch_contexts: str | Sequence[int] | None = None,
    batch: int = 1,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    head_dim_v: int | None = None,
    dtype: str | None = None,
    layers: int | None = None,
    window: int | None = None,
    latent_kv: bool = False,
    page_size: int | None = None,
    new_tokens: int = 1,
    splits: int | None = None,
    append_kv: bool = False,
    launched: str = "alone",
) -> Decoding:
    """Attention of a model that generates text: bytes and seconds a token over the context's length.

        >>> iosim.decode("h100", heads=32, kv_heads=8, layers=32, context=[1024, 8192])
        >>> iosim.decode("h100", model="gemma-3-12b")
        >>> iosim.decode("h100", split_rule="fa3,vllm,flashinfer", batch_contexts=[1024, 4096, 65536])

    The defaults are the sizes of Llama-3-8B; those of a model are its own.

    Args:
        gpu: GPUs' names or paths to profile files, as a list or "a100,h100".
        kernel: kernels, as a list or "fa2,flash"; by default the GPU's own.
        model: a model's name, a path to a Hugging Face config.json or its directory, or what such a file holds. Sizes
            beside it take the place of its own.
        tensor_parallel: GPUs that share the heads of the model's layers; numbers are of each.
        split_rule: in place of `kernel`, whose rule splits the keys: fa2, fa3, vllm, sglang, flashinfer, as a list or a
            text.
        context: tokens in the cache at the end of a step: a number, a list, or a text such as "1k:128k:x2".
        batch_contexts: in place of `batch` and `context`: sequences of these contexts in one launch, as a list, a
            text, or the path of a file.
        batch: sequences.
        heads: query heads; by default 32.
        kv_heads: key/value heads; by default 8, or 1 with `latent_kv`.
        head_dim: columns of Q and K; by default 128.
        head_dim_v: columns of V and O; by default as many as of Q and K.
        dtype: type of the inputs; by default bf16.
        layers: attention layers; by default 32. The first so many of a model's.
        window: keys kept before a query; by default all.
        latent_kv: V is the first `head_dim_v` columns of K.
        page_size: tokens of a page of the cache; by default the keys of a sequence lie in one piece.
        new_tokens: query tokens of a sequence in a step.
        splits: parts that the keys of a head are split into; by default the kernel's choice.
        append_kv: a launch before writes the queries' K and V to the cache.
        launched: "alone" (each launch as a profiler times it) or "graph" (replayed in a CUDA graph).

    Returns:
        A Decoding: `d.points`, `d.to_pandas()`, `d.figure()`.

    Raises:
        InputError: values that make no sense, or a kernel that cannot run the shape on that GPU.
    """
    from iosim.kernel.overrides import Overrides
    from iosim.problem.asked import lengths
    from iosim.studies.decode import Decoding, ModelShape, sweep
    from iosim.studies.decode.asked import chosen_kernels
    from iosim.studies.decode.batches import check_contexts, read_contexts, sweep_batch
    from iosim.studies.decode.stack import sweep_model

    kernels = None if kernel is None else names(kernel, "kernel")
    rules = None if split_rule is None else names(split_rule, "split_rule")
    step = {"new_tokens": new_tokens, "overrides": Overrides(splits=splits, append_kv=append_kv), "launched": launched}
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "head_dim_v": head_dim_v, "window": window}
    model_asked = model_of(model, None, sizes, layers if model is not None else None, tensor_parallel)
    if batch_contexts is not None and (model_asked is not None or batch != 1 or context != CONTEXTS):
        other = "model" if model_asked is not None else "batch" if batch != 1 else "context"
        raise InputError(f"`batch_contexts` contradicts `{other}`; give one of them")
    made: list[DecodePoint] = []
    for gpu_name in names(gpu, "gpu"):
        for name, page in chosen_kernels(gpu_name, kernels, rules, page_size, batch_contexts is not None):
            if model_asked is not None:
                asked = {"dtype": dtype, "page_size": page}
                at = lengths(context, "context")
                made += sweep_model(model_asked, at, gpu_name, name, asked=asked, batch=batch, **step)
                continue
            query_heads = 32 if heads is None else heads
            shape = ModelShape(
                heads=query_heads, kv_heads=(1 if latent_kv else min(8, query_heads)) if kv_heads is None else kv_heads,
                head_dim=128 if head_dim is None else head_dim, head_dim_v=head_dim_v,
                layers=32 if layers is None else layers, dtype="bf16" if dtype is None else dtype, latent_kv=latent_kv,
                page_size=page, window=window,
            )  # fmt: skip
            if batch_contexts is not None:
                given = batch_contexts
                keys = read_contexts(given) if isinstance(given, str) else check_contexts(given)
                made += sweep_batch(shape, keys, gpu_name, name, **step)
            else:
                made += sweep(shape, lengths(context, "context"), gpu_name, name, batch=batch, **step)
    return Decoding(tuple(made))


@public(PROBLEM, SHORT)
def ring(
    problem: AttentionProblem | None = None,
    num_gpus: int = 8,
    gpu: str | HardwareProfile = GPU,
    *,
    model: ModelLike | None = None,
    tensor_parallel: int | None = None,
    kernel: str | Kernel = DEFAULT,
    link: str | float = "nvlink",
    gpus_per_node: int | None = None,
    network: str | float | None = None,
    shared_network: bool = False,
    overlap: bool = True,
    schedule: str | Sequence[str] | None = None,
    layers: int | None = None,
    **asked: Unpack[ProblemKeywords],
) -> Ring:
    """One attention over several GPUs: chunk schedules, idle time, bytes on the links, time and memory.

        >>> iosim.ring(num_gpus=8, gpu="h100", seq_len="256k", causal=True, schedule="balanced")

    Args:
        problem: what all GPUs compute together; by default what the keywords say.
        num_gpus: number of GPUs.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        model: a model's name, a path to a config.json or its directory, or what such a file holds; its layers must be
            alike.
        tensor_parallel: GPUs that share the heads of the model's layers; each has a ring of its own.
        kernel: the kernel of a pair of chunks; by default the GPU's own.
        link: nvlink, pcie, ib, ib-100g, ib-200g, or gigabytes a second in one direction.
        gpus_per_node: GPUs joined by `link`; needs `network`.
        network: link between nodes, as `link`.
        shared_network: one network port a node, not one a GPU.
        overlap: whether messages run beside the computations of their step.
        schedule: ring, vanilla, balanced, zigzag, striped, megatron, rsa, as a list or a text; by default all that run.
        layers: layers that keep Q, K, V, O for the backward, in memory; by default 1, or all of the model's.
        **asked: the fields of a problem.

    Returns:
        A Ring: `r.results`, `r.to_pandas()`, `r.figure()`.

    Raises:
        InputError: an unknown link or method, or a problem, kernel or number of GPUs that does not go with it.
    """
    from iosim.studies.distributed.ring import ring as ring_typed

    of_model = None if model is None else layers
    what, which = one_problem(model, problem, asked, of_model, tensor_parallel, "a loop")
    kept = which.count if which is not None else 1 if layers is None else layers
    return ring_typed(
        what, num_gpus, one(gpu, "gpu"), link=link, network=network,
        gpus_per_node=gpus_per_node, shared_network=shared_network, kernel=one(kernel, "kernel"),
        schedules=None if schedule is None else names(schedule, "schedule"), overlap=overlap, layers=kept,
    )  # fmt: skip


@public()
def train_memory(
    gpu: str | HardwareProfile = GPU,
    kernel: str | None = None,
    *,
    model: ModelLike | None = None,
    seq_len: int | str = 1024,
    batch: int | str = 1,
    layers: int | str | None = None,
    width: int | str | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    causal: bool = True,
    mlp_ratio: float | None = None,
    mlp_width: int | None = None,
    gated: bool = False,
    activation: str = "gelu",
    vocabulary: int = 50257,
    untied: bool = False,
    norm: str = "layer",
    positions: str = "learned",
    linear_bias: bool = True,
    attention: str = "flash",
    precision: str = "amp-bf16",
    optimizer: str = "adamw",
    step: str = "foreach",
    recompute: str = "none",
    backend: str = "cuda",
    accumulate_gradients: bool = False,
    reserve: int = 0,
) -> TrainingPrediction:
    """Memory and time of a training step on one GPU, and from there the map of what fits.

        >>> iosim.train_memory("l4", seq_len=4096, width=2048, layers=12).fits
        >>> iosim.train_memory("l4").frontier("width", [1024, 2048], "2k:8k:x2").longest

    The defaults are the sizes of GPT-2 small.

    Args:
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        kernel: catalog kernel whose time stands for the attention; by default the attention's own.
        model: a model's name, a path to a config.json or its directory, or what such a file holds; what other keywords
            leave at their defaults is the model's.
        seq_len: tokens.
        batch: sequences.
        layers: layers; by default 12.
        width: columns of the residual stream; by default 768.
        heads: query heads; by default width / 64.
        kv_heads: key/value heads; by default as many as query heads.
        causal: whether a token sees no later ones.
        mlp_ratio: columns inside the MLP over width; by default 4.
        mlp_width: columns inside the MLP, in place of the ratio; 0 for none.
        gated: whether the MLP is gated, of three matrices.
        activation: gelu, silu or relu.
        vocabulary: tokens; 0 for no embedding and head.
        untied: whether the head has a matrix of its own.
        norm: layer, rms or none.
        positions: learned or none.
        linear_bias: whether linear layers have a bias.
        attention: naive (eager) or flash.
        precision: fp32, fp16, bf16, amp-fp16 or amp-bf16.
        optimizer: none, sgd, momentum, adam, adamw or adam8bit.
        step: how the optimizer runs: foreach, loop or fused.
        recompute: none, full or attention.
        backend: whose kernels' saved tensors: cuda or cpu (no times).
        accumulate_gradients: whether gradients of an earlier backward are there.
        reserve: bytes of memory that tensors cannot use.

    Returns:
        A TrainingPrediction: `t.peak_bytes`, `t.fits`, `t.time`, `t.frontier("width")`, `t.figure()`.

    Raises:
        InputError: values that make no sense, or an attention that cannot run on the GPU.
    """
    asked = dict(locals())
    from iosim.studies.training import predict_training
    from iosim.studies.training.asked import model_and_setup

    if model is not None:
        asked |= _of_model(model, asked)

    which = None if kernel is None else one(kernel, "kernel")
    return predict_training(*model_and_setup(asked), one(gpu, "gpu"), kernel=which, reserve_bytes=reserve)


def _of_model(model: ModelLike, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A model's sizes and choices, for keywords that are at their defaults."""
    import inspect

    from iosim.integrations.models import load_model
    from iosim.integrations.models.training import decoder_of

    usual = {name: p.default for name, p in inspect.signature(train_memory).parameters.items()}
    taken = {name: value for name, value in decoder_of(load_model(model)).items() if asked[name] == usual[name]}
    if asked["mlp_ratio"] is not None or asked["width"] is not None:
        taken.pop("mlp_width", None)
    return taken
