"""The functions of one attention call: what it moves, beside others, which tiles, why, and what a number counts.

Each takes the options of the command of its name as keywords, or a problem in their place, and returns what the command
prints, as data.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from iosim.api.keywords import (
    SETTINGS,
    call_of,
    calls_of,
    check_one,
    names,
    of_problem,
    overrides_of,
    public,
    read,
    request,
    single,
)
from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.base.words import DEFAULT
from iosim.prediction.predictor import predict as predict_typed
from iosim.prediction.result import Prediction
from iosim.problem.asked import lengths
from iosim.problem.attention import AttentionProblem
from iosim.studies import requests

if TYPE_CHECKING:
    from iosim.api import typed
    from iosim.api.keywords import ModelLike
    from iosim.evidence.claims import Check
    from iosim.prediction.code import CodePrediction
    from iosim.studies.against import Differences
    from iosim.studies.code_costs import CodeCosts
    from iosim.studies.compare import Choice, Comparison
    from iosim.studies.explain import Explanation
    from iosim.studies.models.prediction import ModelPrediction
    from iosim.studies.orders import OrderRanking
    from iosim.studies.requests import HardwareProfile, Kernel, Overrides
    from iosim.studies.tiles.one import TileStudy
    from iosim.studies.tiles.pick import TileRanking

GPU = os.environ.get("IOSIM_GPU") or "a100"


@overload
def predict(
    problem: AttentionProblem | None = ...,
    kernel: str | Kernel | None = ...,
    gpu: str | HardwareProfile = ...,
    *,
    model: None = ...,
    overrides: Overrides | None = ...,
    against: None = ...,
    **options: Unpack[typed.PredictKeywords],
) -> Prediction: ...
@overload
def predict(
    problem: None = ...,
    kernel: str | Kernel | None = ...,
    gpu: str | HardwareProfile = ...,
    *,
    model: ModelLike,
    overrides: Overrides | None = ...,
    against: None = ...,
    **options: Unpack[typed.PredictKeywords],
) -> ModelPrediction: ...
@overload
def predict(
    problem: AttentionProblem | None = ...,
    kernel: str | Kernel | None = ...,
    gpu: str | HardwareProfile = ...,
    *,
    model: ModelLike | None = ...,
    overrides: Overrides | None = ...,
    against: str | os.PathLike[str] | Prediction,
    **options: Unpack[typed.PredictKeywords],
) -> Differences: ...
@public
def predict(
    problem: AttentionProblem | None = None,
    kernel: str | Kernel | None = None,
    gpu: str | HardwareProfile = GPU,
    *,
    model: ModelLike | None = None,
    overrides: Overrides | None = None,
    against: str | os.PathLike[str] | Prediction | None = None,
    **options: Unpack[typed.PredictKeywords],
) -> Prediction | ModelPrediction | Differences:
    """Bytes by level and tensor, bounds, time and memory of one attention call, or of all of a model's, on one GPU.

        >>> p = iosim.predict(kernel="fa2", gpu="h100", heads=32, seq_len=4096, head_dim=128, causal=True)
        >>> p.hbm.read, p.l2.read, p.time_s
        >>> iosim.predict(model="llama-3-8b", gpu="h100", seq_len=8192).cache_bytes
        >>> iosim.predict(kernel="mine.toml", against="base.json", fail_above="hbm=5%").holds

    Args:
        problem: what is computed, as an AttentionProblem; by default what the keywords say.
        kernel: a catalog name (`fa2`, `sdpa`, ...) or a Kernel of your own; by default the GPU's own for the problem,
            and for each kind of a model's layers.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        model: a model's name, a path to a Hugging Face config.json or its directory, or what such a file holds. Other
            keywords take the place of its own numbers.
        overrides: settings over a catalog kernel's choice, in place of the keywords for them.
        against: a file that `iosim predict --format json` wrote, or a Prediction, of the same problem on the same GPU.
        **options: of a model, the conditions, the fields of a problem and the settings over a kernel's choice.

    Returns:
        A Prediction: `p.hbm.read`, `p.l2.read`, `p.time_s`, `p.to_pandas()`, `p.figure()`. Of a model a
        ModelPrediction, which has them too, and `p.layers`, a prediction per kind of layer. With `against` Differences:
        `d.holds`, `d.exceeded`, `d.results`, `d.differences`, by level and part, with reasons.

    Raises:
        InputError: values that make no sense, or a kernel that cannot run the problem on that GPU.
    """
    from iosim.studies import against as differences
    from iosim.studies.models.prediction import run_models

    settings = overrides_of(options, kernel, overrides)
    # A model has a kernel and a GPU for each kind of its layers, hence lists of one.
    which = {
        "kernel": [DEFAULT if kernel is None else single(kernel, "kernel")],
        "gpu": [single(gpu, "gpu")],
    }
    request_of_problem = of_problem(
        requests.AgainstRequest,
        problem,
        options,
        model,
        **which,
        overrides=settings,
        against=against,
    )
    check_one(request_of_problem)
    return (
        run_models(request_of_problem)[0]
        if against is None
        else differences.held_against(request_of_problem)
    )


@public
def predict_code(
    code: Any,
    grid: str | Sequence[int],
    arg: Any = None,
    gpu: str | HardwareProfile = GPU,
    *,
    block: str | Sequence[int] | None = None,
    **options: Unpack[typed.PredictCodeKeywords],
) -> CodePrediction:
    """Bytes by level and tensor, time and every load and store of one launch of any kernel, read from its code.

        >>> p = iosim.predict_code("norm.ptx", (4096,), {"x": x, "out": x, "cols": 8192}, "h100", block=(256,))
        >>> p.hbm.read, p.l2.read, p.time_s, p.sites

    Args:
        code: a path to a cubin, PTX, a fatbin, an object or Triton's cache; a compiled Triton kernel; the text of PTX.
        grid: CTAs along x, y and z.
        arg: the arguments in order, by name: numbers, tensors (anything with a shape and a dtype), or texts such as
            "TENSOR(8x4096x64,bf16)"; or a list of texts as the command line has them.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        block: threads of a CTA along x, y and z; by default what the PTX requires.
        **options: which kernel of the code, shared memory that the launch gives, and the conditions.

    Returns:
        A CodePrediction: `p.hbm`, `p.l2`, `p.time_s`, `p.sites`, `p.traffic`, `p.to_dict()`.

    Raises:
        InputError: arguments that do not fit the kernel, or code that cannot be followed.
    """
    from iosim.studies.code import run_code

    return run_code(
        request(
            requests.CodeRequest,
            options,
            code=code,
            grid=grid,
            block=block,
            arg=arg,
            gpu=single(gpu, "gpu"),
        )
    )


@public
def explain_code(
    code: Any,
    grid: str | Sequence[int] | None = None,
    arg: Any = None,
    gpu: str | HardwareProfile = GPU,
    *,
    block: str | Sequence[int] | None = None,
    **options: Unpack[typed.ExplainCodeKeywords],
) -> CodeCosts:
    """What a kernel's machine code spends its time on: loop by loop and unit by unit, spills, bank conflicts, uncoalesced
    requests and waits, each with its line of the source and the time without it.

        >>> iosim.explain_code("plain.cubin", (128, 128), {"in": x, "out": x, "rows": 4096, "columns": 4096}, "h100",
        ...                    block=(32, 8), entry="column_read").costs

    Args:
        code: as `predict_code` takes it, with machine code.
        grid: CTAs along x, y and z; a launch is assumed where it is not given.
        arg: the arguments in order, by name, as `predict_code` takes them; assumed where they are not given.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        block: threads of a CTA along x, y and z; by default what the PTX requires.
        **options: as those of `predict_code`.

    Returns:
        A CodeCosts: `c.loops`, `c.costs`, `c.prediction`, `c.to_dict()`.

    Raises:
        InputError: no such kernel, no machine code of it, or arguments that do not fit it.
    """
    from iosim.studies.code_costs import costs_of_code

    launch = {"code": code, "grid": grid, "block": block, "arg": arg, "gpu": single(gpu, "gpu")}
    return costs_of_code(request(requests.CodeRequest, options, **launch))


@public
def kernel_of_code(
    code: Any,
    grid: str | Sequence[int],
    arg: Any = None,
    gpu: str | HardwareProfile = GPU,
    *,
    problem: AttentionProblem | None = None,
    block: str | Sequence[int] | None = None,
    **options: Unpack[typed.KernelOfCodeKeywords],
) -> str:
    """The name of an attention kernel that is known by its code, for `kernel=` of every function in this process.

        >>> name = iosim.kernel_of_code("mine.cubin", (32, 8), {"Q": q, "K": k, "V": v, "O": o, "tokens": 4096}, "h100")
        >>> iosim.compare(kernel=["fa3", name], gpu="h100", heads=8, seq_len=4096, head_dim=64)

    Args:
        code: as `predict_code` takes it.
        grid: CTAs of a launch along x, y and z, in any order of blocks, heads and sequences.
        arg: that launch's arguments in order, by name; tensors named Q, K, V and O tell which is which.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        problem: what that launch computes, whose heads and sequences its tensors have; by default as Q's shape says.
        block: threads of a CTA along x, y and z; by default what the PTX requires.
        **options: as those of `predict_code`.

    Returns:
        The kernel's name.

    Raises:
        InputError: code that cannot be followed, or that is no attention.
    """
    from iosim.studies.kernel_from_code import kernel_of_code as read_kernel

    launch = {"code": code, "grid": grid, "block": block, "arg": arg, "gpu": single(gpu, "gpu")}
    return read_kernel(request(requests.CodeRequest, options, **launch), problem)


@overload
def compare(
    problem: AttentionProblem | Sequence[AttentionProblem] | None = ...,
    kernel: str | Sequence[str] | None = ...,
    gpu: str | Sequence[str] = ...,
    *,
    model: ModelLike | None = ...,
    per: None = ...,
    batch: int | str | Sequence[int | str] | None = ...,
    seq_len_k: int | str | Sequence[int | str] | None = ...,
    **options: Unpack[typed.CompareKeywords],
) -> Comparison: ...
@overload
def compare(
    problem: AttentionProblem | Sequence[AttentionProblem] | None = ...,
    kernel: str | Sequence[str] | None = ...,
    gpu: str | Sequence[str] = ...,
    *,
    model: ModelLike | None = ...,
    per: str,
    batch: int | str | Sequence[int | str] | None = ...,
    seq_len_k: int | str | Sequence[int | str] | None = ...,
    **options: Unpack[typed.CompareKeywords],
) -> Choice: ...
@public
def compare(
    problem: AttentionProblem | Sequence[AttentionProblem] | None = None,
    kernel: str | Sequence[str] | None = None,
    gpu: str | Sequence[str] = GPU,
    *,
    model: ModelLike | None = None,
    per: str | None = None,
    batch: int | str | Sequence[int | str] | None = None,
    seq_len_k: int | str | Sequence[int | str] | None = None,
    **options: Unpack[typed.CompareKeywords],
) -> Comparison | Choice:
    """Kernels, GPUs and sequence lengths side by side: bytes by level, time and memory, with ratios to a baseline.

        >>> iosim.compare(kernel=["naive", "fa2"], gpu=["a100", "h100"], seq_len=[1024, 4096])
        >>> iosim.compare(model="llama-3-8b", gpu="a100,h100", per="dollar", price="a100=1.5,h100=2.5", batch=[1, 8])

    Args:
        problem: one or several problems that differ in their length alone (with `per`, in their batch, too); by default
            what the keywords say.
        kernel: catalog names, as a list or "naive,fa2"; "default" is each GPU's own. By default "naive,default"; with
            `per` the GPU's own and the libraries'.
        gpu: GPUs' names or paths to profile files, as a list or "a100,h100".
        model: a model's name, a path to a config.json or its directory, or what such a file holds; without `per` its
            layers must be alike.
        per: in place of the table by level, rank GPUs, each with its best kernel: by tokens per second ("token"), or by
            joules or dollars of a token ("joule", "dollar").
        batch: sequences; with `per` one or several.
        seq_len_k: key tokens, by default the query tokens; with `per` one or several.
        **options: of a model and of the comparison, and the fields of a problem.

    Returns:
        A Comparison: `c.entries`, `c.to_pandas()`, `c.figure()`. With `per` a Choice: `c.options`, best first
        (`c.options[0].gpu.label`), `c.to_pandas()`, `c.figure()`.

    Raises:
        InputError: an unknown name, problems that differ in more than their length, a price that is missing, or nothing
            that can run.
    """
    from iosim.studies.compare import run_choice
    from iosim.studies.compare.study import run_comparison
    from iosim.studies.models.asked import one_of_each

    # Two axes are parameters of their own, so that their types are shown: they join the options
    # here, each read as a list of sizes.
    axes = (("batch", batch), ("seq_len_k", seq_len_k))
    all_options = {
        **options,
        **{name: lengths(value, name) for name, value in axes if value is not None},
    }
    which = {
        "gpu": names(gpu, "gpu"),
        "kernel": None if kernel is None else names(kernel, "kernel"),
    }
    requests.check_per(per, options.get("baseline"), options.get("price"))
    # A ranking takes every combination of the axes; a table by level takes lengths alone, so a
    # model must have layers that are alike, and stands for one problem per length.
    if per is not None:
        return run_choice(
            of_problem(requests.ChoiceRequest, problem, all_options, model, per=per, **which)
        )
    of = of_problem(requests.OfProblem, problem, all_options, model)
    problems = [call for _, call in calls_of(replace(of, values=one_of_each(of.values)))]
    # The model is spent: its layers have become the problems.
    of_model = {"model": None, "layers": None, "tensor_parallel": None}
    return run_comparison(
        request(requests.CompareRequest, options, problems=problems, **which, **of_model)
    )


@public
def pick_tiles(
    problem: AttentionProblem | None = None,
    gpu: str | HardwareProfile = GPU,
    *,
    model: ModelLike | None = None,
    **options: Unpack[typed.PickTilesKeywords],
) -> TileRanking:
    """The tiles that fit a problem on a GPU, ranked by predicted time, and why the others do not fit.

        >>> ranking = iosim.pick_tiles(gpu="rtx4090", head_dim=128, causal=True)
        >>> ranking.best.tile, ranking.rejected[0].reason

    Args:
        problem: what is computed, forward or backward; by default what the keywords say.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        model: a model's name, a path to a config.json or its directory, or what such a file holds; its layers must be
            alike.
        **options: of a model and of the tiles, and the fields of a problem.

    Returns:
        A TileRanking: `r.best`, `r.candidates`, `r.rejected`, `r.library`, `r.to_pandas()`.

    Raises:
        InputError: both passes at once, or a matrix unit or a type that the GPU does not have.
    """
    from iosim.evidence.cuda.tile_builds import reports
    from iosim.studies.tiles.pick import rank_tiles

    kind, call = call_of(problem, options, model)
    tiles = request(requests.TilesRequest, options, problem=call, gpu=single(gpu, "gpu"), kind=kind)
    return rank_tiles(tiles, reports(call, tiles.gpu, tiles.compile, tiles.matrix_unit))


@public
def study_tile(
    tile: str | tuple[int, int],
    problem: AttentionProblem | None = None,
    gpu: str | HardwareProfile = GPU,
    **options: Unpack[typed.StudyTileKeywords],
) -> TileStudy:
    """Everything about one tile, as `iosim tiles --tile` prints it: whether it fits, what it is short of, its rank.

        >>> iosim.study_tile("96x48", gpu="rtx4090", head_dim=256).answer

    Args:
        tile: query rows x key rows, such as "96x48" or (96, 48).
        problem: what is computed, forward or backward; by default what the keywords say.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        **options: of the tile, each number that is tried by default, and the fields of a problem.

    Returns:
        A TileStudy: `t.answer`, `t.fits`, `t.ranked`, `t.rejected`, `t.nearest`.

    Raises:
        InputError: no pair of sides, or as `pick_tiles`.
    """
    from iosim.studies.tiles.one import study_tile as study_typed
    from iosim.studies.tiles.pick import rank_tiles

    _, call = call_of(problem, options)
    # No tile is asked of the ranking itself, which is made of all of them: the study finds its
    # own in it, and what the libraries do is not looked up.
    how = request(
        requests.TilesRequest,
        options,
        problem=call,
        gpu=single(gpu, "gpu"),
        tile=None,
        library=False,
    )
    sides = SETTINGS["tile"].check(read("tile", SETTINGS["tile"], tile))
    return study_typed(rank_tiles(how), sides, how.matrix_unit, warps=how.warps, stages=how.stages)


@public
def orders(
    problem: AttentionProblem | Sequence[AttentionProblem] | None = None,
    kernel: str | Kernel | None = None,
    gpu: str | HardwareProfile = GPU,
    *,
    model: ModelLike | None = None,
    tile: str | tuple[int, int] | Sequence[str | tuple[int, int]] | None = None,
    **options: Unpack[typed.OrdersKeywords],
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
        tile: tiles to try beside the kernel's own, such as "128x64" or ["128x64", "64x64"].
        **options: of a model and of the orders, and the fields of a problem.

    Returns:
        An OrderRanking: `r.best`, `r.orders`, `r.pareto`, `r.own`, `r.code("triton")`, `r.to_pandas()`.

    Raises:
        InputError: values that make no sense, or a kernel without an order to choose.
    """
    from iosim.studies.models.asked import asked_problems
    from iosim.studies.orders.search import rank_orders

    sides = [tile] if isinstance(tile, (str, tuple)) else list(tile or ())
    tiles = [
        SETTINGS["tile"].check(read("tile", SETTINGS["tile"], one_tile or ())) for one_tile in sides
    ]
    # One order serves all layers, each weighed by how many of them a model has.
    both = asked_problems(of_problem(requests.OfProblem, problem, options, model))
    counts = [float(layers.count) for layers, _ in both if layers is not None] or None
    which = DEFAULT if kernel is None else single(kernel, "kernel")
    title = next((layers.title for layers, _ in both if layers is not None), "")
    fields = {
        "title": title,
        "problems": [call for _, call in both],
        "kernel": which,
        "gpu": single(gpu, "gpu"),
    }
    return rank_orders(
        request(requests.OrdersRequest, options, **fields, counts=counts, tile=tiles)
    )


@public
def explain(
    problem: Prediction | AttentionProblem | None = None,
    kernel: str | Kernel = DEFAULT,
    gpu: str | HardwareProfile = GPU,
    *,
    overrides: Overrides | None = None,
    **options: Unpack[typed.ExplainKeywords],
) -> Explanation:
    """Why a kernel reads from HBM what it reads, in words and numbers, and which change would help most.

        >>> iosim.explain(kernel="fa2", gpu="h200", heads=8, seq_len="32k", causal=True)

    Args:
        problem: what is computed, or a Prediction made by replay, which says the kernel and the GPU, too; by default
            what the keywords say.
        kernel: a catalog name or a Kernel of your own; by default the GPU's own.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        overrides: settings over a catalog kernel's choice, in place of the keywords for them.
        **options: the L2 at the start, the fields of a problem and the settings over a kernel's choice.

    Returns:
        An Explanation: `e.launches`, `e.sources`, `e.advice`.

    Raises:
        InputError: values that make no sense, or a replay too long to trace.
    """
    from iosim.studies.explain import explain as explain_typed

    # A prediction says all that the keywords could.
    if isinstance(problem, Prediction):
        if options or overrides is not None:
            name = next(iter(options), "overrides")
            raise InputError(
                f"`{name}` contradicts a prediction, which has been made; accepted: one of them"
            )
        return explain_typed(problem)
    _, call = call_of(problem, options)
    settings = overrides_of(options, kernel, overrides)
    # Only a replay knows which line was evicted when, so only it can say why it was read again.
    how: Any = {"l2_start": options.get("l2") or "cold", "method": "replay", "overrides": settings}
    return explain_typed(predict_typed(call, single(kernel, "kernel"), single(gpu, "gpu"), **how))


@public
def check_claim(
    problem: AttentionProblem | None = None,
    kernel: str = DEFAULT,
    gpu: str | HardwareProfile = GPU,
    **options: Unpack[typed.CheckClaimKeywords],
) -> Check:
    """Which level, direction and count a number from elsewhere is of, and why a counter would show another.

        >>> iosim.check_claim(hbm="276.8MB", gpu="a100", seq_len=1024).answer()

    Args:
        problem: what the number is of; by default what the keywords say.
        kernel: a catalog name; by default the GPU's own.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        **options: the number, the fields of a problem and the settings over a kernel's choice.

    Returns:
        A Check: `c.answer()`, `c.matches`, `c.nearest`, `c.prediction`.

    Raises:
        InputError: no claim or several, or values that make no sense.
    """
    from iosim.evidence.claims.check import check_claims

    # A claim is one number: its keyword says the level and the direction it is thought to be of.
    claims = [name for name in requests.CLAIMS if options.get(name) is not None]
    if len(claims) != 1:
        accepted = f"one of {', '.join(requests.CLAIMS)}, such as hbm='4.3GB'"
        raise InputError(
            f"check_claim() takes one claim and has {len(claims)}; accepted: {accepted}"
        )
    _, call = call_of(problem, options, several="a loop", layers=None)
    which = {
        "kernel": single(kernel, "kernel"),
        "gpu": single(gpu, "gpu"),
        "overrides": overrides_of(options, kernel),
    }
    return check_claims(request(requests.ClaimRequest, options, problem=call, **which))[0]
