"""Predicted bytes and FLOPs for Proton, Triton's profiler, so that it prints rates beside times.

    @triton.jit(launch_metadata=launch_metadata("h200"))
    def _attn_fwd(...): ...

Triton calls the function at each launch while Proton listens, with the grid, the kernel's metadata and its arguments by
name, and takes a dictionary: `name`, `bytes`, and `flops16` or another width (triton-lang/triton,
python/triton/compiler/compiler.py and third_party/proton). NB: `bytes` are those of HBM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from iosim.base.errors import InputError
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.integrations.triton.arguments import ProblemOf, tutorial_problem
from iosim.integrations.triton.compiled import schedule_of
from iosim.integrations.triton.kernel import KERNEL, Config, configured
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem

LaunchMetadata = Callable[[Sequence[int], Any, dict[str, Any]], dict[str, Any]]
LEVELS = ("hbm", "l2")
REMEMBERED = 256
BITS_PER_BYTE = 8


def launch_metadata(
    gpu: str | HardwareProfile, *, problem: AttentionProblem | ProblemOf = tutorial_problem,
    names: tuple[str, str] = ("BLOCK_M", "BLOCK_N"), kernel: str = KERNEL, level: str = "hbm",
) -> LaunchMetadata:  # fmt: skip
    """A function for `triton.jit(launch_metadata=...)`. Launches of one shape are predicted once.

    Args:
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        problem: what is computed, or a function that tells it from the kernel's arguments by name.
        names: the meta-parameters that hold query rows and key rows of a tile.
        kernel: the catalog's entry for the kernel: `triton` or `triton-streaming`.
        level: whose bytes are reported: "hbm", or "l2" for those between SMs and L2.

    Raises:
        InputError: the GPU or the level is not known.
    """
    profile = load_profile(gpu) if isinstance(gpu, str) else gpu
    if level not in LEVELS:
        raise InputError(f"`level` '{level}' is not known; accepted: {', '.join(LEVELS)}")

    @lru_cache(REMEMBERED)
    def predicted(asked: AttentionProblem, config: Config, grid: tuple[int, ...]) -> tuple[int, int]:
        schedule, persistent = schedule_of(grid, asked, config.tile)
        described = configured(config, asked, profile, kernel).with_(schedule=schedule, persistent_ctas=persistent)
        found = predict(asked, described, profile)
        return found.total(level, "read") + found.total(level, "write"), found.flops

    def metadata(grid: Sequence[int], compiled: Any, args: dict[str, Any]) -> dict[str, Any]:
        asked = problem if isinstance(problem, AttentionProblem) else problem(args)
        missing = [n for n in names if n not in args]
        if missing:
            raise InputError(f"the kernel's arguments lack {', '.join(missing)}; `names` is {names}")
        block_m, block_n = (int(args[n]) for n in names)
        config = Config(block_m, block_n, int(compiled.num_warps), int(compiled.num_stages))
        bytes_, flops = predicted(asked, config, tuple(int(side) for side in grid))
        sizes = f"batch={asked.batch}, heads={asked.heads}, tokens={asked.seq_q}, head_dim={asked.head_dim}"
        width = asked.input_type.bytes * BITS_PER_BYTE
        return {"name": f"{compiled.name} [{sizes}]", f"flops{width}": flops, "bytes": bytes_}

    return metadata
