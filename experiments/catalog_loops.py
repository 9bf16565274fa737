"""What kernels of the catalog are compiled to, whose source can be had: their loops over keys, counted in machine code.

    python experiments/catalog_loops.py --out catalog_loops.csv --minimal flash.cu

Needs nvcc, nvdisasm and Triton, and no GPU. A row is a build: this project's CUDA kernels as `iosim measure` builds
them, flash-attention-minimal out of its published file (of which the host's part is left out, compiled with the options
of its bench.py), and the forward with the arguments of Triton's tutorial, by the tile that the catalog has. Columns
behind `source` are those of pytorch_loops.csv: a warp's counts in a turn of the loop. Loops inside it whose turns are
decided at run time count as one turn, as `not_read` says.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sm90 import CC as HOPPER
from sm90 import fastest
from sm90_bwd import fastest_backward
from user_kernels import LOOPS, loop_row

from iosim import AttentionProblem, InputError, load_profile, resolve
from iosim.code.counts import key_loop, product_loops
from iosim.code.loops import Flow, Loop
from iosim.code.module import Function, read_module
from iosim.evidence.cuda.compiler import build, find_nvcc
from iosim.evidence.cuda.spec import BwdSpec, FwdSpec, MinimalSpec, Spec
from iosim.evidence.cuda.tile_builds import tuned

GPUS = {75: "t4", 80: "a100-sxm-80gb", 90: "h200-sxm"}
"""A GPU of each compute capability, for which the catalog's tile is taken."""
TOKENS, MASKS = 2048, ("none", "causal")
COLUMNS = ("catalog", "pass", "head_dim", "dtype", "mask", "source", *LOOPS)
PUBLISHED_END = "torch::Tensor forward"
"""Where the host's part of the published file begins."""


class Build(NamedTuple):
    catalog: str
    direction: str
    head_dim: int
    dtype: str
    mask: str
    cc: int

    def problem(self) -> AttentionProblem:
        return AttentionProblem(
            batch=2,
            heads=8,
            seq_q=TOKENS,
            seq_k=TOKENS,
            head_dim=self.head_dim,
            dtype=self.dtype,
            mask=self.mask,
            passes=self.direction,
        )


def own_builds() -> Iterator[tuple[Build, Spec, str]]:
    """This project's builds: what the catalog says of each, its instantiation, its compute capability for nvcc."""
    for cc in GPUS:
        yield Build("minimal-cu", "fwd", 64, "fp32", "none", cc), MinimalSpec(64), f"{cc / 10}"
    for cc in (80, 90):
        for head_dim in (64, 128, 256):
            for mask in MASKS:
                build = Build("flash-cu", "fwd", head_dim, "bf16", mask, cc)
                tile = resolve("flash-cu", build.problem(), load_profile(GPUS[cc])).tile
                spec = FwdSpec(
                    head_dim, tile.block_q, tile.block_k, tile.warps, tile.stages, mask, "bf16"
                )
                yield build, tuned(spec, f"{cc / 10}"), f"{cc / 10}"
        for head_dim in (64, 128):
            for mask in MASKS:
                build = Build("flash-cu", "bwd", head_dim, "bf16", mask, cc)
                tile = resolve("flash-cu", build.problem(), load_profile(GPUS[cc])).tile_backward
                back = BwdSpec(head_dim, tile.block_q, tile.block_k, tile.warps, mask, "bf16")
                yield build, back, f"{cc / 10}"
    for mask in MASKS:
        for head_dim in (64, 128, 256):
            build = Build("flash-sm90", "fwd", head_dim, "bf16", mask, 90)
            yield build, fastest(head_dim, mask), HOPPER
        for head_dim in (64, 128):
            build = Build("flash-sm90", "bwd", head_dim, "bf16", mask, 90)
            yield build, fastest_backward(head_dim, mask), HOPPER


def published_minimal(source: Path, cc: int, folder: Path) -> Function:
    """The kernel of flash-attention-minimal's flash.cu, compiled."""
    device = source.read_text(encoding="utf-8").split(PUBLISHED_END)[0]
    file, cubin = folder / "flash.cu", folder / f"minimal_{cc}.cubin"
    file.write_text(device.replace("#include <torch/types.h>", ""), encoding="utf-8")
    command = [find_nvcc(), "-O2", "-std=c++17", f"-arch=sm_{cc}", "-cubin", file, "-o", cubin]
    subprocess.run(command, check=True)
    return read_module(cubin).function("forward_kernel")


def triton_forward(build: Build) -> Function:
    """The forward with the tutorial's arguments, compiled for the catalog's tile."""
    from iosim.integrations.triton.compiled import compile_for
    from iosim.integrations.triton.forward import flash_forward

    tile = resolve("triton", build.problem(), load_profile(GPUS[build.cc])).tile
    tensors = dict.fromkeys(["Q", "K", "V", "Out"], "*fp16")
    sizes = {"sm_scale": "fp32", "Z": "i32", "H": "i32", "N_CTX": "i32", "M": "*fp32"}
    constants = {
        "HEAD_DIM": build.head_dim,
        "BLOCK_M": tile.block_q,
        "BLOCK_N": tile.block_k,
        "STAGE": 3 if build.mask == "causal" else 1,
    }
    compiled = compile_for(
        flash_forward, {**tensors, **sizes, **constants}, GPUS[build.cc], tile.warps, tile.stages
    )
    return read_module(compiled).function("flash_forward")


def step_loop(flow: Flow) -> Loop | None:
    """The loop over keys of a persistent kernel: innermost of those with products, whose tiles are a loop around it."""
    loops = product_loops(flow, flow.function.cc)
    parents = {loop.parent for loop in loops}
    inner = [loop for loop in loops if loop.header not in parents]
    return max(inner, key=lambda loop: len(list(flow.numbers(loop))), default=None)


def rows(minimal: Path | None) -> Iterator[dict[str, Any]]:
    def row(build: Build, source: str, function: Function) -> dict[str, Any]:
        names = dict(zip(COLUMNS, (*build[:5], source), strict=False))
        persistent = build.catalog == "flash-sm90"
        return {**names, **loop_row(function, step_loop if persistent else key_loop)}

    for own_build, spec, cc in own_builds():
        functions = {f.name: f for f in read_module(build(spec, cc).cubin).functions}
        yield row(own_build, f"kernels/{spec.source}", functions[spec.functions[0]])
    for cc in GPUS if minimal else ():
        assert minimal is not None
        with tempfile.TemporaryDirectory() as folder:
            function = published_minimal(minimal, cc, Path(folder))
        own_build = Build("minimal", "fwd", 64, "fp32", "none", cc)
        yield row(own_build, "tspeterkim/flash-attention-minimal @00f8f467, flash.cu", function)
    for cc in GPUS:
        for head_dim in (64, 128):
            for mask in MASKS:
                own_build = Build("triton", "fwd", head_dim, "fp16", mask, cc)
                yield row(
                    own_build, "iosim/integrations/triton/forward.py", triton_forward(own_build)
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minimal", type=Path, help="the published flash.cu")
    request = parser.parse_args()
    counted = list(rows(request.minimal))
    with request.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(counted)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"catalog_loops: {error}") from None
