"""Loops over keys of PyTorch's attention kernels compiled from their sources, beside those of its library.

    python experiments/source_loops.py --torch INCLUDE --cutlass CUTLASS [--flash FLASH] [--include FOLDER]
    python experiments/source_loops.py ... --write     writes experiments/measurements/source_loops.csv, too

INCLUDE is torch/include of any wheel of PyTorch, CPU or not: it holds the headers of the memory-efficient kernel. CUTLASS is
a checkout of NVIDIA/cutlass, FLASH one of Dao-AILab/flash-attention (its submodule names CUTLASS's commit); --include is a
folder with curand_kernel.h, where nvcc has none. A kernel takes 10 s to a minute of one core and 3 GB; no GPU is needed.

Each is compiled for cc 7.5 or 8.0 by nvcc -DNDEBUG and counted by `iosim.code`; the library's row is that of
pytorch_loops.csv. `plain` builds of the memory-efficient kernel lack bias and dropout, whose ways a call without them
leaves out; `package` ones of FlashAttention-2 have the options of its own package.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from user_kernels import loop_row

from iosim.base.files import write_whole
from iosim.code.module import read_module
from iosim.evidence.cuda.compiler import find_nvcc

RECORDED = Path(__file__).resolve().parent / "measurements"
TABLE = "source_loops.csv"
COUNTS = ("registers", "frame", "turn", "products", "ex2", "other_special", "fp32", "integer", "conversions", "barriers",
          "local_load_bytes", "local_store_bytes", "shared_loads", "shared_stores", "global_synchronous",
          "global_asynchronous", "groups_ahead")  # fmt: skip
COLUMNS = ("kernel", "cc", "head_dim", "tile", "mask", "build", *COUNTS)
OPTIONS = (
    "-O3",
    "-std=c++17",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    "-cubin",
)
PACKAGE_OPTIONS = (
    "--use_fast_math",
    *(f"-U__CUDA_NO_{name}__" for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")),
)  # fmt: skip
"""What flash-attention's setup.py has beside these; PyTorch builds without."""
EFFICIENT = """
#include <ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h>
using Kernel = PyTorchMemEffAttention::AttentionKernel<
    cutlass::half_t, cutlass::arch::Sm{cc}, true, {block_q}, {block_k}, {head_dim}, {ways}, {ways}>;
extern "C" __global__ void __launch_bounds__(Kernel::kNumThreads, Kernel::kMinBlocksPerSm)
forward(typename Kernel::Params params) {{
  if (params.advance_to_block()) Kernel::attention_kernel(params);
}}
"""
FLASH = """
#include "namespace_config.h"
#include "flash.h"
#include "flash_fwd_kernel.h"
#include "kernel_traits.h"
using namespace FLASH_NAMESPACE;
using Traits = Flash_fwd_kernel_traits<{head_dim}, {block_q}, {block_k}, {warps}, false, false, cutlass::half_t>;
extern "C" __global__ void forward(__grid_constant__ const Flash_fwd_params params) {{
  compute_attn<Traits, false, {causal}, false, false, true, true, false, false>(params);
}}
"""


class Build(NamedTuple):
    kernel: str
    cc: int
    head_dim: int
    block_q: int
    block_k: int
    causal: bool = False
    plain: bool = False
    package: bool = False
    warps: int = 4

    @property
    def build(self) -> str:
        """ "source" where it is built as PyTorch does, "package" as flash-attn's own package, "plain" as above."""
        if self.package:
            return "package"
        return "plain" if self.plain else "source"

    @property
    def source(self) -> str:
        """A translation unit with this build alone."""
        words = {"causal": str(self.causal).lower(), "ways": str(not self.plain).lower()}
        text = FLASH if self.kernel == "fa2" else EFFICIENT
        return text.format(**self._asdict() | words)

    @property
    def name(self) -> re.Pattern[str]:
        """What the library's symbol of it looks like."""
        sizes = f"{self.block_q}x{self.block_k}"
        if self.kernel == "cutlass":
            return re.compile(rf"fmha_cutlassF_f16_aligned_{sizes}_rf_sm{self.cc}")
        traits = f"ILi{self.head_dim}ELi{self.block_q}ELi{self.block_k}ELi{self.warps}E"
        flags = "".join(f"Lb{int(flag)}E" for flag in (0, self.causal, 0, 0, 1, 1, 0, 0))
        return re.compile(rf"flash_fwd_kernel\w*traits{traits}\w*half_tE\w*?EE{flags}EEv")

    def row(self, counted: Mapping[str, Any], build: str) -> dict[str, Any]:
        return {
            "kernel": self.kernel, "cc": self.cc, "head_dim": self.head_dim, "tile": f"{self.block_q}x{self.block_k}",
            "mask": "causal" if self.causal else "none", "build": build,
            **{name: counted[name] for name in COUNTS},
        }  # fmt: skip


BY_HAND = "fa3"
"""Rows that stay as they are: FlashAttention-3 in fp8 (run_flash_fwd<90, ..., causal, varlen, PagedKVNonTMA>, its setup's
options), five steps a turn; `two-level` with tile_size.h and utils.h's gemm of vllm-project/flash-attention."""

EFFICIENT_BUILDS = tuple(
    Build("cutlass", cc, head_dim, *tile, plain=plain)
    for cc, head_dim, tile in (
        (75, 64, (64, 64)),
        (75, 128, (32, 128)),
        (80, 64, (64, 64)),
        (80, 128, (64, 128)),
    )
    for plain in (False, True)
)
FLASH_BUILDS = tuple(
    Build("fa2", 80, head_dim, 128, block_k) for head_dim, block_k in ((64, 128), (128, 64))
)
PACKAGE_BUILDS = tuple(
    Build("fa2", cc, head_dim, *tile, causal=causal, package=True, warps=warps)
    for cc, head_dim, tile, causal, warps in (
        (80, 32, (128, 128), False, 4),
        (80, 64, (128, 128), False, 4),
        (80, 96, (128, 64), False, 4),
        (80, 128, (128, 64), False, 4),
        (80, 192, (128, 64), False, 8),
        (80, 256, (128, 64), False, 8),
        (89, 32, (128, 128), False, 4),
        (89, 64, (128, 128), False, 4),
        (89, 96, (128, 64), False, 4),
        (89, 96, (64, 64), True, 4),
        (89, 128, (128, 32), False, 4),
        (89, 128, (64, 64), True, 4),
        (89, 192, (128, 64), False, 8),
        (89, 256, (64, 64), False, 4),
        (90, 64, (128, 128), False, 4),
        (90, 128, (128, 64), False, 4),
    )
)
"""The tiles that flash_fwd_launch_template.h takes, by compute capability."""


def compiled(build: Build, includes: Sequence[Path]) -> dict[str, Any]:
    """The loop over keys of a build."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # A header that CMake makes, which wheels without CUDA lack; nothing of it is read here.
        made = folder / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
        made.parent.mkdir(parents=True)
        made.write_text("", encoding="utf-8")
        source, out = folder / "build.cu", folder / "build.cubin"
        source.write_text(build.source, encoding="utf-8")
        own = PACKAGE_OPTIONS if build.package else ()
        command = [str(find_nvcc()), *OPTIONS, *own, f"-arch=sm_{build.cc}", f"-I{folder}",
                   *(f"-I{include}" for include in includes), str(source), "-o", str(out)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"nvcc does not compile {build}:\n{done.stderr[-2000:]}")
        return loop_row(read_module(out).function("forward"))


def library() -> list[dict[str, str]]:
    with (RECORDED / "pytorch_loops.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def of_library(build: Build) -> dict[str, Any] | None:
    """The library's row of a build; None of one that it does not have."""
    found = (row for row in library() if build.name.search(row["kernel"]))
    return next(found, None) if build.build == "source" else None


def recorded() -> list[dict[str, str]]:
    with (RECORDED / TABLE).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", type=Path, required=True, help="torch/include of a wheel")
    parser.add_argument("--cutlass", type=Path, required=True, help="a checkout of NVIDIA/cutlass")
    parser.add_argument("--flash", type=Path, help="a checkout of Dao-AILab/flash-attention")
    parser.add_argument("--include", type=Path, action="append", default=[], help="more headers")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE}")
    asked = parser.parse_args()
    includes = [
        asked.torch,
        asked.torch / "torch" / "csrc" / "api" / "include",
        asked.cutlass / "include",
    ]
    includes += asked.include
    builds = EFFICIENT_BUILDS
    if asked.flash is not None:
        includes.append(asked.flash / "csrc" / "flash_attn" / "src")
        builds += FLASH_BUILDS + PACKAGE_BUILDS
    rows = []
    print(",".join(COLUMNS))
    for build in builds:
        found = {build.build: compiled(build, includes)}
        of_build = of_library(build)
        found |= {} if of_build is None else {"library": of_build}
        for name, counted in found.items():
            rows.append(build.row(counted, name))
            print(",".join(str(cell) for cell in rows[-1].values()), flush=True)
    if asked.write:
        rows += [row for row in recorded() if row["kernel"] == BY_HAND]
        lines = [",".join(COLUMNS), *(",".join(map(str, row.values())) for row in rows)]
        write_whole(RECORDED / TABLE, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
