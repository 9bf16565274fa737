"""The kernels of examples/kernels as compilers make them, where these are there."""

from __future__ import annotations

import importlib.util
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from nvcc import nvcc_or_skip
from scripts import ROOT

from iosim.base.errors import InputError
from iosim.code.module import Function, read_module
from iosim.code.tools import find_tool

KERNELS = ROOT / "examples" / "kernels"
POINTERS = {"fp32": "*fp32", "fp16": "*fp16", "bf16": "*bf16"}


@cache
def cases() -> dict[str, dict[str, Any]]:
    """The launches of cases.toml, by name."""
    return {
        case["name"]: case for case in tomllib.loads((KERNELS / "cases.toml").read_text())["case"]
    }


def tools_or_skip() -> None:
    try:
        find_tool("nvdisasm")
    except InputError as error:
        pytest.skip(str(error))


def plain_cubin(folder: Path, arch: str = "sm_90", source: Path = KERNELS / "plain.cu") -> Path:
    """The CUDA kernels, compiled with lines of their source."""
    tools_or_skip()
    out = folder / f"plain-{arch}.cubin"
    if not out.exists():
        command = [
            nvcc_or_skip(),
            "-O3",
            "-std=c++17",
            f"-arch={arch}",
            "-lineinfo",
            "-cubin",
            source,
            "-o",
            out,
        ]
        subprocess.run(command, check=True, capture_output=True)
    return out


def triton_kernel(name: str, gpu: str = "h100") -> Any:
    """A case's Triton kernel, compiled for a GPU that is not there."""
    pytest.importorskip("triton")
    tools_or_skip()
    from iosim.integrations.triton.compiled import compile_for

    case = cases()[name]
    spec = importlib.util.spec_from_file_location("plain_kernels", KERNELS / case["file"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments = {
        n: POINTERS[v.split()[0]] if isinstance(v, str) else v for n, v in case["arguments"].items()
    }
    fn = getattr(module, case["entry"])
    return compile_for(fn, arguments | case["constants"], gpu, case["warps"], case["stages"])


def function_of(name: str, folder: Path, gpu: str = "h100", arch: str = "sm_90") -> Function:
    """A case's machine code."""
    case = cases()[name]
    if case["file"].endswith(".py"):
        return read_module(triton_kernel(name, gpu)).function()
    return read_module(plain_cubin(folder, arch)).function(case["entry"])
