"""A small kernel, compiled and listed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from nvcc import nvcc_or_skip

from iosim.base.errors import InputError
from iosim.code import tools
from iosim.code.module import Function, Module

SOURCE = """
extern "C" __global__ void __launch_bounds__(128) column(const float* x, float* y, int n) {
    __shared__ float tile[32][32];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 128) sum += x[i];
    tile[threadIdx.x % 32][threadIdx.x / 32] = sum;
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x / 32][threadIdx.x % 32];
}
"""


LISTING = """
// function loop cc=90 registers=24 frame=8 shared=1024 threads=128
/*0000*/ MOV R3, RZ ;  // c=0x7e2
.L_x_10:
/*0010*/ LDG.E R5, desc[UR8][R4.64] ;  // c=0x742 p=57 a.cu:3
/*0020*/ FADD R3, R3, R5 ;  // c=0x27e4 a.cu:3
/*0030*/ @!P0 BRA `(.L_x_10) ;  // c=0x7ea
/*0040*/ EXIT ;  // c=0x7f5
"""


def built(folder: Path, *options: str, name: str = "code.cubin", arch: str = "sm_90") -> Path:
    source, file = folder / "code.cu", folder / name
    source.write_text(SOURCE, encoding="utf-8")
    subprocess.run(
        [nvcc_or_skip(), f"-arch={arch}", *options, source, "-o", file],
        check=True,
        capture_output=True,
    )
    return file


def tool_or_skip() -> None:
    for name in ("nvdisasm", "cuobjdump"):
        try:
            tools.find_tool(name)
        except InputError as error:
            pytest.skip(str(error))


def only(module: Module) -> Function:
    assert module.names == ("column",)
    return module.function("column")
