"""Problems, kernels and launches whose times tests ask for."""

from __future__ import annotations

from iosim.catalog.algorithms import plan
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Launch
from iosim.kernel.unit import MatrixUnit
from iosim.problem.attention import AttentionProblem


def problem(**values: object) -> AttentionProblem:
    return AttentionProblem(
        **({"heads": 32, "seq_q": 4096, "head_dim": 128, "dtype": "bf16"} | values)
    )  # type: ignore[arg-type]


def flash(tile: Tile, unit: MatrixUnit = MatrixUnit.MMA_SYNC, **values: object) -> Kernel:
    return Kernel("flash", "flash", tile, matrix_unit=unit, **values)  # type: ignore[arg-type]


def launch(tile: Tile, **values: object) -> Launch:
    return plan(problem(**values), flash(tile)).launches[0]
