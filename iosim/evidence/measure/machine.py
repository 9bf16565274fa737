"""What a measurement needs on the machine, asked for before anything runs, and what the machine is, for provenance."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.files import write_whole
from iosim.base.schema import read_toml, toml_key, toml_text
from iosim.evidence.cuda import driver
from iosim.evidence.cuda.compiler import build, compiler_version, find_nvcc
from iosim.evidence.cuda.ncu import find_ncu
from iosim.evidence.cuda.spec import Spec


def require(*, profiler: bool, torch: bool = True) -> str:
    """Checks for a compiler, a driver, a GPU, PyTorch with CUDA, and the profiler; gives the compute capability.
    Raises InputError where one is missing."""
    find_nvcc()
    driver.use_device()
    if profiler:
        find_ncu()
    if torch:
        if find_spec("torch") is None:
            raise InputError(
                "no PyTorch: inputs and the float64 reference are made with it; accepted: torch with CUDA"
            )
        from torch import __version__, cuda

        if not cuda.is_available():
            raise InputError(
                f"PyTorch {__version__} here finds no GPU; accepted: torch built for CUDA"
            )
    return driver.compute_capability()


def prebuild(specs: Iterable[Spec], cc: str) -> None:
    """Compiles all specs, in parallel; what the assembler warns of is told on stderr, a line an instantiation."""
    distinct = list(dict.fromkeys(specs))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        builds = list(pool.map(lambda spec: build(spec, cc), distinct))
    for spec, built in zip(distinct, builds, strict=True):
        if built.warnings:
            print(f"iosim: {spec}: {'; '.join(built.warnings)}", file=sys.stderr)


def facts() -> dict[str, str]:
    query = "name,driver_version,vbios_version,clocks.max.sm,clocks.max.mem"
    gpu = (
        _said(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"])
        or driver.properties()["gpu"]
    )
    versions = {
        "pytorch": _version("torch"),
        "iosim": _version("iosim"),
        "date": datetime.date.today().isoformat(),
    }
    return {
        "gpu": gpu,
        "gpu_query": query,
        "cuda_compiler": compiler_version(find_nvcc()),
        **versions,
    }


def profiler_version() -> str:
    return (_said([str(find_ncu()), "--version"]).splitlines() or [""])[-1]


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


PROVENANCE = "provenance.toml"
"""What measured the tables of its folder: a TOML table each, under the file's name."""


def write_provenance(table: Path, values: Mapping[str, Any]) -> None:
    """Writes what measured a table into its folder's file, in place of what stood there of it. Raises InputError
    where the folder's file is not TOML; it is left as it is."""
    place = table.parent / PROVENANCE
    provenance = read_toml(place, "provenance") if place.exists() else {}
    provenance[table.name] = {name: value for name, value in values.items() if value != ""}
    texts = []
    for file in sorted(name for name, value in provenance.items() if isinstance(value, dict)):
        lines = (
            f"{toml_key(name)} = {toml_text(value)}" for name, value in provenance[file].items()
        )
        texts.append("\n".join([f"[{toml_key(file)}]", *lines]))
    write_whole(place, "schema = 1\n\n" + "\n\n".join(texts) + "\n")
