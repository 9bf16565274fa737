"""The functions of one attention call: what it moves, beside others, which tiles, and why.

Each takes the options of the command of its name as keywords, or a problem in their place, and returns what the command
prints, as data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack, overload

from iosim.api.asked import names, one, overrides_of, problem_of, read
from iosim.api.keywords import PROBLEM, SETTINGS, SHORT, public
from iosim.api.with_model import layer_problems, model_of, one_problem, several_problems, single, values_of
from iosim.base.errors import InputError
from iosim.base.words import DEFAULT
from iosim.prediction.predictor import predict as predict_typed
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem

if TYPE_CHECKING:
    from iosim.api.typed import Keywords, ProblemKeywords
    from iosim.api.with_model import ModelLike
    from iosim.hardware.profile import HardwareProfile
    from iosim.kernel.kernel import Kernel
    from iosim.kernel.overrides import Overrides
    from iosim.studies.compare import Comparison
    from iosim.studies.explain import Explanation
    from iosim.studies.models.prediction import ModelPrediction
    from iosim.studies.orders import OrderRanking
    from iosim.studies.tiles.one import TileStudy
    from iosim.studies.tiles.pick import TileRanking

GPU = "a100"
"""Where nothing else is said, here and on the command line."""


@overload
def predict(
    problem: AttentionProblem | None = ..., kernel: str | Kernel | None = ..., gpu: str | HardwareProfile = ..., *,
    model: None = ..., layers: None = ..., tensor_parallel: None = ..., l2: str = ..., method: str | None = ...,
    overrides: Overrides | None = ..., clocks: str | float = ..., launched: str = ..., **asked: Unpack[Keywords],
) -> Prediction: ...  # fmt: skip
@overload
def predict(
    problem: None = ..., kernel: str | Kernel | None = ..., gpu: str | HardwareProfile = ..., *,
    model: ModelLike, layers: int | None = ..., tensor_parallel: int | None = ..., l2: str = ...,
    method: str | None = ..., overrides: Overrides | None = ..., clocks: str | float = ..., launched: str = ...,
    **asked: Unpack[Keywords],
) -> ModelPrediction: ...  # fmt: skip
@public(PROBLEM, SHORT, SETTINGS)
def predict(
    problem: AttentionProblem | None = None,
    kernel: str | Kernel | None = None,
    gpu: str | HardwareProfile = GPU,
    *,
    model: ModelLike | None = None,
    layers: int | None = None,
    tensor_parallel: int | None = None,
    l2: str = "cold",
    method: str | None = None,
    overrides: Overrides | None = None,
    clocks: str | float = "boost",
    launched: str = "alone",
    **asked: Unpack[Keywords],
) -> Prediction | ModelPrediction:
    """Bytes by level and tensor, bounds, time and memory of one attention call, or of all of a model's, on one GPU.

        >>> p = iosim.predict(kernel="fa2", gpu="h100", heads=32, seq_len=4096, head_dim=128, causal=True)
        >>> p.hbm.read, p.l2.read, p.time_s
        >>> iosim.predict(model="llama-3-8b", gpu="h100", seq_len=8192).cache_bytes

    Args:
        problem: what is computed, as an AttentionProblem; by default what the keywords say.
        kernel: a catalog name (`fa2`, `sdpa`, ...) or a Kernel of your own; by default the GPU's own for the problem,
            and for each kind of a model's layers.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        model: a model's name, a path to a Hugging Face config.json or its directory, or what such a file holds. Other
            keywords take the place of its own numbers.
        layers: the model's first layers; by default all.
        tensor_parallel: GPUs that share the heads of the model's layers; numbers are of each.
        l2: the L2 at the start: "cold" (flushed) or "warm", as the same call just before left it.
        method: how bytes at HBM are found: "replay" (the launches played through the L2), "sampled" (a replay of a
            part), "capacity" (an estimate) or "bounds" (the interval alone); by default a replay, of a part where all
            of it would take long.
        overrides: settings over a catalog kernel's choice, in place of the keywords for them.
        clocks: "boost" (a call after a pause), "sustained" (calls for seconds, held by the board's power limit) or the
            SMs' clock in hertz.
        launched: "alone" (each launch as a profiler times it) or "graph" (the call replayed in a CUDA graph).
        **asked: the fields of a problem and the settings over a kernel's choice.

    Returns:
        A Prediction: `p.hbm.read`, `p.l2.read`, `p.time_s`, `p.to_pandas()`, `p.figure()`. Of a model a
        ModelPrediction, which has them too, and `p.layers`, a prediction a kind of layer.

    Raises:
        InputError: values that make no sense, or a kernel that cannot run the problem on that GPU.
    """
    chosen = model_of(model, problem, asked, layers, tensor_parallel)
    if chosen is not None:
        from iosim.studies.models.prediction import predict_model

        results = predict_model(
            chosen, values_of(asked), [DEFAULT if kernel is None else one(kernel, "kernel")], [one(gpu, "gpu")],
            l2_start=l2, method=method, overrides=overrides_of(asked, kernel, overrides), clocks=clocks,
            launched=launched,
        )  # fmt: skip
        return single(results, asked)
    kernel = DEFAULT if kernel is None else kernel
    return predict_typed(
        problem_of(problem, asked), one(kernel, "kernel"), one(gpu, "gpu"), l2_start=l2, method=method,
        overrides=overrides_of(asked, kernel, overrides), clocks=clocks, launched=launched,
    )  # fmt: skip


@public(PROBLEM, SHORT)
def compare(
    problem: AttentionProblem | Sequence[AttentionProblem] | None = None,
    kernel: str | Sequence[str] = ("naive", DEFAULT),
    gpu: str | Sequence[str] = GPU,
    *,
    model: ModelLike | None = None,
    layers: int | None = None,
    tensor_parallel: int | None = None,
    baseline: str | None = None,
    l2: str = "cold",
    method: str | None = None,
    **asked: Unpack[ProblemKeywords],
) -> Comparison:
    """Kernels, GPUs and sequence lengths side by side: bytes by level, time and memory, with ratios to a baseline.

        >>> iosim.compare(kernel=["naive", "fa2"], gpu=["a100", "h100"], seq_len=[1024, 4096])

    Args:
        problem: one or several problems that differ in their length alone; by default what the keywords say.
        kernel: catalog names, as a list or "naive,fa2"; "default" is each GPU's own.
        gpu: GPUs' names or paths to profile files, as a list or "a100,h100".
        model: a model's name, a path to a config.json or its directory, or what such a file holds; its layers must be
            alike.
        layers: the model's first layers; by default all.
        tensor_parallel: GPUs that share the heads of the model's layers; numbers are of each.
        baseline: a kernel, or `kernel@gpu`, that the ratios are to; by default the first kernel with N x N tensors.
        l2: the L2 at the start: "cold" or "warm".
        method: how bytes at HBM are found, as in `predict`.
        **asked: the fields of a problem.

    Returns:
        A Comparison: `c.entries`, `c.to_pandas()`, `c.figure()`.

    Raises:
        InputError: an unknown name, problems that differ in more than their length, or nothing that can run.
    """
    from iosim.studies.compare import compare as compare_typed

    return compare_typed(
        several_problems(model, problem, asked, layers, tensor_parallel), names(kernel, "kernel"), names(gpu, "gpu"),
        baseline=baseline, method=method, l2_start=l2,
    )  # fmt: skip


@public(PROBLEM, SHORT)
def pick_tiles(
    problem: AttentionProblem | None = None,
    gpu: str | HardwareProfile = GPU,
    *,
    model: ModelLike | None = None,
    layers: int | None = None,
    tensor_parallel: int | None = None,
    matrix_unit: str = "mma.sync",
    library: bool = True,
    compile: int | None = None,
    **asked: Unpack[ProblemKeywords],
) -> TileRanking:
    """The tiles that fit a problem on a GPU, ranked by predicted time, and why the others do not fit.

        >>> ranking = iosim.pick_tiles(gpu="rtx4090", head_dim=128, causal=True)
        >>> ranking.best.tile, ranking.rejected[0].reason

    Args:
        problem: what is computed, forward or backward; by default what the keywords say.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        model: a model's name, a path to a config.json or its directory, or what such a file holds; its layers must be
            alike.
        layers: the model's first layers; by default all.
        tensor_parallel: GPUs that share the heads of the model's layers; numbers are of each.
        matrix_unit: what computes the products: "mma.sync", or "wgmma" (cc 9.0).
        library: whether the library kernels with their own tiles are predicted, too.
        compile: how many of the first tiles of which no build is recorded are compiled by nvcc, and ranked with what
            it says; by default none.
        **asked: the fields of a problem.

    Returns:
        A TileRanking: `r.best`, `r.candidates`, `r.rejected`, `r.library`, `r.to_pandas()`.

    Raises:
        InputError: both passes at once, or a matrix unit or a type that the GPU does not have.
    """
    from iosim.evidence.cuda.tile_builds import reports
    from iosim.studies.tiles.pick import pick_tiles as pick_typed

    what, which = one_problem(model, problem, asked, layers, tensor_parallel, "iosim.compare")
    on = one(gpu, "gpu")
    known = reports(what, on, compile, matrix_unit)
    return pick_typed(what, on, matrix_unit=matrix_unit, library=library, layers=which, reports=known)


@public(PROBLEM, SHORT)
def orders(
    problem: AttentionProblem | Sequence[AttentionProblem] | None = None,
    kernel: str | Kernel | None = None,
    gpu: str | HardwareProfile = GPU,
    *,
    model: ModelLike | None = None,
    layers: int | None = None,
    tensor_parallel: int | None = None,
    weights: Sequence[float] | None = None,
    tile: str | tuple[int, int] | Sequence[str | tuple[int, int]] | None = None,
    order: str | None = None,
    heavy_first: bool | None = None,
    fold: bool | None = None,
    section_heads: int | None = None,
    direction: str | None = None,
    scheduler: str | None = None,
    cluster: int | None = None,
    l2: str = "cold",
    **asked: Unpack[ProblemKeywords],
) -> OrderRanking:
    """In which order a kernel's tiles should start: every order predicted, the best first.

        >>> r = iosim.orders(gpu="h200", heads=8, seq_len="32k", causal=True)
        >>> r.best, r.own, print(r.code("triton"))

    Args:
        problem: what is computed, or several problems that one order is to suit; by default what the keywords say.
        kernel: a catalog name or a Kernel of your own; by default the GPU's own.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        model: a model's name, a path to a config.json or its directory, or what such a file holds: one order for all of
            its layers.
        layers: the model's first layers; by default all.
        tensor_parallel: GPUs that share the heads of the model's layers.
        weights: how often each problem is called; once by default, and of a model as often as it has such layers.
        tile: tiles to try beside the kernel's own, such as "128x64" or ["128x64", "64x64"].
        order: what runs fastest, if that is to stay: "query", "head" or "batch". So for the six below.
        heavy_first: long query blocks first.
        fold: the longest query block, the shortest, the second longest and so on.
        section_heads: heads of a section.
        direction: of the key loop: "ascending", "descending" or "alternating".
        scheduler: how CTAs take tiles: "static", "persistent" or "dynamic".
        cluster: neighbouring CTAs that fetch keys and values once for all of them.
        l2: the L2 at the start: "cold" or "warm".
        **asked: the fields of a problem.

    Returns:
        An OrderRanking: `r.best`, `r.orders`, `r.pareto`, `r.own`, `r.code("triton")`, `r.to_pandas()`.

    Raises:
        InputError: values that make no sense, or a kernel without an order to choose.
    """
    from iosim.kernel.kernel import Tile
    from iosim.studies.orders import search_orders
    from iosim.studies.orders.space import pinned_fields

    sides = [tile] if isinstance(tile, (str, tuple)) else list(tile or ())
    tiles = [Tile(*SETTINGS["tile"].check(read("tile", SETTINGS["tile"], one_tile or ()))) for one_tile in sides]
    kept = {"order": order, "heavy_first": heavy_first, "fold": fold, "section_heads": section_heads,
            "direction": direction, "scheduler": scheduler, "cluster": cluster}  # fmt: skip
    problems, counts = layer_problems(model, problem, asked, layers, tensor_parallel)
    return search_orders(
        problems, DEFAULT if kernel is None else one(kernel, "kernel"), one(gpu, "gpu"),
        weights=counts if weights is None else weights, tiles=tiles, pinned=pinned_fields(kept), l2_start=l2,
    )  # fmt: skip


@public(PROBLEM, SHORT, SETTINGS)
def explain(
    problem: Prediction | AttentionProblem | None = None,
    kernel: str | Kernel = DEFAULT,
    gpu: str | HardwareProfile = GPU,
    *,
    l2: str = "cold",
    overrides: Overrides | None = None,
    **asked: Unpack[Keywords],
) -> Explanation:
    """Why a kernel reads from HBM what it reads, in words and numbers, and which change would help most.

        >>> iosim.explain(kernel="fa2", gpu="h200", heads=8, seq_len="32k", causal=True)

    Args:
        problem: what is computed, or a Prediction made by replay, which says the kernel and the GPU, too; by default
            what the keywords say.
        kernel: a catalog name or a Kernel of your own; by default the GPU's own.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        l2: the L2 at the start: "cold" or "warm".
        overrides: settings over a catalog kernel's choice, in place of the keywords for them.
        **asked: the fields of a problem and the settings over a kernel's choice.

    Returns:
        An Explanation: `e.launches`, `e.sources`, `e.advice`.

    Raises:
        InputError: values that make no sense, or a replay too long to trace.
    """
    from iosim.studies.explain import explain as explain_typed

    if isinstance(problem, Prediction):
        if asked or overrides is not None:
            name = next(iter(asked), "overrides")
            raise InputError(f"`{name}` contradicts a prediction, which has been made; accepted: one of them")
        return explain_typed(problem)
    asked_for = problem_of(problem, asked), one(kernel, "kernel"), one(gpu, "gpu")
    settings = overrides_of(asked, kernel, overrides)
    return explain_typed(predict_typed(*asked_for, l2_start=l2, method="replay", overrides=settings))


@public(PROBLEM, SHORT)
def study_tile(
    tile: str | tuple[int, int],
    problem: AttentionProblem | None = None,
    gpu: str | HardwareProfile = GPU,
    *,
    warps: int | None = None,
    stages: int | None = None,
    matrix_unit: str = "mma.sync",
    **asked: Unpack[ProblemKeywords],
) -> TileStudy:
    """Everything about one tile, as `iosim tiles --tile` prints it: whether it fits, what it is short of, its rank.

        >>> iosim.study_tile("96x48", gpu="rtx4090", head_dim=256).answer

    Args:
        tile: query rows x key rows, such as "96x48" or (96, 48).
        problem: what is computed, forward or backward; by default what the keywords say.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        warps: warps a CTA; by default each number that is tried.
        stages: key/value buffers; by default each number that is tried.
        matrix_unit: what computes the products: "mma.sync", or "wgmma" (cc 9.0).
        **asked: the fields of a problem.

    Returns:
        A TileStudy: `t.answer`, `t.fits`, `t.ranked`, `t.rejected`, `t.nearest`.

    Raises:
        InputError: no pair of sides, or as `pick_tiles`.
    """
    from iosim.studies.tiles.one import study_tile as study_typed
    from iosim.studies.tiles.pick import pick_tiles as pick_typed

    sides = SETTINGS["tile"].check(read("tile", SETTINGS["tile"], tile))
    ranking = pick_typed(problem_of(problem, asked), one(gpu, "gpu"), matrix_unit=matrix_unit, library=False)
    return study_typed(ranking, sides, matrix_unit, warps=warps, stages=stages)
