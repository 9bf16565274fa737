"""Sweeps and the single predictions beside them."""

from __future__ import annotations

from typing import Any

from iosim.base.errors import InputError
from iosim.prediction.predictor import predict
from iosim.studies.sweep.cases import problem_of, settings_of

GRID: dict[str, Any] = {
    "gpu": ["a100", "t4"],
    "kernel": ["fa2", "flash", "naive"],
    "seq_len": [256, 500, 1024],
    "heads": [4, 8],
    "kv_heads": [4],
}


def single(case: dict[str, Any], method: str) -> tuple[dict[str, int], str | None]:
    """What `predict` says of a row: its numbers, or why it is refused."""
    try:
        p = predict(
            problem_of(case),
            case["kernel"],
            case["gpu"],
            method=method,
            overrides=settings_of(case),
        )
    except InputError as error:
        return {}, str(error)
    tile, limits = p.kernel.tile, p.hbm_bounds
    numbers = {
        "l2_read_bytes": p.total("l2", "read"),
        "l2_write_bytes": p.total("l2", "write"),
        "flops": p.flops,
        "compulsory_read_bytes": limits.compulsory_read,
        "compulsory_write_bytes": limits.compulsory_write,
        "no_l2_read_bytes": limits.no_l2_read,
        "no_l2_write_bytes": limits.no_l2_write,
        "block_q": tile.block_q,
        "block_k": tile.block_k,
        "used_warps": tile.warps,
        "used_stages": tile.stages,
        "used_splits": p.kernel.splits,
        "memory_peak_bytes": p.memory_bytes["peak"],
        "spilled_registers": max(fit.spilled_registers for fit in p.call.residencies),
    }
    if method == "capacity":
        numbers |= {
            "hbm_read_bytes": p.total("hbm", "read"),
            "hbm_write_bytes": p.total("hbm", "write"),
        }
    return numbers, None
