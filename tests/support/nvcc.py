"""What nvcc makes of a kernel, where it is there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sm90 import CC, Sm90Spec

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.evidence.cuda import compiler
from iosim.evidence.cuda.compiler import find_nvcc


def nvcc_or_skip() -> Path:
    try:
        return find_nvcc()
    except InputError as error:
        pytest.skip(str(error))


def assembler_report(spec: Sm90Spec, directory: Path) -> str:
    """What nvcc and its assembler say of an instantiation; they must accept it."""
    macros = [f"-D{name}={value}" for name, value in spec.defines().items()]
    source = data_dir("kernels") / spec.source
    cubin = directory / f"{abs(hash(spec))}.cubin"
    command = [
        nvcc_or_skip(),
        "-std=c++17",
        "-O3",
        *compiler.architecture(CC),
        "-cubin",
        "-Xptxas",
        "-v",
        *macros,
    ]
    run = subprocess.run(
        [*command, source, "-o", cubin], capture_output=True, text=True, check=False
    )
    cubin.unlink(missing_ok=True)
    assert run.returncode == 0, f"{spec}: {run.stderr}"
    return run.stderr + run.stdout
