"""What kernels' code says: bytes of each place that moves them, units of each loop, times with and without each cost.

The kernels of examples/kernels/plain.cu, a Triton forward and a few small ones, as tests/code/ptx has them: PTX with the
listing of its machine code beside it, so that no compiler is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from iosim.studies.code_costs import costs_of_code
from iosim.studies.requests import CodeRequest

FOLDER = Path(__file__).resolve().parent.parent / "code" / "ptx"
SQUARE = "in=TENSOR(512x512,fp32) out=TENSOR(512x512,fp32) rows=512 columns=512"
LAUNCHES = {
    "column_store": ("plain", "16,16", "32,8", SQUARE),
    "column_read": ("plain", "16,16", "32,8", SQUARE),
    "spilling_tile": (
        "plain",
        "66",
        "128",
        "a=TENSOR(8448x128,fp32) b=TENSOR(128x96,fp32) out=TENSOR(8448x96,fp32) depth=128",
    ),
    "rms_norm": (
        "plain",
        "300",
        "256",
        "x=TENSOR(300x1000,fp32) weight=TENSOR(1000,fp32) out=TENSOR(300x1000,fp32) columns=1000 epsilon=1e-6",
    ),
    "matrix_product": (
        "plain",
        "4,6",
        "32,32",
        "a=TENSOR(192x100,fp32) b=TENSOR(100x128,fp32) c=TENSOR(192x128,fp32) columns=128 depth=100",
    ),
    "flash_forward": (
        "flash_forward",
        "8,3",
        "128",
        "scale=0.1 M=TENSOR(3x500,fp32) Z=1 H=3 Q=TENSOR(1x3x500x64,bf16) K=TENSOR(1x3x500x64,bf16) "
        "V=TENSOR(1x3x500x64,bf16) Out=TENSOR(1x3x500x64,bf16) N=500",
    ),
    "staged": ("small", "7", None, "x=TENSOR(70x160,fp32) out=TENSOR(7x80,fp32) rows=5"),
    "narrow": (
        "small",
        "3",
        "64",
        "x=TENSOR(140x512,fp8) out=TENSOR(140x2,fp16) counts=TENSOR(64,int32) n=140",
    ),
    "split_columns": (
        "small",
        "3,2",
        None,
        "x=TENSOR(192x50,fp32) out=TENSOR(192x2,fp32) columns=50 parts=2",
    ),
}
"""Kernel -> (file, CTAs, threads of a CTA, arguments): whole tiles and ragged ones."""
GPU = "h100"


def parts_of(launch: Any) -> dict[str, list[float]]:
    """What a launch stores in parts, by tensor."""
    return {
        name: [getattr(parts, f.name) for f in fields(parts)]
        for name, parts in launch.touched.in_parts.items()
    }


def said(entry: str) -> dict[str, Any]:
    """What is said of a kernel's launch: its costs, and what it moves."""
    file, grid, block, arguments = LAUNCHES[entry]
    request = CodeRequest(
        code=str(FOLDER / f"{file}.sass"),
        entry=entry,
        grid=grid,
        block=block,
        arg=tuple(arguments.split()),
        gpu=GPU,
    )
    costs = costs_of_code(request)
    prediction, work = costs.prediction, costs.prediction.work
    return {
        "costs": costs.to_dict(),
        "moved": prediction.to_dict(),
        "said": [prediction.answer, prediction.body] if file == "small" else [],
        "overheads": [
            [str(o.mode), o.per_tile, o.frame, o.parts] for o in prediction.launch.launch.overheads
        ],
        "wavefronts": dict(work.wavefronts) if work else {},
        "in parts": parts_of(prediction.launch.launch),
    }


def cases() -> Iterator[tuple[str, Any]]:
    for entry in LAUNCHES:
        yield entry, said(entry)
