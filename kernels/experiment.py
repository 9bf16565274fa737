"""What the experiments of this folder share: compiling a source for this machine's GPU, and a table's provenance."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iosim.errors import InputError
from iosim.files import write_whole
from iosim.kernelbuild import driver
from iosim.kernelbuild.compiler import compiler_version, find_nvcc


def compiled(source: Path, cubin: Path, defines: Mapping[str, Any] | None = None) -> Path:
    """Compiles a source to `cubin`; gives `cubin`.

    Raises:
        InputError: no nvcc, or what it says.
    """
    flags = [f"-D{name}={value}" for name, value in (defines or {}).items()]
    architecture = "sm_" + driver.compute_capability().replace(".", "")
    command = [
        str(find_nvcc()),
        f"-arch={architecture}",
        "-std=c++17",
        "-O3",
        "-cubin",
        *flags,
        "-o",
        str(cubin),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"nvcc: {done.stderr.strip().splitlines()[-1]}")
    return cubin


def write_provenance(out: Path, command: str, **more: str) -> None:
    """Writes FILE.provenance.toml beside a table: GPU, driver, compiler, day, command, and `more`."""
    told = {
        "gpu": driver.device_name(), "driver": driver.driver_version(), "cuda_compiler": compiler_version(find_nvcc()),
        "date": datetime.date.today().isoformat(), "command": command, **more,
    }  # fmt: skip
    write_whole(out.with_suffix(".provenance.toml"), "".join(f"{k} = {json.dumps(v)}\n" for k, v in told.items()))
