"""Rankings of tiles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from iosim.base.errors import InputError
from iosim.problem.attention import AttentionProblem
from iosim.studies.tiles.pick import (
    TileCandidate,
    TileRanking,
    backward_shared_bytes,
    pick_tiles,
    tile_space,
)

CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "long": ({"heads": 8, "seq_q": 4096, "head_dim": 128, "dtype": "bf16"}, "a100", "mma.sync"),
    "causal": (
        {"heads": 4, "seq_q": 1000, "head_dim": 64, "dtype": "fp16", "mask": "causal"},
        "l4",
        "mma.sync",
    ),
    "wgmma": (
        {"heads": 16, "kv_heads": 4, "seq_q": 2048, "head_dim": 128, "dtype": "bf16"},
        "h100",
        "wgmma",
    ),
    "backward": (
        {"heads": 4, "seq_q": 1024, "head_dim": 64, "dtype": "fp16", "passes": "bwd"},
        "a100",
        "mma.sync",
    ),
    "fp32": ({"heads": 2, "seq_q": 512, "head_dim": 64, "dtype": "fp32"}, "v100", "mma.sync"),
    "wide": (
        {"heads": 2, "seq_q": 777, "seq_k": 333, "head_dim": 256, "dtype": "fp16"},
        "t4",
        "mma.sync",
    ),
    "decode": (
        {"batch": 8, "heads": 32, "seq_q": 1, "seq_k": 4096, "head_dim": 128, "dtype": "fp16"},
        "a100",
        "mma.sync",
    ),
    "odd": (
        {"heads": 3, "seq_q": 200, "head_dim": 72, "head_dim_v": 40, "dtype": "bf16"},
        "rtx-4090",
        "mma.sync",
    ),
}
FIRST = 12
LIBRARY = (
    "cudnn",
    "cudnn-oss-sm80",
    "cudnn-sm80",
    "cutlass",
    "fa2",
    "fa3",
    "fa3-sm80",
    "fa4-sm80",
    "fa4-sm90",
    "flash-attn",
    "flash-sm90",
    "flashinfer",
    "flashinfer-decode",
    "flex",
    "ibm-triton",
    "sglang-fa3",
    "triton",
    "triton-streaming",
    "vllm-fa2",
    "vllm-fa3",
    "vllm-triton",
    "xqa",
)
"""Kernels of libraries whose rows are recorded: one that is added moves none, and has a recording of its own."""


def told(candidate: TileCandidate) -> list[Any]:
    data = candidate.to_dict()
    return [data.pop("kernel"), *data.values()]


def ranked(ranking: TileRanking) -> dict[str, Any]:
    return {
        "order": [f"{c.tile} {c.tile.warps} {c.tile.stages}" for c in ranking.candidates],
        "first": [told(c) for c in ranking.candidates[:FIRST]],
        "sums": [
            sum(c.time_s for c in ranking.candidates),
            sum(c.waves for c in ranking.candidates),
            sum(c.registers for c in ranking.candidates),
            sum(c.shared_memory_bytes or 0 for c in ranking.candidates),
        ],
        "rejected": [f"{r.tile} {r.tile.warps} {r.tile.stages}" for r in ranking.rejected],
        "library": [told(c) for c in ranking.library if c.to_dict()["kernel"] in LIBRARY],
    }


def cases() -> Iterator[tuple[str, Any]]:
    for gpu, dtype, unit, passes in product(
        ("v100", "t4", "a100", "l4", "h100", "b200"),
        ("fp16", "bf16", "tf32", "fp32", "fp8"),
        ("mma.sync", "wgmma"),
        ("fwd", "fwd+bwd"),
    ):
        problem = AttentionProblem(heads=2, seq_q=64, head_dim=32, dtype=dtype, passes=passes)
        try:
            tiles = pick_tiles(problem, gpu, matrix_unit=unit, library=False)
            yield (
                f"takes {gpu} {dtype} {unit} {passes}",
                [len(tiles.candidates), tiles.best.time_s, len(tiles.library)],
            )
        except InputError:
            yield f"takes {gpu} {dtype} {unit} {passes}", "refused"
    none = pick_tiles(AttentionProblem(heads=1, seq_q=64, head_dim=1024, dtype="fp16"), "t4")
    yield "none fits", [len(none.candidates), [r.to_dict()["block_q"] for r in none.rejected]]
    for name, (values, gpu, unit) in CASES.items():
        yield name, ranked(pick_tiles(AttentionProblem(**values), gpu, matrix_unit=unit))
    problem = AttentionProblem(**CASES["odd"][0])
    yield "backward shared memory", [backward_shared_bytes(problem, t) for t in tile_space()]
