"""A performance model for `triton.autotune`: which configurations are worth compiling, without running any.

    from iosim.integrations.triton.model import TritonModel

    model = TritonModel("h100")
    @triton.autotune(configs, key=["N_CTX", "HEAD_DIM"], prune_configs_by=model.prune_configs_by(top_k=4))

`perf_model` and `early_config_prune` have the signatures that triton.autotune calls (triton-lang/triton,
python/triton/runtime/autotuner.py): the first gets all arguments of the kernel and of the configuration by name and
gives milliseconds, the second gets the configurations and the arguments and gives those to keep, at least one. Triton
and PyTorch are not imported: configurations need `kwargs`, `num_warps` and `num_stages`, tensors `dtype`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from iosim.base.errors import InputError
from iosim.base.words import Level
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.integrations.triton.compiled import (
    Arguments,
    ProblemOf,
    schedule_of,
    sides_of,
    tutorial_problem,
)
from iosim.integrations.triton.kernel import (
    KERNEL,
    MS_PER_S,
    Config,
    configured,
    misfit,
    try_config,
)
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem

TritonConfig = TypeVar("TritonConfig")
"""A triton.Config, or anything with its `kwargs`, `num_warps` and `num_stages`."""

LaunchMetadata = Callable[[Sequence[int], Any, dict[str, Any]], dict[str, Any]]
LEVELS = ("hbm", "l2")
REMEMBERED = 256
BITS_PER_BYTE = 8


class TritonModel:
    def __init__(
        self,
        profile: str | HardwareProfile,
        *,
        problem: AttentionProblem | ProblemOf = tutorial_problem,
        names: tuple[str, str] = ("BLOCK_M", "BLOCK_N"),
        kernel: str = KERNEL,
    ) -> None:
        """
        Args:
            profile: a GPU's name, a path to a profile file, or a HardwareProfile.
            problem: what is computed, or a function that tells it from the kernel's arguments by name.
            names: the meta-parameters that hold query rows and key rows of a tile.
            kernel: the catalog's entry for the kernel: `triton` or `triton-streaming`.

        Raises:
            InputError: the GPU is not known.
        """
        self.profile = load_profile(profile)
        self.names = names
        self.kernel = kernel
        self._problem = problem

    def problem(self, arguments: Arguments) -> AttentionProblem:
        return (
            self._problem
            if isinstance(self._problem, AttentionProblem)
            else self._problem(arguments)
        )

    def config(self, meta: Arguments) -> Config:
        """The configuration in a kernel's keyword arguments. Raises InputError: the names of the tile's sides are not
        among them, or a value makes no sense."""
        return Config(
            *sides_of(meta, self.names),
            int(meta.get("num_warps", 4)),
            int(meta.get("num_stages", 3)),
        )

    def perf_model(self, **arguments: Any) -> float:
        """Predicted milliseconds of a call; infinity for a configuration that does not fit or would spill. Raises
        InputError: the arguments do not tell the problem or the configuration."""
        problem, config = self.problem(arguments), self.config(arguments)
        result = try_config(config, problem, self.profile, self.kernel)
        return math.inf if isinstance(result, str) else result.time_s * MS_PER_S

    def early_config_prune(
        self, configs: Sequence[TritonConfig], named_args: Arguments, **kwargs: Any
    ) -> list[TritonConfig]:
        """The configurations that fit on the GPU without spilling; if none does, the one with the smallest tile. Raises
        InputError: no configurations, or the arguments do not tell the problem or a configuration."""
        if not configs:
            raise InputError("no configurations to choose from; accepted: at least one")
        arguments = {**named_args, **kwargs}
        problem = self.problem(arguments)
        pairs = [(c, self.config(_meta(c))) for c in configs]
        fitting = [
            c for c, config in pairs if not misfit(config, problem, self.profile, self.kernel)
        ]
        # Where nothing fits Triton still has to run something: least shared memory is likeliest to.
        smallest = min(
            pairs, key=lambda m: (m[1].block_m * m[1].block_n, m[1].num_stages, -m[1].num_warps)
        )
        return fitting or [smallest[0]]

    def prune_configs_by(self, top_k: int | float = 4) -> dict[str, Any]:
        """The dictionary for triton.autotune's `prune_configs_by`.

        Args:
            top_k: how many configurations are measured; a fraction of them where it is a float up to 1.

        Raises:
            InputError: neither a whole number from 1 nor a fraction.
        """
        # Triton takes 1 as one configuration and 1.0 as all of them.
        whole = isinstance(top_k, int) and not isinstance(top_k, bool) and top_k >= 1
        fraction = isinstance(top_k, float) and 0 < top_k <= 1
        if not (whole or fraction):
            raise InputError(
                f"top_k {top_k!r} is out of range; accepted: a whole number from 1, or a float in (0, 1]"
            )
        return {
            "perf_model": self.perf_model,
            "top_k": top_k,
            "early_config_prune": self.early_config_prune,
        }


def _meta(config: Any) -> dict[str, Any]:
    return {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}


def launch_metadata(
    gpu: str | HardwareProfile,
    *,
    problem: AttentionProblem | ProblemOf = tutorial_problem,
    names: tuple[str, str] = ("BLOCK_M", "BLOCK_N"),
    kernel: str = KERNEL,
    level: Level = "hbm",
) -> LaunchMetadata:
    """Predicted bytes and FLOPs for Proton, Triton's profiler, so that it prints rates beside times.

        @triton.jit(launch_metadata=launch_metadata("h200"))
        def _attn_fwd(...): ...

    Triton calls it at each launch while Proton listens, with the grid, the kernel's metadata and its arguments
    by name, and takes a dictionary: `name`, `bytes`, and `flops16` or another width (triton-lang/triton,
    python/triton/compiler/compiler.py and third_party/proton). Launches of one shape are predicted once.

    Args:
        gpu, problem, names, kernel: as those of `TritonModel`.
        level: whose bytes are reported: "hbm", or "l2" for those between SMs and L2.

    Raises:
        InputError: the GPU or the level is not known.
    """
    model = TritonModel(gpu, problem=problem, names=names, kernel=kernel)
    if level not in LEVELS:
        raise InputError(f"`level` '{level}' is not known; accepted: {', '.join(LEVELS)}")

    @lru_cache(REMEMBERED)
    def predicted(
        problem: AttentionProblem, config: Config, grid: tuple[int, ...]
    ) -> tuple[int, int]:
        # The grid decides the order of tiles, and with it what the L2 keeps.
        schedule, persistent = schedule_of(grid, problem, config.tile)
        described = configured(config, problem, model.profile, kernel)
        prediction = predict(
            problem, described.with_(schedule=schedule, persistent_ctas=persistent), model.profile
        )
        return prediction.total(level, "read") + prediction.total(level, "write"), prediction.flops

    def metadata(grid: Sequence[int], compiled: Any, args: dict[str, Any]) -> dict[str, Any]:
        problem = model.problem(args)
        config = model.config(
            {**args, "num_warps": compiled.num_warps, "num_stages": compiled.num_stages}
        )
        bytes_, flops = predicted(problem, config, tuple(int(side) for side in grid))
        sizes = f"batch={problem.batch}, heads={problem.heads}, tokens={problem.seq_q}, head_dim={problem.head_dim}"
        width = problem.input_type.bytes * BITS_PER_BYTE
        return {"name": f"{compiled.name} [{sizes}]", f"flops{width}": flops, "bytes": bytes_}

    return metadata
